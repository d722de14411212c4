//! `forebay simulate`: one run of a configuration in front of simulated servers.

use super::fleet;
use crate::input::{self, StabilityFlags};
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, at_rate, engines, with_bar, workload};
use anyhow::Context;
use clap::Args;
use comfy_table::Cell;
use forebay_base::Span;
use forebay_records::files::{Format, Writer};
use forebay_records::stats::{SteadyProblem, Window};
use forebay_sim::{HISTOGRAM_BINS, Options, Run};
use forebay_study::summary::{ClassSummary, Metric, QUANTILES, Summary};
use forebay_study::{Progress, Setup, json, text};
use forebay_workload::{Kind, Workload};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Simulate a configuration: what happens to this traffic on these servers
///
/// The router is the kernel that serves, under the same configuration; servers are simulated step by step.
/// The same arguments give the same bytes on every machine.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The configuration of the router; llm-d-router's built-in one if absent
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// A workload file, or a preset
    #[arg(long, value_name = "FILE|PRESET")]
    workload: String,
    /// Requests per second of all classes together, instead of the workload's
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Seed of arrivals, lengths and all other draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write summary.json, timeline.json, requests.csv and requests.jsonl into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write the router's decision log there, for `forebay replay`
    #[arg(long, requires = "out")]
    decisions: bool,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// Points of the timeline that is written.
const POINTS: u64 = 600;

impl Simulate {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let workload = at_rate(&workload(&self.workload)?, self.rate)?;
        let cluster = Arc::new(self.cluster.read()?);
        let config = match &self.config {
            Some(path) => input::configuration(path, None, self.stability)?.config,
            None => input::built_in(self.stability)?,
        };
        let plan = Arc::new(config.plan(&Setup::priorities(&workload)));
        let setup = Setup { plan, cluster, workload };
        let run = self.simulate(&setup);
        let summary = Summary::of(&run, &setup.workload);
        if let Some(dir) = &self.out {
            Simulate::write(dir, &setup, &run, &summary)?;
        }
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &told(&setup, &summary))?;
            writeln!(out)?;
        } else {
            self.print(out, &setup, &summary)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Progress is simulated seconds of arrivals; what comes after them is not foreseen.
    fn simulate(&self, setup: &Setup) -> Run {
        let progress = Progress::new();
        let seconds = setup.workload.mode.arrivals_end().0 / 1_000_000_000;
        progress.expect(seconds);
        let watch = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let options = Options {
            sample: self.out.as_ref().map(|_| setup.sampling(POINTS)),
            gaps: true,
            decisions: self.decisions,
            watch: Some(Arc::clone(&watch)),
            ..Options::new(self.seed)
        };
        std::thread::scope(|scope| {
            let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let ended = Arc::clone(&over);
            let shown = &progress;
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    shown.done.store(watch.load(Ordering::Relaxed) / 1_000_000_000, Ordering::Relaxed);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            });
            let run = with_bar(&progress, "simulated seconds", || setup.run(self.seed, options));
            over.store(true, Ordering::Relaxed);
            run
        })
    }

    fn write(dir: &Path, setup: &Setup, run: &Run, summary: &Summary) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        let create = |name: &str| {
            let path = dir.join(name);
            let file =
                File::create(&path).with_context(|| format!("{}: cannot be written", path.display()))?;
            anyhow::Ok(BufWriter::new(file))
        };
        for (name, value) in
            [("summary.json", told(setup, summary)), ("timeline.json", json::timeline(&run.timeline))]
        {
            let mut file = create(name)?;
            serde_json::to_writer_pretty(&mut file, &value)?;
            writeln!(file)?;
            file.flush()?;
        }
        let classes = setup.workload.class_names();
        for (name, format) in [("requests.csv", Format::Csv), ("requests.jsonl", Format::JsonLines)] {
            let mut writer = Writer::new(create(name)?, format, &classes)?;
            for row in &run.rows {
                writer.write(row)?;
            }
            writer.finish()?;
        }
        if let Some(log) = &run.decisions {
            let mut file = create("decisions.log")?;
            file.write_all(log.as_bytes())?;
            file.flush()?;
        }
        Ok(())
    }

    fn print(&self, out: &mut dyn Write, setup: &Setup, s: &Summary) -> anyhow::Result<()> {
        let w = &setup.workload;
        let config =
            self.config.as_ref().map_or("built-in configuration".to_owned(), |p| p.display().to_string());
        writeln!(
            out,
            "{} at {} requests/s on {}, {config}, seed {}",
            w.name,
            text::three(s.backlog.arrivals),
            setup.cluster.name,
            self.seed
        )?;
        write!(out, "{}", engines(&setup.cluster))?;
        writeln!(out, "{}", horizon(w, s))?;
        writeln!(out, "{}\n", verdict(s))?;
        write!(out, "{}", ends(s))?;
        writeln!(out)?;
        for c in &s.classes {
            writeln!(out, "{}, priority {}", c.name, c.priority)?;
            write!(out, "{}", latencies(c))?;
            writeln!(out)?;
        }
        writeln!(out, "tokens of all classes")?;
        write!(out, "{}", gaps(&s.total))?;
        writeln!(out)?;
        write!(out, "{}", pool(s))?;
        writeln!(out)?;
        write!(out, "{}", fleet::table(&s.scaling))?;
        writeln!(out)?;
        write!(out, "{}", saturation(s))?;
        let marks: Vec<String> = s.classes.iter().map(latencies).collect();
        if marks.iter().any(|m| m.contains(">=")) {
            writeln!(
                out,
                "\n>=      fewer than 30 requests beyond the percentile: it is at least this much"
            )?;
        }
        if marks.iter().any(|m| m.contains("undet.")) {
            writeln!(out, "\nundet.  more than 0.5 % of the requests have no value, and count as infinite")?;
        }
        for problem in steady(w, s) {
            writeln!(out, "\n{problem}")?;
        }
        Ok(())
    }
}

/// The summary, and what is settled for the engines.
fn told(setup: &Setup, summary: &Summary) -> serde_json::Value {
    let mut value = json::summary(summary);
    let kinds = setup.cluster.kinds().into_iter().map(|(servers, resolved)| {
        let names: Vec<&str> = servers.iter().map(|s| s.name.as_str()).collect();
        let settled: serde_json::Map<_, _> =
            resolved.values().into_iter().map(|(name, v)| (name.to_owned(), v.into())).collect();
        serde_json::json!({"servers": names, "settled": settled})
    });
    value["engines"] = kinds.collect();
    value
}

fn horizon(w: &Workload, s: &Summary) -> String {
    let kind = match w.mode.kind {
        Kind::Surge => "surge from an empty pool",
        Kind::Steady => "steady",
    };
    let warmup = if w.mode.warmup == Span::ZERO {
        String::new()
    } else {
        format!(" after {} of warm-up", w.mode.warmup)
    };
    format!("{kind}: arrivals over {}{warmup}, last end at {:.0} s", w.mode.window, s.ended_at.0 as f64 / 1e9)
}

fn verdict(s: &Summary) -> String {
    let grows = s.backlog.slope().map_or(String::new(), |b| {
        format!(
            "; the backlog changes by {} +- {} requests/s while {} arrive",
            text::percent(b.per_second),
            text::three(b.half_width),
            text::three(s.backlog.arrivals)
        )
    });
    format!("verdict: {}{grows}", s.load.label())
}

fn ends(s: &Summary) -> String {
    use std::fmt::Write;
    let mut t = layout::table(
        [
            "",
            "offered",
            "finished",
            "rejected",
            "timed out",
            "failed",
            "censored",
            "finished/s",
            "tokens/s",
            "goodput",
        ]
        .map(|h| if h.is_empty() { Cell::new(h) } else { right(h) }),
    );
    let several = s.classes.len() > 1;
    for c in s.classes.iter().chain(several.then_some(&s.total)) {
        t.add_row(vec![
            Cell::new(&c.name),
            right(c.offered),
            right(c.finished),
            right(c.all_rejected()),
            right(c.timed_out),
            right(c.failed),
            right(c.censored),
            right(text::three(c.throughput.requests_per_second())),
            right(format!("{:.0}", c.throughput.output_tokens_per_second())),
            right(c.goodput.map_or("-".to_owned(), |g| format!("{:.1} %", 100.0 * g.share()))),
        ]);
    }
    let mut out = layout::lines(&t);
    for c in &s.classes {
        let reasons: Vec<String> = c.rejected.iter().map(|(r, n)| format!("{n} {r}")).collect();
        if !reasons.is_empty() {
            let _ = writeln!(out, "{} rejected: {}", c.name, reasons.join(", "));
        }
    }
    out
}

fn latencies(c: &ClassSummary) -> String {
    table_of(c, Metric::ALL.into_iter().filter(|m| *m != Metric::Itl))
}

/// Engines do not tell classes apart.
fn gaps(c: &ClassSummary) -> String {
    table_of(c, [Metric::Itl])
}

fn table_of(c: &ClassSummary, metrics: impl IntoIterator<Item = Metric>) -> String {
    let mut head = vec![Cell::new(""), right("mean")];
    head.extend(QUANTILES.iter().map(|q| right(format!("p{:.0}", q * 100.0))));
    let mut t = layout::table(head);
    for m in metrics {
        let f = c.figure(m);
        let mut row = vec![Cell::new(m.label()), right(f.mean.map_or("-".to_owned(), text::time))];
        row.extend(f.quantiles.iter().map(|q| right(text::quantile(q))));
        t.add_row(row);
    }
    layout::lines(&t)
}

fn pool(s: &Summary) -> String {
    let c = &s.counters;
    let (all, hit) = s.total.prompt_tokens;
    let mut t = layout::table(Vec::<Cell>::new());
    let cached = if all == 0 { 0.0 } else { 100.0 * hit as f64 / all as f64 };
    for (name, value) in [
        ("longest engine queue", format!("{} requests", c.longest_engine_queue)),
        ("longest gateway queue", format!("{} requests", c.longest_gateway_queue)),
        ("most requests inside", c.peak_live.to_string()),
        ("preemptions", c.preemptions.to_string()),
        ("recomputed tokens", format!("{:.1} % of all computed", 100.0 * c.recompute_share())),
        ("prompt tokens from cache", format!("{cached:.1} %")),
        ("engine steps", c.steps.to_string()),
    ] {
        t.add_row(vec![Cell::new(name), right(value)]);
    }
    layout::lines(&t)
}

/// The saturation histogram in lines of ten hundredths.
fn saturation(s: &Summary) -> String {
    let all: u64 = s.counters.saturation.iter().sum();
    if all == 0 {
        return String::new();
    }
    let mut out = "saturation while requests arrived, share of time\n".to_owned();
    let pairs: Vec<u64> = s.counters.saturation.chunks(2).map(|c| c.iter().sum()).collect();
    let last = pairs.iter().rposition(|n| *n > 0).unwrap_or(0);
    for (i, n) in pairs.iter().enumerate().take(last + 1) {
        let share = *n as f64 / all as f64;
        let range = if i * 2 == HISTOGRAM_BINS - 1 {
            "2.0 or more".to_owned()
        } else {
            format!("{:.1} to {:.1}", i as f64 / 10.0, (i + 1) as f64 / 10.0)
        };
        let bar = "#".repeat((share * 50.0).round() as usize);
        out.push_str(format!("  {range:<12}{:>6.1} %  {bar}", 100.0 * share).trim_end());
        out.push('\n');
    }
    out
}

/// Why a steady workload's run may not be called so.
fn steady(w: &Workload, s: &Summary) -> Vec<String> {
    if w.mode.kind != Kind::Steady {
        return Vec::new();
    }
    let e2e = s.total.figure(Metric::E2e);
    let (Some(mean), Some(p95)) = (e2e.mean, e2e.quantiles[2].value) else { return Vec::new() };
    let window: Window = w.mode.measured();
    let problems = window.steady_problems(forebay_base::Nanos::ZERO, Span(mean as u64), Span(p95));
    let mut out: Vec<String> = problems
        .into_iter()
        .map(|p| match p {
            SteadyProblem::ShortWarmup { needed } => {
                format!(
                    "not steady: the warm-up has to last {needed:.0} s at least, two 95th percentiles of E2E"
                )
            }
            SteadyProblem::ShortWindow { needed } => {
                format!("not steady: the window has to last {needed:.0} s at least, ten mean E2E times")
            }
        })
        .collect();
    if s.load == forebay_records::stats::Load::Overloaded {
        out.push("not steady: the backlog grows, so figures depend on how long the run lasts".to_owned());
    }
    out
}
