//! The simulator against what queueing theory and the design say.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers, too")]

mod blind;
mod disagg;
mod life;
mod lora;
mod rig;
mod theory;
mod whole;
