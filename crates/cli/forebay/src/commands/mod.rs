//! One module per command.

pub(crate) mod calibrate;
pub(crate) mod capacity;
pub(crate) mod capture;
pub(crate) mod compare;
pub(crate) mod config;
pub(crate) mod emulate;
mod fleet;
pub(crate) mod observe;
pub(crate) mod parity;
pub(crate) mod plan;
pub(crate) mod plugins;
pub(crate) mod policy;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod sweep;
pub(crate) mod whatif;
pub(crate) mod workload;
