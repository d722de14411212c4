//! `forebay sweep`: runs over values of any field.

use crate::catalogue::catalogue;
use crate::input::{self, StabilityFlags};
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, Threads, beside, sources, with_bar, workload_text};
use crate::written;
use clap::Args;
use comfy_table::Cell;
use forebay_base::Diagnostics;
use forebay_config::DEFAULT_CONFIG;
use forebay_study::asked::{Asked, Unit};
use forebay_study::html::Words;
use forebay_study::sweep::{Axis, Base, Made, Point, Source, Sweep as Swept, make, points, report, sweep};
use forebay_study::{Progress, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Simulate over values of any field of a configuration, a cluster or a workload
///
/// A value takes the place of its field before the file is read, so that every check of that file holds.
/// Paths are those of messages: config:flowControl.topBandCeiling, cluster:engines[0].count,
/// config:plugins[NAME].parameters.FIELD. All points run under the same seeds.
#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// A field and its values: ROOT:PATH=VALUE,… with config, cluster or workload as root; repeatable
    #[arg(long = "set", value_name = "EXPR", required = true)]
    sets: Vec<String>,
    /// The first values of all fields together, then the second ones, instead of every combination
    #[arg(long)]
    zip: bool,
    /// Every combination of values, the last field fastest; this is what happens without --zip, too
    #[arg(long, conflicts_with = "zip")]
    grid: bool,
    /// The configuration of the router; llm-d-router's built-in one if absent
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// A workload file, or a preset
    #[arg(long, value_name = "FILE|PRESET")]
    workload: String,
    /// Figures by comma, such as ttft-p99:critical,e2e-mean,goodput [default: some of the first class]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    metric: Vec<String>,
    /// Seeds, from 1 on
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    threads: Threads,
    /// Write sweep.json, sweep.csv and report.html into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

impl Sweep {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let axes = Axis::parse_all(&self.sets)?;
        let points = points(&axes, self.zip)?;
        let made = self.make(&axes, &points)?;
        if !made.warnings.0.is_empty() {
            // A warning that nobody can see is no reason to stop.
            let _ = writeln!(io::stderr(), "{}", made.warnings);
        }
        let asked = self.asked(&made)?;
        let seeds: Vec<u64> = (1..=self.seeds).collect();
        let progress = Progress::new();
        let done = with_bar(&progress, "runs", || {
            sweep(&made.setups, (&axes, &points), &asked, &seeds, self.threads.count(), &progress)
        });
        let value = json::sweep(&done);
        if let Some(dir) = &self.out {
            let page = report(&done, &self.words(&done, &made));
            written::all(
                dir,
                &[("sweep.json", written::json(&value)?), ("sweep.csv", csv(&done)), ("report.html", page)],
            )?;
        }
        if self.json {
            write!(out, "{}", written::json(&value)?)?;
        } else {
            print(out, &done, &made)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn make(&self, axes: &[Axis], points: &[Point]) -> anyhow::Result<Made> {
        let (text, file) = match &self.config {
            Some(path) => input::text(path)?,
            None => (DEFAULT_CONFIG.to_owned(), "built-in configuration".to_owned()),
        };
        let config = Source { file, text };
        let (text, file) = self.cluster.text()?;
        let cluster = Source { file, text };
        let (text, file) = workload_text(&self.workload)?;
        let workload = Source { file, text };
        let mut files = sources(Path::new(&self.workload));
        let mut cluster_files = beside(self.cluster.cluster.as_deref().unwrap_or(Path::new("")));
        let stability = self.stability.options();
        let mut base = Base {
            config,
            cluster,
            workload,
            catalogue: catalogue(),
            stability,
            files: &mut files,
            cluster_files: &mut cluster_files,
            calibration: self.cluster.calibration()?,
        };
        Ok(make(&mut base, axes, points)?)
    }

    /// What was asked for, of classes that every point has.
    fn asked(&self, made: &Made) -> Result<Vec<Asked>, Diagnostics> {
        let Some(first) = made.setups.first() else { return Ok(Vec::new()) };
        let everywhere = |name: &String| made.setups.iter().all(|s| s.workload.class(name).is_some());
        let classes: Vec<String> = first.workload.class_names().into_iter().filter(everywhere).collect();
        let mut names = self.metric.clone();
        if names.is_empty() {
            let most = first
                .workload
                .classes
                .iter()
                .filter(|c| classes.contains(&c.name))
                .max_by_key(|c| c.priority);
            let suffix = most.map_or(String::new(), |c| format!(":{}", c.name));
            names.extend(["ttft-p99", "e2e-p99"].map(|n| format!("{n}{suffix}")));
            names.extend(["tokens", "unfinished"].map(str::to_owned));
            if first.workload.classes.iter().any(|c| !c.slo.is_empty()) {
                names.push("goodput".to_owned());
            }
        }
        let (mut asked, mut wrong) = (Vec::new(), Diagnostics::default());
        for name in &names {
            match Asked::parse(name, &classes, "--metric") {
                Ok(a) => asked.push(a),
                Err(d) => wrong.0.extend(d.0),
            }
        }
        if wrong.has_errors() { Err(wrong) } else { Ok(asked) }
    }

    fn place(made: &Made) -> String {
        let first = made.setups.first();
        first.map_or_else(String::new, |s| format!("{} on {}", s.workload.name, s.cluster.name))
    }

    fn words(&self, s: &Swept, made: &Made) -> Words {
        let config =
            self.config.as_ref().map_or("the built-in configuration".to_owned(), |p| p.display().to_string());
        Words {
            title: format!("A sweep of {}", Sweep::place(made)),
            lead: format!("{} points under {config}, {} seeds each.", s.points.len(), s.seeds.len()),
            method: vec![
                "Simulated, not measured. All points run under the same seeds, so that arrivals and lengths are \
                 shared as far as the fields that are varied allow. Percentiles are those of each seed, averaged, \
                 with Student's 95 % interval; requests that failed or never ended count as infinitely slow."
                    .to_owned(),
            ],
        }
    }
}

fn print(out: &mut dyn Write, s: &Swept, made: &Made) -> anyhow::Result<()> {
    let seeds = if s.seeds.len() == 1 { "1 seed".to_owned() } else { format!("{} seeds", s.seeds.len()) };
    let each = if s.seeds.len() == 1 { "" } else { " each, ± half the 95 % interval" };
    writeln!(out, "{}: {} points, {seeds}{each}\n", Sweep::place(made), s.points.len())?;
    // A field with one value is the same in every line.
    let varied = || s.axes.iter().enumerate().filter(|(_, a)| a.values.len() > 1);
    let fixed: Vec<String> = s
        .axes
        .iter()
        .filter(|a| a.values.len() == 1)
        .map(|a| format!("{}={}", a.name(), a.values[0].text))
        .collect();
    if !fixed.is_empty() {
        writeln!(out, "with {}\n", fixed.join(", "))?;
    }
    let mut head: Vec<Cell> = varied().map(|(_, a)| right(a.label(&s.axes))).collect();
    head.extend(s.asked.iter().map(|a| right(a.head())));
    head.push(Cell::new("load"));
    let mut t = layout::table(head);
    for (point, row) in s.points.iter().zip(&s.rows) {
        let mut cells: Vec<Cell> = varied().map(|(k, a)| right(&a.values[point[k]].text)).collect();
        cells.extend(s.asked.iter().zip(&row.figures).map(|(a, f)| right(f.text(a.what.unit()))));
        cells.push(Cell::new(row.load()));
        t.add_row(cells);
    }
    let table = layout::lines(&t);
    write!(out, "{table}")?;
    if table.contains(">=") {
        writeln!(out, "\n>=      fewer than 30 requests beyond the percentile: it is at least this much")?;
    }
    if table.contains("undet.") {
        writeln!(out, "\nundet.  more than 0.5 % of the requests have no value, and count as infinite")?;
    }
    for problem in s.rows.iter().filter_map(|r| r.problem.as_ref()).collect::<BTreeSet<_>>() {
        writeln!(out, "\n{problem}")?;
    }
    Ok(())
}

/// A row per point: values in the units of the JSON, with the interval of each.
fn csv(s: &Swept) -> String {
    let mut head: Vec<String> = s.axes.iter().map(|a| written::cell(&a.name())).collect();
    for a in &s.asked {
        let unit = if a.what.unit() == Unit::Time { "_ns" } else { "" };
        head.extend(["", "_low", "_high"].map(|part| written::cell(&format!("{a}{unit}{part}"))));
    }
    head.push("load".to_owned());
    let number = |x: f64| if x.is_finite() { x.to_string() } else { String::new() };
    let mut out = head.join(",");
    out.push('\n');
    for (point, row) in s.points.iter().zip(&s.rows) {
        let mut cells: Vec<String> =
            s.axes.iter().zip(point).map(|(a, i)| written::cell(&a.values[*i].text)).collect();
        for f in &row.figures {
            cells.push(number(f.value));
            let (low, high) = f.interval.unwrap_or((f64::NAN, f64::NAN));
            cells.extend([number(low), number(high)]);
        }
        cells.push(row.load());
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}
