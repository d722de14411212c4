//! What the caller and the operator can set.

use forebay_engine::ModelConfig;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How to refuse requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refuse {
    /// Not at all.
    #[default]
    Off,
    /// Inference requests and `/health` get 503.
    Unavailable,
    /// The listening socket is closed: new connections are refused by the system. Connections that are
    /// open live on, and can change the configuration back, as can [`crate::Emulator::set_faults`].
    Connection,
}

/// How `/metrics` misbehaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StallMetrics {
    /// Not at all.
    #[default]
    Off,
    /// It repeats what it said when the fault was set.
    Freeze,
    /// It accepts the request and does not answer while the fault lasts.
    Hang,
}

/// Misbehaviour on purpose. The names in JSON are those of the fields with dashes, as in
/// `{"reset-after-tokens": 5}`; times are real, not the engine's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Faults {
    /// Refuse requests or connections.
    pub refuse: Refuse,
    /// Accept inference requests, read them, and do not answer while the fault lasts.
    pub hang: bool,
    /// Reset the connection of an inference request when this many of its tokens have been sent (or
    /// generated, if it does not stream).
    pub reset_after_tokens: Option<u32>,
    /// Stall `/metrics`.
    pub stall_metrics: StallMetrics,
    /// Answer 503 to inference requests and `/health` for so long after the start.
    pub startup_duration_ms: u64,
    /// Wait so long before an inference request is handed to the engine.
    pub extra_latency_ms: u64,
}

/// What became of one choice of a request, by the engine's own account. Instants are real ones, exact whenever they
/// were noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The request's id: the client's, or the one that it was given.
    pub request_id: String,
    /// When the engine had it.
    pub arrived: Instant,
    /// When tokens of it were first scheduled, if they were.
    pub admitted: Option<Instant>,
    /// The end of the step that made its first token.
    pub first: Option<Instant>,
    /// The end of the step that made its last token so far.
    pub last: Option<Instant>,
    /// Whether it has all its tokens; otherwise its client left.
    pub finished: bool,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of these, those that the prefix cache had.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// How often it lost its blocks.
    pub preemptions: u32,
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names the model goes by. The first one is in answers and metric labels.
    pub served_model_names: Vec<String>,
    /// How many times faster than real time the engine runs; positive.
    pub time_scale: f64,
    /// Seed of the synthetic text and of early stops.
    pub seed: u64,
    /// Tokens of a chat answer without a limit.
    pub default_output_tokens: u32,
    /// The share of requests, 0 to 1, that end by themselves before their limit: at a length drawn
    /// evenly from `min_tokens` (at least 1) to the limit. Requests with `ignore_eos` never do.
    pub early_stop: f64,
    /// Whether answers carry `x-forebay-emulated: true`.
    pub emulated_header: bool,
    /// Misbehaviour from the start.
    pub faults: Faults,
    /// Gets an account of each choice when it ends, if anybody wants one.
    pub accounts: Option<Sender<Served>>,
}

impl Options {
    /// A free port on the loopback interface, real speed, no misbehaviour; the model goes by its short
    /// name and its Hugging Face name.
    pub fn new(model: &ModelConfig) -> Options {
        Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            served_model_names: vec![model.name.to_string(), model.hf_id.to_string()],
            time_scale: 1.0,
            seed: 0,
            default_output_tokens: 256,
            early_stop: 0.0,
            emulated_header: true,
            faults: Faults::default(),
            accounts: None,
        }
    }
}

impl Faults {
    pub(crate) fn startup(&self) -> Duration {
        Duration::from_millis(self.startup_duration_ms)
    }

    pub(crate) fn extra_latency(&self) -> Duration {
        Duration::from_millis(self.extra_latency_ms)
    }
}
