//! What the queue promises, seen from outside.

use crate::process::{Process, Raw, Scratch, until};
use crate::upstream::{Reply, Upstream};
use http::StatusCode;

pub(crate) const BODY: &str = r#"{"model":"m","prompt":"hello","max_tokens":4}"#;
const QUEUE_SIZE: &str = "llm_d_epp_flow_control_queue_size{fairness_id=\"default-flow\",priority=\"100\",\
                          inference_pool=\"default\",model_name=\"m\",target_model_name=\"m\"}";

/// Flow control over one upstream, metrics good for five seconds.
pub(crate) fn config(flow_control: &str) -> Scratch {
    Scratch::new(
        "config.yaml",
        &format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins:\n\
             - type: queue-scorer\n- type: utilization-detector\n  parameters: {{metricsStalenessThreshold: 5s}}\n\
             flowControl: {{{flow_control}}}\n"
        ),
    )
}

pub(crate) fn objectives() -> String {
    format!("{}/../../../examples/objectives.yaml", env!("CARGO_MANIFEST_DIR"))
}

async fn router(upstream: &Upstream, config: &Scratch, more: &[&str]) -> Process {
    let objectives = objectives();
    let arguments = ["--config", config.path(), "--objectives", &objectives, "--endpoint", &upstream.url];
    let p = Process::serve(&[&arguments, more].concat()).await;
    p.ready().await;
    p
}

pub(crate) async fn queued(p: &Process, n: f64) -> bool {
    let m = p.metrics().await;
    let sum: f64 =
        m.iter().filter(|(k, _)| k.starts_with("llm_d_epp_flow_control_queue_size")).map(|(_, v)| v).sum();
    sum == n
}

pub(crate) async fn saturated(p: &Process) {
    let series = "llm_d_epp_flow_control_pool_saturation{inference_pool=\"default\",stage=\"effective\"}";
    until("the router sees the pool saturated", async || p.metric(series).await >= 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_leave_the_queue_in_priority_order() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s");
    // Two requests that leave a millisecond apart may arrive in any order: the decisions are what counts.
    let log = Scratch::new("order.log", "");
    let p = router(&upstream, &config, &["--decision-log", log.path()]).await;
    upstream.waiting(5.0);
    saturated(&p).await;
    let mut clients = Vec::new();
    for (n, objective) in ["sheddable", "none", "critical"].into_iter().enumerate() {
        let headers = [
            ("x-llm-d-inference-objective", objective),
            ("x-request-id", objective),
            ("connection", "close"),
        ];
        clients.push(Raw::post(&p.api, "/v1/completions", &headers, BODY).await);
        // The next one is sent when this one waits, so that order of arrival is the reverse of priority.
        until("it waits", async || queued(&p, n as f64 + 1.0).await).await;
    }
    assert!(upstream.untouched());
    upstream.waiting(0.0);
    let dispatched = || -> Vec<String> {
        let text = std::fs::read_to_string(log.path()).unwrap();
        let lines = text.lines().filter(|l| l.starts_with('<') && l.contains(" dispatch "));
        lines.map(|l| l.split_whitespace().nth(3).unwrap().to_owned()).collect()
    };
    until("all three have left", async || dispatched().len() == 3).await;
    assert_eq!(dispatched(), ["2.0", "1.0", "0.0"], "in the reverse order of their arrival");
    for _ in 0..3 {
        upstream.next().await;
    }
    for (client, priority) in clients.into_iter().zip(["-50", "0", "100"]) {
        let answer = client.rest().await.to_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(answer.contains(&format!("x-forebay-priority: {priority}\r\n")), "{answer}");
        assert!(answer.contains("x-llm-d-flow-queue-duration-ms: "), "{answer}");
    }
    until("all has ended", async || p.settled().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_too_long_is_answered_429() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 150ms");
    let mut p = router(&upstream, &config, &[]).await;
    upstream.waiting(5.0);
    saturated(&p).await;
    let answer = p.post("/v1/completions", &[], BODY).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), "rejected-ttl-expired");
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.json()["error"]["code"], 429);
    assert!(!answer.header("x-request-id").is_empty());
    let line = p.access().await;
    assert_eq!(
        (line["end"].as_str(), line["reason"].as_str()),
        (Some("refused"), Some("rejected-ttl-expired"))
    );
    assert!(line["queue_ms"].as_f64().unwrap() >= 150.0, "{line}");
    // A client's own bound can only shorten the wait.
    let answer = p.post("/v1/completions", &[("x-llm-d-inference-ttl", "1ms")], BODY).await;
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), "rejected-ttl-expired");
    assert!(upstream.untouched());
    assert!(p.settled().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_with_429() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s, maxRequests: 1");
    let p = router(&upstream, &config, &[]).await;
    upstream.waiting(5.0);
    saturated(&p).await;
    let waiting = Raw::post(&p.api, "/v1/completions", &[("connection", "close")], BODY).await;
    until("one waits", async || queued(&p, 1.0).await).await;
    let answer = p.post("/v1/completions", &[("x-llm-d-inference-objective", "critical")], BODY).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), "rejected-saturated");
    upstream.waiting(0.0);
    upstream.next().await;
    assert!(waiting.rest().await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_pool_holds_requests_until_its_own_budget_is_spent() {
    let config = config("defaultRequestTTL: 60s, noEndpointRequestTTL: 200ms");
    let p = Process::serve(&["--config", config.path(), "--allow-empty-pool", "--access-log", "off"]).await;
    let answer = p.post("/v1/completions", &[], BODY).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), "rejected-no-endpoints");
    let probe = crate::process::get(&p.admin, "/readyz").await;
    assert_eq!((probe.status.as_u16(), probe.text()), (503, "the pool has no endpoints\n"));
    assert_eq!(crate::process::get(&p.admin, "/healthz").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_pool_answers_bodyless_requests_503() {
    let p = Process::serve(&["--allow-empty-pool", "--access-log", "off"]).await;
    let answer = crate::process::get(&p.api, "/v1/models").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["error"]["type"], "ServiceUnavailableError");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_queued_frees_its_place() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s, maxRequests: 1");
    let mut p = router(&upstream, &config, &[]).await;
    upstream.waiting(5.0);
    saturated(&p).await;
    let headers = [("x-llm-d-inference-objective", "critical")];
    let client = Raw::post(&p.api, "/v1/completions", &headers, BODY).await;
    until("it waits", async || p.metric(QUEUE_SIZE).await == 1.0).await;
    drop(client);
    until("its place is free", async || p.metric(QUEUE_SIZE).await == 0.0).await;
    let line = p.access().await;
    assert_eq!((line["end"].as_str(), line["status"].as_u64()), (Some("cancelled"), Some(0)));
    assert_eq!(
        p.metric(
            "llm_d_epp_flow_control_requests_total{outcome=\"EvictedContextCancelled\",priority=\"100\",inference_pool=\"default\"}"
        )
        .await,
        1.0
    );
    // The place is taken by the next one, which is served once there is room.
    let next = Raw::post(&p.api, "/v1/completions", &[("connection", "close")], BODY).await;
    until("the next one waits", async || queued(&p, 1.0).await).await;
    upstream.waiting(0.0);
    upstream.next().await;
    assert!(next.rest().await.starts_with("HTTP/1.1 200"));
    assert!(p.settled().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_streaming_cancels_its_upstream() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s");
    let mut p = router(&upstream, &config, &[]).await;
    let event = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n");
    for reply in [Reply::StreamAndHang(vec![event("a"), event("b")]), Reply::Hang] {
        let hangs = matches!(reply, Reply::Hang);
        upstream.reply(reply);
        let mut client = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
        upstream.next().await;
        if !hangs {
            client.until("\"b\"").await;
        }
        assert_eq!(upstream.open(), 1);
        drop(client);
        until("the upstream is let go", async || upstream.open() == 0).await;
        let line = p.access().await;
        assert_eq!(line["end"], "cancelled");
        assert_eq!(line["output_tokens"].as_u64(), (!hangs).then_some(2));
        until("all has ended", async || p.settled().await).await;
    }
    assert_eq!(p.metric("forebay_requests_ended_total{end=\"cancelled\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutting_down_finishes_what_runs_and_answers_what_waits() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s");
    let objectives = objectives();
    let arguments = [
        "--config",
        config.path(),
        "--objectives",
        &objectives,
        "--endpoint",
        &upstream.url,
        "--access-log",
        "off",
        "--drain-timeout",
        "3s",
    ];
    let mut p = Process::serve(&arguments).await;
    p.ready().await;
    let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n".to_owned();
    upstream.reply(Reply::StreamAndHang(vec![event]));
    let mut streaming = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    streaming.until("\"a\"").await;
    upstream.next().await;
    upstream.waiting(5.0);
    saturated(&p).await;
    let waiting = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    until("it waits", async || queued(&p, 1.0).await).await;
    p.terminate();
    let answer = waiting.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("x-llm-d-request-dropped-reason: rejected-shutting-down"), "{answer}");
    assert!(answer.contains("retry-after: "), "{answer}");
    // The stream that never ends is cut off, visibly: no final chunk.
    assert!(!streaming.rest().await.ends_with("0\r\n\r\n"));
    assert_eq!(p.exit_code().await, Some(0));
}
