//! Distributions of token counts and times.

use crate::sample::Stream;
use forebay_base::Purpose;
use forebay_base::math::{exp, ln};

/// The shape of a distribution.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Always this.
    Constant(f64),
    /// Uniform from the first to the second, both included after rounding.
    Uniform(f64, f64),
    /// Normal with mean and standard deviation.
    Normal(f64, f64),
    /// Its logarithm is normal with this mean and standard deviation.
    Lognormal(f64, f64),
    /// Exponential with this mean.
    Exponential(f64),
    /// Values with their running share of the draws, up to 1, in ascending order of the values.
    Empirical(Vec<(f64, f64)>),
}

/// A distribution: a shape, and the bounds that draws are brought into.
#[derive(Clone, Debug, PartialEq)]
pub struct Dist {
    /// What is drawn from.
    pub shape: Shape,
    /// Least and greatest value; draws beyond take the bound itself.
    pub clamp: Option<(f64, f64)>,
}

impl Dist {
    /// Always `value`.
    pub fn constant(value: f64) -> Dist {
        Dist { shape: Shape::Constant(value), clamp: None }
    }

    /// From values and weights; `None` if there is no positive weight or a value or weight is negative or
    /// not a number.
    pub fn empirical(mut weights: Vec<(f64, f64)>) -> Option<Dist> {
        if weights.iter().any(|(v, w)| !(v.is_finite() && w.is_finite() && *v >= 0.0 && *w >= 0.0)) {
            return None;
        }
        weights.retain(|(_, w)| *w > 0.0);
        weights.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = weights.iter().map(|(_, w)| w).sum();
        let mut sum = 0.0;
        for (_, w) in &mut weights {
            sum += *w;
            *w = sum / total;
        }
        weights.last_mut()?.1 = 1.0;
        Some(Dist { shape: Shape::Empirical(weights), clamp: None })
    }

    /// The draw with this number, within the bounds, never negative.
    pub fn value(&self, stream: Stream, purpose: Purpose, number: u64) -> f64 {
        let unit = || stream.unit(purpose, number, 0);
        let raw = match &self.shape {
            Shape::Constant(v) => *v,
            Shape::Uniform(low, high) => low + (high - low) * unit(),
            Shape::Normal(mean, sd) => mean + sd * stream.normal(purpose, number, 0),
            Shape::Lognormal(mu, sigma) => exp(mu + sigma * stream.normal(purpose, number, 0)),
            Shape::Exponential(mean) => -mean * ln(unit()),
            Shape::Empirical(values) => {
                let u = unit();
                values.get(values.partition_point(|(_, share)| *share < u)).map_or(0.0, |(v, _)| *v)
            }
        };
        self.bounded(raw)
    }

    /// The draw as a token count: drawn, rounded, brought into the bounds, at least 1.
    pub fn tokens(&self, stream: Stream, purpose: Purpose, number: u64) -> u32 {
        let drawn = match self.shape {
            // Every whole number from the first to the second is equally likely.
            Shape::Uniform(low, high) => {
                let (low, high) = (low.round(), high.round());
                self.bounded((low + (high - low + 1.0) * stream.unit(purpose, number, 0)).floor().min(high))
            }
            _ => self.value(stream, purpose, number),
        };
        self.bounded(drawn.round()).round().max(1.0) as u32
    }

    fn bounded(&self, v: f64) -> f64 {
        let (low, high) = self.clamp.unwrap_or((0.0, f64::INFINITY));
        v.max(low).min(high)
    }
}

impl Dist {
    /// The same with every draw multiplied before it is brought into the bounds.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Dist {
        let shape = match &self.shape {
            Shape::Constant(v) => Shape::Constant(v * factor),
            Shape::Uniform(low, high) => Shape::Uniform(low * factor, high * factor),
            Shape::Normal(mean, sd) => Shape::Normal(mean * factor, sd * factor),
            Shape::Lognormal(mu, sigma) => Shape::Lognormal(mu + ln(factor), *sigma),
            Shape::Exponential(mean) => Shape::Exponential(mean * factor),
            Shape::Empirical(values) => {
                Shape::Empirical(values.iter().map(|(v, share)| (v * factor, *share)).collect())
            }
        };
        Dist { shape, clamp: self.clamp }
    }
}
