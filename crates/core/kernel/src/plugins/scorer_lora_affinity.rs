//! `lora-affinity-scorer`: prefers endpoints that already run the adapter that the request asks for.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Decision, Scorer};
use crate::pool::Adapters;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "lora-affinity-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "1 where the adapter runs, 0.8 where one more fits, 0.6 where it waits, else 0.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { scorer: Some(Arc::new(LoraAffinity)), ..Built::default() }),
};

#[derive(Debug)]
struct LoraAffinity;

fn rate(adapters: Option<&Adapters>, model: &str) -> f64 {
    let Some(a) = adapters else { return 0.0 };
    let among = |names: &[String]| names.iter().any(|n| n == model);
    if among(&a.running) {
        1.0
    } else if a.running.len() + a.waiting.len() < a.max as usize {
        0.8
    } else if among(&a.waiting) {
        0.6
    } else {
        0.0
    }
}

impl Scorer for LoraAffinity {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        for (o, &i) in out.iter_mut().zip(candidates) {
            *o = rate(d.pool.at(i).and_then(|e| e.adapters.as_deref()), &d.ask.model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, near};
    use super::*;

    #[test]
    fn running_beats_room_beats_waiting() {
        let mut b = Bench::new(6);
        let names = |list: &[&str]| list.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let all = [
            (names(&["a", "b"]), names(&[]), 2),
            (names(&["b"]), names(&[]), 2),
            (names(&["b"]), names(&["a"]), 2),
            (names(&["b"]), names(&["c"]), 2),
            (names(&["b"]), names(&["a"]), 3),
        ];
        for (i, (running, waiting, max)) in all.into_iter().enumerate() {
            b.at(i as u32).adapters = Some(Arc::new(Adapters { running, waiting, max }));
        }
        b.ask.model = "a".into();
        // The last has said nothing of adapters.
        let scorer = build(&DESCRIPTOR, &[]).unwrap().scorer.unwrap();
        near(&b.scores(&scorer), &[1.0, 0.8, 0.6, 0.0, 0.8, 0.0]);
    }
}
