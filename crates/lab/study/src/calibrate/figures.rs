//! What of a run is compared: mean and percentiles of TTFT, TPOT and E2E, with their sampling errors.

use crate::summary::Metric;
use forebay_base::{Draws, Purpose, math};
use forebay_records::stats::quantile::{MAX_INFINITE_SHARE, samples_for_interval};
use forebay_records::stats::rank;

/// Metrics that are compared, in the order of the columns of [`Times`].
pub const METRICS: [Metric; 3] = [Metric::Ttft, Metric::Tpot, Metric::E2e];
/// Resamples of the bootstrap.
const RESAMPLES: u64 = 200;
const BLOCKS: Purpose = Purpose::named("calibrate-blocks");
/// Fewest samples of a mean.
const MEAN_NEEDS: u64 = 30;

/// Times of a request in nanoseconds by [`METRICS`]: infinite if it never got there, not a number if the metric
/// does not apply to it.
pub type Times = [f64; 3];

/// One number of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Of which metric.
    pub metric: Metric,
    /// The percentile, between 0 and 1; the mean without.
    pub quantile: Option<f64>,
}

impl Figure {
    /// All of them, in the order of tables.
    pub fn all() -> impl Iterator<Item = Figure> {
        METRICS.into_iter().flat_map(|metric| {
            [None, Some(0.5), Some(0.9), Some(0.99)].map(|quantile| Figure { metric, quantile })
        })
    }

    /// For tables: `TTFT p90`.
    pub fn label(self) -> String {
        let what = self.quantile.map_or("mean".to_owned(), |q| format!("p{:.0}", 100.0 * q));
        format!("{} {what}", self.metric.label())
    }

    /// For files: `ttft_p90`.
    pub fn key(self) -> String {
        let what = self.quantile.map_or("mean".to_owned(), |q| format!("p{:.0}", 100.0 * q));
        format!("{}_{what}", self.metric.key())
    }

    fn column(self) -> usize {
        METRICS.iter().position(|m| *m == self.metric).unwrap_or(0)
    }

    /// Whether so many samples, of which so many are infinite, carry it: percentiles need both ends of their
    /// interval, and too many failures leave nothing to say.
    fn is_carried_by(self, count: u64, infinite: u64) -> bool {
        let needs = self.quantile.map_or(MEAN_NEEDS, samples_for_interval);
        count >= needs && infinite as f64 <= MAX_INFINITE_SHARE * count as f64
    }
}

/// Figures of requests, each as a logarithm; sorted once per metric.
fn logs(figures: &[Figure], columns: &[Vec<f64>; 3]) -> Vec<f64> {
    let mut sorted: [Vec<f64>; 3] = columns.clone();
    for column in &mut sorted {
        column.sort_by(f64::total_cmp);
    }
    let value = |f: &Figure| {
        let v = &sorted[f.column()];
        if let Some(q) = f.quantile {
            return rank(q, v.len() as u64).map_or(f64::NAN, |r| v[r as usize - 1]);
        }
        let (n, sum) = v.iter().filter(|x| x.is_finite()).fold((0u64, 0.0), |(n, sum), x| (n + 1, sum + x));
        if n == 0 { f64::NAN } else { sum / n as f64 }
    };
    // A time of zero has no logarithm; nothing real takes under a nanosecond.
    figures.iter().map(|f| math::ln(value(f).max(1.0))).collect()
}

/// The columns of some requests, in their order; `applies` has the requests to which a metric applies.
fn columns(
    times: &[Times],
    applies: &[Times],
    which: &(impl Iterator<Item = usize> + Clone),
) -> [Vec<f64>; 3] {
    let column = |c: usize| which.clone().filter(|&i| !applies[i][c].is_nan()).map(|i| times[i][c]).collect();
    [column(0), column(1), column(2)]
}

/// Figures that the times carry.
pub(crate) fn carried(times: &[Times]) -> Vec<Figure> {
    let all = columns(times, times, &(0..times.len()));
    Figure::all()
        .filter(|f| {
            let column = &all[f.column()];
            let infinite = column.iter().filter(|x| x.is_infinite()).count();
            f.is_carried_by(column.len() as u64, infinite as u64)
        })
        .collect()
}

/// Logarithms of the figures; to which requests a metric applies is said by `applies`.
pub(crate) fn values(figures: &[Figure], times: &[Times], applies: &[Times]) -> Vec<f64> {
    logs(figures, &columns(times, applies, &(0..times.len())))
}

/// Resamples of `n` requests by blocks of `block` neighbours (Künsch's moving blocks, going round): what shares a
/// queue stays together.
fn resamples(n: usize, block: usize) -> impl Iterator<Item = Vec<usize>> {
    let draws = Draws::new(1);
    let block = block.clamp(1, n.max(1));
    (0..RESAMPLES).map(move |r| {
        let starts = (0..n.div_ceil(block) as u64).map(|b| draws.below(BLOCKS, r, b, n as u64) as usize);
        starts.flat_map(|s| (s..s + block).map(move |i| i % n)).take(n).collect()
    })
}

/// Logarithms of simulated over observed figures, one list for each resample. Requests are drawn with what both worlds
/// made of them, so that what their arrivals and lengths do to both cancels out.
pub(crate) fn ratios(
    figures: &[Figure],
    observed: &[Times],
    simulated: &[Times],
    block: usize,
) -> Vec<Vec<f64>> {
    resamples(observed.len(), block)
        .map(|which| {
            let of = |times: &[Times]| logs(figures, &columns(times, observed, &which.iter().copied()));
            of(simulated).iter().zip(of(observed)).map(|(s, o)| s - o).collect()
        })
        .collect()
}

/// What the engine's form cannot say, as a share: no figure counts for more than one with this error.
const FORM: f64 = 0.02;

/// Standard errors of the logarithms of simulated over observed figures: their spread over the resamples, and what the
/// form of the engine cannot say. Where a resample has no ratio, the figure counts for little.
pub(crate) fn errors(ratios: &[Vec<f64>], figures: usize) -> Vec<f64> {
    /// As if it were off by e either way.
    const VAGUE: f64 = 1.0;
    let n = ratios.len() as f64;
    let of = |k: usize| {
        let mean = ratios.iter().map(|r| r[k]).sum::<f64>() / n;
        let squares = ratios.iter().map(|r| (r[k] - mean) * (r[k] - mean)).sum::<f64>();
        let error = (squares / (n - 1.0) + FORM * FORM).sqrt();
        if error.is_finite() { error } else { VAGUE }
    };
    (0..figures).map(of).collect()
}

/// The middle 95 % of one figure over the resamples.
pub(crate) fn interval(ratios: &[Vec<f64>], figure: usize) -> (f64, f64) {
    let mut v: Vec<f64> = ratios.iter().map(|r| r[figure]).collect();
    v.sort_by(f64::total_cmp);
    let at = |q: f64| rank(q, v.len() as u64).map_or(f64::NAN, |r| v[r as usize - 1]);
    (at(0.025), at(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(n: usize) -> Vec<Times> {
        (1..=n).map(|i| [i as f64 * 1e6, if i == 1 { f64::NAN } else { 5e6 }, i as f64 * 2e6]).collect()
    }

    #[test]
    fn percentiles_need_their_samples() {
        let keys = |n: usize| carried(&times(n)).into_iter().map(Figure::key).collect::<Vec<_>>();
        assert_eq!(keys(29), ["ttft_p50", "tpot_p50", "e2e_p50"]);
        assert_eq!(keys(36)[..3], ["ttft_mean", "ttft_p50", "ttft_p90"]);
        assert!(!keys(36).contains(&"tpot_p90".to_owned()), "one of them has no time per token");
        assert!(!keys(367).contains(&"ttft_p99".to_owned()) && keys(368).contains(&"ttft_p99".to_owned()));
        let mut failed = times(400);
        failed[3] = [f64::INFINITY; 3];
        assert!(carried(&failed).iter().any(|f| f.quantile == Some(0.99)), "2 in 1000 are few");
        failed[7] = [f64::INFINITY; 3];
        failed[8] = [f64::INFINITY; 3];
        assert_eq!(carried(&failed), []);
    }

    #[test]
    fn values_are_by_nearest_rank() {
        let all = times(100);
        let figures: Vec<Figure> = Figure::all().collect();
        let v: Vec<f64> = values(&figures, &all, &all).into_iter().map(|x| math::exp(x) / 1e6).collect();
        for (got, want) in v.iter().zip([50.5, 50.0, 90.0, 99.0, 5.0, 5.0, 5.0, 5.0, 101.0]) {
            assert!((got - want).abs() < 1e-6, "{v:?}");
        }
    }

    #[test]
    fn what_both_worlds_share_is_no_error() {
        let a = times(200);
        let b: Vec<Times> = a.iter().map(|t| t.map(|x| 1.1 * x)).collect();
        let figures = carried(&a);
        let r = ratios(&figures, &a, &b, 4);
        assert!((errors(&r, figures.len())[0] - FORM).abs() < 1e-9);
        let (low, high) = interval(&r, 0);
        assert!((low - math::ln(1.1)).abs() < 1e-9 && (high - low).abs() < 1e-9, "{low} {high}");
        // With noise of 30 % on each request the mean of 200 is known to 0.3 / sqrt(200).
        let (d, p) = (Draws::new(3), Purpose::named("t"));
        let noisy = |i: usize, t: &Times| {
            t.map(|x| x * math::exp(0.3 * 12f64.sqrt() * (d.unit(p, i as u64, 0) - 0.5)))
        };
        let c: Vec<Times> = a.iter().map(|_| [1e6; 3]).collect();
        let b: Vec<Times> = c.iter().enumerate().map(|(i, t)| noisy(i, t)).collect();
        let figures = carried(&c);
        let error = errors(&ratios(&figures, &c, &b, 1), figures.len())[0];
        assert!((0.017..0.029).contains(&(error * error - FORM * FORM).sqrt()), "{error}");
    }
}
