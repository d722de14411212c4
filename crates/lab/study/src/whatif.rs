//! What happens to this traffic if a policy is turned on: two configurations over the same arrivals, class by
//! class, beside what was measured where the traffic was recorded.
//!
//! With recorded traffic arrivals and lengths are what they were; seeds vary ties, the places of scrapes, their
//! jitter and the network's delay. The interval says what these make of a difference, not what another day's
//! traffic would.

mod page;

pub use page::{change, json, page, shown};

use crate::parallel::{Progress, parallel};
use crate::summary::{ClassSummary, Metric, Summary};
use crate::{Setup, vary};
use forebay_kernel::Plan;
use forebay_records::stats::paired::MIN_PAIRS;
use forebay_records::stats::{Direction, Load, Paired, Verdict, paired};
use forebay_records::{Histogram, Row};
use forebay_sim::{Cluster, Options, Run};
use forebay_workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The traffic.
    pub workload: Workload,
    /// What it meets.
    pub cluster: Arc<Cluster>,
    /// Baseline and treatment, with their names.
    pub arms: [(String, Arc<Plan>); 2],
    /// Seeds.
    pub seeds: Vec<u64>,
    /// What was measured, if the traffic is a recording as it was.
    pub recorded: Option<Recorded>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// In the order of arrival.
    pub rows: Vec<Row>,
    /// Whether nearly all answers were streamed, so that first tokens were seen.
    pub streamed: bool,
}

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Percentile of a latency, by its place in [`crate::summary::QUANTILES`].
    Quantile(Metric, usize),
    /// Mean of a latency.
    Mean(Metric),
    /// Output tokens per second of requests that finished while others arrived.
    Tokens,
    /// Share of the offered requests that finished.
    Finished,
    /// Share of the offered requests that met the class's deadlines.
    Goodput,
}

impl Figure {
    /// All of them, in the order of tables.
    pub const ALL: [Figure; 8] = [
        Figure::Quantile(Metric::Ttft, 0),
        Figure::Quantile(Metric::Ttft, 3),
        Figure::Mean(Metric::Tpot),
        Figure::Quantile(Metric::E2e, 0),
        Figure::Quantile(Metric::E2e, 3),
        Figure::Tokens,
        Figure::Finished,
        Figure::Goodput,
    ];

    /// For tables.
    pub fn label(self) -> String {
        match self {
            Figure::Quantile(m, q) => format!("{} p{:.0}", m.label(), 100.0 * crate::summary::QUANTILES[q]),
            Figure::Mean(m) => format!("{} mean", m.label()),
            Figure::Tokens => "tokens/s".to_owned(),
            Figure::Finished => "finished".to_owned(),
            Figure::Goodput => "goodput".to_owned(),
        }
    }

    /// Whether it is a length of time, in nanoseconds.
    pub fn is_time(self) -> bool {
        matches!(self, Figure::Quantile(..) | Figure::Mean(_))
    }

    /// Whether it is a share.
    pub fn is_share(self) -> bool {
        matches!(self, Figure::Finished | Figure::Goodput)
    }

    fn direction(self) -> Direction {
        if self.is_time() { Direction::Lower } else { Direction::Higher }
    }

    /// `None` where the class has none; infinite if too many requests have no value.
    fn of(self, c: &ClassSummary) -> Option<f64> {
        match self {
            Figure::Quantile(m, q) => {
                let q = c.figure(m).quantiles[q];
                (q.count > 0).then(|| q.value.map_or(f64::INFINITY, |v| v as f64))
            }
            Figure::Mean(m) => {
                let lost = c.figure(m).quantiles[3].infinite;
                c.figure(m).mean.map(|mean| if lost == 0 { mean } else { f64::INFINITY })
            }
            Figure::Tokens => Some(c.throughput.output_tokens_per_second()),
            Figure::Finished => (c.offered > 0).then(|| c.finished as f64 / c.offered as f64),
            Figure::Goodput => c.goodput.map(|g| g.share()),
        }
    }

    /// Whether a recording shows it.
    fn recorded(self, streamed: bool) -> bool {
        match self {
            Figure::Quantile(m, _) | Figure::Mean(m) => streamed || m == Metric::E2e,
            Figure::Tokens | Figure::Finished | Figure::Goodput => true,
        }
    }
}

/// A figure of a class.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Which.
    pub figure: Figure,
    /// Means over the seeds, baseline and treatment; infinite if one is.
    pub means: [f64; 2],
    /// Treatment against baseline.
    pub change: Paired,
    /// What was measured.
    pub recorded: Option<f64>,
}

/// What becomes of a class.
#[derive(Clone, Debug)]
pub struct ClassAnswer {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Requests per run.
    pub offered: f64,
    /// By [`Figure::ALL`], where the class has it.
    pub figures: Vec<Compared>,
    /// Requests per run that were refused, by reason, baseline and treatment.
    pub refused: BTreeMap<&'static str, [f64; 2]>,
    /// Requests per run that ended otherwise without their answer, or not at all.
    pub lost: [f64; 2],
    /// Times to first token of all seeds together.
    pub ttft: [Histogram; 2],
}

/// What comes out.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The workload's name.
    pub workload: String,
    /// The cluster's.
    pub cluster: String,
    /// Names of baseline and treatment.
    pub arms: [String; 2],
    /// Runs of each.
    pub seeds: usize,
    /// Requests per second.
    pub rate: f64,
    /// Length of the arrivals in seconds.
    pub seconds: f64,
    /// Highest priority first.
    pub classes: Vec<ClassAnswer>,
    /// Factors on the rate, and whether the pool keeps up with it under the baseline; rising. Empty if the
    /// traffic is too short to tell.
    pub ladder: Vec<(f64, bool)>,
    /// Whether arrivals come from a recording or trace, so that seeds do not vary them.
    pub fixed: bool,
    /// Whether the recorded figures are beside the simulated ones.
    pub recorded: bool,
}

/// Factors on the rate that are tried.
const LADDER: [f64; 9] = [0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0];
/// Under this much room the pool is near its knee.
pub(crate) const ROOM: f64 = 1.25;
/// Traffic that lasts shorter than so many mean E2E times shows how a pool fills, not whether it keeps up.
pub(crate) const LONG: f64 = 20.0;
/// Requests of which 30 lie beyond the 99th percentile.
const P99_NEEDS: f64 = 3_000.0;
/// Requests that a pool which keeps up may lose.
const LOST: f64 = 0.001;

/// Runs that an answer takes.
pub fn runs(ask: &Ask) -> u64 {
    (2 * ask.seeds.len() + LADDER.len()) as u64
}

/// Runs both arms under all seeds, and the baseline at other rates. Results do not depend on `threads`.
pub fn answer(ask: &Ask, threads: usize, progress: &Progress) -> Answer {
    let seeds = ask.seeds.len();
    let clusters: Vec<Arc<Cluster>> =
        ask.seeds.iter().map(|s| Arc::new(vary::network(&ask.cluster, *s))).collect();
    let setup = |arm: usize, cluster: &Arc<Cluster>, workload: Workload| Setup {
        plan: Arc::clone(&ask.arms[arm].1),
        cluster: Arc::clone(cluster),
        workload,
    };
    let rungs = if ask.workload.rate() > 0.0 { LADDER.len() } else { 0 };
    let summaries = parallel(2 * seeds + rungs, threads, progress, |i| {
        let (setup, seed) = if i < 2 * seeds {
            (setup(i / seeds, &clusters[i % seeds], ask.workload.clone()), ask.seeds[i % seeds])
        } else {
            (setup(0, &ask.cluster, faster(&ask.workload, LADDER[i - 2 * seeds])), 1)
        };
        Summary::of(&setup.run(seed, Options::new(0)), &setup.workload)
    });
    let (arms, rungs) = summaries.split_at(2 * seeds);
    let recorded = ask.recorded.as_ref().map(|r| {
        let run = Run { rows: r.rows.clone(), ..Run::default() };
        (Summary::of(&run, &ask.workload), r.streamed)
    });
    let mut classes: Vec<ClassAnswer> = (0..ask.workload.classes.len())
        .map(|c| {
            let of = |arm: usize| -> Vec<&ClassSummary> {
                arms[arm * seeds..(arm + 1) * seeds].iter().map(|s| &s.classes[c]).collect()
            };
            class(&[of(0), of(1)], recorded.as_ref().map(|(s, streamed)| (&s.classes[c], *streamed)))
        })
        .collect();
    classes.sort_by_key(|c| std::cmp::Reverse(c.priority));
    Answer {
        workload: ask.workload.name.clone(),
        cluster: ask.cluster.name.clone(),
        arms: [ask.arms[0].0.clone(), ask.arms[1].0.clone()],
        seeds,
        rate: arms.first().map_or(0.0, |s| s.backlog.arrivals),
        seconds: ask.workload.mode.window.as_secs_f64(),
        classes,
        ladder: if is_long(ask, arms) {
            LADDER.iter().zip(rungs).map(|(f, s)| (*f, keeps_up(s))).collect()
        } else {
            Vec::new()
        },
        fixed: ask.workload.classes.iter().all(|c| c.arrivals.is_none()),
        recorded: ask.recorded.is_some(),
    }
}

/// The same requests closer together or further apart, and no others.
pub(crate) fn faster(workload: &Workload, factor: f64) -> Workload {
    let scaled = workload.with_scale(factor);
    if workload.classes.iter().any(|c| c.arrivals.is_some()) {
        return scaled;
    }
    let window = forebay_base::Span((workload.mode.window.0 as f64 / factor).ceil() as u64 + 1);
    scaled.with_window(window)
}

fn is_long(ask: &Ask, arms: &[Summary]) -> bool {
    let mean = arms.first().and_then(|s| s.total.figure(Metric::E2e).mean).unwrap_or(f64::INFINITY);
    ask.workload.mode.window.0 as f64 >= LONG * mean
}

pub(crate) fn keeps_up(s: &Summary) -> bool {
    let lost = s.total.all_rejected() + s.total.failed + s.total.timed_out;
    s.load != Load::Overloaded && lost as f64 <= LOST * s.total.offered as f64
}

fn class(arms: &[Vec<&ClassSummary>; 2], recorded: Option<(&ClassSummary, bool)>) -> ClassAnswer {
    let n = arms[0].len().max(1) as f64;
    let mean =
        |arm: usize, of: &dyn Fn(&ClassSummary) -> f64| arms[arm].iter().map(|c| of(c)).sum::<f64>() / n;
    let figures = Figure::ALL.iter().filter_map(|f| {
        let values = |arm: usize| arms[arm].iter().map(|c| f.of(c)).collect::<Option<Vec<f64>>>();
        let (base, treated) = (values(0)?, values(1)?);
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
        let pairs: Vec<(f64, f64)> = base.iter().copied().zip(treated.iter().copied()).collect();
        Some(Compared {
            figure: *f,
            means: [mean(&base), mean(&treated)],
            change: paired(&pairs, f.direction(), 1),
            recorded: recorded.filter(|(_, streamed)| f.recorded(*streamed)).and_then(|(c, _)| f.of(c)),
        })
    });
    let mut refused: BTreeMap<&'static str, [f64; 2]> = BTreeMap::new();
    for (arm, classes) in arms.iter().enumerate() {
        for (reason, count) in classes.iter().flat_map(|c| &c.rejected) {
            refused.entry(reason).or_default()[arm] += *count as f64 / n;
        }
    }
    let lost = |c: &ClassSummary| (c.timed_out + c.failed + c.censored) as f64;
    let pooled = |arm: usize| {
        let mut all = Histogram::new();
        for c in &arms[arm] {
            all.merge(&c.ttft);
        }
        all
    };
    ClassAnswer {
        name: arms[0].first().map_or_else(String::new, |c| c.name.clone()),
        priority: arms[0].first().map_or(0, |c| c.priority),
        offered: mean(0, &|c| c.offered as f64),
        figures: figures.collect(),
        refused,
        lost: [mean(0, &lost), mean(1, &lost)],
        ttft: [pooled(0), pooled(1)],
    }
}

impl ClassAnswer {
    /// A figure.
    pub fn figure(&self, figure: Figure) -> Option<&Compared> {
        self.figures.iter().find(|c| c.figure == figure)
    }

    /// All refused requests per run, baseline and treatment.
    pub fn all_refused(&self) -> [f64; 2] {
        self.refused.values().fold([0.0, 0.0], |a, b| [a[0] + b[0], a[1] + b[1]])
    }

    /// What changes, in a sentence without a full stop.
    pub fn sentence(&self) -> String {
        let mut parts = Vec::new();
        for figure in [Figure::Quantile(Metric::Ttft, 3), Figure::Quantile(Metric::E2e, 3)] {
            let Some(c) = self.figure(figure) else { continue };
            let change = c.change.improvement.abs();
            let word = match c.change.verdict {
                _ if c.change.pairs == 0 => "undetermined".to_owned(),
                Verdict::Better if change >= 1.0 => format!("{change:.0} % better"),
                // Twice the time is 100 % worse.
                Verdict::Worse if change >= 1.0 => format!("{change:.0} % worse"),
                Verdict::TooFew => {
                    format!("{} % (too few seeds)", crate::text::percent(c.change.improvement))
                }
                _ => "as before".to_owned(),
            };
            parts.push(format!("{} {word}", figure.label()));
        }
        let [before, after] = self.all_refused();
        if (after - before).abs() >= 0.5 {
            parts.push(format!("{before:.0} -> {after:.0} refused of {:.0}", self.offered));
        }
        format!("{}: {}", self.name, parts.join(", "))
    }
}

impl Answer {
    /// The greatest factor on the rate with which the pool keeps up, with everything below it.
    pub fn room(&self) -> Option<f64> {
        self.ladder.iter().take_while(|(_, holds)| *holds).last().map(|(f, _)| *f)
    }

    /// How much of the pool this traffic takes, in a sentence.
    pub fn load(&self) -> String {
        let next = |room: f64| self.ladder.iter().map(|(f, _)| *f).find(|f| *f > room);
        match self.room() {
            _ if self.ladder.is_empty() => {
                "Load: not known; the traffic is too short to tell whether the pool keeps up with it."
                    .to_owned()
            }
            None => "Load: the pool does not keep up with half of this traffic.".to_owned(),
            Some(room) if room < 1.0 => format!(
                "Load: over capacity. The pool keeps up with {room} of this traffic, not with {}; over capacity \
                 figures depend on how long the traffic lasts.",
                next(room).unwrap_or(1.0)
            ),
            Some(room) => match next(room) {
                None => format!("Load: under {:.0} % of the pool's capacity.", 100.0 / room),
                Some(next) => format!(
                    "Load: {:.0} to {:.0} % of the pool's capacity; it keeps up with {room} times this traffic, \
                     not with {next} times.",
                    100.0 / next,
                    100.0 / room
                ),
            },
        }
    }

    /// The greatest error of the simulated baseline against the recording, over classes: median and greatest
    /// of the absolute errors, in per cent, with how many figures there are; of latencies.
    pub fn credibility(&self) -> Option<(f64, f64, usize)> {
        let errors = self.classes.iter().flat_map(|c| &c.figures).filter(|c| c.figure.is_time());
        let mut errors: Vec<f64> = errors
            .filter_map(|c| {
                let recorded = c.recorded.filter(|r| r.is_finite() && *r > 0.0)?;
                c.means[0].is_finite().then(|| 100.0 * (c.means[0] / recorded - 1.0).abs())
            })
            .collect();
        errors.sort_by(f64::total_cmp);
        let n = errors.len();
        let median = f64::midpoint(*errors.get(n.checked_sub(1)? / 2)?, errors[n / 2]);
        Some((median, errors[n - 1], n))
    }

    /// What has to be kept in mind, in sentences.
    pub fn caveats(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(room) = self.room()
            && (0.9..ROOM).contains(&room)
        {
            out.push(format!(
                "Near the knee: with less than {ROOM} times this traffic the pool is full, so that small errors of the \
                 engine model change waits a lot."
            ));
        }
        match self.credibility() {
            Some((median, most, n)) => out.push(format!(
                "Simulated baseline against the recording: median error {median:.0} %, greatest {most:.0} %, over {n} \
                 latencies. What the recording was served by may differ from cluster and baseline given here."
            )),
            None if self.recorded => {
                out.push("No figure of the recording can be set beside the simulated ones.".to_owned());
            }
            None => out.push("Nothing measured is beside these figures: they rest on the engine model.".to_owned()),
        }
        let few: Vec<&str> =
            self.classes.iter().filter(|c| c.offered < P99_NEEDS).map(|c| c.name.as_str()).collect();
        if !few.is_empty() {
            out.push(format!(
                "Fewer than 30 requests of a run lie beyond the p99 of {}: there it is about single requests.",
                few.join(", ")
            ));
        }
        if self.fixed {
            out.push(
                "Arrivals and lengths are the recorded ones. Intervals are over ties, scrapes and network delays; \
                 another day's traffic differs by more."
                    .to_owned(),
            );
        }
        if self.seeds < MIN_PAIRS {
            out.push("Under 10 seeds there is no verdict.".to_owned());
        }
        out
    }
}

#[cfg(test)]
mod tests;
