//! Classes in files.

use super::Reader;
use crate::length::Dist;
use crate::sample::Gap;
use crate::servegen::Client;
use crate::source::Source;
use crate::spec::{Class, Flows, Lora, Order, Phase, Process, Prompts, Retry, Sessions};
use forebay_base::{Diagnostic, Span};
use forebay_document::{Content, Fields, Node, decode};
use forebay_records::stats::Slo;
use std::sync::Arc;

const CLASS: [&str; 14] = [
    "priority",
    "arrivals",
    "stages",
    "repeat",
    "input",
    "output",
    "slo",
    "timeout",
    "retry",
    "flows",
    "prompts",
    "sessions",
    "lora",
    "description",
];
/// Names of processes with the fields that each may have beside `process`.
const PROCESSES: [(&str, &[&str]); 8] = [
    ("constant", &["rate", "phase"]),
    ("poisson", &["rate"]),
    ("gamma", &["rate", "cv"]),
    ("weibull", &["rate", "cv", "shape"]),
    ("on-off", &["rate", "busy", "idle"]),
    ("exact", &["rate", "cv"]),
    ("closed", &["users", "think", "ramp"]),
    ("servegen", &["trace", "dataset", "start", "scale"]),
];
/// A gateway and its clients hold no more classes apart.
const MOST_CLASSES: usize = 1000;

impl Reader<'_> {
    pub(super) fn classes(&mut self, node: &Node) -> Vec<Class> {
        let Some(f) = Fields::open_any(node, "classes", &mut self.found) else { return Vec::new() };
        if f.entries().is_empty() || f.entries().len() > MOST_CLASSES {
            let message = format!("there are {} classes", f.entries().len());
            self.wrong::<()>(node, "classes", message, "1 to 1000");
        }
        let classes = f.entries().iter().map(|e| self.class(&e.key, &e.value, &f.child(&e.key)));
        classes.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    fn class(&mut self, name: &str, node: &Node, path: &str) -> Option<Class> {
        let f = Fields::open(node, path, &CLASS, &mut self.found)?;
        let priority = self.whole(&f, "priority", 0, i64::from(i32::MIN), i64::from(i32::MAX));
        let arrivals = f.get("arrivals").map(|n| self.process(n, &f.child("arrivals")));
        let stages = self.stages_of(&f);
        // A client of ServeGen brings its lengths, and so does a trace.
        let process = f.get("arrivals").and_then(|n| n.get("process")).and_then(Node::as_text);
        let own_lengths = arrivals.is_some() && process != Some("servegen");
        let input = self.length_of(&f, "input", own_lengths);
        let output = self.length_of(&f, "output", own_lengths);
        let slo = f.get("slo").map_or(Some(Slo::default()), |n| self.slo(n, &f.child("slo")));
        let timeout = f.get("timeout").and_then(|n| self.span(n, &f.child("timeout"), true));
        let retry = f.get("retry").map_or(Some(Retry::NONE), |n| self.retry(n, &f.child("retry")));
        let flows =
            f.get("flows").map_or(Some(Flows { count: 1, skew: 0.0 }), |n| self.flows(n, &f.child("flows")));
        let prompts = f.get("prompts").map(|n| self.prompts(n, &f.child("prompts")));
        let sessions = f.get("sessions").map(|n| self.sessions(n, &f.child("sessions")));
        let lora = f.get("lora").map(|n| self.lora(n, &f.child("lora")));
        let (stages, repeat) = stages?;
        Some(Class {
            name: name.to_owned(),
            priority: priority? as i32,
            slo: slo?,
            timeout,
            retry: retry?,
            arrivals: all(arrivals)?,
            stages,
            repeat,
            input: input?,
            output: output?,
            flows: flows?,
            prompts: all(prompts)?,
            sessions: all(sessions)?,
            lora: all(lora)?,
        })
    }

    /// Without arrivals of its own a class needs no lengths.
    fn length_of(&mut self, f: &Fields<'_>, name: &str, required: bool) -> Option<Dist> {
        match f.get(name) {
            Some(n) => self.length(n, &f.child(name)),
            None if required => {
                f.require(name, &mut self.found);
                None
            }
            None => Some(Dist::constant(1.0)),
        }
    }

    fn process(&mut self, node: &Node, path: &str) -> Option<Process> {
        let any = Fields::open_any(node, path, &mut self.found)?;
        let names = PROCESSES.map(|(name, _)| name);
        let kind = PROCESSES[self.word(&any, "process", &names)?];
        let fields: Vec<&str> = ["process"].into_iter().chain(kind.1.iter().copied()).collect();
        let f = Fields::open(node, path, &fields, &mut self.found)?;
        let rate = if kind.1.contains(&"rate") {
            let n = f.require("rate", &mut self.found)?;
            self.float(n, &f.child("rate"), 0.0, 1e9)
        } else {
            Some(0.0)
        };
        Some(match kind.0 {
            "constant" => Process::Renewal { gap: Gap::Constant, rate: rate?, phase: self.phase(&f)? },
            "poisson" => Process::Renewal { gap: Gap::Exponential, rate: rate?, phase: Phase::At(0.0) },
            "gamma" => {
                f.require("cv", &mut self.found)?;
                let gap = Gap::gamma(self.number(&f, "cv", 1.0, 0.01, 20.0)?);
                Process::Renewal { gap, rate: rate?, phase: Phase::At(0.0) }
            }
            "weibull" => Process::Renewal { gap: self.weibull(&f)?, rate: rate?, phase: Phase::At(0.0) },
            "exact" => {
                let cv = self.number(&f, "cv", 1.0, 0.01, 20.0)?;
                Process::Exact { gap: if cv == 1.0 { Gap::Exponential } else { Gap::gamma(cv) }, rate: rate? }
            }
            "on-off" => {
                let time = |r: &mut Self, name: &str| {
                    let n = f.require(name, &mut r.found)?;
                    Some(r.span(n, &f.child(name), true)?.as_secs_f64())
                };
                let (on, off) = (time(self, "busy"), time(self, "idle"));
                Process::OnOff { rate: rate?, on: on?, off: off? }
            }
            "closed" => {
                f.require("users", &mut self.found)?;
                let users = self.whole(&f, "users", 1, 1, 65_535);
                let think = match f.get("think") {
                    Some(n) => self.times(n, &f.child("think")),
                    None => Some(Dist::constant(0.0)),
                };
                let ramp = self.optional_span(&f, "ramp").unwrap_or(Span::ZERO);
                Process::Closed { users: users? as u32, think: think?, ramp }
            }
            _ => self.servegen(&f)?,
        })
    }

    fn phase(&mut self, f: &Fields<'_>) -> Option<Phase> {
        match f.get("phase") {
            None => Some(Phase::Random),
            Some(n) if n.as_text() == Some("random") => Some(Phase::Random),
            Some(n) if n.as_text().is_some() => {
                let d = Diagnostic::error(n.at, f.child("phase"), format!("found {}", n.describe()));
                let d = d.expected("random, or a share of the gap from 0 to 1");
                self.found.push(d.nearest_of(n.as_text().unwrap_or_default(), ["random"]));
                None
            }
            Some(n) => Some(Phase::At(self.float(n, &f.child("phase"), 0.0, 1.0)?)),
        }
    }

    fn weibull(&mut self, f: &Fields<'_>) -> Option<Gap> {
        match (f.get("shape"), f.get("cv")) {
            (Some(n), None) => Some(Gap::weibull(self.float(n, &f.child("shape"), 0.1, 200.0)?)),
            (None, Some(n)) => Some(Gap::weibull_cv(self.float(n, &f.child("cv"), 0.01, 20.0)?)),
            _ => {
                let d = Diagnostic::error(f.at, &f.path, "a Weibull process needs one of shape and cv");
                self.found.push(d);
                None
            }
        }
    }

    fn servegen(&mut self, f: &Fields<'_>) -> Option<Process> {
        let trace = f.require("trace", &mut self.found).and_then(|n| self.text(n, &f.child("trace")));
        let dataset = f.require("dataset", &mut self.found).and_then(|n| self.text(n, &f.child("dataset")));
        let start = self.optional_span(f, "start").unwrap_or(Span::ZERO).as_secs_f64();
        let scale = self.number(f, "scale", 1.0, 0.0, 1e9)?;
        let (trace, dataset) = (trace?, dataset?);
        match Client::read((&trace.0, &trace.1), (&dataset.0, &dataset.1), start) {
            Ok(client) => Some(Process::ServeGen { client: Arc::new(client), scale }),
            Err(found) => {
                self.found.0.extend(found.0);
                None
            }
        }
    }

    /// The name of a file and what opens it.
    pub(super) fn file(&mut self, node: &Node, path: &str) -> Option<(String, Source)> {
        let name = decode::text(node, path, &mut self.found)?;
        match (self.files)(name) {
            Ok(source) => Some((name.to_owned(), source)),
            Err(e) => {
                self.found.push(Diagnostic::error(node.at, path, format!("{name}: {e}")));
                None
            }
        }
    }

    /// The name of a file and its text.
    fn text(&mut self, node: &Node, path: &str) -> Option<(String, String)> {
        let (name, source) = self.file(node, path)?;
        match source.read() {
            Ok(text) => Some((name, text)),
            Err(e) => {
                self.found.push(Diagnostic::error(node.at, path, format!("{name}: cannot be read: {e}")));
                None
            }
        }
    }

    fn slo(&mut self, node: &Node, path: &str) -> Option<Slo> {
        let f = Fields::open(node, path, &["ttft", "tpot", "e2e"], &mut self.found)?;
        let mut time = |name: &str| f.get(name).and_then(|n| self.span(n, &f.child(name), true));
        Some(Slo { ttft: time("ttft"), tpot: time("tpot"), e2e: time("e2e") })
    }

    fn retry(&mut self, node: &Node, path: &str) -> Option<Retry> {
        if node.as_text().is_some() {
            return self.word_in(node, path, &["none"]).map(|_| Retry::NONE);
        }
        let f = Fields::open(node, path, &["attempts", "backoff"], &mut self.found)?;
        f.require("attempts", &mut self.found)?;
        let attempts = self.whole(&f, "attempts", 1, 1, 100)? as u32;
        let backoff = f.require("backoff", &mut self.found)?;
        Some(Retry { attempts, backoff: self.span(backoff, &f.child("backoff"), true)? })
    }

    fn flows(&mut self, node: &Node, path: &str) -> Option<Flows> {
        const MOST: i64 = 1_000_000;
        if matches!(node.content, Content::Scalar(_)) {
            let n = decode::int(node, path, &mut self.found)?;
            if !(1..=MOST).contains(&n) {
                return self.wrong(
                    node,
                    path,
                    format!("found {}", node.describe()),
                    "a number from 1 to 1000000",
                );
            }
            return Some(Flows { count: n as u32, skew: 0.0 });
        }
        let f = Fields::open(node, path, &["count", "skew"], &mut self.found)?;
        f.require("count", &mut self.found)?;
        let count = self.whole(&f, "count", 1, 1, MOST);
        let skew = self.number(&f, "skew", 0.0, 0.0, 10.0);
        Some(Flows { count: count? as u32, skew: skew? })
    }

    fn prompts(&mut self, node: &Node, path: &str) -> Option<Prompts> {
        const FIELDS: [&str; 6] = ["groups", "prefix", "pool", "order", "skew", "name"];
        const ORDERS: [&str; 4] = ["shuffled-cycle", "reshuffled", "cycle", "random"];
        let f = Fields::open(node, path, &FIELDS, &mut self.found)?;
        let groups = self.whole(&f, "groups", 1, 1, 1_000_000)?;
        let pool = self.whole(&f, "pool", 0, 0, 1_000_000)?;
        let prefix = match f.get("prefix") {
            Some(n) => Some(self.length(n, &f.child("prefix"))?),
            None => None,
        };
        let order = match f.get("order") {
            Some(n) => Some(self.word_in(n, &f.child("order"), &ORDERS)?),
            None => None,
        };
        let order = order.map_or(if pool > 0 { Order::ShuffledCycle } else { Order::Random }, |i| {
            [Order::ShuffledCycle, Order::Reshuffled, Order::Cycle, Order::Random][i]
        });
        let skew = self.number(&f, "skew", 0.0, 0.0, 10.0)?;
        let name = f.get("name").and_then(|n| decode::text(n, &f.child("name"), &mut self.found));
        if skew > 0.0 && order != Order::Random {
            let d = Diagnostic::error(f.at, f.child("skew"), "a cycle asks all prompts alike");
            self.found.push(d.expected("the order random beside it"));
        }
        if groups * pool.max(1) > 10_000_000 {
            return self.wrong(node, path, format!("{} prompts", groups * pool), "at most 10000000");
        }
        let (groups, pool, name) = (groups as u32, pool as u32, name.map(str::to_owned));
        Some(Prompts { groups, prefix, pool, order, skew, name })
    }

    fn sessions(&mut self, node: &Node, path: &str) -> Option<Sessions> {
        const FIELDS: [&str; 4] = ["turns", "think", "history", "maxContext"];
        let f = Fields::open(node, path, &FIELDS, &mut self.found)?;
        let turns = f.require("turns", &mut self.found).and_then(|n| self.length(n, &f.child("turns")));
        let think = match f.get("think") {
            Some(n) => self.times(n, &f.child("think")),
            None => Some(Dist::constant(0.0)),
        };
        let history = match f.get("history") {
            Some(n) => self.word_in(n, &f.child("history"), &["accumulate", "none"])? == 0,
            None => true,
        };
        let max_context = self.whole(&f, "maxContext", 1 << 20, 1, super::dist::MOST as i64)? as u32;
        Some(Sessions { turns: turns?, think: think?, history, max_context })
    }

    fn lora(&mut self, node: &Node, path: &str) -> Option<Lora> {
        let f = Fields::open(node, path, &["adapters", "share", "skew"], &mut self.found)?;
        f.require("adapters", &mut self.found)?;
        let adapters = self.whole(&f, "adapters", 1, 1, 10_000)? as u16;
        let share = self.number(&f, "share", 1.0, 0.0, 1.0)?;
        Some(Lora { adapters, share, skew: self.number(&f, "skew", 0.0, 0.0, 10.0)? })
    }
}

/// What was given and read, or not given; `None` if it was given and wrong.
#[allow(clippy::option_option, reason = "not given, wrong and right are three cases")]
fn all<T>(given: Option<Option<T>>) -> Option<Option<T>> {
    match given {
        Some(None) => None,
        Some(Some(v)) => Some(Some(v)),
        None => Some(None),
    }
}
