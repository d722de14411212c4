//! The times between tokens, in an integer histogram that takes an arithmetic progression at once.

/// Buckets per power of two, as a power of two: a bucket is at most 1/512 of its values wide, so its
/// middle is within 0.1 per cent.
const BITS: u32 = 9;

/// Times between successive tokens of each request, counted in buckets of whole nanoseconds: one each below
/// 1024, 512 per power of two above.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    counts: Vec<u64>,
    total: u64,
    sum_ps: u128,
}

/// The bucket of a number of nanoseconds.
fn bucket(ns: u64) -> usize {
    let shift = (ns | 1).ilog2().saturating_sub(BITS);
    ((u64::from(shift) << BITS) + (ns >> shift)) as usize
}

/// Whole nanoseconds; in 64 bits, because a division of 128 takes longer than all the rest of a step.
fn nanos(ps: u128) -> u64 {
    u64::try_from(ps).map_or(u64::MAX, |ps| ps / 1000)
}

/// The first nanosecond of a bucket.
fn lowest(bucket: usize) -> u64 {
    let b = bucket as u64;
    let shift = (b >> BITS).saturating_sub(1);
    (b - (shift << BITS)) << shift
}

impl Gaps {
    /// Counts `times` gaps of `ps` picoseconds.
    pub(crate) fn add(&mut self, ps: u128, times: u64) {
        self.put(bucket(nanos(ps)), times);
        self.sum_ps += ps * u128::from(times);
    }

    fn put(&mut self, bucket: usize, n: u64) {
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += n;
        self.total += n;
    }

    /// Gaps counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Their exact sum, in picoseconds.
    pub fn sum_ps(&self) -> u128 {
        self.sum_ps
    }

    /// The buckets that are not empty, ascending: first nanosecond, last nanosecond, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let one = |(b, &n): (usize, &u64)| (n > 0).then(|| (lowest(b), lowest(b + 1) - 1, n));
        self.counts.iter().enumerate().filter_map(one)
    }
}

/// Gaps by the class of the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassGaps {
    classes: Vec<Gaps>,
}

impl ClassGaps {
    pub(crate) fn classes(&self) -> &[Gaps] {
        &self.classes
    }

    fn of(&mut self, class: usize) -> &mut Gaps {
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Gaps::default);
        }
        &mut self.classes[class]
    }

    /// Counts one gap.
    pub(crate) fn add(&mut self, class: u16, ps: u128) {
        self.of(usize::from(class)).add(ps, 1);
    }

    /// Counts a gap of `first`, `first + delta`, ... `first + (steps - 1) * delta` for as many requests of each class
    /// as `members` says. Buckets are found once for all classes.
    pub(crate) fn add_progression(&mut self, first: u128, delta: u128, steps: u64, members: &[u32]) {
        let present = || members.iter().map(|&m| u64::from(m)).enumerate().filter(|(_, m)| *m > 0);
        let n = u128::from(steps);
        let sum = n * first + delta * (n * n.saturating_sub(1) / 2);
        for (class, members) in present() {
            self.of(class).sum_ps += sum * u128::from(members);
        }
        let mut done = 0;
        while done < steps {
            let ps = first + delta * u128::from(done);
            let b = bucket(nanos(ps));
            let above = u128::from(lowest(b + 1)) * 1000;
            // The first term that is not in this bucket.
            let end = match (above - first).checked_div(delta) {
                None => steps,
                Some(q) => {
                    let exact = q * delta == above - first;
                    u64::try_from(q + u128::from(!exact)).unwrap_or(u64::MAX).min(steps)
                }
            };
            for (class, members) in present() {
                self.classes[class].put(b, (end - done) * members);
            }
            done = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_tile_the_numbers_narrowly() {
        for b in 0..20_000 {
            let (low, next) = (lowest(b), lowest(b + 1));
            assert!(low < next);
            assert_eq!((bucket(low), bucket(next - 1)), (b, b));
            assert!(next - low == 1 || (next - low) * 512 <= low);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_progression_is_its_terms_in_each_class(
            first in 0u128..20_000_000, delta in 0u128..900_000, steps in 1u64..400
        ) {
            let members = [3u32, 0, 2];
            let mut bulk = ClassGaps::default();
            bulk.add_progression(first, delta, steps, &members);
            for (gaps, members) in bulk.classes().iter().zip(members) {
                let mut single = Gaps::default();
                for i in 0..steps {
                    if members > 0 {
                        single.add(first + delta * u128::from(i), members.into());
                    }
                }
                prop_assert_eq!(gaps, &single);
                prop_assert_eq!(gaps.buckets().map(|b| b.2).sum::<u64>(), gaps.total());
            }
            prop_assert_eq!(bulk.classes().iter().map(Gaps::total).sum::<u64>(), 5 * steps);
        }
    }
}
