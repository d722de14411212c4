//! Every decision of forebay, as state machines without clock, I/O or hidden randomness.
//!
//! The same compiled code decides in the live router and in the simulator: inputs are `(now, event)`,
//! outputs are [`Effects`], and a run can be replayed to the same bytes.
//!
//! A request is [offered](Kernel::offer), admitted and queued in the band of its priority. A *cycle* asks
//! the usage limit policy for a ceiling per band, walks the bands from the highest priority down, and
//! sends at most one request on: head of the flow that fairness chooses, gate, filters, scorers, picker.
//! The *driver* only decides when cycles run.

pub mod ask;
pub mod driver;
pub mod effect;
pub mod flow;
pub mod journal;
mod kernel;
pub mod plan;
pub mod plugin;
pub mod plugins;
pub mod policy;
pub mod pool;
pub mod prefix;
pub mod regime;
pub mod replay;
pub mod saturation;
mod schedule;
mod table;

pub use ask::{Ask, Asked};
pub use effect::{Effect, Effects, End, Id, Ledgers, QueueOutcome, Refusal};
pub use kernel::{Kernel, Progress};
pub use plan::Plan;
pub use policy::Usage;
pub use pool::{Adapters, EndpointId, EndpointSet, EndpointSpec, Pool, Reading, Sample};
