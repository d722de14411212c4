//! `forebay capacity`: the highest rate that a pool keeps up with.

use crate::input::{self, StabilityFlags, Unusable};
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, Threads, with_bar, workload};
use crate::written;
use clap::Args;
use comfy_table::Cell;
use forebay_study::capacity::{Answer, Arm, Question, Search, Usage, capacities};
use forebay_study::{Policy, Progress, json, text};
use forebay_workload::Workload;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Find the highest rate that a pool keeps up with
///
/// The reference capacity of a pool is the highest rate at which the backlog does not grow while requests
/// arrive, over four simulated hours from a warm start, with a router that sees what is in flight
/// (inflight-aware-detector, live routing, one ceiling of 1). Each configuration has a capacity of its own,
/// which the reference shows for what it is. Mixes of classes keep their shares.
#[derive(Debug, Args)]
pub(crate) struct Capacity {
    /// Workload files or presets, by comma
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    workload: Vec<String>,
    /// A configuration whose own capacity is searched, too; repeatable
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// One hour after ten minutes to 3 %, instead of four hours after half an hour to 1 %
    #[arg(long)]
    quick: bool,
    /// Seeds, from 1 on; with several there is an interval
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    threads: Threads,
    /// Write capacity.json and capacity.csv into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

impl Capacity {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let q = self.question()?;
        let progress = Progress::new();
        let answers = with_bar(&progress, "runs", || capacities(&q, self.threads.count(), &progress));
        let value = json::capacity(&q, &answers);
        if let Some(dir) = &self.out {
            written::all(
                dir,
                &[("capacity.json", written::json(&value)?), ("capacity.csv", csv(&q, &answers))],
            )?;
        }
        if self.json {
            write!(out, "{}", written::json(&value)?)?;
        } else {
            self.print(out, &q, &answers)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn question(&self) -> anyhow::Result<Question> {
        let workloads = self.workload.iter().map(|name| {
            let w = workload(name)?;
            if w.rate() > 0.0 {
                return Ok(w);
            }
            Err(Unusable(format!("--workload {name}: {} has no class whose rate could be raised", w.name))
                .into())
        });
        let workloads = workloads.collect::<anyhow::Result<Vec<Workload>>>()?;
        let cluster = Arc::new(self.cluster.read()?);
        let mut arms = vec![Arm { name: "reference".to_owned(), config: Policy::live().load()? }];
        for path in &self.config {
            let config = input::configuration(path, None, self.stability)?.config;
            let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
            arms.push(Arm { name, config });
        }
        let search = if self.quick { Search::QUICK } else { Search::FULL };
        Ok(Question { arms, workloads, cluster, seeds: (1..=self.seeds).collect(), search })
    }

    fn print(&self, out: &mut dyn Write, q: &Question, answers: &[Vec<Answer>]) -> anyhow::Result<()> {
        writeln!(
            out,
            "{}: backlog watched for {} after {} of warm-up, to {:.0} %{}",
            q.cluster.name,
            q.search.window,
            q.search.warmup,
            100.0 * q.search.precision,
            if self.quick { " (quick)" } else { "" }
        )?;
        writeln!(out, "requests/s of all classes together; reference: in-flight signal, live routing\n")?;
        write!(out, "{}", rates(q, answers))?;
        for (w, answers) in q.workloads.iter().zip(answers) {
            let all: Vec<(&str, &Usage)> = q
                .arms
                .iter()
                .zip(answers)
                .filter_map(|(arm, a)| Some((arm.name.as_str(), a.usage.as_ref()?)))
                .collect();
            if !all.is_empty() {
                writeln!(out, "\nservers at these rates of {}, mean", w.name)?;
                write!(out, "{}", usages(&all))?;
            }
        }
        for note in notes(q, answers) {
            writeln!(out, "\n{note}")?;
        }
        Ok(())
    }
}

/// What has to be said beside the figures.
fn notes(q: &Question, answers: &[Vec<Answer>]) -> Vec<String> {
    let mut notes = Vec::new();
    let found = || answers.iter().flatten().flat_map(|a| &a.by_seed);
    if found().any(|f| f.low == 0.0) {
        notes.push("none    no rate within a factor of 1000 was kept up with".to_owned());
    }
    if found().any(|f| f.high.is_infinite()) {
        notes.push("no end  every rate within a factor of 1000 was kept up with".to_owned());
    }
    for w in &q.workloads {
        if w.classes.iter().any(|c| !c.stages.is_empty() && !c.repeat) {
            notes.push(format!("{}: stages that do not repeat are left out", w.name));
        }
        if !w.traces.is_empty() {
            notes.push(format!("{}: watched no longer than its traces last", w.name));
        }
    }
    if q.seeds.len() > 1 {
        notes.push(
            "interval: Student's, 95 %, over seeds; it does not hold the width of the bracket".to_owned(),
        );
    }
    notes
}

fn rate(x: f64) -> String {
    if x == 0.0 {
        "none".to_owned()
    } else if x.is_infinite() {
        "no end".to_owned()
    } else if x < 0.995 {
        format!("{x:.3}")
    } else {
        text::three(x)
    }
}

fn rates(q: &Question, answers: &[Vec<Answer>]) -> String {
    let several = q.seeds.len() > 1;
    let mut head =
        vec![Cell::new("workload"), Cell::new("configuration"), right("capacity"), right("bracket")];
    if several {
        head.push(right("95 % interval"));
    }
    head.push(right("of reference"));
    let mut t = layout::table(head);
    for (w, answers) in q.workloads.iter().zip(answers) {
        let reference = answers.first().map_or(0.0, Answer::mean);
        for (i, (arm, a)) in q.arms.iter().zip(answers).enumerate() {
            let (low, high) = a.bracket();
            let mut row = vec![
                Cell::new(if i == 0 { w.name.as_str() } else { "" }),
                Cell::new(&arm.name),
                right(rate(a.mean())),
                right(format!("{} to {}", rate(low), rate(high))),
            ];
            if let Some((low, high)) = a.interval() {
                row.push(right(format!("{} to {}", rate(low.max(0.0)), rate(high))));
            }
            let share = a.mean() / reference;
            row.push(right(if share.is_finite() {
                format!("{:.0} %", 100.0 * share)
            } else {
                "-".to_owned()
            }));
            t.add_row(row);
        }
    }
    layout::lines(&t)
}

fn usages(all: &[(&str, &Usage)]) -> String {
    let mut head = vec![Cell::new("")];
    head.extend(all.iter().map(|(name, _)| right(name)));
    let mut t = layout::table(head);
    let percent = |x: f64| format!("{:.0} %", 100.0 * x);
    let mut line = |name: &str, of: &dyn Fn(&Usage) -> Option<String>| {
        let cells: Vec<Option<String>> = all.iter().map(|(_, u)| of(u)).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![Cell::new(name)];
            row.extend(cells.into_iter().map(|c| right(c.unwrap_or_else(|| "-".to_owned()))));
            t.add_row(row);
        }
    };
    line("compute, prefill", &|u| u.busy.map(|b| percent(b.prefill_compute)));
    line("compute, decode", &|u| u.busy.map(|b| percent(b.decode_compute)));
    line("memory, weights", &|u| u.busy.map(|b| percent(b.weights)));
    line("memory, KV cache", &|u| u.busy.map(|b| percent(b.kv)));
    line("overhead", &|u| u.busy.map(|b| percent(b.host)));
    line("KV blocks in use (p95)", &|u| Some(format!("{} ({})", percent(u.kv), percent(u.kv_p95))));
    line("sequences, of the most (p95)", &|u| {
        Some(format!("{} ({})", percent(u.sequences), percent(u.sequences_p95)))
    });
    line("waiting in a server", &|u| Some(text::three(u.waiting)));
    line("limited by", &|u| Some(u.limit.label().to_owned()));
    layout::lines(&t)
}

/// A row per workload, configuration and seed.
fn csv(q: &Question, answers: &[Vec<Answer>]) -> String {
    let mut out = "workload,configuration,seed,capacity,bracket_high,full_runs\n".to_owned();
    for (w, answers) in q.workloads.iter().zip(answers) {
        for (arm, a) in q.arms.iter().zip(answers) {
            for (seed, f) in q.seeds.iter().zip(&a.by_seed) {
                let cells = [
                    written::cell(&w.name),
                    written::cell(&arm.name),
                    seed.to_string(),
                    f.low.to_string(),
                    f.high.to_string(),
                    f.trials.len().to_string(),
                ];
                out.push_str(&cells.join(","));
                out.push('\n');
            }
        }
    }
    out
}
