//! Counts of integer values in buckets of equal relative width.

/// Buckets per power of two: 2^10, so that a bucket is at most 1/1024 of its values wide and its middle
/// at most 0.05 % from any of them.
const BITS: u32 = 10;
const STEP: u64 = 1 << BITS;

/// A histogram of `u64` values, nanoseconds usually. Values below 2048 are exact, greater ones lie within
/// 0.05 % (the layout is that of HdrHistogram). Two histograms add up to the same bits in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

fn bucket(value: u64) -> usize {
    if value < STEP {
        return value as usize;
    }
    let shift = value.ilog2() - BITS;
    (u64::from(shift) * STEP + (value >> shift)) as usize
}

/// The least value of a bucket and how many values it spans.
fn span_of(index: usize) -> (u64, u64) {
    let index = index as u64;
    if index < 2 * STEP {
        return (index, 1);
    }
    let shift = index / STEP - 1;
    ((index - shift * STEP) << shift, 1 << shift)
}

impl Histogram {
    /// An empty one, which takes no memory.
    pub fn new() -> Histogram {
        Histogram::default()
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts a value `times` times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        let index = bucket(value);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += times;
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += times;
        self.sum += u128::from(value) * u128::from(times);
    }

    /// Adds everything that `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The exact sum of all values.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The exact least value; `None` if empty.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// The exact greatest value; `None` if empty.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// The exact mean; `None` if empty.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The value at rank `ceil(q * count)`, `q` in 0..=1: the middle of its bucket, kept within the exact
    /// least and greatest value. `None` if empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        self.at_rank(crate::stats::rank(q, self.count)?)
    }

    /// The value at a rank from 1 (the least) to [`Histogram::count`].
    pub fn at_rank(&self, rank: u64) -> Option<u64> {
        if rank == 0 || rank > self.count {
            return None;
        }
        let mut before = 0;
        for (index, n) in self.counts.iter().enumerate() {
            before += n;
            if before >= rank {
                let (low, width) = span_of(index);
                return Some((low + width / 2).clamp(self.min, self.max));
            }
        }
        None
    }

    /// Buckets that are not empty: least value, width, count. For charts and files.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, &n)| {
            let (low, width) = span_of(i);
            (low, width, n)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_join_without_gap_or_overlap() {
        let mut next = 0;
        for index in 0..bucket(u64::MAX) {
            let (low, width) = span_of(index);
            assert_eq!(low, next, "bucket {index}");
            assert_eq!(bucket(low), index);
            assert_eq!(bucket(low + (width - 1)), index);
            next = low + width;
        }
        let (low, width) = span_of(bucket(u64::MAX));
        assert_eq!((low, low + (width - 1)), (next, u64::MAX));
    }

    #[test]
    fn an_empty_one_says_nothing() {
        let h = Histogram::new();
        assert_eq!((h.min(), h.max(), h.mean(), h.quantile(0.5)), (None, None, None, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn quantiles_are_near_the_exact_ones(mut v in prop::collection::vec(0..u64::MAX / 2, 1..400), q in 0.0..1.0f64) {
            let mut h = Histogram::new();
            for &x in &v {
                h.record(x);
            }
            v.sort_unstable();
            let exact = v[crate::stats::rank(q, v.len() as u64).unwrap() as usize - 1];
            let near = h.quantile(q).unwrap();
            prop_assert!(near.abs_diff(exact) as f64 <= 0.0005 * exact as f64, "{} for {}", near, exact);
            prop_assert_eq!((h.min(), h.max()), (v.first().copied(), v.last().copied()));
        }

        #[test]
        fn parts_add_up_in_any_order(v in prop::collection::vec(any::<u64>(), 0..100), cut in 0..100usize) {
            let cut = cut.min(v.len());
            let of = |part: &[u64]| {
                let mut h = Histogram::new();
                for &x in part {
                    h.record(x);
                }
                h
            };
            let (whole, mut a, mut b) = (of(&v), of(&v[..cut]), of(&v[cut..]));
            let first = a.clone();
            a.merge(&b);
            b.merge(&first);
            prop_assert_eq!(&a, &whole);
            prop_assert_eq!(&b, &whole);
        }
    }
}
