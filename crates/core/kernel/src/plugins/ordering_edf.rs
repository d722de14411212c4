//! `edf-ordering-policy`: earliest deadline first, where a deadline is the end of the time that a request
//! may wait in the queue.

use crate::ask::Asked;
use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::OrderingPolicy;
use forebay_base::Nanos;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "edf-ordering-policy",
    aliases: &[],
    kinds: &[Kind::OrderingPolicy],
    summary: "Requests whose TTL ends first leave first; those without one last.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { ordering: Some(Arc::new(Edf)), ..Built::default() }),
};

#[derive(Debug)]
struct Edf;

impl OrderingPolicy for Edf {
    fn key(&self, ask: &Asked) -> u64 {
        ask.ttl.map_or(Nanos::NEVER, |ttl| ask.arrived + ttl).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Span;

    #[test]
    fn the_key_is_the_end_of_the_wait() {
        let key = |arrived, ttl| Edf.key(&Asked { arrived: Nanos(arrived), ttl, ..Asked::default() });
        assert_eq!(key(7, Some(Span(5))), 12);
        assert!(key(9, Some(Span(1))) < key(7, Some(Span(5))), "later, with less time left");
        assert_eq!(key(0, None), u64::MAX);
        assert_eq!(key(u64::MAX - 1, Some(Span(5))), u64::MAX, "no wrap");
    }
}
