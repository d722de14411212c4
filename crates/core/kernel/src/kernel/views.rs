//! What can be seen of a kernel from outside.

use super::Kernel;
use crate::effect::{Id, Ledgers};
use crate::flow::{BandView, Queues};
use crate::plan::Plan;
use crate::policy::{CycleFacts, Program};
use crate::pool::Pool;
use crate::prefix::{self, PrefixIndex};
use crate::saturation::StageSaturation;
use forebay_base::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Kernel {
    /// When [`Kernel::wake`] has to be called next; `None` while nothing can happen by itself.
    pub fn next_wake(&self) -> Option<Nanos> {
        let deadline = self.queues.as_ref().and_then(Queues::next_deadline).map(|(t, _)| t);
        if self.turn_cut {
            return Some(self.clock);
        }
        [deadline, self.ticks.wake()].into_iter().flatten().min()
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

    /// [`StageSaturation::effective`] at the last input.
    pub fn effective_saturation(&mut self) -> f64 {
        self.saturation.effective(&*self.plan.detector, &self.pool)
    }

    /// The bands, highest priority first; none without flow control.
    pub fn bands(&self) -> impl Iterator<Item = BandView> + '_ {
        self.queues.iter().flat_map(Queues::views)
    }

    /// Waits and attained service per program, bands added up; `None` unless some band's fairness policy
    /// counts programs. Allocates: for metrics.
    pub fn programs(&self, now: Nanos) -> Option<BTreeMap<Arc<str>, Program>> {
        self.queues.as_ref()?.programs(now)
    }

    /// Ceilings of the last executed cycle, in the order of [`Kernel::bands`]; the nominal one for a band
    /// that has come since.
    pub fn ceilings(&self) -> &[f64] {
        &self.ceilings
    }

    /// The ceilings that the policy aims at now, in the order of [`Kernel::bands`].
    pub fn nominal_ceilings(&mut self) -> Vec<f64> {
        let saturation = self.saturation().effective;
        let (Some(flow), Some(queues)) = (&self.plan.flow, &self.queues) else { return Vec::new() };
        let priorities = queues.priorities();
        let mut out = vec![1.0; priorities.len()];
        flow.limit.nominal(&CycleFacts { saturation, priorities, ticks: 0 }, &mut out);
        out
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

    /// Blocks in the prefix index; one that several endpoints hold counts several times.
    pub fn index_blocks(&self) -> u64 {
        self.index.as_ref().map_or(0, PrefixIndex::all_blocks)
    }

    /// The priority of the band a live request runs in.
    pub fn priority_of(&self, id: Id) -> Option<i32> {
        self.table.get(id).map(|e| e.asked.priority)
    }

    /// Tokens per block to hash prompts with; 0 if no prefix index is in use. With tuning on, the first
    /// endpoint that reports a block size decides.
    pub fn block_tokens(&self) -> u32 {
        let reported = || self.pool.iter().find_map(|e| e.sample.and_then(|s| s.block_tokens));
        self.plan.prefix.map_or(0, |p| {
            let reported = if p.auto_tune { reported() } else { None };
            prefix::block_tokens(&p, reported)
        })
    }
}
