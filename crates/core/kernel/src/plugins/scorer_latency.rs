//! `latency-scorer` without predictions: the composite that llm-d-router falls back to.
//!
//! `(wk * (1 - kv) + wq * (maxQ - q) / maxQ + wp * matched share) / (wk + wq + wp)`, rounded to whole
//! percents; without any waiting request the second term is 1. Weights that sum to 0 or less count as 1, 0
//! and 0.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

const fn weight(name: &'static str, preset: f64, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Float(Bounds::ANY), preset: Preset::Float(preset), unit: "", doc }
}

const fn text(name: &'static str, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Text, preset: Preset::Absent, unit: "", doc }
}

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "latency-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "A composite of free KV cache, short queue and prefix match; latencies are not predicted.",
    stability: Stability::Beta,
    params: &[
        weight("compositeKVWeight", 1.0, "Weight of the free share of the KV cache."),
        weight("compositeQueueWeight", 1.0, "Weight of the queue relative to the longest."),
        weight("compositePrefixWeight", 1.0, "Weight of the matched share of the prompt."),
        weight("ttftWeight", 0.8, "Accepted and not read: there are no predictions."),
        weight("tpotWeight", 0.2, "Accepted and not read: there are no predictions."),
        Param {
            name: "headroomSelectionStrategy",
            kind: ParamKind::Choice(&["least", "most"]),
            preset: Preset::Text("least"),
            unit: "",
            doc: "Accepted and not read: there are no predictions.",
        },
        text("latencyPredictionInfoProducerName", "Accepted and not read: there are no predictions."),
        text("prefixMatchInfoProducerName", "The producer whose matches are read; there is one."),
    ],
    ignores_parameters: false,
    needs: Some("approx-prefix-cache-producer"),
    build,
};

#[allow(clippy::unnecessary_wraps, reason = "the shape of every plugin's build function")]
fn build(v: &Values) -> Result<Built, BuildError> {
    let weights = ["compositeKVWeight", "compositeQueueWeight", "compositePrefixWeight"].map(|n| v.float(n));
    let sum: f64 = weights.iter().sum();
    let [kv, queue, prefix] = if sum > 0.0 { weights.map(|w| w / sum) } else { [1.0, 0.0, 0.0] };
    Ok(Built { scorer: Some(Arc::new(Composite { kv, queue, prefix })), ..Built::default() })
}

#[derive(Debug)]
struct Composite {
    kv: f64,
    queue: f64,
    prefix: f64,
}

impl Scorer for Composite {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        let waiting = |i: u32| d.pool.at(i).and_then(|e| e.waiting(d.live).load());
        let kv = |i: u32| d.pool.at(i).and_then(|e| e.kv(d.live).load());
        let longest = candidates.iter().filter_map(|&i| waiting(i)).fold(0.0, f64::max);
        for (o, &i) in out.iter_mut().zip(candidates) {
            let free = kv(i).map_or(0.0, |kv| 1.0 - kv);
            let short = waiting(i).map_or(0.0, |q| if longest > 0.0 { (longest - q) / longest } else { 1.0 });
            let composite = self.kv * free + self.queue * short + self.prefix * d.matched_share(i);
            *o = (100.0 * composite).round() / 100.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, near};
    use super::*;
    use crate::plugin::Value;

    #[test]
    fn the_composite_weighs_three_terms() {
        let mut b = Bench::new(3);
        b.scrape(0, 0.0, 0.0, 0.25);
        b.scrape(1, 4.0, 0.0, 0.5);
        b.ask.prefix = (0..4).collect();
        b.matched = vec![0, 3, 0];
        let scorer = |kv: f64, queue: f64, prefix: f64| {
            let given = [
                ("compositeKVWeight", Value::Float(kv)),
                ("compositeQueueWeight", Value::Float(queue)),
                ("compositePrefixWeight", Value::Float(prefix)),
            ];
            testing::build(&DESCRIPTOR, &given).unwrap().scorer.unwrap()
        };
        // (0.75 + 1 + 0) / 3 = 0.583; (0.5 + 0 + 0.75) / 3 = 0.4167; nothing is known of the last.
        near(&b.scores(&scorer(1.0, 1.0, 1.0)), &[0.58, 0.42, 0.0]);
        near(&b.scores(&scorer(1.0, 3.0, 0.0)), &[0.94, 0.13, 0.0]);
        near(&b.scores(&scorer(0.0, 0.0, 0.0)), &[0.75, 0.5, 0.0]);
        b.scrape(1, 0.0, 0.0, 0.5);
        near(&b.scores(&scorer(0.0, 1.0, 0.0)), &[1.0, 1.0, 0.0]);
    }
}
