//! Putting one step together, as vLLM's v1 scheduler does.

use crate::engine::{Batch, Engine, Entry, Planned};
use crate::job::EngineEvent;
use crate::latency::Composition;
use crate::seq::{Place, Transfer};
use crate::spec::Scheduling;
use forebay_base::Nanos;

impl Engine {
    /// Fills `batch` with the next step; it is active if it carries anything. Whether a request was
    /// preempted on the way.
    pub(crate) fn plan(&mut self, at: Nanos, batch: &mut Batch, out: &mut Vec<EngineEvent>) -> bool {
        batch.entries.clear();
        let before = out.len();
        let mut budget = self.config.max_num_batched_tokens;
        self.plan_group(batch);
        budget -= batch.group;
        let preempted = self.plan_running(at, &mut budget, batch, out);
        if !preempted {
            self.plan_waiting(at, &mut budget, batch, out);
        }
        batch.active = !batch.entries.is_empty() || batch.group > 0;
        if batch.active {
            batch.index = self.plans;
            self.price(batch);
            self.plans += 1;
            self.ended_at_plan = self.ended;
        }
        if self.planned.is_some() && (batch.active || preempted) {
            self.tell_plan(batch, &out[before..]);
        }
        preempted
    }

    fn tell_plan(&mut self, batch: &Batch, events: &[EngineEvent]) {
        let lost = |e: &EngineEvent| match e {
            EngineEvent::Preempted { id, .. } => Some(*id),
            _ => None,
        };
        let plan = Planned {
            tokens: batch.entries.iter().map(|e| (self.seqs[e.slot as usize].id, e.tokens)).collect(),
            preempted: events.iter().filter_map(lost).collect(),
            free_blocks: self.blocks.free(),
        };
        self.planned.get_or_insert_default().push(plan);
    }

    /// Running requests first, in order. A request that needs nothing is passed over; one that finds no
    /// block preempts others, or itself if it is the victim, which ends the round.
    fn plan_running(
        &mut self,
        at: Nanos,
        budget: &mut u32,
        batch: &mut Batch,
        out: &mut Vec<EngineEvent>,
    ) -> bool {
        let mut preempted = false;
        let mut i = 0;
        while i < self.running.len() && *budget > 0 {
            let slot = self.running[i];
            let tokens = self.chunk(self.seqs[slot as usize].wanted(), *budget);
            if tokens == 0 {
                i += 1;
                continue;
            }
            while !self.grow(slot, tokens) {
                preempted = true;
                let index = self.victim();
                let victim = self.running[index];
                if let Some(p) = batch.entries.iter().position(|e| e.slot == victim) {
                    // Under the priority policy the victim may be in this very step already.
                    let entry = batch.entries.remove(p);
                    *budget += entry.tokens;
                    self.seqs[victim as usize].pending -= u32::from(entry.samples);
                }
                self.preempt(index, at, out);
                if victim == slot {
                    return true;
                }
                if index < i {
                    i -= 1;
                }
            }
            *budget -= tokens;
            self.commit(slot, tokens, batch);
            i += 1;
        }
        preempted
    }

    /// Then waiting requests, in order, until one does not fit; those whose adapter would be one too many
    /// are passed over, and keep their places.
    fn plan_waiting(&mut self, at: Nanos, budget: &mut u32, batch: &mut Batch, out: &mut Vec<EngineEvent>) {
        self.note_adapters(batch);
        self.admit_waiting(at, budget, batch, out);
        while let Some(passed) = self.loras.passed_over.pop() {
            self.waiting.put_back(passed);
        }
    }

    fn admit_waiting(&mut self, at: Nanos, budget: &mut u32, batch: &mut Batch, out: &mut Vec<EngineEvent>) {
        while *budget > 0 && self.running.len() + self.group.len() < self.config.max_num_seqs as usize {
            // Before the queue: what they hold may be what its head waits for.
            if let Some(place) = self.loaded.iter().position(|&s| self.adapter_fits(s)) {
                let Some(slot) = self.loaded.remove(place) else { return };
                self.enter_loaded(slot, at, out);
                self.note_adapter(slot);
                *budget -= 1;
                self.commit(slot, 1, batch);
                continue;
            }
            let Some(slot) = self.waiting.peek() else { return };
            // At least the last prompt token is computed, which needs a block of its own.
            if self.blocks.free() == 0 {
                return;
            }
            if !self.adapter_fits(slot) {
                self.loras.passed_over.extend(self.waiting.set_aside());
                continue;
            }
            if let Some(transfer) = self.seqs[slot as usize].transfer {
                if !self.begin_transfer(slot, transfer, at) {
                    return;
                }
                continue;
            }
            let idle_hits = self.find_prefix(slot);
            let cached = self.hit_blocks() * self.config.spec.block_size;
            let tokens = self.chunk(self.seqs[slot as usize].known() - cached, *budget);
            let blocks = self.blocks_to_enter(slot, cached, tokens) - self.hit_blocks();
            if blocks + idle_hits + self.headroom() > self.blocks.free() {
                return;
            }
            self.waiting.pop();
            self.admit(slot, cached, at, out);
            self.note_adapter(slot);
            let grown = self.grow(slot, tokens);
            debug_assert!(grown, "room was checked");
            *budget -= tokens;
            self.commit(slot, tokens, batch);
        }
    }

    /// Finds room for the prompt of the head of the queue, whose KV is then on its way. Whether there was room.
    fn begin_transfer(&mut self, slot: u32, transfer: Transfer, at: Nanos) -> bool {
        let idle_hits = self.find_prefix(slot);
        let (prompt, block_size) = (self.seqs[slot as usize].prompt, self.config.spec.block_size);
        let cached = self.hit_blocks() * block_size;
        let blocks = prompt.div_ceil(block_size) - self.hit_blocks();
        if blocks + idle_hits + self.headroom() > self.blocks.free() {
            return false;
        }
        self.waiting.pop();
        self.hold_hits(slot);
        let taken = self.blocks.take(blocks);
        debug_assert!(taken, "room was checked");
        let seq = &mut self.seqs[slot as usize];
        seq.own += blocks;
        (seq.settled, seq.cached) = (cached, cached);
        (seq.transfer, seq.loaded) = (None, true);
        seq.place = Place::Incoming;
        let due = transfer.ends(at, self.link_taken, prompt - cached);
        (seq.arrived, self.link_taken) = (due, due);
        let seqs = &self.seqs;
        let place = self.incoming.partition_point(|&s| seqs[s as usize].arrived <= due);
        self.incoming.insert(place, slot);
        self.transferring += 1;
        true
    }

    /// Moves a request whose KV has come to the running list: all but the prompt's last token is there.
    fn enter_loaded(&mut self, slot: u32, at: Nanos, out: &mut Vec<EngineEvent>) {
        let seq = &mut self.seqs[slot as usize];
        seq.loaded = false;
        seq.computed = seq.prompt - 1;
        let cached = seq.cached;
        self.transferring -= 1;
        self.enter(slot, cached, at, out);
    }

    /// Blocks that a request has to find room for, hits included, if its first chunk is `tokens` behind
    /// `cached`.
    pub(crate) fn blocks_to_enter(&self, slot: u32, cached: u32, tokens: u32) -> u32 {
        let all =
            if self.config.reserve_full_prompt { self.seqs[slot as usize].known() } else { cached + tokens };
        all.div_ceil(self.config.spec.block_size)
    }

    /// Blocks that an admission leaves free: none if nobody runs, or the first would wait forever.
    pub(crate) fn headroom(&self) -> u32 {
        if self.running.is_empty() && self.group.len() == 0 { 0 } else { self.config.watermark_blocks }
    }

    /// Tokens of the next chunk. Admissions and preemptions do not change who counts as alone, so this is
    /// the same all through a plan.
    pub(crate) fn chunk(&self, wanted: u32, budget: u32) -> u32 {
        let spec = &self.config.spec;
        let waiting = self.waiting.len() + self.loras.passed_over.len();
        let alone = || self.running.len() + self.group.len() + waiting <= 1;
        let limit = match spec.long_prefill_token_threshold {
            0 => u32::MAX,
            _ if spec.version.sole_prefill_whole && alone() => u32::MAX,
            n => n,
        };
        wanted.min(limit).min(budget)
    }

    /// Blocks found by [`Engine::find_prefix`].
    pub(crate) fn hit_blocks(&self) -> u32 {
        self.hits.len() as u32 + self.kept_hits
    }

    /// Finds the cached blocks that the request starts with. At least one token must be computed, so a
    /// hit ends before the last known token. Returns how many of them nobody holds. The work is that of
    /// the cached part of one prompt, each time the head of the queue is considered.
    pub(crate) fn find_prefix(&mut self, slot: u32) -> u32 {
        self.hits.clear();
        self.kept_hits = 0;
        let mut idle = 0;
        if self.config.spec.prefix_caching {
            let seq = &self.seqs[slot as usize];
            let most = (seq.known() - 1) / self.config.spec.block_size;
            for &hash in seq.prefix.iter().take(most as usize) {
                let Some(block) = self.blocks.lookup(hash) else { return idle };
                idle += u32::from(self.blocks.is_free(block));
                self.hits.push(block);
            }
            self.kept_hits = self.blocks.kept(slot).min(most - self.hits.len() as u32);
        }
        idle + self.kept_hits
    }

    /// Moves the head of the queue to the running list with the blocks that were hit.
    fn admit(&mut self, slot: u32, cached: u32, at: Nanos, out: &mut Vec<EngineEvent>) {
        self.hold_hits(slot);
        let seq = &mut self.seqs[slot as usize];
        seq.settled = cached;
        seq.computed = cached;
        self.enter(slot, cached, at, out);
    }

    /// Gives a request the blocks that [`Engine::find_prefix`] has found.
    fn hold_hits(&mut self, slot: u32) {
        let seq = &mut self.seqs[slot as usize];
        for &block in &self.hits {
            self.blocks.hold(block);
            seq.named.push(block);
        }
        self.blocks.take_kept(slot, self.kept_hits);
        seq.own = self.kept_hits;
    }

    /// Puts a request at the end of the running list.
    fn enter(&mut self, slot: u32, cached: u32, at: Nanos, out: &mut Vec<EngineEvent>) {
        let seq = &mut self.seqs[slot as usize];
        seq.place = Place::Running;
        seq.order = self.admissions;
        self.admissions += 1;
        self.running.push(slot);
        if !seq.admitted {
            seq.admitted = true;
            seq.cached = cached;
            if self.config.spec.prefix_caching {
                self.counters.prefix_queries += u64::from(seq.prompt);
                self.counters.prefix_hits += u64::from(cached);
            }
            out.push(EngineEvent::Admitted { id: seq.id, at, cached_tokens: cached });
        }
    }

    /// Gives a request the blocks for `tokens` more; nothing is taken if they are not there.
    fn grow(&mut self, slot: u32, tokens: u32) -> bool {
        let seq = &mut self.seqs[slot as usize];
        let blocks = (seq.computed + tokens).div_ceil(self.config.spec.block_size);
        let more = blocks.saturating_sub(seq.held());
        if !self.blocks.take(more) {
            return false;
        }
        seq.own += more;
        true
    }

    /// Puts a chunk into the step, and registers the blocks that it fills. As in vLLM this happens when
    /// the step is scheduled, so a later request of the same step can already hit them; tokens that are
    /// still in flight have no known content and wait for the next time.
    fn commit(&mut self, slot: u32, tokens: u32, batch: &mut Batch) {
        let seq = &mut self.seqs[slot as usize];
        let context = seq.computed;
        let samples = tokens == seq.wanted();
        seq.computed += tokens;
        seq.pending += u32::from(samples);
        let (generation, order, settled) = (seq.generation, seq.order, seq.computed.min(seq.known()));
        self.fill_blocks(slot, settled);
        batch.entries.push(Entry { slot, generation, order, tokens, context, samples });
    }

    /// Registers the full blocks among a request's first `settled` tokens in the prefix cache. Blocks past
    /// the names that the caller gave stay counts: see [`crate::BlockPool::keep`].
    pub(crate) fn fill_blocks(&mut self, slot: u32, settled: u32) {
        if !self.config.spec.prefix_caching {
            return;
        }
        let seq = &mut self.seqs[slot as usize];
        seq.settled = seq.settled.max(settled);
        let full = (seq.settled / self.config.spec.block_size) as usize;
        while seq.named.len() < full.min(seq.prefix.len()) {
            seq.named.push(self.blocks.fill(seq.prefix[seq.named.len()]));
            seq.own -= 1;
        }
    }

    /// Where in the running list the next victim is: the tail, or the highest (priority, arrival).
    fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        match self.config.spec.scheduling {
            Scheduling::Fcfs => last,
            Scheduling::Priority => {
                let key = |i: &usize| {
                    let seq = &self.seqs[self.running[*i] as usize];
                    (seq.priority, seq.arrived, seq.number)
                };
                (0..=last).max_by_key(key).unwrap_or(last)
            }
        }
    }

    /// Takes a running request's blocks away; it waits again, with what it generated.
    fn preempt(&mut self, index: usize, at: Nanos, out: &mut Vec<EngineEvent>) {
        let slot = self.running.remove(index);
        self.release_blocks(slot, self.config.spec.prefix_caching);
        let seq = &mut self.seqs[slot as usize];
        let lost = std::mem::take(&mut seq.computed);
        seq.preemptions += 1;
        seq.place = Place::Waiting;
        self.waiting.push_front(slot, seq);
        self.counters.preemptions += 1;
        out.push(EngineEvent::Preempted { id: seq.id, at, lost });
    }

    /// How long the step takes. A chunk of one token costs what a decode costs, whether it continues a
    /// prompt or an output: both attend to what came before with one query. The cost is looked up once per
    /// composition; from one pure decode step to the next only the context grows.
    fn price(&mut self, batch: &mut Batch) {
        let mut c = Composition::default();
        let mut context = 0u64;
        for e in &batch.entries {
            c.sampled += u32::from(e.samples);
            if e.tokens == 1 {
                c.decodes += 1;
                context += u64::from(e.context) + 1;
            } else {
                c.prefills += 1;
                c.prefill_tokens += e.tokens;
                c.prefill_attention_ps += self.config.latency.prefill_attention_ps(e.tokens, e.context);
            }
        }
        if batch.group > 0 {
            c.decodes += batch.group;
            c.sampled += batch.group;
            context += self.group.context(self.plans);
        }
        batch.epoch = self.group.epoch;
        if self.priced.0 != c {
            self.priced = (c, self.cost(&c));
        }
        batch.tokens = c.decodes + c.prefill_tokens;
        batch.duration_ps = self.priced.1.duration_ps(context);
    }
}
