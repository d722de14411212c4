//! `forebay parity`: the simulator beside the live router, small enough for every test run. Times are not judged here.

use crate::process::{PATIENCE, Scratch};
use serde_json::Value;
use std::process::Stdio;
use tokio::process::Command;

/// Requests far enough apart that their order is theirs, whatever the machine does.
const ONE: &str = "
version: 1
name: one
mode: {kind: surge, window: 2s, warmup: 0s, drain: 20s}
classes:
  only: {priority: 3, arrivals: {process: constant, phase: 0.5, rate: 5}, input: {uniform: [20, 90]}, output: 6,
         prompts: {groups: 1, prefix: 64}}
";

const TWO: &str = "
version: 1
name: two
mode: {kind: surge, window: 2s, warmup: 0s, drain: 20s}
classes:
  critical: {priority: 100, arrivals: {process: poisson, rate: 15}, input: 60, output: 8, slo: {ttft: 5s}}
  sheddable: {priority: -50, arrivals: {process: poisson, rate: 20}, input: {uniform: [20, 200]}, output: 5, flows: 3}
";

/// Exit code, stdout, stderr.
async fn parity(arguments: &[&str]) -> (Option<i32>, String, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args([&["parity", "--model", "tiny", "--probe", "500ms", "--runs", "3"], arguments].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let o = tokio::time::timeout(3 * PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (o.status.code(), text(o.stdout), text(o.stderr))
}

fn both(value: &Value) -> (u64, u64) {
    let n = |side: &str| value[side].as_f64().unwrap() as u64;
    (n("simulated"), n("live"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_differ_does_not() {
    let w = Scratch::new("one.yaml", ONE);
    let (code, out, err) = parity(&["--engines", "1xh100", "--workload", w.path(), "--json"]).await;
    let found: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"));
    // On a machine that is busy with other tests a schedule may not be kept; that is said, and is code 1.
    assert_eq!(code, Some(i32::from(found["valid"] != true)), "{err}");
    let inputs = &found["inputs"];
    assert_eq!(inputs["requests"], serde_json::json!([10, 10]));
    assert_eq!((&inputs["other_prompt"], &inputs["other_output"]), (&0.into(), &0.into()));
    let class = &found["classes"][0];
    assert_eq!((&class["name"], both(&class["ends"]["finished"])), (&"only".into(), (10, 10)));
    assert_eq!(class["ends"].as_object().unwrap().len(), 1, "{class}");
    let decisions = &found["decisions"];
    assert_eq!(
        (&decisions["requests"], &decisions["shares"]["same_endpoint"]["live"]),
        (&10.into(), &1.0.into())
    );
    if code == Some(0) {
        assert_eq!(decisions["shares"]["same_endpoint_and_place"]["live"], 1.0, "{decisions}");
        assert_eq!(decisions["first_difference"], Value::Null);
        // All but the first find the 64 tokens that they share.
        assert_eq!(inputs["cached_tokens"], serde_json::json!([9 * 64, 9 * 64]));
    }
    for part in ["client_to_router", "router_to_engine", "engine_to_client", "scrape"] {
        assert!(found["probe"][part]["count"].as_u64().unwrap() > 0, "{part}: {}", found["probe"]);
        assert!(found["delays"][part]["count"].as_u64().unwrap() >= 10, "{part}: {}", found["delays"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comparison_is_a_page() {
    let w = Scratch::new("two.yaml", TWO);
    let dir = std::env::temp_dir().join(format!("forebay-parity-{}", std::process::id()));
    let to = dir.to_str().unwrap();
    let (code, out, err) = parity(&["--engines", "2xh100", "--workload", w.path(), "--out", to]).await;
    assert!(code == Some(0) || (code == Some(1) && out.contains("INVALID")), "{code:?} {out} {err}");
    for part in
        ["critical, priority 100", "sheddable, priority -50", "same endpoint", "engine to client", "finished"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let own = out.split_once("Requests:").unwrap().1;
    assert!(own.lines().all(|l| l.chars().count() <= 100), "{out}");
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    let found: Value = serde_json::from_slice(&std::fs::read(dir.join("parity.json")).unwrap()).unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    assert!(page.contains("What differs first") || page.contains("Nothing differs"));
    let requests = found["inputs"]["requests"].as_array().unwrap();
    assert_eq!(requests[0], requests[1], "as many on both sides");
    let ended: u64 =
        found["classes"].as_array().unwrap().iter().map(|c| both(&c["ends"]["finished"]).1).sum();
    assert_eq!(ended, requests[1].as_u64().unwrap(), "everything finishes");
    assert_eq!(found["decisions"]["requests"], requests[0], "and was dispatched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_live_side_is_refused() {
    let w = Scratch::new("two.yaml", TWO);
    let incidents = "version: 1\nname: x\nengines: [{count: 2, model: tiny, hardware: h100}]\nrouters: 2\n";
    let cluster = Scratch::new("cluster.yaml", incidents);
    let run = async |more: &[&str]| {
        let o = Command::new(env!("CARGO_BIN_EXE_forebay")).arg("parity").args(more).output().await.unwrap();
        (o.status.code(), String::from_utf8(o.stderr).unwrap())
    };
    let (code, err) = run(&["--workload", w.path(), "--cluster", cluster.path()]).await;
    assert!(code == Some(64) && err.contains("several routers"), "{code:?} {err}");
    let (code, err) = run(&["--workload", w.path(), "--duration", "0s"]).await;
    assert!(code == Some(64) && err.contains("--duration"), "{code:?} {err}");
    let (code, err) = run(&["--workload", "cod"]).await;
    assert!(code == Some(64) && err.contains("code"), "{code:?} {err}");
}
