//! `forebay observe` against `forebay emulate`, against servers that hang and die, and interrupted.

use crate::process::{PATIENCE, Process, Scratch};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const WORKLOAD: &str = "
version: 1
name: small
mode: {kind: surge, window: 2s, warmup: 0s, drain: 20s}
classes:
  critical: {priority: 100, arrivals: {process: poisson, rate: 20}, input: 60, output: 8, slo: {ttft: 5s}}
  sheddable: {priority: -50, arrivals: {process: poisson, rate: 30}, input: {uniform: [20, 200]}, output: 5, flows: 3}
";

/// A folder that goes with the test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("forebay-observe-{}-{name}", std::process::id())))
    }
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
    fn json(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.0.join(name)).unwrap()).unwrap()
    }
    /// The columns `number` and `end` of the rows.
    fn ends(&self) -> Vec<(u64, String)> {
        let text = std::fs::read_to_string(self.0.join("requests.csv")).unwrap();
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap().split(',').collect();
        let column = |name: &str| head.iter().position(|h| *h == name).unwrap();
        let (number, end) = (column("number"), column("end"));
        lines
            .map(|l| {
                let cells: Vec<&str> = l.split(',').collect();
                (cells[number].parse().unwrap(), cells[end].to_owned())
            })
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn observe(target: &str, workload: &str, more: &[&str]) -> Child {
    forebay(&[&["observe", "--target", target, "--workload", workload], more].concat())
}

fn forebay(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Exit code, stdout, stderr.
async fn ended(child: Child) -> (Option<i32>, String, String) {
    let o = tokio::time::timeout(2 * PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (o.status.code(), text(o.stdout), text(o.stderr))
}

/// 0 to n, each once.
fn whole(ends: &[(u64, String)]) {
    assert!(ends.iter().map(|e| e.0).eq(0..ends.len() as u64), "{ends:?}");
}

/// On a machine that is busy with other tests a schedule may not be kept; that is said, and is code 1.
fn kept_or_said(code: Option<i32>, out: &str) {
    assert_eq!(code, Some(i32::from(out.contains("INVALID"))), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_gives_tables_and_files() {
    let p = Process::emulate(&["--model", "tiny"]).await;
    let (w, dir) = (Scratch::new("small.yaml", WORKLOAD), Folder::new("run"));
    let export = dir.0.join("vllm.json");
    let exported = format!("vllm-bench={}", export.display());
    let guidellm = dir.0.join("guidellm.json");
    let also = format!("guidellm={}", guidellm.display());
    std::fs::create_dir_all(&dir.0).unwrap();
    let (code, out, err) = ended(observe(
        &p.url(),
        w.path(),
        &["--out", dir.path(), "--export", &exported, "--export", &also, "--salt", "1"],
    ))
    .await;
    kept_or_said(code, &out);
    for part in [
        "small on http://",
        "model tiny",
        "schedule: ",
        "critical, priority 100",
        "TTFT from send",
        "tokens per chunk",
    ] {
        assert!(out.contains(part), "{part}\n{out}\n{err}");
    }
    let ends = dir.ends();
    whole(&ends);
    assert!(ends.len() > 50 && ends.iter().all(|e| e.1 == "finished"));
    let summary = dir.json("summary.json");
    assert_eq!(
        summary["classes"][0]["offered"].as_u64().unwrap()
            + summary["classes"][1]["offered"].as_u64().unwrap(),
        ends.len() as u64
    );
    assert_eq!(summary["classes"][0]["goodput"]["share"], 1.0);
    assert_eq!((&summary["run"]["model"], &summary["run"]["salt"]), (&"tiny".into(), &1.into()));
    assert_eq!(summary["calibration"]["measured"], true);
    assert_eq!(summary["total"]["live"]["counted_by_server"].as_u64(), Some(ends.len() as u64));
    assert_eq!(summary["total"]["live"]["prompt_tokens_per_asked"], 1.0);
    let page = std::fs::read_to_string(dir.0.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("critical") && !page.contains("NaN"));
    assert_eq!(dir.json("vllm.json")["completed"].as_u64(), Some(ends.len() as u64));
    // What a client cannot know is not there, not even as an empty column.
    for unknown in ["preemptions", "engine wait", "Saturation"] {
        assert!(!page.contains(unknown), "{unknown}");
    }
    let schema = {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/summary.schema.json");
        std::fs::read_to_string(path).unwrap()
    };
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let problems: Vec<String> =
        schema.iter_errors(&summary).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert_eq!(problems, [""; 0]);
    for file in [&export, &guidellm, &dir.0.join("requests.csv")] {
        let (code, out, err) = ended(forebay(&["report", file.to_str().unwrap()])).await;
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("results of ") && out.contains("TTFT"), "{out}");
    }
    let lines = std::fs::read_to_string(dir.0.join("requests.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), ends.len() + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_sees_objectives_and_flows() {
    let mut p = Process::serve(&["--access-log", "-"]).await;
    p.ready().await;
    let (w, dir) = (Scratch::new("small.yaml", WORKLOAD), Folder::new("router"));
    let (code, out, _) = ended(observe(&p.url(), w.path(), &["--out", dir.path(), "--duration", "1s"])).await;
    kept_or_said(code, &out);
    assert!(out.contains("gateway"), "the router tells its part\n{out}");
    assert_eq!(dir.json("summary.json")["endpoints"].as_array().unwrap().len(), 2);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..dir.ends().len() {
        let line = p.access().await;
        seen.insert((
            line["objective"].as_str().unwrap_or("").to_owned(),
            line["fairness_id"].as_str().unwrap_or("").to_owned(),
        ));
    }
    assert!(seen.contains(&("critical".into(), "critical".into())), "{seen:?}");
    assert!(seen.iter().any(|(o, f)| o == "sheddable" && f.starts_with("sheddable-")), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_ends_in_a_whole_report() {
    let p = Process::emulate(&["--model", "tiny", "--hang"]).await;
    let (w, dir) = (Scratch::new("small.yaml", WORKLOAD), Folder::new("interrupt"));
    let more = ["--out", dir.path(), "--duration", "10m", "--no-calibration", "--plain"];
    let mut child = observe(&p.url(), w.path(), &more);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut line =
        async || tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line().await.contains(" open, "), "a line every few seconds");
    let interrupt = |child: &Child| {
        let id = child.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    };
    interrupt(&child);
    while !line().await.contains("nothing more is sent") {}
    interrupt(&child);
    while !line().await.contains("the run ends now") {}
    let (code, out, _) = ended(child).await;
    kept_or_said(code, &out);
    assert!(out.contains("(stopped)") && out.contains("undet."), "{out}");
    let ends = dir.ends();
    whole(&ends);
    assert!(!ends.is_empty() && ends.iter().all(|e| e.1 == "censored"));
    assert_eq!(dir.json("summary.json")["run"]["stopped"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_resets_is_counted_and_named() {
    let p = Process::emulate(&["--model", "tiny", "--reset-after-tokens", "3"]).await;
    let (w, dir) = (Scratch::new("small.yaml", WORKLOAD), Folder::new("reset"));
    let more = ["--out", dir.path(), "--duration", "1s", "--no-calibration", "--zstd", "--json"];
    let (code, out, err) = ended(observe(&p.url(), w.path(), &more)).await;
    let summary: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"));
    assert_eq!(code, Some(i32::from(summary["schedule"]["valid"] != true)));
    assert_eq!(summary["troubles"][0]["label"], "broke-off");
    assert_eq!(summary["troubles"][0]["count"], summary["total"]["failed"]);
    assert_eq!(summary["total"]["failed"], summary["total"]["offered"]);
    assert!(dir.0.join("requests.csv.zst").exists() && !dir.0.join("requests.csv").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_the_middle_leaves_failures() {
    let p = Process::emulate(&["--model", "tiny"]).await;
    let (w, dir) = (Scratch::new("small.yaml", WORKLOAD), Folder::new("dies"));
    let more = ["--out", dir.path(), "--duration", "12s", "--plain"];
    let mut child = observe(&p.url(), w.path(), &more);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line.contains(" due, "), "{line}");
    drop(p);
    let (code, out, _) = ended(child).await;
    kept_or_said(code, &out);
    let ends = dir.ends();
    whole(&ends);
    let count = |end: &str| ends.iter().filter(|e| e.1 == end).count();
    assert!(
        count("finished") > 20 && count("failed") > 20 && count("finished") + count("failed") == ends.len()
    );
    assert!(out.contains("connection-refused"), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_follow_each_other_and_a_capacity_is_searched() {
    let p = Process::emulate(&["--model", "tiny", "--max-num-seqs", "1", "--extra-latency", "1ms"]).await;
    let (w, dir) = (Scratch::new("small.yaml", WORKLOAD), Folder::new("sweep"));
    let more = ["--out", dir.path(), "--duration", "1s", "--rates", "10,20", "--drain", "20s"];
    let (code, out, _) = ended(observe(&p.url(), w.path(), &more)).await;
    kept_or_said(code, &out);
    let sweep = dir.json("sweep.json");
    assert_eq!((&sweep["rates"][0]["rate"], sweep["rates"].as_array().unwrap().len()), (&10.0.into(), 2));
    assert!(dir.0.join("rate-20/requests.jsonl").exists());
    // A goal that no answer can miss at any rate, and one that none can meet.
    let goal = [
        "--duration",
        "300ms",
        "--find-capacity",
        "critical:e2e-p50<1ns",
        "--precision",
        "0.5",
        "--quiet",
        "--json",
    ];
    let (code, out, err) = ended(observe(&p.url(), w.path(), &goal)).await;
    let found: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"));
    assert_eq!((code, &found["rate"]), (Some(1), &serde_json::Value::Null));
    let tried = found["tried"].as_array().unwrap();
    assert!(tried.iter().all(|t| t["holds"] == false));
    assert!(!tried.is_empty() || found["ended_early"].is_string(), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_named() {
    let w = Scratch::new("small.yaml", WORKLOAD);
    for (target, more, says) in [
        ("http://127.0.0.1:1", &[][..], "refused"),
        ("https://a", &[], "https is not supported"),
        ("http://127.0.0.1:1", &["--find-capacity", "critcal:ttft-p99<1s"], "did you mean \"critical\"?"),
        ("http://127.0.0.1:1", &["--objective", "shedable=x"], "did you mean \"sheddable\"?"),
        ("http://127.0.0.1:1", &["--rate=-1"], "expected requests per second above 0"),
        ("http://127.0.0.1:1", &["--api-key-env", "NO_SUCH_KEY_HERE"], "NO_SUCH_KEY_HERE is not set"),
        ("http://127.0.0.1:1", &["--extra-body", "[]"], "expected a JSON object"),
        ("http://127.0.0.1:1", &["--export", "x=y"], "expected one of vllm-bench"),
    ] {
        let (code, _, err) = ended(observe(target, w.path(), more)).await;
        assert_eq!(code, Some(64), "{more:?} {err}");
        assert!(err.contains(says), "{says}: {err}");
    }
}
