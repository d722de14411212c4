//! `random-picker`: every candidate is as likely, whatever its score.

use super::picker_max_score::{COUNT, count, pick};
use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Decision, Picker};
use forebay_base::Purpose;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "random-picker",
    aliases: &[],
    kinds: &[Kind::Picker],
    summary: "A random candidate; scores do not matter.",
    stability: Stability::Beta,
    params: COUNT,
    ignores_parameters: false,
    needs: None,
    build: |v| Ok(Built { picker: Some(Arc::new(Random { count: count(v) })), ..Built::default() }),
};

const LOT: Purpose = Purpose::named("random-picker");

#[derive(Debug)]
struct Random {
    count: usize,
}

impl Picker for Random {
    fn pick(&self, d: &Decision<'_>, candidates: &[(u32, f64)], out: &mut Vec<u32>) {
        let lot = |i: u32| d.draws.bits(LOT, d.ask.number, u64::from(i));
        pick(candidates.iter().map(|&(i, _)| (0.0, i)), lot, self.count, out);
    }
}
