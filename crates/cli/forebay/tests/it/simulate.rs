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
        let names = [
            "summary.json",
            "timeline.json",
            "requests.csv",
            "requests.jsonl",
            "report.html",
            "decisions.log",
        ];
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
fn a_trace_and_compressed_rows_change_nothing_else() {
    let workload = file("simulate-traced.yaml", WORKLOAD);
    let workload = workload.to_str().unwrap();
    let go = |name: &str, more: &[&str]| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What an earlier test run has left would be taken for this one's.
        let _ = std::fs::remove_dir_all(&dir);
        let args = ["simulate", "--workload", workload, "--out", dir.to_str().unwrap()];
        let printed = run(&[&args[..], more].concat()).good();
        (printed, dir)
    };
    let read = |dir: &Path, name: &str| std::fs::read(dir.join(name)).unwrap();
    let (plain, a) = go("simulate-plain", &[]);
    let more = ["--zstd", "--perfetto", "--perfetto-window", "5s..10s"];
    let (traced, b) = go("simulate-traced", &more);
    let (_, again) = go("simulate-traced-again", &more);
    assert_eq!(plain, traced);
    for name in ["summary.json", "timeline.json", "report.html"] {
        assert!(read(&a, name) == read(&b, name), "{name}");
    }
    for name in ["requests.csv", "requests.jsonl"] {
        let packed = read(&b, &format!("{name}.zst"));
        let mut rows = Vec::new();
        let mut unpacked = forebay_records::decompressed(packed.as_slice()).unwrap();
        std::io::Read::read_to_end(&mut unpacked, &mut rows).unwrap();
        assert!(rows == read(&a, name) && !b.join(name).exists(), "{name}");
        assert!(packed == read(&again, &format!("{name}.zst")));
    }
    assert!(read(&b, "trace.json") == read(&again, "trace.json"));
    let trace: serde_json::Value = serde_json::from_slice(&read(&b, "trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let at = |e: &serde_json::Value| e["ts"].as_f64().unwrap();
    let counters: Vec<_> = events.iter().filter(|e| e["ph"] == "C").collect();
    assert!(!counters.is_empty() && counters.iter().all(|e| (5e6..=10e6).contains(&at(e))));
    assert!(events.iter().any(|e| e["ph"] == "b" && e["name"] == "decode"));
    let r = run(&["simulate", "--workload", workload, "--perfetto-window", "5s..10s"]);
    assert_ne!(r.code, 0);
    let r =
        run(&["simulate", "--workload", workload, "--out", "x", "--perfetto", "--perfetto-window", "9s..5s"]);
    assert!(r.code != 0 && r.err.contains("expected FROM before TO"), "{}", r.err);
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

#[test]
fn a_calibration_replaces_the_factors_of_the_servers() {
    let workload = file("calibrated-workload.yaml", WORKLOAD);
    let slow = file("slow.yaml", "version: 1\nhardware: {h100: {request: 500ms}}\n");
    let other = file("other.yaml", "version: 1\nhardware: {a100: {request: 500ms}}\n");
    let simulate = |more: &[&str]| {
        let args = [&["simulate", "--json", "--workload", workload.to_str().unwrap()], more].concat();
        let v: serde_json::Value = serde_json::from_str(&run(&args).good()).unwrap();
        v["classes"][0]["latencies"]["ttft"]["mean_ns"].as_f64().unwrap() / 1e6
    };
    let plain = simulate(&[]);
    let slowed = simulate(&["--calibration", slow.to_str().unwrap()]);
    assert!((400.0..600.0).contains(&(slowed - plain)), "{plain} {slowed}");
    assert_eq!(simulate(&["--calibration", other.to_str().unwrap()]), plain, "another GPU's factors");
}
