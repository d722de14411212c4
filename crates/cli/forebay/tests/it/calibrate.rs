//! `forebay calibrate` over runs whose factors are known, and what it refuses.

use crate::{file, run};
use std::path::Path;

const CLUSTER: &str = "version: 1\nname: one\nengines: [{model: tiny, hardware: cpu, args: {max-num-seqs: 64, \
                       num-gpu-blocks-override: 5000, max-model-len: 2048}}]\nnetwork: {toEngine: 0s, toClient: 0s}\n";
const WORKLOAD: &str = "
version: 1
name: w
mode: {kind: surge, window: 60s, drain: 600s}
classes:
  only: {priority: 0, arrivals: {process: poisson, rate: 2}, input: {constant: 20}, output: {normal: [40, 20], clamp: [5, 90]}}
";

/// The folder of a run of servers with these factors.
fn world(name: &str, factors: &str, rate: &str) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().unwrap().to_owned();
    let cluster = file("calibrate-cluster.yaml", CLUSTER);
    let truth = file(&format!("{name}.yaml"), &format!("version: 1\nhardware: {{cpu: {{{factors}}}}}\n"));
    let workload = file("calibrate-workload.yaml", WORKLOAD);
    let paths = [&cluster, &truth, &workload].map(|p| p.to_str().unwrap());
    run(&[
        "simulate",
        "--cluster",
        paths[0],
        "--calibration",
        paths[1],
        "--workload",
        paths[2],
        "--rate",
        rate,
        "--out",
        &dir,
    ])
    .good();
    dir
}

#[test]
fn a_known_world_is_fitted_written_and_simulated_with() {
    const TRUTH: &str = "step: 9ms, request: 21ms";
    let [a, b] = [("calibrate-a", "2"), ("calibrate-b", "3")].map(|(name, rate)| world(name, TRUTH, rate));
    let cluster = file("calibrate-cluster.yaml", CLUSTER);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fitted.yaml");
    let (cluster, out) = (cluster.to_str().unwrap(), out.to_str().unwrap());
    let args = [
        "calibrate",
        "--observed",
        &a,
        "--hold-back",
        &b,
        "--cluster",
        cluster,
        "--fit",
        "step,request,link",
    ];
    let text = run(&[&args[..], &["--out", out]].concat()).good();
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    for part in [
        "1 run fitted, 1 held back on one, factors of cpu",
        "kept: no figure depends on it",
        "Held-back runs: median",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let written = std::fs::read_to_string(out).unwrap();
    assert!(
        written.starts_with("# Fitted by forebay calibrate to ")
            && written.contains("# Fitted: step, request."),
        "{written}"
    );
    // Once more from what was found: nothing is left to learn.
    let again = run(&[&args[..], &["--calibration", out, "--json"]].concat()).good();
    let v: serde_json::Value = serde_json::from_str(&again).unwrap();
    for (i, truth) in [9e6, 21e6].iter().enumerate() {
        let f = &v["factors"][i];
        let (before, after) = (f["before"].as_f64().unwrap(), f["after"].as_f64().unwrap());
        assert!((before / truth - 1.0).abs() < 0.05 && (after / truth - 1.0).abs() < 0.05, "{f}");
        assert!(
            f["interval"][0].as_f64().unwrap() <= after && after <= f["interval"][1].as_f64().unwrap(),
            "{f}"
        );
    }
    assert_eq!(v["runs"][1]["role"], "held_back");
    let error = v["runs"][1]["figures"][0]["error"].as_f64().unwrap();
    assert!(error.abs() < 0.05, "{error}");
}

#[test]
fn what_cannot_be_fitted_is_refused_with_what_would_do() {
    let good = world("calibrate-c", "step: 5ms", "2");
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calibrate-empty");
    std::fs::create_dir_all(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    let one = file("calibrate-cluster.yaml", CLUSTER);
    let two = file(
        "calibrate-two.yaml",
        "version: 1\nname: two\nengines: [{model: qwen3-14b, hardware: h100}, {model: qwen3-14b, hardware: a100}]\n",
    );
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    let refused = |args: &[&str], said: &[&str]| {
        let r = run(&[&["calibrate"], args].concat());
        assert_eq!((r.code, r.out.as_str()), (64, ""), "{}", r.err);
        for part in said {
            assert!(r.err.contains(part), "{part}\n{}", r.err);
        }
    };
    refused(
        &["--observed", empty, "/nowhere", "--cluster", one],
        &[
            "calibrate-empty: has no requests of a run; expected a folder with one of requests.jsonl",
            "/nowhere: is not there",
        ],
    );
    refused(&["--observed", &good, "--cluster", two], &["several GPU types", "one of h100, a100-80"]);
    refused(
        &["--observed", &good, "--cluster", one, "--hardware", "h100"],
        &["one has no h100", "one of cpu"],
    );
    refused(
        &["--observed", &good, "--cluster", one, "--fit", "stp"],
        &["unknown factor \"stp\"", "did you mean \"step\"?"],
    );
    refused(&["--observed", &good, "--hold-back", &good, "--cluster", one], &["is among --observed, too"]);
    let broken = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calibrate-broken");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("requests.csv"), "number,clas\n").unwrap();
    refused(
        &["--observed", broken.to_str().unwrap(), "--cluster", one],
        &["requests.csv:1:1: clas: unknown column", "\"class\""],
    );
}
