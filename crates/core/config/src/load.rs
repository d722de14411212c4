//! From text to a checked configuration.

use crate::config::{Config, DataLayer, ProfileConfig, ProfilePlugin, SourceConfig};
use crate::fields;
use crate::flow;
use crate::gates::{FLOW_CONTROL, Gates};
use crate::instances::{Index, Instances, Options, serves};
use crate::stages;
use crate::table::{self, Item, Shape};
use forebay_base::{Diagnostic, Diagnostics, Position, Severity};
use forebay_document::{Content, Node, parse};
use forebay_kernel::plugin::{Descriptor, Kind};

/// What holds without a configuration: llm-d-router's built-in one. The metrics source and its
/// extractor come in by the rule that injects them.
pub const DEFAULT_CONFIG: &str = "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: queue-scorer
        weight: 2
      - pluginRef: kv-cache-utilization-scorer
        weight: 2
      - pluginRef: prefix-cache-scorer
        weight: 3
";

const DEFAULT_DETECTOR: &str = "utilization-detector";
const DEFAULT_PICKER: &str = "max-score-picker";
const DEFAULT_PARSERS: [&str; 4] =
    ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"];
const METRICS_SOURCE: &str = "metrics-data-source";
const METRICS_EXTRACTOR: &str = "core-metrics-extractor";

/// Reads and checks an `EndpointPickerConfig`, YAML or JSON. `file` is the name for messages. An empty
/// text stands for [`DEFAULT_CONFIG`]. Defaults that work outside the kernel (parsers, metrics source)
/// are added only where the catalogue has them, so that a catalogue of kernel plugins is enough for
/// whoever needs no more than a plan.
///
/// # Errors
/// Everything that is wrong with the text, warnings among it, in the order of the text.
pub fn load(
    text: &str,
    file: &str,
    catalogue: &[&'static Descriptor],
    options: Options,
) -> Result<Config, Diagnostics> {
    let mut found = Diagnostics::default();
    let documents = parse(if text.is_empty() { DEFAULT_CONFIG } else { text }, &mut found);
    load_tree(&documents, found, file, catalogue, options)
}

/// As [`load`], from a text that has been read into trees already, with what was `found` there.
///
/// # Errors
/// As [`load`].
pub fn load_tree(
    documents: &[Node],
    mut found: Diagnostics,
    file: &str,
    catalogue: &[&'static Descriptor],
    options: Options,
) -> Result<Config, Diagnostics> {
    let config = resolve(documents, catalogue, options, &mut found);
    found.finish(file);
    match config {
        Some(mut config) if !found.has_errors() => {
            config.warnings = found;
            Ok(config)
        }
        _ => Err(found),
    }
}

fn resolve(
    documents: &[Node],
    catalogue: &[&'static Descriptor],
    options: Options,
    found: &mut Diagnostics,
) -> Option<Config> {
    let Some(root) = documents.first() else {
        if !found.has_errors() {
            let start = Position { line: 1, column: 1 };
            found.push(Diagnostic::error(start, "", "the text is empty").expected(fields::KIND));
        }
        return None;
    };
    if let Some(second) = documents.get(1) {
        let message = "only the first document is read";
        found.push(Diagnostic::warning(second.at, "", message));
    }
    let top = table::read(root, &Shape::Object(fields::TOP), "", found)?;
    if top.text("apiVersion") == Some(fields::LEGACY_API_VERSION) {
        let message = format!("{} is deprecated; use {}", fields::LEGACY_API_VERSION, fields::API_VERSION);
        found.push(top.get("apiVersion")?.warning(message));
    }
    let before = errors(found);
    let gates = Gates::read(top.items("featureGates"), found);
    let gates_clear = errors(found) == before;
    let listed = length_of(root, "plugins");
    let mut all = Instances::read(top.items("plugins"), listed, catalogue, options, found);

    let profiles = profiles(&top, &mut all, found);
    let stages = stages::read(&top, profiles, &mut all, found);
    let flow_on = gates.is_open(FLOW_CONTROL);
    flow::inject(&top, &mut all, found);
    let parser_names = inject_parsers(&top, &mut all, found);
    let detector = detector(&top, &mut all, found);
    let metrics = inject_metrics(&top, &mut all, found);
    all.inject_needs(found);

    // A misspelt gate may have been meant to be on.
    let flow = if flow_on || !gates_clear {
        flow::read(&top, &all, found)
    } else {
        flow::warn_unread(&top, found);
        None
    };
    let parsers = parsers(&top, parser_names, &all, found);
    let data_layer = data_layer(&top, metrics, &all, found);
    let proxy = crate::proxy::read(&top, found);
    if found.has_errors() {
        return None;
    }
    let (plugins, detector, stages) = (all.finish(), detector?, stages?);
    if let Some(f) = &flow {
        flow::warn_blind(&top, f, &plugins[detector], found);
    }
    Some(Config {
        gates,
        plugins,
        profile: stages.profile,
        prefill: stages.prefill,
        handler: stages.handler,
        detector,
        flow,
        data_layer,
        parsers,
        proxy,
        warnings: Diagnostics::default(),
    })
}

fn errors(found: &Diagnostics) -> usize {
    found.0.iter().filter(|d| d.severity == Severity::Error).count()
}

fn length_of(root: &Node, field: &str) -> usize {
    match root.get(field).map(|n| &n.content) {
        Some(Content::List(items)) => items.len(),
        _ => 0,
    }
}

/// The scheduling profiles, each with a picker.
fn profiles(top: &Item, all: &mut Instances<'_>, found: &mut Diagnostics) -> Vec<ProfileConfig> {
    let mut out: Vec<ProfileConfig> = Vec::new();
    let listed = top.items("schedulingProfiles");
    for item in listed {
        let Some(name) = item.text("name") else {
            found.push(item.error_at("name", "the profile is missing a name"));
            continue;
        };
        if out.iter().any(|p| p.name == name) {
            found.push(item.error_at("name", format!("duplicate profile name {name:?}")));
            continue;
        }
        let plugins = item.items("plugins").iter().filter_map(|p| profile_plugin(p, name, all, found));
        let plugins = plugins.collect();
        out.push(ProfileConfig { name: name.to_owned(), plugins });
    }
    if listed.is_empty() {
        let usable = |k| [Kind::Filter, Kind::Scorer, Kind::Picker].iter().any(|&kind| serves(k, kind));
        let plugins = all.good().filter(|(_, i)| usable(i)).map(|(index, i)| ProfilePlugin {
            plugin: index,
            weight: serves(i, Kind::Scorer).then_some(1.0),
        });
        out.push(ProfileConfig { name: "default".to_owned(), plugins: plugins.collect() });
    }
    let configured = all.good().find(|(_, i)| serves(i, Kind::Picker)).map(|(index, _)| index);
    for (i, profile) in out.iter_mut().enumerate() {
        pickers(profile, listed.get(i), configured, all, found);
    }
    out
}

fn profile_plugin(
    item: &Item,
    profile: &str,
    all: &Instances<'_>,
    found: &mut Diagnostics,
) -> Option<ProfilePlugin> {
    let Some(reference) = item.get("pluginRef").filter(|r| r.as_text().is_some()) else {
        let message = format!("a plugin of the profile {profile:?} is missing its pluginRef");
        found.push(item.error_at("pluginRef", message));
        return None;
    };
    let plugin = all.index_of(reference, "a filter, scorer or picker", found)?;
    let instance = all.at(plugin)?;
    let weight = item.float("weight");
    if serves(instance, Kind::Scorer) {
        return Some(ProfilePlugin { plugin, weight: Some(weight.unwrap_or(1.0)) });
    }
    if let Some(w) = item.get("weight") {
        found.push(w.warning(format!("{:?} is no scorer, so its weight is not read", instance.name)));
    }
    if !serves(instance, Kind::Filter) && !serves(instance, Kind::Picker) {
        let what = instance.what();
        let message = format!("{:?} is {what}, which does nothing in a profile", instance.name);
        found.push(reference.warning(message));
    }
    Some(ProfilePlugin { plugin, weight: None })
}

/// Sees to exactly one picker in a profile.
fn pickers(
    profile: &mut ProfileConfig,
    item: Option<&Item>,
    configured: Option<Index>,
    all: &mut Instances<'_>,
    found: &mut Diagnostics,
) {
    let picks = |p: &ProfilePlugin| all.at(p.plugin).filter(|i| serves(i, Kind::Picker));
    let names: Vec<String> = profile.plugins.iter().filter_map(picks).map(|i| i.name.clone()).collect();
    match (names.as_slice(), configured) {
        ([_], _) => {}
        ([first, second, ..], _) => {
            let message = format!(
                "the profile {:?} cannot take the picker {second:?}: it already has the picker {first:?}",
                profile.name
            );
            let place = |i: &Item| i.error_at("plugins", message.clone());
            found.push(
                item.map_or_else(|| Diagnostic::error(Position::default(), "plugins", &message), place),
            );
        }
        ([], Some(plugin)) => profile.plugins.push(ProfilePlugin { plugin, weight: None }),
        ([], None) => {
            all.inject(DEFAULT_PICKER, found);
            if let Some(plugin) = all.named(DEFAULT_PICKER, Kind::Picker, found) {
                profile.plugins.push(ProfilePlugin { plugin, weight: None });
            }
        }
    }
}

/// The saturation detector. Only a reference to the default type by its own name creates it.
fn detector(top: &Item, all: &mut Instances<'_>, found: &mut Diagnostics) -> Option<Index> {
    let current = top.get("flowControl").and_then(|f| f.get("saturationDetector"));
    let reference = current.or_else(|| top.get("saturationDetector")).and_then(|d| d.get("pluginRef"));
    let name = reference.and_then(Item::as_text).unwrap_or(DEFAULT_DETECTOR);
    if name == DEFAULT_DETECTOR {
        all.inject(DEFAULT_DETECTOR, found);
    }
    match reference.filter(|r| r.as_text().is_some()) {
        Some(reference) => all.find(reference, Kind::SaturationDetector, found),
        None => all.named(name, Kind::SaturationDetector, found),
    }
}

/// The parser references of the file.
fn parser_items(top: &Item) -> Vec<&Item> {
    let given = top.get("requestHandler").map_or(&[][..], |h| h.items("parsers"));
    if given.is_empty() { top.get("parser").into_iter().collect() } else { given.iter().collect() }
}

/// Adds the parsers that are used and not configured; the names of the default ones if none is given.
fn inject_parsers(top: &Item, all: &mut Instances<'_>, found: &mut Diagnostics) -> Vec<&'static str> {
    let given = parser_items(top);
    for name in given.iter().filter_map(|i| i.text("pluginRef")) {
        if all.can_make(name) {
            all.inject(name, found);
        }
    }
    if !given.is_empty() {
        return Vec::new();
    }
    let defaults: Vec<&str> = DEFAULT_PARSERS.into_iter().filter(|p| all.can_make(p) || all.has(p)).collect();
    for name in &defaults {
        all.inject(name, found);
    }
    defaults
}

fn parsers(top: &Item, defaults: Vec<&str>, all: &Instances<'_>, found: &mut Diagnostics) -> Vec<Index> {
    let given = parser_items(top);
    let mut out = Vec::new();
    for item in given.iter().filter_map(|i| i.get("pluginRef")) {
        out.extend(all.find(item, Kind::Parser, found));
    }
    for name in defaults {
        out.extend(all.named(name, Kind::Parser, found));
    }
    if out.is_empty() && given.is_empty() && all.can_make_any(Kind::Parser) {
        let d = top.error_at("requestHandler", "no request parser is left");
        found.push(d.expected("at least one parser"));
    }
    out
}

/// Adds the default metrics source and extractor; whether the source is to be appended.
fn inject_metrics(top: &Item, all: &mut Instances<'_>, found: &mut Diagnostics) -> bool {
    let layer = top.get("dataLayer");
    let listed = layer.map_or(&[][..], |l| l.items("sources"));
    let wanted = layer.and_then(|l| l.flag("injectDefaults")) != Some(false)
        && !listed.iter().any(|s| s.text("pluginRef") == Some(METRICS_SOURCE));
    let available = |all: &Instances<'_>, name: &str| all.can_make(name) || all.has(name);
    if !wanted || !available(all, METRICS_SOURCE) || !available(all, METRICS_EXTRACTOR) {
        return false;
    }
    all.inject(METRICS_SOURCE, found);
    all.inject(METRICS_EXTRACTOR, found);
    true
}

fn data_layer(top: &Item, metrics: bool, all: &Instances<'_>, found: &mut Diagnostics) -> DataLayer {
    let mut out = DataLayer { inject_defaults: true, ..DataLayer::default() };
    let layer = top.get("dataLayer");
    if let Some(layer) = layer {
        out.inject_defaults = layer.flag("injectDefaults").unwrap_or(true);
        for item in layer.items("sources") {
            out.sources.extend(source(item, all, found));
        }
        let discovery = layer.get("discovery").and_then(|d| d.get("pluginRef"));
        out.discovery = discovery.and_then(|r| all.find(r, Kind::Discovery, found));
        if let Some(r) = layer.get("crossReplicaSyncerPluginRef").filter(|r| r.as_text().is_some()) {
            found.push(r.error("no plugin type can synchronize replicas").expected("the field to be absent"));
        }
        for name in ["peerDiscovery", "crossReplicaSyncInterval"] {
            if let Some(item) = layer.get(name) {
                found.push(item.warning(format!("{name} is accepted and not read")));
            }
        }
    }
    if metrics {
        let source = all.named(METRICS_SOURCE, Kind::DataSource, found);
        let extractor = all.named(METRICS_EXTRACTOR, Kind::Extractor, found);
        if let (Some(source), Some(extractor)) = (source, extractor) {
            out.sources.push(SourceConfig { source, extractors: vec![extractor] });
        }
    }
    let listed = layer.map_or(0, |l| l.items("sources").len());
    if out.sources.is_empty() && listed == 0 && !metrics && all.can_make_any(Kind::DataSource) {
        let d = top.error_at("dataLayer", "no data source is configured");
        found.push(d.expected("a source, or injectDefaults left on"));
    }
    out
}

fn source(item: &Item, all: &Instances<'_>, found: &mut Diagnostics) -> Option<SourceConfig> {
    let source = item.get("pluginRef").and_then(|r| all.find(r, Kind::DataSource, found));
    let extractors = item.items("extractors").iter().filter_map(|e| e.get("pluginRef"));
    let extractors = extractors.filter_map(|r| all.find(r, Kind::Extractor, found)).collect();
    Some(SourceConfig { source: source?, extractors })
}
