//! `forebay workload`: list and print the workloads that ship, check a file.

use crate::layout::{self, right};
use crate::simulated::{preset_text, workload};
use clap::{Args, Subcommand};
use comfy_table::Cell;
use forebay_study::text;
use forebay_workload::{Kind, PRESETS, Workload as Read};
use std::io::Write;
use std::process::ExitCode;

/// List and print the workloads that ship, check a workload file
#[derive(Debug, Subcommand)]
pub(crate) enum Workload {
    /// List the workloads that ship
    List,
    /// Print a workload that ships, as a file to start from
    Show(Show),
    Check(Check),
    /// Print the JSON Schema of workload files, for editors
    Schema,
}

/// See [`Workload::Show`].
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Its name
    preset: String,
}

/// Check a workload file and print what it sends
///
/// Everything that is wrong goes to stderr, each with file, line and column.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file, or a preset; `-` reads stdin
    #[arg(value_name = "FILE|PRESET")]
    file: String,
}

impl Workload {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        match self {
            Workload::List => write!(out, "{}", list())?,
            Workload::Show(s) => write!(out, "{}", preset_text(&s.preset, "PRESET")?)?,
            Workload::Check(c) => print(out, &workload(&c.file)?)?,
            Workload::Schema => writeln!(out, "{:#}", forebay_workload::schema())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Names, rates, and the first sentence of each file's comment.
fn list() -> String {
    let mut t = layout::table([Cell::new("name"), right("requests/s"), Cell::new("what it is")]);
    for (name, text) in PRESETS {
        let comment: Vec<&str> = text.lines().map_while(|l| l.strip_prefix('#')).map(str::trim).collect();
        let comment = comment.join(" ");
        // A sentence ends with a full stop before a blank; one inside a number does not.
        let first = comment.split(". ").next().unwrap_or("").trim_end_matches('.').to_owned();
        let rate = Read::preset(name).map_or_else(String::new, |w| text::three(w.rate()));
        t.add_row(vec![Cell::new(name), right(rate), Cell::new(first)]);
    }
    layout::lines(&t)
}

fn print(out: &mut dyn Write, w: &Read) -> anyhow::Result<()> {
    let kind = match w.mode.kind {
        Kind::Surge => "surge from an empty pool",
        Kind::Steady => "steady",
    };
    writeln!(
        out,
        "{}: {kind}, {} after {} of warm-up, at most {} of drain; {} requests/s\n",
        w.name,
        w.mode.window,
        w.mode.warmup,
        w.mode.drain,
        text::three(w.rate())
    )?;
    let mut t = layout::table([
        Cell::new("class"),
        right("priority"),
        right("requests/s"),
        right("requests"),
        right("tokens in, mean"),
        right("out, mean"),
    ]);
    // Seed 1 stands for all; a million requests are enough for a mean.
    let mut sums = vec![(0u64, 0u64, 0u64); w.classes.len()];
    let mut arrivals = w.arrivals(1);
    let next = || arrivals.next();
    for a in std::iter::from_fn(next).take(1_000_000) {
        let s = &mut sums[usize::from(a.class)];
        *s = (s.0 + 1, s.1 + u64::from(a.prompt_tokens), s.2 + u64::from(a.output_tokens));
    }
    for (c, (n, input, output)) in w.classes.iter().zip(sums) {
        let mean = |sum: u64| if n == 0 { "-".to_owned() } else { format!("{:.0}", sum as f64 / n as f64) };
        let rate = c
            .arrivals
            .as_ref()
            .map_or("trace".to_owned(), |a| a.rate().map_or("closed loop".to_owned(), text::three));
        t.add_row(vec![
            Cell::new(&c.name),
            right(c.priority),
            right(rate),
            right(n),
            right(mean(input)),
            right(mean(output)),
        ]);
    }
    write!(out, "{}", layout::lines(&t))?;
    writeln!(out, "\nrequests and means: seed 1, without what follows from answers (turns, retries)")?;
    Ok(())
}
