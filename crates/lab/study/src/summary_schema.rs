//! The JSON Schema of `summary.json`, for whoever reads it. Keys that it does not know may come with later versions.

use crate::observed::LiveMetric;
use crate::summary::{Metric, QUANTILES};
use serde_json::{Map, Value, json};

/// The schema (draft 2020-12) of what `simulate` and `observe` write as `summary.json`.
pub fn summary_schema() -> Value {
    let mut out = object(&json!({
        "format": {"const": "forebay-summary"},
        "version": {"const": 1},
        "classes": {"type": "array", "items": {"$ref": "#/$defs/class"}},
        "total": {"$ref": "#/$defs/class", "description": "All classes together."},
        "load": {"enum": ["stable", "near", "overloaded"]},
        "backlog": {"$ref": "#/$defs/backlog"},
        "ended_at_ns": count("When the last request ended, or the run was cut off."),
        "run": {"description": "What was run.", "anyOf": [{"$ref": "#/$defs/simulated"}, {"$ref": "#/$defs/observed"}]},
    }));
    out["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    out["title"] = json!("forebay summary");
    out["description"] = json!(
        "The figures of a run. Instants are nanoseconds from its start, durations nanoseconds; what is unknown or \
         undetermined is null."
    );
    out["if"] = json!({"properties": {"run": {"required": ["kind"]}}});
    out["then"] = json!({"allOf": [with(&observed_only())]});
    out["else"] = json!({"allOf": [with(&simulated_only())]});
    out["$defs"] = json!({
        "quantile": quantile(), "figures": figures(), "class": class(), "throughput": throughput(),
        "backlog": backlog(), "simulated": simulated(), "observed": observed(), "live": live(),
        "schedule": schedule(), "counters": counters(), "scaling": scaling(), "endpoint": endpoint(),
    });
    out
}

/// An object that has all of these.
fn object(properties: &Value) -> Value {
    let required: Vec<&String> = properties.as_object().map(|p| p.keys().collect()).unwrap_or_default();
    json!({"type": "object", "required": required, "properties": properties})
}

/// More of an object whose type is known.
fn with(properties: &Value) -> Value {
    let required: Vec<&String> = properties.as_object().map(|p| p.keys().collect()).unwrap_or_default();
    json!({"required": required, "properties": properties})
}

fn count(what: &str) -> Value {
    let mut out = json!({"type": "integer", "minimum": 0});
    if !what.is_empty() {
        out["description"] = json!(what);
    }
    out
}

fn number(what: &str) -> Value {
    let mut out = json!({"type": ["number", "null"]});
    if !what.is_empty() {
        out["description"] = json!(what);
    }
    out
}

fn quantile() -> Value {
    let ns = || json!({"type": ["integer", "null"], "minimum": 0});
    let mut out = object(&json!({
        "value": ns(), "low": ns(), "high": ns(), "at_least": ns(),
        "standing": {
            "enum": ["empty", "undetermined", "at_least", "claim"],
            "description": "at_least: fewer than 30 samples lie beyond it. undetermined: more than 0.5 % have no value.",
        },
        "count": count("Samples."), "infinite": count("Samples without a value, taken as infinite."),
    }));
    out["description"] = json!("A percentile with its 95 % interval, in nanoseconds.");
    out
}

fn percentiles() -> Map<String, Value> {
    let name = |q: &f64| (format!("p{:.0}_ns", q * 100.0), json!({"$ref": "#/$defs/quantile"}));
    QUANTILES.iter().map(name).collect()
}

fn figures() -> Value {
    let mut all = percentiles();
    all.insert("mean_ns".to_owned(), number("Over the samples that have a value."));
    object(&Value::Object(all))
}

fn throughput() -> Value {
    object(&json!({
        "requests": count(""), "output_tokens": count(""), "prompt_tokens": count(""), "seconds": number(""),
        "requests_per_second": number(""), "output_tokens_per_second": number(""),
    }))
}

fn class() -> Value {
    let figures = || json!({"$ref": "#/$defs/figures"});
    let latencies: Map<String, Value> = Metric::ALL.iter().map(|m| (m.key().to_owned(), figures())).collect();
    // What only a simulation or a router knows is left out of a run against a real server.
    let latencies = json!({"type": "object", "required": ["ttft", "tpot", "e2e"], "properties": latencies});
    let mut goodput = object(&json!({
        "offered": count(""), "attained": count("Within the deadlines of their class."), "share": number(""),
        "per_second": number(""),
    }));
    goodput["type"] = json!(["object", "null"]);
    let mut out = object(&json!({
        "name": {"type": "string"}, "priority": {"type": ["integer", "null"]}, "offered": count(""),
        "finished": count(""), "rejected": {"description": "By reason."}, "timed_out": count(""),
        "failed": count(""), "censored": count("Still out when the run ended."), "latencies": latencies,
        "throughput": {"$ref": "#/$defs/throughput"},
        "throughput_with_drain": {"$ref": "#/$defs/throughput"}, "goodput": goodput,
        "prompt_tokens_served": count(""), "prompt_tokens_cached": count(""),
    }));
    out["properties"]["live"] = json!({"$ref": "#/$defs/live"});
    out
}

fn live() -> Value {
    let figures = || json!({"$ref": "#/$defs/figures"});
    let latencies: Map<String, Value> =
        LiveMetric::ALL.iter().map(|m| (m.key().to_owned(), figures())).collect();
    let mut out = object(&json!({
        "latencies": object(&Value::Object(latencies)), "finished": count(""),
        "counted_by_server": count("Of these, those whose tokens the server counted."),
        "tokens_per_chunk": number(""), "other_length": count("Answers of another length than asked for."),
        "prompt_tokens_per_asked": number(""), "resent": count(""), "itl_requests": count(""),
        "itl_requests_with_tokens_of_each_chunk": count(""),
    }));
    out["description"] = json!("What only a client of a real server knows.");
    out
}

fn backlog() -> Value {
    object(&json!({
        "means": {"type": "array", "items": {"type": "number"}}, "step_seconds": number(""),
        "slope_per_second": number(""), "slope_half_width": number(""), "arrivals_per_second": number(""),
    }))
}

fn simulated() -> Value {
    let deadline = || json!({"type": ["integer", "null"], "minimum": 0});
    let class = object(&json!({
        "name": {"type": "string"}, "priority": {"type": "integer"}, "slo_ttft_ns": deadline(),
        "slo_tpot_ns": deadline(), "slo_e2e_ns": deadline(),
    }));
    object(&json!({
        "workload": {"type": "string"}, "cluster": {"type": "string"}, "configuration": {"type": "string"},
        "seed": {"type": ["integer", "null"]}, "mode": {"enum": ["surge", "steady"]}, "warmup_ns": count(""),
        "window_ns": count(""), "drain_ns": count(""), "classes": {"type": "array", "items": class},
        "endpoints": {"type": "array", "items": {"type": "string"}},
    }))
}

fn simulated_only() -> Value {
    json!({
        "counters": {"$ref": "#/$defs/counters"}, "scaling": {"$ref": "#/$defs/scaling"},
        "endpoints": {"type": "array", "items": {"$ref": "#/$defs/endpoint"}},
    })
}

fn counters() -> Value {
    let bin = object(&json!({"from": {"type": "number"}, "seconds": {"type": "number"}}));
    object(&json!({
        "arrived": count(""), "dispatched": count(""), "peak_live": count(""), "longest_engine_queue": count(""),
        "longest_gateway_queue": count(""), "disaggregated": count(""), "transferred_tokens": count(""),
        "preemptions": count(""), "lost_tokens": count(""), "computed_tokens": count(""),
        "recompute_share": number(""), "steps": count(""), "cycles": count(""), "events": count(""),
        "saturation": {"type": "array", "items": bin, "description": "Seconds at each saturation."},
    }))
}

fn scaling() -> Value {
    let group = object(&json!({
        "name": {"type": "string"}, "engine_seconds": number(""), "gpu_seconds": number(""),
        "starting_seconds": number(""), "first": count(""), "least": count(""), "most": count(""), "last": count(""),
    }));
    let event = object(&json!({
        "at_ns": count(""), "engines": {"type": "string"}, "from": count(""), "to": count(""),
        "metric": {"type": ["string", "null"]},
    }));
    object(&json!({
        "groups": {"type": "array", "items": group}, "events": {"type": "array", "items": event},
    }))
}

fn endpoint() -> Value {
    object(&json!({
        "index": count(""), "name": {"type": "string"}, "dispatched": count(""), "finished": count(""),
        "prompt_tokens": count(""), "cached_tokens": count(""), "output_tokens": count(""),
        "preemptions": count(""), "engine_wait": object(&Value::Object(percentiles())),
    }))
}

fn observed() -> Value {
    object(&json!({
        "kind": {"const": "observed"}, "target": {"type": "string"}, "model": {"type": "string"},
        "api": {"enum": ["chat", "completions"]}, "stream": {"type": "boolean"}, "workload": {"type": "string"},
        "rate": number("Requests per second that the workload asks for."), "seed": count(""), "salt": count(""),
        "warmup_ns": count(""), "window_ns": count(""), "drain_ns": count(""), "stopped": {"type": "boolean"},
        "client_cpu_ns": count(""),
    }))
}

fn observed_only() -> Value {
    let trouble = object(&json!({
        "label": {"type": "string"}, "count": count(""), "first_number": count(""),
        "first_message": {"type": "string"},
    }));
    json!({
        "schedule": {"$ref": "#/$defs/schedule"},
        "calibration": object(&json!({
            "measured": {"type": "boolean"}, "tokens_per_word": {"type": "number"},
            "tokens_of_template": {"type": "number"}, "tokens_of_further_turn": {"type": "number"},
        })),
        "endpoints": {"type": "array", "items": {"type": "string"}, "description": "Names that a router told."},
        "troubles": {"type": "array", "items": trouble},
        "classes": {"items": {"required": ["live"]}},
    })
}

fn schedule() -> Value {
    let ns = || json!({"type": ["integer", "null"], "minimum": 0});
    object(&json!({
        "valid": {"type": "boolean"}, "problems": {"type": "array", "items": {"type": "string"}},
        "offered": count(""), "sent": count(""), "offered_per_second": number(""), "sent_per_second": number(""),
        "rate_error": number(""), "lag_p50_ns": ns(), "lag_p99_ns": ns(), "lag_max_ns": ns(),
    }))
}
