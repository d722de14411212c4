//! `forebay capacity`, `forebay plan`, `forebay sweep` and `forebay workload`.

use crate::{file, run};
use std::path::Path;

const WORKLOAD: &str = "
version: 1
name: short
mode: {kind: surge, window: 20s, warmup: 0s, drain: 600s}
classes:
  critical: {priority: 100, arrivals: {process: poisson, rate: 2}, input: {constant: 800}, output: {constant: 100}, slo: {ttft: 1s}}
  sheddable: {priority: -50, arrivals: {process: poisson, rate: 4}, input: {constant: 800}, output: {constant: 100}}
";

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap()
}

#[test]
fn a_sweep_gives_the_same_files_on_any_number_of_threads() {
    let workload = file("sweep-workload.yaml", WORKLOAD);
    let go = |threads: &str| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sweep-{threads}"));
        let args = [
            "sweep",
            "--workload",
            workload.to_str().unwrap(),
            "--config",
            "examples/static.yaml",
            "--set",
            "workload:classes.critical.arrivals.rate=2,8",
            "--set",
            "cluster:scrape.period=50ms,500ms",
            "--metric",
            "ttft-mean:critical,tokens,goodput",
            "--seeds",
            "3",
            "--threads",
            threads,
            "--out",
            dir.to_str().unwrap(),
        ];
        let printed = run(&args);
        assert_eq!(printed.code, 0, "{}", printed.err);
        (printed.out, ["sweep.json", "sweep.csv", "report.html"].map(|n| read(&dir, n)))
    };
    let (one, two) = (go("1"), go("2"));
    assert_eq!(one, two);
    assert!(one.0.lines().all(|l| l.chars().count() <= 100), "{}", one.0);
    let [json, csv, html] = one.1;
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tokens = |i: usize| value["points"][i]["figures"]["tokens"]["value"].as_f64().unwrap();
    assert_eq!(value["points"].as_array().unwrap().len(), 4);
    assert!(tokens(2) > 1.4 * tokens(0), "twice as many requests: {} {}", tokens(0), tokens(2));
    assert_eq!(csv.lines().count(), 5);
    assert!(
        csv.starts_with(
            "workload:classes.critical.arrivals.rate,cluster:scrape.period,ttft-mean:critical_ns,"
        )
    );
    assert!(html.contains("<svg") && html.contains("TTFT mean, critical") && !html.contains("NaN"));
}

#[test]
fn what_is_wrong_with_a_sweep_names_its_expression() {
    for (set, said) in [
        ("cluster:scrape.perod=1s", "--set 'cluster:scrape.perod=1s': scrape.perod: unknown field \"perod\""),
        ("cluser:scrape.period=1s", "did you mean \"cluster\"?"),
        ("config:flowControl.topBandCeling=2", "did you mean \"topBandCeiling\"?"),
    ] {
        let r = run(&["sweep", "--workload", "code", "--config", "examples/static.yaml", "--set", set]);
        assert_eq!((r.code, r.out.as_str()), (64, ""));
        assert!(r.err.contains(said), "{}", r.err);
    }
    let args =
        ["sweep", "--workload", "code", "--set", "cluster:routers=1", "--metric", "ttft-p99:criticl,goodpt"];
    let r = run(&args);
    assert_eq!(r.code, 64);
    assert!(
        r.err.contains("did you mean \"critical\"?") && r.err.contains("did you mean \"goodput\"?"),
        "{}",
        r.err
    );
}

#[test]
fn capacities_come_with_their_bracket_and_what_limits() {
    let text = WORKLOAD.replace(
        "mode: {kind: surge, window: 20s, warmup: 0s, drain: 600s}",
        "mode: {kind: surge, window: 20s}",
    );
    let text = text.replace("output: {constant: 100}", "output: {constant: 400}");
    let workload = file("capacity-workload.yaml", &text);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capacity");
    let args = ["capacity", "--quick", "--engines", "1xl40s", "--model", "qwen3-14b", "--workload"];
    let rest =
        [workload.to_str().unwrap(), "--config", "examples/static.yaml", "--out", dir.to_str().unwrap()];
    let printed = run(&[&args[..], &rest[..]].concat());
    assert_eq!(printed.code, 0, "{}", printed.err);
    for part in ["reference", "static", "limited by", "100 %", "(quick)"] {
        assert!(printed.out.contains(part), "{part}\n{}", printed.out);
    }
    let value: serde_json::Value = serde_json::from_str(&read(&dir, "capacity.json")).unwrap();
    let seed = &value["workloads"][0]["configurations"][0]["by_seed"][0];
    let (low, high) = (seed["capacity"].as_f64().unwrap(), seed["bracket_high"].as_f64().unwrap());
    assert!(low > 0.0 && high > low && high - low <= 0.03 * high, "{low} {high}");
    assert_eq!(read(&dir, "capacity.csv").lines().count(), 3);
    let closed = WORKLOAD.replace("{process: poisson, rate: 2}", "{process: closed, users: 3}");
    let closed = closed.replace("{process: poisson, rate: 4}", "{process: closed, users: 3}");
    let closed = file("capacity-closed.yaml", &closed);
    let r = run(&["capacity", "--workload", closed.to_str().unwrap()]);
    assert_eq!(r.code, 64);
    assert!(r.err.contains("no class whose rate could be raised"), "{}", r.err);
}

#[test]
fn presets_are_listed_printed_and_checked() {
    let list = run(&["workload", "list"]).good();
    assert!(list.contains("agentic") && list.lines().all(|l| l.chars().count() <= 100), "{list}");
    let shown = run(&["workload", "show", "code"]).good();
    let path = file("shown.yaml", &shown);
    let (of_file, of_preset) = (
        run(&["workload", "check", path.to_str().unwrap()]).good(),
        run(&["workload", "check", "code"]).good(),
    );
    assert_eq!(of_file, of_preset);
    assert!(of_file.starts_with("code: surge from an empty pool"), "{of_file}");
    let r = run(&["workload", "show", "cod"]);
    assert_eq!(r.code, 64);
    assert!(r.err.contains("did you mean \"code\"?"), "{}", r.err);
}

#[test]
fn a_plan_is_the_same_on_any_number_of_threads() {
    let text = WORKLOAD.replace("rate: 2}", "rate: 6}").replace("rate: 4}", "rate: 12}");
    let workload = file("plan-workload.yaml", &text);
    let dir = |threads: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plan-{threads}"));
    let go = |threads: &str| {
        let dir = dir(threads);
        let args = ["plan", "--workload", workload.to_str().unwrap(), "--hardware", "l40s"];
        let slo =
            ["--slo", "critical:ttft-p90<2s", "--slo", "sheddable:e2e-mean<60s", "--price", "l40s=0.80"];
        let rest = ["--config", "examples/recommended.yaml", "--seeds", "2", "--threads", threads];
        let printed = run(&[&args[..], &slo[..], &rest[..], &["--out", dir.to_str().unwrap()]].concat());
        assert_eq!(printed.code, 0, "{}", printed.err);
        (printed.out, ["plan.json", "plan.csv"].map(|n| read(&dir, n)))
    };
    let (one, two) = (go("1"), go("2"));
    assert_eq!(one, two);
    let (out, [json, csv]) = one;
    assert!(out.lines().all(|l| l.chars().count() <= 100), "{out}");
    for part in ["critical TTFT p90", "--slo", "rate / capacity", "cost per hour", "not a verdict"] {
        assert!(out.contains(part), "{part}\n{out}");
    }
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let l40s = &value["hardware"][0];
    let n = l40s["endpoints"].as_u64().unwrap();
    assert!(n > 1 && l40s["one_less_holds"] == false, "{l40s}");
    let hour = l40s["cost"]["per_hour"].as_f64().unwrap();
    assert!((hour - 0.8 * n as f64).abs() < 1e-9, "{hour}");
    // 18 requests of 100 tokens a second.
    let million = l40s["cost"]["per_million_output_tokens"].as_f64().unwrap();
    assert!((million / (hour / 6.48) - 1.0).abs() < 0.1, "{million}");
    assert_eq!(csv.lines().count(), 1 + l40s["sizes"].as_array().unwrap().len());
    // The file's own deadline of 1 s on the same latency of the same class gave way.
    assert_eq!(value["slos"].as_array().unwrap().len(), 2);
}

#[test]
fn what_is_wrong_with_a_plan_is_named() {
    for (flags, said) in [
        (&["--slo", "critcal:ttft-p99<1s"][..], "--slo: the workload has no class \"critcal\""),
        (&["--slo", "critical:ttft-p99>1s"], "expected critical:ttft-p99<1s"),
        (&["--hardware", "h10"], "--hardware: unknown hardware \"h10\""),
        (&["--price", "h10=2"], "did you mean \"h100\"?"),
        (&["--price", "h100=free"], "expected a number above 0"),
        (&["--model", "qwen3-14"], "did you mean \"qwen3-14b\"?"),
        (&["--tensor-parallel-size", "3"], "expected a divisor of the model's 40 attention heads"),
    ] {
        let r = run(&[&["plan", "--workload", "code"], flags].concat());
        assert_eq!((r.code, r.out.as_str()), (64, ""), "{flags:?}");
        assert!(r.err.contains(said), "{said}: {}", r.err);
    }
}
