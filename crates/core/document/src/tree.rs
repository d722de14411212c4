//! The tree and the reader that builds it from parser events.

use crate::decode::{item, join};
use forebay_base::{Diagnostic, Diagnostics, Position};
use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use std::collections::BTreeMap;

/// A value and where it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The first character of the value. A value that came through an alias has the place of the anchor.
    pub at: Position,
    /// The value.
    pub content: Content,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A single value.
    Scalar(Scalar),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping in the order of the text, each key once, merge keys (`<<`) resolved.
    Map(Vec<Entry>),
}

/// One entry of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key's text.
    pub key: String,
    /// The first character of the key.
    pub at: Position,
    /// The value.
    pub value: Node,
}

/// A single value: its text and what the text means.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// The text without quotes, escapes resolved.
    pub text: String,
    /// What it means.
    pub kind: ScalarKind,
}

/// The meaning of a scalar under the YAML core schema, with the integer forms that Go's YAML reader
/// adds (`0x1f`, `0b11`, leading-zero octal, `_` between digits).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    /// `null`, `~`, or nothing at all.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that fits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Quoted, or plain and none of the others. Plain `yes`, `no`, `on` and `off` are texts here;
    /// [`crate::decode::bool`] still reads them as truth values, as YAML 1.1 readers do.
    Text {
        /// Whether it stood without quotes.
        plain: bool,
    },
}

/// What a text may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes of all documents together, counted after aliases and merge keys were expanded.
    pub nodes: usize,
    /// Collections inside one another.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { nodes: 200_000, depth: 64 }
    }
}

impl Node {
    /// Whether it is `null` or empty.
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(Scalar { kind: ScalarKind::Null, .. }))
    }

    /// The value of a key, `null` counting as absent; `None` if this is not a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.content {
            Content::Map(entries) => {
                entries.iter().find(|e| e.key == key).map(|e| &e.value).filter(|n| !n.is_null())
            }
            _ => None,
        }
    }

    /// The text of a scalar that is a text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(s) if matches!(s.kind, ScalarKind::Text { .. }) => Some(&s.text),
            _ => None,
        }
    }

    /// What it is, in words for a message: `the text "x"`, `the number 5`, `a list`.
    pub fn describe(&self) -> String {
        match &self.content {
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a mapping".to_owned(),
            Content::Scalar(s) => match s.kind {
                ScalarKind::Null => "nothing".to_owned(),
                ScalarKind::Bool(b) => b.to_string(),
                ScalarKind::Int(_) | ScalarKind::Float(_) => format!("the number {}", s.text),
                ScalarKind::Text { .. } => format!("the text {}", quoted(&s.text)),
            },
        }
    }
}

/// The text in double quotes, escaped, cut after 60 characters.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        format!("{text:?}")
    } else {
        let cut: String = text.chars().take(LONGEST).collect();
        format!("{:?}", cut + "…")
    }
}

/// Reads all documents of a text under the default limits; see [`parse_with`].
pub fn parse(text: &str, found: &mut Diagnostics) -> Vec<Node> {
    parse_with(text, Limits::default(), found)
}

/// Reads all documents of a text, YAML or JSON. Findings are syntax errors (reading ends at the first
/// one; documents before it are returned), repeated keys (the first one counts), keys that are not
/// scalars, and exceeded limits. An empty text has no document; an empty document is a `null`.
pub fn parse_with(text: &str, limits: Limits, found: &mut Diagnostics) -> Vec<Node> {
    let mut builder = Builder {
        limits,
        nodes: 0,
        stack: Vec::new(),
        anchors: BTreeMap::new(),
        documents: Vec::new(),
        found,
    };
    for next in Parser::new_from_str(text) {
        let went = match next {
            Ok((event, span)) => builder.event(event, &span),
            Err(e) => {
                let at = position(e.marker().line(), e.marker().col());
                Err(builder.stop(at, format!("not valid YAML: {}", e.info())))
            }
        };
        if went.is_err() {
            break;
        }
    }
    builder.documents
}

fn position(line: usize, column_from_zero: usize) -> Position {
    Position { line: line as u32, column: column_from_zero as u32 + 1 }
}

/// An unfinished collection.
struct Frame {
    at: Position,
    anchor: usize,
    kind: FrameKind,
    /// Nodes inside, for counting aliases to it.
    nodes: usize,
}

enum FrameKind {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        /// The line of each key so far.
        seen: BTreeMap<String, u32>,
        merges: Vec<Node>,
        /// The key whose value comes next, and whether it was plain.
        key: Option<(String, Position, bool)>,
    },
}

struct Builder<'f> {
    limits: Limits,
    nodes: usize,
    stack: Vec<Frame>,
    anchors: BTreeMap<usize, (Node, usize)>,
    documents: Vec<Node>,
    found: &'f mut Diagnostics,
}

/// Reading cannot go on; the reason has been reported.
struct Stop;

impl Builder<'_> {
    fn stop(&mut self, at: Position, message: impl Into<String>) -> Stop {
        self.found.push(Diagnostic::error(at, self.path(), message));
        Stop
    }

    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), Stop> {
        let at = position(span.start.line(), span.start.col());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let kind = resolve(&text, plain, tag.as_deref());
                let node = Node { at, content: Content::Scalar(Scalar { text: text.into_owned(), kind }) };
                self.place(node, 1, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.open(at, anchor, FrameKind::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let kind = FrameKind::Map {
                    entries: Vec::new(),
                    seen: BTreeMap::new(),
                    merges: Vec::new(),
                    key: None,
                };
                self.open(at, anchor, kind)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => match self.anchors.get(&id).cloned() {
                Some((node, nodes)) => self.place(node, nodes, 0),
                None => Err(self.stop(at, "the alias is inside its own anchor")),
            },
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, at: Position, anchor: usize, kind: FrameKind) -> Result<(), Stop> {
        if self.stack.len() >= self.limits.depth {
            let message = format!("more than {} collections inside one another", self.limits.depth);
            return Err(self.stop(at, message));
        }
        self.stack.push(Frame { at, anchor, kind, nodes: 0 });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Stop> {
        let frame = self.stack.pop().expect("the parser ends only collections that it started");
        let content = match frame.kind {
            FrameKind::List(items) => Content::List(items),
            FrameKind::Map { mut entries, mut seen, merges, .. } => {
                for source in merges {
                    self.merge(&mut entries, &mut seen, source);
                }
                Content::Map(entries)
            }
        };
        self.place_counted(Node { at: frame.at, content }, 1, frame.nodes + 1, frame.anchor)
    }

    /// Adds the entries of a `<<` value whose keys are not there yet. They were counted when the value
    /// was placed.
    fn merge(&mut self, entries: &mut Vec<Entry>, seen: &mut BTreeMap<String, u32>, source: Node) {
        match source.content {
            Content::Map(more) => {
                for entry in more {
                    if seen.insert(entry.key.clone(), entry.at.line).is_none() {
                        entries.push(entry);
                    }
                }
            }
            Content::List(sources) => {
                for s in sources {
                    self.merge(entries, seen, s);
                }
            }
            Content::Scalar(_) => {
                let message = format!("cannot merge {}", source.describe());
                let d = Diagnostic::error(source.at, join(&self.path(), "<<"), message);
                self.found.push(d.expected("a mapping or a list of mappings"));
            }
        }
    }

    fn place(&mut self, node: Node, nodes: usize, anchor: usize) -> Result<(), Stop> {
        self.place_counted(node, nodes, nodes, anchor)
    }

    /// Puts a finished node where it belongs: `fresh` nodes are new to the count, `nodes` are inside it.
    fn place_counted(&mut self, node: Node, fresh: usize, nodes: usize, anchor: usize) -> Result<(), Stop> {
        self.nodes += fresh;
        if self.nodes > self.limits.nodes {
            let message = format!("more than {} values after expanding aliases", self.limits.nodes);
            return Err(self.stop(node.at, message));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), nodes));
        }
        let Some(frame) = self.stack.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        frame.nodes += nodes;
        match &mut frame.kind {
            FrameKind::List(items) => items.push(node),
            FrameKind::Map { entries, seen, merges, key } => match key.take() {
                None => return self.begin_entry(node),
                Some((name, _, plain)) if name == "<<" && plain => merges.push(node),
                Some((name, at, _)) => {
                    if let Some(&line) = seen.get(&name) {
                        let path = join(&self.path(), &name);
                        let message = format!("the key {} is already given in line {line}", quoted(&name));
                        self.found.push(Diagnostic::error(at, path, message).expected("each key once"));
                    } else {
                        seen.insert(name.clone(), at.line);
                        entries.push(Entry { key: name, at, value: node });
                    }
                }
            },
        }
        Ok(())
    }

    fn begin_entry(&mut self, node: Node) -> Result<(), Stop> {
        let Content::Scalar(s) = node.content else {
            let message = format!("a key is {}, not a text", node.describe());
            return Err(self.stop(node.at, message));
        };
        if let Some(Frame { kind: FrameKind::Map { key, .. }, .. }) = self.stack.last_mut() {
            *key = Some((s.text, node.at, s.kind == ScalarKind::Text { plain: true }));
        }
        Ok(())
    }

    /// The path of the innermost open collection.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in self.stack.iter().take(self.stack.len().saturating_sub(1)) {
            match &frame.kind {
                FrameKind::List(items) => path = item(&path, items.len()),
                FrameKind::Map { key: Some((name, ..)), .. } => path = join(&path, name),
                FrameKind::Map { .. } => {}
            }
        }
        path
    }
}

fn resolve(text: &str, plain: bool, tag: Option<&Tag>) -> ScalarKind {
    let core = tag.filter(|t| t.handle() == "tag:yaml.org,2002:").map(Tag::suffix);
    match core {
        Some("str") => return ScalarKind::Text { plain: false },
        Some("float") => {
            if let Some(x) = float(text) {
                return ScalarKind::Float(x);
            }
        }
        None if !plain => return ScalarKind::Text { plain: false },
        _ => {}
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
        "true" | "True" | "TRUE" => return ScalarKind::Bool(true),
        "false" | "False" | "FALSE" => return ScalarKind::Bool(false),
        _ => {}
    }
    if let Some(i) = int(text) {
        return ScalarKind::Int(i);
    }
    float(text).map_or(ScalarKind::Text { plain }, ScalarKind::Float)
}

/// A whole number as Go's `strconv.ParseInt` reads it with base 0 after `_` was removed.
fn int(text: &str) -> Option<i64> {
    let (negative, body) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if !body.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let digits: String = body.chars().filter(|&c| c != '_').collect();
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits.as_str()),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let signed = if negative { format!("-{digits}") } else { digits.to_owned() };
    i64::from_str_radix(&signed, radix).ok()
}

/// A number in the core schema's float form, or one of its infinities and not-a-numbers.
fn float(text: &str) -> Option<f64> {
    match text {
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Some(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Some(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    let shaped = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
        && text.bytes().any(|b| b.is_ascii_digit());
    if shaped { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write;

    fn one(text: &str) -> Node {
        let mut found = Diagnostics::default();
        let mut all = parse(text, &mut found);
        assert_eq!(found.0, [], "{text}");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn findings(text: &str) -> Vec<String> {
        let mut found = Diagnostics::default();
        parse(text, &mut found);
        found.0.iter().map(ToString::to_string).collect()
    }

    fn kind(text: &str) -> ScalarKind {
        match one(text).content {
            Content::Scalar(s) => s.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_and_values_know_their_places() {
        let doc = one("a: 1\nflow:\n  - é: x\n    b: [1, 2]\n");
        let Content::Map(top) = &doc.content else { panic!() };
        assert_eq!(top[1].at, Position { line: 2, column: 1 });
        let Content::List(items) = &top[1].value.content else { panic!() };
        let Content::Map(inner) = &items[0].content else { panic!() };
        assert_eq!(inner[0].at, Position { line: 3, column: 5 });
        assert_eq!(inner[0].value.at, Position { line: 3, column: 8 });
        assert_eq!(inner[1].value.at, Position { line: 4, column: 8 });
    }

    #[test]
    fn json_is_read_with_tabs_and_surrogates() {
        let doc = one("{\n\t\"a\": [1,\n\t\t2],\t\"b\": \"\\ud83d\\ude00 \\/\"\n}\n");
        assert_eq!(doc.get("b").unwrap().as_text(), Some("😀 /"));
        assert_eq!(doc.get("b").unwrap().at, Position { line: 3, column: 12 });
    }

    #[test]
    fn scalars_mean_what_go_reads() {
        for (text, want) in [
            ("~", ScalarKind::Null),
            ("True", ScalarKind::Bool(true)),
            ("12", ScalarKind::Int(12)),
            ("-0x1F", ScalarKind::Int(-31)),
            ("010", ScalarKind::Int(8)),
            ("1_000", ScalarKind::Int(1000)),
            ("1e3", ScalarKind::Float(1000.0)),
            ("-.5", ScalarKind::Float(-0.5)),
            ("18446744073709551616", ScalarKind::Float(18_446_744_073_709_551_616.0)),
            ("1Gi", ScalarKind::Text { plain: true }),
            ("'12'", ScalarKind::Text { plain: false }),
            ("!!str 12", ScalarKind::Text { plain: false }),
            ("on", ScalarKind::Text { plain: true }),
            ("_1", ScalarKind::Text { plain: true }),
            ("0x-1", ScalarKind::Text { plain: true }),
            (".", ScalarKind::Text { plain: true }),
            ("''", ScalarKind::Text { plain: false }),
        ] {
            assert_eq!(kind(text), want, "{text}");
        }
    }

    #[test]
    fn documents_are_kept_apart() {
        let mut found = Diagnostics::default();
        let all = parse("a: 1\n---\nb: 2\n---\n", &mut found);
        assert_eq!(all.len(), 3);
        assert!(all[2].is_null());
        assert!(parse("", &mut found).is_empty());
        assert!(parse("# nothing\n", &mut found).is_empty());
        assert_eq!(found.0, []);
    }

    #[test]
    fn repeated_keys_are_reported_with_their_path() {
        let text = "x:\n  - a: 1\n  - a: 1\n    b: 2\n    a: 3\n";
        assert_eq!(
            findings(text),
            ["error: 5:5: x[1].a: the key \"a\" is already given in line 3; expected each key once"]
        );
    }

    #[test]
    fn aliases_and_merge_keys_are_expanded() {
        let doc = one("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nagain: *b\n");
        let used = doc.get("use").unwrap();
        assert_eq!(used.get("x").unwrap().describe(), "the number 1");
        assert_eq!(used.get("y").unwrap().describe(), "the number 3");
        assert_eq!(doc.get("again"), doc.get("base"));
    }

    #[test]
    fn what_is_not_yaml_is_named_with_its_place() {
        let bracket = findings("a: 1\nb: [");
        assert_eq!(bracket.len(), 1);
        assert!(bracket[0].starts_with("error: 2:4: b: not valid YAML: "), "{bracket:?}");
        assert!(findings("a: *nope\n")[0].contains("1:4"));
        assert!(findings("a: &x [*x]\n")[0].contains("inside its own anchor"));
        assert!(findings("? [a]\n: 1\n")[0].contains("a key is a list"));
    }

    #[test]
    fn alias_bombs_and_deep_nests_are_bounded() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(", ");
            writeln!(bomb, "a{i}: &a{i} [{refs}]").unwrap();
        }
        assert!(findings(&bomb)[0].contains("more than 200000 values"));
        let mut merges = "m0: &m0 {a: &v [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n".to_owned();
        for i in 1..40 {
            let m = format!("*m{}", i - 1);
            writeln!(merges, "m{i}: &m{i} {{<<: {m}, l: {m}, r: {m}}}").unwrap();
        }
        assert!(findings(&merges)[0].contains("more than 200000 values"));
        let deep = findings(&format!("{}{}", "[".repeat(100), "]".repeat(100)));
        assert!(deep[0].contains("inside one another"), "{deep:?}");
        assert_eq!(findings(&"[".repeat(100_000)).len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_text_is_read_without_a_panic(text in "[\\[\\]{}:,\\-&*a!<>|?'\"\n \t#~0-9.]{0,60}") {
            let mut found = Diagnostics::default();
            let documents = parse(&text, &mut found);
            prop_assert!(documents.len() <= text.len() + 1);
        }

        #[test]
        fn whole_numbers_survive(i in any::<i64>()) {
            prop_assert_eq!(kind(&i.to_string()), ScalarKind::Int(i));
        }
    }
}
