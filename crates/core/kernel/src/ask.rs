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
    /// The model that the engine is asked for; empty if unknown.
    pub model: Arc<str>,
    /// The session it belongs to; empty if none.
    pub session: Arc<str>,
    /// The endpoint, by its name, that a session token asks for; empty if none.
    pub sticky: Arc<str>,
    /// The time to first token that the client hopes for, from its arrival.
    pub slo_ttft: Option<Span>,
    /// The time per output token that the client hopes for.
    pub slo_tpot: Option<Span>,
    /// The client's bound on output tokens.
    pub max_output_tokens: Option<u32>,
    /// The request's own bound on its wait in the queue while the pool has endpoints; it can only shorten
    /// the configured one. 0 is none.
    pub ttl: Option<Span>,
}

/// A request as the kernel keeps it and policies see it.
#[derive(Clone, Debug, Default)]
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
    /// The model that the engine is asked for; empty if unknown.
    pub model: Arc<str>,
    /// The session it belongs to; empty if none.
    pub session: Arc<str>,
    /// The endpoint, by its name, that a session token asks for; empty if none.
    pub sticky: Arc<str>,
    /// The time to first token that the client hopes for, from its arrival.
    pub slo_ttft: Option<Span>,
    /// The time per output token that the client hopes for.
    pub slo_tpot: Option<Span>,
    /// The client's bound on output tokens.
    pub max_output_tokens: Option<u32>,
    /// The bound on its wait in the queue of a pool with endpoints: the configured one or its own, whichever
    /// is shorter; `None` is forever.
    pub ttl: Option<Span>,
    /// Tokens per block of `prefix`.
    pub block_tokens: u32,
    /// Whether its answer streams.
    pub streaming: bool,
}
