//! `utilization-filter`: keeps endpoints whose metrics are all at or below their limits.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Value, Values,
};
use crate::policy::{Decision, Filter};
use crate::pool::{Endpoint, EndpointSet};
use std::sync::Arc;

static CONDITION: &[Param] = &[
    Param {
        name: "metric",
        kind: ParamKind::Choice(&[
            "active-requests",
            "running-requests",
            "waiting-queue",
            "kv-cache-utilization",
        ]),
        preset: Preset::Required,
        unit: "",
        doc: "What is limited; active requests are those that this router has in flight.",
    },
    Param {
        name: "maxValue",
        kind: ParamKind::Float(Bounds::NON_NEGATIVE),
        preset: Preset::Required,
        unit: "",
        doc: "The greatest value to keep; at most 1 for kv-cache-utilization.",
    },
];

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "utilization-filter",
    aliases: &[],
    kinds: &[Kind::Filter],
    summary: "Keeps endpoints whose metrics are all at or below their limits.",
    stability: Stability::Alpha,
    params: &[
        Param {
            name: "conditions",
            kind: ParamKind::List(&ParamKind::Object(CONDITION)),
            preset: Preset::Required,
            unit: "",
            doc: "At least one; all must hold. A metric that is unknown does not hold.",
        },
        Param {
            name: "fallbackOnEmpty",
            kind: ParamKind::Bool,
            preset: Preset::Bool(false),
            unit: "",
            doc: "Keep all if none would be left; else the request is refused.",
        },
        super::inflight_producer::NAME,
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let wrong = |message: String| Err(BuildError { param: "conditions", message });
    let mut conditions = Vec::new();
    for item in v.list("conditions") {
        let Value::Object(c) = item else { continue };
        let max = c.float("maxValue");
        let metric = match c.text("metric") {
            Some("active-requests") => Metric::Active,
            Some("running-requests") => Metric::Running,
            Some("waiting-queue") => Metric::Waiting,
            _ if max > 1.0 => {
                return wrong(format!("maxValue of kv-cache-utilization is a share, at most 1, found {max}"));
            }
            _ => Metric::Kv,
        };
        conditions.push((metric, max));
    }
    if conditions.is_empty() {
        return wrong("at least one condition is needed".into());
    }
    let it = UtilizationFilter { conditions, fallback: v.bool("fallbackOnEmpty") };
    Ok(Built { filter: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Clone, Copy, Debug)]
enum Metric {
    Active,
    Running,
    Waiting,
    Kv,
}

#[derive(Debug)]
struct UtilizationFilter {
    conditions: Vec<(Metric, f64)>,
    fallback: bool,
}

impl UtilizationFilter {
    fn fits(&self, e: &Endpoint) -> bool {
        self.conditions.iter().all(|&(metric, max)| {
            let value = match metric {
                Metric::Active => Some(f64::from(e.load.requests)),
                Metric::Running => e.sample.and_then(|s| s.running.load()),
                Metric::Waiting => e.sample.and_then(|s| s.waiting.load()),
                Metric::Kv => e.sample.and_then(|s| s.kv.load()),
            };
            value.is_some_and(|x| x <= max)
        })
    }
}

impl Filter for UtilizationFilter {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        let fits = |i: u32| d.pool.at(i).is_some_and(|e| self.fits(e));
        if !self.fallback || set.iter().any(fits) {
            set.retain(fits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, object, text};
    use super::*;

    fn built(conditions: &[(&str, f64)], fallback: bool) -> Result<Built, BuildError> {
        let conditions = conditions
            .iter()
            .map(|&(metric, max)| object(&[("metric", text(metric)), ("maxValue", Value::Float(max))]))
            .collect();
        let given = [("conditions", Value::List(conditions)), ("fallbackOnEmpty", Value::Bool(fallback))];
        testing::build(&DESCRIPTOR, &given)
    }

    #[test]
    fn every_condition_must_hold_and_the_unknown_does_not() {
        let mut b = Bench::new(4);
        b.scrape(0, 3.0, 10.0, 0.5);
        b.scrape(1, 0.0, 20.0, 0.9);
        b.scrape(2, 4.0, 0.0, 0.1);
        b.at(3).load.requests = 2;
        let kept = |c: &[(&str, f64)], fallback| b.kept(&built(c, fallback).unwrap().filter.unwrap());
        assert_eq!(kept(&[("waiting-queue", 3.0)], false), [0, 1]);
        assert_eq!(kept(&[("running-requests", 10.0)], false), [0, 2]);
        assert_eq!(kept(&[("kv-cache-utilization", 0.5)], false), [0, 2]);
        assert_eq!(kept(&[("active-requests", 2.0)], false), [0, 1, 2, 3]);
        assert_eq!(kept(&[("active-requests", 1.0)], false), [0, 1, 2]);
        assert_eq!(kept(&[("waiting-queue", 3.0), ("kv-cache-utilization", 0.5)], false), [0]);
        assert_eq!(kept(&[("waiting-queue", 3.0), ("running-requests", 0.0)], false), [0u32; 0]);
        assert_eq!(kept(&[("waiting-queue", 3.0), ("running-requests", 0.0)], true), [0, 1, 2, 3]);
    }

    #[test]
    fn conditions_are_checked() {
        for bad in [built(&[], false), built(&[("kv-cache-utilization", 1.5)], false)] {
            assert_eq!(bad.unwrap_err().param, "conditions");
        }
        assert!(built(&[("waiting-queue", 1.5)], false).is_ok());
    }
}
