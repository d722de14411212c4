//! `prefix-based-pd-decider` and `always-disagg-pd-decider`: whether a prompt is computed elsewhere.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values,
};
use crate::policy::{Decider, Decision};
use std::sync::Arc;

pub(super) static PREFIX: Descriptor = Descriptor {
    name: "prefix-based-pd-decider",
    aliases: &[],
    kinds: &[Kind::PrefillDecider],
    summary: "Splits prompts of which the decoding endpoint lacks many tokens.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "nonCachedTokens",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Int(0),
            unit: "tokens",
            doc: "The prompt is computed elsewhere if the decoding endpoint is not believed to hold at least \
                  this many of its tokens; 0 never splits.",
        },
        Param {
            name: "promptTokens",
            kind: ParamKind::Int(Bounds::NON_NEGATIVE),
            preset: Preset::Int(0),
            unit: "tokens",
            doc: "Shorter prompts are never split; 0 is no bound.",
        },
    ],
    ignores_parameters: false,
    needs: Some("approx-prefix-cache-producer"),
    build,
};

pub(super) static ALWAYS: Descriptor = Descriptor {
    name: "always-disagg-pd-decider",
    aliases: &[],
    kinds: &[Kind::PrefillDecider],
    summary: "Splits every request.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { decider: Some(Arc::new(Always)), ..Built::default() }),
};

#[allow(clippy::unnecessary_wraps, reason = "the shape of every plugin's build function")]
fn build(v: &Values) -> Result<Built, BuildError> {
    let tokens = |name| u64::try_from(v.int(name)).unwrap_or(0);
    let it = PrefixBased { uncached: tokens("nonCachedTokens"), prompt: tokens("promptTokens") };
    Ok(Built { decider: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Debug)]
struct Always;

impl Decider for Always {
    fn split(&self, _: &Decision<'_>, _: u32) -> bool {
        true
    }
}

#[derive(Debug)]
struct PrefixBased {
    uncached: u64,
    prompt: u64,
}

impl Decider for PrefixBased {
    fn split(&self, d: &Decision<'_>, decode: u32) -> bool {
        // Without an index nothing is known of what endpoints hold.
        self.uncached > 0
            && !d.matched.is_empty()
            && u64::from(d.ask.prompt_tokens) >= self.prompt
            && d.uncached_tokens(decode) >= self.uncached
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build};
    use super::*;
    use crate::plugin::Value;

    #[test]
    fn long_prompts_of_which_little_is_held_are_split() {
        let mut b = Bench::new(2);
        (b.ask.prompt_tokens, b.ask.block_tokens) = (1000, 64);
        b.matched = vec![0, 8];
        let splits = |b: &Bench, uncached, prompt, endpoint| {
            let given = [("nonCachedTokens", Value::Int(uncached)), ("promptTokens", Value::Int(prompt))];
            build(&PREFIX, &given).unwrap().decider.unwrap().split(&b.decision(), endpoint)
        };
        // Endpoint 1 holds 512 of the 1000 tokens.
        for (uncached, prompt, endpoint, want) in [
            (0, 0, 0, false),
            (1000, 0, 0, true),
            (1001, 0, 0, false),
            (488, 0, 1, true),
            (489, 0, 1, false),
            (488, 1000, 1, true),
            (488, 1001, 1, false),
        ] {
            assert_eq!(splits(&b, uncached, prompt, endpoint), want, "{uncached} {prompt} {endpoint}");
        }
        b.matched.clear();
        assert!(!splits(&b, 1, 0, 0));
        assert!(build(&ALWAYS, &[]).unwrap().decider.unwrap().split(&b.decision(), 0));
    }
}
