//! `load-aware-scorer`: prefers endpoints with short engine queues, by an absolute threshold.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

const THRESHOLD: i64 = 128;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "load-aware-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "0.5 for an empty scraped engine queue, falling to 0 at the threshold.",
    stability: Stability::Beta,
    params: &[Param {
        name: "threshold",
        kind: ParamKind::Int(Bounds::ANY),
        preset: Preset::Int(THRESHOLD),
        unit: "requests",
        doc: "Waiting requests at which the score is 0; 0 and less count as 128.",
    }],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        let threshold = Some(v.int("threshold")).filter(|&t| t > 0).unwrap_or(THRESHOLD) as f64;
        Ok(Built { scorer: Some(Arc::new(LoadAware { threshold })), ..Built::default() })
    },
};

#[derive(Debug)]
struct LoadAware {
    threshold: f64,
}

impl Scorer for LoadAware {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        for (o, &i) in out.iter_mut().zip(candidates) {
            let waiting = d.pool.at(i).and_then(|e| e.waiting(d.live).load());
            *o = waiting.map_or(0.0, |q| 0.5 * (1.0 - q.min(self.threshold) / self.threshold));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, near};
    use super::*;
    use crate::plugin::Value;

    #[test]
    fn the_score_falls_to_the_threshold() {
        let mut b = Bench::new(5);
        for (i, waiting) in [0.0, 32.0, 128.0, 500.0].into_iter().enumerate() {
            b.scrape(i as u32, waiting, 0.0, 0.0);
        }
        let scorer = |t| build(&DESCRIPTOR, &[("threshold", Value::Int(t))]).unwrap().scorer.unwrap();
        // 0.5 * (1 - 32 / 128) = 0.375; the last endpoint was never scraped.
        near(&b.scores(&scorer(128)), &[0.5, 0.375, 0.0, 0.0, 0.0]);
        near(&b.scores(&scorer(-1)), &[0.5, 0.375, 0.0, 0.0, 0.0]);
        near(&b.scores(&scorer(64)), &[0.5, 0.25, 0.0, 0.0, 0.0]);
    }
}
