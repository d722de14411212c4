//! A comparison as an HTML report.

use crate::compare::{ArmResult, ClassResult, Comparison, Measure, PlaceResult};
use crate::text;
use forebay_records::Histogram;
use forebay_records::stats::{Paired, Verdict};
use forebay_report::page::Cell;
use forebay_report::{Bar, Bars, Chart, Group, Lines, Page, Series, range_of_improvements};
use std::fmt::Write;

/// What a report says above its figures.
#[derive(Clone, Debug, Default)]
pub struct Words {
    /// The headline.
    pub title: String,
    /// The sentence under it.
    pub lead: String,
    /// Paragraphs of method.
    pub method: Vec<String>,
}

/// What the class with the highest priority alone is called.
pub const ALONE: &str = "alone";

/// The report of a comparison. Charts are about the class with the highest priority.
pub fn report(c: &Comparison, words: &Words) -> String {
    let mut page = Page::new(&words.title);
    page.lead(&words.lead);
    for m in &words.method {
        page.text(m);
    }
    let policies: Vec<Vec<Cell>> = c
        .policies
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let role = if i == 0 { "baseline" } else { "" };
            vec![plain(&p.name), (p.what.clone(), "w"), plain(role)]
        })
        .collect();
    page.table(&["policy", "what it is", ""], &policies);
    let mut names: Vec<&str> = c.places.iter().map(|p| p.place.workload.name.as_str()).collect();
    names.dedup();
    for name in names {
        let places: Vec<&PlaceResult> = c.places.iter().filter(|p| p.place.workload.name == name).collect();
        workload(&mut page, c, name, &places);
    }
    page.section("Configurations");
    for p in &c.policies {
        page.folded(&p.name, |page| page.listing(&p.config));
    }
    page.finish()
}

fn plain(s: &str) -> Cell {
    (s.to_owned(), "")
}

fn workload(page: &mut Page, c: &Comparison, name: &str, places: &[&PlaceResult]) {
    page.section(name);
    let Some(first) = places.first() else { return };
    let top = first.top_class();
    let class = first.place.workload.classes.get(top).map_or("all", |c| c.name.as_str());
    page.text(&format!("Improvement over {}, {class} class. Up is better.", c.policies[0].name));
    for m in c.shown.iter().copied().chain([Measure::Requests]) {
        page.chart(&bars(c, places, top, m), "");
    }
    if places.iter().any(|p| p.alone.is_some()) {
        page.text(&format!(
            "\"{ALONE}\": the same {class} requests without the other classes, which is a bound on what any policy can give them."
        ));
    }
    page.part("The numbers behind");
    numbers(page, c, places, top);
    for p in places {
        let head =
            format!("{} at {} requests/s: every class, curves and timelines", name, text::three(p.rate()));
        page.folded(&head, |page| detail(page, c, p));
    }
}

/// As the article draws it: a group per rate, a bar per policy.
fn bars(c: &Comparison, places: &[&PlaceResult], top: usize, m: Measure) -> Bars {
    let groups = places.iter().map(|p| {
        let results = p.arms[1..].iter().map(|arm| &arm.classes[top]);
        let results = results.chain(p.alone.iter().map(|arm| &arm.classes[0]));
        let bars = results.enumerate().map(|(i, class)| {
            let a = class.against(m);
            Bar {
                value: a.map_or(f64::NAN, |a| a.improvement),
                interval: a.map(|a| a.interval),
                mark: p.published(m).filter(|_| i == 0).map(|q| q.improvement),
            }
        });
        let load = p.place.load.map_or(String::new(), |l| format!("{l:.2} of capacity"));
        Group { label: format!("{}/s\n{load}", text::three(p.rate())), bars: bars.collect() }
    });
    let groups: Vec<Group> = groups.collect();
    let marked = groups.iter().flat_map(|g| &g.bars).any(|b| b.mark.is_some());
    let alone = places.iter().any(|p| p.alone.is_some()).then(|| ALONE.to_owned());
    let range = range_of_improvements(&groups);
    Bars {
        title: format!("{}, improvement in %", m.label()),
        unit: String::new(),
        series: c.policies[1..].iter().map(|p| p.name.clone()).chain(alone).collect(),
        mark: if marked { "published".to_owned() } else { String::new() },
        groups,
        range,
    }
}

/// An improvement with its interval, coloured by its verdict.
fn improvement(a: &Paired) -> Cell {
    let class = match a.verdict {
        Verdict::Better => "good",
        Verdict::Worse => "bad",
        _ => "dim",
    };
    let mut s = text::percent(a.improvement);
    if a.interval.0.is_finite() {
        let _ = write!(s, " [{}, {}]", text::percent(a.interval.0), text::percent(a.interval.1));
    }
    if a.unusable > 0 {
        let _ = write!(s, " ({} of {} pairs)", a.pairs, a.pairs + a.unusable);
    }
    (s, class)
}

fn value(m: Measure, x: f64) -> Cell {
    let s = match m {
        _ if !x.is_finite() => "undet.".to_owned(),
        Measure::Requests => text::three(x),
        Measure::Tokens => format!("{x:.0}"),
        _ => text::time(x),
    };
    (s, "")
}

/// A value and its change against the baseline.
fn pair(k: &ClassResult, m: Measure) -> [Cell; 2] {
    [value(m, k.mean(m)), k.against(m).map_or(plain(""), improvement)]
}

/// A table of `columns` with a column for the change behind each.
fn changes(page: &mut Page, columns: &[String], rows: &[Vec<Cell>]) {
    let mut head = vec![""];
    head.extend(columns.iter().flat_map(|c| [c.as_str(), "%, 95 % interval"]));
    page.table(&head, rows);
}

fn numbers(page: &mut Page, c: &Comparison, places: &[&PlaceResult], top: usize) {
    let name = |p: &PlaceResult, who: &str| plain(&format!("{}/s {who}", text::three(p.rate())));
    let (mut latencies, mut flows) = (Vec::new(), Vec::new());
    for p in places {
        let arms = p.arms.iter().map(|a| (c.policies[a.policy].name.as_str(), a, top, p.low_class()));
        for (who, arm, top, low) in arms.chain(p.alone.iter().map(|a| (ALONE, a, 0, None))) {
            let mut row = vec![name(p, who)];
            row.extend(c.shown.iter().flat_map(|m| pair(&arm.classes[top], *m)));
            latencies.push(row);
            let mut row = vec![name(p, who)];
            row.extend(pair(&arm.classes[top], Measure::Requests));
            row.extend(low.iter().flat_map(|i| pair(&arm.classes[*i], Measure::Requests)));
            if who != ALONE {
                row.extend(arm.classes.last().iter().flat_map(|k| pair(k, Measure::Tokens)));
            }
            flows.push(row);
        }
        latencies.extend(published_row(p, &c.shown));
        flows.extend(published_row(p, &[Measure::Requests]));
    }
    changes(page, &c.shown.iter().map(|m| m.label().to_owned()).collect::<Vec<_>>(), &latencies);
    let classes = places.first().into_iter().flat_map(|p| {
        let of = |i: usize| p.place.workload.classes.get(i).map(|c| format!("{} requests/s", c.name));
        [of(top), p.low_class().and_then(of)].into_iter().flatten()
    });
    changes(page, &classes.chain(["tokens/s, all".to_owned()]).collect::<Vec<_>>(), &flows);
}

/// What was published of these measures, and whether the first treatment goes the same way.
fn published_row(p: &PlaceResult, measures: &[Measure]) -> Option<Vec<Cell>> {
    measures.iter().find_map(|m| p.published(*m))?;
    let mut row = vec![plain(&format!("{}/s published", text::three(p.rate())))];
    for m in measures {
        let ours = p.arms.get(1).and_then(|a| a.classes[p.top_class()].against(*m));
        row.push(plain(""));
        row.push(p.published(*m).zip(ours).map_or(plain(""), |(q, ours)| {
            let agrees = q.agrees(ours);
            let word = if agrees { "agrees" } else { "differs" };
            (format!("{}, {word}", text::percent(q.improvement)), if agrees { "good" } else { "bad" })
        }));
    }
    Some(row)
}

fn detail(page: &mut Page, c: &Comparison, p: &PlaceResult) {
    let mut rows = Vec::new();
    for arm in &p.arms {
        for k in &arm.classes {
            let mut row = vec![plain(&format!("{}, {}", c.policies[arm.policy].name, k.name))];
            row.extend(Measure::ALL.iter().map(|m| value(*m, k.mean(*m))));
            let share = |n: u64| plain(&format!("{:.1} %", 100.0 * n as f64 / k.offered.max(1) as f64));
            row.extend([share(k.finished), share(k.rejected)]);
            rows.push(row);
        }
    }
    let mut head = vec![""];
    head.extend(Measure::ALL.iter().map(|m| m.label()));
    head.extend(["finished", "refused"]);
    page.table(&head, &rows);
    pool(page, c, p);
    curves(page, c, p);
}

fn pool(page: &mut Page, c: &Comparison, p: &PlaceResult) {
    let pool: Vec<Vec<Cell>> = p
        .arms
        .iter()
        .map(|a| {
            vec![
                plain(&c.policies[a.policy].name),
                plain(&a.longest_engine_queue.to_string()),
                plain(&format!("{:.0}", a.preemptions)),
                plain(&format!("{:.1} %", 100.0 * a.recompute)),
                plain(&format!("{} / {} / {}", a.loads[0], a.loads[1], a.loads[2])),
            ]
        })
        .collect();
    page.table(
        &[
            "pool",
            "longest engine queue",
            "preemptions per run",
            "recomputed",
            "runs stable / near / overloaded",
        ],
        &pool,
    );
}

fn curves(page: &mut Page, c: &Comparison, p: &PlaceResult) {
    let top = p.top_class();
    let name = p.arms.first().map_or("", |a| a.classes[top].name.as_str());
    let lines = |title: &str, x: &str, series: Vec<Series>, log_x, y_max| Lines {
        title: title.to_owned(),
        x: x.to_owned(),
        series,
        log_x,
        y_max,
        ..Lines::default()
    };
    let series = |points: &dyn Fn(&ArmResult) -> Vec<(f64, f64)>| -> Vec<Series> {
        p.arms.iter().map(|a| Series::steps(&*c.policies[a.policy].name, points(a))).collect()
    };
    let at = |t: &forebay_sim::Point| t.at.0 as f64 / 1e9;
    let over_time = |v: &dyn Fn(&forebay_sim::Point) -> f64| {
        series(&|a| a.timeline.points.iter().map(|t| (at(t), v(t))).collect())
    };
    let band = |a: &ArmResult| a.timeline.bands.len().saturating_sub(1);
    let all = [
        lines(
            &format!("TTFT, {name}: share of requests within"),
            "seconds",
            series(&|a| curve(&a.classes[top].ttft, a.classes[top].offered)),
            true,
            Some(1.0),
        ),
        lines(
            &format!("E2E, {name}: share of requests within"),
            "seconds",
            series(&|a| curve(&a.classes[top].e2e, a.classes[top].offered)),
            true,
            Some(1.0),
        ),
        lines(
            "Saturation as the router sees it, first seed",
            "seconds",
            over_time(&|t| t.saturation.min(4.0)),
            false,
            None,
        ),
        lines(
            "Ceiling of the lowest band, first seed",
            "seconds",
            series(&|a| {
                let points = a.timeline.points.iter();
                points.map(|t| (at(t), t.ceilings.get(band(a)).copied().unwrap_or(1.0))).collect()
            }),
            false,
            None,
        ),
        lines(
            "Requests queued in the router, first seed",
            "seconds",
            over_time(&|t| t.queued.iter().sum::<u64>() as f64),
            false,
            None,
        ),
        lines(
            "Requests waiting in the engines, first seed",
            "seconds",
            over_time(&|t| t.servers.iter().map(|s| f64::from(s.waiting)).sum()),
            false,
            None,
        ),
    ];
    let all: Vec<(&dyn Chart, &str)> = all.iter().map(|l| (l as &dyn Chart, "")).collect();
    page.charts(&all);
}

/// The share of `offered` requests within each time, in seconds, at some 200 places.
pub(crate) fn curve(h: &Histogram, offered: u64) -> Vec<(f64, f64)> {
    let mut below = 0;
    let all: Vec<(f64, f64)> = h
        .buckets()
        .map(|(low, width, n)| {
            below += n;
            ((low + (width - 1)) as f64 / 1e9, below as f64 / offered.max(1) as f64)
        })
        .collect();
    let every = all.len().div_ceil(200).max(1);
    let last = all.len().saturating_sub(1);
    all.into_iter().enumerate().filter(|(i, _)| i % every == 0 || *i == last).map(|(_, p)| p).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_the_least_value_to_the_share_that_has_one() {
        let mut h = Histogram::new();
        for ms in 1..=1_000_u64 {
            h.record(ms * 1_000_000);
        }
        let points = curve(&h, 2_000);
        let (first, last) = (points[0], points[points.len() - 1]);
        assert!(points.len() <= 202 && points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        assert!(
            (first.0 - 0.001).abs() < 1e-4 && (last.0 - 1.0).abs() < 2e-3 && last.1 == 0.5,
            "{first:?} {last:?}"
        );
    }
}
