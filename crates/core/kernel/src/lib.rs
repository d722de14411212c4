//! Every decision of forebay, as state machines without clock, I/O or hidden randomness.
//!
//! The same compiled code decides in the live router and in the simulator: inputs are `(now, event)`,
//! outputs are effects, and a run can be replayed to the same bytes.

pub mod ask;
pub mod plan;
pub mod plugin;
pub mod policy;
pub mod pool;

pub use ask::{Ask, Asked};
pub use pool::{EndpointId, EndpointSet, EndpointSpec, Pool, Reading, Sample};
