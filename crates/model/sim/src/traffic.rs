//! Where requests come from.

use forebay_base::Nanos;
use forebay_workload::{Arrival, Arrivals};

/// Requests in the order of their times, made one at a time.
pub trait Traffic {
    /// When the next one comes, if that is known now. May change when a request ends.
    fn peek_at(&mut self) -> Option<Nanos>;
    /// The next one.
    fn next(&mut self) -> Option<Arrival>;
    /// A client has its answer; sessions and closed loops may go on.
    fn ended(&mut self, number: u64, at: Nanos);
    /// A request has ended otherwise; its client may send it again.
    fn refused(&mut self, number: u64, at: Nanos);
}

/// Requests from a list in the order of their times.
#[derive(Clone, Debug, Default)]
pub struct Script {
    arrivals: std::collections::VecDeque<Arrival>,
}

impl Script {
    /// The requests; they are put in the order of their times.
    pub fn new(mut arrivals: Vec<Arrival>) -> Script {
        arrivals.sort_by_key(|a| (a.at, a.number));
        Script { arrivals: arrivals.into() }
    }
}

impl Traffic for Script {
    fn peek_at(&mut self) -> Option<Nanos> {
        self.arrivals.front().map(|a| a.at)
    }
    fn next(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }
    fn ended(&mut self, _number: u64, _at: Nanos) {}
    fn refused(&mut self, _number: u64, _at: Nanos) {}
}

impl Traffic for Arrivals {
    fn peek_at(&mut self) -> Option<Nanos> {
        Arrivals::peek_at(self)
    }
    fn next(&mut self) -> Option<Arrival> {
        Arrivals::next(self)
    }
    fn ended(&mut self, number: u64, at: Nanos) {
        Arrivals::ended(self, number, at);
    }
    fn refused(&mut self, number: u64, at: Nanos) {
        Arrivals::refused(self, number, at);
    }
}
