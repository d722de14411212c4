//! Percentiles with their interval, and what may be claimed of them.

use super::student::binomial_cdf;
use forebay_base::math::{ln, pow};

/// The share of requests without a value past which a percentile is undetermined.
pub const MAX_INFINITE_SHARE: f64 = 0.005;
/// Samples beyond a percentile that a claim about it needs.
pub const TAIL_FOR_CLAIM: u64 = 30;
/// Probability that an interval misses on one side.
const MISS: f64 = 0.025;

/// The rank from 1 of the `q`-quantile of `count` values: `ceil(q * count)`, at least 1 (nearest rank, type
/// 1 of Hyndman and Fan 1996). `None` without values.
pub fn rank(q: f64, count: u64) -> Option<u64> {
    if count == 0 {
        return None;
    }
    // 0.95 * 20 is 19 on paper and a hair more in binary.
    let exact = q * count as f64;
    Some(((exact - exact.abs() * 1e-12).ceil().max(1.0) as u64).min(count))
}

/// How far a percentile can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No samples.
    Empty,
    /// Too many requests have no value: see [`MAX_INFINITE_SHARE`].
    Undetermined,
    /// Fewer than [`TAIL_FOR_CLAIM`] samples lie beyond it: it is at least [`Quantile::at_least`].
    AtLeast,
    /// It may be stated, with its interval.
    Claim,
}

/// A percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantile {
    /// The samples, those without a value included.
    pub count: u64,
    /// The samples without a value, which count as infinite.
    pub infinite: u64,
    /// The sample at the percentile's rank; `None` if there is none or it is infinite.
    pub value: Option<u64>,
    /// The lower end of the 95 % interval; `None` with too few samples.
    pub low: Option<u64>,
    /// The upper end; `None` with too few samples or if it is infinite.
    pub high: Option<u64>,
    /// What it is at least, with 97.5 % confidence, or the least sample with too few samples for that.
    pub at_least: Option<u64>,
    /// How far it can be relied on.
    pub standing: Standing,
}

/// The fewest samples from which both ends of the 95 % interval of the `q`-quantile exist: 368 for the
/// 99th percentile. Both `q^n` and `(1-q)^n` have to be at most 2.5 %.
pub fn samples_for_interval(q: f64) -> u64 {
    let extreme = q.max(1.0 - q);
    if extreme >= 1.0 {
        return u64::MAX;
    }
    (ln(MISS) / ln(extreme)).ceil() as u64
}

/// Values of one metric, one per request; failures count as infinite.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<u64>,
    infinite: u64,
    sorted: bool,
}

impl Samples {
    /// None yet.
    pub fn new() -> Samples {
        Samples::default()
    }

    /// Adds a request: its value, or `None` if it has none because it failed or was cut off.
    pub fn push(&mut self, value: Option<u64>) {
        match value {
            Some(v) => {
                self.values.push(v);
                self.sorted = false;
            }
            None => self.infinite += 1,
        }
    }

    /// All samples, infinite ones included.
    pub fn count(&self) -> u64 {
        self.values.len() as u64 + self.infinite
    }

    /// Samples without a value.
    pub fn infinite(&self) -> u64 {
        self.infinite
    }

    /// The mean over samples that have a value. Say with it how many have none.
    pub fn mean(&self) -> Option<f64> {
        let sum: u128 = self.values.iter().map(|&v| u128::from(v)).sum();
        (!self.values.is_empty()).then(|| sum as f64 / self.values.len() as f64)
    }

    /// Values in ascending order.
    pub fn sorted(&mut self) -> &[u64] {
        if !self.sorted {
            self.values.sort_unstable();
            self.sorted = true;
        }
        &self.values
    }

    /// The `q`-quantile, `q` strictly between 0 and 1.
    pub fn quantile(&mut self, q: f64) -> Quantile {
        let (count, infinite) = (self.count(), self.infinite);
        let values = self.sorted();
        quantile_of(q, count, infinite, |rank| values.get(rank as usize - 1).copied())
    }
}

/// The `q`-quantile of a histogram's values and `infinite` more samples without one.
pub fn of_histogram(h: &crate::Histogram, infinite: u64, q: f64) -> Quantile {
    quantile_of(q, h.count() + infinite, infinite, |rank| h.at_rank(rank))
}

/// `at` gives the value at a rank from 1, `None` past the finite ones.
fn quantile_of(q: f64, count: u64, infinite: u64, at: impl Fn(u64) -> Option<u64>) -> Quantile {
    let Some(rank) = rank(q, count) else {
        let (value, low, high, at_least) = (None, None, None, None);
        return Quantile { count, infinite, value, low, high, at_least, standing: Standing::Empty };
    };
    let (low, high) = interval_ranks(q, count);
    let tail = count as f64 * (1.0 - q);
    let standing = if infinite as f64 > MAX_INFINITE_SHARE * count as f64 {
        Standing::Undetermined
    } else if tail + 1e-9 < TAIL_FOR_CLAIM as f64 {
        Standing::AtLeast
    } else {
        Standing::Claim
    };
    let at_least = low.and_then(&at).or_else(|| at(1));
    Quantile {
        count,
        infinite,
        value: at(rank),
        low: low.and_then(&at),
        high: high.and_then(&at),
        at_least,
        standing,
    }
}

/// Ranks of the order statistics that hold the `q`-quantile between them with 95 % confidence, whatever
/// the distribution (David and Nagaraja, Order Statistics, 3rd ed., 7.1): the greatest `l` with
/// `P(B < l) <= 2.5 %` and the least `u` with `P(B >= u) <= 2.5 %` for binomial `B(count, q)`.
pub fn interval_ranks(q: f64, count: u64) -> (Option<u64>, Option<u64>) {
    if count == 0 {
        return (None, None);
    }
    // P(B <= 0) = (1-q)^n bounds the low end, P(B >= n) = q^n the high end.
    let low = (pow(1.0 - q, count as f64) <= MISS).then(|| {
        // P(B < l) = P(B <= l - 1) grows with l.
        last(1, count, |l| binomial_cdf(l - 1, count, q) <= MISS)
    });
    let high = (pow(q, count as f64) <= MISS).then(|| {
        // P(B >= u) = 1 - P(B <= u - 1) falls with u: the last that misses, plus one.
        last(0, count, |u| u == 0 || 1.0 - binomial_cdf(u - 1, count, q) > MISS) + 1
    });
    (low, high.filter(|&u| u <= count))
}

/// The greatest value in `from..=to` that holds, where all before it do; `from` is known to.
fn last(from: u64, to: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut yes, mut no) = (from, to + 1);
    while no - yes > 1 {
        let mid = yes + (no - yes) / 2;
        if holds(mid) {
            yes = mid;
        } else {
            no = mid;
        }
    }
    yes
}
