//! Prompts as chains of block hashes.

use crate::plan::PrefixPlan;
use crate::plugins::MIN_BLOCK_TOKENS;
use xxhash_rust::xxh64::{Xxh64, xxh64};

/// Bytes of estimated text per token: prompts are not tokenized, four bytes count as one token (as
/// llm-d-router's estimate does).
pub const BYTES_PER_TOKEN: usize = 4;

/// The block size to hash prompts with: what the engines report, if tuning is on, but never below
/// [`MIN_BLOCK_TOKENS`].
pub fn block_tokens(plan: &PrefixPlan, reported: Option<u32>) -> u32 {
    match reported {
        Some(b) if plan.auto_tune && b > 0 => b.max(MIN_BLOCK_TOKENS),
        _ => plan.block_tokens,
    }
}

/// Blocks of this size that are hashed at most; `None` is unlimited. A limit in tokens below one block
/// hashes nothing, as in llm-d-router.
pub fn block_limit(plan: &PrefixPlan, block_tokens: u32) -> Option<u32> {
    match (plan.max_tokens, plan.max_blocks) {
        (0, 0) => None,
        (0, blocks) => Some(blocks),
        (tokens, _) => Some(tokens / block_tokens.max(1)),
    }
}

/// Chained hashes of a prompt's blocks: `h[n] = xxh64(xxh64(block n) ‖ h[n-1])`, little-endian, starting
/// from the hash of the model's name followed by the cache salt; an empty salt is none. A partial last
/// block is hashed, too, if `max_blocks` (`None`: unlimited) lets it. Same construction as llm-d-router's
/// approximate prefix producer.
pub fn hash_chain(
    model: &str,
    salt: Option<&str>,
    prompt: &[u8],
    block_tokens: u32,
    max_blocks: Option<u32>,
    out: &mut Vec<u64>,
) {
    out.clear();
    let block = (block_tokens.max(1) as usize) * BYTES_PER_TOKEN;
    let blocks = prompt.len().div_ceil(block).min(max_blocks.map_or(usize::MAX, |n| n as usize));
    let mut seed = Xxh64::new(0);
    seed.update(model.as_bytes());
    seed.update(salt.unwrap_or_default().as_bytes());
    let mut previous = seed.digest();
    out.reserve(blocks);
    for b in prompt.chunks(block).take(blocks) {
        previous = link(xxh64(b, 0), previous);
        out.push(previous);
    }
}

fn link(block: u64, previous: u64) -> u64 {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..].copy_from_slice(&previous.to_le_bytes());
    xxh64(&bytes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(model: &str, salt: Option<&str>, prompt: &[u8], block: u32, max: Option<u32>) -> Vec<u64> {
        let mut out = Vec::new();
        hash_chain(model, salt, prompt, block, max, &mut out);
        out
    }

    #[test]
    fn chains_share_hashes_as_long_as_they_share_text() {
        let of = |text: &str| chain("m", None, text.as_bytes(), 1, None);
        let (a, b) = (of("aaaabbbbcccc"), of("aaaabbbbdd"));
        assert_eq!((a.len(), b.len()), (3, 3));
        assert_eq!(a[..2], b[..2]);
        assert_ne!(a[2], b[2]);
        assert_ne!(of("bbbbaaaa")[1], a[0], "the same block elsewhere is another hash");
        assert_ne!(chain("m", Some("s"), b"aaaa", 1, None)[0], a[0]);
        assert_eq!(chain("m", Some(""), b"aaaa", 1, None)[0], a[0], "an empty salt is none");
        assert_eq!(chain("m", None, b"", 1, Some(2)), []);
    }

    /// Model, salt, prompt, tokens per block, hashes.
    type Known<'a> = (&'a str, &'a str, &'a [u8], u32, [u64; 3]);

    /// Computed with the reference implementation of xxHash (its Python binding) from the formula above.
    #[test]
    fn known_chains_do_not_change() {
        let numbers: Vec<u8> = (0..600u32).map(|i| (i % 251) as u8).collect();
        let known: [Known<'_>; 3] = [
            (
                "meta-llama/Llama-3.1-8B",
                "",
                &numbers,
                64,
                [0x10e9_9365_3515_92df, 0x003d_5ca6_cf24_90fa, 0xc51c_aa6e_b6e3_a5b7],
            ),
            (
                "meta-llama/Llama-3.1-8B",
                "tenant-7",
                &numbers,
                64,
                [0x0561_2b67_db3f_93f7, 0xf448_c9c5_8a4a_66ac, 0x826e_0e09_af17_408b],
            ),
            (
                "m",
                "",
                b"aaaabbbbcc",
                1,
                [0x151c_14c5_8d32_0705, 0xe1b0_f7ec_dcdb_0e9d, 0x35ed_4e50_98c3_c1c3],
            ),
        ];
        for (model, salt, prompt, block, want) in known {
            assert_eq!(chain(model, Some(salt), prompt, block, None), want, "{model} {salt}");
        }
    }

    #[test]
    fn the_limit_is_whole_blocks_of_the_effective_size() {
        let plan = |max_tokens, max_blocks| PrefixPlan {
            auto_tune: true,
            block_tokens: 64,
            max_tokens,
            max_blocks,
            blocks_per_endpoint: 1,
            max_bytes: 1,
        };
        for (tokens, blocks, size, want) in [
            (100, 2048, 64, Some(1)),
            (63, 2048, 64, Some(0)),
            (131_072, 2048, 64, Some(2048)),
            (131_072, 7, 256, Some(512)),
            (0, 7, 256, Some(7)),
            (0, 0, 64, None),
        ] {
            assert_eq!(block_limit(&plan(tokens, blocks), size), want, "{tokens} {blocks} {size}");
        }
        let prompt = [b'x'; 64 * 4 * 2 + 1];
        for (limit, hashed) in [(Some(0), 0), (Some(1), 1), (Some(3), 3), (Some(9), 3), (None, 3)] {
            assert_eq!(chain("m", None, &prompt, 64, limit).len(), hashed, "{limit:?}");
        }
        assert_eq!(block_tokens(&plan(1, 1), Some(256)), 256);
        assert_eq!(block_tokens(&plan(1, 1), Some(16)), 64);
        assert_eq!(block_tokens(&PrefixPlan { auto_tune: false, ..plan(1, 1) }, Some(256)), 64);
    }
}
