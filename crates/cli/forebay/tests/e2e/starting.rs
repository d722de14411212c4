//! How `serve` starts, and how it says that it does not.

use crate::process::{PATIENCE, Process, Scratch, until};
use crate::queueing::config;
use crate::upstream::Upstream;
use std::process::{Command, Stdio};

fn fails(arguments: &[&str], code: i32, texts: &[&str]) {
    let out =
        Command::new(env!("CARGO_BIN_EXE_forebay")).args(arguments).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{arguments:?}: {stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{arguments:?}: {stderr}");
    }
}

#[test]
fn what_is_wrong_is_said_before_a_port_is_bound() {
    let good = config("maxRequests: 5");
    fails(&["serve", "--config", good.path()], 64, &["names no endpoints", "--allow-empty-pool"]);
    let bad = Scratch::new(
        "bad.yaml",
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scoer\nflowControl:\n  maxByte: 5\n",
    );
    fails(
        &["serve", "--config", bad.path()],
        64,
        &["bad.yaml:4:", "did you mean \"queue-scorer\"?", "bad.yaml:6:", "did you mean \"maxBytes\"?"],
    );
    fails(&["serve", "--config", good.path(), "--config-text", "x"], 64, &["cannot be used with"]);
    fails(&["serve", "--config", "/nonexistent.yaml"], 64, &["/nonexistent.yaml", "cannot be read"]);
    fails(&["serve", "--endpoint", "https://a:1"], 64, &["https endpoints are not supported yet"]);
    fails(&["serve", "--endpoint", "a:1"], 64, &["expected http://HOST:PORT"]);
    fails(&["emulate", "--model", "qwen3-14c"], 64, &["qwen3-14b"]);
    fails(&["emulate", "--time-scale", "0"], 1, &["time"]);
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    fails(
        &["serve", "--listen", &address, "--admin-listen", "127.0.0.1:0"],
        1,
        &["cannot listen on", &address],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_come_from_a_file_and_follow_it() {
    let mut upstream = Upstream::start().await;
    let (host, port) = upstream.authority.rsplit_once(':').unwrap();
    let entry = format!("endpoints:\n- {{name: a, address: {host}, port: \"{port}\"}}\n");
    let endpoints = Scratch::new("endpoints.yaml", "endpoints: []\n");
    let text = format!(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins:\n- type: queue-scorer\n\
         - type: utilization-detector\n  parameters: {{metricsStalenessThreshold: 5s}}\n- type: file-discovery\n  \
         parameters: {{path: {}, watchFile: true}}\ndataLayer: {{discovery: {{pluginRef: file-discovery}}}}\n",
        endpoints.path()
    );
    let config = Scratch::new("discovery.yaml", &text);
    let p = Process::serve(&["--config", config.path(), "--access-log", "off"]).await;
    let body = r#"{"model":"m","prompt":"x"}"#;
    // It waits for an endpoint to come.
    let waiting = {
        let api = p.api.clone();
        tokio::spawn(async move {
            crate::process::send(&api, crate::process::request("/v1/completions", &[], body)).await
        })
    };
    until("it waits", async || p.metric("forebay_requests_live").await == 1.0).await;
    std::fs::write(endpoints.path(), entry).unwrap();
    let answer = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(answer.status.as_u16(), 200);
    upstream.next().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_log_replays() {
    let mut upstream = Upstream::start().await;
    let config = config("maxRequests: 7");
    let log = Scratch::new("decisions.log", "");
    let mut p = Process::serve(&[
        "--config",
        config.path(),
        "--endpoint",
        &upstream.url,
        "--access-log",
        "off",
        "--decision-log",
        log.path(),
        "--seed",
        "7",
    ])
    .await;
    p.ready().await;
    for _ in 0..5 {
        assert_eq!(
            p.post("/v1/completions", &[], r#"{"model":"m","prompt":"x"}"#).await.status.as_u16(),
            200
        );
        upstream.next().await;
    }
    p.terminate();
    assert_eq!(p.exit_code().await, Some(0));
    let out = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["replay", "--config", config.path(), log.path()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text} {}", String::from_utf8_lossy(&out.stderr));
    let dispatched = std::fs::read_to_string(log.path()).unwrap().matches(" dispatch ").count();
    assert_eq!(dispatched, 5);
}
