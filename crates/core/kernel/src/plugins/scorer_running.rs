//! `running-requests-size-scorer`: prefers endpoints that run fewer requests.

use super::scorer_queue::fewer_is_better;
use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "running-requests-size-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "1 for the fewest scraped running requests among the candidates, 0 for the most.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { scorer: Some(Arc::new(Running)), ..Built::default() }),
};

#[derive(Debug)]
struct Running;

impl Scorer for Running {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        fewer_is_better(d, candidates, out, |e| e.sample.and_then(|s| s.running.load()));
    }
}
