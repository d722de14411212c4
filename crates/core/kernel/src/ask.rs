//! What the kernel knows of a request.

use forebay_base::{Nanos, Span};
use std::sync::Arc;

/// A request as it is offered.
#[derive(Clone, Debug, Default)]
pub struct Ask<'a> {
    /// The fairness id: which flow of its band it belongs to.
    pub flow: &'a str,
    /// Its priority; without a band of that priority it runs in band 0.
    pub priority: i32,
    /// Length of the body in bytes, which is what capacities count.
    pub bytes: u64,
    /// Estimated prompt tokens.
    pub prompt_tokens: u32,
    /// Chained hashes of the prompt's blocks, first block first; empty if no prefix index is in use.
    pub prefix: Arc<[u64]>,
    /// Tokens per block of `prefix`, as it was hashed; 0 without hashes.
    pub block_tokens: u32,
    /// Whether its answer streams, so that its first token will be told.
    pub streaming: bool,
    /// The request's own bound on its wait in the queue while the pool has endpoints; it can only shorten
    /// the configured one. 0 is none.
    pub ttl: Option<Span>,
}

/// A request as the kernel keeps it and policies see it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Counts requests of this kernel from 0; draws are made by it.
    pub number: u64,
    /// When it was offered.
    pub arrived: Nanos,
    /// The priority it asked for.
    pub requested_priority: i32,
    /// The priority of the band it runs in.
    pub priority: i32,
    /// Body bytes.
    pub bytes: u64,
    /// Estimated prompt tokens.
    pub prompt_tokens: u32,
    /// Chained block hashes of the prompt.
    pub prefix: Arc<[u64]>,
    /// Tokens per block of `prefix`.
    pub block_tokens: u32,
    /// Whether its answer streams.
    pub streaming: bool,
}
