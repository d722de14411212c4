//! `forebay plugins`.

use crate::{root, run};

#[test]
fn the_list_and_a_description_read_well() {
    let list = run(&["plugins"]).good();
    let one = run(&["plugins", "priority-holdback-policy"]).good();
    // The columns of the longest nested names.
    let nested = run(&["plugins", "core-metrics-extractor"]).good();
    for text in [&list, &one, &nested] {
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    }
    insta::assert_snapshot!("plugins", list);
    insta::assert_snapshot!("plugin", one);
    insta::assert_snapshot!("plugin_nested", nested);
}

#[test]
fn an_alias_finds_its_type() {
    assert_eq!(run(&["plugins", "tokenizer"]).good(), run(&["plugins", "token-producer"]).good());
}

#[test]
fn json_has_every_type_and_parameter() {
    let all: serde_json::Value = serde_json::from_str(&run(&["plugins", "--json"]).good()).unwrap();
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    let kernel = forebay_kernel::plugins::ALL.iter().chain(forebay_live::plugins::ALL);
    assert_eq!(names, kernel.map(|d| d.name).collect::<Vec<_>>());
    let one: serde_json::Value =
        serde_json::from_str(&run(&["plugins", "utilization-detector", "--json"]).good()).unwrap();
    assert_eq!(one["kinds"], serde_json::json!(["saturation detector", "filter"]));
    assert_eq!(
        one["parameters"][1],
        serde_json::json!({
            "name": "kvCacheUtilThreshold", "type": "number", "range": "in (0, 1]", "required": false,
            "default": 0.8, "unit": one["parameters"][1]["unit"], "doc": one["parameters"][1]["doc"],
        })
    );
    assert!(all.as_array().unwrap().contains(&one));
}

#[test]
fn a_wrong_name_gets_the_nearest() {
    for (name, said) in [
        (
            "queue-scoer",
            "error: \"queue-scoer\" is no plugin type; expected a type that `forebay plugins` lists; did you mean \"queue-scorer\"?\n",
        ),
        (
            "latency-slo-admitter",
            "error: \"latency-slo-admitter\" is known to llm-d-router, not supported by forebay yet\n",
        ),
    ] {
        let r = run(&["plugins", name]);
        assert_eq!((r.code, r.out.as_str(), r.err.as_str()), (64, "", said));
    }
}

#[test]
fn the_committed_reference_is_the_one_that_is_printed() {
    let printed = run(&["plugins", "--markdown"]).good();
    let committed = std::fs::read_to_string(root().join("docs/plugins.md")).unwrap();
    assert!(printed == committed, "run `cargo xtask docs`");
}
