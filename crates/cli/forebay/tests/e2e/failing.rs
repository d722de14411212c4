//! Model servers that refuse, hang, die or lie, and a router that fails itself.

use crate::process::{Process, Raw, Scratch, get, until};
use crate::queueing::{BODY, config, queued, saturated};
use crate::upstream::{Reply, Upstream};
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

async fn router(upstreams: &[&Upstream], config: &Scratch, more: &[&str]) -> Process {
    let mut arguments = vec!["--config", config.path()];
    for u in upstreams {
        arguments.extend(["--endpoint", &u.url]);
    }
    arguments.extend(more);
    let p = Process::serve(&arguments).await;
    p.ready().await;
    p
}

fn available(u: &Upstream) -> String {
    format!("forebay_endpoint_available{{endpoint=\"{}\"}}", u.authority)
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n")
}

const RETRIES: &str = "forebay_retries_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_is_left_out_until_it_answers_a_probe() {
    let (mut good, mut bad) = (Upstream::start().await, Upstream::start().await);
    let config = config("defaultRequestTTL: 60s");
    let p = router(&[&good, &bad], &config, &["--access-log", "off"]).await;
    until("both have been seen", async || p.saturation().await == 0.0).await;
    bad.die().await;
    // Whoever is sent there before a scrape notices is tried again at the other one; nobody sees anything.
    for _ in 0..20 {
        assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    }
    assert!(p.metric(RETRIES).await <= 1.0, "{}", p.metric(RETRIES).await);
    until("it is out", async || p.metric(&available(&bad)).await == 0.0).await;
    good.count();
    bad.revive().await;
    until("it is in again", async || p.metric(&available(&bad)).await == 1.0).await;
    until("it is chosen again", async || {
        p.post("/v1/completions", &[], BODY).await;
        bad.count() > 0
    })
    .await;
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ejected_endpoint_weighs_nothing_and_a_pool_of_ejected_ones_is_empty() {
    let (good, mut bad) = (Upstream::start().await, Upstream::start().await);
    let config = config("defaultRequestTTL: 60s, noEndpointRequestTTL: 300ms");
    let p = router(&[&good, &bad], &config, &["--access-log", "off"]).await;
    until("both have been seen", async || p.saturation().await == 0.0).await;
    // The bad one is idle when last heard of, the good one full: half, as long as both count.
    good.waiting(5.0);
    until("half of the pool is full", async || p.saturation().await == 0.5).await;
    bad.die().await;
    // A scrape finds it out; no request needs to.
    until("the refusing one is out", async || p.metric(&available(&bad)).await == 0.0).await;
    until("the pool is full without it", async || p.saturation().await == 1.0).await;
    good.waiting(0.0);
    until("the pool is empty without it", async || p.saturation().await == 0.0).await;
    for _ in 0..10 {
        assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    }
    assert_eq!((p.metric(RETRIES).await, p.metric("forebay_queue_entered_total").await), (0.0, 10.0));
    p.settles().await;

    let mut lone = Upstream::start().await;
    let p = router(&[&lone], &config, &["--access-log", "off"]).await;
    lone.die().await;
    until("it is out", async || p.metric(&available(&lone)).await == 0.0).await;
    let probe = get(&p.admin, "/readyz").await;
    assert_eq!((probe.status.as_u16(), probe.text()), (503, "no endpoint takes connections\n"));
    let answer = p.post("/v1/completions", &[], BODY).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), "rejected-no-endpoints");
    let waiting = Raw::post(&p.api, "/v1/completions", &[("connection", "close")], BODY).await;
    until("it waits", async || queued(&p, 1.0).await).await;
    lone.revive().await;
    let answer = waiting.rest().await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    lone.count();
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_idle_connection_is_tried_again_and_a_fresh_one_only_if_allowed() {
    let mut upstream = Upstream::start().await;
    let config = config("maxRequests: 10");
    let p = router(&[&upstream], &config, &["--access-log", "off"]).await;
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    // The connection is in the pool now, and breaks when it is used.
    upstream.reset_next(1);
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    assert_eq!(p.metric(RETRIES).await, 1.0);
    assert_eq!(p.metric("forebay_ejections_total").await, 0.0);
    assert_eq!(upstream.count(), 3);
    p.settles().await;

    // Over a fresh connection an engine may have begun the work.
    let (mut a, mut b) = (Upstream::start().await, Upstream::start().await);
    for (more, status, tries) in [(&[][..], 502, 1), (&["--retry-on", "first-byte"], 200, 2)] {
        let p = router(&[&a, &b], &config, &[&["--access-log", "off"], more].concat()).await;
        a.reset_next(1);
        b.reset_next(usize::from(tries == 1));
        let answer = p.post("/v1/completions", &[], BODY).await.status.as_u16();
        let (to_a, to_b) = (a.count(), b.count());
        if tries == 1 {
            assert_eq!((answer, to_a + to_b), (status, 1));
        } else {
            // If it went to the good one at once there was nothing to try again.
            assert_eq!((answer, to_b), (status, 1));
            assert_eq!(p.metric(RETRIES).await, to_a as f64);
        }
        a.reset_next(0);
        b.reset_next(0);
        p.settles().await;
    }
    // Once is once.
    a.reset_next(5);
    b.reset_next(5);
    let p = router(&[&a, &b], &config, &["--access-log", "off", "--retry-on", "first-byte"]).await;
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(a.count() + b.count(), 2);
    p.settles().await;
}

/// A port that takes no connection and refuses none: its backlog is full, and what is in it is never taken.
/// Gives its address and what keeps it so.
async fn silent() -> (String, impl Sized) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut filling = Vec::new();
    loop {
        let connect = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(300), connect).await {
            Ok(stream) => filling.push(stream.unwrap()),
            Err(_) => return (address.to_string(), (listener, filling)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_does_not_take_a_connection_in_time_is_left_out() {
    let (silent, _full) = silent().await;
    let url = format!("http://{silent}");
    let good = Upstream::start().await;
    // Metrics of both come from the good one: nothing but a request finds out.
    let port = good.authority.rsplit(':').next().unwrap();
    let config = Scratch::new(
        "connect.yaml",
        &format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins:\n\
             - type: random-picker\n- {{type: utilization-detector, parameters: {{metricsStalenessThreshold: 5s}}}}\n\
             - {{type: metrics-data-source, parameters: {{port: {port}}}}}\n- type: core-metrics-extractor\n\
             dataLayer:\n  sources:\n  - pluginRef: metrics-data-source\n    extractors: [{{pluginRef: core-metrics-extractor}}]\n\
             proxy: {{connectTimeout: 200ms}}\n"
        ),
    );
    let out = format!("forebay_endpoint_available{{endpoint=\"{silent}\"}}");
    // Without another endpoint the client is told; the kernel's own time-out would be minutes.
    let alone = Process::serve(&["--config", config.path(), "--endpoint", &url, "--access-log", "off"]).await;
    alone.ready().await;
    let answer = alone.post("/v1/completions", &[], BODY).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert!(answer.text().contains("connecting failed"), "{}", answer.text());
    assert_eq!((alone.metric(&out).await, alone.metric(RETRIES).await), (0.0, 0.0));
    alone.settles().await;

    let p = router(&[&good], &config, &["--endpoint", &url, "--access-log", "off", "--seed", "1"]).await;
    until("both have been seen", async || p.saturation().await == 0.0).await;
    until("a request has found out, and nobody saw it", async || {
        assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
        p.metric(RETRIES).await > 0.0
    })
    .await;
    assert_eq!(p.metric(&out).await, 0.0);
    // It stays out, although its metrics are fresh: only a connection to its own port lets it in again.
    for _ in 0..20 {
        assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    }
    assert_eq!((p.metric(RETRIES).await, p.metric("forebay_ejections_total").await), (1.0, 1.0));
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_hang_or_die_in_the_middle_are_told_from_good_ones() {
    let mut upstream = Upstream::start().await;
    let config = config("maxRequests: 10");
    let more = ["--first-byte-timeout", "200ms", "--idle-timeout", "200ms", "--retry-on", "first-byte"];
    let mut p = router(&[&upstream], &config, &more).await;
    upstream.reply(Reply::Hang);
    let answer = p.post("/v1/completions", &[], BODY).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(p.access().await["end"], "failed");
    // A slow engine is not a dead one.
    assert_eq!(p.metric(&available(&upstream)).await, 1.0);
    for reply in [Reply::StreamAndHang(vec![event("a")]), Reply::Break(vec![event("a")])] {
        upstream.reply(reply);
        let answer = Raw::post(&p.api, "/v1/completions", &[], BODY).await.rest().await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"a\""), "{answer}");
        assert!(!answer.ends_with("0\r\n\r\n"), "a cut stream looks cut: {answer}");
        assert_eq!(p.access().await["end"], "failed");
    }
    // After the first byte nothing is tried again, and the broken stream has taken the endpoint out.
    assert_eq!(p.metric(RETRIES).await, 0.0);
    assert_eq!(p.metric("forebay_ejections_total").await, 1.0);
    until("it is in again", async || p.metric(&available(&upstream)).await == 1.0).await;
    // A whole answer that is cut short is no answer.
    upstream.reply(Reply::Whole(200, "application/json", "{\"a\":1}".into()));
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    assert_eq!(upstream.count(), 4);
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_flap_under_load_lose_no_request() {
    let (steady, mut flapping) = (Upstream::start().await, Upstream::start().await);
    let config = config("defaultRequestTTL: 60s");
    let p = Arc::new(router(&[&steady, &flapping], &config, &["--access-log", "off"]).await);
    for u in [&steady, &flapping] {
        u.reply(Reply::Stream(vec![event("a"), event("b"), "data: [DONE]\n\n".into()]));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (served, cut) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (p, stop, served, cut) = (p.clone(), stop.clone(), served.clone(), cut.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let client = Raw::post(&p.api, "/v1/completions", &[("connection", "close")], BODY).await;
                    let answer = client.rest().await;
                    // A stream that was running when its server died is cut, and nothing can be done; but
                    // no request fails that another server could have served.
                    if answer.ends_with("0\r\n\r\n") {
                        served.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert!(
                            answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 502"),
                            "{answer}"
                        );
                        cut.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for _ in 0..5 {
        flapping.die().await;
        let so_far = served.load(Ordering::Relaxed);
        until("requests go on", async || served.load(Ordering::Relaxed) > so_far + 20).await;
        flapping.revive().await;
        until("it is in again", async || p.metric(&available(&flapping)).await == 1.0).await;
        until("it serves", async || flapping.count() > 0).await;
    }
    stop.store(true, Ordering::Relaxed);
    for c in clients {
        c.await.unwrap();
    }
    let (served, cut) = (served.load(Ordering::Relaxed), cut.load(Ordering::Relaxed));
    // At each death at most the eight that ran there.
    assert!(served > 100 && cut <= 40, "{served} served, {cut} cut");
    p.settles().await;
    let accepted = p.metric("forebay_http_requests_accepted_total").await;
    assert_eq!(accepted, (served + cut) as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_metrics_close_the_gate_and_fresh_ones_open_it() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 300ms");
    let short = std::fs::read_to_string(config.path()).unwrap().replace("Threshold: 5s", "Threshold: 200ms");
    let config = Scratch::new("short.yaml", &short);
    let p = router(&[&upstream], &config, &["--access-log", "off"]).await;
    upstream.stall_metrics(true);
    saturated(&p).await;
    let answer = p.post("/v1/completions", &[], BODY).await;
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), "rejected-ttl-expired");
    assert!((1..=60).contains(&answer.header("retry-after").parse::<u64>().unwrap()));
    // The endpoint takes connections; it is only not known how full it is.
    assert_eq!(p.metric(&available(&upstream)).await, 1.0);
    upstream.stall_metrics(false);
    until("metrics are fresh", async || p.saturation().await < 1.0).await;
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    upstream.next().await;
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_its_request_and_a_kernel_that_panics_ends_the_process() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s");
    let mut p = router(&[&upstream], &config, &[]).await;
    let headers = [("x-forebay-debug-panic", "request")];
    let answer = Raw::post(&p.api, "/v1/completions", &headers, BODY).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("connection: close"), "{answer}");
    let line = p.access().await;
    assert_eq!((line["end"].as_str(), line["status"].as_u64()), (Some("failed"), Some(500)));
    assert_eq!(p.metric("forebay_request_panics_total").await, 1.0);
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    upstream.next().await;
    p.settles().await;
    p.access().await;

    upstream.waiting(5.0);
    saturated(&p).await;
    let waiting = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    until("it waits", async || queued(&p, 1.0).await).await;
    let fatal = Raw::post(&p.api, "/v1/completions", &[("x-forebay-debug-panic", "kernel")], BODY).await;
    assert!(fatal.rest().await.starts_with("HTTP/1.1 500"));
    let answer = waiting.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "), "{answer}");
    assert_eq!(p.exit_code().await, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_compared_and_an_unknown_one_is_refused_at_once() {
    let (a, b) = (Upstream::start().await, Upstream::start().await);
    let config = config("defaultRequestTTL: 60s");
    let p = router(&[&a, &b], &config, &["--access-log", "off"]).await;
    // As long as a list is not known, everything passes.
    a.models(&["m", "adapter"]);
    assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    b.models(&["m"]);
    until("both lists are known", async || p.metric("forebay_models").await == 2.0).await;
    let ask = |model: &str| format!("{{\"model\":\"{model}\",\"prompt\":\"x\"}}");
    for model in ["m", "adapter"] {
        assert_eq!(p.post("/v1/completions", &[], ask(model)).await.status, StatusCode::OK);
    }
    for _ in 0..5 {
        let answer = p.post("/v1/completions", &[], ask("unknown")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        let error = answer.json()["error"].clone();
        assert_eq!((error["type"].as_str(), error["param"].as_str()), (Some("NotFoundError"), Some("model")));
    }
    assert_eq!(p.metric("forebay_queue_entered_total").await, 3.0);
    // An adapter that has just been loaded is found soon after somebody asked for it.
    b.models(&["m", "unknown"]);
    until("it is served", async || {
        p.post("/v1/completions", &[], ask("unknown")).await.status == StatusCode::OK
    })
    .await;
    p.settles().await;

    // Two different models in one pool are warned about, once.
    let log = Scratch::new("mixed.log", "");
    b.models(&["other"]);
    let arguments =
        ["--config", config.path(), "--endpoint", &a.url, "--endpoint", &b.url, "--access-log", "off"];
    let p = Process::serve_logged(&arguments, &log).await;
    p.ready().await;
    let text = || std::fs::read_to_string(&log.0).unwrap();
    until("the mix is told", async || text().contains("serve different models")).await;
    assert_eq!(text().matches("serve different models").count(), 1);
    assert!(text().contains(&a.authority) && text().contains("other"), "{}", text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn termination_under_load_ends_every_request_once() {
    let mut upstream = Upstream::start().await;
    let config = config("defaultRequestTTL: 60s");
    let more = ["--shutdown-delay", "400ms", "--drain-timeout", "3s"];
    let mut p = router(&[&upstream], &config, &more).await;
    upstream.reply(Reply::StreamAndHang(vec![event("a")]));
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut s = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
        s.until("\"a\"").await;
        streams.push(s);
    }
    upstream.waiting(5.0);
    saturated(&p).await;
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(Raw::post(&p.api, "/v1/completions", &[], BODY).await);
    }
    until("eight wait", async || queued(&p, 8.0).await).await;
    p.terminate();
    // Unready at once, but still open for those who have not noticed.
    until("it says so", async || get(&p.admin, "/readyz").await.text() == "shutting down\n").await;
    let late = Raw::post(&p.api, "/v1/completions", &[], BODY).await;
    until("the late one waits", async || queued(&p, 9.0).await).await;
    waiting.push(late);
    // Then closed; what runs is counted while it drains.
    until("the port is closed", async || tokio::net::TcpStream::connect(&p.api).await.is_err()).await;
    assert_eq!(p.metric("forebay_draining").await, 1.0);
    assert_eq!(p.metric("forebay_open_streams").await, 8.0);
    assert_eq!(p.metric("forebay_http_requests_open").await, 17.0);
    // What is queued goes on: a place comes free, and somebody gets it.
    upstream.reply(Reply::Stream(vec![event("z"), "data: [DONE]\n\n".into()]));
    upstream.waiting(0.0);
    until("all have left the queue", async || queued(&p, 0.0).await).await;
    for w in waiting {
        let answer = w.rest().await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("0\r\n\r\n"), "{answer}");
    }
    drop(streams.split_off(4));
    for s in streams {
        assert!(!s.rest().await.ends_with("0\r\n\r\n"), "cut off at the deadline, visibly");
    }
    assert_eq!(p.exit_code().await, Some(0));
    let ends = p.rest_of_access().await;
    let count = |end: &str| ends.iter().filter(|l| l["end"] == end).count();
    assert_eq!((count("finished"), count("cancelled"), ends.len()), (9, 8, 17));
    assert_eq!(upstream.count(), 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sampled_access_log_keeps_what_went_wrong() {
    let mut upstream = Upstream::start().await;
    let config = config("maxRequests: 10");
    let mut p = router(&[&upstream], &config, &["--access-log-sample", "0"]).await;
    for _ in 0..5 {
        assert_eq!(p.post("/v1/completions", &[], BODY).await.status, StatusCode::OK);
    }
    upstream.reply(Reply::Whole(500, "application/json", "{}".into()));
    p.post("/v1/completions", &[], BODY).await;
    assert_eq!(p.access().await["status"], 500);
    assert_eq!(upstream.count(), 6);
    tokio::time::timeout(Duration::from_secs(20), p.settles()).await.unwrap();
}
