//! `context-length-aware`: endpoints carry a label with the range of prompt lengths that they are meant for.
//!
//! Score of a prompt of L tokens in the range [min, max] of width w = max - min:
//! `0.3 + 0.7 * (0.7 / (1 + w / 10000) + 0.3 * (max - L) / w)`, 1 if w is 0; outside
//! `0.3 / (1 + distance / 1000)`; 0.5 without the label, 0 if it cannot be read. As in llm-d-router.

use crate::plugin::{BuildError, Values};
use crate::plugin::{Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{Decision, Filter, Scorer};
use crate::pool::EndpointSet;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "context-length-aware",
    aliases: &[],
    kinds: &[Kind::Filter, Kind::Scorer],
    summary: "Prefers endpoints whose labelled range of prompt lengths fits narrowly; can filter by it.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "label",
            kind: ParamKind::Text,
            preset: Preset::Text("llm-d.ai/context-length-range"),
            unit: "",
            doc: "The label with the range, as `min-max` in tokens.",
        },
        Param {
            name: "enableFiltering",
            kind: ParamKind::Bool,
            preset: Preset::Bool(false),
            unit: "",
            doc: "Remove endpoints whose range does not fit; those without the label stay.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let label = v.text("label").unwrap_or_default().to_owned();
    if label.is_empty() {
        return Err(BuildError { param: "label", message: "label must not be empty".into() });
    }
    let it = Arc::new(ContextLength { label, filters: v.bool("enableFiltering") });
    Ok(Built { filter: Some(it.clone()), scorer: Some(it), ..Built::default() })
}

#[derive(Debug)]
struct ContextLength {
    label: String,
    filters: bool,
}

#[derive(Clone, Copy)]
struct Range {
    min: i64,
    max: i64,
}

/// What the label of an endpoint says.
enum Fit {
    Unlabelled,
    Unreadable,
    Range(Range),
}

fn range(text: &str) -> Option<Range> {
    let (min, max) = text.split_once('-')?;
    let (min, max) = (min.trim().parse().ok()?, max.trim().parse().ok()?);
    // A second dash would have made `max` negative.
    (0 <= min && min <= max).then_some(Range { min, max })
}

impl Range {
    fn contains(self, length: i64) -> bool {
        (self.min..=self.max).contains(&length)
    }

    fn score(self, length: i64) -> f64 {
        if !self.contains(length) {
            let distance = if length > self.max { length - self.max } else { self.min - length };
            return 0.3 / (1.0 + distance as f64 / 1000.0);
        }
        let width = (self.max - self.min) as f64;
        if width == 0.0 {
            return 1.0;
        }
        let raw = 0.7 / (1.0 + width / 10_000.0) + 0.3 * (self.max - length) as f64 / width;
        0.3 + 0.7 * raw
    }
}

impl ContextLength {
    fn fit(&self, d: &Decision<'_>, i: u32) -> Fit {
        match d.pool.at(i).and_then(|e| e.spec.label(&self.label)) {
            None => Fit::Unlabelled,
            Some(text) => range(text).map_or(Fit::Unreadable, Fit::Range),
        }
    }
}

impl Filter for ContextLength {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        if self.filters {
            let length = i64::from(d.ask.prompt_tokens);
            set.retain(|i| match self.fit(d, i) {
                Fit::Unlabelled => true,
                Fit::Unreadable => false,
                Fit::Range(r) => r.contains(length),
            });
        }
    }
}

impl Scorer for ContextLength {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        let length = i64::from(d.ask.prompt_tokens);
        for (o, &i) in out.iter_mut().zip(candidates) {
            *o = match self.fit(d, i) {
                Fit::Unlabelled => 0.5,
                Fit::Unreadable => 0.0,
                Fit::Range(r) => r.score(length),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, near, text};
    use super::*;
    use crate::plugin::Value;

    fn bench() -> Bench {
        let labels =
            ["0-2000", "0-10000", "4000-8000", "500-500", " 500 - 600 ", "x", "", "1-2-3", "9-5", "-1-9"];
        let mut all: Vec<Option<&str>> = labels.into_iter().map(Some).collect();
        all.push(None);
        let mut b = Bench::labelled("llm-d.ai/context-length-range", &all);
        b.ask.prompt_tokens = 500;
        b
    }

    #[test]
    fn narrow_ranges_with_headroom_score_best() {
        let scorer = testing::build(&DESCRIPTOR, &[]).unwrap().scorer.unwrap();
        let want = [
            0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 0.75),
            0.3 + 0.7 * (0.7 / 2.0 + 0.3 * 0.95),
            0.3 / 4.5,
            1.0,
            0.3 + 0.7 * (0.7 / 1.01 + 0.3),
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.5,
        ];
        near(&bench().scores(&scorer), &want);
        let mut above = bench();
        above.ask.prompt_tokens = 3000;
        near(&above.scores(&scorer)[..1], &[0.3 / 2.0]);
    }

    #[test]
    fn filtering_is_off_by_default_and_keeps_the_unlabelled() {
        let filter = |on| {
            let given = [("enableFiltering", Value::Bool(on))];
            testing::build(&DESCRIPTOR, &given).unwrap().filter.unwrap()
        };
        assert_eq!(bench().kept(&filter(false)).len(), 11);
        assert_eq!(bench().kept(&filter(true)), [0, 1, 3, 4, 10]);
        assert_eq!(testing::build(&DESCRIPTOR, &[("label", text(""))]).unwrap_err().param, "label");
    }
}
