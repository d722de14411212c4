//! Limits of the front port: flags, which come before the section `proxy` of the configuration, and the
//! file descriptors that they need.

use crate::values::{duration, quantity};
use clap::{Args, ValueEnum};
use forebay_base::Span;
use forebay_config::{ProxyConfig, RetryOn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Descriptors that are neither a client's connection nor one to an endpoint: logs, ports, scrapes.
const OTHER_FILES: u64 = 256;

/// Limits of the front port, each of them also a field of the configuration's section `proxy`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Ports and limits")]
pub(crate) struct Front {
    /// Largest request body; more is answered with 413 [default: 64Mi]
    #[arg(long, value_name = "SIZE", value_parser = quantity)]
    max_body: Option<u64>,
    /// Bytes of all requests, and of answers in one piece, held at once; more is answered with 503 [default: 1Gi]
    #[arg(long, value_name = "SIZE", value_parser = quantity)]
    max_buffered_bytes: Option<u64>,
    /// Client connections at once; more wait to be accepted [default: 8192]
    #[arg(long, value_name = "N", value_parser = quantity)]
    max_connections: Option<u64>,
    /// Time for a request's head, and for an idle connection [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    header_timeout: Option<Duration>,
    /// Time for a request's body, extended by a second per 64 KiB received [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    body_timeout: Option<Duration>,
    /// For how long a client may take no byte of its answer [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    write_timeout: Option<Duration>,
    /// Time to connect to an endpoint [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    connect_timeout: Option<Duration>,
    /// Time from sending a request to the head of its answer [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    first_byte_timeout: Option<Duration>,
    /// Time between two pieces of an answer [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle_timeout: Option<Duration>,
    /// What is tried once more at another endpoint; never after a byte of an answer [default: connect]
    #[arg(long, value_name = "WHAT", value_enum)]
    retry_on: Option<Retry>,
    /// After SIGTERM: how long new requests still come in while /readyz says no [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    shutdown_delay: Option<Duration>,
    /// After that: how long queued and running requests may take [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain_timeout: Option<Duration>,
}

/// [`RetryOn`] as a flag.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Retry {
    Never,
    /// No connection, or the reset of one that had been idle
    Connect,
    /// Also a fresh connection that broke before an answer
    FirstByte,
}

impl Front {
    /// The configuration's section with the flags over it.
    pub(crate) fn over(&self, mut p: ProxyConfig) -> ProxyConfig {
        let numbers = [
            (self.max_body, &mut p.max_body),
            (self.max_buffered_bytes, &mut p.max_buffered_bytes),
            (self.max_connections, &mut p.max_connections),
        ];
        for (flag, to) in numbers {
            *to = flag.unwrap_or(*to);
        }
        let times = [
            (self.header_timeout, &mut p.header_timeout),
            (self.body_timeout, &mut p.body_timeout),
            (self.write_timeout, &mut p.write_timeout),
            (self.connect_timeout, &mut p.connect_timeout),
            (self.first_byte_timeout, &mut p.first_byte_timeout),
            (self.idle_timeout, &mut p.idle_timeout),
            (self.shutdown_delay, &mut p.shutdown_delay),
            (self.drain_timeout, &mut p.drain_timeout),
        ];
        for (flag, to) in times {
            if let Some(d) = flag {
                *to = Span(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        p.retry_on = match self.retry_on {
            None => p.retry_on,
            Some(Retry::Never) => RetryOn::Never,
            Some(Retry::Connect) => RetryOn::Connect,
            Some(Retry::FirstByte) => RetryOn::FirstByte,
        };
        p
    }
}

/// Raises the limit of open files as far as it goes, and says if it is not enough: a request takes two, the
/// client's connection and the one to its endpoint. Gives the client connections that there is room for.
pub(crate) fn room_for(connections: u64) -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let (soft, hard) = (limits.current.unwrap_or(u64::MAX), limits.maximum.unwrap_or(u64::MAX));
    let raised = soft < hard
        && setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum }).is_ok();
    let files = if raised { hard } else { soft };
    let room = connections_within(files).min(connections);
    if room == connections {
        return connections;
    }
    tracing::warn!(
        open_files = files,
        needed = connections.saturating_mul(2).saturating_add(OTHER_FILES),
        connections = room,
        "the limit of open files is too low for {connections} client connections; more than {room} will wait. \
         Raise it (ulimit -n), or lower proxy.maxConnections"
    );
    room
}

/// Client connections for which so many open files are enough.
fn connections_within(files: u64) -> u64 {
    (files.saturating_sub(OTHER_FILES) / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_takes_two_files_beside_the_others() {
        assert_eq!(connections_within(0), 1);
        assert_eq!(connections_within(OTHER_FILES + 2000), 1000);
        assert_eq!(connections_within(OTHER_FILES + 2001), 1000);
        // Whatever the limit here is, it is not more than asked for, and asking raises it for good.
        let first = room_for(3);
        assert!((1..=3).contains(&first));
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(limits.current, limits.maximum);
    }

    #[test]
    fn flags_come_before_the_configuration() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            front: Front,
        }
        use clap::Parser;
        let over = |flags: &[&str], p| Line::parse_from([&["x"], flags].concat()).front.over(p);
        let given = ProxyConfig { max_body: 7, check_models: false, ..ProxyConfig::default() };
        assert_eq!(over(&[], given), given);
        let flags = ["--max-body", "1Ki", "--idle-timeout", "3s", "--retry-on", "first-byte"];
        let expected = ProxyConfig {
            max_body: 1024,
            idle_timeout: Span::secs(3),
            retry_on: RetryOn::FirstByte,
            ..given
        };
        assert_eq!(over(&flags, given), expected);
    }
}
