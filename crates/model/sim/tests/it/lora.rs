//! Adapters: how many distinct ones an engine runs at once, and what routers see of them.

use crate::rig::{arrival, plan, poisson, simulate};
use forebay_base::{Nanos, Span};
use forebay_engine::StepMode;
use forebay_kernel::Plan;
use forebay_kernel::replay::replay;
use forebay_records::End;
use forebay_sim::{Cluster, Options};
use std::sync::Arc;

/// Two servers under `args`.
fn cluster(args: &str) -> Cluster {
    let text = format!(
        "version: 1
engines:
  - {{count: 2, model: qwen3-14b, hardware: h100, args: {{{args}}}}}
"
    );
    Cluster::read(&text, "test").unwrap()
}

/// Nothing but affinity chooses.
fn affinity() -> Arc<Plan> {
    let text = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins: [{type: lora-affinity-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: lora-affinity-scorer}]}]
flowControl: {defaultRequestTTL: 0s}
";
    let all = forebay_kernel::plugins::ALL;
    let config = forebay_config::load(text, "test", all, forebay_config::Options::default()).unwrap();
    Arc::new(config.plan(&[100, -50]))
}

/// Ten requests a second apart, all longer than that, with two adapters in turn. An idle server has room for
/// an adapter (0.8), one that runs it is better (1), and one that runs the other has no room (0).
#[test]
fn affinity_gives_each_adapter_a_server_of_its_own() {
    let places = |args: &str| -> Vec<u32> {
        let arrivals = (0..10)
            .map(|n| {
                let mut a = arrival(n, Nanos::ZERO + Span::secs(n), 100, 2000);
                a.lora = Some((n % 2) as u16);
                a
            })
            .collect();
        let run = simulate(&affinity(), &cluster(args), arrivals, &Options::new(1));
        assert!(run.rows.iter().all(|r| r.end == End::Finished));
        run.rows.iter().map(|r| r.endpoint.unwrap()).collect()
    };
    let apart = places("max-loras: 1");
    assert_ne!(apart[0], apart[1]);
    assert!(apart.iter().enumerate().all(|(n, e)| *e == apart[n % 2]), "{apart:?}");
    // Engines that do not say what they run leave it to chance.
    let mixed = places("max-num-seqs: 256");
    assert!(mixed.iter().enumerate().any(|(n, e)| *e != mixed[n % 2]), "{mixed:?}");
}

/// The second request's adapter is one too many until the first has nothing left to do; the third has the
/// adapter that runs, and does not wait for the second.
#[test]
fn an_adapter_too_many_waits_in_the_engine() {
    let text = "version: 1
engines: [{model: qwen3-14b, hardware: h100, args: {max-loras: 1}}]";
    let waits = |second: u16| -> Vec<Span> {
        let mut all: Vec<_> = (0..3).map(|n| arrival(n, Nanos(n * 100_000_000), 100, 100)).collect();
        for (a, lora) in all.iter_mut().zip([0, second, 0]) {
            a.lora = Some(lora);
        }
        let run = simulate(&affinity(), &Cluster::read(text, "test").unwrap(), all, &Options::new(1));
        if second == 1 {
            let (second, third) = (run.rows[1], run.rows[2]);
            assert!(second.scheduled.unwrap() > run.rows[0].finished.unwrap());
            assert!(second.first_token.unwrap() > third.finished.unwrap());
        }
        run.rows.iter().map(|r| r.scheduled.unwrap().since(r.engine_arrived.unwrap())).collect()
    };
    let step = Span::millis(30);
    assert!(waits(0).iter().all(|w| *w < step));
    let waits = waits(1);
    assert!(waits[0] < step && waits[2] < step && waits[1] > Span::millis(500), "{waits:?}");
}

/// More adapters than run at once, few blocks: the same in both step modes, and the decisions replay.
#[test]
fn both_step_modes_agree() {
    let c = cluster("max-loras: 2, max-num-seqs: 64, num-gpu-blocks-override: 1500");
    let plan = plan(
        "  - type: lora-affinity-scorer
  - type: soft-reflective-ceiling-policy",
        "usageLimitPolicyPluginRef: soft-reflective-ceiling-policy",
    );
    for (seed, plan) in [(0, &plan), (1, &affinity())] {
        let go = |steps| {
            let mut arrivals =
                poisson(seed, 500, 6.0, |n| (64 + (n * 997 % 2000) as u32, 5 + (n * 31 % 500) as u32));
            for a in &mut arrivals {
                a.timeout = Some(Span::secs(30));
                a.lora = (a.number % 3 > 0).then_some((a.number % 7) as u16);
            }
            let options = Options { steps, decisions: true, gaps: true, ..Options::new(seed) };
            let mut run = simulate(plan, &c, arrivals, &options);
            run.counters.events = 0;
            run
        };
        let (exact, bulk) = (go(StepMode::Exact), go(StepMode::Macro));
        assert_eq!(exact.rows.len(), 500);
        let log = exact.decisions.as_deref().unwrap();
        assert!(log.contains(" adapters ") && exact.counters.preemptions > 0, "{:?}", exact.counters);
        assert_eq!((&exact.rows, &exact.counters), (&bulk.rows, &bulk.counters));
        assert_eq!(exact.decisions, bulk.decisions);
        assert_eq!(format!("{:?}", exact.gaps), format!("{:?}", bulk.gaps));
        assert_eq!(replay(Arc::clone(plan), log).unwrap().difference, None);
    }
}
