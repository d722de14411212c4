//! The highest rate that a pool can keep up with, and what its servers are busy with there.
//!
//! A rate is kept up with if the backlog does not grow while requests arrive, from a warm start, and hardly
//! any request is refused or lost; [`forebay_records::stats::backlog`] has the rule for growth. A search first
//! brackets the capacity with short runs, then verifies both ends of the bracket with full ones and halves it.

pub(crate) mod usage;

pub use usage::{Limit, Usage};

use crate::Setup;
use crate::parallel::{Progress, parallel};
use forebay_base::{Nanos, Span};
use forebay_config::Config;
use forebay_kernel::Plan;
use forebay_records::End;
use forebay_records::stats::paired::mean_and_half_width;
use forebay_records::stats::{Load, Meter, Window};
use forebay_sim::{Cluster, Options};
use forebay_workload::Workload;
use std::sync::Arc;

/// How a capacity is searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Arrivals before the backlog is watched, so that the pool is warm.
    pub warmup: Span,
    /// How long the backlog is watched.
    pub window: Span,
    /// The search ends when the interval is this share of its upper end.
    pub precision: f64,
    /// Of the arrivals and everything else.
    pub seed: u64,
}

impl Search {
    /// Four simulated hours after half an hour of warm-up, to 1 %.
    pub const FULL: Search =
        Search { warmup: Span::secs(1_800), window: Span::secs(14_400), precision: 0.01, seed: 1 };
    /// For sweeps and as a first answer: one hour after ten minutes, to 3 %.
    pub const QUICK: Search =
        Search { warmup: Span::secs(600), window: Span::secs(3_600), precision: 0.03, seed: 1 };

    /// The runs that bracket a capacity before this search goes on.
    fn coarse(self) -> Search {
        let share = |s: Span| Span(s.0 / 6);
        Search { warmup: share(self.warmup), window: share(self.window), precision: 0.06, ..self }
    }

    /// For a workload whose traces end earlier: four fifths of what there is, after one fifth.
    pub(crate) fn within(self, workload: &Workload) -> Search {
        let longest = workload.traces.iter().filter_map(|feed| {
            let rate = feed.rate();
            (rate > 0.0).then(|| feed.rows() as f64 / rate)
        });
        let all = self.warmup.as_secs_f64() + self.window.as_secs_f64();
        let Some(seconds) = longest.reduce(f64::min).filter(|s| *s < all) else { return self };
        let part = |share: f64| Span((seconds * share * 1e9) as u64);
        Search { warmup: part(0.2), window: part(0.8), ..self }
    }
}

/// One rate that was tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Requests per second.
    pub rate: f64,
    /// Whether the pool kept up.
    pub holds: bool,
    /// Growth of the backlog in requests per second.
    pub growth: f64,
    /// Half the width of its 95 % interval.
    pub half_width: f64,
    /// Share of the requests that were refused or lost.
    pub lost: f64,
}

/// Where a search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The highest rate that was kept up with; 0 if none was.
    pub low: f64,
    /// The lowest rate above it that was not; infinite if every rate was.
    pub high: f64,
    /// Every full run, in the order in which it was tried.
    pub trials: Vec<Trial>,
}

/// How far from its guess a search goes, as a factor.
const REACH: f64 = 1_000.0;

/// The capacity of a pool for a workload, in requests per second of all its classes together. The search
/// starts at `guess` and ends a thousand times above or below it; `tried` is told of every run.
pub fn find(
    plan: &Arc<Plan>,
    cluster: &Arc<Cluster>,
    workload: &Workload,
    guess: f64,
    search: Search,
    tried: &dyn Fn(),
) -> Found {
    let attempt = |rate: f64, search: Search| {
        let t = attempt(plan, cluster, &workload.with_rate(rate), search);
        tried();
        t
    };
    let coarse = search.coarse();
    let rough = halve(bracket(guess, 2.0, guess, &mut |r| attempt(r, coarse).holds), coarse.precision, |r| {
        attempt(r, coarse).holds
    });
    let mut trials = Vec::new();
    let mut holds = |rate: f64| {
        let t = attempt(rate, search);
        trials.push(t);
        t.holds
    };
    let start = if rough.0 > 0.0 { rough.0 } else { guess };
    let (low, high) = bracket(start, 1.0 + 2.0 * coarse.precision, guess, &mut holds);
    let (low, high) = halve((low, high), search.precision, &mut holds);
    Found { low, high, trials }
}

/// The highest rate found that the pool keeps up with, in requests per second, to the precision of the
/// search; see [`find`].
pub fn capacity(
    plan: &Arc<Plan>,
    cluster: &Arc<Cluster>,
    workload: &Workload,
    guess: f64,
    search: Search,
) -> f64 {
    find(plan, cluster, workload, guess, search, &|| {}).low
}

/// A rate that holds and one above it that does not, as far as there are some within reach of `guess`.
fn bracket(start: f64, factor: f64, guess: f64, holds: &mut dyn FnMut(f64) -> bool) -> (f64, f64) {
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let mut rate = start;
    while (high.is_infinite() || low == 0.0) && rate < REACH * guess && rate > guess / REACH {
        if holds(rate) {
            low = rate;
            rate *= factor;
        } else {
            high = rate;
            rate /= factor;
        }
    }
    (low, high)
}

/// Halves a bracket until it is as narrow as asked.
fn halve((mut low, mut high): (f64, f64), precision: f64, mut holds: impl FnMut(f64) -> bool) -> (f64, f64) {
    while low > 0.0 && high.is_finite() && high - low > precision * high {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low, high)
}

/// Requests that may be refused or lost by a pool that keeps up: more, and the queue's bounds hide its growth.
pub(crate) const LOST: f64 = 0.001;

/// The workload as a search runs it. Stages that do not repeat tell a story with an end; what is asked is
/// whether a rate can go on.
pub(crate) fn watched(workload: &Workload, search: Search) -> Workload {
    let mut workload = workload.clone();
    for class in workload.classes.iter_mut().filter(|c| !c.repeat) {
        class.stages.clear();
    }
    workload.mode.warmup = search.warmup;
    workload.mode.window = search.window;
    workload.mode.drain = Span::ZERO;
    workload
}

/// Runs a workload at its rate. Rows are not kept: an overloaded pool has many.
fn attempt(plan: &Arc<Plan>, cluster: &Arc<Cluster>, workload: &Workload, search: Search) -> Trial {
    let search = search.within(workload);
    let workload = watched(workload, search);
    let rate = workload.rate();
    let end = workload.mode.arrivals_end();
    let mut meter = Meter::new(Window::new(Nanos::ZERO + search.warmup, end));
    let (mut all, mut lost) = (0u64, 0u64);
    let setup = Setup { plan: Arc::clone(plan), cluster: Arc::clone(cluster), workload };
    setup.run_into(search.seed, Options::new(0), &mut |row| {
        meter.add(&row);
        all += 1;
        lost += u64::from(!matches!(row.end, End::Finished | End::Censored));
    });
    let backlog = meter.backlog();
    let slope = backlog.slope();
    let lost = lost as f64 / all.max(1) as f64;
    Trial {
        rate,
        holds: backlog.load() != Load::Overloaded && lost <= LOST,
        growth: slope.map_or(0.0, |s| s.per_second),
        half_width: slope.map_or(0.0, |s| s.half_width),
        lost,
    }
}

/// A configuration whose capacity is asked for.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// What decides.
    pub config: Config,
}

/// What is asked: the capacity under every configuration, for every workload, under every seed.
#[derive(Clone, Debug)]
pub struct Question {
    /// The configurations; the first is the reference.
    pub arms: Vec<Arm>,
    /// The workloads. Each has a rate above 0, where the search starts.
    pub workloads: Vec<Workload>,
    /// The servers.
    pub cluster: Arc<Cluster>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// How; its seed is not looked at.
    pub search: Search,
}

/// The capacity under one configuration for one workload.
#[derive(Clone, Debug)]
pub struct Answer {
    /// By seed.
    pub by_seed: Vec<Found>,
    /// What the servers are busy with at the capacity of the first seed; `None` if no rate was kept up with.
    pub usage: Option<Usage>,
}

impl Answer {
    /// The mean over seeds.
    pub fn mean(&self) -> f64 {
        self.by_seed.iter().map(|f| f.low).sum::<f64>() / self.by_seed.len().max(1) as f64
    }
    /// Student's 95 % interval over seeds; `None` with one seed.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let values: Vec<f64> = self.by_seed.iter().map(|f| f.low).collect();
        (values.len() > 1).then(|| {
            let (mean, half) = mean_and_half_width(&values);
            (mean - half, mean + half)
        })
    }
    /// The least and the greatest rate between which the searches ended.
    pub fn bracket(&self) -> (f64, f64) {
        let ends = |(low, high): (f64, f64), f: &Found| (low.min(f.low), high.max(f.high));
        self.by_seed.iter().fold((f64::INFINITY, 0.0), ends)
    }
}

/// Runs that a search is foreseen to take, for a bar; most take fewer.
const FORESEEN: u64 = 14;

/// Searches everything over `threads` threads: a row per workload, with an answer per configuration.
pub fn capacities(q: &Question, threads: usize, progress: &Progress) -> Vec<Vec<Answer>> {
    let (arms, seeds) = (q.arms.len(), q.seeds.len());
    let jobs = q.workloads.len() * arms * seeds;
    progress.expect(jobs as u64 * FORESEEN);
    let own = Progress::new();
    let found = parallel(jobs, threads, &own, |i| {
        let workload = &q.workloads[i / (arms * seeds)];
        let config = &q.arms[i / seeds % arms].config;
        let plan = Arc::new(config.plan(&Setup::priorities(workload)));
        let search = Search { seed: q.seeds[i % seeds], ..q.search };
        let runs = std::cell::Cell::new(0);
        let tried = || {
            runs.set(runs.get() + 1);
            if runs.get() > FORESEEN {
                progress.expect(1);
            }
            progress.tick();
        };
        let found = find(&plan, &q.cluster, workload, workload.rate(), search, &tried);
        // Of the first seed only: one run says what the servers do.
        let usage = (i % seeds == 0 && found.low > 0.0).then(|| {
            let workload = workload.with_rate(found.low);
            usage::of(&plan, &q.cluster, &watched(&workload, search.coarse().within(&workload)), search.seed)
        });
        for _ in runs.get()..FORESEEN {
            progress.tick();
        }
        (found, usage)
    });
    let mut found = found.into_iter();
    let answer = |found: &mut dyn Iterator<Item = (Found, Option<Usage>)>| {
        let mut usage = None;
        let by_seed = found.take(seeds).map(|(f, u)| {
            usage = usage.take().or(u);
            f
        });
        let by_seed = by_seed.collect();
        Answer { by_seed, usage }
    };
    q.workloads.iter().map(|_| (0..arms).map(|_| answer(&mut found)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use forebay_config::{Options as Stability, load};

    #[test]
    fn a_bracket_is_found_from_either_side_and_narrowed() {
        for start in [1.0, 7.0, 300.0] {
            let mut runs = 0;
            let mut holds = |r: f64| {
                runs += 1;
                r <= 42.0
            };
            let (low, high) = bracket(start, 2.0, start, &mut holds);
            assert!(low <= 42.0 && high > 42.0 && (high / low - 2.0).abs() < 1e-12, "{start}: {low} {high}");
            let (low, high) = halve((low, high), 0.01, &mut holds);
            assert!(low <= 42.0 && high > 42.0 && high - low <= 0.01 * high);
            assert!(runs < 20);
        }
        assert_eq!(bracket(1.0, 2.0, 1.0, &mut |_| true).1, f64::INFINITY);
        assert_eq!(bracket(1.0, 2.0, 1.0, &mut |_| false).0, 0.0);
        assert_eq!(halve((0.0, 3.0), 0.01, |_| unreachable!()), (0.0, 3.0));
    }

    fn small() -> Question {
        let text = "
version: 1
name: fixed
mode: {kind: surge, window: 60s}
classes:
  only: {priority: 0, arrivals: {process: constant, rate: 3}, input: {constant: 1000}, output: {constant: 100}}
";
        let live = Policy::live();
        Question {
            arms: vec![Arm {
                name: live.name.clone(),
                config: load(&live.config, "live", forebay_kernel::plugins::ALL, Stability::default())
                    .unwrap(),
            }],
            workloads: vec![Workload::read(text, "w").unwrap()],
            cluster: Arc::new(
                Cluster::parse("1xh100", "qwen3-14b", "c", |s| s.max_num_seqs = Some(64)).unwrap(),
            ),
            seeds: vec![1, 2],
            search: Search {
                warmup: Span::secs(60),
                window: Span::secs(300),
                precision: 0.02,
                ..Search::QUICK
            },
        }
    }

    #[test]
    fn the_capacity_lies_in_its_bracket_and_does_not_depend_on_threads() {
        let q = small();
        let one = capacities(&q, 1, &Progress::new());
        let two = capacities(&q, 2, &Progress::new());
        let (a, b) = (&one[0][0], &two[0][0]);
        assert_eq!((&a.by_seed, a.usage.as_ref()), (&b.by_seed, b.usage.as_ref()));
        let f = &a.by_seed[0];
        assert!(f.low > 3.0 && f.high.is_finite() && f.high - f.low <= 0.02 * f.high, "{f:?}");
        assert!(f.trials.iter().all(|t| t.holds == (t.rate <= f.low)), "{f:?}");
        assert_eq!(a.bracket().0, a.by_seed.iter().map(|f| f.low).fold(f64::INFINITY, f64::min));
        let (low, high) = a.interval().unwrap();
        assert!(low <= a.mean() && a.mean() <= high);
    }

    #[test]
    fn a_trace_is_watched_as_long_as_it_lasts() {
        let text: String = std::iter::once("TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned())
            .chain((0..100).map(|i| format!("2024-05-10 00:{:02}:{:02}.0000000,100,10\n", i / 60, i % 60)))
            .collect();
        let trace = forebay_workload::Trace::read(&text, "t", forebay_workload::Format::Azure).unwrap();
        let workload = Workload::of_trace(trace, "t");
        let s = Search::QUICK.within(&workload.with_rate(2.0));
        assert!(
            (s.window.as_secs_f64() - 40.0).abs() < 0.5 && (s.warmup.as_secs_f64() - 10.0).abs() < 0.2,
            "{s:?}"
        );
        assert_eq!(Search::QUICK.within(&small().workloads[0]), Search::QUICK);
    }
}
