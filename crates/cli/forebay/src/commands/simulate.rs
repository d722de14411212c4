//! `forebay simulate`: one run of a configuration in front of simulated servers.

use super::fleet;
use crate::input::{self, StabilityFlags};
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, TraceFlags, at_rate, engines, with_bar, workload};
use anyhow::Context;
use clap::Args;
use comfy_table::Cell;
use forebay_base::{Nanos, Span};
use forebay_records::Compressed;
use forebay_records::files::{Format, Writer};
use forebay_records::stats::{SteadyProblem, Window};
use forebay_sim::{HISTOGRAM_BINS, Options, Run, Timeline};
use forebay_study::perfetto::Trace;
use forebay_study::run_page::{RunPage, pool_figures};
use forebay_study::summary::{ClassSummary, Metric, QUANTILES, Summary};
use forebay_study::{About, Progress, Setup, endpoints_of, json, text};
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
    /// Write report.html, summary.json, timeline.json, requests.csv and requests.jsonl into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write the router's decision log there, for `forebay replay`
    #[arg(long, requires = "out")]
    decisions: bool,
    /// Compress the requests' files: requests.csv.zst and requests.jsonl.zst
    #[arg(long, requires = "out")]
    zstd: bool,
    /// Also write trace.json there, for ui.perfetto.dev: at most 100 000 requests
    #[arg(long, requires = "out")]
    perfetto: bool,
    /// The stretch of time of that trace, such as 60s..90s
    #[arg(long, value_name = "FROM..TO", requires = "perfetto", value_parser = stretch)]
    perfetto_window: Option<Stretch>,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// Points of the timeline that is written.
const POINTS: u64 = 600;
/// Points of a trace for each of these.
const FINER: u64 = 8;

/// A stretch of simulated time.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: Nanos,
    to: Nanos,
}

fn stretch(text: &str) -> Result<Stretch, String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO, such as 60s..90s")?;
    let at = |text| {
        crate::values::duration(text)
            .map(|d| Nanos::ZERO + Span(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    };
    let (from, to) = (at(from)?, at(to)?);
    if from < to { Ok(Stretch { from, to }) } else { Err("expected FROM before TO".to_owned()) }
}

impl Simulate {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let workload = at_rate(&self.trace.apply(&workload(&self.workload)?)?, self.rate)?;
        let cluster = Arc::new(self.cluster.read()?);
        let config = match &self.config {
            Some(path) => input::configuration(path, None, self.stability)?.config,
            None => input::built_in(self.stability)?,
        };
        let config_text = match &self.config {
            Some(path) if path != Path::new("-") => input::text(path)?.0,
            _ => String::new(),
        };
        let plan = Arc::new(config.plan(&Setup::priorities(&workload)));
        let setup = Setup { plan, cluster, workload };
        let run = self.simulate(&setup);
        let name = self.config.as_ref().map_or("built-in".to_owned(), |p| p.display().to_string());
        let about = About::simulated(&setup.workload, &setup.cluster, &name, &config_text, self.seed);
        let of = Results {
            summary: &Summary::of(&run, &setup.workload),
            endpoints: &endpoints_of(&run.rows, setup.workload.mode.measured()),
            about: &about,
            run: &run,
        };
        if let Some(dir) = &self.out {
            self.write(dir, &setup, of)?;
        }
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &told(&setup, of))?;
            writeln!(out)?;
        } else {
            print(out, &setup, of)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Progress is simulated seconds of arrivals; what comes after them is not foreseen.
    fn simulate(&self, setup: &Setup) -> Run {
        let progress = Progress::new();
        let seconds = setup.workload.mode.arrivals_end().0 / 1_000_000_000;
        progress.expect(seconds);
        let watch = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let finest = setup.sampling(POINTS * FINER);
        let options = Options {
            sample: self.out.as_ref().map(|_| Span(finest.0 * if self.perfetto { 1 } else { FINER })),
            gaps: true,
            preemptions: self.perfetto,
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

    fn write(&self, dir: &Path, setup: &Setup, of: Results<'_>) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        let create = |name: &str| {
            let path = dir.join(name);
            let file =
                File::create(&path).with_context(|| format!("{}: cannot be written", path.display()))?;
            anyhow::Ok(BufWriter::new(file))
        };
        let Results { about, run, summary, endpoints } = of;
        let every = if self.perfetto { FINER as usize } else { 1 };
        let points = run.timeline.points.iter().step_by(every).cloned().collect();
        let timeline = Timeline { bands: run.timeline.bands.clone(), points };
        for (name, value) in [("summary.json", told(setup, of)), ("timeline.json", json::timeline(&timeline))]
        {
            let mut file = create(name)?;
            serde_json::to_writer_pretty(&mut file, &value)?;
            writeln!(file)?;
            file.flush()?;
        }
        let page =
            RunPage { about, summary, endpoints, rows: &run.rows, timeline: Some(&timeline), problems: &[] };
        let mut file = create("report.html")?;
        file.write_all(page.html().as_bytes())?;
        file.flush()?;
        let classes: Vec<String> = about.classes.iter().map(|c| c.name.clone()).collect();
        for (name, format) in [("requests.csv", Format::Csv), ("requests.jsonl", Format::JsonLines)] {
            if self.zstd {
                rows(Compressed::new(create(&format!("{name}.zst"))?), format, &classes, run)?;
            } else {
                rows(create(name)?, format, &classes, run)?;
            }
        }
        if self.perfetto {
            self.trace(create("trace.json")?, of)?;
        }
        if let Some(log) = &run.decisions {
            let mut file = create("decisions.log")?;
            file.write_all(log.as_bytes())?;
            file.flush()?;
        }
        Ok(())
    }

    fn trace(&self, file: impl Write, of: Results<'_>) -> anyhow::Result<()> {
        let Results { about, run, .. } = of;
        let stretch = self.perfetto_window.unwrap_or(Stretch { from: Nanos::ZERO, to: Nanos::NEVER });
        let trace = Trace {
            about,
            rows: &run.rows,
            preemptions: &run.preemptions,
            timeline: &run.timeline,
            ended_at: run.ended_at,
            from: stretch.from,
            to: stretch.to,
        };
        let written = trace.write(file)?;
        if written.left_out > 0 {
            let _ = writeln!(
                std::io::stderr(),
                "trace.json ends at {:.1} s with {} requests; {} more are left out: choose a stretch with --perfetto-window",
                written.to.0 as f64 / 1e9,
                written.requests,
                written.left_out
            );
        }
        Ok(())
    }
}

/// The summary, and what is settled for the engines.
fn told(setup: &Setup, of: Results<'_>) -> serde_json::Value {
    let mut value = json::run(of.about, of.summary, of.endpoints);
    let kinds = setup.cluster.kinds().into_iter().map(|(servers, resolved)| {
        let names: Vec<&str> = servers.iter().map(|s| s.name.as_str()).collect();
        let settled: serde_json::Map<_, _> =
            resolved.values().into_iter().map(|(name, v)| (name.to_owned(), v.into())).collect();
        serde_json::json!({"servers": names, "settled": settled})
    });
    value["engines"] = kinds.collect();
    value
}

/// What a run gave.
#[derive(Clone, Copy)]
struct Results<'a> {
    about: &'a About,
    run: &'a Run,
    summary: &'a Summary,
    endpoints: &'a [forebay_study::EndpointSummary],
}

fn rows(out: impl Write, format: Format, classes: &[String], run: &Run) -> anyhow::Result<()> {
    let mut writer = Writer::new(out, format, classes)?;
    for row in &run.rows {
        writer.write(row)?;
    }
    writer.finish()?;
    Ok(())
}

fn print(out: &mut dyn Write, setup: &Setup, of: Results<'_>) -> anyhow::Result<()> {
    let (w, s, about) = (&setup.workload, of.summary, of.about);
    writeln!(
        out,
        "{} at {} requests/s on {}, {}, seed {}",
        w.name,
        text::three(s.backlog.arrivals),
        setup.cluster.name,
        if about.config == "built-in" { "built-in configuration" } else { about.config.as_str() },
        about.seed.unwrap_or_default()
    )?;
    write!(out, "{}", engines(&setup.cluster))?;
    writeln!(out, "{}, last end at {:.0} s", about.horizon(), s.ended_at.0 as f64 / 1e9)?;
    writeln!(out, "{}\n", verdict(s))?;
    write!(out, "{}", ends(s))?;
    writeln!(out)?;
    for (c, info) in s.classes.iter().zip(&about.classes) {
        let deadlines = info.deadlines();
        let asks = if deadlines.is_empty() { String::new() } else { format!(", deadlines: {deadlines}") };
        writeln!(out, "{}, priority {}{asks}", c.name, c.priority)?;
        write!(out, "{}", latencies(c))?;
        writeln!(out)?;
    }
    if s.classes.len() > 1 {
        writeln!(out, "tokens of all classes")?;
        write!(out, "{}", table_of(&s.total, [Metric::Itl]))?;
        writeln!(out)?;
    }
    write!(out, "{}", pool(s))?;
    writeln!(out)?;
    write!(out, "{}", endpoints(of))?;
    write!(out, "{}", fleet::table(&s.scaling))?;
    writeln!(out)?;
    write!(out, "{}", saturation(s))?;
    let marks: Vec<String> = s.classes.iter().map(latencies).collect();
    write!(out, "{}", footnotes(&marks.concat()))?;
    for problem in steady(w, s) {
        writeln!(out, "\n{problem}")?;
    }
    Ok(())
}

/// More endpoints are in the files only.
const ENDPOINTS: usize = 16;

fn endpoints(of: Results<'_>) -> String {
    if of.endpoints.len() < 2 || of.endpoints.len() > ENDPOINTS {
        return String::new();
    }
    let head =
        ["requests", "finished", "prompt tokens", "cached", "output tokens", "preempted", "wait p50", "p99"];
    let mut t = layout::table([Cell::new("endpoint")].into_iter().chain(head.map(right)));
    for e in of.endpoints {
        t.add_row(vec![
            Cell::new(of.about.endpoint(e.index)),
            right(e.dispatched),
            right(e.finished),
            right(e.prompt_tokens),
            right(format!("{:.1} %", 100.0 * e.cached_tokens as f64 / e.prompt_tokens.max(1) as f64)),
            right(e.output_tokens),
            right(e.preemptions),
            right(text::quantile(&e.engine_wait[0])),
            right(text::quantile(&e.engine_wait[3])),
        ]);
    }
    layout::lines(&t) + "\n"
}

/// What the marks in tables mean, of those that stand in `shown`.
pub(crate) fn footnotes(shown: &str) -> String {
    let notes = [
        (">=", "\n>=      fewer than 30 requests beyond the percentile: it is at least this much\n"),
        ("undet.", "\nundet.  more than 0.5 % of the requests have no value, and count as infinite\n"),
    ];
    notes.iter().filter(|(mark, _)| shown.contains(mark)).map(|(_, note)| *note).collect()
}

pub(crate) fn verdict(s: &Summary) -> String {
    let grows = s.backlog.slope().map_or(String::new(), |b| {
        format!(
            "; the backlog changes by {} +- {} requests/s while {} arrive",
            text::percent(b.per_second),
            text::three(b.half_width),
            text::three(s.backlog.arrivals)
        )
    });
    let filling = if s.may_be_filling_up() {
        "\nrequests arrived for less than ten mean E2E times: a pool that is filling up looks the same"
    } else {
        ""
    };
    format!("verdict: {}{grows}{filling}", s.load.label())
}

/// Who ended how.
pub(crate) fn ends(s: &Summary) -> String {
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
    let d = &s.total.with_drain;
    let _ = writeln!(
        out,
        "with the drain: {} requests/s and {:.0} tokens/s over {:.0} s",
        text::three(d.requests_per_second()),
        d.output_tokens_per_second(),
        d.seconds
    );
    for c in &s.classes {
        let reasons: Vec<String> = c.rejected.iter().map(|(r, n)| format!("{n} {r}")).collect();
        if !reasons.is_empty() {
            let _ = writeln!(out, "{} rejected: {}", c.name, reasons.join(", "));
        }
    }
    out
}

fn latencies(c: &ClassSummary) -> String {
    table_of(c, Metric::ALL)
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
    let mut t = layout::table(Vec::<Cell>::new());
    for (name, value) in pool_figures(s) {
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
    let problems = window.steady_problems(Nanos::ZERO, Span(mean as u64), Span(p95));
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
