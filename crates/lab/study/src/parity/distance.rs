//! How far apart two samples are.

/// The Kolmogorov-Smirnov distance of two samples: the greatest difference between their empirical distribution
/// functions, 0 for equal ones and 1 for ones that do not overlap. `None` is a value beyond all others. `None` if a
/// sample is empty.
///
/// An effect size, and no test: with enough requests every difference is significant, and what matters is how large
/// it is.
pub fn kolmogorov_smirnov(a: &[Option<u64>], b: &[Option<u64>]) -> Option<f64> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let sorted = |s: &[Option<u64>]| {
        let mut s: Vec<u64> = s.iter().map(|v| v.unwrap_or(u64::MAX)).collect();
        s.sort_unstable();
        s
    };
    let (a, b) = (sorted(a), sorted(b));
    let (mut i, mut j, mut most) = (0, 0, 0.0_f64);
    while i < a.len() && j < b.len() {
        let at = a[i].min(b[j]);
        i += a[i..].iter().take_while(|v| **v == at).count();
        j += b[j..].iter().take_while(|v| **v == at).count();
        most = most.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(values: &[u64]) -> Vec<Option<u64>> {
        values.iter().copied().map(Some).collect()
    }

    #[test]
    fn it_is_the_greatest_gap_between_the_two_staircases() {
        let a = some(&[1, 2, 3, 4]);
        assert_eq!(kolmogorov_smirnov(&a, &a), Some(0.0));
        assert_eq!(kolmogorov_smirnov(&a, &some(&[5, 6])), Some(1.0));
        // Up to 2 half of the first and a quarter of the second.
        assert_eq!(kolmogorov_smirnov(&a, &some(&[2, 3, 4, 5])), Some(0.25));
        assert_eq!(kolmogorov_smirnov(&some(&[1, 1, 1, 9]), &some(&[1, 9, 9, 9])), Some(0.5));
        assert_eq!(kolmogorov_smirnov(&some(&[3]), &a), Some(0.5));
    }

    #[test]
    fn what_has_no_value_is_beyond_all_others() {
        let (mut a, b) = (some(&[1, 2]), some(&[1, 2, 1, 2]));
        a.extend([None, None]);
        assert_eq!(kolmogorov_smirnov(&a, &b), Some(0.5));
        assert_eq!(kolmogorov_smirnov(&[None], &[None]), Some(0.0));
        assert_eq!((kolmogorov_smirnov(&[], &a), kolmogorov_smirnov(&a, &[])), (None, None));
    }

    #[test]
    fn it_is_the_same_both_ways() {
        let (a, b) = (some(&[1, 5, 7, 7, 20]), some(&[2, 5, 6, 30]));
        assert_eq!(kolmogorov_smirnov(&a, &b), kolmogorov_smirnov(&b, &a));
    }
}
