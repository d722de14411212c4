//! Recorded traces, read as published. A short one lives in memory, in 32 bytes a row and 8 bytes a block of
//! those that have block hashes. A long one is read once to check and count it, and again as its rows are
//! wanted.

mod formats;
mod recorded;
mod replayed;
mod stream;
mod survey;
mod time;
mod walk;

pub(crate) use recorded::Person;
pub use recorded::{Recording, RecordingCounts, read_recording};
pub use replayed::Sent;
pub use walk::{Walk, Walked};

use crate::source::{Lines, Source};
use forebay_base::{Diagnostics, Nanos, Span};
use std::io;
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

    /// The format that a file looks like.
    ///
    /// # Errors
    /// Those of reading its first line.
    pub fn guess_of(source: &Source) -> io::Result<Option<Format>> {
        let mut lines = Lines::open(source)?;
        let (number, first) = lines.next();
        Ok(first?.filter(|_| number == 1).and_then(Format::guess))
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
    /// Those in memory: all or none.
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
    /// What its rows are read from, if they are not in memory.
    streamed: Option<Arc<stream::Streamed>>,
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
    /// Reads a text; `file` is for messages.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn read(text: &str, file: &str, format: Format) -> Result<Trace, Diagnostics> {
        Trace::open(&Source::from(text), file, format)
    }

    /// Reads a trace; `file` is for messages. One with up to 65 536 rows is kept in memory. Of a longer one the
    /// source is kept, and read again whenever its rows are wanted; a row of it may come up to 131 072 rows late.
    ///
    /// # Errors
    /// What is wrong with any of its rows, or that it has none.
    pub fn open(source: &Source, file: &str, format: Format) -> Result<Trace, Diagnostics> {
        survey::survey(source, file, format, survey::Limits::DEFAULT)
    }

    /// The index of a label.
    fn label_index(&mut self, name: &str) -> u32 {
        let known = self.labels.iter().position(|l| l == name);
        known.unwrap_or_else(|| {
            self.labels.push(name.to_owned());
            self.labels.len() - 1
        }) as u32
    }

    fn hold(&mut self, raw: &Raw, label: u32) -> TraceRow {
        let first_block = self.blocks.len() as u64;
        self.blocks.extend(&raw.blocks);
        TraceRow { first_block, ..raw.row(label) }
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

    /// How many requests it has.
    #[allow(clippy::len_without_is_empty, reason = "a trace has a request, or it is not read")]
    pub fn len(&self) -> u64 {
        self.streamed.as_ref().map_or(self.rows.len() as u64, |s| s.len)
    }

    /// Those requests that are in memory: all or none.
    fn rows(&self) -> &[TraceRow] {
        &self.rows
    }

    /// All requests in order of time, one after the other. Rows with one time are spread evenly up to the next
    /// time, over no more than `spread`.
    pub fn walk(self: &Arc<Self>, spread: Span) -> Walk {
        Walk::new(Arc::clone(self), spread)
    }

    /// When the request with this index comes, since the first; the end of the trace past the last.
    pub fn at(&self, index: u64) -> Nanos {
        match &self.streamed {
            _ if index >= self.len() => Nanos::ZERO + self.span(),
            Some(streamed) => streamed.at(index),
            None => self.rows[index as usize].at,
        }
    }

    /// The label of a row; empty in formats that have none.
    pub fn label(&self, row: &TraceRow) -> &str {
        &self.labels[row.label as usize]
    }

    /// All labels in the order in which they first appear.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The block ids of a row in memory.
    fn blocks(&self, row: &TraceRow) -> &[u64] {
        let first = row.first_block as usize;
        &self.blocks[first..first + row.blocks as usize]
    }

    /// Who sent a row, in a recording, and the names of its 16-token blocks from the front as far as they are
    /// known by its `blocks`; they may run on through the answer.
    pub(crate) fn recorded<'a>(
        &'a self,
        row: u64,
        blocks: &'a [u64],
    ) -> Option<(&'a Person, impl Iterator<Item = u64> + 'a)> {
        let people = self.people.as_ref()?;
        Some((people.rows.get(row as usize)?, people.ids(blocks)))
    }

    /// From the first to the last request.
    pub fn span(&self) -> Span {
        match &self.streamed {
            Some(streamed) => streamed.span,
            None => self.rows.last().map_or(Span::ZERO, |r| r.at.since(Nanos::ZERO)),
        }
    }

    /// Mean requests per second; 0 if all came at once.
    pub fn rate(&self) -> f64 {
        let seconds = self.span().as_secs_f64();
        if seconds > 0.0 { (self.len() - 1) as f64 / seconds } else { 0.0 }
    }
}

impl Raw {
    /// Whether it is a request with an answer.
    fn counts(&self) -> bool {
        self.prompt_tokens > 0 && self.output_tokens != Some(0)
    }

    /// As a row at time 0, without its blocks.
    fn row(&self, label: u32) -> TraceRow {
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        TraceRow {
            at: Nanos::ZERO,
            prompt_tokens: short(self.prompt_tokens),
            // 0 marks one that takes another's.
            output_tokens: self.output_tokens.map_or(0, short),
            label,
            blocks: self.blocks.len() as u32,
            first_block: 0,
        }
    }
}

#[cfg(test)]
mod tests;
