//! Models from a Hugging Face `config.json`.
//!
//! The fields that describe the architecture are read strictly; a file has many more, which are left alone. A
//! multimodal model's `text_config` is what counts.

use crate::model::{Attention, ModelConfig, Moe, Window};
use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_document::{Content, Node, decode, parse};
use std::borrow::Cow;

/// The file, and the part of it that describes the text model.
struct Config<'n> {
    root: &'n Node,
    text: &'n Node,
    found: Diagnostics,
}

impl<'n> Config<'n> {
    /// The value of a field of the text model, else of the file.
    fn get(&self, name: &str) -> Option<&'n Node> {
        self.text.get(name).or_else(|| self.root.get(name))
    }

    /// The first of these fields that is there, as a count of at least 1.
    fn count(&mut self, names: &[&str]) -> Option<u32> {
        let (name, node) = names.iter().find_map(|n| self.text.get(n).map(|node| (*n, node)))?;
        let n = decode::int(node, name, &mut self.found)?;
        let fits = u32::try_from(n).ok().filter(|&n| n >= 1);
        if fits.is_none() {
            let d = Diagnostic::error(node.at, name, format!("is {n}"));
            self.found.push(d.expected(format!("1 to {}", u32::MAX)));
        }
        fits
    }

    /// A count that has to be there.
    fn need(&mut self, name: &str) -> u32 {
        if self.text.get(name).is_none() {
            self.found.push(Diagnostic::error(self.text.at, name, "the field is missing"));
        }
        self.count(&[name]).unwrap_or(1)
    }

    fn text_of(&self, name: &str) -> Option<&'n str> {
        self.get(name).and_then(Node::as_text)
    }

    fn flag(&mut self, name: &str) -> Option<bool> {
        self.get(name).and_then(|node| decode::bool(node, name, &mut self.found))
    }

    fn items(&self, name: &str) -> &'n [Node] {
        match self.text.get(name).map(|n| &n.content) {
            Some(Content::List(items)) => items,
            _ => &[],
        }
    }

    fn attention(&mut self) -> Attention {
        let Some(kv_rank) = self.count(&["kv_lora_rank"]) else { return Attention::Grouped };
        Attention::Latent {
            q_rank: self.count(&["q_lora_rank"]).unwrap_or(0),
            kv_rank,
            nope_dim: self.need("qk_nope_head_dim"),
            rope_dim: self.need("qk_rope_head_dim"),
            value_dim: self.need("v_head_dim"),
        }
    }

    fn moe(&mut self, layers: u32, intermediate: Option<u32>, bytes: f64) -> Option<Moe> {
        let experts =
            self.count(&["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])?;
        let per_token = self.count(&["num_experts_per_tok", "moe_top_k", "experts_per_token"]);
        if per_token.is_none() {
            let d = Diagnostic::error(self.text.at, "num_experts_per_tok", "the field is missing");
            self.found.push(d.expected("the experts each token visits, since there are experts"));
        }
        let width = self.count(&["moe_intermediate_size"]).or(intermediate).unwrap_or(1);
        let shared = match self.count(&["shared_expert_intermediate_size"]) {
            Some(width) => width,
            // Llama 4 has one shared expert that its configuration does not name.
            None if self.text_of("model_type").is_some_and(|t| t.starts_with("llama4")) => width,
            None => self.count(&["n_shared_experts"]).unwrap_or(0).saturating_mul(width),
        };
        let step = self.count(&["interleave_moe_layer_step", "decoder_sparse_step"]).unwrap_or(1);
        // A step of s means that every s-th layer has experts.
        let dense = layers - layers / step
            + self.text.get("first_k_dense_replace").map_or(0, |n| {
                decode::int(n, "first_k_dense_replace", &mut self.found).map_or(0, |k| k.max(0) as u32)
            })
            + self.items("mlp_only_layers").len() as u32;
        let per_token = per_token.unwrap_or(1).min(experts);
        Some(Moe { experts, per_token, intermediate: width, shared, dense_layers: dense.min(layers), bytes })
    }

    fn window(&mut self, layers: u32) -> Option<Window> {
        if self.flag("use_sliding_window") == Some(false) {
            return None;
        }
        let tokens = self.count(&["sliding_window"])?;
        let types = self.items("layer_types");
        let sliding = if !types.is_empty() {
            types.iter().filter(|t| t.as_text() == Some("sliding_attention")).count() as u32
        } else if let Some(pattern) = self.count(&["sliding_window_pattern"]) {
            layers - layers / pattern
        } else if self.text_of("model_type") == Some("gemma2") {
            layers / 2
        } else {
            layers
        };
        Some(Window { tokens, layers: sliding.min(layers) }).filter(|w| w.layers > 0)
    }

    /// Bytes per weight outside and inside the experts.
    fn weight_bytes(&mut self) -> (f64, f64) {
        let plain = 2.0;
        let Some(quantization) = self.get("quantization_config") else { return (plain, plain) };
        let at = quantization.at;
        match quantization.get("quant_method").and_then(Node::as_text) {
            Some("fp8" | "fbgemm_fp8" | "modelopt") => (1.0, 1.0),
            // Four bits each, and one byte of scale for every 32.
            Some("mxfp4") => (plain, 0.531_25),
            Some("gptq" | "awq" | "bitsandbytes") => {
                let bits = quantization.get("bits").and_then(|n| decode::int(n, "bits", &mut self.found));
                let bytes = bits.unwrap_or(4) as f64 / 8.0;
                (bytes, bytes)
            }
            Some("compressed-tensors") => {
                let group = match quantization.get("config_groups").map(|n| &n.content) {
                    Some(Content::Map(groups)) => groups.first().map(|g| &g.value),
                    _ => None,
                };
                let bits = group
                    .and_then(|g| g.get("weights"))
                    .and_then(|w| w.get("num_bits"))
                    .and_then(|n| decode::int(n, "num_bits", &mut self.found));
                let bytes = bits.unwrap_or(8) as f64 / 8.0;
                (bytes, bytes)
            }
            other => {
                let what = format!("unknown method \"{}\"", other.unwrap_or_default());
                let known = ["fp8", "fbgemm_fp8", "modelopt", "mxfp4", "gptq", "awq", "compressed-tensors"];
                let d = Diagnostic::error(at, "quantization_config.quant_method", what);
                let d = d.expected(format!("one of {}", known.join(", ")));
                self.found.push(d.nearest_of(other.unwrap_or_default(), known));
                (plain, plain)
            }
        }
    }

    fn model(&mut self, name: &str) -> ModelConfig {
        let (layers, hidden, heads) =
            (self.need("num_hidden_layers"), self.need("hidden_size"), self.need("num_attention_heads"));
        let kv_heads = self.count(&["num_key_value_heads"]).unwrap_or(heads);
        if let Some(act) = self.text_of("hidden_act").filter(|a| a.starts_with("relu")) {
            let at = self.get("hidden_act").map_or_else(Position::default, |n| n.at);
            let d = Diagnostic::error(at, "hidden_act", format!("is \"{act}\""));
            self.found.push(d.expected("a gated MLP, as with silu or gelu"));
        }
        let expert_width = self.count(&["intermediate_size"]);
        let dense_width = self.count(&["intermediate_size_mlp"]).or(expert_width);
        let (weight_bytes, expert_bytes) = self.weight_bytes();
        let moe = self.moe(layers, expert_width, expert_bytes);
        if dense_width.is_none() && moe.is_none_or(|m| m.dense_layers > 0) {
            self.found.push(Diagnostic::error(self.text.at, "intermediate_size", "the field is missing"));
        }
        let id = self.root.get("_name_or_path").and_then(Node::as_text).unwrap_or(name);
        ModelConfig {
            name: Cow::Owned(name.to_owned()),
            hf_id: Cow::Owned(id.to_owned()),
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim: self.count(&["head_dim"]).unwrap_or((hidden / heads).max(1)),
            intermediate: dense_width.unwrap_or(0),
            vocab: self.need("vocab_size"),
            tied: self.flag("tie_word_embeddings").unwrap_or(false),
            max_positions: self.need("max_position_embeddings"),
            weight_bytes,
            kv_bytes: 2,
            attention: self.attention(),
            moe,
            window: self.window(layers),
            idle_bytes: 0,
        }
    }
}

impl ModelConfig {
    /// Reads a Hugging Face `config.json`. The model goes by `name`. The error lists everything that is
    /// missing or wrong, with its place in `file`.
    pub fn read(text: &str, file: &str, name: &str) -> Result<ModelConfig, Diagnostics> {
        let mut found = Diagnostics::default();
        let nodes = parse(text, &mut found);
        let root = match nodes.as_slice() {
            [root] if found.0.is_empty() => root,
            _ => {
                if found.0.is_empty() {
                    let what = format!("found {} documents", nodes.len());
                    found.push(Diagnostic::error(Position::default(), "", what).expected("one mapping"));
                }
                found.finish(file);
                return Err(found);
            }
        };
        let text = root.get("text_config").unwrap_or(root);
        let mut config = Config { root, text, found };
        let model = config.model(name);
        if config.found.0.is_empty() {
            return Ok(model);
        }
        config.found.finish(file);
        Err(config.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file describes the same model as the catalogue.
    fn same(text: &str, name: &str) {
        let mut got = ModelConfig::read(text, "config.json", name).unwrap();
        let want = ModelConfig::find(name).unwrap();
        got.hf_id = want.hf_id.clone();
        assert_eq!(&got, want);
    }

    #[test]
    fn a_dense_model_with_its_own_head_size() {
        same(
            r#"{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408,
            "max_position_embeddings": 40960, "max_window_layers": 40, "model_type": "qwen3",
            "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "rope_scaling": null, "sliding_window": null, "tie_word_embeddings": false,
            "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936}"#,
            "qwen3-14b",
        );
    }

    #[test]
    fn experts_of_both_spellings() {
        same(
            r#"{"hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
            "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "num_local_experts": 8, "sliding_window": null, "tie_word_embeddings": false,
            "torch_dtype": "bfloat16", "vocab_size": 32000}"#,
            "mixtral-8x7b",
        );
        same(
            r#"{"decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
            "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
            "model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_attention_heads": 32,
            "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
            "num_key_value_heads": 4, "sliding_window": null, "tie_word_embeddings": false,
            "use_sliding_window": false, "vocab_size": 151936}"#,
            "qwen3-30b-a3b",
        );
    }

    #[test]
    fn latent_attention_shared_experts_and_eight_bits() {
        let mut got = ModelConfig::read(
            r#"{"first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
            "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
            "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
            "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
            "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "quantization_config": {"fmt": "e4m3", "quant_method": "fp8"},
            "tie_word_embeddings": false, "v_head_dim": 128, "vocab_size": 129280}"#,
            "config.json",
            "deepseek-v3",
        )
        .unwrap();
        let want = ModelConfig::find("deepseek-v3").unwrap();
        // The file has no head size: hidden / heads, which latent attention does not use.
        (got.head_dim, got.hf_id) = (want.head_dim, want.hf_id.clone());
        assert_eq!(&got, want);
    }

    #[test]
    fn windows_and_four_bit_experts() {
        same(
            r#"{"head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
            "num_experts_per_tok": 4, "experts_per_token": 4, "num_hidden_layers": 24,
            "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128,
            "quantization_config": {"quant_method": "mxfp4"}, "tie_word_embeddings": false,
            "vocab_size": 201088}"#,
            "gpt-oss-20b",
        );
    }

    #[test]
    fn a_multimodal_model_has_its_text_model_inside() {
        let m = ModelConfig::read(
            r#"{"model_type": "llama4", "tie_word_embeddings": false, "vision_config": {"hidden_size": 1408},
            "text_config": {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16,
            "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048,
            "max_position_embeddings": 10485760},
            "quantization_config": {"quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}}"#,
            "config.json",
            "scout",
        )
        .unwrap();
        let moe = m.moe.unwrap();
        assert_eq!((moe.shared, moe.dense_layers, m.moe_layers()), (8192, 0, 48));
        assert_eq!(m.total_params(), ModelConfig::find("llama-4-scout-fp8").unwrap().total_params());
    }

    #[test]
    fn everything_missing_or_wrong_is_reported() {
        let text = "{\"hidden_size\": \"big\", \"num_attention_heads\": 0, \"vocab_size\": 10,\n\
            \"max_position_embeddings\": 5, \"quantization_config\": {\"quant_method\": \"fp9\"}}";
        let e = ModelConfig::read(text, "config.json", "x").unwrap_err();
        let all = e.to_string();
        for part in ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "fp8"] {
            assert!(all.contains(part), "{part} in {all}");
        }
        assert!(all.contains("config.json:2"), "{all}");
    }
}
