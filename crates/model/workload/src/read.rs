//! The reader of workload files: strict, with all findings at once.

mod class;
mod dist;
mod feed;

use crate::length::Dist;
use crate::rate::Stage;
use crate::source::Source;
use crate::spec::{Class, Feed, Kind, Mode, Workload};
use forebay_base::{Diagnostic, Diagnostics, Position, Span};
use forebay_document::{Content, Fields, Node, decode, parse};

/// Gives a file that a workload names, or says why not.
pub type Files<'f> = dyn FnMut(&str) -> Result<Source, String> + 'f;

/// What is at hand while a file is read.
struct Reader<'f> {
    found: Diagnostics,
    lengths: Vec<(String, Dist)>,
    stages: (Vec<Stage>, bool),
    files: &'f mut Files<'f>,
}

impl Workload {
    /// Reads a workload file that names no other files; `file` is its name in messages.
    pub fn read(text: &str, file: &str) -> Result<Workload, Diagnostics> {
        Workload::read_with(text, file, &mut |_| Err("files are not read here".to_owned()))
    }

    /// Reads a workload file. `files` gives the traces that it names.
    pub fn read_with<'f>(text: &str, file: &str, files: &'f mut Files<'f>) -> Result<Workload, Diagnostics> {
        let mut found = Diagnostics::default();
        let documents = parse(text, &mut found);
        Workload::read_tree(&documents, found, file, files)
    }

    /// As [`Workload::read_with`], from a text that has been read into trees already, with what was `found`
    /// there.
    pub fn read_tree<'f>(
        documents: &[Node],
        found: Diagnostics,
        file: &str,
        files: &'f mut Files<'f>,
    ) -> Result<Workload, Diagnostics> {
        let mut reader = Reader { found, lengths: Vec::new(), stages: (Vec::new(), false), files };
        let workload = match documents {
            [document] => reader.workload(document),
            _ if reader.found.has_errors() => None,
            other => {
                let at = other.get(1).map_or(Position { line: 1, column: 1 }, |n| n.at);
                let message = format!("the file has {} documents", other.len());
                reader.found.push(Diagnostic::error(at, "", message).expected("one"));
                None
            }
        };
        reader.found.finish(file);
        match workload {
            Some(w) if !reader.found.has_errors() => Ok(w),
            _ => Err(reader.found),
        }
    }
}

const TOP: [&str; 9] =
    ["version", "name", "mode", "lengths", "classes", "stages", "repeat", "traces", "bytesPerToken"];

impl Reader<'_> {
    fn workload(&mut self, node: &Node) -> Option<Workload> {
        let f = Fields::open(node, "", &TOP, &mut self.found)?;
        if let Some(v) = f.require("version", &mut self.found)
            && decode::int(v, "version", &mut self.found).is_some_and(|n| n != 1)
        {
            self.wrong::<()>(v, "version", format!("found {}", v.describe()), "1");
        }
        let name = f.require("name", &mut self.found);
        let name = name.and_then(|n| decode::text(n, "name", &mut self.found)).unwrap_or_default().to_owned();
        let mode = f.require("mode", &mut self.found).and_then(|n| self.mode(n));
        if let Some(n) = f.get("lengths") {
            self.named_lengths(n);
        }
        self.stages = self.stages_of(&f)?;
        let mut classes = Vec::new();
        if let Some(n) = f.require("classes", &mut self.found) {
            classes = self.classes(n);
        }
        let traces = match f.get("traces") {
            Some(n) => self.feeds(n, &classes),
            None => Vec::new(),
        };
        self.idle(&f, &classes, &traces);
        let bytes_per_token = self.number(&f, "bytesPerToken", 4.0, 0.0, 1e6)?;
        Some(Workload { name, mode: mode?, classes, traces, bytes_per_token })
    }

    /// A class has arrivals of its own or a trace that feeds it. Rows of a trace come once and alone.
    fn idle(&mut self, f: &Fields<'_>, classes: &[Class], traces: &[Feed]) {
        // With other mistakes in the file a feed may be missing that is meant to be there.
        let unread = self.found.has_errors();
        let places = f.get("classes").and_then(|n| Fields::open_any(n, "classes", &mut self.found));
        for (i, class) in classes.iter().enumerate() {
            let fed = traces.iter().any(|t| t.assign.feeds(i as u16));
            let follows = class.sessions.is_some() || class.retry.attempts > 1;
            let (message, expected) = match class.arrivals {
                None if !fed && !unread => {
                    ("the class has no requests", "the field arrivals, or a trace that feeds it")
                }
                None if follows => ("rows of a trace have no sessions and no retries", "the field arrivals"),
                _ => continue,
            };
            let at = places.as_ref().and_then(|p| p.key(&class.name)).unwrap_or(f.at);
            let path = format!("classes.{}", class.name);
            self.found.push(Diagnostic::error(at, path, message).expected(expected));
        }
    }

    fn mode(&mut self, node: &Node) -> Option<Mode> {
        let f = Fields::open(node, "mode", &["kind", "window", "warmup", "drain"], &mut self.found)?;
        let kind = self.word(&f, "kind", &["surge", "steady"]);
        let kind = kind.map(|i| [Kind::Surge, Kind::Steady][i]);
        let window = f.require("window", &mut self.found).and_then(|n| self.span(n, "mode.window", true));
        let warmup = self.optional_span(&f, "warmup").unwrap_or(Span::ZERO);
        let drain = self.optional_span(&f, "drain").unwrap_or(Span::ZERO);
        Some(Mode { kind: kind?, window: window?, warmup, drain })
    }

    /// `stages` and `repeat` of the file or of a class; what the file says if the class says nothing.
    fn stages_of(&mut self, f: &Fields<'_>) -> Option<(Vec<Stage>, bool)> {
        let repeat = f.get("repeat").and_then(|n| decode::bool(n, &f.child("repeat"), &mut self.found));
        let Some(node) = f.get("stages") else {
            if let Some(at) = f.key("repeat").filter(|_| repeat.is_some()) {
                let d = Diagnostic::error(at, f.child("repeat"), "there are no stages beside it");
                self.found.push(d);
            }
            return Some(self.stages.clone());
        };
        let path = f.child("stages");
        let mut stages = Vec::new();
        for (i, n) in decode::list(node, &path, &mut self.found)?.iter().enumerate() {
            stages.extend(self.stage(n, &decode::item(&path, i)));
        }
        Some((stages, repeat.unwrap_or(false)))
    }

    fn stage(&mut self, node: &Node, path: &str) -> Option<Stage> {
        let f = Fields::open(node, path, &["for", "scale"], &mut self.found)?;
        let span = f.require("for", &mut self.found).and_then(|n| self.span(n, &f.child("for"), true));
        let scale = f.require("scale", &mut self.found)?;
        let path = f.child("scale");
        let (from, to) = match &scale.content {
            Content::List(items) if items.len() == 2 => (
                self.float(&items[0], &decode::item(&path, 0), 0.0, 1e9)?,
                self.float(&items[1], &decode::item(&path, 1), 0.0, 1e9)?,
            ),
            Content::Scalar(_) => {
                let v = self.float(scale, &path, 0.0, 1e9)?;
                (v, v)
            }
            _ => {
                let expected = "a factor, or two: at the start and at the end";
                return self.wrong(scale, &path, format!("found {}", scale.describe()), expected);
            }
        };
        Some(Stage { seconds: span?.as_secs_f64(), from, to })
    }

    fn wrong<T>(&mut self, node: &Node, path: &str, message: String, expected: &str) -> Option<T> {
        self.found.push(Diagnostic::error(node.at, path, message).expected(expected));
        None
    }

    /// A number in a range, both ends included.
    fn float(&mut self, node: &Node, path: &str, low: f64, high: f64) -> Option<f64> {
        let v = decode::float(node, path, &mut self.found)?;
        if v < low || v > high {
            return self.wrong(node, path, format!("found {}", node.describe()), &range(low, high));
        }
        Some(v)
    }

    /// A number in a range, with a value for where it is missing; `None` if it is wrong.
    fn number(&mut self, f: &Fields<'_>, name: &str, or: f64, low: f64, high: f64) -> Option<f64> {
        match f.get(name) {
            Some(n) => self.float(n, &f.child(name), low, high),
            None => Some(or),
        }
    }

    /// A whole number in a range, with a value for where it is missing.
    fn whole(&mut self, f: &Fields<'_>, name: &str, or: i64, low: i64, high: i64) -> Option<i64> {
        let Some(n) = f.get(name) else { return Some(or) };
        let path = f.child(name);
        let v = decode::int(n, &path, &mut self.found)?;
        if v < low || v > high {
            return self.wrong(n, &path, format!("found {}", n.describe()), &range(low as f64, high as f64));
        }
        Some(v)
    }

    /// A time that is not negative; `positive` forbids zero too.
    fn span(&mut self, node: &Node, path: &str, positive: bool) -> Option<Span> {
        let ns = decode::duration(node, path, &mut self.found)?;
        if ns < 0 || (positive && ns == 0) {
            let expected = if positive { "a time greater than 0" } else { "a time of at least 0" };
            return self.wrong(node, path, format!("found {}", node.describe()), expected);
        }
        Some(Span(ns as u64))
    }

    fn optional_span(&mut self, f: &Fields<'_>, name: &str) -> Option<Span> {
        f.get(name).and_then(|n| self.span(n, &f.child(name), false))
    }

    /// One of some words, by index; the field is required.
    fn word(&mut self, f: &Fields<'_>, name: &str, words: &[&str]) -> Option<usize> {
        let node = f.require(name, &mut self.found)?;
        self.word_in(node, &f.child(name), words)
    }

    fn word_in(&mut self, node: &Node, path: &str, words: &[&str]) -> Option<usize> {
        let text = decode::text(node, path, &mut self.found)?;
        let index = words.iter().position(|w| *w == text);
        if index.is_none() {
            let d = Diagnostic::error(node.at, path, format!("found {}", node.describe()));
            let d = d.expected(format!("one of {}", words.join(", ")));
            self.found.push(d.nearest_of(text, words.iter().copied()));
        }
        index
    }
}

fn range(low: f64, high: f64) -> String {
    if high >= 1e9 { format!("at least {low}") } else { format!("a number from {low} to {high}") }
}
