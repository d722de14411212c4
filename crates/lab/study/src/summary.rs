//! What one run says, by class.

use forebay_base::{Nanos, Span};
use forebay_records::stats::quantile::{Samples, of_histogram};
use forebay_records::stats::{Backlog, Goodput, Load, Quantile, Slo, Throughput, Window, backlog_of};
use forebay_records::{End, Histogram, Row};
use forebay_sim::{Counters, Run, Scaling};
use forebay_workload::Workload;
use std::collections::BTreeMap;

/// A latency of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Its part in the router's queue.
    Gateway,
    /// Its part on the way to the server.
    Network,
    /// Its part in the server's queue.
    EngineWait,
    /// Its part from the first scheduled token on, with the way back.
    Prefill,
    /// Mean time per output token after the first.
    Tpot,
    /// Time between two tokens, over tokens and not over requests.
    Itl,
    /// Arrival to last token.
    E2e,
}

impl Metric {
    /// All of them in the order of tables.
    pub const ALL: [Metric; 8] = [
        Metric::Ttft,
        Metric::Gateway,
        Metric::Network,
        Metric::EngineWait,
        Metric::Prefill,
        Metric::Tpot,
        Metric::Itl,
        Metric::E2e,
    ];

    /// For tables.
    pub const fn label(self) -> &'static str {
        match self {
            Metric::Ttft => "TTFT",
            Metric::Gateway => "  gateway",
            Metric::Network => "  network",
            Metric::EngineWait => "  engine wait",
            Metric::Prefill => "  prefill",
            Metric::Tpot => "TPOT",
            Metric::Itl => "ITL",
            Metric::E2e => "E2E",
        }
    }

    /// For files.
    pub const fn key(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Gateway => "gateway",
            Metric::Network => "network",
            Metric::EngineWait => "engine_wait",
            Metric::Prefill => "prefill",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2e => "e2e",
        }
    }

    pub(crate) fn of(self, row: &Row) -> Option<Span> {
        match self {
            Metric::Ttft => row.ttft(),
            Metric::Gateway => row.gateway(),
            Metric::Network => row.network(),
            Metric::EngineWait => row.engine_wait(),
            Metric::Prefill => row.prefill(),
            Metric::Tpot => row.tpot(),
            Metric::Itl => None,
            Metric::E2e => row.e2e(),
        }
    }
}

/// The percentiles that are shown.
pub const QUANTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];

/// Mean and percentiles of a metric, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Over samples that have a value.
    pub mean: Option<f64>,
    /// By [`QUANTILES`].
    pub quantiles: [Quantile; 4],
}

/// What became of one class.
#[derive(Clone, Debug)]
pub struct ClassSummary {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Requests that arrived in the measured window; everything below is about these, but throughput.
    pub offered: u64,
    /// Of these, by end.
    pub finished: u64,
    /// Refused, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Left because it took too long.
    pub timed_out: u64,
    /// Lost with their server, or refused by it.
    pub failed: u64,
    /// Still there at the end of the run.
    pub censored: u64,
    /// Latencies, by [`Metric::ALL`].
    pub figures: Vec<Figures>,
    /// Completions in the measured window.
    pub throughput: Throughput,
    /// With the drain.
    pub with_drain: Throughput,
    /// Against the class's deadlines, if it has any.
    pub goodput: Option<Goodput>,
    /// Prompt tokens of requests that reached a server, and of these found in its prefix cache.
    pub prompt_tokens: (u64, u64),
    /// Times to first token in nanoseconds, for curves and pooled percentiles.
    pub ttft: Histogram,
    /// End-to-end times.
    pub e2e: Histogram,
}

/// What a run says.
#[derive(Clone, Debug)]
pub struct Summary {
    /// By class, in the order of the workload.
    pub classes: Vec<ClassSummary>,
    /// All classes together.
    pub total: ClassSummary,
    /// Requests inside while they arrived.
    pub backlog: Backlog,
    /// Stable, near capacity or overloaded.
    pub load: Load,
    /// Sums and extremes.
    pub counters: Counters,
    /// What the servers cost, and how many there were.
    pub scaling: Scaling,
    /// When the last event ran.
    pub ended_at: Nanos,
}

impl Summary {
    /// Of a run of `workload`.
    pub fn of(run: &Run, workload: &Workload) -> Summary {
        let mut all_gaps = Histogram::new();
        run.gaps.iter().for_each(|h| all_gaps.merge(h));
        let mut summary = Summary::of_rows(&run.rows, &run.gaps, Some(&all_gaps), workload, run.ended_at);
        (summary.counters, summary.scaling) = (run.counters.clone(), run.scaling.clone());
        summary
    }

    /// Whether requests arrived for less than ten mean end-to-end times, the shortest window of a steady claim:
    /// then a pool that is still filling up looks like one that is overloaded.
    pub fn may_be_filling_up(&self) -> bool {
        let mean = self.total.figure(Metric::E2e).mean;
        self.load != Load::Stable && mean.is_some_and(|ns| self.total.throughput.seconds < 10.0 * ns / 1e9)
    }

    /// Of the rows of a run of `workload`, simulated or live. `gaps` are the times per token by class, or nothing
    /// where they are not told apart, and `all_gaps` those of all classes. Counters stay at zero.
    pub fn of_rows(
        rows: &[Row],
        gaps: &[Histogram],
        all_gaps: Option<&Histogram>,
        workload: &Workload,
        ended_at: Nanos,
    ) -> Summary {
        let window = workload.mode.measured();
        let classes = workload.classes.iter().enumerate().map(|(i, c)| {
            let of_class: Vec<&Row> = rows.iter().filter(|r| usize::from(r.class) == i).collect();
            class(&c.name, c.priority, &of_class, gaps.get(i), window, |class| workload.slo(class))
        });
        let all: Vec<&Row> = rows.iter().collect();
        let backlog = backlog_of(rows, window);
        Summary {
            classes: classes.collect(),
            total: class("all", 0, &all, all_gaps, window, |class| workload.slo(class)),
            load: backlog.load(),
            backlog,
            counters: Counters::default(),
            scaling: Scaling::default(),
            ended_at,
        }
    }
}

fn class(
    name: &str,
    priority: i32,
    rows: &[&Row],
    gaps: Option<&Histogram>,
    window: Window,
    slo: impl Fn(u16) -> Slo,
) -> ClassSummary {
    let measured: Vec<&Row> = rows.iter().copied().filter(|r| window.holds(r.arrived)).collect();
    let ended = |end: End| measured.iter().filter(|r| r.end == end).count() as u64;
    let mut rejected = BTreeMap::new();
    for r in &measured {
        if let End::Rejected(reason) = r.end {
            *rejected.entry(reason).or_insert(0) += 1;
        }
    }
    let histogram = |metric: Metric| {
        let mut h = Histogram::new();
        for v in measured.iter().filter_map(|r| metric.of(r)) {
            h.record(v.0);
        }
        h
    };
    let figures = Metric::ALL.map(|m| match m {
        Metric::Itl => {
            let none = Histogram::new();
            let h = gaps.unwrap_or(&none);
            Figures { mean: h.mean(), quantiles: QUANTILES.map(|q| of_histogram(h, 0, q)) }
        }
        _ => of_rows(m, &measured),
    });
    let asked = measured.iter().any(|r| !slo(r.class).is_empty());
    let served = measured.iter().filter(|r| r.scheduled.is_some() || r.is_finished());
    let prompt_tokens = served
        .fold((0, 0), |(all, hit), r| (all + u64::from(r.prompt_tokens), hit + u64::from(r.cached_tokens)));
    ClassSummary {
        name: name.to_owned(),
        priority,
        offered: measured.len() as u64,
        finished: ended(End::Finished),
        rejected,
        timed_out: ended(End::TimedOut),
        failed: ended(End::Failed) + ended(End::Cancelled),
        censored: ended(End::Censored),
        figures: figures.to_vec(),
        throughput: window.throughput(rows.iter().copied()),
        with_drain: window.throughput_with_drain(rows.iter().copied()),
        goodput: asked.then(|| window.goodput(rows.iter().copied(), slo)),
        prompt_tokens,
        ttft: histogram(Metric::Ttft),
        e2e: histogram(Metric::E2e),
    }
}

/// Requests without the value count as infinite, but for the time per output token of those that
/// finished with a single one.
fn of_rows(metric: Metric, rows: &[&Row]) -> Figures {
    let mut samples = Samples::new();
    for r in rows {
        if metric == Metric::Tpot && r.came_at_once() {
            continue;
        }
        samples.push(metric.of(r).map(|v| v.0));
    }
    Figures { mean: samples.mean(), quantiles: QUANTILES.map(|q| samples.quantile(q)) }
}

impl ClassSummary {
    /// A metric's figures.
    pub fn figure(&self, metric: Metric) -> &Figures {
        let i = Metric::ALL.iter().position(|m| *m == metric).unwrap_or(0);
        &self.figures[i]
    }
    /// Refused requests for whatever reason.
    pub fn all_rejected(&self) -> u64 {
        self.rejected.values().sum()
    }
}
