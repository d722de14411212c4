//! Policies by name: configurations that studies compare. None of them has a time to live, because the
//! published runs had none.

use forebay_base::Diagnostics;
use forebay_config::{Config, Options, load};
use forebay_kernel::Plan;
use std::fmt::Write;
use std::sync::Arc;

/// A configuration with the name it has in a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A short name.
    pub name: String,
    /// What it is, in a few words.
    pub what: String,
    /// An `EndpointPickerConfig`.
    pub config: String,
}

/// The parts that a policy is put together from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// `soft-reflective-ceiling-policy` instead of one static ceiling.
    pub soft: bool,
    /// `inflight-aware-detector` instead of the scrape-only one.
    pub in_flight: bool,
    /// Cycles run when something has changed instead of once per millisecond.
    pub event: bool,
    /// Scorers read live counts.
    pub live_routing: bool,
    /// The highest band passes saturation up to this.
    pub bypass: Option<f64>,
}

impl Parts {
    /// The configuration.
    pub fn config(&self) -> String {
        let mut plugins = String::new();
        if self.soft {
            plugins.push_str("  - type: soft-reflective-ceiling-policy\n");
        }
        if self.in_flight {
            plugins.push_str("  - type: inflight-aware-detector\n");
        }
        let mut flow = String::new();
        if self.soft {
            flow.push_str("  usageLimitPolicyPluginRef: soft-reflective-ceiling-policy\n");
        }
        if self.in_flight {
            flow.push_str("  saturationDetector:\n    pluginRef: inflight-aware-detector\n");
        }
        if self.event {
            flow.push_str("  cycleDriver: event\n");
        }
        if self.live_routing {
            flow.push_str("  liveRouting: true\n");
        }
        if let Some(ceiling) = self.bypass {
            let _ = writeln!(flow, "  topBandCeiling: {ceiling:?}");
        }
        format!(
            "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates:
  - flowControl
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
{plugins}schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: queue-scorer
        weight: 2.0
      - pluginRef: kv-cache-utilization-scorer
        weight: 2.0
      - pluginRef: prefix-cache-scorer
        weight: 3.0
flowControl:
  defaultRequestTTL: 0s
{flow}"
        )
    }
}

impl Policy {
    /// From parts.
    pub fn of(name: &str, what: &str, parts: Parts) -> Policy {
        Policy { name: name.to_owned(), what: what.to_owned(), config: parts.config() }
    }

    /// The article's baseline: one ceiling of 1 for every band.
    pub fn fixed() -> Policy {
        Policy::of("static", "one ceiling of 1.0, scraped signals, a cycle per millisecond", Parts::default())
    }

    /// The article's treatment.
    pub fn soft() -> Policy {
        let parts = Parts { soft: true, ..Parts::default() };
        Policy::of("soft-reflective", "soft-reflective ceilings, otherwise as the baseline", parts)
    }

    /// In-flight signal and live routing under a static ceiling.
    pub fn live() -> Policy {
        let parts = Parts { in_flight: true, live_routing: true, ..Parts::default() };
        Policy::of("in-flight", "static ceiling, in-flight signal and live routing", parts)
    }

    /// What forebay recommends.
    pub fn recommended() -> Policy {
        let parts =
            Parts { soft: false, in_flight: true, event: true, live_routing: true, bypass: Some(2.0) };
        Policy::of("recommended", "in-flight signal, event driver, live routing, top band up to 2", parts)
    }

    /// The recommended combination, and the same with each part switched off alone.
    pub fn ablations() -> Vec<Policy> {
        let full = Parts { soft: false, in_flight: true, event: true, live_routing: true, bypass: Some(2.0) };
        vec![
            Policy::recommended(),
            Policy::of(
                "no in-flight signal",
                "scraped detector; with it the upstream driver, which is all that signal carries",
                Parts { in_flight: false, event: false, ..full },
            ),
            Policy::of("upstream driver", "a cycle per millisecond", Parts { event: false, ..full }),
            Policy::of(
                "scraped routing",
                "scorers read scraped values",
                Parts { live_routing: false, ..full },
            ),
            Policy::of("no bypass", "the top band stops at 1, too", Parts { bypass: None, ..full }),
        ]
    }

    /// The plan for these priorities. `file` is the name for messages.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn plan(&self, priorities: &[i32]) -> Result<Arc<Plan>, Diagnostics> {
        Ok(Arc::new(self.load()?.plan(priorities)))
    }

    /// The checked configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(&self) -> Result<Config, Diagnostics> {
        load(&self.config, &self.name, forebay_kernel::plugins::ALL, Options::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_loads() {
        let mut all = vec![Policy::fixed(), Policy::soft(), Policy::live()];
        all.extend(Policy::ablations());
        for policy in all {
            let plan = policy.plan(&[100, -50]).unwrap_or_else(|d| panic!("{}: {d}", policy.name));
            assert_eq!(plan.flow.as_ref().map(|f| f.ttl), Some(None), "{}", policy.name);
        }
    }
}
