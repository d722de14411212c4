//! The fields of `EndpointPickerConfig`, as llm-d-router v0.10 has them, and our `gatePluginRef` and `proxy`.

use crate::proxy::PROXY;
use crate::table::{Field, Shape};
use forebay_kernel::plugin::{Bounds, Kind, ParamKind};

/// The group and version in use.
pub const API_VERSION: &str = "llm-d.ai/v1alpha1";
/// The group and version that is still accepted.
pub const LEGACY_API_VERSION: &str = "inference.networking.x-k8s.io/v1alpha1";
/// The only kind.
pub const KIND: &str = "EndpointPickerConfig";

const TEXT: Shape = Shape::Plain(ParamKind::Text);
const PRIORITY: Shape = Shape::Plain(ParamKind::Int(Bounds {
    min: i32::MIN as f64,
    min_open: false,
    max: i32::MAX as f64,
    max_open: false,
}));

/// A reference inside an object of its own: `{pluginRef: name}`.
macro_rules! reference {
    ($name:ident, $kind:expr, required) => {
        static $name: &[Field] =
            &[Field::required("pluginRef", Shape::Ref($kind), "The name of the plugin.")];
    };
    ($name:ident, $kind:expr) => {
        static $name: &[Field] = &[Field::new("pluginRef", Shape::Ref($kind), "The name of the plugin.")];
    };
}
reference!(DETECTOR, Some(Kind::SaturationDetector));
reference!(PARSER, Some(Kind::Parser), required);
reference!(EXTRACTOR, Some(Kind::Extractor), required);
reference!(DISCOVERY, Some(Kind::Discovery), required);
reference!(PEERS, None, required);

/// The whole document.
pub static TOP: &[Field] = &[
    Field::required(
        "apiVersion",
        Shape::Plain(ParamKind::Choice(&[API_VERSION, LEGACY_API_VERSION])),
        "Group and version.",
    ),
    Field::required("kind", Shape::Plain(ParamKind::Choice(&[KIND])), "The kind of document."),
    Field::new(
        "featureGates",
        Shape::List(&TEXT),
        "Feature gates: a name, or name=true or name=false. flowControl is off and \
         haPopulateNonLeaderDatastore on unless named.",
    ),
    Field::new(
        "plugins",
        Shape::List(&Shape::Object(PLUGIN)),
        "The plugins that the other sections refer to by name.",
    ),
    Field::new(
        "schedulingProfiles",
        Shape::List(&Shape::Object(PROFILE)),
        "How endpoints are chosen. Without any, a profile named default holds every filter, scorer and \
         picker that is configured.",
    ),
    Field::new("dataLayer", Shape::Object(DATA_LAYER), "Where data about endpoints comes from."),
    Field::new(
        "flowControl",
        Shape::Object(FLOW),
        "Queueing admission; read only while the feature gate flowControl is on, except for \
         saturationDetector.",
    ),
    Field::new("requestHandler", Shape::Object(HANDLER), "How requests are read."),
    Field::new("proxy", Shape::Object(PROXY), "Limits and time-outs of the HTTP door. Not in llm-d-router."),
    Field::deprecated(
        "saturationDetector",
        Shape::Object(DETECTOR),
        "Earlier place of flowControl.saturationDetector, which wins if both are given.",
        "flowControl.saturationDetector",
    ),
    Field::deprecated(
        "parser",
        Shape::Object(PARSER),
        "Earlier place of requestHandler.parsers, which wins if both are given.",
        "requestHandler.parsers",
    ),
];

/// An item of `plugins`.
pub static PLUGIN: &[Field] = &[
    Field::new("name", TEXT, "The name that other sections refer to; the type if not given."),
    // Required, but reported together with the name, so the check is made later.
    Field::new("type", TEXT, "The plugin type."),
    Field::new("parameters", Shape::Free, "The parameters of the type."),
];

static PROFILE: &[Field] = &[
    Field::new("name", TEXT, "The name of the profile, which has to be given and unique."),
    Field::new("plugins", Shape::List(&Shape::Object(PROFILE_PLUGIN)), "Its filters, scorers and picker."),
];

static PROFILE_PLUGIN: &[Field] = &[
    Field::new("pluginRef", Shape::Ref(None), "The name of a filter, scorer or picker."),
    Field::new(
        "weight",
        Shape::Plain(ParamKind::Float(Bounds::ANY)),
        "The weight of a scorer; 1 if not given.",
    ),
];

static DATA_LAYER: &[Field] = &[
    Field::new(
        "injectDefaults",
        Shape::Plain(ParamKind::Bool),
        "Whether the metrics source with the core extractor is added when it is not listed; true if not \
         given.",
    ),
    Field::new("sources", Shape::List(&Shape::Object(SOURCE)), "Data sources."),
    Field::new("discovery", Shape::Object(DISCOVERY), "Where endpoints come from."),
    Field::new("peerDiscovery", Shape::Object(PEERS), "Accepted and not read."),
    Field::new("crossReplicaSyncerPluginRef", Shape::Ref(None), "No plugin can be used here."),
    Field::new("crossReplicaSyncInterval", Shape::Duration, "Accepted and not read."),
];

static SOURCE: &[Field] = &[
    Field::required("pluginRef", Shape::Ref(Some(Kind::DataSource)), "The name of a data source."),
    Field::new("extractors", Shape::List(&Shape::Object(EXTRACTOR)), "What turns its data into attributes."),
];

static HANDLER: &[Field] = &[Field::new(
    "parsers",
    Shape::List(&Shape::Object(PARSER)),
    "Request parsers; given ones replace the default list.",
)];

/// The section `flowControl`.
pub static FLOW: &[Field] = &[
    Field::new(
        "maxBytes",
        Shape::Quantity,
        "Bytes that may wait in all bands together; 0 or absent is unlimited.",
    ),
    Field::new(
        "maxRequests",
        Shape::Quantity,
        "Requests that may wait in all bands together; 0 or absent is unlimited.",
    ),
    Field::new(
        "defaultRequestTTL",
        Shape::Duration,
        "How long a request may wait while the pool has endpoints; 60s if absent, 0s for no limit.",
    ),
    Field::new(
        "noEndpointRequestTTL",
        Shape::Duration,
        "How long a request may wait while the pool is empty; as defaultRequestTTL if absent, 0s for no \
         limit.",
    ),
    Field::new(
        "defaultPriorityBand",
        Shape::Object(BAND),
        "Template of band 0 and of bands that come later; its priority is not read.",
    ),
    Field::new(
        "defaultNegativePriorityBand",
        Shape::Object(BAND),
        "Template of bands that come later with a negative priority; defaultPriorityBand if absent.",
    ),
    Field::new(
        "priorityBands",
        Shape::List(&Shape::Object(BAND)),
        "Bands that exist from the start; each priority once.",
    ),
    Field::new(
        "usageLimitPolicyPluginRef",
        Shape::Ref(Some(Kind::UsageLimitPolicy)),
        "The usage limit policy; static-usage-limit-policy if absent.",
    ),
    Field::new(
        "saturationDetector",
        Shape::Object(DETECTOR),
        "The saturation detector; utilization-detector if absent.",
    ),
    Field::new(
        "gatePluginRef",
        Shape::Ref(Some(Kind::Gate)),
        "The gate asked before a dispatch; open-gate if absent. Not in llm-d-router.",
    ),
    Field::new(
        "cycleDriver",
        Shape::Plain(ParamKind::Choice(&["upstream", "event"])),
        "When dispatch cycles run: upstream is one per arrival and per millisecond, event is when \
         something has changed; upstream if absent. Not in llm-d-router.",
    ),
    Field::new(
        "liveRouting",
        Shape::Plain(ParamKind::Bool),
        "Whether queue and KV cache scorers count what is in flight, instead of reading scraped values; \
         false if absent. Not in llm-d-router.",
    ),
    Field::new(
        "topBandCeiling",
        Shape::Plain(ParamKind::Float(Bounds { min: 1.0, min_open: false, ..Bounds::ANY })),
        "The saturation at which the highest band stops, beside other bands and on a pool that is known to \
         be full; as the policy says if absent. Not in llm-d-router.",
    ),
    Field::new(
        "enableEviction",
        Shape::Plain(ParamKind::Bool),
        "Not supported yet; has to be false or absent.",
    ),
];

static BAND: &[Field] = &[
    Field::new("priority", PRIORITY, "The priority; higher goes first, negative is sheddable; 0 if absent."),
    Field::new("maxBytes", Shape::Quantity, "Bytes that may wait in the band; 1000000000 if absent or 0."),
    Field::new("maxRequests", Shape::Quantity, "Requests that may wait in the band; 5000 if absent or 0."),
    Field::new(
        "fairnessPolicyRef",
        Shape::Ref(Some(Kind::FairnessPolicy)),
        "Which flow goes next; global-strict-fairness-policy if absent.",
    ),
    Field::new(
        "orderingPolicyRef",
        Shape::Ref(Some(Kind::OrderingPolicy)),
        "Which request of a flow goes next; fcfs-ordering-policy if absent.",
    ),
];
