//! Policies over the same workloads, rates and seeds.
//!
//! Runs of one seed share arrivals, lengths and every other draw, so that policies are compared pair by pair.

use crate::Setup;
use crate::parallel::{Progress, parallel};
use crate::policies::Policy;
use crate::summary::{ClassSummary, Metric, Summary};
use forebay_base::Diagnostics;
use forebay_records::Histogram;
use forebay_records::stats::quantile::of_histogram;
use forebay_records::stats::{Direction, Load, Paired, Quantile, Verdict, paired};
use forebay_sim::{Cluster, Options, Timeline};
use forebay_workload::Workload;
use std::sync::{Arc, Mutex, PoisonError};

/// A published change of a measure of the class with the highest priority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// What was measured.
    pub measure: Measure,
    /// The improvement in per cent, positive for better.
    pub improvement: f64,
    /// Where it comes from, in a few words.
    pub source: &'static str,
}

/// Changes up to this many per cent count as none, published or not.
pub const NO_CHANGE: f64 = 5.0;

impl Published {
    /// Whether `ours` goes the same way: both better, both worse, or neither by more than [`NO_CHANGE`]. Ours
    /// counts as a change only if its interval excludes none.
    pub fn agrees(&self, ours: &Paired) -> bool {
        let way = |x: f64| {
            if x > NO_CHANGE {
                1
            } else if x < -NO_CHANGE {
                -1
            } else {
                0
            }
        };
        let sure = matches!(ours.verdict, Verdict::Better | Verdict::Worse);
        way(self.improvement) == if sure { way(ours.improvement) } else { 0 }
    }
}

/// A workload at a rate, with what it is run on.
#[derive(Clone, Debug)]
pub struct Place {
    /// The workload, at its rate.
    pub workload: Workload,
    /// The servers.
    pub cluster: Arc<Cluster>,
    /// What was published about it; of several figures of a measure, the one to be drawn first.
    pub published: Vec<Published>,
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
    /// The measures of the class with the highest priority that tables and charts show.
    pub shown: Vec<Measure>,
    /// Index of the policy under which the class with the highest priority also runs without the others, as
    /// a bound on what any policy can give it.
    pub alone: Option<usize>,
}

impl Question {
    /// These policies at these places, under the seeds from 1 on.
    pub fn new(policies: Vec<Policy>, places: Vec<Place>, seeds: u64) -> Question {
        let shown = vec![Measure::TtftP99, Measure::E2eP99];
        Question { policies, places, seeds: (1..=seeds).collect(), points: 300, shown, alone: None }
    }
}

/// What is compared about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// 99th percentile of the time to first token.
    TtftP99,
    /// 90th percentile of it.
    TtftP90,
    /// Its mean.
    TtftMean,
    /// 99th percentile of the end-to-end time.
    E2eP99,
    /// 90th percentile of it.
    E2eP90,
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
    pub const ALL: [Measure; 9] = [
        Measure::TtftP99,
        Measure::TtftP90,
        Measure::TtftMean,
        Measure::E2eP99,
        Measure::E2eP90,
        Measure::E2eMean,
        Measure::TpotMean,
        Measure::Requests,
        Measure::Tokens,
    ];

    /// For tables and files.
    pub const fn label(self) -> &'static str {
        match self {
            Measure::TtftP99 => "TTFT p99",
            Measure::TtftP90 => "TTFT p90",
            Measure::TtftMean => "TTFT mean",
            Measure::E2eP99 => "E2E p99",
            Measure::E2eP90 => "E2E p90",
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
        let at = |m: Metric, i: usize| c.figure(m).quantiles[i].value.map_or(f64::INFINITY, |v| v as f64);
        // A mean over those that have a value would praise whoever loses the slow ones.
        let whole = |m: Metric| {
            let lost = c.figure(m).quantiles[3].infinite;
            c.figure(m).mean.filter(|_| lost == 0).unwrap_or(f64::INFINITY)
        };
        match self {
            Measure::TtftP99 => at(Metric::Ttft, 3),
            Measure::TtftP90 => at(Metric::Ttft, 1),
            Measure::TtftMean => whole(Metric::Ttft),
            Measure::E2eP99 => at(Metric::E2e, 3),
            Measure::E2eP90 => at(Metric::E2e, 1),
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
    /// Refused, for whatever reason.
    pub rejected: u64,
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
    /// The class with the highest priority without the others, compared with itself under the baseline.
    pub alone: Option<ArmResult>,
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
    /// From the question.
    pub shown: Vec<Measure>,
}

/// A run without what only one run can show.
struct Slim {
    summary: Summary,
    timeline: Timeline,
}

/// The runs of a place that have ended, by their index, and how many have not.
struct Held {
    runs: Vec<Option<Slim>>,
    left: usize,
}

impl Held {
    fn of(runs: usize) -> Mutex<Held> {
        Mutex::new(Held { runs: std::iter::repeat_with(|| None).take(runs).collect(), left: runs })
    }

    /// All runs, if this one is the last.
    fn put(&mut self, i: usize, run: Slim) -> Option<Vec<Slim>> {
        self.runs[i] = Some(run);
        self.left -= 1;
        (self.left == 0).then(|| std::mem::take(&mut self.runs).into_iter().flatten().collect())
    }
}

/// Runs everything over `threads` threads.
///
/// # Errors
/// What is wrong with a policy's configuration.
pub fn compare(q: &Question, threads: usize, progress: &Progress) -> Result<Comparison, Diagnostics> {
    let setups = q.places.iter().map(|p| setups(q, p)).collect::<Result<Vec<_>, _>>()?;
    let of_place = |p: usize| setups[p].len() * q.seeds.len();
    // All places in one line, so that nobody waits at the end of each. A place is put together when its last run
    // ends, so that only the histograms of few places are held run by run.
    let jobs: Vec<(usize, usize)> =
        (0..setups.len()).flat_map(|p| (0..of_place(p)).map(move |i| (p, i))).collect();
    let held: Vec<Mutex<Held>> = (0..setups.len()).map(|p| Held::of(of_place(p))).collect();
    let ended = parallel(jobs.len(), threads, progress, |job| {
        let (p, i) = jobs[job];
        let run = slim(q, &setups[p][i / q.seeds.len()], i % q.seeds.len());
        let all = held[p].lock().unwrap_or_else(PoisonError::into_inner).put(i, run);
        all.map(|runs| (p, together(q, &q.places[p], &runs)))
    });
    let mut places: Vec<(usize, PlaceResult)> = ended.into_iter().flatten().collect();
    places.sort_by_key(|(p, _)| *p);
    let places = places.into_iter().map(|(_, place)| place).collect();
    Ok(Comparison { policies: q.policies.clone(), seeds: q.seeds.clone(), places, shown: q.shown.clone() })
}

/// The run of a setup under a seed.
fn slim(q: &Question, setup: &Setup, seed: usize) -> Slim {
    let sample = (seed == 0 && q.points > 0).then(|| setup.sampling(q.points));
    let run = setup.run(q.seeds[seed], Options { sample, ..Options::new(0) });
    Slim { summary: Summary::of(&run, &setup.workload), timeline: run.timeline }
}

/// All runs of a place.
fn together(q: &Question, place: &Place, runs: &[Slim]) -> PlaceResult {
    let mut result = PlaceResult { place: place.clone(), arms: Vec::new(), alone: None };
    let top = result.top_class();
    for (i, runs) in runs.chunks(q.seeds.len()).enumerate() {
        let baseline = |c: usize| result.arms.first().map(|b| &b.classes[c]);
        if i < q.policies.len() {
            let arm = arm(i, runs, baseline);
            result.arms.push(arm);
        } else {
            result.alone = Some(arm(q.alone.unwrap_or(0), runs, |_| baseline(top)));
        }
    }
    result
}

/// What runs at a place: every policy, then the class with the highest priority alone.
fn setups(q: &Question, place: &Place) -> Result<Vec<Setup>, Diagnostics> {
    let priorities = Setup::priorities(&place.workload);
    let setup = |policy: &Policy, workload: &Workload| -> Result<Setup, Diagnostics> {
        let (plan, cluster) = (policy.plan(&priorities)?, Arc::clone(&place.cluster));
        Ok(Setup { plan, cluster, workload: workload.clone() })
    };
    let mut all = q.policies.iter().map(|p| setup(p, &place.workload)).collect::<Result<Vec<_>, _>>()?;
    if let Some((policy, workload)) = q.alone.zip(alone(&place.workload)) {
        all.push(setup(&q.policies[policy], &workload)?);
    }
    Ok(all)
}

/// The same requests of the class with the highest priority, and no others; `None` where others cannot be
/// told apart or there are none.
fn alone(workload: &Workload) -> Option<Workload> {
    let several = workload.classes.len() > 1 && workload.traces.is_empty();
    several
        .then(|| Workload { classes: vec![workload.classes[top_of(workload)].clone()], ..workload.clone() })
}

fn top_of(workload: &Workload) -> usize {
    let classes = &workload.classes;
    (0..classes.len()).max_by_key(|i| (classes[*i].priority, std::cmp::Reverse(*i))).unwrap_or(0)
}

/// Runs that a question takes.
pub fn runs(q: &Question) -> u64 {
    let alone = |p: &Place| usize::from(q.alone.is_some() && alone(&p.workload).is_some());
    q.places.iter().map(|p| ((q.policies.len() + alone(p)) * q.seeds.len()) as u64).sum()
}

fn arm<'b>(policy: usize, runs: &[Slim], baseline: impl Fn(usize) -> Option<&'b ClassResult>) -> ArmResult {
    let classes = runs.first().map_or(0, |r| r.summary.classes.len() + 1);
    let classes = (0..classes).map(|c| {
        let of = |r: &Slim| r.summary.classes.get(c).unwrap_or(&r.summary.total).clone();
        class(&runs.iter().map(of).collect::<Vec<_>>(), baseline(c))
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
        rejected: runs.iter().map(ClassSummary::all_rejected).sum(),
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
        top_of(&self.place.workload)
    }
    /// Index of the class with the lowest priority, if there are several.
    pub fn low_class(&self) -> Option<usize> {
        let classes = &self.place.workload.classes;
        (0..classes.len()).min_by_key(|i| classes[*i].priority).filter(|i| *i != self.top_class())
    }
    /// The published figure of a measure that is drawn.
    pub fn published(&self, m: Measure) -> Option<&Published> {
        self.place.published.iter().find(|p| p.measure == m)
    }
    /// Its rate.
    pub fn rate(&self) -> f64 {
        self.place.workload.rate()
    }
}

impl Comparison {
    /// Of the published figures of a measure that moved by more than [`NO_CHANGE`], and of the others: how many
    /// the first treatment agrees with, and how many there are.
    pub fn agreement(&self, m: Measure) -> [(usize, usize); 2] {
        let mut counts = [(0, 0); 2];
        for p in &self.places {
            let ours = p.arms.get(1).and_then(|a| a.classes[p.top_class()].against(m));
            let Some((published, ours)) = p.published(m).zip(ours) else { continue };
            let (agree, all) = &mut counts[usize::from(published.improvement.abs() <= NO_CHANGE)];
            *agree += usize::from(published.agrees(ours));
            *all += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_alone_is_the_same_requests() {
        let workload = Workload::preset("code").unwrap().with_rate(16.0);
        let only = alone(&workload).unwrap();
        assert_eq!((only.classes.len(), only.classes[0].name.as_str()), (1, "critical"));
        let requests = |w: &Workload| {
            let (mut arrivals, top) = (w.arrivals(3), w.class("critical").unwrap());
            let mut all = Vec::new();
            while let Some(r) = arrivals.next() {
                if r.class == top {
                    all.push((r.at, r.prompt_tokens, r.output_tokens));
                }
            }
            all
        };
        let (with, without) = (requests(&workload), requests(&only));
        assert!(with.len() > 2_000);
        assert_eq!(with, without);
        assert_eq!(alone(&only), None);
    }

    #[test]
    fn agreement_is_about_direction_and_certainty() {
        let ours = |improvement, verdict| Paired {
            pairs: 20,
            unusable: 0,
            improvement,
            interval: (0.0, 0.0),
            bootstrap: (0.0, 0.0),
            verdict,
        };
        let published = |improvement| Published { measure: Measure::TtftP99, improvement, source: "" };
        for (them, us, verdict, agree) in [
            (97.0, 60.0, Verdict::Better, true),
            (97.0, 60.0, Verdict::NoDifference, false),
            (97.0, 4.0, Verdict::Better, false),
            (-18.0, 30.0, Verdict::Better, false),
            (-18.0, -30.0, Verdict::Worse, true),
            (-4.0, 3.0, Verdict::Better, true),
            (0.0, 19.0, Verdict::Better, false),
            (0.0, 19.0, Verdict::NoDifference, true),
        ] {
            assert_eq!(published(them).agrees(&ours(us, verdict)), agree, "{them} {us} {verdict:?}");
        }
    }
}
