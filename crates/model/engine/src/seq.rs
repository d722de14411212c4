//! Requests inside the engine, and the queue of those that wait.

use crate::spec::Scheduling;
use forebay_base::{IndexedHeap, Nanos, Span};
use std::sync::Arc;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The slot is empty.
    Empty,
    /// Arrived, not yet seen by the scheduler.
    Incoming,
    /// In the waiting queue: new or preempted.
    Waiting,
    /// Admitted: holds a sequence slot and blocks.
    Running,
}

/// What it takes to get a prompt's KV from another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Before the first byte.
    pub latency: Span,
    /// Each token, in picoseconds.
    pub per_token_ps: u64,
}

impl Transfer {
    /// When so many tokens are there that are asked for at `at`, over a way that is `taken` until then: the
    /// first byte comes after the latency, and behind what was asked for before.
    pub(crate) fn ends(&self, at: Nanos, taken: Nanos, tokens: u32) -> Nanos {
        let ps = u128::from(self.per_token_ps) * u128::from(tokens);
        taken.max(at + self.latency) + Span(u64::try_from(ps.div_ceil(1000)).unwrap_or(u64::MAX))
    }
}

/// One request; slots are reused, so that a steady load allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct Seq {
    pub(crate) place: Place,
    /// Counts the tenants of the slot, so that a batch can tell that its sequence is gone.
    pub(crate) generation: u32,
    pub(crate) id: u64,
    /// Rank of arrival; also the identity from which output blocks are hashed.
    pub(crate) number: u64,
    pub(crate) priority: i64,
    /// What its gaps between tokens are counted with.
    pub(crate) class: u16,
    /// When the scheduler can see it.
    pub(crate) arrived: Nanos,
    /// The adapter that it runs with, if any.
    pub(crate) lora: Option<u16>,
    pub(crate) prompt: u32,
    /// Tokens to generate: as asked for, or cut by the model's context.
    pub(crate) target: u32,
    /// Whether the model's context did the cutting.
    pub(crate) cut: bool,
    /// Tokens generated.
    pub(crate) out: u32,
    /// Tokens that steps in flight will generate.
    pub(crate) pending: u32,
    /// Tokens whose KV is computed or being computed.
    pub(crate) computed: u32,
    /// Tokens, among the computed ones, whose content was known when the scheduler last looked: their
    /// full blocks can be hit.
    pub(crate) settled: u32,
    /// Blocks at the front whose content the caller named, once they are full.
    pub(crate) named: Vec<u32>,
    /// Blocks behind those.
    pub(crate) own: u32,
    pub(crate) prefix: Arc<[u64]>,
    /// Its prompt's KV comes from another server, at this cost; until it has.
    pub(crate) transfer: Option<Transfer>,
    /// It comes or has come: blocks are held, and only the last token is to be computed.
    pub(crate) loaded: bool,
    /// Prompt tokens found in the cache when it was first admitted.
    pub(crate) cached: u32,
    pub(crate) preemptions: u32,
    pub(crate) admitted: bool,
    /// Rank of the last admission: the order of the running list.
    pub(crate) order: u64,
    /// The end of the step that made the last token.
    pub(crate) last_ps: u128,
    /// Whether the request is in the group: then `out`, `pending`, `computed`, `settled` and `own` are
    /// behind, and follow from the two bases.
    pub(crate) grouped: bool,
    /// `computed` less the number of plans.
    pub(crate) base: i64,
    /// `out + pending` less the number of plans.
    pub(crate) base_out: i64,
    /// The first plan that counted the request as one of the group.
    pub(crate) joined: u64,
}

impl Seq {
    pub(crate) fn empty() -> Seq {
        Seq {
            place: Place::Empty,
            generation: 0,
            id: 0,
            number: 0,
            priority: 0,
            class: 0,
            arrived: Nanos::ZERO,
            lora: None,
            prompt: 0,
            target: 0,
            cut: false,
            out: 0,
            pending: 0,
            computed: 0,
            settled: 0,
            named: Vec::new(),
            own: 0,
            prefix: Arc::new([]),
            transfer: None,
            loaded: false,
            cached: 0,
            preemptions: 0,
            admitted: false,
            order: 0,
            last_ps: 0,
            grouped: false,
            base: 0,
            base_out: 0,
            joined: 0,
        }
    }

    /// Tokens that exist: the prompt and what was generated.
    pub(crate) fn known(&self) -> u32 {
        self.prompt + self.out
    }

    /// Tokens still to be computed before the next one can be sampled; 0 if nothing is left to
    /// generate beyond what is in flight.
    pub(crate) fn wanted(&self) -> u32 {
        if self.out + self.pending >= self.target { 0 } else { self.known() + self.pending - self.computed }
    }

    /// Blocks held.
    pub(crate) fn held(&self) -> u32 {
        self.named.len() as u32 + self.own
    }
}

/// Order in the waiting queue: (priority, time or turn, number).
pub(crate) type Key = (i64, u64, u64);

/// The waiting queue under either policy. First come first served is a deque written as keys: turns
/// count up at the back and down at the front.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    heap: IndexedHeap<Key>,
    scheduling: Scheduling,
    front: u64,
    back: u64,
}

impl Waiting {
    pub(crate) fn new(scheduling: Scheduling) -> Waiting {
        Waiting { heap: IndexedHeap::default(), scheduling, front: 1 << 63, back: 1 << 63 }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn push(&mut self, slot: u32, seq: &Seq) {
        let key = match self.scheduling {
            Scheduling::Priority => (seq.priority, seq.arrived.0, seq.number),
            Scheduling::Fcfs => {
                self.back += 1;
                (0, self.back, 0)
            }
        };
        self.heap.set(slot, key);
    }

    /// Puts a preempted request back: at the front, or where its priority and arrival say.
    pub(crate) fn push_front(&mut self, slot: u32, seq: &Seq) {
        match self.scheduling {
            Scheduling::Priority => self.push(slot, seq),
            Scheduling::Fcfs => {
                self.heap.set(slot, (0, self.front, 0));
                self.front -= 1;
            }
        }
    }

    pub(crate) fn peek(&self) -> Option<u32> {
        self.heap.peek().map(|(_, slot)| slot)
    }

    pub(crate) fn pop(&mut self) {
        self.heap.pop();
    }

    /// Takes the head out for a while; [`Waiting::put_back`] gives it its place again.
    pub(crate) fn set_aside(&mut self) -> Option<(Key, u32)> {
        self.heap.pop()
    }

    pub(crate) fn put_back(&mut self, (key, slot): (Key, u32)) {
        self.heap.set(slot, key);
    }

    /// The first in order of those that pass.
    pub(crate) fn first_of(&self, pass: impl Fn(u32) -> bool) -> Option<u32> {
        self.heap.iter().filter(|(_, slot)| pass(*slot)).min().map(|(_, slot)| slot)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.heap.remove(slot);
    }
}
