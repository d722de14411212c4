//! `forebay emulate`: a vLLM-shaped server.

use crate::input;
use crate::runtime::{block_on, log_to_stderr, stop_signal};
use crate::simulated::calibration;
use crate::values::duration;
use clap::{Args, ValueEnum};
use forebay_emulate::{Emulator, Faults, Options, Refuse, StallMetrics};
use forebay_engine::{EngineSpec, Hardware, ModelConfig, Scheduling};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Serve an emulated vLLM: its API, metrics and timing, with synthetic answers
#[derive(Debug, Args)]
pub(crate) struct Emulate {
    /// Model, as in the catalogue or as its Hugging Face name
    #[arg(long, value_name = "NAME", default_value = "qwen3-14b")]
    model: String,
    /// Its Hugging Face config.json instead
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_config: Option<PathBuf>,
    /// GPU type
    #[arg(long, value_name = "NAME", default_value = "h100")]
    hardware: String,
    /// A calibration file: factors in place of the catalogue's
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// How many times faster than real the engine runs
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    time_scale: f64,
    /// Seed of the synthetic text
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Names that the model is served under; repeatable
    #[arg(long = "served-model-name", value_name = "NAME")]
    served_model_names: Vec<String>,
    /// Share of requests that end before their limit, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    early_stop: f64,
    /// Tokens of a chat answer that sets no limit
    #[arg(long, value_name = "N", default_value_t = 256)]
    default_output_tokens: u32,
    /// Log filter, on stderr
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,

    /// GPUs per server
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "vLLM's arguments")]
    tensor_parallel_size: u32,
    /// Sequences that run at once
    #[arg(long, value_name = "N", help_heading = "vLLM's arguments")]
    max_num_seqs: Option<u32>,
    /// Tokens of one step
    #[arg(long, value_name = "N", help_heading = "vLLM's arguments")]
    max_num_batched_tokens: Option<u32>,
    /// Longest sequence
    #[arg(long, value_name = "N", help_heading = "vLLM's arguments")]
    max_model_len: Option<u32>,
    /// Tokens per KV block
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = "vLLM's arguments")]
    block_size: u32,
    /// Share of GPU memory that may be used
    #[arg(long, value_name = "SHARE", default_value_t = 0.92, help_heading = "vLLM's arguments")]
    gpu_memory_utilization: f64,
    /// KV blocks, instead of what memory allows
    #[arg(long, value_name = "N", help_heading = "vLLM's arguments")]
    num_gpu_blocks_override: Option<u32>,
    /// Order of waiting requests
    #[arg(long, value_name = "POLICY", default_value = "fcfs", help_heading = "vLLM's arguments")]
    scheduling_policy: Policy,
    /// Longest prefill chunk; 0 is bounded by the step only
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "vLLM's arguments")]
    long_prefill_token_threshold: u32,
    /// Recompute every prompt
    #[arg(long, help_heading = "vLLM's arguments")]
    no_enable_prefix_caching: bool,

    /// Refuse requests with 503, or connections altogether
    #[arg(
        long,
        value_name = "HOW",
        default_value = "off",
        help_heading = "Misbehaviour (also by POST /admin/config)"
    )]
    refuse: RefuseHow,
    /// Take requests and never answer
    #[arg(long, help_heading = "Misbehaviour (also by POST /admin/config)")]
    hang: bool,
    /// Reset each answer after this many tokens
    #[arg(long, value_name = "N", help_heading = "Misbehaviour (also by POST /admin/config)")]
    reset_after_tokens: Option<u32>,
    /// Freeze the metrics, or never answer for them
    #[arg(
        long,
        value_name = "HOW",
        default_value = "off",
        help_heading = "Misbehaviour (also by POST /admin/config)"
    )]
    stall_metrics: StallHow,
    /// Not healthy for this long after the start
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = "Misbehaviour (also by POST /admin/config)")]
    startup_duration: Duration,
    /// Wait this long before each request reaches the engine
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = "Misbehaviour (also by POST /admin/config)")]
    extra_latency: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    Fcfs,
    Priority,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RefuseHow {
    Off,
    Unavailable,
    Connection,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StallHow {
    Off,
    Freeze,
    Hang,
}

impl Emulate {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        log_to_stderr(&self.log)?;
        let spec = EngineSpec {
            tp: self.tensor_parallel_size,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            block_size: self.block_size,
            gpu_memory_utilization: self.gpu_memory_utilization,
            max_model_len: self.max_model_len,
            prefix_caching: !self.no_enable_prefix_caching,
            num_gpu_blocks_override: self.num_gpu_blocks_override,
            scheduling: match self.scheduling_policy {
                Policy::Fcfs => Scheduling::Fcfs,
                Policy::Priority => Scheduling::Priority,
            },
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            ..self.server()?
        };
        let mut options = Options {
            listen: self.listen,
            time_scale: self.time_scale,
            seed: self.seed,
            default_output_tokens: self.default_output_tokens,
            early_stop: self.early_stop,
            faults: self.faults(),
            ..Options::new(&spec.model)
        };
        if !self.served_model_names.is_empty() {
            options.served_model_names.clone_from(&self.served_model_names);
        }
        block_on(serve(out, spec, options))
    }

    /// Model and hardware.
    fn server(&self) -> anyhow::Result<EngineSpec> {
        let mut spec = match &self.model_config {
            None => EngineSpec::named(&self.model, &self.hardware)?,
            Some(path) => {
                let (text, name) = input::text(path)?;
                let model = ModelConfig::read(&text, &name, &name)?;
                EngineSpec::new(&model, Hardware::find(&self.hardware)?)
            }
        };
        if let Some(calibration) = calibration(self.calibration.as_deref())? {
            spec.hardware = calibration.apply(&spec.hardware);
        }
        Ok(spec)
    }

    fn faults(&self) -> Faults {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Faults {
            refuse: match self.refuse {
                RefuseHow::Off => Refuse::Off,
                RefuseHow::Unavailable => Refuse::Unavailable,
                RefuseHow::Connection => Refuse::Connection,
            },
            hang: self.hang,
            reset_after_tokens: self.reset_after_tokens,
            stall_metrics: match self.stall_metrics {
                StallHow::Off => StallMetrics::Off,
                StallHow::Freeze => StallMetrics::Freeze,
                StallHow::Hang => StallMetrics::Hang,
            },
            startup_duration_ms: ms(self.startup_duration),
            extra_latency_ms: ms(self.extra_latency),
        }
    }
}

async fn serve(out: &mut dyn Write, spec: EngineSpec, options: Options) -> anyhow::Result<ExitCode> {
    let names = options.served_model_names.join(", ");
    let scale = options.time_scale;
    let server = Emulator::start(&spec, options).await?;
    let c = server.config();
    writeln!(
        out,
        "EMULATED vLLM: answers are synthetic.\n  model {names}\n  hardware {} x {}\n  max_num_seqs {}  \
         max_num_batched_tokens {}  max_model_len {}\n  KV cache {} blocks of {} tokens ({:.1} GiB per GPU)",
        spec.tp,
        spec.hardware.name,
        c.max_num_seqs,
        c.max_num_batched_tokens,
        c.max_model_len,
        c.num_gpu_blocks,
        spec.block_size,
        c.kv_bytes_per_gpu as f64 / f64::from(1 << 30)
    )?;
    if scale != 1.0 {
        writeln!(out, "  the engine runs {scale} times as fast as real")?;
    }
    writeln!(out, "forebay ready: emulated vLLM {}", server.url())?;
    out.flush()?;
    let signal = stop_signal()?.await;
    tracing::info!(signal, "shutting down");
    server.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
