//! The highest rate that a pool can keep up with.

use crate::Setup;
use forebay_base::{Nanos, Span};
use forebay_records::End;
use forebay_records::stats::{Load, Window, backlog_of};
use forebay_sim::{Cluster, Options};
use forebay_workload::Workload;
use std::sync::Arc;

/// How a capacity is searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Arrivals before the backlog is watched, so that the pool is warm.
    pub warmup: Span,
    /// How long the backlog is watched.
    pub window: Span,
    /// The search ends when the interval is this share of its upper end.
    pub precision: f64,
    /// Of the arrivals and everything else.
    pub seed: u64,
}

impl Search {
    /// Four simulated hours after half an hour of warm-up, to 1 %.
    pub const FULL: Search =
        Search { warmup: Span::secs(1_800), window: Span::secs(14_400), precision: 0.01, seed: 1 };
    /// For sweeps and as a first bracket: one hour after ten minutes, to 3 %.
    pub const QUICK: Search =
        Search { warmup: Span::secs(600), window: Span::secs(3_600), precision: 0.03, seed: 1 };
}

/// The highest rate found that the pool keeps up with, in requests per second, to the precision of the
/// search, which starts at `guess` and ends a thousand times above or below it.
pub fn capacity(
    plan: &Arc<forebay_kernel::Plan>,
    cluster: &Arc<Cluster>,
    workload: &Workload,
    guess: f64,
    search: Search,
) -> f64 {
    let holds = |rate: f64| keeps_up(plan, cluster, &workload.with_rate(rate), search);
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let mut rate = guess;
    while high.is_infinite() || low == 0.0 {
        if holds(rate) {
            low = rate;
            rate *= 1.3;
        } else {
            high = rate;
            rate /= 1.3;
        }
        if rate > 1_000.0 * guess || rate < guess / 1_000.0 {
            return low;
        }
    }
    while high - low > search.precision * high {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Requests that may be refused or lost by a pool that keeps up: more, and the queue's bounds hide its growth.
const LOST: f64 = 0.001;

/// Whether the backlog does not grow while requests arrive, and nothing to speak of is refused.
fn keeps_up(
    plan: &Arc<forebay_kernel::Plan>,
    cluster: &Arc<Cluster>,
    workload: &Workload,
    search: Search,
) -> bool {
    let mut workload = workload.clone();
    workload.mode.warmup = search.warmup;
    workload.mode.window = search.window;
    workload.mode.drain = Span::ZERO;
    let setup = Setup { plan: Arc::clone(plan), cluster: Arc::clone(cluster), workload };
    let run = setup.run(search.seed, Options::new(0));
    let end = Nanos::ZERO + search.warmup + search.window;
    let backlog = backlog_of(&run.rows, Window::new(Nanos::ZERO + search.warmup, end));
    let lost = run.rows.iter().filter(|r| !matches!(r.end, End::Finished | End::Censored)).count();
    backlog.load() != Load::Overloaded && lost as f64 <= LOST * run.rows.len() as f64
}
