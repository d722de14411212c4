//! Misbehaviour on purpose.

use crate::client::{Client, collect, get, post, post_with};
use crate::{run, slow, spec, start};
use forebay_emulate::{Emulator, Faults, Refuse, StallMetrics};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::time::Duration;

const TEXT: &str = "/v1/completions";

fn ask(tokens: u32, stream: bool) -> String {
    json!({"model": "tiny", "prompt": "Hello", "max_tokens": tokens, "stream": stream}).to_string()
}

async fn set(e: &Emulator, change: Value) -> Value {
    let a = post(e, "/admin/config", change).await;
    assert_eq!(a.status, 200, "{}", a.body);
    a.json()
}

#[test]
fn the_configuration_changes_at_run_time_field_by_field() {
    run(async {
        let e = start(&spec(), |o| o.faults.extra_latency_ms = 1).await;
        let v = set(&e, json!({"reset-after-tokens": 5})).await;
        assert_eq!(v["faults"]["extra-latency-ms"], 1);
        assert_eq!(v["faults"]["reset-after-tokens"], 5);
        assert_eq!(v["effective"]["max-num-seqs"], 1024);
        set(&e, json!({"reset-after-tokens": null})).await;
        assert_eq!(e.faults(), Faults { extra_latency_ms: 1, ..Faults::default() });
        for wrong in [json!({"hagn": true}), json!({"hang": 3}), json!({"refuse": "never"})] {
            let a = post(&e, "/admin/config", wrong).await;
            assert_eq!(a.status, 400, "{}", a.body);
        }
        assert_eq!(get(&e, "/admin/config").await.json()["faults"]["hang"], false);
    });
}

#[test]
fn a_header_asks_for_an_error() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let a = post_with(&e, TEXT, &[("X-Return-Error", "429")], ask(3, false)).await;
        assert_eq!(a.status, 429);
        assert_eq!(a.json()["error"]["type"], "RateLimitError");
        assert_eq!(post_with(&e, TEXT, &[("X-Return-Error", "none")], ask(3, false)).await.status, 200);
    });
}

#[test]
fn requests_can_be_refused_with_503() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        set(&e, json!({"refuse": "unavailable"})).await;
        assert_eq!(post(&e, TEXT, ask(3, false)).await.status, 503);
        assert_eq!(get(&e, "/health").await.status, 503);
        assert_eq!(get(&e, "/metrics").await.status, 200);
        set(&e, json!({"refuse": "off"})).await;
        assert_eq!(post(&e, TEXT, ask(3, false)).await.status, 200);
    });
}

#[test]
fn connections_can_be_refused_and_accepted_again() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let mut open = Client::connect(&e).await.unwrap();
        open.send("GET", "/health", &[], "").await.unwrap();
        e.set_faults(Faults { refuse: Refuse::Connection, ..Faults::default() });
        loop {
            match Client::connect(&e).await {
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => break,
                // Before the socket was closed, or just then.
                Ok(_) | Err(_) => tokio::task::yield_now().await,
            }
        }
        // An open connection still works, and can undo it.
        let body = json!({"refuse": "off"}).to_string();
        let a = collect(open.send("POST", "/admin/config", &[], body).await.unwrap()).await.unwrap();
        assert_eq!(a.json()["faults"]["refuse"], "off");
        while Client::connect(&e).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(post(&e, TEXT, ask(3, false)).await.status, 200);
    });
}

#[test]
fn a_stream_is_reset_after_so_many_tokens() {
    run(async {
        let e = start(&slow(), |o| o.faults.reset_after_tokens = Some(3)).await;
        let mut client = Client::connect(&e).await.unwrap();
        let response = client.send("POST", TEXT, &[], ask(500, true)).await.unwrap();
        assert_eq!(response.status(), 200);
        let (mut body, mut text) = (response.into_body(), String::new());
        let end = loop {
            match http_body_util::BodyExt::frame(&mut body).await {
                Some(Ok(frame)) => text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap()),
                Some(Err(e)) => break e,
                None => panic!("the stream must not end in order: {text}"),
            }
        };
        let io = std::error::Error::source(&end).and_then(|s| s.downcast_ref::<std::io::Error>());
        assert_eq!(io.map(std::io::Error::kind), Some(ErrorKind::ConnectionReset), "{end:?}");
        assert_eq!(text.matches("data: ").count(), 3);
        // Not streaming: no answer at all.
        let mut client = Client::connect(&e).await.unwrap();
        client.send("POST", TEXT, &[], ask(500, false)).await.unwrap_err();
        crate::until(&e, |p| p.running == 0 && p.used_blocks == 0).await;
        assert!(e.published().generation_tokens < 1000, "what was reset does not run on");
        // Fewer tokens than that come through.
        assert_eq!(post(&e, TEXT, ask(2, false)).await.status, 200);
    });
}

#[test]
fn a_hanging_server_answers_when_it_is_let_go() {
    run(async {
        let e = start(&spec(), |o| o.faults.hang = true).await;
        let mut client = Client::connect(&e).await.unwrap();
        let mut answer = Box::pin(client.send("POST", TEXT, &[], ask(3, false)));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut answer).await;
        assert!(early.is_err(), "it must not answer while it hangs");
        assert_eq!(get(&e, "/health").await.status, 200, "only inference hangs");
        set(&e, json!({"hang": false})).await;
        assert_eq!(answer.await.unwrap().status(), 200);
    });
}

#[test]
fn metrics_freeze_or_hang() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let tokens = |text: &str| {
            let line = text.lines().find(|l| l.starts_with("vllm:generation_tokens_total")).unwrap();
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        };
        post(&e, TEXT, ask(3, false)).await;
        set(&e, json!({"stall-metrics": "freeze"})).await;
        post(&e, TEXT, ask(4, false)).await;
        assert_eq!(tokens(&get(&e, "/metrics").await.body), 3.0);
        e.set_faults(Faults { stall_metrics: StallMetrics::Hang, ..Faults::default() });
        let mut client = Client::connect(&e).await.unwrap();
        let mut answer = Box::pin(client.send("GET", "/metrics", &[], ""));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut answer).await.is_err());
        set(&e, json!({"stall-metrics": "off"})).await;
        assert_eq!(tokens(&collect(answer.await.unwrap()).await.unwrap().body), 7.0);
    });
}

#[test]
fn a_slow_start_is_unhealthy_until_it_is_over() {
    run(async {
        let e = start(&spec(), |o| o.faults.startup_duration_ms = 3_600_000).await;
        assert_eq!(get(&e, "/health").await.status, 503);
        assert_eq!(post(&e, TEXT, ask(3, false)).await.status, 503);
        set(&e, json!({"startup-duration-ms": 1})).await;
        while get(&e, "/health").await.status != 200 {
            tokio::task::yield_now().await;
        }
        assert_eq!(post(&e, TEXT, ask(3, false)).await.status, 200);
    });
}

#[test]
fn extra_latency_delays_the_answer() {
    run(async {
        let e = start(&spec(), |o| o.faults.extra_latency_ms = 80).await;
        let begin = std::time::Instant::now();
        assert_eq!(post(&e, TEXT, ask(1, false)).await.status, 200);
        assert!(begin.elapsed() >= Duration::from_millis(80));
    });
}
