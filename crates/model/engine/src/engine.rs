//! The server: arrivals, step boundaries, and what is published.

use crate::blocks::{BlockPool, FastMap};
use crate::gaps::{ClassGaps, Gaps};
use crate::group::Group;
use crate::job::{Aborted, ArriveError, EngineEvent, FinishReason, Job};
use crate::latency::{Composition, StepCost};
use crate::lora::Loras;
use crate::seq::{Place, Seq, Transfer, Waiting};
use crate::spec::Resolved;
use forebay_base::Nanos;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a scrape sees: the state at the end of the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Published {
    /// The end of that step; zero before the first.
    pub at: Nanos,
    /// Requests in the waiting queue. Arrivals since the scheduler last ran are not in it yet.
    pub waiting: u32,
    /// Requests admitted.
    pub running: u32,
    /// Blocks held by requests; cached blocks that nobody holds count as free.
    pub used_blocks: u32,
    /// `used_blocks` over all blocks that requests can get, 0 to 1.
    pub kv_usage: f64,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache so far, once per request.
    pub prefix_queries: u64,
    /// Prompt tokens found there so far.
    pub prefix_hits: u64,
    /// Prompt tokens of requests whose first token is out.
    pub prompt_tokens: u64,
    /// Tokens generated so far.
    pub generation_tokens: u64,
    /// Steps so far.
    pub steps: u64,
}

/// How far one look at the engine goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepMode {
    /// Step by step: every token and every step end is an event.
    #[default]
    Exact,
    /// Steady decoding in bulk: sequences that decode are advanced together, and as long as nothing can
    /// change in a batch many steps are taken at once. First tokens, ends, admissions and preemptions
    /// come at the same times as in `Exact`, and the published counters are the same at every instant;
    /// there are no events for later tokens and for step ends.
    Macro,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// Rank of the sequence's admission.
    pub(crate) order: u64,
    pub(crate) tokens: u32,
    /// Tokens before these.
    pub(crate) context: u32,
    /// Whether the step completes all tokens known, and so yields the next.
    pub(crate) samples: bool,
}

/// One step: scheduled, waiting for its turn, or running.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) active: bool,
    /// Which of all plans made it.
    pub(crate) index: u64,
    pub(crate) entries: Vec<Entry>,
    /// Sequences of the group in it, one decoded token each.
    pub(crate) group: u32,
    /// These by class.
    pub(crate) classes: Vec<u32>,
    /// The state of the group that it was priced with.
    pub(crate) epoch: u64,
    pub(crate) tokens: u32,
    pub(crate) duration_ps: u128,
}

/// One call of the scheduler, as [`Engine::record_plans`] keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Requests of the step, with the tokens each gets, in the order of the batch.
    pub tokens: Vec<(u64, u32)>,
    /// Requests that lost their blocks in it.
    pub preempted: Vec<u64>,
    /// Blocks that no request holds after it.
    pub free_blocks: u32,
}

/// One vLLM server.
///
/// Calls come in the order of their times. A request reaches the scheduler [`crate::Factors::request`]
/// after it arrived. At most two steps are in flight, as with vLLM's asynchronous scheduling: step n+1 is
/// put together when step n starts, and runs as soon as n ends. A request that is seen first when n ends
/// goes into step n+2, and has its first token when that one ends: the rest of n, all of n+1, all of n+2,
/// about two and a half steps and the prefill's extra cost, three steps in sum. A request that finds the
/// server idle starts at once. Without asynchronous scheduling it goes into step n+1.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) config: Arc<Resolved>,
    pub(crate) mode: StepMode,
    /// Whether tokens after the first and step ends are events.
    every_token: bool,
    pub(crate) seqs: Vec<Seq>,
    vacant: Vec<u32>,
    by_id: FastMap<u32>,
    /// Arrivals that the scheduler has not seen, in order.
    pub(crate) incoming: VecDeque<u32>,
    pub(crate) waiting: Waiting,
    /// Slots in the order of admission, without those of the group.
    pub(crate) running: Vec<u32>,
    /// Sequences in steady decoding; empty in exact mode.
    pub(crate) group: Group,
    pub(crate) blocks: BlockPool,
    pub(crate) current: Batch,
    pub(crate) next: Batch,
    /// The end of the current step, or of the last one if none runs, in picoseconds.
    pub(crate) end_ps: u128,
    /// The end of the last step that ended.
    pub(crate) last_end_ps: u128,
    arrivals: u64,
    pub(crate) admissions: u64,
    /// Steps put together, and steps ended: never more than two apart.
    pub(crate) plans: u64,
    pub(crate) ended: u64,
    /// Steps that had ended when the last one was put together.
    pub(crate) ended_at_plan: u64,
    /// How many step ends from here on only count up, whenever they come, unless an arrival is seen.
    pub(crate) quiet: u64,
    pub(crate) counters: Published,
    pub(crate) published: Published,
    pub(crate) gaps: Option<Box<ClassGaps>>,
    pub(crate) planned: Option<Vec<Planned>>,
    /// The last composition and its cost: in steady decoding it is the same for many steps.
    pub(crate) priced: (Composition, StepCost),
    /// Requests whose prompt has come from another server, in order: they hold their blocks, and go first.
    pub(crate) loaded: VecDeque<u32>,
    /// These, and those whose KV is still on its way, which are among the incoming.
    pub(crate) transferring: u32,
    /// When the KV has come that is on its way now: what is asked for later comes behind it.
    pub(crate) link_taken: Nanos,
    /// What is kept of adapters.
    pub(crate) loras: Loras,
    /// How long steps take, in thousandths of what the latency model says.
    slowdown: u32,
    /// Named blocks hit by the request under consideration, and blocks of its own behind them.
    pub(crate) hits: Vec<u32>,
    pub(crate) kept_hits: u32,
}

/// Steps take what the latency model says.
const NO_SLOWDOWN: u32 = 1000;

/// The first nanosecond at or after a picosecond.
pub(crate) fn nanos(ps: u128) -> Nanos {
    // A 64-bit division where it is enough, which is for seven months.
    Nanos(
        u64::try_from(ps)
            .map_or_else(|_| u64::try_from(ps.div_ceil(1000)).unwrap_or(u64::MAX), |ps| ps.div_ceil(1000)),
    )
}

impl Engine {
    /// An idle server with an empty cache, in exact mode.
    pub fn new(config: &Resolved, now: Nanos) -> Engine {
        Engine::with_mode(config, now, StepMode::Exact)
    }

    /// An idle server with an empty cache.
    pub fn with_mode(config: &Resolved, now: Nanos, mode: StepMode) -> Engine {
        Engine {
            mode,
            every_token: mode == StepMode::Exact,
            group: Group::new(config.spec.block_size),
            seqs: Vec::new(),
            vacant: Vec::new(),
            by_id: FastMap::default(),
            incoming: VecDeque::new(),
            waiting: Waiting::new(config.spec.scheduling),
            running: Vec::with_capacity(config.max_num_seqs.min(4096) as usize),
            blocks: BlockPool::new(config.usable_blocks()),
            current: Batch::default(),
            next: Batch::default(),
            end_ps: u128::from(now.0) * 1000,
            last_end_ps: 0,
            arrivals: 0,
            admissions: 0,
            plans: 0,
            ended: 0,
            ended_at_plan: 0,
            quiet: 0,
            gaps: None,
            planned: None,
            counters: Published::default(),
            published: Published::default(),
            priced: Default::default(),
            slowdown: NO_SLOWDOWN,
            loaded: VecDeque::new(),
            transferring: 0,
            link_taken: now,
            loras: Loras::default(),
            hits: Vec::new(),
            kept_hits: 0,
            config: Arc::new(config.clone()),
        }
    }

    /// The settled numbers of this server.
    pub fn config(&self) -> &Resolved {
        &self.config
    }

    /// The counters as of the end of the last step that [`Engine::advance`] has gone through.
    pub fn published(&self) -> Published {
        self.published
    }

    /// Leaves tokens after the first and step ends out of the events, as macro mode does.
    pub fn milestones_only(&mut self) {
        self.every_token = false;
    }

    /// Steps that are put together from `now` on take `permille` thousandths of what the latency model says,
    /// at least 1. The one that runs and the one behind it stay as they are.
    pub fn slow_down(&mut self, now: Nanos, permille: u32) {
        self.pass_quiet(now);
        // Steps in flight were priced otherwise: none may be taken for those that follow.
        self.quiet = 0;
        self.group.epoch += 1;
        self.slowdown = permille.max(1);
        self.priced = Default::default();
    }

    /// The cost of a composition on this server as it is now.
    pub(crate) fn cost(&self, c: &Composition) -> StepCost {
        let cost = self.config.latency.cost(c);
        if self.slowdown == NO_SLOWDOWN {
            return cost;
        }
        let slow = |ps: u64| (u128::from(ps) * u128::from(self.slowdown)).div_ceil(1000) as u64;
        StepCost { fixed_ps: slow(cost.fixed_ps), per_context_token_ps: slow(cost.per_context_token_ps) }
    }

    /// Counts the time between the tokens of each request from now on; see [`Engine::gaps`].
    pub fn record_gaps(&mut self) {
        self.gaps.get_or_insert_default();
    }

    /// The times between successive tokens of each request by [`Job::class`], up to the greatest that had any, if
    /// [`Engine::record_gaps`] was called. The same in both modes.
    pub fn gaps(&self) -> &[Gaps] {
        self.gaps.as_deref().map_or(&[], ClassGaps::classes)
    }

    /// Keeps what the scheduler plans from now on, for comparisons. Meant for exact mode: sequences that macro
    /// mode takes in bulk are not told one by one.
    pub fn record_plans(&mut self) {
        self.planned.get_or_insert_default();
    }

    /// What was planned since [`Engine::record_plans`] or the last call of this; nothing without the former.
    pub fn take_plans(&mut self) -> Vec<Planned> {
        self.planned.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The KV blocks.
    pub fn blocks(&self) -> &BlockPool {
        &self.blocks
    }

    /// Requests inside: arrived and neither finished nor aborted.
    pub fn live(&self) -> usize {
        self.by_id.len()
    }

    /// Takes a request in at `now`. Nothing happens to it before the next [`Engine::advance`]. A step that ends
    /// at this very instant does not see it if `advance` was called for the instant before.
    pub fn arrive(&mut self, now: Nanos, job: Job) -> Result<(), ArriveError> {
        self.pass_quiet(now);
        let max = self.config.max_model_len;
        if job.prompt_tokens == 0 {
            return Err(ArriveError::EmptyPrompt);
        }
        if job.output_tokens == 0 {
            return Err(ArriveError::NoOutput);
        }
        if job.prompt_tokens >= max {
            return Err(ArriveError::PromptTooLong { max_model_len: max });
        }
        if self.by_id.contains_key(&job.id) {
            return Err(ArriveError::DuplicateId);
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.seqs.push(Seq::empty());
            self.seqs.len() as u32 - 1
        });
        let room = max - job.prompt_tokens;
        let seq = &mut self.seqs[slot as usize];
        *seq = Seq {
            place: Place::Incoming,
            generation: seq.generation,
            id: job.id,
            number: self.arrivals,
            priority: job.priority,
            class: job.class,
            arrived: now + self.config.latency.request,
            lora: job.lora,
            prompt: job.prompt_tokens,
            target: job.output_tokens.min(room),
            cut: job.output_tokens > room,
            named: std::mem::take(&mut seq.named),
            prefix: job.prefix,
            ..Seq::empty()
        };
        self.arrivals += 1;
        self.by_id.insert(job.id, slot);
        // Those whose KV is on its way may be due later.
        let seqs = &self.seqs;
        let at = seqs[slot as usize].arrived;
        let place = self.incoming.partition_point(|&s| seqs[s as usize].arrived <= at);
        self.incoming.insert(place, slot);
        Ok(())
    }

    /// Takes a request in whose prompt another server has computed. The scheduler finds room for the whole
    /// prompt, then waits until the KV of what is not in this server's cache has come, one prompt's behind the
    /// other's (a transfer that has begun ends, even if its request is cancelled); then only the prompt's last token is
    /// computed here, as vLLM does it. Meanwhile the request counts as waiting and takes no sequence slot.
    pub fn arrive_prefilled(&mut self, now: Nanos, job: Job, transfer: Transfer) -> Result<(), ArriveError> {
        let id = job.id;
        self.arrive(now, job)?;
        if let Some(&slot) = self.by_id.get(&id) {
            self.seqs[slot as usize].transfer = Some(transfer);
        }
        Ok(())
    }

    /// Cancels a request wherever it is; its slot and blocks are free at once, and its part of a step
    /// in flight comes to nothing. `None` if no such request is inside.
    pub fn abort(&mut self, now: Nanos, id: u64) -> Option<Aborted> {
        let slot = self.by_id.get(&id).copied()?;
        self.pass_quiet(now);
        self.quiet = 0;
        if self.seqs[slot as usize].grouped {
            self.ungroup(slot);
        }
        match self.seqs[slot as usize].place {
            Place::Incoming => self.incoming.retain(|&s| s != slot),
            Place::Waiting if self.seqs[slot as usize].loaded => self.loaded.retain(|&s| s != slot),
            Place::Waiting => self.waiting.remove(slot),
            Place::Running => self.running.retain(|&s| s != slot),
            Place::Empty => return None,
        }
        let seq = &self.seqs[slot as usize];
        self.transferring -= u32::from(seq.loaded);
        let aborted = Aborted { tokens: seq.out, preemptions: seq.preemptions };
        self.vacate(slot);
        Some(aborted)
    }

    /// When [`Engine::advance`] has something to do; `None` if nothing is inside. In macro mode step ends
    /// that only count up are passed over.
    pub fn next_event(&self) -> Option<Nanos> {
        if self.current.active {
            return Some(nanos(self.next_boundary_ps()));
        }
        self.incoming.front().map(|&s| self.seqs[s as usize].arrived)
    }

    /// Runs the steps that end at or before `now` and appends what happened, in the order of time.
    pub fn advance(&mut self, now: Nanos, out: &mut Vec<EngineEvent>) {
        while let Some(at) = self.boundary().filter(|&at| at <= now) {
            if self.quiet > 0 && self.pass_quiet(now) {
                continue;
            }
            if self.current.active {
                self.end_step(at, out);
                std::mem::swap(&mut self.current, &mut self.next);
                self.next.active = false;
            } else {
                self.end_ps = self.end_ps.max(u128::from(at.0) * 1000);
            }
            self.see_arrivals(at);
            if !self.current.active {
                // Nothing is in flight, so a step that only preempted is followed by another at once.
                // Each preempts at least one request, so this ends.
                let mut batch = std::mem::take(&mut self.current);
                while self.plan(at, &mut batch, out) && !batch.active {}
                self.current = batch;
                debug_assert!(
                    self.current.active || self.live() == 0 || !self.incoming.is_empty(),
                    "work is left over"
                );
            }
            if self.current.active {
                self.end_ps += self.current.duration_ps;
            }
            if self.current.active && self.config.async_scheduling {
                let mut batch = std::mem::take(&mut self.next);
                self.plan(at, &mut batch, out);
                self.next = batch;
            }
            self.quiet = self.quiet_steps();
        }
    }

    /// The end of the current step, or the first arrival at an idle server.
    fn boundary(&self) -> Option<Nanos> {
        if self.current.active {
            return Some(nanos(self.end_ps));
        }
        self.incoming.front().map(|&s| self.seqs[s as usize].arrived)
    }

    /// Hands the arrivals up to `at` to the scheduler.
    fn see_arrivals(&mut self, at: Nanos) {
        while let Some(&slot) = self.incoming.front() {
            let seq = &mut self.seqs[slot as usize];
            if seq.arrived > at {
                break;
            }
            seq.place = Place::Waiting;
            if seq.loaded {
                self.loaded.push_back(slot);
            } else {
                self.waiting.push(slot, seq);
            }
            self.incoming.pop_front();
        }
    }

    /// The current step ends: tokens come out, requests finish, counters are published.
    fn end_step(&mut self, at: Nanos, out: &mut Vec<EngineEvent>) {
        let batch = std::mem::take(&mut self.current);
        let mut finished = false;
        for entry in &batch.entries {
            finished |= self.end_entry(*entry, at, out);
        }
        if finished {
            let seqs = &self.seqs;
            self.running.retain(|&s| seqs[s as usize].place == Place::Running);
        }
        if batch.group > 0 {
            self.counters.generation_tokens += u64::from(batch.group);
            if let Some(gaps) = &mut self.gaps {
                gaps.add_progression(batch.duration_ps, 0, 1, &batch.classes);
            }
        }
        self.ended += 1;
        self.last_end_ps = self.end_ps;
        self.publish(at);
        if self.every_token {
            out.push(EngineEvent::StepEnd {
                at,
                tokens: batch.tokens,
                sequences: batch.entries.len() as u32,
            });
        }
        self.current = batch;
        self.current.active = false;
    }

    /// One sequence's part of the step that ends; whether the request finished.
    fn end_entry(&mut self, entry: Entry, at: Nanos, out: &mut Vec<EngineEvent>) -> bool {
        let ended = self.ended;
        let seq = &mut self.seqs[entry.slot as usize];
        if seq.generation != entry.generation || !entry.samples {
            return false;
        }
        let index = if seq.grouped {
            // It joined while this step was in flight; the bases count the token already.
            seq.base_out.wrapping_add_unsigned(ended) as u32
        } else {
            seq.pending -= 1;
            seq.out += 1;
            seq.out - 1
        };
        if index == 0 {
            self.counters.prompt_tokens += u64::from(seq.prompt);
        } else if let Some(gaps) = &mut self.gaps {
            gaps.add(seq.class, self.end_ps - seq.last_ps);
        }
        seq.last_ps = self.end_ps;
        self.counters.generation_tokens += 1;
        if index == 0 || self.every_token {
            out.push(EngineEvent::Token { id: seq.id, index, at });
        }
        if seq.grouped {
            return false;
        }
        if seq.place == Place::Running {
            // The content of what was computed before this token is known now.
            let settled = seq.computed - seq.pending;
            self.fill_blocks(entry.slot, settled);
        }
        let seq = &self.seqs[entry.slot as usize];
        if seq.out < seq.target {
            return false;
        }
        let reason = if seq.cut { FinishReason::ModelLength } else { FinishReason::Output };
        let id = seq.id;
        if seq.place == Place::Waiting {
            // Preempted while its last token was in flight.
            self.waiting.remove(entry.slot);
        }
        self.vacate(entry.slot);
        out.push(EngineEvent::Finished { id, at, reason });
        true
    }

    pub(crate) fn publish(&mut self, at: Nanos) {
        let total = self.blocks.total();
        let used = total - self.blocks.free();
        self.counters.at = at;
        self.counters.steps += 1;
        self.counters.waiting = self.waiting.len() as u32 + self.transferring;
        self.counters.running = (self.running.len() + self.group.len()) as u32;
        self.counters.used_blocks = used;
        self.counters.kv_usage = f64::from(used) / f64::from(total);
        self.published = self.counters;
        self.publish_adapters();
    }

    /// Empties a slot whose request is in no queue any more (the running list is cleaned by the caller).
    fn vacate(&mut self, slot: u32) {
        self.release_blocks(slot, false);
        self.blocks.forget(slot);
        let seq = &mut self.seqs[slot as usize];
        seq.generation = seq.generation.wrapping_add(1);
        seq.place = Place::Empty;
        self.by_id.remove(&seq.id);
        self.vacant.push(slot);
    }

    /// Frees a request's blocks, the deepest first, so that the front of a prefix stays cached longest.
    /// Full blocks are cached, whether or not anybody will ask for them; `keep` lets the request find those
    /// that nobody else can ask for again.
    pub(crate) fn release_blocks(&mut self, slot: u32, keep: bool) {
        let seq = &mut self.seqs[slot as usize];
        let full = seq.settled / self.config.spec.block_size;
        let whole = seq.prefix.len() as u32;
        let cached = if seq.named.len() as u32 == whole { full - full.min(whole) } else { 0 };
        let blank = seq.own - cached;
        if self.config.spec.version.blank_blocks_first {
            self.blocks.release_first(blank);
        } else {
            self.blocks.release(blank);
        }
        if keep {
            self.blocks.keep(slot, cached);
        } else {
            self.blocks.release(cached);
        }
        while let Some(block) = seq.named.pop() {
            self.blocks.release_named(block);
        }
        seq.own = 0;
        seq.settled = 0;
    }
}
