//! Plans, clusters and traffic for tests.

use forebay_base::{Draws, Nanos, Purpose, Span, math};
use forebay_engine::EngineSpec;
use forebay_kernel::Plan;
use forebay_sim::{Cluster, Network, Options, Run, Script, run};
use forebay_workload::Arrival;
use std::sync::Arc;

/// Flow control with the scorers of the built-in configuration; `more` goes under `plugins`, `flow` under
/// `flowControl`.
pub(crate) fn plan(more: &str, flow: &str) -> Arc<Plan> {
    let text = format!(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
{more}
schedulingProfiles:
  - name: default
    plugins:
      - {{pluginRef: queue-scorer, weight: 2}}
      - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
      - {{pluginRef: prefix-cache-scorer, weight: 3}}
flowControl: {{defaultRequestTTL: 0s, {flow}}}
"
    );
    let all = forebay_kernel::plugins::ALL;
    let config = forebay_config::load(&text, "test", all, forebay_config::Options::default()).unwrap();
    Arc::new(config.plan(&[100, -50]))
}

pub(crate) fn soft() -> Arc<Plan> {
    plan(
        "  - type: soft-reflective-ceiling-policy",
        "usageLimitPolicyPluginRef: soft-reflective-ceiling-policy",
    )
}

pub(crate) fn cluster(count: u32, adjust: impl Fn(&mut EngineSpec)) -> Cluster {
    let mut spec = EngineSpec::named("qwen3-14b", "h100").unwrap();
    spec.max_num_seqs = Some(256);
    spec.max_num_batched_tokens = Some(2048);
    spec.gpu_memory_utilization = 0.9;
    adjust(&mut spec);
    Cluster::uniform("h100", count, spec.resolve().unwrap())
}

pub(crate) const NO_NETWORK: Network = Network { to_engine: Span::ZERO, to_client: Span::ZERO };

/// `n` requests with exponential gaps at `rate` per second, alternating between two priorities, with
/// sizes from `size(number)` as (prompt, output).
pub(crate) fn poisson(seed: u64, n: u64, rate: f64, size: impl Fn(u64) -> (u32, u32)) -> Vec<Arrival> {
    let (draws, gap) = (Draws::new(seed), Purpose::named("test-gap"));
    let mut at = 0.0;
    let one = |number| {
        at -= math::ln(draws.unit(gap, number, 0)) / rate;
        let (prompt_tokens, output_tokens) = size(number);
        arrival(number, Nanos::ZERO + Span::from_secs_f64(at), prompt_tokens, output_tokens)
    };
    (0..n).map(one).collect()
}

pub(crate) fn arrival(number: u64, at: Nanos, prompt_tokens: u32, output_tokens: u32) -> Arrival {
    let critical = number.is_multiple_of(2);
    Arrival {
        number,
        at,
        class: u16::from(!critical),
        flow: 0,
        priority: if critical { 100 } else { -50 },
        prompt_tokens,
        output_tokens,
        prefix: [].into(),
        bytes: u64::from(prompt_tokens) * 4,
        timeout: None,
        slo_ttft: None,
        session: None,
        lora: None,
        attempt: 0,
        key: number,
    }
}

pub(crate) fn simulate(
    plan: &Arc<Plan>,
    cluster: &Cluster,
    arrivals: Vec<Arrival>,
    options: &Options,
) -> Run {
    run(plan, cluster, &mut Script::new(arrivals), &|_| "default-flow".to_owned(), options)
}
