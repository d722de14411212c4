//! Choosing an endpoint: filters, scorers, picker, over the candidates that the gate left.

use crate::ask::Asked;
use crate::effect::Refusal;
use crate::plan::Plan;
use crate::policy::{Decision, GateMemory, Memory};
use crate::pool::{EndpointId, EndpointSet, Pool};
use crate::prefix::PrefixIndex;
use forebay_base::{Draws, Nanos};

/// Buffers of one decision, kept so that deciding allocates nothing once they have grown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) candidates: EndpointSet,
    alive: EndpointSet,
    matched: Vec<u32>,
    list: Vec<u32>,
    column: Vec<f64>,
    scored: Vec<(u32, f64)>,
    picked: Vec<u32>,
}

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) endpoint: u32,
    /// Tokens of the prompt that the endpoint is believed to hold.
    pub(crate) matched_tokens: u32,
}

/// What the gate, and the filters and scorers of the profile by their places in it, remember.
#[derive(Debug)]
pub(crate) struct Memories {
    pub(crate) gate: Option<Box<dyn GateMemory>>,
    filters: Vec<Option<Box<dyn Memory>>>,
    scorers: Vec<Option<Box<dyn Memory>>>,
}

impl Clone for Memories {
    fn clone(&self) -> Memories {
        let fork = |all: &[Option<Box<dyn Memory>>]| -> Vec<_> {
            all.iter().map(|m| m.as_ref().map(|m| m.fork())).collect()
        };
        let gate = self.gate.as_ref().map(|g| g.fork());
        Memories { gate, filters: fork(&self.filters), scorers: fork(&self.scorers) }
    }
}

impl Memories {
    pub(crate) fn new(plan: &Plan) -> Memories {
        Memories {
            gate: plan.flow.as_ref().and_then(|f| f.gate.start()),
            filters: plan.profile.filters.iter().map(|f| f.start()).collect(),
            scorers: plan.profile.scorers.iter().map(|s| s.scorer.start()).collect(),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Memory>> {
        self.filters.iter_mut().chain(&mut self.scorers).flatten()
    }

    pub(crate) fn removed(&mut self, endpoint: EndpointId) {
        self.all().for_each(|m| m.removed(endpoint));
        if let Some(gate) = &mut self.gate {
            gate.removed(endpoint);
        }
    }
}

pub(crate) struct Scene<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) pool: &'a Pool,
    pub(crate) index: Option<&'a PrefixIndex>,
    pub(crate) draws: Draws,
    pub(crate) now: Nanos,
}

/// Chooses among `scratch.candidates`.
pub(crate) fn choose(
    scene: &Scene<'_>,
    ask: &Asked,
    memories: &mut Memories,
    scratch: &mut Scratch,
) -> Result<Choice, Refusal> {
    if scratch.candidates.is_empty() {
        return Err(Refusal::NoCandidates);
    }
    scratch.matched.clear();
    if let Some(index) = scene.index {
        scratch.matched.resize(scene.pool.width(), 0);
        index.lookup(&ask.prefix, &mut scratch.alive, &mut scratch.matched);
    }
    let decision = Decision {
        now: scene.now,
        ask,
        pool: scene.pool,
        matched: &scratch.matched,
        draws: scene.draws,
        live: scene.plan.live_routing,
        inflight: scene.plan.inflight,
    };
    for (filter, memory) in scene.plan.profile.filters.iter().zip(&mut memories.filters) {
        match memory {
            Some(m) => m.keep(&decision, &mut scratch.candidates),
            None => filter.keep(&decision, &mut scratch.candidates),
        }
        if scratch.candidates.is_empty() {
            return Err(Refusal::FilteredOut);
        }
    }
    scratch.list.clear();
    // `for_each` runs word by word, which `extend` does not.
    scratch.candidates.iter().for_each(|i| scratch.list.push(i));
    scratch.scored.clear();
    scratch.scored.extend(scratch.list.iter().map(|&i| (i, 0.0)));
    for (s, memory) in scene.plan.profile.scorers.iter().zip(&mut memories.scorers) {
        scratch.column.clear();
        scratch.column.resize(scratch.list.len(), 0.0);
        match memory {
            Some(m) => m.score(&decision, &scratch.list, &mut scratch.column),
            None => s.scorer.score(&decision, &scratch.list, &mut scratch.column),
        }
        for (total, &score) in scratch.scored.iter_mut().zip(&scratch.column) {
            total.1 += s.weight * score.clamp(0.0, 1.0);
        }
    }
    scene.plan.profile.picker.pick(&decision, &scratch.scored, &mut scratch.picked);
    let endpoint = *scratch.picked.first().ok_or(Refusal::NoCandidates)?;
    let blocks = decision.matched_blocks(endpoint);
    let matched_tokens = blocks.saturating_mul(ask.block_tokens).min(ask.prompt_tokens);
    if let Some(e) = scene.pool.at(endpoint) {
        memories.all().for_each(|m| m.dispatched(&decision, e.id));
    }
    Ok(Choice { endpoint, matched_tokens })
}
