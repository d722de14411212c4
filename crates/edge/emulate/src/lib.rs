//! A vLLM-shaped HTTP server over the engine.
//!
//! [`Emulator::start`] listens and answers as a vLLM 0.32 API server would, with the times of the
//! engine's model and hardware, at real speed or [`Options::time_scale`] times faster. The text is
//! synthetic and every answer says so with the header `x-forebay-emulated: true`. What is modelled:
//!
//! - **Tokens.** A token is four bytes of text, a piece shorter at the end of a text; each has an id
//!   derived from its bytes, so text, token ids and `/tokenize` agree. A chat message adds three tokens
//!   before its text and two after it. Generated tokens are four bytes long as well.
//! - **Prefix cache.** KV blocks are named by a chain of xxh64 over token ids, through prompt and
//!   output, so repeated prompts, shared system prompts and later turns of a conversation really hit.
//! - **Length.** Exactly `max_tokens`, with `finish_reason` `length`, unless [`Options::early_stop`] is
//!   set. `/v1/completions` defaults to 16 tokens as vLLM does; a chat request without a limit gets
//!   [`Options::default_output_tokens`] and ends with `stop`, as a model would end by itself. With
//!   `ignore_eos` neither happens: the length is the limit, or the model's.
//! - **Stop strings** are looked for in the generated text. It is made of common four-letter pieces
//!   (" the", " and", …), so a stop string rarely occurs unless it is one of those.
//! - **Text** depends on the seed of the server, the prompt, the request's `seed` and the choice.
//! - **Metrics** are the engine's published counters and its event times: a time to first token
//!   includes the wait in the queue. With a time scale they are in the engine's time. A client that
//!   leaves is counted as `abort`. The families are vLLM's own; those of the Python runtime and of its
//!   HTTP middleware are left out.
//! - **Misbehaviour** ([`Faults`]) is set at start, or by `POST /admin/config`, or for one request by
//!   `X-Return-Error: <status>`.

mod ask;
mod body;
mod check;
mod clock;
mod driver;
mod error;
mod metrics;
mod options;
mod reply;
mod server;
mod stream;
mod text;

pub use clock::Clock;
pub use options::{Faults, Options, Refuse, Served, StallMetrics};
pub use server::{Emulator, StartError};
