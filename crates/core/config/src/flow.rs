//! The section `flowControl`.

use crate::config::{BandConfig, FlowConfig};
use crate::instances::{Index, Instance, Instances};
use crate::table::Item;
use forebay_base::{Diagnostics, Span};
use forebay_kernel::plan::Driver;
use forebay_kernel::plugin::Kind;

/// llm-d-router's limits of a band that sets none.
const BAND_MAX_BYTES: u64 = 1_000_000_000;
const BAND_MAX_REQUESTS: u64 = 5000;
/// llm-d-router's waiting time of a request when none is set.
const DEFAULT_TTL: Span = Span::secs(60);

const DEFAULT_FAIRNESS: &str = "global-strict-fairness-policy";
const DEFAULT_ORDERING: &str = "fcfs-ordering-policy";
const DEFAULT_LIMIT: &str = "static-usage-limit-policy";
const DEFAULT_GATE: &str = "open-gate";

/// Adds the policies that always exist. The open gate is ours and comes only where no gate is named.
pub(crate) fn inject(top: &Item, all: &mut Instances<'_>, found: &mut Diagnostics) {
    for name in [DEFAULT_ORDERING, DEFAULT_FAIRNESS, DEFAULT_LIMIT] {
        all.inject(name, found);
    }
    if top.get("flowControl").and_then(|f| f.text("gatePluginRef")).is_none() {
        all.inject(DEFAULT_GATE, found);
    }
}

/// Says that the section has no effect while the gate is off. The saturation detector has one.
pub(crate) fn warn_unread(top: &Item, found: &mut Diagnostics) {
    let Some(flow) = top.get("flowControl") else { return };
    let read_later = |name: &str| name != "saturationDetector";
    let set = crate::fields::FLOW.iter().any(|f| read_later(f.name) && flow.get(f.name).is_some());
    if set {
        let message = "the section has no effect, except for saturationDetector, while the feature gate \
                       flowControl is off";
        found.push(flow.warning(message));
    }
}

/// Reads the section; `None` if something is wrong.
pub(crate) fn read(top: &Item, all: &Instances<'_>, found: &mut Diagnostics) -> Option<FlowConfig> {
    let before = found.0.len();
    let empty =
        Item { datum: crate::table::Datum::Object(Vec::new()), path: "flowControl".into(), at: top.at };
    let flow = top.get("flowControl").unwrap_or(&empty);
    if flow.flag("enableEviction") == Some(true) {
        let d = flow.error_at("enableEviction", "in-flight eviction is not supported by forebay yet");
        found.push(d.expected("false"));
    }
    let defaults = BandConfig {
        max_bytes: BAND_MAX_BYTES,
        max_requests: BAND_MAX_REQUESTS,
        fairness: all.named(DEFAULT_FAIRNESS, Kind::FairnessPolicy, found)?,
        ordering: all.named(DEFAULT_ORDERING, Kind::OrderingPolicy, found)?,
    };
    let max_bytes = limit(flow, "maxBytes", "global MaxBytes", found);
    let max_requests = limit(flow, "maxRequests", "global MaxRequests", found);
    let ttl = time(flow, "defaultRequestTTL", found);
    let no_endpoint_ttl = time(flow, "noEndpointRequestTTL", found).or(ttl).unwrap_or(DEFAULT_TTL);
    let ttl = ttl.unwrap_or(DEFAULT_TTL);
    let default_band = match flow.get("defaultPriorityBand") {
        Some(b) => band(b, "default priority band", defaults, all, found),
        None => defaults,
    };
    let default_negative_band = match flow.get("defaultNegativePriorityBand") {
        Some(b) => band(b, "default negative priority band", defaults, all, found),
        None => default_band,
    };
    let bands = bands(flow, defaults, all, found);
    let limit =
        reference(flow, "usageLimitPolicyPluginRef", DEFAULT_LIMIT, Kind::UsageLimitPolicy, all, found);
    let gate = reference(flow, "gatePluginRef", DEFAULT_GATE, Kind::Gate, all, found);
    if found.0[before..].iter().any(|d| d.severity == forebay_base::Severity::Error) {
        return None;
    }
    let driver = match flow.text("cycleDriver") {
        Some("event") => Driver::Event,
        _ => Driver::Upstream,
    };
    let finite = |s: Span| (s != Span::ZERO).then_some(s);
    Some(FlowConfig {
        max_bytes,
        max_requests,
        ttl: finite(ttl),
        no_endpoint_ttl: finite(no_endpoint_ttl),
        bands,
        default_band,
        default_negative_band,
        limit: limit?,
        gate: gate?,
        driver,
        live_routing: flow.flag("liveRouting") == Some(true),
        top_band_ceiling: flow.float("topBandCeiling"),
    })
}

/// Warns about cycles on every change under a detector that does not see what they send.
pub(crate) fn warn_blind(top: &Item, flow: &FlowConfig, detector: &Instance, found: &mut Diagnostics) {
    let sees = detector.built.detector.as_ref().is_some_and(|d| d.watches_load());
    let Some(item) = top.get("flowControl").filter(|_| flow.driver == Driver::Event && !sees) else { return };
    let message = format!(
        "the event driver with {:?}, which reads scraped metrics only, sends faster bursts into engines' \
         queues than the upstream driver does",
        detector.name
    );
    let place = item.get("cycleDriver").unwrap_or(item);
    found.push(place.warning(message).expected("a detector such as inflight-aware-detector"));
}

fn reference(
    item: &Item,
    field: &str,
    default: &str,
    kind: Kind,
    all: &Instances<'_>,
    found: &mut Diagnostics,
) -> Option<Index> {
    match item.get(field).filter(|r| r.as_text().is_some()) {
        Some(r) => all.find(r, kind, found),
        None => all.named(default, kind, found),
    }
}

/// A limit that is set and not 0.
fn limit(item: &Item, field: &str, label: &str, found: &mut Diagnostics) -> Option<u64> {
    let value = item.get(field)?;
    let n = value.signed()?;
    if n < 0 {
        let d = value.error(format!("{label} is negative: {n}"));
        found.push(d.expected("a quantity of at least 0"));
    }
    u64::try_from(n).ok().filter(|&n| n > 0)
}

fn time(item: &Item, field: &str, found: &mut Diagnostics) -> Option<Span> {
    let value = item.get(field)?;
    let ns = value.signed()?;
    if ns < 0 {
        let d = value.error(format!("{field} is negative: -{}", Span(ns.unsigned_abs())));
        found.push(d.expected("a duration of at least 0s"));
    }
    u64::try_from(ns).ok().map(Span)
}

fn band(
    item: &Item,
    label: &str,
    defaults: BandConfig,
    all: &Instances<'_>,
    found: &mut Diagnostics,
) -> BandConfig {
    let mut policy = |field, default, kind| {
        let named = item.get(field).filter(|r| r.as_text().is_some());
        named.and_then(|r| all.find(r, kind, found)).unwrap_or(default)
    };
    let fairness = policy("fairnessPolicyRef", defaults.fairness, Kind::FairnessPolicy);
    let ordering = policy("orderingPolicyRef", defaults.ordering, Kind::OrderingPolicy);
    let max_bytes = limit(item, "maxBytes", &format!("{label} MaxBytes"), found);
    let max_requests = limit(item, "maxRequests", &format!("{label} MaxRequests"), found);
    BandConfig {
        max_bytes: max_bytes.unwrap_or(defaults.max_bytes),
        max_requests: max_requests.unwrap_or(defaults.max_requests),
        fairness,
        ordering,
    }
}

/// The listed bands, highest priority first. They take the built-in defaults, not those of
/// `defaultPriorityBand`, as in llm-d-router.
fn bands(
    flow: &Item,
    defaults: BandConfig,
    all: &Instances<'_>,
    found: &mut Diagnostics,
) -> Vec<(i32, BandConfig)> {
    let mut out: Vec<(i32, BandConfig)> = Vec::new();
    for item in flow.items("priorityBands") {
        let priority = item.int("priority").unwrap_or(0) as i32;
        let settings = band(item, &format!("priority band {priority}"), defaults, all, found);
        if out.iter().any(|(p, _)| *p == priority) {
            let d = item.error_at("priority", format!("duplicate priority {priority}"));
            found.push(d.expected("each priority once"));
        } else {
            out.push((priority, settings));
        }
    }
    out.sort_by_key(|(p, _)| std::cmp::Reverse(*p));
    out
}
