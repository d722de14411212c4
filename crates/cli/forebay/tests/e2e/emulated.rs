//! The emulated pool that `serve` starts by itself, and `serve` over `emulate` processes.

use crate::process::{Process, until};

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
