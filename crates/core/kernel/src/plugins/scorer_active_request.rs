//! `active-request-scorer`: prefers endpoints at which this router has fewer requests in flight.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{Decision, Scorer};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "active-request-scorer",
    aliases: &[],
    kinds: &[Kind::Scorer],
    summary: "1 for endpoints that are idle; others by their requests in flight relative to the most.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "idleThreshold",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Int(0),
            unit: "requests",
            doc: "Requests in flight up to which an endpoint counts as idle; less than 0 counts as 0.",
        },
        Param {
            name: "maxBusyScore",
            kind: ParamKind::Float(Bounds::UNIT),
            preset: Preset::Float(1.0),
            unit: "",
            doc: "The score that an endpoint that is not idle can come near.",
        },
        Param {
            name: "requestTimeout",
            kind: ParamKind::Text,
            preset: Preset::Absent,
            unit: "",
            doc: "Deprecated: accepted and not read.",
        },
        super::inflight_producer::NAME,
    ],
    ignores_parameters: false,
    needs: Some("inflight-load-producer"),
    build: |v| {
        let it = ActiveRequest {
            idle: u32::try_from(v.int("idleThreshold").max(0)).unwrap_or(u32::MAX),
            busy: v.float("maxBusyScore"),
        };
        Ok(Built { scorer: Some(Arc::new(it)), ..Built::default() })
    },
};

#[derive(Debug)]
struct ActiveRequest {
    idle: u32,
    busy: f64,
}

impl Scorer for ActiveRequest {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        let count = |i: u32| d.pool.at(i).map_or(0, |e| e.load.requests);
        let most = candidates.iter().map(|&i| count(i)).max().unwrap_or(0);
        for (o, &i) in out.iter_mut().zip(candidates) {
            let c = count(i);
            *o = if c <= self.idle { 1.0 } else { f64::from(most - c) / f64::from(most) * self.busy };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, near};
    use super::*;
    use crate::plugin::Value;

    #[test]
    fn idle_endpoints_score_1_and_others_by_the_most() {
        let mut b = Bench::new(4);
        for (i, requests) in [0, 2, 5, 8].into_iter().enumerate() {
            b.at(i as u32).load.requests = requests;
        }
        let scorer = |idle, busy| {
            let given = [("idleThreshold", Value::Int(idle)), ("maxBusyScore", Value::Float(busy))];
            build(&DESCRIPTOR, &given).unwrap().scorer.unwrap()
        };
        near(&b.scores(&scorer(0, 1.0)), &[1.0, 0.75, 0.375, 0.0]);
        near(&b.scores(&scorer(-3, 1.0)), &[1.0, 0.75, 0.375, 0.0]);
        near(&b.scores(&scorer(2, 0.5)), &[1.0, 1.0, 0.1875, 0.0]);
        near(&Bench::new(2).scores(&scorer(0, 0.5)), &[1.0, 1.0]);
    }
}
