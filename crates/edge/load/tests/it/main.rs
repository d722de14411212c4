//! The load generator against servers: one whose timings are known, one that is emulated, and some that fail.

// Clippy sees tests by their attribute; the helpers here are tests as well.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod emulated;
mod failing;
mod hiccup;
mod known;
mod schedule;
mod script;

use forebay_load::{LoadError, Observation, Options, Server, Style, Url, Watch, Words, observe};
use forebay_workload::Workload;
use std::collections::BTreeSet;

/// A workload of one class.
fn workload(mode: &str, class: &str) -> Workload {
    let text = format!("version: 1\nname: t\nmode: {{kind: surge, {mode}}}\nclasses:\n  a: {{{class}}}\n");
    Workload::read(&text, "t.yaml").unwrap_or_else(|e| panic!("{e}"))
}

fn server(address: &str, style: Style) -> Result<Server, LoadError> {
    Server::find(Url::parse(&format!("http://{address}")).unwrap(), style, None, Words::default())
}

/// A run; every request that was due has exactly one record.
fn run(w: &Workload, server: &Server) -> Observation {
    let options = Options { threads: 2, ..Options::new(1, 7) };
    checked(observe(w, server, &options, &Watch::new()).unwrap())
}

fn checked(o: Observation) -> Observation {
    let numbers: BTreeSet<u64> = o.records.iter().map(|r| r.row.number).collect();
    assert_eq!(numbers.len(), o.records.len(), "one record each");
    assert!(numbers.iter().copied().eq(0..o.records.len() as u64), "and none is missing");
    o
}
