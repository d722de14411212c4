//! The state machine: inputs are `(now, event)`, outputs are [`Effects`].

use crate::ask::{Ask, Asked};
use crate::driver::Ticks;
use crate::effect::{Effect, Effects, End, Id, Ledgers, QueueOutcome, Refusal};
use crate::flow::{BandView, Enqueue, Queues};
use crate::plan::{FlowPlan, Plan};
use crate::policy::{CycleFacts, HeadKey};
use crate::pool::{EndpointId, EndpointSpec, Pool, Sample};
use crate::prefix::{self, PrefixIndex};
use crate::saturation::{Saturation, StageSaturation};
use crate::schedule::{self, Scene, Scratch};
use crate::table::{Entry, Queued, Running, State, Table};
use forebay_base::{Draws, Nanos, Span};
use std::sync::Arc;

/// What became of a dispatched request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first token has come back.
    FirstToken,
    /// The answer is complete.
    Finished,
    /// It will not be.
    Failed,
}

/// How a cycle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cycle {
    /// One request left the queue.
    Moved,
    /// A ceiling stopped it before anything that waits.
    Blocked,
    /// The gate held the head, or nothing waits.
    Quiet,
}

/// One decision kernel. It is `Clone`, so that it can be forked.
#[derive(Clone, Debug)]
pub struct Kernel {
    plan: Arc<Plan>,
    draws: Draws,
    clock: Nanos,
    pool: Pool,
    saturation: Saturation,
    queues: Option<Queues>,
    table: Table,
    index: Option<PrefixIndex>,
    cells: Vec<u64>,
    ticks: Ticks,
    ceilings: Vec<f64>,
    numbers: u64,
    cycles: u64,
    ledgers: Ledgers,
    draining: bool,
    scratch: Scratch,
}

impl Kernel {
    /// A kernel with an empty pool. `now` is the origin of its ticks.
    pub fn new(plan: Arc<Plan>, seed: u64, now: Nanos, fx: &mut Effects) -> Kernel {
        fx.log_start(seed, now);
        let draws = Draws::new(seed);
        Kernel {
            draws,
            clock: now,
            pool: Pool::default(),
            saturation: Saturation::new(),
            queues: plan.flow.as_ref().map(|f| Queues::new(f, true, seed, now)),
            table: Table::default(),
            index: plan.prefix.map(PrefixIndex::new),
            cells: vec![0; plan.flow.as_ref().map_or(0, |f| f.limit.cells())],
            ticks: Ticks::new(now),
            ceilings: Vec::new(),
            numbers: 0,
            cycles: 0,
            ledgers: Ledgers::default(),
            draining: false,
            scratch: Scratch::default(),
            plan,
        }
    }

    // --- Inputs -------------------------------------------------------------------------------------

    /// An endpoint has joined the pool.
    pub fn add_endpoint(&mut self, now: Nanos, spec: EndpointSpec, fx: &mut Effects) -> EndpointId {
        let now = self.advance(now, fx);
        fx.log_add(now, &spec);
        let id = self.pool.add(spec);
        let e = self.pool.get(id).expect("added just above");
        self.saturation.touch(&*self.plan.detector, e);
        self.pool_changed(now);
        id
    }

    /// An endpoint has left. What runs there goes on; its counters are gone with it.
    pub fn remove_endpoint(&mut self, now: Nanos, id: EndpointId, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_remove(now, id);
        if self.pool.remove(id) {
            if let Some(index) = &mut self.index {
                index.forget(id.index);
            }
            self.saturation.removed();
            self.pool_changed(now);
        }
    }

    /// Metrics of an endpoint have arrived; `taken` is when the endpoint was asked for them.
    pub fn scraped(&mut self, now: Nanos, id: EndpointId, taken: Nanos, sample: &Sample, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_scrape(now, id, taken, sample);
        let Some(e) = self.pool.get_mut(id) else { return };
        e.sample = Some(*sample);
        e.sampled = now;
        e.stale = false;
        self.saturation.touch(&*self.plan.detector, e);
        if let (Some(index), Some(blocks)) = (&mut self.index, sample.blocks) {
            index.report_capacity(id.index, blocks, sample.block_tokens.unwrap_or(16));
        }
        self.replan();
    }

    /// A request has come. It is admitted, queued and perhaps dispatched at once, or ended with an
    /// effect.
    pub fn offer(&mut self, now: Nanos, ask: &Ask<'_>, fx: &mut Effects) -> Id {
        let now = self.advance(now, fx);
        fx.log_offer(now, ask);
        let band = self.queues.as_ref().map(|q| q.band_of(ask.priority));
        let priority = match (band, &self.queues) {
            (Some(b), Some(q)) => q.priorities()[b as usize],
            _ => ask.priority,
        };
        let asked = Asked {
            number: self.numbers,
            arrived: now,
            requested_priority: ask.priority,
            priority,
            bytes: ask.bytes,
            prompt_tokens: ask.prompt_tokens,
            prefix: ask.prefix.clone(),
        };
        self.numbers += 1;
        self.ledgers.accepted += 1;
        self.ledgers.live += 1;
        let denied = self.plan.admitters.iter().any(|a| !a.admit(&asked, &self.pool, self.draws));
        let id = self.table.insert(asked);
        if denied {
            self.refuse(now, id, Refusal::Denied, fx);
        } else if let Some(band) = band {
            self.enqueue(now, id, band, ask, fx);
        } else {
            self.admit_legacy(now, id, fx);
        }
        id
    }

    /// The client has left; queued or running, its request ends here. Late and repeated words do nothing.
    pub fn gone(&mut self, now: Nanos, id: Id, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_id(now, "gone", id);
        let Some(entry) = self.table.remove(id) else { return };
        match entry.state {
            State::Queued(ref q) => {
                let (band, flow) = (q.band, q.flow);
                self.dequeue(now, id.index, &entry.asked, band, flow);
                self.queue_outcome(QueueOutcome::EvictedContextCancelled);
                if self.queued() == 0 {
                    self.ticks.planned = None;
                }
            }
            State::Running(ref r) => self.release(r),
            State::Deciding => {}
        }
        self.ended(End::Cancelled);
    }

    /// Something has become of a dispatched request. Late and repeated words do nothing.
    pub fn progress(&mut self, now: Nanos, id: Id, progress: Progress, fx: &mut Effects) {
        let now = self.advance(now, fx);
        let verb = match progress {
            Progress::FirstToken => "first",
            Progress::Finished => "finished",
            Progress::Failed => "failed",
        };
        fx.log_id(now, verb, id);
        let Some(Entry { state: State::Running(r), .. }) = self.table.get_mut(id) else { return };
        if progress == Progress::FirstToken {
            if !std::mem::replace(&mut r.first_token, true)
                && let Some(e) = self.pool.get_mut(r.endpoint)
            {
                e.load.pending -= 1;
                e.load.pending_tokens -= r.uncached;
            }
            return;
        }
        if let Some(Entry { state: State::Running(r), .. }) = self.table.remove(id) {
            self.release(&r);
        }
        self.ended(if progress == Progress::Finished { End::Finished } else { End::Failed });
    }

    /// Time has come to [`Kernel::next_wake`].
    pub fn wake(&mut self, now: Nanos, fx: &mut Effects) {
        fx.log_verb(now.max(self.clock), "wake");
        self.advance(now, fx);
    }

    /// Exactly these priorities are wanted beside the configured ones: bands come at once and go when
    /// they have been idle.
    pub fn provision(&mut self, now: Nanos, priorities: &[i32], fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_provision(now, priorities);
        let (Some(queues), Some(plan)) = (&mut self.queues, &self.plan.flow) else { return };
        let moved = queues.provision(plan, priorities, now);
        self.table.rebind(&moved);
        self.replan();
    }

    /// No new requests from here on; what is queued goes on.
    pub fn drain(&mut self, now: Nanos, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_verb(now, "drain");
        self.draining = true;
    }

    /// Ends everything that is queued, and takes nothing new.
    pub fn close(&mut self, now: Nanos, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_verb(now, "close");
        self.draining = true;
        while let Some(handle) = self.queues.as_ref().and_then(Queues::any) {
            self.evict(now, handle, QueueOutcome::EvictedOther, fx);
        }
        self.ticks.planned = None;
    }

    // --- Views --------------------------------------------------------------------------------------

    /// When [`Kernel::wake`] has to be called next; `None` while nothing can happen by itself.
    pub fn next_wake(&self) -> Option<Nanos> {
        let deadline = self.queues.as_ref().and_then(Queues::next_deadline).map(|(t, _)| t);
        match (deadline, self.ticks.wake()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The two ledgers.
    pub fn ledgers(&self) -> Ledgers {
        Ledgers { queued: self.queued(), ..self.ledgers }
    }

    /// The endpoints.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Saturation at the last input.
    pub fn saturation(&mut self) -> StageSaturation {
        self.saturation.get(&*self.plan.detector, &self.pool)
    }

    /// The bands, highest priority first; none without flow control.
    pub fn bands(&self) -> impl Iterator<Item = BandView> + '_ {
        self.queues.iter().flat_map(Queues::views)
    }

    /// Ceilings of the last cycle, in the order of [`Kernel::bands`].
    pub fn ceilings(&self) -> &[f64] {
        &self.ceilings
    }

    /// Requests and body bytes queued in all bands.
    pub fn queue_totals(&self) -> (u64, u64) {
        self.queues.as_ref().map_or((0, 0), |q| (q.requests(), q.bytes()))
    }

    /// Cycles executed so far; counted ones are not among them.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Estimated bytes of the prefix index.
    pub fn index_bytes(&self) -> u64 {
        self.index.as_ref().map_or(0, PrefixIndex::bytes)
    }

    /// The priority of the band a live request runs in.
    pub fn priority_of(&self, id: Id) -> Option<i32> {
        self.table.get(id).map(|e| e.asked.priority)
    }

    /// Tokens per block to hash prompts with; 0 if no prefix index is in use. The first endpoint that
    /// reports a block size decides.
    pub fn block_tokens(&self) -> u32 {
        let reported = || self.pool.iter().find_map(|e| e.sample.and_then(|s| s.block_tokens));
        self.plan.prefix.map_or(0, |p| prefix::block_tokens(&p, reported()))
    }

    // --- Time ---------------------------------------------------------------------------------------

    /// Brings the state to `now`: counted ticks, metrics turned stale, deadlines, and the planned cycle.
    /// Time never goes back.
    fn advance(&mut self, now: Nanos, fx: &mut Effects) -> Nanos {
        let now = now.max(self.clock);
        self.clock = now;
        let due = self.ticks.through(now);
        let planned = self.ticks.planned.filter(|&p| p <= due);
        let limit = planned.map_or(due, |p| p - 1);
        let plan = self.plan.clone();
        while let Some(edge) = self.saturation.edge(&*plan.detector, &self.pool).filter(|&e| e <= now) {
            // Ticks before the edge still saw the old saturation.
            self.count_ticks(self.ticks.before(edge).min(limit));
            self.saturation.age(&*plan.detector, &mut self.pool, edge);
        }
        self.count_ticks(limit);
        while let Some((_, handle)) =
            self.queues.as_ref().and_then(Queues::next_deadline).filter(|d| d.0 <= now)
        {
            let empty = self.queues.as_ref().is_some_and(|q| q.empty_pool);
            let outcome = if empty { QueueOutcome::EvictedNoEndpoints } else { QueueOutcome::EvictedTtl };
            self.evict(now, handle, outcome, fx);
        }
        if self.queued() == 0 {
            self.count_ticks(due);
            self.ticks.planned = None;
        } else if planned.is_some() {
            // A late timer is one cycle: the ticks it missed are dropped.
            self.ticks.done = due;
            self.cycle(now, fx);
        }
        now
    }

    /// The effect on policy state of ticks that need no execution.
    fn count_ticks(&mut self, through: u64) {
        let n = through.saturating_sub(self.ticks.done);
        let (Some(flow), Some(queues)) = (&self.plan.flow, &self.queues) else { return };
        if n == 0 {
            return;
        }
        let saturation = self.saturation.get(&*self.plan.detector, &self.pool).effective;
        let facts = CycleFacts { saturation, priorities: queues.priorities() };
        flow.limit.skip(&facts, n, &mut self.cells);
        self.ticks.done = through;
    }

    /// Something has changed that the policy's promise did not know of: look again at the next tick.
    fn replan(&mut self) {
        self.ticks.planned = (self.queued() > 0).then_some(self.ticks.done + 1);
    }

    /// Plans the next tick to execute after a cycle.
    fn plan_next(&mut self, flow: &FlowPlan, saturation: f64, ended: Cycle) {
        self.replan();
        let Some(next) = self.ticks.planned.filter(|_| ended == Cycle::Blocked) else { return };
        let Some(queues) = &self.queues else { return };
        let facts = CycleFacts { saturation, priorities: queues.priorities() };
        let promised = next.saturating_add(flow.limit.steady(&facts, &self.cells));
        let edge = self.saturation.edge(&*self.plan.detector, &self.pool);
        let aged = edge.map_or(u64::MAX, |t| self.ticks.from(t));
        self.ticks.planned = Some(promised.min(aged).max(next)).filter(|&p| p != u64::MAX);
    }

    fn pool_changed(&mut self, now: Nanos) {
        let (empty, table) = (self.pool.is_empty(), &self.table);
        if let (Some(queues), Some(plan)) = (&mut self.queues, &self.plan.flow) {
            queues.regime(empty, now, |q, handle| match table.at(handle).map(|e| &e.state) {
                Some(State::Queued(w)) => q.deadline(plan, w.since, w.ttl),
                _ => Nanos::NEVER,
            });
        }
        self.replan();
    }

    // --- Deciding -----------------------------------------------------------------------------------

    fn enqueue(&mut self, now: Nanos, id: Id, band: u32, ask: &Ask<'_>, fx: &mut Effects) {
        self.ledgers.entered += 1;
        let plan = self.plan.clone();
        let (Some(flow_plan), Some(queues)) = (&plan.flow, &mut self.queues) else { return };
        let fits = if self.draining {
            Err(QueueOutcome::RejectedOther)
        } else {
            queues.check(flow_plan, band, ask.bytes)
        };
        if let Err(outcome) = fits {
            self.queue_outcome(outcome);
            self.refuse(now, id, Refusal::Queue(outcome), fx);
            return;
        }
        let entry = self.table.get_mut(id).expect("offered in this call");
        let head = HeadKey {
            key: queues.band(band).template().ordering.key(&entry.asked),
            number: entry.asked.number,
        };
        let deadline = queues.deadline(flow_plan, now, ask.ttl);
        let flow = queues
            .push(&Enqueue { band, flow: ask.flow, handle: id.index, head, bytes: ask.bytes, deadline }, now);
        entry.state = State::Queued(Queued { band, flow, ttl: ask.ttl, since: now });
        self.cycle(now, fx);
    }

    /// Without flow control: sheddable requests are refused on a saturated pool, all others pass.
    fn admit_legacy(&mut self, now: Nanos, id: Id, fx: &mut Effects) {
        let saturated = self.saturation().all >= 1.0;
        let priority = self.table.get(id).map_or(0, |e| e.asked.priority);
        if self.draining {
            self.refuse(now, id, Refusal::Queue(QueueOutcome::RejectedOther), fx);
        } else if priority < 0 && saturated && !self.pool.is_empty() {
            self.refuse(now, id, Refusal::Shed, fx);
        } else {
            self.fill_candidates();
            self.dispatch(now, id, fx);
        }
    }

    /// One cycle: the policy's ceilings, then at most one request on its way.
    fn cycle(&mut self, now: Nanos, fx: &mut Effects) {
        self.cycles += 1;
        let plan = self.plan.clone();
        let Some(flow) = &plan.flow else { return };
        let saturation = self.saturation().effective;
        let ended = self.run_cycle(flow, saturation, now, fx);
        self.plan_next(flow, saturation, ended);
    }

    fn run_cycle(&mut self, flow: &FlowPlan, saturation: f64, now: Nanos, fx: &mut Effects) -> Cycle {
        let Some(queues) = &self.queues else { return Cycle::Quiet };
        let priorities = queues.priorities();
        self.ceilings.clear();
        self.ceilings.resize(priorities.len(), 1.0);
        let facts = CycleFacts { saturation, priorities };
        flow.limit.ceilings(&facts, &mut self.cells, &mut self.ceilings);
        for band in 0..priorities.len() as u32 {
            // Before the look at the queue: an empty band with a low ceiling stops all below it.
            if saturation >= self.ceilings[band as usize] {
                return Cycle::Blocked;
            }
            let Some(handle) = self.queues.as_ref().and_then(|q| q.head(band)) else { continue };
            let id = self.table.id_at(handle);
            self.fill_candidates();
            if !flow.gate.is_open() && !self.pool.is_empty() {
                let entry = self.table.get(id).expect("a queued request is in the table");
                let candidates = &mut self.scratch.candidates;
                flow.gate.allow(entry.asked.priority, &entry.asked, &self.pool, candidates);
                if candidates.is_empty() {
                    fx.log_cycle(now, saturation, &self.ceilings, "hold", id);
                    return Cycle::Quiet;
                }
            }
            fx.log_cycle(now, saturation, &self.ceilings, "take", id);
            let entry = self.table.get_mut(id).expect("a queued request is in the table");
            if let State::Queued(q) = std::mem::replace(&mut entry.state, State::Deciding) {
                let bytes = entry.asked.bytes;
                if let Some(queues) = &mut self.queues {
                    queues.remove(q.band, q.flow, handle, bytes, now);
                }
            }
            self.queue_outcome(QueueOutcome::Dispatched);
            self.dispatch(now, id, fx);
            return Cycle::Moved;
        }
        Cycle::Quiet
    }

    fn fill_candidates(&mut self) {
        self.scratch.candidates.clear();
        for e in self.pool.iter() {
            self.scratch.candidates.insert(e.id.index);
        }
    }

    /// Chooses an endpoint among the candidates and accounts for the request there.
    fn dispatch(&mut self, now: Nanos, id: Id, fx: &mut Effects) {
        let block_tokens = self.block_tokens();
        let entry = self.table.get(id).expect("decided in this call");
        let scene = Scene {
            plan: &self.plan,
            pool: &self.pool,
            index: self.index.as_ref(),
            block_tokens,
            draws: self.draws,
            now,
        };
        let choice = match schedule::choose(&scene, &entry.asked, &mut self.scratch) {
            Ok(choice) => choice,
            Err(refusal) => return self.refuse(now, id, refusal, fx),
        };
        let asked = &entry.asked;
        let waited = now.since(asked.arrived);
        let uncached = u64::from(asked.prompt_tokens - choice.matched_tokens);
        let endpoint = self.pool.at(choice.endpoint).expect("chosen among the living").id;
        if let Some(index) = &mut self.index {
            index.insert(endpoint.index, &asked.prefix);
        }
        if let Some(e) = self.pool.get_mut(endpoint) {
            e.load.requests += 1;
            e.load.pending += 1;
            e.load.pending_tokens += uncached;
        }
        if let Some(entry) = self.table.get_mut(id) {
            entry.state = State::Running(Running { endpoint, first_token: false, uncached });
            // The hashes have served; a long prompt's are worth their memory.
            entry.asked.prefix = Arc::default();
        }
        fx.log_dispatch(now, id, endpoint, waited, choice.matched_tokens);
        let matched_tokens = choice.matched_tokens;
        fx.list.push(Effect::Dispatch { id, endpoint, waited, matched_tokens });
    }

    // --- Ending -------------------------------------------------------------------------------------

    fn queued(&self) -> u64 {
        self.queues.as_ref().map_or(0, Queues::requests)
    }

    fn queue_outcome(&mut self, outcome: QueueOutcome) {
        self.ledgers.outcomes[outcome.index()] += 1;
    }

    fn ended(&mut self, end: End) {
        self.ledgers.ended[end.index()] += 1;
        self.ledgers.live -= 1;
    }

    fn dequeue(&mut self, now: Nanos, handle: u32, asked: &Asked, band: u32, flow: u32) {
        if let Some(queues) = &mut self.queues {
            queues.remove(band, flow, handle, asked.bytes, now);
        }
    }

    /// Ends a queued request by the kernel's own decision.
    fn evict(&mut self, now: Nanos, handle: u32, outcome: QueueOutcome, fx: &mut Effects) {
        let id = self.table.id_at(handle);
        let Some(Entry { asked, state: State::Queued(q) }) = self.table.get(id).cloned() else { return };
        self.dequeue(now, handle, &asked, q.band, q.flow);
        self.queue_outcome(outcome);
        self.refuse(now, id, Refusal::Queue(outcome), fx);
    }

    fn refuse(&mut self, now: Nanos, id: Id, refusal: Refusal, fx: &mut Effects) {
        let Some(entry) = self.table.remove(id) else { return };
        let waited: Span = now.since(entry.asked.arrived);
        fx.log_end(now, id, refusal, waited);
        fx.list.push(Effect::End { id, refusal, waited });
        self.ended(match refusal {
            Refusal::Queue(_) => End::Queue,
            Refusal::Denied => End::Denied,
            Refusal::Shed => End::Shed,
            Refusal::NoCandidates => End::NoCandidates,
            Refusal::FilteredOut => End::FilteredOut,
        });
    }

    /// Takes a running request off its endpoint's counters, if that endpoint still lives.
    fn release(&mut self, r: &Running) {
        if let Some(e) = self.pool.get_mut(r.endpoint) {
            e.load.requests -= 1;
            if !r.first_token {
                e.load.pending -= 1;
                e.load.pending_tokens -= r.uncached;
            }
        }
    }
}
