//! The kernel in real time: a lock around it, waiters, a timer thread, scraping, discovery and metrics.
//!
//! Nothing here decides. A request [enters](router::Router::enter), waits for the kernel's decision, and
//! holds a [`Ticket`] until it ends.

pub mod clock;
pub mod discovery;
pub mod endpoints;
pub mod engines;
pub mod journal;
pub mod lines;
pub mod metrics;
pub mod models;
pub mod names;
pub mod plugins;
mod rate;
pub mod recording;
pub mod router;
pub mod scrape;
mod ticket;
mod views;

pub use clock::Clock;
pub use endpoints::Upstream;
pub use metrics::{Completed, Series};
pub use names::Names;
pub use router::{Options, Refused, Router, View};
pub use ticket::Ticket;
pub use views::DoorView;
