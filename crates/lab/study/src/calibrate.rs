//! Fits the engine's factors to observed runs: each run's requests go through the simulator again, at the same times
//! with the same lengths, and the factors are moved until mean and percentiles of TTFT, TPOT and E2E come out as they
//! were seen.
//!
//! Least squares on the logarithms of simulated over observed figures, each in units of its sampling error, over
//! the logarithms of the factors within bounds. A factor is fitted if the runs tell it from the others; otherwise it
//! keeps its value, and that is said. Nothing is drawn but the resamples of the bootstrap, under a fixed seed.

mod figures;
mod fit;
mod report;
mod runs;
mod solve;

pub use figures::{Figure, METRICS, Times};
pub use report::{caveats, json, method, summary};
pub use runs::Seen;

use crate::parallel::{Progress, parallel};
use crate::summary::Summary;
use crate::whatif::{LONG, ROOM, faster, keeps_up};
use crate::{Metric, Setup};
use forebay_base::{Diagnostic, Diagnostics, Position, math};
use forebay_engine::{Calibration, Factor, Factors, Hardware, Resolved};
use forebay_kernel::Plan;
use forebay_records::stats::Load;
use forebay_sim::{Cluster, Options, Run};
use forebay_workload::Workload;
use std::sync::Arc;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Runs to fit to, at least one.
    pub fitted: Vec<Seen>,
    /// Runs that have no part in the fit.
    pub held_back: Vec<Seen>,
    /// What they were served by, with the values to start from.
    pub cluster: Arc<Cluster>,
    /// What decided in front of it.
    pub plan: Arc<Plan>,
    /// The GPU type whose factors are fitted.
    pub hardware: Hardware,
    /// Factors that may be fitted.
    pub factors: Vec<Factor>,
}

/// What became of a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// It was fitted; this is its 95 % interval.
    Fitted(f64, f64),
    /// It was fitted, and what it stands for is too small to be told from nothing.
    Small,
    /// It was fitted and stopped at its bound: the form of the engine does not fit these runs.
    AtBound,
    /// No figure of these runs depends on it: its value stays.
    NoEffect,
    /// The runs do not tell it from the factors that are fitted: its value stays.
    Confounded,
}

/// A factor before and after.
#[derive(Clone, Copy, Debug)]
pub struct Fitted {
    /// Which.
    pub factor: Factor,
    /// The value it had: a share, or nanoseconds.
    pub before: f64,
    /// The value it has.
    pub after: f64,
    /// How it came by that.
    pub outcome: Outcome,
}

/// A figure of a run.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// Which.
    pub figure: Figure,
    /// What was observed, in nanoseconds.
    pub observed: f64,
    /// Simulated with the values before, in nanoseconds.
    pub before: f64,
    /// With those after.
    pub after: f64,
    /// Error of the latter as a share, with its 95 % interval by the bootstrap.
    pub interval: (f64, f64),
    /// The residual of the fit: the logarithm of the ratio in units of the figure's sampling error.
    pub residual: f64,
}

impl Compared {
    /// Error of the values before, as a share.
    pub fn error_before(&self) -> f64 {
        self.before / self.observed - 1.0
    }

    /// Error of the values after.
    pub fn error(&self) -> f64 {
        self.after / self.observed - 1.0
    }
}

/// A run, and what the simulator makes of it.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Its name.
    pub name: String,
    /// Whether the factors were fitted to it.
    pub fitted: bool,
    /// Requests that count.
    pub requests: usize,
    /// Arrivals per second.
    pub rate: f64,
    /// By figure.
    pub figures: Vec<Compared>,
    /// Share of prompt tokens from the prefix cache, observed and simulated.
    pub cached: (f64, f64),
    /// What has to be known about it, in sentences.
    pub remarks: Vec<String>,
    /// Whether it is near the knee.
    pub near: bool,
}

/// What comes out.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The cluster's name.
    pub cluster: String,
    /// The GPU type.
    pub hardware: &'static str,
    /// By factor, in the order of the request.
    pub factors: Vec<Fitted>,
    /// All factors of the GPU type.
    pub all: Factors,
    /// Runs that were fitted, then those held back.
    pub runs: Vec<RunReport>,
    /// Sum of squared residuals before and after, and how many there are.
    pub squares: (f64, f64, usize),
    /// Steps of the search.
    pub steps: usize,
    /// Whether it ended because nothing got better.
    pub converged: bool,
}

impl Answer {
    /// The factors as a file for `--calibration`.
    pub fn calibration(&self) -> Calibration {
        Calibration::named(self.hardware, self.all)
    }
}

/// A cluster with other hardware in its servers; those that share their numbers still do.
///
/// # Errors
/// A server that cannot be with it.
pub fn equipped(cluster: &Cluster, to: impl Fn(&Hardware) -> Hardware) -> Result<Cluster, Diagnostics> {
    let mut made: Vec<(*const Resolved, Arc<Resolved>)> = Vec::new();
    let mut cluster = cluster.clone();
    for server in &mut cluster.servers {
        let old = Arc::as_ptr(&server.engine);
        let known = made.iter().find(|(p, _)| *p == old).map(|(_, new)| Arc::clone(new));
        server.engine = if let Some(new) = known {
            new
        } else {
            let mut spec = server.engine.spec.clone();
            spec.hardware = to(&spec.hardware);
            let new = Arc::new(spec.resolve()?);
            made.push((old, Arc::clone(&new)));
            new
        };
    }
    Ok(cluster)
}

/// The names of the GPU types of a cluster, each once.
pub fn types(cluster: &Cluster) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for s in &cluster.servers {
        if !names.contains(&s.engine.spec.hardware.name) {
            names.push(s.engine.spec.hardware.name);
        }
    }
    names
}

/// The GPU type of a cluster whose factors can be fitted: its only one, or the one that is `asked` for.
///
/// # Errors
/// Several types and none asked for, or one that the cluster does not have. `flag` names the place.
pub fn hardware(cluster: &Cluster, asked: Option<&str>, flag: &str) -> Result<Hardware, Diagnostics> {
    let names = types(cluster);
    let fail = |message: String| {
        let d = Diagnostic::error(Position::default(), flag, message);
        d.expected(format!("one of {}", names.join(", ")))
    };
    let name = match (asked, names.as_slice()) {
        (Some(asked), _) => {
            let found = Hardware::find(asked).map_err(|d| {
                Diagnostics(d.0.into_iter().map(|d| Diagnostic { path: flag.to_owned(), ..d }).collect())
            })?;
            if !names.contains(&found.name) {
                let d = fail(format!("{} has no {}", cluster.name, found.name));
                return Err(Diagnostics(vec![d.nearest_of(asked, names.iter().copied())]));
            }
            found.name
        }
        (None, [one]) => one,
        (None, _) => {
            let what = format!(
                "{} has several GPU types, and the runs do not tell which of them served what",
                cluster.name
            );
            return Err(Diagnostics(vec![fail(what)]));
        }
    };
    let of = cluster.servers.iter().map(|s| s.engine.spec.hardware).find(|h| h.name == name);
    of.ok_or_else(|| Diagnostics(vec![fail("there is none".to_owned())]))
}

/// What is simulated again and again.
pub(crate) struct Bench<'a> {
    ask: &'a Ask,
    threads: usize,
    progress: &'a Progress,
}

impl Bench<'_> {
    /// The cluster with these factors.
    fn cluster(&self, factors: Factors) -> Arc<Cluster> {
        let name = self.ask.hardware.name;
        let to = |h: &Hardware| if h.name == name { Hardware { factors, ..*h } } else { *h };
        // Only factors differ, and these are within their bounds.
        equipped(&self.ask.cluster, to).map_or_else(|_| Arc::clone(&self.ask.cluster), Arc::new)
    }

    fn simulate(&self, seen: &Seen, cluster: &Arc<Cluster>) -> Run {
        let (plan, cluster) = (Arc::clone(&self.ask.plan), Arc::clone(cluster));
        Setup { plan, cluster, workload: seen.replay.clone() }.run(1, Options::new(1))
    }

    /// Every run under every set of factors; by set, then by run.
    fn all(&self, runs: &[&Seen], sets: &[Factors]) -> Vec<Vec<Vec<Times>>> {
        let clusters: Vec<Arc<Cluster>> = sets.iter().map(|f| self.cluster(*f)).collect();
        let n = runs.len();
        let jobs = n * sets.len();
        let (done, all) = self.progress.get();
        self.progress.expect((done + jobs as u64).saturating_sub(all));
        let mut flat = parallel(jobs, self.threads, self.progress, |i| {
            let seen = runs[i % n];
            seen.replayed(&self.simulate(seen, &clusters[i / n]).rows)
        })
        .into_iter();
        sets.iter().map(|_| flat.by_ref().take(n).collect()).collect()
    }

    /// Logarithms of simulated over observed figures of a run.
    fn logs(seen: &Seen, times: &[Times]) -> Vec<f64> {
        /// What stands for a figure that never came: as if it had taken e^10 times as long.
        const NEVER: f64 = 10.0;
        let simulated = figures::values(&seen.figures, times, &seen.times);
        let ratio = |(s, o): (&f64, &f64)| if s.is_finite() { (s - o).min(NEVER) } else { NEVER };
        simulated.iter().zip(&seen.observed).map(ratio).collect()
    }
}

/// Fits, and holds the result against all runs. It does not depend on `threads`.
pub fn calibrate(ask: &Ask, threads: usize, progress: &Progress) -> Answer {
    let bench = Bench { ask, threads, progress };
    progress.expect(fit::expected(ask));
    let found = fit::fit(&bench);
    let all = found.factors;
    let runs: Vec<&Seen> = ask.fitted.iter().chain(&ask.held_back).collect();
    let [before, after] = [ask.hardware.factors, all].map(|f| bench.cluster(f));
    let reports = parallel(runs.len(), threads, progress, |i| {
        report(&bench, runs[i], i < ask.fitted.len(), &before, &after)
    });
    Answer {
        cluster: ask.cluster.name.clone(),
        hardware: ask.hardware.name,
        factors: found.outcomes,
        all,
        runs: reports,
        squares: found.squares,
        steps: found.steps,
        converged: found.converged,
    }
}

/// Greatest difference of the shares of cached prompt tokens that is no remark.
const CACHED: f64 = 0.05;

fn report(
    bench: &Bench<'_>,
    seen: &Seen,
    fitted: bool,
    before: &Arc<Cluster>,
    after: &Arc<Cluster>,
) -> RunReport {
    let old = seen.replayed(&bench.simulate(seen, before).rows);
    let run = bench.simulate(seen, after);
    let new = seen.replayed(&run.rows);
    let (old, logs) = (Bench::logs(seen, &old), Bench::logs(seen, &new));
    let ratios = figures::ratios(&seen.figures, &seen.times, &new, seen.block);
    let errors = figures::errors(&ratios, seen.figures.len());
    let compared = seen.figures.iter().enumerate().map(|(k, figure)| {
        let observed = math::exp(seen.observed[k]);
        let (low, high) = figures::interval(&ratios, k);
        Compared {
            figure: *figure,
            observed,
            before: observed * math::exp(old[k]),
            after: observed * math::exp(logs[k]),
            interval: (math::exp(low) - 1.0, math::exp(high) - 1.0),
            residual: logs[k] / errors[k],
        }
    });
    let mut remarks = seen.remarks.clone();
    let (hit, asked) = seen
        .counts
        .iter()
        .filter_map(|&i| run.rows.get(i))
        .fold((0.0, 0.0), |(h, a), r| (h + f64::from(r.cached_tokens), a + f64::from(r.prompt_tokens)));
    let cached = (seen.cached, hit / f64::max(asked, 1.0));
    if (cached.0 - cached.1).abs() > CACHED {
        remarks.push(format!(
            "{:.0} % of its prompt tokens came from the prefix cache, {:.0} % do in the replay: what shares its beginning \
             with what is not known.",
            100.0 * cached.0,
            100.0 * cached.1
        ));
    }
    let knee = knee(bench, seen, &run, after);
    let near = knee.is_some();
    remarks.extend(knee);
    RunReport {
        name: seen.name.clone(),
        fitted,
        requests: seen.requests(),
        rate: seen.rate,
        figures: compared.collect(),
        cached,
        remarks,
        near,
    }
}

/// Why a run is near the knee, if it is: what was observed, what is simulated, and whether the pool keeps up with
/// the same requests closer together.
fn knee(bench: &Bench<'_>, seen: &Seen, run: &Run, after: &Arc<Cluster>) -> Option<String> {
    let because = |what: String| {
        Some(format!("Near the knee: {what}. There small errors of the factors are big errors of latency."))
    };
    let says = Summary::of(run, &seen.replay);
    if seen.load == Load::Overloaded || says.load == Load::Overloaded {
        let how = if seen.load == Load::Overloaded { "observed" } else { "simulated" };
        return because(format!("its backlog grows, as {how}"));
    }
    let mean = says.total.figure(Metric::E2e).mean.unwrap_or(f64::INFINITY);
    if (seen.replay.mode.window.0 as f64) < LONG * mean {
        // Too short to be run closer together.
        let may = seen.load == Load::Near || says.load == Load::Near;
        return if may {
            because("its backlog may grow, and it is too short to tell".to_owned())
        } else {
            None
        };
    }
    let workload: Workload = faster(&seen.replay, ROOM);
    let setup = Setup { plan: Arc::clone(&bench.ask.plan), cluster: Arc::clone(after), workload };
    let more = Summary::of(&setup.run(1, Options::new(1)), &setup.workload);
    if keeps_up(&more) {
        return None;
    }
    because(format!("the simulated pool does not keep up with {ROOM} times its rate"))
}

#[cfg(test)]
mod tests;
