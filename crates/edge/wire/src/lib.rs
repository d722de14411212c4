//! Pure readers and writers of what crosses the network: OpenAI and Anthropic bodies, SSE, Prometheus text, headers.
//!
//! Nothing here does I/O, reads a clock or knows a runtime. Readers borrow the bytes they are given, look only at
//! what routing needs, and never change a byte that is forwarded, except where [`splice`] replaces a model's name.

pub mod error;
pub mod headers;
pub mod path;
pub mod peek;
pub mod prom;
mod prompt;
pub mod show;
pub mod splice;
pub mod sse;
pub mod usage;

mod loose;

pub use path::Api;
pub use peek::{Peek, PeekError, peek};
pub use usage::Usage;
