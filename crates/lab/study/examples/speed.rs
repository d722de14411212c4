//! What simulated requests cost, as Markdown tables.
//!
//! ```text
//! cargo run --release -p forebay-study --example speed -- [REQUESTS]
//! cargo run --release -p forebay-study --example speed -- one WORKLOAD exact|macro RATE REQUESTS
//! ```
//!
//! Qwen3-14B on H100 servers, the three workloads of the soft-reflective study at 0.9 of the reference capacity of
//! two such servers, with its configuration, `examples/article.yaml`. One thread; where Linux tells it, the time
//! that this thread has spent on a processor, so that other programs do not count. REQUESTS is the length of the
//! long run, ten million if it is not given; the other runs have fixed lengths. With `one` there is a single run and
//! no search, for profilers and for comparing two versions: the same digest is the same end of every request.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program")]

use forebay_config::Config;
use forebay_engine::{Engine, EngineEvent, Job, StepMode};
use forebay_kernel::Plan;
use forebay_records::{End, Row};
use forebay_sim::{Cluster, Options, Run};
use forebay_study::capacity::{Search, capacity};
use forebay_study::{Policy, Setup};
use forebay_workload::{Arrival, Workload};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

const ARTICLE: &str = include_str!("../../../../examples/article.yaml");
const SEED: u64 = 1;
/// Share of the reference capacity.
const SHARE: f64 = 0.9;
/// The workloads, and requests of a run.
const WORKLOADS: [(&str, f64); 3] = [("code", 200_000.0), ("chat_30", 400_000.0), ("reasoning", 20_000.0)];
/// Servers of the second table.
const ENDPOINTS: [u32; 4] = [2, 10, 100, 1000];
/// Simulated seconds that a run of the second table lasts at least, so that every pool fills up.
const LEAST: f64 = 300.0;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Nanoseconds spent by this thread, or passed where the system does not say.
struct Clock(Instant, Option<u64>);

impl Clock {
    fn start() -> Clock {
        Clock(Instant::now(), Clock::busy())
    }

    fn busy() -> Option<u64> {
        std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }

    fn spent(&self) -> f64 {
        let busy = Clock::busy().zip(self.1).map(|(now, then)| now - then);
        busy.unwrap_or(self.0.elapsed().as_nanos() as u64) as f64
    }
}

/// The most memory that this process has had, as the kernel tells it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.map_or("not told".to_owned(), |kib| format!("{:.1} MiB", kib / 1024.0))
}

fn cluster(servers: u32, caching: bool) -> Result<Arc<Cluster>> {
    let adjust = |spec: &mut forebay_engine::EngineSpec| {
        (spec.max_num_seqs, spec.max_num_batched_tokens) = (Some(256), Some(2048));
        spec.gpu_memory_utilization = 0.9;
        spec.prefix_caching = caching;
    };
    Ok(Arc::new(Cluster::parse(&format!("{servers}xh100"), "qwen3-14b", "servers", adjust)?))
}

/// The configuration of the study for a workload's bands.
fn article(workload: &Workload) -> Result<Arc<Plan>> {
    let all = forebay_kernel::plugins::ALL;
    let options = forebay_config::Options::default();
    let config: Config = forebay_config::load(ARTICLE, "examples/article.yaml", all, options)?;
    Ok(Arc::new(config.plan(&Setup::priorities(workload))))
}

/// A preset at a rate, for so many requests.
fn workload(name: &str, rate: f64, requests: f64) -> Result<Workload> {
    let mut w = Workload::preset(name).ok_or("the presets have it")?.with_rate(rate);
    w.mode.window = forebay_base::Span::from_secs_f64(requests / rate);
    Ok(w)
}

fn reference(name: &str) -> Result<f64> {
    let w = Workload::preset(name).ok_or("the presets have it")?;
    let plan = Arc::new(Policy::live().load()?.plan(&Setup::priorities(&w)));
    Ok(capacity(&plan, &cluster(2, true)?, &w, w.rate(), Search::QUICK))
}

/// A simulation: its time, what it counted, the tokens that it generated, and what must not depend on the mode.
struct Cost {
    ns: f64,
    run: Run,
    tokens: f64,
    finished: u64,
    digest: u64,
}

impl Cost {
    /// In per cent; those that do not finish cost less of an engine and more of a queue.
    fn finished(&self) -> f64 {
        100.0 * self.finished as f64 / self.run.counters.arrived as f64
    }

    fn per_request(&self) -> f64 {
        self.ns / self.run.counters.arrived as f64
    }
}

fn simulate(w: &Workload, cluster: &Arc<Cluster>, steps: StepMode) -> Result<Cost> {
    let setup = Setup { plan: article(w)?, cluster: Arc::clone(cluster), workload: w.clone() };
    let (mut tokens, mut finished, mut digest) = (0u64, 0u64, 0u64);
    let mut sink = |row: Row| {
        tokens += u64::from(row.output_tokens);
        finished += u64::from(row.end == End::Finished);
        // A sum: rows come in the order in which they end, which is the same, but need not be for this.
        let parts = [row.number, row.first_token.map_or(0, |t| t.0), row.finished.map_or(0, |t| t.0)];
        let mixed = parts.iter().fold(u64::from(row.preemptions), |h, p| {
            (h ^ p).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        digest = digest.wrapping_add(mixed);
    };
    let clock = Clock::start();
    let run = setup.run_into(SEED, Options { steps, ..Options::new(SEED) }, &mut sink);
    let ns = clock.spent();
    Ok(Cost { ns, run, tokens: tokens as f64, finished, digest })
}

/// One engine by itself under half of the arrivals' rate: nanoseconds per request and per token generated.
fn engine_only(w: &Workload, cluster: &Cluster, steps: StepMode) -> Result<(f64, f64)> {
    let half = w.with_rate(w.rate() / 2.0);
    let mut arrivals = half.arrivals(SEED);
    let all: Vec<Arrival> = std::iter::from_fn(|| arrivals.next()).collect();
    let jobs = all.iter().map(|a| {
        let (id, prefix) = (a.number, Arc::clone(&a.prefix));
        let (prompt_tokens, output_tokens) = (a.prompt_tokens, a.output_tokens);
        (a.at, Job { id, prompt_tokens, output_tokens, prefix, priority: 0, class: 0, lora: None })
    });
    let jobs: Vec<_> = jobs.collect();
    let config = &cluster.servers.first().ok_or("there is a server")?.engine;
    let mut events: Vec<EngineEvent> = Vec::new();
    let requests = jobs.len() as f64;
    let clock = Clock::start();
    let mut engine = Engine::with_mode(config, forebay_base::Nanos::ZERO, steps);
    engine.milestones_only();
    for (at, job) in jobs {
        while let Some(next) = engine.next_event().filter(|&next| next < at) {
            events.clear();
            engine.advance(next, &mut events);
        }
        engine.arrive(at, job).map_err(|e| e.to_string())?;
    }
    while let Some(next) = engine.next_event() {
        events.clear();
        engine.advance(next, &mut events);
    }
    let ns = clock.spent();
    Ok((ns / requests, ns / engine.published().generation_tokens as f64))
}

/// Many requests, one at a time. The peak of memory is made to start from what is held now, where the system can.
fn long_run(rate: f64, requests: f64) -> Result<()> {
    let (w, pool) = (workload("code", rate, requests)?, cluster(2, true)?);
    let reset = std::fs::write("/proc/self/clear_refs", "5").is_ok();
    eprintln!(
        "{requests} requests{}",
        if reset { "" } else { "; the peak before them is that of the search" }
    );
    let before = peak_memory();
    let c = simulate(&w, &pool, StepMode::Macro)?;
    println!(
        "| requests | in the system at once, at most | peak memory before | after | seconds | requests/s |"
    );
    println!("|---|---|---|---|---|---|");
    let (n, most) = (c.run.counters.arrived, c.run.counters.peak_live);
    println!(
        "| {n} | {most} | {before} | {} | {:.1} | {:.0} |\n",
        peak_memory(),
        c.ns / 1e9,
        1e9 / c.per_request()
    );
    Ok(())
}

/// Workloads, prefix caching and step modes: the engine alone, and the whole simulation.
fn by_workload(rates: &[f64]) -> Result<()> {
    println!(
        "| workload | requests/s | prefix caching | steps | engine: ns per request | per sequence-step | simulation: ns per request | per event | per sequence-step |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for ((name, requests), rate) in WORKLOADS.into_iter().zip(rates) {
        let w = workload(name, *rate, requests)?;
        eprintln!("{name} at {rate:.2} requests/s");
        for caching in [true, false] {
            let pool = cluster(2, caching)?;
            let mut digests = Vec::new();
            for (steps, mode) in [(StepMode::Exact, "exact"), (StepMode::Macro, "macro")] {
                let (request, step) = engine_only(&w, &pool, steps)?;
                let c = simulate(&w, &pool, steps)?;
                println!(
                    "| {name} | {rate:.2} | {} | {mode} | {request:.0} | {step:.1} | {:.0} | {:.0} | {:.1} |",
                    if caching { "on" } else { "off" },
                    c.per_request(),
                    c.ns / c.run.counters.events as f64,
                    c.ns / c.tokens,
                );
                digests.push(c.digest);
            }
            assert_eq!(digests[0], digests[1], "{name}: the modes disagree");
        }
    }
    println!();
    Ok(())
}

/// More servers with as much more traffic.
fn by_endpoints(rate: f64) -> Result<()> {
    println!(
        "| endpoints | requests/s | requests | finished, % | ns per request | per event | per sequence-step |"
    );
    println!("|---|---|---|---|---|---|---|");
    for n in ENDPOINTS {
        let rate = rate * f64::from(n) / 2.0;
        eprintln!("{n} endpoints");
        let w = workload("code", rate, (LEAST * rate).max(WORKLOADS[0].1))?;
        let c = simulate(&w, &cluster(n, true)?, StepMode::Macro)?;
        let counters = &c.run.counters;
        println!(
            "| {n} | {rate:.1} | {} | {:.1} | {:.0} | {:.0} | {:.1} |",
            counters.arrived,
            c.finished(),
            c.per_request(),
            c.ns / counters.events as f64,
            c.ns / c.tokens
        );
    }
    Ok(())
}

/// One run over two servers with prefix caching.
fn one(args: &[String]) -> Result<()> {
    let [name, steps, rate, requests] = args else {
        return Err("one: expected WORKLOAD exact|macro RATE REQUESTS".into());
    };
    let steps = match steps.as_str() {
        "exact" => StepMode::Exact,
        "macro" => StepMode::Macro,
        other => return Err(format!("{other:?}: expected exact or macro").into()),
    };
    let number = |text: &str| {
        text.parse::<f64>().ok().filter(|x| *x > 0.0).ok_or(format!("{text:?}: no number above 0"))
    };
    let c = simulate(&workload(name, number(rate)?, number(requests)?)?, &cluster(2, true)?, steps)?;
    let counters = &c.run.counters;
    println!(
        "{} requests, {:.1} events and {:.0} ns each, digest {:016x}",
        counters.arrived,
        counters.events as f64 / counters.arrived as f64,
        c.per_request(),
        c.digest
    );
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "one") {
        return one(&args[1..]);
    }
    let requests = match args.first() {
        None => 1e7,
        Some(n) => n.parse::<u32>().map_err(|e| format!("REQUESTS: {e}: {n}"))?.into(),
    };
    let rates =
        WORKLOADS.iter().map(|(name, _)| Ok(SHARE * reference(name)?)).collect::<Result<Vec<f64>>>()?;
    long_run(rates[0], requests)?;
    by_workload(&rates)?;
    by_endpoints(rates[0])
}
