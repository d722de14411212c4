//! Workloads from the outside: what comes, when, and that it depends on nothing it should not.

mod errors;
mod lengths;
mod processes;
mod prompts;
mod schema;
mod streams;
mod traces;

use forebay_workload::{Arrival, Workload};

/// A workload of one class with this YAML in it, over a window.
fn one(window: &str, class: &str) -> Workload {
    read(&format!(
        "version: 1\nname: t\nmode: {{kind: surge, window: {window}}}\nclasses: {{c: {{{class}}}}}\n"
    ))
}

fn read(text: &str) -> Workload {
    Workload::read(text, "t").unwrap_or_else(|found| panic!("{found}\n{text}"))
}

/// All arrivals, each answered at once.
fn all(w: &Workload, seed: u64) -> Vec<Arrival> {
    let mut arrivals = w.arrivals(seed);
    let mut out = Vec::new();
    while let Some(a) = arrivals.next() {
        arrivals.ended(a.number, a.at);
        out.push(a);
    }
    out
}

fn seconds(arrivals: &[Arrival]) -> Vec<f64> {
    arrivals.iter().map(|a| a.at.0 as f64 / 1e9).collect()
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

/// Coefficient of variation.
fn cv(v: &[f64]) -> f64 {
    let m = mean(v);
    (v.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / v.len() as f64).sqrt() / m
}

fn gaps(times: &[f64]) -> Vec<f64> {
    times.windows(2).map(|w| w[1] - w[0]).collect()
}

/// A digest of what arrives: FNV-1a over the numbers, as little-endian 64-bit words.
fn digest(arrivals: &[Arrival]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |n: u64| {
        for b in n.to_le_bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for a in arrivals {
        let lora = a.lora.map_or(u64::MAX, u64::from);
        let own =
            [u64::from(a.class), u64::from(a.flow), a.prompt_tokens.into(), a.output_tokens.into(), lora];
        [a.at.0].into_iter().chain(own).chain(a.prefix.iter().copied()).for_each(&mut add);
    }
    h
}
