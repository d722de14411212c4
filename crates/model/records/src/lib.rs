//! What became of each request, and what may be said about many of them.
//!
//! A [`Row`] is one request from its arrival to its end, a [`Record`] the same with what only a client of a
//! real server knows. A [`Histogram`] holds millions of values in
//! integers. [`stats`] has the only rules by which a figure is stated, for simulated and live runs alike.
//! [`files`] writes and reads rows as CSV or JSON Lines, byte for byte the same for the same rows.

pub mod files;
pub mod histogram;
mod live;
pub mod recording;
mod row;
pub mod stats;
mod zstd;

pub use histogram::Histogram;
pub use live::{Counted, Live, Record};
pub use row::{End, Row, reason_named};
pub use zstd::{Compressed, decompressed};
