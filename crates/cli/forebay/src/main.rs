//! The `forebay` binary: arguments in, text out. Everything that decides lives in the libraries.

mod catalogue;
mod commands;
mod front;
mod input;
mod layout;
mod runtime;
mod simulated;
mod values;
mod written;

use clap::{Parser, Subcommand};
use commands::{
    calibrate, capacity, capture, compare, config, emulate, observe, parity, plan, plugins, policy, replay,
    report, serve, simulate, sweep, whatif, workload,
};
use forebay_base::Diagnostics;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What was asked for could not be done, or a check came out negative.
const FAILURE: u8 = 1;
/// The command line or an input file is wrong (`EX_USAGE`).
const USAGE: u8 = 64;

/// Priority flow control for LLM inference fleets.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 failed, 64 wrong usage or a wrong input file."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Emulate(emulate::Emulate),
    #[command(subcommand)]
    Config(config::Config),
    Plugins(plugins::Plugins),
    #[command(subcommand)]
    Policy(policy::Policy),
    Replay(replay::Replay),
    Simulate(simulate::Simulate),
    Compare(Box<compare::Compare>),
    Capacity(capacity::Capacity),
    Plan(Box<plan::Plan>),
    Sweep(Box<sweep::Sweep>),
    #[command(subcommand)]
    Workload(workload::Workload),
    Whatif(Box<whatif::Whatif>),
    Capture(capture::Capture),
    Calibrate(Box<calibrate::Calibrate>),
    Observe(Box<observe::Observe>),
    Parity(Box<parity::Parity>),
    Report(report::Report),
}

impl Command {
    fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        match self {
            Command::Serve(c) => c.run(out),
            Command::Emulate(c) => c.run(out),
            Command::Config(c) => c.run(out),
            Command::Plugins(c) => c.run(out),
            Command::Policy(c) => c.run(out),
            Command::Replay(c) => c.run(out),
            Command::Simulate(c) => c.run(out),
            Command::Compare(c) => c.run(out),
            Command::Capacity(c) => c.run(out),
            Command::Plan(c) => c.run(out),
            Command::Sweep(c) => c.run(out),
            Command::Workload(c) => c.run(out),
            Command::Whatif(c) => c.run(out),
            Command::Capture(c) => c.run(out),
            Command::Calibrate(c) => c.run(out),
            Command::Observe(c) => c.run(out),
            Command::Parity(c) => c.run(out),
            Command::Report(c) => c.run(out),
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version arrive here, too, and go to stdout. A reader that has left is no failure.
            let wrong = e.use_stderr();
            let _ = e.print();
            return if wrong { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    // Not locked: threads of long-running commands write there, too.
    let mut out = io::BufWriter::new(io::stdout());
    let done = cli.command.run(&mut out);
    // What was printed before a failure is shown before it.
    let flushed = out.flush();
    match done.and_then(|code| Ok(flushed.map(|()| code)?)) {
        Ok(code) => code,
        Err(e) => report(&e),
    }
}

/// Says on stderr what went wrong and chooses the exit code.
fn report(e: &anyhow::Error) -> ExitCode {
    let pipe = |c: &(dyn std::error::Error + 'static)| {
        c.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    };
    if e.chain().any(pipe) {
        // Whoever read the output has seen enough.
        return ExitCode::SUCCESS;
    }
    let mut err = io::stderr().lock();
    // With stderr gone there is nobody left to tell.
    let code = if let Some(found) = e.downcast_ref::<Diagnostics>() {
        let _ = writeln!(err, "{found}");
        USAGE
    } else {
        let _ = writeln!(err, "error: {e:#}");
        if e.is::<input::Unusable>() { USAGE } else { FAILURE }
    };
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
