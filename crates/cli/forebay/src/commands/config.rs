//! `forebay config`: check a configuration, print its schema.

use crate::catalogue::catalogue;
use crate::input::{self, StabilityFlags};
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Check a configuration, or print the schema of all of them
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    Check(Check),
    /// Print the JSON Schema of EndpointPickerConfig, for editors
    ///
    /// The schema (draft 2020-12) covers every field and every plugin type with its parameters.
    Schema,
}

/// Check an EndpointPickerConfig and print what it means
///
/// Everything that is wrong goes to stderr, each with file, line and column. A configuration that is
/// fine is printed with every default filled in.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The configuration, YAML or JSON; `-` reads stdin
    file: PathBuf,
    /// InferenceObjective and InferenceModelRewrite manifests to check beside it
    #[arg(long, value_name = "FILE|DIR")]
    objectives: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
}

impl Config {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        match self {
            Config::Check(c) => {
                let loaded = input::configuration(&c.file, c.objectives.as_ref(), c.stability)?;
                write!(out, "{}", loaded.config)?;
            }
            Config::Schema => {
                let schema = forebay_config::schema(&catalogue());
                writeln!(out, "{schema:#}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
