//! The model catalogue: dimensions as in each model's public `config.json` on Hugging Face.

use crate::model::{Attention, ModelConfig, Moe, Window};
use forebay_base::{Diagnostic, Diagnostics, Position};
use std::borrow::Cow;
use std::sync::LazyLock;

/// layers, hidden, heads, KV heads, MLP width, vocabulary, positions
type Shape = (u32, u32, u32, u32, u32, u32, u32);

fn dense(name: &'static str, hf_id: &'static str, shape: Shape) -> ModelConfig {
    let (layers, hidden, heads, kv_heads, intermediate, vocab, max_positions) = shape;
    let (name, hf_id) = (Cow::Borrowed(name), Cow::Borrowed(hf_id));
    ModelConfig {
        name,
        hf_id,
        layers,
        hidden,
        heads,
        kv_heads,
        intermediate,
        vocab,
        max_positions,
        head_dim: 128,
        tied: false,
        weight_bytes: 2.0,
        kv_bytes: 2,
        attention: Attention::Grouped,
        moe: None,
        window: None,
        idle_bytes: 0,
    }
}

const fn moe(experts: u32, per_token: u32, intermediate: u32) -> Moe {
    Moe { experts, per_token, intermediate, shared: 0, dense_layers: 0, bytes: 2.0 }
}

/// The models that ship, with 16-bit weights unless the name or the repository says otherwise. `tiny` is
/// made up, for tests: two layers of 256.
pub static MODELS: LazyLock<Vec<ModelConfig>> = LazyLock::new(shipped);

#[allow(clippy::too_many_lines, reason = "a table")]
fn shipped() -> Vec<ModelConfig> {
    vec![
        dense("qwen3-14b", "Qwen/Qwen3-14B", (40, 5120, 40, 8, 17408, 151_936, 40960)),
        dense("qwen3-8b", "Qwen/Qwen3-8B", (36, 4096, 32, 8, 12288, 151_936, 40960)),
        dense("qwen3-32b", "Qwen/Qwen3-32B", (64, 5120, 64, 8, 25600, 151_936, 40960)),
        ModelConfig {
            moe: Some(moe(128, 8, 768)),
            ..dense("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", (48, 2048, 32, 4, 6144, 151_936, 40960))
        },
        ModelConfig {
            moe: Some(moe(128, 8, 1536)),
            ..dense("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", (94, 4096, 64, 4, 12288, 151_936, 40960))
        },
        dense("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", (28, 3584, 28, 4, 18944, 152_064, 32768)),
        dense("qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", (48, 5120, 40, 8, 13824, 152_064, 32768)),
        dense("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", (64, 5120, 40, 8, 27648, 152_064, 32768)),
        dense("qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", (80, 8192, 64, 8, 29568, 152_064, 32768)),
        dense("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", (32, 4096, 32, 8, 14336, 128_256, 131_072)),
        dense(
            "llama-3.1-70b",
            "meta-llama/Llama-3.1-70B-Instruct",
            (80, 8192, 64, 8, 28672, 128_256, 131_072),
        ),
        dense(
            "llama-3.3-70b",
            "meta-llama/Llama-3.3-70B-Instruct",
            (80, 8192, 64, 8, 28672, 128_256, 131_072),
        ),
        dense(
            "llama-3.1-405b",
            "meta-llama/Llama-3.1-405B-Instruct",
            (126, 16384, 128, 8, 53248, 128_256, 131_072),
        ),
        ModelConfig {
            tied: true,
            ..dense(
                "llama-3.2-3b",
                "meta-llama/Llama-3.2-3B-Instruct",
                (28, 3072, 24, 8, 8192, 128_256, 131_072),
            )
        },
        ModelConfig {
            tied: true,
            head_dim: 64,
            ..dense(
                "llama-3.2-1b",
                "meta-llama/Llama-3.2-1B-Instruct",
                (16, 2048, 32, 8, 8192, 128_256, 131_072),
            )
        },
        dense("llama-2-7b", "meta-llama/Llama-2-7b-hf", (32, 4096, 32, 32, 11008, 32000, 4096)),
        dense("llama-2-70b", "meta-llama/Llama-2-70b-hf", (80, 8192, 64, 8, 28672, 32000, 4096)),
        dense("codellama-34b", "codellama/CodeLlama-34b-Instruct-hf", (48, 8192, 64, 8, 22016, 32000, 16384)),
        ModelConfig {
            // The vision tower in 16 bits (34 layers of width 1408 and an MLP of 5632, and the projector), and
            // the 10 GB that profiling it with the largest images sets aside: servers on two GPUs report so
            // many blocks less.
            idle_bytes: 11_800_000_000,
            moe: Some(Moe {
                experts: 16,
                per_token: 1,
                intermediate: 8192,
                shared: 8192,
                dense_layers: 0,
                bytes: 1.0,
            }),
            ..dense(
                "llama-4-scout-fp8",
                "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
                (48, 5120, 40, 8, 16384, 202_048, 10_485_760),
            )
        },
        dense("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", (32, 4096, 32, 8, 14336, 32768, 32768)),
        dense(
            "mistral-nemo-12b",
            "mistralai/Mistral-Nemo-Instruct-2407",
            (40, 5120, 32, 8, 14336, 131_072, 131_072),
        ),
        dense(
            "mistral-small-24b",
            "mistralai/Mistral-Small-24B-Instruct-2501",
            (40, 5120, 32, 8, 32768, 131_072, 32768),
        ),
        ModelConfig {
            moe: Some(moe(8, 2, 14336)),
            ..dense(
                "mixtral-8x7b",
                "mistralai/Mixtral-8x7B-Instruct-v0.1",
                (32, 4096, 32, 8, 14336, 32000, 32768),
            )
        },
        ModelConfig {
            moe: Some(moe(8, 2, 16384)),
            ..dense(
                "mixtral-8x22b",
                "mistralai/Mixtral-8x22B-Instruct-v0.1",
                (56, 6144, 48, 8, 16384, 32768, 65536),
            )
        },
        ModelConfig {
            weight_bytes: 1.0,
            attention: Attention::Latent {
                q_rank: 1536,
                kv_rank: 512,
                nope_dim: 128,
                rope_dim: 64,
                value_dim: 128,
            },
            moe: Some(Moe {
                experts: 256,
                per_token: 8,
                intermediate: 2048,
                shared: 2048,
                dense_layers: 3,
                bytes: 1.0,
            }),
            ..dense("deepseek-v3", "deepseek-ai/DeepSeek-V3", (61, 7168, 128, 128, 18432, 129_280, 163_840))
        },
        ModelConfig {
            attention: Attention::Latent {
                q_rank: 0,
                kv_rank: 512,
                nope_dim: 128,
                rope_dim: 64,
                value_dim: 128,
            },
            moe: Some(Moe {
                experts: 64,
                per_token: 6,
                intermediate: 1408,
                shared: 2816,
                dense_layers: 1,
                bytes: 2.0,
            }),
            ..dense(
                "deepseek-v2-lite",
                "deepseek-ai/DeepSeek-V2-Lite",
                (27, 2048, 16, 16, 10944, 102_400, 163_840),
            )
        },
        ModelConfig {
            head_dim: 64,
            // Experts in MXFP4: four bits each, and one byte of scale for every 32.
            moe: Some(Moe { bytes: 0.531_25, ..moe(32, 4, 2880) }),
            window: Some(Window { tokens: 128, layers: 12 }),
            ..dense("gpt-oss-20b", "openai/gpt-oss-20b", (24, 2880, 64, 8, 2880, 201_088, 131_072))
        },
        ModelConfig {
            head_dim: 64,
            moe: Some(Moe { bytes: 0.531_25, ..moe(128, 4, 2880) }),
            window: Some(Window { tokens: 128, layers: 18 }),
            ..dense("gpt-oss-120b", "openai/gpt-oss-120b", (36, 2880, 64, 8, 2880, 201_088, 131_072))
        },
        ModelConfig {
            tied: true,
            head_dim: 256,
            window: Some(Window { tokens: 4096, layers: 21 }),
            ..dense("gemma-2-9b", "google/gemma-2-9b-it", (42, 3584, 16, 8, 14336, 256_000, 8192))
        },
        ModelConfig {
            tied: true,
            head_dim: 128,
            window: Some(Window { tokens: 4096, layers: 23 }),
            ..dense("gemma-2-27b", "google/gemma-2-27b-it", (46, 4608, 32, 16, 36864, 256_000, 8192))
        },
        ModelConfig {
            head_dim: 32,
            tied: true,
            ..dense("tiny", "forebay/tiny", (2, 256, 8, 8, 512, 1024, 2048))
        },
    ]
}

impl ModelConfig {
    /// Looks a model up by short name or Hugging Face id, ignoring case; the error names the nearest.
    pub fn find(name: &str) -> Result<&'static ModelConfig, Diagnostics> {
        MODELS
            .iter()
            .find(|m| m.name.eq_ignore_ascii_case(name) || m.hf_id.eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let names: Vec<&str> = MODELS.iter().flat_map(|m| [&*m.name, &*m.hf_id]).collect();
                let short: Vec<&str> = MODELS.iter().map(|m| &*m.name).collect();
                let what = format!("unknown model \"{name}\"");
                let d = Diagnostic::error(Position::default(), "model", what);
                Diagnostics(vec![d.expected(format!("one of {}", short.join(", "))).nearest_of(name, names)])
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_sizes() {
        // Billions, as the model cards say.
        let published = [
            ("qwen3-14b", 14.77),
            ("qwen3-8b", 8.19),
            ("qwen3-32b", 32.76),
            ("qwen3-30b-a3b", 30.53),
            ("qwen3-235b-a22b", 235.1),
            ("qwen2.5-7b", 7.62),
            ("qwen2.5-14b", 14.77),
            ("qwen2.5-32b", 32.76),
            ("qwen2.5-72b", 72.71),
            ("llama-3.1-8b", 8.03),
            ("llama-3.1-70b", 70.55),
            ("llama-3.1-405b", 405.85),
            ("llama-3.2-3b", 3.21),
            ("llama-3.2-1b", 1.236),
            ("llama-2-7b", 6.74),
            ("llama-2-70b", 68.98),
            ("codellama-34b", 33.74),
            ("llama-4-scout-fp8", 107.77),
            ("mistral-7b", 7.25),
            ("mistral-nemo-12b", 12.25),
            ("mistral-small-24b", 23.57),
            ("mixtral-8x7b", 46.7),
            ("mixtral-8x22b", 140.63),
            ("deepseek-v3", 671.0),
            ("deepseek-v2-lite", 15.7),
            ("gpt-oss-20b", 20.9),
            ("gpt-oss-120b", 116.8),
            ("gemma-2-9b", 9.24),
            ("gemma-2-27b", 27.23),
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

    #[test]
    fn a_latent_vector_is_small_and_never_split() {
        let m = ModelConfig::find("deepseek-v3").unwrap();
        assert_eq!(m.kv_bytes_per_token(1), 61 * 576 * 2);
        assert_eq!(m.kv_bytes_per_token(8), m.kv_bytes_per_token(1));
    }

    #[test]
    fn layers_with_a_window_do_not_grow() {
        let m = ModelConfig::find("gpt-oss-20b").unwrap();
        assert_eq!(m.kv_bytes_per_token(1), 12 * 2 * 8 * 64 * 2);
    }
}
