//! `concurrency-detector`: how full an endpoint is by what this router has in flight there; also a headroom
//! filter.
//!
//! The pool's saturation is the mean over endpoints. With one capacity for all that is the sum of what is
//! in flight over the sum of capacities, as llm-d-router computes it; in mode `hybrid` both take the mean
//! of each endpoint's greater ratio.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Detector, Filter};
use crate::pool::{Endpoint, EndpointSet, Load};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "concurrency-detector",
    aliases: &[],
    kinds: &[Kind::SaturationDetector, Kind::Filter],
    summary: "Saturation from the requests or tokens that this router has in flight.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "maxConcurrency",
            kind: ParamKind::Int(Bounds::POSITIVE),
            preset: Preset::Int(100),
            unit: "requests",
            doc: "Requests in flight at which an endpoint counts as saturated.",
        },
        Param {
            name: "maxTokenConcurrency",
            kind: ParamKind::Int(Bounds::POSITIVE),
            preset: Preset::Int(1_000_000),
            unit: "tokens",
            doc: "Tokens in flight at which an endpoint counts as saturated.",
        },
        Param {
            name: "headroom",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(0.0),
            unit: "share",
            doc: "As a filter: how far above the limits an endpoint may be and still be kept.",
        },
        Param {
            name: "concurrencyMode",
            kind: ParamKind::Choice(&["requests", "tokens", "hybrid"]),
            preset: Preset::Text("requests"),
            unit: "",
            doc: "What counts; hybrid takes the greater of both.",
        },
        super::inflight_producer::NAME,
    ],
    ignores_parameters: false,
    needs: Some("inflight-load-producer"),
    build,
};

#[allow(clippy::unnecessary_wraps, reason = "the shape of every plugin's build function")]
fn build(v: &Values) -> Result<Built, BuildError> {
    let (requests, tokens) = (v.int("maxConcurrency") as f64, v.int("maxTokenConcurrency") as f64);
    // Limits of the filter are whole numbers, rounded down.
    let limit = |capacity: f64| (capacity * (1.0 + v.float("headroom"))) as u64;
    let it = Arc::new(Concurrency {
        mode: match v.text("concurrencyMode") {
            Some("tokens") => Mode::Tokens,
            Some("hybrid") => Mode::Hybrid,
            _ => Mode::Requests,
        },
        requests,
        tokens,
        request_limit: limit(requests),
        token_limit: limit(tokens),
    });
    Ok(Built { detector: Some(it.clone()), filter: Some(it), ..Built::default() })
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Requests,
    Tokens,
    Hybrid,
}

#[derive(Debug)]
struct Concurrency {
    mode: Mode,
    requests: f64,
    tokens: f64,
    request_limit: u64,
    token_limit: u64,
}

impl Concurrency {
    fn has_room(&self, load: Load) -> bool {
        let (requests, tokens) =
            (u64::from(load.requests) < self.request_limit, load.tokens < self.token_limit);
        match self.mode {
            Mode::Requests => requests,
            Mode::Tokens => tokens,
            Mode::Hybrid => requests && tokens,
        }
    }
}

impl Detector for Concurrency {
    fn endpoint(&self, e: &Endpoint) -> f64 {
        let (requests, tokens) =
            (f64::from(e.load.requests) / self.requests, e.load.tokens as f64 / self.tokens);
        match self.mode {
            Mode::Requests => requests,
            Mode::Tokens => tokens,
            Mode::Hybrid => requests.max(tokens),
        }
    }
    fn knows(&self, _: &Endpoint) -> bool {
        true
    }
    fn watches_load(&self) -> bool {
        true
    }
}

/// Keeps endpoints below the limits, also if that leaves none.
impl Filter for Concurrency {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        set.retain(|i| d.pool.at(i).is_some_and(|e| self.has_room(e.load)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, near, text};
    use super::*;
    use crate::plugin::Value;

    fn bench() -> Bench {
        let mut b = Bench::new(3);
        for (i, (requests, tokens)) in [(0, 0), (10, 600), (25, 100)].into_iter().enumerate() {
            b.at(i as u32).load = Load { requests, tokens, ..Load::default() };
        }
        b
    }

    fn built(mode: &str, headroom: f64) -> Built {
        let given = [
            ("maxConcurrency", Value::Int(20)),
            ("maxTokenConcurrency", Value::Int(1000)),
            ("concurrencyMode", text(mode)),
            ("headroom", Value::Float(headroom)),
        ];
        testing::build(&DESCRIPTOR, &given).unwrap()
    }

    #[test]
    fn scores_are_ratios_of_what_is_in_flight() {
        let b = bench();
        for (mode, want) in
            [("requests", [0.0, 0.5, 1.25]), ("tokens", [0.0, 0.6, 0.1]), ("hybrid", [0.0, 0.6, 1.25])]
        {
            let d = built(mode, 0.0).detector.unwrap();
            let got: Vec<f64> = b.pool.iter().map(|e| d.endpoint(e)).collect();
            near(&got, &want);
            assert!(d.watches_load() && d.staleness().is_none());
        }
        // One capacity for all: the mean is what llm-d-router computes, 35 / (3 * 20).
        near(&[(0.0 + 0.5 + 1.25) / 3.0], &[35.0 / 60.0]);
    }

    #[test]
    fn the_filter_keeps_what_is_below_and_may_keep_nothing() {
        let mut b = bench();
        assert_eq!(b.kept(&built("requests", 0.0).filter.unwrap()), [0, 1]);
        assert_eq!(b.kept(&built("requests", 0.25).filter.unwrap()), [0, 1], "25 is not below 25");
        assert_eq!(b.kept(&built("requests", 0.3).filter.unwrap()), [0, 1, 2]);
        assert_eq!(b.kept(&built("tokens", 0.0).filter.unwrap()), [0, 1, 2]);
        b.at(1).load.tokens = 1000;
        assert_eq!(b.kept(&built("hybrid", 0.0).filter.unwrap()), [0]);
        b.at(0).load.requests = 20;
        assert!(b.kept(&built("hybrid", 0.0).filter.unwrap()).is_empty());
        // 20 * 1.04 = 20.8 is 20.
        assert!(!b.kept(&built("requests", 0.04).filter.unwrap()).contains(&0));
    }
}
