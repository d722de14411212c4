//! The kernel from outside: against a direct model, under random interleavings, and replayed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
mod disagg;
mod edges;
mod flows;
mod interleave;
mod inventory;
mod model;
mod moving;
mod rig;
mod signal;
