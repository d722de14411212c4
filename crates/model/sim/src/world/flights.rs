//! The requests in the system.

use crate::events::Ref;
use forebay_base::Nanos;
use forebay_engine::Job;
use forebay_kernel::Id;
use forebay_records::Row;
use forebay_workload::Arrival;
use std::sync::Arc;

/// A request in the system.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) router: u32,
    /// The router's name for it.
    pub(super) id: Id,
    pub(super) row: Row,
    /// The server that decodes it, from its dispatch on until that has done so.
    pub(super) bound: Option<u32>,
    /// The server that computes its prompt, until that has done so; then it goes on to the other one.
    pub(super) prefilling: Option<u32>,
    /// Whether its prompt was computed there.
    pub(super) prefilled: bool,
    /// Whether an engine has it.
    pub(super) inside: bool,
    /// Whether its client has left; only its engine does not know yet.
    pub(super) left: bool,
    /// Hidden from routers: what the engine is to generate.
    pub(super) output_tokens: u32,
    prefix: Arc<[u64]>,
    lora: Option<u16>,
}

impl Flight {
    /// The server that it is at or on its way to.
    pub(super) fn place(&self) -> Option<u32> {
        self.prefilling.or(self.bound)
    }

    /// As a job for an engine with blocks of so many tokens.
    pub(super) fn job(&self, flight: Ref, block_tokens: u32) -> Job {
        Job {
            id: flight.job(),
            prompt_tokens: self.row.prompt_tokens,
            // Whoever computes the prompt for another one generates its first token, which is thrown away.
            output_tokens: if self.prefilling.is_some() { 1 } else { self.output_tokens },
            prefix: super::chain_of_engine(&self.prefix, block_tokens),
            priority: 0,
            class: self.row.class,
            lora: self.lora,
        }
    }
}

/// A slab of them; a place that is used again has a new generation.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<(u32, Option<Flight>)>,
    vacant: Vec<u32>,
    live: u64,
}

impl Flights {
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    pub(super) fn open(&mut self, a: Arrival, now: Nanos, router: u32, id: Id) -> Ref {
        let row = Row {
            priority: a.priority,
            flow: a.flow,
            prompt_tokens: a.prompt_tokens,
            ..Row::arriving(a.number, a.class, now)
        };
        let flight = Flight {
            router,
            id,
            row,
            bound: None,
            prefilling: None,
            prefilled: false,
            inside: false,
            left: false,
            output_tokens: a.output_tokens,
            prefix: a.prefix,
            lora: a.lora,
        };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        place.1 = Some(flight);
        self.live += 1;
        Ref { slot, generation: place.0 }
    }

    /// The flight in a place that is taken.
    pub(super) fn at(&self, slot: u32) -> Ref {
        Ref { slot, generation: self.slots[slot as usize].0 }
    }

    pub(super) fn get_mut(&mut self, flight: Ref) -> Option<&mut Flight> {
        let (generation, place) = self.slots.get_mut(flight.slot as usize)?;
        place.as_mut().filter(|_| *generation == flight.generation)
    }

    pub(super) fn close(&mut self, flight: Ref) -> Option<Row> {
        let (generation, place) = self.slots.get_mut(flight.slot as usize)?;
        if *generation != flight.generation {
            return None;
        }
        let closed = place.take()?;
        *generation = generation.wrapping_add(1);
        self.vacant.push(flight.slot);
        self.live -= 1;
        Some(closed.row)
    }

    /// All of them, by number.
    pub(super) fn all(&self) -> Vec<Ref> {
        let mut all: Vec<(u64, Ref)> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, (generation, f))| {
                let flight = Ref { slot: slot as u32, generation: *generation };
                f.as_ref().map(|f| (f.row.number, flight))
            })
            .collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, flight)| flight).collect()
    }
}
