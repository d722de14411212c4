//! HTTP over tokio: listener with limits, and an upstream connection pool that lives in the response body.
//!
//! One request is one future. It is polled by its connection's task and nothing of it is spawned, so dropping it is
//! how a client's leaving reaches the upstream: the handler's future is dropped while it waits, the response body
//! while it streams, and with either the upstream connection that it holds.
//!
//! What hyper's HTTP/1 server notices of a leaving client, and what it cannot:
//! - Once the request's body has been read to its end, a close or a reset drops the future at once.
//! - While unread body bytes are buffered, and while a pipelined next request is, a close goes unnoticed: hyper does
//!   not read on. So read the body ([`collect`]) before anything that waits, and bound every wait by a time of its
//!   own. The write time-out of [`ServerOptions`] bounds the rest.
//! - With half-close allowed nothing would be noticed; it is never switched on.

mod body;
mod budget;
mod client;
mod guard;
mod server;

pub use body::{Body, BoxError, CollectError, CollectLimits, collect, collect_held};
pub use budget::{Budget, Held};
pub use client::{Client, ClientOptions, GetError, SendError, Stage, UpstreamBody, UpstreamError};
pub use server::{Listener, Open, Served, ServerOptions};

pub use hyper::body::Incoming;
