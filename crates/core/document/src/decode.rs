//! Readers for the values of a tree. Each reports what is wrong and returns `None`; callers go on, so
//! that all findings of a file show at once.

use crate::quantity::parse_quantity;
use crate::span::parse_duration;
use crate::tree::{Content, Entry, Node, Scalar, ScalarKind, quoted};
use forebay_base::{Diagnostic, Diagnostics, Position};

/// The path of a field: `parent.name`, or `name` at the top.
pub fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// The path of an item: `parent[i]`.
pub fn item(parent: &str, i: usize) -> String {
    format!("{parent}[{i}]")
}

/// Reports that a value has the wrong type or form.
fn wrong(node: &Node, path: &str, expected: &str, found: &mut Diagnostics) {
    let message = format!("found {}", node.describe());
    found.push(Diagnostic::error(node.at, path, message).expected(expected));
}

/// A mapping whose fields are known.
#[derive(Clone, Debug)]
pub struct Fields<'n> {
    entries: &'n [Entry],
    /// Where the mapping starts.
    pub at: Position,
    /// Its path.
    pub path: String,
}

impl<'n> Fields<'n> {
    /// Opens a mapping and reports the fields that are not among `names`, each with the nearest of them.
    pub fn open(node: &'n Node, path: &str, names: &[&str], found: &mut Diagnostics) -> Option<Fields<'n>> {
        let fields = Fields::open_any(node, path, found)?;
        for e in fields.entries {
            if !names.contains(&e.key.as_str()) {
                found.push(unknown_field(e, path, names));
            }
        }
        Some(fields)
    }

    /// Opens a mapping with whatever fields it has.
    pub fn open_any(node: &'n Node, path: &str, found: &mut Diagnostics) -> Option<Fields<'n>> {
        if let Content::Map(entries) = &node.content {
            Some(Fields { entries, at: node.at, path: path.to_owned() })
        } else {
            wrong(node, path, "a mapping", found);
            None
        }
    }

    /// All entries in the order of the text.
    pub fn entries(&self) -> &'n [Entry] {
        self.entries
    }

    /// The value of a field; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.iter().find(|e| e.key == name).map(|e| &e.value).filter(|n| !n.is_null())
    }

    /// The value of a field that has to be there.
    pub fn require(&self, name: &str, found: &mut Diagnostics) -> Option<&'n Node> {
        let value = self.get(name);
        if value.is_none() {
            let at = self.key(name).unwrap_or(self.at);
            found.push(Diagnostic::error(at, self.child(name), "the field is missing"));
        }
        value
    }

    /// Where a key stands.
    pub fn key(&self, name: &str) -> Option<Position> {
        self.entries.iter().find(|e| e.key == name).map(|e| e.at)
    }

    /// The path of a field.
    pub fn child(&self, name: &str) -> String {
        join(&self.path, name)
    }
}

/// The finding about a field that does not exist in the mapping at `path`.
pub fn unknown_field(entry: &Entry, path: &str, names: &[&str]) -> Diagnostic {
    let message = format!("unknown field {}", quoted(&entry.key));
    let expected = match names {
        [] => "no fields".to_owned(),
        [only] => (*only).to_owned(),
        _ => format!("one of {}", names.join(", ")),
    };
    Diagnostic::error(entry.at, join(path, &entry.key), message)
        .expected(expected)
        .nearest_of(&entry.key, names.iter().copied())
}

/// The items of a list.
pub fn list<'n>(node: &'n Node, path: &str, found: &mut Diagnostics) -> Option<&'n [Node]> {
    if let Content::List(items) = &node.content {
        Some(items)
    } else {
        wrong(node, path, "a list", found);
        None
    }
}

/// A text. Numbers and truth words are none; they have to be quoted.
pub fn text<'n>(node: &'n Node, path: &str, found: &mut Diagnostics) -> Option<&'n str> {
    let text = node.as_text();
    if text.is_none() {
        let needs_quotes = matches!(
            &node.content,
            Content::Scalar(Scalar {
                kind: ScalarKind::Bool(_) | ScalarKind::Int(_) | ScalarKind::Float(_),
                ..
            })
        );
        wrong(node, path, if needs_quotes { "a text, in quotes" } else { "a text" }, found);
    }
    text
}

/// A truth value: `true` or `false`, or one of YAML 1.1's plain `yes`, `no`, `on`, `off`.
pub fn bool(node: &Node, path: &str, found: &mut Diagnostics) -> Option<bool> {
    if let Content::Scalar(s) = &node.content {
        match (s.kind, s.text.as_str()) {
            (ScalarKind::Bool(b), _) => return Some(b),
            (ScalarKind::Text { plain: true }, "yes" | "Yes" | "YES" | "on" | "On" | "ON") => {
                return Some(true);
            }
            (ScalarKind::Text { plain: true }, "no" | "No" | "NO" | "off" | "Off" | "OFF") => {
                return Some(false);
            }
            _ => {}
        }
    }
    wrong(node, path, "true or false", found);
    None
}

/// A whole number; `2.0` is one too.
pub fn int(node: &Node, path: &str, found: &mut Diagnostics) -> Option<i64> {
    if let Content::Scalar(s) = &node.content {
        match s.kind {
            ScalarKind::Int(i) => return Some(i),
            // Up to 2^53 a double holds every whole number.
            ScalarKind::Float(x) if x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0 => {
                return Some(x as i64);
            }
            _ => {}
        }
    }
    wrong(node, path, "a whole number", found);
    None
}

/// A finite number.
pub fn float(node: &Node, path: &str, found: &mut Diagnostics) -> Option<f64> {
    if let Content::Scalar(s) = &node.content {
        match s.kind {
            ScalarKind::Int(i) => return Some(i as f64),
            ScalarKind::Float(x) if x.is_finite() => return Some(x),
            _ => {}
        }
    }
    wrong(node, path, "a number", found);
    None
}

/// A Go duration in nanoseconds, which may be negative.
pub fn duration(node: &Node, path: &str, found: &mut Diagnostics) -> Option<i64> {
    const EXPECTED: &str = "a duration such as \"500ms\" or \"1m30s\"";
    let Some(text) = node.as_text() else {
        wrong(node, path, EXPECTED, found);
        return None;
    };
    match parse_duration(text) {
        Ok(ns) => Some(ns),
        Err(e) => {
            let message = format!("{} {e}", quoted(text));
            found.push(Diagnostic::error(node.at, path, message).expected(EXPECTED));
            None
        }
    }
}

/// A Kubernetes quantity as a whole number, which may be negative.
pub fn quantity(node: &Node, path: &str, found: &mut Diagnostics) -> Option<i64> {
    const EXPECTED: &str = "a quantity such as 5000, \"500M\" or \"1Gi\"";
    let Content::Scalar(s) = &node.content else {
        wrong(node, path, EXPECTED, found);
        return None;
    };
    match s.kind {
        ScalarKind::Int(i) => Some(i),
        ScalarKind::Null | ScalarKind::Bool(_) => {
            wrong(node, path, EXPECTED, found);
            None
        }
        ScalarKind::Float(_) | ScalarKind::Text { .. } => match parse_quantity(&s.text) {
            Ok(n) => Some(n),
            Err(e) => {
                let message = format!("{} {e}", quoted(&s.text));
                found.push(Diagnostic::error(node.at, path, message).expected(EXPECTED));
                None
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::parse;

    fn read<T>(text: &str, reader: impl Fn(&Node, &mut Diagnostics) -> T) -> (T, Vec<String>) {
        let mut found = Diagnostics::default();
        let documents = parse(text, &mut found);
        let out = reader(&documents[0], &mut found);
        (out, found.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn unknown_fields_name_the_nearest_and_all() {
        let (fields, found) = read("maxByte: 1\nx: 2\nmaxRequests: ~\n", |n, f| {
            Fields::open(n, "flowControl", &["maxBytes", "maxRequests"], f)
                .map(|m| m.get("maxRequests").is_some())
        });
        assert_eq!(fields, Some(false), "null is absent");
        assert_eq!(
            found,
            [
                "error: 1:1: flowControl.maxByte: unknown field \"maxByte\"; expected one of maxBytes, maxRequests; \
                 did you mean \"maxBytes\"?",
                "error: 2:1: flowControl.x: unknown field \"x\"; expected one of maxBytes, maxRequests",
            ]
        );
    }

    #[test]
    fn scalars_of_the_wrong_type_say_what_was_found() {
        for (yaml, reader, message) in [
            ("5", 't', "error: 1:1: p: found the number 5; expected a text, in quotes"),
            ("[]", 't', "error: 1:1: p: found a list; expected a text"),
            ("maybe", 'b', "error: 1:1: p: found the text \"maybe\"; expected true or false"),
            ("'yes'", 'b', "error: 1:1: p: found the text \"yes\"; expected true or false"),
            ("1.5", 'i', "error: 1:1: p: found the number 1.5; expected a whole number"),
            ("x", 'f', "error: 1:1: p: found the text \"x\"; expected a number"),
            (".inf", 'f', "error: 1:1: p: found the number .inf; expected a number"),
            (
                "5",
                'd',
                "error: 1:1: p: found the number 5; expected a duration such as \"500ms\" or \"1m30s\"",
            ),
            (
                "5d",
                'd',
                "error: 1:1: p: \"5d\" has the unknown unit \"d\"; expected a duration such as \"500ms\" or \"1m30s\"",
            ),
            (
                "1GB",
                'q',
                "error: 1:1: p: \"1GB\" has the unknown suffix \"GB\"; expected a quantity such as 5000, \"500M\" or \
                 \"1Gi\"",
            ),
        ] {
            let (ok, found) = read(yaml, |n, f| match reader {
                't' => text(n, "p", f).is_some(),
                'b' => bool(n, "p", f).is_some(),
                'i' => int(n, "p", f).is_some(),
                'f' => float(n, "p", f).is_some(),
                'd' => duration(n, "p", f).is_some(),
                _ => quantity(n, "p", f).is_some(),
            });
            assert!(!ok);
            assert_eq!(found, [message]);
        }
    }

    #[test]
    fn values_that_upstream_takes_are_taken() {
        assert_eq!(read("2.0", |n, f| int(n, "", f)).0, Some(2));
        assert_eq!(read("3", |n, f| float(n, "", f)).0, Some(3.0));
        assert_eq!(read("on", |n, f| bool(n, "", f)).0, Some(true));
        assert_eq!(read("1_000", |n, f| quantity(n, "", f)).0, Some(1000));
        assert_eq!(read("1e3", |n, f| quantity(n, "", f)).0, Some(1000));
        assert_eq!(read("\"1Gi\"", |n, f| quantity(n, "", f)).0, Some(1 << 30));
        assert_eq!(read("-5", |n, f| quantity(n, "", f)).0, Some(-5));
        assert_eq!(read("-1s", |n, f| duration(n, "", f)).0, Some(-1_000_000_000));
    }
}
