//! The rows of a trace that is not in memory, in order of time.

use super::formats::Reader;
use super::survey::since;
use super::{Format, Raw, TraceRow};
use crate::source::Source;
use forebay_base::{Nanos, Span};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex, PoisonError};

/// Answers of a label that are kept for its rows without one. Where there are more, the file is read again when
/// all have been used.
const MOST_ANSWERS: u64 = 1 << 20;

/// What the first reading has found.
#[derive(Debug)]
pub(super) struct Streamed {
    pub(super) source: Source,
    pub(super) file: String,
    pub(super) format: Format,
    pub(super) labels: BTreeMap<String, u32>,
    pub(super) len: u64,
    pub(super) origin: i128,
    pub(super) span: Span,
    /// The most rows with a later time before any row.
    pub(super) late: usize,
    /// By label, rows whose answer is known.
    pub(super) known: Vec<u64>,
    /// Times that were asked for, by the index of their row: finding one takes a reading up to it.
    pub(super) seen: Mutex<BTreeMap<u64, Nanos>>,
}

impl PartialEq for Streamed {
    /// One source is equal to itself alone: its rows are not compared.
    fn eq(&self, other: &Streamed) -> bool {
        self.source.is(&other.source) && self.format == other.format && self.file == other.file
    }
}

impl Streamed {
    /// When a row comes.
    pub(super) fn at(self: &Arc<Self>, index: u64) -> Nanos {
        if index + 1 >= self.len {
            return Nanos::ZERO + self.span;
        }
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen().get(&index).copied();
        known.unwrap_or_else(|| {
            let mut rows = Sorted::new(Arc::clone(self));
            let at = (0..=index).map_while(|_| rows.next()).last().map_or(Nanos::ZERO, |(row, _)| row.at);
            seen().insert(index, at);
            at
        })
    }
}

/// A row that waits for earlier ones.
#[derive(Debug)]
struct Waiting {
    /// Its time, then its place in the file.
    order: (i128, u64),
    row: TraceRow,
    blocks: Vec<u64>,
    #[cfg(test)]
    _alive: super::tests::Alive,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.order == other.order
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

/// The rows in order of time, those without an answer with 0. It holds one row more than the number by which
/// one comes late: with so many in hand the first of them is the next.
pub(super) struct Sorted {
    from: Arc<Streamed>,
    /// Opened when the first row is wanted.
    reader: Option<Reader>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    read: u64,
}

impl Sorted {
    pub(super) fn new(from: Arc<Streamed>) -> Sorted {
        Sorted { from, reader: None, waiting: BinaryHeap::new(), read: 0 }
    }

    /// The next row and its blocks.
    ///
    /// # Panics
    /// If the file has lost or changed rows since it was first read: whoever opened it promised that it stays.
    pub(super) fn next(&mut self) -> Option<(TraceRow, Vec<u64>)> {
        // What a log has got since it was counted is not read.
        while self.waiting.len() <= self.from.late && self.read < self.from.len {
            let raw = self.raw().unwrap_or_else(|what| {
                panic!("{} has been changed while it was in use: {what}", self.from.file);
            });
            if raw.counts() {
                self.hold(raw);
            }
        }
        let Reverse(Waiting { order, row, blocks, .. }) = self.waiting.pop()?;
        Some((TraceRow { at: since(order.0, self.from.origin), ..row }, blocks))
    }

    fn raw(&mut self) -> Result<Raw, String> {
        let reader = if let Some(reader) = &mut self.reader {
            reader
        } else {
            let opened = Reader::open(&self.from.source, self.from.format);
            self.reader.insert(opened.map_err(|found| found.to_string())?)
        };
        match reader.next() {
            Some((_, Ok(raw))) => Ok(raw),
            Some((_, Err(found))) => Err(found.to_string()),
            None => Err(format!("it had {} requests and has {}", self.from.len, self.read)),
        }
    }

    fn hold(&mut self, raw: Raw) {
        // A label that was not there is found as a change: no row has it.
        let label = self.from.labels.get(&raw.label).copied().unwrap_or_else(|| {
            panic!("{} has been changed while it was in use: {:?} is new", self.from.file, raw.label)
        });
        let row = raw.row(label);
        let order = (raw.at, self.read);
        self.read += 1;
        self.waiting.push(Reverse(Waiting {
            order,
            row,
            blocks: raw.blocks,
            #[cfg(test)]
            _alive: super::tests::Alive::new(),
        }));
    }
}

/// Gives rows of a label without an answer the answer of the next row that has one, going round: as
/// [`super::Trace::fill`] does with rows in memory.
#[derive(Default)]
struct Lender {
    /// Rows of the label so far: the place of the answer that is next, before going round.
    place: u64,
    /// Its own reading of the file, ahead of the rows.
    rows: Option<Sorted>,
    /// Answers it has come by in that.
    passed: u64,
    kept: Vec<u32>,
}

impl Lender {
    fn lend(&mut self, from: &Arc<Streamed>, label: u32) -> u32 {
        let known = from.known[label as usize];
        if known == 0 {
            // Without any answer to copy, one token is all that is certain.
            return 1;
        }
        let wanted = self.place % known;
        if let Some(answer) = self.kept.get(wanted as usize) {
            return *answer;
        }
        if wanted < self.passed {
            (self.rows, self.passed) = (None, 0);
        }
        let rows = self.rows.get_or_insert_with(|| Sorted::new(Arc::clone(from)));
        let mut answer = 1;
        while self.passed <= wanted {
            let Some((row, _)) = rows.next() else { break };
            if row.label == label && row.output_tokens > 0 {
                answer = row.output_tokens;
                self.passed += 1;
                if known <= MOST_ANSWERS {
                    self.kept.push(answer);
                }
            }
        }
        answer
    }
}

/// Groups of rows with one time, told ahead of the rows.
struct Scout {
    rows: Sorted,
    /// The time of the group after the present one.
    next: Option<Nanos>,
    /// Rows of the present group, and how many of them have come.
    group: (u64, u64),
}

impl Scout {
    fn new(from: &Arc<Streamed>) -> Scout {
        let mut rows = Sorted::new(Arc::clone(from));
        let next = rows.next().map(|(row, _)| row.at);
        Scout { rows, next, group: (0, 0) }
    }

    /// When the next row, whose time is `at`, comes.
    fn spread(&mut self, at: Nanos, over: Span) -> Nanos {
        if self.group.0 == self.group.1 {
            self.group = (1, 0);
            loop {
                self.next = self.rows.next().map(|(row, _)| row.at);
                if self.next != Some(at) {
                    break;
                }
                self.group.0 += 1;
            }
        }
        let room = self.next.map_or(over.0, |next| next.since(at).0.min(over.0));
        let (rows, before) = self.group;
        self.group.1 += 1;
        at + Span((u128::from(room) * u128::from(before) / u128::from(rows)) as u64)
    }
}

/// The rows as they come.
pub(super) struct Stream {
    from: Arc<Streamed>,
    rows: Sorted,
    lenders: Vec<Lender>,
    scout: Option<Scout>,
}

impl Stream {
    pub(super) fn new(from: &Arc<Streamed>, spread: Span) -> Stream {
        Stream {
            from: Arc::clone(from),
            rows: Sorted::new(Arc::clone(from)),
            lenders: from.known.iter().map(|_| Lender::default()).collect(),
            scout: (spread > Span::ZERO).then(|| Scout::new(from)),
        }
    }

    /// When the next row comes, the row, and its blocks.
    pub(super) fn next(&mut self, spread: Span) -> Option<(Nanos, TraceRow, Vec<u64>)> {
        let (mut row, blocks) = self.rows.next()?;
        let at = self.scout.as_mut().map_or(row.at, |scout| scout.spread(row.at, spread));
        let lender = &mut self.lenders[row.label as usize];
        if row.output_tokens == 0 {
            row.output_tokens = lender.lend(&self.from, row.label);
        }
        lender.place += 1;
        Some((at, row, blocks))
    }
}
