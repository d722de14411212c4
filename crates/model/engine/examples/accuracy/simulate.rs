//! One measured run on the engine.

use crate::data::{Experiment, Metrics};
use forebay_base::{Draws, Nanos, Purpose, Span, math};
use forebay_engine::{
    Engine, EngineEvent, EngineSpec, Factors, Hardware, Job, ModelConfig, Resolved, StepMode, Version,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What came out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The whole run, then each stage.
    pub(crate) stages: Vec<Metrics>,
    pub(crate) sent: u64,
    pub(crate) completed: u64,
}

fn resolve(e: &Experiment, factors: Factors) -> Result<Resolved, String> {
    let model = ModelConfig::find(&e.model).map_err(|d| d.to_string())?;
    let hardware = Hardware { factors, ..*Hardware::find(&e.gpu).map_err(|d| d.to_string())? };
    let version = Version::find(&e.version).map_err(|d| d.to_string())?;
    let mut spec = EngineSpec::with_version(model, &hardware, version);
    spec.tp = e.tp;
    spec.max_model_len = Some(e.max_model_len);
    spec.max_num_seqs = Some(e.max_num_seqs);
    spec.max_num_batched_tokens = Some(e.max_num_batched_tokens);
    spec.gpu_memory_utilization = e.memory_utilization;
    spec.num_gpu_blocks_override = e.blocks;
    spec.resolve().map_err(|d| format!("{}: {d}", e.id))
}

/// KV blocks as computed, where the server reported its own: computed, reported.
pub(crate) fn capacity(e: &Experiment, factors: Factors) -> Result<Option<(u32, u32)>, String> {
    let Some(reported) = e.blocks else { return Ok(None) };
    let computed = resolve(&Experiment { blocks: None, ..e.clone() }, factors)?;
    Ok(Some((computed.num_gpu_blocks, reported)))
}

/// The fixed prompts in the order in which they are sent: tokens and block names.
fn prompts(e: &Experiment, draws: Draws) -> Vec<(u32, Arc<[u64]>)> {
    let n = u64::from(e.groups * e.prompts_per_group);
    let (_, least, most) = e.prompt_tokens;
    let mut all: Vec<(u32, Arc<[u64]>)> = (0..n)
        .map(|p| {
            let group = p / u64::from(e.prompts_per_group);
            let tokens = least + (most - least) * draws.unit(Purpose::named("prompt length"), p, 0);
            let tokens = tokens.round() as u32;
            let shared = u64::from(e.system_tokens / 16);
            let names = (0..u64::from(tokens / 16))
                .map(|i| if i < shared { ((group + 1) << 40) | i } else { ((p + 1) << 20) | i });
            (tokens, names.collect())
        })
        .collect();
    for i in (1..n).rev() {
        all.swap(i as usize, draws.below(Purpose::named("shuffle"), i, 0, i + 1) as usize);
    }
    all
}

/// Send times and stages: exponential gaps, scaled so that each stage lasts as long as it should.
fn arrivals(e: &Experiment, draws: Draws) -> Vec<(Nanos, usize)> {
    let mut all = Vec::new();
    let mut start = 0.0;
    for (stage, &(duration, requests)) in e.load.iter().enumerate() {
        let purpose = Purpose::named("gap");
        let gap = |i: u32| -math::ln(1.0 - draws.unit(purpose, (stage as u64) << 32 | u64::from(i), 0));
        let gaps: Vec<f64> = (0..requests).map(gap).collect();
        let scale = duration / gaps.iter().sum::<f64>();
        let mut at = start;
        for g in gaps {
            at += g * scale;
            all.push((Nanos((at * 1e9) as u64), stage));
        }
        start += duration;
    }
    all
}

#[derive(Clone, Copy, Default)]
struct Life {
    arrived: Nanos,
    stage: usize,
    first: Option<Nanos>,
    finished: Option<Nanos>,
}

/// Books milestones.
fn book(lives: &mut [Life], events: &mut Vec<EngineEvent>) {
    for event in events.drain(..) {
        match event {
            EngineEvent::Token { id, index: 0, at } => lives[id as usize].first = Some(at),
            EngineEvent::Finished { id, at, .. } => lives[id as usize].finished = Some(at),
            _ => {}
        }
    }
}

pub(crate) fn run(e: &Experiment, factors: Factors, seed: u64) -> Result<Outcome, String> {
    let config = resolve(e, factors)?;
    let draws = Draws::new(seed);
    let (prompts, arrivals) = (prompts(e, draws), arrivals(e, draws));
    let mut engines: Vec<Engine> =
        (0..e.replicas).map(|_| Engine::with_mode(&config, Nanos::ZERO, StepMode::Macro)).collect();
    let mut lives: Vec<Life> = Vec::with_capacity(arrivals.len());
    let mut deadlines: VecDeque<(Nanos, u64)> = VecDeque::new();
    let mut events = Vec::new();
    let patience = Span::from_secs_f64(e.timeout_s);
    loop {
        let arrival = arrivals.get(lives.len()).copied();
        let idle = engines.iter().all(|engine| engine.live() == 0);
        let deadline = deadlines.front().copied().filter(|_| !idle);
        let Some(now) = arrival.map(|a| a.0).into_iter().chain(deadline.map(|d| d.0)).min() else { break };
        for engine in &mut engines {
            engine.advance(now, &mut events);
        }
        book(&mut lives, &mut events);
        if let Some((at, stage)) = arrival.filter(|a| a.0 == now) {
            let id = lives.len();
            let (prompt_tokens, prefix) = prompts[id % prompts.len()].clone();
            let job = Job {
                id: id as u64,
                prompt_tokens,
                output_tokens: e.output_tokens,
                prefix,
                priority: 0,
                class: 0,
                lora: None,
            };
            let engine = id % engines.len();
            engines[engine].arrive(at, job).map_err(|x| format!("{}: {x}", e.id))?;
            lives.push(Life { arrived: at, stage, ..Life::default() });
            deadlines.push_back((at + patience, id as u64));
        } else if let Some((at, id)) = deadlines.pop_front() {
            for engine in &mut engines {
                engine.abort(at, id);
            }
        }
    }
    Ok(outcome(e, &lives))
}

fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q * last as f64;
    let (low, high) = (sorted[at as usize], sorted[(at as usize + 1).min(last)]);
    Some(low + (high - low) * at.fract())
}

fn metrics(e: &Experiment, lives: &[Life], stage: Option<usize>) -> Metrics {
    let (mut ttft, mut e2e) = (Vec::new(), Vec::new());
    for life in lives.iter().skip(e.skip).filter(|l| stage.is_none_or(|s| s == l.stage)) {
        if let (Some(first), Some(end)) = (life.first, life.finished) {
            ttft.push(first.since(life.arrived).as_millis_f64());
            e2e.push(end.since(life.arrived).as_millis_f64());
        }
    }
    ttft.sort_by(f64::total_cmp);
    e2e.sort_by(f64::total_cmp);
    let mean = |v: &[f64]| (!v.is_empty()).then(|| v.iter().sum::<f64>() / v.len() as f64);
    let tokens = f64::from(e.output_tokens - 1);
    Metrics {
        ttft: [mean(&ttft), quantile(&ttft, 0.9), quantile(&ttft, 0.99)],
        tpot: mean(&e2e).zip(mean(&ttft)).map(|(e, t)| (e - t) / tokens),
        e2e: [mean(&e2e), quantile(&e2e, 0.99)],
    }
}

fn outcome(e: &Experiment, lives: &[Life]) -> Outcome {
    let mut stages = vec![metrics(e, lives, None)];
    stages.extend((0..e.load.len()).map(|s| metrics(e, lives, Some(s))));
    Outcome {
        stages,
        sent: lives.len() as u64,
        completed: lives.iter().filter(|l| l.finished.is_some()).count() as u64,
    }
}

/// All experiments, on two threads, in their order.
pub(crate) fn all(
    experiments: &[Experiment],
    factors: impl Fn(&Experiment) -> Factors + Sync,
) -> Result<Vec<Outcome>, String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(e) = experiments.get(i) else { return done };
            done.push((i, run(e, factors(e), 1)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut done = work();
        done.extend(other.join().expect("a simulation does not panic"));
        done
    });
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}
