//! `forebay observe`: send a workload to a real server and measure it.

mod flags;
mod search;
pub(crate) mod show;
pub(crate) mod view;
mod write;

use crate::input::Unusable;
use crate::simulated::{at_rate, workload};
use crate::{FAILURE, runtime};
use clap::Args;
use flags::{RequestFlags, RunFlags, TargetFlags};
use forebay_load::{LoadError, Observation, Options, Server, Watch, observe};
use forebay_study::Observed;
use forebay_study::observed::Goal;
use forebay_workload::Workload;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use view::Looking;

/// Send a workload to a server on its schedule, and measure what comes back
///
/// Open loop: requests leave when the workload says so, and latencies count from that time, whether or not this
/// command was late. A run that did not keep its schedule is marked invalid and ends with exit code 1.
#[derive(Debug, Args)]
pub(crate) struct Observe {
    /// A workload file, or a preset
    #[arg(long, value_name = "FILE|PRESET")]
    workload: String,
    /// Requests per second of all classes together, instead of the workload's
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// One run after the other at these rates
    #[arg(long, value_name = "R,R,…", value_delimiter = ',', conflicts_with = "rate")]
    rates: Vec<f64>,
    /// Search the highest rate at which this holds, such as `critical:ttft-p99<1s`; from --rate on
    #[arg(long, value_name = "GOAL", value_parser = search::goal, conflicts_with = "rates")]
    find_capacity: Option<Goal>,
    /// The search ends when it is this near, as a share of the rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, requires = "find_capacity")]
    precision: f64,
    /// Write report.html, summary.json, requests.csv and requests.jsonl into this folder; with several rates, into one
    /// for each
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Compress the requests' files with Zstandard
    #[arg(long, requires = "out")]
    zstd: bool,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Lines every few seconds instead of a live view; it is chosen by itself where stderr is no terminal
    #[arg(long)]
    plain: bool,
    /// Show nothing while the run goes on
    #[arg(long, conflicts_with = "plain")]
    quiet: bool,
    #[command(flatten)]
    target: TargetFlags,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    requests: RequestFlags,
}

/// A run with what it says.
pub(crate) struct Seen {
    pub(crate) rate: f64,
    pub(crate) run: Observation,
    pub(crate) says: Observed,
}

impl Observe {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let workload = self.run.apply(&at_rate(&workload(&self.workload)?, self.rate)?)?;
        if let Some(goal) = &self.find_capacity {
            search::check(goal, &workload)?;
        }
        for rate in &self.rates {
            at_rate(&workload, Some(*rate))?;
        }
        let salt = self.run.salt()?;
        let server = self.server(&workload, salt)?;
        let watch = Watch::new();
        let _signals = runtime::on_signals(stopping(&watch))?;
        let ended = if let Some(goal) = &self.find_capacity {
            self.search(out, goal, &workload, &server, salt, &watch)?
        } else if self.rates.is_empty() {
            self.single(out, &workload, &server, salt, &watch)?
        } else {
            self.sweep(out, &workload, &server, salt, &watch)?
        };
        Ok(if ended { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
    }

    fn server(&self, workload: &Workload, salt: u64) -> anyhow::Result<Server> {
        let style = self.requests.style(workload)?;
        let words = self.requests.words()?;
        let url = self.target.url.clone();
        let mut server = Server::find(url, style, self.target.model.as_deref(), words).map_err(no_server)?;
        if !self.requests.no_calibration {
            let sessions = workload.classes.iter().any(|c| c.sessions.as_ref().is_some_and(|s| s.history));
            server.calibrate(sessions, salt ^ 0x5eed).map_err(no_server)?;
        }
        Ok(server)
    }

    /// One run, shown while it goes on and written at its end.
    fn observe(
        &self,
        workload: &Workload,
        server: &Server,
        salt: u64,
        watch: &Arc<Watch>,
        dir: Option<&Path>,
    ) -> anyhow::Result<Seen> {
        let mut options =
            Options { drain: Some(self.run.drain(workload)), ..Options::new(self.run.seed, salt) };
        options.threads = self.run.threads.map_or(options.threads, |n| n as usize);
        let looking = Looking::start(watch, self.quiet, self.plain);
        let run = observe(workload, server, &options, watch)?;
        drop(looking);
        let seen = Seen { rate: workload.rate(), says: Observed::of(&run), run };
        if let Some(dir) = dir {
            write::all(dir, &seen, server, salt, self.run.seed, self.zstd)?;
        }
        Ok(seen)
    }

    fn single(
        &self,
        out: &mut dyn Write,
        workload: &Workload,
        server: &Server,
        salt: u64,
        watch: &Arc<Watch>,
    ) -> anyhow::Result<bool> {
        let seen = self.observe(workload, server, salt, watch, self.out.as_deref())?;
        for (format, path) in &self.run.export {
            write::export(*format, path, &seen, server)?;
        }
        if self.json {
            let value = write::summary(&seen, server, salt, self.run.seed);
            serde_json::to_writer_pretty(&mut *out, &value)?;
            writeln!(out)?;
        } else {
            show::report(out, &seen, server)?;
        }
        Ok(seen.says.schedule.problems().is_empty())
    }

    /// The rates one after the other, each a run of its own: the one before has ended, or been cut off.
    fn sweep(
        &self,
        out: &mut dyn Write,
        workload: &Workload,
        server: &Server,
        salt: u64,
        watch: &Arc<Watch>,
    ) -> anyhow::Result<bool> {
        let mut all = Vec::new();
        for (i, rate) in self.rates.iter().enumerate() {
            let dir = self.out.as_ref().map(|d| d.join(format!("rate-{rate}")));
            let at = at_rate(workload, Some(*rate))?;
            // A text of its own: prompts of one rate are nothing that another one finds in a cache.
            all.push(self.observe(&at, server, salt.wrapping_add(i as u64), watch, dir.as_deref())?);
            if watch.is_stopped() {
                break;
            }
        }
        if self.json {
            let each: Vec<_> = all.iter().map(|s| write::summary(s, server, salt, self.run.seed)).collect();
            serde_json::to_writer_pretty(&mut *out, &each)?;
            writeln!(out)?;
        } else {
            show::sweep(out, &all, workload)?;
        }
        if let Some(dir) = &self.out {
            write::sweep(dir, &all)?;
        }
        Ok(all.iter().all(|s| s.says.schedule.problems().is_empty()))
    }

    fn search(
        &self,
        out: &mut dyn Write,
        goal: &Goal,
        workload: &Workload,
        server: &Server,
        salt: u64,
        watch: &Arc<Watch>,
    ) -> anyhow::Result<bool> {
        let mut runs = 0;
        let mut run = |rate: f64| {
            let dir = self.out.as_ref().map(|d| d.join(format!("rate-{rate:.3}")));
            runs += 1;
            self.observe(&workload.with_rate(rate), server, salt.wrapping_add(runs), watch, dir.as_deref())
        };
        let found = search::highest(goal, workload, self.precision, watch, &mut run)?;
        search::print(out, goal, &found, self.json)?;
        if let Some(dir) = &self.out {
            search::write(dir, goal, &found)?;
        }
        Ok(found.rate.is_some())
    }
}

/// What a signal does: the first ends the sending, the second the run.
pub(crate) fn stopping(watch: &Arc<Watch>) -> impl FnMut(&'static str) + Send + 'static {
    let watch = Arc::clone(watch);
    move |signal| {
        let said = if watch.is_stopped() {
            watch.cut();
            "the run ends now"
        } else {
            watch.stop();
            "nothing more is sent; once more ends the run now"
        };
        // Whoever closed stderr does not want to know.
        let _ = writeln!(std::io::stderr(), "\n{signal}: {said}");
    }
}

fn no_server(e: LoadError) -> anyhow::Error {
    match e {
        LoadError::Start(e) => e.into(),
        other => Unusable(format!("--target: {other}")).into(),
    }
}
