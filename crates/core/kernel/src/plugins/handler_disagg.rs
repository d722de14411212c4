//! `disagg-profile-handler`: one profile chooses the endpoint that decodes, another one the endpoint that
//! computes the prompt.

use crate::plugin::{
    BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, StageNames, Values,
};

const fn text(name: &'static str, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Text, preset: Preset::Absent, unit: "", doc }
}

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "disagg-profile-handler",
    aliases: &[],
    kinds: &[Kind::ProfileHandler],
    summary: "Chooses where to decode and, if a decider wants it, where to compute the prompt.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "profiles",
            kind: ParamKind::Object(&[
                text("decode", "The profile that chooses where to decode; decode if absent."),
                text("prefill", "The profile that chooses where to compute the prompt; prefill if absent."),
                text("encode", "Not supported; the profile is not used."),
            ]),
            preset: Preset::Absent,
            unit: "",
            doc: "Names of scheduling profiles.",
        },
        Param {
            name: "deciders",
            kind: ParamKind::Object(&[
                text(
                    "prefill",
                    "Decides per request whether the prompt is computed elsewhere; if absent, never.",
                ),
                text("encode", "Not supported."),
            ]),
            preset: Preset::Absent,
            unit: "",
            doc: "Names of decider plugins.",
        },
        Param {
            name: "stageOrder",
            kind: ParamKind::Choice(&["decode-first", "prefill-first"]),
            preset: Preset::Text("decode-first"),
            unit: "",
            doc: "Which endpoint is chosen first; with prefill-first there is no decider, and every prompt is \
                  computed elsewhere.",
        },
        text("decodeProfile", "Deprecated: profiles.decode."),
        text("prefillProfile", "Deprecated: profiles.prefill."),
        text("encodeProfile", "Deprecated: profiles.encode."),
        text("prefillDeciderPluginName", "Deprecated: deciders.prefill."),
        text("deciderPluginName", "Deprecated: deciders.prefill."),
        text("encodeDeciderPluginName", "Deprecated: deciders.encode."),
    ],
    ignores_parameters: false,
    needs: Some("approx-prefix-cache-producer"),
    build,
};

const FLAT: [&str; 6] = [
    "decodeProfile",
    "prefillProfile",
    "encodeProfile",
    "prefillDeciderPluginName",
    "deciderPluginName",
    "encodeDeciderPluginName",
];

/// A name from either form; an empty one is none.
fn of(v: &Values, object: &str, name: &str, flat: &[&str]) -> Option<String> {
    let nested = v.object(object).and_then(|o| o.text(name));
    let flat = || flat.iter().find_map(|n| v.text(n));
    nested.or_else(flat).filter(|t| !t.is_empty()).map(str::to_owned)
}

fn build(v: &Values) -> Result<Built, BuildError> {
    let wrong = |param, message: &str| Err(BuildError { param, message: message.to_owned() });
    let nested = v.object("profiles").is_some() || v.object("deciders").is_some();
    let flat = FLAT.into_iter().find(|n| v.text(n).is_some());
    if let Some(flat) = flat.filter(|_| nested) {
        return wrong(flat, "profiles and deciders do not go with the deprecated flat fields");
    }
    if of(v, "deciders", "encode", &["encodeDeciderPluginName"]).is_some() {
        let param = if nested { "deciders" } else { "encodeDeciderPluginName" };
        return wrong(param, "encode disaggregation is not supported");
    }
    let decider = of(v, "deciders", "prefill", &["prefillDeciderPluginName", "deciderPluginName"]);
    let prefill_first = v.text("stageOrder") == Some("prefill-first");
    if prefill_first && decider.is_some() {
        return wrong("stageOrder", "prefill-first does not go with a prefill decider");
    }
    let name = |name: &str, flat: &str| of(v, "profiles", name, &[flat]).unwrap_or_else(|| name.to_owned());
    let stages = StageNames {
        decode: name("decode", "decodeProfile"),
        prefill: name("prefill", "prefillProfile"),
        decider,
        prefill_first,
    };
    Ok(Built { stages: Some(stages), ..Built::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{build, text};
    use super::*;
    use crate::plugin::Value;

    #[test]
    fn names_come_from_either_form_and_not_from_both() {
        let nested = Value::Object(Values(vec![("prefill", text("d"))]));
        let of = |given: &[(&'static str, Value)]| build(&DESCRIPTOR, given).map(|b| b.stages.unwrap());
        let stages = |decode: &str, decider: Option<&str>, prefill_first| StageNames {
            decode: decode.to_owned(),
            prefill: "prefill".to_owned(),
            decider: decider.map(str::to_owned),
            prefill_first,
        };
        assert_eq!(of(&[("deciders", nested.clone())]), Ok(stages("decode", Some("d"), false)));
        let flat = [("decodeProfile", text("x")), ("deciderPluginName", text("d"))];
        assert_eq!(of(&flat), Ok(stages("x", Some("d"), false)));
        let first = ("stageOrder", text("prefill-first"));
        assert_eq!(of(std::slice::from_ref(&first)), Ok(stages("decode", None, true)));
        assert_eq!(of(&[("deciders", nested.clone()), first]).unwrap_err().param, "stageOrder");
        let mixed = [("deciders", nested), ("decodeProfile", text("x"))];
        assert_eq!(of(&mixed).unwrap_err().param, "decodeProfile");
        assert_eq!(
            of(&[("encodeDeciderPluginName", text("x"))]).unwrap_err().param,
            "encodeDeciderPluginName"
        );
    }
}
