//! What a run shows beside the record of each request.

use crate::scaling::Scaling;
use forebay_base::{Nanos, Span};
use forebay_records::{Histogram, Row};

/// Bins of the saturation histogram: 0.05 wide from 0, the last one takes everything from 2 up.
pub const HISTOGRAM_BINS: usize = 41;

/// Sums and extremes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that came.
    pub arrived: u64,
    /// Requests in the system at once, at most.
    pub peak_live: u64,
    /// Requests that one engine had taken in and not yet admitted, at most: its longest queue.
    pub longest_engine_queue: u32,
    /// Requests queued in the routers at once, at most.
    pub longest_gateway_queue: u64,
    /// Times that a running request lost its blocks.
    pub preemptions: u64,
    /// Tokens whose cache entries were lost that way; prefix caching may find some again.
    pub lost_tokens: u64,
    /// Prompt tokens of admitted requests that were not in the prefix cache, and tokens generated of requests
    /// that have ended.
    pub computed_tokens: u64,
    /// Engine steps.
    pub steps: u64,
    /// Requests whose prompt was computed by another server than their answer.
    pub disaggregated: u64,
    /// Prompt tokens whose KV went from one server to another.
    pub transferred_tokens: u64,
    /// Dispatches.
    pub dispatched: u64,
    /// Cycles that kernels executed.
    pub cycles: u64,
    /// Time at each saturation of router 0 while requests arrived, in nanoseconds, by bin.
    pub saturation: Vec<u64>,
    /// Events of the simulation, samples for the timeline apart.
    pub events: u64,
}

impl Counters {
    /// The share of computed tokens that were computed again after a preemption, 0 to 1.
    pub fn recompute_share(&self) -> f64 {
        let all = self.computed_tokens + self.lost_tokens;
        if all == 0 { 0.0 } else { self.lost_tokens as f64 / all as f64 }
    }

    pub(crate) fn saturated(&mut self, saturation: f64, lasted: Span) {
        let bin = (saturation * 20.0).clamp(0.0, (HISTOGRAM_BINS - 1) as f64) as usize;
        self.saturation[bin] += lasted.0;
    }
}

/// A running request lost its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// When.
    pub at: Nanos,
    /// The number of the request.
    pub number: u64,
    /// Index of the server.
    pub endpoint: u32,
    /// Tokens whose cache entries were lost.
    pub lost: u32,
}

/// A server at an instant, as its counters stood at the end of its last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerPoint {
    /// Requests waiting.
    pub waiting: u32,
    /// Requests running.
    pub running: u32,
    /// Share of KV blocks in use, 0 to 1.
    pub kv: f64,
}

/// The system at an instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// When.
    pub at: Nanos,
    /// Saturation as router 0 sees it.
    pub saturation: f64,
    /// Ceilings of router 0, by band.
    pub ceilings: Vec<f64>,
    /// Requests queued in all routers, by band.
    pub queued: Vec<u64>,
    /// Requests in the system.
    pub live: u64,
    /// The servers.
    pub servers: Vec<ServerPoint>,
    /// Servers in the pool of router 0.
    pub ready: u32,
}

/// Points at a fixed distance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Priorities of the bands, highest first.
    pub bands: Vec<i32>,
    /// In the order of time.
    pub points: Vec<Point>,
}

/// What came out of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// One per request, by number. Empty if the caller took them one by one.
    pub rows: Vec<Row>,
    /// Sums and extremes.
    pub counters: Counters,
    /// Empty unless it was asked for.
    pub timeline: Timeline,
    /// What became of the sizes of groups.
    pub scaling: Scaling,
    /// In the order of time; empty unless they were asked for.
    pub preemptions: Vec<Preemption>,
    /// Times between two tokens of a request in nanoseconds, by class up to the last that had any; empty unless they
    /// were asked for.
    pub gaps: Vec<Histogram>,
    /// When the last event ran.
    pub ended_at: Nanos,
    /// The decision log of router 0, if it was asked for.
    pub decisions: Option<String>,
    /// With it: the numbers of the requests that its dispatches are of, in their order.
    pub dispatches: Vec<u64>,
}
