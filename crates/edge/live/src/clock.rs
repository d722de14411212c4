//! The clock of a live router: monotonic, counted from its own start, optionally running at another
//! speed.

use forebay_base::{Nanos, Span};
use std::time::{Duration, Instant};

/// A monotonic clock. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    scale: f64,
}

impl Clock {
    /// Real time, starting now.
    pub fn real() -> Clock {
        Clock::scaled(1.0)
    }

    /// Time that runs `scale` times as fast as real time, starting now.
    ///
    /// # Panics
    /// If `scale` is not a positive number.
    pub fn scaled(scale: f64) -> Clock {
        assert!(scale.is_finite() && scale > 0.0, "a clock's scale is a positive number, not {scale}");
        Clock { origin: Instant::now(), scale }
    }

    /// The time since the start.
    pub fn now(&self) -> Nanos {
        let real = self.origin.elapsed();
        if self.scale == 1.0 {
            return Nanos(u64::try_from(real.as_nanos()).unwrap_or(u64::MAX));
        }
        Nanos((real.as_nanos() as f64 * self.scale) as u64)
    }

    /// The real time that a span of this clock takes.
    pub fn real_duration(&self, span: Span) -> Duration {
        if self.scale == 1.0 {
            return span.to_std();
        }
        Duration::from_nanos((span.0 as f64 / self.scale) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_clocks_shorten_waits() {
        let c = Clock::scaled(10.0);
        assert_eq!(c.real_duration(Span::secs(1)), Duration::from_millis(100));
        assert_eq!(Clock::real().real_duration(Span::millis(3)), Duration::from_millis(3));
        let a = c.now();
        assert!(c.now() >= a);
    }
}
