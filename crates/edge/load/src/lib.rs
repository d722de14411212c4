//! An open-loop load generator.
//!
//! Requests leave when their [`Workload`](forebay_workload::Workload) wants them sent, whatever became of those before,
//! and every latency counts from that time: a client that is late does not flatter the server. How late it was is
//! measured, too, and a run that did not keep its schedule says so ([`forebay_records::stats::Schedule`]).
//!
//! - [`Flight`] measures one request. It has neither clock nor socket: bytes come in with their times, so a test
//!   under a virtual clock is exact.
//! - [`Conductor`] says what is sent when: it turns arrivals into requests ([`Prompts`] has their text) and what
//!   became of them into later turns and retries.
//! - [`Book`] has one record per request, whatever happens to it.
//! - [`observe`] does it all against a server: one thread makes requests ahead of their time, others send them on schedule over their
//!   connections.

mod book;
mod conductor;
mod crew;
mod drive;
mod error;
mod flight;
mod http1;
mod link;
mod probe;
mod prompt;
mod target;
mod watch;
mod words;
mod worker;

pub use book::{Book, Gaps, Trouble};
pub use conductor::{Conductor, Shot};
pub use drive::{Observation, Options, observe};
pub use error::LoadError;
pub use flight::{Flight, Landed};
pub use probe::Server;
pub use prompt::{Calibration, Prompts};
pub use target::{Api, Style, Url};
pub use watch::{View, Watch};
pub use words::Words;
