//! Choosing an endpoint: filters, scorers, picker, over the candidates that the gate left.

use crate::ask::Asked;
use crate::effect::Refusal;
use crate::plan::{Plan, PrefillPlan, Profile};
use crate::policy::{Decision, GateMemory, Memory};
use crate::pool::{EndpointId, EndpointSet, Pool};
use crate::prefix::PrefixIndex;
use forebay_base::{Draws, Nanos};

/// Buffers of one decision, kept so that deciding allocates nothing once they have grown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) candidates: EndpointSet,
    /// The candidates as they were, for the second stage.
    all: EndpointSet,
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
    /// Where the prompt is computed if not there, and its tokens that are believed to be held there.
    pub(crate) prefill: Option<(u32, u32)>,
}

/// What the gate, and the filters and scorers of the profiles remember.
#[derive(Debug)]
pub(crate) struct Memories {
    pub(crate) gate: Option<Box<dyn GateMemory>>,
    decode: ProfileMemory,
    prefill: Option<ProfileMemory>,
}

impl Clone for Memories {
    fn clone(&self) -> Memories {
        Memories {
            gate: self.gate.as_ref().map(|g| g.fork()),
            decode: self.decode.clone(),
            prefill: self.prefill.clone(),
        }
    }
}

/// What those of one profile remember, by their places in it.
#[derive(Debug)]
struct ProfileMemory {
    filters: Vec<Option<Box<dyn Memory>>>,
    scorers: Vec<Option<Box<dyn Memory>>>,
}

impl Clone for ProfileMemory {
    fn clone(&self) -> ProfileMemory {
        let fork = |all: &[Option<Box<dyn Memory>>]| -> Vec<_> {
            all.iter().map(|m| m.as_ref().map(|m| m.fork())).collect()
        };
        ProfileMemory { filters: fork(&self.filters), scorers: fork(&self.scorers) }
    }
}

impl Memories {
    pub(crate) fn new(plan: &Plan) -> Memories {
        Memories {
            gate: plan.flow.as_ref().and_then(|f| f.gate.start()),
            decode: ProfileMemory::new(&plan.profile),
            prefill: plan.prefill.as_ref().map(|p| ProfileMemory::new(&p.profile)),
        }
    }

    pub(crate) fn removed(&mut self, endpoint: EndpointId) {
        let all = std::iter::once(&mut self.decode).chain(&mut self.prefill);
        all.flat_map(ProfileMemory::all).for_each(|m| m.removed(endpoint));
        if let Some(gate) = &mut self.gate {
            gate.removed(endpoint);
        }
    }
}

impl ProfileMemory {
    fn new(profile: &Profile) -> ProfileMemory {
        ProfileMemory {
            filters: profile.filters.iter().map(|f| f.start()).collect(),
            scorers: profile.scorers.iter().map(|s| s.scorer.start()).collect(),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Memory>> {
        self.filters.iter_mut().chain(&mut self.scorers).flatten()
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
    // The stages share the buffers; what endpoints hold stays as it is meanwhile.
    let matched = std::mem::take(&mut scratch.matched);
    let choice = by_stages(scene, ask, &matched, memories, scratch);
    scratch.matched = matched;
    choice
}

/// Chooses where to decode and, if that is wanted, where to compute the prompt.
fn by_stages(
    scene: &Scene<'_>,
    ask: &Asked,
    matched: &[u32],
    memories: &mut Memories,
    scratch: &mut Scratch,
) -> Result<Choice, Refusal> {
    let decision = Decision {
        now: scene.now,
        ask,
        pool: scene.pool,
        matched,
        draws: scene.draws,
        live: scene.plan.live_routing,
        inflight: scene.plan.inflight,
    };
    let Some(split) = &scene.plan.prefill else {
        let endpoint = choose_by(&scene.plan.profile, &decision, &mut memories.decode, scratch)?;
        return Ok(chosen(&decision, memories, endpoint, None));
    };
    scratch.all.clone_from(&scratch.candidates);
    let prompts = |memories: &mut Memories, scratch: &mut Scratch| {
        scratch.candidates.clone_from(&scratch.all);
        choose_by(&split.profile, &decision, memories.prefill.as_mut()?, scratch).ok()
    };
    let PrefillPlan { decider, .. } = split;
    let first = if decider.is_none() { prompts(memories, scratch) } else { None };
    scratch.candidates.clone_from(&scratch.all);
    let decode = choose_by(&scene.plan.profile, &decision, &mut memories.decode, scratch)?;
    let prefill = match decider {
        None => first,
        Some(d) if d.split(&decision, decode) => prompts(memories, scratch),
        Some(_) => None,
    };
    Ok(chosen(&decision, memories, decode, prefill.filter(|&p| p != decode)))
}

/// The choice, of which the profiles are told.
fn chosen(d: &Decision<'_>, memories: &mut Memories, decode: u32, prefill: Option<u32>) -> Choice {
    let tell = |memory: &mut ProfileMemory, endpoint: u32| {
        if let Some(e) = d.pool.at(endpoint) {
            memory.all().for_each(|m| m.dispatched(d, e.id));
        }
    };
    tell(&mut memories.decode, decode);
    if let (Some(memory), Some(endpoint)) = (&mut memories.prefill, prefill) {
        tell(memory, endpoint);
    }
    let matched =
        |endpoint| d.matched_blocks(endpoint).saturating_mul(d.ask.block_tokens).min(d.ask.prompt_tokens);
    Choice {
        endpoint: decode,
        matched_tokens: matched(decode),
        prefill: prefill.map(|endpoint| (endpoint, matched(endpoint))),
    }
}

/// The endpoint that a profile chooses among `scratch.candidates`.
fn choose_by(
    profile: &Profile,
    decision: &Decision<'_>,
    memories: &mut ProfileMemory,
    scratch: &mut Scratch,
) -> Result<u32, Refusal> {
    for (filter, memory) in profile.filters.iter().zip(&mut memories.filters) {
        match memory {
            Some(m) => m.keep(decision, &mut scratch.candidates),
            None => filter.keep(decision, &mut scratch.candidates),
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
    for (s, memory) in profile.scorers.iter().zip(&mut memories.scorers) {
        scratch.column.clear();
        scratch.column.resize(scratch.list.len(), 0.0);
        match memory {
            Some(m) => m.score(decision, &scratch.list, &mut scratch.column),
            None => s.scorer.score(decision, &scratch.list, &mut scratch.column),
        }
        for (total, &score) in scratch.scored.iter_mut().zip(&scratch.column) {
            total.1 += s.weight * score.clamp(0.0, 1.0);
        }
    }
    profile.picker.pick(decision, &scratch.scored, &mut scratch.picked);
    scratch.picked.first().copied().ok_or(Refusal::NoCandidates)
}
