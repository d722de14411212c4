//! Prompts at one server, answers at another.

use crate::rig::{arrival, poisson, simulate};
use forebay_base::{Nanos, Span};
use forebay_engine::StepMode;
use forebay_kernel::Plan;
use forebay_kernel::replay::replay;
use forebay_records::End;
use forebay_sim::{Cluster, Options};
use std::sync::Arc;

fn plan(decider: &str) -> Arc<Plan> {
    let text = format!(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - type: disagg-profile-handler
    parameters: {{deciders: {{prefill: decider}}}}
  - {{name: decider, {decider}}}
  - type: prefill-filter
  - type: decode-filter
  - type: queue-scorer
schedulingProfiles:
  - {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: queue-scorer}}]}}
  - {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: queue-scorer}}]}}
flowControl: {{defaultRequestTTL: 0s}}
"
    );
    let all = forebay_kernel::plugins::ALL;
    let config = forebay_config::load(&text, "test", all, forebay_config::Options::default()).unwrap();
    Arc::new(config.plan(&[100, -50]))
}

const ALWAYS: &str = "type: always-disagg-pd-decider";

fn cluster(link: &str, blocks: u32) -> Cluster {
    let args = format!(
        "args: {{max-num-seqs: 256, max-num-batched-tokens: 2048, num-gpu-blocks-override: {blocks}}}"
    );
    let text = format!(
        "version: 1
engines:
  - {{name: p, model: qwen3-14b, hardware: h100, role: prefill, {args}}}
  - {{name: d, count: 2, model: qwen3-14b, hardware: h100, role: decode, {args}}}
kvTransfer: {link}
"
    );
    Cluster::read(&text, "test").unwrap()
}

/// qwen3-14b keeps 40 layers of 8 heads of 128 keys and values of two bytes: 163 840 bytes per token. At
/// 16.384 GB/s, a prompt of 1 000 tokens takes 10 ms, and 20 ms at half of that.
#[test]
fn the_transfer_takes_the_bytes_of_the_prompt_over_the_bandwidth() {
    let ttft = |link: &str| {
        let run = simulate(
            &plan(ALWAYS),
            &cluster(link, 4000),
            vec![arrival(0, Nanos(5), 1000, 20)],
            &Options::new(1),
        );
        let r = run.rows[0];
        assert_eq!((r.end, r.output_tokens, run.counters.disaggregated), (End::Finished, 20, 1));
        assert_eq!(run.counters.transferred_tokens, 1000);
        assert!(r.endpoint.is_some_and(|e| e > 0));
        r.ttft().unwrap()
    };
    let fast = ttft("{bandwidth: 16384M, latency: 0s}");
    assert_eq!(ttft("{bandwidth: 8192M, latency: 0s}").0 - fast.0, Span::millis(10).0);
    assert_eq!(ttft("{bandwidth: 16384M, latency: 3ms}").0 - fast.0, Span::millis(3).0);
}

#[test]
fn the_decider_keeps_short_prompts_where_they_decode() {
    let plan = plan("type: prefix-based-pd-decider, parameters: {nonCachedTokens: 500}");
    let arrivals = poisson(4, 300, 10.0, |n| (if n % 3 == 0 { 1200 } else { 100 }, 30));
    let run = simulate(&plan, &cluster("{}", 4000), arrivals, &Options::new(4));
    assert_eq!((run.counters.disaggregated, run.counters.transferred_tokens), (100, 100 * 1200));
    for r in &run.rows {
        assert!(r.end == End::Finished && r.endpoint != Some(0), "{r:?}");
        let stages =
            [Some(r.arrived), r.dispatched, r.engine_arrived, r.scheduled, r.first_token, r.finished];
        assert!(stages.into_iter().map(Option::unwrap).is_sorted(), "{r:?}");
    }
}

/// With few blocks, time-outs, a failure and a drain: one end each, the same in both step modes, and the
/// router's decisions replay.
#[test]
fn everything_has_one_end_and_both_step_modes_agree() {
    // Near what the pool can do, and far beyond it.
    for (seed, rate, blocks) in [(0, 5.0, 1200), (1, 5.0, 1200), (0, 12.0, 900)] {
        agrees(seed, rate, blocks);
    }
}

fn agrees(seed: u64, rate: f64, blocks: u32) {
    let mut c = cluster("{bandwidth: 4G}", blocks);
    let text = "version: 1
engines:
  - {name: p, model: qwen3-14b, hardware: h100, role: prefill}
  - {name: d, count: 2, model: qwen3-14b, hardware: h100, role: decode}
timeline:
  - {at: 20s, engine: d-2, change: fail}
  - {at: 25s, engine: d-2, change: join}
  - {at: 40s, engine: d-1, change: drain}
";
    c.incidents = Cluster::read(text, "test").unwrap().incidents;
    let go = |steps| {
        let mut arrivals =
            poisson(seed, 600, rate, |n| (64 + (n * 997 % 3000) as u32, 5 + (n * 31 % 700) as u32));
        for a in &mut arrivals {
            a.timeout = Some(Span::secs(30));
            let shared = a.number % 5;
            a.prefix = (0..u64::from(a.prompt_tokens / 16).min(40)).map(|i| 1000 * shared + i + 1).collect();
        }
        let options = Options { steps, decisions: true, gaps: true, ..Options::new(seed) };
        let mut run = simulate(&plan(ALWAYS), &c, arrivals, &options);
        run.counters.events = 0;
        run
    };
    let (exact, bulk) = (go(StepMode::Exact), go(StepMode::Macro));
    assert_eq!(exact.rows.len(), 600);
    assert!(exact.counters.preemptions > 0 && exact.counters.disaggregated > 100, "{:?}", exact.counters);
    for end in [End::Finished, End::Failed, End::TimedOut] {
        assert!(exact.rows.iter().any(|r| r.end == end), "none {end:?}");
    }
    // Nothing else is lost than what `d-2` had or was to decode.
    assert!(exact.rows.iter().filter(|r| r.end == End::Failed).all(|r| r.endpoint == Some(2)));
    assert_eq!((&exact.rows, &exact.counters), (&bulk.rows, &bulk.counters));
    assert_eq!((&exact.scaling, &exact.decisions), (&bulk.scaling, &bulk.decisions));
    assert_eq!(format!("{:?}", exact.gaps), format!("{:?}", bulk.gaps));
    assert_eq!(replay(plan(ALWAYS), exact.decisions.as_deref().unwrap()).unwrap().difference, None);
}
