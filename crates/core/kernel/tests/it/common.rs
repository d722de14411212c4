//! Plans and events that the tests share.

use forebay_base::{Nanos, Span};
use forebay_kernel::plan::{BandPlan, BandTemplate, Driver, FlowPlan, Profile, WeightedScorer};
use forebay_kernel::plugin::{Built, Value, Values};
use forebay_kernel::policy::{Detector, Gate, Passage, Usage, UsageLimit};
use forebay_kernel::{
    Adapters, Effect, Effects, EndpointSet, Id, Kernel, Plan, Progress, Reading, Sample, plugins,
};
use proptest::prelude::*;
use std::sync::Arc;

/// A plugin by its type, with some parameters given.
pub(crate) fn plugin(name: &str, given: &[(&'static str, Value)]) -> Built {
    let d = plugins::find(name).expect("a plugin of the kernel");
    let mut values: Values = d.presets();
    values.0.retain(|(n, _)| !given.iter().any(|(m, _)| m == n));
    values.0.extend(given.iter().cloned());
    (d.build)(&values).expect("parameters in range")
}

/// Holds the sheddable while endpoint 1 lives, and lets others go nowhere else; a stand-in for gates to come.
#[derive(Debug)]
pub(crate) struct Hold;

impl Gate for Hold {
    fn allow(&self, p: &Passage<'_>, set: &mut EndpointSet) {
        if p.pool.at(1).is_none() {
            return;
        }
        if p.ask.priority < 0 {
            set.clear();
        } else {
            set.retain(|i| i == 1);
        }
    }
}

/// `inflight-aware-detector` that looks no further than the next scrape.
pub(crate) const UNTIL_SCRAPE: &str = "inflight-aware-detector until the next scrape";

/// What tests vary.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) limit: &'static str,
    pub(crate) stale_after: Span,
    pub(crate) ttl: Option<Span>,
    pub(crate) no_endpoint_ttl: Option<Span>,
    pub(crate) max_requests: Option<u64>,
    pub(crate) band_requests: u64,
    pub(crate) priorities: Vec<i32>,
    pub(crate) flow_control: bool,
    pub(crate) driver: Driver,
    pub(crate) detector: &'static str,
    pub(crate) live_routing: bool,
    pub(crate) top_band_ceiling: Option<f64>,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) band_bytes: u64,
    /// Whether the probabilistic admitter stands in front.
    pub(crate) admitter: bool,
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) fairness: &'static str,
    pub(crate) ordering: &'static str,
    /// Whether the profile has every filter and scorer that remembers or counts something.
    pub(crate) remembers: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            limit: "soft-reflective-ceiling-policy",
            stale_after: Span::secs(3600),
            ttl: Some(Span::secs(60)),
            no_endpoint_ttl: Some(Span::secs(60)),
            max_requests: None,
            band_requests: 5000,
            priorities: vec![100, 0, -50],
            flow_control: true,
            driver: Driver::Upstream,
            detector: "utilization-detector",
            live_routing: false,
            top_band_ceiling: None,
            max_bytes: None,
            band_bytes: 1_000_000_000,
            admitter: false,
            gate: plugin("open-gate", &[]).gate.unwrap(),
            fairness: "global-strict-fairness-policy",
            ordering: "fcfs-ordering-policy",
            remembers: false,
        }
    }
}

impl Setup {
    pub(crate) fn template(&self) -> BandTemplate {
        BandTemplate {
            max_bytes: self.band_bytes,
            max_requests: self.band_requests,
            fairness: plugin(self.fairness, &[]).fairness.unwrap(),
            ordering: plugin(self.ordering, &[]).ordering.unwrap(),
        }
    }

    fn limit(&self) -> Arc<dyn UsageLimit> {
        let given = match self.limit {
            "priority-holdback-policy" => vec![("minCeiling", Value::Float(0.5))],
            _ => Vec::new(),
        };
        plugin(self.limit, &given).limit.unwrap()
    }

    fn detector(&self) -> Arc<dyn Detector> {
        let given = match self.detector {
            "utilization-detector" | "inflight-aware-detector" => {
                vec![("metricsStalenessThreshold", Value::Span(self.stale_after))]
            }
            UNTIL_SCRAPE => {
                let given = [
                    ("metricsStalenessThreshold", Value::Span(self.stale_after)),
                    ("pendingUntil", Value::Text("scrape".into())),
                ];
                return plugin("inflight-aware-detector", &given).detector.unwrap();
            }
            _ => vec![
                ("maxConcurrency", Value::Int(3)),
                ("maxTokenConcurrency", Value::Int(900)),
                ("concurrencyMode", Value::Text("hybrid".into())),
            ],
        };
        plugin(self.detector, &given).detector.unwrap()
    }

    fn profile(&self) -> Profile {
        let mut scorers =
            vec![("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0)];
        let mut filters = Vec::new();
        let session = [("strategy", Value::Text("session_id".into()))];
        let given = |name: &str| if name.starts_with("session") { &session[..] } else { &[] };
        if self.remembers {
            scorers.extend([
                ("no-hit-lru-scorer", 1.0),
                ("session-affinity-scorer", 1.0),
                ("token-load-scorer", 1.0),
                ("active-request-scorer", 1.0),
                ("lora-affinity-scorer", 1.0),
                ("latency-scorer", 1.0),
            ]);
            filters.extend(["prefix-cache-affinity-filter", "session-affinity-filter"]);
        }
        Profile {
            name: "default".into(),
            filters: filters.iter().map(|name| plugin(name, given(name)).filter.unwrap()).collect(),
            scorers: scorers
                .iter()
                .map(|&(name, weight)| WeightedScorer {
                    name: name.into(),
                    weight,
                    scorer: plugin(name, given(name)).scorer.unwrap(),
                })
                .collect(),
            picker: plugin("max-score-picker", &[]).picker.unwrap(),
        }
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::new(Plan {
            flow: self.flow_control.then(|| FlowPlan {
                max_bytes: self.max_bytes,
                max_requests: self.max_requests,
                ttl: self.ttl,
                no_endpoint_ttl: self.no_endpoint_ttl,
                bands: self
                    .priorities
                    .iter()
                    .map(|&priority| BandPlan { priority, template: self.template() })
                    .collect(),
                default_band: self.template(),
                default_negative_band: self.template(),
                limit: self.limit(),
                gate: self.gate.clone(),
                driver: self.driver,
                top_band_ceiling: self.top_band_ceiling,
            }),
            detector: self.detector(),
            admitters: self
                .admitter
                .then(|| plugin("probabilistic-admitter", &[]).admitter.unwrap())
                .into_iter()
                .collect(),
            prefill: None,
            profile: self.profile(),
            prefix: plugin("approx-prefix-cache-producer", &[]).prefix,
            live_routing: self.live_routing,
            inflight: plugin(
                "inflight-load-producer",
                &[("addEstimatedOutputTokens", Value::Bool(self.remembers))],
            )
            .inflight
            .unwrap(),
        })
    }
}

pub(crate) fn sample(waiting: f64, kv: f64) -> Sample {
    Sample {
        waiting: Reading::Value(waiting),
        running: Reading::Value(1.0),
        kv: Reading::Value(kv),
        block_tokens: Some(16),
        blocks: Some(1000),
    }
}

/// Something that happens `after` the last thing.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) after: Span,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Offer { flow: u8, priority: i32, bytes: u64, ttl: Option<Span>, prefix: u8 },
    Adapters { endpoint: usize, running: u8 },
    Gone { which: usize },
    Progress { which: usize, progress: u8 },
    Scrape { endpoint: usize, waiting: u8, kv: u8 },
    Add { role: &'static str },
    Remove { endpoint: usize },
    Available { endpoint: usize, available: bool },
    Retry { which: usize, endpoint: usize },
    Nothing,
    Provision { priorities: Vec<i32> },
    Drain,
    Close,
}

/// What the model of the loop knows, too: no bands that come and go, no ejection, no retry, no end.
pub(crate) fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(timed(usual().boxed()), 1..max)
}

/// Everything.
pub(crate) fn all_steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![
        60 => usual(),
        3 => prop::collection::vec(prop::sample::select(vec![200, 100, 7, -1, -60]), 0..4)
            .prop_map(|priorities| What::Provision { priorities }),
        4 => any::<(usize, bool)>()
            .prop_map(|(endpoint, available)| What::Available { endpoint, available }),
        6 => any::<(usize, usize)>().prop_map(|(which, endpoint)| What::Retry { which, endpoint }),
    ];
    let last = prop_oneof![1 => Just(What::Drain), 1 => Just(What::Close)];
    // Most of a run is not past its end.
    (
        prop::collection::vec(timed(what.boxed()), 1..max),
        prop::collection::vec(timed(usual().boxed()), 0..12),
        timed(last.boxed()),
    )
        .prop_map(|(mut steps, rest, last)| {
            steps.push(last);
            steps.extend(rest);
            steps
        })
}

fn timed(what: BoxedStrategy<What>) -> impl Strategy<Value = Step> {
    let after = prop_oneof![
        6 => 0u64..3_000_000,
        2 => Just(0u64),
        2 => (0u64..20).prop_map(|n| n * 1_000_000),
        1 => 0u64..400_000_000,
        1 => 0u64..70_000_000_000,
    ];
    (after, what).prop_map(|(ns, what)| Step { after: Span(ns), what })
}

fn usual() -> impl Strategy<Value = What> {
    prop_oneof![
        8 => (0u8..4, prop::sample::select(vec![100, 0, -50, 7, -1]), 1u64..2000,
              prop::option::weighted(0.1, (1u64..2_000).prop_map(Span::millis)), 0u8..6)
            .prop_map(|(flow, priority, bytes, ttl, prefix)| What::Offer { flow, priority, bytes, ttl, prefix }),
        2 => any::<usize>().prop_map(|which| What::Gone { which }),
        3 => (any::<usize>(), 0u8..5).prop_map(|(which, progress)| What::Progress { which, progress }),
        6 => (any::<usize>(), 0u8..8, 0u8..100)
            .prop_map(|(endpoint, waiting, kv)| What::Scrape { endpoint, waiting, kv }),
        1 => prop::sample::select(vec!["", "", "prefill", "both"]).prop_map(|role| What::Add { role }),
        1 => any::<usize>().prop_map(|endpoint| What::Remove { endpoint }),
        1 => (any::<usize>(), 0u8..3).prop_map(|(endpoint, running)| What::Adapters { endpoint, running }),
        1 => Just(What::Nothing),
    ]
}

/// What the kernel said, flattened for comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Dispatched { at: Nanos, id: Id },
    Ended { at: Nanos, id: Id, why: String },
}

fn adapters(running: u8) -> Arc<Adapters> {
    let running = (0..running).map(|n| format!("m{n}")).collect();
    Arc::new(Adapters { running, waiting: vec!["m 1".into()], max: 2 })
}

/// Drives a kernel through steps, waking it exactly when it asks.
pub(crate) struct Driven {
    pub(crate) kernel: Kernel,
    pub(crate) fx: Effects,
    pub(crate) now: Nanos,
    pub(crate) said: Vec<Said>,
    pub(crate) ids: Vec<Id>,
    pub(crate) endpoints: Vec<forebay_kernel::EndpointId>,
    /// Requests that were tried again, perhaps in vain; as often as they were.
    pub(crate) retried: Vec<Id>,
}

impl Driven {
    pub(crate) fn new(plan: Arc<Plan>, mut fx: Effects) -> Driven {
        let kernel = Kernel::new(plan, 7, Nanos::ZERO, &mut fx);
        Driven {
            kernel,
            fx,
            now: Nanos::ZERO,
            said: Vec::new(),
            ids: Vec::new(),
            endpoints: Vec::new(),
            retried: Vec::new(),
        }
    }

    fn take(&mut self, at: Nanos) {
        for e in self.fx.list.drain(..) {
            self.said.push(match e {
                Effect::Dispatch { id, .. } => Said::Dispatched { at, id },
                Effect::End { id, refusal, .. } => Said::Ended { at, id, why: refusal.to_string() },
            });
        }
    }

    pub(crate) fn until(&mut self, t: Nanos) {
        while let Some(wake) = self.kernel.next_wake().filter(|&w| w <= t) {
            assert!(wake >= self.now, "wakes lie ahead");
            self.now = wake;
            self.kernel.wake(wake, &mut self.fx);
            self.take(wake);
            if let Some(next) = self.kernel.next_wake() {
                // Only a turn that was cut off goes on at once.
                let cut = self.kernel.plan().flow.as_ref().is_some_and(|f| f.driver == Driver::Event);
                assert!(next > wake || cut, "a wake does not ask for itself again");
            }
        }
        self.now = t;
    }

    pub(crate) fn step(&mut self, step: &Step) {
        self.until(self.now + step.after);
        let (now, k, fx) = (self.now, &mut self.kernel, &mut self.fx);
        match step.what.clone() {
            What::Offer { flow, priority, bytes, ttl, prefix } => {
                let name = format!("f{flow}");
                let prefix: Arc<[u64]> = (0..u64::from(prefix)).collect();
                let ask = forebay_kernel::Ask {
                    flow: &name,
                    priority,
                    bytes,
                    prompt_tokens: bytes as u32 / 4,
                    prefix,
                    block_tokens: 64,
                    streaming: bytes % 2 == 0,
                    ttl,
                    model: format!("m{}", flow % 2).into(),
                    session: if flow == 3 { "".into() } else { name.as_str().into() },
                    slo_ttft: (flow > 1).then_some(Span::millis(bytes)),
                    max_output_tokens: (flow == 1).then_some(5),
                    slo_tpot: None,
                    sticky: Arc::default(),
                };
                self.ids.push(k.offer(now, &ask, fx));
            }
            What::Gone { which } if !self.ids.is_empty() => {
                k.gone(now, self.ids[which % self.ids.len()], fx);
            }
            What::Progress { which, progress } if !self.ids.is_empty() => {
                let usage = Usage { prompt: Some(9), completion: Some(7) };
                let p = [
                    Progress::FirstToken,
                    Progress::Finished(usage),
                    Progress::Failed,
                    Progress::Output(4),
                    Progress::Finished(Usage::default()),
                ][progress as usize % 5];
                k.progress(now, self.ids[which % self.ids.len()], p, fx);
            }
            What::Scrape { endpoint, waiting, kv } if !self.endpoints.is_empty() => {
                let id = self.endpoints[endpoint % self.endpoints.len()];
                k.scraped(now, id, now, &sample(f64::from(waiting), f64::from(kv) / 100.0), fx);
            }
            What::Add { role } => {
                let mut spec = forebay_kernel::EndpointSpec::named(format!("e{}", self.endpoints.len()));
                if !role.is_empty() {
                    spec.labels.push(("llm-d.ai/role".into(), role.into()));
                }
                self.endpoints.push(k.add_endpoint(now, spec, fx));
            }
            What::Remove { endpoint } if !self.endpoints.is_empty() => {
                k.remove_endpoint(now, self.endpoints[endpoint % self.endpoints.len()], fx);
            }
            What::Available { endpoint, available } if !self.endpoints.is_empty() => {
                k.set_available(now, self.endpoints[endpoint % self.endpoints.len()], available, fx);
            }
            What::Retry { which, endpoint } if !self.ids.is_empty() && !self.endpoints.is_empty() => {
                let avoid = self.endpoints[endpoint % self.endpoints.len()];
                self.retried.push(self.ids[which % self.ids.len()]);
                k.retry(now, self.ids[which % self.ids.len()], avoid, fx);
            }
            What::Adapters { endpoint, running } if !self.endpoints.is_empty() => {
                k.adapters(now, self.endpoints[endpoint % self.endpoints.len()], adapters(running), fx);
            }
            What::Provision { priorities } => k.provision(now, &priorities, fx),
            What::Drain => k.drain(now, fx),
            What::Close => k.close(now, fx),
            _ => {}
        }
        self.take(now);
    }
}
