//! The first reading of a trace: everything is checked and counted, and a short trace is kept.

use super::formats::{MOONCAKE_BLOCK, Reader};
use super::stream::Streamed;
use super::{Format, Raw, Trace, TraceRow};
use crate::source::Source;
use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// After so many mistakes the rest is not worth reading.
const MOST_FINDINGS: usize = 20;

/// What a trace may take of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Rows up to which it is kept.
    pub(super) rows: usize,
    /// Block ids up to which it is kept.
    pub(super) blocks: usize,
    /// By how many rows one may come late in a trace that is not kept. Whoever holds fewer rows with a later
    /// time than this can put them in order.
    pub(super) late: usize,
}

impl Limits {
    /// A few megabytes each.
    pub(super) const DEFAULT: Limits = Limits { rows: 1 << 16, blocks: 1 << 20, late: 1 << 17 };
}

/// What is known after some rows.
struct Survey {
    limits: Limits,
    trace: Trace,
    /// The rows while there are few.
    rows: Vec<(i128, TraceRow)>,
    spilled: bool,
    len: u64,
    /// The first and the last instant.
    ends: Option<(i128, i128)>,
    /// By label, rows whose answer is known, and rows whose answer is not.
    known: Vec<u64>,
    unknown: u64,
    order: Order,
}

/// How far rows are from the order of their times.
struct Order {
    /// The latest times of all rows so far, ascending.
    latest: VecDeque<i128>,
    most: usize,
    /// The greatest time that is no longer among them.
    floor: Option<i128>,
    /// The most rows with a later time before any row.
    late: usize,
}

impl Order {
    /// Takes note of a row. False if it comes later than `most` rows whose time is after its own.
    fn note(&mut self, at: i128) -> bool {
        if self.floor.is_some_and(|floor| at < floor) {
            return false;
        }
        let place = self.latest.partition_point(|t| *t <= at);
        self.late = self.late.max(self.latest.len() - place);
        self.latest.insert(place, at);
        if self.latest.len() > self.most {
            self.floor = self.latest.pop_front();
        }
        true
    }
}

pub(super) fn survey(
    source: &Source,
    file: &str,
    format: Format,
    limits: Limits,
) -> Result<Trace, Diagnostics> {
    let mut survey = Survey {
        limits,
        trace: Trace::default(),
        rows: Vec::new(),
        spilled: false,
        len: 0,
        ends: None,
        known: Vec::new(),
        unknown: 0,
        order: Order { latest: VecDeque::new(), most: limits.late, floor: None, late: 0 },
    };
    let mut found = match Reader::open(source, format) {
        Ok(rows) => survey.read(rows),
        Err(found) => found,
    };
    if survey.len == 0 && !found.has_errors() {
        found.push(Diagnostic::error(Position::default(), "", "the trace has no requests"));
    }
    found.finish(file);
    if found.has_errors() {
        return Err(found);
    }
    Ok(survey.end(source, file, format))
}

impl Survey {
    fn read(&mut self, mut rows: Reader) -> Diagnostics {
        let mut found = Diagnostics::default();
        while let Some((line, row)) = rows.next() {
            match row {
                Ok(raw) if !raw.counts() => self.trace.skipped += 1,
                Ok(raw) => self.note(&raw, line, &mut found),
                Err(d) => found.push(d),
            }
            if found.0.len() >= MOST_FINDINGS {
                break;
            }
        }
        found
    }

    fn note(&mut self, raw: &Raw, line: u32, found: &mut Diagnostics) {
        if !self.order.note(raw.at) {
            let message = format!("more than {} rows with a later time stand before it", self.limits.late);
            let d = Diagnostic::error(Position { line, column: 1 }, "", message);
            found.push(d.expected("a long trace that is sorted by time"));
            return;
        }
        self.len += 1;
        let (first, last) = self.ends.unwrap_or((raw.at, raw.at));
        self.ends = Some((first.min(raw.at), last.max(raw.at)));
        let label = self.trace.label_index(&raw.label);
        self.known.resize(self.trace.labels.len(), 0);
        match raw.output_tokens {
            Some(_) => self.known[label as usize] += 1,
            None => self.unknown += 1,
        }
        if self.spilled {
            return;
        }
        let row = self.trace.hold(raw, label);
        self.rows.push((raw.at, row));
        if self.rows.len() > self.limits.rows || self.trace.blocks.len() > self.limits.blocks {
            self.spilled = true;
            (self.rows, self.trace.blocks) = (Vec::new(), Vec::new());
        }
    }

    fn end(mut self, source: &Source, file: &str, format: Format) -> Trace {
        let mut trace = self.trace;
        trace.block_tokens = if format == Format::Mooncake { MOONCAKE_BLOCK } else { 0 };
        let (first, last) = self.ends.unwrap_or_default();
        if self.spilled {
            trace.filled = self.unknown;
            trace.streamed = Some(Arc::new(Streamed {
                source: source.clone(),
                file: file.to_owned(),
                format,
                labels: trace.labels.iter().enumerate().map(|(i, l)| (l.clone(), i as u32)).collect(),
                len: self.len,
                origin: first,
                span: Span(since(last, first).0),
                late: self.order.late,
                known: self.known,
                seen: Mutex::default(),
            }));
            return trace;
        }
        // Access logs are written when requests end; the sort is stable.
        self.rows.sort_by_key(|(at, _)| *at);
        let rows = self.rows.into_iter();
        trace.rows = rows.map(|(at, row)| TraceRow { at: since(at, first), ..row }).collect();
        trace.fill();
        trace
    }
}

/// Time since the first row.
pub(super) fn since(at: i128, origin: i128) -> Nanos {
    Nanos(u64::try_from(at - origin).unwrap_or(u64::MAX))
}
