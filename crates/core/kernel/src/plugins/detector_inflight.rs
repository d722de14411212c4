//! `inflight-aware-detector`: how full an endpoint is, counting what was sent there and has not shown up
//! in its metrics yet.
//!
//! Metrics tell what an engine was like at the end of its last step before the last scrape, 70 to 250 ms
//! ago under load; a burst of dispatches fits into that window. This detector closes it: requests whose
//! first token has not come back count as waiting, and their uncached prompt tokens as KV cache in use.
//! What the engine says beyond that was sent by others.
//!
//! `waiting = pending + max(0, scraped waiting - pending when that scrape was taken)`,
//! `kv = scraped use + pending prompt tokens / (blocks * tokens per block)`. Without a known capacity the
//! scraped term stands alone. With `pendingUntil: scrape` a request is pending only until metrics that were
//! taken after it was sent, and `waiting = pending + scraped waiting`.

use super::detector_utilization::{STALENESS, Staleness, term};
use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Detector, PendingUntil};
use crate::pool::Endpoint;
use forebay_base::Span;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "inflight-aware-detector",
    aliases: &[],
    kinds: &[Kind::SaturationDetector],
    summary: "As utilization-detector, but counts what was sent and has not shown a first token yet.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "queueDepthThreshold",
            kind: ParamKind::Int(Bounds::POSITIVE),
            preset: Preset::Int(5),
            unit: "requests",
            doc: "Waiting and pending requests at which an endpoint counts as saturated.",
        },
        Param {
            name: "kvCacheUtilThreshold",
            kind: ParamKind::Float(Bounds::UNIT_POSITIVE),
            preset: Preset::Float(0.8),
            unit: "share",
            doc: "Share of the KV cache, used or spoken for, at which an endpoint counts as saturated.",
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
            name: "pendingUntil",
            kind: ParamKind::Choice(&["first-token", "scrape"]),
            preset: Preset::Text("first-token"),
            unit: "",
            doc: "Until when a request that was sent counts as waiting: its first token, or already the next \
                  scrape, which leaves a blind spot until the engine's step ends and is there to be compared with.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let it = Inflight {
        queue: v.int("queueDepthThreshold") as f64,
        kv: v.float("kvCacheUtilThreshold"),
        staleness: Staleness::of(v)?,
        pending_until: match v.text("pendingUntil") {
            Some("scrape") => PendingUntil::Scrape,
            _ => PendingUntil::FirstToken,
        },
    };
    Ok(Built { detector: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Debug)]
struct Inflight {
    queue: f64,
    kv: f64,
    staleness: Staleness,
    pending_until: PendingUntil,
}

impl Detector for Inflight {
    fn endpoint(&self, e: &Endpoint) -> f64 {
        match self.staleness.read(e) {
            Ok(_) => term(e.waiting(true), self.queue).max(term(e.kv(true), self.kv)),
            // What is in flight is known whatever the metrics say.
            Err(blind) => blind.max(f64::from(e.load.pending) / self.queue),
        }
    }
    fn staleness(&self) -> Option<Span> {
        Some(self.staleness.edge())
    }
    fn knows(&self, e: &Endpoint) -> bool {
        self.staleness.knows(e)
    }
    fn watches_load(&self) -> bool {
        true
    }
    fn pending_until(&self) -> PendingUntil {
        self.pending_until
    }
}
