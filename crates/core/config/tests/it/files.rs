//! Manifests and endpoint files.

use forebay_config::endpoints::MAX_ENDPOINTS_BYTES;
use forebay_config::{Manifests, read_endpoints};

const MANIFESTS: &str = "\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: critical, labels: {a: b}}
spec:
  priority: 100
  poolRef: {name: pool}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: sheddable, namespace: x, creationTimestamp: null}
spec: {priority: -50}
---
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: plain}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
---
apiVersion: v1
kind: List
items:
  - apiVersion: llm-d.ai/v1alpha2
    kind: InferenceModelRewrite
    metadata: {name: canary}
    spec:
      poolRef: {group: g, kind: InferencePool, name: pool}
      rules:
        - targets: [{modelRewrite: all}]
        - matches: [{model: {value: a}}, {model: {type: Exact, value: b}}]
          targets: [{weight: 1, modelRewrite: one}, {weight: 3, modelRewrite: two}, {modelRewrite: never}]
        - matches: [{model: {value: a}}]
          targets: [{modelRewrite: late}]
        - matches: [{model: {value: even}}]
          targets: [{modelRewrite: left}, {modelRewrite: right}]
        - matches: [{model: {value: kept}}]
";

#[test]
fn objectives_and_rewrites_are_looked_up() {
    let m = Manifests::read([("m.yaml", MANIFESTS)]).unwrap();
    assert_eq!(m.priority("critical"), Some(100));
    assert_eq!(m.priority("sheddable"), Some(-50));
    assert_eq!(m.priority("plain"), Some(0));
    assert_eq!(m.priority("nobody"), None);
    assert_eq!(m.priorities(), [100, 0, -50]);
    assert_eq!(m.warnings.0.len(), 1);
    assert!(m.warnings.to_string().contains("m.yaml:"), "{}", m.warnings);
    for (model, draw, target) in [
        ("other", 0.5, Some("all")),
        ("a", 0.0, Some("one")),
        ("a", 0.24, Some("one")),
        ("b", 0.26, Some("two")),
        ("b", 0.999_999, Some("two")),
        ("even", 0.49, Some("left")),
        ("even", 0.51, Some("right")),
        ("kept", 0.5, None),
    ] {
        assert_eq!(m.rewrite(model, draw).map(|r| r.1), target, "{model} {draw}");
    }
    assert_eq!(Manifests::default().rewrite("a", 0.5), None);
}

#[test]
fn weights_are_kept_over_many_draws() {
    let m = Manifests::read([("m.yaml", MANIFESTS)]).unwrap();
    let ones =
        (0..1000).filter(|i| m.rewrite("a", f64::from(*i) / 1000.0).map(|r| r.1) == Some("one")).count();
    assert_eq!(ones, 250);
}

#[test]
fn wrong_manifests_say_where() {
    let text = "\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: a}
spec: {priorty: 1}
---
apiVersion: llm-d.ai/v1alpha1
kind: InferenceObjectiv
metadata: {name: a}
spec: {priority: high}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {}
spec:
  rules:
    - targets: [{weight: 0, modelRewrite: x}]
    - targets: []
    - matches: [{model: {value: ''}}]
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: r}
spec:
  rules:
    - targets: []
    - matches: [{model: {value: ''}}]
";
    let found = Manifests::read([("m.yaml", text)]).unwrap_err();
    insta::assert_snapshot!(found.to_string());
}

#[test]
fn directories_are_read_by_name() {
    let dir = std::env::temp_dir().join(format!("forebay-manifests-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let objective = |name: &str, p: i32| {
        format!(
            "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {{name: {name}}}\nspec: {{priority: {p}}}\n"
        )
    };
    std::fs::write(dir.join("b.yml"), objective("b", 2)).unwrap();
    std::fs::write(dir.join("a.yaml"), objective("a", 1)).unwrap();
    std::fs::write(dir.join("notes.txt"), "not a manifest: [").unwrap();
    let m = Manifests::read_path(&dir).unwrap();
    assert_eq!(m.objectives.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    std::fs::write(dir.join("c.json"), objective("a", 3)).unwrap();
    let twice = Manifests::read_path(&dir).unwrap_err().to_string();
    assert!(twice.contains("c.json:3:18: metadata.name: duplicate objective \"a\""), "{twice}");
    assert_eq!(Manifests::read_path(&dir.join("a.yaml")).unwrap().priority("a"), Some(1));
    assert!(Manifests::read_path(&dir.join("none")).unwrap_err().to_string().contains("cannot be read"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn endpoint_files_give_what_is_right_and_say_what_is_not() {
    let text = "\
endpoints:
  - name: vllm-0
    address: 10.0.0.1
    port: \"8000\"
    labels: {llm-d.ai/role: decode, a: b}
  - {name: vllm-1, namespace: prod, address: \"10.0.0.2\", port: '8001'}
  - {name: vllm-2, address: host.example, port: '8001'}
  - {name: vllm-3, address: 10.0.0.3, port: '0'}
  - {name: vllm-4, address: 10.0.0.3, port: 8000}
  - {name: vllm-0, address: 10.0.0.3, port: '80'}
  - {name: vllm-5, address: 10.0.0.3, port: '80', labels: {n: 5}}
  - {name: vllm-6, adress: 10.0.0.3, port: '80'}
";
    let (endpoints, found) = read_endpoints(text, "endpoints.yaml");
    let specs: Vec<_> = endpoints.iter().map(forebay_config::FileEndpoint::spec).collect();
    assert_eq!(specs[0].name, "default/vllm-0");
    assert_eq!(specs[0].label("llm-d.ai/role"), Some("decode"));
    assert_eq!(specs[0].labels[0].0, "a", "labels are sorted");
    assert_eq!(specs[1].name, "prod/vllm-1");
    assert_eq!(endpoints[1].address.to_string(), "10.0.0.2:8001");
    assert_eq!(endpoints.len(), 2);
    insta::assert_snapshot!(found.to_string());
}

#[test]
fn large_and_empty_endpoint_files() {
    let (none, found) = read_endpoints(&" ".repeat(MAX_ENDPOINTS_BYTES + 1), "e.yaml");
    assert!(none.is_empty() && found.to_string().contains("expected at most 1048576"));
    let (none, found) = read_endpoints("endpoints: []\n", "e.yaml");
    assert!(none.is_empty() && found.0.is_empty());
}
