//! `queue-scorer`: prefers endpoints with fewer waiting requests.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Decision, Scorer};
use crate::pool::Endpoint;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "queue-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "1 for the shortest scraped engine queue among the candidates, 0 for the longest.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { scorer: Some(Arc::new(Queue)), ..Built::default() }),
};

#[derive(Debug)]
struct Queue;

impl Scorer for Queue {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        fewer_is_better(d, candidates, out, |e| e.waiting(d.live).load());
    }
}

/// `(max - x) / (max - min)` over the candidates; 1 for all if they are equal, 0 where x is unknown: an
/// endpoint that nobody has seen is not an idle one.
pub(super) fn fewer_is_better(
    d: &Decision<'_>,
    candidates: &[u32],
    out: &mut [f64],
    x: impl Fn(&Endpoint) -> Option<f64>,
) {
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    let value = |i: u32| d.pool.at(i).and_then(&x);
    for v in candidates.iter().filter_map(|&i| value(i)) {
        min = min.min(v);
        max = max.max(v);
    }
    for (o, &i) in out.iter_mut().zip(candidates) {
        *o = match value(i) {
            None => 0.0,
            Some(_) if max == min => 1.0,
            Some(v) => (max - v) / (max - min),
        };
    }
}
