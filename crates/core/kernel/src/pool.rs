//! The endpoints: what is known of each, and sets of them.

use forebay_base::{Nanos, Span};
use std::collections::VecDeque;
use std::sync::Arc;

/// Names an endpoint for as long as it lives: a re-added one has a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    /// Index into per-endpoint columns.
    pub index: u32,
    /// Counts the endpoints that had this index.
    pub generation: u32,
}

/// One value scraped from an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Reading {
    /// The engine's mapping has no such metric: it takes no part in decisions.
    Disabled,
    /// The metric was expected and not there: unknown, which never counts as 0.
    #[default]
    Missing,
    /// The value.
    Value(f64),
}

impl Reading {
    /// The value, if there is one.
    pub fn value(self) -> Option<f64> {
        match self {
            Reading::Value(x) => Some(x),
            _ => None,
        }
    }

    /// As a load: a metric that the engine does not have weighs nothing, a missing one is unknown.
    pub fn load(self) -> Option<f64> {
        match self {
            Reading::Disabled => Some(0.0),
            Reading::Missing => None,
            Reading::Value(x) => Some(x),
        }
    }

    /// Missing instead of a number that is none: NaN would pass every ceiling.
    #[must_use]
    pub(crate) fn finite(self) -> Reading {
        match self {
            Reading::Value(x) if !x.is_finite() => Reading::Missing,
            reading => reading,
        }
    }
}

/// What one scrape of an endpoint said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests waiting in the engine.
    pub waiting: Reading,
    /// Requests running in the engine.
    pub running: Reading,
    /// Used share of the KV cache, 0 to 1.
    pub kv: Reading,
    /// Tokens per KV block, if reported.
    pub block_tokens: Option<u32>,
    /// KV blocks in all, if reported.
    pub blocks: Option<u32>,
}

/// What the kernel itself has sent to an endpoint and not seen the end of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests dispatched and not ended.
    pub requests: u32,
    /// Of these, requests whose first token has not come back; not those whose prompt is computed elsewhere:
    /// they wait there.
    pub pending: u32,
    /// Estimated prompt tokens that the endpoint is not believed to hold, of requests whose first token has not
    /// come back: to be computed here, or to be transferred to here.
    pub pending_tokens: u64,
    /// Tokens in flight as `inflight-load-producer` counts them: uncached prompt tokens until the first
    /// token comes back, or, if it adds estimated output, both until the end.
    pub tokens: u64,
}

/// The LoRA adapters of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Adapters with running requests.
    pub running: Vec<String>,
    /// Adapters with waiting requests.
    pub waiting: Vec<String>,
    /// How many may be loaded at once; 0 if the engine does not say.
    pub max: u32,
}

/// The stages that an endpoint takes part in, from its label `llm-d.ai/role`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Prefill.
    pub prefill: bool,
    /// Decode.
    pub decode: bool,
}

impl Stages {
    /// The label that decides.
    pub const LABEL: &'static str = "llm-d.ai/role";

    /// Unlabelled endpoints decode; `prefill-decode` and `both` do both; `encode` and values that are
    /// not known take part in none.
    pub fn of_role(role: Option<&str>) -> Stages {
        let (prefill, decode) = match role {
            None | Some("" | "decode") => (false, true),
            Some("prefill" | "encode-prefill") => (true, false),
            Some("prefill-decode" | "both" | "encode-prefill-decode") => (true, true),
            Some(_) => (false, false),
        };
        Stages { prefill, decode }
    }
}

/// How discovery describes an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Unique name, such as `namespace/pod-rank-0` or an address.
    pub name: String,
    /// Labels, sorted by key.
    pub labels: Vec<(String, String)>,
}

impl EndpointSpec {
    /// An endpoint without labels.
    pub fn named(name: impl Into<String>) -> EndpointSpec {
        EndpointSpec { name: name.into(), labels: Vec::new() }
    }
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

/// One endpoint as policies see it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its identity.
    pub id: EndpointId,
    /// As discovered.
    pub spec: EndpointSpec,
    /// From its role label.
    pub stages: Stages,
    /// Whether it takes connections. One that does not is no candidate and counts in no mean.
    pub available: bool,
    /// The last scrape, if there was one.
    pub sample: Option<Sample>,
    /// When that scrape arrived.
    pub sampled: Nanos,
    /// When the endpoint was asked for it.
    pub taken: Nanos,
    /// Whether the scrape is missing or older than the detector allows.
    pub stale: bool,
    /// What the kernel has in flight there.
    pub load: Load,
    /// Its LoRA adapters, if it has said.
    pub adapters: Option<Arc<Adapters>>,
    /// Waiting requests of the last scrape beyond those of ours that were pending when it was taken.
    pub foreign_waiting: f64,
    /// Mean time to first token of streaming answers, in seconds, newest weighing most.
    pub mean_ttft: Option<f64>,
    /// Pending requests over time, from the last scrape on; kept only while something reads live load.
    pub(crate) pending_log: VecDeque<(Nanos, u32)>,
}

/// Changes of the pending count that are remembered between two scrapes; with more, the oldest go, and
/// what was pending at the scrape is taken from the oldest that is left.
const PENDING_LOG: usize = 4096;

impl Endpoint {
    /// Waiting requests: as scraped, or with what is in flight.
    pub fn waiting(&self, live: bool) -> Reading {
        let scraped = self.sample.map_or(Reading::Missing, |s| s.waiting);
        if !live {
            return scraped;
        }
        match scraped {
            Reading::Missing => Reading::Missing,
            Reading::Disabled | Reading::Value(_) => {
                Reading::Value(f64::from(self.load.pending) + self.foreign_waiting)
            }
        }
    }

    /// Used share of the KV cache: as scraped, or with the prompts in flight. Without a known capacity
    /// the scraped share stands alone.
    pub fn kv(&self, live: bool) -> Reading {
        let Some(s) = self.sample else { return Reading::Missing };
        match (s.kv, self.capacity_tokens()) {
            (Reading::Value(kv), Some(tokens)) if live => {
                Reading::Value(kv + self.load.pending_tokens as f64 / tokens as f64)
            }
            (scraped, _) => scraped,
        }
    }

    /// Tokens that the KV cache holds, if the engine tells.
    pub fn capacity_tokens(&self) -> Option<u64> {
        let s = self.sample?;
        Some(u64::from(s.blocks?) * u64::from(s.block_tokens?)).filter(|&n| n > 0)
    }

    /// The pending count has become what it is at `now`.
    pub(crate) fn note_pending(&mut self, now: Nanos) {
        if self.pending_log.len() >= PENDING_LOG {
            self.pending_log.pop_front();
        }
        self.pending_log.push_back((now, self.load.pending));
    }

    /// Pending requests at an instant since the last scrape; forgets what lies before it.
    pub(crate) fn pending_at(&mut self, t: Nanos) -> u32 {
        // Mostly nothing has changed since the last look.
        if self.pending_log.len() == 1
            && let Some(last) = self.pending_log.front_mut().filter(|last| last.0 <= t)
        {
            last.0 = t;
            return last.1;
        }
        let mut at = self.pending_log.front().map_or(self.load.pending, |&(first, n)| {
            // Before anything that is remembered: nothing was sent yet, or too much to tell.
            if first <= t || self.pending_log.len() >= PENDING_LOG { n } else { 0 }
        });
        while let Some(&(when, n)) = self.pending_log.front().filter(|(when, _)| *when <= t) {
            let _ = when;
            at = n;
            self.pending_log.pop_front();
        }
        // What held at `t` is where the next look starts.
        self.pending_log.push_front((t, at));
        at
    }
}

/// A set of endpoint indices.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EndpointSet {
    words: Vec<u64>,
}

impl Clone for EndpointSet {
    fn clone(&self) -> EndpointSet {
        EndpointSet { words: self.words.clone() }
    }
    /// Keeps its memory, which a derived one would not.
    fn clone_from(&mut self, other: &EndpointSet) {
        self.words.clone_from(&other.words);
    }
}

impl EndpointSet {
    /// Removes all.
    pub fn clear(&mut self) {
        self.words.clear();
    }
    /// Adds one.
    pub fn insert(&mut self, index: u32) {
        let w = index as usize / 64;
        if w >= self.words.len() {
            self.words.resize(w + 1, 0);
        }
        self.words[w] |= 1 << (index % 64);
    }
    /// Removes one.
    pub fn remove(&mut self, index: u32) {
        if let Some(w) = self.words.get_mut(index as usize / 64) {
            *w &= !(1 << (index % 64));
        }
    }
    /// Keeps those that are in `other`, too.
    pub fn intersect(&mut self, other: &EndpointSet) {
        for (i, w) in self.words.iter_mut().enumerate() {
            *w &= other.words.get(i).copied().unwrap_or(0);
        }
    }
    /// Whether it is in.
    pub fn contains(&self, index: u32) -> bool {
        self.words.get(index as usize / 64).is_some_and(|w| w >> (index % 64) & 1 == 1)
    }
    /// 64-bit words that it takes.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }
    /// Whether none is in.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }
    /// How many are in.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }
    /// The members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut w = word;
            std::iter::from_fn(move || {
                (w != 0).then(|| {
                    let bit = w.trailing_zeros();
                    w &= w - 1;
                    i as u32 * 64 + bit
                })
            })
        })
    }
    /// Keeps those for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        for i in 0..self.words.len() {
            let mut w = self.words[i];
            while w != 0 {
                let bit = w.trailing_zeros();
                w &= w - 1;
                if !keep(i as u32 * 64 + bit) {
                    self.words[i] &= !(1 << bit);
                }
            }
        }
    }
}

/// All endpoints.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    slots: Vec<Option<Endpoint>>,
    generations: Vec<u32>,
    /// The available ones.
    members: EndpointSet,
    available: u32,
}

impl Pool {
    /// The number of available endpoints.
    pub fn len(&self) -> usize {
        self.available as usize
    }
    /// Whether none is available.
    pub fn is_empty(&self) -> bool {
        self.available == 0
    }
    /// One more than the largest index in use: the length of per-endpoint columns.
    pub fn width(&self) -> usize {
        self.slots.len()
    }
    /// The indices of all available endpoints.
    pub fn members(&self) -> &EndpointSet {
        &self.members
    }
    /// The endpoint at `index`.
    pub fn at(&self, index: u32) -> Option<&Endpoint> {
        self.slots.get(index as usize)?.as_ref()
    }
    /// The endpoint of this identity, if it still lives.
    pub fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.at(id.index).filter(|e| e.id == id)
    }
    /// All endpoints by rising index, available or not.
    pub fn iter(&self) -> impl Iterator<Item = &Endpoint> + '_ {
        self.slots.iter().flatten()
    }
    /// The available ones by rising index.
    pub fn available(&self) -> impl Iterator<Item = &Endpoint> + '_ {
        self.iter().filter(|e| e.available)
    }

    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.slots.get_mut(id.index as usize)?.as_mut().filter(|e| e.id == id)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> + '_ {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn add(&mut self, spec: EndpointSpec) -> EndpointId {
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(None);
            self.generations.push(0);
        }
        let id = EndpointId { index: index as u32, generation: self.generations[index] };
        let stages = Stages::of_role(spec.label(Stages::LABEL));
        self.slots[index] = Some(Endpoint {
            id,
            spec,
            stages,
            available: true,
            sample: None,
            sampled: Nanos::ZERO,
            taken: Nanos::ZERO,
            stale: true,
            load: Load::default(),
            foreign_waiting: 0.0,
            mean_ttft: None,
            pending_log: VecDeque::new(),
            adapters: None,
        });
        self.members.insert(id.index);
        self.available += 1;
        id
    }

    /// Whether that changed anything.
    pub(crate) fn set_available(&mut self, id: EndpointId, available: bool) -> bool {
        let Some(e) = self.get_mut(id).filter(|e| e.available != available) else { return false };
        e.available = available;
        if available {
            self.members.insert(id.index);
            self.available += 1;
        } else {
            self.members.remove(id.index);
            self.available -= 1;
        }
        true
    }

    pub(crate) fn remove(&mut self, id: EndpointId) -> bool {
        let Some(e) = self.get(id) else { return false };
        self.available -= u32::from(e.available);
        self.slots[id.index as usize] = None;
        self.generations[id.index as usize] = id.generation.wrapping_add(1);
        self.members.remove(id.index);
        true
    }

    /// The earliest instant at which a fresh scrape becomes older than `threshold`: one nanosecond after
    /// its last valid one.
    pub(crate) fn next_staleness(&self, threshold: Span) -> Option<Nanos> {
        self.iter().filter(|e| !e.stale).map(|e| e.sampled + threshold + Span(1)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_map_to_stages_as_in_the_router() {
        for (role, prefill, decode) in [
            (None, false, true),
            (Some("decode"), false, true),
            (Some("prefill"), true, false),
            (Some("encode-prefill"), true, false),
            (Some("prefill-decode"), true, true),
            (Some("both"), true, true),
            (Some("encode-prefill-decode"), true, true),
            (Some("encode"), false, false),
            (Some("something"), false, false),
        ] {
            assert_eq!(Stages::of_role(role), Stages { prefill, decode }, "{role:?}");
        }
    }

    #[test]
    fn an_endpoint_that_comes_back_is_another_one() {
        let mut pool = Pool::default();
        let a = pool.add(EndpointSpec::named("a"));
        let b = pool.add(EndpointSpec::named("b"));
        assert!(pool.remove(a));
        assert!(!pool.remove(a));
        let again = pool.add(EndpointSpec::named("a"));
        assert_eq!(again.index, a.index);
        assert_ne!(again, a);
        assert!(pool.get(a).is_none());
        assert_eq!(pool.len(), 2);
        assert!(pool.get(b).is_some());
    }

    #[test]
    fn sets_hold_what_was_put_in() {
        let mut s = EndpointSet::default();
        for i in [0, 3, 63, 64, 200] {
            s.insert(i);
        }
        s.remove(3);
        assert_eq!(s.iter().collect::<Vec<_>>(), [0, 63, 64, 200]);
        s.retain(|i| i >= 64);
        assert_eq!(s.iter().collect::<Vec<_>>(), [64, 200]);
        assert_eq!(s.len(), 2);
        assert!(s.contains(64) && !s.contains(0) && !s.contains(1000));
    }
}
