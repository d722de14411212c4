//! What a pool has to hold: figures with a limit, such as `critical:ttft-p99<1s`.

use crate::asked::{Asked, Sample, Stat, Stated, Unit, What, named, written};
use crate::summary::{Metric, QUANTILES};
use forebay_base::{Diagnostic, Diagnostics, Position, Span};
use forebay_document::parse_duration;
use forebay_records::stats::Direction;
use forebay_records::stats::quantile::TAIL_FOR_CLAIM;
use forebay_workload::Workload;

/// A figure with the limit that it has to keep.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The figure.
    pub asked: Asked,
    /// Its limit: nanoseconds, or a share. Latencies have to be at most this, goodput at least.
    pub limit: f64,
    /// Whether it is a deadline of the workload's file; otherwise it was asked for beside it.
    pub own: bool,
}

/// Index of the 99th percentile in [`QUANTILES`]; deadlines of a file are held there.
const P99: usize = QUANTILES.len() - 1;
/// Requests from which a mean or a share is taken, at least.
const FOR_MEANS: f64 = 400.0;
/// The most requests that one goal asks for.
const MOST: f64 = 100_000.0;

/// The goals of `texts`, then the deadlines in the workload's file that none of them replaces. A goal replaces
/// deadlines of its class on the same latency; one on goodput replaces all of its class.
///
/// # Errors
/// Everything that is wrong with the texts, with the nearest name; no goal at all.
pub fn goals(workload: &Workload, texts: &[String]) -> Result<Vec<Goal>, Diagnostics> {
    let (mut all, mut wrong) = (Vec::new(), Diagnostics::default());
    for text in texts {
        match Goal::parse(text, workload) {
            Ok(goal) => all.push(goal),
            Err(d) => wrong.0.extend(d.0),
        }
    }
    if wrong.has_errors() {
        return Err(wrong);
    }
    let own: Vec<Goal> = own(workload).into_iter().filter(|o| !all.iter().any(|g| g.replaces(o))).collect();
    all.extend(own);
    if all.is_empty() {
        let d = wrong_slo(format!("there is none, and no class of {} has a deadline", workload.name));
        return Err(one(d.expected("--slo CLASS:FIGURE<LIMIT, or slo in the workload's file")));
    }
    Ok(all)
}

/// The deadlines of the workload's file, each at the 99th percentile of its class.
fn own(workload: &Workload) -> Vec<Goal> {
    let mut all = Vec::new();
    for c in &workload.classes {
        let parts = [(Metric::Ttft, c.slo.ttft), (Metric::Tpot, c.slo.tpot), (Metric::E2e, c.slo.e2e)];
        for (metric, limit) in parts {
            let Some(Span(ns)) = limit else { continue };
            let what = What::Latency(metric, Stat::Quantile(P99));
            let asked = Asked { what, class: Some(c.name.clone()) };
            all.push(Goal { asked, limit: ns as f64, own: true });
        }
    }
    all
}

fn wrong_slo(message: String) -> Diagnostic {
    Diagnostic::error(Position::default(), "--slo", message)
}

fn one(d: Diagnostic) -> Diagnostics {
    Diagnostics(vec![d])
}

impl Goal {
    /// Reads `CLASS:FIGURE<LIMIT`, or `FIGURE<LIMIT` for all classes together; `<=` is the same.
    ///
    /// # Errors
    /// What is wrong, with the nearest name.
    pub fn parse(text: &str, workload: &Workload) -> Result<Goal, Diagnostics> {
        let form = || {
            let d = wrong_slo(format!("found {text:?}"));
            one(d.expected("CLASS:FIGURE<LIMIT, such as critical:ttft-p99<1s or critical:goodput>99%"))
        };
        let at = text.find(['<', '>']).ok_or_else(form)?;
        let (left, rest) = text.split_at(at);
        let below = rest.starts_with('<');
        let right = rest[1..].strip_prefix('=').unwrap_or(&rest[1..]).trim();
        let (class, figure) = match left.trim().split_once(':') {
            None => (None, left.trim()),
            // As in other places, the figure may come first.
            Some((figure, class)) if What::names().iter().any(|(n, _)| n == figure) => (Some(class), figure),
            Some((class, figure)) => (Some(class), figure),
        };
        let what = named(figure, "--slo")?;
        let planned = matches!(what, What::Latency(..) | What::Goodput | What::Rejected | What::Unfinished);
        if !planned {
            let d = wrong_slo(format!("{text:?}: {figure} is not what a pool is planned by"));
            return Err(one(d.expected("a latency, goodput, rejected or unfinished")));
        }
        let name = class.map_or_else(|| figure.to_owned(), |c| format!("{figure}:{c}"));
        let asked = Asked::parse(&name, &workload.class_names(), "--slo")?;
        if below != (what.direction() == Direction::Lower) {
            let (sign, side) = if below { (">", "higher") } else { ("<", "lower") };
            let d = wrong_slo(format!("{text:?}: {figure} is better {side}"));
            return Err(one(d.expected(format!("{left}{sign}{right}"))));
        }
        let limit = limit(what, right)
            .map_err(|(found, expected)| one(wrong_slo(format!("{text:?}: {found}")).expected(expected)))?;
        let goal = Goal { asked, limit, own: false };
        if what == What::Goodput && !goal.classes(workload).any(|c| !c.slo.is_empty()) {
            let d = wrong_slo(format!("{text:?}: no deadline that could be attained"));
            return Err(one(d.expected("slo in the workload's file")));
        }
        Ok(goal)
    }

    fn classes<'w>(&'w self, workload: &'w Workload) -> impl Iterator<Item = &'w forebay_workload::Class> {
        let mine = |name: &str| self.asked.class.as_ref().is_none_or(|c| c == name);
        workload.classes.iter().filter(move |c| mine(&c.name))
    }

    fn replaces(&self, own: &Goal) -> bool {
        let same_class = self.asked.class.is_none() || self.asked.class == own.asked.class;
        match (self.asked.what, own.asked.what) {
            (What::Goodput, _) => same_class,
            (What::Latency(a, _), What::Latency(b, _)) => a == b && self.asked.class == own.asked.class,
            _ => false,
        }
    }

    /// For tables: `critical TTFT p99`.
    pub fn label(&self) -> String {
        let what = self.asked.what.label();
        self.asked.class.as_ref().map_or(what.clone(), |c| format!("{c} {what}"))
    }

    /// `<= 1.00 s`.
    pub fn limit_text(&self) -> String {
        let sign = if self.lower() { "<=" } else { ">=" };
        format!("{sign} {}", written(self.asked.what.unit(), self.limit))
    }

    fn lower(&self) -> bool {
        self.asked.what.direction() == Direction::Lower
    }

    /// Whether a value keeps the limit; not a number does not.
    pub fn met(&self, value: f64) -> bool {
        if self.lower() { value <= self.limit } else { value >= self.limit }
    }

    /// Whether one run keeps it.
    pub fn met_by(&self, s: &Sample) -> bool {
        self.met(s.value)
    }

    /// The end of the interval that has to keep the limit; the value itself with one seed.
    pub fn worst(&self, s: &Stated) -> f64 {
        s.interval.map_or(s.value, |(low, high)| if self.lower() { high } else { low })
    }

    /// How much of the limit is used up, 1 at the limit. Of goodput it is the misses that count.
    pub fn used(&self, value: f64) -> f64 {
        let (value, limit) = if self.lower() { (value, self.limit) } else { (1.0 - value, 1.0 - self.limit) };
        if limit > 0.0 { value / limit } else { value * f64::MAX }
    }

    /// Requests that the figure has to be taken from in each run, so that it can be claimed of each.
    pub fn samples(&self) -> f64 {
        let beyond = match self.asked.what {
            What::Latency(_, Stat::Quantile(i)) => 1.0 - QUANTILES[i],
            What::Goodput => 1.0 - self.limit,
            What::Rejected | What::Unfinished => self.limit,
            _ => 1.0,
        };
        (TAIL_FOR_CLAIM as f64 / beyond.max(1e-9)).clamp(FOR_MEANS, MOST)
    }

    /// Requests per second that it is taken from: of its class, or of all; of a trace its class's share is
    /// taken to be equal to the others'.
    pub fn rate(&self, workload: &Workload) -> f64 {
        let Some(name) = &self.asked.class else { return workload.rate() };
        let class = workload.classes.iter().find(|c| c.name == *name);
        let own = class.and_then(|c| c.arrivals.as_ref()?.rate());
        own.unwrap_or_else(|| workload.rate() / workload.classes.len().max(1) as f64)
    }
}

/// A limit in the unit of its figure, or what was found and expected.
fn limit(what: What, text: &str) -> Result<f64, (String, &'static str)> {
    if what.unit() == Unit::Time {
        let expected = "a duration such as 1s or 250ms";
        let ns = parse_duration(text).map_err(|e| (e.to_string(), expected))?;
        return if ns > 0 { Ok(ns as f64) } else { Err((format!("found {text:?}"), "more than 0s")) };
    }
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse::<f64>(),
    };
    let share = number.ok().filter(|s| (0.0..=1.0).contains(s));
    share.ok_or_else(|| (format!("found {text:?}"), "a share such as 0.99 or 99%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        let text = "
version: 1
name: two
mode: {kind: steady, window: 60s, warmup: 60s}
classes:
  critical: {priority: 1, arrivals: {process: constant, rate: 3}, input: {constant: 9}, output: {constant: 9}, slo: {ttft: 1s, e2e: 30s}}
  batch: {priority: 0, arrivals: {process: constant, rate: 1}, input: {constant: 9}, output: {constant: 9}}
";
        Workload::read(text, "w").unwrap()
    }

    fn read(texts: &[&str]) -> Result<Vec<Goal>, Diagnostics> {
        goals(&workload(), &texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>())
    }

    fn names(goals: &[Goal]) -> Vec<String> {
        goals.iter().map(|g| format!("{} {} {}", g.label(), g.limit_text(), g.own)).collect()
    }

    #[test]
    fn goals_are_read_and_replace_the_files_deadlines() {
        let own = ["critical TTFT p99 <= 1.00 s true", "critical E2E p99 <= 30.0 s true"];
        assert_eq!(names(&read(&[]).unwrap()), own);
        let some = read(&["critical:ttft-p95<500ms", "batch:e2e-p95<=60s", "ttft-mean < 2s"]).unwrap();
        assert_eq!(
            names(&some),
            [
                "critical TTFT p95 <= 500 ms false",
                "batch E2E p95 <= 60.0 s false",
                "TTFT mean <= 2.00 s false",
                own[1]
            ]
        );
        let good = read(&["critical:goodput>99%"]).unwrap();
        assert_eq!(names(&good), ["critical goodput >= 99.0 % false"]);
        assert!(good[0].met(0.99) && !good[0].met(0.98) && (good[0].used(0.98) - 2.0).abs() < 1e-9);
        assert!((some[0].samples() - 600.0).abs() < 1e-9 && good[0].rate(&workload()) == 3.0);
        assert!(!some[0].met(f64::NAN) && !some[0].met(f64::INFINITY));
    }

    #[test]
    fn what_is_wrong_with_a_goal_is_said() {
        for (text, said) in [
            ("critical", "expected CLASS:FIGURE<LIMIT"),
            ("critcal:ttft-p99<1s", "did you mean \"critical\"?"),
            ("critical:ttft-p9<1s", "did you mean \"ttft-p90\"?"),
            ("critical:ttft-p99>1s", "is better lower; expected critical:ttft-p99<1s"),
            ("critical:ttft-p99<1", "expected a duration such as 1s"),
            ("critical:goodput>99", "expected a share"),
            ("batch:goodput>0.9", "no deadline that could be attained"),
            ("critical:tokens>9", "not what a pool is planned by"),
        ] {
            let d = read(&[text]).unwrap_err().to_string();
            assert!(d.starts_with("error: --slo: ") && d.contains(said), "{d}");
        }
    }
}
