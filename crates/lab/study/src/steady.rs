//! Whether runs of a steady workload may be called so.

use crate::summary::{Metric, Summary};
use forebay_base::{Nanos, Span};
use forebay_records::stats::{Load, SteadyProblem};
use forebay_workload::{Kind, Workload};

/// Why the figures of these runs of a steady workload may not be stated as such; `None` for a surge, or if
/// they may. Times are the longest that any run asks for.
pub fn problem<'s>(workload: &Workload, runs: impl Iterator<Item = &'s Summary>) -> Option<String> {
    if workload.mode.kind != Kind::Steady {
        return None;
    }
    let window = workload.mode.measured();
    let (mut warmup, mut length, mut grows) = (0.0f64, 0.0f64, false);
    for s in runs {
        grows |= s.load == Load::Overloaded;
        let e2e = s.total.figure(Metric::E2e);
        let (Some(mean), Some(p95)) = (e2e.mean, e2e.quantiles[2].value) else { continue };
        for p in window.steady_problems(Nanos::ZERO, Span(mean as u64), Span(p95)) {
            match p {
                SteadyProblem::ShortWarmup { needed } => warmup = warmup.max(needed),
                SteadyProblem::ShortWindow { needed } => length = length.max(needed),
            }
        }
    }
    let mut out = Vec::new();
    if grows {
        out.push("the backlog grows".to_owned());
    }
    if warmup > 0.0 {
        out.push(format!("the warm-up has to last {warmup:.0} s, two 95th percentiles of E2E"));
    }
    if length > 0.0 {
        out.push(format!("the window has to last {length:.0} s, ten mean E2E times"));
    }
    (!out.is_empty()).then(|| format!("not steady: {}", out.join("; ")))
}
