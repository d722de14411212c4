//! The table of live requests: a slab with generations, so that a late word about a request that has
//! ended is recognised.

use crate::ask::Asked;
use crate::effect::{Id, QueueOutcome};
use crate::policy::Tenant;
use crate::pool::EndpointId;
use forebay_base::Nanos;

#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) band: u32,
    pub(crate) flow: u32,
    pub(crate) ttl: Option<forebay_base::Span>,
    pub(crate) since: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) endpoint: EndpointId,
    /// Where its prompt is computed, if not there; until the first token has come back.
    pub(crate) prefill: Option<Prefill>,
    /// When it was dispatched.
    pub(crate) since: Nanos,
    /// Whether it counts as waiting in the engine.
    pub(crate) pending: bool,
    /// Prompt tokens that the endpoint was not believed to hold.
    pub(crate) uncached: u64,
    /// What it still adds to [`crate::pool::Load::tokens`].
    pub(crate) tokens: u64,
    /// Its band and flow, if it came through a queue; the flow is kept while it runs.
    pub(crate) lane: Option<(u32, u32)>,
    /// Output tokens that have been told of.
    pub(crate) output: u64,
    /// The priority of its band.
    pub(crate) priority: i32,
    /// When its first token came back; for an answer that does not stream, when it was dispatched.
    pub(crate) decoding: Option<Nanos>,
}

impl Running {
    /// As a gate is told of it.
    pub(crate) fn tenant(&self) -> Tenant {
        let Running { priority, endpoint, uncached, decoding, .. } = *self;
        Tenant { priority, endpoint, prompt_tokens: uncached, decoding }
    }
}

/// The prompt of a running request at an endpoint of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefill {
    pub(crate) endpoint: EndpointId,
    /// Prompt tokens that this endpoint was not believed to hold.
    pub(crate) uncached: u64,
    /// What it adds to [`crate::pool::Load::tokens`] there.
    pub(crate) tokens: u64,
}

impl Running {
    /// Where it waits until its first token has come back.
    pub(crate) fn waits_at(&self) -> EndpointId {
        self.prefill.map_or(self.endpoint, |p| p.endpoint)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Being decided on within the current call.
    Deciding,
    Queued(Queued),
    Running(Running),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) asked: Asked,
    pub(crate) state: State,
    /// How it left the queue, if it was ever in it.
    pub(crate) outcome: Option<QueueOutcome>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Option<Entry>>,
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl Table {
    pub(crate) fn insert(&mut self, asked: Asked) -> Id {
        let entry = Some(Entry { asked, state: State::Deciding, outcome: None });
        let index = if let Some(i) = self.free.pop() {
            self.slots[i as usize] = entry;
            i
        } else {
            // Grows to the greatest number of live requests and then stays.
            self.slots.push(entry);
            self.generations.push(0);
            self.slots.len() as u32 - 1
        };
        Id { index, generation: self.generations[index as usize] }
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Entry> {
        self.at(id.index).filter(|_| self.generations[id.index as usize] == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Entry> {
        if self.generations.get(id.index as usize) != Some(&id.generation) {
            return None;
        }
        self.slots[id.index as usize].as_mut()
    }

    /// Places in use or kept for reuse.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> + '_ {
        self.slots.iter().flatten()
    }

    pub(crate) fn at(&self, index: u32) -> Option<&Entry> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn id_at(&self, index: u32) -> Id {
        Id { index, generation: self.generations[index as usize] }
    }

    /// Bands have moved: old index -> new index. A band with a queued or running request never goes.
    pub(crate) fn rebind(&mut self, moved: &[Option<u32>]) {
        for entry in self.slots.iter_mut().flatten() {
            let band = match &mut entry.state {
                State::Queued(q) => &mut q.band,
                State::Running(Running { lane: Some((band, _)), .. }) => band,
                _ => continue,
            };
            if let Some(Some(now)) = moved.get(*band as usize) {
                *band = *now;
            }
        }
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<Entry> {
        self.get(id)?;
        let i = id.index as usize;
        self.generations[i] = id.generation.wrapping_add(1);
        self.free.push(id.index);
        self.slots[i].take()
    }
}
