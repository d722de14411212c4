//! What the engine knows of a model: its dimensions, and what follows from them.

use std::borrow::Cow;

/// How keys and values are made and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Grouped queries (multi-head attention included): `kv_heads` heads of keys and values.
    Grouped,
    /// Multi-head latent attention (DeepSeek V2 and V3): one compressed vector per token, which every GPU of
    /// a tensor parallel group keeps in full.
    Latent {
        /// `q_lora_rank`, 0 if queries are not compressed.
        q_rank: u32,
        /// `kv_lora_rank`.
        kv_rank: u32,
        /// `qk_nope_head_dim`.
        nope_dim: u32,
        /// `qk_rope_head_dim`.
        rope_dim: u32,
        /// `v_head_dim`.
        value_dim: u32,
    },
}

/// The mixture-of-experts part of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moe {
    /// Routed experts per layer.
    pub experts: u32,
    /// Routed experts each token visits.
    pub per_token: u32,
    /// Width of one expert's MLP.
    pub intermediate: u32,
    /// Width of all shared experts together; 0 without.
    pub shared: u32,
    /// Layers without experts, which have the dense MLP.
    pub dense_layers: u32,
    /// Bytes per weight of the experts, shared ones included.
    pub bytes: f64,
}

/// Layers that look back a limited number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens looked at.
    pub tokens: u32,
    /// Layers that do so; the others look at everything.
    pub layers: u32,
}

/// The dimensions of a decoder-only transformer with gated MLPs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Short name, the one the command line takes.
    pub name: Cow<'static, str>,
    /// Repository on Hugging Face.
    pub hf_id: Cow<'static, str>,
    /// `num_hidden_layers`.
    pub layers: u32,
    /// `hidden_size`.
    pub hidden: u32,
    /// `num_attention_heads`.
    pub heads: u32,
    /// `num_key_value_heads`.
    pub kv_heads: u32,
    /// `head_dim`, or hidden / heads where the file has none.
    pub head_dim: u32,
    /// `intermediate_size`: width of the dense MLP.
    pub intermediate: u32,
    /// `vocab_size`.
    pub vocab: u32,
    /// `tie_word_embeddings`: the output head shares the embedding's weights.
    pub tied: bool,
    /// `max_position_embeddings`, in tokens.
    pub max_positions: u32,
    /// Bytes per weight outside the experts.
    pub weight_bytes: f64,
    /// Bytes per key or value element.
    pub kv_bytes: u32,
    /// Keys and values.
    pub attention: Attention,
    /// Experts, if the model has them.
    pub moe: Option<Moe>,
    /// Sliding windows, if the model has them.
    pub window: Option<Window>,
    /// Memory of all GPUs together that text does not use, in bytes: a vision tower, and what the start-up
    /// profile sets aside for it.
    pub idle_bytes: u64,
}

impl ModelConfig {
    /// Attention weights of one layer.
    pub fn attention_params(&self) -> u64 {
        let (d, heads) = (u64::from(self.hidden), u64::from(self.heads));
        match self.attention {
            Attention::Grouped => {
                let (q, kv) =
                    (heads * u64::from(self.head_dim), u64::from(self.kv_heads) * u64::from(self.head_dim));
                2 * d * q + 2 * d * kv
            }
            Attention::Latent { q_rank, kv_rank, nope_dim, rope_dim, value_dim } => {
                let (rank, nope, rope, value) =
                    (u64::from(kv_rank), u64::from(nope_dim), u64::from(rope_dim), u64::from(value_dim));
                let q_out = heads * (nope + rope);
                let q = match u64::from(q_rank) {
                    0 => d * q_out,
                    r => d * r + r * q_out,
                };
                q + d * (rank + rope) + rank * heads * (nope + value) + heads * value * d
            }
        }
    }

    /// Layers with experts.
    pub fn moe_layers(&self) -> u32 {
        self.moe.map_or(0, |m| self.layers.saturating_sub(m.dense_layers))
    }

    /// Weights of one routed expert of one layer (gate, up and down matrices), or 0 for a dense model.
    pub fn expert_params(&self) -> u64 {
        self.moe.map_or(0, |m| 3 * u64::from(self.hidden) * u64::from(m.intermediate))
    }

    /// Weights of the shared experts of all layers.
    pub fn shared_params(&self) -> u64 {
        self.moe
            .map_or(0, |m| u64::from(self.moe_layers()) * 3 * u64::from(self.hidden) * u64::from(m.shared))
    }

    /// Weights of all layers that every token uses, without shared experts: attention, dense MLPs, and the
    /// experts' routers.
    pub fn dense_params(&self) -> u64 {
        let d = u64::from(self.hidden);
        let moe_layers = u64::from(self.moe_layers());
        let routers = self.moe.map_or(0, |m| moe_layers * d * u64::from(m.experts));
        let layers = u64::from(self.layers);
        layers * self.attention_params()
            + (layers - moe_layers) * 3 * d * u64::from(self.intermediate)
            + routers
    }

    /// Weights of the output head, which each step reads in full.
    pub fn head_params(&self) -> u64 {
        u64::from(self.vocab) * u64::from(self.hidden)
    }

    /// Weights of all routed experts of all layers.
    pub fn routed_params(&self) -> u64 {
        self.moe.map_or(0, |m| u64::from(self.moe_layers()) * u64::from(m.experts) * self.expert_params())
    }

    /// All weights in memory: layers, embedding, and the output head unless it is tied.
    pub fn total_params(&self) -> u64 {
        self.dense_params()
            + self.shared_params()
            + self.routed_params()
            + self.head_params() * if self.tied { 1 } else { 2 }
    }

    /// Memory of all weights, in bytes.
    pub fn total_bytes(&self) -> f64 {
        let experts = (self.shared_params() + self.routed_params()) as f64;
        let rest = self.total_params() as f64 - experts;
        rest * self.weight_bytes + experts * self.moe.map_or(0.0, |m| m.bytes) + self.idle_bytes as f64
    }

    /// Layers whose keys and values grow with the context.
    pub fn full_layers(&self) -> u32 {
        self.layers.saturating_sub(self.window.map_or(0, |w| w.layers))
    }

    /// Bytes of keys and values of one token in one layer on one of `tp` GPUs. A KV head is never split: with
    /// more GPUs than KV heads, heads are replicated, and so is a latent vector.
    pub fn kv_bytes_per_layer(&self, tp: u32) -> u64 {
        let elements = match self.attention {
            Attention::Grouped => 2 * u64::from(self.kv_heads.div_ceil(tp.max(1))) * u64::from(self.head_dim),
            Attention::Latent { kv_rank, rope_dim, .. } => u64::from(kv_rank) + u64::from(rope_dim),
        };
        elements * u64::from(self.kv_bytes)
    }

    /// Bytes of keys and values of one token on one of `tp` GPUs, in the layers where they stay.
    pub fn kv_bytes_per_token(&self, tp: u32) -> u64 {
        u64::from(self.full_layers()) * self.kv_bytes_per_layer(tp)
    }

    /// Multiplications and additions of one layer's attention for one pair of a query and an earlier token.
    /// A latent model that decodes attends in the compressed space.
    pub fn pair_flops(&self, decode: bool) -> f64 {
        let heads = f64::from(self.heads);
        match self.attention {
            Attention::Grouped => 4.0 * heads * f64::from(self.head_dim),
            Attention::Latent { kv_rank, rope_dim, .. } if decode => {
                2.0 * heads * (2.0 * f64::from(kv_rank) + f64::from(rope_dim))
            }
            Attention::Latent { nope_dim, rope_dim, value_dim, .. } => {
                2.0 * heads * f64::from(nope_dim + rope_dim + value_dim)
            }
        }
    }
}
