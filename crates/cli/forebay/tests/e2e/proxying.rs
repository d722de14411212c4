//! What passes through, and what does not.

use crate::process::{Process, Raw, Scratch, until};
use crate::queueing::{config, objectives};
use crate::upstream::{Reply, Upstream};
use http::StatusCode;

async fn router(upstream: &Upstream, more: &[&str]) -> Process {
    let config = config("maxRequests: 1000");
    let arguments = ["--config", config.path(), "--endpoint", &upstream.url];
    let p = Process::serve(&[&arguments, more].concat()).await;
    p.ready().await;
    p
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_prompt_arrives_byte_for_byte() {
    let mut upstream = Upstream::start().await;
    let p = router(&upstream, &[]).await;
    // Odd spacing, escapes and key order that a re-serialising proxy would not keep.
    let prompt = "lorem \\u00e9 ipsum \\\"dolor\\\" \\n ".repeat(22_000);
    let body = format!("{{ \"x\":1.50,\"prompt\" : \"{prompt}\",\r\n\"model\":\"m\", \"max_tokens\":1 }}");
    assert!(body.len() > 700_000);
    let answer = p.post("/v1/completions", &[], body.clone()).await;
    assert_eq!(answer.status, StatusCode::OK);
    let seen = upstream.next().await;
    assert!(seen.body == body.as_bytes(), "the body was changed");
    assert_eq!(seen.headers["content-length"], body.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_are_cleaned_on_the_way_in_and_out() {
    let mut upstream = Upstream::start().await;
    let mut p = router(&upstream, &["--objectives", &objectives()]).await;
    let headers = [
        ("x-llm-d-inference-objective", "critical"),
        ("x-gateway-inference-fairness-id", "tenant-1"),
        ("x-gateway-destination-endpoint", "10.0.0.1:1"),
        ("x-gateway-destination-endpoint-subset", "10.0.0.1:1"),
        ("x-llm-d-request-dropped-reason", "forged"),
        ("authorization", "Bearer t"),
        ("x-request-id", "mine"),
        ("te", "trailers"),
    ];
    let answer = p.post("/v1/chat/completions?a=b", &headers, r#"{"model":"m","messages":[]}"#).await;
    let seen = upstream.next().await;
    assert_eq!(seen.target, "/v1/chat/completions?a=b");
    assert_eq!(seen.headers["authorization"], "Bearer t");
    assert_eq!(seen.headers["x-request-id"], "mine");
    for (name, _) in &headers[..5] {
        assert!(!seen.headers.contains_key(*name), "{name}");
    }
    assert!(!seen.headers.contains_key("te"));
    assert_eq!(answer.header("x-request-id"), "mine");
    assert_eq!(answer.header("x-engine"), "test");
    assert_eq!(answer.header("x-forebay-priority"), "100");
    assert_eq!(answer.header("x-gateway-destination-endpoint-served"), upstream.authority);
    assert_eq!(answer.header("x-llm-d-flow-queue-duration-ms"), "0");
    assert!(answer.headers.get("x-forebay-emulated").is_none());
    let line = p.access().await;
    assert_eq!(line["fairness_id"], "tenant-1");
    assert_eq!(line["objective"], "critical");
    assert_eq!(line["priority"], 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_found_in_whole_answers_and_in_streams() {
    let mut upstream = Upstream::start().await;
    let mut p = router(&upstream, &[]).await;
    let whole = r#"{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    upstream.json(whole);
    let answer = p.post("/v1/completions", &[], r#"{"model":"m","prompt":"x"}"#).await;
    assert_eq!(answer.text(), whole);
    let tokens = |line: &serde_json::Value| {
        ["prompt_tokens", "cached_tokens", "output_tokens"].map(|k| line[k].as_u64())
    };
    let line = p.access().await;
    assert_eq!(tokens(&line), [Some(7), Some(4), Some(3)]);
    assert_eq!((line["stream"].as_bool(), line.get("estimated")), (Some(false), None));

    // One event cut in the middle of its usage, over two writes.
    let (a, b) = (
        "data: {\"choices\":[],\"usage\":{\"prompt_tok",
        "ens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
    );
    let text = |t: &str| format!("data: {{\"choices\":[{{\"text\":\"{t}\"}}]}}\n\n");
    upstream.reply(Reply::Stream(vec![text("a"), text("b"), a.into(), b.into()]));
    let answer = p.post("/v1/completions", &[], r#"{"model":"m","prompt":"x","stream":true}"#).await;
    assert_eq!(answer.text(), format!("{}{}{a}{b}", text("a"), text("b")));
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let line = p.access().await;
    assert_eq!(tokens(&line), [Some(9), None, Some(2)]);
    assert!(line["ttft_ms"].as_f64().is_some() && line["stream"] == true);

    upstream.reply(Reply::Stream(vec![text("a"), text("b"), text("c"), "data: [DONE]\n\n".into()]));
    p.post("/v1/completions", &[], r#"{"model":"m","prompt":"x","stream":true}"#).await;
    let line = p.access().await;
    assert_eq!((tokens(&line), line["estimated"].as_bool()), ([None, None, Some(3)], Some(true)));
    upstream.next().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewritten_model_is_spliced_in_and_mapped_back() {
    let mut upstream = Upstream::start().await;
    let rules = Scratch::new(
        "rewrite.yaml",
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: r}\nspec:\n  rules:\n  - matches: \
         [{model: {type: Exact, value: food-review}}]\n    targets: [{modelRewrite: real-7b}]\n",
    );
    let p = router(&upstream, &["--objectives", rules.path()]).await;
    upstream.json(r#"{"model": "real-7b", "x":1.50}"#);
    let answer = p.post("/v1/completions", &[], r#"{"prompt" : "real-7b",  "model" :"food-review"}"#).await;
    assert_eq!(upstream.next().await.body, r#"{"prompt" : "real-7b",  "model" :"real-7b"}"#);
    assert_eq!(answer.text(), r#"{"model": "food-review", "x":1.50}"#);
    assert_eq!(answer.header("content-length"), answer.body.len().to_string());
    let event = |m: &str| format!("data: {{\"model\":\"{m}\",\"choices\":[{{\"text\":\"a\"}}]}}\n\n");
    upstream.reply(Reply::Stream(vec![event("real-7b"), event("real-7b")]));
    let answer =
        p.post("/v1/completions", &[], r#"{"model":"food-review","prompt":"x","stream":true}"#).await;
    assert_eq!(answer.text(), event("food-review").repeat(2));
    upstream.next().await;
    // The header rewrites what no rule matches, and fills in a model that is not there.
    upstream.json("{}");
    let header = [("x-llm-d-model-name-rewrite", "other")];
    p.post("/v1/completions", &header, r#"{"model":"m","prompt":"x"}"#).await;
    assert_eq!(upstream.next().await.body, r#"{"model":"other","prompt":"x"}"#);
    p.post("/v1/completions", &header, r#" {"prompt":"x"}"#).await;
    assert_eq!(upstream.next().await.body, r#" {"model":"other","prompt":"x"}"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_door_refuses_never_reaches_an_upstream() {
    let mut upstream = Upstream::start().await;
    let p = router(&upstream, &["--max-body", "1Ki", "--access-log", "off"]).await;
    let check = async |path: &str, body: &str, status: u16, param: Option<&str>, text: &str| {
        let answer = p.post(path, &[], body.to_owned()).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}: {}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["param"].as_str(), param);
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    check("/v1/completions", r#"{"prompt":"x"}"#, 400, Some("model"), "model not found").await;
    check("/v1/completions", r#"{"model":5,"prompt":"x"}"#, 400, Some("model"), "must be a string").await;
    check("/v1/completions", r#"{"model":"a","model":"b"}"#, 400, Some("model"), "twice").await;
    check("/v1/completions", "not json", 400, None, "line 1 column").await;
    check("/v1/completions", "", 400, None, "not valid JSON").await;
    check("/nowhere", "{}", 404, None, "Not Found").await;
    let long = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "x".repeat(2000));
    check("/v1/completions", &long, 413, None, "exceeds 1024 bytes").await;
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    let answer = Raw::write(&p.api, &chunked).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("connection: close"), "{answer}");
    for (head, status) in [
        ("POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", "400"),
        ("POST /v1/completions HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 2\r\n\r\n{}", "400"),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "400",
        ),
        ("GET /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "405"),
    ] {
        let answer = Raw::write(&p.api, head).await.rest().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head:?}: {answer}");
    }
    assert!(upstream.untouched());
    assert!(p.settled().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_allowed_paths_are_proxied() {
    let mut upstream = Upstream::start().await;
    let p = router(&upstream, &["--proxy-path", "/custom/", "--access-log", "off"]).await;
    let answer = crate::process::get(&p.api, "/v1/models").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(upstream.next().await.target, "/v1/models");
    // An unknown body passes unread, through the queue like any other.
    let answer = p.post("/custom/thing", &[], "not json at all").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(upstream.next().await.body, "not json at all");
    for path in ["/v1/files", "/", "/metrics", "/v1/completionsx"] {
        assert_eq!(crate::process::get(&p.api, path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(crate::process::get(&p.admin, "/v1/models").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_engine_is_told_from_a_refusing_router() {
    let mut upstream = Upstream::start().await;
    let mut p = router(&upstream, &[]).await;
    upstream.reply(Reply::Whole(500, "application/json", r#"{"error":"boom"}"#.into()));
    let answer = p.post("/v1/completions", &[], r#"{"model":"m","prompt":"x"}"#).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (500, r#"{"error":"boom"}"#));
    assert_eq!(p.access().await["end"], "failed");
    let text = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n".to_owned();
    upstream.reply(Reply::Break(vec![text]));
    let answer =
        Raw::post(&p.api, "/v1/completions", &[], r#"{"model":"m","prompt":"x","stream":true}"#).await;
    let answer = answer.rest().await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && !answer.ends_with("0\r\n\r\n"),
        "a cut stream looks cut: {answer}"
    );
    let line = p.access().await;
    assert_eq!((line["end"].as_str(), line["output_tokens"].as_u64()), (Some("failed"), Some(1)));
    upstream.next().await;
    until("all has ended", async || p.settled().await).await;
    assert_eq!(p.metric("forebay_requests_ended_total{end=\"failed\"}").await, 2.0);

    // Nobody listens there: the address was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = Scratch::new("legacy.yaml", forebay_config::DEFAULT_CONFIG);
    let dead = format!("http://{free}");
    let p = Process::serve(&["--config", config.path(), "--endpoint", &dead, "--access-log", "off"]).await;
    until("it is out", async || p.metric("forebay_ejections_total").await == 1.0).await;
    let answer = p.post("/v1/completions", &[], r#"{"model":"m","prompt":"x"}"#).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["error"]["type"], "ServiceUnavailableError");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_objective_runs_at_zero_and_is_counted() {
    let mut upstream = Upstream::start().await;
    let p = router(&upstream, &["--objectives", &objectives(), "--access-log", "off"]).await;
    for _ in 0..2 {
        let headers = [("x-llm-d-inference-objective", "cr\u{e4}tical")];
        let answer = p.post("/v1/completions", &headers, r#"{"model":"m","prompt":"x"}"#).await;
        assert_eq!(answer.header("x-forebay-priority"), "0");
        upstream.next().await;
    }
    assert_eq!(p.metric("forebay_unknown_objectives_total").await, 2.0);
}

/// The request goes to the endpoint that decodes, and says where its prompt is to be computed; what a client
/// says of that is not passed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_request_names_its_prefiller() {
    let (mut prefill, mut decode) = (Upstream::start().await, Upstream::start().await);
    let endpoint = |name: &str, u: &Upstream| {
        let (host, port) = u.authority.rsplit_once(':').unwrap();
        let role = format!("labels: {{llm-d.ai/role: {name}}}");
        format!("- {{name: {name}, namespace: ns, address: {host}, port: '{port}', {role}}}\n")
    };
    let list = Scratch::new(
        "roles.yaml",
        &format!("endpoints:\n{}{}", endpoint("prefill", &prefill), endpoint("decode", &decode)),
    );
    let config = Scratch::new(
        "split.yaml",
        &format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: disagg-profile-handler\n  \
             parameters: {{deciders: {{prefill: d}}}}\n- {{name: d, type: prefix-based-pd-decider, parameters: \
             {{nonCachedTokens: 20}}}}\n- type: prefill-filter\n- type: decode-filter\n- type: file-discovery\n  \
             parameters: {{path: {}}}\nschedulingProfiles:\n- {{name: prefill, plugins: [{{pluginRef: \
             prefill-filter}}]}}\n- {{name: decode, plugins: [{{pluginRef: decode-filter}}]}}\ndataLayer: {{discovery: \
             {{pluginRef: file-discovery}}}}\n",
            list.path()
        ),
    );
    let p = Process::serve(&["--config", config.path()]).await;
    p.ready().await;
    let forged = [("x-prefiller-host-port", "10.0.0.1:1")];
    let long = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "long ".repeat(100));
    p.post("/v1/completions", &forged, long).await;
    let seen = decode.next().await;
    assert_eq!(seen.headers["x-prefiller-host-port"], prefill.authority.as_str());
    p.post("/v1/completions", &forged, r#"{"model":"m","prompt":"x"}"#).await;
    assert!(!decode.next().await.headers.contains_key("x-prefiller-host-port"));
    assert!(prefill.untouched());
}
