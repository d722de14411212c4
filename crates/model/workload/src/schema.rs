//! The JSON Schema of workload files, for editors and other tools. What a schema cannot say (names that
//! have to exist, ranges that depend on each other) only the reader checks.

use serde_json::{Value, json};

/// The schema (draft 2020-12), with a line feed at its end.
pub fn schema() -> String {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

fn document() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "forebay workload",
        "description": "Who arrives when, with what.",
        "type": "object",
        "required": ["version", "name", "mode", "classes"],
        "additionalProperties": false,
        "properties": {
            "version": {"const": 1},
            "name": {"type": "string"},
            "mode": mode(),
            "lengths": {
                "type": "object",
                "description": "Distributions by name, for input, output, prefix and turns.",
                "additionalProperties": {"$ref": "#/$defs/distribution"},
            },
            "classes": {
                "type": "object",
                "description": "Classes by name. Draws depend on the name, not on the place.",
                "minProperties": 1,
                "maxProperties": 1000,
                "additionalProperties": {"$ref": "#/$defs/class"},
            },
            "stages": {"$ref": "#/$defs/stages"},
            "repeat": {"type": "boolean", "description": "Whether the stages begin again after the last."},
            "traces": {"type": "array", "items": {"$ref": "#/$defs/trace"}},
            "bytesPerToken": {
                "type": "number", "minimum": 0, "default": 4,
                "description": "Bytes of a request body per token of its prompt, beside 256 for the rest.",
            },
        },
        "$defs": {
            "duration": {
                "type": "string", "pattern": "^[0-9.]+(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*$|^0$",
                "description": "A duration as Go writes it: 500ms, 1m30s.",
            },
            "pair": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            "distribution": distribution(),
            "length": {
                "description": "The name of a length, a distribution, or a number of tokens.",
                "anyOf": [{"type": "string"}, {"$ref": "#/$defs/distribution"}],
            },
            "times": {
                "description": "A duration, or a distribution of seconds.",
                "anyOf": [{"$ref": "#/$defs/duration"}, {"$ref": "#/$defs/distribution"}],
            },
            "stages": stages(),
            "arrivals": arrivals(),
            "class": class(),
            "trace": trace(),
        },
    })
}

fn mode() -> Value {
    json!({
        "type": "object",
        "required": ["kind", "window"],
        "additionalProperties": false,
        "properties": {
            "kind": {
                "enum": ["surge", "steady"],
                "description": "surge: a fixed time from an empty pool. steady: a rate that can go on for ever.",
            },
            "window": {"$ref": "#/$defs/duration", "description": "The measured time of arrivals."},
            "warmup": {"$ref": "#/$defs/duration", "description": "Arrivals before that, not measured.", "default": "0s"},
            "drain": {
                "$ref": "#/$defs/duration", "default": "0s",
                "description": "The most time after the last arrival; what still runs then is censored.",
            },
        },
    })
}

fn distribution() -> Value {
    let one = |name: &str, value: Value| {
        let mut properties = serde_json::Map::new();
        properties.insert(name.to_owned(), value);
        let clamp = json!({"$ref": "#/$defs/pair", "description": "Least and greatest value."});
        properties.insert("clamp".to_owned(), clamp);
        json!({"type": "object", "required": [name], "additionalProperties": false, "properties": properties})
    };
    let pair = |what: &str| json!({"$ref": "#/$defs/pair", "description": what});
    let number = |what: &str| json!({"type": "number", "minimum": 0, "description": what});
    json!({
        "anyOf": [
            {"type": "number", "minimum": 0},
            one("constant", number("Always this.")),
            one("uniform", pair("Least and greatest value.")),
            one("normal", pair("Mean and standard deviation.")),
            one("lognormal", pair("Mean and standard deviation of the logarithm.")),
            one("exponential", number("Mean.")),
            one("empirical", json!({
                "type": "object", "minProperties": 1,
                "description": "Weights by value.",
                "patternProperties": {"^[0-9.eE+-]+$": {"type": "number", "minimum": 0}},
                "additionalProperties": false,
            })),
        ],
    })
}

fn stages() -> Value {
    json!({
        "type": "array",
        "description": "Factors on the rates over time, from the start of the run. After the last its end stays.",
        "items": {
            "type": "object",
            "required": ["for", "scale"],
            "additionalProperties": false,
            "properties": {
                "for": {"$ref": "#/$defs/duration"},
                "scale": {
                    "description": "A factor, or the factors at the start and at the end of a ramp.",
                    "anyOf": [{"type": "number", "minimum": 0}, {"$ref": "#/$defs/pair"}],
                },
            },
        },
    })
}

fn arrivals() -> Value {
    let rate = json!({"type": "number", "minimum": 0, "description": "Requests per second at scale 1."});
    let cv = json!({
        "type": "number", "minimum": 0.01, "maximum": 20,
        "description": "Coefficient of variation of the gaps.",
    });
    let one = |name: &str, required: &[&str], fields: Value| {
        let mut properties = fields.as_object().cloned().unwrap_or_default();
        properties.insert("process".to_owned(), json!({"const": name}));
        let required: Vec<&str> = ["process"].into_iter().chain(required.iter().copied()).collect();
        json!({"type": "object", "required": required, "additionalProperties": false, "properties": properties})
    };
    let duration = json!({"$ref": "#/$defs/duration"});
    let phase = json!({
        "description": "The share of the first gap that has passed: random, or 0 to 1.", "default": "random",
        "anyOf": [{"const": "random"}, {"type": "number", "minimum": 0, "maximum": 1}],
    });
    json!({
        "oneOf": [
            one("constant", &["rate"], json!({"rate": rate, "phase": phase})),
            one("poisson", &["rate"], json!({"rate": rate})),
            one("gamma", &["rate", "cv"], json!({"rate": rate, "cv": cv})),
            one("weibull", &["rate"], json!({
                "rate": rate, "cv": cv,
                "shape": {"type": "number", "minimum": 0.1, "maximum": 200},
            })),
            one("on-off", &["rate", "busy", "idle"], json!({"rate": rate, "busy": duration, "idle": duration})),
            one("exact", &["rate"], json!({"rate": rate, "cv": cv})),
            one("closed", &["users"], json!({
                "users": {"type": "integer", "minimum": 1, "maximum": 65535},
                "think": {"$ref": "#/$defs/times"},
                "ramp": duration,
            })),
            one("servegen", &["trace", "dataset"], json!({
                "trace": {"type": "string", "description": "The windows of a client."},
                "dataset": {"type": "string", "description": "The lengths of the same client."},
                "start": duration,
                "scale": {"type": "number", "minimum": 0},
            })),
        ],
    })
}

fn class() -> Value {
    let whole = |least: u64| json!({"type": "integer", "minimum": least});
    let skew = json!({
        "type": "number", "minimum": 0, "maximum": 10, "default": 0,
        "description": "The k-th has weight 1/k^skew.",
    });
    let object = |required: &[&str], properties: Value| json!({"type": "object", "required": required, "additionalProperties": false, "properties": properties});
    let duration = json!({"$ref": "#/$defs/duration"});
    object(
        &[],
        json!({
            "description": {"type": "string"},
            "priority": {"type": "integer", "default": 0, "description": "Greater is more urgent."},
            "arrivals": {"$ref": "#/$defs/arrivals"},
            "stages": {"$ref": "#/$defs/stages"},
            "repeat": {"type": "boolean"},
            "input": {"$ref": "#/$defs/length", "description": "Tokens of a prompt, beside what it shares or repeats."},
            "output": {"$ref": "#/$defs/length", "description": "Tokens of an answer."},
            "slo": object(&[], json!({"ttft": duration, "tpot": duration, "e2e": duration})),
            "timeout": {"$ref": "#/$defs/duration", "description": "The client gives up after this time."},
            "retry": {"anyOf": [
                {"const": "none"},
                object(&["attempts", "backoff"], json!({
                    "attempts": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Sends in all."},
                    "backoff": {"$ref": "#/$defs/duration", "description": "It doubles each time."},
                })),
            ]},
            "flows": {"anyOf": [whole(1), object(&["count"], json!({"count": whole(1), "skew": skew}))]},
            "prompts": object(&[], json!({
                "groups": {"type": "integer", "minimum": 1, "default": 1},
                "prefix": {"$ref": "#/$defs/length", "description": "Tokens of a group's own text, before the input."},
                "pool": {"type": "integer", "minimum": 0, "default": 0, "description": "Prompts per group; 0 for endless."},
                "order": {"enum": ["shuffled-cycle", "reshuffled", "cycle", "random"]},
                "skew": skew,
                "name": {"type": "string", "description": "Classes with the same name share their texts."},
            })),
            "sessions": object(&["turns"], json!({
                "turns": {"$ref": "#/$defs/length"},
                "think": {"$ref": "#/$defs/times"},
                "history": {"enum": ["accumulate", "none"], "default": "accumulate"},
                "maxContext": {"type": "integer", "minimum": 1, "maximum": 10_000_000, "default": 1_048_576},
            })),
            "lora": object(&["adapters"], json!({
                "adapters": whole(1),
                "share": {"type": "number", "minimum": 0, "maximum": 1, "default": 1},
                "skew": skew,
            })),
        }),
    )
}

fn trace() -> Value {
    json!({
        "type": "object",
        "required": ["file"],
        "additionalProperties": false,
        "properties": {
            "file": {"type": "string"},
            "format": {"enum": crate::trace::Format::NAMES, "description": "Guessed from the first line if missing."},
            "rateScale": {"type": "number", "exclusiveMinimum": 0, "description": "Times are divided by it."},
            "limit": {"type": "integer", "minimum": 1, "description": "At most so many rows."},
            "spread": {
                "$ref": "#/$defs/duration",
                "description": "Rows with one time are spread up to the next time, over no more than this.",
            },
            "class": {"type": "string", "description": "The class of all rows without a label of their own."},
            "shares": {
                "type": "object", "description": "Or the classes of those rows, with their weights.",
                "additionalProperties": {"type": "number", "minimum": 0},
            },
            "labels": {
                "type": "object", "additionalProperties": {"type": "string"},
                "description": "Class by label: the model in BurstGPT, the objective in an access log.",
            },
        },
    })
}
