//! Chores of the workspace: `cargo xtask tidy | docs | bless`.

mod lock;
mod tidy;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask <CHORE>

Chores:
  tidy   check the rules of the workspace that the compiler and clippy do not know
  docs   write docs/plugins.md and the JSON Schemas in docs/ anew
  bless  docs, then run all tests and accept every snapshot as it comes out
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match (args.next().as_deref(), args.next()) {
        (Some("tidy"), None) => tidied(),
        (Some("docs"), None) => docs(),
        (Some("bless"), None) => docs().and_then(|()| bless()),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // With stderr gone there is nobody left to tell.
            let _ = writeln!(io::stderr(), "{}", e.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn tidied() -> Result<(), String> {
    let found = tidy::findings(&root())?;
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

/// Writes the documents that the binary, or an example of a crate, prints about itself.
fn docs() -> Result<(), String> {
    for (file, run, args) in [
        ("docs/plugins.md", &["forebay"][..], &["plugins", "--markdown"][..]),
        ("docs/config.schema.json", &["forebay"], &["config", "schema"]),
        ("docs/cluster.schema.json", &["forebay"], &["config", "schema", "cluster"]),
        ("docs/summary.schema.json", &["forebay"], &["config", "schema", "summary"]),
        ("docs/workload.schema.json", &["forebay-workload", "--example", "schema"], &[]),
    ] {
        let run = cargo(&["run", "--quiet", "--package"]).args(run).arg("--").args(args).output();
        let run = run.map_err(|e| format!("cargo run: {e}"))?;
        if !run.status.success() {
            return Err(format!("{file}: {}", String::from_utf8_lossy(&run.stderr)));
        }
        std::fs::write(root().join(file), run.stdout).map_err(|e| format!("{file}: {e}"))?;
    }
    Ok(())
}

fn bless() -> Result<(), String> {
    let run = cargo(&["test", "--workspace"]).env("INSTA_UPDATE", "always").status();
    match run.map_err(|e| format!("cargo test: {e}"))? {
        s if s.success() => Ok(()),
        s => Err(format!("cargo test: {s}")),
    }
}

/// The cargo that runs this, at the root.
fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
