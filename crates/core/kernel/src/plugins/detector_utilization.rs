//! `utilization-detector`: how full an endpoint is by its own queue and KV cache; also a headroom
//! filter.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Detector, Filter};
use crate::pool::{Endpoint, EndpointSet, Reading, Sample};
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
            doc: "Metrics older than this are stale.",
        },
        STALENESS,
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
    let (queue, kv) = (v.int("queueDepthThreshold") as f64, v.float("kvCacheUtilThreshold"));
    let limit = 1.0 + v.float("headroom");
    let staleness = Staleness::of(v)?;
    let it = Arc::new(Utilization { queue, kv, staleness, queue_limit: queue * limit, kv_limit: kv * limit });
    Ok(Built { detector: Some(it.clone()), filter: Some(it), ..Built::default() })
}

#[derive(Debug)]
struct Utilization {
    queue: f64,
    kv: f64,
    staleness: Staleness,
    /// As a filter: waiting requests below this are kept.
    queue_limit: f64,
    /// As a filter: KV cache use below this is kept.
    kv_limit: f64,
}

/// What stale metrics count as.
pub(super) const STALENESS: Param = Param {
    name: "metricsStalenessPolicy",
    kind: ParamKind::Choice(&["closed", "open", "last"]),
    preset: Preset::Text("closed"),
    unit: "",
    doc: "What an endpoint with stale metrics counts as: saturated, idle, or as it was last seen. One that \
          was never seen counts as saturated, or as idle with open.",
};

/// How stale metrics are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StalenessPolicy {
    Closed,
    Open,
    Last,
}

/// When metrics are stale, and how they are read then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staleness {
    after: Span,
    policy: StalenessPolicy,
}

impl Staleness {
    /// From the parameters that detectors share.
    pub(super) fn of(v: &Values) -> Result<Staleness, BuildError> {
        let after = v.span("metricsStalenessThreshold").unwrap_or(Span::millis(200));
        if after == Span::ZERO {
            return Err(BuildError {
                param: "metricsStalenessThreshold",
                message: "metricsStalenessThreshold must be greater than 0s".into(),
            });
        }
        let policy = match v.text("metricsStalenessPolicy") {
            Some("open") => StalenessPolicy::Open,
            Some("last") => StalenessPolicy::Last,
            _ => StalenessPolicy::Closed,
        };
        Ok(Staleness { after, policy })
    }

    /// The metrics to go by, or what the endpoint counts as without.
    pub(super) fn read(&self, e: &Endpoint) -> Result<Sample, f64> {
        match (e.sample, self.policy) {
            (Some(s), StalenessPolicy::Last) => Ok(s),
            (Some(s), _) if !e.stale => Ok(s),
            (_, StalenessPolicy::Open) => Err(0.0),
            _ => Err(1.0),
        }
    }

    /// The age at which the reading changes. With `last` it never does, but staleness stays visible.
    pub(super) fn edge(&self) -> Span {
        self.after
    }

    /// Whether the reading comes from metrics.
    pub(super) fn knows(&self, e: &Endpoint) -> bool {
        self.read(e).is_ok_and(|s| s.waiting != Reading::Missing && s.kv != Reading::Missing)
    }
}

/// A term of the score; a metric that should be there and is not counts as saturated, like a missing
/// scrape, because a closed gate is safer than a blind one.
pub(super) fn term(reading: Reading, threshold: f64) -> f64 {
    match reading {
        Reading::Disabled => 0.0,
        Reading::Missing => 1.0,
        Reading::Value(x) => x / threshold,
    }
}

impl Detector for Utilization {
    fn endpoint(&self, e: &Endpoint) -> f64 {
        match self.staleness.read(e) {
            Ok(s) => term(s.waiting, self.queue).max(term(s.kv, self.kv)),
            Err(blind) => blind,
        }
    }
    fn staleness(&self) -> Option<Span> {
        Some(self.staleness.edge())
    }
    fn knows(&self, e: &Endpoint) -> bool {
        self.staleness.knows(e)
    }
}

/// Keeps endpoints below both thresholds; if none is, keeps all: a request that flow control let pass is
/// not refused here.
impl Filter for Utilization {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        // A metric that is missing leaves no room that anybody knows of.
        let below = |r: Reading, limit: f64| r.load().is_some_and(|x| x < limit);
        let fits = |i: u32| {
            d.pool
                .at(i)
                .filter(|e| !e.stale)
                .and_then(|e| e.sample)
                .is_some_and(|s| below(s.waiting, self.queue_limit) && below(s.kv, self.kv_limit))
        };
        if set.iter().any(fits) {
            set.retain(fits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Asked;
    use crate::plugin::Value;
    use crate::pool::{EndpointSpec, Pool};
    use forebay_base::{Draws, Nanos};

    /// The indices kept, of endpoints with these metrics (`None`: stale).
    fn kept(queue: i64, headroom: f64, endpoints: &[Option<(Reading, Reading)>]) -> Vec<u32> {
        let mut v = DESCRIPTOR.presets();
        v.0.retain(|(n, _)| !["queueDepthThreshold", "headroom"].contains(n));
        v.0.push(("queueDepthThreshold", Value::Int(queue)));
        v.0.push(("headroom", Value::Float(headroom)));
        let filter = build(&v).unwrap().filter.unwrap();
        let mut pool = Pool::default();
        for metrics in endpoints {
            let id = pool.add(EndpointSpec::named("e"));
            let e = pool.get_mut(id).unwrap();
            e.stale = metrics.is_none();
            let (waiting, kv) = metrics.unwrap_or((Reading::Value(0.0), Reading::Value(0.0)));
            e.sample = Some(Sample { waiting, kv, ..Sample::default() });
        }
        let ask = Asked { number: 0, requested_priority: 0, priority: 0, ..Asked::default() };
        let d = Decision {
            now: Nanos::ZERO,
            ask: &ask,
            pool: &pool,
            matched: &[],
            draws: Draws::new(0),
            live: false,
            inflight: crate::plan::InflightPlan::default(),
        };
        let mut set = pool.members().clone();
        filter.keep(&d, &mut set);
        set.iter().collect()
    }

    #[allow(clippy::unnecessary_wraps, reason = "stands in lists with those that are none")]
    fn at(waiting: f64, kv: f64) -> Option<(Reading, Reading)> {
        Some((Reading::Value(waiting), Reading::Value(kv)))
    }

    #[test]
    fn the_filter_keeps_what_is_below_both_thresholds() {
        assert_eq!(kept(5, 0.0, &[at(4.0, 0.79), at(5.0, 0.0), at(0.0, 0.8), at(4.0, 0.0)]), [0, 3]);
        // The limits are products, so their rounding decides: 25 * 1.12 lies just above 28.
        assert_eq!(kept(25, 0.12, &[at(28.0, 0.0), at(29.0, 0.0), at(0.0, 0.89), at(0.0, 0.9)]), [0, 2]);
        assert_eq!(kept(10, 0.5, &[at(14.0, 0.0), at(15.0, 0.0)]), [0]);
    }

    #[test]
    fn what_is_stale_or_missing_has_no_room() {
        let missing = Some((Reading::Missing, Reading::Value(0.0)));
        let disabled = Some((Reading::Disabled, Reading::Value(0.1)));
        for headroom in [0.0, 3.0] {
            assert_eq!(kept(5, headroom, &[None, missing, disabled, at(1.0, 0.1)]), [2, 3], "{headroom}");
        }
    }

    #[test]
    fn if_none_has_room_all_are_kept() {
        assert_eq!(kept(5, 0.0, &[None, at(9.0, 0.0), at(0.0, 0.9)]), [0, 1, 2]);
    }
}
