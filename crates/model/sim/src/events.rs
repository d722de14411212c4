//! What is going to happen, in the order of (time, kind, sequence).

use forebay_base::Nanos;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Names a request of the simulation for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ref {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Ref {
    /// As an engine's name for its job.
    pub(crate) fn job(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
    pub(crate) fn of_job(id: u64) -> Ref {
        Ref { slot: id as u32, generation: (id >> 32) as u32 }
    }
}

/// One event. The order of the variants is the order at the same instant, after the steps of engines that
/// end then and before wakes of kernels, arrivals, time-outs and samples. Scrapes come between what happens to
/// servers and what happens to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Something happens to a server: index into the cluster's incidents.
    Incident { index: u32 },
    /// A group's size changes: index into the cluster's scales.
    Scale { index: u32 },
    /// An autoscaler looks: index into the cluster's autoscalers.
    Evaluate { index: u32 },
    /// A cold start is over, unless something else has happened to the server since that turn.
    CameUp { server: u32, turn: u32 },
    /// A warm-up is over.
    Warm { server: u32, turn: u32 },
    /// The time that a drain may take is over.
    GraceOver { server: u32, turn: u32 },
    /// A server that drains has nothing left.
    Gone { server: u32, turn: u32 },
    /// The first token arrives at the router.
    FirstToken { flight: Ref },
    /// The last token arrives at the router.
    Finished { flight: Ref },
    /// The failure of a request arrives at the router.
    Failed { flight: Ref },
    /// A dispatched request arrives at its engine.
    Arrive { flight: Ref },
    /// The end of a connection arrives at the engine: the request is cancelled.
    Abort { flight: Ref },
}

/// The last rank of those that happen to a server.
const LAST_CHANGE: u8 = 6;

impl Event {
    fn rank(self) -> u8 {
        match self {
            Event::Incident { .. } => 0,
            Event::CameUp { .. } => 1,
            Event::Warm { .. } => 2,
            Event::Gone { .. } => 3,
            Event::GraceOver { .. } => 4,
            Event::Scale { .. } => 5,
            Event::Evaluate { .. } => LAST_CHANGE,
            Event::FirstToken { .. } => 9,
            Event::Finished { .. } => 10,
            Event::Failed { .. } => 11,
            Event::Arrive { .. } => 12,
            Event::Abort { .. } => 13,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Nanos,
    rank: u8,
    sequence: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> (Nanos, u8, u64) {
        (self.at, self.rank, self.sequence)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The events to come.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl Events {
    pub(crate) fn push(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at, rank: event.rank(), sequence: self.sequence, event }));
    }
    /// When the next one happens, and whether it is something that happens to a server: then it comes before the
    /// scrapes of that instant, else after them.
    pub(crate) fn peek(&self) -> Option<(Nanos, bool)> {
        self.heap.peek().map(|e| (e.0.at, e.0.rank <= LAST_CHANGE))
    }
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|e| (e.0.at, e.0.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_instants_run_by_kind_then_in_the_order_of_pushing() {
        let flight = |slot| Ref { slot, generation: 0 };
        let mut events = Events::default();
        events.push(Nanos(5), Event::Arrive { flight: flight(1) });
        events.push(Nanos(5), Event::FirstToken { flight: flight(2) });
        events.push(Nanos(5), Event::FirstToken { flight: flight(1) });
        events.push(Nanos(4), Event::Abort { flight: flight(0) });
        let order: Vec<_> = std::iter::from_fn(|| events.pop()).map(|(_, e)| e).collect();
        assert_eq!(
            order,
            [
                Event::Abort { flight: flight(0) },
                Event::FirstToken { flight: flight(2) },
                Event::FirstToken { flight: flight(1) },
                Event::Arrive { flight: flight(1) },
            ]
        );
    }

    #[test]
    fn a_job_names_its_flight() {
        let r = Ref { slot: 7, generation: 3 };
        assert_eq!(Ref::of_job(r.job()), r);
    }
}
