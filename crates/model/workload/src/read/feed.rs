//! Traces in files.

use super::Reader;
use crate::spec::{Assign, Class, Feed};
use crate::trace::{Format, Trace};
use forebay_base::{Diagnostic, Span};
use forebay_document::{Fields, Node, decode};
use std::sync::Arc;

const FEED: [&str; 8] = ["file", "format", "rateScale", "limit", "spread", "class", "shares", "labels"];

impl Reader<'_> {
    pub(super) fn feeds(&mut self, node: &Node, classes: &[Class]) -> Vec<Feed> {
        let Some(items) = decode::list(node, "traces", &mut self.found) else { return Vec::new() };
        let feeds = items.iter().enumerate().map(|(i, n)| self.feed(n, &decode::item("traces", i), classes));
        feeds.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    fn feed(&mut self, node: &Node, path: &str, classes: &[Class]) -> Option<Feed> {
        let f = Fields::open(node, path, &FEED, &mut self.found)?;
        let file = f.require("file", &mut self.found);
        let format = match f.get("format") {
            Some(n) => {
                Some(Format::named(Format::NAMES[self.word_in(n, &f.child("format"), &Format::NAMES)?])?)
            }
            None => None,
        };
        let rate_scale = self.number(&f, "rateScale", 1.0, 1e-9, 1e9);
        let limit = self.whole(&f, "limit", i64::MAX, 1, i64::MAX);
        let spread = self.optional_span(&f, "spread").unwrap_or(Span::ZERO);
        let assign = self.assign(&f, classes);
        let file = file?;
        let (name, source) = self.file(file, &f.child("file"))?;
        let format = match format.map_or_else(|| Format::guess_of(&source), |f| Ok(Some(f))) {
            Ok(Some(format)) => format,
            Ok(None) => {
                let what = format!("{name} looks like no known trace");
                let d = Diagnostic::error(file.at, f.child("file"), what);
                self.found.push(d.expected(format!("the field format: one of {}", Format::NAMES.join(", "))));
                return None;
            }
            Err(e) => {
                let what = format!("{name}: cannot be read: {e}");
                self.found.push(Diagnostic::error(file.at, f.child("file"), what));
                return None;
            }
        };
        let trace = match Trace::open(&source, &name, format) {
            Ok(trace) => Arc::new(trace),
            Err(found) => {
                self.found.0.extend(found.0);
                return None;
            }
        };
        let (rate_scale, limit) = (rate_scale?, limit? as u64);
        Some(Feed { trace, name, rate_scale, limit, spread, assign: assign? })
    }

    fn assign(&mut self, f: &Fields<'_>, classes: &[Class]) -> Option<Assign> {
        let mut assign = Assign { labels: Vec::new(), shares: Vec::new() };
        if let Some(n) = f.get("labels") {
            for e in Fields::open_any(n, &f.child("labels"), &mut self.found)?.entries() {
                let path = format!("{}.{}", f.child("labels"), e.key);
                assign.labels.push((e.key.clone(), self.class_named(&e.value, &path, classes)?));
            }
        }
        if let Some(n) = f.get("class") {
            assign.shares.push((self.class_named(n, &f.child("class"), classes)?, 1.0));
        }
        if let Some(n) = f.get("shares") {
            let shares = Fields::open_any(n, &f.child("shares"), &mut self.found)?;
            let mut weights = Vec::new();
            for e in shares.entries() {
                let class = self.class_of(&e.key, e.at, &shares.child(&e.key), classes);
                weights.push((class?, self.float(&e.value, &shares.child(&e.key), 0.0, 1e9)?));
            }
            let total: f64 = weights.iter().map(|(_, w)| w).sum();
            let mut sum = 0.0;
            assign.shares.extend(weights.iter().filter(|(_, w)| *w > 0.0).map(|(class, w)| {
                sum += w;
                (*class, sum / total)
            }));
            if let Some(last) = assign.shares.last_mut() {
                last.1 = 1.0;
            }
        }
        let ways = ["class", "shares"].iter().filter(|n| f.get(n).is_some()).count();
        if ways > 1 || (assign.shares.is_empty() && assign.labels.is_empty()) {
            let d = Diagnostic::error(f.at, &f.path, "which class the rows go to is not given, or twice");
            self.found.push(d.expected("class or shares, and labels beside it if some rows differ"));
            return None;
        }
        Some(assign)
    }

    fn class_named(&mut self, node: &Node, path: &str, classes: &[Class]) -> Option<u16> {
        let name = decode::text(node, path, &mut self.found)?;
        self.class_of(name, node.at, path, classes)
    }

    fn class_of(
        &mut self,
        name: &str,
        at: forebay_base::Position,
        path: &str,
        classes: &[Class],
    ) -> Option<u16> {
        let index = classes.iter().position(|c| c.name == name);
        if index.is_none() {
            let d = Diagnostic::error(at, path, format!("there is no class {name:?}"));
            self.found.push(d.nearest_of(name, classes.iter().map(|c| c.name.as_str())));
        }
        index.map(|i| i as u16)
    }
}
