//! Step times: a physical roofline in integer picoseconds.
//!
//! A step costs
//!
//! ```text
//! step + layers * layer + expert layers * experts [+ layers * mixed]
//! + sequences * sequence + tokens chosen * vocabulary / 1000 * sampling
//! + max(linear FLOPs / compute, weight bytes / bandwidth)    one pass over the layers and the head
//! + exposed * min(the same two)
//! + per prefill chunk: max(attention FLOPs / compute, KV bytes read / kv)
//! + per decode: context tokens * max(the same two, per context token), and the windows in full
//! + KV bytes written / kv
//! + 2 * layers * (collective + bytes / link)                 with more than one GPU
//! ```
//!
//! Every coefficient is rounded once to whole picoseconds; after that only integers are added, so a
//! sum over many steps in closed form equals the sum step by step. The only part that changes from one
//! pure decode step to the next is the context, and it is linear: see [`StepCost`].

use crate::hardware::Hardware;
use crate::model::ModelConfig;
use forebay_base::Span;

/// What one batch composition costs: constant as long as the same sequences decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Everything that does not depend on the decodes' context, in picoseconds.
    pub fixed_ps: u64,
    /// Each context token of each decoding sequence, in picoseconds.
    pub per_context_token_ps: u64,
}

impl StepCost {
    /// The duration in picoseconds of a step whose decodes attend to `context_tokens` in sum.
    pub fn duration_ps(self, context_tokens: u64) -> u128 {
        u128::from(self.fixed_ps) + u128::from(self.per_context_token_ps) * u128::from(context_tokens)
    }
}

/// What a step carries, as far as its cost is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Composition {
    /// Sequences that decode one token.
    pub decodes: u32,
    /// Sequences that run a prefill chunk.
    pub prefills: u32,
    /// Tokens in all prefill chunks.
    pub prefill_tokens: u32,
    /// Sequences that produce a token, and so need the output head.
    pub sampled: u32,
    /// Attention cost of the prefill chunks, from [`Latency::prefill_attention_ps`].
    pub prefill_attention_ps: u64,
}

/// What many steps carried in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Steps.
    pub steps: u64,
    /// Prompt tokens that were computed.
    pub prefill_tokens: u64,
    /// Pairs of a computed prompt token and a token it attends to.
    pub prefill_pairs: u128,
    /// Tokens that were generated.
    pub decode_tokens: u64,
    /// Context tokens that these attended to.
    pub decode_context: u128,
}

/// How long some work would keep each resource of a server busy, in seconds. Compute and memory overlap in
/// a step, host time does not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Compute of prompts.
    pub prefill_compute: f64,
    /// Compute of generated tokens in the linear layers and the head.
    pub decode_compute: f64,
    /// Reading the weights, once a step.
    pub weights: f64,
    /// Reading the KV cache of generated tokens, and writing all tokens'.
    pub kv: f64,
    /// Overheads of steps and sequences, and collectives.
    pub host: f64,
}

/// The coefficients for one model on one kind of hardware.
#[derive(Clone, Debug)]
pub struct Latency {
    /// All of a step that does not depend on what it carries.
    step_ps: u64,
    sequence_ps: u64,
    sampling_ps: u64,
    mixed_ps: u64,
    /// Linear layers' compute, per token.
    linear_ps: u64,
    /// Thousandths of the shorter of compute and reads that the longer does not hide.
    exposed: u64,
    /// Output head's compute, per sampled sequence.
    head_ps: u64,
    /// Reading all weights that every step needs.
    weights_ps: u64,
    /// Reading the experts that a batch of `index` tokens touches in expectation; the last entry holds
    /// for all larger batches. Empty for dense models.
    experts_ps: Vec<u64>,
    /// Attention compute per pair of (new token, token attended to), in prefill.
    pair_ps: u64,
    /// One context token of a decode.
    context_ps: u64,
    /// The layers with a window, per decode: they are taken as full.
    window_ps: u64,
    /// Reading the KV of one token.
    kv_ps: u64,
    /// Writing the KV of one token.
    write_ps: u64,
    /// Collectives, per token.
    collective_token_ps: u64,
    /// The largest captured graph, in tokens; 0 runs everything without graphs.
    max_capture: u32,
    /// Distance of the captured sizes above 256.
    capture_step: u32,
    /// Time of a request outside the engine.
    pub(crate) request: Span,
}

/// Seconds to whole picoseconds.
fn ps(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

fn span_ps(s: Span) -> u64 {
    s.0.saturating_mul(1000)
}

impl Latency {
    /// The coefficients of `model` on `tp` GPUs of type `hw`, with graphs captured for up to
    /// `2 * max_num_seqs` tokens and 512 at most, `capture_step` apart above 256, as vLLM does.
    pub fn new(model: &ModelConfig, hw: &Hardware, tp: u32, max_num_seqs: u32, capture_step: u32) -> Latency {
        let f = &hw.factors;
        let gpus = f64::from(tp);
        let flops = hw.tflops * 1e12 * f.compute * gpus;
        let flops_of = |bytes: f64| if bytes <= 1.0 { flops * hw.tflops_fp8 / hw.tflops } else { flops };
        let read = hw.memory_tb_s * 1e12 * f.bandwidth * gpus;
        let kv_read = hw.memory_tb_s * 1e12 * f.kv;
        let (layers, moe_layers) = (u64::from(model.layers), u64::from(model.moe_layers()));
        let expert_bytes = model.moe.map_or(2.0, |m| m.bytes);
        let per_token = model.moe.map_or(0.0, |m| moe_layers as f64 * f64::from(m.per_token));
        let active = per_token * model.expert_params() as f64 + model.shared_params() as f64;
        let linear = 2.0 * model.dense_params() as f64 / flops_of(model.weight_bytes)
            + 2.0 * active / flops_of(expert_bytes);
        let common = (model.dense_params() + model.head_params()) as f64 * model.weight_bytes
            + model.shared_params() as f64 * expert_bytes;
        let kv_layer = model.kv_bytes_per_layer(tp) as f64 / kv_read;
        let full = f64::from(model.full_layers());
        let kv_ps = ps(full * kv_layer);
        let (collective_ps, collective_token_ps) = if tp > 1 {
            // A ring moves 2 (tp - 1) / tp of the activations over each link; two all-reduces per layer.
            let share = 2.0 * (gpus - 1.0) / gpus;
            let bytes = 2.0 * layers as f64 * f64::from(model.hidden) * 2.0 * share;
            (span_ps(f.collective) * 2 * layers, ps(bytes / (hw.link_gb_s * 1e9 * f.link)))
        } else {
            (0, 0)
        };
        Latency {
            step_ps: span_ps(f.step)
                + layers * span_ps(f.layer)
                + moe_layers * span_ps(f.experts)
                + collective_ps,
            sequence_ps: span_ps(f.sequence),
            sampling_ps: f.sampling.0 * u64::from(model.vocab),
            mixed_ps: span_ps(f.mixed) * layers,
            linear_ps: ps(linear),
            exposed: (f.exposed * 1000.0).round() as u64,
            head_ps: ps(2.0 * model.head_params() as f64 / flops),
            weights_ps: ps(common / read),
            experts_ps: expert_reads(model, |experts| {
                ps(experts * moe_layers as f64 * model.expert_params() as f64 * expert_bytes / read)
            }),
            pair_ps: ps(full * model.pair_flops(false) / flops),
            context_ps: kv_ps.max(ps(full * model.pair_flops(true) / flops)),
            window_ps: model.window.map_or(0, |w| ps(f64::from(w.layers) * f64::from(w.tokens) * kv_layer)),
            kv_ps,
            write_ps: ps(layers as f64 * kv_layer),
            collective_token_ps,
            max_capture: if hw.is_cpu() { 0 } else { max_num_seqs.saturating_mul(2).min(512) },
            capture_step,
            request: f.request,
        }
    }

    /// Attention cost of a prefill chunk of `tokens` behind `context` earlier tokens, in picoseconds.
    pub fn prefill_attention_ps(&self, tokens: u32, context: u32) -> u64 {
        let (t, c) = (u64::from(tokens), u64::from(context));
        let pairs = t * c + t * (t + 1) / 2;
        (pairs * self.pair_ps).max((c + t) * self.kv_ps)
    }

    /// The cost of one composition.
    pub fn cost(&self, c: &Composition) -> StepCost {
        let tokens = c.decodes + c.prefill_tokens;
        let padded = u64::from(self.padded(tokens));
        let compute = padded * self.linear_ps + u64::from(c.sampled) * self.head_ps;
        let experts = match self.experts_ps.as_slice() {
            [] => 0,
            table => table[(tokens as usize).min(table.len() - 1)],
        };
        let reads = self.weights_ps + experts;
        let fixed_ps = self.step_ps
            + u64::from(c.decodes + c.prefills) * self.sequence_ps
            + u64::from(c.sampled) * self.sampling_ps
            + u64::from(c.decodes) * self.window_ps
            + if c.prefills > 0 { self.mixed_ps } else { 0 }
            + compute.max(reads)
            + compute.min(reads) * self.exposed / 1000
            + c.prefill_attention_ps
            + u64::from(tokens) * self.write_ps
            + padded * self.collective_token_ps;
        StepCost { fixed_ps, per_context_token_ps: self.context_ps }
    }

    /// What work asks of a server's resources, without padding and as if no step mixed prefill and decode;
    /// experts are read as an average step reads them.
    pub fn demand(&self, w: &Work) -> Demand {
        let seconds = |count: f64, ps: u64| count * ps as f64 / 1e12;
        let (steps, prefill, decode) = (w.steps as f64, w.prefill_tokens as f64, w.decode_tokens as f64);
        let tokens = prefill + decode;
        let experts = match self.experts_ps.as_slice() {
            [] => 0,
            table => table[((tokens / steps.max(1.0)) as usize).min(table.len() - 1)],
        };
        Demand {
            prefill_compute: seconds(prefill, self.linear_ps) + seconds(w.prefill_pairs as f64, self.pair_ps),
            decode_compute: seconds(decode, self.linear_ps + self.head_ps),
            weights: seconds(steps, self.weights_ps + experts),
            kv: seconds(w.decode_context as f64, self.context_ps)
                + seconds(decode, self.window_ps)
                + seconds(tokens, self.write_ps),
            host: seconds(steps, self.step_ps)
                + seconds(decode, self.sequence_ps + self.sampling_ps)
                + seconds(tokens, self.collective_token_ps),
        }
    }

    /// The largest captured graph, in tokens.
    pub fn max_capture(&self) -> u32 {
        self.max_capture
    }

    /// The tokens a batch is padded to: the next captured graph size (1, 2, 4, multiples of 8 to 256,
    /// multiples of 16 above, of 8 in old versions), or itself beyond the largest.
    pub fn padded(&self, tokens: u32) -> u32 {
        let size = match tokens {
            0..=2 => tokens,
            3..=4 => 4,
            5..=256 => tokens.next_multiple_of(8),
            _ => tokens.next_multiple_of(self.capture_step),
        };
        if size <= self.max_capture { size } else { tokens }
    }
}

/// Read times of the experts a batch touches. With k of n experts chosen per token, each is missed by a
/// batch of t tokens with probability ((n - k) / n)^t. The table ends where hardly any is missed.
fn expert_reads(model: &ModelConfig, read: impl Fn(f64) -> u64) -> Vec<u64> {
    let Some(moe) = model.moe else { return Vec::new() };
    let n = f64::from(moe.experts);
    let stay = (n - f64::from(moe.per_token)) / n;
    let mut table = Vec::new();
    let mut missed = 1.0;
    while missed > 1e-9 {
        table.push(read(n * (1.0 - missed)));
        missed *= stay;
    }
    table.push(read(n));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Factors;

    /// Round numbers, so that a calibration does not move these tests.
    const ROUND: Factors = Factors {
        compute: 0.7,
        bandwidth: 0.75,
        kv: 0.6,
        exposed: 0.5,
        link: 0.7,
        collective: Span::micros(8),
        step: Span::micros(500),
        layer: Span::micros(25),
        experts: Span::micros(20),
        sequence: Span::micros(8),
        sampling: Span(50),
        mixed: Span::micros(8),
        request: Span::ZERO,
    };

    fn latency(model: &str, hw: &str, tp: u32) -> Latency {
        let hw = Hardware { factors: ROUND, ..*Hardware::find(hw).unwrap() };
        Latency::new(ModelConfig::find(model).unwrap(), &hw, tp, 256, 16)
    }

    fn decode_ms(l: &Latency, n: u32, context: u32) -> f64 {
        let c = Composition { decodes: n, sampled: n, ..Composition::default() };
        l.cost(&c).duration_ps(u64::from(n) * u64::from(context)) as f64 / 1e9
    }

    #[test]
    fn one_decode_reads_the_weights_once() {
        // 14 billion streamed parameters of 2 bytes at 75 % of 3.35 TB/s are 11.1 ms, plus 1.5 ms for step
        // and layers.
        let ms = decode_ms(&latency("qwen3-14b", "h100", 1), 1, 100);
        assert!((12.6..12.85).contains(&ms), "{ms}");
    }

    #[test]
    fn demand_is_what_steps_cost_where_nothing_hides() {
        let l = latency("qwen3-14b", "h100", 1);
        // 8 sequences decode 100 steps at a context of 1000: memory leads, compute half shows.
        let w = Work { steps: 100, decode_tokens: 800, decode_context: 800_000, ..Work::default() };
        let d = l.demand(&w);
        assert_eq!((d.prefill_compute, d.decode_compute > 0.0), (0.0, true));
        let steps = 100.0 * decode_ms(&l, 8, 1000) / 1e3;
        let sum = d.weights + d.kv + d.host + 0.5 * d.decode_compute;
        assert!((steps / sum - 1.0).abs() < 1e-3, "{steps} {sum}");
        // A prompt of 2000 tokens in one step: compute leads, reads half show.
        let w = Work { steps: 1, prefill_tokens: 2000, prefill_pairs: 2_001_000, ..Work::default() };
        let d = l.demand(&w);
        let c = Composition {
            prefills: 1,
            prefill_tokens: 2000,
            prefill_attention_ps: l.prefill_attention_ps(2000, 0),
            ..Composition::default()
        };
        let step = l.cost(&c).duration_ps(0) as f64 / 1e12;
        // A sequence and the mixed step's overhead are not in it.
        let sum = d.prefill_compute + d.kv + d.host + 0.5 * d.weights;
        assert!((step / sum - 1.0).abs() < 0.01, "{step} {sum}");
    }

    #[test]
    fn tensor_parallel_divides_the_weights_and_pays_for_collectives() {
        let one = latency("llama-3.1-70b", "h100", 1);
        let four = latency("llama-3.1-70b", "h100", 4);
        assert_eq!(four.weights_ps, (one.weights_ps + 2) / 4);
        assert_eq!(four.step_ps - one.step_ps, 160 * 8_000_000);
        assert!(one.collective_token_ps == 0 && four.collective_token_ps > 0);
    }

    #[test]
    fn long_prefills_are_compute_bound() {
        let l = latency("qwen3-14b", "h100", 1);
        let c = Composition {
            prefills: 1,
            prefill_tokens: 2048,
            sampled: 1,
            prefill_attention_ps: l.prefill_attention_ps(2048, 0),
            ..Composition::default()
        };
        let ms = l.cost(&c).duration_ps(0) as f64 / 1e9;
        // 2 * 13.2e9 * 2048 FLOPs at 70 % of 989.5 TFLOP/s are 78 ms, and half of 11 ms of reads.
        assert!((84.0..92.0).contains(&ms), "{ms}");
    }

    #[test]
    fn decodes_are_padded_to_captured_sizes() {
        let l = latency("tiny", "h100", 1);
        let pairs =
            [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (250, 256), (257, 272), (512, 512)];
        for (tokens, padded) in pairs {
            assert_eq!(l.padded(tokens), padded);
        }
        assert_eq!(l.padded(513), 513);
        let small =
            Latency::new(ModelConfig::find("tiny").unwrap(), Hardware::find("h100").unwrap(), 1, 8, 16);
        assert_eq!(small.padded(17), 17, "no graph beyond twice the sequences");
    }

    #[test]
    fn a_small_batch_touches_few_experts() {
        let l = latency("mixtral-8x7b", "h100", 2);
        assert_eq!(l.experts_ps[0], 0);
        let all = l.experts_ps[l.experts_ps.len() - 1];
        assert!((l.experts_ps[1] * 4).abs_diff(all) <= 4, "one token visits two of eight");
        assert!(l.experts_ps.windows(2).all(|w| w[0] < w[1]));
    }

    #[test]
    fn a_sum_of_steps_has_a_closed_form() {
        let l = latency("llama-3.1-8b", "h100", 1);
        let cost = l.cost(&Composition { decodes: 7, sampled: 7, ..Composition::default() });
        let step_by_step: u128 = (0..1000u64).map(|k| cost.duration_ps(3500 + 7 * k)).sum();
        let context = 1000 * 3500 + 7 * (999 * 1000 / 2);
        let closed = 1000 * u128::from(cost.fixed_ps)
            + u128::from(cost.per_context_token_ps) * u128::from(context as u64);
        assert_eq!(step_by_step, closed);
    }
}
