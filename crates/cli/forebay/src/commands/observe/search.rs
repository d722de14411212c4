//! The highest rate at which a goal holds.

use super::Seen;
use crate::input::Unusable;
use forebay_base::{Diagnostic, Diagnostics, Position, Span};
use forebay_document::parse_duration;
use forebay_load::Watch;
use forebay_records::stats::{Load, Quantile};
use forebay_study::observed::{self, Attained, GOAL_METRICS, Goal};
use forebay_study::text;
use forebay_workload::Workload;
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// From one rate to the next until the goal lies between two.
const STEP: f64 = 1.5;

/// Reads `[CLASS:]METRIC-pNN<TIME`.
pub(crate) fn goal(text: &str) -> Result<Goal, String> {
    let form = || format!("found {text:?}; expected [CLASS:]METRIC-pNN<TIME, such as critical:ttft-p99<1s");
    let (what, limit) = text.split_once('<').ok_or_else(form)?;
    let (class, what) = match what.rsplit_once(':') {
        Some((class, what)) => (Some(class.trim().to_owned()), what),
        None => (None, what),
    };
    let (metric, percent) = what.trim().rsplit_once("-p").ok_or_else(form)?;
    if !GOAL_METRICS.contains(&metric) {
        return Err(format!("no metric {metric:?}; expected one of {}", GOAL_METRICS.join(", ")));
    }
    let percent: f64 = percent.parse().map_err(|_| form())?;
    let limit = parse_duration(limit.trim()).map_err(|e| e.to_string())?;
    let limit = u64::try_from(limit).ok().filter(|l| *l > 0).ok_or("the time has to be above 0")?;
    if !(percent > 0.0 && percent < 100.0) {
        return Err(format!("p{percent}: expected a percentile between 0 and 100"));
    }
    if metric == "itl" && ![50.0, 90.0, 95.0, 99.0].contains(&percent) {
        return Err(format!("itl-p{percent}: expected p50, p90, p95 or p99"));
    }
    Ok(Goal { class, metric: metric.to_owned(), quantile: percent / 100.0, limit: Span(limit) })
}

/// Whether a workload has the goal's class and a rate that can be set.
pub(crate) fn check(goal: &Goal, workload: &Workload) -> anyhow::Result<()> {
    if workload.rate() <= 0.0 {
        let message = format!("--find-capacity: {} has no class whose rate could be set", workload.name);
        return Err(Unusable(message).into());
    }
    if let Some(class) = goal.class.as_ref().filter(|c| workload.class(c).is_none()) {
        let names = workload.class_names();
        let d = Diagnostic::error(Position::default(), "--find-capacity", format!("no class {class:?}"))
            .expected(format!("one of {}", names.join(", ")))
            .nearest_of(class, names.iter().map(String::as_str));
        return Err(Diagnostics(vec![d]).into());
    }
    Ok(())
}

/// A rate that was tried.
pub(crate) struct Tried {
    rate: f64,
    offered: u64,
    quantile: Quantile,
    attained: Attained,
    load: Load,
    holds: bool,
}

/// What a search found.
pub(crate) struct Found {
    /// The highest rate that was tried at which the goal holds; `None` if there was none.
    pub(crate) rate: Option<f64>,
    /// Why it ended before its time.
    pub(crate) ended: Option<String>,
    tried: Vec<Tried>,
}

/// Why a search ends.
enum End {
    Failed(anyhow::Error),
    /// The generator did not keep its schedule, or somebody stopped it.
    Early(String),
}

/// Searches by bisection. A rate holds the goal if its percentile lies below the limit and the backlog does not grow.
pub(crate) fn highest(
    goal: &Goal,
    workload: &Workload,
    precision: f64,
    watch: &Watch,
    run: &mut dyn FnMut(f64) -> anyhow::Result<Seen>,
) -> anyhow::Result<Found> {
    if !(precision > 0.0 && precision < 1.0) {
        return Err(
            Unusable(format!("--precision: found {precision}; expected a share between 0 and 1")).into()
        );
    }
    let mut tried: Vec<Tried> = Vec::new();
    let result = observed::highest(workload.rate(), STEP, precision, |rate| {
        let seen = run(rate).map_err(End::Failed)?;
        if watch.is_stopped() {
            return Err(End::Early("it was stopped".to_owned()));
        }
        if let Some(problem) = seen.says.schedule.problems().first() {
            return Err(End::Early(format!("at {} requests/s {problem}", text::three(rate))));
        }
        let quantile = goal.quantile_of(&seen.says, &seen.run.records, &seen.run.workload);
        let (attained, load) = (goal.attained(&quantile), seen.says.summary.load);
        let holds = attained != Attained::No && load != Load::Overloaded;
        let offered = seen.says.schedule.offered;
        tried.push(Tried { rate, offered, quantile, attained, load, holds });
        Ok(holds)
    });
    let ended = match result {
        Ok(_) => None,
        Err(End::Early(why)) => Some(why),
        Err(End::Failed(e)) => return Err(e),
    };
    let good = tried.iter().filter(|t| t.holds).map(|t| t.rate);
    let rate = good.fold(None, |most: Option<f64>, r| Some(most.map_or(r, |m| m.max(r))));
    tried.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    Ok(Found { rate, ended, tried })
}

fn verdict(t: &Tried) -> &'static str {
    match (t.holds, t.attained) {
        (true, Attained::Yes) => "holds",
        (true, _) => "holds, but within the noise",
        (false, Attained::No) => "fails",
        (false, _) => "the backlog grows",
    }
}

fn shown(g: &Goal) -> String {
    let class = g.class.as_ref().map_or(String::new(), |c| format!("{c}:"));
    format!("{class}{}-p{}<{}", g.metric, g.quantile * 100.0, g.limit)
}

fn value(g: &Goal, found: &Found) -> serde_json::Value {
    let tried: Vec<_> = found
        .tried
        .iter()
        .map(|t| {
            json!({
                "rate": t.rate, "offered": t.offered, "value_ns": t.quantile.value, "low_ns": t.quantile.low,
                "high_ns": t.quantile.high, "infinite": t.quantile.infinite, "load": t.load.label(),
                "holds": t.holds, "verdict": verdict(t),
            })
        })
        .collect();
    json!({"goal": shown(g), "rate": found.rate, "ended_early": found.ended, "tried": tried})
}

pub(crate) fn print(out: &mut dyn Write, g: &Goal, found: &Found, as_json: bool) -> anyhow::Result<()> {
    use crate::layout::{self, right};
    if as_json {
        serde_json::to_writer_pretty(&mut *out, &value(g, found))?;
        writeln!(out)?;
        return Ok(());
    }
    let p = format!("p{}", g.quantile * 100.0);
    let mut t =
        layout::table([right("rate"), right("offered"), right(&p), right("low"), right("high"), "".into()]);
    let ns = |x: Option<u64>| right(x.map_or("-".to_owned(), |v| text::time(v as f64)));
    for one in &found.tried {
        let q = &one.quantile;
        let cells = [right(text::three(one.rate)), right(one.offered), ns(q.value), ns(q.low), ns(q.high)];
        t.add_row(cells.into_iter().chain([verdict(one).into()]));
    }
    write!(out, "{}", layout::lines(&t))?;
    writeln!(out)?;
    match found.rate {
        Some(rate) => writeln!(out, "{} holds up to {} requests/s", shown(g), text::three(rate))?,
        None => writeln!(out, "{} held at no rate that was tried", shown(g))?,
    }
    if let Some(why) = &found.ended {
        writeln!(out, "the search ended early: {why}")?;
    }
    Ok(())
}

pub(crate) fn write(dir: &Path, g: &Goal, found: &Found) -> anyhow::Result<()> {
    super::write::json_file(dir, "capacity.json", &value(g, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read() {
        let g = goal("critical:ttft-p99<1s").unwrap();
        assert_eq!(
            (g.class.as_deref(), g.metric.as_str(), g.quantile, g.limit),
            (Some("critical"), "ttft", 0.99, Span::secs(1))
        );
        assert_eq!(shown(&g), "critical:ttft-p99<1s");
        assert_eq!(shown(&goal("tpot-p99.9<50ms").unwrap()), "tpot-p99.9<50ms");
        for (text, says) in [
            ("ttft<1s", "expected [CLASS:]METRIC-pNN<TIME"),
            ("speed-p99<1s", "no metric \"speed\"; expected one of ttft"),
            ("ttft-p100<1s", "between 0 and 100"),
            ("ttft-p99<1", "without a unit"),
            ("itl-p99.9<1s", "expected p50, p90, p95 or p99"),
        ] {
            assert!(goal(text).unwrap_err().contains(says), "{text}: {}", goal(text).unwrap_err());
        }
    }
}
