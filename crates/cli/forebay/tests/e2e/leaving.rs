//! Clients that leave, stall, or hide that they have left.

use crate::process::{Process, Raw, Scratch, until};
use crate::queueing::{BODY, config, queued, saturated};
use crate::upstream::{Reply, Upstream};
use std::time::Instant;

async fn router(upstream: &Upstream, config: &Scratch, more: &[&str]) -> Process {
    let arguments = ["--config", config.path(), "--endpoint", &upstream.url];
    let p = Process::serve(&[&arguments, more].concat()).await;
    p.ready().await;
    p
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n")
}

const CANCELLED: &str = "forebay_http_requests_ended_total{end=\"cancelled\"}";

/// Lets the client leave, and waits until the router has noticed. The time is for people to read; what is
/// asserted is that it happens.
async fn leaves(p: &mut Process, phase: &str, client: Raw) -> serde_json::Value {
    let left = Instant::now();
    drop(client);
    let line = p.access().await;
    #[allow(clippy::print_stderr, reason = "for whoever reads a test's output")]
    let say = |text: String| eprintln!("{text}");
    say(format!(
        "client leaves {phase}: its request has ended after {:.1} ms",
        left.elapsed().as_secs_f64() * 1e3
    ));
    p.settles().await;
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_place_in_every_phase() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s");
    let mut p = router(&upstream, &config, &[]).await;

    let half = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{\"model\"";
    let client = Raw::write(&p.api, half).await;
    until("its bytes are held", async || p.metric("forebay_buffered_bytes").await > 0.0).await;
    // A body that breaks off cannot be told from a malformed one.
    assert_eq!(leaves(&mut p, "during the upload", client).await["end"], "refused");

    upstream.waiting(5.0);
    saturated(&p).await;
    let client = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    until("it waits", async || queued(&p, 1.0).await).await;
    assert_eq!(leaves(&mut p, "while queued", client).await["end"], "cancelled");
    upstream.waiting(0.0);
    until("the pool is free", async || p.saturation().await < 1.0).await;

    upstream.reply(Reply::Hang);
    let client = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    upstream.next().await;
    assert_eq!(leaves(&mut p, "awaiting the answer's head", client).await["end"], "cancelled");

    upstream.reply(Reply::StreamAndHang(vec![event("a")]));
    let mut client = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    client.until("\"a\"").await;
    upstream.next().await;
    assert_eq!(p.metric("forebay_open_streams").await, 1.0);
    assert_eq!(leaves(&mut p, "in an idle stream", client).await["end"], "cancelled");

    upstream.reply(Reply::Flood);
    let mut client = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    client.until("xxx").await;
    upstream.next().await;
    assert_eq!(leaves(&mut p, "in an active stream", client).await["end"], "cancelled");

    until("the engine is free", async || upstream.open() == 0).await;
    assert_eq!(p.metric(CANCELLED).await, 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_behind_pipelined_bytes_is_bounded_by_time_outs() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 400ms");
    let limits = ["--first-byte-timeout", "300ms", "--idle-timeout", "300ms"];
    let mut p = router(&upstream, &config, &limits).await;
    let pipelined = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{BODY}GET /v1/models HTTP/1.1\r\n",
        BODY.len()
    );
    // Queued: the TTL.
    upstream.waiting(5.0);
    saturated(&p).await;
    drop(Raw::write(&p.api, &pipelined).await);
    assert_eq!(p.access().await["reason"], "rejected-ttl-expired");
    upstream.waiting(0.0);
    until("the pool is free", async || p.saturation().await < 1.0).await;
    // Awaiting the head: the first-byte time-out.
    upstream.reply(Reply::Hang);
    drop(Raw::write(&p.api, &pipelined).await);
    assert_eq!(p.access().await["status"], 504);
    // In an idle stream: the idle time-out.
    upstream.reply(Reply::StreamAndHang(vec![event("a")]));
    drop(Raw::write(&p.api, &pipelined).await);
    let line = p.access().await;
    assert_eq!(line["end"], "failed");
    assert!(line["error"].as_str().unwrap().contains("paused"), "{line}");
    until("the engine is free", async || upstream.open() == 0).await;
    assert_eq!(upstream.count(), 2);
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_closed_client_counts_as_gone() {
    let mut upstream = Upstream::start().await;
    let config = config("maxRequests: 10");
    let mut p = router(&upstream, &config, &[]).await;
    upstream.reply(Reply::Hang);
    let mut client = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    upstream.next().await;
    client.half_close().await;
    assert_eq!(p.access().await["end"], "cancelled");
    assert_eq!(client.rest().await, "");
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_bodies_and_readers_are_cut_off() {
    let mut upstream = Upstream::start().await;
    let config = config("maxRequests: 10");
    let limits = ["--header-timeout", "300ms", "--body-timeout", "300ms", "--write-timeout", "300ms"];
    let mut p = router(&upstream, &config, &limits).await;
    // A head that never ends, a byte now and then.
    let mut slow = Raw::write(&p.api, "POST /v1/completions HTTP/1.1\r\n").await;
    let dripping = async {
        for n in 0.. {
            if slow.try_more(&format!("x-{n}: 1\r\n")).await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::process::PATIENCE, dripping).await.unwrap();
    // A body that never ends.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 9000\r\n\r\n{";
    let answer = Raw::write(&p.api, head).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("connection: close"), "{answer}");
    assert_eq!(p.access().await["status"], 408);
    // A body that is refused by its length, of which nothing more is sent, on a connection that stays open.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 99999999999\r\n\r\n{";
    let answer = Raw::write(&p.api, head).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert_eq!(p.access().await["status"], 413);
    // A reader that does not read.
    upstream.reply(Reply::Flood);
    let stuck = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    upstream.next().await;
    assert_eq!(p.access().await["end"], "cancelled");
    until("the engine is free", async || upstream.open() == 0).await;
    drop(stuck);
    until("all connections are closed", async || p.metric("forebay_client_connections").await == 0.0).await;
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_and_bytes_are_limited_by_the_configuration() {
    let mut upstream = Upstream::start().await;
    let text = std::fs::read_to_string(config("defaultRequestTTL: 60s").path()).unwrap();
    let limited = |limits: &str| Scratch::new("limited.yaml", &format!("{text}proxy: {{{limits}}}\n"));
    let config = limited("maxConnections: 2, maxBody: 1Ki, maxBufferedBytes: 1500");
    let mut p = router(&upstream, &config, &[]).await;
    upstream.waiting(5.0);
    saturated(&p).await;
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "x".repeat(900));
    let first = Raw::post(&p.api, "/v1/completions", &[], &body).await;
    until("it waits", async || queued(&p, 1.0).await).await;
    // Two bodies are more than may be held.
    let answer = Raw::post(&p.api, "/v1/completions", &[], &body).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("retry-after: ") && answer.contains("rejected-saturated"), "{answer}");
    assert_eq!(p.access().await["status"], 503);
    // A third connection waits for one of two to close.
    let second = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    until("both wait", async || queued(&p, 2.0).await).await;
    let mut third = Raw::post(&p.api, "/v1/completions", &[("connection", "close")], BODY).await;
    assert_eq!(p.metric("forebay_client_connections").await, 2.0);
    assert_eq!(p.metric("forebay_client_connections_limit").await, 2.0);
    drop(first);
    until("the third has taken its place", async || {
        p.metric("forebay_http_requests_accepted_total").await == 4.0 && queued(&p, 2.0).await
    })
    .await;
    upstream.waiting(0.0);
    third.until("HTTP/1.1 200").await;
    drop(second);
    until("all connections are closed", async || p.metric("forebay_client_connections").await == 0.0).await;
    drop(third);
    p.settles().await;
    assert!(upstream.count() >= 1);

    // A flag comes before the configuration.
    let p = router(&upstream, &config, &["--max-body", "4Ki", "--access-log", "off"]).await;
    let long = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "x".repeat(1200));
    assert_eq!(p.post("/v1/completions", &[], long).await.status.as_u16(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_in_one_piece_count_among_the_bytes_held() {
    let mut upstream = Upstream::start().await;
    let text = std::fs::read_to_string(config("defaultRequestTTL: 60s").path()).unwrap();
    let config = Scratch::new("answers.yaml", &format!("{text}proxy: {{maxBufferedBytes: 24Mi}}\n"));
    let mut p = router(&upstream, &config, &[]).await;
    // More than the buffers of two sockets take, so that it stays in the router until its client reads.
    let size = 16 << 20;
    upstream.json(&format!("\"{}\"", "x".repeat(size - 2)));
    let slow = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    let held = async || p.metric("forebay_buffered_bytes").await;
    until("the answer is held", async || held().await == size as f64).await;
    // There is no room for another one, although its request was small.
    let mut other = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    let answer = other.until("rejected-saturated").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "), "{answer}");
    assert!(!answer.contains("connection: close"), "the request was read: {answer}");
    // Events that pass on at once are not held.
    upstream.reply(Reply::Stream(vec![event("a"), "data: [DONE]\n\n".into()]));
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status.as_u16(), 200);
    assert_eq!(held().await, size as f64);
    drop(slow);
    until("its bytes are free", async || held().await == 0.0).await;
    let mut ends = Vec::new();
    for _ in 0..3 {
        ends.push(p.access().await["end"].as_str().unwrap().to_owned());
    }
    ends.sort();
    assert_eq!(ends, ["failed", "finished", "finished"]);
    assert_eq!(upstream.count(), 3);
    p.settles().await;
}
