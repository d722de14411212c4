//! Headers: the names that steer routing, what is forwarded, and what a request's framing must look like.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri, Version};

/// A header with its deprecated alias. The current name wins when both are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The current name, in lower case.
    pub current: &'static str,
    /// The deprecated name, in lower case.
    pub alias: Option<&'static str>,
}

/// The fairness id: which flow a request belongs to.
pub const FAIRNESS_ID: Name =
    Name { current: "x-llm-d-inference-fairness-id", alias: Some("x-gateway-inference-fairness-id") };
/// The name of the objective that gives a request its priority.
pub const OBJECTIVE: Name =
    Name { current: "x-llm-d-inference-objective", alias: Some("x-gateway-inference-objective") };
/// The model to ask the engine for instead of the body's.
pub const MODEL_REWRITE: Name =
    Name { current: "x-llm-d-model-name-rewrite", alias: Some("x-gateway-model-name-rewrite") };
/// Time to first token that the client hopes for, in milliseconds.
pub const SLO_TTFT_MS: Name = Name { current: "x-llm-d-slo-ttft-ms", alias: Some("x-slo-ttft-ms") };
/// Time per output token that the client hopes for, in milliseconds.
pub const SLO_TPOT_MS: Name = Name { current: "x-llm-d-slo-tpot-ms", alias: Some("x-slo-tpot-ms") };

/// The request's id: forwarded and echoed, generated if absent.
pub const REQUEST_ID: &str = "x-request-id";
/// Why a request was not served; set on responses.
pub const DROP_REASON: &str = "x-llm-d-request-dropped-reason";
/// How long a request waited in the queue, in milliseconds; set on responses.
pub const QUEUE_DURATION_MS: &str = "x-llm-d-flow-queue-duration-ms";
/// Marks a request that asks about the server and is nobody's traffic, such as those by which a load generator learns
/// how words become tokens; its value says what it is. It is served like any other, but not recorded for replays.
pub const PROBE: &str = "x-forebay-probe";
/// The endpoint that a request is sent to.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The endpoints that a request may be sent to.
pub const DESTINATION_SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// The endpoint that served a request.
pub const DESTINATION_SERVED: &str = "x-gateway-destination-endpoint-served";

/// Where the prompt of a request is to be computed first: address and port, for the sidecar of the endpoint that
/// decodes.
pub const PREFILLER: &str = "x-prefiller-host-port";

/// Headers that belong to the router: read, then kept from the engine; and not taken from an engine's answer.
const SYSTEM_OWNED: [&str; 19] = [
    FAIRNESS_ID.current,
    "x-gateway-inference-fairness-id",
    OBJECTIVE.current,
    "x-gateway-inference-objective",
    MODEL_REWRITE.current,
    "x-gateway-model-name-rewrite",
    SLO_TTFT_MS.current,
    "x-slo-ttft-ms",
    SLO_TPOT_MS.current,
    "x-slo-tpot-ms",
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
    DROP_REASON,
    DESTINATION,
    DESTINATION_SUBSET,
    DESTINATION_SERVED,
    PREFILLER,
    PROBE,
];

/// Headers of one hop. `proxy-authorization` is among them: credentials for this proxy are nothing for an engine.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

impl Name {
    /// The header's value.
    pub fn get(self, headers: &HeaderMap) -> Option<&HeaderValue> {
        headers.get(self.current).or_else(|| self.alias.and_then(|alias| headers.get(alias)))
    }

    /// The header's value as text without surrounding blanks; `None` if absent, empty or not UTF-8.
    pub fn text(self, headers: &HeaderMap) -> Option<&str> {
        let value = std::str::from_utf8(self.get(headers)?.as_bytes()).ok()?.trim();
        (!value.is_empty()).then_some(value)
    }
}

/// Whether a header belongs to the router. Names are in lower case.
pub fn is_system_owned(name: &str) -> bool {
    SYSTEM_OWNED.contains(&name)
}

/// The headers to send on with a request: neither the router's own nor those of one hop, among them every name that
/// `connection` lists; without `host`, `content-length` and `expect`, which belong to the message that is sent.
/// Repeated headers stay repeated and in order.
pub fn forward_request(headers: &HeaderMap) -> HeaderMap {
    forward(headers, &["host", "content-length", "expect"])
}

/// The headers to send on with an answer; see [`forward_request`]. `content-length` stays, as the bytes do: remove it
/// when the body is changed.
pub fn forward_response(headers: &HeaderMap) -> HeaderMap {
    forward(headers, &[])
}

fn forward(headers: &HeaderMap, more: &[&str]) -> HeaderMap {
    let nominated: Vec<&[u8]> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let stays = |name: &HeaderName| {
        let name = name.as_str();
        !is_system_owned(name)
            && !HOP_BY_HOP.contains(&name)
            && !more.contains(&name)
            // Nominating the id or the body's type would only hurt the request; the id is always forwarded.
            && (name == REQUEST_ID || !nominated.iter().any(|n| n.eq_ignore_ascii_case(name.as_bytes())))
    };
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        if stays(name) {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

/// A request id from 128 random bits, in the form of a version 4 UUID.
pub fn request_id(random: u128) -> String {
    let id = (random & !(0xf << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62);
    let hex = format!("{id:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Why a request's framing is refused. Always the client's error (status 400, for a method 405).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// A transfer coding other than `chunked` alone: once the header is gone nobody knows the body is coded.
    #[error("the only transfer-encoding accepted is `chunked`")]
    TransferEncoding,
    /// An HTTP/1.1 request without `host`.
    #[error("the `host` header is missing")]
    NoHost,
    /// More than one `host`.
    #[error("the `host` header is sent more than once")]
    SeveralHosts,
    /// The request target names a host, and `host` another one.
    #[error("the `host` header differs from the host in the request target")]
    OtherHost,
    /// `CONNECT` is never proxied.
    #[error("the method CONNECT is not supported")]
    Connect,
}

/// Checks what hyper lets pass and a proxy must not: see [`FramingError`].
pub fn check_framing(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
) -> Result<(), FramingError> {
    if *method == Method::CONNECT {
        return Err(FramingError::Connect);
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(first) = codings.next() {
        let chunked = first.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !chunked || codings.next().is_some() {
            return Err(FramingError::TransferEncoding);
        }
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err(FramingError::SeveralHosts),
        (None, _) if version == Version::HTTP_11 => Err(FramingError::NoHost),
        (Some(host), None)
            if uri
                .authority()
                .is_some_and(|a| !a.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes())) =>
        {
            Err(FramingError::OtherHost)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect()
    }

    #[test]
    fn the_current_name_wins() {
        let both = map(&[("x-gateway-inference-objective", "old"), ("x-llm-d-inference-objective", " new ")]);
        assert_eq!(OBJECTIVE.text(&both), Some("new"));
        assert_eq!(OBJECTIVE.text(&map(&[("x-gateway-inference-objective", "old")])), Some("old"));
        assert_eq!(OBJECTIVE.text(&map(&[("x-llm-d-inference-objective", "  ")])), None);
        let mut headers = HeaderMap::new();
        headers.insert(FAIRNESS_ID.current, HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
        assert_eq!(FAIRNESS_ID.text(&headers), Some("café"));
        headers.insert(FAIRNESS_ID.current, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(FAIRNESS_ID.text(&headers), None);
    }

    #[test]
    fn every_name_and_alias_is_system_owned() {
        for name in [FAIRNESS_ID, OBJECTIVE, MODEL_REWRITE, SLO_TTFT_MS, SLO_TPOT_MS] {
            assert!(is_system_owned(name.current) && name.alias.is_some_and(is_system_owned));
        }
        assert!(!is_system_owned(REQUEST_ID));
    }

    #[test]
    fn requests_lose_what_is_not_the_engines() {
        let headers = map(&[
            ("host", "a"),
            ("connection", "close, X-Secret ,x-request-id"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("x-request-id", "id"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("expect", "100-continue"),
            ("te", "trailers"),
            ("proxy-authorization", "p"),
            ("authorization", "b"),
            ("x-gateway-inference-objective", "o"),
            ("x-gateway-destination-endpoint", "10.0.0.1:8"),
            ("x-gateway-destination-endpoint-subset", "10.0.0.1:8"),
            ("x-llm-d-request-dropped-reason", "r"),
            ("traceparent", "t"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        assert_eq!(
            shown(&forward_request(&headers)),
            ["x-request-id: id", "authorization: b", "traceparent: t", "accept: a", "accept: b"]
        );
    }

    #[test]
    fn answers_keep_their_length_and_repeated_headers() {
        let headers = map(&[
            ("content-length", "3"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("keep-alive", "timeout=5"),
            ("x-gateway-destination-endpoint-served", "forged"),
        ]);
        assert_eq!(
            shown(&forward_response(&headers)),
            ["content-length: 3", "set-cookie: a=1", "set-cookie: b=2"]
        );
    }

    #[test]
    fn framing() {
        let check = |version, uri: &'static str, pairs: &[(&'static str, &'static str)]| {
            check_framing(&Method::POST, &Uri::from_static(uri), version, &map(pairs))
        };
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        assert_eq!(check(new, "/", &[("host", "a")]), Ok(()));
        assert_eq!(check(old, "/", &[]), Ok(()));
        assert_eq!(check(new, "/", &[]), Err(FramingError::NoHost));
        assert_eq!(check(new, "/", &[("host", "a"), ("host", "a")]), Err(FramingError::SeveralHosts));
        assert_eq!(check(new, "http://A:1/x", &[("host", "a:1")]), Ok(()));
        assert_eq!(check(new, "http://a:1/x", &[("host", "a:2")]), Err(FramingError::OtherHost));
        assert_eq!(check(new, "/", &[("host", "a"), ("transfer-encoding", "Chunked")]), Ok(()));
        for coding in ["gzip, chunked", "chunked, chunked", "identity", ""] {
            assert_eq!(
                check(new, "/", &[("host", "a"), ("transfer-encoding", coding)]),
                Err(FramingError::TransferEncoding)
            );
        }
        let twice = [("host", "a"), ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")];
        assert_eq!(check(new, "/", &twice), Err(FramingError::TransferEncoding));
        let connect =
            check_framing(&Method::CONNECT, &Uri::from_static("a:1"), new, &map(&[("host", "a:1")]));
        assert_eq!(connect, Err(FramingError::Connect));
    }

    #[test]
    fn request_ids_are_uuids() {
        assert_eq!(request_id(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(request_id(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
