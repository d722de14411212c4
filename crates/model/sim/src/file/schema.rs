//! The JSON Schema of cluster files, for editors and other tools. What a schema cannot say (names that have to exist,
//! arguments that a release does not know) only the reader checks.

use super::{MAX_SERVERS, ROLES};
use crate::scaling::ScaleMetric;
use serde_json::{Map, Value, json};

/// The schema (draft 2020-12) of cluster files.
pub fn cluster_schema() -> Value {
    let mut out = object(
        &["version", "engines"],
        &json!({
            "version": {"const": 1},
            "name": {"type": "string", "default": "cluster"},
            "engines": {
                "type": "array", "minItems": 1, "items": {"$ref": "#/$defs/engines"},
                "description": "Groups of equal servers.",
            },
            "scrape": {"$ref": "#/$defs/scrape"},
            "network": object(&[], &json!({
                "toEngine": time("From the dispatch to the arrival at the server.", Some("1ms")),
                "toClient": time("From the end of a step to the client.", Some("1ms")),
            })),
            "kvTransfer": object(&[], &json!({
                "bandwidth": {
                    "type": ["integer", "string"], "default": "25G",
                    "description": "Bytes per second between the server that computed a prompt and the one that decodes.",
                },
                "latency": time("Before the first byte.", Some("1ms")),
            })),
            "routers": {
                "type": "integer", "minimum": 1, "maximum": 64, "default": 1,
                "description": "Routers with a kernel each and nothing shared.",
            },
            "timeline": {
                "type": "array", "description": "What happens when.",
                "items": {"anyOf": [{"$ref": "#/$defs/change"}, {"$ref": "#/$defs/scale"}]},
            },
            "autoscalers": {"type": "array", "items": {"$ref": "#/$defs/autoscaler"}},
        }),
    );
    out["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    out["title"] = json!("forebay cluster");
    out["description"] = json!("The servers that a router is in front of, and what happens to them.");
    out["$defs"] = json!({
        "duration": {
            "type": "string", "pattern": "^[0-9.]+(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*$|^0$",
            "description": "A duration as Go writes it: 500ms, 1m30s.",
        },
        "engines": engines(), "args": args(), "factors": factors(), "start": start(), "scrape": scrape(),
        "change": change(), "scale": scale(), "autoscaler": autoscaler(), "rules": rules(),
    });
    out
}

fn object(required: &[&str], properties: &Value) -> Value {
    json!({"type": "object", "required": required, "additionalProperties": false, "properties": properties})
}

fn time(what: &str, default: Option<&str>) -> Value {
    let mut out = json!({"$ref": "#/$defs/duration", "description": what});
    if let Some(default) = default {
        out["default"] = json!(default);
    }
    out
}

fn text(what: &str) -> Value {
    json!({"type": "string", "description": what})
}

fn engines() -> Value {
    let mut out = object(
        &["hardware"],
        &json!({
            "count": {
                "type": "integer", "minimum": 1, "maximum": MAX_SERVERS, "default": 1,
                "description": "Servers at the start.",
            },
            "name": text("Name of the group; without one, the hardware's."),
            "model": text("A model of the catalogue, such as qwen3-14b."),
            "model-config": text("Instead of model: the model's Hugging Face config.json, looked for beside this file."),
            "hardware": text("A GPU of the catalogue, such as h100."),
            "vllm-version": {
                "type": ["string", "number"],
                "description": "The release whose defaults and rules hold, such as \"0.20\"; without one, the newest known.",
            },
            "role": {"enum": ROLES, "description": "The label llm-d.ai/role; without one, servers decode."},
            "labels": {
                "type": "object", "additionalProperties": {"type": "string"},
                "description": "Labels of the endpoints, for filters.",
            },
            "args": {"$ref": "#/$defs/args"},
            "factors": {"$ref": "#/$defs/factors"},
            "start": {"$ref": "#/$defs/start"},
            "grace": time("How long a drain may take before what still runs fails.", None),
        }),
    );
    out["anyOf"] = json!([{"required": ["model"]}, {"required": ["model-config"]}]);
    out
}

fn args() -> Value {
    let whole = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let flag = json!({"type": "boolean"});
    let share = json!({"type": "number", "minimum": 0, "maximum": 1});
    let mut out = object(
        &[],
        &json!({
            "tensor-parallel-size": whole, "max-num-seqs": whole, "max-num-batched-tokens": whole,
            "block-size": {"type": "integer", "minimum": 16, "multipleOf": 16},
            "gpu-memory-utilization": share, "max-model-len": whole, "enable-prefix-caching": flag,
            "num-gpu-blocks-override": whole, "scheduling-policy": {"enum": ["fcfs", "priority"]},
            "long-prefill-token-threshold": whole, "async-scheduling": flag,
            "scheduler-reserve-full-isl": flag, "max-loras": whole, "watermark": share,
        }),
    );
    out["description"] = json!("vLLM's arguments, by their names without dashes in front.");
    out
}

fn factors() -> Value {
    let share = json!({"type": "number", "minimum": 0});
    let duration = json!({"$ref": "#/$defs/duration"});
    let mut properties = Map::new();
    for name in super::FACTORS {
        let is_share = matches!(*name, "compute" | "bandwidth" | "kv" | "exposed" | "link");
        properties.insert((*name).to_owned(), if is_share { share.clone() } else { duration.clone() });
    }
    let mut out = object(&[], &Value::Object(properties));
    out["description"] = json!("Efficiency factors of the latency model, instead of the hardware's.");
    out
}

fn slowdown() -> Value {
    json!({
        "type": "number", "minimum": 0.01, "maximum": 1000,
        "description": "How many times as long steps take.",
    })
}

fn start() -> Value {
    let mut out = object(
        &[],
        &json!({
            "cold": time("From the decision to its joining the pool.", Some("0s")),
            "warmup": time("How long steps take slowdown times as long then.", Some("0s")),
            "slowdown": slowdown(),
        }),
    );
    out["description"] = json!("How a server comes up that joins later.");
    out["dependentRequired"] = json!({"warmup": ["slowdown"], "slowdown": ["warmup"]});
    out
}

fn scrape() -> Value {
    object(
        &[],
        &json!({
            "period": time("Time between two scrapes of a server.", Some("50ms")),
            "phase": {
                "default": "random",
                "description": "Where the beats lie: random per router and server, or a time.",
                "anyOf": [{"const": "random"}, {"$ref": "#/$defs/duration"}],
            },
            "delay": time("From asking to having read the answer.", Some("5ms")),
            "jitter": time("Up to how much more, drawn per scrape.", Some("10ms")),
        }),
    )
}

fn change() -> Value {
    let names: Vec<&str> = super::timeline::change_names().collect();
    let mut out = object(
        &["at", "engine", "change"],
        &json!({
            "at": time("When, from the start of the run.", None),
            "engine": text("The server, such as h100-0."),
            "change": {"enum": names},
            "start": {"$ref": "#/$defs/start"},
            "slowdown": slowdown(),
        }),
    );
    let only = |change: &str| json!({"properties": {"change": {"const": change}}});
    out["description"] = json!("Something happens to one server.");
    out["dependentSchemas"] = json!({"start": only("join"), "slowdown": only("slow")});
    out["if"] = only("slow");
    out["then"] = json!({"required": ["slowdown"]});
    out
}

fn scale() -> Value {
    let mut out = object(
        &["at", "scale"],
        &json!({
            "at": time("When, from the start of the run.", None),
            "scale": text("The group."),
            "to": {"type": "integer", "minimum": 0, "maximum": 5000, "description": "Its new size."},
            "by": {"type": "integer", "description": "How many more; negative: fewer."},
        }),
    );
    out["description"] = json!("A group gets another size.");
    out["oneOf"] = json!([{"required": ["to"]}, {"required": ["by"]}]);
    out
}

fn autoscaler() -> Value {
    let target = json!({"type": "number", "exclusiveMinimum": 0, "description": "Target per engine."});
    let metrics = ScaleMetric::ALL.iter().map(|(name, _)| ((*name).to_owned(), target.clone())).collect();
    let mut metrics = object(&[], &Value::Object(metrics));
    metrics["minProperties"] = json!(1);
    let mut out = object(
        &["engines", "maxReplicas", "metrics"],
        &json!({
            "engines": text("The group."),
            "minReplicas": {"type": "integer", "minimum": 1, "maximum": 5000, "default": 1},
            "maxReplicas": {"type": "integer", "minimum": 1, "maximum": 5000},
            "metrics": metrics,
            "period": time("Time between two evaluations.", Some("15s")),
            "tolerance": {
                "type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0.1,
                "description": "A metric within this share of its target changes nothing.",
            },
            "behavior": object(&[], &json!({
                "scaleUp": {"$ref": "#/$defs/rules"}, "scaleDown": {"$ref": "#/$defs/rules"},
            })),
        }),
    );
    out["description"] = json!("Rules for a group's size, those of a Kubernetes HorizontalPodAutoscaler.");
    out
}

fn rules() -> Value {
    let policy = object(
        &["type", "value", "periodSeconds"],
        &json!({
            "type": {"enum": ["Pods", "Percent"]},
            "value": {"type": "integer", "minimum": 1, "maximum": 10_000},
            "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
        }),
    );
    object(
        &[],
        &json!({
            "stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600},
            "policies": {"type": "array", "items": policy},
            "selectPolicy": {"enum": ["Max", "Min", "Disabled"]},
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema knows the fields that the reader knows.
    #[test]
    fn the_fields_are_the_readers() {
        let schema = cluster_schema();
        let names = |part: &Value| -> Vec<String> {
            let mut all: Vec<String> = part["properties"].as_object().unwrap().keys().cloned().collect();
            all.sort();
            all
        };
        let sorted = |list: &[&str]| -> Vec<String> {
            let mut all: Vec<String> = list.iter().map(|n| (*n).to_owned()).collect();
            all.sort();
            all
        };
        let defs = &schema["$defs"];
        for (part, fields) in [
            (&schema, super::super::TOP),
            (&defs["engines"], super::super::ENGINE),
            (&defs["args"], super::super::ARGS),
            (&defs["factors"], super::super::FACTORS),
            (&defs["start"], super::super::START),
            (&defs["scrape"], super::super::SCRAPE),
            (&schema["properties"]["network"], super::super::NETWORK),
            (&schema["properties"]["kvTransfer"], super::super::KV),
            (&defs["autoscaler"], super::super::timeline::AUTOSCALER),
            (&defs["rules"], super::super::timeline::RULES),
        ] {
            assert_eq!(names(part), sorted(fields));
        }
        let mut both = [names(&defs["change"]), names(&defs["scale"])].concat();
        both.sort();
        both.dedup();
        assert_eq!(both, sorted(super::super::timeline::ENTRY));
    }
}
