//! The printed form loads again to the same configuration.

use crate::{HEAD, catalogue};
use forebay_config::{Config, Options, load};
use proptest::prelude::*;

fn again(config: &Config) -> Config {
    let text = config.to_string();
    load(&text, "printed", &catalogue(), Options::default()).unwrap_or_else(|e| panic!("{e}\nin\n{text}"))
}

fn same(a: &Config, b: &Config) {
    assert_eq!(a.to_string(), b.to_string());
    assert_eq!(
        (
            &a.gates,
            (&a.profile, &a.prefill),
            a.handler,
            a.detector,
            &a.flow,
            &a.data_layer,
            &a.parsers,
            a.proxy
        ),
        (
            &b.gates,
            (&b.profile, &b.prefill),
            b.handler,
            b.detector,
            &b.flow,
            &b.data_layer,
            &b.parsers,
            b.proxy
        )
    );
    let plugins = |c: &Config| -> Vec<_> {
        c.plugins.iter().map(|i| (i.name.clone(), i.descriptor.name, i.values.clone())).collect()
    };
    assert_eq!(plugins(a), plugins(b));
}

/// The name of a plugin: also what YAML would take for something else.
fn a_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        Just("yes".into()),
        Just("null".into()),
        Just("12".into()),
        Just("a: \"b\" #é\n".into())
    ]
}

fn quoted(t: &str) -> String {
    serde_json::to_string(t).unwrap()
}

prop_compose! {
    fn a_text()(
        gate in any::<bool>(),
        picker in a_name(),
        detector in a_name(),
        picks in 1..5i64,
        kv in 0.01..=1.0f64,
        stale in 1..10_000_000_000u64,
        weight in -1e9..1e9f64,
        profile in a_name(),
        listed in any::<bool>(),
        ttl in proptest::option::of(0..1_000_000_000_000u64),
        empty in proptest::option::of(0..3u64),
        bytes in proptest::option::of(prop_oneof![Just("1Gi"), Just("0"), Just("1.5k"), Just("7")]),
        bands in proptest::collection::btree_map(-100..100i32, proptest::option::of(0..9000u32), 0..5),
        negative in any::<bool>(),
        parsers in proptest::sample::subsequence(vec!["openai-parser", "vllmhttp-parser"], 0..=2),
        inject in any::<bool>(),
    ) -> String {
        use std::fmt::Write;
        let mut t = HEAD.to_owned();
        writeln!(t, "featureGates: [flowControl={gate}]").unwrap();
        writeln!(t, "plugins:").unwrap();
        writeln!(t, "  - {{name: {}, type: max-score-picker, parameters: {{maxNumOfEndpoints: {picks}}}}}", quoted(&format!("p{picker}"))).unwrap();
        writeln!(t, "  - name: {}\n    type: utilization-detector", quoted(&format!("{detector}d"))).unwrap();
        writeln!(t, "    parameters: {{kvCacheUtilThreshold: {kv}, metricsStalenessThreshold: {stale}ns}}").unwrap();
        writeln!(t, "  - type: queue-scorer\n  - type: prefix-cache-scorer\n  - type: metrics-data-source").unwrap();
        writeln!(t, "  - {{type: core-metrics-extractor, parameters: {{engineConfigs: [{{name: {}}}]}}}}", quoted(&picker)).unwrap();
        writeln!(t, "  - {{type: priority-holdback-policy, parameters: {{domain: explicit, ceilings: [{{priority: 3, ceiling: {kv}}}]}}}}").unwrap();
        if listed {
            writeln!(t, "schedulingProfiles: [{{name: {}, plugins: [{{pluginRef: queue-scorer, weight: {weight}}}]}}]", quoted(&profile)).unwrap();
        }
        writeln!(t, "dataLayer: {{injectDefaults: {inject}, sources: [{{pluginRef: metrics-data-source}}]}}").unwrap();
        writeln!(t, "requestHandler: {{parsers: [{}]}}", parsers.iter().map(|p| format!("{{pluginRef: {p}}}")).collect::<Vec<_>>().join(", ")).unwrap();
        writeln!(t, "flowControl:\n  saturationDetector: {{pluginRef: {}}}", quoted(&format!("{detector}d"))).unwrap();
        writeln!(t, "  usageLimitPolicyPluginRef: priority-holdback-policy").unwrap();
        let mut proxy = String::new();
        if let Some(ns) = ttl { writeln!(t, "  defaultRequestTTL: {ns}ns").unwrap(); }
        if let Some(s) = empty { writeln!(t, "  noEndpointRequestTTL: {s}m").unwrap(); }
        if let Some(b) = bytes { writeln!(t, "  maxBytes: {b}\n  defaultPriorityBand: {{maxBytes: {b}}}").unwrap(); }
        if let Some(b) = bytes.filter(|b| *b != "0") {
            writeln!(proxy, "proxy: {{maxBody: {b}, maxConnections: {picks}, retryOn: first-byte, checkModels: {inject}, keepIdle: {stale}ns}}").unwrap();
        }
        if negative { writeln!(t, "  defaultNegativePriorityBand: {{maxRequests: 9}}").unwrap(); }
        writeln!(t, "  priorityBands:{}", if bands.is_empty() { " []" } else { "" }).unwrap();
        for (p, n) in bands {
            writeln!(t, "    - priority: {p}").unwrap();
            if let Some(n) = n { writeln!(t, "      maxRequests: {n}").unwrap(); }
        }
        t.push_str(&proxy);
        t
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn printed_configurations_load_again(text in a_text()) {
        let config = load(&text, "text", &catalogue(), Options::default());
        let config = config.unwrap_or_else(|e| panic!("{e}\nin\n{text}"));
        same(&config, &again(&config));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Cutting, doubling and swapping pieces of a configuration never panics, and a refusal says why.
    #[test]
    fn damaged_configurations_are_refused_with_a_reason(
        text in prop_oneof![Just(crate::errors::MANY.to_owned()), a_text()],
        cuts in proptest::collection::vec((any::<proptest::sample::Index>(), 0..3usize, "[\\[\\]{}:,&*a~ \n-]{0,2}"), 1..4),
    ) {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (at, how, piece) in cuts {
            let i = at.index(lines.len());
            match how {
                0 => { lines.remove(i); }
                1 => { let copy = lines[i].clone(); lines.insert(i, copy); }
                _ => { let cut = lines[i].chars().count() / 2; lines[i] = lines[i].chars().take(cut).collect::<String>() + &piece; }
            }
            if lines.is_empty() { lines.push(String::new()); }
        }
        if let Err(found) = load(&lines.join("\n"), "damaged", &catalogue(), Options::default()) {
            prop_assert!(found.has_errors());
            prop_assert!(found.0.iter().all(|d| !d.message.is_empty() && d.file == "damaged"));
        }
    }
}

#[test]
fn the_built_in_configuration_survives() {
    let config = load("", "", &catalogue(), Options::default()).unwrap();
    same(&config, &again(&config));
    let kernel = load("", "", forebay_kernel::plugins::ALL, Options::default()).unwrap();
    let text = kernel.to_string();
    same(&kernel, &load(&text, "", forebay_kernel::plugins::ALL, Options::default()).unwrap());
}

/// One of everything whose parameters are more than a flat list, with names that YAML would misread.
#[test]
fn filters_fairness_and_producers_print_as_they_are_read() {
    let text = format!(
        "{HEAD}featureGates: [flowControl]
plugins:
- type: label-selector-filter
  parameters:
    matchLabels: {{\"yes\": \"12\", llm-d.ai/role: decode, \"a: b\": \"\"}}
    matchExpressions: [{{key: zone, operator: NotIn, values: [a, \"no\"]}}]
- type: utilization-filter
  parameters: {{conditions: [{{metric: waiting-queue, maxValue: 3}}], fallbackOnEmpty: true}}
- type: endpoint-attribute-filter
  parameters:
    attribute: InFlightTokens
    algorithm: {{type: threshold, threshold: {{operator: LessThan, value: 1000}}}}
- type: session-affinity-filter
  parameters: {{strategy: session_id, sessionIdConfig: {{sources: [{{header: x-a}}]}}}}
- type: token-load-scorer
- type: concurrency-detector
  parameters: {{concurrencyMode: hybrid}}
- type: token-fair-policy
  parameters: {{weights: [{{id: \"null\", weight: 2.5}}]}}
- type: inflight-load-producer
  parameters: {{addEstimatedOutputTokens: true, maxEstimatedOutputTokens: 64}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  defaultPriorityBand: {{fairnessPolicyRef: token-fair-policy}}
"
    );
    let config = load(&text, "config.yaml", &catalogue(), Options::default()).unwrap();
    same(&config, &again(&config));
    let plan = config.plan(&[]);
    assert_eq!(plan.inflight.output_tokens(1000, None), 64);
    assert!(plan.counts_output() && plan.detector.watches_load());
    assert_eq!(plan.profile.filters.len(), 5, "the detector is one, too");
}

#[test]
fn labels_are_texts() {
    let text = format!(
        "{HEAD}plugins:\n- type: queue-scorer\n- type: label-selector-filter\n  parameters: {{matchLabels: {{a: 1, b: [x]}}}}\n"
    );
    let found = load(&text, "config.yaml", &catalogue(), Options::default()).unwrap_err().to_string();
    assert!(
        found.contains("parameters.matchLabels.a") && found.contains("parameters.matchLabels.b"),
        "{found}"
    );
}

const SPLIT: &str = "plugins:
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: short}}
  - {name: short, type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}
  - type: prefill-filter
  - type: decode-filter
  - type: queue-scorer
schedulingProfiles:
  - {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 2}]}
  - {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 3}]}
";

#[test]
fn two_stages_are_loaded_printed_and_loaded_again() {
    let config = crate::good(SPLIT);
    same(&config, &again(&config));
    let plan = config.plan(&[]);
    let prefill = plan.prefill.unwrap();
    assert_eq!((plan.profile.name.as_str(), prefill.profile.name.as_str()), ("decode", "prefill"));
    assert_eq!((plan.profile.scorers[0].weight, prefill.profile.scorers[0].weight), (3.0, 2.0));
    assert!(prefill.decider.is_some() && plan.prefix.is_some());
}

#[test]
fn stages_need_their_profiles_and_the_order_rules_the_decider() {
    let first = SPLIT.replace("deciders: {prefill: short}", "stageOrder: prefill-first");
    assert!(crate::good(&first).plan(&[]).prefill.unwrap().decider.is_none());
    let never = crate::good(&SPLIT.replace("    parameters: {deciders: {prefill: short}}\n", ""));
    assert!(never.plan(&[]).prefill.is_none());
    assert!(
        never.warnings.to_string().contains("does not run the profile \"prefill\""),
        "{}",
        never.warnings
    );
    for (from, to, part) in [
        ("name: decode, plugins", "name: decod, plugins", "runs the profile \"decode\", and there is none"),
        ("name: prefill, plugins", "name: prefil, plugins", "did you mean \"prefil\"?"),
        (
            "prefill: short}}",
            "prefill: queue-scorer}}",
            "is a scorer; expected a prefill decider, such as short",
        ),
        ("{prefill: short}}", "{prefill: short, encode: x}}", "encode disaggregation is not supported"),
    ] {
        let e = crate::body(&SPLIT.replace(from, to)).unwrap_err().to_string();
        assert!(e.contains(part), "{part} is missing in\n{e}");
    }
}
