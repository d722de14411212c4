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
    /// With it: what was sent counts until the next scrape only, instead of until its first token.
    pub until_scrape: bool,
    /// Cycles run when something has changed instead of once per millisecond.
    pub event: bool,
    /// Scorers read live counts.
    pub live_routing: bool,
    /// The highest band passes saturation up to this.
    pub bypass: Option<f64>,
    /// `kv-reserve-policy` as the gate.
    pub reserve: bool,
}

impl Parts {
    /// What forebay recommends.
    pub const RECOMMENDED: Parts = Parts {
        soft: false,
        in_flight: true,
        until_scrape: false,
        event: true,
        live_routing: true,
        bypass: Some(2.0),
        reserve: false,
    };

    /// The configuration.
    pub fn config(&self) -> String {
        let (mut plugins, mut flow) = (String::new(), String::new());
        if self.soft {
            plugins.push_str("  - type: soft-reflective-ceiling-policy\n");
            flow.push_str("  usageLimitPolicyPluginRef: soft-reflective-ceiling-policy\n");
        }
        if self.in_flight {
            plugins.push_str("  - type: inflight-aware-detector\n");
            flow.push_str("  saturationDetector:\n    pluginRef: inflight-aware-detector\n");
        }
        if self.in_flight && self.until_scrape {
            plugins.push_str("    parameters:\n      pendingUntil: scrape\n");
        }
        if self.reserve {
            plugins.push_str("  - type: kv-reserve-policy\n");
            flow.push_str("  gatePluginRef: kv-reserve-policy\n");
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

/// Without flow control: requests of negative priority are refused on a saturated pool, and endpoints are
/// drawn. `more` are plugins, `rest` other sections.
fn drawn(more: &str, rest: &str) -> String {
    format!(
        "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: random-picker
{more}schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: random-picker
{rest}"
    )
}

impl Policy {
    fn named(name: &str, what: &str, config: String) -> Policy {
        Policy { name: name.to_owned(), what: what.to_owned(), config }
    }

    /// From parts.
    pub fn of(name: &str, what: &str, parts: Parts) -> Policy {
        Policy::named(name, what, parts.config())
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
        let what = "in-flight signal until the first token, event driver, live routing, top band up to 2";
        Policy::of("recommended", what, Parts::RECOMMENDED)
    }

    /// The recommended combination with `kv-reserve-policy`: the best for the highest band of what is built in,
    /// at the cost of the others.
    pub fn reserve() -> Policy {
        let what =
            "the recommended one, and lower bands leave free the KV cache that higher ones are going to need";
        Policy::of("KV reserve", what, Parts { reserve: true, ..Parts::RECOMMENDED })
    }

    /// The baseline of the study of probabilistic admission: no flow control, requests of negative priority
    /// are refused while saturation is 1 or more, endpoints are drawn.
    pub fn legacy() -> Policy {
        let what = "no queue; negative priorities are refused from a saturation of 1 on; endpoints are drawn";
        Policy::named("legacy", what, drawn("", ""))
    }

    /// Its treatment: they are refused with a probability that rises with saturation instead. The detector's
    /// thresholds are out of reach, so that nothing else refuses.
    pub fn probabilistic() -> Policy {
        let plugins = "  - type: probabilistic-admitter
  - type: utilization-detector
    parameters:
      queueDepthThreshold: 999999999
      kvCacheUtilThreshold: 1.0
";
        let rest = "flowControl:\n  saturationDetector:\n    pluginRef: utilization-detector\n";
        let what =
            "negative priorities are refused with probability min(300 S^5, 1), otherwise as the baseline";
        Policy::named("probabilistic", what, drawn(plugins, rest))
    }

    /// The recommended combination, the same with each part switched off alone, with the KV reserve, and with that
    /// instead of the bypass.
    pub fn ablations() -> Vec<Policy> {
        let full = Parts::RECOMMENDED;
        vec![
            Policy::recommended(),
            Policy::of(
                "scraped signal",
                "scrape-only detector; with it the upstream driver, which is all that signal carries",
                Parts { in_flight: false, event: false, ..full },
            ),
            Policy::of(
                "until scrape",
                "what was sent counts until the next scrape and not until its first token",
                Parts { until_scrape: true, ..full },
            ),
            Policy::of("upstream driver", "a cycle per millisecond", Parts { event: false, ..full }),
            Policy::of(
                "scraped routing",
                "scorers read scraped values",
                Parts { live_routing: false, ..full },
            ),
            Policy::of("no bypass", "the top band stops at 1, too", Parts { bypass: None, ..full }),
            Policy::reserve(),
            Policy::of(
                "reserve, no bypass",
                "the KV reserve instead of the bypass",
                Parts { bypass: None, reserve: true, ..full },
            ),
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
        for policy in [Policy::legacy(), Policy::probabilistic()] {
            let plan = policy.plan(&[100, -50]).unwrap_or_else(|d| panic!("{}: {d}", policy.name));
            assert!(plan.flow.is_none(), "{}", policy.name);
            assert_eq!(plan.admitters.len(), usize::from(policy.name == "probabilistic"));
        }
        for policy in all {
            let plan = policy.plan(&[100, -50]).unwrap_or_else(|d| panic!("{}: {d}", policy.name));
            assert_eq!(plan.flow.as_ref().map(|f| f.ttl), Some(None), "{}", policy.name);
        }
    }

    #[test]
    fn each_ablation_switches_one_part() {
        let all = Policy::ablations();
        let lines = |p: &Policy| p.config.lines().map(str::to_owned).collect::<Vec<_>>();
        let full = lines(&all[0]);
        let differs = |p: &Policy| {
            let own = lines(p);
            let gone: Vec<String> = full.iter().filter(|l| !own.contains(l)).cloned().collect();
            let new: Vec<String> = own.iter().filter(|l| !full.contains(l)).cloned().collect();
            (gone.join("|"), new.join("|"))
        };
        let reserve = "  - type: kv-reserve-policy|  gatePluginRef: kv-reserve-policy";
        let signal = "  - type: inflight-aware-detector|  saturationDetector:|    pluginRef: \
                      inflight-aware-detector|  cycleDriver: event";
        let want = [
            ("recommended", "", ""),
            ("scraped signal", signal, ""),
            ("until scrape", "", "    parameters:|      pendingUntil: scrape"),
            ("upstream driver", "  cycleDriver: event", ""),
            ("scraped routing", "  liveRouting: true", ""),
            ("no bypass", "  topBandCeiling: 2.0", ""),
            ("KV reserve", "", reserve),
            ("reserve, no bypass", "  topBandCeiling: 2.0", reserve),
        ];
        assert_eq!(all.len(), want.len());
        for (policy, (name, gone, new)) in all.iter().zip(want) {
            assert_eq!(policy.name, name);
            assert_eq!(differs(policy), (gone.to_owned(), new.to_owned()), "{name}");
        }
    }
}
