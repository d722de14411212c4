//! `max-score-picker`: the best score wins, ties are drawn.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values};
use crate::policy::{Decision, Picker};
use forebay_base::Purpose;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "max-score-picker",
    aliases: &[],
    kinds: &[Kind::Picker],
    summary: "The endpoint with the best weighted score; ties are drawn. The default.",
    stability: Stability::Beta,
    params: COUNT,
    ignores_parameters: false,
    needs: None,
    build: |v| Ok(Built { picker: Some(Arc::new(MaxScore { count: count(v) })), ..Built::default() }),
};

/// The parameter that all pickers share.
pub(super) static COUNT: &[Param] = &[Param {
    name: "maxNumOfEndpoints",
    kind: ParamKind::Int(Bounds::ANY),
    preset: Preset::Int(1),
    unit: "endpoints",
    doc: "Endpoints picked, best first; 0 and less count as 1.",
}];

/// The value of [`COUNT`].
pub(super) fn count(v: &Values) -> usize {
    usize::try_from(v.int("maxNumOfEndpoints")).unwrap_or(1).max(1)
}

/// Writes the `count` candidates with the greatest `(score, lot)`, greatest first.
pub(super) fn best(keyed: impl Iterator<Item = (f64, u64, u32)> + Clone, count: usize, out: &mut Vec<u32>) {
    out.clear();
    let greater = |a: &(f64, u64, u32), b: &(f64, u64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    if count == 1 {
        out.extend(keyed.max_by(greater).map(|k| k.2));
        return;
    }
    let mut last: Option<(f64, u64, u32)> = None;
    while out.len() < count {
        let next = keyed
            .clone()
            .filter(|k| last.as_ref().is_none_or(|l| greater(k, l).then(k.2.cmp(&l.2)).is_lt()))
            .max_by(|a, b| greater(a, b).then(a.2.cmp(&b.2)));
        let Some(k) = next else { return };
        out.push(k.2);
        last = Some(k);
    }
}

#[derive(Debug)]
struct MaxScore {
    count: usize,
}

impl Picker for MaxScore {
    fn pick(&self, d: &Decision<'_>, candidates: &[(u32, f64)], out: &mut Vec<u32>) {
        let lot = |i: u32| d.draws.bits(Purpose::named("max-score-picker"), d.ask.number, u64::from(i));
        best(candidates.iter().map(|&(i, score)| (score, lot(i), i)), self.count, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_lists_the_greatest_first() {
        let keyed = [(0.5, 9, 0), (1.0, 1, 1), (1.0, 2, 2), (0.1, 5, 3)];
        let mut out = Vec::new();
        best(keyed.iter().copied(), 1, &mut out);
        assert_eq!(out, [2]);
        best(keyed.iter().copied(), 3, &mut out);
        assert_eq!(out, [2, 1, 0]);
        best(keyed.iter().copied(), 9, &mut out);
        assert_eq!(out, [2, 1, 0, 3]);
    }
}
