//! One kernel, two worlds: the same requests through the simulator and through a live stack, and how far apart the two
//! are.
//!
//! The simulated side is one run under the seed of the live one, with the delays that a probe measured, and around it
//! runs over the same requests in which ties, the places of scrapes, their jitter and the network's delay are
//! drawn anew. A simulated figure is the median of all of them, and their least and greatest value are its range: a live
//! figure inside of it says nothing, one outside is a finding. Distributions and decisions are those of the one run. Where the live run is one more of the kind, a figure is outside of the range of `n` runs with
//! probability 2 / (n + 1).

pub mod decisions;
mod delays;
mod distance;
mod page;

pub use decisions::{Alike, Decision, Decisions, EndpointSeen, Parting, Seen};
pub use delays::{Delays, Spread};
pub use distance::kolmogorov_smirnov;
pub use page::{ShareRow, Shown, UNMATCHED, Unit, json, page};

use crate::parallel::{Progress, parallel};
use crate::summary::{ClassSummary, Metric, Summary};
use crate::vary;
use decisions::{alike, parting};
use forebay_base::{Nanos, Span};
use forebay_kernel::Plan;
use forebay_records::stats::Schedule;
use forebay_records::{End, Row};
use forebay_sim::{Cluster, Options, Run};
use forebay_workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The latencies that are compared.
pub const METRICS: [Metric; 3] = [Metric::Ttft, Metric::Tpot, Metric::E2e];
/// The parts of the time to first token.
pub const PARTS: [Metric; 4] = [Metric::Gateway, Metric::Network, Metric::EngineWait, Metric::Prefill];
/// The percentiles that are compared: places in [`crate::summary::QUANTILES`], with a name.
pub const PERCENTILES: [(usize, &str); 3] = [(0, "p50"), (1, "p90"), (3, "p99")];

/// What both worlds are made of.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What decides.
    pub plan: Arc<Plan>,
    /// The name of its configuration.
    pub config: String,
    /// The servers, with the delays that were declared.
    pub cluster: Cluster,
    /// What comes; as long as the live run took it.
    pub workload: Workload,
    /// Of arrivals, lengths and the router's draws.
    pub seed: u64,
    /// Runs around the simulated one.
    pub runs: u64,
    /// What the probe measured; the simulated cluster has these delays.
    pub probe: Delays,
}

/// What came out of the live side, on the clock of the run.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// By the number of the request. Latencies count from the schedule.
    pub rows: Vec<Row>,
    /// Of its router.
    pub decisions: Decisions,
    /// Delays in the run itself.
    pub delays: Delays,
    /// Whether the schedule was kept.
    pub schedule: Option<Schedule>,
    /// When the last request ended.
    pub ended_at: Nanos,
}

/// A figure on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Median of the simulated runs; the lower one of two.
    pub sim: Option<f64>,
    /// Live.
    pub live: Option<f64>,
    /// Least and greatest of the runs around the simulated one, itself included; `None` if one has no value.
    pub range: Option<(f64, f64)>,
}

impl Figure {
    fn of(
        runs: &[ClassSummary],
        live: &ClassSummary,
        value: impl Fn(&ClassSummary) -> Option<f64>,
    ) -> Figure {
        let all: Option<Vec<f64>> = runs.iter().map(&value).collect();
        let range = all.filter(|a| !a.is_empty()).map(|a| {
            let least = a.iter().copied().fold(f64::INFINITY, f64::min);
            (least, a.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        });
        // What has no value is beyond all others.
        let mut sorted: Vec<Option<f64>> = runs.iter().map(&value).collect();
        sorted.sort_by(|a, b| a.unwrap_or(f64::INFINITY).total_cmp(&b.unwrap_or(f64::INFINITY)));
        let middle = sorted.get(sorted.len().saturating_sub(1) / 2).copied().flatten();
        Figure { sim: middle, live: value(live), range }
    }

    /// Live over simulated; `None` without both or over nothing.
    pub fn ratio(&self) -> Option<f64> {
        let (sim, live) = (self.sim?, self.live?);
        (sim != 0.0).then(|| live / sim)
    }

    /// Whether the live figure is outside of the range; `None` if that cannot be said.
    pub fn is_outside(&self) -> Option<bool> {
        let (low, high) = self.range?;
        let live = self.live?;
        Some(live < low || live > high)
    }
}

/// A latency of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// Which.
    pub metric: Metric,
    /// By [`PERCENTILES`], in nanoseconds.
    pub percentiles: [Figure; 3],
    /// Kolmogorov-Smirnov distance of live and simulated.
    pub distance: Option<f64>,
    /// The greatest of the runs around the simulated one from it.
    pub distance_range: Option<f64>,
}

/// How many requests ended in one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// `finished`, `rejected, REASON`, `timed-out`, `failed`, `cancelled` or `censored`.
    pub how: String,
    /// How many.
    pub count: Figure,
}

/// A class on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassParity {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Requests in the measured window.
    pub offered: Figure,
    /// What became of them, as far as it occurs anywhere.
    pub ends: Vec<Ended>,
    /// By [`METRICS`].
    pub latencies: Vec<Latency>,
    /// By [`PARTS`]: mean over the requests that have the part, in nanoseconds.
    pub parts: Vec<(Metric, Figure)>,
    /// Finished requests per second of the window.
    pub finished_rate: Figure,
    /// Their output tokens.
    pub token_rate: Figure,
    /// Share of the requests that met the deadlines, if there are any.
    pub goodput: Option<Figure>,
    /// Times to first token in nanoseconds, simulated and live.
    pub ttft: [Vec<Option<u64>>; 2],
}

/// Whether both sides were asked the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Requests, simulated and live.
    pub requests: [u64; 2],
    /// Requests of both whose class or prompt has another length, in tokens as the server counts them.
    pub other_prompt: u64,
    /// Requests that finished in both with another number of tokens.
    pub other_output: u64,
    /// Prompt tokens found in prefix caches.
    pub cached: [u64; 2],
    /// Preemptions.
    pub preemptions: [u64; 2],
}

/// How alike the decisions are.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionParity {
    /// Live and simulated.
    pub live: Alike,
    /// Each of the runs around the simulated one, and it.
    pub runs: Vec<Alike>,
    /// Where live and simulated part.
    pub parting: Option<Parting>,
    /// What each knew when it decided on the request of the parting; simulated and live.
    pub seen: [Option<Seen>; 2],
    /// Class of that request.
    pub class: String,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq)]
pub struct Parity {
    /// The workload's name.
    pub workload: String,
    /// The cluster's.
    pub cluster: String,
    /// The configuration's.
    pub config: String,
    /// Names of the endpoints.
    pub endpoints: Vec<String>,
    /// Of arrivals and all draws.
    pub seed: u64,
    /// Runs around the simulated one.
    pub runs: u64,
    /// Requests per second.
    pub rate: f64,
    /// Length of the measured window in seconds.
    pub seconds: f64,
    /// When the last request ended, simulated and live.
    pub ended_at: [Nanos; 2],
    /// Highest priority first.
    pub classes: Vec<ClassParity>,
    /// `None` if requests follow from what became of others, so that their numbers mean different ones.
    pub decisions: Option<DecisionParity>,
    /// What was asked; see there.
    pub inputs: Inputs,
    /// Delays as the probe measured them.
    pub probe: Delays,
    /// Delays in the live run.
    pub delays: Delays,
    /// Whether the live run kept its schedule.
    pub schedule: Option<Schedule>,
}

/// Simulated runs that a comparison takes.
pub fn runs(ask: &Ask) -> u64 {
    ask.runs + 1
}

/// One simulated side: run 0 under the seed itself and the measured delays, the others with ties, scrapes and network
/// of their own. Arrivals are the same in all.
fn simulate(ask: &Ask, cluster: &Cluster, run: u64, decisions: bool) -> Run {
    let draws = ask.seed.wrapping_add(run);
    let varied = if run == 0 { cluster.clone() } else { vary::network(cluster, draws) };
    let mode = ask.workload.mode;
    let options = Options {
        window: mode.arrivals_end(),
        horizon: mode.end(),
        decisions,
        tells_output: true,
        ..Options::new(draws)
    };
    let mut arrivals = ask.workload.arrivals(ask.seed);
    let name = |flow| ask.workload.flow_name(flow);
    forebay_sim::run(&ask.plan, &varied, &mut arrivals, &name, &options)
}

/// Whether requests follow from what became of others.
fn follows(workload: &Workload) -> bool {
    let arrivals = workload.arrivals(0);
    (0..workload.classes.len() as u16).any(|c| arrivals.follows(c))
}

/// Runs the simulated side and sets the live one beside it. Results do not depend on `threads`.
pub fn compare(ask: &Ask, live: &Live, threads: usize, progress: &Progress) -> Parity {
    let cluster = ask.probe.apply(&ask.cluster);
    let matched = !follows(&ask.workload);
    let sides = parallel(runs(ask) as usize, threads, progress, |i| side(ask, &cluster, i as u64, matched));
    let reference = &sides[0];
    let of_live = Summary::of_rows(&live.rows, &[], None, &ask.workload, live.ended_at);
    let mut classes: Vec<ClassParity> = (0..ask.workload.classes.len())
        .map(|c| {
            let runs: Vec<ClassSummary> = sides.iter().map(|s| s.summary.classes[c].clone()).collect();
            class(&runs, &of_live.classes[c], &values(&sides, c, ask), &values_of(&live.rows, c, ask))
        })
        .collect();
    classes.sort_by_key(|c| std::cmp::Reverse(c.priority));
    let decisions = matched.then(|| decided(ask, &sides, live));
    Parity {
        workload: ask.workload.name.clone(),
        cluster: ask.cluster.name.clone(),
        config: ask.config.clone(),
        endpoints: ask.cluster.servers.iter().map(|s| s.name.clone()).collect(),
        seed: ask.seed,
        runs: ask.runs,
        rate: ask.workload.rate(),
        seconds: ask.workload.mode.measured().length().as_secs_f64(),
        ended_at: [reference.ended_at, live.ended_at],
        classes,
        decisions,
        inputs: inputs(&reference.rows, &live.rows, matched),
        probe: ask.probe,
        delays: live.delays,
        schedule: live.schedule,
    }
}

/// A simulated side.
struct Side {
    summary: Summary,
    rows: Vec<Row>,
    decisions: Decisions,
    ended_at: Nanos,
}

fn side(ask: &Ask, cluster: &Cluster, run: u64, matched: bool) -> Side {
    let mut ran = simulate(ask, cluster, run, matched);
    let log = ran.decisions.take().unwrap_or_default();
    let mut decisions = Decisions::read(log, 0, |n, _| ran.dispatches.get(n).copied());
    if run > 0 {
        decisions.forget_log();
    }
    for row in &mut ran.rows {
        if let End::Rejected(reason) = &mut row.end {
            *reason = as_told(reason);
        }
    }
    let summary = Summary::of_rows(&ran.rows, &[], None, &ask.workload, ran.ended_at);
    Side { summary, rows: ran.rows, decisions, ended_at: ran.ended_at }
}

/// What a client is told of the kernel's reason to refuse a request, in `x-llm-d-request-dropped-reason`.
fn as_told(reason: &'static str) -> &'static str {
    match reason {
        "EvictedTTL" => "rejected-ttl-expired",
        "RejectedNoEndpoints" | "EvictedNoEndpoints" | "NoCandidates" => "rejected-no-endpoints",
        "RejectedCapacity" | "Denied" | "Shed" | "FilteredOut" => "rejected-saturated",
        other => other,
    }
}

/// By metric of [`METRICS`], the values of a class in the measured window.
type Values = Vec<Vec<Option<u64>>>;

fn values(sides: &[Side], class: usize, ask: &Ask) -> Vec<Values> {
    sides.iter().map(|s| values_of(&s.rows, class, ask)).collect()
}

fn values_of(rows: &[Row], class: usize, ask: &Ask) -> Values {
    let window = ask.workload.mode.measured();
    let mine = || rows.iter().filter(|r| usize::from(r.class) == class && window.holds(r.arrived));
    METRICS
        .iter()
        .map(|m| {
            // As in summaries: who finished with one token has no time per token to judge.
            let judged = mine().filter(|r| *m != Metric::Tpot || !r.came_at_once());
            judged.map(|r| m.of(r).map(|v| v.0)).collect()
        })
        .collect()
}

fn class(runs: &[ClassSummary], live: &ClassSummary, sim: &[Values], own: &Values) -> ClassParity {
    let figure = |value: &dyn Fn(&ClassSummary) -> Option<f64>| Figure::of(runs, live, value);
    let latencies = METRICS.iter().enumerate().map(|(i, metric)| {
        let percentile =
            |(q, _): (usize, &str)| figure(&|c| c.figure(*metric).quantiles[q].value.map(|v| v as f64));
        let others = sim[1..].iter().filter_map(|v| kolmogorov_smirnov(&v[i], &sim[0][i]));
        Latency {
            metric: *metric,
            percentiles: PERCENTILES.map(percentile),
            distance: kolmogorov_smirnov(&own[i], &sim[0][i]),
            distance_range: others.fold(None, |most: Option<f64>, d| Some(most.map_or(d, |m| m.max(d)))),
        }
    });
    let parts = PARTS.map(|m| (m, figure(&|c| c.figure(m).mean)));
    let asked = runs.first().is_some_and(|c| c.goodput.is_some());
    ClassParity {
        name: live.name.clone(),
        priority: live.priority,
        offered: figure(&|c| Some(c.offered as f64)),
        ends: ends(runs, live),
        latencies: latencies.collect(),
        parts: parts.to_vec(),
        finished_rate: figure(&|c| Some(c.throughput.requests_per_second())),
        token_rate: figure(&|c| Some(c.throughput.output_tokens_per_second())),
        goodput: asked.then(|| figure(&|c| c.goodput.map(|g| g.share()))),
        ttft: [sim[0][0].clone(), own[0].clone()],
    }
}

fn ends(runs: &[ClassSummary], live: &ClassSummary) -> Vec<Ended> {
    let count = |how: &str, c: &ClassSummary| match how {
        "finished" => c.finished,
        "timed-out" => c.timed_out,
        "failed" => c.failed,
        "censored" => c.censored,
        rejected => c.rejected.get(rejected).copied().unwrap_or(0),
    };
    let mut reasons: Vec<&str> = runs.iter().chain([live]).flat_map(|c| c.rejected.keys().copied()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let all =
        ["finished"].into_iter().chain(reasons.iter().copied()).chain(["timed-out", "failed", "censored"]);
    all.filter(|how| *how == "finished" || runs.iter().chain([live]).any(|c| count(how, c) > 0))
        .map(|how| Ended {
            how: if reasons.contains(&how) { format!("rejected, {how}") } else { how.to_owned() },
            count: Figure::of(runs, live, |c| Some(count(how, c) as f64)),
        })
        .collect()
}

fn decided(ask: &Ask, sides: &[Side], live: &Live) -> DecisionParity {
    let (sim, own) = (&sides[0].decisions, &live.decisions);
    let parting = parting(&sim.list, &own.list);
    let n = ask.cluster.servers.len();
    let seen = parting.map_or([None, None], |p| {
        [p.request[0].map(|d| sim.seen(&d, n)), p.request[1].map(|d| own.seen(&d, n))]
    });
    let number = parting.and_then(|p| p.there[0].or(p.there[1])).map(|d| d.number);
    let row = number.and_then(|n| sides[0].rows.iter().find(|r| r.number == n));
    let class = row.and_then(|r| ask.workload.classes.get(usize::from(r.class)));
    DecisionParity {
        live: alike(&sim.list, &own.list),
        runs: sides[1..].iter().map(|s| alike(&sim.list, &s.decisions.list)).collect(),
        parting,
        seen,
        class: class.map_or_else(String::new, |c| c.name.clone()),
    }
}

fn inputs(sim: &[Row], live: &[Row], matched: bool) -> Inputs {
    let sum = |f: &dyn Fn(&Row) -> u64| [sim, live].map(|rows| rows.iter().map(f).sum());
    let mut out = Inputs {
        requests: [sim, live].map(|rows| rows.len() as u64),
        cached: sum(&|r| u64::from(r.cached_tokens)),
        preemptions: sum(&|r| u64::from(r.preemptions)),
        ..Inputs::default()
    };
    if matched {
        let by_number: BTreeMap<u64, &Row> = sim.iter().map(|r| (r.number, r)).collect();
        for row in live {
            let Some(other) = by_number.get(&row.number) else { continue };
            let prompt = |r: &Row| (r.class, r.prompt_tokens);
            out.other_prompt += u64::from(prompt(row) != prompt(other));
            let both = row.end == End::Finished && other.end == End::Finished;
            out.other_output += u64::from(both && row.output_tokens != other.output_tokens);
        }
    }
    out
}

impl Parity {
    /// All figures with their names, class by class.
    pub fn figures(&self) -> Vec<(String, Figure)> {
        let mut out = Vec::new();
        for c in &self.classes {
            for l in &c.latencies {
                for (f, (_, name)) in l.percentiles.iter().zip(PERCENTILES) {
                    out.push((format!("{} {} {name}", c.name, l.metric.label()), *f));
                }
            }
            out.push((format!("{} finished/s", c.name), c.finished_rate));
            out.push((format!("{} tokens/s", c.name), c.token_rate));
            out.extend(c.goodput.map(|f| (format!("{} goodput", c.name), f)));
            out.extend(c.ends.iter().map(|e| (format!("{} {}", c.name, e.how), e.count)));
        }
        out
    }

    /// Figures outside of their range, and how many have one.
    pub fn outside(&self) -> (Vec<(String, Figure)>, usize) {
        let all = self.figures();
        let judged = all.iter().filter(|(_, f)| f.is_outside().is_some()).count();
        (all.into_iter().filter(|(_, f)| f.is_outside() == Some(true)).collect(), judged)
    }

    /// The share of figures that chance alone puts outside of the range.
    pub fn by_chance(&self) -> f64 {
        2.0 / (self.runs + 2) as f64
    }

    /// The greatest deviation of a latency's percentile from the simulated one, in per cent, with its name.
    pub fn greatest(&self) -> Option<(String, f64)> {
        let of_class = |c: &ClassParity| -> Vec<(String, f64)> {
            let each = c.latencies.iter().flat_map(|l| {
                let named = l.percentiles.iter().zip(PERCENTILES);
                named.filter_map(move |(f, (_, name))| {
                    Some((format!("{} {} {name}", c.name, l.metric.label()), 100.0 * (f.ratio()? - 1.0)))
                })
            });
            each.collect()
        };
        self.classes.iter().flat_map(of_class).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))
    }

    /// Why the live run says nothing, if so.
    pub fn problems(&self) -> Vec<String> {
        self.schedule.iter().flat_map(Schedule::problems).map(|p| p.to_string()).collect()
    }

    /// How long the live run took.
    pub fn took(&self) -> Span {
        self.ended_at[1].since(Nanos::ZERO)
    }
}

#[cfg(test)]
mod tests;
