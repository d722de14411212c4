//! Plugin parameters, checked against the plugin's descriptor.

use forebay_base::{Diagnostic, Diagnostics, Span};
use forebay_document::{Content, Entry, Node, decode};
use forebay_kernel::plugin::{Bounds, Param, ParamKind, Value, Values, presets};

/// The values of a parameter mapping, presets filled in, in the order of the table; `None` if one of them
/// is wrong or missing. Without a mapping, all parameters are absent.
pub(crate) fn read_all(
    node: Option<&Node>,
    params: &'static [Param],
    path: &str,
    found: &mut Diagnostics,
) -> Option<Values> {
    let entries: &[Entry] = match node.map(|n| &n.content) {
        None => &[],
        Some(Content::Map(entries)) => entries,
        Some(_) => {
            let node = node?;
            let message = format!("found {}", node.describe());
            found.push(Diagnostic::error(node.at, path, message).expected("a mapping of parameters"));
            return None;
        }
    };
    let mut good = true;
    let mut given: Vec<(&'static str, &Entry)> = Vec::new();
    for e in entries {
        match find(params, e, path, found) {
            Some(p) if given.iter().any(|(name, _)| *name == p.name) => {
                let message = format!("{} is given twice", p.name);
                found.push(Diagnostic::error(e.at, decode::join(path, &e.key), message));
                good = false;
            }
            Some(p) => given.push((p.name, e)),
            None => good = false,
        }
    }
    let defaults = presets(params);
    let mut values = Values::default();
    for p in params {
        let entry = given.iter().find(|(name, _)| *name == p.name).map(|(_, e)| *e);
        if let Some(e) = entry.filter(|e| !e.value.is_null()) {
            match read(&e.value, &p.kind, &decode::join(path, p.name), found) {
                Some(v) => values.0.push((p.name, v)),
                None => good = false,
            }
        } else if let Some(v) = defaults.get(p.name) {
            values.0.push((p.name, v.clone()));
        } else if matches!(p.preset, forebay_kernel::plugin::Preset::Required) {
            let at = node.map_or_else(Default::default, |n| n.at);
            found.push(Diagnostic::error(at, decode::join(path, p.name), "the parameter is missing"));
            good = false;
        }
    }
    good.then_some(values)
}

/// The parameter that a key means. As in Go's JSON decoder, which reads parameters in llm-d-router,
/// the case of letters does not matter here; a spelling that differs is pointed out.
fn find(params: &'static [Param], e: &Entry, path: &str, found: &mut Diagnostics) -> Option<&'static Param> {
    if let Some(p) = params.iter().find(|p| p.name == e.key) {
        return Some(p);
    }
    if let Some(p) = params.iter().find(|p| p.name.eq_ignore_ascii_case(&e.key)) {
        let message = format!("{:?} is read as {}", e.key, p.name);
        found.push(Diagnostic::warning(e.at, decode::join(path, &e.key), message));
        return Some(p);
    }
    let names: Vec<&str> = params.iter().map(|p| p.name).collect();
    found.push(decode::unknown_field(e, path, &names));
    None
}

/// One value of a kind.
pub(crate) fn read(node: &Node, kind: &ParamKind, path: &str, found: &mut Diagnostics) -> Option<Value> {
    let outside = |expected: String, shown: &str, found: &mut Diagnostics| {
        found.push(Diagnostic::error(node.at, path, format!("found {shown}")).expected(expected));
    };
    match kind {
        ParamKind::Bool => decode::bool(node, path, found).map(Value::Bool),
        ParamKind::Int(bounds) => {
            let i = decode::int(node, path, found)?;
            if bounds.contains(i as f64) {
                return Some(Value::Int(i));
            }
            outside(whole(bounds), &i.to_string(), found);
            None
        }
        ParamKind::Float(bounds) => {
            let x = decode::float(node, path, found)?;
            if bounds.contains(x) {
                return Some(Value::Float(x));
            }
            outside(bounds.to_string(), &x.to_string(), found);
            None
        }
        ParamKind::Text => decode::text(node, path, found).map(|t| Value::Text(t.to_owned())),
        ParamKind::Choice(words) => {
            let t = decode::text(node, path, found)?;
            if words.contains(&t) {
                return Some(Value::Text(t.to_owned()));
            }
            let expected =
                if words.len() == 1 { words[0].to_owned() } else { format!("one of {}", words.join(", ")) };
            let d = Diagnostic::error(node.at, path, format!("found {}", node.describe()));
            found.push(d.expected(expected).nearest_of(t, words.iter().copied()));
            None
        }
        ParamKind::Duration => {
            let ns = decode::duration(node, path, found)?;
            if let Ok(ns) = u64::try_from(ns) {
                return Some(Value::Span(Span(ns)));
            }
            outside("a duration of at least 0s".to_owned(), &node.describe(), found);
            None
        }
        ParamKind::List(of) => {
            let items = decode::list(node, path, found)?;
            let read = |(i, n): (usize, &Node)| read(n, of, &decode::item(path, i), found);
            let values: Vec<Option<Value>> = items.iter().enumerate().map(read).collect();
            values.into_iter().collect::<Option<Vec<Value>>>().map(Value::List)
        }
        ParamKind::Object(params) => read_all(Some(node), params, path, found).map(Value::Object),
        ParamKind::Map => texts(node, path, found).map(Value::Map),
        ParamKind::Any => Some(Value::Given),
    }
}

/// A mapping of texts; keys are as given.
fn texts(node: &Node, path: &str, found: &mut Diagnostics) -> Option<Vec<(String, String)>> {
    let Content::Map(entries) = &node.content else {
        let message = format!("found {}", node.describe());
        found.push(Diagnostic::error(node.at, path, message).expected("a mapping of texts to texts"));
        return None;
    };
    let read = |e: &Entry| {
        let value = decode::text(&e.value, &decode::join(path, &e.key), found)?;
        Some((e.key.clone(), value.to_owned()))
    };
    let pairs: Vec<Option<(String, String)>> = entries.iter().map(read).collect();
    pairs.into_iter().collect()
}

/// The interval in words for whole numbers.
pub(crate) fn whole(bounds: &Bounds) -> String {
    bounds.to_string().replacen("number", "whole number", 1)
}
