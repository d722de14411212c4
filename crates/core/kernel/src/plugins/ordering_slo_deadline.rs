//! `slo-deadline-ordering-policy`: earliest hoped-for first token first. Requests that are already late go
//! first, too, as in llm-d-router.

use crate::ask::Asked;
use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::OrderingPolicy;
use forebay_base::Nanos;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "slo-deadline-ordering-policy",
    aliases: &[],
    kinds: &[Kind::OrderingPolicy],
    summary: "By arrival plus the header x-llm-d-slo-ttft-ms; requests without it last.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { ordering: Some(Arc::new(SloDeadline)), ..Built::default() }),
};

#[derive(Debug)]
struct SloDeadline;

impl OrderingPolicy for SloDeadline {
    fn key(&self, ask: &Asked) -> u64 {
        ask.slo_ttft.map_or(Nanos::NEVER, |slo| ask.arrived + slo).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Span;

    #[test]
    fn the_key_is_the_hoped_for_first_token() {
        let key = |arrived, slo_ttft| {
            SloDeadline.key(&Asked { arrived: Nanos(arrived), slo_ttft, ..Asked::default() })
        };
        assert_eq!(key(1_000, Some(Span::millis(2))), 2_001_000);
        assert_eq!(key(1_000, Some(Span::ZERO)), 1_000, "0 ms is a deadline");
        assert_eq!(key(1_000, None), u64::MAX);
        assert_eq!(key(1_000, Some(Span::FOREVER)), u64::MAX, "no wrap");
    }
}
