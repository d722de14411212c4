//! LoRA adapters: how many distinct ones a step carries, and which have requests.

use crate::engine::{Batch, Engine};
use crate::seq::{Key, Place};
use forebay_base::Nanos;

/// The adapters that have requests, by the caller's numbers in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// With running requests.
    pub running: Vec<u16>,
    /// With waiting requests.
    pub waiting: Vec<u16>,
}

/// What an engine keeps of adapters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loras {
    /// Those of the step that is put together, in no order, none twice.
    in_step: Vec<u16>,
    /// Requests passed over in it, in order, with their places in the queue.
    pub(crate) passed_over: Vec<(Key, u32)>,
    published: Adapters,
}

impl Engine {
    /// Notes the adapters that a step carries before anybody is admitted to it.
    pub(crate) fn note_adapters(&mut self, batch: &Batch) {
        if self.config.spec.max_loras.is_none() {
            return;
        }
        self.loras.in_step.clear();
        if batch.group > 0 {
            self.loras.in_step.extend(self.group.loras.keys());
        }
        for e in &batch.entries {
            self.note_adapter(e.slot);
        }
    }

    /// The step carries this request.
    pub(crate) fn note_adapter(&mut self, slot: u32) {
        if let Some(lora) = self.seqs[slot as usize].lora
            && self.config.spec.max_loras.is_some()
            && !self.loras.in_step.contains(&lora)
        {
            self.loras.in_step.push(lora);
        }
    }

    /// Whether the step can carry this request, by its adapter: it has that already, or room for one more.
    pub(crate) fn adapter_fits(&self, slot: u32) -> bool {
        match (self.config.spec.max_loras, self.seqs[slot as usize].lora) {
            (Some(max), Some(lora)) => {
                self.loras.in_step.len() < max as usize || self.loras.in_step.contains(&lora)
            }
            _ => true,
        }
    }

    /// The first that waits and whose adapter a step can carry that has the group and nobody else in it.
    pub(crate) fn first_that_fits_the_group(&self) -> Option<u32> {
        let Some(max) = self.config.spec.max_loras else { return self.waiting.peek() };
        let loras = &self.group.loras;
        let room = loras.len() < max as usize;
        self.waiting.first_of(|s| room || self.seqs[s as usize].lora.is_none_or(|l| loras.contains_key(&l)))
    }

    /// The adapters that have requests, as they are now.
    fn adapters(&self) -> Adapters {
        let mut all = Adapters::default();
        for seq in &self.seqs {
            let Some(lora) = seq.lora else { continue };
            match seq.place {
                Place::Running => all.running.push(lora),
                Place::Waiting => all.waiting.push(lora),
                Place::Incoming if seq.loaded => all.waiting.push(lora),
                Place::Incoming | Place::Empty => {}
            }
        }
        for list in [&mut all.running, &mut all.waiting] {
            list.sort_unstable();
            list.dedup();
        }
        all
    }

    pub(crate) fn publish_adapters(&mut self) {
        if self.config.spec.max_loras.is_some() {
            self.loras.published = self.adapters();
        }
    }

    /// The adapters that have requests, as a scrape at `now` sees them: as of the step end that
    /// [`Engine::published_at`] tells of. `None` without `--max-loras`.
    pub fn adapters_at(&self, now: Nanos) -> Option<Adapters> {
        self.config.spec.max_loras?;
        // Nobody comes or goes while steps are quiet; only what has come before the first of them is news.
        Some(if self.quiet_until(now) == 0 { self.loras.published.clone() } else { self.adapters() })
    }
}
