//! `endpoint-attribute-filter`: keeps endpoints of which a number compares to a value.
//!
//! The numbers that exist here: `WaitingQueueSize`, `RunningRequestsSize` and `KVCacheUsagePercent` (a share)
//! of the last scrape, and `InFlightRequests` and `InFlightTokens` of this router.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decision, Filter};
use crate::pool::{Endpoint, EndpointSet};
use std::sync::Arc;

static THRESHOLD: &[Param] = &[
    Param {
        name: "operator",
        kind: ParamKind::Choice(&[
            "LessThan",
            "LessThanOrEqual",
            "GreaterThan",
            "GreaterThanOrEqual",
            "Equal",
            "NotEqual",
        ]),
        preset: Preset::Required,
        unit: "",
        doc: "How the attribute compares to the value.",
    },
    Param {
        name: "value",
        kind: ParamKind::Float(Bounds::ANY),
        preset: Preset::Float(0.0),
        unit: "",
        doc: "The value.",
    },
];

static ALGORITHM: &[Param] = &[
    Param {
        name: "type",
        kind: ParamKind::Choice(&["threshold"]),
        preset: Preset::Required,
        unit: "",
        doc: "The only way of comparing.",
    },
    Param {
        name: "threshold",
        kind: ParamKind::Object(THRESHOLD),
        preset: Preset::Required,
        unit: "",
        doc: "What to compare with.",
    },
];

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "endpoint-attribute-filter",
    aliases: &[],
    kinds: &[Kind::Filter],
    summary: "Keeps endpoints of which a number compares to a value.",
    stability: Stability::Alpha,
    params: &[
        Param {
            name: "attribute",
            kind: ParamKind::Choice(&[
                "WaitingQueueSize",
                "RunningRequestsSize",
                "KVCacheUsagePercent",
                "InFlightRequests",
                "InFlightTokens",
            ]),
            preset: Preset::Required,
            unit: "",
            doc: "The number.",
        },
        Param {
            name: "producer",
            kind: ParamKind::Text,
            preset: Preset::Absent,
            unit: "",
            doc: "Accepted and not read: each number has one producer.",
        },
        Param {
            name: "onMissing",
            kind: ParamKind::Choice(&["Pass", "Fail"]),
            preset: Preset::Text("Pass"),
            unit: "",
            doc: "Whether an endpoint of which the number is unknown is kept.",
        },
        Param {
            name: "fallbackOnEmpty",
            kind: ParamKind::Bool,
            preset: Preset::Bool(false),
            unit: "",
            doc: "Keep all if none would be left; else the request is refused.",
        },
        Param {
            name: "algorithm",
            kind: ParamKind::Object(ALGORITHM),
            preset: Preset::Required,
            unit: "",
            doc: "The comparison.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let missing = |param| BuildError { param, message: format!("{param} is missing") };
    let threshold = v.object("algorithm").and_then(|a| a.object("threshold"));
    let threshold = threshold.ok_or_else(|| missing("algorithm"))?;
    let attribute: fn(&Endpoint) -> Option<f64> = match v.text("attribute") {
        Some("WaitingQueueSize") => |e| e.sample?.waiting.value(),
        Some("RunningRequestsSize") => |e| e.sample?.running.value(),
        Some("KVCacheUsagePercent") => |e| e.sample?.kv.value(),
        Some("InFlightRequests") => |e| Some(f64::from(e.load.requests)),
        Some("InFlightTokens") => |e| Some(e.load.tokens as f64),
        _ => return Err(missing("attribute")),
    };
    #[allow(clippy::float_cmp, reason = "the operators Equal and NotEqual ask for exactly that")]
    let holds: fn(f64, f64) -> bool = match threshold.text("operator") {
        Some("LessThan") => |x, y| x < y,
        Some("LessThanOrEqual") => |x, y| x <= y,
        Some("GreaterThan") => |x, y| x > y,
        Some("GreaterThanOrEqual") => |x, y| x >= y,
        Some("Equal") => |x, y| x == y,
        _ => |x, y| x != y,
    };
    let it = AttributeFilter {
        attribute,
        holds,
        value: threshold.float("value"),
        passes_missing: v.text("onMissing") == Some("Pass"),
        fallback: v.bool("fallbackOnEmpty"),
    };
    Ok(Built { filter: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Debug)]
struct AttributeFilter {
    attribute: fn(&Endpoint) -> Option<f64>,
    holds: fn(f64, f64) -> bool,
    value: f64,
    passes_missing: bool,
    fallback: bool,
}

impl Filter for AttributeFilter {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        let fits = |i: u32| {
            d.pool.at(i).is_some_and(|e| match (self.attribute)(e) {
                Some(x) => (self.holds)(x, self.value),
                None => self.passes_missing,
            })
        };
        if !self.fallback || set.iter().any(fits) {
            set.retain(fits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, object, text};
    use super::*;
    use crate::plugin::Value;

    fn kept(
        b: &Bench,
        attribute: &str,
        operator: &str,
        value: f64,
        more: &[(&'static str, Value)],
    ) -> Vec<u32> {
        let threshold = object(&[("operator", text(operator)), ("value", Value::Float(value))]);
        let algorithm = object(&[("type", text("threshold")), ("threshold", threshold)]);
        let mut given = vec![("attribute", text(attribute)), ("algorithm", algorithm)];
        given.extend(more.iter().cloned());
        b.kept(&testing::build(&DESCRIPTOR, &given).unwrap().filter.unwrap())
    }

    #[test]
    fn numbers_are_compared() {
        let mut b = Bench::new(4);
        b.scrape(0, 1.0, 30.0, 0.1);
        b.scrape(1, 2.0, 20.0, 0.2);
        b.scrape(2, 3.0, 10.0, 0.3);
        for (operator, want) in [
            ("LessThan", [0].as_slice()),
            ("LessThanOrEqual", &[0, 1]),
            ("GreaterThan", &[2]),
            ("GreaterThanOrEqual", &[1, 2]),
            ("Equal", &[1]),
            ("NotEqual", &[0, 2]),
        ] {
            let fail = [("onMissing", text("Fail"))];
            assert_eq!(kept(&b, "WaitingQueueSize", operator, 2.0, &fail), want, "{operator}");
            let mut with_unknown = want.to_vec();
            with_unknown.push(3);
            assert_eq!(kept(&b, "WaitingQueueSize", operator, 2.0, &[]), with_unknown, "{operator}");
        }
        assert_eq!(kept(&b, "RunningRequestsSize", "LessThan", 15.0, &[]), [2, 3]);
        assert_eq!(kept(&b, "KVCacheUsagePercent", "LessThan", 0.15, &[]), [0, 3]);
        b.at(3).load.requests = 1;
        b.at(3).load.tokens = 9;
        assert_eq!(kept(&b, "InFlightRequests", "LessThan", 1.0, &[]), [0, 1, 2]);
        assert_eq!(kept(&b, "InFlightTokens", "Equal", 9.0, &[]), [3]);
        let fail = ("onMissing", text("Fail"));
        let none = kept(&b, "WaitingQueueSize", "GreaterThan", 9.0, std::slice::from_ref(&fail));
        assert!(none.is_empty());
        let all = [fail, ("fallbackOnEmpty", Value::Bool(true))];
        assert_eq!(kept(&b, "WaitingQueueSize", "GreaterThan", 9.0, &all), [0, 1, 2, 3]);
    }
}
