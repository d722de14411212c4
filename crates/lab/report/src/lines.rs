//! Lines over time, over a rate, or as distributions.

use crate::chart::{Chart, csv_line};
use crate::frame::{COLOURS, DIM, Frame, GRID, colour, log_ticks, number, ticks};
use std::fmt::Write;

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points in the order of x.
    pub points: Vec<(f64, f64)>,
    /// Whether it keeps its value up to the next point.
    pub steps: bool,
    /// What lies behind it: x, lower and upper edge. An interval, or what an average covers.
    pub band: Vec<(f64, f64, f64)>,
    /// Whether its points are drawn as dots: few points that were measured one by one.
    pub dots: bool,
}

impl Series {
    /// A line through points.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, ..Series::default() }
    }

    /// A line that keeps its value up to the next point.
    pub fn steps(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { steps: true, ..Series::line(name, points) }
    }

    /// A line that keeps its value, of at most `most` points: means of as many neighbours as it takes, in
    /// front of their least and greatest values.
    pub fn thinned(name: impl Into<String>, points: &[(f64, f64)], most: usize) -> Series {
        let every = points.len().div_ceil(most.max(1)).max(1);
        if every == 1 {
            return Series::steps(name, points.to_vec());
        }
        let mut s = Series::steps(name, Vec::new());
        for chunk in points.chunks(every) {
            let values = chunk.iter().map(|p| p.1);
            let mean = values.clone().sum::<f64>() / chunk.len() as f64;
            let (low, high) =
                values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
            s.points.push((chunk[0].0, mean));
            s.band.push((chunk[0].0, low, high));
        }
        // The last value lasts to the last instant.
        if let (Some(end), Some(&(_, low, high)), Some(&(_, mean))) =
            (points.last(), s.band.last(), s.points.last())
        {
            s.points.push((end.0, mean));
            s.band.push((end.0, low, high));
        }
        s
    }
}

/// Lines.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Places on x with a word each, such as the end of the arrivals.
    pub marks: Vec<(f64, String)>,
}

/// From values to places, both axes.
struct Axes<'f> {
    frame: &'f Frame,
    log_x: bool,
    x: (f64, f64),
    top: f64,
}

impl Axes<'_> {
    fn share(&self, v: f64) -> f64 {
        let place = |v: f64| if self.log_x { libm::log10(v.max(1e-9)) } else { v };
        (place(v) - place(self.x.0)) / (place(self.x.1) - place(self.x.0)).max(1e-9)
    }
    fn x(&self, v: f64) -> f64 {
        self.frame.x(self.share(v).clamp(0.0, 1.0))
    }
    fn y(&self, v: f64) -> f64 {
        self.frame.y(v.clamp(0.0, self.top) / self.top)
    }
}

impl Lines {
    /// The picture.
    pub fn svg(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|s| s.name.as_str()).collect();
        let frame = Frame { width: 430.0, height: 260.0, left: 46.0, right: 12.0, top: 46.0, bottom: 40.0 };
        let frame = frame.grown(names.iter().copied());
        let mut out = frame.open(&self.title);
        frame.legend(&mut out, &names, false);
        if let Some(axes) = self.axes(&frame) {
            self.grid(&mut out, &axes);
            for (i, s) in self.series.iter().enumerate() {
                draw(&mut out, &axes, i, s);
            }
        } else {
            Frame::text(&mut out, frame.x(0.5), frame.y(0.5), "middle", "no values");
        }
        out.push_str("</svg>");
        out
    }

    fn axes<'f>(&self, frame: &'f Frame) -> Option<Axes<'f>> {
        let (mut low, mut high, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY, 0.0f64);
        for s in &self.series {
            let all = s.points.iter().copied().chain(s.band.iter().map(|b| (b.0, b.2)));
            for (x, y) in all.filter(|p| p.0.is_finite() && p.1.is_finite()) {
                (low, high, greatest) = (low.min(x), high.max(x), greatest.max(y));
            }
        }
        let top = self.y_max.unwrap_or(if greatest > 0.0 { greatest * 1.05 } else { 1.0 });
        (low <= high).then_some(Axes { frame, log_x: self.log_x, x: (low, high), top })
    }

    fn grid(&self, out: &mut String, axes: &Axes<'_>) {
        let f = axes.frame;
        for t in ticks(0.0, axes.top) {
            Frame::line(out, (f.x(0.0), axes.y(t)), (f.x(1.0), axes.y(t)), &format!("stroke=\"{GRID}\""));
            Frame::text(out, f.left - 6.0, axes.y(t) + 4.0, "end", &number(t));
        }
        let (low, high) = axes.x;
        let axis = format!("stroke=\"{DIM}\"");
        for t in if self.log_x { log_ticks(low.max(1e-9), high) } else { ticks(low, high) } {
            Frame::line(out, (axes.x(t), f.y(0.0)), (axes.x(t), f.y(0.0) + 4.0), &axis);
            Frame::text(out, axes.x(t), f.y(0.0) + 16.0, "middle", &number(t));
        }
        Frame::line(out, (f.x(0.0), f.y(0.0)), (f.x(1.0), f.y(0.0)), &axis);
        Frame::text(out, f.x(1.0), f.height - 6.0, "end", &self.x);
        Frame::text(out, 4.0, f.height - 6.0, "start", &self.y);
        for (at, word) in self.marks.iter().filter(|(at, _)| (low..=high).contains(at)) {
            let style = format!("stroke=\"{DIM}\" stroke-dasharray=\"3 3\"");
            Frame::line(out, (axes.x(*at), f.y(0.0)), (axes.x(*at), f.y(1.0)), &style);
            let (x, anchor) = if axes.share(*at) > 0.5 { (-4.0, "end") } else { (4.0, "start") };
            Frame::note(out, axes.x(*at) + x, f.y(1.0) + 10.0, anchor, word);
        }
    }
}

fn draw(out: &mut String, axes: &Axes<'_>, i: usize, s: &Series) {
    let band: Vec<(f64, f64, f64)> = s
        .band
        .iter()
        .filter(|b| b.0.is_finite() && b.1.is_finite() && b.2.is_finite())
        .map(|b| (axes.x(b.0), axes.y(b.1), axes.y(b.2)))
        .collect();
    if band.len() > 1 {
        let path = area(&band, s.steps);
        let _ = write!(out, "<path d=\"{path}\" fill=\"{}\" fill-opacity=\"0.18\"/>", colour(i));
    }
    let points: Vec<(f64, f64)> = s
        .points
        .iter()
        .filter(|p| p.0.is_finite() && p.1.is_finite())
        .map(|p| (axes.x(p.0), axes.y(p.1)))
        .collect();
    let mut path = String::new();
    for (x, y) in &points {
        let _ = match (path.is_empty(), s.steps) {
            (true, _) => write!(path, "M{x:.1} {y:.1}"),
            (false, true) => write!(path, "H{x:.1}V{y:.1}"),
            (false, false) => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    // Colours come again after the sixth line; dashes tell the second round from the first.
    let dash = if i >= COLOURS.len() { " stroke-dasharray=\"5 3\"" } else { "" };
    let _ =
        write!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{dash}/>", colour(i));
    if s.dots {
        for (x, y) in points {
            let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>", colour(i));
        }
    }
}

/// The outline of a band: along its upper edge, and back along its lower one.
fn area(band: &[(f64, f64, f64)], steps: bool) -> String {
    let mut path = String::new();
    for (x, _, high) in band {
        let _ = match (path.is_empty(), steps) {
            (true, _) => write!(path, "M{x:.1} {high:.1}"),
            (false, true) => write!(path, "H{x:.1}V{high:.1}"),
            (false, false) => write!(path, "L{x:.1} {high:.1}"),
        };
    }
    for (n, (x, low, _)) in band.iter().enumerate().rev() {
        let _ = if steps && n + 1 < band.len() {
            write!(path, "V{low:.1}H{x:.1}")
        } else {
            write!(path, "L{x:.1} {low:.1}")
        };
    }
    path.push('Z');
    path
}

impl Chart for Lines {
    fn title(&self) -> &str {
        &self.title
    }
    fn svg(&self) -> String {
        Lines::svg(self)
    }
    fn csv(&self) -> String {
        let x = if self.x.is_empty() { "x" } else { &self.x };
        let mut out = String::new();
        csv_line(&mut out, &["series".into(), x.to_owned(), "value".into(), "low".into(), "high".into()]);
        let number = |v: f64| if v.is_finite() { v.to_string() } else { String::new() };
        for s in &self.series {
            for (i, (x, y)) in s.points.iter().enumerate() {
                let band = s.band.get(i).filter(|b| b.0 == *x);
                let edge = |v: Option<f64>| v.map_or(String::new(), number);
                let (low, high) = (edge(band.map(|b| b.1)), edge(band.map(|b| b.2)));
                csv_line(&mut out, &[s.name.clone(), number(*x), number(*y), low, high]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_values_a_chart_says_so() {
        assert!(Lines::default().svg().contains("no values"));
        let nothing = Lines { series: vec![Series::line("a", vec![(f64::NAN, 1.0)])], ..Lines::default() };
        assert!(nothing.svg().contains("no values"));
    }

    #[test]
    fn too_many_points_become_means_with_their_range_behind() {
        let points: Vec<(f64, f64)> = (0..10).map(|i| (f64::from(i), f64::from(i % 2))).collect();
        let s = Series::thinned("a", &points, 5);
        assert_eq!(s.points, [(0.0, 0.5), (2.0, 0.5), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (9.0, 0.5)]);
        assert!(s.band.iter().all(|b| (b.1, b.2) == (0.0, 1.0)));
        assert_eq!(Series::thinned("a", &points, 10), Series::steps("a", points));
    }

    #[test]
    fn a_band_is_outlined_once_around() {
        let band = [(0.0, 9.0, 1.0), (5.0, 8.0, 2.0), (10.0, 8.0, 2.0)];
        assert_eq!(area(&band, true), "M0.0 1.0H5.0V2.0H10.0V2.0L10.0 8.0V8.0H5.0V9.0H0.0Z");
        assert_eq!(area(&band, false), "M0.0 1.0L5.0 2.0L10.0 2.0L10.0 8.0L5.0 8.0L0.0 9.0Z");
    }

    #[test]
    fn the_numbers_of_a_chart_are_its_points() {
        let series = vec![Series {
            band: vec![(1.0, 0.5, 2.5), (2.0, 1.0, 3.0)],
            ..Series::line("a, b", vec![(1.0, 1.5), (2.0, f64::NAN)])
        }];
        let chart = Lines { x: "requests/s".into(), series, ..Lines::default() };
        assert_eq!(
            chart.csv(),
            "series,requests/s,value,low,high\n\"a, b\",1,1.5,0.5,2.5\n\"a, b\",2,,1,3\n"
        );
    }
}
