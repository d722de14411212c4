//! The live side: the router of `forebay serve` in front of emulated servers, all in this process over loopback, and the
//! load generator of `forebay observe` before it.

use crate::commands::serve::{scrape_options, serve_options};
use anyhow::Context;
use forebay_base::{Nanos, Span};
use forebay_config::{Config, Manifests};
use forebay_emulate::{Emulator, Served};
use forebay_kernel::journal::Journal;
use forebay_kernel::{EndpointSpec, Plan};
use forebay_live::lines::{self, LinesWriter};
use forebay_live::{Clock, Names, Router, scrape};
use forebay_load::{Api, Observation, Options, Style, Url, Watch, Words};
use forebay_net::{Client, ClientOptions};
use forebay_records::Row;
use forebay_serve::Server;
use forebay_sim::Cluster;
use forebay_study::parity::decisions::{names, number_of};
use forebay_study::parity::{Decision, Decisions, Delays, Live, Spread};
use forebay_workload::Workload;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Bytes of the access log that may wait; it goes to memory, so that none ever do for long.
const ACCESS_LOG: usize = 1 << 30;
/// How long connections may take to close behind a run.
const CLOSING: Duration = Duration::from_secs(5);

/// What a live side is made of.
pub(crate) struct Recipe<'a> {
    pub(crate) config: &'a Config,
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) cluster: &'a Cluster,
    pub(crate) workload: &'a Workload,
    pub(crate) manifests: Manifests,
    /// Of arrivals, lengths and the router's draws.
    pub(crate) seed: u64,
    /// The most time after the last arrival.
    pub(crate) drain: Span,
    /// Requests that arrive earlier tell nothing of the delays: connections open, and servers fill up.
    pub(crate) delays_from: Nanos,
}

/// Text in memory that a thread writes and another one reads when it is over.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        String::from_utf8(bytes).unwrap_or_default()
    }
}

impl Journal for Shared {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        if let Ok(mut text) = self.0.lock() {
            // Memory does not refuse.
            let _ = writeln!(text, "{line}");
        }
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Ok(mut text) = self.0.lock() {
            text.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A router and its servers at work.
struct Stack {
    /// Router and servers have threads of their own, as processes have.
    serving: Runtime,
    emulating: Runtime,
    router: Arc<Router>,
    servers: Vec<Emulator>,
    accounts: Receiver<Served>,
    journal: Shared,
    access: Shared,
    access_writer: LinesWriter,
    front: SocketAddr,
}

impl Stack {
    fn start(recipe: &Recipe<'_>) -> anyhow::Result<Stack> {
        let runtime = |name: &str| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.enable_all().thread_name(name).build().context("a runtime cannot be started")
        };
        let (serving, emulating) = (runtime("router")?, runtime("servers")?);
        let (to, accounts) = channel();
        let mut servers = Vec::new();
        for (seed, server) in (0..).zip(&recipe.cluster.servers) {
            let spec = &server.engine.spec;
            // One name for all, whatever they run: requests ask for a single model.
            let served_model_names = vec![model(recipe.cluster)];
            let accounts = Some(to.clone());
            let base = forebay_emulate::Options::new(&spec.model);
            let options = forebay_emulate::Options { served_model_names, seed, accounts, ..base };
            servers.push(emulating.block_on(Emulator::start(spec, options))?);
        }
        let (journal, access) = (Shared::default(), Shared::default());
        let router = Router::start(forebay_live::Options {
            plan: Arc::clone(recipe.plan),
            seed: recipe.seed,
            clock: Clock::real(),
            journal: Some(Box::new(journal.clone())),
            pool_name: "default".to_owned(),
            names: Names::of_config(recipe.config),
        })
        .context("the router cannot be started")?;
        for (server, emulated) in recipe.cluster.servers.iter().zip(&servers) {
            let spec = EndpointSpec { name: server.name.clone(), labels: server.labels.clone() };
            router.add_endpoint(spec, emulated.addr());
        }
        let (log, access_writer) = lines::write_to("access-log", access.clone(), ACCESS_LOG)?;
        let proxy = recipe.config.proxy;
        let mut options =
            serve_options(&router, recipe.config, &proxy, recipe.manifests.clone(), recipe.seed);
        options.access_log = Some(log);
        let server = serving.block_on(Server::bind("127.0.0.1:0", "127.0.0.1:0", options))?;
        let front = server.front_addr();
        let observer = Arc::new(Client::new(ClientOptions { max_idle: 2, ..ClientOptions::default() }));
        let scraping = scrape_options(recipe.cluster.scrape.period.to_std(), recipe.config)?;
        serving.spawn(scrape::run(Arc::clone(&router), observer, scraping));
        serving.spawn(server.run(std::future::pending()));
        Ok(Stack { serving, emulating, router, servers, accounts, journal, access, access_writer, front })
    }

    /// Ends everything and gives what was noted on the way.
    fn end(self) -> Notes {
        let (at, now) = (Instant::now(), self.router.clock().now());
        let origin = at.checked_sub(now.since(Nanos::ZERO).to_std()).unwrap_or(at);
        let addresses = self.servers.iter().map(|s| s.addr().to_string()).collect();
        // The router first: what it drops, the servers notice.
        self.serving.shutdown_timeout(CLOSING);
        drop(self.servers);
        self.emulating.shutdown_timeout(CLOSING);
        self.router.end_journal();
        drop(self.access_writer);
        Notes {
            journal: self.journal.take(),
            access: self.access.take(),
            accounts: self.accounts.try_iter().collect(),
            origin,
            addresses,
        }
    }
}

/// What stands in the logs of a live side.
struct Notes {
    journal: String,
    access: String,
    accounts: Vec<Served>,
    /// The instant that the router's clock counts from.
    origin: Instant,
    /// Of the servers.
    addresses: Vec<String>,
}

fn model(cluster: &Cluster) -> String {
    cluster.servers.first().map_or_else(String::new, |s| s.engine.spec.model.name.to_string())
}

/// Runs the live side once.
pub(crate) fn run(recipe: &Recipe<'_>, watch: &Arc<Watch>) -> anyhow::Result<(Live, Observation)> {
    let stack = Stack::start(recipe)?;
    // Prompts as plain text: a word of the generator is a token of the emulated servers, and the text of a block
    // stands where the simulated prompt has it.
    let mut style = Style::new(recipe.workload);
    style.api = Api::Completions;
    let url = Url { authority: stack.front.to_string(), base: String::new() };
    let name = model(recipe.cluster);
    let server = forebay_load::Server::find(url, style, Some(&name), Words::default())?;
    // Servers are new each time, so that any salt does.
    let options = Options { drain: Some(recipe.drain), ..Options::new(recipe.seed, recipe.seed) };
    let seen = forebay_load::observe(recipe.workload, &server, &options, watch)?;
    let notes = stack.end();
    Ok((assemble(&seen, notes, recipe.delays_from), seen))
}

/// Sets the generator's records, the router's log and the servers' accounts together on the clock of the run.
fn assemble(seen: &Observation, notes: Notes, delays_from: Nanos) -> Live {
    let shift = match seen.started.checked_duration_since(notes.origin) {
        Some(later) => later.as_nanos() as i128,
        None => -(notes.origin.duration_since(seen.started).as_nanos() as i128),
    };
    let names = names(&notes.access);
    let decisions = Decisions::read(notes.journal, shift, |_, id| names.get(id).copied());
    let of = |at: Instant| {
        Nanos(u64::try_from(at.saturating_duration_since(seen.started).as_nanos()).unwrap_or(u64::MAX))
    };
    let accounts: BTreeMap<u64, &Served> =
        notes.accounts.iter().filter_map(|a| Some((number_of(&a.request_id)?, a))).collect();
    let decided: BTreeMap<u64, &Decision> = decisions.list.iter().map(|d| (d.number, d)).collect();
    let mut parts = Parts::default();
    let rows = seen.records.iter().map(|r| {
        let mut row = r.row;
        let number = row.number;
        // What was sent on has its endpoint from the router itself.
        row.endpoint = row.endpoint.and_then(|e| {
            let name = seen.endpoints.get(e as usize)?;
            notes.addresses.iter().position(|a| a == name).map(|i| i as u32)
        });
        row.dispatched = None;
        if let Some(d) = decided.get(&number) {
            // The wait in its queue. The way to it is part of the network, as in the simulated cluster.
            (row.dispatched, row.endpoint) = (Some(row.arrived + d.waited), Some(d.endpoint));
        }
        if let Some(a) = accounts.get(&number) {
            row.engine_arrived = Some(of(a.arrived));
            row.scheduled = a.admitted.map(of);
            row.cached_tokens = a.cached_tokens;
            row.preemptions = a.preemptions;
        }
        if row.arrived >= delays_from {
            parts.add(&row, r.live.sent, decided.get(&number).copied(), accounts.get(&number).copied(), &of);
        }
        row
    });
    let rows: Vec<Row> = rows.collect();
    let delays = parts.delays(&decisions);
    Live { rows, decisions, delays, schedule: Some(seen.schedule), ended_at: seen.ended_at }
}

/// Measurements of the way.
#[derive(Default)]
struct Parts {
    lag: Vec<Span>,
    to_router: Vec<Span>,
    to_engine: Vec<Span>,
    to_client: Vec<Span>,
}

impl Parts {
    fn add(
        &mut self,
        row: &Row,
        sent: Option<Nanos>,
        decision: Option<&Decision>,
        account: Option<&Served>,
        of: &dyn Fn(Instant) -> Nanos,
    ) {
        self.lag.extend(sent.map(|s| s.since(row.arrived)));
        if let (Some(sent), Some(d)) = (sent, decision) {
            self.to_router.push((d.at - d.waited).since(sent));
        }
        if let (Some(d), Some(at)) = (decision, row.engine_arrived) {
            self.to_engine.push(at.since(d.at));
        }
        let Some(a) = account else { return };
        if let (Some(made), Some(got)) = (a.first, row.first_token) {
            self.to_client.push(got.since(of(made)));
        }
        if let (Some(made), Some(got)) = (a.last, row.finished.filter(|_| row.is_finished())) {
            self.to_client.push(got.since(of(made)));
        }
    }

    fn delays(self, decisions: &Decisions) -> Delays {
        Delays {
            lag: Spread::of(self.lag),
            to_router: Spread::of(self.to_router),
            to_engine: Spread::of(self.to_engine),
            to_client: Spread::of(self.to_client),
            scrape: Spread::of(decisions.scrapes.iter().copied()),
        }
    }
}
