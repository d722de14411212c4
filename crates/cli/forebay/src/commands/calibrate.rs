//! `forebay calibrate`: factors of the engine from observed runs.

use crate::input::{self, StabilityFlags, Unusable};
use crate::layout::{self, right};
use crate::simulated::{Threads, beside, calibration, recording, with_bar};
use crate::written;
use anyhow::Context;
use clap::Args;
use comfy_table::Cell;
use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_engine::{Calibration, Factor};
use forebay_records::Record;
use forebay_records::files::Reader;
use forebay_sim::Cluster;
use forebay_study::calibrate::{
    self, Answer, Ask, Compared, Fitted, Outcome, RunReport, Seen, caveats, equipped, json, method, summary,
};
use forebay_study::{Progress, Setup, text};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Fit the engine's factors to observed runs, and say how far off the simulator is
///
/// The requests of each run go through the simulator again, at the same times with the same lengths, and the factors
/// of the GPU type are moved until mean and percentiles of TTFT, TPOT and E2E come out as they were observed. A
/// factor that the runs do not tell keeps its value. Runs that are held back have no part in it and show the error
/// of a prediction.
#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// Folders of runs to fit to: of `forebay observe --out`, or recordings of `forebay serve`
    #[arg(long, value_name = "DIR", num_args = 1.., required = true)]
    observed: Vec<PathBuf>,
    /// Folders of runs to predict
    #[arg(long, value_name = "DIR", num_args = 1..)]
    hold_back: Vec<PathBuf>,
    /// The cluster file that says what served them, as `forebay capture` writes it
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// A calibration file with the values to start from, instead of the catalogue's or the cluster file's
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// The configuration of the router that was in front; without it every request goes to a server at once
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// The GPU type whose factors are fitted, in a cluster of several
    #[arg(long, value_name = "NAME")]
    hardware: Option<String>,
    /// Factors to fit, by comma, or all
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "request,step,sequence,bandwidth,compute,kv"
    )]
    fit: Vec<String>,
    #[command(flatten)]
    threads: Threads,
    /// Write the factors into this file, for --calibration
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let ask = self.ask()?;
        let progress = Progress::new();
        let answer =
            with_bar(&progress, "runs", || calibrate::calibrate(&ask, self.threads.count(), &progress));
        if let Some(path) = &self.out {
            let text = file(&answer, &self.kept(&ask)?);
            std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        if self.json {
            write!(out, "{}", written::json(&json(&answer))?)?;
        } else {
            print(out, &answer)?;
            if let Some(path) = &self.out {
                writeln!(out, "\nwritten to {}, for --calibration", path.display())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn ask(&self) -> anyhow::Result<Ask> {
        let factors = factors(&self.fit)?;
        let cluster = self.cluster()?;
        let hardware = calibrate::hardware(&cluster, self.hardware.as_deref(), "--hardware")?;
        let config = match &self.config {
            Some(path) => input::configuration(path, None, self.stability)?.config,
            None => input::built_in(self.stability)?,
        };
        let (fitted, held_back) = (all(&self.observed)?, all(&self.hold_back)?);
        for path in &self.hold_back {
            if self.observed.contains(path) {
                let message = format!("--hold-back: {} is among --observed, too", path.display());
                return Err(Unusable(message).into());
            }
        }
        let mut priorities: Vec<i32> =
            fitted.iter().chain(&held_back).flat_map(|s| Setup::priorities(&s.replay)).collect();
        priorities.sort_unstable_by_key(|p| std::cmp::Reverse(*p));
        priorities.dedup();
        let plan = Arc::new(config.plan(&priorities));
        Ok(Ask { fitted, held_back, cluster: Arc::new(cluster), plan, hardware, factors })
    }

    fn cluster(&self) -> anyhow::Result<Cluster> {
        let (text, name) = input::text(&self.cluster)?;
        let cluster = Cluster::read_with(&text, &name, &mut beside(&self.cluster))?;
        Ok(match calibration(self.calibration.as_deref())? {
            Some(calibration) => equipped(&cluster, |h| calibration.apply(h))?,
            None => cluster,
        })
    }

    /// What the file that was started from says of other GPU types.
    fn kept(&self, ask: &Ask) -> anyhow::Result<Calibration> {
        let old = calibration(self.calibration.as_deref())?.unwrap_or_default();
        Ok(old.without(ask.hardware.name))
    }
}

/// The factors to fit, in the order of the list.
fn factors(names: &[String]) -> Result<Vec<Factor>, Diagnostics> {
    let known = || Factor::ALL.iter().map(|f| f.name());
    let (mut found, mut wrong): (Vec<Factor>, _) = (Vec::new(), Diagnostics::default());
    if let [all] = names
        && all.trim() == "all"
    {
        return Ok(Factor::ALL.to_vec());
    }
    for name in names.iter().map(|n| n.trim()) {
        match Factor::named(name) {
            Some(f) if !found.contains(&f) => found.push(f),
            Some(_) => {}
            None => {
                let d = Diagnostic::error(Position::default(), "--fit", format!("unknown factor {name:?}"));
                let list = format!("all, or some of {}", known().collect::<Vec<_>>().join(", "));
                wrong.push(d.expected(list).nearest_of(name, known()));
            }
        }
    }
    if wrong.has_errors() { Err(wrong) } else { Ok(found) }
}

/// Runs of folders; everything that is wrong with any of them.
fn all(folders: &[PathBuf]) -> anyhow::Result<Vec<Seen>> {
    let (mut runs, mut wrong) = (Vec::new(), Diagnostics::default());
    for folder in folders {
        match seen(folder) {
            Ok(run) => runs.push(run),
            Err(e) => match e.downcast::<Diagnostics>() {
                Ok(d) => wrong.0.extend(d.0),
                Err(e) => return Err(e),
            },
        }
    }
    if wrong.has_errors() { Err(wrong.into()) } else { Ok(runs) }
}

/// The files of requests that a run may have, the first that is there being read.
const REQUESTS: [&str; 4] = ["requests.jsonl", "requests.csv", "requests.jsonl.zst", "requests.csv.zst"];

fn seen(folder: &Path) -> anyhow::Result<Seen> {
    let name = folder.display().to_string();
    let bad = |what: String| {
        let d = Diagnostic::error(Position::default(), "", what);
        let list = format!("a folder with one of {}, or with a recording", REQUESTS.join(", "));
        let mut all = Diagnostics(vec![d.expected(list)]);
        all.finish(&name);
        anyhow::Error::from(all)
    };
    if !folder.is_dir() {
        return Err(bad(if folder.exists() { "is no folder" } else { "is not there" }.to_owned()));
    }
    if let Some(path) = REQUESTS.iter().map(|n| folder.join(n)).find(|p| p.is_file()) {
        let (records, classes) = records(&path)?;
        let path = folder.join("summary.json");
        let summary = if path.is_file() {
            let (text, name) = input::text(&path)?;
            let read = serde_json::from_str::<serde_json::Value>(&text);
            Some(read.map_err(|e| Unusable(format!("{name}: is no JSON: {e}")))?)
        } else {
            None
        };
        return Ok(Seen::of_records(&name, &records, &classes, summary.as_ref())?);
    }
    let (begins, ends) = forebay_records::recording::NAME;
    let list = std::fs::read_dir(folder).map_err(|e| Unusable(format!("{name}: cannot be read: {e}")))?;
    let recorded = list
        .filter_map(Result::ok)
        .any(|f| f.file_name().to_str().is_some_and(|n| n.starts_with(begins) && n.ends_with(ends)));
    if !recorded {
        return Err(bad("has no requests of a run".to_owned()));
    }
    Ok(Seen::of_recording(&name, &recording(folder, &name)?)?)
}

fn records(path: &Path) -> anyhow::Result<(Vec<Record>, Vec<String>)> {
    let name = path.display().to_string();
    let unread = |e: std::io::Error| Unusable(format!("{name}: cannot be read: {e}"));
    let mut text = String::new();
    input::source(path).and_then(|s| s.open()?.read_to_string(&mut text)).map_err(unread)?;
    let mut reader = Reader::new(text.as_bytes(), &name, &[])?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record() {
        records.push(record?);
    }
    Ok((records, reader.classes().to_vec()))
}

/// The calibration file, with where it comes from.
fn file(a: &Answer, kept: &Calibration) -> String {
    let names: Vec<&str> = a.runs.iter().filter(|r| r.fitted).map(|r| r.name.as_str()).collect();
    let list = |fitted: bool| -> String {
        let some = a.factors.iter().filter(|f| f.outcome.is_fitted() == fitted).map(|f| f.factor.name());
        some.collect::<Vec<_>>().join(", ")
    };
    let not = list(false);
    let untold = match not.as_str() {
        "" => String::new(),
        not => format!(" Asked for, but not told by these runs: {not}."),
    };
    let head = format!(
        "# Fitted by forebay calibrate to {}.\n# Fitted: {}.{untold} The rest is as it was.\n",
        names.join(", "),
        list(true)
    );
    head + &a.calibration().and(kept).write()
}

fn print(out: &mut dyn Write, a: &Answer) -> anyhow::Result<()> {
    writeln!(out, "{} on {}, factors of {}\n", runs(a), a.cluster, a.hardware)?;
    let mut t = layout::table([
        Cell::new("factor"),
        right("before"),
        right("after"),
        right("95 % interval"),
        Cell::new(""),
    ]);
    for f in &a.factors {
        t.add_row(row(f));
    }
    writeln!(out, "{}", layout::lines(&t))?;
    for r in &a.runs {
        let role = if r.fitted { "fitted" } else { "held back" };
        writeln!(out, "{}, {role}: {} requests, {}/s", r.name, r.requests, text::three(r.rate))?;
        writeln!(out, "{}", figures(r))?;
    }
    writeln!(out, "{}", layout::wrapped(&method(a)))?;
    for said in summary(a).iter().chain(&caveats(a)) {
        writeln!(out, "{}", layout::wrapped(said))?;
    }
    Ok(())
}

fn runs(a: &Answer) -> String {
    let fitted = a.runs.iter().filter(|r| r.fitted).count();
    let plural = if fitted == 1 { "run" } else { "runs" };
    format!("{fitted} {plural} fitted, {} held back", a.runs.len() - fitted)
}

fn row(f: &Fitted) -> Vec<Cell> {
    let shown = |v: f64| Fitted::shown(f.factor, v);
    let interval = match f.outcome {
        Outcome::Fitted(low, high) => format!("{} to {}", shown(low), shown(high)),
        _ => "-".to_owned(),
    };
    let after = if f.outcome.is_fitted() { shown(f.after) } else { "=".to_owned() };
    vec![
        Cell::new(f.factor.name()),
        right(shown(f.before)),
        right(after),
        right(interval),
        Cell::new(f.outcome.remark()),
    ]
}

/// A share as per cent with its sign.
fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

fn figures(r: &RunReport) -> String {
    let head = ["observed", "before", "error", "after", "error", "95 % interval", "residual"];
    let mut t = layout::table([Cell::new("")].into_iter().chain(head.map(right)));
    for c in &r.figures {
        let Compared { observed, before, after, interval, residual, .. } = *c;
        t.add_row(vec![
            Cell::new(c.figure.label()),
            right(text::time(observed)),
            right(text::time(before)),
            right(percent(c.error_before())),
            right(text::time(after)),
            right(percent(c.error())),
            right(format!("{} to {}", percent(interval.0), percent(interval.1))),
            right(format!("{residual:+.1}")),
        ]);
    }
    layout::lines(&t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_named_or_all_of_them() {
        let names = |list: &str| {
            let list: Vec<String> = list.split(',').map(str::to_owned).collect();
            factors(&list)
                .map(|f| f.into_iter().map(Factor::name).collect::<Vec<_>>())
                .map_err(|d| d.to_string())
        };
        assert_eq!(names("step, request,step"), Ok(vec!["step", "request"]));
        assert_eq!(names("all").map(|f| f.len()), Ok(13));
        let e = names("stp,kv,x").unwrap_err();
        assert!(e.contains("did you mean \"step\"?") && e.lines().count() == 2, "{e}");
    }
}
