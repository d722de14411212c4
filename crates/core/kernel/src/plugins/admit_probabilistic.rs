//! `probabilistic-admitter`: refuses sheddable requests with a probability that rises steeply with
//! saturation, before they are queued.
//!
//! Refused share of requests with negative priority: `min(S^power * k, 1)`, where S is the mean over
//! endpoints of `max(waiting / queueDepthThreshold, kv / kvCacheUtilThreshold)` and an endpoint without
//! metrics counts as 1, as does a metric that is missing. An empty pool admits. Formula and defaults as in
//! llm-d-router's plugin of this name; as there, the age of metrics does not matter.

use super::detector_utilization::term;
use crate::ask::Asked;
use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::Admitter;
use crate::pool::{Endpoint, Pool};
use forebay_base::{Draws, Purpose, math};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "probabilistic-admitter",
    aliases: &[],
    kinds: &[Kind::Admitter],
    summary: "Refuses requests of negative priority with probability min(S^power * k, 1).",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "queueDepthThreshold",
            kind: ParamKind::Int(Bounds::POSITIVE),
            preset: Preset::Int(5),
            unit: "requests",
            doc: "Waiting requests at which an endpoint counts as saturated.",
        },
        Param {
            name: "kvCacheUtilThreshold",
            kind: ParamKind::Float(Bounds::POSITIVE),
            preset: Preset::Float(0.8),
            unit: "share",
            doc: "Used share of the KV cache at which an endpoint counts as saturated.",
        },
        Param {
            name: "power",
            kind: ParamKind::Float(Bounds::POSITIVE),
            preset: Preset::Float(5.0),
            unit: "",
            doc: "Exponent of the saturation.",
        },
        Param {
            name: "k",
            kind: ParamKind::Float(Bounds::POSITIVE),
            preset: Preset::Float(300.0),
            unit: "",
            doc: "Multiplier of the powered saturation.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        let it = Probabilistic {
            queue: v.int("queueDepthThreshold") as f64,
            kv: v.float("kvCacheUtilThreshold"),
            power: v.float("power"),
            k: v.float("k"),
        };
        Ok(Built { admitter: Some(Arc::new(it)), ..Built::default() })
    },
};

const LOT: Purpose = Purpose::named("probabilistic-admitter");

#[derive(Debug)]
struct Probabilistic {
    queue: f64,
    kv: f64,
    power: f64,
    k: f64,
}

impl Probabilistic {
    fn saturation(&self, pool: &Pool) -> f64 {
        let score =
            |e: &Endpoint| e.sample.map_or(1.0, |s| term(s.waiting, self.queue).max(term(s.kv, self.kv)));
        pool.available().map(score).sum::<f64>() / pool.len() as f64
    }
}

impl Admitter for Probabilistic {
    fn admit(&self, ask: &Asked, pool: &Pool, draws: Draws) -> bool {
        // Nothing is saturated where there is nothing: a pool that scales from zero queues its requests.
        if ask.requested_priority >= 0 || pool.is_empty() {
            return true;
        }
        let refused = (math::pow(self.saturation(pool), self.power) * self.k).min(1.0);
        draws.unit(LOT, ask.number, 0) >= refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{EndpointSpec, Reading, Sample};

    #[test]
    fn the_refused_share_follows_the_formula() {
        let mut pool = Pool::default();
        let id = pool.add(EndpointSpec::named("a"));
        let it = Probabilistic { queue: 5.0, kv: 0.8, power: 5.0, k: 300.0 };
        for s in [0.0, 0.1, 0.13, 0.2, 0.3, 0.5, 1.0] {
            let sample =
                Sample { waiting: Reading::Value(0.0), kv: Reading::Value(s * 0.8), ..Sample::default() };
            pool.get_mut(id).unwrap().sample = Some(sample);
            let refused = |priority: i32| {
                (0..20_000u64)
                    .filter(|&number| {
                        let ask =
                            Asked { number, requested_priority: priority, priority, ..Asked::default() };
                        !it.admit(&ask, &pool, Draws::new(9))
                    })
                    .count() as f64
                    / 20_000.0
            };
            let want = (s * s * s * s * s * 300.0).min(1.0);
            assert!((refused(-1) - want).abs() < 0.01, "at {s}: {} instead of {want}", refused(-1));
            assert_eq!(refused(0), 0.0);
        }
    }

    #[test]
    fn what_is_unknown_counts_as_saturated_and_an_empty_pool_admits() {
        let it = Probabilistic { queue: 5.0, kv: 0.8, power: 5.0, k: 300.0 };
        let ask = Asked { number: 1, requested_priority: -1, priority: -1, ..Asked::default() };
        let mut pool = Pool::default();
        assert!(it.admit(&ask, &pool, Draws::new(1)), "an empty pool");
        let (a, b) = (pool.add(EndpointSpec::named("a")), pool.add(EndpointSpec::named("b")));
        assert_eq!(it.saturation(&pool), 1.0, "never scraped");
        assert!(!it.admit(&ask, &pool, Draws::new(1)));
        let of = |waiting, kv| Some(Sample { waiting, kv, ..Sample::default() });
        pool.get_mut(a).unwrap().sample = of(Reading::Value(0.0), Reading::Value(0.0));
        assert_eq!(it.saturation(&pool), 0.5, "one of two");
        for (waiting, kv, want) in [
            (Reading::Missing, Reading::Value(0.0), 0.5),
            (Reading::Value(0.0), Reading::Missing, 0.5),
            (Reading::Disabled, Reading::Value(0.0), 0.0),
            (Reading::Value(1.0), Reading::Disabled, 0.1),
        ] {
            pool.get_mut(b).unwrap().sample = of(waiting, kv);
            assert_eq!(it.saturation(&pool), want, "{waiting:?} {kv:?}");
        }
    }
}
