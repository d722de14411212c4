//! The model catalogue: dimensions as in each model's public `config.json` on Hugging Face.

use forebay_base::{Diagnostic, Diagnostics, Position};

/// The mixture-of-experts part of a model; every layer is an expert layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moe {
    /// Experts per layer (`num_local_experts`).
    pub experts: u32,
    /// Experts each token visits (`num_experts_per_tok`).
    pub per_token: u32,
    /// Width of one expert's MLP.
    pub intermediate: u32,
}

/// The dimensions of a decoder-only transformer with grouped-query attention and gated MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// Short name, the one the command line takes.
    pub name: &'static str,
    /// Repository on Hugging Face.
    pub hf_id: &'static str,
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
    /// `intermediate_size` of the dense MLP; unused where `moe` is given.
    pub intermediate: u32,
    /// `vocab_size`.
    pub vocab: u32,
    /// `tie_word_embeddings`: the output head shares the embedding's weights.
    pub tied: bool,
    /// `max_position_embeddings`, in tokens.
    pub max_positions: u32,
    /// Bytes per weight.
    pub weight_bytes: u32,
    /// Bytes per key or value element.
    pub kv_bytes: u32,
    /// Experts, if the model has them.
    pub moe: Option<Moe>,
}

const DENSE: ModelConfig = ModelConfig {
    name: "",
    hf_id: "",
    layers: 0,
    hidden: 0,
    heads: 0,
    kv_heads: 0,
    head_dim: 128,
    intermediate: 0,
    vocab: 0,
    tied: false,
    max_positions: 0,
    weight_bytes: 2,
    kv_bytes: 2,
    moe: None,
};

/// The models that ship, with 16-bit weights. `tiny` is made up, for tests: two layers of 256.
pub const MODELS: &[ModelConfig] = &[
    ModelConfig {
        name: "qwen3-14b",
        hf_id: "Qwen/Qwen3-14B",
        layers: 40,
        hidden: 5120,
        heads: 40,
        kv_heads: 8,
        intermediate: 17408,
        vocab: 151_936,
        max_positions: 40960,
        ..DENSE
    },
    ModelConfig {
        name: "llama-3.1-8b",
        hf_id: "meta-llama/Llama-3.1-8B-Instruct",
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        intermediate: 14336,
        vocab: 128_256,
        max_positions: 131_072,
        ..DENSE
    },
    ModelConfig {
        name: "llama-3.1-70b",
        hf_id: "meta-llama/Llama-3.1-70B-Instruct",
        layers: 80,
        hidden: 8192,
        heads: 64,
        kv_heads: 8,
        intermediate: 28672,
        vocab: 128_256,
        max_positions: 131_072,
        ..DENSE
    },
    ModelConfig {
        name: "qwen2.5-7b",
        hf_id: "Qwen/Qwen2.5-7B-Instruct",
        layers: 28,
        hidden: 3584,
        heads: 28,
        kv_heads: 4,
        intermediate: 18944,
        vocab: 152_064,
        max_positions: 32768,
        ..DENSE
    },
    ModelConfig {
        name: "mixtral-8x7b",
        hf_id: "mistralai/Mixtral-8x7B-Instruct-v0.1",
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        intermediate: 14336,
        vocab: 32000,
        max_positions: 32768,
        moe: Some(Moe { experts: 8, per_token: 2, intermediate: 14336 }),
        ..DENSE
    },
    ModelConfig {
        name: "tiny",
        hf_id: "forebay/tiny",
        layers: 2,
        hidden: 256,
        heads: 8,
        kv_heads: 8,
        head_dim: 32,
        intermediate: 512,
        vocab: 1024,
        tied: true,
        max_positions: 2048,
        ..DENSE
    },
];

impl ModelConfig {
    /// Looks a model up by short name or Hugging Face id, ignoring case; the error names the nearest.
    pub fn find(name: &str) -> Result<&'static ModelConfig, Diagnostics> {
        MODELS
            .iter()
            .find(|m| m.name.eq_ignore_ascii_case(name) || m.hf_id.eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let names: Vec<&str> = MODELS.iter().flat_map(|m| [m.name, m.hf_id]).collect();
                let short: Vec<&str> = MODELS.iter().map(|m| m.name).collect();
                let what = format!("unknown model \"{name}\"");
                let d = Diagnostic::error(Position::default(), "model", what);
                Diagnostics(vec![d.expected(format!("one of {}", short.join(", "))).nearest_of(name, names)])
            })
    }

    /// Attention weights of one layer: the query, key, value and output projections.
    fn attention_params(&self) -> u64 {
        let (d, q, kv) = (
            u64::from(self.hidden),
            u64::from(self.heads) * u64::from(self.head_dim),
            u64::from(self.kv_heads) * u64::from(self.head_dim),
        );
        2 * d * q + 2 * d * kv
    }

    /// Weights of one expert of one layer (gate, up and down matrices), or 0 for a dense model.
    pub fn expert_params(&self) -> u64 {
        self.moe.map_or(0, |m| 3 * u64::from(self.hidden) * u64::from(m.intermediate))
    }

    /// Weights of all layers that every token uses: attention, and the dense MLP or the experts' router.
    pub fn dense_params(&self) -> u64 {
        let d = u64::from(self.hidden);
        let mlp = match self.moe {
            None => 3 * d * u64::from(self.intermediate),
            Some(m) => d * u64::from(m.experts),
        };
        u64::from(self.layers) * (self.attention_params() + mlp)
    }

    /// Weights of the output head, which each step reads in full.
    pub fn head_params(&self) -> u64 {
        u64::from(self.vocab) * u64::from(self.hidden)
    }

    /// All weights in memory: layers, embedding, and the output head unless it is tied.
    pub fn total_params(&self) -> u64 {
        let experts =
            self.moe.map_or(0, |m| u64::from(self.layers) * u64::from(m.experts) * self.expert_params());
        self.dense_params() + experts + self.head_params() * if self.tied { 1 } else { 2 }
    }

    /// Bytes of keys and values of one token on one of `tp` GPUs. A KV head is never split: with more
    /// GPUs than KV heads, heads are replicated.
    pub fn kv_bytes_per_token(&self, tp: u32) -> u64 {
        let heads = u64::from(self.kv_heads.div_ceil(tp.max(1)));
        2 * u64::from(self.layers) * heads * u64::from(self.head_dim) * u64::from(self.kv_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_sizes() {
        // Billions, to within a percent of what the model cards say.
        let published = [
            ("qwen3-14b", 14.77),
            ("llama-3.1-8b", 8.03),
            ("llama-3.1-70b", 70.55),
            ("qwen2.5-7b", 7.62),
            ("mixtral-8x7b", 46.7),
        ];
        for (name, billions) in published {
            let got = ModelConfig::find(name).unwrap().total_params() as f64 / 1e9;
            assert!((got / billions - 1.0).abs() < 0.01, "{name}: {got}");
        }
    }

    #[test]
    fn names_are_found_and_slips_are_pointed_out() {
        assert_eq!(ModelConfig::find("Qwen/Qwen3-14B").unwrap().name, "qwen3-14b");
        let e = ModelConfig::find("qwen3-14").unwrap_err();
        assert_eq!(e.0[0].nearest.as_deref(), Some("qwen3-14b"));
        assert!(e.to_string().contains("llama-3.1-70b"), "{e}");
    }

    #[test]
    fn kv_heads_are_replicated_beyond_their_number() {
        let m = ModelConfig::find("llama-3.1-8b").unwrap();
        assert_eq!(m.kv_bytes_per_token(1), 131_072);
        assert_eq!(m.kv_bytes_per_token(8), 16_384);
        assert_eq!(m.kv_bytes_per_token(16), 16_384);
    }
}
