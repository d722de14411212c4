//! Sizes of one kind of endpoint, run under every seed when they are asked for.

use super::search::Sizes;
use super::{Fail, Kind, Question, Size, Times, steady};
use crate::asked::{Asked, Sample, What, stated};
use crate::capacity::LOST;
use crate::parallel::{Progress, parallel};
use crate::summary::{Metric, Summary};
use crate::{Setup, asked};
use forebay_base::{Nanos, Span};
use forebay_engine::Resolved;
use forebay_kernel::Plan;
use forebay_records::stats::paired::mean_and_half_width;
use forebay_records::stats::{Load, SteadyProblem, backlog};
use forebay_sim::{Cluster, Options};
use forebay_workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is kept of one run.
struct Trial {
    samples: Vec<Sample>,
    prefill: Vec<Option<f64>>,
    load: Load,
    /// Growth of the backlog as a share of the arrivals.
    growth: f64,
    lost: f64,
    tokens: f64,
    /// Warm-up and window that a steady claim would need, in seconds, where they are too short.
    needed: (f64, f64),
    /// Mean and 95th percentile of E2E in seconds.
    e2e: (f64, f64),
}

/// A rate below this share of the capacities of its engines is one that a pool should keep up with.
const BELOW: f64 = 0.95;
/// Longer times get so much more than was needed: a longer run sees slower requests.
const MARGIN: f64 = 1.5;
/// How far above the answer the smallest size of a single seed is looked for.
const ABOVE: u32 = 8;

pub(super) struct Pool<'a> {
    q: &'a Question,
    kind: &'a Kind,
    engine: &'a Arc<Resolved>,
    /// Capacity of one engine.
    one: f64,
    decides: &'a Arc<Plan>,
    threads: usize,
    progress: &'a Progress,
    times: Times,
    workload: Workload,
    trials: BTreeMap<(u32, usize), Trial>,
    complete: BTreeMap<u32, Size>,
    /// Times were too short for a size that held, and with which the search should begin again.
    pub(super) longer: Option<(u32, Times)>,
}

impl<'a> Pool<'a> {
    pub(super) fn new(
        q: &'a Question,
        kind: &'a Kind,
        (engine, one): (&'a Arc<Resolved>, f64),
        decides: &'a Arc<Plan>,
        times: Times,
        (threads, progress): (usize, &'a Progress),
    ) -> Pool<'a> {
        Pool {
            q,
            kind,
            engine,
            one,
            decides,
            threads,
            progress,
            times,
            workload: steady(&q.workload, times),
            trials: BTreeMap::new(),
            complete: BTreeMap::new(),
            longer: None,
        }
    }

    /// Runs what has not been run yet of these sizes and indices of seeds.
    fn run(&mut self, wanted: &[(u32, usize)]) {
        let missing: Vec<(u32, usize)> =
            wanted.iter().copied().filter(|w| !self.trials.contains_key(w)).collect();
        self.progress.expect(missing.len() as u64);
        let mut clusters: BTreeMap<u32, Arc<Cluster>> = BTreeMap::new();
        for (n, _) in &missing {
            clusters.entry(*n).or_insert_with(|| Arc::new(self.kind.cluster(self.engine, *n)));
        }
        let gaps = self.q.goals.iter().any(|g| matches!(g.asked.what, What::Latency(Metric::Itl, _)));
        let trials = parallel(missing.len(), self.threads, self.progress, |i| {
            let (n, seed) = missing[i];
            let setup = Setup {
                plan: Arc::clone(self.decides),
                cluster: Arc::clone(&clusters[&n]),
                workload: self.workload.clone(),
            };
            let run = setup.run(self.q.seeds[seed], Options { gaps, ..Options::new(0) });
            self.trial(&Summary::of(&run, &setup.workload))
        });
        self.trials.extend(missing.into_iter().zip(trials));
    }

    fn trial(&self, s: &Summary) -> Trial {
        let prefill = |a: &Asked| match a.what {
            What::Latency(Metric::Ttft, stat) => {
                let part = Asked { what: What::Latency(Metric::Prefill, stat), class: a.class.clone() };
                Some(part.of(s).value)
            }
            _ => None,
        };
        let (mut needed, mut took) = ((0.0, 0.0), (0.0, 0.0));
        let e2e = s.total.figure(Metric::E2e);
        if let (Some(mean), Some(p95)) = (e2e.mean, e2e.quantiles[2].value) {
            took = (mean / 1e9, p95 as f64 / 1e9);
            let window = self.workload.mode.measured();
            for p in window.steady_problems(Nanos::ZERO, Span(mean as u64), Span(p95)) {
                match p {
                    SteadyProblem::ShortWarmup { needed: n } => needed.0 = n,
                    SteadyProblem::ShortWindow { needed: n } => needed.1 = n,
                }
            }
        }
        let lost = s.total.offered - s.total.finished;
        Trial {
            samples: self.q.goals.iter().map(|g| g.asked.of(s)).collect(),
            prefill: self.q.goals.iter().map(|g| prefill(&g.asked)).collect(),
            load: s.load,
            growth: s.backlog.slope().map_or(0.0, |l| l.per_second / s.backlog.arrivals.max(1e-9)),
            lost: lost as f64 / s.total.offered.max(1) as f64,
            tokens: s.total.throughput.output_tokens_per_second(),
            needed,
            e2e: took,
        }
    }

    /// Mean and 95th percentile of E2E in seconds, of one run of a size.
    pub(super) fn e2e(&mut self, n: u32) -> (f64, f64) {
        self.run(&[(n, 0)]);
        self.trials[&(n, 0)].e2e
    }

    /// Growth of the backlog over all seeds, if it counts: as with one run ([`backlog::NEAR`]), but with the
    /// interval over seeds, since of many single runs some seem to grow by chance.
    fn grows(trials: &[&Trial]) -> Option<f64> {
        let all: Vec<f64> = trials.iter().map(|t| t.growth).collect();
        if let [one] = trials {
            return (one.load == Load::Overloaded).then_some(one.growth);
        }
        let (mean, half) = mean_and_half_width(&all);
        (mean > backlog::NEAR && mean - half > 0.0).then_some(mean)
    }

    /// Whether losses are left to a goal that speaks of them.
    fn may_lose(&self) -> bool {
        self.q.goals.iter().any(|g| matches!(g.asked.what, What::Rejected | What::Unfinished))
    }

    /// A size under every seed.
    pub(super) fn size(&mut self, n: u32) -> &Size {
        if !self.complete.contains_key(&n) {
            let wanted: Vec<(u32, usize)> = (0..self.q.seeds.len()).map(|s| (n, s)).collect();
            self.run(&wanted);
            let size = self.summed(n);
            self.complete.insert(n, size);
        }
        &self.complete[&n]
    }

    fn summed(&self, n: u32) -> Size {
        let trials: Vec<&Trial> = self.trials.range((n, 0)..(n + 1, 0)).map(|(_, t)| t).collect();
        let mean = |of: &dyn Fn(&Trial) -> f64| {
            trials.iter().map(|t| of(t)).sum::<f64>() / trials.len().max(1) as f64
        };
        let figures: Vec<asked::Stated> = (0..self.q.goals.len())
            .map(|i| {
                let samples: Vec<Sample> = trials.iter().map(|t| t.samples[i]).collect();
                stated(self.q.goals[i].asked.what, &samples)
            })
            .collect();
        let mut fails = Vec::new();
        fails.extend(Pool::grows(&trials).map(Fail::Grows));
        let lost = mean(&|t| t.lost);
        if lost > LOST && !self.may_lose() {
            fails.push(Fail::Loses(lost));
        }
        let goals = self.q.goals.iter().zip(&figures).enumerate();
        fails.extend(goals.filter(|(_, (g, f))| !g.met(g.worst(f))).map(|(i, _)| Fail::Goal(i)));
        let part = |i: usize| trials[0].prefill[i].map(|_| mean(&|t| t.prefill[i].unwrap_or(f64::NAN)));
        Size {
            endpoints: n,
            prefill: (0..self.q.goals.len()).map(part).collect(),
            figures,
            fails,
            tokens: mean(&|t| t.tokens),
            steady: trials.iter().all(|t| t.needed == (0.0, 0.0)),
        }
    }

    /// Longer times, if those of a size were too short.
    fn needed(&self, n: u32) -> Option<Times> {
        let trials = self.trials.range((n, 0)..(n + 1, 0));
        let (warmup, window) =
            trials.fold((0.0f64, 0.0f64), |(a, b), (_, t)| (a.max(t.needed.0), b.max(t.needed.1)));
        let longer = |s: Span, needed: f64| s.max(Span::secs((MARGIN * needed).ceil() as u64));
        let times =
            Times { warmup: longer(self.times.warmup, warmup), window: longer(self.times.window, window) };
        (times != self.times).then_some(times)
    }

    /// Whether one seed alone keeps everything.
    fn seed_holds(&self, t: &Trial) -> bool {
        t.load != Load::Overloaded
            && (t.lost <= LOST || self.may_lose())
            && self.q.goals.iter().zip(&t.samples).all(|(g, s)| g.met_by(s))
    }

    /// The smallest size of each seed, looked for from `n` on.
    pub(super) fn by_seed(&mut self, n: u32) -> Vec<Option<u32>> {
        loop {
            let walks: Vec<Result<Option<u32>, u32>> =
                (0..self.q.seeds.len()).map(|s| self.walk(n, s)).collect();
            let wanted: Vec<(u32, usize)> =
                walks.iter().enumerate().filter_map(|(s, w)| Some((w.err()?, s))).collect();
            if wanted.is_empty() {
                return walks.into_iter().map(|w| w.ok().flatten()).collect();
            }
            self.run(&wanted);
        }
    }

    /// The smallest size of a seed, or the size that has to be run to know it.
    fn walk(&self, n: u32, seed: usize) -> Result<Option<u32>, u32> {
        let holds = |k: u32| self.trials.get(&(k, seed)).map(|t| self.seed_holds(t)).ok_or(k);
        let mut k = n;
        if holds(k)? {
            while k > 1 && holds(k - 1)? {
                k -= 1;
            }
            return Ok(Some(k));
        }
        while k < n.saturating_add(ABOVE) {
            k += 1;
            if holds(k)? {
                return Ok(Some(k));
            }
        }
        Ok(None)
    }

    /// Everything that was run under all seeds.
    pub(super) fn sizes(self) -> Vec<Size> {
        self.complete.into_values().collect()
    }
}

impl Sizes for Pool<'_> {
    fn holds(&mut self, n: u32) -> bool {
        if self.longer.is_some() {
            return true;
        }
        let (holds, below) = (self.size(n).holds(), f64::from(n) * self.one * BELOW > self.workload.rate());
        // Goals that fail after a warm-up that is too short fail after a longer one, too: an empty pool is faster.
        // But a pool that is still filling seems to grow, which counts for nothing below its capacity.
        let filling = below && matches!(self.size(n).fails[..], [Fail::Grows(_)]);
        if (holds || filling)
            && let Some(times) = self.needed(n)
        {
            self.longer = Some((n, times));
        }
        holds
    }

    /// What load adds to a figure falls at least as one over the size in a pool that is hardly loaded. So after
    /// a doubling that gained some, all further ones together gain no more than that again.
    fn stalls(&mut self, small: u32, large: u32) -> bool {
        if large < small.saturating_mul(2) {
            return false;
        }
        let (a, b) = (self.size(small).clone(), self.size(large).clone());
        let at_best = |before: f64, after: f64| after - (before - after);
        b.fails.iter().any(|f| match *f {
            Fail::Goal(i) if a.fails.contains(f) => {
                let goal = &self.q.goals[i];
                let used = |s: &Size| goal.used(goal.worst(&s.figures[i]));
                let (before, after) = (used(&a), used(&b));
                // One that stays undetermined does not get better.
                !after.is_finite() || at_best(before, after) > 1.0
            }
            Fail::Loses(after) => {
                a.fails.iter().any(|f| matches!(*f, Fail::Loses(before) if at_best(before, after) > LOST))
            }
            _ => false,
        })
    }
}
