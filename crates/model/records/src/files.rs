//! Rows as CSV and as JSON Lines: integers only, the same bytes for the same rows.
//!
//! Columns and keys have the same names; instants are nanoseconds on the clock of the run. What never
//! happened is an empty cell, or a key that is missing. JSON Lines begin with a line that names the
//! format. For compressed files hand in [`crate::Compressed`], and read
//! [`crate::decompressed`].

use crate::live::{Counted, Live, Record};
use crate::row::{End, Row, reason_named};
use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

/// The names of the columns, in order.
pub const COLUMNS: [&str; 18] = [
    "number",
    "class",
    "priority",
    "flow",
    "arrived_ns",
    "dispatched_ns",
    "engine_arrived_ns",
    "scheduled_ns",
    "first_token_ns",
    "finished_ns",
    "end",
    "reason",
    "endpoint",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "recomputed_tokens",
];

/// Columns that follow in files of live runs. Other files need not have them.
pub const LIVE_COLUMNS: [&str; 14] = [
    "attempt",
    "session",
    "sent_ns",
    "first_byte_ns",
    "first_output_ns",
    "closed_ns",
    "asked_prompt_tokens",
    "asked_output_tokens",
    "first_tokens",
    "chunks",
    "longest_gap_ns",
    "counted",
    "status",
    "error",
];

/// The first line of a JSON Lines file.
pub const JSONL_HEADER: &str = "{\"format\":\"forebay-records\",\"version\":1}";

/// A form of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated, with a header.
    Csv,
    /// One JSON object a line.
    JsonLines,
}

/// Writes rows one by one.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    format: Format,
    classes: Vec<String>,
    live: bool,
    line: String,
}

impl<W: Write> Writer<W> {
    /// Writes the header. `classes` are the names of the classes by index; a class without a name is
    /// written as its index.
    pub fn new(out: W, format: Format, classes: &[String]) -> io::Result<Writer<W>> {
        Writer::with(out, format, classes, false)
    }

    /// The same with [`LIVE_COLUMNS`].
    pub fn live(out: W, format: Format, classes: &[String]) -> io::Result<Writer<W>> {
        Writer::with(out, format, classes, true)
    }

    fn with(mut out: W, format: Format, classes: &[String], live: bool) -> io::Result<Writer<W>> {
        match format {
            Format::Csv => writeln!(out, "{}", column_names(live).collect::<Vec<_>>().join(","))?,
            Format::JsonLines => writeln!(out, "{JSONL_HEADER}")?,
        }
        Ok(Writer { out, format, classes: classes.to_vec(), live, line: String::new() })
    }

    /// Writes one row.
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        self.write_record(&Record::from(*row))
    }

    /// Writes one row with what a client knows of it, as far as the file has columns for it.
    pub fn write_record(&mut self, record: &Record) -> io::Result<()> {
        self.line.clear();
        if self.format == Format::JsonLines {
            self.line.push('{');
        }
        for column in column_names(self.live) {
            self.cell(column, record);
        }
        match self.format {
            Format::Csv => self.line.pop(),
            Format::JsonLines => {
                self.line.pop();
                self.line.push('}');
                None
            }
        };
        self.line.push('\n');
        self.out.write_all(self.line.as_bytes())
    }

    /// Flushes, and gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn cell(&mut self, column: &str, record: &Record) {
        let row = &record.row;
        let value = match column {
            "class" => match self.classes.get(usize::from(row.class)) {
                Some(name) => Value::Text(name),
                None => Value::Number(i128::from(row.class)),
            },
            "end" => Value::Text(row.end.label()),
            "reason" if row.end.reason().is_empty() => Value::Absent,
            "reason" => Value::Text(row.end.reason()),
            "counted" => Value::Text(record.live.counted.label()),
            "error" => record.live.error.map_or(Value::Absent, Value::Text),
            live if LIVE_COLUMNS.contains(&live) => {
                live_number(record, live).map_or(Value::Absent, Value::Number)
            }
            number => number_of(row, number).map_or(Value::Absent, Value::Number),
        };
        let line = &mut self.line;
        match self.format {
            Format::Csv => {
                match value {
                    Value::Number(n) => push(line, n),
                    Value::Text(t) => csv_text(line, t),
                    Value::Absent => {}
                }
                line.push(',');
            }
            Format::JsonLines => {
                if matches!(value, Value::Absent) {
                    return;
                }
                let _ = write!(line, "\"{column}\":");
                match value {
                    Value::Number(n) => push(line, n),
                    Value::Text(t) => line.push_str(&serde_json::Value::from(t).to_string()),
                    Value::Absent => {}
                }
                line.push(',');
            }
        }
    }
}

enum Value<'a> {
    Number(i128),
    Text(&'a str),
    Absent,
}

fn push(line: &mut String, n: i128) {
    // A String takes everything.
    let _ = write!(line, "{n}");
}

/// A cell, in quotes where RFC 4180 wants them.
fn csv_text(line: &mut String, text: &str) {
    if text.contains([',', '"', '\n', '\r']) {
        line.push('"');
        line.push_str(&text.replace('"', "\"\""));
        line.push('"');
    } else {
        line.push_str(text);
    }
}

fn number_of(row: &Row, column: &str) -> Option<i128> {
    let at = |t: Option<Nanos>| t.map(|t| i128::from(t.0));
    match column {
        "number" => Some(row.number.into()),
        "priority" => Some(row.priority.into()),
        "flow" => Some(row.flow.into()),
        "arrived_ns" => Some(row.arrived.0.into()),
        "dispatched_ns" => at(row.dispatched),
        "engine_arrived_ns" => at(row.engine_arrived),
        "scheduled_ns" => at(row.scheduled),
        "first_token_ns" => at(row.first_token),
        "finished_ns" => at(row.finished),
        "endpoint" => row.endpoint.map(i128::from),
        "prompt_tokens" => Some(row.prompt_tokens.into()),
        "cached_tokens" => Some(row.cached_tokens.into()),
        "output_tokens" => Some(row.output_tokens.into()),
        "preemptions" => Some(row.preemptions.into()),
        "recomputed_tokens" => Some(row.recomputed_tokens.into()),
        _ => None,
    }
}

fn live_number(record: &Record, column: &str) -> Option<i128> {
    let live = &record.live;
    let at = |t: Option<Nanos>| t.map(|t| i128::from(t.0));
    match column {
        "attempt" => Some(live.attempt.into()),
        "session" => live.session.map(i128::from),
        "sent_ns" => at(live.sent),
        "first_byte_ns" => at(live.first_byte),
        "first_output_ns" => at(live.first_output),
        "closed_ns" => at(live.closed),
        "asked_prompt_tokens" => Some(live.asked_prompt_tokens.into()),
        "asked_output_tokens" => Some(live.asked_output_tokens.into()),
        "first_tokens" => Some(record.row.first_tokens.into()),
        "chunks" => Some(live.chunks.into()),
        "longest_gap_ns" => live.longest_gap.map(|s| i128::from(s.0)),
        "status" => live.status.map(i128::from),
        _ => None,
    }
}

fn column_names(live: bool) -> impl Iterator<Item = &'static str> {
    COLUMNS.into_iter().chain(LIVE_COLUMNS.into_iter().filter(move |_| live))
}

/// Reads rows one by one, in either form; which one shows in the first line.
#[derive(Debug)]
pub struct Reader<R: BufRead> {
    input: R,
    file: String,
    format: Format,
    /// Columns of a CSV file, in its order.
    columns: Vec<String>,
    classes: Vec<String>,
    line: u32,
    text: String,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line. Names of classes get the index that they have in `classes`; new ones are
    /// added to it, see [`Reader::classes`].
    pub fn new(mut input: R, file: &str, classes: &[String]) -> Result<Reader<R>, Diagnostics> {
        let mut text = String::new();
        let fail = |message: String| Diagnostic::error(Position { line: 1, column: 1 }, "", message);
        input.read_line(&mut text).map_err(|e| one(fail(e.to_string()), file))?;
        let first = text.trim_end();
        let (format, columns) = if first == JSONL_HEADER {
            (Format::JsonLines, Vec::new())
        } else if first.starts_with('{') {
            let d = fail("the first line does not name the format".into()).expected(JSONL_HEADER);
            return Err(one(d, file));
        } else {
            (Format::Csv, header(first, file)?)
        };
        let (file, classes) = (file.to_owned(), classes.to_vec());
        Ok(Reader { input, file, format, columns, classes, line: 1, text })
    }

    /// The names of the classes by index, as far as read.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The next row; `None` after the last.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator of results would hide that reading may go on"
    )]
    pub fn next(&mut self) -> Option<Result<Row, Diagnostics>> {
        self.next_record().map(|r| r.map(|r| r.row))
    }

    /// The next row with what a client knows of it; that is nothing in a file without [`LIVE_COLUMNS`].
    pub fn next_record(&mut self) -> Option<Result<Record, Diagnostics>> {
        loop {
            self.text.clear();
            self.line = self.line.saturating_add(1);
            match self.input.read_line(&mut self.text) {
                Ok(0) => return None,
                Ok(_) if self.text.trim().is_empty() => {}
                Ok(_) => return Some(self.row()),
                Err(e) => return Some(Err(self.wrong("", &e.to_string()))),
            }
        }
    }

    fn wrong(&self, field: &str, message: &str) -> Diagnostics {
        one(self.found(field, message), &self.file)
    }

    fn found(&self, field: &str, message: &str) -> Diagnostic {
        Diagnostic::error(Position { line: self.line, column: 1 }, field, message)
    }

    fn row(&mut self) -> Result<Record, Diagnostics> {
        let cells = match self.format {
            Format::Csv => {
                let cells = csv_cells(self.text.trim_end_matches(['\n', '\r']));
                if cells.len() != self.columns.len() {
                    let message = format!("{} cells under {} columns", cells.len(), self.columns.len());
                    return Err(self.wrong("", &message));
                }
                self.columns.iter().cloned().zip(cells).filter(|(_, v)| !v.is_empty()).collect()
            }
            Format::JsonLines => json_cells(&self.text).map_err(|e| self.wrong("", &e))?,
        };
        self.row_of(&cells)
    }

    fn row_of(&mut self, cells: &[(String, String)]) -> Result<Record, Diagnostics> {
        let mut row = Row::arriving(0, 0, Nanos::ZERO);
        let mut live = Live::default();
        let (mut end, mut reason) = (String::new(), String::new());
        for (column, value) in cells {
            match column.as_str() {
                "class" => row.class = self.class(value)?,
                "end" => end.clone_from(value),
                "reason" => reason.clone_from(value),
                "priority" => row.priority = self.number(column, value)?,
                "number" => row.number = self.number(column, value)?,
                "flow" => row.flow = self.number(column, value)?,
                "arrived_ns" => row.arrived = Nanos(self.number(column, value)?),
                "dispatched_ns" => row.dispatched = Some(Nanos(self.number(column, value)?)),
                "engine_arrived_ns" => row.engine_arrived = Some(Nanos(self.number(column, value)?)),
                "scheduled_ns" => row.scheduled = Some(Nanos(self.number(column, value)?)),
                "first_token_ns" => row.first_token = Some(Nanos(self.number(column, value)?)),
                "finished_ns" => row.finished = Some(Nanos(self.number(column, value)?)),
                "endpoint" => row.endpoint = Some(self.number(column, value)?),
                "prompt_tokens" => row.prompt_tokens = self.number(column, value)?,
                "cached_tokens" => row.cached_tokens = self.number(column, value)?,
                "output_tokens" => row.output_tokens = self.number(column, value)?,
                "preemptions" => row.preemptions = self.number(column, value)?,
                "recomputed_tokens" => row.recomputed_tokens = self.number(column, value)?,
                "first_tokens" => row.first_tokens = self.number(column, value)?,
                live_column if LIVE_COLUMNS.contains(&live_column) => {
                    self.live_cell(&mut live, column, value)?;
                }
                _ => {
                    let d = self.found(column, "unknown column").nearest_of(column, column_names(true));
                    return Err(one(d, &self.file));
                }
            }
        }
        row.end = End::named(&end, &reason).ok_or_else(|| {
            let d = self.found("end", &format!("{end:?} is no end"));
            one(d.expected("finished, rejected, timed-out, failed, cancelled or censored"), &self.file)
        })?;
        Ok(Record { row, live })
    }

    fn live_cell(&self, live: &mut Live, column: &str, value: &str) -> Result<(), Diagnostics> {
        match column {
            "attempt" => live.attempt = self.number(column, value)?,
            "session" => live.session = Some(self.number(column, value)?),
            "sent_ns" => live.sent = Some(Nanos(self.number(column, value)?)),
            "first_byte_ns" => live.first_byte = Some(Nanos(self.number(column, value)?)),
            "first_output_ns" => live.first_output = Some(Nanos(self.number(column, value)?)),
            "closed_ns" => live.closed = Some(Nanos(self.number(column, value)?)),
            "asked_prompt_tokens" => live.asked_prompt_tokens = self.number(column, value)?,
            "asked_output_tokens" => live.asked_output_tokens = self.number(column, value)?,
            "chunks" => live.chunks = self.number(column, value)?,
            "longest_gap_ns" => live.longest_gap = Some(Span(self.number(column, value)?)),
            "status" => live.status = Some(self.number(column, value)?),
            "error" => live.error = Some(reason_named(value)),
            _ => {
                live.counted = Counted::named(value).ok_or_else(|| {
                    let d = self.found(column, &format!("{value:?} says not who counted"));
                    one(d.expected("server, estimated or unknown"), &self.file)
                })?;
            }
        }
        Ok(())
    }

    fn number<T: std::str::FromStr>(&self, column: &str, value: &str) -> Result<T, Diagnostics> {
        value.parse().map_err(|_| self.wrong(column, &format!("{value:?} is no number in range")))
    }

    fn class(&mut self, name: &str) -> Result<u16, Diagnostics> {
        let index = self.classes.iter().position(|c| c == name).unwrap_or_else(|| {
            self.classes.push(name.to_owned());
            self.classes.len() - 1
        });
        u16::try_from(index).map_err(|_| self.wrong("class", "more than 65536 classes"))
    }
}

/// The one finding about a file.
fn one(d: Diagnostic, file: &str) -> Diagnostics {
    let mut all = Diagnostics(vec![d]);
    all.finish(file);
    all
}

fn header(line: &str, file: &str) -> Result<Vec<String>, Diagnostics> {
    let columns = csv_cells(line);
    for (i, name) in columns.iter().enumerate() {
        let at = Position { line: 1, column: 1 };
        if columns[..i].contains(name) {
            return Err(one(Diagnostic::error(at, name, "the column is there twice"), file));
        }
        if !column_names(true).any(|c| c == name) {
            let d = Diagnostic::error(at, name, "unknown column").nearest_of(name, column_names(true));
            return Err(one(d, file));
        }
    }
    Ok(columns)
}

/// The cells of one line of CSV; quotes as in RFC 4180, without line breaks inside.
fn csv_cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('"', true) if chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => cells.push(std::mem::take(&mut cell)),
            _ => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

/// Keys with their values as texts, `null` left out.
fn json_cells(line: &str) -> Result<Vec<(String, String)>, String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(line).map_err(|e| e.to_string())?;
    let cell = |(key, value)| match value {
        serde_json::Value::String(text) => Some((key, text)),
        serde_json::Value::Null => None,
        other => Some((key, other.to_string())),
    };
    Ok(object.into_iter().filter_map(cell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(rows: &[Row], format: Format, classes: &[String]) -> String {
        let mut w = Writer::new(Vec::new(), format, classes).unwrap();
        for row in rows {
            w.write(row).unwrap();
        }
        String::from_utf8(w.finish().unwrap()).unwrap()
    }

    fn read(text: &str, classes: &[String]) -> Result<(Vec<Row>, Vec<String>), String> {
        let mut r = Reader::new(text.as_bytes(), "r", classes).map_err(|d| d.to_string())?;
        let mut rows = Vec::new();
        while let Some(row) = r.next() {
            rows.push(row.map_err(|d| d.to_string())?);
        }
        Ok((rows, r.classes().to_vec()))
    }

    fn sample() -> Row {
        Row {
            dispatched: Some(Nanos(7)),
            end: End::Rejected("queue-full"),
            priority: -50,
            prompt_tokens: 100,
            ..Row::arriving(3, 1, Nanos(5))
        }
    }

    #[test]
    fn the_bytes_are_these() {
        let classes = ["critical".to_owned(), "a, \"b\"".to_owned()];
        assert_eq!(
            written(&[sample()], Format::Csv, &classes).lines().nth(1),
            Some("3,\"a, \"\"b\"\"\",-50,0,5,7,,,,,rejected,queue-full,,100,0,0,0,0")
        );
        assert_eq!(
            written(&[sample()], Format::JsonLines, &classes).lines().nth(1),
            Some(
                "{\"number\":3,\"class\":\"a, \\\"b\\\"\",\"priority\":-50,\"flow\":0,\"arrived_ns\":5,\
                 \"dispatched_ns\":7,\"end\":\"rejected\",\"reason\":\"queue-full\",\"prompt_tokens\":100,\
                 \"cached_tokens\":0,\"output_tokens\":0,\"preemptions\":0,\"recomputed_tokens\":0}"
            )
        );
    }

    #[test]
    fn what_is_wrong_says_where() {
        let csv = written(&[sample()], Format::Csv, &[]);
        for (text, message) in [
            (
                csv.replace("arrived_ns", "arived_ns"),
                "error: r:1:1: arived_ns: unknown column; did you mean \"arrived_ns\"?",
            ),
            (
                csv.replace("rejected", "lost"),
                "error: r:2:1: end: \"lost\" is no end; expected finished, rejected, timed-out, failed, cancelled or censored",
            ),
            (csv.replace("-50", "x"), "error: r:2:1: priority: \"x\" is no number in range"),
            (csv.replace("-50,", ""), "error: r:2:1: 17 cells under 18 columns"),
            (csv.replacen("number", "flow", 1), "error: r:1:1: flow: the column is there twice"),
            (
                "{}".into(),
                "error: r:1:1: the first line does not name the format; expected {\"format\":\"forebay-records\",\"version\":1}",
            ),
        ] {
            assert_eq!(read(&text, &[]), Err(message.to_owned()));
        }
    }

    fn rows() -> impl Strategy<Value = Row> {
        let at = || prop::option::of(any::<u64>().prop_map(Nanos));
        let end = prop::sample::select(vec![
            End::Finished,
            End::Rejected("ttl"),
            End::TimedOut,
            End::Failed,
            End::Cancelled,
            End::Censored,
        ]);
        let numbers = (any::<u64>(), 0u16..2, any::<i32>(), any::<[u32; 5]>(), any::<u64>());
        (numbers, [at(), at(), at(), at(), at()], end, prop::option::of(any::<u32>())).prop_map(
            |(n, t, end, endpoint)| Row {
                priority: n.2,
                flow: n.3[0],
                prompt_tokens: n.3[1],
                cached_tokens: n.3[2],
                output_tokens: n.3[3],
                preemptions: n.3[4],
                recomputed_tokens: n.4,
                dispatched: t[0],
                engine_arrived: t[1],
                scheduled: t[2],
                first_token: t[3],
                finished: t[4],
                end,
                endpoint,
                ..Row::arriving(n.0, n.1, Nanos(n.4 / 2))
            },
        )
    }

    #[test]
    fn live_columns_are_read_as_they_are_written() {
        let live = Live {
            attempt: 1,
            session: Some(9),
            sent: Some(Nanos(6)),
            first_byte: Some(Nanos(7)),
            first_output: Some(Nanos(9)),
            closed: Some(Nanos(20)),
            asked_prompt_tokens: 100,
            asked_output_tokens: 3,
            chunks: 2,
            longest_gap: Some(Span(4)),
            counted: Counted::Server,
            status: Some(200),
            error: Some("broken-off"),
        };
        let record = Record { row: Row { first_tokens: 2, ..sample() }, live };
        let bare = Record::from(sample());
        for format in [Format::Csv, Format::JsonLines] {
            let mut w = Writer::live(Vec::new(), format, &["a".into(), "b".into()]).unwrap();
            w.write_record(&record).unwrap();
            w.write(&bare.row).unwrap();
            let bytes = w.finish().unwrap();
            let mut r = Reader::new(bytes.as_slice(), "r", &["a".into(), "b".into()]).unwrap();
            let all: Vec<Record> = std::iter::from_fn(|| r.next_record()).map(Result::unwrap).collect();
            assert_eq!(all, [record, bare], "{}", String::from_utf8_lossy(&bytes));
        }
        let text = "number,end,counted\n1,finished,guessed\n";
        let wrong =
            "error: r:2:1: counted: \"guessed\" says not who counted; expected server, estimated or unknown";
        assert_eq!(read(text, &[]), Err(wrong.to_owned()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read_back(v in prop::collection::vec(rows(), 0..10), csv in any::<bool>()) {
            let format = if csv { Format::Csv } else { Format::JsonLines };
            let classes = ["critical".to_owned(), "b,\"".to_owned()];
            prop_assert_eq!(read(&written(&v, format, &classes), &classes), Ok((v, classes.to_vec())));
        }
    }
}
