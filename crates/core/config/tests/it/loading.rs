//! What a configuration that loads turns into.

use crate::{HEAD, body, catalogue, good};
use forebay_base::Span;
use forebay_config::{DEFAULT_CONFIG, Options, gates, load, schema};
use forebay_kernel::plugin::Kind;

const ARTICLE: &str = include_str!("../../../../../examples/article.yaml");

fn names(config: &forebay_config::Config) -> Vec<&str> {
    config.plugins.iter().map(|i| i.name.as_str()).collect()
}

#[test]
fn the_article_loads_unchanged() {
    let config = load(ARTICLE, "article.yaml", &catalogue(), Options::default()).unwrap();
    assert_eq!(config.warnings.0.len(), 1, "one alpha plugin: {}", config.warnings);
    insta::assert_snapshot!("article_effective", config.to_string());
    let plan = config.plan(&[100, -50]);
    let flow = plan.flow.unwrap();
    assert_eq!(flow.bands.iter().map(|b| b.priority).collect::<Vec<_>>(), [100, 0, -50]);
    assert!(flow.gate.is_open());
    assert_eq!(flow.ttl, Some(Span::secs(60)));
    assert_eq!(flow.no_endpoint_ttl, Some(Span::secs(60)));
    assert_eq!((flow.max_bytes, flow.max_requests), (None, None));
    assert_eq!(
        (flow.bands[0].template.max_bytes, flow.bands[0].template.max_requests),
        (1_000_000_000, 5000)
    );
    let weights: Vec<_> = plan.profile.scorers.iter().map(|s| (s.name.as_str(), s.weight)).collect();
    assert_eq!(
        weights,
        [("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0)]
    );
    assert!(plan.prefix.is_some(), "the producer that the prefix scorer needs was added");
    // The kernel's plugins alone are enough for a plan.
    let kernel = load(ARTICLE, "", forebay_kernel::plugins::ALL, Options::default()).unwrap();
    assert!(kernel.parsers.is_empty() && kernel.data_layer.sources.is_empty());
}

#[test]
fn no_configuration_is_the_built_in_one() {
    let config = load("", "", &catalogue(), Options::default()).unwrap();
    assert!(config.flow.is_none() && config.plan(&[]).flow.is_none());
    assert_eq!(
        config.to_string(),
        load(DEFAULT_CONFIG, "", &catalogue(), Options::default()).unwrap().to_string()
    );
    let weights: Vec<_> = config.profile.plugins.iter().map(|p| p.weight).collect();
    assert_eq!(weights, [Some(2.0), Some(2.0), Some(3.0), None]);
    assert_eq!(config.sources().next().unwrap().0.name, "metrics-data-source");
    insta::assert_snapshot!("default_effective", config.to_string());
}

#[test]
fn defaults_come_in() {
    let config = good("plugins: [{type: queue-scorer}]\n");
    assert_eq!(
        names(&config),
        [
            "queue-scorer",
            "max-score-picker",
            "single-profile-handler",
            "fcfs-ordering-policy",
            "global-strict-fairness-policy",
            "static-usage-limit-policy",
            "open-gate",
            "openai-parser",
            "anthropic-parser",
            "vllmhttp-parser",
            "passthrough-parser",
            "utilization-detector",
            "metrics-data-source",
            "core-metrics-extractor",
        ]
    );
    assert!(config.plugins[1..].iter().all(|i| i.injected) && !config.plugins[0].injected);
    assert_eq!(config.parsers().count(), 4);
    assert_eq!(config.parsers().last().unwrap().name, "passthrough-parser");
    assert_eq!(config.plugins_of(Kind::Parser).count(), 4);
    assert!(config.discovery().is_none());
}

#[test]
fn without_profiles_the_default_one_holds_filters_scorers_and_the_picker() {
    let config =
        good("plugins: [{type: utilization-detector}, {type: random-picker}, {type: queue-scorer}]\n");
    let in_profile: Vec<_> = config.profile.plugins.iter().map(|p| names(&config)[p.plugin]).collect();
    assert_eq!(in_profile, ["utilization-detector", "random-picker", "queue-scorer"]);
    let plan = config.plan(&[]);
    assert_eq!((plan.profile.filters.len(), plan.profile.scorers.len()), (1, 1));
    // A detector that was only injected is no filter.
    assert_eq!(good("").plan(&[]).profile.filters.len(), 0);
}

#[test]
fn a_configured_picker_serves_profiles_without_one() {
    let config = good(
        "plugins: [{name: dice, type: random-picker}, {type: queue-scorer}]\n\
         schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]\n",
    );
    let last = config.profile.plugins.last().unwrap();
    assert_eq!(config.plugins[last.plugin].name, "dice");
    assert!(!names(&config).contains(&"max-score-picker"));
}

#[test]
fn weights_default_to_one_and_may_be_negative() {
    let config = good(
        "plugins: [{type: queue-scorer}, {type: running-requests-size-scorer}, {type: max-score-picker}]\n\
         schedulingProfiles:\n  - name: p\n    plugins:\n      - {pluginRef: max-score-picker, weight: 4}\n      \
         - pluginRef: queue-scorer\n      - {pluginRef: running-requests-size-scorer, weight: -0.5}\n",
    );
    let plan = config.plan(&[]);
    let weights: Vec<f64> = plan.profile.scorers.iter().map(|s| s.weight).collect();
    assert_eq!(weights, [1.0, -0.5]);
    assert!(config.warnings.to_string().contains("\"max-score-picker\" is no scorer"));
}

#[test]
fn feature_gates_follow_the_last_word() {
    for (items, on) in [
        ("[]", false),
        ("[flowControl]", true),
        ("['flowControl=true']", true),
        ("['flowControl= TRUE ']", true),
        ("['flowControl=T']", true),
        ("['flowControl=0']", false),
        ("['flowControl=true=false']", true),
        ("[flowControl, 'flowControl=false']", false),
        ("['flowControl=false', flowControl]", true),
        ("[haPopulateNonLeaderDatastore=false]", false),
    ] {
        let config = good(&format!("featureGates: {items}\n"));
        assert_eq!(config.gates.is_open(gates::FLOW_CONTROL), on, "{items}");
        assert_eq!(config.flow.is_some(), on, "{items}");
    }
    assert!(good("").gates.is_open(gates::POPULATE_FOLLOWERS));
}

#[test]
fn a_flow_section_without_its_gate_only_warns() {
    let text =
        "flowControl: {defaultRequestTTL: -1s, usageLimitPolicyPluginRef: nobody, enableEviction: true}\n";
    let config = good(text);
    assert_eq!(config.warnings.0.len(), 1);
    assert!(config.warnings.to_string().contains("while the feature gate flowControl is off"));
    let only_detector = good("flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n");
    assert_eq!(only_detector.warnings.0, []);
}

#[test]
fn waiting_times_follow_each_other() {
    for (section, ttl, empty) in [
        ("{}", Some(60), Some(60)),
        ("{defaultRequestTTL: 5s}", Some(5), Some(5)),
        ("{defaultRequestTTL: 0s}", None, None),
        ("{noEndpointRequestTTL: 5m}", Some(60), Some(300)),
        ("{defaultRequestTTL: 5s, noEndpointRequestTTL: 0s}", Some(5), None),
        ("{defaultRequestTTL: 0s, noEndpointRequestTTL: 7s}", None, Some(7)),
    ] {
        let flow = good(&format!("featureGates: [flowControl]\nflowControl: {section}\n")).flow.unwrap();
        assert_eq!(flow.ttl, ttl.map(Span::secs), "{section}");
        assert_eq!(flow.no_endpoint_ttl, empty.map(Span::secs), "{section}");
    }
}

#[test]
fn bands_take_their_templates() {
    let config = good(
        "featureGates: [flowControl]\n\
         flowControl:\n  maxBytes: 1Gi\n  maxRequests: 0\n\
         \x20 defaultPriorityBand: {maxRequests: 7, maxBytes: 2k}\n\
         \x20 defaultNegativePriorityBand: {maxRequests: 3}\n\
         \x20 priorityBands: [{priority: -5, maxBytes: 0}, {priority: 10, maxRequests: 1.5k}]\n",
    );
    let flow = config.plan(&[10, 20, -9, 20]).flow.unwrap();
    assert_eq!((flow.max_bytes, flow.max_requests), (Some(1 << 30), None));
    let bands: Vec<_> =
        flow.bands.iter().map(|b| (b.priority, b.template.max_requests, b.template.max_bytes)).collect();
    assert_eq!(
        bands,
        [
            (20, 7, 2000),
            (10, 1500, 1_000_000_000),
            (0, 7, 2000),
            (-5, 5000, 1_000_000_000),
            (-9, 3, 1_000_000_000)
        ]
    );
    let plain = good("featureGates: [flowControl]\nflowControl: {defaultPriorityBand: {maxRequests: 7}}\n");
    assert_eq!(plain.plan(&[]).flow.unwrap().default_negative_band.max_requests, 7);
}

#[test]
fn deprecated_spellings_are_read_and_pointed_out() {
    let config = load(
        "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n\
         plugins:\n  - {name: sat, type: utilization-detector}\n  - type: tokeniser\n\
         saturationDetector: {pluginRef: sat}\nparser: {pluginRef: vllmhttp-parser}\n",
        "old.yaml",
        &catalogue(),
        Options::default(),
    )
    .unwrap();
    assert_eq!(config.plugins[config.detector].name, "sat");
    assert_eq!(config.parsers().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["vllmhttp-parser"]);
    insta::assert_snapshot!(config.warnings.to_string());
    let both = good(
        "plugins: [{name: a, type: utilization-detector}, {name: b, type: utilization-detector}]\n\
         saturationDetector: {pluginRef: a}\nflowControl: {saturationDetector: {pluginRef: b}}\n\
         parser: {pluginRef: vllmhttp-parser}\nrequestHandler: {parsers: [{pluginRef: openai-parser}]}\n",
    );
    assert_eq!(both.plugins[both.detector].name, "b");
    assert_eq!(both.parsers().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["openai-parser"]);
}

#[test]
fn the_data_layer_adds_its_defaults_beside_other_sources() {
    let mine = "plugins: [{name: mine, type: metrics-data-source}, {type: file-discovery, parameters: {path: e}}]\n\
                dataLayer:\n  sources: [{pluginRef: mine}]\n  discovery: {pluginRef: file-discovery}\n";
    let config = good(mine);
    let sources: Vec<_> = config.sources().map(|(s, e)| (s.name.as_str(), e.len())).collect();
    assert_eq!(sources, [("mine", 0), ("metrics-data-source", 1)]);
    assert_eq!(config.discovery().unwrap().values.text("path"), Some("e"));
    let alone = good(&mine.replace("dataLayer:\n", "dataLayer:\n  injectDefaults: false\n"));
    assert_eq!(alone.data_layer.sources.len(), 1);
    let listed = good(
        "plugins: [{type: metrics-data-source}]\ndataLayer: {sources: [{pluginRef: metrics-data-source}]}\n",
    );
    assert_eq!(listed.data_layer.sources.len(), 1);
    assert_eq!(good("dataLayer: {}\n").data_layer.sources.len(), 1);
}

#[test]
fn parameters_are_read_as_go_reads_json() {
    let config = good(
        "plugins:\n  - type: queue-scorer\n    parameters: {whatever: [1]}\n\
         \x20 - type: utilization-detector\n    parameters: {QueueDepthThreshold: 7.0, headroom: ~}\n\
         \x20 - type: core-metrics-extractor\n    parameters: {extra: {deep: [1]}, engineConfigs: [{name: x}]}\n",
    );
    assert_eq!(config.plugins[1].values.int("queueDepthThreshold"), 7);
    assert_eq!(config.plugins[1].values.float("headroom"), 0.0);
    assert_eq!(config.plugins[2].values.list("engineConfigs").len(), 1);
    let warnings = config.warnings.to_string();
    assert!(warnings.contains("queue-scorer takes no notice of parameters"), "{warnings}");
    assert!(warnings.contains("\"QueueDepthThreshold\" is read as queueDepthThreshold"), "{warnings}");
}

#[test]
fn json_is_a_configuration_too() {
    let text = "{\n\t\"apiVersion\": \"llm-d.ai/v1alpha1\",\n\t\"kind\": \"EndpointPickerConfig\",\n\t\"featureGates\": [\"flowControl\"]\n}";
    assert!(load(text, "c.json", &catalogue(), Options::default()).unwrap().flow.is_some());
}

#[test]
fn a_broken_plugin_does_not_break_what_refers_to_it() {
    let found = body(
        "plugins:\n  - name: sat\n    type: utilization-detector\n    parameters: {headroom: x}\n\
         flowControl: {saturationDetector: {pluginRef: sat}}\n\
         schedulingProfiles: [{name: p, plugins: [{pluginRef: sat}]}]\n",
    )
    .unwrap_err();
    assert_eq!(found.0.len(), 1, "{found}");
}

#[test]
fn the_schema_holds_every_field_and_type() {
    let schema = schema(&catalogue());
    let top = &schema["properties"];
    for f in forebay_config::fields::TOP {
        assert!(top[f.name].is_object(), "{}", f.name);
    }
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["required"], serde_json::json!(["apiVersion", "kind"]));
    let plugin = &top["plugins"]["items"];
    let types = plugin["properties"]["type"]["enum"].as_array().unwrap();
    for d in catalogue() {
        assert!(types.contains(&d.name.into()), "{}", d.name);
    }
    assert!(types.contains(&"tokeniser".into()));
    let rule = plugin["allOf"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["if"]["properties"]["type"]["enum"][0] == "utilization-detector");
    let parameters = &rule.unwrap()["then"]["properties"]["parameters"]["properties"];
    assert_eq!(parameters["kvCacheUtilThreshold"]["exclusiveMinimum"], 0);
    assert_eq!(parameters["kvCacheUtilThreshold"]["maximum"], 1);
    assert_eq!(parameters["kvCacheUtilThreshold"]["default"], 0.8);
    assert_eq!(parameters["metricsStalenessThreshold"]["default"], "200ms");
    let band = &top["flowControl"]["properties"]["priorityBands"]["items"]["properties"];
    assert!(band["fairnessPolicyRef"].is_object());
    assert_eq!(top["parser"]["deprecated"], true);
}

#[test]
fn later_documents_are_pointed_out() {
    let config = good("---\nkind: other\n");
    assert!(config.warnings.to_string().contains("only the first document is read"));
    assert_eq!(HEAD.lines().count(), 2);
}

#[test]
fn the_proxy_section_sets_what_it_names_and_leaves_the_rest() {
    use forebay_config::{ProxyConfig, RetryOn};
    let text = format!(
        "{HEAD}proxy:\n  maxBody: 1Ki\n  firstByteTimeout: 1m30s\n  retryOn: first-byte\n  checkModels: false\n  keepIdle: 0s\n"
    );
    let config = load(&text, "", &catalogue(), Options::default()).unwrap();
    let expected = ProxyConfig {
        max_body: 1024,
        first_byte_timeout: Span::secs(90),
        retry_on: RetryOn::FirstByte,
        check_models: false,
        keep_idle: Span::ZERO,
        ..ProxyConfig::default()
    };
    assert_eq!(config.proxy, expected);
    assert_eq!(load("", "", &catalogue(), Options::default()).unwrap().proxy, ProxyConfig::default());
    for r in [RetryOn::Never, RetryOn::Connect, RetryOn::FirstByte] {
        assert_eq!(RetryOn::of_word(r.word()), Some(r));
    }
}

#[test]
fn our_fields_of_flow_control_reach_the_plan_and_blind_events_are_warned_about() {
    use forebay_kernel::plan::Driver;
    let text = |detector: &str, flow: &str| {
        format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins:\n- type: \
             queue-scorer\n- type: {detector}\nflowControl: {{saturationDetector: {{pluginRef: {detector}}}{flow}}}\n"
        )
    };
    let read = |text: &str| load(text, "t.yaml", forebay_kernel::plugins::ALL, Options::default());
    let c = read(&text("inflight-aware-detector", "")).unwrap();
    let plan = c.plan(&[]);
    let flow = plan.flow.unwrap();
    assert_eq!((flow.driver, plan.live_routing, flow.top_band_ceiling), (Driver::Upstream, false, None));
    let ours = ", cycleDriver: event, liveRouting: true, topBandCeiling: 2.0";
    let c = read(&text("inflight-aware-detector", ours)).unwrap();
    assert!(c.warnings.0.is_empty(), "{}", c.warnings);
    let plan = c.plan(&[]);
    let flow = plan.flow.unwrap();
    assert_eq!((flow.driver, plan.live_routing, flow.top_band_ceiling), (Driver::Event, true, Some(2.0)));
    let again = read(&c.to_string()).unwrap();
    assert_eq!(again.to_string(), c.to_string());
    let blind = read(&text("utilization-detector", ours)).unwrap().warnings.to_string();
    assert!(blind.contains("t.yaml:7:") && blind.contains("faster bursts"), "{blind}");
    let low = read(&text("utilization-detector", ", topBandCeiling: 0.5")).unwrap_err().to_string();
    assert!(low.contains("topBandCeiling") && low.contains("at least 1"), "{low}");
    let word = read(&text("utilization-detector", ", cycleDriver: events")).unwrap_err().to_string();
    assert!(word.contains("did you mean \"event\"?"), "{word}");
}
