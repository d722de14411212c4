//! Clients of ServeGen (Xiang et al., 2025): generative models of single clients of a production service.
//!
//! A client is two files: windows of 600 s with a rate, the coefficient of variation of the gaps and their
//! fitted family, without a header; and an object keyed by the start of a window in seconds whose
//! `input_tokens` and `output_tokens` are texts that hold a dictionary from value to probability.

use crate::length::Dist;
use crate::rate::Stage;
use crate::sample::Gap;
use forebay_base::{Diagnostic, Diagnostics, Position};

/// A window of time.
#[derive(Clone, Debug, PartialEq)]
struct Span600 {
    start: f64,
    rate: f64,
    gap: Gap,
}

/// Lengths from an instant on.
#[derive(Clone, Debug, PartialEq)]
struct Lengths {
    start: f64,
    input: Dist,
    output: Dist,
}

/// A client from its two files.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    windows: Vec<Span600>,
    lengths: Vec<Lengths>,
    /// Seconds of a window.
    step: f64,
}

impl Client {
    /// Reads the two files; names are for messages. Time 0 is `start` seconds into the files; windows before
    /// it are left out.
    pub fn read(trace: (&str, &str), dataset: (&str, &str), start: f64) -> Result<Client, Diagnostics> {
        let mut found = Diagnostics::default();
        let mut windows = windows(trace.1, &mut found);
        let step = match windows.as_slice() {
            [a, b, ..] => b.start - a.start,
            _ => 600.0,
        };
        windows.retain(|w| w.start >= start);
        for w in &mut windows {
            w.start -= start;
        }
        if windows.is_empty() && found.0.is_empty() {
            found.push(Diagnostic::error(
                Position::default(),
                "",
                format!("no window at or after {start} s"),
            ));
        }
        found.finish(trace.0);
        let mut more = Diagnostics::default();
        let mut lengths = lengths(dataset.1, &mut more);
        for l in &mut lengths {
            l.start -= start;
        }
        if lengths.is_empty() && more.0.is_empty() {
            more.push(Diagnostic::error(Position::default(), "", "no window has lengths"));
        }
        more.finish(dataset.0);
        found.0.extend(more.0);
        if found.has_errors() { Err(found) } else { Ok(Client { windows, lengths, step }) }
    }

    /// Mean requests per second over all its windows.
    pub fn mean_rate(&self) -> f64 {
        self.windows.iter().map(|w| w.rate).sum::<f64>() / self.windows.len().max(1) as f64
    }

    /// Its windows as stages with their gaps; after the last one nothing comes.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (Stage, Gap)> + '_ {
        let none = Stage { seconds: 0.0, from: 0.0, to: 0.0 };
        let windows =
            self.windows.iter().map(|w| (Stage { seconds: self.step, from: w.rate, to: w.rate }, w.gap));
        windows.chain([(none, Gap::Exponential)])
    }

    /// Input and output at an instant in seconds: those of the last window with lengths that began by then,
    /// or of the first.
    pub(crate) fn lengths(&self, at: f64) -> (&Dist, &Dist) {
        let i = self.lengths.partition_point(|l| l.start <= at).saturating_sub(1);
        let l = &self.lengths[i];
        (&l.input, &l.output)
    }
}

fn windows(text: &str, found: &mut Diagnostics) -> Vec<Span600> {
    let mut out: Vec<Span600> = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let at = Position { line: i as u32 + 1, column: 1 };
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |i: usize| cells.get(i).and_then(|c| c.parse::<f64>().ok()).filter(|x| x.is_finite());
        let (Some(start), Some(rate), Some(cv)) = (number(0), number(1), number(2)) else {
            let message = format!("{line:?} is no window");
            let expected = "start, rate, cv, family, shape, scale";
            found.push(Diagnostic::error(at, "", message).expected(expected));
            continue;
        };
        let shape = number(4).filter(|k| *k > 0.0);
        let gap = match (cells.get(3).copied().unwrap_or_default(), shape) {
            ("Gamma", Some(shape)) => Gap::Gamma(shape),
            ("Weibull", Some(shape)) => Gap::weibull(shape),
            ("", _) if cv > 0.0 => Gap::gamma(cv),
            ("", _) => Gap::Exponential,
            (family, _) => {
                let d = Diagnostic::error(at, "", format!("{family:?} with the shape {:?}", cells.get(4)));
                found.push(
                    d.expected("Gamma or Weibull with a positive shape")
                        .nearest_of(family, ["Gamma", "Weibull"]),
                );
                continue;
            }
        };
        if rate < 0.0 || out.last().is_some_and(|w: &Span600| w.start >= start) {
            found.push(Diagnostic::error(at, "", "windows have to ascend and rates may not be negative"));
            continue;
        }
        out.push(Span600 { start, rate, gap });
    }
    out
}

fn lengths(text: &str, found: &mut Diagnostics) -> Vec<Lengths> {
    let object: serde_json::Map<String, serde_json::Value> = match serde_json::from_str(text) {
        Ok(object) => object,
        Err(e) => {
            let at = Position { line: e.line() as u32, column: e.column() as u32 };
            found.push(Diagnostic::error(at, "", e.to_string()));
            return Vec::new();
        }
    };
    let mut out = Vec::new();
    for (key, window) in &object {
        let field = |name: &str| window.get(name).and_then(|v| v.as_str());
        let (Ok(start), Some(input), Some(output)) =
            (key.parse::<f64>(), field("input_tokens"), field("output_tokens"))
        else {
            let d = Diagnostic::error(Position::default(), key, "no window of a text client");
            found.push(d.expected("seconds, with the texts input_tokens and output_tokens"));
            continue;
        };
        match (dictionary(input), dictionary(output)) {
            (Some(i), Some(o)) => {
                // An idle window has empty dictionaries.
                if let (Some(input), Some(output)) = (Dist::empirical(i), Dist::empirical(o)) {
                    out.push(Lengths { start, input, output });
                }
            }
            _ => found.push(Diagnostic::error(
                Position::default(),
                key,
                "a length is no dictionary of numbers",
            )),
        }
    }
    out.sort_by(|a, b| a.start.total_cmp(&b.start));
    out
}

/// `{1: 0.5, 2.0: 5e-1}`; parsed, never evaluated.
fn dictionary(text: &str) -> Option<Vec<(f64, f64)>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let pair = |p: &str| {
        let (value, share) = p.split_once(':')?;
        Some((value.trim().parse().ok()?, share.trim().parse().ok()?))
    };
    inner.split(',').filter(|p| !p.trim().is_empty()).map(pair).collect()
}
