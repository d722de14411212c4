//! A kernel with short words for what tests do to it.

use crate::common::{Setup, sample};
use forebay_base::Nanos;
use forebay_kernel::{Ask, Effect, Effects, EndpointId, EndpointSpec, Id, Kernel, Plan, Refusal, Sample};
use std::sync::Arc;

pub(crate) struct Rig {
    pub(crate) k: Kernel,
    pub(crate) fx: Effects,
}

pub(crate) const MS: u64 = 1_000_000;

impl Rig {
    pub(crate) fn of(plan: Arc<Plan>) -> Rig {
        let mut fx = Effects::new();
        let k = Kernel::new(plan, 1, Nanos::ZERO, &mut fx);
        Rig { k, fx }
    }
    pub(crate) fn new(setup: &Setup) -> Rig {
        Rig::of(setup.plan())
    }
    pub(crate) fn add(&mut self, name: &str) -> EndpointId {
        self.k.add_endpoint(Nanos::ZERO, EndpointSpec::named(name), &mut self.fx)
    }
    pub(crate) fn scrape(&mut self, at: u64, e: EndpointId, s: &Sample) {
        self.k.scraped(Nanos(at), e, Nanos(at), s, &mut self.fx);
    }
    pub(crate) fn offer(&mut self, at: u64, priority: i32) -> Id {
        self.ask(at, &Ask { flow: "f", priority, bytes: 10, ..Ask::default() })
    }
    pub(crate) fn ask(&mut self, at: u64, ask: &Ask<'_>) -> Id {
        self.k.offer(Nanos(at), ask, &mut self.fx)
    }
    pub(crate) fn wake(&mut self, at: u64) {
        self.k.wake(Nanos(at), &mut self.fx);
    }
    pub(crate) fn taken(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.fx.list)
    }
    pub(crate) fn dispatched(&mut self) -> Vec<Id> {
        self.taken()
            .into_iter()
            .filter_map(|e| match e {
                Effect::Dispatch { id, .. } => Some(id),
                Effect::End { .. } => None,
            })
            .collect()
    }
    pub(crate) fn refusals(&mut self) -> Vec<Refusal> {
        self.taken()
            .into_iter()
            .filter_map(|e| match e {
                Effect::End { refusal, .. } => Some(refusal),
                Effect::Dispatch { .. } => None,
            })
            .collect()
    }
}

pub(crate) fn idle() -> Sample {
    sample(0.0, 0.0)
}
pub(crate) fn full() -> Sample {
    sample(5.0, 0.0)
}

impl Rig {
    pub(crate) fn ids_after_wake(&mut self, at: u64) -> Vec<Id> {
        self.wake(at);
        self.dispatched()
    }
}
