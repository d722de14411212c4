//! What `/metrics` says after a run with everything switched on: llm-d-router's names, labels and buckets.

use crate::process::{Process, Scratch, get, until};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - {type: utilization-detector, name: gauge, parameters: {metricsStalenessThreshold: 5s}}
  - {type: approx-prefix-cache-producer, name: prefixes}
  - {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: prefixes}}
  - {type: inflight-load-producer, name: loads}
  - {type: active-request-scorer, parameters: {inFlightLoadProducerName: loads}}
  - {type: lora-affinity-scorer}
  - {type: program-aware-fairness}
flowControl:
  saturationDetector: {pluginRef: gauge}
  maxRequests: 100
  maxBytes: 1Mi
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
";

const MANIFESTS: &str = "
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: critical}
spec: {priority: 100}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: r}
spec:
  rules:
    - matches: [{model: {type: Exact, value: food-review}}]
      targets: [{modelRewrite: tiny}]
";

const REQUEST: &str = "fairness_id model_name priority target_model_name";
const QUEUE: &str = "fairness_id inference_pool model_name priority target_model_name";
const POOL: &str = "inference_pool";
const PREFIX: &str = "plugin_name plugin_type";
const LOAD: &str = "endpoint_name fairness_id namespace priority producer_name";

/// Counters and gauges, with their labels.
const PLAIN: &[(&str, &str)] = &[
    ("flow_control_queue_size", QUEUE),
    ("flow_control_queue_bytes", QUEUE),
    ("flow_control_pool_saturation", "inference_pool stage"),
    ("flow_control_stale_endpoints", "detector"),
    ("flow_control_capacity_utilization_requests", "inference_pool priority"),
    ("flow_control_capacity_utilization_bytes", "inference_pool priority"),
    ("flow_control_global_capacity_utilization_requests", POOL),
    ("flow_control_global_capacity_utilization_bytes", POOL),
    ("flow_control_requests_total", "inference_pool outcome priority"),
    ("request_total", REQUEST),
    ("request_error_total", "error_code fairness_id model_name priority target_model_name"),
    ("request_running", REQUEST),
    ("scheduler_attempts_total", "endpoint_name namespace port status target_model_name"),
    ("average_kv_cache_utilization", "name"),
    ("average_queue_size", "name"),
    ("average_running_requests", "name"),
    ("std_dev_kv_cache_utilization", "name"),
    ("std_dev_queue_size", "name"),
    ("std_dev_running_requests", "name"),
    ("ready_endpoints", "name"),
    ("per_endpoint_queue_size", "model_server_endpoint name"),
    ("model_rewrite_decisions_total", "model_name model_rewrite_name target_model"),
    ("datalayer_poll_errors_total", "source_type"),
    ("info", "build_ref commit"),
    ("inflight_requests", LOAD),
    ("inflight_tokens", LOAD),
    ("prefix_indexer_size", PREFIX),
    ("program_aware_jains_fairness_index", ""),
    ("program_aware_avg_wait_time_milliseconds", "program_id"),
    ("program_aware_attained_service_tokens", "program_id"),
];

const LATENCY: &str = "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120 180 \
                       240 300 360 480 600 900 1200 1800 2700 3600";
const TTFT: &str = "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120";
const FINE: &str = "0.0001 0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1";
const TOKENS: &str =
    "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32778 65536 131072 262144 524288 1048576";
const OUTPUT: &str = "1 8 16 32 64 128 256 512 1024 2048 4096 8192";
const WAIT: &str = "0.0001 0.0005 0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60";
const REQUEST_BYTES: &str = "64 128 256 512 1024 2048 4096 8192 16384 32768 65536 131072 262144 524288 1048576 \
                             2097152 4194304 8388608 16777216 33554432 67108864 134217728 268435456 536870912 \
                             1073741824";
const ANSWER_BYTES: &str = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536";
const NTPOT: &str = "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10";
const TPOT: &str = "0.0005 0.00205 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.125 0.15 0.2 0.3 0.4 0.5 0.6 0.8 1 2";
const ITL: &str = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.15 0.2 0.3 0.5 0.75 1 2";
const REQUEST_WORK: &str = "0.0005 0.001 0.002 0.005 0.01 0.015 0.025 0.04 0.06 0.1 0.25 0.5 1 2.5 5 10";
const ANSWER_WORK: &str = "0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5";
const RATIO: &str = "0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1";
const HIT_BYTES: &str = "0 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536";

/// Histograms, with their labels and the upper ends of their buckets.
const HISTOGRAMS: &[(&str, &str, &str)] = &[
    (
        "flow_control_request_queue_duration_seconds",
        "fairness_id inference_pool model_name outcome priority target_model_name",
        WAIT,
    ),
    ("flow_control_dispatch_cycle_duration_seconds", "", FINE),
    ("flow_control_request_enqueue_duration_seconds", "fairness_id outcome priority", FINE),
    ("request_duration_seconds", REQUEST, LATENCY),
    ("request_size_bytes", REQUEST, REQUEST_BYTES),
    ("response_size_bytes", REQUEST, ANSWER_BYTES),
    ("request_input_tokens", REQUEST, TOKENS),
    ("request_cached_tokens", REQUEST, TOKENS),
    ("request_output_tokens", REQUEST, OUTPUT),
    ("request_ntpot_seconds", REQUEST, NTPOT),
    ("request_ttft_seconds", "fairness_id model_name priority streaming target_model_name", TTFT),
    ("request_streaming_tpot_seconds", REQUEST, TPOT),
    ("request_streaming_itl_seconds", REQUEST, ITL),
    ("request_processing_duration_seconds", "", REQUEST_WORK),
    ("response_processing_duration_seconds", "", ANSWER_WORK),
    ("scheduler_e2e_duration_seconds", "", FINE),
    ("prefix_indexer_hit_ratio", PREFIX, RATIO),
    ("prefix_indexer_hit_bytes", PREFIX, HIT_BYTES),
];

/// Sorted label names and the upper ends of buckets.
type Shape = (String, String);

/// Label names of every family, `le` apart, and its buckets in the order of the text.
fn shapes(text: &str) -> BTreeMap<&str, BTreeSet<Shape>> {
    type Series<'a> = (&'a str, String, BTreeMap<&'a str, &'a str>, Option<&'a str>);
    let mut series: Vec<Series<'_>> = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
        // No value of a label has a quote or a comma in this run.
        let mut pairs: BTreeMap<&str, &str> = labels
            .split(',')
            .filter_map(|l| l.split_once("=\""))
            .map(|(k, v)| (k, v.trim_end_matches('"')))
            .collect();
        let end = pairs.remove("le");
        series.push((name, format!("{pairs:?}"), pairs, end));
    }
    let mut out: BTreeMap<&str, BTreeMap<String, Shape>> = BTreeMap::new();
    for (name, key, pairs, end) in series {
        let family = end.map_or(name, |_| name.strip_suffix("_bucket").unwrap());
        let names = pairs.keys().copied().collect::<Vec<_>>().join(" ");
        let shape = out.entry(family).or_default().entry(key).or_insert_with(|| (names, String::new()));
        if let Some(end) = end.filter(|e| *e != "+Inf") {
            let separator = if shape.1.is_empty() { "" } else { " " };
            write!(shape.1, "{separator}{}", end.parse::<f64>().unwrap()).unwrap();
        }
    }
    out.into_iter().map(|(family, shapes)| (family, shapes.into_values().collect())).collect()
}

/// The nth request of the load.
async fn request(p: &Process, n: usize) {
    let model = if n.is_multiple_of(4) { "food-review" } else { "tiny" };
    let prompt = "A long common beginning of many words. ".repeat(20);
    let body = format!(
        "{{\"model\":\"{model}\",\"prompt\":\"{prompt}{n}\",\"max_tokens\":4,\"stream\":{}}}",
        n.is_multiple_of(2)
    );
    let program = format!("program-{}", n % 3);
    let objective = if n.is_multiple_of(5) { "critical" } else { "none" };
    let headers = [("x-llm-d-inference-fairness-id", &*program), ("x-llm-d-inference-objective", objective)];
    assert_eq!(p.post("/v1/completions", &headers, body).await.status.as_u16(), 200);
}

/// Forty requests at once over three programs, two priorities and a rewrite, half of them streams.
async fn load(p: &Arc<Process>) {
    let clients: Vec<_> = (0..40)
        .map(|n| {
            let p = p.clone();
            tokio::spawn(async move { request(&p, n).await })
        })
        .collect();
    for c in clients {
        c.await.unwrap();
    }
    // An engine that refuses.
    let wrong = r#"{"model":"tiny","prompt":"x","max_tokens":-1}"#;
    assert_eq!(p.post("/v1/completions", &[], wrong).await.status.as_u16(), 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_has_llm_d_routers_labels_and_buckets() {
    let (config, manifests) =
        (Scratch::new("full.yaml", CONFIG), Scratch::new("full-objects.yaml", MANIFESTS));
    let (a, b) = (Process::emulate(&["--model", "tiny"]).await, Process::emulate(&["--model", "tiny"]).await);
    let (url_a, url_b) = (a.url(), b.url());
    // The third refuses: its scrapes fail.
    let arguments = [
        "--config",
        config.path(),
        "--objectives",
        manifests.path(),
        "--endpoint",
        &url_a,
        "--endpoint",
        &url_b,
        "--endpoint",
        "http://127.0.0.1:1",
        "--access-log",
        "off",
    ];
    let p = Arc::new(Process::serve(&arguments).await);
    p.ready().await;
    let ready = "llm_d_epp_ready_endpoints{name=\"default\"}";
    until("two of three are ready", async || p.metric(ready).await == 2.0).await;
    load(&p).await;
    p.settles().await;

    let answer = get(&p.admin, "/metrics").await;
    let shapes = shapes(answer.text());
    let one = |labels: &str, buckets: &str| BTreeSet::from([(labels.to_owned(), buckets.to_owned())]);
    for (family, labels) in PLAIN {
        assert_eq!(shapes.get(&*format!("llm_d_epp_{family}")), Some(&one(labels, "")), "{family}");
    }
    for (family, labels, buckets) in HISTOGRAMS {
        assert_eq!(shapes.get(&*format!("llm_d_epp_{family}")), Some(&one(labels, buckets)), "{family}");
    }
    // And nothing under that name that llm-d-router does not have.
    let known = |name: &str| {
        let of = |family: &str| {
            name == family || ["_count", "_sum"].iter().any(|s| name == format!("{family}{s}"))
        };
        PLAIN.iter().any(|(f, _)| name == *f) || HISTOGRAMS.iter().any(|(f, ..)| of(f))
    };
    let strangers: Vec<_> =
        shapes.keys().filter_map(|k| k.strip_prefix("llm_d_epp_")).filter(|k| !known(k)).collect();
    assert!(strangers.is_empty(), "{strangers:?}");

    let m = p.metrics().await;
    assert_eq!(m["llm_d_epp_flow_control_stale_endpoints{detector=\"gauge\"}"], 0.0);
    let prefixes = "{plugin_name=\"prefixes\",plugin_type=\"approx-prefix-cache-producer\"}";
    // 781 bytes and more: three whole blocks of 256 in common and a part of one, at one endpoint at least.
    let blocks = m[&format!("llm_d_epp_prefix_indexer_size{prefixes}")];
    assert!((43.0..=4.0 * 41.0).contains(&blocks), "{blocks}");
    assert!(m[&format!("forebay_prefix_index_bytes{prefixes}")] > 8.0 * blocks);
    assert!(
        m.keys()
            .any(|k| k.starts_with("llm_d_epp_inflight_requests{") && k.contains("producer_name=\"loads\""))
    );
    let rewrites = "llm_d_epp_model_rewrite_decisions_total{model_rewrite_name=\"r\",model_name=\"food-review\",\
                    target_model=\"tiny\"}";
    assert_eq!(m[rewrites], 10.0);
}
