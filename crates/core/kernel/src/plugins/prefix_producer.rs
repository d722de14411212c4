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
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Int(16),
            unit: "tokens",
            doc: "Tokens per block; at least 64 are used, because small blocks cost memory and time.",
        },
        Param {
            name: "blockSize",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Absent,
            unit: "characters",
            doc: "Deprecated spelling of the block size, in characters; a token counts as four.",
        },
        Param {
            name: "maxPrefixTokensToMatch",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Int(131_072),
            unit: "tokens",
            doc: "Prompt tokens matched at most; 0 leaves it to maxPrefixBlocksToMatch.",
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
            kind: ParamKind::Int(Bounds::POSITIVE),
            preset: Preset::Int(31_250),
            unit: "blocks",
            doc: "Blocks remembered per endpoint when the engine reports no capacity.",
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

#[allow(clippy::unnecessary_wraps, reason = "the shape of every plugin's build function")]
fn build(v: &Values) -> Result<Built, BuildError> {
    let whole = |name| v.opt_int(name).map(|i| u32::try_from(i).unwrap_or(u32::MAX));
    let block = whole("blockSize")
        .filter(|&c| c > 0)
        .map_or_else(|| whole("blockSizeTokens").unwrap_or(0), |characters| characters.div_ceil(4));
    let block_tokens = block.max(MIN_BLOCK_TOKENS);
    let max_tokens = match (whole("maxPrefixTokensToMatch"), whole("maxPrefixBlocksToMatch")) {
        (Some(0) | None, Some(blocks)) => blocks.saturating_mul(block_tokens),
        (tokens, _) => tokens.unwrap_or(0),
    };
    let plan = PrefixPlan {
        auto_tune: v.bool("autoTune"),
        block_tokens,
        max_tokens,
        blocks_per_endpoint: whole("lruCapacityPerServer").unwrap_or(31_250),
        max_bytes: v.int("maxIndexBytes") as u64,
    };
    Ok(Built { prefix: Some(plan), ..Built::default() })
}
