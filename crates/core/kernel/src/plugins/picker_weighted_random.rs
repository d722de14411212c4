//! `weighted-random-picker`: a candidate is picked in proportion to its score.
//!
//! Weighted sampling without replacement by keys `U^(1/score)` (Efraimidis and Spirakis 2006), compared
//! as `ln(U) / score`. Candidates that score 0 come last; if all do, every one is as likely.

use super::picker_max_score::{COUNT, count, pick};
use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Decision, Picker};
use forebay_base::{Purpose, math};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "weighted-random-picker",
    aliases: &[],
    kinds: &[Kind::Picker],
    summary: "A random candidate, in proportion to its score.",
    stability: Stability::Beta,
    params: COUNT,
    ignores_parameters: false,
    needs: None,
    build: |v| Ok(Built { picker: Some(Arc::new(Weighted { count: count(v) })), ..Built::default() }),
};

const LOT: Purpose = Purpose::named("weighted-random-picker");

#[derive(Debug)]
struct Weighted {
    count: usize,
}

impl Picker for Weighted {
    fn pick(&self, d: &Decision<'_>, candidates: &[(u32, f64)], out: &mut Vec<u32>) {
        let lot = |i: u32| d.draws.bits(LOT, d.ask.number, u64::from(i));
        let key = |i: u32, score: f64| {
            if score > 0.0 {
                math::ln(d.draws.unit(LOT, d.ask.number, u64::from(i))) / score
            } else {
                f64::NEG_INFINITY
            }
        };
        pick(candidates.iter().map(|&(i, score)| (key(i, score), i)), lot, self.count, out);
    }
}
