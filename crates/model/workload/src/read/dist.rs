//! Distributions in files.

use super::Reader;
use crate::length::{Dist, Shape};
use forebay_base::Diagnostic;
use forebay_document::{Content, Fields, Node, decode};

const SHAPES: [&str; 6] = ["constant", "uniform", "normal", "lognormal", "exponential", "empirical"];
const FIELDS: [&str; 7] = ["constant", "uniform", "normal", "lognormal", "exponential", "empirical", "clamp"];
/// No prompt has more tokens, and no pause more seconds.
pub(super) const MOST: f64 = 1e7;

impl Reader<'_> {
    /// The section `lengths`.
    pub(super) fn named_lengths(&mut self, node: &Node) {
        let Some(f) = Fields::open_any(node, "lengths", &mut self.found) else { return };
        for e in f.entries() {
            if let Some(dist) = self.dist(&e.value, &f.child(&e.key)) {
                self.lengths.push((e.key.clone(), dist));
            }
        }
    }

    /// The name of a length, or a distribution, or a number.
    pub(super) fn length(&mut self, node: &Node, path: &str) -> Option<Dist> {
        let Some(name) = node.as_text() else { return self.dist(node, path) };
        let found = self.lengths.iter().find(|(n, _)| n == name).map(|(_, d)| d.clone());
        if found.is_none() {
            let names: Vec<&str> = self.lengths.iter().map(|(n, _)| n.as_str()).collect();
            let d = Diagnostic::error(node.at, path, format!("no length has the name {name:?}"));
            let d = d.expected(format!("one of {}, or a distribution", names.join(", ")));
            let d = d.nearest_of(name, names);
            self.found.push(d);
        }
        found
    }

    /// A distribution of times in seconds: a duration, or a distribution.
    pub(super) fn times(&mut self, node: &Node, path: &str) -> Option<Dist> {
        if node.as_text().is_some() {
            return Some(Dist::constant(self.span(node, path, false)?.as_secs_f64()));
        }
        self.dist(node, path)
    }

    fn dist(&mut self, node: &Node, path: &str) -> Option<Dist> {
        if matches!(node.content, Content::Scalar(_)) {
            return Some(Dist::constant(self.float(node, path, 0.0, MOST)?));
        }
        let f = Fields::open(node, path, &FIELDS, &mut self.found)?;
        let given: Vec<&str> = SHAPES.into_iter().filter(|s| f.get(s).is_some()).collect();
        let [shape] = given.as_slice() else {
            let message = match given.as_slice() {
                [] => "no distribution is given".to_owned(),
                several => format!("{} are given", several.join(" and ")),
            };
            return self.wrong(node, path, message, &format!("one of {}", SHAPES.join(", ")));
        };
        let value = f.get(shape)?;
        let at = f.child(shape);
        let shape = match *shape {
            "constant" => Shape::Constant(self.float(value, &at, 0.0, MOST)?),
            "exponential" => Shape::Exponential(self.float(value, &at, 0.0, MOST)?),
            "uniform" => {
                let (low, high) = self.two(value, &at, (0.0, MOST), (0.0, MOST))?;
                if high < low {
                    return self.wrong(value, &at, format!("{high} is below {low}"), "[least, greatest]");
                }
                Shape::Uniform(low, high)
            }
            "normal" => {
                let (mean, sd) = self.two(value, &at, (0.0, MOST), (0.0, MOST))?;
                Shape::Normal(mean, sd)
            }
            "lognormal" => {
                let (mu, sigma) = self.two(value, &at, (-20.0, 20.0), (0.0, 10.0))?;
                Shape::Lognormal(mu, sigma)
            }
            _ => self.empirical(value, &at)?,
        };
        let clamp = match f.get("clamp") {
            Some(n) => {
                let (low, high) = self.two(n, &f.child("clamp"), (0.0, MOST), (0.0, MOST))?;
                if high < low {
                    return self.wrong(
                        n,
                        &f.child("clamp"),
                        format!("{high} is below {low}"),
                        "[least, greatest]",
                    );
                }
                Some((low, high))
            }
            None => None,
        };
        Some(Dist { shape, clamp })
    }

    /// A mapping from values to weights.
    fn empirical(&mut self, node: &Node, path: &str) -> Option<Shape> {
        let f = Fields::open_any(node, path, &mut self.found)?;
        let mut weights = Vec::new();
        for e in f.entries() {
            let Some(value) = e.key.parse::<f64>().ok().filter(|v| (0.0..=MOST).contains(v)) else {
                let d = Diagnostic::error(e.at, f.child(&e.key), format!("{:?} is no value", e.key));
                self.found.push(d.expected("a number, with its weight"));
                continue;
            };
            weights.push((value, self.float(&e.value, &f.child(&e.key), 0.0, 1e300)?));
        }
        match Dist::empirical(weights) {
            Some(d) => Some(d.shape),
            None => self.wrong(node, path, "no value has a weight".to_owned(), "value: weight"),
        }
    }

    /// A list of two numbers.
    pub(super) fn two(
        &mut self,
        node: &Node,
        path: &str,
        a: (f64, f64),
        b: (f64, f64),
    ) -> Option<(f64, f64)> {
        let items = decode::list(node, path, &mut self.found)?;
        let [first, second] = items else {
            return self.wrong(
                node,
                path,
                format!("found a list of {}", items.len()),
                "a list of two numbers",
            );
        };
        let first = self.float(first, &decode::item(path, 0), a.0, a.1);
        let second = self.float(second, &decode::item(path, 1), b.0, b.1);
        Some((first?, second?))
    }
}
