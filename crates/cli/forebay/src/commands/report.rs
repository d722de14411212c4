//! `forebay report`: what results in a file say.

use crate::commands::observe::show;
use crate::input;
use clap::Args;
use forebay_records::decompressed;
use forebay_study::Observed;
use forebay_study::foreign::import;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// State the results of a run, ours or another tool's, by the rules for all figures
///
/// Takes requests.csv and requests.jsonl of `observe` and `simulate`, also compressed, the result of `vllm bench serve
/// --save-result --save-detailed`, guidellm's report as JSON, and inference-perf's per_request_lifecycle_metrics.json.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Report {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let name = self.file.display().to_string();
        let wrong = |e: std::io::Error| input::Unusable(format!("{name}: cannot be read: {e}"));
        let bytes = std::fs::read(&self.file).map_err(wrong)?;
        let mut text = String::new();
        decompressed(bytes.as_slice()).map_err(wrong)?.read_to_string(&mut text).map_err(wrong)?;
        let found = import(&text, &name)?;
        let ended = found.records.iter().filter_map(|r| r.row.finished).max().unwrap_or_default();
        let says = Observed::of_records(&found.records, &found.gaps, &found.workload, ended);
        if self.json {
            let mut value = says.json();
            value["run"] =
                serde_json::json!({"kind": "imported", "tool": found.tool, "latencies_from": found.origin});
            serde_json::to_writer_pretty(&mut *out, &value)?;
            writeln!(out)?;
        } else {
            show::imported(out, &found, &says)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
