//! What is simulated beside the router: servers, the network to them, and how they are scraped.

use crate::scaling::Autoscaler;
use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use forebay_engine::{EngineSpec, Hardware, ModelConfig, Resolved, Transfer, Version};
use std::sync::Arc;

/// One server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name as an endpoint.
    pub name: String,
    /// Its labels as an endpoint, sorted by key.
    pub labels: Vec<(String, String)>,
    /// Its settled numbers.
    pub engine: Arc<Resolved>,
    /// Index of its group.
    pub group: u32,
    /// Whether it is there from the start; otherwise it waits for scaling.
    pub present: bool,
}

/// How a server comes up: nothing for `cold`, then in the pool, with longer steps for `warmup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// From the decision to start it to its joining the pool: scheduling the pod, loading weights, capturing
    /// graphs.
    pub cold: Span,
    /// From its joining on, steps take longer for so long.
    pub warmup: Span,
    /// How long they take then, in thousandths of what they take later.
    pub slowdown_permille: u32,
}

/// Equal servers, which scaling adds to and takes from.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name in the file.
    pub name: String,
    /// Indices of its servers: those that are there from the start, then those in reserve.
    pub servers: Vec<u32>,
    /// How its servers come up when they join later.
    pub start: Start,
    /// How long a server that drains may take before what it still runs fails; `None` is as long as it needs.
    pub grace: Option<Span>,
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

/// How the KV of a prompt gets from the server that computed it to the one that decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLink {
    /// Bytes per second into a server, shared by what it reads from others.
    pub bandwidth: u64,
    /// Before the first byte.
    pub latency: Span,
}

impl KvLink {
    /// An assumption: one network card of 200 Gbit/s per server, and a millisecond of hand-shake.
    pub const DEFAULT: KvLink = KvLink { bandwidth: 25_000_000_000, latency: Span::millis(1) };

    /// What it takes to get a prompt's KV to a server: the bytes of its model over all its GPUs.
    pub(crate) fn transfer(&self, to: &Resolved) -> Transfer {
        let tp = to.spec.tp;
        let bytes = u128::from(to.spec.model.kv_bytes_per_token(tp)) * u128::from(tp);
        let ps = (bytes * 1_000_000_000_000).div_ceil(u128::from(self.bandwidth.max(1)));
        Transfer { latency: self.latency, per_token_ps: u64::try_from(ps).unwrap_or(u64::MAX) }
    }
}

/// What happens to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It dies: what is there fails, and so does what is sent there until it joins again. The routers find
    /// out when its metrics get old, and take it from the pool at [`Change::Leave`].
    Fail,
    /// It leaves the pool and finishes what it has. It stays up, and may join again as it is.
    Leave,
    /// It leaves the pool, finishes what it has, and is gone then.
    Drain,
    /// It joins the pool, or joins it again. One that is up does so at once; one that is not comes up first,
    /// as its group does, with an empty cache.
    Join,
    /// The same, coming up in its own way.
    JoinAfter(Start),
    /// Its steps take so many thousandths of their time from now on.
    Slow(u32),
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

/// A change of a group's size at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// When.
    pub at: Nanos,
    /// Index of the group.
    pub group: u32,
    /// To what.
    pub to: Size,
}

/// A size that is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many servers.
    Exactly(u32),
    /// So many more or less than there are.
    By(i32),
}

/// What the router is in front of.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// A name for reports.
    pub name: String,
    /// The servers; their index is the endpoint column of records.
    pub servers: Vec<Server>,
    /// Which of them are equal, and how they come up.
    pub groups: Vec<Group>,
    /// How they are scraped.
    pub scrape: Scrape,
    /// The way to them.
    pub network: Network,
    /// The way of KV between servers, for requests whose prompt is computed elsewhere.
    pub kv: KvLink,
    /// Routers with a kernel each and nothing shared; requests go to them in turn.
    pub routers: u32,
    /// What happens, in the order of time. A server whose first incident is [`Change::Join`] is not there
    /// before it.
    pub incidents: Vec<Incident>,
    /// Changes of size, in the order of time.
    pub scales: Vec<Scale>,
    /// What changes sizes by rules, at most one per group.
    pub autoscalers: Vec<Autoscaler>,
}

impl Start {
    /// At once, and at full speed.
    pub const DEFAULT: Start =
        Start { cold: Span::ZERO, warmup: Span::ZERO, slowdown_permille: FULL_SPEED_PERMILLE };
}

/// Steps take what they take.
pub const FULL_SPEED_PERMILLE: u32 = 1000;

impl Change {
    /// Whether it brings a server into the pool.
    pub(crate) fn joins(self) -> bool {
        matches!(self, Change::Join | Change::JoinAfter(_))
    }
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
    /// Servers with default network and scraping, in these groups: a name, how many, and what each is.
    pub fn new(name: impl Into<String>, kinds: &[(String, u32, Arc<Resolved>)]) -> Cluster {
        let mut cluster = Cluster {
            name: name.into(),
            servers: Vec::new(),
            groups: Vec::new(),
            scrape: Scrape::DEFAULT,
            network: Network::DEFAULT,
            kv: KvLink::DEFAULT,
            routers: 1,
            incidents: Vec::new(),
            scales: Vec::new(),
            autoscalers: Vec::new(),
        };
        for (name, count, engine) in kinds {
            cluster.add(name, *count, engine, &[]);
        }
        cluster
    }

    /// Adds a group of servers that are there from the start, named by the group and their index.
    pub(crate) fn add(
        &mut self,
        name: &str,
        count: u32,
        engine: &Arc<Resolved>,
        labels: &[(String, String)],
    ) -> u32 {
        let group = self.groups.len() as u32;
        let servers = Vec::new();
        self.groups.push(Group { name: name.to_owned(), servers, start: Start::DEFAULT, grace: None });
        for _ in 0..count {
            self.add_server(group, engine, labels, true);
        }
        group
    }

    fn add_server(&mut self, group: u32, engine: &Arc<Resolved>, labels: &[(String, String)], present: bool) {
        let index = self.servers.len() as u32;
        let g = &mut self.groups[group as usize];
        let name = format!("{}-{index}", g.name);
        g.servers.push(index);
        let (labels, engine) = (labels.to_vec(), Arc::clone(engine));
        self.servers.push(Server { name, labels, engine, group, present });
    }

    /// Adds servers in reserve until a group can have `most` at work while as many others drain.
    pub(crate) fn reserve(&mut self, group: u32, most: u32) {
        let g = &self.groups[group as usize];
        let Some(&first) = g.servers.first() else { return };
        let model = self.servers[first as usize].clone();
        let missing = (2 * most as usize).saturating_sub(g.servers.len());
        for _ in 0..missing {
            self.add_server(group, &model.engine, &model.labels, false);
        }
    }

    /// `count` equal servers, named `name-0` and so on.
    pub fn uniform(name: &str, count: u32, engine: Resolved) -> Cluster {
        Cluster::new(name, &[(name.to_owned(), count, Arc::new(engine))])
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
        Cluster::of(list, ModelConfig::find(model)?, Version::NEWEST, path, adjust)
    }

    /// As [`Cluster::parse`], of any model, with the defaults and rules of one vLLM release.
    ///
    /// # Errors
    /// As [`Cluster::parse`].
    pub fn of(
        list: &str,
        model: &ModelConfig,
        version: Version,
        path: &str,
        adjust: impl Fn(&mut EngineSpec),
    ) -> Result<Cluster, Diagnostics> {
        let mut kinds = Vec::new();
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
            let spec = Hardware::find(hardware).and_then(|hardware| {
                let mut spec = EngineSpec::with_version(model, hardware, version);
                adjust(&mut spec);
                spec.resolve()
            });
            match spec {
                Ok(resolved) => kinds.push((hardware.to_owned(), count, Arc::new(resolved))),
                Err(d) => wrong.0.extend(d.0),
            }
        }
        if wrong.has_errors() {
            return Err(wrong);
        }
        Ok(Cluster::new(format!("{list} {}", model.name), &kinds))
    }

    /// The servers that are alike, in the order of the first of each kind; without those in reserve.
    pub fn kinds(&self) -> Vec<(Vec<&Server>, &Resolved)> {
        let mut kinds: Vec<(Vec<&Server>, &Arc<Resolved>, String)> = Vec::new();
        for server in self.servers.iter().filter(|s| s.present) {
            // Servers of one entry share their numbers: a long list needs no text for each.
            let engine = &server.engine;
            let shared = kinds.iter().position(|k| Arc::ptr_eq(k.1, engine));
            let text = if shared.is_none() { engine.to_string() } else { String::new() };
            if let Some(i) = shared.or_else(|| kinds.iter().position(|k| k.2 == text)) {
                kinds[i].0.push(server);
            } else {
                kinds.push((vec![server], engine, text));
            }
        }
        kinds.into_iter().map(|(servers, engine, _)| (servers, &**engine)).collect()
    }
}
