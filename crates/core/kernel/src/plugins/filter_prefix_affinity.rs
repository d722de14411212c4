//! `prefix-cache-affinity-filter`: narrows the candidates to endpoints that hold most of the prompt, unless
//! they are much busier than the others.
//!
//! Sticky endpoints match at least `affinityThreshold` of the prompt's blocks. With probability
//! `explorationProbability` all stay; all stay, too, if none is sticky, or if the best time to first token
//! among the sticky is worse than among the others by more than `maxTTFTPenaltyMs`. That time is the
//! endpoint's tokens in flight over `peakPrefillThroughput`. As in llm-d-router.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Filter};
use crate::pool::EndpointSet;
use forebay_base::Purpose;
use std::sync::Arc;

const fn text(name: &'static str, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Text, preset: Preset::Absent, unit: "", doc }
}

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "prefix-cache-affinity-filter",
    aliases: &[],
    kinds: &[Kind::Filter],
    summary: "Narrows to endpoints that hold most of the prompt, unless they are much busier.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "affinityThreshold",
            kind: ParamKind::Float(Bounds { max: 1.0, ..Bounds::ANY }),
            preset: Preset::Float(0.8),
            unit: "share",
            doc: "Matched share of the prompt from which an endpoint is sticky; 0 and less switches off.",
        },
        Param {
            name: "explorationProbability",
            kind: ParamKind::Float(Bounds::UNIT),
            preset: Preset::Float(0.0),
            unit: "",
            doc: "Share of requests for which all stay.",
        },
        Param {
            name: "maxTTFTPenaltyMs",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(18_000.0),
            unit: "ms",
            doc: "How much later the first token may come for the sake of the prefix; 0 is any time.",
        },
        Param {
            name: "ttftSource",
            kind: ParamKind::Choice(&["prefillThroughput", "latencyPredictor"]),
            preset: Preset::Text("prefillThroughput"),
            unit: "",
            doc: "Where times come from; latencyPredictor is not supported.",
        },
        Param {
            name: "peakPrefillThroughput",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(15_928.0),
            unit: "tokens/s",
            doc: "Prompt tokens that an endpoint works off in a second; greater than 0 if the penalty is.",
        },
        text("prefixMatchInfoProducerName", "The producer whose matches are read; there is one."),
        text("latencyPredictionInfoProducerName", "Accepted and not read: there are no predictions."),
        super::inflight_producer::NAME,
    ],
    ignores_parameters: false,
    needs: Some("approx-prefix-cache-producer"),
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    if v.text("ttftSource") == Some("latencyPredictor") {
        let message = "the source latencyPredictor is known to llm-d-router, not supported by forebay".into();
        return Err(BuildError { param: "ttftSource", message });
    }
    let (penalty_ms, throughput) = (v.float("maxTTFTPenaltyMs"), v.float("peakPrefillThroughput"));
    if penalty_ms > 0.0 && throughput == 0.0 {
        let message = "peakPrefillThroughput must be greater than 0 while maxTTFTPenaltyMs is".into();
        return Err(BuildError { param: "peakPrefillThroughput", message });
    }
    let it = PrefixAffinity {
        threshold: v.float("affinityThreshold"),
        exploration: v.float("explorationProbability"),
        penalty_ms,
        throughput,
    };
    Ok(Built { filter: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Debug)]
struct PrefixAffinity {
    threshold: f64,
    exploration: f64,
    penalty_ms: f64,
    throughput: f64,
}

impl PrefixAffinity {
    /// Whether the sticky endpoints are too busy.
    fn too_busy(&self, d: &Decision<'_>, set: &EndpointSet, sticky: impl Fn(u32) -> bool) -> bool {
        if self.penalty_ms == 0.0 {
            return false;
        }
        let least = |wanted: bool| {
            let tokens = |i: u32| d.pool.at(i).map_or(0, |e| e.load.tokens);
            set.iter().filter(|&i| sticky(i) == wanted).map(tokens).min()
        };
        let ms = |tokens: u64| tokens as f64 / self.throughput * 1000.0;
        match (least(true), least(false)) {
            (Some(s), Some(o)) => ms(s) - ms(o) > self.penalty_ms,
            _ => false,
        }
    }
}

impl Filter for PrefixAffinity {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        if set.len() <= 1 || self.threshold <= 0.0 {
            return;
        }
        let purpose = Purpose::named("prefix-cache-affinity-filter");
        if self.exploration > 0.0 && d.draws.unit(purpose, d.ask.number, 0) < self.exploration {
            return;
        }
        let sticky = |i: u32| d.matched_share(i) >= self.threshold;
        if set.iter().any(sticky) && !self.too_busy(d, set, sticky) {
            set.retain(sticky);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, text};
    use super::*;
    use crate::plugin::Value;

    fn bench() -> Bench {
        let mut b = Bench::new(4);
        b.ask.prefix = (0..10).collect();
        b.matched = vec![8, 7, 10, 0];
        b
    }

    fn filter(given: &[(&'static str, Value)]) -> Arc<dyn Filter> {
        testing::build(&DESCRIPTOR, given).unwrap().filter.unwrap()
    }

    #[test]
    fn the_set_is_narrowed_to_sticky_endpoints() {
        let mut b = bench();
        assert_eq!(b.kept(&filter(&[])), [0, 2]);
        assert_eq!(b.kept(&filter(&[("affinityThreshold", Value::Float(0.7))])), [0, 1, 2]);
        assert_eq!(b.kept(&filter(&[("affinityThreshold", Value::Float(0.0))])), [0, 1, 2, 3]);
        b.matched = vec![1, 0, 0, 0];
        assert_eq!(b.kept(&filter(&[])), [0, 1, 2, 3], "none is sticky");
        b.ask.prefix = Arc::default();
        assert_eq!(b.kept(&filter(&[])), [0, 1, 2, 3], "no prompt");
    }

    #[test]
    fn a_load_gap_beyond_the_penalty_frees_all() {
        let mut b = bench();
        let given =
            [("maxTTFTPenaltyMs", Value::Float(500.0)), ("peakPrefillThroughput", Value::Float(1000.0))];
        // The least busy of each side count: 700 and 200 tokens, 500 ms apart, which is not more than 500.
        for (i, tokens) in [900, 200, 700, 1000].into_iter().enumerate() {
            b.at(i as u32).load.tokens = tokens;
        }
        assert_eq!(b.kept(&filter(&given)), [0, 2]);
        b.at(2).load.tokens = 701;
        assert_eq!(b.kept(&filter(&given)), [0, 1, 2, 3]);
        let never = [("maxTTFTPenaltyMs", Value::Float(0.0)), ("peakPrefillThroughput", Value::Float(0.0))];
        assert_eq!(b.kept(&filter(&never)), [0, 2]);
    }

    #[test]
    fn exploration_is_drawn_by_the_request() {
        let (mut b, f) = (bench(), filter(&[("explorationProbability", Value::Float(0.3))]));
        let mut all = 0;
        for n in 0..2_000 {
            b.ask.number = n;
            all += u32::from(b.kept(&f).len() == 4);
        }
        assert!((540..660).contains(&all), "{all} of 2000 at 0.3");
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let e = testing::build(&DESCRIPTOR, &[("ttftSource", text("latencyPredictor"))]).unwrap_err();
        assert_eq!(e.param, "ttftSource");
        let e = testing::build(&DESCRIPTOR, &[("peakPrefillThroughput", Value::Float(0.0))]).unwrap_err();
        assert_eq!(e.param, "peakPrefillThroughput");
    }
}
