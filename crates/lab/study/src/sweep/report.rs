//! A sweep as an HTML report.

use super::{Axis, Row, Sweep};
use crate::asked::{Asked, Unit};
use crate::html::Words;
use forebay_records::stats::Standing;
use forebay_report::page::Cell;
use forebay_report::{Bar, Bars, Chart, Group, Lines, Page, Series};

/// The report: a chart per figure over the values of the first axis, a line per combination of all others,
/// and the numbers behind.
pub fn report(s: &Sweep, words: &Words) -> String {
    let mut page = Page::new(&words.title);
    page.lead(&words.lead);
    for m in &words.method {
        page.text(m);
    }
    let axes = s.axes.iter().map(|a| {
        let values: Vec<&str> = a.values.iter().map(|v| v.text.as_str()).collect();
        vec![plain(&a.name()), (values.join(", "), "w")]
    });
    page.table(&["field", "values"], &axes.collect::<Vec<_>>());
    page.section("Charts");
    let charts: Vec<(Box<dyn Chart>, String)> =
        (0..s.asked.len()).map(|k| (chart(s, k), caption(s, k))).collect();
    let charts: Vec<(&dyn Chart, &str)> = charts.iter().map(|(c, t)| (c.as_ref(), t.as_str())).collect();
    page.charts(&charts);
    page.section("The numbers behind");
    numbers(&mut page, s);
    page.finish()
}

fn plain(s: &str) -> Cell {
    (s.to_owned(), "")
}

/// A point's values of all axes but the first, as a name for its line.
fn line_of(s: &Sweep, point: &[usize]) -> String {
    let rest = s.axes.iter().zip(point).skip(1).filter(|(a, _)| a.values.len() > 1);
    rest.map(|(a, i)| format!("{} {}", a.label(&s.axes), a.values[*i].text)).collect::<Vec<_>>().join(", ")
}

/// Whether all axes move together, so that there is one line.
fn zipped(s: &Sweep) -> bool {
    s.axes.len() > 1
        && s.points.iter().all(|p| p.iter().all(|i| *i == p[0]))
        && s.axes.iter().all(|a| a.values.len() > 1)
}

/// Lines by name with the rows of each, in the order of the first axis.
fn lines(s: &Sweep) -> Vec<(String, Vec<(usize, &Row)>)> {
    let mut all: Vec<(String, Vec<(usize, &Row)>)> = Vec::new();
    let together = zipped(s);
    for (point, row) in s.points.iter().zip(&s.rows) {
        let name = if together { String::new() } else { line_of(s, point) };
        match all.iter_mut().find(|(n, _)| *n == name) {
            Some((_, rows)) => rows.push((point[0], row)),
            None => all.push((name, vec![(point[0], row)])),
        }
    }
    all
}

/// A unit in which the greatest value reads well, and the factor to it.
fn scale(unit: Unit, greatest: f64) -> (&'static str, f64) {
    match unit {
        Unit::Time if greatest < 2e6 => ("us", 1e-3),
        Unit::Time if greatest < 2e9 => ("ms", 1e-6),
        Unit::Time => ("s", 1e-9),
        Unit::Share => ("%", 100.0),
        Unit::Rate | Unit::Count => ("", 1.0),
    }
}

fn chart(s: &Sweep, k: usize) -> Box<dyn Chart> {
    let asked = &s.asked[k];
    let drawn = |r: &Row| matches!(r.figures[k].standing, Standing::Claim | Standing::AtLeast);
    let values = s.rows.iter().filter(|r| drawn(r)).map(|r| r.figures[k].value);
    let greatest = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    let (unit, factor) = scale(asked.what.unit(), greatest);
    let value = |r: &Row| if drawn(r) { r.figures[k].value * factor } else { f64::NAN };
    let mut title = title(asked);
    if !unit.is_empty() {
        title = format!("{title}, {unit}");
    }
    let interval =
        |r: &Row| r.figures[k].interval.map(|(l, h)| (l * factor, h * factor)).filter(|_| drawn(r));
    let first = &s.axes[0];
    let label = first.label(&s.axes);
    let Some((x, x_unit)) = first.numbers() else {
        return Box::new(bars(s, first, title, greatest * factor, &value, &interval));
    };
    let series = lines(s).into_iter().map(|(name, rows)| {
        let mut points: Vec<(f64, f64)> = rows.iter().map(|(i, r)| (x[*i], value(r))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut band: Vec<(f64, f64, f64)> = rows
            .iter()
            .filter_map(|(i, r)| interval(r).map(|(low, high)| (x[*i], low.max(0.0), high)))
            .collect();
        band.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name, points, steps: false, band, dots: true }
    });
    let (least, most) = x.iter().fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(*v), b.max(*v)));
    let series: Vec<Series> = series.collect();
    let x = if x_unit.is_empty() { label } else { format!("{label}, {x_unit}") };
    // Values over a wide range would crowd at the left.
    let log_x = least > 0.0 && most / least > 20.0;
    Box::new(Lines { title, x, series, log_x, ..Lines::default() })
}

fn title(a: &Asked) -> String {
    a.class.as_ref().map_or_else(|| a.what.label(), |c| format!("{}, {c}", a.what.label()))
}

/// For a first axis whose values are words.
fn bars(
    s: &Sweep,
    first: &Axis,
    title: String,
    greatest: f64,
    value: &dyn Fn(&Row) -> f64,
    interval: &dyn Fn(&Row) -> Option<(f64, f64)>,
) -> Bars {
    let lines = lines(s);
    let groups = first.values.iter().enumerate().map(|(i, v)| {
        let bars = lines.iter().map(|(_, rows)| {
            let row = rows.iter().find(|(j, _)| *j == i).map(|(_, r)| *r);
            Bar { value: row.map_or(f64::NAN, value), interval: row.and_then(interval), mark: None }
        });
        Group { label: v.text.clone(), bars: bars.collect() }
    });
    let top = if greatest > 0.0 { greatest * 1.15 } else { 1.0 };
    let series = lines.iter().map(|(name, _)| name.clone()).collect();
    let groups = groups.collect();
    Bars { title, unit: String::new(), series, mark: String::new(), groups, range: (0.0, top) }
}

/// What a reader has to know about points that are not drawn, or drawn with reserve.
fn caption(s: &Sweep, k: usize) -> String {
    let count = |standing: Standing| s.rows.iter().filter(|r| r.figures[k].standing == standing).count();
    let mut out = Vec::new();
    match count(Standing::Undetermined) {
        0 => {}
        1 => out.push("1 point is undetermined and not drawn".to_owned()),
        n => out.push(format!("{n} points are undetermined and not drawn")),
    }
    match count(Standing::AtLeast) {
        0 => {}
        n => out.push(format!(
            "{n} of {} points rest on fewer than 30 requests beyond the percentile",
            s.rows.len()
        )),
    }
    out.join("; ")
}

fn numbers(page: &mut Page, s: &Sweep) {
    let mut head: Vec<String> = s.axes.iter().map(|a| a.label(&s.axes)).collect();
    head.extend(s.asked.iter().map(title));
    head.push("load".to_owned());
    let rows = s.points.iter().zip(&s.rows).map(|(point, row)| {
        let mut cells: Vec<Cell> = s.axes.iter().zip(point).map(|(a, i)| plain(&a.values[*i].text)).collect();
        cells.extend(s.asked.iter().zip(&row.figures).map(|(a, f)| {
            let class = if f.standing == Standing::Claim { "" } else { "dim" };
            (f.text(a.what.unit()), class)
        }));
        let class = if row.loads[2] > 0 { "bad" } else { "" };
        cells.push((row.load(), class));
        cells
    });
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    page.table(&head, &rows.collect::<Vec<_>>());
    for problem in s.rows.iter().filter_map(|r| r.problem.as_ref()).collect::<std::collections::BTreeSet<_>>()
    {
        page.text(problem);
    }
}
