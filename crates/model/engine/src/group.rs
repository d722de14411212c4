//! Steady decoding in bulk: the sequences that do nothing but decode are one group, and steps in which
//! nothing else happens are taken many at a time.
//!
//! A member's numbers follow from the number of plans made and of steps ended: each plan computes one
//! token of each member, each step end brings one out. What a step needs of the whole group is kept in
//! sums: the context for the step's cost, and how many members start a new block at each plan, by the
//! plan's residue modulo the block size. A heap tells the first plan that a member needs looking at.

use crate::engine::{Batch, Engine, Entry, Published, StepMode, nanos};
use crate::seq::Seq;
use forebay_base::{IndexedHeap, Nanos};
use std::collections::BTreeMap;

/// A quotient cut to 64 bits, by a division of 64 bits where it is enough: one of 128 takes several times as long.
fn quotient(a: u128, b: u128) -> u64 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => a / b,
        _ => u64::try_from(a / b).unwrap_or(u64::MAX),
    }
}

/// The sequences in steady decoding.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// By the first plan that has to treat the member by itself.
    heap: IndexedHeap<u64>,
    /// Sum of the members' `base`.
    sum: i64,
    /// Members that start a new block at plan p, at index p modulo the block size.
    starts: Vec<u32>,
    /// Members by class.
    classes: Vec<u32>,
    /// Members by their adapter.
    pub(crate) loras: BTreeMap<u16, u32>,
    /// No member was admitted after this.
    last_order: u64,
    /// Changes with the membership.
    pub(crate) epoch: u64,
}

impl Group {
    pub(crate) fn new(block_size: u32) -> Group {
        Group {
            heap: IndexedHeap::default(),
            sum: 0,
            starts: vec![0; block_size as usize],
            classes: Vec::new(),
            loras: BTreeMap::new(),
            last_order: 0,
            epoch: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Tokens that the members attend to in the step of plan `plan`, in sum: what is computed before it, and
    /// the token itself.
    pub(crate) fn context(&self, plan: u64) -> u64 {
        (self.sum + self.len() as i64 * (plan as i64 + 1)) as u64
    }

    fn class_mut(&mut self, class: u16) -> &mut u32 {
        let class = usize::from(class);
        if self.classes.len() <= class {
            self.classes.resize(class + 1, 0);
        }
        &mut self.classes[class]
    }

    fn start_index(&self, base: i64) -> usize {
        (-base).rem_euclid(self.starts.len() as i64) as usize
    }

    fn starting_at(&self, plan: u64) -> u32 {
        self.starts[(plan % self.starts.len() as u64) as usize]
    }

    /// Blocks that the plans `plan .. plan + n` take.
    fn blocks_of(&self, plan: u64, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let period = self.starts.len();
        let (whole, rest) = (n / period as u64, (n % period as u64) as usize);
        let sum = |part: &[u32]| part.iter().map(|&n| u64::from(n)).sum::<u64>();
        let from = (plan % period as u64) as usize;
        let rest = match (from + rest).checked_sub(period) {
            None => sum(&self.starts[from..from + rest]),
            Some(wrapped) => sum(&self.starts[from..]) + sum(&self.starts[..wrapped]),
        };
        whole * self.len() as u64 + rest
    }

    /// How many plans from `plan` on find their blocks among `free`.
    fn plans_within(&self, plan: u64, free: u32) -> u64 {
        let members = self.len() as u64;
        let mut n = u64::from(free) / members * self.starts.len() as u64;
        let mut left = u64::from(free) % members;
        // A whole number of periods lies before it.
        let mut at = (plan % self.starts.len() as u64) as usize;
        // Fewer blocks are left than a whole period takes, so this ends within one.
        loop {
            let needed = u64::from(self.starts[at]);
            if needed > left {
                return n;
            }
            left -= needed;
            n += 1;
            at = if at + 1 == self.starts.len() { 0 } else { at + 1 };
        }
    }
}

impl Engine {
    /// The group's part of a plan. Members that need looking at leave first, and steady sequences join.
    /// If the step may not go as the group assumes, all members are treated one by one in this plan.
    pub(crate) fn plan_group(&mut self, batch: &mut Batch) {
        batch.group = 0;
        if self.mode == StepMode::Exact {
            return;
        }
        while let Some((due, slot)) = self.group.heap.peek().filter(|top| top.0 <= self.plans) {
            debug_assert_eq!(due, self.plans, "a member was forgotten");
            self.ungroup(slot);
        }
        self.join_steady();
        if self.group.heap.is_empty() {
            return;
        }
        if self.group_fits() {
            batch.group = self.group.len() as u32;
            batch.classes.clone_from(&self.group.classes);
            let taken = self.blocks.take(self.group.starting_at(self.plans));
            debug_assert!(taken, "room was checked");
        } else {
            while let Some((_, slot)) = self.group.heap.peek() {
                self.ungroup(slot);
            }
        }
    }

    /// Moves the sequences that will only decode for a while from the running list to the group.
    fn join_steady(&mut self) {
        let (plans, block_size) = (self.plans, i64::from(self.config.spec.block_size));
        let in_flight = (plans - self.ended) as u32;
        let (seqs, group, end_ps) = (&mut self.seqs, &mut self.group, self.last_end_ps);
        let caching = self.config.spec.prefix_caching;
        let pipelined = self.config.async_scheduling;
        self.running.retain(|&slot| {
            let seq = &mut seqs[slot as usize];
            // One token in each step in flight, and the last one in the step before.
            let steady = seq.wanted() == 1
                && seq.out + seq.pending > 0
                && seq.pending == in_flight
                && (in_flight > 0 || seq.last_ps == end_ps);
            if !steady {
                return true;
            }
            let base_out = i64::from(seq.out + seq.pending) - plans as i64;
            let mut due = i64::from(seq.target) - base_out;
            if caching && seq.named.len() < seq.prefix.len() {
                // When the next block that others can hit is full, which must be in order.
                let full = (seq.named.len() as i64 + 1) * block_size;
                due = due.min(full - i64::from(seq.prompt) - base_out + 1);
            }
            // Without a step in flight when the next is put together, all is known one plan earlier.
            due -= i64::from(!pipelined);
            if due <= plans as i64 + 1 {
                return true;
            }
            (seq.grouped, seq.base_out, seq.joined) = (true, base_out, plans);
            seq.base = i64::from(seq.computed) - plans as i64;
            let start = group.start_index(seq.base);
            group.starts[start] += 1;
            group.sum += seq.base;
            group.last_order = group.last_order.max(seq.order);
            group.heap.set(slot, due as u64);
            *group.class_mut(seq.class) += 1;
            if let Some(lora) = seq.lora {
                *group.loras.entry(lora).or_default() += 1;
            }
            group.epoch += 1;
            false
        });
    }

    /// Whether every member gets its token and its block in this plan, and nobody else gets more or less
    /// because members are treated first.
    fn group_fits(&self) -> bool {
        let Some(mut budget) = self.config.max_num_batched_tokens.checked_sub(self.group.len() as u32) else {
            return false;
        };
        let mut blocks = self.group.starting_at(self.plans);
        for &slot in &self.running {
            let seq = &self.seqs[slot as usize];
            let wanted = self.chunk(seq.wanted(), u32::MAX);
            let tokens = wanted.min(budget);
            if tokens < wanted && seq.order < self.group.last_order {
                return false;
            }
            budget -= tokens;
            let needed = (seq.computed + tokens).div_ceil(self.config.spec.block_size);
            blocks += needed.saturating_sub(seq.held());
        }
        blocks <= self.blocks.free()
    }

    /// Moves a member back to the running list, with its numbers and its parts of the steps in flight.
    pub(crate) fn ungroup(&mut self, slot: u32) {
        let (plans, ended) = (self.plans as i64, self.ended as i64);
        let seq = &mut self.seqs[slot as usize];
        seq.grouped = false;
        seq.computed = (seq.base + plans) as u32;
        seq.out = (seq.base_out + ended) as u32;
        seq.pending = (plans - ended) as u32;
        if self.config.spec.prefix_caching {
            // What was known at the last plan, or at the last step end if that came after it.
            let planned = i64::from(seq.prompt) + seq.base_out + self.ended_at_plan as i64;
            let planned = planned.clamp(0, i64::from(seq.computed)) as u32;
            seq.settled = seq.settled.max(planned).max(seq.computed - seq.pending);
        }
        seq.own = seq.computed.div_ceil(self.config.spec.block_size) - seq.named.len() as u32;
        if self.ended > seq.joined {
            seq.last_ps = self.last_end_ps;
        }
        let (base, joined, order, generation) = (seq.base, seq.joined, seq.order, seq.generation);
        let class = seq.class;
        if let Some(lora) = seq.lora
            && let Some(members) = self.group.loras.get_mut(&lora)
        {
            *members -= 1;
            if *members == 0 {
                self.group.loras.remove(&lora);
            }
        }
        *self.group.class_mut(class) -= 1;
        let start = self.group.start_index(base);
        self.group.starts[start] -= 1;
        self.group.sum -= base;
        self.group.heap.remove(slot);
        self.group.epoch += 1;
        if self.group.heap.is_empty() {
            self.group.last_order = 0;
        }
        let seqs: &[Seq] = &self.seqs;
        let place = self.running.partition_point(|&s| seqs[s as usize].order < order);
        self.running.insert(place, slot);
        for batch in [&mut self.current, &mut self.next] {
            if batch.active && batch.index >= joined {
                batch.group -= 1;
                batch.classes[usize::from(class)] -= 1;
                let context = (base + batch.index as i64) as u32;
                let entry = Entry { slot, generation, order, tokens: 1, context, samples: true };
                let place = batch.entries.partition_point(|e| e.order < order);
                batch.entries.insert(place, entry);
            }
        }
    }

    /// How many of the coming step ends only count up: the two steps in flight and all that follow carry the
    /// group and nothing else, every plan finds its blocks, and nobody who waits can get in.
    pub(crate) fn quiet_steps(&mut self) -> u64 {
        let pure = |b: &Batch| b.active && b.entries.is_empty() && b.group > 0 && b.epoch == self.group.epoch;
        if !self.running.is_empty() || !pure(&self.current) || !pure(&self.next) {
            return 0;
        }
        let Some((due, _)) = self.group.heap.peek() else { return 0 };
        if !self.nobody_gets_in() {
            return 0;
        }
        (due - self.plans).min(self.group.plans_within(self.plans, self.blocks.free()))
    }

    /// Whether the head of the queue, or the first behind it whose adapter the step can carry, stays out as
    /// long as the group decodes. Free blocks become fewer, and
    /// cached blocks that nobody holds may go, which can shorten a chunk: the least need of all these cases is
    /// compared. An idle block may be replaced by a twin that is held.
    fn nobody_gets_in(&mut self) -> bool {
        if self.waiting.len() == 0 {
            return self.loaded.is_empty();
        }
        let budget = self.config.max_num_batched_tokens - self.group.len() as u32;
        if self.group.len() >= self.config.max_num_seqs as usize || budget == 0 {
            return true;
        }
        if !self.loaded.is_empty() {
            return false;
        }
        if self.blocks.free() == 0 {
            return true;
        }
        let Some(slot) = self.first_that_fits_the_group() else { return true };
        if self.seqs[slot as usize].transfer.is_some() {
            return false;
        }
        self.find_prefix(slot);
        let block_size = self.config.spec.block_size;
        let known = self.seqs[slot as usize].known();
        let mut held = 0;
        let mut least = u32::MAX;
        for n in 0..=self.hit_blocks() {
            let cached = n * block_size;
            let tokens = self.chunk(known - cached, budget);
            least = least.min(self.blocks_to_enter(slot, cached, tokens).saturating_sub(held));
            if let Some(&block) = self.hits.get(n as usize) {
                held += u32::from(self.blocks.can_be_held(block));
            }
        }
        least + self.headroom() > self.blocks.free()
    }

    /// The growth of the group's step time from one step to the next, in picoseconds.
    fn growth_ps(&self) -> u128 {
        u128::from(self.priced.1.per_context_token_ps) * self.group.len() as u128
    }

    /// The end of the n-th step from here, the current one being the first, while steps are quiet.
    fn end_of(&self, n: u64) -> u128 {
        let i = u128::from(n - 1);
        self.end_ps + i * self.next.duration_ps + self.growth_ps() * (i * i.saturating_sub(1) / 2)
    }

    /// How many quiet step ends come at or before `now` and before the first arrival that was not seen.
    pub(crate) fn quiet_until(&self, now: Nanos) -> u64 {
        let mut limit = u128::from(now.0) * 1000;
        if let Some(&slot) = self.incoming.front() {
            limit = limit.min(u128::from(self.seqs[slot as usize].arrived.0.saturating_sub(1)) * 1000);
        }
        if self.quiet == 0 || self.end_ps > limit {
            return 0;
        }
        // Steps only become longer: no more fit than if all took as long as the next one, and no fewer than if
        // all took as much longer as half of the growth up to there.
        let (room, step) = (limit - self.end_ps, self.next.duration_ps.max(1));
        let mut high = quotient(room, step).saturating_add(1).min(self.quiet);
        let longest = step + self.growth_ps() * u128::from(high.div_ceil(2));
        let mut low = quotient(room, longest).saturating_add(1).min(high);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.end_of(middle) <= limit { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// The next step end, in picoseconds, at which more than counting up may happen.
    pub(crate) fn next_boundary_ps(&self) -> u128 {
        if self.quiet == 0 {
            return self.end_ps;
        }
        let n = if self.incoming.is_empty() { self.quiet } else { self.quiet_until(Nanos::NEVER) };
        self.end_of(n + 1)
    }

    /// Takes the quiet step ends up to `now`; whether there were any.
    pub(crate) fn pass_quiet(&mut self, now: Nanos) -> bool {
        let n = self.quiet_until(now);
        if n == 0 {
            return false;
        }
        let members = self.group.len() as u64;
        let (growth, first) = (self.growth_ps(), self.next.duration_ps);
        if let Some(gaps) = &mut self.gaps {
            gaps.add_progression(self.current.duration_ps, growth, n, &self.group.classes);
        }
        self.last_end_ps = self.end_of(n);
        self.end_ps = self.end_of(n + 1);
        // The counters are published before the last of these plans takes its blocks.
        let (before, last) = (self.group.blocks_of(self.plans, n - 1), self.plans + n - 1);
        let taken = self.blocks.take(before as u32);
        self.counters.steps += n - 1;
        self.counters.generation_tokens += n * members;
        self.publish(nanos(self.last_end_ps));
        let taken = taken && self.blocks.take(self.group.starting_at(last));
        debug_assert!(taken, "room was checked");
        self.plans += n;
        self.ended += n;
        self.ended_at_plan = self.ended;
        self.quiet -= n;
        self.current.index += n;
        self.next.index += n;
        self.next.duration_ps = first + u128::from(n) * growth;
        self.current.duration_ps = self.next.duration_ps - growth;
        true
    }

    /// Blocks that requests hold, as published at the n-th quiet step end from here.
    fn used_after(&self, n: u64) -> u32 {
        let free = self.blocks.free() - self.group.blocks_of(self.plans, n - 1) as u32;
        self.blocks.total() - free
    }

    /// [`Published::waiting`], [`Published::running`] and [`Published::kv_usage`] of [`Engine::published_at`], for
    /// those who look often.
    pub fn gauges_at(&self, now: Nanos) -> (u32, u32, f64) {
        let n = self.quiet_until(now);
        if n == 0 {
            return (self.published.waiting, self.published.running, self.published.kv_usage);
        }
        let waiting = self.waiting.len() as u32 + self.transferring;
        let usage = f64::from(self.used_after(n)) / f64::from(self.blocks.total());
        (waiting, self.group.len() as u32, usage)
    }

    /// The counters as a scrape at `now` sees them: as of the last step end at or before it. The caller has
    /// called [`Engine::advance`] for all of [`Engine::next_event`] up to `now`; the steps that macro
    /// mode has not gone through yet are counted in closed form, and stay ahead.
    pub fn published_at(&self, now: Nanos) -> Published {
        let n = self.quiet_until(now);
        if n == 0 {
            return self.published;
        }
        let used = self.used_after(n);
        Published {
            at: nanos(self.end_of(n)),
            waiting: self.waiting.len() as u32 + self.transferring,
            running: self.group.len() as u32,
            used_blocks: used,
            kv_usage: f64::from(used) / f64::from(self.blocks.total()),
            generation_tokens: self.counters.generation_tokens + n * self.group.len() as u64,
            steps: self.counters.steps + n,
            ..self.counters
        }
    }
}
