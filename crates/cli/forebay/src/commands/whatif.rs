//! `forebay whatif`: what happens to this traffic if this policy is turned on.

use crate::input::{self, StabilityFlags};
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, Threads, TraceFlags, TrafficRead, at_rate, traffic, with_bar};
use anyhow::Context;
use clap::Args;
use comfy_table::Cell;
use forebay_kernel::Plan;
use forebay_study::whatif::{Answer, Ask, ClassAnswer, Recorded, answer, change, json, page, runs, shown};
use forebay_study::{Progress, Setup, text};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Answer what happens to your traffic if you turn a policy on, in one page
///
/// Both configurations meet the same arrivals, a recording's as they were. Improvements are in per cent,
/// positive for better, with Student's 95 % interval over the seeds. What was really measured stands beside the
/// simulated baseline.
#[derive(Debug, Args)]
pub(crate) struct Whatif {
    /// The folder of a recording, a trace, a workload file, or a preset
    #[arg(long, value_name = "DIR|FILE|PRESET")]
    workload: String,
    /// The configuration that is turned on
    #[arg(long, value_name = "FILE")]
    treatment: PathBuf,
    /// The configuration in use; llm-d-router's built-in one if absent
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    #[command(flatten)]
    trace: TraceFlags,
    /// Requests per second of all classes together, instead of the workload's
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Paired seeds, from 1 on
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    threads: Threads,
    /// Write report.html and whatif.json into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// A recording whose answers came as streams in this share shows first tokens.
const STREAMED: f64 = 0.95;

impl Whatif {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let TrafficRead { workload, recording } = traffic(&self.workload)?;
        let counts = recording.as_ref().map(|(_, counts)| *counts);
        let as_recorded = self.trace.is_empty() && self.rate.is_none();
        let recorded = recording.filter(|_| as_recorded).map(|(rows, counts)| Recorded {
            streamed: counts.streamed as f64 >= STREAMED * counts.requests as f64,
            rows,
        });
        let workload = at_rate(&self.trace.apply(&workload)?, self.rate)?;
        let priorities = Setup::priorities(&workload);
        let ask = Ask {
            cluster: Arc::new(self.cluster.read()?),
            arms: [
                self.arm(self.baseline.as_deref(), &priorities)?,
                self.arm(Some(&self.treatment), &priorities)?,
            ],
            seeds: (1..=self.seeds).collect(),
            recorded,
            workload,
        };
        let progress = Progress::new();
        progress.expect(runs(&ask));
        let answer = with_bar(&progress, "runs", || answer(&ask, self.threads.count(), &progress));
        print(out, &answer)?;
        if let Some(counts) = counts {
            writeln!(out, "{}", told(&counts))?;
        }
        if let Some(dir) = &self.out {
            write(dir, &answer)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn arm(&self, path: Option<&Path>, priorities: &[i32]) -> anyhow::Result<(String, Arc<Plan>)> {
        let Some(path) = path else {
            let config = input::built_in(self.stability)?;
            return Ok(("built-in".to_owned(), Arc::new(config.plan(priorities))));
        };
        let config = input::configuration(path, None, self.stability)?.config;
        let name = path.file_stem().map_or(path.display().to_string(), |s| s.to_string_lossy().into_owned());
        Ok((name, Arc::new(config.plan(priorities))))
    }
}

/// What a recording does not know.
fn told(c: &forebay_workload::RecordingCounts) -> String {
    let share = |n: u64| 100.0 * n as f64 / c.requests.max(1) as f64;
    let mut parts = vec![format!("Recording: {} requests in {} file(s)", c.requests, c.files)];
    for (n, what) in [
        (c.prompts_estimated, "prompt lengths estimated"),
        (c.outputs_estimated, "answer lengths estimated"),
        (c.outputs_borrowed, "answers of other requests taken, for those without one"),
    ] {
        if n > 0 {
            parts.push(format!("{:.1} % {what}", share(n)));
        }
    }
    if c.keys > 1 {
        parts.push(format!("{} keys, between which prompts share nothing", c.keys));
    }
    if c.torn > 0 {
        parts.push(format!("{} torn lines left out", c.torn));
    }
    layout::wrapped(&(parts.join("; ") + "."))
}

fn print(out: &mut dyn Write, a: &Answer) -> anyhow::Result<()> {
    writeln!(
        out,
        "{}",
        layout::wrapped(&format!(
            "{} instead of {}: {} at {} requests/s over {:.0} s, on {}, {} seeds",
            a.arms[1],
            a.arms[0],
            a.workload,
            text::three(a.rate),
            a.seconds,
            a.cluster,
            a.seeds
        ))
    )?;
    for c in &a.classes {
        writeln!(out, "{}", layout::wrapped(&format!("- {}", c.sentence())))?;
    }
    writeln!(out, "{}\n", layout::wrapped(&a.load()))?;
    let mut head = vec![Cell::new(""), Cell::new("")];
    if a.recorded {
        head.push(right("recorded"));
    }
    head.extend([right(&a.arms[0]), right(&a.arms[1]), right("% better, 95 % interval")]);
    let mut t = layout::table(head);
    for c in &a.classes {
        for row in rows(a, c) {
            t.add_row(row);
        }
    }
    write!(out, "{}", layout::lines(&t))?;
    writeln!(out, "* the interval excludes no change\n")?;
    for caveat in a.caveats() {
        writeln!(out, "{}", layout::wrapped(&caveat))?;
    }
    Ok(())
}

fn rows(a: &Answer, c: &ClassAnswer) -> Vec<Vec<Cell>> {
    let mut out = Vec::new();
    let named = |first: bool| Cell::new(if first { c.name.as_str() } else { "" });
    for f in &c.figures {
        let mut row = vec![named(out.is_empty()), Cell::new(f.figure.label())];
        if a.recorded {
            row.push(right(f.recorded.map_or("-".to_owned(), |v| shown(f.figure, v))));
        }
        row.extend(f.means.map(|v| right(shown(f.figure, v))));
        row.push(right(change(f)));
        out.push(row);
    }
    for (reason, [before, after]) in &c.refused {
        let mut row = vec![named(false), Cell::new(format!("refused, {reason}"))];
        if a.recorded {
            row.push(Cell::new(""));
        }
        row.extend([right(format!("{before:.0}")), right(format!("{after:.0}")), Cell::new("")]);
        out.push(row);
    }
    out
}

fn write(dir: &Path, a: &Answer) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let mut numbers = serde_json::to_string_pretty(&json(a))?;
    numbers.push('\n');
    for (name, text) in [("whatif.json", numbers), ("report.html", page(a))] {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}
