//! Whether a load generator kept its schedule.

use super::quantile::Samples;
use super::window::Window;
use crate::live::Record;
use forebay_base::Span;

/// The share of a schedule that may be missing from it.
pub const MAX_RATE_ERROR: f64 = 0.005;
/// How late the 99th percentile of the requests may be sent.
pub const MAX_LAG: Span = Span::millis(5);

/// How a run kept its schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Requests that were due in the window.
    pub offered: u64,
    /// Of these, those that were sent before [`MAX_LAG`] after its end.
    pub sent: u64,
    /// The window in seconds.
    pub seconds: f64,
    /// Median lag; `None` if not even that many were sent.
    pub lag_p50: Option<Span>,
    /// 99th percentile of the lag.
    pub lag_p99: Option<Span>,
    /// The greatest lag of those that were sent.
    pub lag_max: Option<Span>,
}

/// Why a run says nothing about its server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Invalid {
    /// So large a share of the requests was not sent in the window.
    Rate(f64),
    /// The 99th percentile of the lag; `None` if more than 1 % were never sent.
    Lag(Option<Span>),
    /// No request was due in the window.
    Nothing,
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Invalid::Rate(share) => {
                write!(
                    f,
                    "the rate was off by {:.2} %, more than {} %",
                    share * 100.0,
                    MAX_RATE_ERROR * 100.0
                )
            }
            Invalid::Lag(Some(lag)) => {
                write!(
                    f,
                    "1 % of the requests were sent {:.1} ms late or more, over {MAX_LAG}",
                    lag.as_millis_f64()
                )
            }
            Invalid::Lag(None) => f.write_str("more than 1 % of the requests were never sent"),
            Invalid::Nothing => f.write_str("no request was due in the measured window"),
        }
    }
}

impl Schedule {
    /// Of the requests that were due in a window. One that was never sent is infinitely late.
    pub fn of<'r>(records: impl IntoIterator<Item = &'r Record>, window: Window) -> Schedule {
        let mut lags = Samples::new();
        let (mut offered, mut sent, mut most) = (0, 0, None);
        for r in records.into_iter().filter(|r| window.holds(r.row.arrived)) {
            offered += 1;
            sent += u64::from(r.live.sent.is_some_and(|at| at < window.to + MAX_LAG));
            most = most.max(r.lag());
            lags.push(r.lag().map(|l| l.0));
        }
        let mut lag = |q| lags.quantile(q).value.map(Span);
        Schedule {
            offered,
            sent,
            seconds: window.length().as_secs_f64(),
            lag_p50: lag(0.5),
            lag_p99: lag(0.99),
            lag_max: most,
        }
    }

    /// The share of the offered requests that is missing, 0..=1.
    pub fn rate_error(&self) -> f64 {
        if self.offered == 0 { 0.0 } else { (self.offered - self.sent) as f64 / self.offered as f64 }
    }

    /// Requests offered per second.
    pub fn offered_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.offered as f64 / self.seconds } else { 0.0 }
    }

    /// Requests sent in time per second.
    pub fn sent_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.sent as f64 / self.seconds } else { 0.0 }
    }

    /// Why the run may not be used, if so.
    pub fn problems(&self) -> Vec<Invalid> {
        if self.offered == 0 {
            return vec![Invalid::Nothing];
        }
        let mut found = Vec::new();
        if self.rate_error() > MAX_RATE_ERROR {
            found.push(Invalid::Rate(self.rate_error()));
        }
        if self.lag_p99.is_none_or(|lag| lag > MAX_LAG) {
            found.push(Invalid::Lag(self.lag_p99));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Live;
    use crate::row::Row;
    use forebay_base::Nanos;

    fn window() -> Window {
        Window::new(Nanos::ZERO, Nanos::ZERO + Span::secs(10))
    }

    /// A thousand requests, one each 10 ms, sent `lag(number)` later.
    fn records(lag: impl Fn(u64) -> Option<Span>) -> Vec<Record> {
        let one = |n: u64| {
            let at = Nanos::ZERO + Span::millis(10 * n);
            let live = Live { sent: lag(n).map(|l| at + l), ..Live::default() };
            Record { row: Row::arriving(n, 0, at), live }
        };
        (0..1000).map(one).collect()
    }

    #[test]
    fn a_punctual_run_is_valid() {
        let s = Schedule::of(&records(|_| Some(Span::micros(50))), window());
        assert_eq!(
            (s.offered, s.sent, s.lag_p99, s.problems().len()),
            (1000, 1000, Some(Span::micros(50)), 0)
        );
        assert_eq!((s.offered_rate(), s.sent_rate()), (100.0, 100.0));
    }

    #[test]
    fn lateness_and_missing_requests_are_found() {
        let late = |n: u64| Some(if n.is_multiple_of(50) { Span::millis(6) } else { Span::ZERO });
        let s = Schedule::of(&records(late), window());
        assert_eq!(s.problems(), [Invalid::Lag(Some(Span::millis(6)))]);
        // The last 6 of 1000 are missing: 0.6 %, and not yet 1 %.
        let s = Schedule::of(&records(|n| (n < 994).then_some(Span::ZERO)), window());
        assert_eq!((s.rate_error(), s.problems()), (0.006, vec![Invalid::Rate(0.006)]));
        let s = Schedule::of(&records(|n| (n < 995).then_some(Span::ZERO)), window());
        assert_eq!(s.problems(), []);
        let s = Schedule::of(&records(|n| (n < 980).then_some(Span::ZERO)), window());
        assert_eq!(s.problems(), [Invalid::Rate(0.02), Invalid::Lag(None)]);
        assert_eq!(Schedule::of(&[], window()).problems(), [Invalid::Nothing]);
    }

    #[test]
    fn the_limits_are_still_good() {
        let s = Schedule::of(&records(|_| Some(MAX_LAG)), window());
        assert_eq!(s.problems(), [], "the last request is due 10 ms before the end");
        let s = Schedule::of(&records(|_| Some(MAX_LAG + Span(1))), window());
        assert_eq!(s.problems().len(), 1);
    }
}
