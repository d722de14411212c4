//! `approx-prefix-cache-producer`: settings of the approximate prefix index ([`crate::prefix`]).

use crate::plan::PrefixPlan;
use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "approx-prefix-cache-producer",
    aliases: &[],
    kinds: &[Kind::DataProducer],
    summary: "Remembers which prompt beginnings were sent to which endpoint.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "autoTune",
            kind: ParamKind::Bool,
            preset: Preset::Bool(true),
            unit: "",
            doc: "Take block size and capacity from what the engines report, where they do.",
        },
        Param {
            name: "blockSizeTokens",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Int(DEFAULT_BLOCK_TOKENS),
            unit: "tokens",
            doc: "Tokens per block; at least 64 are used, because small blocks cost memory and time. Greater \
                  than 0 if autoTune is off.",
        },
        Param {
            name: "blockSize",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Absent,
            unit: "tokens",
            doc: "Deprecated spelling of blockSizeTokens, read if that is 16; 0 and less are not read.",
        },
        Param {
            name: "maxPrefixTokensToMatch",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Int(131_072),
            unit: "tokens",
            doc: "Prompt tokens matched at most, in whole blocks; 0 leaves it to maxPrefixBlocksToMatch.",
        },
        Param {
            name: "maxPrefixBlocksToMatch",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Int(2048),
            unit: "blocks",
            doc: "Deprecated: blocks matched at most, used when maxPrefixTokensToMatch is 0; both 0 is unlimited.",
        },
        Param {
            name: "lruCapacityPerServer",
            kind: ParamKind::Int(Bounds::ANY),
            preset: Preset::Int(DEFAULT_CAPACITY),
            unit: "blocks",
            doc: "Blocks remembered per endpoint when the engine reports no capacity; 0 and less count as 31250.",
        },
        Param {
            name: "maxIndexBytes",
            kind: ParamKind::Int(Bounds::POSITIVE),
            preset: Preset::Int(256 << 20),
            unit: "bytes",
            doc: "Bytes that the whole index may take; the longest unused blocks go first.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

/// Smaller blocks than this are not used.
pub const MIN_BLOCK_TOKENS: u32 = 64;

const DEFAULT_BLOCK_TOKENS: i64 = 16;
const DEFAULT_CAPACITY: i64 = 31_250;

fn build(v: &Values) -> Result<Built, BuildError> {
    let whole = |i: i64| u32::try_from(i.max(0)).unwrap_or(u32::MAX);
    let tokens = v.int("blockSizeTokens");
    let block = match v.opt_int("blockSize") {
        Some(old) if old > 0 && tokens == DEFAULT_BLOCK_TOKENS => old,
        _ => tokens,
    };
    let auto_tune = v.bool("autoTune");
    if !auto_tune && block <= 0 {
        return Err(BuildError {
            param: "blockSizeTokens",
            message: format!("found {block}; it must be greater than 0 if autoTune is off"),
        });
    }
    let capacity = Some(v.int("lruCapacityPerServer")).filter(|&c| c > 0).unwrap_or(DEFAULT_CAPACITY);
    let plan = PrefixPlan {
        auto_tune,
        block_tokens: whole(block).max(MIN_BLOCK_TOKENS),
        max_tokens: whole(v.int("maxPrefixTokensToMatch")),
        max_blocks: whole(v.int("maxPrefixBlocksToMatch")),
        blocks_per_endpoint: whole(capacity),
        max_bytes: v.int("maxIndexBytes") as u64,
    };
    Ok(Built { prefix: Some(plan), ..Built::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Value;

    fn plan(given: &[(&'static str, Value)]) -> Result<PrefixPlan, BuildError> {
        let mut v = DESCRIPTOR.presets();
        v.0.retain(|(n, _)| !given.iter().any(|(m, _)| m == n));
        v.0.extend(given.iter().cloned());
        build(&v).map(|b| b.prefix.expect("a prefix producer builds its plan"))
    }

    #[test]
    fn the_block_size_follows_the_rules_of_llm_d_router() {
        let int = |name, i| (name, Value::Int(i));
        for (given, want) in [
            (vec![], 64),
            (vec![int("blockSizeTokens", 256)], 256),
            (vec![int("blockSize", 256)], 256),
            (vec![int("blockSize", 128), int("blockSizeTokens", 256)], 256),
            (vec![int("blockSize", -1), int("blockSizeTokens", 16)], 64),
            (vec![int("blockSizeTokens", -5)], 64),
        ] {
            assert_eq!(plan(&given).unwrap().block_tokens, want, "{given:?}");
        }
        let fixed = [("autoTune", Value::Bool(false)), int("blockSizeTokens", 0)];
        assert_eq!(plan(&fixed).unwrap_err().param, "blockSizeTokens");
        assert_eq!(plan(&[int("lruCapacityPerServer", 0)]).unwrap().blocks_per_endpoint, 31_250);
        assert_eq!(plan(&[int("lruCapacityPerServer", 7)]).unwrap().blocks_per_endpoint, 7);
    }
}
