//! The section `proxy`: limits of the HTTP door. llm-d-router has no such section, because there a proxy
//! of its own stands in front.

use crate::table::{Field, Item, Shape};
use forebay_base::{Diagnostics, Span};
use forebay_kernel::plugin::ParamKind;

/// The section, every default filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Bytes of the largest request body.
    pub max_body: u64,
    /// Bytes of all request bodies, and of answers in one piece, that are held at once.
    pub max_buffered_bytes: u64,
    /// Client connections at once.
    pub max_connections: u64,
    /// Time for a request's head, and for an idle client connection.
    pub header_timeout: Span,
    /// Time for a request's body, beside what its size earns.
    pub body_timeout: Span,
    /// For how long a client may take no byte of its answer.
    pub write_timeout: Span,
    /// Time to connect to an endpoint.
    pub connect_timeout: Span,
    /// Time from sending a request to the head of its answer.
    pub first_byte_timeout: Span,
    /// Time between two pieces of an answer.
    pub idle_timeout: Span,
    /// For how long an unused connection to an endpoint is kept.
    pub keep_idle: Span,
    /// What is tried once more at another endpoint.
    pub retry_on: RetryOn,
    /// Whether requests for models that no endpoint lists are answered with 404.
    pub check_models: bool,
    /// After the stop signal: how long new requests still come in.
    pub shutdown_delay: Span,
    /// After that: how long queued and running requests may take.
    pub drain_timeout: Span,
}

/// Which failures of an endpoint are worth another try. Nothing is tried again after a byte of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryOn {
    /// None.
    Never,
    /// No connection was made, or one that had been idle was reset: no engine can have begun the work.
    #[default]
    Connect,
    /// Also a fresh connection that broke before the head of an answer: an engine may have begun the work.
    FirstByte,
}

impl RetryOn {
    const WORDS: &'static [&'static str] = &["never", "connect", "first-byte"];

    /// As in a file.
    pub fn word(self) -> &'static str {
        RetryOn::WORDS[self as usize]
    }

    /// From a word in a file or a flag.
    pub fn of_word(word: &str) -> Option<RetryOn> {
        [RetryOn::Never, RetryOn::Connect, RetryOn::FirstByte].into_iter().find(|r| r.word() == word)
    }
}

impl Default for ProxyConfig {
    fn default() -> ProxyConfig {
        ProxyConfig {
            max_body: 64 << 20,
            max_buffered_bytes: 1 << 30,
            max_connections: 8192,
            header_timeout: Span::secs(10),
            body_timeout: Span::secs(30),
            write_timeout: Span::secs(60),
            connect_timeout: Span::secs(5),
            first_byte_timeout: Span::secs(600),
            idle_timeout: Span::secs(120),
            keep_idle: Span::secs(4),
            retry_on: RetryOn::Connect,
            check_models: true,
            shutdown_delay: Span::ZERO,
            drain_timeout: Span::secs(30),
        }
    }
}

/// The fields of the section.
pub static PROXY: &[Field] = &[
    Field::new("maxBody", Shape::Quantity, "Bytes of the largest request body; 64Mi if absent."),
    Field::new(
        "maxBufferedBytes",
        Shape::Quantity,
        "Bytes of all request bodies, queued ones included, and of answers in one piece held at once; beyond \
         it requests are answered with 503; 1Gi if absent.",
    ),
    Field::new(
        "maxConnections",
        Shape::Quantity,
        "Client connections at once; more wait to be accepted; 8192 if absent.",
    ),
    Field::new(
        "headerTimeout",
        Shape::Duration,
        "Time for a request's head, and for an idle client connection; 10s if absent.",
    ),
    Field::new(
        "bodyTimeout",
        Shape::Duration,
        "Time for a request's body, extended by a second per 64 KiB received; 30s if absent.",
    ),
    Field::new(
        "writeTimeout",
        Shape::Duration,
        "For how long a client may take no byte of its answer; 1m if absent.",
    ),
    Field::new("connectTimeout", Shape::Duration, "Time to connect to an endpoint; 5s if absent."),
    Field::new(
        "firstByteTimeout",
        Shape::Duration,
        "Time from sending a request to the head of its answer; 10m if absent.",
    ),
    Field::new("idleTimeout", Shape::Duration, "Time between two pieces of an answer; 2m if absent."),
    Field::new(
        "keepIdle",
        Shape::Duration,
        "For how long an unused connection to an endpoint is kept, 0s for not at all; has to be less than \
         the engine keeps it, which is 5s for vLLM; 4s if absent.",
    ),
    Field::new(
        "retryOn",
        Shape::Plain(ParamKind::Choice(RetryOn::WORDS)),
        "What is tried once more at another endpoint: never; connect: no connection, or the reset of one \
         that had been idle; first-byte: also a fresh connection that broke before an answer. connect if \
         absent.",
    ),
    Field::new(
        "checkModels",
        Shape::Plain(ParamKind::Bool),
        "Whether a request for a model that no endpoint lists is answered with 404, once the lists of all \
         endpoints are known; true if absent.",
    ),
    Field::new(
        "shutdownDelay",
        Shape::Duration,
        "After SIGTERM: how long new requests still come in while /readyz says no; 0s if absent.",
    ),
    Field::new(
        "drainTimeout",
        Shape::Duration,
        "After that: how long queued and running requests may take; 30s if absent.",
    ),
];

/// Reads the section.
pub(crate) fn read(top: &Item, found: &mut Diagnostics) -> ProxyConfig {
    let mut out = ProxyConfig::default();
    let Some(section) = top.get("proxy") else { return out };
    for (field, to, least) in [
        ("maxBody", &mut out.max_body, 1),
        ("maxBufferedBytes", &mut out.max_buffered_bytes, 1),
        ("maxConnections", &mut out.max_connections, 1),
    ] {
        number(section, field, least, to, found);
    }
    for (field, to, least) in [
        ("headerTimeout", &mut out.header_timeout, 1),
        ("bodyTimeout", &mut out.body_timeout, 1),
        ("writeTimeout", &mut out.write_timeout, 1),
        ("connectTimeout", &mut out.connect_timeout, 1),
        ("firstByteTimeout", &mut out.first_byte_timeout, 1),
        ("idleTimeout", &mut out.idle_timeout, 1),
        ("keepIdle", &mut out.keep_idle, 0),
        ("shutdownDelay", &mut out.shutdown_delay, 0),
        ("drainTimeout", &mut out.drain_timeout, 0),
    ] {
        number(section, field, least, &mut to.0, found);
    }
    if let Some(r) = section.text("retryOn").and_then(RetryOn::of_word) {
        out.retry_on = r;
    }
    if let Some(on) = section.flag("checkModels") {
        out.check_models = on;
    }
    out
}

fn number(section: &Item, field: &str, least: u64, to: &mut u64, found: &mut Diagnostics) {
    let Some(item) = section.get(field) else { return };
    let Some(given) = item.signed() else { return };
    match u64::try_from(given) {
        Ok(n) if n >= least => *to = n,
        _ => {
            let expected = if least == 0 { "at least 0" } else { "more than 0" };
            found.push(
                item.error(format!("{field} is {}", if given < 0 { "negative" } else { "0" }))
                    .expected(expected),
            );
        }
    }
}
