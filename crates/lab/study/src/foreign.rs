//! Results in the files of other tools, as far as they map.

mod guidellm;
mod import;

pub use guidellm::guidellm;
pub use import::{Imported, import};

use forebay_base::Span;
use forebay_load::Observation;
use forebay_records::{Counted, End, Histogram, Record};
use serde_json::{Map, Value, json};

/// Seconds.
fn secs(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// What `vllm bench serve --save-result --save-detailed` writes. Its times begin when a request is sent, so these do,
/// too; failed requests are left out of its latencies and counted in `failed`.
pub fn vllm_bench(o: &Observation, model: &str, url: &str) -> Value {
    let window = o.workload.mode.measured();
    let all: Vec<&Record> = o.records.iter().filter(|r| window.holds(r.row.arrived)).collect();
    let good: Vec<&Record> = all.iter().copied().filter(|r| r.row.is_finished()).collect();
    let first = all.iter().filter_map(|r| r.live.sent).min().unwrap_or_default();
    let last = all.iter().filter_map(|r| r.row.finished).max().unwrap_or_default();
    let seconds = secs(last.since(first).0).max(1e-9);
    let sum = |f: &dyn Fn(&Record) -> u32| good.iter().map(|r| u64::from(f(r))).sum::<u64>();
    let (input, output) = (sum(&|r| r.row.prompt_tokens), sum(&|r| r.row.output_tokens));
    let mut out = json!({
        "endpoint_type": "openai", "backend": "forebay", "label": Value::Null, "model_id": model, "tokenizer_id": model,
        "base_url": url, "num_prompts": all.len(), "request_rate": o.workload.rate(), "burstiness": Value::Null,
        "max_concurrency": Value::Null, "duration": seconds, "completed": good.len(), "failed": all.len() - good.len(),
        "total_input_tokens": input, "total_output_tokens": output,
        "request_throughput": good.len() as f64 / seconds, "output_throughput": output as f64 / seconds,
        "total_token_throughput": (input + output) as f64 / seconds,
    });
    let of = |f: &dyn Fn(&Record) -> Option<Span>| {
        let mut h = Histogram::new();
        good.iter().filter_map(|r| f(r)).for_each(|v| h.record(v.0));
        h
    };
    if let Some(map) = out.as_object_mut() {
        statistics(map, "ttft", &of(&Record::service_ttft));
        statistics(map, "tpot", &of(&|r| r.row.tpot()));
        statistics(map, "itl", &o.all_gaps().chunk);
        statistics(map, "e2el", &of(&Record::service_e2e));
    }
    let each = |f: &dyn Fn(&Record) -> Value| all.iter().map(|r| f(r)).collect::<Vec<Value>>();
    out["input_lens"] = json!(each(&|r| json!(r.row.prompt_tokens)));
    out["output_lens"] = json!(each(&|r| json!(if r.row.is_finished() { r.row.output_tokens } else { 0 })));
    out["ttfts"] = json!(each(&|r| json!(r.service_ttft().map_or(0.0, |s| secs(s.0)))));
    out["latencies"] = json!(each(&|r| json!(r.service_e2e().map_or(0.0, |s| secs(s.0)))));
    out["start_times"] = json!(each(&|r| json!(r.live.sent.map(|t| secs(t.0)))));
    out["errors"] = json!(each(&|r| json!(match r.row.end {
        End::Finished => "",
        End::Rejected(reason) => reason,
        End::Failed => r.live.error.unwrap_or("failed"),
        other => other.label(),
    })));
    out
}

/// What inference-perf writes as `per_request_lifecycle_metrics.json`, with its computed metrics; times are seconds since
/// the begin of the run. Requests that were cut off are not in it.
pub fn inference_perf(o: &Observation) -> Value {
    let entry = |r: &Record| {
        let finished = r.row.finished?;
        let sent = r.live.sent.unwrap_or(r.row.arrived);
        let error = match r.row.end {
            End::Finished => Value::Null,
            end => {
                let kind =
                    r.live.error.unwrap_or(if end.reason().is_empty() { end.label() } else { end.reason() });
                json!({"error_type": kind, "error_msg": ""})
            }
        };
        let mut value = json!({
            "start_time": secs(sent.0), "end_time": secs(r.live.closed.unwrap_or(finished).0),
            "info": {
                "request_metrics": {"text": {"input_tokens": r.row.prompt_tokens}},
                "response_metrics": {"output_tokens": r.row.output_tokens, "server_usage": usage(r)},
            },
            "error": error,
        });
        if r.row.is_finished() {
            let span = |s: Option<Span>| json!(s.map(|s| secs(s.0)));
            value["computed_metrics"] = json!({
                "request_latency": secs(r.live.closed.unwrap_or(finished).since(sent).0),
                "time_to_first_token": span(r.service_ttft()), "time_per_output_token": span(r.row.tpot()),
                "input_tokens": r.row.prompt_tokens, "output_tokens": r.row.output_tokens,
            });
        }
        Some(value)
    };
    o.records.iter().filter_map(entry).collect()
}

fn usage(r: &Record) -> Value {
    if r.live.counted != Counted::Server {
        return Value::Null;
    }
    json!({
        "prompt_tokens": r.row.prompt_tokens, "completion_tokens": r.row.output_tokens,
        "prompt_tokens_details": {"cached_tokens": r.row.cached_tokens},
    })
}

/// `mean_x_ms`, `median_x_ms`, `std_x_ms` and percentiles.
fn statistics(out: &mut Map<String, Value>, name: &str, h: &Histogram) {
    let Some(mean) = h.mean() else { return };
    let square = |(low, width, n): (u64, u64, u64)| {
        let off = (low + width / 2) as f64 - mean;
        off * off * n as f64
    };
    let variance = h.buckets().map(square).sum::<f64>() / h.count() as f64;
    let mut put = |key: &str, ns: f64| out.insert(format!("{key}_{name}_ms"), json!(ns / 1e6));
    put("mean", mean);
    put("std", variance.sqrt());
    for (key, q) in [("median", 0.5), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)] {
        put(key, h.quantile(q).unwrap_or(0) as f64);
    }
}
