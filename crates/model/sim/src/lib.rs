//! The decision kernel in virtual time over many engines.
//!
//! A discrete-event simulation around the very kernel that serves: arrivals are offered to it, its
//! dispatches reach engines after the network's delay, first tokens and ends come back to it, and what it
//! knows of engines is scraped from them with period, phase, delay and jitter, as the counters stood at the
//! end of the engine's last step. Nothing here decides.
//!
//! Time is a number that jumps from event to event; events at the same instant run in a fixed order. The
//! same inputs give the same bytes.

mod cluster;
mod events;
mod file;
mod observe;
mod scaling;
mod traffic;
mod world;

pub use cluster::{
    Change, Cluster, FULL_SPEED_PERMILLE, Group, Incident, KvLink, Network, Phase, Scale, Scrape, Server,
    Size, Start,
};
pub use file::{Files, cluster_schema};
pub use observe::{Counters, HISTOGRAM_BINS, Point, Preemption, Run, ServerPoint, Timeline};
pub use scaling::{Autoscaler, Behavior, GroupUse, Pace, ScaleEvent, ScaleMetric, Scaling, Select, Step};
pub use traffic::{Script, Traffic};
pub use world::{Options, run, run_into};
