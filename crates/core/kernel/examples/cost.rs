//! What one request costs the kernel: offer, dispatch, first token and end, in nanoseconds.
//!
//! `cargo run --release -p forebay-kernel --example cost`
//!
//! Every request finds a pool with room and is dispatched within its offer. Prompts are of 2000 tokens
//! in blocks of 64; flows share a system prompt of half of that, the rest is the flow's own.
#![allow(clippy::disallowed_methods, reason = "an example that measures has to read the clock")]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use forebay_base::{Nanos, Span};
use forebay_kernel::plan::{BandPlan, BandTemplate, Driver, FlowPlan, Plan, Profile, WeightedScorer};
use forebay_kernel::plugin::{Built, Value};
use forebay_kernel::policy::Usage;
use forebay_kernel::{
    Ask, Effect, Effects, EndpointSpec, Id, Kernel, Progress, Reading, Sample, plugins, prefix,
};
use std::sync::Arc;
use std::time::Instant;

/// Requests of a round; the best of [`ROUNDS`] is told, because other work on the machine only adds.
const REQUESTS: u64 = 20_000;
const ROUNDS: u64 = 10;
const RUNNING: usize = 64;

fn plugin(name: &str, given: &[(&'static str, Value)]) -> Built {
    let d = plugins::find(name).expect("a plugin of the kernel");
    let mut values = d.presets();
    values.0.retain(|(n, _)| !given.iter().any(|(m, _)| m == n));
    values.0.extend(given.iter().cloned());
    (d.build)(&values).expect("parameters in range")
}

fn plan(bands: i32, scorers: &[(&str, f64)]) -> Arc<Plan> {
    let template = BandTemplate {
        max_bytes: 1_000_000_000,
        max_requests: 5000,
        fairness: plugin("global-strict-fairness-policy", &[]).fairness.expect("it is one"),
        ordering: plugin("fcfs-ordering-policy", &[]).ordering.expect("it is one"),
    };
    // The clock of a run stands for less than this.
    let fresh = [("metricsStalenessThreshold", Value::Span(Span::secs(1_000_000)))];
    let scorers = scorers.iter().map(|&(name, weight)| WeightedScorer {
        name: name.into(),
        weight,
        scorer: plugin(name, &[]).scorer.expect("it is one"),
    });
    Arc::new(Plan {
        flow: Some(FlowPlan {
            max_bytes: None,
            max_requests: None,
            ttl: Some(Span::secs(60)),
            no_endpoint_ttl: Some(Span::secs(60)),
            bands: (0..bands)
                .rev()
                .map(|priority| BandPlan { priority, template: template.clone() })
                .collect(),
            default_band: template.clone(),
            default_negative_band: template,
            limit: plugin("soft-reflective-ceiling-policy", &[]).limit.expect("it is one"),
            gate: plugin("open-gate", &[]).gate.expect("it is one"),
            driver: Driver::Upstream,
            top_band_ceiling: None,
        }),
        detector: plugin("utilization-detector", &fresh).detector.expect("it is one"),
        admitters: Vec::new(),
        prefill: None,
        profile: Profile {
            name: "default".into(),
            filters: Vec::new(),
            scorers: scorers.collect(),
            picker: plugin("max-score-picker", &[]).picker.expect("it is one"),
        },
        prefix: plugin("approx-prefix-cache-producer", &[]).prefix,
        live_routing: false,
        inflight: forebay_kernel::plan::InflightPlan::default(),
    })
}

fn chains(flows: usize, block: u32) -> Vec<Arc<[u64]>> {
    (0..flows)
        .map(|flow| {
            let mut text = "You are a helpful assistant. ".repeat(138);
            text.push_str(&format!("user {flow} says something else. ").repeat(138));
            text.truncate(8_000);
            let mut out = Vec::new();
            prefix::hash_chain("model", None, text.as_bytes(), block, None, &mut out);
            out.into()
        })
        .collect()
}

/// Nanoseconds per request.
fn run(flows: usize, bands: i32, endpoints: u64, scorers: &[(&str, f64)]) -> f64 {
    let mut fx = Effects::new();
    let mut k = Kernel::new(plan(bands, scorers), 1, Nanos::ZERO, &mut fx);
    for n in 0..endpoints {
        let id = k.add_endpoint(Nanos::ZERO, EndpointSpec::named(format!("endpoint-{n}")), &mut fx);
        let sample = Sample {
            waiting: Reading::Value((n % 2) as f64),
            running: Reading::Value(8.0),
            kv: Reading::Value((n % 10) as f64 / 50.0),
            block_tokens: Some(16),
            blocks: Some(100_000),
        };
        k.scraped(Nanos::ZERO, id, Nanos::ZERO, &sample, &mut fx);
    }
    let block = k.block_tokens();
    let names: Vec<String> = (0..flows).map(|n| format!("tenant-{n}")).collect();
    let chains = chains(flows, block);
    let mut running: [Option<Id>; RUNNING] = [None; RUNNING];
    let (mut started, mut best) = (Instant::now(), u128::MAX);
    for n in 0..REQUESTS * (ROUNDS + 1) {
        // The first round lets tables and index grow.
        if n > 0 && n % REQUESTS == 0 {
            if n > REQUESTS {
                best = best.min(started.elapsed().as_nanos());
            }
            started = Instant::now();
        }
        let (now, flow) = (Nanos(n * 20_000), (n % flows as u64) as usize);
        if let Some(id) = running[n as usize % RUNNING].take() {
            k.progress(now, id, Progress::Finished(Usage::default()), &mut fx);
        }
        let ask = Ask {
            flow: &names[flow],
            priority: (n % bands as u64) as i32,
            bytes: 8_000,
            prompt_tokens: 2_000,
            prefix: chains[flow].clone(),
            block_tokens: block,
            streaming: true,
            ttl: None,
            ..Ask::default()
        };
        let id = k.offer(now, &ask, &mut fx);
        assert!(matches!(fx.list[..], [Effect::Dispatch { .. }]), "{:?}", fx.list);
        fx.list.clear();
        k.progress(now, id, Progress::FirstToken, &mut fx);
        running[n as usize % RUNNING] = Some(id);
    }
    best.min(started.elapsed().as_nanos()) as f64 / REQUESTS as f64
}

fn main() {
    let article = [("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0)];
    println!("flows bands endpoints   ns/request   without scorers");
    for endpoints in [2, 100] {
        for bands in [1, 8] {
            for flows in [1, 100, 1000] {
                let (all, none) = (run(flows, bands, endpoints, &article), run(flows, bands, endpoints, &[]));
                println!("{flows:>5} {bands:>5} {endpoints:>9} {all:>12.0} {none:>17.0}");
            }
        }
    }
}
