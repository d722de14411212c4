//! Recorded traces, read as published. A trace lives in memory in 32 bytes a row, and 8 bytes a block
//! where it has block hashes.

mod formats;
mod recorded;
mod time;

pub(crate) use recorded::Person;
pub use recorded::{Recording, RecordingCounts, read_recording};

use forebay_base::{Diagnostics, Nanos, Span};
use std::sync::Arc;

/// A published form of trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Mooncake (FAST'25): JSON Lines with `timestamp` in ms, lengths, and `hash_ids` of 512-token blocks.
    Mooncake,
    /// Azure LLM inference traces: CSV with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
    Azure,
    /// BurstGPT: CSV with `Timestamp` in seconds; labels are the values of `Model`.
    BurstGpt,
    /// Our own access log: JSON Lines; labels are the objectives.
    AccessLog,
}

impl Format {
    /// The names that [`Format::named`] knows.
    pub const NAMES: [&str; 4] = ["mooncake", "azure", "burstgpt", "access-log"];

    /// The format with this name.
    pub fn named(name: &str) -> Option<Format> {
        Some(match name {
            "mooncake" => Format::Mooncake,
            "azure" => Format::Azure,
            "burstgpt" => Format::BurstGpt,
            "access-log" => Format::AccessLog,
            _ => return None,
        })
    }

    /// The format that a first line looks like.
    pub fn guess(text: &str) -> Option<Format> {
        let first = text.lines().next().unwrap_or_default();
        let has = |name: &str| first.contains(name);
        if has("\"hash_ids\"") || (has("\"timestamp\"") && has("\"input_length\"")) {
            Some(Format::Mooncake)
        } else if has("ContextTokens") {
            Some(Format::Azure)
        } else if has("Request tokens") {
            Some(Format::BurstGpt)
        } else if has("\"request_id\"") && has("\"time\"") {
            Some(Format::AccessLog)
        } else {
            None
        }
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// Since the first row.
    pub at: Nanos,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub output_tokens: u32,
    /// Index of the label.
    label: u32,
    /// How many block ids it has, and where they begin.
    blocks: u32,
    first_block: u64,
}

/// A trace in order of time; rows with one time are in the order of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    rows: Vec<TraceRow>,
    blocks: Vec<u64>,
    labels: Vec<String>,
    /// Tokens of a block; 0 without blocks.
    pub block_tokens: u32,
    /// Rows left out because they have no tokens: calls that failed.
    pub skipped: u64,
    /// Rows without a known answer, because they were refused or failed. They take the answer of another
    /// row, so that shed traffic is not missing from the replay.
    pub filled: u64,
    /// What a recording knows beside this.
    people: Option<Arc<recorded::People>>,
}

/// One row as a format gives it.
#[derive(Clone, Debug, Default)]
struct Raw {
    /// Nanoseconds from any origin.
    at: i128,
    prompt_tokens: u64,
    /// `None` if not known.
    output_tokens: Option<u64>,
    label: String,
    blocks: Vec<u64>,
}

impl Trace {
    /// Reads a trace; `file` is for messages.
    pub fn read(text: &str, file: &str, format: Format) -> Result<Trace, Diagnostics> {
        let mut found = Diagnostics::default();
        let mut trace = Trace::default();
        let mut rows = Vec::new();
        let mut first = None;
        formats::read(text, format, &mut found, |raw| {
            if raw.prompt_tokens == 0 || raw.output_tokens == Some(0) {
                trace.skipped += 1;
                return;
            }
            let origin = *first.get_or_insert(raw.at);
            rows.push((raw.at - origin, trace.row(&raw)));
        });
        trace.block_tokens = if format == Format::Mooncake { formats::MOONCAKE_BLOCK } else { 0 };
        if rows.is_empty() && !found.has_errors() {
            let at = forebay_base::Position::default();
            found.push(forebay_base::Diagnostic::error(at, "", "the trace has no requests"));
        }
        found.finish(file);
        if found.has_errors() {
            return Err(found);
        }
        // Access logs are written when requests end; the sort is stable.
        rows.sort_by_key(|(at, _)| *at);
        let origin = rows.first().map_or(0, |(at, _)| *at);
        trace.rows = rows
            .into_iter()
            .map(|(at, row)| TraceRow { at: Nanos(u64::try_from(at - origin).unwrap_or(u64::MAX)), ..row })
            .collect();
        trace.fill();
        Ok(trace)
    }

    fn row(&mut self, raw: &Raw) -> TraceRow {
        let label = self.labels.iter().position(|l| *l == raw.label).unwrap_or_else(|| {
            self.labels.push(raw.label.clone());
            self.labels.len() - 1
        });
        let first_block = self.blocks.len() as u64;
        self.blocks.extend(&raw.blocks);
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        TraceRow {
            at: Nanos::ZERO,
            prompt_tokens: short(raw.prompt_tokens),
            // 0 marks it for `fill`.
            output_tokens: raw.output_tokens.map_or(0, short),
            label: label as u32,
            blocks: raw.blocks.len() as u32,
            first_block,
        }
    }

    /// Gives rows without an answer the answer of the next row of their label that has one, going round.
    fn fill(&mut self) {
        for label in 0..self.labels.len() as u32 {
            let mine = |r: &&TraceRow| r.label == label && r.output_tokens > 0;
            let known: Vec<u32> = self.rows.iter().filter(mine).map(|r| r.output_tokens).collect();
            let (mut seen, mut filled) = (0, 0usize);
            for row in self.rows.iter_mut().filter(|r| r.label == label) {
                if row.output_tokens > 0 {
                    seen += 1;
                    continue;
                }
                // Without any answer to copy, one token is all that is certain.
                row.output_tokens = known.get((seen + filled) % known.len().max(1)).copied().unwrap_or(1);
                filled += 1;
            }
            self.filled += filled as u64;
        }
    }

    /// All requests in order of time.
    pub fn rows(&self) -> &[TraceRow] {
        &self.rows
    }

    /// The label of a row; empty in formats that have none.
    pub fn label(&self, row: &TraceRow) -> &str {
        &self.labels[row.label as usize]
    }

    /// All labels in the order in which they first appear.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The block ids of a row.
    pub fn blocks(&self, row: &TraceRow) -> &[u64] {
        let first = row.first_block as usize;
        &self.blocks[first..first + row.blocks as usize]
    }

    /// Who sent a row, in a recording.
    pub(crate) fn person(&self, row: usize) -> Option<&Person> {
        self.people.as_ref()?.rows.get(row)
    }

    /// Names of the 16-token blocks of a row of a recording, from the front as far as they are known; they may
    /// run on through the answer.
    pub(crate) fn recorded_ids(&self, row: &TraceRow) -> Option<impl Iterator<Item = u64> + '_> {
        Some(self.people.as_ref()?.ids(self.blocks(row)))
    }

    /// From the first to the last request.
    pub fn span(&self) -> Span {
        self.rows.last().map_or(Span::ZERO, |r| r.at.since(Nanos::ZERO))
    }

    /// Mean requests per second; 0 if all came at once.
    pub fn rate(&self) -> f64 {
        let seconds = self.span().as_secs_f64();
        if seconds > 0.0 { (self.rows.len() - 1) as f64 / seconds } else { 0.0 }
    }
}
