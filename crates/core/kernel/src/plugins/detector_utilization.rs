//! `utilization-detector`: how full an endpoint is by its own queue and KV cache; also a headroom
//! filter.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Detector, Filter};
use crate::pool::{Endpoint, EndpointSet, Reading};
use forebay_base::Span;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "utilization-detector",
    aliases: &[],
    kinds: &[Kind::SaturationDetector, Kind::Filter],
    summary: "Saturation from scraped queue length and KV cache use, whichever is nearer to its threshold.",
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
            kind: ParamKind::Float(Bounds::UNIT_POSITIVE),
            preset: Preset::Float(0.8),
            unit: "share",
            doc: "Used share of the KV cache at which an endpoint counts as saturated.",
        },
        Param {
            name: "metricsStalenessThreshold",
            kind: ParamKind::Duration,
            preset: Preset::Span(Span::millis(200)),
            unit: "",
            doc: "Metrics older than this count as saturated.",
        },
        Param {
            name: "headroom",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(0.0),
            unit: "share",
            doc: "As a filter: how far above the thresholds an endpoint may be and still be kept.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let stale_after = v.span("metricsStalenessThreshold").unwrap_or(Span::millis(200));
    if stale_after == Span::ZERO {
        return Err(BuildError {
            param: "metricsStalenessThreshold",
            message: "metricsStalenessThreshold must be greater than 0s".into(),
        });
    }
    let it = Arc::new(Utilization {
        queue: v.int("queueDepthThreshold") as f64,
        kv: v.float("kvCacheUtilThreshold"),
        stale_after,
        headroom: v.float("headroom"),
    });
    Ok(Built { detector: Some(it.clone()), filter: Some(it), ..Built::default() })
}

#[derive(Debug)]
struct Utilization {
    queue: f64,
    kv: f64,
    stale_after: Span,
    headroom: f64,
}

/// A term of the score; a metric that should be there and is not counts as saturated, like a missing
/// scrape, because a closed gate is safer than a blind one.
fn term(reading: Reading, threshold: f64) -> f64 {
    match reading {
        Reading::Disabled => 0.0,
        Reading::Missing => 1.0,
        Reading::Value(x) => x / threshold,
    }
}

impl Detector for Utilization {
    fn endpoint(&self, e: &Endpoint) -> f64 {
        match e.sample {
            Some(s) if !e.stale => term(s.waiting, self.queue).max(term(s.kv, self.kv)),
            _ => 1.0,
        }
    }
    fn staleness(&self) -> Option<Span> {
        Some(self.stale_after)
    }
}

/// Keeps endpoints below both thresholds; if none is, keeps all: a request that flow control let pass is
/// not refused here.
impl Filter for Utilization {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        let limit = 1.0 + self.headroom;
        let fits = |i: u32| {
            d.pool.at(i).is_some_and(|e| {
                e.sample.is_some_and(|s| {
                    !e.stale && term(s.waiting, self.queue) < limit && term(s.kv, self.kv) < limit
                })
            })
        };
        if set.iter().any(fits) {
            set.retain(fits);
        }
    }
}
