//! The state machine: inputs are `(now, event)`, outputs are [`Effects`].

mod decide;
mod lease;
mod moving;
mod views;

use crate::ask::{Ask, Asked};
use crate::driver::Ticks;
use crate::effect::{Effects, End, Id, Ledgers, QueueOutcome, Refusal};
use crate::flow::Queues;
use crate::plan::{Driver, Plan};
use crate::policy::{CycleFacts, Left, PendingUntil, Usage};
use crate::pool::{Adapters, EndpointId, EndpointSpec, Pool, Sample};
use crate::prefix::PrefixIndex;
use crate::saturation::Saturation;
use crate::schedule::{Memories, Scratch};
use crate::table::{Entry, State, Table};
use forebay_base::{Draws, IndexedHeap, Nanos};
use std::sync::Arc;

/// What became of a dispatched request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first token has come back.
    FirstToken,
    /// This many more output tokens have come back. Only fairness policies that count them want to know
    /// ([`Plan::counts_output`]); what was not told is made up for by the usage at the end.
    Output(u32),
    /// The answer is complete; what its engine counted.
    Finished(Usage),
    /// It will not be.
    Failed,
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
    memories: Memories,
    cells: Vec<u64>,
    ticks: Ticks,
    /// By (end of pending, table index): running requests that do not stream.
    pending_until: IndexedHeap<(Nanos, u32)>,
    /// Leases that no scrape has covered yet, by their instant; kept only for a detector that looks no further.
    unscraped: Vec<(Nanos, Id)>,
    /// Under the `event` driver: something has changed since the last turn.
    changed: bool,
    /// Under the `event` driver: the last turn was cut off and goes on at once.
    turn_cut: bool,
    /// One per band, always.
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
        let mut kernel = Kernel {
            draws: Draws::new(seed),
            clock: now,
            pool: Pool::default(),
            saturation: Saturation::new(),
            queues: plan.flow.as_ref().map(|f| Queues::new(f, true, seed, now)),
            table: Table::default(),
            index: plan.prefix.map(PrefixIndex::new),
            memories: Memories::new(&plan),
            cells: vec![0; plan.flow.as_ref().map_or(0, |f| f.limit.cells())],
            ticks: Ticks::new(now),
            pending_until: IndexedHeap::default(),
            unscraped: Vec::new(),
            changed: false,
            turn_cut: false,
            ceilings: Vec::new(),
            numbers: 0,
            cycles: 0,
            ledgers: Ledgers::default(),
            draining: false,
            scratch: Scratch::default(),
            plan,
        };
        kernel.ceilings = kernel.nominal_ceilings();
        kernel
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
        self.settle(now, fx);
        id
    }

    /// An endpoint has left. What runs there goes on; its counters are gone with it.
    pub fn remove_endpoint(&mut self, now: Nanos, id: EndpointId, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_endpoint(now, "remove", id);
        if self.pool.remove(id) {
            if let Some(index) = &mut self.index {
                index.forget(id.index);
            }
            self.memories.removed(id);
            self.saturation.members_changed();
            self.pool_changed(now);
        }
        self.settle(now, fx);
    }

    /// Metrics of an endpoint have arrived; `taken` is when the endpoint was asked for them. Metrics that
    /// were taken before the last ones do nothing. A reading that is no finite number counts as missing;
    /// block size and number of blocks stay as last reported when a scrape does not tell them.
    pub fn scraped(&mut self, now: Nanos, id: EndpointId, taken: Nanos, sample: &Sample, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_scrape(now, id, taken, sample);
        let Some(e) = self.pool.get_mut(id).filter(|e| taken >= e.taken) else { return };
        let last = e.sample.unwrap_or_default();
        let sample = Sample {
            waiting: sample.waiting.finite(),
            running: sample.running.finite(),
            kv: sample.kv.finite(),
            block_tokens: sample.block_tokens.filter(|&n| n > 0).or(last.block_tokens),
            blocks: sample.blocks.filter(|&n| n > 0).or(last.blocks),
        };
        e.sample = Some(sample);
        (e.sampled, e.taken) = (now, taken);
        e.stale = false;
        self.pending_scraped(now, id, taken);
        let Some(e) = self.pool.get_mut(id) else { return };
        // What is pending no longer once it was scraped is in the scraped number alone.
        let pending = match self.plan.detector.pending_until() {
            PendingUntil::FirstToken => f64::from(e.pending_at(taken)),
            PendingUntil::Scrape => 0.0,
        };
        e.foreign_waiting = (sample.waiting.value().unwrap_or(0.0) - pending).max(0.0);
        self.saturation.touch(&*self.plan.detector, e);
        if let (Some(index), Some(blocks)) = (&mut self.index, sample.blocks) {
            index.report_capacity(id.index, blocks, sample.block_tokens);
        }
        self.replan();
        self.settle(now, fx);
    }

    /// The LoRA adapters of an endpoint are these from now on.
    pub fn adapters(&mut self, now: Nanos, id: EndpointId, adapters: Arc<Adapters>, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_adapters(now, id, &adapters);
        if let Some(e) = self.pool.get_mut(id) {
            e.adapters = Some(adapters);
        }
    }

    /// A request has come. It is admitted, queued and perhaps dispatched at once, or ended with an
    /// effect.
    pub fn offer(&mut self, now: Nanos, ask: &Ask<'_>, fx: &mut Effects) -> Id {
        let now = self.advance(now, fx);
        fx.log_offer(now, ask);
        if let Some(moved) = self.queues.as_mut().and_then(|q| q.sweep(now)) {
            self.bands_moved(&moved);
        }
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
            block_tokens: ask.block_tokens,
            streaming: ask.streaming,
            model: ask.model.clone(),
            session: ask.session.clone(),
            sticky: ask.sticky.clone(),
            slo_ttft: ask.slo_ttft,
            slo_tpot: ask.slo_tpot,
            max_output_tokens: ask.max_output_tokens,
            ttl: self.plan.flow.as_ref().and_then(|f| f.ttl_of(ask.ttl)),
        };
        self.numbers += 1;
        self.ledgers.accepted += 1;
        self.ledgers.live += 1;
        // A router that shuts down says so, whatever an admitter would say.
        let denied =
            !self.draining && self.plan.admitters.iter().any(|a| !a.admit(&asked, &self.pool, self.draws));
        let id = self.table.insert(asked);
        if denied {
            self.refuse(now, id, Refusal::Denied, fx);
        } else if let Some(band) = band {
            self.enqueue(now, id, band, ask, fx);
        } else {
            self.admit_legacy(now, id, fx);
        }
        self.settle(now, fx);
        id
    }

    /// The client has left; queued or running, its request ends here. Late and repeated words do nothing.
    pub fn gone(&mut self, now: Nanos, id: Id, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_id(now, "gone", id);
        if matches!(self.table.get(id), Some(Entry { state: State::Queued(_), .. })) {
            self.take_out(now, id);
            self.queue_outcome(id, QueueOutcome::EvictedContextCancelled);
            if self.queued() == 0 {
                self.ticks.planned = None;
            }
        }
        let Some(entry) = self.table.remove(id) else {
            self.ledgers.late += 1;
            return;
        };
        if let State::Running(r) = &entry.state {
            self.release(now, id, r, Left::Stopped);
            self.load_fell();
        }
        self.ended(&entry, End::Cancelled);
        self.settle(now, fx);
    }

    /// Something has become of a dispatched request. Late and repeated words do nothing.
    pub fn progress(&mut self, now: Nanos, id: Id, progress: Progress, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_progress(now, id, progress);
        let Some(Entry { state: State::Running(r), .. }) = self.table.get_mut(id) else {
            self.ledgers.late += 1;
            return;
        };
        let lane = r.lane.zip(self.queues.as_mut());
        match progress {
            Progress::FirstToken => self.first_token(now, id),
            Progress::Output(n) => {
                r.output += u64::from(n);
                if let Some((lane, queues)) = lane {
                    queues.output(lane, u64::from(n), now);
                }
                return;
            }
            Progress::Finished(usage) => {
                let untold = usage.completion.map_or(0, |c| u64::from(c).saturating_sub(r.output));
                if let Some((lane, queues)) = lane {
                    queues.output(lane, untold, now);
                    queues.finished(lane, usage, now);
                }
                r.output += untold;
                self.over(now, id, End::Finished);
            }
            Progress::Failed => self.over(now, id, End::Failed),
        }
        self.load_fell();
        self.settle(now, fx);
    }

    /// A running request is over.
    fn over(&mut self, now: Nanos, id: Id, end: End) {
        if let Some(entry) = self.table.remove(id)
            && let State::Running(r) = &entry.state
        {
            let left = match end {
                End::Finished => Left::Finished(Some(r.output).filter(|&n| n > 0)),
                _ => Left::Stopped,
            };
            self.release(now, id, r, left);
            self.ended(&entry, end);
        }
    }

    /// Something in flight has become less.
    fn load_fell(&mut self) {
        if self.plan.detector.watches_load() {
            self.replan();
        }
        self.changed = true;
    }

    /// Time has come to [`Kernel::next_wake`].
    pub fn wake(&mut self, now: Nanos, fx: &mut Effects) {
        fx.log_verb(now.max(self.clock), "wake");
        let now = self.advance(now, fx);
        self.changed |= self.turn_cut;
        self.settle(now, fx);
    }

    /// Exactly these priorities are wanted beside the configured ones. Bands come at once; those that are
    /// not wanted any more go at once if they have no flows, else some arrivals after their last flow was
    /// forgotten.
    pub fn provision(&mut self, now: Nanos, priorities: &[i32], fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_provision(now, priorities);
        let (Some(queues), Some(plan)) = (&mut self.queues, &self.plan.flow) else { return };
        let moved = queues.provision(plan, priorities);
        self.bands_moved(&moved);
        self.settle(now, fx);
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
        while let Some(handle) = self.queues.as_ref().and_then(|q| q.any(now)) {
            self.evict(now, handle, QueueOutcome::EvictedOther, fx);
        }
        self.ticks.planned = None;
        self.turn_cut = false;
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
        while let Some(edge) = self.next_edge().filter(|&e| e <= now) {
            // Ticks before the edge still saw the old saturation.
            self.count_ticks(self.ticks.before(edge).min(limit));
            // The first tick that sees this edge sees all others up to it, too: they are one step, and so
            // is everything after the last tick that is counted, or if nothing counts ticks.
            let tick = self.ticks.from(edge);
            let counted = tick <= limit && !self.cells.is_empty();
            let until = if counted { self.ticks.at(tick).min(now) } else { now };
            self.saturation.age(&*self.plan.detector, &mut self.pool, until);
            self.pending_elapsed(until);
            self.changed = true;
        }
        self.count_ticks(limit);
        if self.queued() > 0 {
            self.expire(now, fx);
        }
        if self.queued() == 0 {
            self.count_ticks(due);
            self.ticks.planned = None;
        } else if let Some(tick) = planned {
            match self.driver() {
                // A late timer is one cycle: the ticks it missed are dropped.
                Driver::Upstream => {
                    self.ticks.done = due;
                    self.cycle(now, fx);
                }
                // The state of the planned tick decides, however late its timer; then time goes on.
                Driver::Event => {
                    self.count_ticks(tick);
                    self.turn(now, fx);
                    self.count_ticks(due);
                    self.ticks.planned = self.ticks.planned.map(|p| p.max(due + 1));
                }
            }
        }
        now
    }

    /// Ends what has waited for too long.
    fn expire(&mut self, now: Nanos, fx: &mut Effects) {
        while let Some((_, handle)) =
            self.queues.as_ref().and_then(Queues::next_deadline).filter(|d| d.0 <= now)
        {
            let empty = self.queues.as_ref().is_some_and(|q| q.empty_pool);
            let outcome = if empty { QueueOutcome::EvictedNoEndpoints } else { QueueOutcome::EvictedTtl };
            self.evict(now, handle, outcome, fx);
        }
    }

    /// The next instant at which saturation changes by itself.
    fn next_edge(&mut self) -> Option<Nanos> {
        let aged = self.saturation.edge(&*self.plan.detector, &self.pool);
        match (aged, self.next_pending_over()) {
            (Some(aged), Some(over)) => Some(aged.min(over)),
            (aged, over) => aged.or(over),
        }
    }

    /// The end of every input: under the `event` driver, a turn if something has changed that waiting
    /// requests may have waited for.
    fn settle(&mut self, now: Nanos, fx: &mut Effects) {
        if std::mem::take(&mut self.changed) && self.driver() == Driver::Event && self.queued() > 0 {
            self.turn(now, fx);
        }
        // A look at every lease: cheap only while there are few.
        debug_assert!(self.table.len() > 256 || self.load_is_consistent(), "load is the fold over leases");
    }

    /// The effect on policy state of ticks that need no execution.
    fn count_ticks(&mut self, through: u64) {
        let n = through.saturating_sub(self.ticks.done);
        let (Some(flow), Some(queues)) = (&self.plan.flow, &self.queues) else { return };
        if n == 0 {
            return;
        }
        // A policy that counts nothing has nothing to skip.
        if !self.cells.is_empty() {
            let saturation = self.saturation.effective(&*self.plan.detector, &self.pool);
            let facts = CycleFacts { saturation, priorities: queues.priorities(), ticks: 0 };
            flow.limit.skip(&facts, n, &mut self.cells);
        }
        self.ticks.done = through;
    }

    /// Something has changed that the policy's promise did not know of: look again at the next tick.
    fn replan(&mut self) {
        self.changed = true;
        self.ticks.planned = (self.queued() > 0).then_some(self.ticks.done + 1);
    }

    /// Bands have come or gone: old index -> new index.
    fn bands_moved(&mut self, moved: &[Option<u32>]) {
        self.table.rebind(moved);
        let now = self.nominal_ceilings();
        let last = std::mem::replace(&mut self.ceilings, now);
        for (ceiling, to) in last.into_iter().zip(moved) {
            if let Some(to) = to {
                self.ceilings[*to as usize] = ceiling;
            }
        }
        self.replan();
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
}
