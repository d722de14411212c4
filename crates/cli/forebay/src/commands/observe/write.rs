//! The files of a run.

use super::Seen;
use anyhow::Context;
use clap::ValueEnum;
use forebay_load::{Api, Server};
use forebay_records::files::{Format, Writer};
use forebay_records::{Compressed, Row};
use forebay_study::run_page::RunPage;
use forebay_study::{About, endpoints_of};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A result file of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Foreign {
    /// What `vllm bench serve --save-result --save-detailed` writes.
    VllmBench,
    /// The `per_request_lifecycle_metrics.json` of inference-perf.
    InferencePerf,
    /// The JSON report of guidellm.
    Guidellm,
}

impl Foreign {
    pub(crate) fn expected() -> String {
        let names: Vec<String> = Foreign::value_variants()
            .iter()
            .filter_map(|v| Some(v.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("expected one of {}", names.join(", "))
    }
}

/// The summary with what the run was.
pub(crate) fn summary(seen: &Seen, server: &Server, salt: u64, seed: u64) -> Value {
    let run = &seen.run;
    let mut value = seen.says.json();
    let api = match server.style.api {
        Api::Chat => "chat",
        Api::Completions => "completions",
    };
    let mode = run.workload.mode;
    value["run"] = json!({
        "kind": "observed", "target": server.url.to_string(), "model": server.model, "api": api,
        "stream": server.style.stream, "workload": run.workload.name, "rate": seen.rate, "seed": seed, "salt": salt,
        "warmup_ns": mode.warmup.0, "window_ns": mode.window.0, "drain_ns": mode.drain.0, "stopped": run.stopped,
        "client_cpu_ns": run.cpu.0,
    });
    let c = run.calibration;
    value["calibration"] = json!({
        "measured": c.measured, "tokens_per_word": c.per_word, "tokens_of_template": c.overhead,
        "tokens_of_further_turn": c.per_turn,
    });
    value["endpoints"] = json!(run.endpoints);
    let troubles = run.troubles.iter().map(|(label, t)| {
        json!({"label": label, "count": t.count, "first_number": t.number, "first_message": t.message})
    });
    value["troubles"] = troubles.collect();
    value
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(BufWriter::new(file))
}

/// A JSON file in a folder that is made if need be.
pub(crate) fn json_file(dir: &Path, name: &str, value: &Value) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let mut file = create(&dir.join(name))?;
    serde_json::to_writer_pretty(&mut file, value)?;
    writeln!(file)?;
    file.flush()?;
    Ok(())
}

/// The run as one HTML page.
fn page(seen: &Seen, server: &Server, seed: u64) -> String {
    let run = &seen.run;
    let about = About::observed(&run.workload, &server.url.to_string(), &run.endpoints, seed);
    let problems = seen.says.schedule.problems();
    let problems: Vec<String> = problems
        .iter()
        .map(|p| format!("Invalid: {p}. These figures are about the client, not about the server."))
        .collect();
    let rows: Vec<Row> = run.rows().copied().collect();
    let endpoints = endpoints_of(&rows, run.workload.mode.measured());
    let (summary, timeline) = (&seen.says.summary, None);
    RunPage { about: &about, summary, endpoints: &endpoints, rows: &rows, timeline, problems: &problems }
        .html()
}

/// `report.html`, `summary.json`, `requests.csv` and `requests.jsonl`, the latter two compressed if asked for.
pub(crate) fn all(
    dir: &Path,
    seen: &Seen,
    server: &Server,
    salt: u64,
    seed: u64,
    zstd: bool,
) -> anyhow::Result<()> {
    json_file(dir, "summary.json", &summary(seen, server, salt, seed))?;
    let mut file = create(&dir.join("report.html"))?;
    file.write_all(page(seen, server, seed).as_bytes())?;
    file.flush()?;
    for (name, format) in [("requests.csv", Format::Csv), ("requests.jsonl", Format::JsonLines)] {
        if zstd {
            let file = Compressed::new(create(&dir.join(format!("{name}.zst")))?);
            rows(file, format, seen)?.finish()?;
        } else {
            rows(create(&dir.join(name))?, format, seen)?;
        }
    }
    Ok(())
}

fn rows<W: Write>(out: W, format: Format, seen: &Seen) -> anyhow::Result<W> {
    let mut writer = Writer::live(out, format, &seen.run.workload.class_names())?;
    for record in &seen.run.records {
        writer.write_record(record)?;
    }
    Ok(writer.finish()?)
}

/// A line for each rate and class.
pub(crate) fn sweep(dir: &Path, all: &[Seen]) -> anyhow::Result<()> {
    let points = all.iter().map(|s| {
        let mut value = s.says.json();
        value["rate"] = json!(s.rate);
        value
    });
    json_file(dir, "sweep.json", &json!({"rates": points.collect::<Vec<_>>()}))
}

/// A file as another tool writes it.
pub(crate) fn export(format: Foreign, path: &Path, seen: &Seen, server: &Server) -> anyhow::Result<()> {
    let value = match format {
        Foreign::VllmBench => {
            forebay_study::foreign::vllm_bench(&seen.run, &server.model, &server.url.to_string())
        }
        Foreign::InferencePerf => forebay_study::foreign::inference_perf(&seen.run),
        Foreign::Guidellm => {
            forebay_study::foreign::guidellm(&seen.run, &server.model, &server.url.to_string())
        }
    };
    let mut file = create(path)?;
    serde_json::to_writer(&mut file, &value)?;
    writeln!(file)?;
    file.flush()?;
    Ok(())
}
