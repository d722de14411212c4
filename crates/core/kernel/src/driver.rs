//! When cycles run under the `upstream` driver: one per arrival and one per elapsed millisecond.
//!
//! Ticks stand at whole milliseconds after the origin and are numbered from 1. While nothing waits no
//! tick is executed, only counted. While something waits behind closed ceilings, the ticks for which
//! the policy promises the same ceilings are counted, too, and the next one that may differ is planned.

use forebay_base::{Nanos, Span};

/// The length of a tick.
pub const TICK: Span = Span::millis(1);

#[derive(Clone, Debug)]
pub(crate) struct Ticks {
    origin: Nanos,
    /// The last tick accounted for.
    pub(crate) done: u64,
    /// The next tick to execute, while something waits.
    pub(crate) planned: Option<u64>,
}

impl Ticks {
    pub(crate) fn new(origin: Nanos) -> Ticks {
        Ticks { origin, done: 0, planned: None }
    }

    /// The last tick at or before `t`.
    pub(crate) fn through(&self, t: Nanos) -> u64 {
        t.since(self.origin).0 / TICK.0
    }

    /// The last tick strictly before `t`.
    pub(crate) fn before(&self, t: Nanos) -> u64 {
        t.since(self.origin).0.saturating_sub(1) / TICK.0
    }

    /// The first tick at or after `t`.
    pub(crate) fn from(&self, t: Nanos) -> u64 {
        t.since(self.origin).0.div_ceil(TICK.0)
    }

    /// The instant of a tick.
    pub(crate) fn at(&self, tick: u64) -> Nanos {
        self.origin + Span(tick.saturating_mul(TICK.0))
    }

    /// The instant of the planned tick, if it is ever reached.
    pub(crate) fn wake(&self) -> Option<Nanos> {
        let ns = self.planned?.checked_mul(TICK.0)?;
        Some(self.origin + Span(ns))
    }
}
