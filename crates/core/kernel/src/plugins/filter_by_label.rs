//! `by-label` and the role filters: keep endpoints whose label has one of some values.

use crate::plugin::{
    BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Value, Values,
};
use crate::policy::{Decision, Filter};
use crate::pool::{EndpointSet, Stages};
use std::sync::Arc;

pub(super) static BY_LABEL: Descriptor = Descriptor {
    name: "by-label",
    aliases: &[],
    kinds: &[Kind::Filter],
    summary: "Keeps endpoints whose label has one of some values.",
    stability: Stability::Deprecated(
        "use label-selector-filter, or decode-, prefill- or encode-filter for roles",
    ),
    params: &[
        Param { name: "label", kind: ParamKind::Text, preset: Preset::Required, unit: "", doc: "The label." },
        Param {
            name: "validValues",
            kind: ParamKind::List(&ParamKind::Text),
            preset: Preset::Absent,
            unit: "",
            doc: "The values to keep; may be empty if allowsNoLabel is true.",
        },
        Param {
            name: "allowsNoLabel",
            kind: ParamKind::Bool,
            preset: Preset::Bool(false),
            unit: "",
            doc: "Keep endpoints without the label, too.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: by_label,
};

const fn role(
    name: &'static str,
    summary: &'static str,
    build: fn(&Values) -> Result<Built, BuildError>,
) -> Descriptor {
    Descriptor {
        name,
        aliases: &[],
        kinds: &[Kind::Filter],
        summary,
        stability: Stability::Beta,
        params: &[],
        ignores_parameters: true,
        needs: None,
        build,
    }
}

pub(super) static DECODE: Descriptor =
    role("decode-filter", "Keeps endpoints that decode; those without a role label do.", |_| {
        Ok(of_roles(&["decode", "prefill-decode", "both", "encode-prefill-decode"], true))
    });

pub(super) static PREFILL: Descriptor =
    role("prefill-filter", "Keeps endpoints whose role label says that they prefill.", |_| {
        let roles = ["prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"];
        Ok(of_roles(&roles, false))
    });

pub(super) static ENCODE: Descriptor =
    role("encode-filter", "Keeps endpoints whose role label says that they encode.", |_| {
        Ok(of_roles(&["encode", "encode-prefill", "encode-prefill-decode"], false))
    });

fn of_roles(roles: &[&str], unlabelled: bool) -> Built {
    let values = roles.iter().map(|&r| r.to_owned()).collect();
    built(ByLabel { label: Stages::LABEL.to_owned(), values, unlabelled })
}

fn built(it: ByLabel) -> Built {
    Built { filter: Some(Arc::new(it)), ..Built::default() }
}

fn by_label(v: &Values) -> Result<Built, BuildError> {
    let wrong = |param, message: &str| Err(BuildError { param, message: message.to_owned() });
    let label = v.text("label").unwrap_or_default().to_owned();
    if label.is_empty() {
        return wrong("label", "label must not be empty");
    }
    let values = v.list("validValues").iter().filter_map(|v| match v {
        Value::Text(t) => Some(t.clone()),
        _ => None,
    });
    let (values, unlabelled): (Vec<String>, bool) = (values.collect(), v.bool("allowsNoLabel"));
    if values.is_empty() && !unlabelled {
        return wrong("validValues", "validValues must not be empty unless allowsNoLabel is true");
    }
    Ok(built(ByLabel { label, values, unlabelled }))
}

#[derive(Debug)]
struct ByLabel {
    label: String,
    values: Vec<String>,
    unlabelled: bool,
}

impl Filter for ByLabel {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        set.retain(|i| match d.pool.at(i).and_then(|e| e.spec.label(&self.label)) {
            Some(value) => self.values.iter().any(|v| v == value),
            // An empty valid value also stands for a label that is not there.
            None => self.unlabelled || self.values.iter().any(String::is_empty),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, text, texts};
    use super::*;

    #[test]
    fn roles_are_those_of_the_router() {
        let roles = [
            Some("decode"),
            Some("prefill"),
            Some("encode"),
            Some("prefill-decode"),
            Some("both"),
            Some("encode-prefill"),
            Some("encode-prefill-decode"),
            Some("something"),
            Some(""),
            None,
        ];
        let b = Bench::labelled(Stages::LABEL, &roles);
        let kept = |d| b.kept(&testing::build(d, &[]).unwrap().filter.unwrap());
        assert_eq!(kept(&DECODE), [0, 3, 4, 6, 9]);
        assert_eq!(kept(&PREFILL), [1, 3, 4, 5, 6]);
        assert_eq!(kept(&ENCODE), [2, 5, 6]);
    }

    #[test]
    fn values_and_the_absence_of_the_label_can_be_valid() {
        let b = Bench::labelled("gpu", &[Some("h100"), Some("a100"), Some(""), None]);
        let build = |values: &[&str], none| {
            let given = [
                ("label", text("gpu")),
                ("validValues", texts(values)),
                ("allowsNoLabel", Value::Bool(none)),
            ];
            testing::build(&BY_LABEL, &given)
        };
        let kept = |values: &[&str], none| b.kept(&build(values, none).unwrap().filter.unwrap());
        assert_eq!(kept(&["h100"], false), [0]);
        assert_eq!(kept(&["h100", "a100"], true), [0, 1, 3]);
        assert_eq!(kept(&[], true), [3]);
        assert_eq!(kept(&[""], false), [2, 3]);
        assert_eq!(build(&[], false).unwrap_err().param, "validValues");
    }
}
