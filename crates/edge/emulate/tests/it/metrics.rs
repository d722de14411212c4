//! `/metrics`: names, types, values, and time.

use crate::client::{Client, get, post};
use crate::{run, slow, spec, start, until};
use forebay_engine::EngineSpec;
use forebay_wire::prom::visit;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Families of vLLM 0.32 with their types; each counter and histogram has a `_created` gauge beside it.
const FAMILIES: [(&str, &str); 39] = [
    ("vllm:estimated_flops_per_gpu_total", "counter"),
    ("vllm:estimated_read_bytes_per_gpu_total", "counter"),
    ("vllm:estimated_write_bytes_per_gpu_total", "counter"),
    ("vllm:num_requests_running", "gauge"),
    ("vllm:num_requests_waiting", "gauge"),
    ("vllm:num_requests_waiting_by_reason", "gauge"),
    ("vllm:engine_sleep_state", "gauge"),
    ("vllm:kv_cache_usage_perc", "gauge"),
    ("vllm:prefix_cache_queries_total", "counter"),
    ("vllm:prefix_cache_hits_total", "counter"),
    ("vllm:external_prefix_cache_queries_total", "counter"),
    ("vllm:external_prefix_cache_hits_total", "counter"),
    ("vllm:mm_cache_queries_total", "counter"),
    ("vllm:mm_cache_hits_total", "counter"),
    ("vllm:num_preemptions_total", "counter"),
    ("vllm:prompt_tokens_total", "counter"),
    ("vllm:prompt_tokens_by_source_total", "counter"),
    ("vllm:prompt_tokens_cached_total", "counter"),
    ("vllm:prompt_tokens_cached_by_source_total", "counter"),
    ("vllm:generation_tokens_total", "counter"),
    ("vllm:request_success_total", "counter"),
    ("vllm:admission_rejections_total", "counter"),
    ("vllm:request_prompt_tokens", "histogram"),
    ("vllm:request_generation_tokens", "histogram"),
    ("vllm:iteration_tokens_total", "histogram"),
    ("vllm:request_max_num_generation_tokens", "histogram"),
    ("vllm:request_params_n", "histogram"),
    ("vllm:request_params_max_tokens", "histogram"),
    ("vllm:time_to_first_token_seconds", "histogram"),
    ("vllm:inter_token_latency_seconds", "histogram"),
    ("vllm:request_time_per_output_token_seconds", "histogram"),
    ("vllm:e2e_request_latency_seconds", "histogram"),
    ("vllm:request_queue_time_seconds", "histogram"),
    ("vllm:request_inference_time_seconds", "histogram"),
    ("vllm:request_prefill_time_seconds", "histogram"),
    ("vllm:request_decode_time_seconds", "histogram"),
    ("vllm:request_num_preemptions", "histogram"),
    ("vllm:request_prefill_kv_computed_tokens", "histogram"),
    ("vllm:cache_config_info", "gauge"),
];

/// Samples without buckets, keyed by name and, where several exist, the telling label.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let visited = visit(
        text.as_bytes(),
        |name| !name.ends_with("_bucket"),
        |s| {
            let label = s.labels.get("finished_reason").or_else(|| s.labels.get("source"));
            let key = label.map_or_else(|| s.name.to_owned(), |l| format!("{}/{l}", s.name));
            all.insert(key, s.value);
        },
    );
    assert_eq!(visited.malformed, 0);
    all
}

#[test]
fn the_families_are_vllms_in_vllms_order() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let a = get(&e, "/metrics").await;
        assert!(a.headers["content-type"].to_str().unwrap().starts_with("text/plain; version="));
        let types: Vec<(&str, &str)> = a
            .body
            .lines()
            .filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' '))
            .filter(|(name, _)| !name.ends_with("_created"))
            .collect();
        assert_eq!(types, FAMILIES);
        let created =
            a.body.lines().filter(|l| l.starts_with("# TYPE") && l.contains("_created gauge")).count();
        assert_eq!(created, FAMILIES.iter().filter(|f| f.1 != "gauge").count());
        let config = a.body.lines().find(|l| l.starts_with("vllm:cache_config_info{")).unwrap();
        for label in
            [r#"block_size="16""#, r#"enable_prefix_caching="True""#, r#"gpu_memory_utilization="0.92""#]
        {
            assert!(config.contains(label), "{config}");
        }
    });
}

#[test]
fn the_values_add_up() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        // 24 tokens: one full block is hit the second time.
        let body = json!({"model": "tiny", "prompt": "x".repeat(96), "max_tokens": 5});
        for _ in 0..2 {
            post(&e, "/v1/completions", &body).await;
        }
        post(&e, "/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}]})).await;
        let s = samples(&get(&e, "/metrics").await.body);
        for (name, value) in [
            ("vllm:prompt_tokens_total", 24.0 + 24.0 + 9.0),
            ("vllm:prompt_tokens_by_source_total/local_compute", 24.0 + 8.0 + 9.0),
            ("vllm:prompt_tokens_by_source_total/local_cache_hit", 16.0),
            ("vllm:generation_tokens_total", 5.0 + 5.0 + 256.0),
            ("vllm:prefix_cache_queries_total", 57.0),
            ("vllm:prefix_cache_hits_total", 16.0),
            ("vllm:request_success_total/length", 2.0),
            ("vllm:request_success_total/stop", 1.0),
            ("vllm:time_to_first_token_seconds_count", 3.0),
            ("vllm:inter_token_latency_seconds_count", 266.0 - 3.0),
            ("vllm:e2e_request_latency_seconds_count", 3.0),
            ("vllm:iteration_tokens_total_sum", 41.0 + 266.0),
            ("vllm:num_requests_running", 0.0),
            ("vllm:kv_cache_usage_perc", 0.0),
        ] {
            assert_eq!(s[name], value, "{name}");
        }
        let parts = s["vllm:request_queue_time_seconds_sum"] + s["vllm:request_inference_time_seconds_sum"];
        assert!((s["vllm:e2e_request_latency_seconds_sum"] - parts).abs() < 1e-9);
    });
}

#[test]
fn the_time_to_first_token_includes_the_queue() {
    run(async {
        let mut spec = slow();
        spec.max_num_seqs = Some(1);
        let e = start(&spec, |_| {}).await;
        let body = |n: u32| json!({"model": "tiny", "prompt": "Hello", "max_tokens": n, "stream": n > 1});
        let mut first = Client::connect(&e).await.unwrap();
        let response = first.send("POST", "/v1/completions", &[], body(2000).to_string()).await.unwrap();
        tokio::join!(post(&e, "/v1/completions", body(1)), async {
            until(&e, |p| p.waiting == 1).await;
            let before = e.published().steps;
            until(&e, |p| p.steps >= before + 5).await;
            drop(response);
            first.leave();
        });
        let s = samples(&get(&e, "/metrics").await.body);
        let queue = s["vllm:request_queue_time_seconds_sum"];
        assert!(queue > 0.05, "five steps of 10 ms went by while it waited: {queue}");
        assert_eq!(s["vllm:request_queue_time_seconds_count"], 1.0);
        assert!(s["vllm:time_to_first_token_seconds_sum"] > queue);
    });
}

#[test]
fn time_scale_speeds_the_engine_up_and_leaves_its_own_time_alone() {
    run(async {
        let spec = EngineSpec::named("qwen3-14b", "h100").unwrap();
        let e = start(&spec, |o| o.time_scale = 50.0).await;
        let begin = Instant::now();
        let body = json!({"model": "qwen3-14b", "prompt": "Hello", "max_tokens": 200});
        post(&e, "/v1/completions", body).await;
        let real = begin.elapsed();
        let s = samples(&get(&e, "/metrics").await.body);
        let engine = s["vllm:e2e_request_latency_seconds_sum"];
        // 200 steps of about 11 ms.
        assert!((2.0..2.6).contains(&engine), "{engine}");
        assert!(real >= Duration::from_secs_f64(engine / 50.0), "{real:?}");
        assert!(real < Duration::from_secs_f64(engine / 2.0), "{real:?}");
    });
}

#[test]
fn preemptions_show_while_the_cache_is_too_small() {
    run(async {
        let mut spec = spec();
        spec.num_gpu_blocks_override = Some(21);
        let e = start(&spec, |_| {}).await;
        let body = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 250, "n": 2});
        let v = post(&e, "/v1/completions", body).await.json();
        assert_eq!(v["usage"]["completion_tokens"], 500);
        let s = samples(&get(&e, "/metrics").await.body);
        assert!(s["vllm:num_preemptions_total"] >= 1.0);
        assert_eq!(s["vllm:request_num_preemptions_sum"], s["vllm:num_preemptions_total"]);
        assert_eq!(s["vllm:generation_tokens_total"], 500.0);
    });
}
