//! What servers are busy with at a rate.

use crate::Setup;
use forebay_base::Nanos;
use forebay_engine::{Demand, Work};
use forebay_kernel::Plan;
use forebay_sim::{Cluster, Options, Point, Run};
use forebay_workload::Workload;
use std::sync::Arc;

/// What keeps a pool from carrying more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Sequences that may run at once.
    Sequences,
    /// Room for the KV cache, by memory or by the saturation at which the router stops.
    KvBlocks,
    /// Floating-point operations.
    Compute,
    /// Bytes read from memory.
    Memory,
    /// Overheads of steps, sequences and collectives.
    Host,
}

impl Limit {
    /// For tables.
    pub const fn label(self) -> &'static str {
        match self {
            Limit::Sequences => "sequences (max-num-seqs)",
            Limit::KvBlocks => "KV blocks",
            Limit::Compute => "compute",
            Limit::Memory => "memory bandwidth",
            Limit::Host => "overhead per step and sequence",
        }
    }
}

/// What the servers of a pool are busy with. Shares are means over servers and time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// The rate, requests per second.
    pub rate: f64,
    /// Share of the time that each resource is busy; `None` if the servers are not alike, or come and go.
    pub busy: Option<Demand>,
    /// Share of the KV blocks in use.
    pub kv: f64,
    /// The same at the 95th percentile over time.
    pub kv_p95: f64,
    /// Sequences running, over the most that may.
    pub sequences: f64,
    /// The same at the 95th percentile.
    pub sequences_p95: f64,
    /// Requests waiting in a server.
    pub waiting: f64,
    /// What limits.
    pub limit: Limit,
}

/// Points of the timeline that shares are averaged over.
const POINTS: u64 = 2_000;
/// Sequences are what limits if so large a share of the most runs on average.
const FULL_SEQUENCES: f64 = 0.95;
/// KV blocks are what limits if so many are in use on average: routers begin to hold back at 0.8 of them.
const FULL_KV: f64 = 0.75;

/// Runs the workload at its rate and looks at the servers after its warm-up.
pub(crate) fn of(plan: &Arc<Plan>, cluster: &Arc<Cluster>, workload: &Workload, seed: u64) -> Usage {
    let setup = Setup { plan: Arc::clone(plan), cluster: Arc::clone(cluster), workload: workload.clone() };
    let options = Options { sample: Some(setup.sampling(POINTS)), ..Options::new(0) };
    let mut work = Work::default();
    let run = setup.run_into(seed, options, &mut |row| {
        if row.scheduled.is_none() {
            return;
        }
        let (cached, out) = (u64::from(row.cached_tokens), u64::from(row.output_tokens));
        let fresh = u64::from(row.prompt_tokens) - cached.min(u64::from(row.prompt_tokens));
        work.prefill_tokens += fresh;
        work.prefill_pairs += u128::from(fresh) * u128::from(cached) + u128::from(fresh * (fresh + 1) / 2);
        // The first token comes out of the prefill.
        let decodes = out.saturating_sub(1);
        work.decode_tokens += out;
        work.decode_context +=
            u128::from(decodes) * u128::from(row.prompt_tokens) + u128::from(decodes * (decodes + 1) / 2);
    });
    work.steps = run.counters.steps;
    let busy = alike(cluster).then(|| {
        let all = cluster.servers[0].engine.latency.demand(&work);
        let time = run.ended_at.since(Nanos::ZERO).as_secs_f64() * cluster.servers.len() as f64;
        let share = |seconds: f64| seconds / time.max(1e-9);
        Demand {
            prefill_compute: share(all.prefill_compute),
            decode_compute: share(all.decode_compute),
            weights: share(all.weights),
            kv: share(all.kv),
            host: share(all.host),
        }
    });
    let mut usage = rooms(cluster, &run, workload);
    usage.busy = busy;
    usage.limit = limit(&usage);
    usage
}

/// Whether all servers are equal and there from beginning to end, so that time and steps are those of any.
fn alike(cluster: &Cluster) -> bool {
    if !(cluster.incidents.is_empty() && cluster.scales.is_empty() && cluster.autoscalers.is_empty()) {
        return false;
    }
    let mut engines = cluster.servers.iter().map(|s| s.engine.to_string());
    let first = engines.next();
    first.is_some() && engines.all(|e| Some(e) == first)
}

/// Shares over the timeline after the warm-up.
fn rooms(cluster: &Cluster, run: &Run, workload: &Workload) -> Usage {
    let measured = workload.mode.measured();
    let points: Vec<&Point> = run.timeline.points.iter().filter(|p| measured.holds(p.at)).collect();
    let (mut kv, mut sequences, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for p in points {
        for (s, server) in p.servers.iter().zip(&cluster.servers) {
            kv.push(s.kv);
            sequences.push(f64::from(s.running) / f64::from(server.engine.max_num_seqs.max(1)));
            waiting.push(f64::from(s.waiting));
        }
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let p95 = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        forebay_records::stats::rank(0.95, v.len() as u64).map_or(0.0, |r| v[r as usize - 1])
    };
    Usage {
        rate: workload.rate(),
        busy: None,
        kv: mean(&kv),
        kv_p95: p95(&mut kv),
        sequences: mean(&sequences),
        sequences_p95: p95(&mut sequences),
        waiting: mean(&waiting),
        limit: Limit::KvBlocks,
    }
}

/// Room first: a full batch or cache holds requests back however busy the rest is.
fn limit(u: &Usage) -> Limit {
    if u.sequences >= FULL_SEQUENCES {
        return Limit::Sequences;
    }
    if u.kv >= FULL_KV {
        return Limit::KvBlocks;
    }
    let Some(b) = u.busy else {
        return if u.sequences >= u.kv { Limit::Sequences } else { Limit::KvBlocks };
    };
    let busy = [
        (b.prefill_compute + b.decode_compute, Limit::Compute),
        (b.weights + b.kv, Limit::Memory),
        (b.host, Limit::Host),
    ];
    busy.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(Limit::Host, |(_, l)| l)
}
