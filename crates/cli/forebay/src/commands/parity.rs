//! `forebay parity`: how far simulation and the live router are apart.

mod live;

use super::observe::{stopping, view::Looking};
use crate::input::{self, StabilityFlags, Unusable};
use crate::layout::wrapped;
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, Threads, TraceFlags, at_rate, engines, with_bar, workload};
use crate::values::duration;
use crate::{FAILURE, runtime};
use anyhow::Context;
use clap::Args;
use comfy_table::Cell;
use forebay_base::{Nanos, Span};
use forebay_config::{Manifests, Objective};
use forebay_kernel::Plan;
use forebay_load::Watch;
use forebay_sim::Cluster;
use forebay_study::parity::{
    Ask, ClassParity, Delays, Parity as Found, UNMATCHED, compare, json, page, runs,
};
use forebay_study::{Progress, Setup, text};
use forebay_workload::{Process, Workload};
use live::Recipe;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Compare simulation and reality: the same requests through the simulator and through the live router
///
/// The live side is the router of `forebay serve` over emulated servers with the same engine, in real time, and the
/// load generator of `forebay observe`, all in this process. A probe before it measures what loopback, router and timers
/// take, and the simulated network takes the same. More simulated runs, with ties, scrapes and network delay of their
/// own, say which difference means anything. A live run that did not keep its schedule ends with exit code 1.
#[derive(Debug, Args)]
pub(crate) struct Parity {
    /// The configuration of the router; llm-d-router's built-in one if absent
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// A workload file, a trace, the folder of a recording, or a preset
    #[arg(long, value_name = "FILE|DIR|PRESET")]
    workload: String,
    #[command(flatten)]
    trace: TraceFlags,
    /// Requests per second of all classes together, instead of the workload's
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Seed of arrivals, lengths and all other draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The time of arrivals that is measured, instead of the workload's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Arrivals before that which are not measured, instead of the workload's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
    /// The most time after the last arrival, instead of the workload's; what runs then is censored on both sides
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain: Option<Duration>,
    /// How long the probe sends requests at the same rate, of which the second half counts; 0s takes the cluster's
    /// network and scrapes as declared
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    probe: Duration,
    /// Simulated runs around the one that is compared
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    #[command(flatten)]
    threads: Threads,
    /// Write report.html and parity.json into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Show nothing while the run goes on
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// How long a probe waits for what it has sent: it needs first tokens.
const PROBE_DRAIN: Span = Span::secs(5);

impl Parity {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let workload = self.workload()?;
        let cluster = self.cluster.read()?;
        let config = match &self.config {
            Some(path) => input::configuration(path, None, self.stability)?.config,
            None => input::built_in(self.stability)?,
        };
        let plan = Arc::new(config.plan(&Setup::priorities(&workload)));
        possible(&workload, &cluster, &plan)?;
        let recipe = Recipe {
            config: &config,
            plan: &plan,
            cluster: &cluster,
            workload: &workload,
            manifests: objectives(&workload),
            seed: self.seed,
            drain: workload.mode.drain,
            delays_from: Nanos::ZERO + workload.mode.warmup,
        };
        let watch = Watch::new();
        let _signals = runtime::on_signals(stopping(&watch))?;
        let probe = self.probe(&recipe, &watch)?;
        let looking = Looking::start(&watch, self.quiet, false);
        let (live, seen) = live::run(&recipe, &watch)?;
        drop(looking);
        let name = self.config.as_ref().map_or("built-in".to_owned(), |p| p.display().to_string());
        // As long as it was, if it was stopped.
        let (workload, runs_around) = (seen.workload, self.runs);
        let ask = Ask { plan, config: name, cluster, workload, seed: self.seed, runs: runs_around, probe };
        let progress = Progress::new();
        progress.expect(runs(&ask));
        let found = with_bar(&progress, "runs", || compare(&ask, &live, self.threads.count(), &progress));
        if let Some(dir) = &self.out {
            write(dir, &found)?;
        }
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &json(&found))?;
            writeln!(out)?;
        } else {
            print(out, &found, &ask.cluster)?;
        }
        Ok(if found.problems().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
    }

    fn workload(&self) -> anyhow::Result<Workload> {
        let mut w = at_rate(&self.trace.apply(&workload(&self.workload)?)?, self.rate)?;
        let times = [
            (self.duration, &mut w.mode.window),
            (self.warmup, &mut w.mode.warmup),
            (self.drain, &mut w.mode.drain),
        ];
        for (flag, to) in times {
            *to = flag.map_or(*to, Span::from);
        }
        if w.mode.window == Span::ZERO {
            return Err(Unusable("--duration: found 0s; expected a time above 0".to_owned()).into());
        }
        Ok(w)
    }

    /// Other requests at the same rate through a stack of the same make.
    fn probe(&self, recipe: &Recipe<'_>, watch: &Arc<Watch>) -> anyhow::Result<Delays> {
        if self.probe.is_zero() {
            return Ok(Delays::default());
        }
        if !self.quiet {
            // Who closed stderr does not want to know.
            let _ = writeln!(std::io::stderr(), "probe: {:?} of requests to measure the way", self.probe);
        }
        let mut workload = recipe.workload.clone();
        (workload.mode.window, workload.mode.warmup) = (self.probe.into(), Span::ZERO);
        let manifests = recipe.manifests.clone();
        // Other draws: the run itself is not to be known beforehand.
        let seed = !recipe.seed;
        let delays_from = Nanos(workload.mode.window.0 / 2);
        let probing =
            Recipe { workload: &workload, manifests, seed, drain: PROBE_DRAIN, delays_from, ..*recipe };
        let (live, _) = live::run(&probing, watch)?;
        if watch.is_stopped() {
            anyhow::bail!("stopped before the run began");
        }
        Ok(live.delays)
    }
}

/// A class is an objective by its name, as the load generator asks for it.
fn objectives(workload: &Workload) -> Manifests {
    let one = |c: &forebay_workload::Class| Objective { name: c.name.clone(), priority: c.priority };
    Manifests { objectives: workload.classes.iter().map(one).collect(), ..Manifests::default() }
}

/// What a live side in one process cannot do.
fn possible(workload: &Workload, cluster: &Cluster, plan: &Plan) -> Result<(), Unusable> {
    let no = |what: &str| Err(Unusable(format!("{what}: parity has no live side for it")));
    if cluster.routers > 1 {
        return no("--cluster: several routers");
    }
    if !(cluster.incidents.is_empty() && cluster.scales.is_empty() && cluster.autoscalers.is_empty()) {
        return no("--cluster: incidents and scaling");
    }
    if cluster.servers.iter().any(|s| !s.present) {
        return no("--cluster: servers in reserve");
    }
    if cluster.scrape.period < forebay_live::plugins::MIN_SCRAPE_INTERVAL {
        return no("--cluster: scrapes more often than every 50ms");
    }
    if plan.prefill.is_some() {
        return no("--config: prefill and decode in separate pools");
    }
    if workload.classes.iter().any(|c| c.lora.is_some()) {
        return no("--workload: LoRA adapters");
    }
    let closed = |c: &forebay_workload::Class| matches!(c.arrivals, Some(Process::Closed { .. }));
    if workload.rate() <= 0.0 && !workload.classes.iter().any(closed) {
        return Err(Unusable(format!("--workload: {} sends no requests", workload.name)));
    }
    Ok(())
}

fn print(out: &mut dyn Write, p: &Found, cluster: &Cluster) -> anyhow::Result<()> {
    writeln!(out, "{}", wrapped(&p.headline()))?;
    write!(out, "{}", engines(cluster))?;
    writeln!(out, "{}", wrapped(&p.asked()))?;
    let seconds = |at: Nanos| text::three(at.0 as f64 / 1e9);
    writeln!(
        out,
        "Last end at {} s simulated, {} s live.\n",
        seconds(p.ended_at[0]),
        seconds(p.ended_at[1])
    )?;
    for sentence in p.verdict() {
        writeln!(out, "{}", wrapped(&sentence))?;
    }
    for c in &p.classes {
        writeln!(out, "\n{}, priority {}", c.name, c.priority)?;
        write!(out, "{}", class(c))?;
    }
    writeln!(
        out,
        "{}",
        wrapped(
            "*  outside of the range: a finding. Simulated: median of runs with ties, scrapes and network delay drawn anew; \
             range: their least and greatest. KS: greatest difference of the distributions, in brackets the greatest among simulated runs."
        )
    )?;
    writeln!(out, "\nmeans of the parts of TTFT")?;
    write!(out, "{}", parts(p))?;
    writeln!(out, "\ndecisions")?;
    write!(out, "{}", decisions(p))?;
    writeln!(out, "\ndelays")?;
    let head = ["probe p50", "p99", "live run p50", "p99"].map(right);
    let mut t = layout::table([Cell::new("")].into_iter().chain(head));
    for [name, rest @ ..] in p.delay_rows() {
        t.add_row([Cell::new(name)].into_iter().chain(rest.map(right)));
    }
    write!(out, "{}", layout::lines(&t))?;
    Ok(())
}

fn class(c: &ClassParity) -> String {
    let head = ["simulated", "live", "ratio", "range", "KS"].map(right);
    let mut t = layout::table([Cell::new("")].into_iter().chain(head));
    for l in c.lines() {
        let [sim, live, ratio, range, distance] = l.cells();
        let mark = if l.mark().is_empty() { " " } else { l.mark() };
        let cells = [sim, format!("{live}{mark}"), ratio, range, distance].map(right);
        t.add_row([Cell::new(&l.name)].into_iter().chain(cells));
    }
    layout::lines(&t)
}

fn parts(p: &Found) -> String {
    let head = ["simulated", "live", "ratio", "range"].map(right);
    let mut t = layout::table([Cell::new(""), Cell::new("")].into_iter().chain(head));
    for c in &p.classes {
        for (i, (name, l)) in c.part_lines().into_iter().enumerate() {
            let [sim, live, ratio, range, _] = l.cells();
            let mark = if l.mark().is_empty() { " " } else { l.mark() };
            let named = [Cell::new(if i == 0 { c.name.as_str() } else { "" }), Cell::new(name)];
            t.add_row(named.into_iter().chain([sim, format!("{live}{mark}"), ratio, range].map(right)));
        }
    }
    layout::lines(&t)
}

fn decisions(p: &Found) -> String {
    let Some(d) = &p.decisions else { return format!("{}\n", wrapped(UNMATCHED)) };
    let percent = |x: f64| format!("{:.1} %", 100.0 * x);
    let mut t = layout::table([Cell::new("share of requests"), right("live"), right("simulated runs")]);
    for (name, live, range) in d.rows() {
        let range = range.map_or("-".to_owned(), |(a, b)| format!("{} .. {}", percent(a), percent(b)));
        t.add_row([Cell::new(name), right(percent(live)), right(range)]);
    }
    let mut out = layout::lines(&t);
    for line in d.first(&p.endpoints) {
        out.push_str(&wrapped(&line));
        out.push('\n');
    }
    out
}

fn write(dir: &Path, p: &Found) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let mut numbers = serde_json::to_string_pretty(&json(p))?;
    numbers.push('\n');
    for (name, text) in [("parity.json", numbers), ("report.html", page(p))] {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}
