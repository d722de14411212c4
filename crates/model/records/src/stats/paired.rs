//! Comparison of two policies over paired runs.

use super::student::t_quantile;
use forebay_base::math::{exp, ln};
use forebay_base::{Draws, Purpose};

/// Pairs without which there is no verdict.
pub const MIN_PAIRS: usize = 10;
/// Resamples of the bootstrap.
const RESAMPLES: u64 = 10_000;
const BOOTSTRAP: Purpose = Purpose::named("records-bootstrap");

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Latencies.
    Lower,
    /// Throughput and goodput.
    Higher,
}

/// What the pairs say, at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is on the better side.
    Better,
    /// The whole interval is on the worse side.
    Worse,
    /// The interval holds no change.
    NoDifference,
    /// Fewer than [`MIN_PAIRS`] usable pairs.
    TooFew,
}

/// Treatment against baseline. Improvements are in percent, positive for better: a latency that halves
/// and a throughput that grows by half both improve by 50 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Pairs that had two positive finite values.
    pub pairs: usize,
    /// Pairs that had not, which are left out: say so beside the figure.
    pub unusable: usize,
    /// The improvement by the geometric mean of the ratios; NaN without pairs.
    pub improvement: f64,
    /// Student's 95 % interval on the mean logarithm; NaN under two pairs.
    pub interval: (f64, f64),
    /// The percentile bootstrap's 95 % interval of the same, a check on the former; NaN under two pairs.
    pub bootstrap: (f64, f64),
    /// What may be said.
    pub verdict: Verdict,
}

/// Compares the same metric of paired runs, `(baseline, treatment)` each. Values that are infinite, not
/// positive or not a number make their pair unusable.
///
/// The logarithm of the ratio is what is averaged: then halving and doubling cancel out, and a slow seed
/// counts no more than a fast one.
pub fn paired(pairs: &[(f64, f64)], better: Direction, seed: u64) -> Paired {
    let usable = |v: f64| v.is_finite() && v > 0.0;
    let logs: Vec<f64> =
        pairs.iter().filter(|(b, t)| usable(*b) && usable(*t)).map(|(b, t)| ln(t / b)).collect();
    let n = logs.len();
    let improvement = |log: f64| match better {
        Direction::Lower => 100.0 * (1.0 - exp(log)),
        Direction::Higher => 100.0 * (exp(log) - 1.0),
    };
    let sides = |low: f64, high: f64| {
        let (a, b) = (improvement(low), improvement(high));
        if a <= b { (a, b) } else { (b, a) }
    };
    let (mean, interval, bootstrap) = if n == 0 {
        (f64::NAN, (f64::NAN, f64::NAN), (f64::NAN, f64::NAN))
    } else if n == 1 {
        (logs[0], (f64::NAN, f64::NAN), (f64::NAN, f64::NAN))
    } else {
        let (mean, half) = mean_and_half_width(&logs);
        let (low, high) = resampled(&logs, seed);
        (mean, sides(mean - half, mean + half), sides(low, high))
    };
    let verdict = match interval {
        _ if n < MIN_PAIRS => Verdict::TooFew,
        (low, _) if low > 0.0 => Verdict::Better,
        (_, high) if high < 0.0 => Verdict::Worse,
        _ => Verdict::NoDifference,
    };
    Paired {
        pairs: n,
        unusable: pairs.len() - n,
        improvement: improvement(mean),
        interval,
        bootstrap,
        verdict,
    }
}

/// Mean and half width of Student's 95 % interval of at least two values.
pub fn mean_and_half_width(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    (mean, if error == 0.0 { 0.0 } else { t_quantile(0.975, n - 1.0) * error })
}

/// The 2.5 % and 97.5 % quantiles of the means of resamples (Efron and Tibshirani, An Introduction to the
/// Bootstrap, 13.3).
fn resampled(values: &[f64], seed: u64) -> (f64, f64) {
    let (draws, n) = (Draws::new(seed), values.len() as u64);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|r| (0..n).map(|i| values[draws.below(BOOTSTRAP, r, i, n) as usize]).sum::<f64>() / n as f64)
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |q: f64| means[super::rank(q, RESAMPLES).map_or(0, |r| r as usize - 1)];
    (at(0.025), at(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(a: f64, b: f64, tolerance: f64) -> bool {
        (a - b).abs() <= tolerance
    }

    #[test]
    fn the_interval_is_that_by_hand() {
        // Logs of the ratios: 0.1 * (1, 2, ..., 10): mean 0.55, sd 0.302765, t(9) 2.262157,
        // half width 2.262157 * 0.302765 / sqrt(10) = 0.216585.
        let pairs: Vec<_> = (1..=10).map(|i| (2.0, 2.0 * exp(0.1 * f64::from(i)))).collect();
        let p = paired(&pairs, Direction::Higher, 1);
        assert!(near(p.improvement, 100.0 * (exp(0.55) - 1.0), 1e-9));
        assert!(near(p.interval.0, 100.0 * (exp(0.55 - 0.216_585) - 1.0), 1e-3), "{p:?}");
        assert!(near(p.interval.1, 100.0 * (exp(0.55 + 0.216_585) - 1.0), 1e-3));
        assert_eq!((p.pairs, p.unusable, p.verdict), (10, 0, Verdict::Better));
        // The bootstrap's interval is about 1.96 * sd * sqrt(9/10) / sqrt(10) = 0.178 to each side.
        assert!(near(ln(1.0 + p.bootstrap.0 / 100.0), 0.55 - 0.178, 0.015), "{p:?}");
        assert!(near(ln(1.0 + p.bootstrap.1 / 100.0), 0.55 + 0.178, 0.015));
        assert_eq!(paired(&pairs, Direction::Lower, 1).verdict, Verdict::Worse);
    }

    #[test]
    fn few_pairs_get_no_verdict_and_odd_values_no_say() {
        let same: Vec<_> = (0..9).map(|i| (1.0 + f64::from(i), 0.5 + 0.5 * f64::from(i))).collect();
        let p = paired(&same, Direction::Lower, 1);
        assert!(near(p.improvement, 50.0, 1e-9) && p.verdict == Verdict::TooFew);
        let mut odd = same.clone();
        odd.extend([(f64::INFINITY, 1.0), (1.0, 0.0), (f64::NAN, 1.0)]);
        assert_eq!(
            (paired(&odd, Direction::Lower, 1).pairs, paired(&odd, Direction::Lower, 1).unusable),
            (9, 3)
        );
        assert!(paired(&[], Direction::Lower, 1).improvement.is_nan());
        // The same ten times over: no spread, so the interval is the point.
        let p = paired(&[(4.0, 3.0); 10], Direction::Lower, 1);
        assert!(near(p.interval.0, 25.0, 1e-9) && near(p.interval.1, 25.0, 1e-9));
        assert_eq!(p.verdict, Verdict::Better);
        assert_eq!(paired(&[(4.0, 4.0); 10], Direction::Lower, 1).verdict, Verdict::NoDifference);
    }

    /// Twenty pairs with no true difference: the verdict may be wrong in about one of twenty runs.
    #[test]
    fn the_error_rate_is_the_one_stated() {
        let d = Draws::new(9);
        let purpose = Purpose::named("null");
        let wrong = (0..1000u64).filter(|&run| {
            let pairs: Vec<_> = (0..20)
                .map(|i| (1.0, exp(d.unit(purpose, run, 2 * i) + d.unit(purpose, run, 2 * i + 1) - 1.0)))
                .collect();
            let (mean, half) = mean_and_half_width(&pairs.iter().map(|p| ln(p.1)).collect::<Vec<_>>());
            mean.abs() > half
        });
        let wrong = wrong.count();
        // 50 expected, standard deviation 6.9.
        assert!((25..=75).contains(&wrong), "{wrong}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn swapping_sides_mirrors_the_verdict(pairs in prop::collection::vec((0.1..10.0f64, 0.1..10.0f64), 10..20)) {
            let swapped: Vec<_> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
            let (p, s) = (paired(&pairs, Direction::Lower, 3), paired(&swapped, Direction::Lower, 3));
            let mirror = match p.verdict {
                Verdict::Better => Verdict::Worse,
                Verdict::Worse => Verdict::Better,
                other => other,
            };
            prop_assert_eq!(s.verdict, mirror);
            prop_assert!(p.interval.0 <= p.improvement && p.improvement <= p.interval.1);
        }
    }
}
