//! `prefix-cache-scorer`: prefers endpoints that are believed to hold the beginning of the prompt.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "prefix-cache-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "Share of the prompt's blocks that the endpoint is believed to hold, from the first block on.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "matchLengthWeight",
            kind: ParamKind::Float(Bounds::UNIT),
            preset: Preset::Float(0.0),
            unit: "share",
            doc: "Weight of the matched length itself beside the matched share.",
        },
        Param {
            name: "matchLengthScaleTokens",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Int(8192),
            unit: "tokens",
            doc: "Matched length at which its term reaches 1; greater than 0 if matchLengthWeight is.",
        },
        Param {
            name: "prefixMatchInfoProducerName",
            kind: ParamKind::Text,
            preset: Preset::Absent,
            unit: "",
            doc: "The producer whose matches are read; there is one.",
        },
    ],
    ignores_parameters: false,
    needs: Some("approx-prefix-cache-producer"),
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let (weight, scale) = (v.float("matchLengthWeight"), v.int("matchLengthScaleTokens"));
    if weight > 0.0 && scale <= 0 {
        return Err(BuildError {
            param: "matchLengthScaleTokens",
            message: format!("found {scale}; it must be greater than 0 while matchLengthWeight is"),
        });
    }
    // Without a weight the term is 0 whatever the scale is.
    let it = PrefixCache { length_weight: weight, length_scale: scale.max(1) as f64 };
    Ok(Built { scorer: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Debug)]
struct PrefixCache {
    length_weight: f64,
    length_scale: f64,
}

impl Scorer for PrefixCache {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        let total = d.ask.prefix.len() as f64;
        for (o, &i) in out.iter_mut().zip(candidates) {
            let matched = f64::from(d.matched.get(i as usize).copied().unwrap_or(0));
            if total == 0.0 || matched == 0.0 {
                *o = 0.0;
                continue;
            }
            let length = (matched * f64::from(d.ask.block_tokens) / self.length_scale).min(1.0);
            *o = self.length_weight * length * length + (1.0 - self.length_weight) * matched / total;
        }
    }
}
