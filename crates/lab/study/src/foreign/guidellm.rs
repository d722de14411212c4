//! What guidellm writes as JSON, from one of our runs.

use super::secs;
use forebay_load::Observation;
use forebay_records::{Counted, End, Record};
use serde_json::{Map, Value, json};

/// The version of the format (guidellm 0.7 and 0.8).
const VERSION: u32 = 2;
/// The percentiles of its distributions.
const PERCENTILES: [(&str, f64); 11] = [
    ("p001", 0.001),
    ("p01", 0.01),
    ("p05", 0.05),
    ("p10", 0.1),
    ("p25", 0.25),
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p999", 0.999),
];
/// Its groups of requests, in the order of [`group`].
const GROUPS: [&str; 3] = ["successful", "errored", "incomplete"];

/// Its report, with one benchmark and all requests of the measured window, by its definitions: latencies from the
/// sending, its time per output token with the time to the first in it. Times are seconds since the begin of the run
/// where it has seconds since 1970. Answers' and prompts' texts are not in it.
pub fn guidellm(o: &Observation, model: &str, url: &str) -> Value {
    let window = o.workload.mode.measured();
    let all: Vec<&Record> = o.records.iter().filter(|r| window.holds(r.row.arrived)).collect();
    let start = all.iter().filter_map(|r| sent(r)).fold(f64::INFINITY, f64::min);
    let start = if start.is_finite() { start } else { 0.0 };
    let end = all.iter().filter_map(|r| ended(r)).fold(start, f64::max);
    let mut by_status = [Vec::new(), Vec::new(), Vec::new()];
    for r in &all {
        by_status[group(r)].push(*r);
    }
    let requests: Map<String, Value> = GROUPS
        .iter()
        .zip(&by_status)
        .map(|(name, list)| ((*name).to_owned(), list.iter().map(|r| request(r)).collect()))
        .chain([("total".to_owned(), Value::Null)])
        .collect();
    let benchmark = json!({
        "type_": "generative_benchmark", "config": config(o, model, url), "scheduler_state": state(&by_status, start, end),
        "scheduler_metrics": scheduler(&by_status, o, start, end), "metrics": metrics(&by_status, start, end),
        "requests": requests, "warnings": [], "start_time": start, "end_time": end, "duration": end - start,
        "warmup_duration": secs(o.workload.mode.warmup.0), "cooldown_duration": 0.0,
    });
    json!({
        "metadata": {
            "version": VERSION, "guidellm_version": "0.8.1", "python_version": "",
            "platform": format!("forebay {}", env!("CARGO_PKG_VERSION")),
        },
        "config": report_config(o, model, url), "benchmarks": [benchmark], "conclusions": [],
    })
}

/// The place among [`GROUPS`].
fn group(r: &Record) -> usize {
    match r.row.end {
        End::Finished => 0,
        End::Censored => 2,
        _ => 1,
    }
}

/// When its answer was over.
fn ended(r: &Record) -> Option<f64> {
    r.live.closed.filter(|_| r.row.is_finished()).or(r.row.finished).map(|t| secs(t.0))
}

fn due(r: &Record) -> f64 {
    secs(r.row.arrived.0)
}

fn sent(r: &Record) -> Option<f64> {
    r.live.sent.map(|t| secs(t.0))
}

/// A difference of two times, if both are known.
fn between(from: Option<f64>, to: Option<f64>) -> Option<f64> {
    Some((to? - from?).max(0.0))
}

fn first(r: &Record) -> Option<f64> {
    r.row.first_token.map(|t| secs(t.0))
}

fn first_output(r: &Record) -> Option<f64> {
    r.live.first_output.map(|t| secs(t.0))
}

fn last(r: &Record) -> Option<f64> {
    r.row.finished.filter(|_| r.row.is_finished()).map(|t| secs(t.0))
}

fn tokens(r: &Record) -> Option<u64> {
    (r.live.counted != Counted::Unknown).then_some(u64::from(r.row.output_tokens))
}

fn milli(s: Option<f64>) -> Option<f64> {
    s.map(|s| s * 1e3)
}

fn latency(r: &Record) -> Option<f64> {
    between(sent(r), ended(r))
}

/// With the time to the first token in it.
fn per_token(r: &Record) -> Option<f64> {
    let n = tokens(r).filter(|n| *n > 0)?;
    Some(between(sent(r), last(r))? / n as f64)
}

fn inter_token(r: &Record) -> Option<f64> {
    let n = tokens(r).filter(|n| *n > 1)?;
    Some(between(first(r), last(r))? / (n - 1) as f64)
}

fn rate(r: &Record, n: u64) -> Option<f64> {
    latency(r).filter(|l| *l > 0.0).map(|l| n as f64 / l)
}

fn total(r: &Record) -> u64 {
    u64::from(r.row.prompt_tokens) + tokens(r).unwrap_or(0)
}

fn per_piece(r: &Record) -> Option<f64> {
    (r.live.chunks > 0).then(|| tokens(r).unwrap_or(0) as f64 / f64::from(r.live.chunks))
}

/// One request.
fn request(r: &Record) -> Value {
    let id = r.row.number.to_string();
    let status = ["completed", "errored", "cancelled"][group(r)];
    let error = match r.row.end {
        End::Finished => None,
        End::Rejected(reason) => Some(reason),
        End::Failed => Some(r.live.error.unwrap_or("failed")),
        other => Some(other.label()),
    };
    let (start, end) = (sent(r), ended(r));
    let output = tokens(r).filter(|_| r.row.first_token.is_some());
    json!({
        "type_": "generative_request_stats", "request_id": id, "response_id": Value::Null, "request_args": Value::Null,
        "output": Value::Null, "reasoning_output": Value::Null, "tool_calls": Value::Null,
        "info": {
            "request_id": id, "conversation_id": r.live.session.map(|s| format!("{s:x}")), "history_len": 0, "turn_index": 0,
            "status": status, "scheduler_node_id": 0, "scheduler_process_id": 0, "scheduler_start_time": 0.0,
            "timings": {
                "targeted_start": due(r), "queued": due(r), "dequeued": due(r), "scheduled_at": due(r),
                "resolve_start": start, "request_start": start, "first_request_iteration": first(r),
                "first_token_iteration": first(r), "first_output_token_iteration": first_output(r),
                "last_token_iteration": last(r), "last_request_iteration": end, "request_iterations": r.live.chunks,
                "token_iterations": r.live.chunks, "request_end": end, "resolve_end": end, "finalized": end,
            },
            "error": error, "started_at": start, "completed_at": end,
        },
        "input_metrics": {
            "text_tokens": r.row.prompt_tokens, "cached_tokens": r.row.cached_tokens, "total_tokens": r.row.prompt_tokens,
        },
        "output_metrics": {"text_tokens": output, "total_tokens": output},
        "request_start_time": start, "request_end_time": end, "request_latency": latency(r),
        "request_dispatch_delay": between(Some(due(r)), start), "request_scheduled_latency": between(Some(due(r)), end),
        "prompt_tokens": r.row.prompt_tokens, "cached_tokens": r.row.cached_tokens, "output_tokens": output,
        "total_tokens": total(r), "time_to_first_token_ms": milli(between(start, first(r))),
        "time_to_first_output_token_ms": milli(between(start, first_output(r))),
        "time_per_output_token_ms": milli(per_token(r)), "inter_token_latency_ms": milli(inter_token(r)),
        "tokens_per_second": rate(r, total(r)), "output_tokens_per_second": rate(r, output.unwrap_or(0)),
        "output_tokens_per_iteration": per_piece(r), "iter_tokens_per_iteration": Value::Null,
    })
}

/// A distribution of values with their weights.
fn distribution(mut values: Vec<(f64, f64)>) -> Value {
    values.retain(|(v, w)| v.is_finite() && *w > 0.0);
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let weight: f64 = values.iter().map(|(_, w)| w).sum();
    let over = |f: &dyn Fn(f64) -> f64| {
        if weight > 0.0 { values.iter().map(|(v, w)| f(*v) * w).sum::<f64>() / weight } else { 0.0 }
    };
    let mean = over(&|v| v);
    let variance = over(&|v| (v - mean) * (v - mean));
    let at = |q: f64| {
        let mut below = 0.0;
        let reached = |(_, w): &&(f64, f64)| {
            below += w;
            below >= q * weight * (1.0 - 1e-12)
        };
        values.iter().find(reached).or(values.last()).map_or(0.0, |(v, _)| *v)
    };
    let mut most = (0.0, 0.0);
    for equal in values.chunk_by(|a, b| a.0 == b.0) {
        let w: f64 = equal.iter().map(|(_, w)| w).sum();
        if w > most.1 {
            most = (equal[0].0, w);
        }
    }
    let percentiles: Map<String, Value> =
        PERCENTILES.iter().map(|(name, q)| ((*name).to_owned(), json!(at(*q)))).collect();
    json!({
        "mean": mean, "median": at(0.5), "mode": most.0, "variance": variance, "std_dev": variance.sqrt(),
        "min": values.first().map_or(0.0, |(v, _)| *v), "max": values.last().map_or(0.0, |(v, _)| *v),
        "count": values.len(), "total_sum": mean * values.len() as f64, "percentiles": percentiles, "pdf": Value::Null,
        "mean_ci": Value::Null, "percentile_cis": Value::Null,
    })
}

type ByStatus<'r> = [Vec<&'r Record>; 3];

/// What `f` makes of the requests of each group, and of all of them.
fn breakdown(by_status: &ByStatus<'_>, f: impl Fn(&[&Record]) -> Value) -> Value {
    let mut out: Map<String, Value> =
        GROUPS.iter().zip(by_status).map(|(name, list)| ((*name).to_owned(), f(list))).collect();
    out.insert("total".to_owned(), f(&by_status.concat()));
    Value::Object(out)
}

/// How much of something happens per second: between two instants at which it happens, weighted with their distance.
fn rates(list: &[&Record], start: f64, end: f64, f: impl Fn(&Record) -> Option<(f64, f64)>) -> Value {
    let mut all: Vec<(f64, f64)> = list.iter().filter_map(|r| f(r)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut before, mut out, mut held) = (start, Vec::new(), 0.0);
    for (at, n) in all {
        held += n;
        if at - before > 1e-9 {
            out.push((held / (at - before), at - before));
            (before, held) = (at, 0.0);
        }
    }
    out.push((held / (end - before).max(1e-9), end - before));
    distribution(out)
}

/// How many are out, weighted with how long.
fn concurrency(list: &[&Record], end: f64) -> Value {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for r in list {
        if let Some(from) = sent(r) {
            steps.extend([(from, 1.0), (ended(r).unwrap_or(end).max(from), -1.0)]);
        }
    }
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut out = 0.0;
    let weighted = steps.windows(2).map(|w| {
        out += w[0].1;
        (out, w[1].0 - w[0].0)
    });
    distribution(weighted.collect())
}

fn metrics(by_status: &ByStatus<'_>, start: f64, end: f64) -> Value {
    let counts = |f: fn(&[&Record]) -> Value| breakdown(by_status, f);
    let each = |f: &dyn Fn(&Record) -> Option<f64>| {
        breakdown(by_status, |list| {
            distribution(list.iter().filter_map(|r| f(r)).map(|v| (v, 1.0)).collect())
        })
    };
    let over = |n: &dyn Fn(&Record) -> f64| {
        breakdown(by_status, |list| rates(list, start, end, |r| Some((ended(r)?, n(r)))))
    };
    let prompt = |r: &Record| f64::from(r.row.prompt_tokens);
    let output = |r: &Record| tokens(r).unwrap_or(0) as f64;
    let nothing = each(&|_| None);
    let mut out = json!({
        "request_totals": counts(|list| json!(list.len())),
        "requests_per_second": over(&|_| 1.0),
        "request_concurrency": breakdown(by_status, |list| concurrency(list, end)),
        "request_latency": each(&latency),
        "request_dispatch_delay": each(&|r| between(Some(due(r)), sent(r))),
        "request_scheduled_latency": each(&|r| between(Some(due(r)), ended(r))),
        "request_streaming_iterations_count": each(&|r| Some(f64::from(r.live.chunks))),
        "prompt_token_count": each(&|r| Some(prompt(r))),
        "output_token_count": each(&|r| tokens(r).map(|n| n as f64)),
        "total_token_count": each(&|r| Some(total(r) as f64)),
        "time_to_first_token_ms": each(&|r| milli(between(sent(r), first(r)))),
        "time_to_first_output_token_ms": each(&|r| milli(between(sent(r), first_output(r)))),
        "time_per_output_token_ms": each(&|r| milli(per_token(r))),
        "inter_token_latency_ms": each(&|r| milli(inter_token(r))),
        "prompt_tokens_per_second": over(&prompt),
        "output_tokens_per_second": over(&output),
        "tokens_per_second": over(&|r| prompt(r) + output(r)),
        "output_tokens_per_iteration": each(&per_piece),
    });
    for absent in [
        "turn_predecessor_delay",
        "turn_scheduling_delay",
        "time_to_last_round_trip_ms",
        "avg_round_trip_time_ms",
        "iter_tokens_per_iteration",
    ] {
        out[absent] = nothing.clone();
    }
    let counts = ["prompt_token_count", "output_token_count", "total_token_count"].map(|n| out[n].clone());
    let [input, output, total] = counts;
    for (kind, parts) in [
        ("text", &["tokens", "words", "characters"][..]),
        ("image", &["tokens", "images", "pixels", "bytes"]),
        ("video", &["tokens", "frames", "seconds", "bytes"]),
        ("audio", &["tokens", "samples", "seconds", "bytes"]),
        ("tool_call", &["tokens", "mixed_tokens", "count"]),
    ] {
        out[kind] = parts.iter().map(|p| ((*p).to_owned(), unknown())).collect::<Map<_, _>>().into();
    }
    let text = &mut out["text"]["tokens"];
    (text["input"], text["output"], text["total"]) = (input, output, total);
    out
}

/// The figures of a kind of content, none of which is known.
fn unknown() -> Value {
    let of =
        |what: &str| ["", "_per_second", "_concurrency"].map(|over| (format!("{what}{over}"), Value::Null));
    ["input", "output", "total"].into_iter().flat_map(of).collect::<Map<_, _>>().into()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0u64), |(s, n), v| (s + v, n + 1));
    sum / n.max(1) as f64
}

fn scheduler(by_status: &ByStatus<'_>, o: &Observation, start: f64, end: f64) -> Value {
    let all = || by_status.iter().flatten();
    let late = mean(all().filter_map(|r| between(Some(due(r)), sent(r))));
    json!({
        "start_time": 0.0, "request_start_time": start, "measure_start_time": start,
        "measure_end_time": secs(o.workload.mode.arrivals_end().0), "request_end_time": end, "end_time": secs(o.ended_at.0),
        "requests_made": breakdown(by_status, |list| json!(list.len())), "generation_delay": distribution(Vec::new()),
        "queued_time_avg": 0.0, "resolve_start_delay_avg": late, "resolve_targeted_start_delay_avg": late,
        "request_start_delay_avg": late, "request_targeted_start_delay_avg": late,
        "request_time_avg": mean(all().filter_map(|r| latency(r))), "resolve_end_delay_avg": 0.0,
        "resolve_time_avg": mean(all().filter_map(|r| latency(r))), "finalized_delay_avg": 0.0,
        "processed_delay_avg": 0.0, "dataset_incomplete": false, "strategy_type": STRATEGY,
    })
}

/// Its nearest words for a schedule that is fixed before the run: those for a trace that is replayed.
const STRATEGY: &str = "trace";
const PROFILE: &str = "replay";

fn state(by_status: &ByStatus<'_>, start: f64, end: f64) -> Value {
    let [good, bad, cut] = [0, 1, 2].map(|i: usize| by_status[i].len());
    let all = good + bad + cut;
    json!({
        "node_id": 0, "num_processes": 1, "start_time": start, "end_time": end, "start_requests_time": start,
        "end_requests_time": end, "end_queuing_time": end, "end_processing_time": end, "created_requests": all,
        "queued_requests": 0, "pending_requests": 0, "processing_requests": 0, "processed_requests": all,
        "successful_requests": good, "errored_requests": bad, "cancelled_requests": cut,
    })
}

fn backend(o: &Observation, model: &str, url: &str) -> Value {
    let streamed = o.records.iter().any(|r| r.live.chunks > 1);
    json!({"kind": "openai_http", "target": url, "model": model, "stream": streamed})
}

fn config(o: &Observation, model: &str, url: &str) -> Value {
    json!({
        "id_": o.workload.name, "run_id": o.workload.name, "run_index": 0, "strategy": {"type_": STRATEGY},
        "constraints": {}, "profile": {"kind": PROFILE}, "requests": {}, "backend": backend(o, model, url),
        "environment": {},
    })
}

/// Its loader wants data by its own rules; the means of the prompts and answers stand for ours.
fn report_config(o: &Observation, model: &str, url: &str) -> Value {
    let mean_of = |f: fn(&Record) -> u32| mean(o.records.iter().map(|r| f64::from(f(r)))).round().max(1.0);
    let data = json!({
        "kind": "synthetic_text", "prompt_tokens": mean_of(|r| r.live.asked_prompt_tokens) as u64,
        "output_tokens": mean_of(|r| r.live.asked_output_tokens) as u64,
    });
    json!({
        "metadata": {"labels": {}},
        "spec": {"backend": backend(o, model, url), "profile": {"kind": PROFILE}, "data": [data]},
        "benchmarks": [{}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::import;
    use forebay_base::{Nanos, Span};
    use forebay_load::{Calibration, Observation};
    use forebay_records::stats::Schedule;
    use forebay_records::{Live, Row};
    use forebay_workload::Workload;

    const WORKLOAD: &str = "version: 1\nname: t\nmode: {kind: surge, window: 10s, drain: 1s}\nclasses:\n  \
                            a: {arrivals: {process: constant, phase: 0, rate: 1}, input: 40, output: 5}\n";

    /// Sent 2 ms late, first token after 30 ms, then one every 10 ms.
    fn record(number: u64, end: End) -> Record {
        let at = |ms: u64| Nanos(number * 1_000_000_000 + ms * 1_000_000);
        let good = end == End::Finished;
        let row = Row {
            first_token: good.then(|| at(32)),
            finished: (end != End::Censored).then(|| at(72)),
            end,
            prompt_tokens: 40,
            cached_tokens: 16,
            output_tokens: if good { 5 } else { 0 },
            ..Row::arriving(number, 0, at(0))
        };
        let live = Live {
            sent: Some(at(2)),
            first_output: row.first_token,
            closed: good.then(|| at(75)),
            chunks: if good { 5 } else { 0 },
            counted: if good { Counted::Server } else { Counted::Unknown },
            error: (end == End::Failed).then_some("broke-off"),
            asked_prompt_tokens: 40,
            asked_output_tokens: 5,
            ..Live::default()
        };
        Record { row, live }
    }

    fn observation() -> Observation {
        let workload = Workload::read(WORKLOAD, "t.yaml").unwrap();
        let ends = [End::Finished, End::Failed, End::Finished, End::Rejected("full"), End::Censored];
        let records: Vec<Record> = (0..).zip(ends).map(|(n, end)| record(n, end)).collect();
        Observation {
            schedule: Schedule::of(&records, workload.mode.measured()),
            workload,
            records,
            gaps: Vec::new(),
            endpoints: Vec::new(),
            troubles: std::collections::BTreeMap::new(),
            calibration: Calibration::default(),
            ended_at: Nanos(11_000_000_000),
            stopped: false,
            cpu: Span::ZERO,
            started: std::time::Instant::now(),
        }
    }

    #[test]
    fn what_is_exported_comes_back() {
        let o = observation();
        let text = guidellm(&o, "m", "http://h:1").to_string();
        let back = import(&text, "g.json").unwrap();
        assert_eq!((back.tool, back.records.len()), ("guidellm", 5));
        for (ours, theirs) in o.records.iter().zip(&back.records) {
            let near = |a: Option<Span>, b: Option<Span>| match (a, b) {
                (Some(a), Some(b)) => assert!(a.0.abs_diff(b.0) < 1_000, "{a} {b}"),
                (a, b) => assert_eq!(a, b),
            };
            near(ours.row.ttft(), theirs.row.ttft());
            near(ours.row.e2e(), theirs.row.e2e());
            near(ours.row.tpot(), theirs.row.tpot());
            near(ours.lag(), theirs.lag());
            near(ours.to_close(), theirs.to_close());
            // It knows no refusals.
            let end = if let End::Rejected(_) = ours.row.end { End::Failed } else { ours.row.end };
            assert_eq!((theirs.row.end, theirs.row.output_tokens), (end, ours.row.output_tokens));
            assert_eq!((theirs.row.prompt_tokens, theirs.row.cached_tokens), (40, 16));
        }
        assert_eq!(back.records[3].live.error, Some("full"));
    }

    #[test]
    fn figures_have_its_definitions() {
        let report = guidellm(&observation(), "m", "http://h:1");
        let b = &report["benchmarks"][0];
        assert_eq!(
            b["metrics"]["request_totals"],
            json!({"successful": 2, "errored": 2, "incomplete": 1, "total": 5})
        );
        let near = |v: &Value, x: f64| assert!((v.as_f64().unwrap() - x).abs() < 1e-6, "{v} {x}");
        let m = |name: &str, key: &str| b["metrics"][name]["successful"][key].clone();
        near(&m("time_to_first_token_ms", "mean"), 30.0);
        near(&m("inter_token_latency_ms", "median"), 10.0);
        near(&m("time_per_output_token_ms", "mean"), 14.0);
        near(&m("request_latency", "max"), 0.073);
        near(&m("request_dispatch_delay", "mean"), 0.002);
        near(&m("output_token_count", "total_sum"), 10.0);
        near(&b["requests"]["successful"][1]["time_to_first_token_ms"], 30.0);
        assert_eq!(b["requests"]["errored"][0]["info"]["error"], "broke-off");
        assert_eq!(m("time_to_first_token_ms", "percentiles").as_object().unwrap().len(), 11);
        // From the first sending to the last end two requests finished.
        let seconds = b["duration"].as_f64().unwrap();
        near(&m("requests_per_second", "mean"), 2.0 / seconds);
    }

    #[test]
    fn distributions_are_weighted() {
        let d = distribution(vec![(1.0, 3.0), (5.0, 1.0), (f64::NAN, 9.0)]);
        assert_eq!(
            (d["mean"].as_f64(), d["median"].as_f64(), d["mode"].as_f64()),
            (Some(2.0), Some(1.0), Some(1.0))
        );
        assert_eq!(
            (d["percentiles"]["p75"].as_f64(), d["percentiles"]["p90"].as_f64()),
            (Some(1.0), Some(5.0))
        );
        assert_eq!((d["variance"].as_f64(), d["count"].as_u64()), (Some(3.0), Some(2)));
        assert_eq!(distribution(Vec::new())["max"].as_f64(), Some(0.0));
    }
}
