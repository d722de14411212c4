//! `forebay simulate`.

use crate::{file, run};
use std::path::Path;

const WORKLOAD: &str = "
version: 1
name: short
mode: {kind: surge, window: 20s, warmup: 0s, drain: 600s}
lengths: {in: {uniform: [200, 2000]}, out: {uniform: [20, 300]}}
classes:
  critical: {priority: 100, arrivals: {process: poisson, rate: 5}, input: in, output: out, slo: {ttft: 1s}}
  sheddable: {priority: -50, arrivals: {process: poisson, rate: 10}, input: in, output: out}
";

#[test]
fn the_same_run_gives_the_same_files_and_the_log_replays() {
    let workload = file("simulate-workload.yaml", WORKLOAD);
    let workload = workload.to_str().unwrap();
    let go = |name: &str, seed: &str| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let config = "examples/article.yaml";
        let args =
            ["simulate", "--config", config, "--workload", workload, "--seed", seed, "--decisions", "--out"];
        let printed = run(&[&args[..], &[dir.to_str().unwrap()]].concat());
        assert_eq!(printed.code, 0, "{}", printed.err);
        let names = ["summary.json", "timeline.json", "requests.csv", "requests.jsonl", "decisions.log"];
        (printed.out, dir.clone(), names.map(|n| std::fs::read_to_string(dir.join(n)).unwrap()))
    };
    let (a, b, other) = (go("simulate-a", "1"), go("simulate-b", "1"), go("simulate-c", "2"));
    assert_eq!((&a.0, &a.2), (&b.0, &b.2));
    assert_ne!(a.2[2], other.2[2]);
    for part in
        ["verdict: ", "critical, priority 100", "  engine wait", "longest engine queue", "saturation while"]
    {
        assert!(a.0.contains(part), "{part}\n{}", a.0);
    }
    let log = a.1.join("decisions.log");
    let objectives = "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: c}\nspec: {priority: 100}\n\
                      ---\napiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: s}\nspec: {priority: -50}\n";
    let objectives = file("simulate-objectives.yaml", objectives);
    let args = ["replay", "--config", "examples/article.yaml", "--objectives", objectives.to_str().unwrap()];
    let replayed = run(&[&args[..], &[log.to_str().unwrap()]].concat());
    assert_eq!(replayed.code, 0, "{}{}", replayed.out, replayed.err);
}

#[test]
fn wrong_names_are_told_with_the_nearest() {
    let r = run(&["simulate", "--workload", "cod"]);
    assert_eq!(r.code, 64);
    assert!(r.err.contains("did you mean \"code\"?"), "{}", r.err);
    let r = run(&["simulate", "--workload", "code", "--engines", "2xh10"]);
    assert_eq!(r.code, 64);
    assert!(r.err.contains("h100"), "{}", r.err);
}

/// The bytes of a comparison depend on nothing but its arguments.
#[test]
fn a_comparison_is_the_same_on_any_number_of_threads() {
    let workload = file("compare-workload.yaml", WORKLOAD);
    let workload = workload.to_str().unwrap();
    let go = |threads: &str| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-{threads}"));
        let out = dir.to_str().unwrap();
        let printed = run(&[
            "compare",
            "--baseline",
            "examples/static.yaml",
            "--treatment",
            "examples/article.yaml",
            "--workload",
            workload,
            "--rates",
            "10,30",
            "--seeds",
            "10",
            "--threads",
            threads,
            "--out",
            out,
        ]);
        assert_eq!(printed.code, 0, "{}", printed.err);
        let files = ["comparison.json", "report.html"].map(|n| std::fs::read_to_string(dir.join(n)).unwrap());
        (printed.out, files)
    };
    let (one, two) = (go("1"), go("2"));
    assert_eq!(one, two);
    let [json, html] = one.1;
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let arms = &value["places"][1]["policies"];
    assert_eq!(arms[1]["classes"][0]["measures"]["TTFT p99"]["against_baseline"]["pairs"], 10);
    assert!(
        html.contains("<svg") && html.contains("Saturation as the router sees it") && !html.contains("NaN")
    );
    assert!(
        !html.contains("http://")
            || html.matches("http://").count() == html.matches("http://www.w3.org/2000/svg").count()
    );
}
