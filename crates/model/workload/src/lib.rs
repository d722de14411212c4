//! Who arrives when, with what: declarative workloads and recorded traces as one lazy stream.
//!
//! ```
//! use forebay_workload::Workload;
//!
//! let code = Workload::preset("code").expect("it ships").with_rate(16.0);
//! let mut arrivals = code.arrivals(42);
//! let first = arrivals.next().expect("there is a first one");
//! assert!(first.prompt_tokens >= 100 && first.output_tokens >= 50);
//! ```
//!
//! Every draw is a hash of (seed, name of the class, purpose, number of the request in its class). What a
//! class sends depends on nothing else: not on other classes, not on what a policy did to the requests
//! before, not on the rate, which only moves the same requests closer together.

mod arrivals;
mod content;
mod length;
mod presets;
mod process;
mod rate;
mod read;
mod sample;
mod schema;
mod servegen;
mod source;
mod spec;
mod trace;

pub use arrivals::{Arrival, Arrivals, BLOCK_TOKENS};
pub use length::{Dist, Shape};
pub use presets::PRESETS;
pub use rate::Stage;
pub use read::Files;
pub use sample::{Gap, Popularity, Stream, normal_quantile};
pub use schema::schema;
pub use servegen::Client;
pub use source::Source;
pub use spec::{
    Assign, Class, Feed, Flows, Kind, Lora, Mode, Order, Phase, Process, Prompts, Retry, Sessions, Workload,
};
pub use trace::{Format, Recording, RecordingCounts, Sent, Trace, TraceRow, Walk, Walked, read_recording};
