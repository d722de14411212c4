//! `kv-cache-utilization-scorer`: prefers endpoints with a free KV cache.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "kv-cache-utilization-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "The free share of the scraped KV cache.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { scorer: Some(Arc::new(KvCache)), ..Built::default() }),
};

#[derive(Debug)]
struct KvCache;

impl Scorer for KvCache {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        for (o, &i) in out.iter_mut().zip(candidates) {
            let kv = d.pool.at(i).and_then(|e| e.kv(d.live).load());
            *o = kv.map_or(0.0, |kv| 1.0 - kv);
        }
    }
}
