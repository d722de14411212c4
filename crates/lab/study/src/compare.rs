//! Policies over the same workloads, rates and seeds.
//!
//! Runs of one seed share arrivals, lengths and every other draw, so that policies are compared pair by pair.

use crate::parallel::{Progress, parallel};
use crate::policies::Policy;
use crate::summary::{ClassSummary, Metric, Summary};
use crate::{Setup, article::Published};
use forebay_base::Diagnostics;
use forebay_records::Histogram;
use forebay_records::stats::quantile::of_histogram;
use forebay_records::stats::{Direction, Load, Paired, Quantile, paired};
use forebay_sim::{Cluster, Options, Timeline};
use forebay_workload::Workload;
use std::sync::Arc;

/// A workload at a rate, with what it is run on.
#[derive(Clone, Debug)]
pub struct Place {
    /// The workload, at its rate.
    pub workload: Workload,
    /// The servers.
    pub cluster: Arc<Cluster>,
    /// What was published about it, if anything.
    pub published: Option<Published>,
    /// Its rate over the pool's reference capacity, if that is known.
    pub load: Option<f64>,
}

/// What is asked: every policy at every place under every seed. The first policy is the baseline.
#[derive(Clone, Debug)]
pub struct Question {
    /// The policies, the baseline first.
    pub policies: Vec<Policy>,
    /// Where they are compared.
    pub places: Vec<Place>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Points of the timeline of the first seed.
    pub points: u64,
}

/// What is compared about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// 99th percentile of the time to first token.
    TtftP99,
    /// Its mean.
    TtftMean,
    /// 99th percentile of the end-to-end time.
    E2eP99,
    /// Its mean.
    E2eMean,
    /// Mean time per output token.
    TpotMean,
    /// Completions per second while requests arrive.
    Requests,
    /// Output tokens of these per second.
    Tokens,
}

impl Measure {
    /// All of them in the order of tables.
    pub const ALL: [Measure; 7] = [
        Measure::TtftP99,
        Measure::TtftMean,
        Measure::E2eP99,
        Measure::E2eMean,
        Measure::TpotMean,
        Measure::Requests,
        Measure::Tokens,
    ];

    /// For tables and files.
    pub const fn label(self) -> &'static str {
        match self {
            Measure::TtftP99 => "TTFT p99",
            Measure::TtftMean => "TTFT mean",
            Measure::E2eP99 => "E2E p99",
            Measure::E2eMean => "E2E mean",
            Measure::TpotMean => "TPOT mean",
            Measure::Requests => "requests/s",
            Measure::Tokens => "tokens/s",
        }
    }

    /// Which way it is better.
    pub const fn direction(self) -> Direction {
        match self {
            Measure::Requests | Measure::Tokens => Direction::Higher,
            _ => Direction::Lower,
        }
    }

    fn of(self, c: &ClassSummary) -> f64 {
        let p99 = |m: Metric| c.figure(m).quantiles[3].value.map_or(f64::INFINITY, |v| v as f64);
        // A mean over those that have a value would praise whoever loses the slow ones.
        let whole = |m: Metric| {
            let lost = c.figure(m).quantiles[3].infinite;
            c.figure(m).mean.filter(|_| lost == 0).unwrap_or(f64::INFINITY)
        };
        match self {
            Measure::TtftP99 => p99(Metric::Ttft),
            Measure::TtftMean => whole(Metric::Ttft),
            Measure::E2eP99 => p99(Metric::E2e),
            Measure::E2eMean => whole(Metric::E2e),
            Measure::TpotMean => whole(Metric::Tpot),
            Measure::Requests => c.throughput.requests_per_second(),
            Measure::Tokens => c.throughput.output_tokens_per_second(),
        }
    }
}

/// One class under one policy at one place, over all seeds.
#[derive(Clone, Debug)]
pub struct ClassResult {
    /// Its name; `all` for all classes together.
    pub name: String,
    /// By [`Measure::ALL`], by seed.
    pub values: Vec<Vec<f64>>,
    /// Against the baseline, by [`Measure::ALL`]; empty for the baseline.
    pub against: Vec<Paired>,
    /// Times to first token of all seeds together, in nanoseconds.
    pub ttft: Histogram,
    /// End-to-end times of all seeds together.
    pub e2e: Histogram,
    /// Requests that arrived, and of these finished ones, over all seeds.
    pub offered: u64,
    /// Finished.
    pub finished: u64,
    /// Met their deadlines; `None` without any.
    pub attained: Option<u64>,
}

/// One policy at one place.
#[derive(Clone, Debug)]
pub struct ArmResult {
    /// Index of the policy.
    pub policy: usize,
    /// The classes in the order of the workload, then all together.
    pub classes: Vec<ClassResult>,
    /// Longest queue of an engine, the most over all seeds.
    pub longest_engine_queue: u32,
    /// Preemptions per run.
    pub preemptions: f64,
    /// Share of computed tokens that were computed again.
    pub recompute: f64,
    /// Runs found stable, near and overloaded.
    pub loads: [usize; 3],
    /// Time at each saturation over all seeds, in nanoseconds.
    pub saturation: Vec<u64>,
    /// Of the first seed.
    pub timeline: Timeline,
}

/// All policies at one place.
#[derive(Clone, Debug)]
pub struct PlaceResult {
    /// Where.
    pub place: Place,
    /// By policy.
    pub arms: Vec<ArmResult>,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The policies.
    pub policies: Vec<Policy>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// In the order of the question.
    pub places: Vec<PlaceResult>,
}

/// A run without what only one run can show.
struct Slim {
    summary: Summary,
    timeline: Timeline,
}

/// Runs everything over `threads` threads.
///
/// # Errors
/// What is wrong with a policy's configuration.
pub fn compare(q: &Question, threads: usize, progress: &Progress) -> Result<Comparison, Diagnostics> {
    let (arms, seeds) = (q.policies.len(), q.seeds.len());
    let mut setups = Vec::new();
    for place in &q.places {
        let priorities = Setup::priorities(&place.workload);
        for policy in &q.policies {
            setups.push(Setup {
                plan: policy.plan(&priorities)?,
                cluster: Arc::clone(&place.cluster),
                workload: place.workload.clone(),
            });
        }
    }
    let mut places = Vec::new();
    // Place by place, so that only one place's histograms are held run by run.
    for (p, place) in q.places.iter().enumerate() {
        let runs = parallel(arms * seeds, threads, progress, |i| {
            let setup = &setups[p * arms + i / seeds];
            let first = i % seeds == 0;
            let options = Options {
                sample: (first && q.points > 0).then(|| setup.sampling(q.points)),
                ..Options::new(0)
            };
            let run = setup.run(q.seeds[i % seeds], options);
            Slim { summary: Summary::of(&run, &setup.workload), timeline: run.timeline }
        });
        let mut results: Vec<ArmResult> = Vec::new();
        for (policy, runs) in runs.chunks(seeds).enumerate() {
            let arm = arm(policy, runs, results.first());
            results.push(arm);
        }
        places.push(PlaceResult { place: place.clone(), arms: results });
    }
    Ok(Comparison { policies: q.policies.clone(), seeds: q.seeds.clone(), places })
}

/// Runs that a question takes.
pub fn runs(q: &Question) -> u64 {
    (q.policies.len() * q.places.len() * q.seeds.len()) as u64
}

fn arm(policy: usize, runs: &[Slim], baseline: Option<&ArmResult>) -> ArmResult {
    let classes = runs.first().map_or(0, |r| r.summary.classes.len() + 1);
    let classes = (0..classes).map(|c| {
        let of = |r: &Slim| r.summary.classes.get(c).unwrap_or(&r.summary.total).clone();
        class(&runs.iter().map(of).collect::<Vec<_>>(), baseline.map(|b| &b.classes[c]))
    });
    let counters = || runs.iter().map(|r| &r.summary.counters);
    let mut saturation = vec![0; forebay_sim::HISTOGRAM_BINS];
    for c in counters() {
        for (sum, n) in saturation.iter_mut().zip(&c.saturation) {
            *sum += n;
        }
    }
    let load = |l: Load| runs.iter().filter(|r| r.summary.load == l).count();
    let n = runs.len().max(1) as f64;
    ArmResult {
        policy,
        classes: classes.collect(),
        longest_engine_queue: counters().map(|c| c.longest_engine_queue).max().unwrap_or(0),
        preemptions: counters().map(|c| c.preemptions as f64).sum::<f64>() / n,
        recompute: counters().map(forebay_sim::Counters::recompute_share).sum::<f64>() / n,
        loads: [load(Load::Stable), load(Load::Near), load(Load::Overloaded)],
        saturation,
        timeline: runs.first().map_or_else(Timeline::default, |r| r.timeline.clone()),
    }
}

fn class(runs: &[ClassSummary], baseline: Option<&ClassResult>) -> ClassResult {
    let values: Vec<Vec<f64>> = Measure::ALL.iter().map(|m| runs.iter().map(|c| m.of(c)).collect()).collect();
    let against = baseline.map_or_else(Vec::new, |b| {
        Measure::ALL
            .iter()
            .zip(b.values.iter().zip(&values))
            .map(|(m, (b, t))| {
                let pairs: Vec<(f64, f64)> = b.iter().copied().zip(t.iter().copied()).collect();
                paired(&pairs, m.direction(), 1)
            })
            .collect()
    });
    let (mut ttft, mut e2e) = (Histogram::new(), Histogram::new());
    for c in runs {
        ttft.merge(&c.ttft);
        e2e.merge(&c.e2e);
    }
    let attained = |c: &ClassSummary| c.goodput.map(|g| g.attained);
    ClassResult {
        name: runs.first().map_or_else(String::new, |c| c.name.clone()),
        values,
        against,
        ttft,
        e2e,
        offered: runs.iter().map(|c| c.offered).sum(),
        finished: runs.iter().map(|c| c.finished).sum(),
        attained: runs.iter().map(attained).sum(),
    }
}

impl ClassResult {
    /// The mean over seeds; infinite if any seed is.
    pub fn mean(&self, m: Measure) -> f64 {
        let values = &self.values[place_of(m)];
        values.iter().sum::<f64>() / values.len().max(1) as f64
    }
    /// Against the baseline; `None` for the baseline itself.
    pub fn against(&self, m: Measure) -> Option<&Paired> {
        self.against.get(place_of(m))
    }
    /// The 99th percentile over the requests of all seeds.
    pub fn pooled_ttft_p99(&self) -> Quantile {
        of_histogram(&self.ttft, self.offered - self.ttft.count(), 0.99)
    }
}

fn place_of(m: Measure) -> usize {
    Measure::ALL.iter().position(|x| *x == m).unwrap_or(0)
}

impl PlaceResult {
    /// Index of the class with the highest priority: the one that a comparison is about.
    pub fn top_class(&self) -> usize {
        let classes = &self.place.workload.classes;
        (0..classes.len()).max_by_key(|i| (classes[*i].priority, std::cmp::Reverse(*i))).unwrap_or(0)
    }
    /// Its rate.
    pub fn rate(&self) -> f64 {
        self.place.workload.rate()
    }
}
