//! How fast requests have left the queue lately.

use forebay_base::Nanos;

/// Seconds that are looked at.
const WINDOW: u64 = 10;
const SECOND: u64 = 1_000_000_000;

/// Dispatches per second over the last seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    /// The second that was written last.
    second: u64,
    counts: [u32; WINDOW as usize],
}

impl Rate {
    fn turn(&mut self, second: u64) {
        let passed = second.saturating_sub(self.second).min(WINDOW);
        for n in 0..passed {
            self.counts[((second - n) % WINDOW) as usize] = 0;
        }
        self.second = self.second.max(second);
    }

    pub(crate) fn count(&mut self, now: Nanos) {
        self.turn(now.0 / SECOND);
        self.counts[(self.second % WINDOW) as usize] += 1;
    }

    /// Whole seconds after which a client may come again when `ahead` requests are to go first: 1 to 60.
    pub(crate) fn retry_after(&mut self, now: Nanos, ahead: u64) -> u64 {
        self.turn(now.0 / SECOND);
        let sum: u64 = self.counts.iter().map(|&n| u64::from(n)).sum();
        // Early in life, or in the current second, the window is not full.
        let nanos = (WINDOW - 1) * SECOND + now.0 % SECOND;
        let window = nanos.min(now.0).max(1);
        if ahead == 0 {
            return 1;
        }
        if sum == 0 {
            return 60;
        }
        let nanos = u128::from(ahead) * u128::from(window) / u128::from(sum);
        u64::try_from(nanos.div_ceil(u128::from(SECOND))).unwrap_or(60).clamp(1, 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    #[test]
    fn the_wait_is_the_queue_ahead_by_the_rate_within_bounds() {
        let mut r = Rate::default();
        assert_eq!(r.retry_after(at(0), 0), 1);
        assert_eq!(r.retry_after(at(0), 5), 60);
        // 10 per second for 20 seconds.
        for n in 0..200 {
            r.count(at(n * 100));
        }
        assert_eq!(r.retry_after(at(20_000), 100), 10);
        assert_eq!(r.retry_after(at(20_000), 1), 1);
        assert_eq!(r.retry_after(at(20_000), 1_000_000), 60);
        // The rate falls as time passes without dispatches, to nothing.
        assert!(r.retry_after(at(25_000), 100) > 10);
        assert_eq!(r.retry_after(at(40_000), 100), 60);
        // A short life is not taken for a slow one.
        let mut young = Rate::default();
        for n in 0..20 {
            young.count(at(n * 100));
        }
        assert_eq!(young.retry_after(at(2_000), 100), 10);
    }
}
