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
    /// What it is at least, with 97.5 % confidence, or the least sample with too few samples for that;
    /// `None` if even that is infinite.
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
    let at_least = at(low.unwrap_or(1));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;
    use forebay_base::{Draws, Purpose};
    use proptest::prelude::*;

    fn samples(values: impl IntoIterator<Item = u64>, infinite: u64) -> Samples {
        let mut s = Samples::new();
        values.into_iter().for_each(|v| s.push(Some(v)));
        (0..infinite).for_each(|_| s.push(None));
        s
    }

    #[test]
    fn ranks_are_the_nearest() {
        for (q, n, r) in [
            (0.5, 1, 1),
            (0.5, 4, 2),
            (0.5, 5, 3),
            (0.95, 20, 19),
            (0.99, 100, 99),
            (0.99, 101, 100),
            (0.9, 10, 9),
            (0.1, 10, 1),
            (0.3, 10, 3),
            (0.0, 10, 1),
            (1.0, 10, 10),
        ] {
            assert_eq!(rank(q, n), Some(r), "{q} of {n}");
        }
        assert_eq!(rank(0.5, 0), None);
    }

    #[test]
    fn the_99th_percentile_has_an_interval_from_368_samples_and_may_be_claimed_from_3000() {
        assert_eq!(samples_for_interval(0.99), 368);
        assert_eq!(samples_for_interval(0.95), 72);
        assert_eq!(samples_for_interval(0.5), 6);
        let at = |n: u64| samples(1..=n, 0).quantile(0.99);
        assert_eq!((at(367).high, at(367).standing), (None, Standing::AtLeast));
        assert_eq!((at(368).high, at(368).standing), (Some(368), Standing::AtLeast));
        assert_eq!((at(2999).standing, at(3000).standing), (Standing::AtLeast, Standing::Claim));
        assert_eq!(at(3000).value, Some(2970));
        assert_eq!(samples([], 0).quantile(0.99).standing, Standing::Empty);
    }

    #[test]
    fn the_interval_of_the_median_is_that_of_the_sign_test() {
        // Published bounds (Conover, Practical Nonparametric Statistics, 3rd ed., table A3 for p = 1/2):
        // n = 10: ranks 2 and 9, n = 20: 6 and 15, n = 100: 40 and 61.
        for (n, low, high) in [(6, 1, 6), (10, 2, 9), (20, 6, 15), (100, 40, 61)] {
            assert_eq!(interval_ranks(0.5, n), (Some(low), Some(high)), "{n}");
        }
        assert_eq!(interval_ranks(0.5, 5), (None, None));
    }

    #[test]
    fn requests_without_a_value_are_infinitely_slow() {
        // 15 of 3000 are 0.5 %: not more.
        let q = samples(1..=2985, 15).quantile(0.99);
        assert_eq!((q.value, q.standing), (Some(2970), Standing::Claim));
        let q = samples(1..=2984, 16).quantile(0.99);
        assert_eq!((q.value, q.standing), (Some(2970), Standing::Undetermined));
        let q = samples(1..=2900, 100).quantile(0.99);
        assert_eq!((q.value, q.high, q.standing), (None, None, Standing::Undetermined));
        assert_eq!(q.at_least, None, "even its lower bound is infinite");
        let q = samples([5, 7], 0).quantile(0.99);
        assert_eq!((q.at_least, q.value, q.standing), (Some(7), Some(7), Standing::AtLeast));
        assert_eq!(samples([1, 2, 3], 7).mean(), Some(2.0));
    }

    /// 1000 runs of 500 uniform draws: the interval of the median misses its 0.5 in at most 5 %.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let (d, p) = (Draws::new(4), Purpose::named("t"));
        let missed = (0..1000u64).filter(|&run| {
            let mut s = samples((0..500).map(|i| d.below(p, run, i, 1_000_000)), 0);
            let q = s.quantile(0.9);
            !(q.low.is_some_and(|l| l <= 900_000) && q.high.is_some_and(|h| h >= 900_000))
        });
        let missed = missed.count();
        assert!((20..=65).contains(&missed), "{missed}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_histogram_says_the_same_within_its_width(
            v in prop::collection::vec(0..1u64 << 40, 1..600),
            infinite in 0..10u64,
            q in 0.01..0.99f64,
        ) {
            let mut h = Histogram::new();
            for &x in &v {
                h.record(x);
            }
            let (exact, near) = (samples(v, infinite).quantile(q), of_histogram(&h, infinite, q));
            prop_assert_eq!((exact.standing, exact.count, exact.infinite), (near.standing, near.count, near.infinite));
            for (a, b) in [(exact.value, near.value), (exact.low, near.low), (exact.high, near.high), (exact.at_least, near.at_least)] {
                prop_assert_eq!(a.is_some(), b.is_some());
                let (a, b) = (a.unwrap_or(0), b.unwrap_or(0));
                prop_assert!(a.abs_diff(b) as f64 <= 0.0005 * a as f64);
            }
        }

        #[test]
        fn bounds_are_on_their_sides(n in 1..5000u64, q in 0.001..0.999f64) {
            let (low, high) = interval_ranks(q, n);
            let r = rank(q, n).unwrap();
            prop_assert!(low.unwrap_or(1) <= r);
            prop_assert!(high.is_none_or(|h| r <= h && h <= n));
            if n >= samples_for_interval(q) {
                prop_assert!(low.is_some() && high.is_some());
            } else {
                prop_assert!(low.is_none() || high.is_none());
            }
        }
    }
}
