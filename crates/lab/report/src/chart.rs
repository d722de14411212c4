//! Bars with intervals, and lines.

use crate::page::escape;
use std::fmt::Write;

/// Colours of series, told apart by people who do not see all colours (Okabe and Ito 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The colour of a series.
fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

/// One bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Its end; not drawn if it is no number.
    pub value: f64,
    /// Its interval, if it has one.
    pub interval: Option<(f64, f64)>,
    /// A mark beside it, such as a published value.
    pub mark: Option<f64>,
}

/// Bars that stand together.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Under them.
    pub label: String,
    /// By series.
    pub bars: Vec<Bar>,
}

/// Grouped bars around zero.
#[derive(Clone, Debug, PartialEq)]
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

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points in the order of x.
    pub points: Vec<(f64, f64)>,
    /// Whether it keeps its value up to the next point.
    pub steps: bool,
}

/// Lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Above.
    pub title: String,
    /// Under the axis.
    pub x: String,
    /// Beside the axis.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Whether x grows by factors of ten.
    pub log_x: bool,
    /// The upper end of y, if it is not the greatest value.
    pub y_max: Option<f64>,
}

struct Frame {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, share: f64) -> f64 {
        self.left + share * (self.width - self.left - self.right)
    }
    fn y(&self, share: f64) -> f64 {
        self.height - self.bottom - share * (self.height - self.top - self.bottom)
    }
    fn open(&self, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" \
             aria-label=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"#1b2430\">\
             <text x=\"4\" y=\"16\" font-size=\"14\" font-weight=\"600\">{}</text>",
            self.width,
            self.height,
            self.width,
            escape(title),
            escape(title)
        )
    }
    fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
        let _ =
            write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(text));
    }
    fn line(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
    }
    /// Names and colours in a row under the title; `mark` is a dot for what is marked.
    fn legend<'n>(&self, out: &mut String, names: impl Iterator<Item = &'n str>, mark: &str) {
        let mut x = self.left;
        for (i, name) in names.enumerate() {
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"25\" width=\"11\" height=\"11\" fill=\"{}\"/>",
                colour(i)
            );
            Frame::text(out, x + 15.0, 35.0, "start", name);
            x += 34.0 + 7.4 * name.chars().count() as f64;
        }
        if !mark.is_empty() {
            let _ = write!(out, "<path d=\"M{x:.1} 30.5l6 -6l6 6l-6 6z\" fill=\"#1b2430\"/>");
            Frame::text(out, x + 16.0, 35.0, "start", mark);
        }
    }
}

/// Round steps that part a range into about five.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let range = to - from;
    if !range.is_finite() || range <= 0.0 {
        return vec![from];
    }
    let mut step = 1.0;
    while step * 8.0 < range {
        step *= 10.0;
    }
    while step > range {
        step /= 10.0;
    }
    let step =
        [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].iter().map(|m| m * step).find(|s| range / s <= 6.0).unwrap_or(step);
    let first = (from / step).ceil() as i64;
    (0..20).map(|i| (first + i) as f64 * step).take_while(|t| *t <= to + step * 1e-9).collect()
}

fn number(x: f64) -> String {
    let a = x.abs();
    if a != 0.0 && a < 0.1 {
        format!("{x:.6}").trim_end_matches('0').to_owned()
    } else if a < 10.0 && (x - x.round()).abs() > 1e-9 {
        format!("{x:.1}")
    } else {
        format!("{x:.0}")
    }
}

impl Bars {
    /// The picture.
    pub fn svg(&self) -> String {
        let f = Frame { width: 860.0, height: 320.0, left: 52.0, right: 8.0, top: 50.0, bottom: 44.0 };
        let mut out = f.open(&self.title);
        f.legend(&mut out, self.series.iter().map(String::as_str), &self.mark);
        let (low, high) = self.range;
        let y = |v: f64| f.y((v.clamp(low, high) - low) / (high - low));
        for t in ticks(low, high) {
            let style = if t == 0.0 { "stroke=\"#1b2430\"" } else { "stroke=\"#e3e8ee\"" };
            Frame::line(&mut out, (f.x(0.0), y(t)), (f.x(1.0), y(t)), style);
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
            Frame::text(&mut out, middle, f.height - f.bottom + 16.0, "middle", lines.next().unwrap_or(""));
            let second = lines.next().unwrap_or("");
            let _ = write!(
                out,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10.5\" fill=\"#667382\">{}</text>",
                f.height - f.bottom + 30.0,
                escape(second)
            );
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
            let style = "stroke=\"#1b2430\" stroke-width=\"1.3\"";
            Frame::line(out, (middle, y(low)), (middle, y(high)), style);
            for end in [low, high].into_iter().filter(|v| (self.range.0..=self.range.1).contains(v)) {
                Frame::line(out, (middle - 3.0, y(end)), (middle + 3.0, y(end)), style);
            }
        }
        if let Some(mark) = bar.mark {
            let _ = write!(
                out,
                "<path d=\"M{:.1} {:.1}l6 -6l6 6l-6 6z\" fill=\"#1b2430\" stroke=\"#fff\"/>",
                middle - 6.0,
                y(mark)
            );
        }
    }
}

impl Lines {
    /// The picture.
    pub fn svg(&self) -> String {
        let f = Frame { width: 430.0, height: 260.0, left: 46.0, right: 10.0, top: 46.0, bottom: 40.0 };
        let mut out = f.open(&self.title);
        f.legend(&mut out, self.series.iter().map(|s| s.name.as_str()), "");
        let all =
            || self.series.iter().flat_map(|s| &s.points).filter(|p| p.0.is_finite() && p.1.is_finite());
        let place = |x: f64| if self.log_x { libm::log10(x.max(1e-9)) } else { x };
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for p in all() {
            (low, high) = (low.min(place(p.0)), high.max(place(p.0)));
        }
        if low > high {
            Frame::text(&mut out, f.x(0.5), f.y(0.5), "middle", "no values");
            out.push_str("</svg>");
            return out;
        }
        let greatest = all().map(|p| p.1).fold(0.0, f64::max);
        let top = self.y_max.unwrap_or(if greatest > 0.0 { greatest * 1.05 } else { 1.0 });
        let range = (high - low).max(1e-9);
        let x = |v: f64| f.x((place(v) - low) / range);
        let y = |v: f64| f.y(v.clamp(0.0, top) / top);
        for t in ticks(0.0, top) {
            Frame::line(&mut out, (f.x(0.0), y(t)), (f.x(1.0), y(t)), "stroke=\"#e3e8ee\"");
            Frame::text(&mut out, f.left - 6.0, y(t) + 4.0, "end", &number(t));
        }
        let marks: Vec<f64> = if self.log_x {
            (-6..7).map(|e| libm::exp10(f64::from(e))).filter(|v| (low..=high).contains(&place(*v))).collect()
        } else {
            ticks(low, high)
        };
        for t in marks {
            Frame::line(&mut out, (x(t), f.y(0.0)), (x(t), f.y(0.0) + 4.0), "stroke=\"#667382\"");
            Frame::text(&mut out, x(t), f.y(0.0) + 16.0, "middle", &number(t));
        }
        Frame::line(&mut out, (f.x(0.0), f.y(0.0)), (f.x(1.0), f.y(0.0)), "stroke=\"#667382\"");
        Frame::text(&mut out, f.x(1.0), f.height - 6.0, "end", &self.x);
        Frame::text(&mut out, 4.0, f.height - 6.0, "start", &self.y);
        for (i, s) in self.series.iter().enumerate() {
            let mut path = String::new();
            for (px, py) in s.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite()) {
                let _ = match (path.is_empty(), s.steps) {
                    (true, _) => write!(path, "M{:.1} {:.1}", x(*px), y(*py)),
                    (false, true) => write!(path, "H{:.1}V{:.1}", x(*px), y(*py)),
                    (false, false) => write!(path, "L{:.1} {:.1}", x(*px), y(*py)),
                };
            }
            let _ = write!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>",
                colour(i)
            );
        }
        out.push_str("</svg>");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(-100.0, 100.0), [-100.0, -50.0, 0.0, 50.0, 100.0]);
        assert_eq!(ticks(0.0, 0.25), [0.0, 0.05, 0.1, 0.150_000_000_000_000_02, 0.2, 0.25]);
        assert_eq!(ticks(0.0, 700.0), [0.0, 200.0, 400.0, 600.0]);
        assert_eq!(ticks(3.0, 3.0), [3.0]);
    }

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
        let empty = Lines {
            title: String::new(),
            x: String::new(),
            y: String::new(),
            series: Vec::new(),
            log_x: false,
            y_max: None,
        };
        assert!(empty.svg().contains("no values"));
    }
}
