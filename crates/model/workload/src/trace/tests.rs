//! Rows that are read as they are wanted are those that would be in memory.

use super::survey::{Limits, survey};
use super::{Format, Trace, Walked};
use crate::source::Source;
use forebay_base::{Nanos, Span};
use proptest::prelude::*;
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, BufReader};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static ALIVE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Counts the rows of this thread that are in hand, and the most there have been.
#[derive(Debug)]
pub(super) struct Alive;

impl Alive {
    pub(super) fn new() -> Alive {
        let (now, most) = ALIVE.get();
        ALIVE.set((now + 1, most.max(now + 1)));
        Alive
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let (now, most) = ALIVE.get();
        ALIVE.set((now - 1, most));
    }
}

const STREAM: Limits = Limits { rows: 0, blocks: 0, late: 1000 };

fn open(text: &str, format: Format, limits: Limits) -> Arc<Trace> {
    let trace = survey(&Source::from(text), "t", format, limits);
    Arc::new(trace.unwrap_or_else(|found| panic!("{found}")))
}

/// A log: seconds of arrival in the order of its lines, the objective, and the answer if it is known.
fn log(rows: &[(u32, u8, Option<u32>)]) -> String {
    let mut text = String::new();
    for (at, label, output) in rows {
        let (end, output) =
            output.map_or(("refused", String::new()), |n| ("finished", format!(",\"output_tokens\":{n}")));
        let _ = writeln!(
            text,
            "{{\"time\":\"2026-12-01T{:02}:{:02}:{:02}Z\",\"request_id\":\"r\",\"model\":\"m\",\
             \"objective\":\"o{label}\",\"end\":\"{end}\",\"prompt_tokens\":{}{output}}}",
            at / 3600,
            at / 60 % 60,
            at % 60,
            at + 1,
        );
    }
    text
}

/// All rows with their labels.
fn rows(trace: &Arc<Trace>, spread: Span) -> Vec<(Nanos, Nanos, u32, u32, String, Vec<u64>)> {
    let row = |(i, w): (usize, Walked)| {
        assert_eq!(w.index, i as u64);
        let label = trace.label(&w.row).to_owned();
        (w.at, w.row.at, w.row.prompt_tokens, w.row.output_tokens, label, w.blocks)
    };
    trace.walk(spread).enumerate().map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_trace_is_the_same_from_memory_and_from_its_file(
        made in prop::collection::vec((0u32..300, 0u8..3, prop::option::of(1u32..1000)), 1..60),
        spread in prop::sample::select(vec![0, 1, 700, 5000]),
    ) {
        let text = log(&made);
        let held = open(&text, Format::AccessLog, Limits::DEFAULT);
        let streamed = open(&text, Format::AccessLog, STREAM);
        prop_assert!(held.streamed.is_none() && streamed.streamed.is_some() && streamed.rows.is_empty());
        for spread in [Span::ZERO, Span::millis(spread)] {
            prop_assert_eq!(rows(&held, spread), rows(&streamed, spread));
        }
        let facts = |t: &Trace| (t.len(), t.span(), t.rate().to_bits(), t.filled, t.skipped, t.labels.clone());
        prop_assert_eq!(facts(&held), facts(&streamed));
        for i in (0..=held.len()).step_by(7) {
            // Twice, since the second answer is remembered.
            prop_assert_eq!((held.at(i), held.at(i)), (streamed.at(i), streamed.at(i)));
        }
    }
}

#[test]
fn blocks_are_read_with_their_rows() {
    let text = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3000, "input_length": 0, "output_length": 5, "hash_ids": []}
{"timestamp": 2000, "input_length": 40, "output_length": 2, "hash_ids": [11]}"#;
    // One row would fit, but not its two blocks.
    let limits = Limits { rows: 10, blocks: 1, late: 1 };
    let (held, streamed) =
        (open(text, Format::Mooncake, Limits::DEFAULT), open(text, Format::Mooncake, limits));
    assert!(streamed.streamed.is_some());
    assert_eq!((streamed.block_tokens, streamed.skipped, streamed.len()), (512, 1, 2));
    assert_eq!(rows(&held, Span::ZERO), rows(&streamed, Span::ZERO));
    assert_eq!(rows(&streamed, Span::ZERO)[0].5, [7, 8]);
}

/// Lines in which each row comes as many rows late as its place in a group of `late + 1` says.
fn reversed_groups(n: u32, late: u32) -> String {
    let group = late + 1;
    let at = |i: u32| i / group * group + (late - i % group);
    let all: Vec<_> = (0..n).map(|i| (at(i), 0, (i % 4 != 0).then_some(i + 1))).collect();
    log(&all)
}

#[test]
fn no_more_rows_are_held_than_one_comes_late_by() {
    for (n, late) in [(500, 0), (5_000, 0), (1_000, 4), (5_000, 4), (5_000, 99)] {
        let trace = open(&reversed_groups(n, late), Format::AccessLog, STREAM);
        assert_eq!(trace.streamed.as_ref().unwrap().late, late as usize);
        ALIVE.set((0, 0));
        assert_eq!(trace.walk(Span::ZERO).count(), n as usize);
        // The rows, and those read ahead of them for their answers.
        assert_eq!(ALIVE.get(), (0, 2 * (late as usize + 1) - 1), "{n} rows, {late} late");
    }
    let trace = open(&reversed_groups(5_000, 4), Format::AccessLog, STREAM);
    ALIVE.set((0, 0));
    assert_eq!(trace.walk(Span::millis(1)).count(), 5_000);
    assert!(ALIVE.get().1 <= 3 * 5, "and those read ahead for the number of a time: {:?}", ALIVE.get());
}

#[test]
fn a_row_that_comes_too_late_is_named_by_its_line() {
    let at = [5, 1, 6, 7, 8, 4];
    let text = log(&at.map(|at| (at, 0, Some(1))));
    let read = |late| survey(&Source::from(text.as_str()), "t", Format::AccessLog, Limits { late, ..STREAM });
    assert_eq!(
        read(3).unwrap_err().to_string(),
        "error: t:6:1: more than 3 rows with a later time stand before it; expected a long trace that is sorted by \
         time"
    );
    let trace = Arc::new(read(4).unwrap());
    let seen: Vec<u64> = trace.walk(Span::ZERO).map(|w| w.at.0 / 1_000_000_000).collect();
    assert_eq!(seen, [0, 3, 4, 5, 6, 7]);
}

#[test]
fn a_log_may_grow_but_not_shrink() {
    let all = log(&[(0, 0, Some(1)), (1, 0, Some(2)), (2, 1, Some(3))]);
    let at_line = |n: usize| all.match_indices('\n').nth(n - 1).map_or(0, |(i, _)| i + 1);
    let (lines, text) = (Arc::new(AtomicU64::new(2)), all.clone());
    let ends: Vec<usize> = (0..=3).map(|n| if n == 0 { 0 } else { at_line(n) }).collect();
    let seen = Arc::clone(&lines);
    let source = Source::new(move || {
        let end = ends[seen.load(Ordering::Relaxed) as usize];
        Ok(Box::new(io::Cursor::new(text.as_bytes()[..end].to_vec())))
    });
    let trace = Arc::new(survey(&source, "t", Format::AccessLog, STREAM).unwrap());
    lines.store(3, Ordering::Relaxed);
    assert_eq!(rows(&trace, Span::ZERO).len(), 2, "what has been checked");
    lines.store(1, Ordering::Relaxed);
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| rows(&trace, Span::ZERO))).unwrap_err();
    assert_eq!(
        panic.downcast_ref::<String>().unwrap(),
        "t has been changed while it was in use: it had 2 requests and has 1"
    );
}

#[test]
fn a_file_that_breaks_off_is_named_once() {
    struct Broken;
    impl io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let source = Source::new(|| {
        let good = io::Cursor::new("TIMESTAMP,ContextTokens,GeneratedTokens\n2020-01-01 00:00:00,10,20\n");
        Ok(Box::new(BufReader::new(io::Read::chain(good, Broken))))
    });
    let found = Trace::open(&source, "t", Format::Azure).unwrap_err().to_string();
    assert_eq!(found, "error: t:3:1: cannot be read: the disk is gone");
    let none = Source::new(|| Err(io::Error::other("no such disk")));
    let found = Trace::open(&none, "t", Format::Azure).unwrap_err().to_string();
    assert_eq!(found, "error: t: cannot be read: no such disk");
    assert_eq!(Format::guess_of(&none).unwrap_err().to_string(), "no such disk");
}
