//! `label-selector-filter`: keeps endpoints whose labels match a Kubernetes label selector.

use crate::plugin::{
    Alias, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Value, Values,
};
use crate::policy::{Decision, Filter};
use crate::pool::{EndpointSet, EndpointSpec};
use std::sync::Arc;

static EXPRESSION: &[Param] = &[
    Param { name: "key", kind: ParamKind::Text, preset: Preset::Required, unit: "", doc: "The label." },
    Param {
        name: "operator",
        kind: ParamKind::Choice(&["In", "NotIn", "Exists", "DoesNotExist"]),
        preset: Preset::Required,
        unit: "",
        doc: "How the label relates to the values; NotIn also matches endpoints without the label.",
    },
    Param {
        name: "values",
        kind: ParamKind::List(&ParamKind::Text),
        preset: Preset::Absent,
        unit: "",
        doc: "At least one with In and NotIn, none with the others.",
    },
];

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "label-selector-filter",
    aliases: &[Alias {
        name: "by-label-selector",
        note: "`by-label-selector` is deprecated, use `label-selector-filter`",
    }],
    kinds: &[Kind::Filter],
    summary: "Keeps endpoints whose labels match a Kubernetes label selector; an empty one matches all.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "matchLabels",
            kind: ParamKind::Map,
            preset: Preset::Absent,
            unit: "",
            doc: "Labels that must have these values.",
        },
        Param {
            name: "matchExpressions",
            kind: ParamKind::List(&ParamKind::Object(EXPRESSION)),
            preset: Preset::Absent,
            unit: "",
            doc: "Further conditions, all of which must hold.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let wrong = |param, message| Err(BuildError { param, message });
    let mut conditions = Vec::new();
    for (key, value) in v.map("matchLabels") {
        if key.is_empty() {
            return wrong("matchLabels", "a label must have a name".into());
        }
        conditions.push((key.clone(), Test::In(vec![value.clone()])));
    }
    for item in v.list("matchExpressions") {
        let Value::Object(e) = item else { continue };
        let (key, operator) = (e.text("key").unwrap_or_default(), e.text("operator").unwrap_or_default());
        if key.is_empty() {
            return wrong("matchExpressions", "a label must have a name".into());
        }
        let values: Vec<String> = e
            .list("values")
            .iter()
            .filter_map(|v| match v {
                Value::Text(t) => Some(t.clone()),
                _ => None,
            })
            .collect();
        let set = matches!(operator, "In" | "NotIn");
        if set == values.is_empty() {
            let message = if set {
                format!("{operator} of {key:?} needs at least one value")
            } else {
                format!("{operator} of {key:?} takes no values")
            };
            return wrong("matchExpressions", message);
        }
        let test = match operator {
            "In" => Test::In(values),
            "NotIn" => Test::NotIn(values),
            "Exists" => Test::Exists,
            _ => Test::DoesNotExist,
        };
        conditions.push((key.to_owned(), test));
    }
    Ok(Built { filter: Some(Arc::new(Selector { conditions })), ..Built::default() })
}

#[derive(Debug)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

#[derive(Debug)]
struct Selector {
    conditions: Vec<(String, Test)>,
}

impl Selector {
    fn matches(&self, spec: &EndpointSpec) -> bool {
        self.conditions.iter().all(|(key, test)| {
            let value = spec.label(key);
            match test {
                Test::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
                Test::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
                Test::Exists => value.is_some(),
                Test::DoesNotExist => value.is_none(),
            }
        })
    }
}

impl Filter for Selector {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        set.retain(|i| d.pool.at(i).is_some_and(|e| self.matches(&e.spec)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, object, text, texts};
    use super::*;

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        object(&[("key", text(key)), ("operator", text(operator)), ("values", texts(values))])
    }

    fn kept(expressions: Vec<Value>) -> Vec<u32> {
        let b = Bench::labelled("zone", &[Some("a"), Some("b"), Some(""), None]);
        let given = [("matchExpressions", Value::List(expressions))];
        b.kept(&testing::build(&DESCRIPTOR, &given).unwrap().filter.unwrap())
    }

    #[test]
    fn expressions_are_those_of_kubernetes() {
        assert_eq!(kept(vec![]), [0, 1, 2, 3]);
        assert_eq!(kept(vec![expression("zone", "In", &["a", "x"])]), [0]);
        assert_eq!(kept(vec![expression("zone", "NotIn", &["a", ""])]), [1, 3]);
        assert_eq!(kept(vec![expression("zone", "Exists", &[])]), [0, 1, 2]);
        assert_eq!(kept(vec![expression("zone", "DoesNotExist", &[])]), [3]);
        let both = vec![expression("zone", "Exists", &[]), expression("zone", "NotIn", &["a"])];
        assert_eq!(kept(both), [1, 2]);
        assert_eq!(kept(vec![expression("zone", "In", &["q"])]), [0u32; 0], "nothing may be left");
    }

    #[test]
    fn labels_must_be_equal() {
        let mut b = Bench::labelled("zone", &[Some("a"), Some("a"), None]);
        b.at(1).spec.labels.push(("tier".into(), "gold".into()));
        let map = |pairs: &[(&str, &str)]| {
            Value::Map(pairs.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect())
        };
        let filter = |m| testing::build(&DESCRIPTOR, &[("matchLabels", m)]).unwrap().filter.unwrap();
        assert_eq!(b.kept(&filter(map(&[("zone", "a")]))), [0, 1]);
        assert_eq!(b.kept(&filter(map(&[("zone", "a"), ("tier", "gold")]))), [1]);
    }

    #[test]
    fn values_have_to_suit_the_operator() {
        for e in
            [expression("a", "In", &[]), expression("a", "Exists", &["x"]), expression("", "Exists", &[])]
        {
            let given = [("matchExpressions", Value::List(vec![e]))];
            assert_eq!(testing::build(&DESCRIPTOR, &given).unwrap_err().param, "matchExpressions");
        }
    }
}
