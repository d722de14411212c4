//! A run while it goes on: a live view on a terminal, otherwise a line every few seconds.

use forebay_load::{View, Watch};
use forebay_study::text;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks of the live view.
const LIVE: Duration = Duration::from_millis(250);
/// Between two lines.
const PLAIN: Duration = Duration::from_secs(5);
/// Lines of the live view.
const LINES: usize = 4;

/// Shows a run from another thread until dropped.
pub(crate) struct Looking {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Looking {
    pub(crate) fn start(watch: &Arc<Watch>, quiet: bool, plain: bool) -> Looking {
        let over = Arc::new(AtomicBool::new(false));
        let live = !plain && std::io::stderr().is_terminal();
        let (ends, watch) = (Arc::clone(&over), Arc::clone(watch));
        let thread = (!quiet).then(|| std::thread::spawn(move || look(&watch, &ends, live)));
        Looking { over, thread }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only shows; what it says is not missed.
            let _ = thread.join();
        }
    }
}

fn look(watch: &Watch, over: &AtomicBool, live: bool) {
    let mut drawn = false;
    while !over.load(Ordering::Acquire) {
        std::thread::park_timeout(if live { LIVE } else { PLAIN });
        let Some(view) = watch.look().filter(|_| !over.load(Ordering::Acquire)) else { continue };
        let text = match (live, drawn) {
            (false, _) => format!("{}\n", line(&view)),
            (true, false) => lines(&view),
            (true, true) => format!("\x1b[{LINES}A{}", lines(&view)),
        };
        drawn = live;
        // A terminal that is gone shows nothing.
        let _ = write!(std::io::stderr(), "{text}");
    }
    if drawn {
        let _ = write!(std::io::stderr(), "\x1b[{LINES}A\x1b[J");
    }
}

fn time(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), |v| text::time(v as f64))
}

fn seconds(view: &View) -> (f64, f64) {
    (view.at.0 as f64 / 1e9, view.arrivals_end.0 as f64 / 1e9)
}

fn line(v: &View) -> String {
    let (at, end) = seconds(v);
    let phase = if at > end { "drain".to_owned() } else { format!("of {end:.0} s") };
    format!(
        "{at:.0} s {phase}: {} due, {} open, {} finished ({}/s, {:.0} tokens/s), {} rejected, {} failed, {} timed out; \
         TTFT p50 {} p99 {}; lag p99 {}",
        v.scheduled,
        v.open,
        v.finished,
        text::three(v.finished_rate),
        v.token_rate,
        v.rejected,
        v.failed,
        v.timed_out,
        time(v.ttft[0]),
        time(v.ttft[1]),
        time(v.lag)
    )
}

/// The live view: [`LINES`] lines, each wiped to its end.
fn lines(v: &View) -> String {
    const WIDTH: f64 = 30.0;
    let (at, end) = seconds(v);
    let full = ((at / end.max(1e-9)).min(1.0) * WIDTH) as usize;
    let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH as usize - full));
    let phase =
        if at > end { format!("{:.0} s of drain", at - end) } else { format!("{at:.0} of {end:.0} s") };
    let mut out = String::new();
    // A String takes everything.
    let _ = writeln!(out, "\r{bar} {phase}\x1b[K");
    let _ = writeln!(
        out,
        "requests   {} due   {} open   {} finished   {} rejected   {} failed   {} timed out\x1b[K",
        v.scheduled, v.open, v.finished, v.rejected, v.failed, v.timed_out
    );
    let _ = writeln!(
        out,
        "last 10 s  {} requests/s   {:.0} tokens/s   send lag p99 {}\x1b[K",
        text::three(v.finished_rate),
        v.token_rate,
        time(v.lag)
    );
    let _ = writeln!(
        out,
        "           TTFT p50 {}  p99 {}   E2E p50 {}  p99 {}\x1b[K",
        time(v.ttft[0]),
        time(v.ttft[1]),
        time(v.e2e[0]),
        time(v.e2e[1])
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Nanos;

    #[test]
    fn a_run_in_lines() {
        let v = View {
            at: Nanos(12_400_000_000),
            arrivals_end: Nanos(60_000_000_000),
            scheduled: 124,
            open: 3,
            finished: 120,
            rejected: 1,
            finished_rate: 9.8,
            token_rate: 1234.4,
            ttft: [Some(45_600_000), Some(120_000_000)],
            lag: Some(80_000),
            ..View::default()
        };
        assert_eq!(
            line(&v),
            "12 s of 60 s: 124 due, 3 open, 120 finished (9.80/s, 1234 tokens/s), 1 rejected, 0 failed, 0 timed out; \
             TTFT p50 45.6 ms p99 120 ms; lag p99 80.0 us"
        );
        assert_eq!(lines(&v).matches('\n').count(), LINES);
        assert!(lines(&v).starts_with("\r[######........................] 12 of 60 s"));
    }
}
