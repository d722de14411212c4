//! What `forebay compare` prints: per workload a table of latencies and one of throughputs.

use crate::layout::{self, right};
use comfy_table::{Cell, ContentArrangement};
use forebay_records::stats::{Paired, Verdict};
use forebay_study::compare::{ArmResult, ClassResult, Comparison, Measure, PlaceResult};
use forebay_study::html::ALONE;
use forebay_study::text;
use std::fmt::Write;

/// All tables of a comparison, a block per workload.
pub(super) fn tables(c: &Comparison) -> String {
    let mut out = String::new();
    let mut names: Vec<&str> = c.places.iter().map(|p| p.place.workload.name.as_str()).collect();
    names.dedup();
    for name in names {
        let places: Vec<&PlaceResult> = c.places.iter().filter(|p| p.place.workload.name == name).collect();
        let Some(first) = places.first() else { continue };
        let class = |i: usize| first.place.workload.classes.get(i).map_or("all", |c| c.name.as_str());
        let (top, low) = (class(first.top_class()), first.low_class().map(class));
        let _ = writeln!(out, "\n{name}: latencies of {top}");
        out.push_str(&latencies(c, &places));
        let _ = writeln!(
            out,
            "\n{name}: requests per second by class, and tokens per second, while requests arrive"
        );
        out.push_str(&throughputs(c, &places, top, low));
    }
    out
}

/// A value and its change against the baseline.
fn cells(k: &ClassResult, m: Measure) -> [Cell; 2] {
    let mean = k.mean(m);
    let value = match m {
        _ if !mean.is_finite() => "undet.".to_owned(),
        Measure::Requests => text::three(mean),
        Measure::Tokens => format!("{mean:.0}"),
        _ => text::time(mean),
    };
    [right(value), right(k.against(m).map_or_else(String::new, change))]
}

fn change(a: &Paired) -> String {
    if a.pairs == 0 {
        return "-".to_owned();
    }
    let star = if matches!(a.verdict, Verdict::Better | Verdict::Worse) { "*" } else { "" };
    let (low, high) = a.interval;
    format!("{} [{}, {}]{star}", percent(a.improvement), percent(low), percent(high))
}

/// The same without its interval.
fn bare(a: &Paired) -> String {
    let change = change(a);
    let star = if change.ends_with('*') { "*" } else { "" };
    format!("{}{star}", change.split(" [").next().unwrap_or_default())
}

/// A latency that has grown manifold says no more with five digits.
fn percent(x: f64) -> String {
    if x < -999.0 { "<-999".to_owned() } else { text::percent(x) }
}

/// The line above the policies of a place.
fn place(p: &PlaceResult, columns: usize) -> Vec<Cell> {
    let load = p.place.load.map_or_else(String::new, |l| format!(" ({l:.2})"));
    let mut row = vec![Cell::new(format!("{}/s{load}", text::three(p.rate())))];
    row.extend((1..columns).map(|_| Cell::new("")));
    row
}

fn named(name: &str) -> Cell {
    // A margin, which the table would trim from the front of a line if it were a blank.
    Cell::new(format!("- {name}"))
}

/// Published changes of these measures in the columns of changes; `None` without any.
fn published(p: &PlaceResult, measures: &[Measure]) -> Option<Vec<Cell>> {
    measures.iter().any(|m| p.published(*m).is_some()).then(|| {
        let mut row = vec![named("published")];
        for m in measures {
            let ours = p.arms.get(1).and_then(|a| a.classes[p.top_class()].against(*m));
            row.push(Cell::new(""));
            row.push(right(p.published(*m).zip(ours).map_or_else(String::new, |(q, ours)| {
                let word = if q.agrees(ours) { "agrees" } else { "differs" };
                format!("{} {word}", text::percent(q.improvement))
            })));
        }
        row
    })
}

fn latencies(c: &Comparison, places: &[&PlaceResult]) -> String {
    let mut head = vec![Cell::new("")];
    head.extend(c.shown.iter().flat_map(|m| [right(m.label()), right("%")]));
    let columns = head.len();
    let mut t = layout::table(head);
    t.set_content_arrangement(ContentArrangement::Disabled);
    for p in places {
        t.add_row(place(p, columns));
        let line = |name: &str, k: &ClassResult| {
            let mut row = vec![named(name)];
            row.extend(c.shown.iter().flat_map(|m| cells(k, *m)));
            row
        };
        for arm in &p.arms {
            t.add_row(line(&c.policies[arm.policy].name, &arm.classes[p.top_class()]));
        }
        if let Some(arm) = &p.alone {
            t.add_row(line(ALONE, &arm.classes[0]));
        }
        if let Some(row) = published(p, &c.shown) {
            t.add_row(row);
        }
    }
    layout::lines(&t)
}

fn throughputs(c: &Comparison, places: &[&PlaceResult], top: &str, low: Option<&str>) -> String {
    let mut head = vec![Cell::new(""), right(top), right("%")];
    if let Some(low) = low {
        head.extend([right(low), right("%")]);
    }
    head.extend([right("tokens"), right("%")]);
    let columns = head.len();
    let mut t = layout::table(head);
    t.set_content_arrangement(ContentArrangement::Disabled);
    for p in places {
        t.add_row(place(p, columns));
        let line = |name: &str, arm: &ArmResult, top: usize| {
            let mut row = vec![named(name)];
            row.extend(cells(&arm.classes[top], Measure::Requests));
            row.extend(p.low_class().iter().flat_map(|i| cells(&arm.classes[*i], Measure::Requests)));
            let all = arm.classes.len() - 1;
            let [tokens, _] = cells(&arm.classes[all], Measure::Tokens);
            let change = arm.classes[all].against(Measure::Tokens).map_or_else(String::new, bare);
            row.extend([tokens, right(change)]);
            row
        };
        for arm in &p.arms {
            t.add_row(line(&c.policies[arm.policy].name, arm, p.top_class()));
        }
        if let Some(arm) = &p.alone {
            let mut row = vec![named(ALONE)];
            row.extend(cells(&arm.classes[0], Measure::Requests));
            row.extend((row.len()..columns).map(|_| Cell::new("")));
            t.add_row(row);
        }
        if let Some(mut row) = published(p, &[Measure::Requests]) {
            row.extend((row.len()..columns).map(|_| Cell::new("")));
            t.add_row(row);
        }
    }
    layout::lines(&t)
}
