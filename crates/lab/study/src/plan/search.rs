//! The smallest of the sizes that hold, with as few of them tried as can be.

/// What is searched.
pub(super) trait Sizes {
    /// Whether a size holds.
    fn holds(&mut self, n: u32) -> bool;
    /// Of two sizes that do not hold: whether the larger is so little better that even larger ones will not
    /// hold.
    fn stalls(&mut self, small: u32, large: u32) -> bool;
}

/// Where a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// This holds, and the one below it, if there is one, does not.
    Smallest(u32),
    /// Neither holds, and the second is too little better than the first.
    Stalls(u32, u32),
    /// This does not hold, and larger ones may not be tried.
    Beyond(u32),
}

/// Searches from `start` upwards or downwards by steps that double, then halves what is between. What does not
/// hold at four times the start and is hardly better at eight times is given up.
pub(super) fn smallest(start: u32, max: u32, sizes: &mut dyn Sizes) -> End {
    let start = start.clamp(1, max);
    if sizes.holds(start) {
        let (mut high, mut step) = (start, 1);
        while high > 1 {
            let low = high.saturating_sub(step).max(1);
            if !sizes.holds(low) {
                return End::Smallest(halve(low, high, sizes));
            }
            high = low;
            step *= 2;
        }
        return End::Smallest(1);
    }
    let mut low = start;
    if start < max {
        low += 1;
        if sizes.holds(low) {
            return End::Smallest(low);
        }
    }
    let mut far = start.saturating_mul(4).min(max);
    if far <= low {
        return End::Beyond(low);
    }
    if !sizes.holds(far) {
        loop {
            let further = far.saturating_mul(2).min(max);
            if further == far {
                return End::Beyond(far);
            }
            if sizes.holds(further) {
                return End::Smallest(halve(far, further, sizes));
            }
            if sizes.stalls(far, further) {
                return End::Stalls(far, further);
            }
            far = further;
        }
    }
    let mut step = 2;
    while low + step < far {
        if sizes.holds(low + step) {
            far = low + step;
            break;
        }
        low += step;
        step *= 2;
    }
    End::Smallest(halve(low, far, sizes))
}

/// The least that holds above `low`, which does not, up to `high`, which does.
fn halve(mut low: u32, mut high: u32, sizes: &mut dyn Sizes) -> u32 {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if sizes.holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    struct From {
        least: u32,
        tried: Vec<u32>,
    }

    impl Sizes for From {
        fn holds(&mut self, n: u32) -> bool {
            self.tried.push(n);
            n >= self.least
        }
        fn stalls(&mut self, _: u32, large: u32) -> bool {
            self.least == u32::MAX && large >= 40
        }
    }

    #[test]
    fn the_smallest_is_found_from_any_start() {
        for least in 1..70 {
            for start in [1, 2, 3, 10, 64, 100] {
                let mut sizes = From { least, tried: Vec::new() };
                assert_eq!(smallest(start, 100, &mut sizes), End::Smallest(least), "{start}");
                assert!(least == 1 || sizes.tried.contains(&(least - 1)), "the one below was tried");
                assert!(sizes.tried.len() < 16, "{:?}", sizes.tried);
            }
        }
    }

    #[test]
    fn what_never_holds_is_given_up() {
        let mut never = From { least: u32::MAX, tried: Vec::new() };
        assert_eq!(smallest(3, 1000, &mut never), End::Stalls(24, 48));
        assert_eq!(smallest(3, 30, &mut never), End::Beyond(30));
        assert_eq!(smallest(3, 2, &mut never), End::Beyond(2));
        let mut far = From { least: 90, tried: Vec::new() };
        assert_eq!(smallest(10, 100, &mut far), End::Smallest(90));
        assert_eq!(smallest(10, 89, &mut far), End::Beyond(89));
    }
}
