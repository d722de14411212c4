//! What happens over time: incidents, changes of size, and rules for them.

use super::{count, slowdown, span, start, with, word};
use crate::cluster::{Change, Cluster, Incident, Scale, Size};
use crate::scaling::{Autoscaler, Behavior, Pace, ScaleMetric, Select, Step};
use forebay_base::{Diagnostic, Diagnostics, Nanos, Span};
use forebay_document::{Fields, Node, decode};

pub(super) const ENTRY: &[&str] = &["at", "engine", "change", "start", "slowdown", "scale", "to", "by"];
pub(super) const AUTOSCALER: &[&str] =
    &["engines", "minReplicas", "maxReplicas", "metrics", "period", "tolerance", "behavior"];
const BEHAVIOR: &[&str] = &["scaleUp", "scaleDown"];
pub(super) const RULES: &[&str] = &["stabilizationWindowSeconds", "policies", "selectPolicy"];
const POLICY: &[&str] = &["type", "value", "periodSeconds"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Plain(Change),
    Slow,
}

const CHANGES: &[(&str, Word)] = &[
    ("fail", Word::Plain(Change::Fail)),
    ("leave", Word::Plain(Change::Leave)),
    ("drain", Word::Plain(Change::Drain)),
    ("join", Word::Plain(Change::Join)),
    ("slow", Word::Slow),
    ("mute", Word::Plain(Change::Mute)),
    ("unmute", Word::Plain(Change::Unmute)),
];

/// What can happen to a server.
pub(super) fn change_names() -> impl Iterator<Item = &'static str> {
    CHANGES.iter().map(|(name, _)| *name)
}

/// Reads `timeline` and `autoscalers`, and adds the servers in reserve that they need.
pub(super) fn read(f: &Fields<'_>, cluster: &mut Cluster, found: &mut Diagnostics) {
    let items = |name: &str, found: &mut Diagnostics| -> Vec<(String, Node)> {
        let list = f.get(name).and_then(|n| decode::list(n, name, found)).unwrap_or_default();
        list.iter().enumerate().map(|(i, n)| (decode::item(name, i), n.clone())).collect()
    };
    let entries = items("timeline", found);
    let rules = items("autoscalers", found);
    for (path, node) in &rules {
        if let Some(rules) = autoscaler(node, path, cluster, found) {
            cluster.autoscalers.push(rules);
        }
    }
    for (path, node) in &entries {
        let Some(entry) = Fields::open(node, path, ENTRY, found) else { continue };
        if entry.get("scale").is_some() {
            cluster.scales.extend(scale(&entry, cluster, found));
        } else {
            cluster.incidents.extend(incident(&entry, cluster, found));
        }
    }
    cluster.incidents.sort_by_key(|i| i.at);
    cluster.scales.sort_by_key(|s| s.at);
    reserve(cluster);
}

/// Adds servers in reserve for the greatest size of each group.
fn reserve(cluster: &mut Cluster) {
    for group in 0..cluster.groups.len() as u32 {
        let first = cluster.groups[group as usize].servers.len() as u32;
        let mut size = first;
        let mut most = first;
        for s in cluster.scales.iter().filter(|s| s.group == group) {
            size = match s.to {
                Size::Exactly(n) => n,
                Size::By(n) => size.saturating_add_signed(n),
            };
            most = most.max(size);
        }
        let rules = cluster.autoscalers.iter().filter(|a| a.group == group).map(|a| a.max.max(first));
        if let Some(most) = rules.max().or((cluster.scales.iter().any(|s| s.group == group)).then_some(most))
        {
            cluster.reserve(group, most);
        }
    }
}

/// The group that an entry names.
fn group(node: &Node, path: &str, cluster: &Cluster, found: &mut Diagnostics) -> Option<u32> {
    let name = decode::text(node, path, found)?;
    let names = || cluster.groups.iter().map(|g| g.name.as_str());
    let mut hits = (0..).zip(names()).filter(|(_, n)| *n == name).map(|(i, _)| i);
    match (hits.next(), hits.next()) {
        (Some(one), None) => Some(one),
        (Some(_), Some(_)) => {
            let d =
                Diagnostic::error(node.at, path, format!("several entries of engines are named {name:?}"));
            found.push(d.expected("a name that one entry has alone"));
            None
        }
        (None, _) => {
            let d = Diagnostic::error(node.at, path, format!("no entry of engines is named {name:?}"));
            let all = names().collect::<Vec<_>>().join(", ");
            found.push(d.expected(format!("one of {all}")).nearest_of(name, names()));
            None
        }
    }
}

fn instant(f: &Fields<'_>, found: &mut Diagnostics) -> Option<Nanos> {
    f.require("at", found)?;
    Some(Nanos::ZERO + span(f, "at", found)?)
}

fn scale(f: &Fields<'_>, cluster: &Cluster, found: &mut Diagnostics) -> Option<Scale> {
    let at = instant(f, found);
    let node = f.get("scale")?;
    let group = group(node, &f.child("scale"), cluster, found);
    for name in ["engine", "change", "start", "slowdown"] {
        if let Some(at) = f.key(name) {
            let d = Diagnostic::error(at, f.child(name), "does not go with scale");
            found.push(d.expected("scale with to or by alone"));
        }
    }
    if let Some(g) = group
        && cluster.autoscalers.iter().any(|a| a.group == g)
    {
        let message = format!("{} has an autoscaler, which would undo this", cluster.groups[g as usize].name);
        found.push(Diagnostic::error(node.at, f.child("scale"), message));
    }
    let to = count(f, "to", 0, 5_000, found);
    let by = f.get("by").and_then(|n| decode::int(n, &f.child("by"), found));
    let size = match (f.get("to").is_some(), f.get("by").is_some()) {
        (true, false) => Size::Exactly(to?),
        (false, true) => Size::By(i32::try_from(by?).unwrap_or(i32::MAX).clamp(-5_000, 5_000)),
        _ => {
            let d = Diagnostic::error(f.at, f.child("scale"), "needs either to or by");
            found.push(d.expected("to: a number of engines, or by: how many more (negative: fewer)"));
            return None;
        }
    };
    Some(Scale { at: at?, group: group?, to: size })
}

fn incident(f: &Fields<'_>, cluster: &Cluster, found: &mut Diagnostics) -> Option<Incident> {
    let (engine, change) = (f.require("engine", found), f.require("change", found));
    let at = instant(f, found);
    let word = change.and_then(|n| word(n, &f.child("change"), CHANGES, found));
    let slowdown = slowdown(f, "slowdown", found);
    let start = f.get("start").map(|n| start(n, &f.child("start"), found));
    let mut only = |name: &str, goes: bool, with: &str| {
        if let Some(at) = f.key(name).filter(|_| word.is_some() && !goes) {
            found.push(Diagnostic::error(at, f.child(name), format!("goes with change: {with} only")));
        }
    };
    only("start", word == Some(Word::Plain(Change::Join)), "join");
    only("slowdown", word == Some(Word::Slow), "slow");
    for name in ["to", "by"] {
        if let Some(at) = f.key(name) {
            found.push(Diagnostic::error(at, f.child(name), "goes with scale only"));
        }
    }
    let change = match (word, start) {
        (Some(Word::Plain(Change::Join)), Some(start)) => Some(Change::JoinAfter(start)),
        (Some(Word::Plain(change)), _) => Some(change),
        (Some(Word::Slow), _) => {
            f.require("slowdown", found);
            slowdown.map(Change::Slow)
        }
        (None, _) => None,
    };
    let server = engine.and_then(|n| {
        let name = decode::text(n, &f.child("engine"), found)?;
        let index = cluster.servers.iter().position(|s| s.name == name);
        if index.is_none() {
            let names = || cluster.servers.iter().map(|s| s.name.as_str());
            let d = Diagnostic::error(n.at, f.child("engine"), format!("{name:?} is no engine"));
            let all: Vec<&str> = names().take(8).collect();
            found.push(d.expected(format!("a name such as {}", all.join(", "))).nearest_of(name, names()));
        }
        index
    });
    Some(Incident { at: at?, server: server? as u32, change: change? })
}

fn autoscaler(node: &Node, path: &str, cluster: &Cluster, found: &mut Diagnostics) -> Option<Autoscaler> {
    let f = Fields::open(node, path, AUTOSCALER, found)?;
    let group = f.require("engines", found).and_then(|n| group(n, &f.child("engines"), cluster, found));
    if let Some(at) = f.key("engines").filter(|_| cluster.autoscalers.iter().any(|a| Some(a.group) == group))
    {
        found.push(Diagnostic::error(at, f.child("engines"), "has an autoscaler already"));
    }
    let min = count(&f, "minReplicas", 1, 5_000, found).unwrap_or(1);
    f.require("maxReplicas", found);
    let max = count(&f, "maxReplicas", 1, 5_000, found);
    if let Some(max) = max.filter(|&m| m < min) {
        let at = f.get("maxReplicas").map_or(f.at, |n| n.at);
        let d = Diagnostic::error(at, f.child("maxReplicas"), format!("found {max}"));
        found.push(d.expected(format!("at least minReplicas, {min}")));
    }
    let metrics = f.require("metrics", found).map(|n| metrics(n, &f.child("metrics"), found));
    let period = span(&f, "period", found).unwrap_or(Autoscaler::PERIOD);
    if period < Span::millis(1) {
        let at = f.key("period").unwrap_or(f.at);
        found.push(
            Diagnostic::error(at, f.child("period"), format!("found {period}")).expected("1ms or more"),
        );
    }
    let tolerance = with(&f, "tolerance", found, decode::float).unwrap_or(Autoscaler::TOLERANCE);
    if !(0.0..1.0).contains(&tolerance) {
        let at = f.key("tolerance").unwrap_or(f.at);
        let d = Diagnostic::error(at, f.child("tolerance"), format!("found {tolerance}"));
        found.push(d.expected("a share, at least 0 and below 1"));
    }
    let (mut up, mut down) = (Behavior::up(), Behavior::down());
    if let Some(b) = f.get("behavior").and_then(|n| Fields::open(n, &f.child("behavior"), BEHAVIOR, found)) {
        if let Some(n) = b.get("scaleUp") {
            behavior(n, &b.child("scaleUp"), &mut up, found);
        }
        if let Some(n) = b.get("scaleDown") {
            behavior(n, &b.child("scaleDown"), &mut down, found);
        }
    }
    Some(Autoscaler { group: group?, min, max: max?, metrics: metrics?, period, tolerance, up, down })
}

/// Metrics with their targets.
fn metrics(node: &Node, path: &str, found: &mut Diagnostics) -> Vec<(ScaleMetric, f64)> {
    let names: Vec<&str> = ScaleMetric::ALL.iter().map(|(name, _)| *name).collect();
    let Some(f) = Fields::open(node, path, &names, found) else { return Vec::new() };
    let mut out = Vec::new();
    for (name, metric) in ScaleMetric::ALL {
        let Some(node) = f.get(name) else { continue };
        let Some(target) = decode::float(node, &f.child(name), found) else { continue };
        if target > 0.0 && target.is_finite() {
            out.push((metric, target));
        } else {
            let d = Diagnostic::error(node.at, f.child(name), format!("found {target}"));
            found.push(d.expected("a target per engine above 0"));
        }
    }
    if f.entries().is_empty() {
        let d = Diagnostic::error(node.at, path, "there are none");
        found.push(d.expected(format!("at least one of {}", names.join(", "))));
    }
    out
}

/// One direction of Kubernetes' `behavior`.
fn behavior(node: &Node, path: &str, to: &mut Behavior, found: &mut Diagnostics) {
    let Some(f) = Fields::open(node, path, RULES, found) else { return };
    if let Some(seconds) = count(&f, "stabilizationWindowSeconds", 0, 3600, found) {
        to.window = Span::secs(u64::from(seconds));
    }
    let selects = [("Max", Select::Max), ("Min", Select::Min), ("Disabled", Select::Disabled)];
    if let Some(select) = with(&f, "selectPolicy", found, |n, p, d| word(n, p, &selects, d)) {
        to.select = select;
    }
    if let Some(list) = f.get("policies") {
        let path = f.child("policies");
        let items = decode::list(list, &path, found).unwrap_or_default();
        let read = |(i, n): (usize, &Node)| policy(n, &decode::item(&path, i), found);
        to.paces = items.iter().enumerate().filter_map(read).collect();
    }
}

fn policy(node: &Node, path: &str, found: &mut Diagnostics) -> Option<Pace> {
    let f = Fields::open(node, path, POLICY, found)?;
    for name in POLICY {
        f.require(name, found);
    }
    let percent = with(&f, "type", found, |n, p, d| word(n, p, &[("Pods", false), ("Percent", true)], d));
    let value = count(&f, "value", 1, 10_000, found);
    let seconds = count(&f, "periodSeconds", 1, 1_800, found);
    let step = if percent? { Step::Percent(value?) } else { Step::Pods(value?) };
    Some(Pace { step, period: Span::secs(u64::from(seconds?)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Start;

    const POOL: &str = "
version: 1
engines:
  - {name: pool, count: 2, model: qwen3-14b, hardware: h100, start: {cold: 60s, warmup: 30s, slowdown: 2}, grace: 30s}
  - {name: old, model: qwen3-14b, hardware: a100, role: prefill, labels: {zone: a}}
";

    #[test]
    fn starts_roles_and_a_timeline_are_read() {
        let text = format!(
            "{POOL}timeline:
  - {{at: 5s, engine: old-2, change: slow, slowdown: 1.5}}
  - {{at: 1s, engine: pool-1, change: drain}}
  - {{at: 9s, engine: pool-1, change: join, start: {{cold: 1s}}}}
  - {{at: 7s, scale: pool, by: 2}}
  - {{at: 20s, scale: pool, to: 1}}
"
        );
        let c = Cluster::read(&text, "c.yaml").unwrap();
        let start = Start { cold: Span::secs(60), warmup: Span::secs(30), slowdown_permille: 2000 };
        assert_eq!((c.groups[0].start, c.groups[0].grace), (start, Some(Span::secs(30))));
        let label = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(c.servers[2].labels, [label("llm-d.ai/role", "prefill"), label("zone", "a")]);
        let at = |s| Nanos::ZERO + Span::secs(s);
        let slow = Change::Slow(1500);
        let quick = Change::JoinAfter(Start { cold: Span::secs(1), ..Start::DEFAULT });
        assert_eq!(
            c.incidents,
            [
                Incident { at: at(1), server: 1, change: Change::Drain },
                Incident { at: at(5), server: 2, change: slow },
                Incident { at: at(9), server: 1, change: quick },
            ]
        );
        assert_eq!(c.scales[0], Scale { at: at(7), group: 0, to: Size::By(2) });
        assert_eq!(c.scales[1], Scale { at: at(20), group: 0, to: Size::Exactly(1) });
        // At most 4 at once, so that 4 more can come up while 4 drain.
        assert_eq!(c.groups[0].servers, [0, 1, 3, 4, 5, 6, 7, 8]);
        let there: Vec<bool> = c.servers.iter().map(|s| s.present).collect();
        assert_eq!(there, [true, true, true, false, false, false, false, false, false]);
    }

    #[test]
    fn an_autoscaler_is_read_with_kubernetes_presets() {
        let text = format!(
            "{POOL}autoscalers:
  - engines: pool
    maxReplicas: 6
    metrics: {{in-flight: 32, queue: 5}}
    behavior:
      scaleUp: {{stabilizationWindowSeconds: 60, policies: [{{type: Pods, value: 1, periodSeconds: 30}}]}}
      scaleDown: {{selectPolicy: Disabled}}
"
        );
        let c = Cluster::read(&text, "c.yaml").unwrap();
        let a = &c.autoscalers[0];
        assert_eq!((a.group, a.min, a.max, a.period, a.tolerance), (0, 1, 6, Span::secs(15), 0.1));
        assert_eq!(a.metrics, [(ScaleMetric::Queue, 5.0), (ScaleMetric::InFlight, 32.0)]);
        let pace = Pace { step: Step::Pods(1), period: Span::secs(30) };
        assert_eq!(a.up, Behavior { window: Span::secs(60), paces: vec![pace], select: Select::Max });
        assert_eq!(a.down, Behavior { select: Select::Disabled, ..Behavior::down() });
        assert_eq!(c.groups[0].servers.len(), 12);
    }

    #[test]
    fn what_does_not_go_together_is_told_with_its_place() {
        let text = format!(
            "{POOL}timeline:
  - {{at: 1s, scale: pools, to: 1}}
  - {{at: 1s, scale: pool}}
  - {{at: 1s, scale: old, to: 1}}
  - {{at: 1s, engine: pool-0, change: drain, start: {{cold: 1s}}}}
  - {{at: 1s, engine: pool-0, change: slow}}
  - {{at: 1s, engine: pool-0, change: slow, slowdown: 0}}
autoscalers:
  - {{engines: old, maxReplicas: 2, minReplicas: 3, metrics: {{queue: 0}}}}
  - {{engines: old, metrics: {{queu: 1}}, tolerance: 1}}
"
        );
        let found = Cluster::read(&text, "c.yaml").unwrap_err();
        let all: Vec<String> = found.0.iter().map(ToString::to_string).collect();
        let all = all.join("\n");
        for part in [
            "timeline[0].scale: no entry of engines is named \"pools\"",
            "did you mean \"pool\"",
            "c.yaml:8:5: timeline[1].scale: needs either to or by",
            "timeline[3].start: goes with change: join only",
            "timeline[4]",
            "timeline[5].slowdown: found 0; expected 0.01 to 1000",
            "autoscalers[0].maxReplicas: found 2; expected at least minReplicas, 3",
            "autoscalers[0].metrics.queue: found 0; expected a target per engine above 0",
            "did you mean \"queue\"",
            "autoscalers[1].tolerance: found 1",
        ] {
            assert!(all.contains(part), "{part} is missing in\n{all}");
        }
    }
}
