//! `no-hit-lru-scorer`: spreads requests that no endpoint has a prefix of, so that new prefixes do not all
//! grow in one place.
//!
//! A request of which some candidate holds a block scores 0.5 everywhere. A cold one ranks candidates:
//! first those that never got cold work, in the order of the pool, then by how long ago they got some;
//! score = 1 - rank / (n - 1), at least 0. As in llm-d-router, ranks count remembered endpoints that are
//! no candidates, too.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{Decision, Memory, Scorer};
use crate::pool::EndpointId;
use std::collections::VecDeque;
use std::sync::Arc;

const SIZE: i64 = 1024;

const fn unread(name: &'static str, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Text, preset: Preset::Absent, unit: "", doc }
}

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "no-hit-lru-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "Without any prefix match, prefers the endpoint that got such a request longest ago.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "lruSize",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Int(SIZE),
            unit: "endpoints",
            doc: "Endpoints remembered; 0 and less count as 1024.",
        },
        unread("prefixMatchInfoProducerName", "The producer whose matches are read; there is one."),
        unread("prefixPluginType", "Deprecated: accepted and not read."),
        unread("prefixPluginName", "Deprecated: accepted and not read."),
    ],
    ignores_parameters: false,
    needs: Some("approx-prefix-cache-producer"),
    build: |v| {
        let size = Some(v.int("lruSize")).filter(|&s| s > 0).unwrap_or(SIZE);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        Ok(Built { scorer: Some(Arc::new(NoHitLru { size })), ..Built::default() })
    },
};

#[derive(Debug)]
struct NoHitLru {
    size: usize,
}

impl Scorer for NoHitLru {
    /// Without a memory every endpoint is as good.
    fn score(&self, _: &Decision<'_>, _: &[u32], out: &mut [f64]) {
        out.fill(0.5);
    }
    fn start(&self) -> Option<Box<dyn Memory>> {
        Some(Box::new(Lru { size: self.size, ..Lru::default() }))
    }
}

#[derive(Clone, Debug, Default)]
struct Lru {
    size: usize,
    /// Endpoints that got cold work, the longest ago first.
    order: VecDeque<u32>,
    /// Place in `order` by endpoint, plus one; 0 is none. Filled per decision.
    places: Vec<u32>,
    /// Whether the request of the last decision was cold.
    cold: bool,
}

impl Memory for Lru {
    fn score(&mut self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        self.cold = candidates.iter().all(|&i| d.matched_blocks(i) == 0);
        let n = candidates.len();
        if !self.cold || n <= 1 {
            out.fill(if self.cold { 1.0 } else { 0.5 });
            return;
        }
        self.places.clear();
        self.places.resize(d.pool.width(), 0);
        for (place, &e) in self.order.iter().enumerate() {
            self.places[e as usize] = place as u32 + 1;
        }
        let place = |i: u32| self.places[i as usize];
        let fresh = candidates.iter().filter(|&&i| place(i) == 0).count();
        let mut seen = 0usize;
        for (o, &i) in out.iter_mut().zip(candidates) {
            let rank = match place(i) {
                0 => {
                    seen += 1;
                    seen - 1
                }
                p => fresh + p as usize - 1,
            };
            *o = (1.0 - rank as f64 / (n - 1) as f64).max(0.0);
        }
    }
    fn dispatched(&mut self, _: &Decision<'_>, to: EndpointId) {
        if std::mem::take(&mut self.cold) {
            self.order.retain(|&e| e != to.index);
            self.order.push_back(to.index);
            if self.order.len() > self.size {
                self.order.pop_front();
            }
        }
    }
    fn removed(&mut self, endpoint: EndpointId) {
        self.order.retain(|&e| e != endpoint.index);
    }
    fn fork(&self) -> Box<dyn Memory> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, near};
    use super::*;
    use crate::plugin::Value;

    fn memory(size: i64) -> Box<dyn Memory> {
        let given = [("lruSize", Value::Int(size))];
        build(&DESCRIPTOR, &given).unwrap().scorer.unwrap().start().unwrap()
    }

    fn cold(b: &Bench, m: &mut Box<dyn Memory>, to: u32) -> Vec<f64> {
        let scores = b.remembered_scores(&mut **m);
        m.dispatched(&b.decision(), b.id(to));
        scores
    }

    #[test]
    fn cold_requests_go_where_none_went_for_longest() {
        let (mut b, mut m) = (Bench::new(4), memory(0));
        let third = 1.0 / 3.0;
        near(&cold(&b, &mut m, 2), &[1.0, 2.0 * third, third, 0.0]);
        near(&cold(&b, &mut m, 0), &[1.0, 2.0 * third, 0.0, third]);
        // 1 and 3 are fresh, then 2, then 0.
        near(&cold(&b, &mut m, 2), &[0.0, 1.0, third, 2.0 * third]);
        near(&cold(&b, &mut m, 1), &[third, 1.0, 0.0, 2.0 * third]);
        // A hit anywhere: neutral, and where it goes is no cold work.
        b.matched = vec![0, 0, 0, 1];
        near(&cold(&b, &mut m, 3), &[0.5; 4]);
        b.matched = vec![0; 4];
        near(&cold(&b, &mut m, 3), &[2.0 * third, 0.0, third, 1.0]);
        m.removed(b.id(0));
        let mut fork = m.fork();
        near(&cold(&b, &mut m, 0), &[1.0, third, 2.0 * third, 0.0]);
        near(&cold(&b, &mut fork, 0), &[1.0, third, 2.0 * third, 0.0]);
    }

    #[test]
    fn a_lone_endpoint_scores_1_and_the_memory_is_bounded() {
        let (b, mut m) = (Bench::new(1), memory(1));
        near(&cold(&b, &mut m, 0), &[1.0]);
        let (b, mut m) = (Bench::new(3), memory(1));
        cold(&b, &mut m, 0);
        cold(&b, &mut m, 1);
        near(&cold(&b, &mut m, 0), &[1.0, 0.0, 0.5]);
    }
}
