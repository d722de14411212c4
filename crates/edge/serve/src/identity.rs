//! Who a request is: its model and target, its objective and priority, its flow.

use crate::reads::Reads;
use forebay_base::{Draws, Purpose, Span};
use forebay_config::Manifests;
use forebay_live::Router;
use forebay_wire::headers;
use forebay_wire::show::shown;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The flow of requests that name none.
const DEFAULT_FLOW: &str = "default-flow";

/// At most one line per this time tells of objectives that do not exist.
const TELL_EVERY: Span = Span::secs(60);

/// Reads identities, by the objectives and rewrites that are loaded.
#[derive(Debug)]
pub(crate) struct Identities {
    manifests: Manifests,
    draws: Draws,
    numbers: AtomicU64,
    told: AtomicU64,
}

/// One request's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    /// The model the client asked for; empty if none.
    pub(crate) model: String,
    /// The model to ask the engine for.
    pub(crate) target: String,
    /// The objective as the client named it.
    pub(crate) objective: Option<String>,
    /// The objective's priority, 0 without one.
    pub(crate) priority: i32,
    /// The fairness id.
    pub(crate) flow: String,
    /// The client's own bound on its wait.
    pub(crate) ttl: Option<Span>,
    /// The session; empty if none.
    pub(crate) session: Arc<str>,
    /// The endpoint that a token names; empty if none.
    pub(crate) sticky: Arc<str>,
    /// Hoped-for time to first token.
    pub(crate) slo_ttft: Option<Span>,
    /// Hoped-for time per output token.
    pub(crate) slo_tpot: Option<Span>,
}

impl Identities {
    pub(crate) fn new(manifests: Manifests, seed: u64) -> Identities {
        Identities { manifests, draws: Draws::new(seed), numbers: AtomicU64::new(0), told: AtomicU64::new(0) }
    }

    /// A request id for a request that brings none.
    pub(crate) fn request_id(&self) -> HeaderValue {
        let n = self.numbers.fetch_add(1, Ordering::Relaxed);
        let half = |lane| u128::from(self.draws.bits(Purpose::named("request-id"), n, lane));
        id(half(0) << 64 | half(1))
    }

    /// One of several, at random.
    pub(crate) fn any<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        let n = self.numbers.fetch_add(1, Ordering::Relaxed);
        all.get(self.draws.below(Purpose::named("any-endpoint"), n, 0, all.len() as u64) as usize)
    }

    /// A rewrite rule for the body's model comes before the rewrite header, and that before the body.
    pub(crate) fn read(
        &self,
        given: &HeaderMap,
        reads: &Reads,
        body_model: &str,
        router: &Router,
    ) -> Identity {
        let none = HeaderMap::new();
        let headers = if steers(given) { given } else { &none };
        let n = self.numbers.fetch_add(1, Ordering::Relaxed);
        let draw = self.draws.unit(Purpose::named("model-rewrite"), n, 0);
        let rule = self.manifests.rewrite(body_model, draw);
        if let Some((manifest, target)) = rule {
            router.metrics().rewritten(manifest, body_model, target);
        }
        let target = rule
            .map(|(_, target)| target)
            .or_else(|| headers::MODEL_REWRITE.text(headers))
            .unwrap_or(body_model);
        let objective = headers::OBJECTIVE.text(headers).map(str::to_owned);
        let priority = match &objective {
            None => 0,
            Some(name) => self.manifests.priority(name).unwrap_or_else(|| {
                self.unknown(name, router);
                0
            }),
        };
        Identity {
            model: body_model.to_owned(),
            target: target.to_owned(),
            objective,
            priority,
            flow: headers::FAIRNESS_ID
                .text(headers)
                .or_else(|| reads.agent(given))
                .unwrap_or(DEFAULT_FLOW)
                .to_owned(),
            session: reads.session(given).map(Arc::from).unwrap_or_default(),
            sticky: reads.sticky(given).map(Arc::from).unwrap_or_default(),
            slo_ttft: headers::SLO_TTFT_MS.text(headers).and_then(milliseconds),
            slo_tpot: headers::SLO_TPOT_MS.text(headers).and_then(milliseconds),
            ttl: headers.get("x-llm-d-inference-ttl").and_then(|v| duration(v.to_str().ok()?)),
        }
    }

    /// Counted always, told once a minute.
    fn unknown(&self, name: &str, router: &Router) {
        router.metrics().unknown_objective();
        let now = router.clock().now().0;
        let told = self.told.load(Ordering::Relaxed);
        if told != 0 && now.saturating_sub(told) < TELL_EVERY.0 {
            return;
        }
        if self.told.compare_exchange(told, now.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(
                objective = %shown(name),
                so_far = router.metrics().unknown_objectives(),
                "a request names an objective that does not exist; it runs at priority 0"
            );
        }
    }
}

/// An id from 128 random bits, in the form of a version 4 UUID.
fn id(random: u128) -> HeaderValue {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let mut bits = (random & !(0xf << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62);
    let mut text = *b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    for place in text.iter_mut().rev().filter(|c| **c == b'x') {
        *place = HEX[(bits & 0xf) as usize];
        bits >>= 4;
    }
    HeaderValue::from_bytes(&text).expect("hex digits and dashes are a header value")
}

/// Whether any header could steer the router: most requests have none, and each look-up by name costs more
/// than this.
fn steers(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        ["x-llm-d-", "x-gateway-", "x-slo-"].iter().any(|p| name.starts_with(p))
    })
}

/// Whole milliseconds; what is no number, negative, or too long for Go's durations is as if it were not
/// there.
fn milliseconds(text: &str) -> Option<Span> {
    let ms: i64 = text.parse().ok()?;
    (0..=i64::MAX / 1_000_000).contains(&ms).then(|| Span::millis(ms.unsigned_abs()))
}

/// A positive Go duration; anything else is as if it were not there.
fn duration(text: &str) -> Option<Span> {
    let ns = u64::try_from(forebay_document::parse_duration(text).ok()?).ok()?;
    (ns > 0).then_some(Span(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_wire() {
        for random in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210] {
            assert_eq!(id(random).to_str().unwrap(), headers::request_id(random));
        }
    }

    #[test]
    fn every_header_that_is_read_steers() {
        let names = [
            headers::FAIRNESS_ID,
            headers::OBJECTIVE,
            headers::MODEL_REWRITE,
            headers::SLO_TTFT_MS,
            headers::SLO_TPOT_MS,
        ];
        let all = names.iter().flat_map(|n| [Some(n.current), n.alias]).flatten();
        for name in all.chain(["x-llm-d-inference-ttl"]) {
            let mut map = HeaderMap::new();
            map.insert("accept", HeaderValue::from_static("x"));
            assert!(!steers(&map));
            map.insert(name, HeaderValue::from_static("x"));
            assert!(steers(&map), "{name}");
        }
    }

    #[test]
    fn slo_headers_are_whole_milliseconds() {
        for (text, want) in [
            ("250", Some(Span::millis(250))),
            ("0", Some(Span::ZERO)),
            ("+7", Some(Span::millis(7))),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("9223372036854", Some(Span::millis(9_223_372_036_854))),
            ("9223372036855", None),
            ("9223372036854775808", None),
        ] {
            assert_eq!(milliseconds(text), want, "{text:?}");
        }
    }
}
