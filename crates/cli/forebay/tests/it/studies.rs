//! `forebay compare --ablate`, and the figures that README quotes.

use crate::{file, root, run};
use std::path::Path;

/// Under a load past what two servers carry, so that every part has something to do.
const WORKLOAD: &str = "
version: 1
name: burst
mode: {kind: surge, window: 30s, warmup: 0s, drain: 600s}
lengths: {in: {uniform: [500, 3000]}, out: {uniform: [50, 600]}}
classes:
  critical: {priority: 100, arrivals: {process: poisson, rate: 12}, input: in, output: out}
  sheddable: {priority: -50, arrivals: {process: poisson, rate: 28}, input: in, output: out}
";

#[test]
fn ablation_compares_the_recommended_parts_one_by_one() {
    let workload = file("ablate-workload.yaml", WORKLOAD);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ablate");
    let args = ["compare", "--ablate", "--seeds", "2", "--workload", workload.to_str().unwrap(), "--out"];
    let printed = run(&[&args[..], &[dir.to_str().unwrap()]].concat());
    assert_eq!(printed.code, 0, "{}", printed.err);
    let json = std::fs::read_to_string(dir.join("comparison.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let names = [
        "recommended",
        "scraped signal",
        "until scrape",
        "upstream driver",
        "scraped routing",
        "no bypass",
        "KV reserve",
        "reserve, no bypass",
    ];
    let arms = json["places"][0]["policies"].as_array().unwrap();
    assert_eq!(arms.iter().map(|a| a["policy"].as_str().unwrap()).collect::<Vec<_>>(), names);
    let of = |i: usize| &arms[i]["classes"][0]["measures"]["TTFT p99"]["by_seed"];
    for (i, name) in names.iter().enumerate().skip(1) {
        assert_ne!(of(i), of(0), "{name} has changed something");
        assert!(printed.out.contains(&format!("- {name} ")), "{}", printed.out);
    }
    let rows = printed.out.lines().filter(|l| l.starts_with("- "));
    let widest = rows.map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns\n{}", printed.out);
    assert!(json["places"][0]["highest_priority_alone"].is_null(), "only studies run it");
}

/// `357 ms` and `0.36 s` are the same figure to two digits.
fn seconds(text: &str) -> f64 {
    let (number, unit) = text.trim().trim_start_matches(">= ").split_once(' ').unwrap();
    number.parse::<f64>().unwrap() * if unit == "ms" { 1e-3 } else { 1.0 }
}

/// The commands stand in README, and so do the figures that they give.
#[test]
fn the_simulated_figures_of_readme_are_those_of_this_code() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let commands: Vec<&str> =
        readme.lines().filter_map(|l| l.strip_prefix("forebay simulate --config ")).collect();
    assert_eq!(commands.len(), 3, "static, article and recommended");
    let sentence = readme.split("Critical TTFT at p99 is at least ").nth(1).unwrap();
    let sentence = sentence.split(" (fewer than").next().unwrap().replace('\n', " ");
    let told: Vec<&str> = sentence.split([',', ' ']).filter(|w| w.parse::<f64>().is_ok()).collect();
    assert_eq!(told.len(), commands.len(), "{sentence}");
    for (command, told) in commands.iter().zip(told) {
        let args: Vec<&str> = ["simulate", "--config"].into_iter().chain(command.split(' ')).collect();
        let printed = run(&args);
        assert_eq!(printed.code, 0, "{}", printed.err);
        let critical = printed.out.split("critical, priority 100").nth(1).unwrap();
        let line = critical.lines().find(|l| l.starts_with("TTFT")).unwrap();
        let (_, p99) = line.rsplit_once(">=").expect("fewer than 30 samples lie beyond it");
        let digits = told.split_once('.').map_or(0, |(_, d)| d.len());
        assert_eq!(format!("{:.digits$}", seconds(p99)), told, "{command}: {line}");
    }
}
