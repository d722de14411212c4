//! The reader. It works on borrowed bytes, allocates only for label values with escapes, and passes over lines of
//! other families after looking at their names.

use std::borrow::Cow;

/// One sample of a wanted family.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The sample's name.
    pub name: &'a str,
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value; may be NaN or infinite.
    pub value: f64,
    /// Its time in milliseconds since the epoch, if one is given.
    pub timestamp_ms: Option<i64>,
}

/// What a visit met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// Samples handed over.
    pub samples: usize,
    /// Lines of wanted names that could not be read, and lines whose names are no text.
    pub malformed: usize,
}

/// Hands every sample whose name is wanted to `take`, in the order of the text. Comments, and after the value a
/// timestamp and an exemplar, are understood; a line that cannot be read is counted and passed over.
pub fn visit<'a>(
    text: &'a [u8],
    mut wanted: impl FnMut(&str) -> bool,
    mut take: impl FnMut(Sample<'a>),
) -> Visited {
    let mut visited = Visited::default();
    let mut rest = text;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest[..end].trim_ascii();
        rest = rest.get(end + 1..).unwrap_or(&[]);
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let length = line.iter().position(|b| matches!(b, b'{' | b' ' | b'\t')).unwrap_or(line.len());
        let Ok(name) = std::str::from_utf8(&line[..length]) else {
            visited.malformed += 1;
            continue;
        };
        if !wanted(name) {
            continue;
        }
        if let Some(sample) = sample(name, &line[length..]) {
            visited.samples += 1;
            take(sample);
        } else {
            visited.malformed += 1;
        }
    }
    visited
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b':'
}

fn sample<'a>(name: &'a str, rest: &'a [u8]) -> Option<Sample<'a>> {
    let rest = std::str::from_utf8(rest).ok()?.trim_ascii_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let end = end_of_labels(inside)?;
            (Labels { text: &inside[..end] }, &inside[end + 1..])
        }
        None => (Labels { text: "" }, rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = value(words.next()?)?;
    let timestamp_ms = match words.next() {
        // What follows a `#` is an exemplar.
        None | Some("#") => None,
        Some(word) => Some(word.parse().ok().or_else(|| seconds(word))?),
    };
    Some(Sample { name, labels, value, timestamp_ms })
}

/// OpenMetrics gives times in seconds, with a fraction.
fn seconds(word: &str) -> Option<i64> {
    let seconds: f64 = word.parse().ok()?;
    seconds.is_finite().then_some((seconds * 1e3) as i64)
}

fn value(word: &str) -> Option<f64> {
    match word {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" | "Nan" => Some(f64::NAN),
        // Rust accepts other spellings of infinity that the format does not have.
        _ if word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E')) => {
            word.parse().ok()
        }
        _ => None,
    }
}

/// The index of the closing brace, if everything before it is well-formed labels.
fn end_of_labels(inside: &str) -> Option<usize> {
    let mut labels = LabelIter { rest: inside };
    loop {
        let trimmed = labels.rest.trim_ascii_start();
        if trimmed.starts_with('}') {
            return Some(inside.len() - trimmed.len());
        }
        labels.next_raw()?;
        let after = labels.rest.trim_ascii_start();
        match after.as_bytes().first()? {
            b',' => labels.rest = &after[1..],
            b'}' => labels.rest = after,
            _ => return None,
        }
    }
}

/// The labels of a sample, in the order of the text.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    text: &'a str,
}

impl<'a> Labels<'a> {
    /// The value of a label.
    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

impl<'a> IntoIterator for Labels<'a> {
    type Item = (&'a str, Cow<'a, str>);
    type IntoIter = LabelIter<'a>;

    fn into_iter(self) -> LabelIter<'a> {
        LabelIter { rest: self.text }
    }
}

/// Walks labels; values are unescaped.
#[derive(Clone, Debug)]
pub struct LabelIter<'a> {
    rest: &'a str,
}

impl<'a> LabelIter<'a> {
    /// The next name and its value as it is written, without the quotes.
    fn next_raw(&mut self) -> Option<(&'a str, &'a str)> {
        let rest = self.rest.trim_ascii_start();
        let (name, rest) = rest.split_once('=')?;
        let name = name.trim_ascii_end();
        if name.is_empty() || !name.bytes().all(is_name) {
            return None;
        }
        let rest = rest.trim_ascii_start().strip_prefix('"')?;
        let mut from = 0;
        loop {
            let at = from + memchr::memchr2(b'"', b'\\', &rest.as_bytes()[from..])?;
            if rest.as_bytes()[at] == b'"' {
                self.rest = &rest[at + 1..];
                return Some((name, &rest[..at]));
            }
            // The escaped character; a backslash at the end of the text is followed by none.
            from = at + 1 + rest[at + 1..].chars().next()?.len_utf8();
        }
    }
}

impl<'a> Iterator for LabelIter<'a> {
    type Item = (&'a str, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, raw) = self.next_raw()?;
        self.rest = self.rest.trim_ascii_start().strip_prefix(',').unwrap_or(self.rest);
        Some((name, unescape(raw)))
    }
}

fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some(c @ ('"' | '\\')) => out.push(c),
            // Not an escape of the format: kept as written, as Prometheus' own parsers do.
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Row = (String, Vec<(String, String)>, f64, Option<i64>);

    fn read(text: &str, names: &[&str]) -> (Vec<Row>, Visited) {
        let mut rows = Vec::new();
        let visited = visit(
            text.as_bytes(),
            |name| names.contains(&name),
            |s| {
                let labels = s.labels.into_iter().map(|(n, v)| (n.to_owned(), v.into_owned())).collect();
                rows.push((s.name.to_owned(), labels, s.value, s.timestamp_ms));
            },
        );
        (rows, visited)
    }

    #[test]
    fn wanted_samples_in_every_form() {
        let text = "# HELP a:b text with a:b 1\n# TYPE a:b gauge\na:b{x=\"1\", y = \"q\\\"\\\\\\n}{é\" ,} 2.5e-3 1700\r\n\
                    a:bc 9\nother{broken=\n a:b 4\na:b{} +Inf # {id=\"x\"} 1 2\na:b{z=\"\"} NaN 1.5\na:b -Inf";
        let (rows, visited) = read(text, &["a:b"]);
        assert_eq!(visited, Visited { samples: 5, malformed: 0 });
        let labels = vec![("x".to_owned(), "1".to_owned()), ("y".to_owned(), "q\"\\\n}{é".to_owned())];
        assert_eq!(rows[0], ("a:b".to_owned(), labels, 0.0025, Some(1700)));
        assert_eq!(rows[1], ("a:b".to_owned(), Vec::new(), 4.0, None));
        assert_eq!((rows[2].2, rows[2].3), (f64::INFINITY, None));
        assert!(rows[3].2.is_nan());
        assert_eq!(rows[3].3, Some(1500));
        assert_eq!(rows[4].2, f64::NEG_INFINITY);
    }

    #[test]
    fn malformed_lines_are_counted() {
        for line in [
            "a",
            "a{",
            "a{x}",
            "a{x=1} 1",
            "a{x=\"1} 1",
            "a{x=\"1\\",
            "a{x=\"1\"y=\"2\"} 1",
            "a one",
            "a infinity",
            "a 1 soon",
            "a{=\"1\"} 1",
        ] {
            let (rows, visited) = read(&format!("{line}\na 7\n"), &["a"]);
            assert_eq!((rows.len(), visited.malformed), (1, 1), "{line}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(
            prop_oneof![Just(b"a".to_vec()), Just(b"{".to_vec()), Just(b"}".to_vec()), Just(b"\"".to_vec()),
                Just(b"\\".to_vec()), Just(b"=".to_vec()), Just(b",".to_vec()), Just(b" ".to_vec()),
                Just(b"\n".to_vec()), Just(b"1".to_vec()), Just(b"#".to_vec()), Just(vec![0xff])], 0..60)) {
            let text = text.concat();
            let mut seen = 0;
            let visited = visit(&text, |_| true, |s| { seen += 1; let _ = s.labels.into_iter().count(); });
            prop_assert_eq!(visited.samples, seen);
        }

        #[test]
        fn what_is_written_is_read(values in proptest::collection::vec(("[a-z]{1,5}", ".*", any::<f64>()), 1..10)) {
            let mut w = crate::prom::Writer::default();
            for (label, text, value) in &values {
                w.sample("m", &[(label, text)], *value);
            }
            let (rows, visited) = read(w.text(), &["m"]);
            prop_assert_eq!(visited.malformed, 0);
            for ((label, text, value), row) in values.iter().zip(&rows) {
                prop_assert_eq!(&row.1, &vec![(label.clone(), text.clone())]);
                prop_assert!(row.2 == *value || (row.2.is_nan() && value.is_nan()));
            }
            prop_assert_eq!(rows.len(), values.len());
        }
    }
}
