//! The approximate prefix index: which beginnings of prompts were sent to which endpoint.
//!
//! A prompt is a chain of block hashes in which each hash stands for the block and all before it, so
//! chains that share a beginning share hashes. The index is a radix tree whose nodes are runs of hashes;
//! every node knows which endpoints hold all of its run, and an endpoint that holds a node holds its
//! parents. A look-up compares runs and intersects holder sets: what an endpoint matches is contiguous
//! from the first block.
//!
//! Each endpoint has a list of its nodes by last use, and forgets from the far end, deepest blocks
//! first, when it passes its capacity; the index as a whole forgets the longest unused when it passes
//! its bound in bytes.

mod chain;
mod index;

pub use chain::{BYTES_PER_TOKEN, block_limit, block_tokens, hash_chain};
pub use index::PrefixIndex;
