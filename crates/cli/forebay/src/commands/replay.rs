//! `forebay replay`: does this build decide as the decision log says?

use crate::input::{self, StabilityFlags, Unusable};
use clap::Args;
use forebay_base::Diagnostics;
use forebay_kernel::replay::{Difference, replay};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Replay a decision log and compare every decision
///
/// Feeds the inputs of the log to a fresh kernel under the given configuration. Give the configuration
/// and the objectives that the log was written under: bands come from both. Exits with 1 at the first
/// line that comes out differently.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The configuration that the log was written under
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The objectives that the log was written under
    #[arg(long, value_name = "FILE|DIR")]
    objectives: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// The decision log; `-` reads stdin
    log: PathBuf,
}

impl Replay {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        if [&self.config, &self.log].iter().all(|p| p.as_os_str() == "-") {
            return Err(Unusable("only one of --config and LOG can be stdin".to_owned()).into());
        }
        let loaded = input::configuration(&self.config, self.objectives.as_ref(), self.stability)?;
        let (log, name) = input::text(&self.log)?;
        let plan = loaded.config.plan(&loaded.manifests.priorities());
        let report = replay(Arc::new(plan), &log).map_err(|d| {
            let mut found = Diagnostics(vec![*d]);
            found.finish(&name);
            found
        })?;
        writeln!(out, "{} inputs, {} decisions, {} lines", report.inputs, report.decisions, report.lines)?;
        if let Some(d) = report.difference {
            out.flush()?;
            anyhow::bail!("{}", told(&name, &d));
        }
        writeln!(out, "every decision came out as logged")?;
        Ok(ExitCode::SUCCESS)
    }
}

fn told(log: &str, d: &Difference) -> String {
    let line = |text: &Option<String>| text.clone().unwrap_or_else(|| "(no further line)".to_owned());
    format!(
        "{log}:{}: the replay differs from here on\n  logged:   {}\n  replayed: {}",
        d.line,
        line(&d.logged),
        line(&d.replayed)
    )
}
