//! The router end to end: real processes over loopback.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod affinity;
mod emulated;
mod failing;
mod leaving;
mod metrics;
mod observing;
mod parity;
mod process;
mod proxying;
mod queueing;
mod recording;
mod starting;
mod upstream;
