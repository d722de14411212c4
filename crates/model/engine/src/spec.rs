//! What a user says about a server ([`EngineSpec`]) and what follows from it ([`Resolved`]).

use crate::hardware::Hardware;
use crate::latency::Latency;
use crate::model::ModelConfig;
use crate::version::Version;
use forebay_base::{Diagnostic, Diagnostics, Position};
use std::fmt;

/// The order of the waiting queue (`--scheduling-policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// First come, first served; a shortage preempts the request that was admitted last.
    #[default]
    Fcfs,
    /// Lower priority values first, then arrival; a shortage preempts the highest (value, arrival).
    Priority,
}

/// A server as vLLM's arguments describe it; `None` means vLLM's default.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpec {
    /// The release whose defaults and rules hold.
    pub version: Version,
    /// The model.
    pub model: ModelConfig,
    /// The GPU type.
    pub hardware: Hardware,
    /// Tensor parallel size: GPUs per server.
    pub tp: u32,
    /// `--max-num-seqs`; default 1024 on GPUs of at least 70 GiB other than A100, else 256.
    pub max_num_seqs: Option<u32>,
    /// `--max-num-batched-tokens`, the token budget of a step; default 8192 or 2048, by the same rule.
    pub max_num_batched_tokens: Option<u32>,
    /// `--block-size`: tokens per KV block.
    pub block_size: u32,
    /// `--gpu-memory-utilization`, in (0, 1].
    pub gpu_memory_utilization: f64,
    /// `--max-model-len`; by default the model's maximum, cut to what the KV cache holds.
    pub max_model_len: Option<u32>,
    /// `--enable-prefix-caching`.
    pub prefix_caching: bool,
    /// `--num-gpu-blocks-override`.
    pub num_gpu_blocks_override: Option<u32>,
    /// `--scheduling-policy`.
    pub scheduling: Scheduling,
    /// `--long-prefill-token-threshold`: the longest prefill chunk; 0 leaves only the token budget.
    pub long_prefill_token_threshold: u32,
    /// `--async-scheduling`: the next step is put together while one runs.
    pub async_scheduling: Option<bool>,
    /// `--scheduler-reserve-full-isl`: admits a request only if all its tokens that are known fit into the
    /// KV cache, not only its first chunk.
    pub reserve_full_prompt: Option<bool>,
    /// `--max-loras`: adapters that one step may carry, at least 1. Without it adapters are not told apart.
    pub max_loras: Option<u32>,
    /// `--watermark`: share of the blocks that an admission leaves free while others run, in [0, 1).
    pub watermark: f64,
}

/// A server whose numbers are settled.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What it was resolved from.
    pub spec: EngineSpec,
    /// Sequences that may run at once.
    pub max_num_seqs: u32,
    /// Tokens that one step may carry.
    pub max_num_batched_tokens: u32,
    /// Whether the next step is put together while one runs.
    pub async_scheduling: bool,
    /// Whether a request is admitted only if all its known tokens fit.
    pub reserve_full_prompt: bool,
    /// Blocks that an admission leaves free while others run.
    pub watermark_blocks: u32,
    /// The longest sequence, prompt and output together.
    pub max_model_len: u32,
    /// KV blocks in memory. One of them is vLLM's null block, which no request gets.
    pub num_gpu_blocks: u32,
    /// Memory for KV on each GPU, in bytes; what the blocks take where their number is overridden.
    pub kv_bytes_per_gpu: u64,
    /// Step times.
    pub latency: Latency,
}

impl Resolved {
    /// Blocks that requests can get.
    pub fn usable_blocks(&self) -> u32 {
        self.num_gpu_blocks - 1
    }
}

impl Resolved {
    /// Every settled value, under the name of vLLM's argument where there is one.
    pub fn values(&self) -> Vec<(&'static str, String)> {
        let s = &self.spec;
        let hardware = format!("{} x {} (factors {})", s.tp, s.hardware.name, s.hardware.calibration);
        let policy = if s.scheduling == Scheduling::Fcfs { "fcfs" } else { "priority" };
        vec![
            ("vllm-version", s.version.to_string()),
            ("model", format!("{} ({})", s.model.name, s.model.hf_id)),
            ("hardware", hardware),
            ("max-num-seqs", self.max_num_seqs.to_string()),
            ("max-num-batched-tokens", self.max_num_batched_tokens.to_string()),
            ("max-model-len", self.max_model_len.to_string()),
            ("block-size", s.block_size.to_string()),
            ("gpu-memory-utilization", s.gpu_memory_utilization.to_string()),
            ("num-gpu-blocks", self.num_gpu_blocks.to_string()),
            ("kv-cache-gib-per-gpu", format!("{:.2}", self.kv_bytes_per_gpu as f64 / GIB)),
            ("enable-prefix-caching", s.prefix_caching.to_string()),
            ("scheduling-policy", policy.to_owned()),
            ("long-prefill-token-threshold", s.long_prefill_token_threshold.to_string()),
            ("async-scheduling", self.async_scheduling.to_string()),
            ("scheduler-reserve-full-isl", self.reserve_full_prompt.to_string()),
            ("max-loras", s.max_loras.map_or("no LoRA".to_owned(), |n| n.to_string())),
            ("watermark-blocks", self.watermark_blocks.to_string()),
            ("largest-captured-graph", self.latency.max_capture().to_string()),
        ]
    }
}

/// [`Resolved::values`], one on a line.
impl fmt::Display for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values().iter().try_for_each(|(name, value)| writeln!(f, "{name}: {value}"))
    }
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

impl EngineSpec {
    /// One GPU with the defaults of the newest release known.
    pub fn new(model: &ModelConfig, hardware: &Hardware) -> EngineSpec {
        EngineSpec::with_version(model, hardware, Version::NEWEST)
    }

    /// One GPU with the defaults of a release.
    pub fn with_version(model: &ModelConfig, hardware: &Hardware, version: Version) -> EngineSpec {
        EngineSpec {
            version,
            model: model.clone(),
            hardware: *hardware,
            tp: 1,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            block_size: 16,
            gpu_memory_utilization: version.gpu_memory_utilization,
            max_model_len: None,
            prefix_caching: true,
            num_gpu_blocks_override: None,
            scheduling: Scheduling::Fcfs,
            long_prefill_token_threshold: 0,
            async_scheduling: None,
            reserve_full_prompt: None,
            max_loras: None,
            watermark: 0.0,
        }
    }

    /// The same from catalogue names; the error lists both if both are unknown.
    pub fn named(model: &str, hardware: &str) -> Result<EngineSpec, Diagnostics> {
        match (ModelConfig::find(model), Hardware::find(hardware)) {
            (Ok(m), Ok(h)) => Ok(EngineSpec::new(m, h)),
            (m, h) => Err(Diagnostics([m.err(), h.err()].into_iter().flatten().flat_map(|d| d.0).collect())),
        }
    }

    /// Checks the values and works out the rest; the error lists everything that is wrong.
    pub fn resolve(&self) -> Result<Resolved, Diagnostics> {
        let mut wrong = self.range_errors();
        let large = self.hardware.large();
        let max_num_seqs = self.max_num_seqs.unwrap_or(self.hardware.default_seqs());
        let max_num_batched_tokens =
            self.max_num_batched_tokens.unwrap_or(if large { 8192 } else { 2048 }.max(max_num_seqs));
        if max_num_batched_tokens < max_num_seqs {
            wrong.push(
                error("max-num-batched-tokens", format!("is {max_num_batched_tokens}"))
                    .expected(format!("at least max-num-seqs, {max_num_seqs}")),
            );
        }
        if !wrong.0.is_empty() {
            return Err(wrong);
        }
        let (num_gpu_blocks, kv_bytes_per_gpu) = self.capacity(max_num_seqs, max_num_batched_tokens)?;
        let max_model_len = self.context(num_gpu_blocks)?;
        Ok(Resolved {
            spec: self.clone(),
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            num_gpu_blocks,
            kv_bytes_per_gpu,
            async_scheduling: self
                .async_scheduling
                .unwrap_or(self.version.async_scheduling && !self.hardware.is_cpu()),
            reserve_full_prompt: self
                .reserve_full_prompt
                .or(self.version.reserve_full_prompt)
                .unwrap_or_default(),
            watermark_blocks: (self.watermark * f64::from(num_gpu_blocks)) as u32,
            latency: Latency::new(
                &self.model,
                &self.hardware,
                self.tp,
                max_num_seqs,
                self.version.capture_step,
            ),
        })
    }

    fn range_errors(&self) -> Diagnostics {
        let mut wrong = Diagnostics::default();
        let mut check = |ok: bool, path: &str, found: String, expected: &str| {
            if !ok {
                wrong.push(error(path, format!("is {found}")).expected(expected));
            }
        };
        check(self.tp >= 1, "tensor-parallel-size", self.tp.to_string(), "at least 1");
        check(
            self.tp == 0 || self.model.heads.is_multiple_of(self.tp),
            "tensor-parallel-size",
            self.tp.to_string(),
            &format!("a divisor of the model's {} attention heads", self.model.heads),
        );
        check(self.max_loras != Some(0), "max-loras", "0".into(), "at least 1");
        check(self.max_num_seqs != Some(0), "max-num-seqs", "0".into(), "at least 1");
        check((1..=1024).contains(&self.block_size), "block-size", self.block_size.to_string(), "1 to 1024");
        let util = self.gpu_memory_utilization;
        check(util > 0.0 && util <= 1.0, "gpu-memory-utilization", util.to_string(), "above 0, at most 1");
        check(self.max_model_len.is_none_or(|n| n >= 2), "max-model-len", "below 2".into(), "at least 2");
        check(
            self.num_gpu_blocks_override.is_none_or(|n| n >= 2),
            "num-gpu-blocks-override",
            "below 2".into(),
            "at least 2, one of which is the null block",
        );
        let share = self.watermark;
        check((0.0..1.0).contains(&share), "watermark", share.to_string(), "at least 0, below 1");
        let asked = format!("set, which vLLM {} does not know", self.version);
        check(share == 0.0 || self.version.has_watermark, "watermark", asked.clone(), "vLLM 0.24 or later");
        check(
            self.reserve_full_prompt != Some(true) || self.version.reserve_full_prompt.is_some(),
            "scheduler-reserve-full-isl",
            asked,
            "vLLM 0.19 or later",
        );
        let f = &self.hardware.factors;
        let shares = [
            ("compute", f.compute),
            ("bandwidth", f.bandwidth),
            ("kv", f.kv),
            ("exposed", f.exposed),
            ("link", f.link),
        ];
        for (name, v) in shares {
            check(v > 0.0 && v <= 1.0, &format!("factors.{name}"), v.to_string(), "above 0, at most 1");
        }
        wrong
    }

    /// KV blocks and KV bytes per GPU.
    ///
    /// All of this is per GPU: usable memory times utilization, less the GPU's share of the weights,
    /// less what the start-up profile run leaves allocated. Measured block counts of vLLM 0.15 on H100
    /// (dense models of 7 to 70 billion, one to four GPUs) come out within two per cent.
    fn capacity(&self, seqs: u32, tokens: u32) -> Result<(u32, u64), Diagnostics> {
        let per_block = self.model.kv_bytes_per_token(self.tp) * u64::from(self.block_size);
        if let Some(n) = self.num_gpu_blocks_override {
            return Ok((n, u64::from(n) * per_block));
        }
        let usable = self.hardware.memory_gib * GIB * self.gpu_memory_utilization;
        let weights = self.model.total_bytes() / f64::from(self.tp);
        let free = usable - weights - self.reserve_bytes(seqs, tokens);
        let blocks = (free / per_block as f64).floor();
        if blocks < 2.0 {
            let path = "gpu-memory-utilization";
            let message = format!(
                "{} on {} x {} leaves {:.1} GiB for KV: {:.1} GiB usable per GPU, {:.1} GiB of weights",
                self.model.name,
                self.tp,
                self.hardware.name,
                free / GIB,
                usable / GIB,
                weights / GIB
            );
            let expected = "more GPUs (tensor-parallel-size) or a smaller model";
            return Err(Diagnostics(vec![error(path, message).expected(expected)]));
        }
        Ok((blocks.min(f64::from(u32::MAX)) as u32, free as u64))
    }

    /// What is neither weights nor KV on one GPU, in bytes: the CUDA context (0.15 GiB, and 0.4 GiB of
    /// communication buffers with several GPUs), the MLP and attention activations of a full step, and
    /// the sampler's five 32-bit copies of the logits.
    fn reserve_bytes(&self, seqs: u32, tokens: u32) -> f64 {
        let m = &self.model;
        let context = if self.tp > 1 { 0.55 } else { 0.15 } * GIB;
        let width = m.moe.map_or(m.intermediate, |e| e.intermediate * e.per_token);
        let per_token = 2.0 * f64::from(width) / f64::from(self.tp) + 4.0 * f64::from(m.hidden);
        let logits = f64::from(seqs.min(tokens)) * f64::from(m.vocab) * 4.0 * 5.0;
        context + f64::from(tokens) * per_token * 2.0 + logits
    }

    /// The longest sequence. One sequence must fit into the cache alone, or it would wait forever: a
    /// length asked for is refused if it does not fit, the model's own maximum is cut.
    fn context(&self, num_gpu_blocks: u32) -> Result<u32, Diagnostics> {
        let fits = u64::from(num_gpu_blocks - 1) * u64::from(self.block_size);
        match self.max_model_len {
            Some(n) if u64::from(n) > fits => Err(Diagnostics(vec![
                error("max-model-len", format!("is {n}, but the KV cache holds {fits} tokens"))
                    .expected(format!("at most {fits}")),
            ])),
            Some(n) => Ok(n),
            None => Ok(u64::from(self.model.max_positions).min(fits) as u32),
        }
    }
}

fn error(path: &str, message: String) -> Diagnostic {
    Diagnostic::error(Position::default(), path, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(model: &str, hw: &str) -> EngineSpec {
        EngineSpec::named(model, hw).unwrap()
    }

    #[test]
    fn a_cpu_has_neither_graphs_nor_asynchronous_scheduling() {
        let cpu = spec("tiny", "cpu").resolve().unwrap();
        assert_eq!((cpu.max_num_seqs, cpu.max_num_batched_tokens, cpu.async_scheduling), (128, 2048, false));
        assert_eq!((cpu.latency.max_capture(), cpu.latency.padded(5)), (0, 5));
        let asked = EngineSpec { async_scheduling: Some(true), ..spec("tiny", "cpu") };
        assert!(asked.resolve().unwrap().async_scheduling);
    }

    #[test]
    fn defaults_follow_the_gpu_class() {
        let h100 = spec("qwen3-14b", "h100").resolve().unwrap();
        assert_eq!((h100.max_num_seqs, h100.max_num_batched_tokens), (1024, 8192));
        assert_eq!(h100.max_model_len, 40960);
        let a100 = spec("qwen3-14b", "a100").resolve().unwrap();
        assert_eq!((a100.max_num_seqs, a100.max_num_batched_tokens), (256, 2048));
    }

    #[test]
    fn capacity_is_right_with_and_without_tensor_parallelism() {
        // Block counts that vLLM 0.15.1 reported on H100 at a utilization of 0.9.
        let measured = [("qwen2.5-7b", 1, 2048, 65_352), ("llama-3.1-70b", 4, 8192, 30_251)];
        for (model, tp, tokens, blocks) in measured {
            let mut s = spec(model, "h100");
            (s.tp, s.gpu_memory_utilization) = (tp, 0.9);
            (s.max_num_seqs, s.max_num_batched_tokens) = (Some(256), Some(tokens));
            let got = s.resolve().unwrap().num_gpu_blocks;
            assert!((f64::from(got) / f64::from(blocks) - 1.0).abs() < 0.02, "{model}: {got}");
        }
    }

    #[test]
    fn a_release_brings_its_defaults_and_an_argument_overrides_them() {
        let (model, h100) = (ModelConfig::find("qwen3-14b").unwrap(), Hardware::find("h100").unwrap());
        let mut old = EngineSpec::with_version(model, h100, Version::find("0.11").unwrap());
        let text = old.resolve().unwrap().to_string();
        for line in [
            "vllm-version: 0.11",
            "gpu-memory-utilization: 0.9",
            "async-scheduling: false",
            "scheduler-reserve-full-isl: false",
            "max-num-seqs: 1024",
            "largest-captured-graph: 512",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        old.async_scheduling = Some(true);
        assert!(old.resolve().unwrap().async_scheduling);
        (old.reserve_full_prompt, old.watermark) = (Some(true), 0.1);
        let e = old.resolve().unwrap_err().to_string();
        assert!(e.contains("vLLM 0.24 or later") && e.contains("vLLM 0.19 or later"), "{e}");
        let new = spec("qwen3-14b", "h100").resolve().unwrap();
        assert!(new.async_scheduling && new.reserve_full_prompt && new.watermark_blocks == 0);
    }

    #[test]
    fn a_long_context_is_cut_by_default_and_refused_when_asked_for() {
        let mut s = spec("llama-3.1-8b", "l40s");
        s.num_gpu_blocks_override = Some(101);
        assert_eq!(s.resolve().unwrap().max_model_len, 1600);
        s.max_model_len = Some(1601);
        let e = s.resolve().unwrap_err().to_string();
        assert!(e.contains("max-model-len: is 1601") && e.contains("at most 1600"), "{e}");
        s.max_model_len = Some(1600);
        assert_eq!(s.resolve().unwrap().max_model_len, 1600);
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let mut s = spec("llama-3.1-8b", "h100");
        s.tp = 3;
        s.block_size = 0;
        s.gpu_memory_utilization = 1.5;
        s.max_num_seqs = Some(64);
        s.max_num_batched_tokens = Some(32);
        assert_eq!(s.resolve().unwrap_err().0.len(), 4);
        let e = EngineSpec::named("lama-3.1-8b", "h10").unwrap_err();
        assert_eq!(e.0.len(), 2);
        assert_eq!(e.0[0].nearest.as_deref(), Some("llama-3.1-8b"));
    }

    #[test]
    fn a_model_too_large_says_what_is_missing() {
        let e = spec("llama-3.1-70b", "h100").resolve().unwrap_err().to_string();
        assert!(e.contains("131.4 GiB of weights") && e.contains("tensor-parallel-size"), "{e}");
    }
}
