//! What charts share: their frame, their legend, their ticks and their colours.
//!
//! Colours are attributes of the SVG, so that an exported chart needs no page; pages that are shown in the
//! dark repaint them by those attributes ([`crate::page`]).

use crate::page::escape;
use std::fmt::Write;

/// Lines and texts.
pub(crate) const INK: &str = "#1b2430";
/// Texts of less weight, and axes.
pub(crate) const DIM: &str = "#667382";
/// Lines behind the data.
pub(crate) const GRID: &str = "#e3e8ee";

/// Colours of series, told apart by people who do not see all colours (Okabe and Ito 2008); the second of
/// each pair is for dark pages.
pub(crate) const COLOURS: [(&str, &str); 6] = [
    ("#0072b2", "#4aa8e8"),
    ("#d55e00", "#f08a3c"),
    ("#009e73", "#2fc79a"),
    ("#cc79a7", "#e09ac2"),
    ("#e69f00", "#f2b631"),
    ("#56b4e9", "#8fd0f7"),
];

/// The colour of a series on white.
pub(crate) fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()].0
}

/// A width of a text in 12 px, estimated.
fn width_of(text: &str) -> f64 {
    7.2 * text.chars().count() as f64
}

/// Where a chart's parts lie, in pixels.
pub(crate) struct Frame {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Frame {
    pub(crate) fn x(&self, share: f64) -> f64 {
        self.left + share * (self.width - self.left - self.right)
    }
    pub(crate) fn y(&self, share: f64) -> f64 {
        self.height - self.bottom - share * (self.height - self.top - self.bottom)
    }
    pub(crate) fn open(&self, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" \
             aria-label=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"{INK}\">\
             <text x=\"4\" y=\"16\" font-size=\"14\" font-weight=\"600\">{}</text>",
            self.width,
            self.height,
            self.width,
            escape(title),
            escape(title)
        )
    }
    pub(crate) fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
        let _ =
            write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(text));
    }
    /// A text of less weight.
    pub(crate) fn note(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"10.5\" fill=\"{DIM}\">{}</text>",
            escape(text)
        );
    }
    pub(crate) fn line(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
    }
    /// Places for entries of a legend: x and row of each, and how many rows there are.
    fn places<'n>(&self, names: impl Iterator<Item = &'n str>) -> (Vec<(f64, f64)>, usize) {
        let (mut x, mut row, mut places) = (self.left, 0, Vec::new());
        for name in names {
            let width = 30.0 + width_of(name);
            if x > self.left && x + width - 15.0 > self.width {
                (x, row) = (self.left, row + 1);
            }
            places.push((x, row as f64 * 17.0));
            x += width;
        }
        (places, row + 1)
    }
    /// Makes room for a legend of more than one row.
    pub(crate) fn grown<'n>(mut self, names: impl Iterator<Item = &'n str>) -> Frame {
        let more = (self.places(names).1 - 1) as f64 * 17.0;
        self.top += more;
        self.height += more;
        self
    }
    /// Names and colours in rows under the title; the last one has a diamond if it is `marked`.
    /// A series alone and without a name has none.
    pub(crate) fn legend(&self, out: &mut String, names: &[&str], marked: bool) {
        if names == [""] {
            return;
        }
        let places = self.places(names.iter().copied()).0;
        for (i, (name, (x, y))) in names.iter().zip(places).enumerate() {
            let _ = if marked && i + 1 == names.len() {
                write!(out, "<path d=\"M{x:.1} {:.1}l6 -6l6 6l-6 6z\" fill=\"{INK}\"/>", y + 30.5)
            } else {
                write!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" fill=\"{}\"/>",
                    y + 25.0,
                    colour(i)
                )
            };
            Frame::text(out, x + 16.0, y + 35.0, "start", name);
        }
    }
}

/// Round steps that part a range into about five.
pub(crate) fn ticks(from: f64, to: f64) -> Vec<f64> {
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

/// Round numbers for an axis that grows by factors of ten: 1, 2 and 5 of each ten if the range is short, and those of a
/// plain axis if it is too short for two of them.
pub(crate) fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let short = libm::log10(to / from) < 2.0;
    let of_each: &[f64] = if short { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (-9..13).flat_map(|e| of_each.iter().map(move |m| m * libm::exp10(f64::from(e))));
    let all: Vec<f64> = all.filter(|v| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(v)).collect();
    if all.len() < 2 { ticks(from, to) } else { all }
}

/// A number on an axis, with as many digits as the tick itself has.
pub(crate) fn number(x: f64) -> String {
    let a = x.abs();
    let (value, unit) = match a {
        a if a >= 1e6 => (x / 1e6, "M"),
        a if a >= 1e4 => (x / 1e3, "k"),
        _ => (x, ""),
    };
    // Ticks are round: what is beyond the ninth digit is an error of the sum that made them.
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{unit}", if text == "-0" { "0" } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(-100.0, 100.0), [-100.0, -50.0, 0.0, 50.0, 100.0]);
        assert_eq!(ticks(0.0, 700.0), [0.0, 200.0, 400.0, 600.0]);
        assert_eq!(ticks(3.0, 3.0), [3.0]);
        let labels = |t: Vec<f64>| t.into_iter().map(number).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(ticks(0.0, 0.25)), "0 0.05 0.1 0.15 0.2 0.25");
        assert_eq!(labels(ticks(0.0, 30_000.0)), "0 5000 10k 15k 20k 25k 30k");
        assert_eq!(labels(log_ticks(0.002, 300.0)), "0.01 0.1 1 10 100");
        assert_eq!(labels(log_ticks(0.02, 0.9)), "0.02 0.05 0.1 0.2 0.5");
        assert_eq!(labels(log_ticks(0.036, 0.0475)), "0.036 0.038 0.04 0.042 0.044 0.046");
        assert_eq!(log_ticks(3.0, 3.0), [3.0]);
    }

    #[test]
    fn a_legend_that_is_too_long_takes_another_row() {
        let frame =
            || Frame { width: 430.0, height: 260.0, left: 46.0, right: 10.0, top: 46.0, bottom: 40.0 };
        let names = ["examples/static.yaml", "examples/article.yaml", "examples/recommended.yaml"];
        let grown = frame().grown(names.into_iter());
        assert_eq!((grown.height, grown.top), (277.0, 63.0));
        assert_eq!(frame().grown(["a", "b"].into_iter()).height, 260.0);
        let mut out = String::new();
        grown.legend(&mut out, &names, false);
        assert_eq!(out.matches("<rect").count(), 3);
    }
}
