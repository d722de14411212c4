//! `EndpointPickerConfig` and its companions, checked and turned into the kernel plan.
//!
//! [`load()`] reads a configuration, reports everything that is wrong with it at once, and returns a
//! [`Config`] with every default filled in and every reference resolved; [`Config::plan`] is what the
//! kernel decides by.

pub mod config;
pub mod endpoints;
pub mod fields;
mod flow;
pub mod gates;
pub mod instances;
pub mod known;
mod load;
pub mod manifests;
mod params;
mod print;
pub mod proxy;
mod schema;
mod stages;
pub mod table;

pub use config::Config;
pub use endpoints::{FileEndpoint, read_endpoints};
pub use gates::Gates;
pub use instances::{Instance, Options};
pub use load::{DEFAULT_CONFIG, load, load_tree};
pub use manifests::{Manifests, Objective};
pub use proxy::{ProxyConfig, RetryOn};
pub use schema::schema;
