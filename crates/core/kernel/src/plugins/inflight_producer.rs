//! `inflight-load-producer`: settings of how tokens in flight are counted ([`crate::pool::Load::tokens`]).

use crate::plan::{InflightPlan, OutputEstimate};
use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};

/// The parameter by which others name the producer.
pub(super) const NAME: Param = Param {
    name: "inFlightLoadProducerName",
    kind: ParamKind::Text,
    preset: Preset::Absent,
    unit: "",
    doc: "The producer whose counts are read; there is one.",
};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "inflight-load-producer",
    aliases: &[],
    kinds: &[Kind::DataProducer],
    summary: "Counts requests and tokens that this router has in flight at each endpoint.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "addEstimatedOutputTokens",
            kind: ParamKind::Bool,
            preset: Preset::Bool(false),
            unit: "",
            doc: "Count estimated output tokens, too, and all tokens until the answer ends; \
                  else prompt tokens count until the first token.",
        },
        Param {
            name: "outputRatio",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(1.5),
            unit: "",
            doc: "Estimated output tokens per prompt token.",
        },
        Param {
            name: "maxEstimatedOutputTokens",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Absent,
            unit: "tokens",
            doc: "The most output tokens that are estimated.",
        },
        Param {
            name: "prefixMatchInfoProducerName",
            kind: ParamKind::Text,
            preset: Preset::Absent,
            unit: "",
            doc: "The producer whose matches are read; there is one.",
        },
        Param {
            name: "syncCrossReplicaState",
            kind: ParamKind::Bool,
            preset: Preset::Bool(true),
            unit: "",
            doc: "Accepted and not read: counts are this replica's own.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        let max = v.opt_int("maxEstimatedOutputTokens").and_then(|n| u64::try_from(n).ok());
        let output = OutputEstimate { ratio: v.float("outputRatio"), max };
        let plan = InflightPlan { output: v.bool("addEstimatedOutputTokens").then_some(output) };
        Ok(Built { inflight: Some(plan), ..Built::default() })
    },
};

#[cfg(test)]
mod tests {
    use super::super::testing::build;
    use super::*;
    use crate::plugin::Value;

    #[test]
    fn output_is_estimated_from_the_prompt_and_bounded() {
        let plan = |given: &[(&'static str, Value)]| build(&DESCRIPTOR, given).unwrap().inflight.unwrap();
        assert_eq!(plan(&[]).output_tokens(100, None), 0, "off by default");
        let on = ("addEstimatedOutputTokens", Value::Bool(true));
        let p = plan(std::slice::from_ref(&on));
        assert_eq!(p.output_tokens(101, None), 152, "151.5, half up");
        assert_eq!(p.output_tokens(101, Some(20)), 20);
        assert_eq!(p.output_tokens(101, Some(0)), 0);
        assert_eq!(p.output_tokens(0, Some(20)), 0);
        let p = plan(&[on, ("maxEstimatedOutputTokens", Value::Int(30)), ("outputRatio", Value::Float(0.1))]);
        assert_eq!((p.output_tokens(100, None), p.output_tokens(1000, Some(64))), (10, 30));
    }
}
