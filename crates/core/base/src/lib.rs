//! What every other room stands on: integer time, counter-based draws, bit-stable mathematics,
//! diagnostics with the nearest valid name, and an indexed heap.
//!
//! Nothing here reads a clock, a random device or a file. The only dependency is `libm`, whose pure
//! Rust transcendental functions give the same bits on every platform.

pub mod diagnostic;
pub mod draw;
pub mod heap;
pub mod math;
pub mod time;

pub use diagnostic::{Diagnostic, Diagnostics, Position, Severity, nearest};
pub use draw::{Draws, Purpose};
pub use heap::{IndexedHeap, Places, SharedHeap};
pub use time::{Nanos, Span};
