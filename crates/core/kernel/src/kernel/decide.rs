//! What becomes of a request: queueing, cycles, dispatch, and its end.

use super::Kernel;
use super::lease::Lease;
use crate::ask::Ask;
use crate::effect::{Effect, Effects, End, Id, QueueOutcome, Refusal, may_end};
use crate::flow::{Enqueue, Queues};
use crate::plan::Driver;
use crate::policy::{CycleFacts, HeadKey, Passage};
use crate::schedule::{self, Scene};
use crate::table::{Entry, Prefill, Queued, State};
use forebay_base::{Nanos, Span};

/// How a cycle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cycle {
    /// One request left the queue.
    Moved,
    /// A ceiling stopped it before anything that waits.
    Blocked,
    /// The gate held the head.
    Held,
    /// Nothing waits.
    Quiet,
}

impl Kernel {
    pub(super) fn enqueue(&mut self, now: Nanos, id: Id, band: u32, ask: &Ask<'_>, fx: &mut Effects) {
        self.ledgers.entered += 1;
        let (Some(flow_plan), Some(queues)) = (&self.plan.flow, &mut self.queues) else { return };
        let fits = if self.draining {
            Err(QueueOutcome::RejectedOther)
        } else {
            queues.check(flow_plan, band, ask.bytes)
        };
        if let Err(outcome) = fits {
            self.queue_outcome(id, outcome);
            self.refuse(now, id, Refusal::Queue(outcome), fx);
            // As in llm-d-router, every arrival is a cycle, also one that finds the queue full.
            if !self.draining {
                self.arrival(now, fx);
            }
            return;
        }
        let entry = self.table.get_mut(id).expect("offered in this call");
        let head = HeadKey {
            key: queues.band(band).template().ordering.key(&entry.asked),
            number: entry.asked.number,
            since: now,
        };
        let deadline = queues.deadline(flow_plan, now, ask.ttl);
        let flow = queues
            .push(&Enqueue { band, flow: ask.flow, handle: id.index, head, bytes: ask.bytes, deadline }, now);
        entry.state = State::Queued(Queued { band, flow, ttl: ask.ttl, since: now });
        if let Some(gate) = &mut self.memories.gate {
            gate.arrived(now, queues.priorities()[band as usize]);
        }
        self.arrival(now, fx);
    }

    /// Without flow control: sheddable requests are refused on a saturated pool, all others pass.
    pub(super) fn admit_legacy(&mut self, now: Nanos, id: Id, fx: &mut Effects) {
        let priority = self.table.get(id).map_or(0, |e| e.asked.priority);
        if self.draining {
            self.refuse(now, id, Refusal::Queue(QueueOutcome::RejectedOther), fx);
        } else if priority < 0 && !self.pool.is_empty() && self.saturation().all >= 1.0 {
            self.refuse(now, id, Refusal::Shed, fx);
        } else {
            self.scratch.candidates.clone_from(self.pool.members());
            self.dispatch(now, id, None, true, fx);
        }
    }

    /// What an arrival sets off: under the `upstream` driver one cycle, whatever comes of it.
    fn arrival(&mut self, now: Nanos, fx: &mut Effects) {
        match self.driver() {
            Driver::Upstream => self.cycle(now, fx),
            Driver::Event => self.changed = true,
        }
    }

    pub(super) fn driver(&self) -> Driver {
        self.plan.flow.as_ref().map_or(Driver::Upstream, |f| f.driver)
    }

    /// One cycle: the policy's ceilings, then at most one request on its way.
    pub(super) fn cycle(&mut self, now: Nanos, fx: &mut Effects) {
        let (saturation, ended) = self.one_cycle(now, fx);
        self.plan_next(saturation, ended);
    }

    /// Cycles as long as they dispatch, up to [`Driver::TURN`]; then others get a word in.
    pub(super) fn turn(&mut self, now: Nanos, fx: &mut Effects) {
        self.changed = false;
        self.turn_cut = false;
        for _ in 0..Driver::TURN {
            if self.queued() == 0 {
                self.ticks.planned = None;
                return;
            }
            let (saturation, ended) = self.one_cycle(now, fx);
            if ended != Cycle::Moved {
                self.plan_next(saturation, ended);
                return;
            }
        }
        self.turn_cut = self.queued() > 0;
        self.ticks.planned = None;
    }

    fn one_cycle(&mut self, now: Nanos, fx: &mut Effects) -> (f64, Cycle) {
        self.cycles += 1;
        let s = self.saturation();
        // The highest band may pass a pool that is known to be saturated, not one that nobody sees.
        let bypass = !self.pool.is_empty() && (s.effective < 1.0 || s.known >= 1.0);
        (s.effective, self.run_cycle(s.effective, bypass, now, fx))
    }

    /// Plans the next tick to execute after a cycle.
    fn plan_next(&mut self, saturation: f64, ended: Cycle) {
        self.replan();
        let Some(next) = self.ticks.planned else { return };
        let (Some(flow), Some(queues)) = (&self.plan.flow, &self.queues) else { return };
        let promised = match ended {
            Cycle::Blocked => {
                let facts = CycleFacts { saturation, priorities: queues.priorities(), ticks: 0 };
                next.saturating_add(flow.limit.steady(&facts, &self.cells))
            }
            Cycle::Held if flow.driver == Driver::Event && !flow.gate.watches_time() => u64::MAX,
            _ => return,
        };
        let aged = self.next_edge().map_or(u64::MAX, |t| self.ticks.from(t));
        self.ticks.planned = Some(promised.min(aged).max(next)).filter(|&p| p != u64::MAX);
    }

    fn run_cycle(&mut self, saturation: f64, bypass: bool, now: Nanos, fx: &mut Effects) -> Cycle {
        let (Some(flow), Some(queues)) = (&self.plan.flow, &self.queues) else { return Cycle::Quiet };
        let priorities = queues.priorities();
        self.ceilings.fill(1.0);
        let facts = CycleFacts { saturation, priorities, ticks: u64::from(flow.driver == Driver::Upstream) };
        flow.limit.ceilings(&facts, &mut self.cells, &mut self.ceilings);
        if let Some(top) = flow.top_band_ceiling
            && bypass
            && self.ceilings.len() > 1
            && self.ceilings[0] >= 1.0
        {
            self.ceilings[0] = self.ceilings[0].max(top);
        }
        for (band, &ceiling) in self.ceilings.iter().enumerate() {
            // Before the look at the queue: an empty band with a low ceiling stops all below it.
            if saturation >= ceiling {
                return Cycle::Blocked;
            }
            let Some(handle) = queues.head(band as u32, now) else { continue };
            let id = self.table.id_at(handle);
            self.scratch.candidates.clone_from(self.pool.members());
            if !flow.gate.is_open() && !self.pool.is_empty() {
                let ask = &self.table.get(id).expect("a queued request is in the table").asked;
                let passage = Passage { now, priorities, rank: band, ask, pool: &self.pool };
                let candidates = &mut self.scratch.candidates;
                match &mut self.memories.gate {
                    Some(memory) => memory.allow(&passage, candidates),
                    None => flow.gate.allow(&passage, candidates),
                }
                if candidates.is_empty() {
                    fx.log_cycle(now, saturation, &self.ceilings, "hold", id);
                    return Cycle::Held;
                }
            }
            fx.log_cycle(now, saturation, &self.ceilings, "take", id);
            let lane = self.queued_lane(id);
            if let (Some(lane), Some(queues)) = (lane, &mut self.queues) {
                queues.taken(lane);
            }
            self.take_out(now, id);
            self.queue_outcome(id, QueueOutcome::Dispatched);
            self.dispatch(now, id, lane, true, fx);
            return Cycle::Moved;
        }
        Cycle::Quiet
    }

    fn queued_lane(&self, id: Id) -> Option<(u32, u32)> {
        match &self.table.get(id)?.state {
            State::Queued(q) => Some((q.band, q.flow)),
            _ => None,
        }
    }

    /// Takes a queued request out of its queue; it is being decided on from here.
    pub(super) fn take_out(&mut self, now: Nanos, id: Id) {
        if let Some(entry) = self.table.get_mut(id)
            && let State::Queued(q) = std::mem::replace(&mut entry.state, State::Deciding)
            && let Some(queues) = &mut self.queues
        {
            queues.remove(q.band, q.flow, id.index, entry.asked.bytes, now);
        }
    }

    /// Chooses an endpoint among the candidates and accounts for the request there, and in its flow, which
    /// is charged for it the first time.
    pub(super) fn dispatch(
        &mut self,
        now: Nanos,
        id: Id,
        lane: Option<(u32, u32)>,
        charge: bool,
        fx: &mut Effects,
    ) {
        let entry = self.table.get(id).expect("decided in this call");
        let scene =
            Scene { plan: &self.plan, pool: &self.pool, index: self.index.as_ref(), draws: self.draws, now };
        let choice = match schedule::choose(&scene, &entry.asked, &mut self.memories, &mut self.scratch) {
            Ok(choice) => choice,
            Err(refusal) => return self.refuse(now, id, refusal, fx),
        };
        let asked = &entry.asked;
        let waited = now.since(asked.arrived);
        let uncached = u64::from(asked.prompt_tokens - choice.matched_tokens);
        let prompt = asked.prompt_tokens;
        let tokens = uncached + self.plan.inflight.output_tokens(prompt, asked.max_output_tokens);
        let named = |index| self.pool.at(index).expect("chosen among the living").id;
        let endpoint = named(choice.endpoint);
        let prefill = choice.prefill.map(|(at, matched)| {
            let uncached = u64::from(prompt - matched);
            let output = tokens - u64::from(prompt - choice.matched_tokens);
            Prefill { endpoint: named(at), uncached, tokens: uncached + output }
        });
        if let Some(index) = &mut self.index {
            index.insert(endpoint.index, &asked.prefix);
            if let Some(p) = prefill {
                index.insert(p.endpoint.index, &asked.prefix);
            }
        }
        self.lease(now, id, Lease { endpoint, uncached, tokens, prefill, lane });
        if let (Some(lane), Some(queues)) = (lane, &mut self.queues) {
            queues.started(lane);
            if charge {
                queues.charge(lane, u64::from(prompt), now);
            }
        }
        let prefill = prefill.map(|p| p.endpoint);
        fx.log_dispatch(now, id, endpoint, waited, choice.matched_tokens, prefill);
        let matched_tokens = choice.matched_tokens;
        fx.list.push(Effect::Dispatch { id, endpoint, prefill, waited, matched_tokens });
    }

    // --- Ending -------------------------------------------------------------------------------------

    pub(super) fn queued(&self) -> u64 {
        self.queues.as_ref().map_or(0, Queues::requests)
    }

    pub(super) fn queue_outcome(&mut self, id: Id, outcome: QueueOutcome) {
        self.ledgers.outcomes[outcome.index()] += 1;
        if let Some(entry) = self.table.get_mut(id) {
            debug_assert!(entry.outcome.is_none(), "one queue outcome per request");
            entry.outcome = Some(outcome);
        }
    }

    /// The one end of a request that has left the table.
    pub(super) fn ended(&mut self, entry: &Entry, end: End) {
        debug_assert!(may_end(entry.outcome, end), "{:?} and {end:?}", entry.outcome);
        self.ledgers.pairs[entry.outcome.map_or(QueueOutcome::ALL.len(), QueueOutcome::index)]
            [end.index()] += 1;
        self.ledgers.ended[end.index()] += 1;
        self.ledgers.live -= 1;
    }

    /// Ends a queued request by the kernel's own decision.
    pub(super) fn evict(&mut self, now: Nanos, handle: u32, outcome: QueueOutcome, fx: &mut Effects) {
        let id = self.table.id_at(handle);
        self.take_out(now, id);
        self.queue_outcome(id, outcome);
        self.refuse(now, id, Refusal::Queue(outcome), fx);
    }

    pub(super) fn refuse(&mut self, now: Nanos, id: Id, refusal: Refusal, fx: &mut Effects) {
        let Some(entry) = self.table.remove(id) else { return };
        let waited: Span = now.since(entry.asked.arrived);
        fx.log_end(now, id, refusal, waited);
        fx.list.push(Effect::End { id, refusal, waited });
        let end = match refusal {
            Refusal::Queue(_) => End::Queue,
            Refusal::Denied => End::Denied,
            Refusal::Shed => End::Shed,
            Refusal::NoCandidates => End::NoCandidates,
            Refusal::FilteredOut => End::FilteredOut,
        };
        self.ended(&entry, end);
    }
}
