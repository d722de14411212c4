//! `forebay config`.

use crate::{fed, file, root, run};
use forebay_config::read_endpoints;
use std::fmt::Write;

const ARTICLE: &str = include_str!("../../../../../examples/article.yaml");

#[test]
fn the_article_passes_and_prints_what_it_means() {
    let r = run(&["config", "check", "examples/article.yaml"]);
    assert_eq!(r.code, 0, "{}", r.err);
    insta::assert_snapshot!("article_warnings", r.err);
    insta::assert_snapshot!("article_effective", r.out);
    let quiet = run(&["config", "check", "--allow-experimental-plugins", "examples/article.yaml"]).good();
    assert_eq!(quiet, r.out);
    // What is printed is a configuration, too, and means the same.
    let again = fed(&["config", "check", "--allow-experimental-plugins", "-"], &quiet).good();
    assert_eq!(again, quiet);
}

#[test]
fn strict_stability_refuses_alpha_plugins() {
    let r = run(&["config", "check", "--strict-stability", "examples/article.yaml"]);
    assert_eq!((r.code, r.out.as_str()), (64, ""));
    assert!(r.err.starts_with("error: examples/article.yaml:9:"), "{}", r.err);
    let both =
        ["config", "check", "--strict-stability", "--allow-experimental-plugins", "examples/article.yaml"];
    assert!(run(&both).good().starts_with("apiVersion: "));
}

/// The article with one slip: an error at its line, and at most one more where the plugin is then missed.
#[test]
fn a_slip_gives_an_error_with_its_line() {
    let mut all = String::new();
    for (what, from, to, line, errors) in [
        ("a misspelt field", "schedulingProfiles:", "schedulingProfile:", 10, 1),
        ("a wrong type", "weight: 3.0", "weight: heavy", 18, 1),
        ("an unknown plugin", "plugins:\n", "plugins:\n  - type: lora-scorer\n", 6, 1),
        ("a misspelt plugin", "type: queue-scorer", "type: queue-scoer", 6, 1),
        ("a duplicate name", "plugins:\n", "plugins:\n  - type: queue-scorer\n", 7, 1),
        ("another kind", "PluginRef: soft-reflective-ceiling-policy", "PluginRef: queue-scorer", 20, 1),
        ("an unsupported plugin", "plugins:\n", "plugins:\n  - type: latency-slo-admitter\n", 6, 1),
    ] {
        let text = ARTICLE.replacen(from, to, 1);
        assert_ne!(text, ARTICLE, "{what}");
        let r = fed(&["config", "check", "--allow-experimental-plugins", "-"], &text);
        assert_eq!((r.code, r.out.as_str()), (64, ""), "{what}: {}", r.err);
        assert!(r.err.starts_with(&format!("error: stdin:{line}:")), "{what}: {}", r.err);
        assert!(r.err.lines().count() <= errors, "{what}: {}", r.err);
        write!(all, "{what}\n{}\n", r.err).unwrap();
    }
    insta::assert_snapshot!("slips", all);
}

#[test]
fn objectives_are_checked_with_it() {
    let good = file(
        "objectives.yaml",
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: critical}\nspec: {priority: 100}\n",
    );
    let bad = file(
        "wrong-objectives.yaml",
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: critical}\nspec: {priority: high}\n",
    );
    let check = |path: &std::path::Path, text: &str| {
        let args =
            ["config", "check", "--allow-experimental-plugins", "--objectives", path.to_str().unwrap(), "-"];
        fed(&args, text)
    };
    assert!(check(&good, ARTICLE).good().starts_with("apiVersion: "));
    let r = check(&bad, ARTICLE);
    assert_eq!((r.code, r.out.as_str()), (64, ""));
    assert!(r.err.contains("wrong-objectives.yaml:4:"), "{}", r.err);
    // Both files' errors at once.
    let r = check(&bad, &ARTICLE.replace("flowControl:", "flowContrl:"));
    assert_eq!(r.err.lines().filter(|l| l.starts_with("error: ")).count(), 2, "{}", r.err);
}

#[test]
fn the_committed_schema_is_the_one_that_is_printed() {
    let printed = run(&["config", "schema"]).good();
    let committed = std::fs::read_to_string(root().join("docs/config.schema.json")).unwrap();
    assert!(printed == committed, "run `cargo xtask docs`");
}

#[test]
fn every_example_loads() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let (name, text) = (path.to_str().unwrap(), std::fs::read_to_string(&path).unwrap());
        let check = |args: &[&str]| {
            let r = run(&[&["config", "check", "--allow-experimental-plugins"], args].concat());
            assert_eq!((r.code, r.err.as_str()), (0, ""), "{name}");
        };
        if text.contains("kind: EndpointPickerConfig") {
            check(&[name]);
        } else if text.contains("kind: Inference") {
            check(&["--objectives", name, "examples/article.yaml"]);
        } else {
            let (endpoints, found) = read_endpoints(&text, name);
            assert!(!endpoints.is_empty() && !found.has_errors(), "{found}");
        }
        seen += 1;
    }
    assert!(seen > 0);
}
