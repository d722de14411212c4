//! Calibration files: efficiency factors per GPU type.
//!
//! ```yaml
//! version: 1
//! hardware:
//!   h100: {compute: 0.7, bandwidth: 0.8, step: 500us, request: 4ms}
//! ```
//!
//! What a GPU type's entry does not name keeps the value of the catalogue.

use crate::hardware::{Factors, HARDWARE, Hardware};
use forebay_base::{Diagnostic, Diagnostics, Position, Span};
use forebay_document::{Node, decode, parse};
use std::fmt::Write as _;

/// Factors for some GPU types, in place of the catalogue's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// By catalogue name, in the order of the file.
    entries: Vec<(&'static str, Factors)>,
}

/// One of the factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    name: &'static str,
    share: bool,
}

const fn share(name: &'static str) -> Factor {
    Factor { name, share: true }
}

const fn time(name: &'static str) -> Factor {
    Factor { name, share: false }
}

impl Factor {
    /// All of them: shares, then times.
    pub const ALL: [Factor; 13] = [
        share("compute"),
        share("bandwidth"),
        share("kv"),
        share("exposed"),
        share("link"),
        time("collective"),
        time("step"),
        time("layer"),
        time("experts"),
        time("sequence"),
        time("sampling"),
        time("mixed"),
        time("request"),
    ];

    /// The one with this name in files.
    pub fn named(name: &str) -> Option<Factor> {
        Factor::ALL.into_iter().find(|f| f.name == name)
    }

    /// Its name in files.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether it is a share of a peak, and greater is faster; otherwise it is a time, and greater is slower.
    pub fn is_share(self) -> bool {
        self.share
    }

    /// Its value: a share in (0, 1], or nanoseconds.
    pub fn get(self, factors: &Factors) -> f64 {
        let mut copy = *factors;
        if self.share { *copy.share(self.name) } else { copy.time(self.name).0 as f64 }
    }

    /// Sets it to a share, to the nearest 0.0001 and within (0, 1], or to nanoseconds.
    pub fn set(self, factors: &mut Factors, value: f64) {
        if self.share {
            *factors.share(self.name) = ((value * 1e4).round() / 1e4).clamp(1e-4, 1.0);
        } else {
            *factors.time(self.name) = Span(value.round().max(0.0) as u64);
        }
    }
}

impl Factors {
    fn share(&mut self, name: &str) -> &mut f64 {
        match name {
            "compute" => &mut self.compute,
            "bandwidth" => &mut self.bandwidth,
            "kv" => &mut self.kv,
            "exposed" => &mut self.exposed,
            _ => &mut self.link,
        }
    }

    fn time(&mut self, name: &str) -> &mut Span {
        match name {
            "collective" => &mut self.collective,
            "step" => &mut self.step,
            "layer" => &mut self.layer,
            "experts" => &mut self.experts,
            "sequence" => &mut self.sequence,
            "sampling" => &mut self.sampling,
            "mixed" => &mut self.mixed,
            _ => &mut self.request,
        }
    }
}

impl Calibration {
    /// Factors of one GPU type.
    pub fn of(hardware: &Hardware, factors: Factors) -> Calibration {
        Calibration::named(hardware.name, factors)
    }

    /// Factors of the GPU type with this catalogue name.
    pub fn named(name: &'static str, factors: Factors) -> Calibration {
        Calibration { entries: vec![(name, factors)] }
    }

    /// Reads a calibration in YAML or JSON; the error lists everything that is wrong in it.
    pub fn read(text: &str, file: &str) -> Result<Calibration, Diagnostics> {
        let mut found = Diagnostics::default();
        let nodes = parse(text, &mut found);
        let mut calibration = Calibration::default();
        match nodes.as_slice() {
            [node] => calibration.entries = entries(node, &mut found),
            _ if found.0.is_empty() => {
                let what = format!("found {} documents", nodes.len());
                found.push(Diagnostic::error(Position::default(), "", what).expected("one mapping"));
            }
            _ => {}
        }
        if found.0.is_empty() {
            return Ok(calibration);
        }
        found.finish(file);
        Err(found)
    }

    /// The factors for a GPU type: those of the file, else the catalogue's.
    pub fn factors(&self, hardware: &Hardware) -> Factors {
        self.entries.iter().find(|(name, _)| *name == hardware.name).map_or(hardware.factors, |e| e.1)
    }

    /// The same without the GPU type of this catalogue name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Calibration {
        self.entries.retain(|(n, _)| *n != name);
        self
    }

    /// The same with what another one says of further GPU types.
    #[must_use]
    pub fn and(mut self, other: &Calibration) -> Calibration {
        let new = |(name, _): &&(&'static str, Factors)| self.entries.iter().all(|(n, _)| n != name);
        let more: Vec<_> = other.entries.iter().filter(new).copied().collect();
        self.entries.extend(more);
        self
    }

    /// The catalogue names of the GPU types that it is about, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries.iter().map(|(name, _)| *name)
    }

    /// A GPU type with these factors.
    pub fn apply(&self, hardware: &Hardware) -> Hardware {
        if self.entries.iter().all(|(name, _)| *name != hardware.name) {
            return *hardware;
        }
        Hardware { factors: self.factors(hardware), calibration: "from a calibration file", ..*hardware }
    }

    /// The calibration as a file that [`Calibration::read`] takes.
    pub fn write(&self) -> String {
        let mut text = "version: 1\nhardware:\n".to_owned();
        for (name, factors) in &self.entries {
            let _ = writeln!(text, "  {name}:");
            for factor in Factor::ALL {
                let (name, value) = (factor.name, factor.get(factors));
                let unit = if factor.share { "" } else { "ns" };
                let _ = writeln!(text, "    {name}: {value}{unit}");
            }
        }
        text
    }
}

fn entries(node: &Node, found: &mut Diagnostics) -> Vec<(&'static str, Factors)> {
    let mut all: Vec<(&'static str, Factors)> = Vec::new();
    let Some(top) = decode::Fields::open(node, "", &["version", "hardware"], found) else { return all };
    if let Some(version) = top.require("version", found)
        && let Some(n) = decode::int(version, "version", found)
        && n != 1
    {
        found.push(Diagnostic::error(version.at, "version", format!("is {n}")).expected("1"));
    }
    let Some(hardware) = top.require("hardware", found) else { return all };
    let Some(types) = decode::Fields::open_any(hardware, "hardware", found) else { return all };
    for entry in types.entries() {
        let path = types.child(&entry.key);
        let Ok(known) = Hardware::find(&entry.key) else {
            let names: Vec<&str> = HARDWARE.iter().map(|h| h.name).collect();
            let what = format!("unknown GPU type \"{}\"", entry.key);
            let d = Diagnostic::error(entry.at, path, what).expected(format!("one of {}", names.join(", ")));
            found.push(d.nearest_of(&entry.key, names));
            continue;
        };
        if all.iter().any(|(name, _)| *name == known.name) {
            let what = format!("is the same GPU type as an entry before, {}", known.name);
            found.push(Diagnostic::error(entry.at, path, what).expected("one entry per type"));
            continue;
        }
        if let Some(factors) = factors(&entry.value, &path, known.factors, found) {
            all.push((known.name, factors));
        }
    }
    all
}

fn factors(node: &Node, path: &str, mut factors: Factors, found: &mut Diagnostics) -> Option<Factors> {
    let names: Vec<&str> = Factor::ALL.iter().map(|f| f.name).collect();
    let fields = decode::Fields::open(node, path, &names, found)?;
    for name in Factor::ALL.iter().filter(|f| f.share).map(|f| f.name) {
        let Some(value) = fields.get(name) else { continue };
        let Some(x) = decode::float(value, &fields.child(name), found) else { continue };
        if x > 0.0 && x <= 1.0 {
            *factors.share(name) = x;
        } else {
            let d = Diagnostic::error(value.at, fields.child(name), format!("is {x}"));
            found.push(d.expected("above 0, at most 1"));
        }
    }
    for name in Factor::ALL.iter().filter(|f| !f.share).map(|f| f.name) {
        let Some(value) = fields.get(name) else { continue };
        let Some(ns) = decode::duration(value, &fields.child(name), found) else { continue };
        match u64::try_from(ns) {
            Ok(ns) if ns <= Span::secs(10).0 => *factors.time(name) = Span(ns),
            _ => {
                let d = Diagnostic::error(value.at, fields.child(name), format!("is {ns} ns"));
                found.push(d.expected("0s to 10s"));
            }
        }
    }
    Some(factors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let h100 = Hardware::find("h100").unwrap();
        let factors = Factors { compute: 0.55, step: Span::micros(321), ..Factors::START };
        let text = Calibration::of(h100, factors).write();
        let back = Calibration::read(&text, "c.yaml").unwrap();
        assert_eq!(back.factors(h100), factors);
        let a100 = Hardware::find("a100").unwrap();
        assert_eq!(back.factors(a100), a100.factors, "types that are not named keep theirs");
    }

    #[test]
    fn what_is_not_named_stays() {
        let c = Calibration::read("version: 1\nhardware: {H100-SXM: {request: 3ms}}", "c.yaml").unwrap();
        let h100 = Hardware::find("h100").unwrap();
        assert_eq!(c.apply(h100).factors, Factors { request: Span::millis(3), ..h100.factors });
    }

    #[test]
    fn factors_are_read_and_set_by_name() {
        let mut f = Factors::H100;
        for factor in Factor::ALL {
            assert_eq!(Factor::named(factor.name()), Some(factor));
            let before = factor.get(&f);
            factor.set(&mut f, before / 2.0);
            let after = factor.get(&f);
            assert!((after / before - 0.5).abs() < 0.01, "{} {before} {after}", factor.name());
        }
        Factor::named("compute").unwrap().set(&mut f, 7.0);
        assert_eq!((f.compute, Factor::named("stp")), (1.0, None));
    }

    #[test]
    fn all_mistakes_are_found_with_their_places() {
        let text =
            "version: 2\nhardware:\n  h10: {}\n  h100:\n    compute: 1.5\n    stp: 1ms\n    step: -1ms\n";
        let e = Calibration::read(text, "c.yaml").unwrap_err().to_string();
        for part in ["c.yaml", "version", "h100", "compute", "step", "above 0, at most 1"] {
            assert!(e.contains(part), "{part} in {e}");
        }
        assert_eq!(Calibration::read(text, "c.yaml").unwrap_err().0.len(), 5, "{e}");
    }
}
