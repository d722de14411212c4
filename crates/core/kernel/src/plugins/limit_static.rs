//! `static-usage-limit-policy`: one ceiling for every band.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{CycleFacts, UsageLimit};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "static-usage-limit-policy",
    aliases: &[],
    kinds: &[Kind::UsageLimitPolicy],
    summary: "The same ceiling for every band; 1.0 stops dispatch only when the pool is saturated.",
    stability: Stability::Beta,
    params: &[Param {
        name: "threshold",
        // llm-d-router checks no range: 0 closes for good, above 1 lets traffic pass a saturated pool.
        kind: ParamKind::Float(Bounds::ANY),
        preset: Preset::Float(1.0),
        unit: "saturation",
        doc: "Dispatch of every band stops at this saturation.",
    }],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        Ok(Built { limit: Some(Arc::new(Static { threshold: v.float("threshold") })), ..Built::default() })
    },
};

#[derive(Debug)]
struct Static {
    threshold: f64,
}

impl UsageLimit for Static {
    fn ceilings(&self, facts: &CycleFacts<'_>, _: &mut [u64], out: &mut [f64]) {
        self.nominal(facts, out);
    }
    fn nominal(&self, _: &CycleFacts<'_>, out: &mut [f64]) {
        out.fill(self.threshold);
    }
    fn steady(&self, _: &CycleFacts<'_>, _: &[u64]) -> u64 {
        u64::MAX
    }
}
