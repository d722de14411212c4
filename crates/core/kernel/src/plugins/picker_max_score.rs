//! `max-score-picker`: the best score wins, ties are drawn.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values};
use crate::policy::{Decision, Picker};
use forebay_base::Purpose;
use std::cmp::Ordering;
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

/// The candidate with the greatest `(score, lot)`; lots are drawn only where scores are equal.
fn greatest(scored: impl Iterator<Item = (f64, u32)>, lot: impl Fn(u32) -> u64) -> Option<u32> {
    let mut best: Option<(f64, u32, Option<u64>)> = None;
    for (score, i) in scored {
        match &mut best {
            Some((top, first, first_lot)) => match score.total_cmp(top) {
                Ordering::Less => {}
                Ordering::Greater => best = Some((score, i, None)),
                Ordering::Equal => {
                    let (new, old) = (lot(i), *first_lot.get_or_insert_with(|| lot(*first)));
                    if new >= old {
                        best = Some((score, i, Some(new)));
                    }
                }
            },
            None => best = Some((score, i, None)),
        }
    }
    best.map(|b| b.1)
}

/// Writes the one endpoint, or the `count` endpoints, with the greatest `(score, lot)`, greatest first.
pub(super) fn pick(
    scored: impl Iterator<Item = (f64, u32)> + Clone,
    lot: impl Fn(u32) -> u64,
    count: usize,
    out: &mut Vec<u32>,
) {
    if count == 1 {
        out.clear();
        out.extend(greatest(scored, lot));
    } else {
        best(&scored.map(|(score, i)| (score, lot(i), i)), count, out);
    }
}

/// Writes the `count` candidates with the greatest `(score, lot)`, greatest first.
fn best(keyed: &(impl Iterator<Item = (f64, u64, u32)> + Clone), count: usize, out: &mut Vec<u32>) {
    out.clear();
    let greater = |a: &(f64, u64, u32), b: &(f64, u64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
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

const LOT: Purpose = Purpose::named("max-score-picker");

#[derive(Debug)]
struct MaxScore {
    count: usize,
}

impl Picker for MaxScore {
    fn pick(&self, d: &Decision<'_>, candidates: &[(u32, f64)], out: &mut Vec<u32>) {
        let lot = |i: u32| d.draws.bits(LOT, d.ask.number, u64::from(i));
        pick(candidates.iter().map(|&(i, score)| (score, i)), lot, self.count, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_lists_the_greatest_first() {
        let keyed = [(0.5, 9, 0), (1.0, 1, 1), (1.0, 2, 2), (0.1, 5, 3)];
        let mut out = Vec::new();
        best(&keyed.iter().copied(), 1, &mut out);
        assert_eq!(out, [2]);
        best(&keyed.iter().copied(), 3, &mut out);
        assert_eq!(out, [2, 1, 0]);
        best(&keyed.iter().copied(), 9, &mut out);
        assert_eq!(out, [2, 1, 0, 3]);
        let lot = |i: u32| [9, 1, 2, 5][i as usize];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let scored = order.map(|i: u32| (keyed[i as usize].0, i));
            pick(scored.iter().copied(), lot, 1, &mut out);
            assert_eq!(out, [2], "{order:?}");
        }
    }
}
