//! Integer time: an instant ([`Nanos`]) and a length of time ([`Span`]), both in nanoseconds.
//!
//! Instants count from an origin that the owner of the clock chose; they never come from a wall clock.
//! Arithmetic saturates, so that "never" can be written as [`Nanos::NEVER`].

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// An instant on the caller's monotonic clock, in nanoseconds since the caller's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Nanos {
    /// The origin of the clock.
    pub const ZERO: Nanos = Nanos(0);
    /// An instant that is never reached.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// The time from `earlier` to `self`, or zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// Longer than any run.
    pub const FOREVER: Span = Span(u64::MAX);

    /// A span of whole seconds, saturating.
    pub const fn secs(s: u64) -> Span {
        Span(s.saturating_mul(1_000_000_000))
    }
    /// A span of milliseconds, saturating.
    pub const fn millis(ms: u64) -> Span {
        Span(ms.saturating_mul(1_000_000))
    }
    /// A span of microseconds, saturating.
    pub const fn micros(us: u64) -> Span {
        Span(us.saturating_mul(1_000))
    }
    /// The span in seconds, for reports and formulas.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The span in milliseconds, for reports.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// From seconds, rounded to the nearest nanosecond; negative and NaN become zero.
    pub fn from_secs_f64(s: f64) -> Span {
        Span((s * 1e9).round().max(0.0) as u64)
    }
    /// As the standard library's duration, for timers at the edge.
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
    /// `self - other`, or zero.
    #[must_use]
    pub fn saturating_sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl From<std::time::Duration> for Span {
    fn from(d: std::time::Duration) -> Span {
        Span(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Span> for Nanos {
    type Output = Nanos;
    fn add(self, s: Span) -> Nanos {
        Nanos(self.0.saturating_add(s.0))
    }
}
impl AddAssign<Span> for Nanos {
    fn add_assign(&mut self, s: Span) {
        *self = *self + s;
    }
}
impl Sub<Span> for Nanos {
    type Output = Nanos;
    fn sub(self, s: Span) -> Nanos {
        Nanos(self.0.saturating_sub(s.0))
    }
}
impl Add for Span {
    type Output = Span;
    fn add(self, s: Span) -> Span {
        Span(self.0.saturating_add(s.0))
    }
}

/// Written as Go writes durations (`1m30s`, `500ms`, `2.5µs`), which is what the configuration reads.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        if ns == 0 {
            return f.write_str("0s");
        }
        if ns < 1_000_000_000 {
            let (unit, div) = match ns {
                0..1_000 => ("ns", 1u64),
                1_000..1_000_000 => ("µs", 1_000),
                _ => ("ms", 1_000_000),
            };
            return write!(f, "{}{unit}", decimal(ns, div));
        }
        let (h, rest) = (ns / 3_600_000_000_000, ns % 3_600_000_000_000);
        let (m, rest) = (rest / 60_000_000_000, rest % 60_000_000_000);
        if h > 0 {
            write!(f, "{h}h")?;
        }
        if h > 0 || m > 0 {
            write!(f, "{m}m")?;
        }
        write!(f, "{}s", decimal(rest, 1_000_000_000))
    }
}

fn decimal(value: u64, unit: u64) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_as_go_prints_them() {
        let cases = [
            (0, "0s"),
            (1, "1ns"),
            (2_500, "2.5µs"),
            (500_000_000, "500ms"),
            (60_000_000_000, "1m0s"),
            (90_500_000_000, "1m30.5s"),
            (3_661_000_000_000, "1h1m1s"),
        ];
        for (ns, text) in cases {
            assert_eq!(Span(ns).to_string(), text);
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Nanos::NEVER + Span::secs(1), Nanos::NEVER);
        assert_eq!(Nanos(5).since(Nanos(9)), Span::ZERO);
        assert_eq!(Nanos(5) - Span(9), Nanos::ZERO);
    }
}
