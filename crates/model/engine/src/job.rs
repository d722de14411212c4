//! What comes into an engine, and what it tells of it.

use forebay_base::Nanos;
use std::fmt;
use std::sync::Arc;

/// One request as the engine sees it.
#[derive(Clone, Debug)]
pub struct Job {
    /// The caller's name for it, unique among the requests inside.
    pub id: u64,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens to generate, at least 1; cut where prompt and output reach the model's maximum length.
    pub output_tokens: u32,
    /// Content hashes of the full KV blocks from the front, each covering all tokens up to its end
    /// (chained). Hashes past the prompt name the blocks that the output will fill. Blocks without one
    /// can be hit by the request itself only, after a preemption.
    pub prefix: Arc<[u64]>,
    /// Lower runs first under [`crate::Scheduling::Priority`]; ignored otherwise.
    pub priority: i64,
    /// The caller's number for the class of requests that this one is counted with; small, since there is a count
    /// for each up to the greatest.
    pub class: u16,
    /// The caller's number for the LoRA adapter that the request runs with.
    pub lora: Option<u16>,
}

/// Why a request cannot enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArriveError {
    /// A prompt of no tokens.
    EmptyPrompt,
    /// Nothing to generate.
    NoOutput,
    /// The prompt leaves no room for a token under the model's maximum length, given here.
    PromptTooLong {
        /// Prompt and output together may have this many tokens.
        max_model_len: u32,
    },
    /// A request of this id is inside.
    DuplicateId,
}

impl fmt::Display for ArriveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArriveError::EmptyPrompt => f.write_str("the prompt has no tokens"),
            ArriveError::NoOutput => f.write_str("no output tokens were asked for"),
            ArriveError::PromptTooLong { max_model_len } => {
                write!(f, "the prompt leaves no room under the maximum length of {max_model_len} tokens")
            }
            ArriveError::DuplicateId => f.write_str("a request with this id is inside"),
        }
    }
}

impl std::error::Error for ArriveError {}

/// Why a request finished by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// All tokens that were asked for are there.
    Output,
    /// Prompt and output reached the model's maximum length first.
    ModelLength,
}

/// What happened, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A request left the waiting queue for the first time.
    Admitted {
        /// Which.
        id: u64,
        /// When the scheduler took it; its first step may start later.
        at: Nanos,
        /// Prompt tokens that were in the prefix cache.
        cached_tokens: u32,
    },
    /// A token came out.
    Token {
        /// Of which request.
        id: u64,
        /// 0 for the first.
        index: u32,
        /// The end of the step that made it.
        at: Nanos,
    },
    /// A request finished; its slot and blocks are free. Follows its last token.
    Finished {
        /// Which.
        id: u64,
        /// When.
        at: Nanos,
        /// Why.
        reason: FinishReason,
    },
    /// A request lost its blocks to another and waits again; what it generated is kept.
    Preempted {
        /// Which.
        id: u64,
        /// When.
        at: Nanos,
        /// Tokens whose cache entries it lost; prefix caching may find some of them again.
        lost: u32,
    },
    /// A step ended and the counters were published.
    StepEnd {
        /// When.
        at: Nanos,
        /// Tokens computed in it.
        tokens: u32,
        /// Sequences in it.
        sequences: u32,
    },
}

/// A request that was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// Tokens that had come out.
    pub tokens: u32,
    /// How often it had been preempted.
    pub preemptions: u32,
}
