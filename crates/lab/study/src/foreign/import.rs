//! Results of other tools as records, as far as their files tell.

use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use forebay_load::Gaps;
use forebay_records::files::Reader;
use forebay_records::{Counted, End, Live, Record, Row, reason_named};
use forebay_workload::{Class, Kind, Mode, Workload};
use serde_json::Value;

/// Results that were read.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Who wrote them: `forebay`, `vllm bench serve`, `guidellm` or `inference-perf`.
    pub tool: &'static str,
    /// Where latencies begin in them.
    pub origin: &'static str,
    /// A class for each that the file names; the window is that of the arrivals.
    pub workload: Workload,
    /// A record for each request.
    pub records: Vec<Record>,
    /// Times within answers by class; empty where the file has none.
    pub gaps: Vec<Gaps>,
}

/// Reads a file of requests of forebay (CSV or JSON Lines), the result of `vllm bench serve --save-result
/// --save-detailed`, the report of guidellm as JSON, or the per-request report of inference-perf. `file` is its name in
/// errors.
///
/// # Errors
/// What the file is not, or what is missing in it.
pub fn import(text: &str, file: &str) -> Result<Imported, Diagnostics> {
    let start = text.trim_start();
    let ours = start.starts_with("{\"format\":\"forebay-records\"");
    if ours || !start.starts_with(['{', '[']) {
        return rows(text, file);
    }
    let json: Value = serde_json::from_str(text).map_err(|e| {
        let at = Position { line: e.line() as u32, column: e.column() as u32 };
        one(Diagnostic::error(at, "", e.to_string()), file)
    })?;
    let wrong = |field: &str, message: &str, expected: &str| {
        one(Diagnostic::error(Position::default(), field, message).expected(expected), file)
    };
    if let Some(list) = json.as_array() {
        let calls: Vec<Call> = list.iter().filter_map(inference_perf).collect();
        if calls.len() != list.len() || calls.is_empty() {
            let message = "entries without start_time and end_time";
            return Err(wrong("", message, "per_request_lifecycle_metrics.json of inference-perf"));
        }
        return Ok(imported("inference-perf", "the sending", calls));
    }
    if let Some(benchmarks) = json["benchmarks"].as_array() {
        let calls: Vec<Call> = benchmarks.iter().flat_map(guidellm).collect();
        if calls.is_empty() {
            return Err(wrong("benchmarks.requests", "no requests", "a report that keeps its requests"));
        }
        return Ok(imported("guidellm", "the scheduled time", calls));
    }
    if json.get("ttfts").is_some() || json.get("request_throughput").is_some() {
        let calls = vllm_bench(&json).ok_or_else(|| {
            wrong("start_times", "no lists of requests", "a result of vllm bench serve with --save-detailed")
        })?;
        return Ok(imported("vllm bench serve", "the sending", calls));
    }
    let known = "requests.csv or requests.jsonl of forebay, or a result of vllm bench serve, guidellm or inference-perf";
    Err(wrong("", "nobody's results", known))
}

fn one(d: Diagnostic, file: &str) -> Diagnostics {
    let mut all = Diagnostics(vec![d]);
    all.finish(file);
    all
}

fn rows(text: &str, file: &str) -> Result<Imported, Diagnostics> {
    let mut reader = Reader::new(text.as_bytes(), file, &[])?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record() {
        records.push(record?);
    }
    let classes = reader.classes().to_vec();
    let workload = workload(&records, &classes);
    Ok(Imported { tool: "forebay", origin: "the scheduled time", workload, records, gaps: Vec::new() })
}

/// A workload that says no more than which classes there were and how long they came.
fn workload(records: &[Record], classes: &[String]) -> Workload {
    let arrived = || records.iter().map(|r| r.row.arrived);
    let last = arrived().max().unwrap_or_default();
    let mode = Mode {
        kind: Kind::Surge,
        window: last.since(Nanos::ZERO) + Span(1),
        warmup: Span::ZERO,
        drain: Span::ZERO,
    };
    let priority =
        |i: usize| records.iter().find(|r| usize::from(r.row.class) == i).map_or(0, |r| r.row.priority);
    let class = |(i, name): (usize, &String)| Class { priority: priority(i), ..Class::fed(name) };
    let classes = classes.iter().enumerate().map(class).collect();
    Workload { name: "results".to_owned(), mode, classes, traces: Vec::new(), bytes_per_token: 4.0 }
}

/// A request as other tools tell it, in seconds on any clock.
#[derive(Clone, Debug, Default)]
struct Call {
    due: f64,
    sent: f64,
    first: Option<f64>,
    first_output: Option<f64>,
    last: Option<f64>,
    closed: Option<f64>,
    error: Option<String>,
    cut: bool,
    prompt: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
    chunks: u64,
    gaps: Vec<f64>,
}

fn imported(tool: &'static str, origin: &'static str, mut calls: Vec<Call>) -> Imported {
    calls.sort_by(|a, b| a.due.total_cmp(&b.due));
    let zero = calls.first().map_or(0.0, |c| c.due.min(c.sent));
    let mut gaps = Gaps::default();
    for c in calls.iter().filter(|c| !c.gaps.is_empty()) {
        gaps.of += 1;
        for gap in &c.gaps {
            gaps.chunk.record(Span::from_secs_f64(*gap).0);
            gaps.token.record(Span::from_secs_f64(*gap).0);
        }
    }
    let records: Vec<Record> = calls.iter().enumerate().map(|(i, c)| record(i as u64, c, zero)).collect();
    let workload = workload(&records, &["requests".to_owned()]);
    Imported { tool, origin, workload, records, gaps: vec![gaps] }
}

fn record(number: u64, c: &Call, zero: f64) -> Record {
    let at = |t: f64| Nanos::ZERO + Span::from_secs_f64(t - zero);
    let count = |n: Option<u64>| n.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let end = match (&c.error, c.cut) {
        (_, true) => End::Censored,
        (Some(_), _) => End::Failed,
        (None, _) => End::Finished,
    };
    let row = Row {
        first_token: c.first.map(at),
        finished: c.last.or(c.closed).filter(|_| end != End::Censored).map(at),
        end,
        prompt_tokens: count(c.prompt),
        cached_tokens: count(c.cached),
        output_tokens: count(c.output),
        ..Row::arriving(number, 0, at(c.due))
    };
    let live = Live {
        sent: Some(at(c.sent)),
        first_output: c.first_output.or(c.first).map(at),
        closed: c.closed.map(at),
        asked_prompt_tokens: row.prompt_tokens,
        asked_output_tokens: row.output_tokens,
        chunks: u32::try_from(c.chunks).unwrap_or(u32::MAX),
        counted: if c.output.is_some() { Counted::Server } else { Counted::Unknown },
        error: c.error.as_ref().map(|e| reason_named(&e.chars().take(60).collect::<String>())),
        ..Live::default()
    };
    Record { row, live }
}

/// Its times begin at the sending, so what it waited in its own queue is not in them.
fn vllm_bench(json: &Value) -> Option<Vec<Call>> {
    let list = |key: &str| json[key].as_array();
    let (starts, ttfts, outputs) = (list("start_times")?, list("ttfts")?, list("output_lens")?);
    let number = |key: &str, i: usize| list(key).and_then(|l| l.get(i)?.as_f64());
    let call = |i: usize| {
        let sent = starts[i].as_f64()?;
        let ttft = ttfts.get(i)?.as_f64()?;
        let error =
            list("errors").and_then(|l| l.get(i)?.as_str()).filter(|e| !e.is_empty()).map(str::to_owned);
        let gaps: Vec<f64> = list("itls")
            .and_then(|l| l.get(i)?.as_array())
            .map(|l| l.iter().filter_map(Value::as_f64).collect())
            .unwrap_or_default();
        let last = number("latencies", i).or_else(|| Some(ttft + gaps.iter().sum::<f64>()));
        let good = error.is_none();
        Some(Call {
            due: sent,
            sent,
            first: Some(sent + ttft).filter(|_| ttft > 0.0),
            last: last.map(|l| sent + l).filter(|_| good),
            closed: None,
            prompt: list("input_lens").and_then(|l| l.get(i)?.as_u64()),
            output: outputs.get(i).and_then(Value::as_u64).filter(|_| good),
            chunks: gaps.len() as u64 + 1,
            error,
            gaps,
            ..Call::default()
        })
    };
    (0..starts.len()).map(call).collect()
}

/// Requests of one of guidellm's benchmarks: those that succeeded, failed and were cut off.
fn guidellm(benchmark: &Value) -> Vec<Call> {
    let mut out = Vec::new();
    for group in ["successful", "errored", "incomplete"] {
        for request in benchmark["requests"][group].as_array().map(Vec::as_slice).unwrap_or_default() {
            let t = &request["info"]["timings"];
            let at = |key: &str| t[key].as_f64();
            let Some(sent) = at("request_start").or_else(|| at("resolve_start")) else { continue };
            let due = at("targeted_start").filter(|d| *d <= sent).unwrap_or(sent);
            let error = request["info"]["error"].as_str().map(str::to_owned);
            let tokens = |side: &str, key: &str| request[side][key].as_u64();
            out.push(Call {
                due,
                sent,
                first: at("first_token_iteration"),
                first_output: at("first_output_token_iteration"),
                last: at("last_token_iteration"),
                closed: at("request_end"),
                error: if group == "errored" { error.or_else(|| Some("errored".to_owned())) } else { None },
                cut: group == "incomplete",
                prompt: tokens("input_metrics", "text_tokens"),
                cached: tokens("input_metrics", "cached_tokens"),
                output: tokens("output_metrics", "text_tokens"),
                chunks: t["token_iterations"].as_u64().unwrap_or(0),
                gaps: Vec::new(),
            });
        }
    }
    out
}

fn inference_perf(entry: &Value) -> Option<Call> {
    let sent = entry["start_time"].as_f64()?;
    let closed = entry["end_time"].as_f64()?;
    let metrics = &entry["info"]["response_metrics"];
    let times: Vec<f64> = metrics["output_token_times"]
        .as_array()
        .map(|l| l.iter().filter_map(Value::as_f64).collect())
        .unwrap_or_default();
    let usage = &metrics["server_usage"];
    let computed = |key: &str| entry["computed_metrics"][key].as_f64().map(|s| sent + s);
    let error = entry["error"]["error_type"].as_str().map(str::to_owned);
    Some(Call {
        due: sent,
        sent,
        first: times.first().copied().or_else(|| computed("time_to_first_token")),
        last: times.last().copied().or_else(|| computed("request_latency")),
        closed: Some(closed),
        prompt: usage["prompt_tokens"]
            .as_u64()
            .or_else(|| entry["info"]["request_metrics"]["text"]["input_tokens"].as_u64()),
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        output: usage["completion_tokens"].as_u64().or_else(|| metrics["output_tokens"].as_u64()),
        chunks: times.len() as u64,
        gaps: times.windows(2).map(|w| w[1] - w[0]).collect(),
        error,
        ..Call::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_bench_results_are_read() {
        let text = r#"{"request_throughput": 1.0, "start_times": [100.0, 100.5], "ttfts": [0.25, 0.0], "itls": [[0.1, 0.3], []],
            "input_lens": [7, 9], "output_lens": [3, 0], "errors": ["", "boom"]}"#;
        let i = import(text, "r.json").unwrap();
        let r = &i.records[0].row;
        assert_eq!(
            (i.tool, r.ttft(), r.e2e(), r.tpot()),
            ("vllm bench serve", Some(Span::millis(250)), Some(Span::millis(650)), Some(Span::millis(200)))
        );
        assert_eq!((r.prompt_tokens, r.output_tokens, i.gaps[0].chunk.count()), (7, 3, 2));
        assert_eq!((i.records[1].row.end, i.records[1].live.error), (End::Failed, Some("boom")));
        let short = import(r#"{"request_throughput": 1.0}"#, "r.json").unwrap_err().to_string();
        assert!(short.contains("--save-detailed"), "{short}");
    }

    #[test]
    fn guidellm_reports_are_read_with_what_was_cut_off() {
        let timings = r#""targeted_start": 10.0, "request_start": 10.5, "first_token_iteration": 11.0, "last_token_iteration": 12.0, "request_end": 12.25, "token_iterations": 5"#;
        let request = |error: &str| {
            format!(
                "{{\"info\": {{\"timings\": {{{timings}}}, \"error\": {error}}}, \"input_metrics\": {{\"text_tokens\": 8}}, \"output_metrics\": {{\"text_tokens\": 5}}}}"
            )
        };
        let text = format!(
            "{{\"benchmarks\": [{{\"requests\": {{\"successful\": [{}], \"errored\": [{}], \"incomplete\": [{}]}}}}]}}",
            request("null"),
            request("\"x\""),
            request("null")
        );
        let i = import(&text, "g.json").unwrap();
        let r = &i.records[0];
        assert_eq!(
            (r.row.ttft(), r.lag(), r.row.e2e(), r.to_close()),
            (Some(Span::secs(1)), Some(Span::millis(500)), Some(Span::secs(2)), Some(Span::millis(2250)))
        );
        assert_eq!(
            i.records.iter().map(|r| r.row.end).collect::<Vec<_>>(),
            [End::Finished, End::Failed, End::Censored]
        );
    }

    #[test]
    fn inference_perf_entries_are_read() {
        let text = r#"[{"start_time": 5.0, "end_time": 6.0, "error": null, "info": {"request_metrics": {"text": {"input_tokens": 4}},
            "response_metrics": {"output_tokens": 2, "output_token_times": [5.5, 5.75], "server_usage": null}}},
            {"start_time": 6.0, "end_time": 6.5, "error": {"error_type": "Timeout", "error_msg": ""}, "info": {}}]"#;
        let i = import(text, "p.json").unwrap();
        assert_eq!(
            (i.records[0].row.ttft(), i.records[0].row.e2e()),
            (Some(Span::millis(500)), Some(Span::millis(750)))
        );
        assert_eq!((i.records[1].row.end, i.records[1].live.error), (End::Failed, Some("Timeout")));
        assert!(import("[{}]", "p.json").unwrap_err().to_string().contains("inference-perf"));
        assert!(import("{\"a\": 1}", "p.json").unwrap_err().to_string().contains("nobody's results"));
    }
}
