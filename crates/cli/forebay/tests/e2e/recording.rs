//! What `serve --record` writes, and what it never writes.

use crate::process::{Process, Scratch, until};
use crate::queueing::{config, objectives};
use crate::upstream::{Reply, Upstream};
use forebay_records::recording::{Entry, Head, read_entry, read_head};
use http::StatusCode;
use std::path::{Path, PathBuf};

/// A folder that goes with the test.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("forebay-e2e-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn texts(dir: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files.iter().map(|f| std::fs::read_to_string(f).unwrap()).collect()
}

fn read(dir: &Path) -> (Vec<Head>, Vec<Entry>) {
    let texts = texts(dir);
    let heads = texts.iter().map(|t| read_head(t.lines().next().unwrap()).unwrap()).collect();
    let entries = texts.iter().flat_map(|t| t.lines().skip(1)).map(|l| read_entry(l).unwrap());
    (heads, entries.collect())
}

async fn stop(mut p: Process) {
    p.terminate();
    assert_eq!(p.exit_code().await, Some(0));
}

fn events(texts: &[&str], usage: &str) -> Reply {
    let event = |t: &&str| format!("data: {{\"choices\":[{{\"text\":\"{t}\"}}]}}\n\n");
    let mut all: Vec<String> = texts.iter().map(event).collect();
    all.push(format!("data: {{\"choices\":[]{usage}}}\n\ndata: [DONE]\n\n"));
    Reply::Stream(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_has_lengths_hashes_and_times_but_no_text() {
    let upstream = Upstream::start().await;
    let (config, dir) = (config("maxRequests: 1000"), Dir::new("content"));
    let key = Scratch::new("key", "00112233445566778899aabbccddeeff\n");
    let more = ["--record", dir.path(), "--record-key", key.path(), "--objectives", &objectives()];
    let p = Process::serve(&[&["--config", config.path(), "--endpoint", &upstream.url], &more[..]].concat())
        .await;
    p.ready().await;
    let system = "You are the secret keeper of the vault. ".repeat(20);
    let headers = [
        ("x-llm-d-inference-objective", "critical"),
        ("x-llm-d-inference-fairness-id", "tenant-7"),
        ("x-llm-d-inference-ttl", "90s"),
    ];
    let body = |rest: &str| {
        format!("{{\"model\":\"m\",\"stream\":true,\"max_tokens\":9,\"prompt\":\"{system}{rest}\"}}")
    };
    let usage = ",\"usage\":{\"prompt_tokens\":201,\"completion_tokens\":5,\
                 \"prompt_tokens_details\":{\"cached_tokens\":96}}";
    upstream.reply(events(&["alpha", "beta"], usage));
    assert_eq!(p.post("/v1/completions", &headers, body("Whisper one.")).await.status, StatusCode::OK);
    upstream.reply(events(&["gamma", "delta", "epsilon"], ""));
    assert_eq!(p.post("/v1/completions", &[], body("Whisper two.")).await.status, StatusCode::OK);
    upstream.reply(Reply::Whole(500, "application/json", "{\"error\":\"broken\"}".into()));
    p.post("/v1/completions", &[], body("Whisper three.")).await;
    // What is no inference leaves no row, and neither does what a load generator asks before its run.
    let probe = [("x-forebay-probe", "calibration")];
    upstream.reply(events(&["zeta"], usage));
    assert_eq!(p.post("/v1/completions", &probe, body("Whisper four.")).await.status, StatusCode::OK);
    crate::process::get(&p.api, "/v1/models").await;
    until("the rows are in the file", async || p.metric("forebay_record_rows_total").await == 3.0).await;
    stop(p).await;

    let all = texts(&dir.0).concat();
    for secret in ["secret", "keeper", "Whisper", "alpha", "gamma", "epsilon", "broken", "00112233445566"] {
        assert!(!all.contains(secret), "{secret} is in the recording");
    }
    let (heads, rows) = read(&dir.0);
    assert_eq!((heads.len(), heads[0].file, heads[0].block_bytes), (1, 1, 256));
    let [a, b, c] = rows.as_slice() else { panic!("{rows:#?}") };
    assert_eq!(
        (a.model.as_str(), a.priority, a.flow.as_str(), a.objective.as_deref()),
        ("m", 100, "tenant-7", Some("critical"))
    );
    assert_eq!((a.prompt_tokens, a.prompt_estimated, a.cached_tokens), (201, false, Some(96)));
    assert_eq!((a.output_tokens, a.output_estimated, a.max_tokens), (Some(5), false, Some(9)));
    assert_eq!((a.end.as_str(), a.status, a.stream, a.ttl_ns), ("finished", 200, true, Some(90_000_000_000)));
    assert_eq!(a.endpoint, upstream.authority);
    assert!(
        a.dispatched_ns <= a.first_token_ns
            && a.first_token_ns <= Some(a.ended_ns)
            && a.dispatched_ns.is_some()
    );
    assert_eq!((b.prompt_estimated, b.output_tokens, b.output_estimated), (true, Some(3), true));
    assert_eq!(b.prompt_tokens, b.prompt_bytes.div_ceil(4));
    assert!(a.arrived_ns < b.arrived_ns && b.arrived_ns < c.arrived_ns);
    assert_eq!((c.end.as_str(), c.status, c.output_tokens), ("failed", 500, None));
    // 800 bytes are alike: three blocks of 256 and no more.
    let [a, b] = [a, b].map(|e| e.hashes().unwrap());
    assert_eq!((a.len(), a[..3] == b[..3], a[3] == b[3]), (4, true, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_and_leaving_requests_are_recorded_too() {
    let upstream = Upstream::start().await;
    let (config, dir) = (config("defaultRequestTTL: 60s, maxRequests: 1"), Dir::new("refused"));
    let arguments = ["--config", config.path(), "--endpoint", &upstream.url, "--record", dir.path()];
    let p = Process::serve(&arguments).await;
    p.ready().await;
    upstream.waiting(5.0);
    crate::queueing::saturated(&p).await;
    let raw = crate::process::Raw::post(&p.api, "/v1/completions", &[], crate::queueing::BODY).await;
    until("one is queued", async || crate::queueing::queued(&p, 1.0).await).await;
    let refused = p.post("/v1/completions", &[], crate::queueing::BODY).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    drop(raw);
    until("the rows are in the file", async || p.metric("forebay_record_rows_total").await == 2.0).await;
    stop(p).await;
    let (_, rows) = read(&dir.0);
    assert_eq!(
        (rows[0].end.as_str(), rows[0].reason.as_deref(), rows[0].status),
        ("refused", Some("rejected-saturated"), 429)
    );
    assert_eq!((rows[1].end.as_str(), rows[1].status, rows[1].dispatched_ns), ("cancelled", 0, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_goes_away_changes_no_answer() {
    let upstream = Upstream::start().await;
    let (config, dir) = (config("maxRequests: 1000"), Dir::new("gone"));
    let log = Scratch::new("gone.log", "");
    // Files so small that each row needs another one.
    let more = ["--record", dir.path(), "--record-max-file", "600", "--record-max-total", "1Mi"];
    let arguments = [&["--config", config.path(), "--endpoint", &upstream.url], &more[..]].concat();
    let p = Process::serve_logged(&arguments, &log).await;
    p.ready().await;
    upstream.json("{\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1}}");
    assert_eq!(p.post("/v1/completions", &[], crate::queueing::BODY).await.status, StatusCode::OK);
    until("the row is in the file", async || p.metric("forebay_record_rows_total").await == 1.0).await;
    std::fs::remove_dir_all(&dir.0).unwrap();
    for _ in 0..20 {
        assert_eq!(p.post("/v1/completions", &[], crate::queueing::BODY).await.status, StatusCode::OK);
    }
    let dropped = "forebay_record_dropped_rows_total{reason=\"disk\"}";
    until("the rest is dropped", async || {
        let m = p.metrics().await;
        m[dropped] + m["forebay_record_rows_total"] == 21.0
    })
    .await;
    let m = p.metrics().await;
    // The open file goes on to take rows until it is full.
    assert!(m[dropped] >= 18.0 && m["forebay_record_stopped"] == 1.0, "{m:?}");
    p.settles().await;
    stop(p).await;
    let told = std::fs::read_to_string(&log.0).unwrap();
    assert_eq!(told.matches("the recording has stopped").count(), 1, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_or_bound_is_refused_at_the_start() {
    let dir = Dir::new("wrong");
    let key = Scratch::new("short-key", "0011");
    for (more, told) in [
        (["--record-key", key.path()], "expected 32 hex digits"),
        (["--record-max-total", "100Mi"], "at least twice --record-max-file"),
    ] {
        let out = tokio::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--allow-empty-pool"])
            .args(["--record", dir.path()])
            .args(more)
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(64), "{text}");
        assert!(text.contains(told), "{text}");
    }
}
