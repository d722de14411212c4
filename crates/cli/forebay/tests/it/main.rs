//! The real binary: what it prints and how it exits.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers, too")]

mod calibrate;
mod config;
mod planning;
mod plugins;
mod policy;
mod replay;
mod schemas;
mod simulate;
mod studies;
mod usage;
mod whatif;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a run of the binary gave.
#[derive(Debug)]
struct Run {
    code: i32,
    out: String,
    err: String,
}

/// The binary, away from any terminal and its width.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(args).current_dir(root()).env_remove("COLUMNS").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Run {
    ended(&command(args).output().unwrap())
}

/// Runs with a text on stdin.
fn fed(args: &[&str], text: &str) -> Run {
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Inputs of the tests are smaller than a pipe's buffer, and so are the answers while they are written.
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    ended(&child.wait_with_output().unwrap())
}

fn ended(o: &Output) -> Run {
    Run {
        code: o.status.code().expect("the binary exits by itself"),
        out: String::from_utf8(o.stdout.clone()).unwrap(),
        err: String::from_utf8(o.stderr.clone()).unwrap(),
    }
}

impl Run {
    /// The output of a run that has to succeed without a word on stderr.
    fn good(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

/// Writes a file of one test.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}
