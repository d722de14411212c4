//! Every way in which a configuration can be refused.

use crate::{HEAD, body, catalogue};
use forebay_base::Severity;
use forebay_config::{Options, load};

/// A text, the line of the one error, and what its sentence must hold.
struct Row {
    case: &'static str,
    text: &'static str,
    line: u32,
    says: &'static [&'static str],
}

const fn row(case: &'static str, text: &'static str, line: u32, says: &'static [&'static str]) -> Row {
    Row { case, text, line, says }
}

/// Texts below the envelope, whose two lines count.
const ROWS: &[Row] = &[
    row("bad YAML", "plugins: [\n", 3, &["not valid YAML", "plugins"]),
    row("unknown field", "plugin: []\n", 3, &["unknown field \"plugin\"", "did you mean \"plugins\"?"]),
    row(
        "wrong case of a field",
        "Plugins: []\n",
        3,
        &["unknown field \"Plugins\"", "did you mean \"plugins\"?"],
    ),
    row("metadata is no field", "metadata: {name: x}\n", 3, &["unknown field \"metadata\""]),
    row("duplicate field", "plugins: []\nplugins: []\n", 4, &["\"plugins\" is already given in line 3"]),
    row(
        "unknown field deep inside",
        "flowControl:\n  priorityBands:\n    - priority: 1\n    - priority: 2\n      maxByte: 1\n",
        7,
        &["flowControl.priorityBands[1].maxByte", "did you mean \"maxBytes\"?"],
    ),
    row(
        "a proxy limit of nothing",
        "proxy:\n  maxBody: 1Mi\n  maxConnections: 0\n",
        5,
        &["proxy.maxConnections", "maxConnections is 0", "expected more than 0"],
    ),
    row(
        "a negative proxy time",
        "proxy: {keepIdle: -1s}\n",
        3,
        &["proxy.keepIdle", "is negative", "expected at least 0"],
    ),
    row(
        "an unknown retry rule",
        "proxy: {retryOn: first-bite}\n",
        3,
        &["proxy.retryOn", "did you mean \"first-byte\"?"],
    ),
    row("an unknown proxy field", "proxy: {maxBodys: 1}\n", 3, &["did you mean \"maxBody\"?"]),
    row("wrong type", "plugins: {a: b}\n", 3, &["found a mapping", "expected a list"]),
    row(
        "unknown gate",
        "featureGates: [flowControll]\n",
        3,
        &["feature gate \"flowControll\" is unknown or unregistered", "did you mean \"flowControl\"?"],
    ),
    row(
        "the name of a gate is not trimmed",
        "featureGates: [' flowControl']\n",
        3,
        &["is unknown or unregistered"],
    ),
    row("removed gate", "featureGates: [dataLayer]\n", 3, &["\"dataLayer\" was removed from llm-d-router"]),
    row(
        "unparsable gate value",
        "featureGates:\n  - flowControl=maybe\n",
        4,
        &["featureGates[0]", "the value \"maybe\" of the feature gate \"flowControl\" is not boolean"],
    ),
    row("gate value is empty", "featureGates: [flowControl=]\n", 3, &["is not boolean"]),
    row(
        "plugin without type",
        "plugins:\n  - name: mine\n",
        4,
        &["plugins[0].type", "\"mine\" is missing a type"],
    ),
    row("plugin without anything", "plugins:\n  - {}\n", 4, &["missing a type"]),
    row(
        "duplicate plugin name",
        "plugins:\n  - type: queue-scorer\n  - name: queue-scorer\n    type: random-picker\n",
        5,
        &["duplicate plugin name \"queue-scorer\""],
    ),
    row(
        "unregistered type",
        "plugins:\n  - type: queue-scoer\n",
        4,
        &["the plugin type \"queue-scoer\" is not registered", "did you mean \"queue-scorer\"?"],
    ),
    row(
        "known type without support",
        "plugins:\n  - type: latency-slo-admitter\n",
        4,
        &["known to llm-d-router, not supported by forebay yet"],
    ),
    row(
        "a decider that nobody is",
        "plugins:\n  - type: disagg-profile-handler\n    parameters: {deciders: {prefill: nobody}}\nschedulingProfiles: [{name: decode}, {name: prefill}]\n",
        5,
        &["plugins[0].parameters.deciders.prefill: references the undefined plugin \"nobody\""],
    ),
    row(
        "unknown parameter",
        "plugins:\n  - type: utilization-detector\n    parameters:\n      queueDepthTreshold: 7\n",
        6,
        &["plugins[0].parameters.queueDepthTreshold", "did you mean \"queueDepthThreshold\"?"],
    ),
    row(
        "parameter out of range",
        "plugins:\n  - type: utilization-detector\n    parameters: {kvCacheUtilThreshold: 1.5}\n",
        5,
        &["found 1.5", "a number in (0, 1]"],
    ),
    row(
        "whole number out of range",
        "plugins:\n  - type: utilization-detector\n    parameters: {queueDepthThreshold: 0}\n",
        5,
        &["found 0", "a whole number greater than 0"],
    ),
    row(
        "parameter of the wrong type",
        "plugins:\n  - type: utilization-detector\n    parameters: {metricsStalenessThreshold: 200}\n",
        5,
        &["found the number 200", "expected a duration"],
    ),
    row(
        "negative duration parameter",
        "plugins:\n  - type: utilization-detector\n    parameters: {metricsStalenessThreshold: -1s}\n",
        5,
        &["found the text \"-1s\"", "a duration of at least 0s"],
    ),
    row(
        "choice",
        "plugins:\n  - type: priority-holdback-policy\n    parameters: {domain: rnk, minCeiling: 0.5}\n",
        5,
        &["found the text \"rnk\"", "one of rank, value, explicit", "did you mean \"rank\"?"],
    ),
    row(
        "values that do not fit together",
        "plugins:\n  - type: priority-holdback-policy\n    parameters:\n      maxCeiling: 0.4\n      minCeiling: 0.5\n",
        7,
        &[
            "\"priority-holdback-policy\"",
            "minCeiling 0.5 must be below maxCeiling 0.4",
            "parameters.minCeiling",
        ],
    ),
    row(
        "a plugin that cannot do without parameters",
        "plugins:\n  - type: priority-holdback-policy\n",
        4,
        &["minCeiling is required"],
    ),
    row(
        "missing parameter",
        "plugins:\n  - type: file-discovery\n",
        4,
        &["plugins[0].parameters.path", "the parameter is missing"],
    ),
    row(
        "parameters that are no mapping",
        "plugins:\n  - type: utilization-detector\n    parameters: 5\n",
        5,
        &["found the number 5", "a mapping of parameters"],
    ),
    row(
        "object in a list parameter",
        "plugins:\n  - type: core-metrics-extractor\n    parameters:\n      engineConfigs:\n        - on: true\n",
        7,
        &["parameters.engineConfigs[0].name", "the parameter is missing"],
    ),
    row(
        "profile without name",
        "schedulingProfiles:\n  - plugins: []\n",
        4,
        &["schedulingProfiles[0].name", "missing a name"],
    ),
    row(
        "duplicate profile",
        "schedulingProfiles:\n  - name: a\n  - name: a\nplugins: [{type: other-profile-handler}]\n",
        5,
        &["duplicate profile name \"a\""],
    ),
    row(
        "profile plugin without ref",
        "schedulingProfiles:\n  - name: a\n    plugins:\n      - weight: 1\n",
        6,
        &["schedulingProfiles[0].plugins[0].pluginRef", "profile \"a\" is missing its pluginRef"],
    ),
    row(
        "profile with an undefined ref",
        "plugins: [{name: mine, type: queue-scorer}]\nschedulingProfiles:\n  - name: a\n    plugins:\n      - pluginRef: mien\n",
        7,
        &[
            "schedulingProfiles[0].plugins[0].pluginRef",
            "undefined plugin \"mien\"",
            "did you mean \"mine\"?",
        ],
    ),
    row(
        "profile with a type that is not listed",
        "schedulingProfiles:\n  - name: a\n    plugins:\n      - pluginRef: queue-scorer\n",
        6,
        &["undefined plugin \"queue-scorer\"", "\"type: queue-scorer\" under plugins"],
    ),
    row(
        "two pickers",
        "plugins: [{type: random-picker}, {type: max-score-picker}]\nschedulingProfiles:\n  - name: a\n    plugins: [{pluginRef: \
         random-picker}, {pluginRef: max-score-picker}]\n",
        6,
        &["\"max-score-picker\"", "already has the picker \"random-picker\""],
    ),
    row(
        "several profile handlers",
        "plugins:\n  - type: single-profile-handler\n  - type: other-profile-handler\n",
        4,
        &["exactly one profile handler", "\"single-profile-handler\" and \"other-profile-handler\""],
    ),
    row(
        "no profile handler",
        "schedulingProfiles:\n  - name: a\n  - name: b\n",
        4,
        &["exactly one profile handler"],
    ),
    row(
        "one profile only",
        "plugins: [{type: single-profile-handler}]\nschedulingProfiles:\n  - name: a\n  - name: b\n",
        5,
        &["\"single-profile-handler\" supports one scheduling profile", "multi-profile handler"],
    ),
    row(
        "undefined detector",
        "flowControl:\n  saturationDetector: {pluginRef: mine}\n",
        4,
        &["flowControl.saturationDetector.pluginRef", "undefined plugin \"mine\"", "saturation detector"],
    ),
    row(
        "detector of the wrong kind",
        "plugins: [{type: queue-scorer}]\nflowControl:\n  saturationDetector: {pluginRef: queue-scorer}\n",
        5,
        &["\"queue-scorer\" is a scorer", "expected a saturation detector"],
    ),
    row(
        "undefined parser",
        "requestHandler:\n  parsers: [{pluginRef: mine}]\n",
        4,
        &["undefined plugin \"mine\"", "request parser"],
    ),
    row(
        "parser that is not supported",
        "requestHandler:\n  parsers: [{pluginRef: vllmgrpc-parser}]\n",
        4,
        &["references \"vllmgrpc-parser\"", "known to llm-d-router, not supported by forebay yet"],
    ),
    row("parser without ref", "requestHandler:\n  parsers: [{}]\n", 4, &["parsers[0].pluginRef", "missing"]),
    row(
        "parser of the wrong kind",
        "plugins: [{type: queue-scorer}]\nrequestHandler:\n  parsers: [{pluginRef: queue-scorer}]\n",
        5,
        &["\"queue-scorer\" is a scorer", "expected a request parser"],
    ),
    row(
        "undefined usage limit",
        "featureGates: [flowControl]\nflowControl:\n  usageLimitPolicyPluginRef: mine\n",
        5,
        &["flowControl.usageLimitPolicyPluginRef", "undefined plugin \"mine\""],
    ),
    row(
        "usage limit of the wrong kind",
        "featureGates: [flowControl]\nflowControl:\n  usageLimitPolicyPluginRef: fcfs-ordering-policy\n",
        5,
        &["is an ordering policy", "expected a usage limit policy, such as static-usage-limit-policy"],
    ),
    row(
        "fairness of the wrong kind",
        "featureGates: [flowControl]\nflowControl:\n  defaultPriorityBand:\n    fairnessPolicyRef: fcfs-ordering-policy\n",
        6,
        &[
            "defaultPriorityBand.fairnessPolicyRef",
            "expected a fairness policy, such as global-strict-fairness-policy",
        ],
    ),
    row(
        "undefined ordering",
        "featureGates: [flowControl]\nflowControl:\n  priorityBands:\n    - {priority: 1, orderingPolicyRef: fcfs}\n",
        6,
        &["priorityBands[0].orderingPolicyRef", "undefined plugin \"fcfs\""],
    ),
    row(
        "undefined gate",
        "featureGates: [flowControl]\nflowControl: {gatePluginRef: mine}\n",
        4,
        &["undefined plugin \"mine\""],
    ),
    row(
        "eviction",
        "featureGates: [flowControl]\nflowControl:\n  enableEviction: true\n",
        5,
        &["eviction is not supported by forebay yet"],
    ),
    row(
        "duplicate priority",
        "featureGates: [flowControl]\nflowControl:\n  priorityBands:\n    - priority: 5\n    - priority: 5\n",
        7,
        &["duplicate priority 5"],
    ),
    row(
        "priority out of range",
        "flowControl:\n  priorityBands: [{priority: 3000000000}]\n",
        4,
        &["found 3000000000"],
    ),
    row(
        "negative global bytes",
        "featureGates: [flowControl]\nflowControl:\n  maxBytes: -1\n",
        5,
        &["global MaxBytes is negative: -1"],
    ),
    row(
        "negative global requests",
        "featureGates: [flowControl]\nflowControl:\n  maxRequests: \"-2k\"\n",
        5,
        &["global MaxRequests is negative: -2000"],
    ),
    row(
        "negative band bytes",
        "featureGates: [flowControl]\nflowControl:\n  priorityBands:\n    - {priority: 5, maxBytes: -1Gi}\n",
        6,
        &["priority band 5 MaxBytes is negative: -1073741824"],
    ),
    row(
        "negative time",
        "featureGates: [flowControl]\nflowControl:\n  defaultRequestTTL: -1s\n",
        5,
        &["defaultRequestTTL is negative: -1s"],
    ),
    row(
        "negative time of an empty pool",
        "featureGates: [flowControl]\nflowControl:\n  noEndpointRequestTTL: -5m\n",
        5,
        &["noEndpointRequestTTL is negative: -5m0s"],
    ),
    row(
        "time without a unit",
        "flowControl:\n  defaultRequestTTL: \"60\"\n",
        4,
        &["has a number without a unit"],
    ),
    row(
        "data source that is none",
        "plugins: [{type: queue-scorer}]\ndataLayer:\n  sources: [{pluginRef: queue-scorer}]\n",
        5,
        &["\"queue-scorer\" is a scorer", "expected a data source"],
    ),
    row(
        "undefined data source",
        "dataLayer:\n  sources: [{pluginRef: mine}]\n",
        4,
        &["undefined plugin \"mine\""],
    ),
    row(
        "undefined extractor",
        "plugins: [{type: metrics-data-source}]\ndataLayer:\n  sources:\n    - pluginRef: metrics-data-source\n      \
         extractors: [{pluginRef: mine}]\n",
        7,
        &["sources[0].extractors[0].pluginRef", "undefined plugin \"mine\""],
    ),
    row("no data source", "dataLayer: {injectDefaults: false}\n", 3, &["no data source is configured"]),
    row(
        "replica synchronizer",
        "dataLayer: {crossReplicaSyncerPluginRef: x}\n",
        3,
        &["no plugin type can synchronize"],
    ),
    row(
        "discovery of the wrong kind",
        "plugins: [{type: queue-scorer}]\ndataLayer: {discovery: {pluginRef: queue-scorer}}\n",
        4,
        &["expected an endpoint discovery"],
    ),
];

#[test]
fn each_case_gives_one_error_with_its_line() {
    let failed: Vec<String> = ROWS.iter().filter_map(wrong).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// What does not hold of a row.
fn wrong(Row { case, text, line, says }: &Row) -> Option<String> {
    let Err(found) = body(text) else { return Some(format!("{case}: loads")) };
    let errors: Vec<_> = found.0.iter().filter(|d| d.severity == Severity::Error).collect();
    let [error] = errors.as_slice() else { return Some(format!("{case}: more than one error\n{found}")) };
    let shown = error.to_string();
    if error.at.line != *line || !shown.starts_with("error: config.yaml:") {
        return Some(format!("{case}: not in line {line}: {shown}"));
    }
    let lacks = says.iter().find(|part| !shown.contains(**part))?;
    Some(format!("{case}: {shown}\nlacks {lacks}"))
}

#[test]
fn kind_and_version_must_be_known() {
    for (text, line, part) in [
        ("kind: EndpointPickerConfig\n", 1, "apiVersion: the field is missing"),
        ("apiVersion: llm-d.ai/v1alpha1\n", 1, "kind: the field is missing"),
        ("apiVersion: llm-d.ai/v1alpha1\nkind: InferencePool\n", 2, "expected EndpointPickerConfig"),
        (
            "apiVersion: llm-d.ai/v1alpah1\nkind: EndpointPickerConfig\n",
            1,
            "did you mean \"llm-d.ai/v1alpha1\"?",
        ),
        ("# nothing\n", 1, "the text is empty"),
        ("[]\n", 1, "expected a mapping"),
    ] {
        let found = load(text, "c.yaml", &catalogue(), Options::default()).unwrap_err();
        assert_eq!(found.0.len(), 1, "{found}");
        assert_eq!(found.0[0].at.line, line, "{found}");
        assert!(found.to_string().contains(part), "{found}");
    }
}

#[test]
fn no_parser_left() {
    static ODD: forebay_kernel::plugin::Descriptor = crate::parser("sglanghttp-parser");
    let catalogue: Vec<_> = forebay_kernel::plugins::ALL.iter().copied().chain([&ODD]).collect();
    let found = load(HEAD, "c.yaml", &catalogue, Options::default()).unwrap_err();
    assert!(found.to_string().contains("no request parser is left; expected at least one parser"), "{found}");
}

#[test]
fn alpha_plugins_warn_once_or_are_refused() {
    let text = format!(
        "{HEAD}plugins:\n  - type: soft-reflective-ceiling-policy\n  - name: again\n    type: soft-reflective-ceiling-policy\n"
    );
    let run = |allow_experimental, strict_stability| {
        let options = Options { allow_experimental, strict_stability };
        load(&text, "c.yaml", &catalogue(), options).map(|c| c.warnings.0.len())
    };
    assert_eq!(run(false, false), Ok(1));
    assert_eq!(run(true, false), Ok(0));
    assert_eq!(run(true, true), Ok(0));
    let refused = run(false, true).unwrap_err();
    assert_eq!(refused.0.len(), 2);
    assert!(
        refused
            .to_string()
            .contains("has Alpha stability level; expected the flag --allow-experimental-plugins")
    );
}

#[test]
fn the_known_types_hold_those_of_the_kernel() {
    let ours = ["open-gate", "kv-reserve-policy", "inflight-aware-detector", "token-fair-policy"];
    for d in forebay_kernel::plugins::ALL {
        assert!(forebay_config::known::is_known(d.name) != ours.contains(&d.name), "{}", d.name);
    }
}

pub(crate) const MANY: &str = "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates:
  - flowControl=perhaps
  - flowcontrol
plugins:
  - type: queue-scoer
  - type: data-parallel-profile-handler
  - name: limits
    type: priority-holdback-policy
    parameters:
      domain: ranks
      minCeilng: 0.5
  - name: limits
    type: random-picker
  - type: utilization-detector
    parameters:
      queueDepthThreshold: five
      kvCacheUtilThreshold: 80
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: random-piker
      - pluginRef: queue-scoer
flowControl:
  maxByte: 1Gi
  defaultRequestTTL: 60
  priorityBands:
    - priority: high
    - priority: 5
      maxRequests: 10K
";

#[test]
fn all_errors_of_a_file_show_at_once() {
    let found = load(MANY, "many.yaml", &catalogue(), Options::default()).unwrap_err();
    insta::assert_snapshot!(found.to_string());
}
