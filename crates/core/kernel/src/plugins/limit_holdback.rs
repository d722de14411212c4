//! `priority-holdback-policy`: ceilings fall with rank or priority, so that capacity is held back for
//! the bands above.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Value, Values,
};
use crate::policy::{CycleFacts, UsageLimit};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "priority-holdback-policy",
    aliases: &[],
    kinds: &[Kind::UsageLimitPolicy],
    summary: "Ceilings that fall linearly with rank or priority, or that are given per priority.",
    stability: Stability::Alpha,
    params: &[
        Param {
            name: "shape",
            kind: ParamKind::Choice(&["linear"]),
            preset: Preset::Text("linear"),
            unit: "",
            doc: "The curve between the ceilings.",
        },
        Param {
            name: "domain",
            kind: ParamKind::Choice(&["rank", "value", "explicit"]),
            preset: Preset::Text("rank"),
            unit: "",
            doc: "Interpolate over the rank of a band, over its priority value, or take `ceilings`.",
        },
        Param {
            name: "minCeiling",
            kind: ParamKind::Float(Bounds::UNIT_BELOW_ONE),
            preset: Preset::Absent,
            unit: "saturation",
            doc: "Ceiling of the lowest band; required unless the domain is explicit.",
        },
        Param {
            name: "maxCeiling",
            kind: ParamKind::Float(Bounds::UNIT_POSITIVE),
            preset: Preset::Float(1.0),
            unit: "saturation",
            doc: "Ceiling of the highest band.",
        },
        Param {
            name: "ceilings",
            kind: ParamKind::List(&ParamKind::Object(CEILING)),
            preset: Preset::Absent,
            unit: "",
            doc: "With domain explicit: a ceiling per priority. A band between two listed priorities takes \
                  the ceiling of the higher one, a band above all takes maxCeiling.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

static CEILING: &[Param] = &[
    Param {
        name: "priority",
        kind: ParamKind::Int(Bounds {
            min: i32::MIN as f64,
            min_open: false,
            max: i32::MAX as f64,
            max_open: false,
        }),
        preset: Preset::Required,
        unit: "",
        doc: "The priority that this ceiling starts at, downwards.",
    },
    Param {
        name: "ceiling",
        kind: ParamKind::Float(Bounds::UNIT),
        preset: Preset::Required,
        unit: "saturation",
        doc: "The saturation at which dispatch of the band stops.",
    },
];

fn build(v: &Values) -> Result<Built, BuildError> {
    let fail = |param, message: String| Err(BuildError { param, message });
    let max = v.float("maxCeiling");
    let domain = match v.text("domain") {
        Some("explicit") => {
            let mut steps: Vec<(i32, f64)> = v
                .list("ceilings")
                .iter()
                .filter_map(|item| match item {
                    Value::Object(o) => Some((o.int("priority") as i32, o.float("ceiling"))),
                    _ => None,
                })
                .collect();
            if steps.is_empty() {
                return fail("domain", "domain explicit needs at least one entry in ceilings".into());
            }
            steps.sort_by_key(|s| std::cmp::Reverse(s.0));
            for w in steps.windows(2) {
                if w[0].0 == w[1].0 {
                    return fail("ceilings", format!("priority {} is listed twice", w[0].0));
                }
                if w[1].1 > w[0].1 {
                    return fail(
                        "ceilings",
                        format!(
                            "priority {} has ceiling {} above {} of priority {}: dispatch stops at the first \
                             closed band, so ceilings must not rise as priority falls",
                            w[1].0, w[1].1, w[0].1, w[0].0
                        ),
                    );
                }
            }
            if max < steps[0].1 {
                return fail(
                    "maxCeiling",
                    format!(
                        "maxCeiling {max} is below ceiling {} of priority {}: bands above all listed ones take \
                         it, and ceilings must not rise as priority falls",
                        steps[0].1, steps[0].0
                    ),
                );
            }
            if v.opt_float("minCeiling").is_some() {
                return fail("minCeiling", "minCeiling is not read with domain explicit".into());
            }
            Domain::Explicit(steps)
        }
        other => {
            if !v.list("ceilings").is_empty() {
                return fail("ceilings", "ceilings are read only with domain explicit".into());
            }
            let Some(min) = v.opt_float("minCeiling") else {
                return fail("minCeiling", "minCeiling is required".into());
            };
            if min >= max {
                return fail("minCeiling", format!("minCeiling {min} must be below maxCeiling {max}"));
            }
            if other == Some("value") { Domain::Value { min } } else { Domain::Rank { min } }
        }
    };
    Ok(Built { limit: Some(Arc::new(Holdback { domain, max })), ..Built::default() })
}

#[derive(Debug)]
enum Domain {
    Rank {
        min: f64,
    },
    Value {
        min: f64,
    },
    /// (priority, ceiling), highest priority first.
    Explicit(Vec<(i32, f64)>),
}

#[derive(Debug)]
struct Holdback {
    domain: Domain,
    max: f64,
}

impl UsageLimit for Holdback {
    fn ceilings(&self, facts: &CycleFacts<'_>, _: &mut [u64], out: &mut [f64]) {
        self.nominal(facts, out);
    }

    fn nominal(&self, facts: &CycleFacts<'_>, out: &mut [f64]) {
        let p = facts.priorities;
        let n = p.len();
        match &self.domain {
            Domain::Explicit(steps) => {
                for (c, &priority) in out.iter_mut().zip(p) {
                    *c = steps.iter().rev().find(|s| s.0 >= priority).map_or(self.max, |s| s.1);
                }
            }
            Domain::Rank { .. } | Domain::Value { .. } if n <= 1 => out.fill(self.max),
            Domain::Rank { min } => {
                for (i, c) in out.iter_mut().enumerate() {
                    *c = self.max - i as f64 * (self.max - min) / (n - 1) as f64;
                }
            }
            Domain::Value { min } => {
                let (high, low) = (f64::from(p[0]), f64::from(p[n - 1]));
                for (c, &priority) in out.iter_mut().zip(p) {
                    *c = min + (f64::from(priority) - low) / (high - low) * (self.max - min);
                }
            }
        }
    }

    fn steady(&self, _: &CycleFacts<'_>, _: &[u64]) -> u64 {
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(domain: Domain, max: f64, priorities: &[i32]) -> Vec<f64> {
        let mut out = vec![1.0; priorities.len()];
        let facts = CycleFacts { saturation: 0.3, priorities, ticks: 1 };
        Holdback { domain, max }.ceilings(&facts, &mut [], &mut out);
        out
    }

    #[test]
    fn rank_spreads_evenly_and_value_by_distance() {
        assert_eq!(ceilings(Domain::Rank { min: 0.5 }, 1.0, &[100, 0, -50]), [1.0, 0.75, 0.5]);
        assert_eq!(ceilings(Domain::Value { min: 0.4 }, 1.0, &[100, 25, 0]), [1.0, 0.55, 0.4]);
        assert_eq!(ceilings(Domain::Rank { min: 0.5 }, 0.9, &[7]), [0.9]);
        assert_eq!(ceilings(Domain::Value { min: 0.5 }, 0.9, &[7]), [0.9]);
    }

    #[test]
    fn explicit_steps_hold_until_the_next_lower_one() {
        let steps = vec![(100, 0.95), (0, 0.6), (-50, 0.2)];
        assert_eq!(
            ceilings(Domain::Explicit(steps), 1.0, &[200, 100, 50, 0, -50, -60]),
            [1.0, 0.95, 0.95, 0.6, 0.2, 0.2]
        );
    }

    #[test]
    fn combinations_that_make_no_sense_are_refused() {
        let values = |pairs: &[(&'static str, Value)]| {
            let mut v = DESCRIPTOR.presets();
            v.0.retain(|(n, _)| !pairs.iter().any(|(m, _)| m == n));
            v.0.extend(pairs.iter().cloned());
            build(&v)
        };
        assert_eq!(values(&[]).unwrap_err().param, "minCeiling");
        let crossed = values(&[("minCeiling", Value::Float(0.9)), ("maxCeiling", Value::Float(0.8))]);
        assert!(crossed.unwrap_err().message.contains("0.9 must be below maxCeiling 0.8"));
        let explicit = ("domain", Value::Text("explicit".into()));
        assert_eq!(values(std::slice::from_ref(&explicit)).unwrap_err().param, "domain");
        let step =
            |p, c| Value::Object(Values(vec![("priority", Value::Int(p)), ("ceiling", Value::Float(c))]));
        let rising =
            values(&[explicit.clone(), ("ceilings", Value::List(vec![step(0, 0.5), step(-5, 0.7)]))]);
        assert_eq!(rising.unwrap_err().param, "ceilings");
        let listed = ("ceilings", Value::List(vec![step(0, 0.5)]));
        let low = values(&[explicit.clone(), listed.clone(), ("maxCeiling", Value::Float(0.4))]).unwrap_err();
        assert_eq!(low.param, "maxCeiling", "{}", low.message);
        let both = values(&[explicit.clone(), listed.clone(), ("minCeiling", Value::Float(0.1))]);
        assert_eq!(both.unwrap_err().param, "minCeiling");
        assert!(values(&[explicit.clone(), listed, ("maxCeiling", Value::Float(0.5))]).is_ok());
        let good = values(&[explicit, ("ceilings", Value::List(vec![step(0, 0.5), step(-5, 0.2)]))]);
        assert!(good.is_ok());
    }
}
