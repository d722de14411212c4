//! How many endpoints a workload needs to keep its goals.
//!
//! The search begins at the rate over the capacity of one engine. A size holds if, in steady runs, every goal is
//! kept by the worse end of its interval over seeds, the backlog does not grow, and hardly anything is lost. What
//! more endpoints do not help is given up with the reason.

mod goal;
mod pool;
mod search;

pub use goal::{Goal, goals};

use crate::asked::Stated;
use crate::capacity::{self, Found, Search, Usage};
use crate::parallel::{Progress, parallel};
use forebay_base::{Nanos, Span};
use forebay_config::Config;
use forebay_engine::Resolved;
use forebay_kernel::Plan;
use forebay_sim::Cluster;
use forebay_workload::{Kind as ModeKind, Workload};
use pool::Pool;
use search::End;
use std::sync::Arc;

/// One kind of endpoint.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The name of its GPUs.
    pub name: String,
    /// Its settled numbers; or why there is none, such as a model that does not fit.
    pub engine: Result<Arc<Resolved>, String>,
}

impl Kind {
    /// So many of them.
    pub fn cluster(&self, engine: &Arc<Resolved>, n: u32) -> Cluster {
        Cluster::new(format!("{n}x{}", self.name), &[(self.name.clone(), n, Arc::clone(engine))])
    }

    /// GPUs of one endpoint; 0 if there can be none.
    pub fn gpus(&self) -> u32 {
        self.engine.as_ref().map_or(0, |e| e.spec.tp)
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// What comes, at its rate, which is above 0.
    pub workload: Workload,
    /// What has to hold.
    pub goals: Vec<Goal>,
    /// What decides.
    pub config: Config,
    /// The endpoints to choose from.
    pub kinds: Vec<Kind>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// The largest pool that may be tried.
    pub max: u32,
}

/// The times of a steady run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Arrivals before the window.
    pub warmup: Span,
    /// The window.
    pub window: Span,
}

/// Why a size does not hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fail {
    /// The backlog grows, by so large a share of the arrivals.
    Grows(f64),
    /// So large a share of the requests is refused or lost.
    Loses(f64),
    /// The goal with this index is not kept.
    Goal(usize),
}

/// One size over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Endpoints.
    pub endpoints: u32,
    /// By goal.
    pub figures: Vec<Stated>,
    /// For goals on the time to first token: its part in the engine's steps, by the same statistic.
    pub prefill: Vec<Option<f64>>,
    /// Why it does not hold; empty if it does.
    pub fails: Vec<Fail>,
    /// Output tokens per second, mean over seeds.
    pub tokens: f64,
    /// Whether warm-up and window are long enough for a steady claim.
    pub steady: bool,
}

impl Size {
    /// Whether every goal holds.
    pub fn holds(&self) -> bool {
        self.fails.is_empty()
    }

    /// The goal that is nearest to its limit, or furthest beyond.
    pub fn nearest(&self, goals: &[Goal]) -> Option<usize> {
        let used = |i: usize| goals[i].used(goals[i].worst(&self.figures[i]));
        (0..goals.len()).max_by(|a, b| used(*a).total_cmp(&used(*b)).then(b.cmp(a)))
    }
}

/// Where a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The smallest number of endpoints that holds.
    Endpoints(u32),
    /// No number: with the second it is so little better than with the first that more will not do.
    NoSize(u32, u32),
    /// Not with this number; more may not be tried.
    Beyond(u32),
    /// There is no such endpoint.
    Unfit,
}

/// The answer for one kind of endpoint.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What one engine keeps up with, requests per second.
    pub one: f64,
    /// Where the search ended.
    pub outcome: Outcome,
    /// The times of all runs.
    pub times: Times,
    /// The sizes that were tried, by number.
    pub sizes: Vec<Size>,
    /// The smallest number by seed: that keeps every goal in the run of that seed alone. `None` if none did near
    /// the answer.
    pub by_seed: Vec<Option<u32>>,
    /// The pool's own capacity at the answer.
    pub capacity: Option<Found>,
    /// What its engines are busy with at that capacity.
    pub usage: Option<Usage>,
}

impl Answer {
    fn unfit() -> Answer {
        Answer {
            one: 0.0,
            outcome: Outcome::Unfit,
            times: Times { warmup: Span::ZERO, window: Span::ZERO },
            sizes: Vec::new(),
            by_seed: Vec::new(),
            capacity: None,
            usage: None,
        }
    }

    /// A size that was tried.
    pub fn size(&self, n: u32) -> Option<&Size> {
        self.sizes.iter().find(|s| s.endpoints == n)
    }

    /// The number of endpoints, if there is one.
    pub fn endpoints(&self) -> Option<u32> {
        match self.outcome {
            Outcome::Endpoints(n) => Some(n),
            _ => None,
        }
    }

    /// Least, median and greatest of the seeds' smallest numbers; `None` if a seed has none.
    pub fn counts(&self) -> Option<(u32, f64, u32)> {
        let mut all = self.by_seed.iter().copied().collect::<Option<Vec<u32>>>()?;
        all.sort_unstable();
        let (least, most) = (*all.first()?, *all.last()?);
        let median = f64::midpoint(f64::from(all[(all.len() - 1) / 2]), f64::from(all[all.len() / 2]));
        Some((least, median, most))
    }

    /// The share of the pool's capacity that a rate takes.
    pub fn load(&self, rate: f64) -> Option<f64> {
        self.capacity.as_ref().filter(|f| f.low > 0.0).map(|f| rate / f.low)
    }
}

/// What a number of endpoints costs, in the unit of its price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Per hour.
    pub hour: f64,
    /// Per hour with the least and the greatest of the seeds' smallest numbers.
    pub by_seed: Option<(f64, f64)>,
    /// Per million output tokens.
    pub million: f64,
}

impl Cost {
    /// Of an answer, at a price of one GPU for an hour; `None` without a number of endpoints or a price.
    pub fn of(kind: &Kind, a: &Answer, price: Option<f64>) -> Option<Cost> {
        let (n, price) = (a.endpoints()?, price?);
        let hour = |n: u32| f64::from(n * kind.gpus()) * price;
        let tokens = a.size(n)?.tokens * 3600.0 / 1e6;
        let by_seed = a.counts().map(|(least, _, most)| (hour(least), hour(most)));
        Some(Cost { hour: hour(n), by_seed, million: hour(n) / tokens })
    }
}

/// Where the search of a single engine's capacity begins at most, requests per second: an overloaded engine
/// takes longer to simulate than an idle one.
const FIRST_GUESS: f64 = 4.0;
/// Requests that a pool's capacity is taken from, where that fits between the bounds below.
const ARRIVALS: f64 = 10_000.0;

/// The search of one engine's capacity, where the search of sizes begins; nothing else depends on it.
const ONE: Search = Search { warmup: Span::secs(120), window: Span::secs(600), precision: 0.05, seed: 1 };

/// Plans with every kind over `threads` threads; an answer per kind. Results do not depend on how many.
pub fn plan(q: &Question, threads: usize, progress: &Progress) -> Vec<Answer> {
    let decides = Arc::new(q.config.plan(&crate::Setup::priorities(&q.workload)));
    let seed = q.seeds.first().copied().unwrap_or(1);
    let tried = || {
        progress.expect(1);
        progress.tick();
    };
    let own = Progress::new();
    let ones = parallel(q.kinds.len(), threads, &own, |i| {
        let kind = &q.kinds[i];
        let engine = kind.engine.as_ref().ok()?;
        let guess = q.workload.rate().min(FIRST_GUESS);
        let cluster = Arc::new(kind.cluster(engine, 1));
        let search = Search { seed, ..ONE };
        Some(capacity::find(&decides, &cluster, &q.workload, guess, search, &tried).low)
    });
    let mut answers: Vec<Answer> = q
        .kinds
        .iter()
        .zip(ones)
        .map(|(kind, one)| match (&kind.engine, one) {
            (Ok(engine), Some(one)) => answer(q, kind, engine, one, &decides, (threads, progress)),
            _ => Answer::unfit(),
        })
        .collect();
    let pools = parallel(answers.len(), threads, &own, |i| {
        let (a, kind) = (&answers[i], &q.kinds[i]);
        let engine = kind.engine.as_ref().ok()?;
        let n = a.endpoints()?;
        let cluster = Arc::new(kind.cluster(engine, n));
        Some(full(q, &decides, &cluster, (a, f64::from(n) * a.one), seed, &tried))
    });
    for (a, pool) in answers.iter_mut().zip(pools) {
        if let Some((found, usage)) = pool {
            (a.capacity, a.usage) = (Some(found), usage);
        }
    }
    answers
}

/// The capacity of a whole pool to 3 %, and what limits it.
fn full(
    q: &Question,
    decides: &Arc<Plan>,
    cluster: &Arc<Cluster>,
    (a, guess): (&Answer, f64),
    seed: u64,
    tried: &dyn Fn(),
) -> (Found, Option<Usage>) {
    let rate = q.workload.rate();
    let arrivals = Span::secs((ARRIVALS / rate).ceil().min(14_400.0) as u64);
    let search = Search {
        warmup: a.times.warmup.max(ONE.warmup),
        window: arrivals.max(ONE.window).max(a.times.window.min(Span::secs(14_400))),
        precision: 0.03,
        seed,
    };
    let guess = if guess > 0.0 { guess } else { rate };
    let found = capacity::find(decides, cluster, &q.workload, guess, search, tried);
    let usage = (found.low > 0.0).then(|| {
        let at = q.workload.with_rate(found.low);
        let short = Search { window: Span(search.window.0 / 3), ..search }.within(&at);
        capacity::usage::of(decides, cluster, &capacity::watched(&at, short), seed)
    });
    (found, usage)
}

/// Shortest warm-up and window, whatever the requests.
const SHORTEST: Times = Times { warmup: Span::secs(30), window: Span::secs(120) };
/// Requests beyond what rules ask for, since arrivals are random.
const SPARE: f64 = 1.1;
/// How much longer requests are taken to be in a loaded pool than in a hardly loaded one, to begin with.
const LOADED: f64 = 2.5;
/// How often times may be found too short.
const ROUNDS: u32 = 6;

/// Times from which every goal can be claimed of each run by the number of its requests. How long requests take
/// is known only afterwards.
fn first_times(q: &Question) -> Times {
    let seconds = |g: &Goal| SPARE * g.samples() / g.rate(&q.workload).max(1e-9);
    let longest = q.goals.iter().map(seconds).fold(0.0, f64::max).ceil();
    Times { window: SHORTEST.window.max(Span::secs(longest as u64)), ..SHORTEST }
}

/// The workload as it is planned for: steady, for these times, and no longer than traces last.
fn steady(workload: &Workload, times: Times) -> Workload {
    let search = Search { warmup: times.warmup, window: times.window, ..ONE }.within(workload);
    let mut workload = capacity::watched(workload, search);
    workload.mode.kind = ModeKind::Steady;
    workload.mode.drain = DRAIN;
    workload
}

/// After the window; who is still inside then counts as infinitely slow.
const DRAIN: Span = Span::secs(3_600);

fn answer(
    q: &Question,
    kind: &Kind,
    engine: &Arc<Resolved>,
    one: f64,
    decides: &Arc<Plan>,
    (threads, progress): (usize, &Progress),
) -> Answer {
    let mut start = if one > 0.0 { (q.workload.rate() / one).ceil().clamp(1.0, 1e6) as u32 } else { 1 };
    let mut times = first_times(q);
    // Twice the start is hardly loaded; near its capacity a pool takes a few times as long.
    let mut idle = Pool::new(q, kind, (engine, one), decides, times, (threads, progress));
    let (mean, p95) = idle.e2e(start.saturating_mul(2).min(q.max));
    let at_least = |s: Span, seconds: f64| s.max(Span::secs(seconds.ceil() as u64));
    times.warmup = at_least(times.warmup, LOADED * 2.0 * p95);
    times.window = at_least(times.window, LOADED * 10.0 * mean);
    let mut round = 0;
    let (end, mut pool) = loop {
        let mut pool = Pool::new(q, kind, (engine, one), decides, times, (threads, progress));
        let end = search::smallest(start, q.max, &mut pool);
        round += 1;
        match pool.longer {
            // Everything again with longer times, so that all sizes see the same requests.
            Some((n, longer)) if round < ROUNDS => (start, times) = (n, longer),
            _ => break (end, pool),
        }
    };
    let (outcome, by_seed) = match end {
        End::Smallest(n) => {
            // The neighbours say whether more is better here at all.
            pool.size(n);
            pool.size(n + 1);
            if n > 1 {
                pool.size(n - 1);
            }
            (Outcome::Endpoints(n), pool.by_seed(n))
        }
        End::Stalls(a, b) => (Outcome::NoSize(a, b), Vec::new()),
        End::Beyond(n) => (Outcome::Beyond(n), Vec::new()),
    };
    // As run: traces may have cut it.
    let mode = steady(&q.workload, times).mode;
    let times = Times { warmup: mode.measured().from.since(Nanos::ZERO), window: mode.window };
    Answer { one, outcome, times, sizes: pool.sizes(), by_seed, capacity: None, usage: None }
}

#[cfg(test)]
mod tests;
