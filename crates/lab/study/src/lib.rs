//! What simulated runs say: one, several policies over paired seeds, the capacity of a pool, how
//! many endpoints traffic needs, and the grids of two published studies.
//!
//! Runs are spread over threads. Results come in the order of their index, so that the bytes of a study do not depend on how many threads
//! there are.

pub mod about;
pub mod article;
pub mod asked;
pub mod calibrate;
pub mod capacity;
pub mod capture;
pub mod compare;
pub mod foreign;
pub mod html;
pub mod json;
pub mod observed;
pub mod parallel;
pub mod parity;
pub mod part1;
pub mod perfetto;
pub mod plan;
pub mod policies;
pub mod run_page;
pub mod steady;
pub mod summary;
mod summary_schema;
pub mod sweep;
pub mod text;
pub mod vary;
pub mod whatif;

pub use about::{About, EndpointSummary, endpoints_of};
pub use observed::Observed;
pub use parallel::{Progress, parallel};
pub use policies::Policy;
pub use summary::{ClassSummary, Figures, Metric, Summary};
pub use summary_schema::summary_schema;

use forebay_base::{Nanos, Span};
use forebay_kernel::Plan;
use forebay_records::Row;
use forebay_sim::{Cluster, Options, Run};
use forebay_workload::Workload;
use std::sync::Arc;

/// What one simulated run is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What decides.
    pub plan: Arc<Plan>,
    /// What it is in front of.
    pub cluster: Arc<Cluster>,
    /// What comes.
    pub workload: Workload,
}

impl Setup {
    /// Runs it under a seed that draws arrivals and lengths, and everything else. `options` is asked for
    /// the rest; seed, window and horizon are the workload's.
    pub fn run(&self, seed: u64, options: Options) -> Run {
        let mode = self.workload.mode;
        let options = Options { seed, window: mode.arrivals_end(), horizon: mode.end(), ..options };
        let mut arrivals = self.workload.arrivals(seed);
        let name = |flow| self.workload.flow_name(flow);
        forebay_sim::run(&self.plan, &self.cluster, &mut arrivals, &name, &options)
    }

    /// As [`Setup::run`], but hands each request's record to `sink` when it ends and keeps none.
    pub fn run_into(&self, seed: u64, options: Options, sink: &mut dyn FnMut(Row)) -> Run {
        let mode = self.workload.mode;
        let options = Options { seed, window: mode.arrivals_end(), horizon: mode.end(), ..options };
        let mut arrivals = self.workload.arrivals(seed);
        let name = |flow| self.workload.flow_name(flow);
        forebay_sim::run_into(&self.plan, &self.cluster, &mut arrivals, &name, &options, sink)
    }

    /// The priorities of the workload's classes, for the bands of a plan.
    pub fn priorities(workload: &Workload) -> Vec<i32> {
        let mut all: Vec<i32> = workload.classes.iter().map(|c| c.priority).collect();
        all.sort_unstable_by_key(|p| std::cmp::Reverse(*p));
        all.dedup();
        all
    }

    /// A distance of timeline points that gives about `n` of them while requests arrive.
    pub fn sampling(&self, n: u64) -> Span {
        Span((self.workload.mode.arrivals_end().since(Nanos::ZERO).0 / n.max(1)).max(1))
    }
}
