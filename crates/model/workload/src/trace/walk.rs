//! One way through the rows of a trace, wherever they are.

use super::stream::Stream;
use super::{Trace, TraceRow};
use forebay_base::{Nanos, Span};
use std::fmt;
use std::sync::Arc;

/// A row as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Its place in the trace, from 0.
    pub index: u64,
    /// When it comes, spread out.
    pub at: Nanos,
    /// What it is.
    pub row: TraceRow,
    /// The ids of its blocks.
    pub blocks: Vec<u64>,
}

/// The rows of a trace in order of time: from memory, or read as they are wanted.
pub struct Walk {
    trace: Arc<Trace>,
    spread: Span,
    next: u64,
    stream: Option<Stream>,
}

impl Walk {
    pub(super) fn new(trace: Arc<Trace>, spread: Span) -> Walk {
        let stream = trace.streamed.as_ref().map(|from| Stream::new(from, spread));
        Walk { trace, spread, next: 0, stream }
    }
}

impl Iterator for Walk {
    type Item = Walked;

    /// # Panics
    /// If a file that is read as its rows are wanted has lost or changed rows since the trace was opened.
    fn next(&mut self) -> Option<Walked> {
        let index = self.next;
        let (at, row, blocks) = if let Some(stream) = &mut self.stream {
            stream.next(self.spread)?
        } else {
            let row = *self.trace.rows().get(index as usize)?;
            let at = spread(self.trace.rows(), index as usize, self.spread);
            (at, row, self.trace.blocks(&row).to_vec())
        };
        self.next += 1;
        Some(Walked { index, at, row, blocks })
    }
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("next", &self.next).finish_non_exhaustive()
    }
}

/// When a row comes: rows with one time are spread evenly up to the next time, over no more than `over`.
fn spread(rows: &[TraceRow], row: usize, over: Span) -> Nanos {
    let at = rows[row].at;
    if over == Span::ZERO {
        return at;
    }
    let first = rows.partition_point(|r| r.at < at);
    let after = rows.partition_point(|r| r.at <= at);
    let room = rows.get(after).map_or(over.0, |r| r.at.since(at).0.min(over.0));
    at + Span((u128::from(room) * (row - first) as u128 / (after - first) as u128) as u64)
}
