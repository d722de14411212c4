//! The engine's clock: real time, possibly sped up.

use forebay_base::Nanos;
use std::time::{Duration, Instant};

/// Maps real time to engine time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    scale: f64,
}

impl Clock {
    /// A clock that starts now and runs `scale` times as fast as real time; `scale` is positive.
    pub fn start(scale: f64) -> Clock {
        Clock { origin: Instant::now(), scale }
    }

    /// The engine's time.
    pub fn now(&self) -> Nanos {
        Nanos((self.origin.elapsed().as_nanos() as f64 * self.scale) as u64)
    }

    /// When, in real time, the engine's clock shows `at`.
    pub fn real(&self, at: Nanos) -> Instant {
        self.origin + Duration::from_nanos((at.0 as f64 / self.scale).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_time_runs_faster_by_the_scale() {
        let clock = Clock::start(50.0);
        let real = clock.real(Nanos(5_000_000_000));
        assert_eq!(real.duration_since(clock.origin), Duration::from_millis(100));
        assert!(clock.now() >= Nanos::ZERO);
    }
}
