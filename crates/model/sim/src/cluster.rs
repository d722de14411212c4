//! What is simulated beside the router: servers, the network to them, and how they are scraped.

use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use forebay_engine::{EngineSpec, Resolved};
use std::sync::Arc;

/// One server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name as an endpoint.
    pub name: String,
    /// Its settled numbers.
    pub engine: Arc<Resolved>,
}

/// When an endpoint's scrapes fall within their period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Anywhere, drawn per router and endpoint under the run's seed.
    Random,
    /// This long after the start.
    Fixed(Span),
}

/// How the router reads the servers' metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// Time between two scrapes of an endpoint; a slow one skips beats.
    pub period: Span,
    /// Place of the beats.
    pub phase: Phase,
    /// Time from asking to having read the answer; the counters are read half-way.
    pub delay: Span,
    /// Added to `delay`: up to this much, drawn evenly per scrape.
    pub jitter: Span,
}

/// What the way between router and server takes: proxying and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// From the dispatch to the request's arrival at the server.
    pub to_engine: Span,
    /// From the end of the step that made a token to its arrival at the client.
    pub to_client: Span,
}

/// What happens to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It dies: what is there fails, and so does what is sent there until it joins again. The routers find
    /// out when its metrics get old, and take it from the pool at [`Change::Leave`].
    Fail,
    /// It leaves the pool and finishes what it has.
    Leave,
    /// It joins the pool, or joins it again: with an empty cache if it had died.
    Join,
    /// Its metrics cannot be read any more.
    Mute,
    /// They can be read again.
    Unmute,
}

/// Something that happens to a server at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// When.
    pub at: Nanos,
    /// Index of the server.
    pub server: u32,
    /// What.
    pub change: Change,
}

/// What the router is in front of.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// A name for reports.
    pub name: String,
    /// The servers; their index is the endpoint column of records.
    pub servers: Vec<Server>,
    /// How they are scraped.
    pub scrape: Scrape,
    /// The way to them.
    pub network: Network,
    /// Routers with a kernel each and nothing shared; requests go to them in turn.
    pub routers: u32,
    /// What happens, in the order of time. A server whose first incident is [`Change::Join`] is not there
    /// before it.
    pub incidents: Vec<Incident>,
}

impl Scrape {
    /// llm-d-router scrapes each endpoint every 50 ms; an answer of vLLM takes 5 to 15 ms.
    pub const DEFAULT: Scrape = Scrape {
        period: Span::millis(50),
        phase: Phase::Random,
        delay: Span::millis(5),
        jitter: Span::millis(10),
    };
}

impl Network {
    /// An assumption for a proxy and one cluster network; what the API server takes is among the engine's
    /// factors.
    pub const DEFAULT: Network = Network { to_engine: Span::millis(1), to_client: Span::millis(1) };
}

impl Cluster {
    /// Servers with default network and scraping.
    pub fn new(name: impl Into<String>, servers: Vec<Server>) -> Cluster {
        Cluster {
            name: name.into(),
            servers,
            scrape: Scrape::DEFAULT,
            network: Network::DEFAULT,
            routers: 1,
            incidents: Vec::new(),
        }
    }

    /// `count` equal servers, named `name-0` and so on.
    pub fn uniform(name: &str, count: u32, engine: Resolved) -> Cluster {
        let engine = Arc::new(engine);
        let server = |i| Server { name: format!("{name}-{i}"), engine: Arc::clone(&engine) };
        Cluster::new(name, (0..count).map(server).collect())
    }

    /// From a list such as `2xh100` or `2xh100,1xa100`: vLLM's defaults, one GPU each. `adjust` changes
    /// each specification before it is settled.
    ///
    /// # Errors
    /// What is wrong with the list or with what it names, under the path `path`.
    pub fn parse(
        list: &str,
        model: &str,
        path: &str,
        adjust: impl Fn(&mut EngineSpec),
    ) -> Result<Cluster, Diagnostics> {
        let mut servers = Vec::new();
        let mut wrong = Diagnostics::default();
        for part in list.split(',').map(str::trim) {
            let (count, hardware) = part.split_once('x').map_or((None, part), |(n, h)| (Some(n), h));
            let count = count.map_or(Ok(1), str::parse::<u32>);
            let Some(count) = count.ok().filter(|n| (1..=10_000).contains(n)) else {
                let message = format!("found {part:?}");
                let d = Diagnostic::error(Position::default(), path, message);
                wrong.push(d.expected("a list such as 2xh100 or 2xh100,1xa100"));
                continue;
            };
            let spec = EngineSpec::named(model, hardware).and_then(|mut spec| {
                adjust(&mut spec);
                spec.resolve()
            });
            match spec {
                Ok(resolved) => {
                    let engine = Arc::new(resolved);
                    servers.extend(
                        (0..count)
                            .map(|i| Server { name: format!("{hardware}-{i}"), engine: Arc::clone(&engine) }),
                    );
                }
                Err(d) => wrong.0.extend(d.0),
            }
        }
        if wrong.has_errors() {
            return Err(wrong);
        }
        // Names are unique across parts, too.
        for (i, s) in servers.iter_mut().enumerate() {
            let kind = s.name.rsplit_once('-').map_or(s.name.as_str(), |(kind, _)| kind);
            s.name = format!("{kind}-{i}");
        }
        Ok(Cluster::new(format!("{list} {model}"), servers))
    }
}
