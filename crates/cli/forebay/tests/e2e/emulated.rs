//! The emulated pool that `serve` starts by itself, and `serve` over `emulate` processes.

use crate::process::{Process, Scratch, until};

const CHAT: &str = r#"{"model":"qwen3-14b","messages":[{"role":"user","content":"Hello"}],"max_tokens":5"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_without_arguments_answers_streaming_and_not() {
    let mut p = Process::serve(&[]).await;
    p.ready().await;
    let critical = [("x-llm-d-inference-objective", "critical")];
    let answer = p.post("/v1/chat/completions", &critical, format!("{CHAT}}}")).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.header("x-forebay-emulated"), "true");
    assert_eq!(answer.header("x-forebay-priority"), "100");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 5);
    let line = p.access().await;
    assert_eq!((line["output_tokens"].as_u64(), line["end"].as_str()), (Some(5), Some("finished")));
    assert_eq!(line["decision"].as_str(), Some("0.0"), "the first request of the decision log");

    let streamed = format!("{CHAT},\"stream\":true,\"stream_options\":{{\"include_usage\":true}}}}");
    let answer =
        p.post("/v1/chat/completions", &[("x-llm-d-inference-objective", "sheddable")], streamed).await;
    assert_eq!(answer.header("x-forebay-priority"), "-50");
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(answer.text().matches("\"delta\":{\"content\"").count(), 5);
    let line = p.access().await;
    assert_eq!(line["output_tokens"].as_u64(), Some(5));
    assert!(line["ttft_ms"].as_f64().unwrap() <= line["total_ms"].as_f64().unwrap());
    let models = crate::process::get(&p.api, "/v1/models").await;
    assert_eq!(models.json()["data"][0]["id"], "qwen3-14b");
    until("all has ended", async || p.settled().await).await;
    p.terminate();
    assert_eq!(p.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_over_emulated_processes_spreads_and_cancels() {
    let (a, b) = (Process::emulate(&["--model", "tiny"]).await, Process::emulate(&["--model", "tiny"]).await);
    let p = Process::serve(&["--endpoint", &a.url(), "--endpoint", &b.url(), "--access-log", "off"]).await;
    p.ready().await;
    let mut served = std::collections::BTreeSet::new();
    for n in 0..20 {
        let body = format!("{{\"model\":\"tiny\",\"prompt\":\"prompt {n}\",\"max_tokens\":2}}");
        let answer = p.post("/v1/completions", &[], body).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
        served.insert(answer.header("x-gateway-destination-endpoint-served").to_owned());
    }
    assert_eq!(served.len(), 2, "ties are drawn: {served:?}");
    // A client that leaves frees its slot in the engine, too.
    let running = async |p: &Process| {
        let m = p.metrics().await;
        m.iter().filter(|(k, _)| k.starts_with("vllm:num_requests_running")).map(|(_, v)| v).sum::<f64>()
    };
    let body = r#"{"model":"tiny","prompt":"x","max_tokens":2000,"ignore_eos":true,"stream":true}"#;
    let mut client = crate::process::Raw::post(&p.api, "/v1/completions", &[], body).await;
    client.until("data: ").await;
    until("it runs", async || running(&a).await + running(&b).await == 1.0).await;
    drop(client);
    until("its slot is free", async || running(&a).await + running(&b).await == 0.0).await;
    until("all has ended", async || p.settled().await).await;
}

/// llm-d-router's families that have a meaning here, as its dashboards ask for them.
const FAMILIES: &[&str] = &[
    "flow_control_request_queue_duration_seconds_count",
    "flow_control_dispatch_cycle_duration_seconds_count",
    "flow_control_request_enqueue_duration_seconds_count",
    "flow_control_queue_size",
    "flow_control_queue_bytes",
    "flow_control_pool_saturation",
    "flow_control_stale_endpoints",
    "flow_control_capacity_utilization_requests",
    "flow_control_capacity_utilization_bytes",
    "flow_control_requests_total",
    "request_total",
    "request_duration_seconds_count",
    "request_size_bytes_count",
    "response_size_bytes_count",
    "request_input_tokens_count",
    "request_cached_tokens_count",
    "request_output_tokens_count",
    "request_running",
    "request_ntpot_seconds_count",
    "request_ttft_seconds_count",
    "request_streaming_tpot_seconds_count",
    "request_streaming_itl_seconds_count",
    "request_processing_duration_seconds_count",
    "response_processing_duration_seconds_count",
    "scheduler_e2e_duration_seconds_count",
    "scheduler_attempts_total",
    "average_kv_cache_utilization",
    "average_queue_size",
    "average_running_requests",
    "std_dev_kv_cache_utilization",
    "std_dev_queue_size",
    "std_dev_running_requests",
    "ready_endpoints",
    "per_endpoint_queue_size",
    "info",
    "inflight_requests",
    "inflight_tokens",
    "prefix_indexer_size",
    "prefix_indexer_hit_ratio_count",
    "prefix_indexer_hit_bytes_count",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_are_llm_d_routers() {
    let p = Process::serve(&["--access-log", "off"]).await;
    p.ready().await;
    let body = r#"{"model":"qwen3-14b","prompt":"Hello","max_tokens":3,"stream":true}"#;
    assert_eq!(p.post("/v1/completions", &[], body).await.status.as_u16(), 200);
    until("all has ended", async || p.settled().await).await;
    let metrics = p.metrics().await;
    let series = |family: &str| {
        let name = format!("llm_d_epp_{family}");
        metrics.iter().find(|(k, _)| k.split('{').next() == Some(&name)).map(|(k, v)| (k.clone(), *v))
    };
    for family in FAMILIES {
        assert!(series(family).is_some(), "{family}");
    }
    assert_eq!(series("request_streaming_itl_seconds_count").unwrap().1, 2.0);
    let labels = series("flow_control_queue_size").unwrap().0;
    for label in ["fairness_id", "priority", "inference_pool", "model_name", "target_model_name"] {
        assert!(labels.contains(&format!("{label}=\"")), "{labels}");
    }
    assert!(!metrics.iter().any(|(k, _)| k.contains("program_aware")), "only with its policy");
}

const PROGRAMS: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - type: queue-scorer
  - type: program-aware-fairness
flowControl:
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_aware_fairness_tells_waits_and_service() {
    let config = Scratch::new("programs.yaml", PROGRAMS);
    let path = config.0.display().to_string();
    let engine = Process::emulate(&[]).await;
    let p = Process::serve(&["--access-log", "off", "--config", &path, "--endpoint", &engine.url()]).await;
    p.ready().await;
    let gauge = async |name: &str, program: Option<&str>| {
        let labels = program.map_or(String::new(), |id| format!("{{program_id=\"{id}\"}}"));
        let wanted = format!("llm_d_epp_program_aware_{name}{labels}");
        p.metrics().await.iter().find(|(k, _)| **k == wanted).map(|(_, v)| *v)
    };
    assert_eq!(gauge("jains_fairness_index", None).await, Some(1.0));
    assert_eq!(gauge("avg_wait_time_milliseconds", Some("a")).await, None);
    let body = r#"{"model":"qwen3-14b","prompt":"Hello","max_tokens":3}"#;
    let program = [("x-gateway-inference-fairness-id", "a")];
    assert_eq!(p.post("/v1/completions", &program, body).await.status.as_u16(), 200);
    until("all has ended", async || p.settled().await).await;
    assert!(gauge("avg_wait_time_milliseconds", Some("a")).await.is_some());
    // Twice the three output tokens, and the prompt; some of it may have decayed.
    let service = gauge("attained_service_tokens", Some("a")).await;
    assert!(service.is_some_and(|s| s > 6.0 && s < 20.0), "{service:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captured_server_is_a_cluster_file_that_simulates() {
    let server = Process::emulate(&["--max-num-seqs", "48"]).await;
    let file = Scratch::new("captured.yaml", "");
    let run = async |arguments: &[&str]| {
        let out = tokio::process::Command::new(env!("CARGO_BIN_EXE_forebay")).args(arguments).output().await;
        let out = out.unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let url = server.url();
    let given = ["--hardware", "h100", "--max-num-seqs", "48", "--out", file.path()];
    let (code, _, err) = run(&[&["capture", "--target", &url, "--target", &url], &given[..]].concat()).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("not known: max-num-batched-tokens") && !err.contains("GPU"), "{err}");
    let text = std::fs::read_to_string(&file.0).unwrap();
    assert!(text.contains("count: 2") && text.contains("num-gpu-blocks-override"), "{text}");
    let workload = Scratch::new(
        "short.yaml",
        "version: 1\nname: short\nmode: {kind: surge, window: 5s, drain: 60s}\nclasses:\n  a: {arrivals: {process: \
         constant, rate: 2}, input: 100, output: 10}\n",
    );
    let (code, out, err) = run(&["simulate", "--workload", workload.path(), "--cluster", file.path()]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, _, err) = run(&["capture", "--target", "http://127.0.0.1:1"]).await;
    assert_eq!(code, Some(1));
    assert!(err.contains("http://127.0.0.1:1 does not answer"), "{err}");
}
