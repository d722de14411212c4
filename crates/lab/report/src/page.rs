//! A report as one HTML file: readable on a phone, in the dark and on paper, without other files. Its only
//! script saves charts as pictures and opens what is folded before it is printed; nothing is fetched, and
//! without scripts everything can be read.

use crate::chart::Chart;
use crate::frame::{COLOURS, DIM, GRID, INK};
use std::fmt::Write;

/// Text inside HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What charts look like on a dark page: their colours are attributes, which these rules repaint.
fn dark_charts() -> String {
    let mut out = String::from("@media screen and (prefers-color-scheme:dark){\n");
    let pairs = [(INK, "var(--ink)"), (DIM, "var(--dim)"), (GRID, "var(--line)")];
    for (light, dark) in pairs.into_iter().chain(COLOURS) {
        let _ = writeln!(
            out,
            "svg[fill=\"{light}\"],svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}"
        );
    }
    out.push_str("}\n");
    out
}

/// A text as part of a data URL (RFC 2397): what is not plain in a URL or ends an attribute is escaped.
fn in_url(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for b in text.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' | b':' | b'/' => {
                out.push(b as char);
            }
            b => {
                let _ = write!(out, "%{b:02X}");
            }
        }
    }
    out
}

/// A text as the name of a file: lower case letters, figures, and dashes between them.
fn file_name(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    let out = out.trim_end_matches('-');
    if out.is_empty() { "chart".to_owned() } else { out.to_owned() }
}

/// A page under construction. Texts are escaped, but for those named `html` or `svg`.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

/// A cell of a table: its text and, if it has one, its class (`good`, `bad`, `dim`, or `w` for
/// prose).
pub type Cell = (String, &'static str);

impl Page {
    /// An empty one under its headline.
    pub fn new(title: &str) -> Page {
        Page { title: title.to_owned(), body: format!("<h1>{}</h1>\n", escape(title)) }
    }
    /// The sentence under the headline.
    pub fn lead(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"lead\">{}</p>", escape(text));
    }
    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }
    /// A paragraph that nobody should miss.
    pub fn warning(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"bad\"><strong>{}</strong></p>", escape(text));
    }
    /// A section.
    pub fn section(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(title));
    }
    /// A section in a section.
    pub fn part(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escape(title));
    }
    /// The few figures that matter: value, what it is, and the class of the value (`good`, `bad`, `dim` or
    /// none).
    pub fn key_figures(&mut self, all: &[(String, String, &'static str)]) {
        self.body.push_str("<dl class=\"keys\">\n");
        for (value, what, class) in all {
            let _ = writeln!(
                self.body,
                "<div><dt>{}</dt><dd class=\"{class}\">{}</dd></div>",
                escape(what),
                escape(value)
            );
        }
        self.body.push_str("</dl>\n");
    }
    /// A chart with a sentence under it. It can be saved as SVG and PNG.
    pub fn figure(&mut self, svg: &str, caption: &str) {
        self.plot(svg, caption, None);
    }
    /// Charts side by side where there is room.
    pub fn figures(&mut self, all: &[(String, String)]) {
        self.body.push_str("<div class=\"grid\">\n");
        for (svg, caption) in all {
            self.figure(svg, caption);
        }
        self.body.push_str("</div>\n");
    }
    /// A chart with a sentence under it. It can be saved as SVG, PNG, and as the numbers behind it.
    pub fn chart(&mut self, chart: &dyn Chart, caption: &str) {
        self.plot(&chart.svg(), caption, Some(chart));
    }
    /// Charts side by side where there is room, each with its caption.
    pub fn charts(&mut self, all: &[(&dyn Chart, &str)]) {
        self.body.push_str("<div class=\"grid\">\n");
        for (chart, caption) in all {
            self.chart(*chart, caption);
        }
        self.body.push_str("</div>\n");
    }
    fn plot(&mut self, svg: &str, caption: &str, chart: Option<&dyn Chart>) {
        let name = chart.map_or(String::new(), |c| file_name(c.title()));
        let wide = if chart.is_some_and(Chart::is_wide) { " wide" } else { "" };
        let _ = write!(self.body, "<figure data-name=\"{name}\"><div class=\"plot{wide}\">{svg}</div>");
        if !caption.is_empty() {
            let _ = write!(self.body, "<figcaption>{}</figcaption>", escape(caption));
        }
        self.body.push_str("<p class=\"save\">");
        if let Some(chart) = chart {
            let _ = write!(
                self.body,
                "<a download=\"{name}.csv\" href=\"data:text/csv;charset=utf-8,{}\">CSV</a>",
                in_url(&chart.csv())
            );
        }
        self.body.push_str("</p></figure>\n");
    }
    /// A table; the first column is text.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<Cell>]) {
        self.body.push_str("<div class=\"scroll\"><table><thead><tr>");
        for (i, h) in head.iter().enumerate() {
            let class = if i == 0 { " class=\"l\"" } else { "" };
            let _ = write!(self.body, "<th{class}>{}</th>", escape(h));
        }
        self.body.push_str("</tr></thead><tbody>\n");
        for row in rows {
            self.body.push_str("<tr>");
            for (i, (text, class)) in row.iter().enumerate() {
                let class = if i == 0 { "l" } else { class };
                let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
                let _ = write!(self.body, "<td{class}>{}</td>", escape(text));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</tbody></table></div>\n");
    }
    /// Lines as they are, such as a configuration.
    pub fn listing(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(text));
    }
    /// Something to open on demand: `fill` writes what is inside.
    pub fn folded(&mut self, summary: &str, fill: impl FnOnce(&mut Page)) {
        let _ = writeln!(self.body, "<details><summary>{}</summary>", escape(summary));
        fill(self);
        self.body.push_str("</details>\n");
    }
    /// The file.
    pub fn finish(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{}</title>\n<style>\n{STYLE}{}</style></head>\n<body>\n{}<script>\n{SCRIPT}</script></body></html>\n",
            escape(&self.title),
            dark_charts(),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Lines, Series};

    #[test]
    fn texts_cannot_become_markup() {
        let mut page = Page::new("a < b & \"c\"");
        page.text("<script>x");
        page.listing("<script>y");
        page.table(&["x"], &[vec![("<td>".to_owned(), "")]]);
        let html = page.finish();
        assert!(html.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(html.matches("<script>").count() == 1 && html.contains("&lt;td&gt;"));
    }

    #[test]
    fn a_chart_brings_its_numbers_and_nothing_is_fetched() {
        let title = "TTFT, \"critical\" <p99>".to_owned();
        let chart = Lines {
            title,
            x: "s".into(),
            series: vec![Series::line("a", vec![(1.0, 2.5)])],
            ..Lines::default()
        };
        let mut page = Page::new("t");
        page.chart(&chart, "");
        let html = page.finish();
        let link = "<a download=\"ttft-critical-p99.csv\" \
                    href=\"data:text/csv;charset=utf-8,series,s,value,low,high%0Aa,1,2.5,,%0A\">";
        assert!(html.contains(link), "{html}");
        for fetched in ["src=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
            assert!(!html.contains(fetched), "{fetched}");
        }
    }

    #[test]
    fn the_colours_of_charts_are_known_to_dark_pages() {
        let series = (0..6).map(|i| Series::line(i.to_string(), vec![(0.0, 1.0), (1.0, 2.0)])).collect();
        let svg = Lines { series, ..Lines::default() }.svg();
        let rules = dark_charts();
        for part in svg.split("=\"#").skip(1) {
            let colour = &part[..6];
            assert!(rules.contains(colour), "{colour}");
        }
    }
}
