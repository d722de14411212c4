//! How near the engine comes to measured servers, and the search for the factors that come nearest.
//!
//! ```text
//! cargo run --release -p forebay-engine --example accuracy -- FOLDER [--fit GPU] [--calibration FILE]
//! ```
//!
//! FOLDER holds `index.csv`, `baselines.csv` and `experiments/<id>/{experiment.yaml,summary.json}`: the
//! published measurements of vLLM 0.15.1 servers of inference-sim's repositories, brought into one layout.
//! Each is simulated with the workload that the servers really saw: a hundred fixed prompts, shuffled once and
//! sent in turn, exponential gaps scaled to each stage, a fixed output length, clients that give up after
//! 300 s. Nothing of the data is part of this project.
//!
//! `--fit GPU` searches that GPU's factors over the runs whose role is `fit`, and prints them as a calibration.
#![allow(clippy::print_stdout, reason = "this is a program")]

mod data;
mod fit;
mod simulate;

use data::{Experiment, Metrics};
use forebay_engine::{Calibration, Factors, Hardware};
use std::collections::BTreeMap;

/// Errors in per cent, by metric: TTFT mean, p90, p99, TPOT mean, E2E mean, p99.
type Errors = [Option<f64>; 6];
const NAMES: [&str; 6] = ["TTFT", "p90", "p99", "TPOT", "E2E", "p99"];

fn errors(got: &Metrics, want: &Metrics) -> Errors {
    std::array::from_fn(|i| {
        let (g, w) = (got.values()[i]?, want.values()[i]?);
        Some((g / w - 1.0) * 100.0)
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| f64::midpoint(values[(n - 1) / 2], values[n / 2]))
}

fn medians(name: &str, rows: &[&Errors]) {
    print!("{name:<44}");
    for i in 0..6 {
        let all: Vec<f64> = rows.iter().filter_map(|r| r[i]).map(f64::abs).collect();
        let n = all.len();
        match median(all) {
            Some(m) => print!(" {m:>6.1}"),
            None => print!("      -"),
        }
        if i == 5 {
            println!("   ({n} runs)");
        }
    }
}

fn line(name: &str, row: &Errors) {
    print!("{name:<44}");
    for e in row {
        match e {
            Some(e) => print!(" {e:>+6.1}"),
            None => print!("      -"),
        }
    }
    println!();
}

fn factors_of(gpu: &str, calibration: Option<&Calibration>) -> Result<Factors, String> {
    let hardware = Hardware::find(gpu).map_err(|e| e.to_string())?;
    Ok(calibration.map_or(hardware.factors, |c| c.factors(hardware)))
}

/// All runs against the measurements.
fn report(experiments: &[Experiment], calibration: Option<&Calibration>) -> Result<(), String> {
    let mut factors = BTreeMap::new();
    for e in experiments {
        factors.insert(e.gpu.clone(), factors_of(&e.gpu, calibration)?);
    }
    let results = simulate::all(experiments, |e| factors[&e.gpu])?;
    println!("{:<44} {}", "signed errors, %", NAMES.map(|n| format!("{n:>6}")).join(" "));
    let mut rows = Vec::new();
    for role in ["fit", "check"] {
        println!("-- {role}");
        for (e, r) in experiments.iter().zip(&results).filter(|(e, _)| e.role == role) {
            let row = errors(&r.stages[0], &e.stages[0]);
            line(&e.id, &row);
            for (i, (got, want)) in r.stages.iter().zip(&e.stages).enumerate().skip(1) {
                line(&format!("    stage {}", i - 1), &errors(got, want));
            }
            rows.push((e, row));
        }
    }
    println!("-- median absolute errors, %");
    let pick = |f: &dyn Fn(&Experiment) -> bool| -> Vec<&Errors> {
        rows.iter().filter(|(e, _)| f(e)).map(|(_, r)| r).collect()
    };
    medians("fit", &pick(&|e| e.role == "fit"));
    medians("check", &pick(&|e| e.role == "check"));
    medians("check, no reasoning", &pick(&|e| e.role == "check" && !e.reasoning()));
    medians("reasoning", &pick(&|e| e.reasoning()));
    for gpu in factors.keys() {
        medians(gpu, &pick(&|e| e.gpu == *gpu));
    }
    let blis: Vec<(&Experiment, Errors)> = experiments.iter().map(|e| (e, e.baseline)).collect();
    let of = |role: &str| blis.iter().filter(|(e, _)| e.role == role).map(|(_, r)| r).collect::<Vec<_>>();
    medians("BLIS, fit", &of("fit"));
    medians("BLIS, check", &of("check"));
    println!("-- KV blocks: computed, reported, %");
    let mut seen = Vec::new();
    for e in experiments {
        if let Some((got, want)) = simulate::capacity(e, factors[&e.gpu])?
            && !seen.contains(&(&e.model, e.tp))
        {
            let error = (f64::from(got) / f64::from(want) - 1.0) * 100.0;
            println!("{:<44} {got:>6} {want:>6} {error:>+6.1}", format!("{} x {}", e.model, e.tp));
            seen.push((&e.model, e.tp));
        }
    }
    println!("-- overload: requests completed");
    for (e, r) in experiments.iter().zip(&results).filter(|(e, _)| e.role == "stress") {
        let want = e.completed.map_or("not published".to_owned(), |n| n.to_string());
        println!("{:<44} {:>6} of {}, measured {want}", e.id, r.completed, r.sent);
        line("    survivors", &errors(&r.stages[0], &e.stages[0]));
    }
    Ok(())
}

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let folder = args
        .next()
        .ok_or("usage: accuracy FOLDER [--fit GPU] [--without MODEL] [--steps N] [--calibration FILE]")?;
    let (mut fit_gpu, mut without, mut calibration, mut steps) = (None, None, None, 400);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--fit" => fit_gpu = Some(value),
            "--steps" => steps = value.parse().map_err(|_| format!("--steps {value} is no number"))?,
            "--without" => without = Some(value),
            "--calibration" => {
                let text = std::fs::read_to_string(&value).map_err(|e| format!("{value}: {e}"))?;
                calibration = Some(Calibration::read(&text, &value).map_err(|e| e.to_string())?);
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    let experiments = data::read(&folder)?;
    match fit_gpu {
        None => report(&experiments, calibration.as_ref()),
        Some(gpu) => {
            let hardware = Hardware::find(&gpu).map_err(|e| e.to_string())?;
            let start = factors_of(&gpu, calibration.as_ref())?;
            fit::fit(&experiments, hardware, start, without.as_deref(), steps)
        }
    }
}
