//! The rules by which figures are stated, in one place for simulated and live runs.
//!
//! - A percentile counts requests that failed or were still alive as infinitely slow. If they are more
//!   than 0.5 % it is *undetermined*. With fewer than 30 samples beyond it, it is only "at least" its lower
//!   bound ([`quantile`]).
//! - Two policies are compared over paired runs, by the logarithms of the ratios ([`paired`]).
//! - Throughput is what completed inside the arrival window after the warm-up; figures that include the
//!   drain stand apart ([`window`]).
//! - A load generator that did not keep its schedule says nothing about a server ([`schedule`]).
//! - A rate is stable, near or over capacity by the slope of the backlog ([`backlog`]).

pub mod backlog;
pub mod paired;
pub mod quantile;
pub mod schedule;
pub mod student;
pub mod window;

pub use backlog::{Backlog, Load, Meter, Slope, backlog_of, slope};
pub use paired::{Direction, Paired, Verdict, paired};
pub use quantile::{Quantile, Samples, Standing, rank};
pub use schedule::{Invalid, Schedule};
pub use window::{Goodput, Little, Slo, SteadyProblem, Throughput, Window};
