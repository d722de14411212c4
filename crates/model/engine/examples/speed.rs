//! What the engine costs: nanoseconds per sequence-step and per request, step by step and in bulk.
//!
//! ```text
//! cargo run --release -p forebay-engine --example speed
//! ```
//!
//! One Qwen3-14B on an H100 with 256 sequences and 2048 tokens per step, under the three length
//! distributions of llm-d's study of priority admission, at 0.9 of the rate that keeps it saturated.
#![allow(clippy::print_stdout, reason = "this is a program")]
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use forebay_base::{Draws, Nanos, Purpose, math};
use forebay_engine::{Engine, EngineEvent, EngineSpec, Job, Resolved, StepMode};
use std::time::Instant;

/// Lengths: lognormal or normal, then clamped.
#[derive(Clone, Copy)]
enum Length {
    Lognormal(f64, f64),
    Normal(f64, f64),
}

struct Load {
    name: &'static str,
    input: (Length, f64, f64),
    output: (Length, f64, f64),
    requests: u64,
}

const LOADS: [Load; 3] = [
    Load {
        name: "code",
        input: (Length::Lognormal(7.0659, 0.7033), 100.0, 10_000.0),
        output: (Length::Lognormal(5.2711, 1.2498), 50.0, 10_000.0),
        requests: 40_000,
    },
    Load {
        name: "chat",
        input: (Length::Lognormal(3.6647, 0.7033), 10.0, 1000.0),
        output: (Length::Normal(300.0, 150.0), 10.0, 1000.0),
        requests: 60_000,
    },
    Load {
        name: "reasoning",
        input: (Length::Lognormal(6.6604, 0.7033), 100.0, 5000.0),
        output: (Length::Lognormal(8.7337, 0.712), 500.0, 32_000.0),
        requests: 4000,
    },
];

fn draw((length, low, high): (Length, f64, f64), draws: Draws, purpose: Purpose, n: u64) -> u32 {
    // Marsaglia's polar method.
    let normal = (0u64..)
        .find_map(|lane| {
            let u = 2.0 * draws.unit(purpose, n, 2 * lane) - 1.0;
            let v = 2.0 * draws.unit(purpose, n, 2 * lane + 1) - 1.0;
            let s = u * u + v * v;
            (s > 0.0 && s < 1.0).then(|| u * (-2.0 * math::ln(s) / s).sqrt())
        })
        .expect("three of four draws lie in the circle");
    let x = match length {
        Length::Lognormal(mu, sigma) => math::exp(mu + sigma * normal),
        Length::Normal(mean, sd) => mean + sd * normal,
    };
    x.clamp(low, high).round() as u32
}

fn jobs(load: &Load, rate: Option<f64>) -> Vec<(Nanos, Job)> {
    let draws = Draws::new(1);
    (0..load.requests)
        .map(|id| {
            let prompt = draw(load.input, draws, Purpose::named("input"), id);
            let job = Job {
                id,
                prompt_tokens: prompt,
                output_tokens: draw(load.output, draws, Purpose::named("output"), id),
                prefix: (0..u64::from(prompt / 16)).map(|i| (id << 20) | i).collect(),
                priority: 0,
                class: 0,
                lora: None,
            };
            (rate.map_or(Nanos::ZERO, |r| Nanos((id as f64 * 1e9 / r) as u64)), job)
        })
        .collect()
}

/// Runs all jobs; milestones, the time of the last token, and the tokens generated.
fn run(config: &Resolved, mode: StepMode, jobs: Vec<(Nanos, Job)>) -> (Vec<EngineEvent>, Nanos, u64) {
    let mut engine = Engine::with_mode(config, Nanos::ZERO, mode);
    engine.milestones_only();
    engine.record_gaps();
    let mut events = Vec::new();
    for (at, job) in jobs {
        while let Some(next) = engine.next_event().filter(|&next| next < at) {
            engine.advance(next, &mut events);
        }
        engine.arrive(at, job).expect("the lengths are within the model's");
    }
    while let Some(next) = engine.next_event() {
        engine.advance(next, &mut events);
    }
    let p = engine.published();
    (events, p.at, p.generation_tokens)
}

/// Time this thread has spent on a processor, where Linux tells it: other programs do not count then.
fn busy_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

fn main() {
    println!(
        "{:<10} {:>8} {:>9} {:>12} {:>12} {:>12} {:>12} {:>7}",
        "load", "caching", "req/s", "exact ns/ss", "macro ns/ss", "exact ns/req", "macro ns/req", "ratio"
    );
    for load in &LOADS {
        for caching in [true, false] {
            let mut spec = EngineSpec::named("qwen3-14b", "h100").expect("both are in the catalogue");
            (spec.max_num_seqs, spec.max_num_batched_tokens) = (Some(256), Some(2048));
            spec.gpu_memory_utilization = 0.9;
            spec.prefix_caching = caching;
            let config = spec.resolve().expect("it fits");
            let (_, end, _) = run(&config, StepMode::Macro, jobs(load, None));
            let rate = 0.9 * load.requests as f64 / (end.0 as f64 / 1e9);
            let mut cost = Vec::new();
            let mut results = Vec::new();
            for mode in [StepMode::Exact, StepMode::Macro] {
                let jobs = jobs(load, Some(rate));
                let (start, busy) = (Instant::now(), busy_ns());
                results.push(run(&config, mode, jobs));
                let spent = busy_ns().zip(busy).map(|(now, then)| now - then);
                cost.push(spent.unwrap_or(start.elapsed().as_nanos() as u64) as f64);
            }
            assert!(results[0].0 == results[1].0, "the modes disagree");
            let (steps, requests) = (results[0].2 as f64, load.requests as f64);
            println!(
                "{:<10} {:>8} {:>9.2} {:>12.2} {:>12.2} {:>12.0} {:>12.0} {:>7.1}",
                load.name,
                caching,
                rate,
                cost[0] / steps,
                cost[1] / steps,
                cost[0] / requests,
                cost[1] / requests,
                cost[0] / cost[1]
            );
        }
    }
}
