//! The counters and histograms behind `/metrics`, with the names, types, labels and buckets of vLLM 0.32.

use forebay_base::{Nanos, Span};
use forebay_engine::{Published, Resolved};
use forebay_wire::prom::{Buckets, Kind, Writer};

/// A histogram with fixed bounds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: Vec<f64>,
    /// Values in each bucket alone; the last is for those above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &[f64]) -> Histogram {
        Histogram { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(crate) fn record(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|&b| b < value)] += 1;
        self.sum += value;
    }

    fn write(&self, w: &mut Writer, name: &str, help: &str, labels: &[(&str, &str)], created: f64) {
        let mut cumulative = 0;
        let buckets: Vec<(f64, u64)> = self
            .bounds
            .iter()
            .zip(&self.counts)
            .map(|(&bound, &n)| {
                cumulative += n;
                (bound, cumulative)
            })
            .collect();
        let count = self.counts.iter().sum();
        w.histogram(name, help, labels, &Buckets { buckets: &buckets, count, sum: self.sum, created });
    }
}

const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const PER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const ITERATION: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// 1, 2, 5, 10, … up to the longest sequence.
fn token_bounds(max: u32) -> Vec<f64> {
    let scales = std::iter::successors(Some(1u64), |s| Some(s * 10));
    scales.flat_map(|s| [s, 2 * s, 5 * s]).take_while(|&b| b <= u64::from(max)).map(|b| b as f64).collect()
}

/// How a request ended, as `finished_reason` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    Stop,
    Length,
    Abort,
}

/// What is known of a request when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) arrived: Nanos,
    pub(crate) admitted: Nanos,
    /// The first time that tokens of it were scheduled.
    pub(crate) scheduled: Option<Nanos>,
    pub(crate) first: Nanos,
    pub(crate) last: Nanos,
    pub(crate) prompt: u32,
    pub(crate) cached: u32,
    pub(crate) generated: u32,
    pub(crate) preemptions: u32,
    pub(crate) max_tokens: u32,
    pub(crate) n: u32,
}

/// Everything that the engine does not count itself.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    created: f64,
    finished: [u64; 3],
    prompt_cached: u64,
    ttft: Histogram,
    itl: Histogram,
    tpot: Histogram,
    e2e: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt: Histogram,
    generation: Histogram,
    max_generation: Histogram,
    max_tokens: Histogram,
    params_n: Histogram,
    preemptions: Histogram,
    computed: Histogram,
    iteration: Histogram,
    /// Tokens since the last step end, as vLLM counts an iteration: prompts whose first token is out,
    /// without what was cached, and generated tokens.
    in_iteration: u64,
}

impl Metrics {
    /// All zero; `created` is the time in seconds since the epoch.
    pub(crate) fn new(max_model_len: u32, created: f64) -> Metrics {
        let tokens = Histogram::new(&token_bounds(max_model_len));
        let latency = Histogram::new(LATENCY);
        Metrics {
            created,
            finished: [0; 3],
            prompt_cached: 0,
            ttft: Histogram::new(FIRST_TOKEN),
            itl: Histogram::new(PER_TOKEN),
            tpot: Histogram::new(PER_TOKEN),
            e2e: latency.clone(),
            queue: latency.clone(),
            inference: latency.clone(),
            prefill: latency.clone(),
            decode: latency,
            prompt: tokens.clone(),
            generation: tokens.clone(),
            max_generation: tokens.clone(),
            max_tokens: tokens.clone(),
            params_n: Histogram::new(&[1.0, 2.0, 5.0, 10.0, 20.0]),
            preemptions: Histogram::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0]),
            computed: tokens,
            iteration: Histogram::new(ITERATION),
            in_iteration: 0,
        }
    }

    /// The first token of a request is out.
    pub(crate) fn first_token(&mut self, ttft: Span, prompt: u32, cached: u32) {
        self.ttft.record(ttft.as_secs_f64());
        self.prompt_cached += u64::from(cached);
        self.in_iteration += u64::from(prompt - cached) + 1;
    }

    /// A later token is out, `gap` after the one before it.
    pub(crate) fn next_token(&mut self, gap: Span) {
        self.itl.record(gap.as_secs_f64());
        self.in_iteration += 1;
    }

    pub(crate) fn step_end(&mut self) {
        self.iteration.record(self.in_iteration as f64);
        self.in_iteration = 0;
    }

    pub(crate) fn aborted(&mut self) {
        self.finished[Finished::Abort as usize] += 1;
    }

    pub(crate) fn finished(&mut self, why: Finished, life: &Life) {
        self.finished[why as usize] += 1;
        let decode = life.last.since(life.first).as_secs_f64();
        self.e2e.record(life.last.since(life.arrived).as_secs_f64());
        self.queue.record(life.admitted.since(life.arrived).as_secs_f64());
        self.prefill.record(life.first.since(life.admitted).as_secs_f64());
        self.inference.record(life.last.since(life.admitted).as_secs_f64());
        self.decode.record(decode);
        if life.generated > 1 {
            self.tpot.record(decode / f64::from(life.generated - 1));
        }
        self.prompt.record(f64::from(life.prompt));
        self.generation.record(f64::from(life.generated));
        self.max_generation.record(f64::from(life.generated));
        self.max_tokens.record(f64::from(life.max_tokens));
        self.params_n.record(f64::from(life.n));
        self.preemptions.record(f64::from(life.preemptions));
        self.computed.record(f64::from(life.prompt - life.cached));
    }

    /// The exposition.
    pub(crate) fn render(&self, model: &str, config: &Resolved, p: &Published) -> String {
        let mut w = Writer::default();
        let base = [("engine", "0"), ("model_name", model)];
        self.gauges(&mut w, &base, p);
        self.counters(&mut w, &base, p);
        self.histograms(&mut w, &base);
        cache_config(&mut w, config);
        w.into_text()
    }

    fn gauges(&self, w: &mut Writer, base: &Labels<'_>, p: &Published) {
        for (what, help) in [
            (
                "estimated_flops_per_gpu",
                "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
            ),
            (
                "estimated_read_bytes_per_gpu",
                "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
            ),
            (
                "estimated_write_bytes_per_gpu",
                "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
            ),
        ] {
            self.counter(w, what, help, &[(base, 0.0)]);
        }
        let waiting = f64::from(p.waiting);
        w.gauge(
            "vllm:num_requests_running",
            "Number of requests in model execution batches.",
            base,
            f64::from(p.running),
        );
        w.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", base, waiting);
        let name = "vllm:num_requests_waiting_by_reason";
        w.family(
            name,
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; \
             'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of \
             all reasons equals vllm:num_requests_waiting.",
            Kind::Gauge,
        );
        w.sample(name, &with(base, "reason", "capacity"), waiting);
        w.sample(name, &with(base, "reason", "deferred"), 0.0);
        let name = "vllm:engine_sleep_state";
        w.family(
            name,
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
             weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            Kind::Gauge,
        );
        for (state, on) in [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)] {
            w.sample(name, &with(base, "sleep_state", state), on);
        }
        w.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", base, p.kv_usage);
    }

    fn counters(&self, w: &mut Writer, base: &Labels<'_>, p: &Published) {
        let one = |w: &mut Writer, what: &str, help: &str, n: u64| {
            self.counter(w, what, help, &[(base, n as f64)]);
        };
        one(
            w,
            "prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            p.prefix_queries,
        );
        one(w, "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", p.prefix_hits);
        let sharing = "from KV connector cross-instance cache sharing, in terms of number of";
        one(
            w,
            "external_prefix_cache_queries",
            &format!("External prefix cache queries {sharing} queried tokens."),
            0,
        );
        one(
            w,
            "external_prefix_cache_hits",
            &format!("External prefix cache hits {sharing} cached tokens."),
            0,
        );
        one(w, "mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", 0);
        one(w, "mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", 0);
        one(w, "num_preemptions", "Cumulative number of preemption from the engine.", p.preemptions);
        one(w, "prompt_tokens", "Number of prefill tokens processed.", p.prompt_tokens);
        let computed = p.prompt_tokens.saturating_sub(self.prompt_cached) as f64;
        let cached = self.prompt_cached as f64;
        self.labelled(
            w,
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            base,
            "source",
            &[("local_compute", computed), ("local_cache_hit", cached), ("external_kv_transfer", 0.0)],
        );
        one(
            w,
            "prompt_tokens_cached",
            "Number of cached prompt tokens (local + external).",
            self.prompt_cached,
        );
        self.labelled(
            w,
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to \
             DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at \
             admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            base,
            "source",
            &[
                ("device", p.prefix_hits as f64),
                ("host", 0.0),
                ("p2p", 0.0),
                ("disk", 0.0),
                ("external_unspecified", 0.0),
            ],
        );
        one(w, "generation_tokens", "Number of generation tokens processed.", p.generation_tokens);
        self.endings(w, base);
    }

    fn endings(&self, w: &mut Writer, base: &Labels<'_>) {
        let ended = |f: Finished| self.finished[f as usize] as f64;
        self.labelled(
            w,
            "request_success",
            "Count of successfully processed requests.",
            base,
            "finished_reason",
            &[
                ("stop", ended(Finished::Stop)),
                ("length", ended(Finished::Length)),
                ("abort", ended(Finished::Abort)),
                ("error", 0.0),
                ("repetition", 0.0),
            ],
        );
        self.labelled(
            w,
            "admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            &base[1..],
            "reason",
            &[("max_num_queued_reqs", 0.0), ("max_num_queued_tokens", 0.0)],
        );
    }

    fn histograms(&self, w: &mut Writer, base: &Labels<'_>) {
        let all: [(&Histogram, &str, &str); 16] = [
            (&self.prompt, "request_prompt_tokens", "Number of prefill tokens processed."),
            (&self.generation, "request_generation_tokens", "Number of generation tokens processed."),
            (&self.iteration, "iteration_tokens_total", "Histogram of number of tokens per engine_step."),
            (
                &self.max_generation,
                "request_max_num_generation_tokens",
                "Histogram of maximum number of requested generation tokens.",
            ),
            (&self.params_n, "request_params_n", "Histogram of the n request parameter."),
            (&self.max_tokens, "request_params_max_tokens", "Histogram of the max_tokens request parameter."),
            (&self.ttft, "time_to_first_token_seconds", "Histogram of time to first token in seconds."),
            (&self.itl, "inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
            (
                &self.tpot,
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
            ),
            (&self.e2e, "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."),
            (
                &self.queue,
                "request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
            ),
            (
                &self.inference,
                "request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
            ),
            (
                &self.prefill,
                "request_prefill_time_seconds",
                "Histogram of time spent in PREFILL phase for request.",
            ),
            (
                &self.decode,
                "request_decode_time_seconds",
                "Histogram of time spent in DECODE phase for request.",
            ),
            (
                &self.preemptions,
                "request_num_preemptions",
                "Histogram of the number of times a request was preempted.",
            ),
            (
                &self.computed,
                "request_prefill_kv_computed_tokens",
                "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            ),
        ];
        for (histogram, name, help) in all {
            histogram.write(w, &format!("vllm:{name}"), help, base, self.created);
        }
    }

    fn counter(&self, w: &mut Writer, what: &str, help: &str, series: &[(&Labels<'_>, f64)]) {
        w.counter(&format!("vllm:{what}"), help, series, self.created);
    }

    /// A counter with one series per value of one more label.
    fn labelled(
        &self,
        w: &mut Writer,
        what: &str,
        help: &str,
        base: &Labels<'_>,
        label: &str,
        values: &[(&str, f64)],
    ) {
        let labels: Vec<Vec<(&str, &str)>> =
            values.iter().map(|(value, _)| with(base, label, value)).collect();
        let series: Vec<(&Labels<'_>, f64)> =
            labels.iter().zip(values).map(|(labels, (_, n))| (labels.as_slice(), *n)).collect();
        self.counter(w, what, help, &series);
    }
}

type Labels<'a> = [(&'a str, &'a str)];

fn with<'a>(base: &Labels<'a>, label: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut labels = base.to_vec();
    labels.push((label, value));
    labels
}

/// `vllm:cache_config_info`: the cache's settings as labels.
fn cache_config(w: &mut Writer, config: &Resolved) {
    let spec = &config.spec;
    let flag = |on: bool| if on { "True" } else { "False" };
    let tokens = u64::from(config.num_gpu_blocks) * u64::from(spec.block_size);
    let (size, blocks) = (spec.block_size.to_string(), config.num_gpu_blocks.to_string());
    let concurrency = format!("{:?}", tokens as f64 / f64::from(config.max_model_len));
    let (bytes, tokens) = (config.kv_bytes_per_gpu.to_string(), tokens.to_string());
    let utilization = spec.gpu_memory_utilization.to_string();
    let overridden = spec.num_gpu_blocks_override.map_or_else(|| "None".to_owned(), |n| n.to_string());
    let labels = [
        ("_block_size_resolved", "True"),
        ("block_size", &size),
        ("cache_dtype", "auto"),
        ("cache_hit_alignment_tokens", "None"),
        ("effective_attention_block_size", &size),
        ("enable_mamba_shared_prefix_checkpoint", "False"),
        ("enable_prefix_caching", flag(spec.prefix_caching)),
        ("engine", "0"),
        ("gpu_memory_utilization", &utilization),
        ("hash_block_size", "None"),
        ("is_attention_free", "False"),
        ("kv_cache_dtype_skip_layers", "[]"),
        ("kv_cache_layout", "None"),
        ("kv_cache_max_concurrency", &concurrency),
        ("kv_cache_memory_bytes", &bytes),
        ("kv_cache_size_tokens", &tokens),
        ("kv_offloading_backend", "native"),
        ("kv_offloading_size", "None"),
        ("kv_sharing_fast_prefill", "False"),
        ("mamba_block_size", "None"),
        ("mamba_cache_dtype", "auto"),
        ("mamba_cache_mode", "none"),
        ("mamba_page_size_padded", "None"),
        ("mamba_ssm_cache_dtype", "float32"),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", &blocks),
        ("num_gpu_blocks_override", &overridden),
        ("prefix_cache_retention_interval", "0"),
        ("prefix_caching_hash_algo", "sha256"),
        ("prefix_match_unit", "None"),
        ("replayssm_buffer_len", "16"),
        ("skip_page_size_padded", "None"),
        ("sliding_window", "None"),
        ("swa_bounded_replay", "True"),
        ("use_kda_recoverssm", "False"),
        ("use_replayssm", "False"),
        ("user_specified_block_size", flag(spec.block_size != 16)),
    ];
    w.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", &labels, 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_buckets_end_at_the_longest_sequence() {
        assert_eq!(token_bounds(2048).last(), Some(&2000.0));
        assert_eq!(token_bounds(2048).len(), 11);
        assert_eq!(token_bounds(5), [1.0, 2.0, 5.0]);
    }

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let mut h = Histogram::new(&[1.0, 2.0]);
        for v in [0.5, 1.0, 1.5, 2.0, 3.0] {
            h.record(v);
        }
        let mut w = Writer::default();
        h.write(&mut w, "h", "H.", &[], 1.0);
        let text = w.into_text();
        for line in
            ["h_bucket{le=\"1.0\"} 2.0", "h_bucket{le=\"2.0\"} 4.0", "h_bucket{le=\"+Inf\"} 5.0", "h_sum 8.0"]
        {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
