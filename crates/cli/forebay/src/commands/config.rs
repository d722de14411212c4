//! `forebay config`: check a configuration, print schemas.

use crate::catalogue::catalogue;
use crate::input::{self, StabilityFlags};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Check a configuration, or print the schemas of files
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    Check(Check),
    Schema(Schema),
}

/// Print a JSON Schema, for editors and other tools
///
/// That of EndpointPickerConfig covers every field and every plugin type with its parameters. All of them are draft
/// 2020-12. `forebay workload schema` prints that of workload files.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// Of what
    #[arg(value_enum, default_value_t = Of::Config)]
    of: Of,
}

/// What has a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Of {
    /// EndpointPickerConfig
    Config,
    /// Cluster files
    Cluster,
    /// `summary.json` of `simulate` and `observe`
    Summary,
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
            Config::Schema(s) => {
                let schema = match s.of {
                    Of::Config => forebay_config::schema(&catalogue()),
                    Of::Cluster => forebay_sim::cluster_schema(),
                    Of::Summary => forebay_study::summary_schema(),
                };
                writeln!(out, "{schema:#}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
