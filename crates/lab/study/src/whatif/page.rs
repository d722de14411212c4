//! An answer as an HTML page and as JSON.

use super::{Answer, ClassAnswer, Compared, Figure};
use crate::summary::Metric;
use crate::text;
use forebay_records::Histogram;
use forebay_records::stats::Verdict;
use forebay_report::page::Cell;
use forebay_report::{Bar, Bars, Chart, Group, Lines, Page, Series, range_of_improvements};
use serde_json::{Value, json};

/// The page.
pub fn page(a: &Answer) -> String {
    let mut page = Page::new(&format!("What if: {} instead of {}", a.arms[1], a.arms[0]));
    page.lead(&format!(
        "{}: {} requests/s over {:.0} s, on {}, {} seeds.",
        a.workload,
        text::three(a.rate),
        a.seconds,
        a.cluster,
        a.seeds
    ));
    for c in &a.classes {
        page.text(&format!("{}.", c.sentence()));
    }
    page.text(&a.load());
    page.chart(&bars(a), "Positive is better; lines are 95 % intervals over the seeds.");
    page.section("By class");
    for c in &a.classes {
        page.part(&format!("{}, priority {}, {:.0} requests", c.name, c.priority, c.offered));
        table(&mut page, a, c);
    }
    let lines: Vec<Lines> = a.classes.iter().map(|c| curves(a, c)).collect();
    let charts: Vec<(&dyn Chart, &str)> = lines.iter().map(|l| (l as &dyn Chart, "")).collect();
    page.charts(&charts);
    page.section("What to keep in mind");
    for caveat in a.caveats() {
        page.text(&caveat);
    }
    page.finish()
}

/// A value of a figure for people.
pub fn shown(figure: Figure, x: f64) -> String {
    match x {
        x if !x.is_finite() => "undet.".to_owned(),
        x if figure.is_share() => format!("{:.1} %", 100.0 * x),
        x if figure.is_time() => text::time(x),
        x => format!("{x:.0}"),
    }
}

/// An improvement with its interval; a star where it excludes no change.
pub fn change(c: &Compared) -> String {
    if c.figure.is_share() {
        let points = 100.0 * (c.means[1] - c.means[0]);
        return format!("{} points", text::percent(points));
    }
    if c.change.pairs == 0 {
        return "-".to_owned();
    }
    let star = if matches!(c.change.verdict, Verdict::Better | Verdict::Worse) { "*" } else { "" };
    let (low, high) = c.change.interval;
    format!("{} [{}, {}]{star}", text::percent(c.change.improvement), text::percent(low), text::percent(high))
}

fn class_of(c: &Compared) -> &'static str {
    match c.change.verdict {
        Verdict::Better => "good",
        Verdict::Worse => "bad",
        _ => "dim",
    }
}

fn table(page: &mut Page, a: &Answer, c: &ClassAnswer) {
    let mut head = vec![""];
    if a.recorded {
        head.push("recorded");
    }
    head.extend([a.arms[0].as_str(), a.arms[1].as_str(), "% better, 95 % interval"]);
    let plain = |s: String| -> Cell { (s, "") };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for f in &c.figures {
        let mut row = vec![plain(f.figure.label())];
        if a.recorded {
            row.push(plain(f.recorded.map_or("-".to_owned(), |v| shown(f.figure, v))));
        }
        row.extend(f.means.map(|v| plain(shown(f.figure, v))));
        row.push((change(f), class_of(f)));
        rows.push(row);
    }
    for (reason, [before, after]) in &c.refused {
        let mut row = vec![plain(format!("refused, {reason}"))];
        if a.recorded {
            row.push(plain(String::new()));
        }
        row.extend([plain(format!("{before:.0}")), plain(format!("{after:.0}")), plain(String::new())]);
        rows.push(row);
    }
    page.table(&head, &rows);
}

fn bars(a: &Answer) -> Bars {
    let figures = [
        Figure::Quantile(Metric::Ttft, 0),
        Figure::Quantile(Metric::Ttft, 3),
        Figure::Quantile(Metric::E2e, 3),
    ];
    let groups: Vec<Group> = figures
        .iter()
        .map(|f| Group {
            label: f.label(),
            bars: a
                .classes
                .iter()
                .map(|c| {
                    let change = c.figure(*f).map(|c| &c.change);
                    Bar {
                        value: change.map_or(f64::NAN, |p| p.improvement),
                        interval: change.map(|p| p.interval),
                        mark: None,
                    }
                })
                .collect(),
        })
        .collect();
    let range = range_of_improvements(&groups);
    Bars {
        title: "Improvement by class, in %".to_owned(),
        unit: String::new(),
        series: a.classes.iter().map(|c| c.name.clone()).collect(),
        mark: String::new(),
        groups,
        range,
    }
}

fn curves(a: &Answer, c: &ClassAnswer) -> Lines {
    let offered = c.offered * a.seeds as f64;
    let series = |i: usize| Series::steps(&*a.arms[i], curve(&c.ttft[i], offered));
    Lines {
        title: format!("TTFT, {}: share of requests within", c.name),
        x: "seconds".to_owned(),
        series: vec![series(0), series(1)],
        log_x: true,
        y_max: Some(1.0),
        ..Lines::default()
    }
}

/// The share of `offered` requests within each time, in seconds, at some 200 places.
fn curve(h: &Histogram, offered: f64) -> Vec<(f64, f64)> {
    let mut below = 0;
    let all: Vec<(f64, f64)> = h
        .buckets()
        .map(|(low, width, n)| {
            below += n;
            ((low + (width - 1)) as f64 / 1e9, below as f64 / offered.max(1.0))
        })
        .collect();
    let every = all.len().div_ceil(200).max(1);
    let last = all.len().saturating_sub(1);
    all.into_iter().enumerate().filter(|(i, _)| i % every == 0 || *i == last).map(|(_, p)| p).collect()
}

fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { Value::Null }
}

/// The answer as JSON; times in nanoseconds, what is undetermined is null.
pub fn json(a: &Answer) -> Value {
    let figure = |c: &Compared| {
        json!({
            "figure": c.figure.label().trim(), "recorded": c.recorded.map(number),
            "baseline": number(c.means[0]), "treatment": number(c.means[1]),
            "improvement_percent": number(c.change.improvement),
            "interval": [number(c.change.interval.0), number(c.change.interval.1)],
            "pairs": c.change.pairs, "unusable": c.change.unusable,
        })
    };
    let class = |c: &ClassAnswer| {
        json!({
            "name": c.name, "priority": c.priority, "offered_per_run": c.offered,
            "figures": c.figures.iter().map(figure).collect::<Vec<_>>(),
            "refused_per_run": c.refused, "lost_per_run": c.lost, "sentence": c.sentence(),
        })
    };
    json!({
        "workload": a.workload, "cluster": a.cluster, "baseline": a.arms[0], "treatment": a.arms[1],
        "seeds": a.seeds, "requests_per_second": a.rate, "seconds": a.seconds,
        "classes": a.classes.iter().map(class).collect::<Vec<_>>(),
        "ladder": a.ladder.iter().map(|(f, holds)| json!({"factor": f, "keeps_up": holds})).collect::<Vec<_>>(),
        "load": a.load(),
        "credibility": a.credibility().map(|(median, most, n)| json!({
            "median_error_percent": median, "greatest_error_percent": most, "latencies": n,
        })),
        "caveats": a.caveats(),
    })
}
