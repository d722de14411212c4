//! Grouped bars with intervals.

use crate::chart::{Chart, csv_line};
use crate::frame::{DIM, Frame, GRID, INK, colour, number, ticks};
use std::fmt::Write;

/// One bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bar {
    /// Its end; not drawn if it is no number.
    pub value: f64,
    /// Its interval, if it has one.
    pub interval: Option<(f64, f64)>,
    /// A mark beside it, such as a published value.
    pub mark: Option<f64>,
}

/// Bars that stand together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Under them; a second line is smaller.
    pub label: String,
    /// By series.
    pub bars: Vec<Bar>,
}

/// Grouped bars around zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// Above.
    pub title: String,
    /// Beside the axis.
    pub unit: String,
    /// Names of the series.
    pub series: Vec<String>,
    /// What the marks are; empty without any.
    pub mark: String,
    /// The groups.
    pub groups: Vec<Group>,
    /// The axis.
    pub range: (f64, f64),
}

impl Bars {
    /// The picture.
    pub fn svg(&self) -> String {
        let mut names: Vec<&str> = self.series.iter().map(String::as_str).collect();
        if !self.mark.is_empty() {
            names.push(&self.mark);
        }
        let f = Frame { width: 860.0, height: 320.0, left: 52.0, right: 8.0, top: 50.0, bottom: 44.0 };
        let f = f.grown(names.iter().copied());
        let mut out = f.open(&self.title);
        f.legend(&mut out, &names, !self.mark.is_empty());
        let (low, high) = self.range;
        let y = |v: f64| f.y((v.clamp(low, high) - low) / (high - low));
        for t in ticks(low, high) {
            let style = format!("stroke=\"{}\"", if t == 0.0 { INK } else { GRID });
            Frame::line(&mut out, (f.x(0.0), y(t)), (f.x(1.0), y(t)), &style);
            Frame::text(&mut out, f.left - 6.0, y(t) + 4.0, "end", &number(t));
        }
        Frame::text(&mut out, 4.0, f.height - 8.0, "start", &self.unit);
        let slot = 1.0 / self.groups.len().max(1) as f64;
        let width = slot * 0.8 / self.series.len().max(1) as f64;
        for (g, group) in self.groups.iter().enumerate() {
            let start = slot * (g as f64 + 0.1);
            for (i, bar) in group.bars.iter().enumerate() {
                let (x0, x1) = (f.x(start + width * i as f64), f.x(start + width * (i as f64 + 0.92)));
                self.bar(&mut out, i, bar, (x0, x1), &y);
            }
            let mut lines = group.label.lines();
            let middle = f.x(slot * (g as f64 + 0.5));
            let under = f.height - f.bottom;
            Frame::text(&mut out, middle, under + 16.0, "middle", lines.next().unwrap_or(""));
            Frame::note(&mut out, middle, under + 30.0, "middle", lines.next().unwrap_or(""));
        }
        out.push_str("</svg>");
        out
    }

    fn bar(&self, out: &mut String, i: usize, bar: &Bar, (x0, x1): (f64, f64), y: &dyn Fn(f64) -> f64) {
        let middle = f64::midpoint(x0, x1);
        if bar.value.is_finite() {
            let (a, b) = (y(bar.value).min(y(0.0)), y(bar.value).max(y(0.0)));
            let height = (b - a).max(0.8);
            let _ = write!(
                out,
                "<rect x=\"{x0:.1}\" y=\"{a:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\" fill-opacity=\"0.85\"/>",
                x1 - x0,
                colour(i)
            );
        } else {
            Frame::text(out, middle, y(0.0) - 4.0, "middle", "?");
        }
        if let Some((low, high)) = bar.interval.filter(|(l, h)| l.is_finite() && h.is_finite()) {
            let style = format!("stroke=\"{INK}\" stroke-width=\"1.3\"");
            Frame::line(out, (middle, y(low)), (middle, y(high)), &style);
            for end in [low, high].into_iter().filter(|v| (self.range.0..=self.range.1).contains(v)) {
                Frame::line(out, (middle - 3.0, y(end)), (middle + 3.0, y(end)), &style);
            }
        }
        if let Some(mark) = bar.mark {
            let _ = write!(
                out,
                "<path d=\"M{:.1} {:.1}l6 -6l6 6l-6 6z\" fill=\"{INK}\" stroke=\"{DIM}\"/>",
                middle - 6.0,
                y(mark)
            );
        }
    }
}

/// A range for improvements in per cent: all values, marks and intervals have room in it, up to 200 either way, and at
/// least 10.
pub fn range_of_improvements(groups: &[Group]) -> (f64, f64) {
    let bars = || groups.iter().flat_map(|g| &g.bars);
    let ends = |b: &Bar| {
        let (low, high) = b.interval.unwrap_or((b.value, b.value));
        [b.value, b.mark.unwrap_or(0.0), low, high]
    };
    let finite = || bars().flat_map(ends).filter(|v| v.is_finite());
    let (least, most) = (finite().fold(0.0, f64::min), finite().fold(0.0, f64::max));
    ((least * 1.1).clamp(-200.0, -10.0), (most * 1.1).clamp(10.0, 200.0))
}

impl Chart for Bars {
    fn title(&self) -> &str {
        &self.title
    }
    fn svg(&self) -> String {
        Bars::svg(self)
    }
    fn is_wide(&self) -> bool {
        true
    }
    fn csv(&self) -> String {
        let mut out = String::from("group,series,value,low,high,mark\n");
        for g in &self.groups {
            for (name, bar) in self.series.iter().zip(&g.bars) {
                let number =
                    |v: Option<f64>| v.filter(|v| v.is_finite()).map_or(String::new(), |v| v.to_string());
                csv_line(
                    &mut out,
                    &[
                        g.label.trim_end().replace('\n', ", "),
                        name.clone(),
                        number(Some(bar.value)),
                        number(bar.interval.map(|i| i.0)),
                        number(bar.interval.map(|i| i.1)),
                        number(bar.mark),
                    ],
                );
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_are_cut_and_missing_ones_say_so() {
        let bar = |value| Bar { value, interval: Some((-500.0, 500.0)), mark: Some(97.0) };
        let chart = Bars {
            title: "t <1>".into(),
            unit: "%".into(),
            series: vec!["a".into()],
            mark: "published".into(),
            groups: vec![
                Group { label: "4\nx".into(), bars: vec![bar(-900.0)] },
                Group { label: "5".into(), bars: vec![bar(f64::NAN)] },
            ],
            range: (-100.0, 100.0),
        };
        let svg = chart.svg();
        assert!(svg.contains("t &lt;1&gt;") && svg.contains(">?<") && !svg.contains("NaN"));
        assert_eq!(
            chart.csv(),
            "group,series,value,low,high,mark\n\"4, x\",a,-900,-500,500,97\n5,a,,-500,500,97\n"
        );
    }
}
