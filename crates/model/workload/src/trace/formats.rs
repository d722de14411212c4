//! One reader per format.

use super::{Format, Raw, time};
use crate::source::{Lines, Source};
use forebay_base::{Diagnostic, Diagnostics, Position};
use serde_json::Value;

/// Tokens of a block in Mooncake's traces.
pub(super) const MOONCAKE_BLOCK: u32 = 512;
/// Where an access log knows only bytes: what a token of a prompt takes in a body, about.
const BYTES_PER_TOKEN: u64 = 4;

/// Reads a trace one row at a time.
pub(super) struct Reader {
    lines: Lines,
    format: Format,
    columns: Vec<usize>,
}

impl Reader {
    /// Opens a trace and reads its header, if the format has one.
    pub(super) fn open(source: &Source, format: Format) -> Result<Reader, Diagnostics> {
        let unread = |line, e| Diagnostics(vec![unread(line, &e)]);
        let mut lines = Lines::open(source).map_err(|e| unread(0, e))?;
        let wanted: &[&str] = match format {
            Format::Azure => &["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
            Format::BurstGpt => &["Timestamp", "Request tokens", "Response tokens", "Model"],
            Format::Mooncake | Format::AccessLog => &[],
        };
        let mut columns = Vec::new();
        if !wanted.is_empty() {
            let (number, header) = lines.next();
            columns = csv_header(header.map_err(|e| unread(number, e))?.unwrap_or_default(), wanted)?;
        }
        Ok(Reader { lines, format, columns })
    }

    /// The next row with its line, or what is wrong with it; an input that cannot be read has no rows after that.
    pub(super) fn next(&mut self) -> Option<(u32, Result<Raw, Diagnostic>)> {
        let (number, line) = self.lines.next();
        let line = match line {
            Ok(line) => line?,
            Err(e) => return Some((number, Err(unread(number, &e)))),
        };
        let row = match self.format {
            Format::Mooncake => mooncake(line),
            Format::AccessLog => access(line),
            Format::Azure => azure(line, &self.columns),
            Format::BurstGpt => burst_gpt(line, &self.columns),
        };
        let at = Position { line: number, column: 1 };
        Some((number, row.map_err(|(field, message)| Diagnostic::error(at, field, message))))
    }
}

/// What is wrong with an input that cannot be read.
fn unread(line: u32, e: &std::io::Error) -> Diagnostic {
    let at = if line == 0 { Position::default() } else { Position { line, column: 1 } };
    Diagnostic::error(at, "", format!("cannot be read: {e}"))
}

type Wrong = (&'static str, String);

/// Where each wanted column stands.
fn csv_header(line: &str, wanted: &[&str]) -> Result<Vec<usize>, Diagnostics> {
    let names: Vec<&str> = line.split(',').map(str::trim).collect();
    let (mut columns, mut found) = (Vec::new(), Diagnostics::default());
    for name in wanted {
        if let Some(i) = names.iter().position(|n| n == name) {
            columns.push(i);
        } else {
            let at = Position { line: 1, column: 1 };
            found.push(
                Diagnostic::error(at, *name, "the column is missing").nearest_of(name, names.iter().copied()),
            );
        }
    }
    if found.has_errors() { Err(found) } else { Ok(columns) }
}

fn cell<'l>(line: &'l str, column: usize, name: &'static str) -> Result<&'l str, Wrong> {
    line.split(',').nth(column).map(str::trim).ok_or((name, "the cell is missing".to_owned()))
}

fn count(text: &str, name: &'static str) -> Result<u64, Wrong> {
    text.parse().map_err(|_| (name, format!("{text:?} is no count")))
}

fn azure(line: &str, columns: &[usize]) -> Result<Raw, Wrong> {
    let stamp = cell(line, columns[0], "TIMESTAMP")?;
    let at = time::parse(stamp).ok_or_else(|| ("TIMESTAMP", format!("{stamp:?} is no date")))?;
    Ok(Raw {
        at,
        prompt_tokens: count(cell(line, columns[1], "ContextTokens")?, "ContextTokens")?,
        output_tokens: Some(count(cell(line, columns[2], "GeneratedTokens")?, "GeneratedTokens")?),
        ..Raw::default()
    })
}

fn burst_gpt(line: &str, columns: &[usize]) -> Result<Raw, Wrong> {
    let stamp = cell(line, columns[0], "Timestamp")?;
    Ok(Raw {
        at: nanos(stamp, 1e9).ok_or_else(|| ("Timestamp", format!("{stamp:?} is no time in seconds")))?,
        prompt_tokens: count(cell(line, columns[1], "Request tokens")?, "Request tokens")?,
        output_tokens: Some(count(cell(line, columns[2], "Response tokens")?, "Response tokens")?),
        label: cell(line, columns[3], "Model")?.to_owned(),
        blocks: Vec::new(),
    })
}

/// A number times its unit in nanoseconds; whole numbers exactly.
fn nanos(text: &str, unit: f64) -> Option<i128> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(i128::from(whole) * unit as i128);
    }
    text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| (x * unit).round() as i128)
}

fn object(line: &str) -> Result<Value, Wrong> {
    let value: Value = serde_json::from_str(line).map_err(|e| ("", e.to_string()))?;
    if value.is_object() { Ok(value) } else { Err(("", "the line is no object".to_owned())) }
}

fn whole(value: &Value, name: &'static str) -> Result<u64, Wrong> {
    value[name].as_u64().ok_or_else(|| (name, format!("{} is no count", value[name])))
}

fn mooncake(line: &str) -> Result<Raw, Wrong> {
    let v = object(line)?;
    let stamp = &v["timestamp"];
    let at = if stamp.is_number() { nanos(&stamp.to_string(), 1e6) } else { None };
    let blocks = match &v["hash_ids"] {
        Value::Null => Some(Vec::new()),
        Value::Array(ids) => ids.iter().map(Value::as_u64).collect(),
        _ => None,
    };
    let blocks: Vec<u64> = blocks.ok_or_else(|| ("hash_ids", "is no list of ids".to_owned()))?;
    let prompt_tokens = whole(&v, "input_length")?;
    let needed = prompt_tokens.div_ceil(u64::from(MOONCAKE_BLOCK));
    // Formats with the same field names have blocks of 16 tokens; read as 512 they would be nonsense.
    if !blocks.is_empty() && blocks.len() as u64 != needed {
        let message =
            format!("{} ids for {prompt_tokens} tokens, where blocks of 512 make {needed}", blocks.len());
        return Err(("hash_ids", message));
    }
    Ok(Raw {
        at: at.ok_or_else(|| ("timestamp", format!("{stamp} is no time in milliseconds")))?,
        prompt_tokens,
        output_tokens: Some(whole(&v, "output_length")?),
        label: String::new(),
        blocks,
    })
}

fn access(line: &str) -> Result<Raw, Wrong> {
    let v = object(line)?;
    let stamp = v["time"].as_str().unwrap_or_default();
    let known = |name: &str| v[name].as_u64().filter(|&n| n > 0);
    // A request that was refused has no count of its prompt, but a body.
    let prompt =
        known("prompt_tokens").or_else(|| known("request_bytes").map(|b| b.div_ceil(BYTES_PER_TOKEN)));
    let finished = v["end"] == "finished";
    // What is not a generation (a list of models, say) has neither model nor tokens.
    let generated = known("output_tokens").is_some() || v["model"].is_string();
    Ok(Raw {
        at: time::parse(stamp).ok_or_else(|| ("time", format!("{} is no date", v["time"])))?,
        prompt_tokens: if generated { prompt.unwrap_or(0) } else { 0 },
        output_tokens: known("output_tokens").filter(|_| finished),
        label: v["objective"].as_str().unwrap_or_default().to_owned(),
        blocks: Vec::new(),
    })
}
