//! What is wrong with an input: file, line, column, field, what was found, what was expected, and the
//! nearest valid name. Readers collect all of them before they give up.

use std::fmt;

/// A place in a text: line and column, both from 1; column counts characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1; 0 if unknown.
    pub line: u32,
    /// Column in characters, from 1; 0 if unknown.
    pub column: u32,
}

/// Whether the input can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The input is refused.
    Error,
    /// The input is used; the reader should know.
    Warning,
}

/// One finding about an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether the input can still be used.
    pub severity: Severity,
    /// File name as given by the user; empty for text without one.
    pub file: String,
    /// Where in the file.
    pub at: Position,
    /// Field path such as `flowControl.priorityBands[1].priority`; empty for the whole document.
    pub path: String,
    /// One sentence without a full stop: what is wrong, with the value found.
    pub message: String,
    /// What would be right here; empty if the message says it all.
    pub expected: String,
    /// The nearest valid name, if one is near.
    pub nearest: Option<String>,
}

impl Diagnostic {
    /// An error at a place; add the rest with the builder methods.
    pub fn error(at: Position, path: impl Into<String>, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: String::new(),
            at,
            path: path.into(),
            message: message.into(),
            expected: String::new(),
            nearest: None,
        }
    }

    /// The same as a warning.
    pub fn warning(at: Position, path: impl Into<String>, message: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(at, path, message) }
    }

    /// Says what would be right.
    #[must_use]
    pub fn expected(mut self, what: impl Into<String>) -> Diagnostic {
        self.expected = what.into();
        self
    }

    /// Adds the nearest of the valid names, if one is near enough to be a slip.
    #[must_use]
    pub fn nearest_of<'a>(mut self, found: &str, valid: impl IntoIterator<Item = &'a str>) -> Diagnostic {
        self.nearest = nearest(found, valid).map(str::to_owned);
        self
    }
}

/// `error: file:line:column: path: message; expected …; did you mean "…"?`
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
        }
        if self.at.line > 0 {
            write!(f, "{}:{}:", self.at.line, self.at.column)?;
        }
        if !self.file.is_empty() || self.at.line > 0 {
            f.write_str(" ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        if let Some(name) = &self.nearest {
            write!(f, "; did you mean \"{name}\"?")?;
        }
        Ok(())
    }
}

/// All findings about one input, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Adds one.
    pub fn push(&mut self, d: Diagnostic) {
        self.0.push(d);
    }
    /// Whether any of them refuses the input.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error)
    }
    /// Names the file in each finding that has none, and sorts by place.
    pub fn finish(&mut self, file: &str) {
        for d in &mut self.0 {
            if d.file.is_empty() {
                file.clone_into(&mut d.file);
            }
        }
        self.0.sort_by(|a, b| (&a.file, a.at).cmp(&(&b.file, b.at)));
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            d.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// The valid name nearest to `found`, if it is near enough to be a slip: at most a third of the longer
/// name in single-character edits (insertion, deletion, substitution, swap of neighbours), ignoring
/// case. Ties go to the first in the list.
pub fn nearest<'a>(found: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = found.to_lowercase().chars().collect();
    let mut best: Option<(usize, &'a str)> = None;
    for name in valid {
        let candidate: Vec<char> = name.to_lowercase().chars().collect();
        let limit = (wanted.len().max(candidate.len()) / 3).max(1);
        let d = distance(&wanted, &candidate);
        if d <= limit && best.is_none_or(|(b, _)| d < b) {
            best = Some((d, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Damerau-Levenshtein distance, restricted form (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let width = b.len() + 1;
    let mut d = vec![0usize; (a.len() + 1) * width];
    for i in 0..=a.len() {
        d[i * width] = i;
    }
    for (j, cell) in d.iter_mut().enumerate().take(width) {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (d[(i - 1) * width + j] + 1)
                .min(d[i * width + j - 1] + 1)
                .min(d[(i - 1) * width + j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(d[(i - 2) * width + j - 2] + 1);
            }
            d[i * width + j] = best;
        }
    }
    d[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_name_and_strangers_do_not() {
        let names = ["queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer"];
        assert_eq!(nearest("queue-scoer", names), Some("queue-scorer"));
        assert_eq!(nearest("Queue-Scorer", names), Some("queue-scorer"));
        assert_eq!(nearest("prefixcache-scorer", names), Some("prefix-cache-scorer"));
        assert_eq!(nearest("bananas", names), None);
        assert_eq!(nearest("", names), None);
    }

    #[test]
    fn a_finding_reads_as_one_line() {
        let mut all = Diagnostics::default();
        all.push(
            Diagnostic::error(Position { line: 3, column: 5 }, "flowControl.maxByte", "unknown field")
                .expected("one of maxBytes, maxRequests")
                .nearest_of("maxByte", ["maxBytes", "maxRequests"]),
        );
        all.finish("a.yaml");
        assert_eq!(
            all.to_string(),
            "error: a.yaml:3:5: flowControl.maxByte: unknown field; expected one of maxBytes, maxRequests; \
             did you mean \"maxBytes\"?"
        );
        assert!(all.has_errors());
    }
}
