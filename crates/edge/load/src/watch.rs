//! A run as it goes, for whoever looks on, and the way to stop it.

use forebay_base::{Nanos, Span};
use forebay_records::stats::Samples;
use forebay_records::{End, Record};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;

use crate::book::Book;
use parking_lot::Mutex;
use std::sync::Arc;

/// Ends that are remembered for the figures of the last seconds.
const REMEMBERED: usize = 8192;
/// How far back these go.
const BACK: Span = Span::secs(10);

/// What the figures of the last seconds need of a request that ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Nanos,
    /// Of its answer, if it finished.
    tokens: Option<u32>,
    ttft: Option<Span>,
    e2e: Option<Span>,
    lag: Option<Span>,
}

/// Counts, and what ended last.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    pub(crate) scheduled: u64,
    finished: u64,
    rejected: u64,
    failed: u64,
    timed_out: u64,
    last: VecDeque<Ended>,
}

impl Recent {
    pub(crate) fn add(&mut self, record: &Record, now: Nanos) {
        match record.row.end {
            End::Finished => self.finished += 1,
            End::Rejected(_) => self.rejected += 1,
            End::TimedOut => self.timed_out += 1,
            End::Failed | End::Cancelled => self.failed += 1,
            End::Censored => {}
        }
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        let row = &record.row;
        let tokens = row.is_finished().then_some(row.output_tokens);
        self.last.push_back(Ended { at: now, tokens, ttft: row.ttft(), e2e: row.e2e(), lag: record.lag() });
    }
}

/// A run at an instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The instant.
    pub at: Nanos,
    /// When arrivals end.
    pub arrivals_end: Nanos,
    /// Requests that were due so far.
    pub scheduled: u64,
    /// Requests without an end.
    pub open: u64,
    /// By end.
    pub finished: u64,
    /// Refused.
    pub rejected: u64,
    /// Failed.
    pub failed: u64,
    /// Given up by their client.
    pub timed_out: u64,
    /// Over the last seconds: requests that finished, per second.
    pub finished_rate: f64,
    /// The same for output tokens.
    pub token_rate: f64,
    /// Median and 99th percentile of the time to first token over the last seconds, in nanoseconds.
    pub ttft: [Option<u64>; 2],
    /// The same for the whole time.
    pub e2e: [Option<u64>; 2],
    /// 99th percentile of how late requests were sent.
    pub lag: Option<u64>,
}

#[derive(Default)]
struct Inside {
    book: Option<Arc<Mutex<Book>>>,
    arrivals_end: Nanos,
    dispatcher: Option<Thread>,
}

/// A handle on a run, shared between whoever runs it and whoever looks on.
#[derive(Default)]
pub struct Watch {
    inside: Mutex<Inside>,
    now: AtomicU64,
    stop: AtomicBool,
    cut: AtomicBool,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stop", &self.stop).field("cut", &self.cut).finish_non_exhaustive()
    }
}

impl Watch {
    /// For a run that has not begun.
    pub fn new() -> Arc<Watch> {
        Arc::default()
    }

    /// Sends nothing more; what is out may still end, within the drain.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the run now: what is still out is censored.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.stop();
    }

    /// Whether [`Watch::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    pub(crate) fn wake(&self) {
        if let Some(thread) = &self.inside.lock().dispatcher {
            thread.unpark();
        }
    }

    pub(crate) fn begin(&self, book: &Arc<Mutex<Book>>, arrivals_end: Nanos) {
        let mut inside = self.inside.lock();
        inside.book = Some(Arc::clone(book));
        inside.arrivals_end = arrivals_end;
        inside.dispatcher = Some(std::thread::current());
    }

    pub(crate) fn over(&self) {
        *self.inside.lock() = Inside::default();
    }

    pub(crate) fn tick(&self, now: Nanos) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    /// The run as it is now; `None` before it begins and after its end.
    pub fn look(&self) -> Option<View> {
        let (book, arrivals_end) = {
            let inside = self.inside.lock();
            (Arc::clone(inside.book.as_ref()?), inside.arrivals_end)
        };
        let now = Nanos(self.now.load(Ordering::Relaxed));
        let (mut view, last) = {
            let book = book.lock();
            let r = &book.recent;
            let view = View {
                at: now,
                arrivals_end,
                scheduled: r.scheduled,
                open: book.open,
                finished: r.finished,
                rejected: r.rejected,
                failed: r.failed,
                timed_out: r.timed_out,
                ..View::default()
            };
            (view, r.last.iter().rev().take_while(|e| now.since(e.at) < BACK).copied().collect::<Vec<_>>())
        };
        fill(&mut view, &last);
        Some(view)
    }
}

/// Figures of the last seconds.
fn fill(view: &mut View, last: &[Ended]) {
    // With more ends than are remembered, the oldest of them tells how far back they go.
    let full = last.len() >= REMEMBERED;
    let span = last.last().filter(|_| full).map_or(BACK.0.min(view.at.0), |e| view.at.since(e.at).0);
    let seconds = (span as f64 / 1e9).max(1e-3);
    let finished = || last.iter().filter_map(|e| e.tokens);
    view.finished_rate = finished().count() as f64 / seconds;
    view.token_rate = finished().map(u64::from).sum::<u64>() as f64 / seconds;
    let of = |f: fn(&Ended) -> Option<Span>| {
        let mut samples = Samples::new();
        last.iter().filter_map(f).for_each(|s| samples.push(Some(s.0)));
        samples
    };
    let two = |mut s: Samples| [0.5, 0.99].map(|q| s.quantile(q).value);
    view.ttft = two(of(|e| e.ttft));
    view.e2e = two(of(|e| e.e2e));
    view.lag = of(|e| e.lag).quantile(0.99).value;
}
