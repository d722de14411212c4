//! `token-load-scorer`: prefers endpoints with fewer tokens in flight, this request's included.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

/// 128 requests of 32 768 tokens.
const THRESHOLD: i64 = 4_194_304;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "token-load-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "1 without tokens in flight, falling to 0 at the threshold; this request's count, too.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "queueThresholdTokens",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Int(THRESHOLD),
            unit: "tokens",
            doc: "Tokens in flight at which the score is 0; 0 and less count as the preset.",
        },
        super::inflight_producer::NAME,
    ],
    ignores_parameters: false,
    needs: Some("inflight-load-producer"),
    build: |v| {
        let threshold = Some(v.int("queueThresholdTokens")).filter(|&t| t > 0).unwrap_or(THRESHOLD) as f64;
        Ok(Built { scorer: Some(Arc::new(TokenLoad { threshold })), ..Built::default() })
    },
};

#[derive(Debug)]
struct TokenLoad {
    threshold: f64,
}

impl Scorer for TokenLoad {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        for (o, &i) in out.iter_mut().zip(candidates) {
            let running = d.pool.at(i).map_or(0, |e| e.load.tokens);
            let tokens = running.saturating_add(d.request_tokens(i)) as f64;
            *o = 1.0 - tokens.min(self.threshold) / self.threshold;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, near};
    use super::*;
    use crate::plan::OutputEstimate;
    use crate::plugin::Value;

    #[test]
    fn the_requests_own_uncached_tokens_count() {
        let mut b = Bench::new(4);
        for (i, tokens) in [0, 0, 400, 5000].into_iter().enumerate() {
            b.at(i as u32).load.tokens = tokens;
        }
        b.ask.prompt_tokens = 300;
        b.ask.block_tokens = 64;
        b.ask.prefix = (0..5).collect();
        b.matched = vec![0, 3, 0, 0];
        let scorer = |t| build(&DESCRIPTOR, &[("queueThresholdTokens", Value::Int(t))]).unwrap();
        let scorer = |t| scorer(t).scorer.unwrap();
        // 300 - 3 * 64 = 108 tokens are new to the second.
        near(&b.scores(&scorer(1000)), &[0.7, 0.892, 0.3, 0.0]);
        b.inflight.output = Some(OutputEstimate { ratio: 0.5, max: None });
        near(&b.scores(&scorer(1000)), &[0.55, 0.742, 0.15, 0.0]);
        b.ask.prompt_tokens = 0;
        near(&b.scores(&scorer(0)), &[1.0, 1.0, 1.0 - 400.0 / 4_194_304.0, 1.0 - 5000.0 / 4_194_304.0]);
    }
}
