//! A report as one HTML file: readable on a phone, printable, without scripts or other files.

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

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;color:#1b2430;background:#fff;margin:0 auto;padding:1.2rem;max-width:62rem}
h1{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem}h2{font-size:1.25rem;margin:2.2rem 0 .5rem}
h3{font-size:1rem;margin:1.4rem 0 .3rem}p{max-width:48rem}.lead{font-size:1.1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums}
th,td{padding:.22rem .55rem;text-align:right;border-bottom:1px solid #e3e8ee;white-space:nowrap}
th{font-weight:600;border-bottom:2px solid #aab4c0;vertical-align:bottom}
th.l,td.l{text-align:left}td.w{text-align:left;white-space:normal}.good{color:#0a7d3c}.bad{color:#b3261e}.dim{color:#667382}
figure{margin:1rem 0}figcaption{font-size:.84rem;color:#4a5663;max-width:48rem}
svg{max-width:100%;height:auto}details{margin:.6rem 0}summary{cursor:pointer;color:#245}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(19rem,1fr));gap:.6rem 1.2rem}
@media print{body{max-width:none;font-size:11pt}details{display:block}figure,table{break-inside:avoid}}
";

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
    /// A section.
    pub fn section(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(title));
    }
    /// A section in a section.
    pub fn part(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escape(title));
    }
    /// A chart with a sentence under it.
    pub fn figure(&mut self, svg: &str, caption: &str) {
        let caption = escape(caption);
        let _ = writeln!(self.body, "<figure>{svg}<figcaption>{caption}</figcaption></figure>");
    }
    /// Charts side by side where there is room.
    pub fn figures(&mut self, all: &[(String, String)]) {
        self.body.push_str("<div class=\"grid\">\n");
        for (svg, caption) in all {
            self.figure(svg, caption);
        }
        self.body.push_str("</div>\n");
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
             <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body>\n{}</body></html>\n",
            escape(&self.title),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_become_markup() {
        let mut page = Page::new("a < b & \"c\"");
        page.text("<script>");
        page.table(&["x"], &[vec![("<td>".to_owned(), "")]]);
        let html = page.finish();
        assert!(html.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(!html.contains("<script>") && html.contains("&lt;td&gt;"));
    }
}
