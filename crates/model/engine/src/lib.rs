//! One vLLM server as a state machine: scheduler, KV blocks, latency, model and hardware catalogue.
//!
//! The engine does no input or output and holds no clock: the caller passes the time, asks
//! [`Engine::next_event`] when something will happen, and calls [`Engine::advance`] then. A live
//! emulator and a discrete-event simulator drive the same code.
//!
//! ```
//! use forebay_base::Nanos;
//! use forebay_engine::{Engine, EngineEvent, EngineSpec, Job};
//!
//! let spec = EngineSpec::named("qwen3-14b", "h100").expect("both are in the catalogue");
//! let mut engine = Engine::new(&spec.resolve().expect("it fits into one H100"), Nanos::ZERO);
//! let job = Job { id: 1, prompt_tokens: 1000, output_tokens: 2, prefix: [].into(), priority: 0, class: 0, lora: None };
//! engine.arrive(Nanos::ZERO, job).expect("the prompt is shorter than the model's context");
//! let mut events = Vec::new();
//! while let Some(at) = engine.next_event() {
//!     engine.advance(at, &mut events);
//! }
//! assert!(matches!(events.last(), Some(EngineEvent::StepEnd { .. })));
//! assert_eq!(engine.published().generation_tokens, 2);
//! ```

mod blocks;
mod calibration;
mod engine;
mod gaps;
mod group;
mod hardware;
mod hf_config;
mod job;
mod latency;
mod lora;
mod model;
mod models;
mod schedule;
mod seq;
mod spec;
mod version;

#[cfg(test)]
mod tests;

pub use blocks::BlockPool;
pub use calibration::{Calibration, Factor};
pub use engine::{Engine, Planned, Published, StepMode};
pub use gaps::Gaps;
pub use hardware::{Factors, HARDWARE, Hardware};
pub use job::{Aborted, ArriveError, EngineEvent, FinishReason, Job};
pub use latency::{Composition, Demand, Latency, StepCost, Work};
pub use lora::Adapters;
pub use model::{Attention, ModelConfig, Moe, Window};
pub use models::MODELS;
pub use seq::Transfer;
pub use spec::{EngineSpec, Resolved, Scheduling};
pub use version::Version;
