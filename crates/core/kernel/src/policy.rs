//! The traits that policies implement. A policy holds no clock, lock or hidden state: what it has to
//! remember lives in cells that the kernel owns, saves and hands in.

use crate::ask::Asked;
use crate::plan::InflightPlan;
use crate::pool::{Endpoint, EndpointId, EndpointSet, Pool};
use forebay_base::{Draws, Nanos, Span};
use std::fmt::Debug;
use std::sync::Arc;

/// What a usage limit policy sees of one cycle.
#[derive(Clone, Copy, Debug)]
pub struct CycleFacts<'a> {
    /// Saturation of the pool; 0 idle, 1 and more saturated, not capped.
    pub saturation: f64,
    /// The priorities of all provisioned bands, highest first.
    pub priorities: &'a [i32],
    /// Ticks that this cycle stands for: 1 under the `upstream` driver, where cycles are ticks; 0 under
    /// the `event` driver, where only time ticks, through [`UsageLimit::skip`].
    pub ticks: u64,
}

/// Gives each band the saturation at which its dispatch stops.
pub trait UsageLimit: Send + Sync + Debug {
    /// How many cells it needs; they start at 0.
    fn cells(&self) -> usize {
        0
    }

    /// One cycle: writes a ceiling per band, highest first. `out` comes filled with 1.0. Ceilings should
    /// not rise with rank, because dispatch stops at the first band that is gated.
    fn ceilings(&self, facts: &CycleFacts<'_>, cells: &mut [u64], out: &mut [f64]);

    /// The ceiling it aims at, where [`UsageLimit::ceilings`] reaches it only on average over cycles.
    fn nominal(&self, facts: &CycleFacts<'_>, out: &mut [f64]);

    /// The effect on the cells of `ticks` cycles at this saturation, in closed form: exactly what as many
    /// calls of [`UsageLimit::ceilings`] would have left behind.
    fn skip(&self, _facts: &CycleFacts<'_>, _ticks: u64, _cells: &mut [u64]) {}

    /// For how many further cycles at the same saturation and bands the ceilings stay as the last call
    /// gave them. A smaller number is always right; it only costs cycles.
    fn steady(&self, _facts: &CycleFacts<'_>, _cells: &[u64]) -> u64 {
        0
    }

    /// The name of the regime at this saturation, for tables.
    fn regime(&self, _facts: &CycleFacts<'_>) -> &'static str {
        "constant"
    }
}

/// What ends the time in which a request that was sent counts as waiting at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingUntil {
    /// Its first token.
    FirstToken,
    /// The next scrape of its endpoint that was taken after it was sent, or its first token if that comes
    /// before. What the engine has not published by then is seen by nobody.
    Scrape,
}

/// Rates how full one endpoint is; the pool's saturation is the mean over its endpoints.
pub trait Detector: Send + Sync + Debug {
    /// 0 idle, 1 and more saturated. Must depend on nothing but the endpoint.
    fn endpoint(&self, e: &Endpoint) -> f64;

    /// Metrics older than this count as stale ([`Endpoint::stale`]); `None`: age does not matter.
    fn staleness(&self) -> Option<Span> {
        None
    }

    /// Whether the rating comes from metrics rather than from a lack of them.
    fn knows(&self, e: &Endpoint) -> bool {
        e.sample.is_some() && !e.stale
    }

    /// Whether the rating changes with [`Endpoint::load`].
    fn watches_load(&self) -> bool {
        false
    }

    /// Until when a request that was sent counts as pending in [`Endpoint::load`].
    fn pending_until(&self) -> PendingUntil {
        PendingUntil::FirstToken
    }
}

/// What a gate sees of the chosen head.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    /// The instant of the decision.
    pub now: Nanos,
    /// The priorities of all provisioned bands, highest first.
    pub priorities: &'a [i32],
    /// The place of the head's band among them: 0 is the highest.
    pub rank: usize,
    /// The head.
    pub ask: &'a Asked,
    /// The endpoints.
    pub pool: &'a Pool,
}

/// Decides per band and endpoint whether the chosen head may go there now.
pub trait Gate: Send + Sync + Debug {
    /// Removes endpoints from `set`. An empty set holds the request in the queue and ends the cycle.
    fn allow(&self, p: &Passage<'_>, set: &mut EndpointSet);

    /// Whether it always leaves `set` as it is.
    fn is_open(&self) -> bool {
        false
    }

    /// Whether a held head may pass because of nothing but time. Otherwise the `event` driver asks again
    /// when something has changed, and not each millisecond.
    fn watches_time(&self) -> bool {
        true
    }

    /// Fresh state, for gates that remember something; it is asked instead of the gate then.
    fn start(&self) -> Option<Box<dyn GateMemory>> {
        None
    }
}

/// A running request, as a gate is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The priority of its band.
    pub priority: i32,
    /// Where it runs.
    pub endpoint: EndpointId,
    /// Prompt tokens that the endpoint was not believed to hold.
    pub prompt_tokens: u64,
    /// When its first token came back; for an answer that does not stream, when it was dispatched.
    pub decoding: Option<Nanos>,
}

/// How a running request has left its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// To another endpoint.
    Moved,
    /// Without a complete answer.
    Stopped,
    /// With one; its tokens, if they are known.
    Finished(Option<u64>),
}

/// What a gate remembers. The kernel owns it and copies it with itself.
pub trait GateMemory: Send + Sync + Debug {
    /// See [`Gate::allow`].
    fn allow(&mut self, p: &Passage<'_>, set: &mut EndpointSet);
    /// A request has come to the queue of this band.
    fn arrived(&mut self, now: Nanos, priority: i32);
    /// A request has been sent.
    fn dispatched(&mut self, now: Nanos, tenant: &Tenant);
    /// Its first token has come back: `tenant.decoding` is that instant.
    fn first_token(&mut self, now: Nanos, tenant: &Tenant);
    /// It runs there no longer.
    fn released(&mut self, now: Nanos, tenant: &Tenant, left: Left);
    /// The endpoint has left; what ran there may be told of yet.
    fn removed(&mut self, endpoint: EndpointId);
    /// A copy, for forks of the kernel.
    fn fork(&self) -> Box<dyn GateMemory>;
}

/// Refuses requests before they are queued.
pub trait Admitter: Send + Sync + Debug {
    /// Whether the request may come in.
    fn admit(&self, ask: &Asked, pool: &Pool, draws: Draws) -> bool;
}

/// The key of a queued request: smaller goes first. Ties go to the earlier arrival.
pub trait OrderingPolicy: Send + Sync + Debug {
    /// Asked once, when the request is queued.
    fn key(&self, ask: &Asked) -> u64;
}

/// The place of a head among heads: ordering key, then arrival number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadKey {
    /// From the band's ordering policy.
    pub key: u64,
    /// The request number, unique.
    pub number: u64,
    /// When the request was queued; follows from its number.
    pub since: Nanos,
}

/// What an engine counted of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, if it said.
    pub prompt: Option<u32>,
    /// Completion tokens, if it said.
    pub completion: Option<u32>,
}

/// What a fairness policy that accounts per program has counted of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Program {
    /// Its requests that were sent to an endpoint.
    pub waits: u64,
    /// Their time in the queue, the whole milliseconds of each added up.
    pub waited_ms: u64,
    /// Attained service, in tokens, as it counts now.
    pub service: f64,
}

impl std::ops::AddAssign for Program {
    fn add_assign(&mut self, other: Program) {
        self.waits += other.waits;
        self.waited_ms += other.waited_ms;
        self.service += other.service;
    }
}

/// Chooses which flow of a band goes next.
pub trait FairnessPolicy: Send + Sync + Debug {
    /// Fresh state for one band.
    fn start(&self) -> Box<dyn Fairness>;

    /// Whether its state wants [`Fairness::output`] while an answer streams.
    fn counts_output(&self) -> bool {
        false
    }
}

/// The state of a fairness policy for one band. Flows are small integers that the band reuses only after
/// [`Fairness::closed`]; a flow with a queued or running request is never closed.
pub trait Fairness: Send + Sync + Debug {
    /// The flow of this name has number `flow` from here on. Nothing is queued in it yet.
    fn opened(&mut self, _now: Nanos, _flow: u32, _name: &Arc<str>) {}
    /// The head of a flow is now this; a flow that had nothing queued has something.
    fn head_changed(&mut self, flow: u32, head: HeadKey);
    /// The flow has nothing queued any more.
    fn emptied(&mut self, flow: u32);
    /// The flow is forgotten, its number free.
    fn closed(&mut self, _now: Nanos, _flow: u32) {}
    /// The flow that goes next, if any has something queued.
    fn pick(&self, now: Nanos) -> Option<u32>;
    /// The picked flow's head is about to leave the queue.
    fn taken(&mut self, _flow: u32) {}
    /// A request of the flow was sent to an endpoint; `input` is its estimate of prompt tokens.
    fn dispatched(&mut self, _now: Nanos, _flow: u32, _input: u64) {}
    /// This many more output tokens of a running request; all of them have been told when it finishes.
    fn output(&mut self, _now: Nanos, _flow: u32, _tokens: u64) {}
    /// A running request has finished; `usage` is what its engine counted.
    fn finished(&mut self, _now: Nanos, _flow: u32, _usage: Usage) {}
    /// Tells what it has counted per program, in any order; false if it counts nothing of that kind. For
    /// metrics, not for decisions.
    fn programs(&self, _now: Nanos, _tell: &mut dyn FnMut(&Arc<str>, Program)) -> bool {
        false
    }
    /// A copy, for forks of the kernel.
    fn fork(&self) -> Box<dyn Fairness>;
}

/// What filters, scorers and pickers see of one scheduling decision.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    /// The instant of the decision.
    pub now: Nanos,
    /// The request.
    pub ask: &'a Asked,
    /// The endpoints.
    pub pool: &'a Pool,
    /// Leading blocks of the request's prompt that each endpoint is believed to hold, by endpoint
    /// index; empty if no index is in use. A block has [`Asked::block_tokens`].
    pub matched: &'a [u32],
    /// Draws, by the request's number.
    pub draws: Draws,
    /// Whether queue length and KV cache use are to be read with what is in flight.
    pub live: bool,
    /// How tokens in flight are counted.
    pub inflight: InflightPlan,
}

impl Decision<'_> {
    /// Leading blocks of the prompt that the endpoint is believed to hold.
    pub fn matched_blocks(&self, endpoint: u32) -> u32 {
        self.matched.get(endpoint as usize).copied().unwrap_or(0)
    }

    /// Share of the prompt's blocks that the endpoint is believed to hold, 0 to 1; 0 without blocks.
    pub fn matched_share(&self, endpoint: u32) -> f64 {
        match self.ask.prefix.len() {
            0 => 0.0,
            total => f64::from(self.matched_blocks(endpoint)) / total as f64,
        }
    }

    /// Prompt tokens that the endpoint is not believed to hold.
    pub fn uncached_tokens(&self, endpoint: u32) -> u64 {
        let matched = self.matched_blocks(endpoint).saturating_mul(self.ask.block_tokens);
        u64::from(self.ask.prompt_tokens.saturating_sub(matched))
    }

    /// What the request would add to the endpoint's tokens in flight.
    pub fn request_tokens(&self, endpoint: u32) -> u64 {
        let output = self.inflight.output_tokens(self.ask.prompt_tokens, self.ask.max_output_tokens);
        self.uncached_tokens(endpoint) + output
    }
}

/// What a filter or scorer remembers between decisions. The kernel owns one per place in the profile,
/// copies it with itself, and asks it instead of the plugin that it came from.
pub trait Memory: Send + Sync + Debug {
    /// As a filter; see [`Filter::keep`].
    fn keep(&mut self, _d: &Decision<'_>, _set: &mut EndpointSet) {}
    /// As a scorer; see [`Scorer::score`].
    fn score(&mut self, _d: &Decision<'_>, _candidates: &[u32], _out: &mut [f64]) {}
    /// The request of the last decision goes to this endpoint. A decision that chose none is followed by
    /// the next decision.
    fn dispatched(&mut self, d: &Decision<'_>, to: EndpointId);
    /// The endpoint has left.
    fn removed(&mut self, endpoint: EndpointId);
    /// A copy, for forks of the kernel.
    fn fork(&self) -> Box<dyn Memory>;
}

/// Removes endpoints from the candidates of a request.
pub trait Filter: Send + Sync + Debug {
    /// Removes from `set`. If nothing is left, the request is refused as saturated.
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet);

    /// Fresh state, for filters that remember something.
    fn start(&self) -> Option<Box<dyn Memory>> {
        None
    }
}

/// Rates candidates.
pub trait Scorer: Send + Sync + Debug {
    /// Writes a score for each candidate: `out[k]` belongs to `candidates[k]`. The kernel clamps to
    /// 0..=1 and weighs. A candidate whose metric is unknown scores 0.
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]);

    /// Fresh state, for scorers that remember something.
    fn start(&self) -> Option<Box<dyn Memory>> {
        None
    }
}

/// Decides whether the prompt of a request is computed elsewhere than its answer.
pub trait Decider: Send + Sync + Debug {
    /// Whether to choose an endpoint for the prompt. `decode` is the index of the one for the answer.
    fn split(&self, d: &Decision<'_>, decode: u32) -> bool;
}

/// Chooses among rated candidates.
pub trait Picker: Send + Sync + Debug {
    /// Writes endpoint indices into `out`, best first, at most as many as it is configured for and at
    /// least one. `candidates` is never empty.
    fn pick(&self, d: &Decision<'_>, candidates: &[(u32, f64)], out: &mut Vec<u32>);
}
