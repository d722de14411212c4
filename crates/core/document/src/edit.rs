//! Changing a tree before it is read: one field at a path gets another value.
//!
//! A path is written as in messages, `flowControl.priorityBands[1].priority`. An item of a list can also be
//! named by what tells it apart: `plugins[soft-reflective-ceiling-policy].parameters` is the item whose field
//! `name`, `type`, `pluginRef` or `hardware` says so. A dot inside a key is written `\.`.

use crate::decode::{item, join};
use crate::tree::{Content, Entry, Node, Scalar, ScalarKind};
use forebay_base::Position;
use std::fmt;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field of a mapping.
    Key(String),
    /// An item of a list, from 0.
    Item(usize),
    /// An item of a list that is a mapping, by one of [`NAMES`].
    Named(String),
}

/// The fields that tell items of a list apart, in the order in which they are asked.
pub const NAMES: [&str; 4] = ["name", "type", "pluginRef", "hardware"];

/// Why a path cannot be followed or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditError {
    /// The part of the path up to where it went wrong.
    pub path: String,
    /// What is there.
    pub message: String,
    /// What would be right.
    pub expected: String,
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; expected {}", self.path, self.message, self.expected)
    }
}

impl std::error::Error for EditError {}

/// Reads a path.
///
/// # Errors
/// What is wrong with it.
pub fn path(text: &str) -> Result<Vec<Step>, EditError> {
    let wrong = |message: &str| EditError {
        path: text.to_owned(),
        message: message.to_owned(),
        expected: "a path such as scrape.period or engines[0].count".to_owned(),
    };
    let mut steps = Vec::new();
    let mut key = String::new();
    let mut rest = text.chars().peekable();
    // After `]` a dot or another `[` has to come.
    let mut closed = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' if rest.peek() == Some(&'.') => key.extend(rest.next()),
            '.' => {
                if key.is_empty() && !closed {
                    return Err(wrong("a name between dots is empty"));
                }
                if !key.is_empty() {
                    steps.push(Step::Key(std::mem::take(&mut key)));
                }
                closed = false;
                if rest.peek().is_none() {
                    return Err(wrong("the path ends with a dot"));
                }
            }
            '[' => {
                if !key.is_empty() {
                    steps.push(Step::Key(std::mem::take(&mut key)));
                }
                let mut inside = String::new();
                loop {
                    match rest.next() {
                        Some(']') => break,
                        Some(c) => inside.push(c),
                        None => return Err(wrong("a bracket is not closed")),
                    }
                }
                if inside.is_empty() || steps.is_empty() {
                    return Err(wrong("a bracket has nothing in it or before it"));
                }
                steps.push(inside.parse().map_or(Step::Named(inside), Step::Item));
                closed = true;
            }
            _ if closed => return Err(wrong("a name follows a bracket without a dot")),
            c => key.push(c),
        }
    }
    if !key.is_empty() {
        steps.push(Step::Key(key));
    }
    if steps.is_empty() { Err(wrong("the path is empty")) } else { Ok(steps) }
}

/// Puts `value` at a path, instead of what is there. Mappings on the way that are not there are made;
/// every node that is new has the place `at`. Items of lists are changed, never added.
///
/// # Errors
/// Where the path leads through something that is no mapping or list, or to an item that is not there.
pub fn set(root: &mut Node, path: &[Step], value: Node, at: Position) -> Result<(), EditError> {
    let mut value = value;
    place(&mut value, at);
    let mut node = root;
    let mut walked = String::new();
    for step in path {
        match step {
            Step::Key(name) => {
                walked = join(&walked, name);
                node = field(node, name, &walked, at)?;
            }
            Step::Item(_) | Step::Named(_) => {
                let i = index(node, step, &walked)?;
                walked = item(&walked, i);
                let Content::List(items) = &mut node.content else { unreachable!("it has an index") };
                node = &mut items[i];
            }
        }
    }
    *node = value;
    Ok(())
}

/// Gives a node and all in it a place.
pub fn place(node: &mut Node, at: Position) {
    node.at = at;
    match &mut node.content {
        Content::Scalar(_) => {}
        Content::List(items) => items.iter_mut().for_each(|n| place(n, at)),
        Content::Map(entries) => {
            for e in entries {
                e.at = at;
                place(&mut e.value, at);
            }
        }
    }
}

/// The value of a field, which is made if it is not there. Nothing at all counts as an empty mapping.
fn field<'n>(node: &'n mut Node, name: &str, walked: &str, at: Position) -> Result<&'n mut Node, EditError> {
    if node.is_null() {
        node.content = Content::Map(Vec::new());
    }
    let described = node.describe();
    let Content::Map(entries) = &mut node.content else {
        return Err(EditError {
            path: walked.to_owned(),
            message: format!("{described} has no fields"),
            expected: "a mapping there".to_owned(),
        });
    };
    let i = entries.iter().position(|e| e.key == name).unwrap_or_else(|| {
        let nothing = Scalar { text: String::new(), kind: ScalarKind::Null };
        let value = Node { at, content: Content::Scalar(nothing) };
        entries.push(Entry { key: name.to_owned(), at, value });
        entries.len() - 1
    });
    Ok(&mut entries[i].value)
}

fn index(node: &Node, step: &Step, walked: &str) -> Result<usize, EditError> {
    let wrong = |message: String, expected: String| EditError { path: walked.to_owned(), message, expected };
    let Content::List(items) = &node.content else {
        return Err(wrong(format!("found {}", node.describe()), "a list".to_owned()));
    };
    let named = |n: &Node| NAMES.iter().find_map(|f| n.get(f)?.as_text().map(str::to_owned));
    match step {
        Step::Item(i) if *i < items.len() => Ok(*i),
        Step::Item(i) => Err(wrong(
            format!("there is no item {i}"),
            match items.len() {
                0 => "a list that has items".to_owned(),
                n => format!("an index from 0 to {}", n - 1),
            },
        )),
        Step::Named(name) => {
            let says = |n: &Node| NAMES.iter().any(|f| n.get(f).and_then(Node::as_text) == Some(name));
            items.iter().position(says).ok_or_else(|| {
                let all: Vec<String> = items.iter().filter_map(named).collect();
                let expected =
                    if all.is_empty() { "an index".to_owned() } else { format!("one of {}", all.join(", ")) };
                wrong(format!("no item is called {name:?}"), expected)
            })
        }
        Step::Key(_) => Err(wrong("a list has no fields".to_owned(), "an index".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::parse;
    use forebay_base::Diagnostics;

    fn tree(text: &str) -> Node {
        let mut found = Diagnostics::default();
        let mut all = parse(text, &mut found);
        assert!(found.0.is_empty(), "{found}");
        all.remove(0)
    }

    /// What a tree says, without places.
    fn said(node: &Node) -> String {
        match &node.content {
            Content::Scalar(s) => s.text.clone(),
            Content::List(items) => format!("[{}]", items.iter().map(said).collect::<Vec<_>>().join(",")),
            Content::Map(entries) => {
                let all: Vec<String> =
                    entries.iter().map(|e| format!("{}:{}", e.key, said(&e.value))).collect();
                format!("{{{}}}", all.join(","))
            }
        }
    }

    const AT: Position = Position { line: 0, column: 3 };

    fn put(text: &str, to: &str, value: &str) -> Result<String, String> {
        let mut root = tree(text);
        let steps = path(to).map_err(|e| e.to_string())?;
        set(&mut root, &steps, tree(value), AT).map_err(|e| e.to_string())?;
        Ok(said(&root))
    }

    #[test]
    fn values_are_replaced_and_added() {
        let text = "a: 1\nb: {c: [x, {name: n, d: 2}]}\n";
        for (to, value, all) in [
            ("a", "7", "{a:7,b:{c:[x,{name:n,d:2}]}}"),
            ("b.c[0]", "y", "{a:1,b:{c:[y,{name:n,d:2}]}}"),
            ("b.c[1].d", "[3, 4]", "{a:1,b:{c:[x,{name:n,d:[3,4]}]}}"),
            ("b.c[n].d", "3", "{a:1,b:{c:[x,{name:n,d:3}]}}"),
            ("b.e.f", "{g: 1}", "{a:1,b:{c:[x,{name:n,d:2}],e:{f:{g:1}}}}"),
            ("x\\.y", "1", "{a:1,b:{c:[x,{name:n,d:2}]},x.y:1}"),
        ] {
            assert_eq!(put(text, to, value).as_deref(), Ok(all), "{to}");
        }
        assert_eq!(put("~", "a.b", "1").as_deref(), Ok("{a:{b:1}}"), "an empty document");
    }

    #[test]
    fn new_nodes_carry_the_place_of_the_change() {
        let mut root = tree("a: 1\n");
        set(&mut root, &path("b.c").unwrap(), tree("{d: [1]}"), AT).unwrap();
        let Content::Map(entries) = &root.content else { panic!() };
        assert_eq!((entries[0].at.line, entries[1].at, entries[1].value.at), (1, AT, AT));
        let d = entries[1].value.get("c").unwrap().get("d").unwrap();
        let Content::List(items) = &d.content else { panic!() };
        assert_eq!((d.at, items[0].at), (AT, AT));
    }

    #[test]
    fn paths_that_lead_nowhere_say_where() {
        let text = "a: 1\nb: [{type: x}, {type: y}]\nc: []\n";
        for (to, said) in [
            ("a.b", "a.b: the number 1 has no fields; expected a mapping there"),
            ("a[0]", "a: found the number 1; expected a list"),
            ("b[2]", "b: there is no item 2; expected an index from 0 to 1"),
            ("c[0]", "c: there is no item 0; expected a list that has items"),
            ("b[z]", "b: no item is called \"z\"; expected one of x, y"),
            ("b.x", "b.x: a list has no fields; expected a mapping there"),
        ] {
            assert_eq!(put(text, to, "1").unwrap_err(), said);
        }
        for to in ["", ".a", "a..b", "a.", "a[", "a[]", "[0]", "a[0]b"] {
            assert!(path(to).is_err(), "{to}");
        }
    }
}
