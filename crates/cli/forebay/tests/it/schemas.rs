//! The JSON Schemas that are printed: what is committed, and that files keep to them.

use crate::{file, root, run};
use forebay_document::{Content, Node, ScalarKind, parse};
use jsonschema::Validator;
use serde_json::{Map, Value};
use std::path::Path;

fn schema(args: &[&str]) -> Value {
    serde_json::from_str(&run(args).good()).unwrap()
}

fn validator(args: &[&str]) -> Validator {
    let schema = schema(args);
    jsonschema::meta::validate(&schema).unwrap_or_else(|e| panic!("no schema: {e}"));
    jsonschema::validator_for(&schema).unwrap()
}

fn problems(v: &Validator, value: &Value) -> Vec<String> {
    v.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

/// A YAML document as JSON.
fn json(node: &Node) -> Value {
    match &node.content {
        Content::Map(entries) => {
            Value::Object(entries.iter().map(|e| (e.key.clone(), json(&e.value))).collect::<Map<_, _>>())
        }
        Content::List(items) => items.iter().map(json).collect(),
        Content::Scalar(s) => match s.kind {
            ScalarKind::Null => Value::Null,
            ScalarKind::Bool(b) => b.into(),
            ScalarKind::Int(i) => i.into(),
            ScalarKind::Float(x) => x.into(),
            ScalarKind::Text { .. } => s.text.clone().into(),
        },
    }
}

fn yaml(text: &str) -> Value {
    json(&parse(text, &mut forebay_base::Diagnostics::default())[0])
}

#[test]
fn the_committed_schemas_are_those_that_are_printed() {
    for (args, name) in
        [(["config", "schema", "cluster"], "cluster"), (["config", "schema", "summary"], "summary")]
    {
        let committed = std::fs::read_to_string(root().join(format!("docs/{name}.schema.json"))).unwrap();
        assert!(run(&args).good() == committed, "run `cargo xtask docs`");
    }
}

/// The YAML in the documents about clusters, and files with every field.
#[test]
fn cluster_files_keep_to_their_schema() {
    let v = validator(&["config", "schema", "cluster"]);
    let text = std::fs::read_to_string(root().join("docs/clusters.md")).unwrap();
    let mut seen = 0;
    for block in text.split("```yaml\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let value = yaml(block);
        if value.get("version").is_some() {
            assert_eq!(problems(&v, &value), [""; 0], "{block}");
            seen += 1;
        }
    }
    assert!(seen > 0);
    let full = yaml(FULL);
    assert_eq!(problems(&v, &full), [""; 0]);
    let path = file("schemas-cluster.yaml", FULL);
    let workload = file("schemas-cluster-workload.yaml", WORKLOAD);
    let args = ["simulate", "--config", "examples/article.yaml", "--workload", workload.to_str().unwrap()];
    let r = run(&[&args[..], &["--cluster", path.to_str().unwrap()]].concat());
    assert_eq!(r.code, 0, "what the schema takes the reader takes: {}", r.err);
}

const FULL: &str = "
version: 1
name: everything
engines:
  - {name: new, count: 2, model: qwen3-14b, hardware: h100, vllm-version: 0.20, labels: {zone: a},
     start: {cold: 90s, warmup: 30s, slowdown: 2}, grace: 60s,
     args: {max-num-seqs: 256, block-size: 32, gpu-memory-utilization: 0.9, enable-prefix-caching: true,
            scheduling-policy: priority, async-scheduling: false, max-loras: 4},
     factors: {compute: 0.6, step: 3ms}}
  - {name: old, model: qwen3-14b, hardware: a100}
scrape: {period: 50ms, phase: random, delay: 5ms, jitter: 10ms}
network: {toEngine: 1ms, toClient: 1ms}
kvTransfer: {bandwidth: 25G, latency: 1ms}
routers: 2
timeline:
  - {at: 1s, engine: old-2, change: slow, slowdown: 1.5}
  - {at: 2s, engine: old-2, change: drain}
  - {at: 3s, engine: old-2, change: join, start: {cold: 1s}}
  - {at: 4s, scale: old, by: 1}
autoscalers:
  - engines: new
    maxReplicas: 4
    metrics: {in-flight: 32, queue: 5}
    behavior: {scaleUp: {stabilizationWindowSeconds: 60, policies: [{type: Pods, value: 1, periodSeconds: 30}]},
               scaleDown: {selectPolicy: Disabled}}
";

const WORKLOAD: &str = "
version: 1
name: short
mode: {kind: surge, window: 20s, warmup: 0s, drain: 600s}
classes:
  critical: {priority: 100, arrivals: {process: poisson, rate: 5}, input: 300, output: 20, slo: {ttft: 1s}}
  sheddable: {priority: -50, arrivals: {process: poisson, rate: 5}, input: 300, output: 20}
";

#[test]
fn what_is_wrong_in_a_cluster_file_is_wrong_by_the_schema() {
    let v = validator(&["config", "schema", "cluster"]);
    let engine = "{model: qwen3-14b, hardware: h100}";
    for wrong in [
        "{engines: [{model: qwen3-14b, hardware: h100}]}".to_owned(),
        "{version: 1, engines: []}".to_owned(),
        "{version: 1, engines: [{hardware: h100}]}".to_owned(),
        format!("{{version: 1, engines: [{engine}], scrapes: {{}}}}"),
        format!("{{version: 1, engines: [{engine}], network: {{toEngine: 5}}}}"),
        format!("{{version: 1, engines: [{engine}], timeline: [{{at: 1s, engine: a, change: die}}]}}"),
        format!("{{version: 1, engines: [{engine}], timeline: [{{at: 1s, engine: a, change: slow}}]}}"),
        format!(
            "{{version: 1, engines: [{engine}], timeline: [{{at: 1s, engine: a, change: fail, slowdown: 2}}]}}"
        ),
        format!("{{version: 1, engines: [{engine}], timeline: [{{at: 1s, scale: h100}}]}}"),
        format!(
            "{{version: 1, engines: [{engine}], autoscalers: [{{engines: a, maxReplicas: 2, metrics: {{}}}}]}}"
        ),
        "{version: 1, engines: [{model: a, hardware: b, args: {block-size: 24}}]}".to_owned(),
    ] {
        assert!(!v.is_valid(&yaml(&wrong)), "{wrong}");
    }
}

#[test]
fn the_workloads_that_ship_keep_to_their_schema() {
    let v = validator(&["workload", "schema"]);
    for (name, text) in forebay_workload::PRESETS {
        assert_eq!(problems(&v, &yaml(text)), [""; 0], "{name}");
    }
    assert_eq!(problems(&v, &yaml(WORKLOAD)), [""; 0]);
}

#[test]
fn a_fresh_summary_keeps_to_its_schema() {
    let v = validator(&["config", "schema", "summary"]);
    let workload = file("schemas-workload.yaml", WORKLOAD);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemas-summary");
    let args =
        ["simulate", "--config", "examples/article.yaml", "--workload", workload.to_str().unwrap(), "--out"];
    let r = run(&[&args[..], &[dir.to_str().unwrap()]].concat());
    assert_eq!(r.code, 0, "{}", r.err);
    let summary: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("summary.json")).unwrap()).unwrap();
    assert_eq!(problems(&v, &summary), [""; 0]);
    // Every key of it is described.
    let schema = schema(&["config", "schema", "summary"]);
    let known = |name: &str| schema.to_string().contains(&format!("\"{name}\":"));
    for key in summary.as_object().unwrap().keys().chain(summary["total"].as_object().unwrap().keys()) {
        assert!(known(key), "{key}");
    }
    let mut wrong = summary.clone();
    wrong["total"]["latencies"]["ttft"]["p99_ns"]["standing"] = "maybe".into();
    assert!(!v.is_valid(&wrong));
    let mut short = summary;
    short.as_object_mut().unwrap().remove("counters");
    assert!(!v.is_valid(&short), "a simulation has counters");
}
