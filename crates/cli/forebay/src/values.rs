//! Value parsers of flags.

use forebay_base::Span;
use forebay_document::{parse_duration, parse_quantity};
use std::net::SocketAddr;
use std::time::Duration;

/// A Go duration that is not negative.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let ns = parse_duration(text).map_err(|e| e.to_string())?;
    let ns = u64::try_from(ns).map_err(|_| "a duration cannot be negative".to_owned())?;
    Ok(Span(ns).to_std())
}

/// A Kubernetes quantity of at least 1.
pub(crate) fn quantity(text: &str) -> Result<u64, String> {
    let n = parse_quantity(text).map_err(|e| e.to_string())?;
    u64::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| "must be at least 1".to_owned())
}

/// A share from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|s| (0.0..=1.0).contains(s));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// An endpoint: `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointUrl {
    /// `host:port`.
    pub(crate) authority: String,
}

/// Reads `http://host:port`, with or without a closing slash.
pub(crate) fn endpoint(text: &str) -> Result<EndpointUrl, String> {
    let Some(rest) = text.strip_prefix("http://") else {
        return Err(if text.starts_with("https://") {
            "https endpoints are not supported yet".to_owned()
        } else {
            "expected http://HOST:PORT".to_owned()
        });
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let port = authority.rsplit_once(':').and_then(|(host, port)| {
        (!host.is_empty() && !host.contains(['/', '@', '?'])).then(|| port.parse::<u16>().ok())?
    });
    match port {
        Some(_) => Ok(EndpointUrl { authority: authority.to_owned() }),
        None => Err("expected http://HOST:PORT without a path".to_owned()),
    }
}

/// The address of a host and port.
pub(crate) async fn resolve(e: &EndpointUrl) -> anyhow::Result<SocketAddr> {
    let found = tokio::net::lookup_host(&e.authority).await;
    let found = found.map_err(|err| anyhow::anyhow!("--endpoint http://{}: {err}", e.authority))?;
    let mut all: Vec<SocketAddr> = found.collect();
    // The same address on every run, whatever the resolver's order.
    all.sort();
    all.first().copied().ok_or_else(|| anyhow::anyhow!("--endpoint http://{}: no address", e.authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_http_host_and_port() {
        for (text, authority) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("http://vllm-0:8000/", "vllm-0:8000"),
            ("http://[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(endpoint(text).map(|e| e.authority).as_deref(), Ok(authority));
        }
        for text in [
            "127.0.0.1:8000",
            "https://a:1",
            "http://a",
            "http://a:b",
            "http://a:1/v1",
            "http://:1",
            "http://u@a:1",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_and_durations_have_ranges() {
        assert_eq!(quantity("64Mi"), Ok(64 << 20));
        assert!(quantity("0").is_err() && quantity("-1").is_err() && quantity("x").is_err());
        assert_eq!(share("0.1"), Ok(0.1));
        assert!(share("1.1").is_err() && share("-0").is_ok() && share("NaN").is_err());
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(duration("-1s").is_err() && duration("5").is_err());
    }
}
