//! The loop: the earliest event runs, and what follows from it is put in line.

mod flights;
mod life;
mod scrapes;
mod servers;
mod watch;

use crate::cluster::{Cluster, Phase, Start};
use crate::events::{Event, Events, Ref};
use crate::observe::{Counters, HISTOGRAM_BINS, Preemption, Run, Timeline};
use crate::scaling::Scaling;
use crate::traffic::Traffic;
use flights::Flights;
use forebay_base::{Draws, IndexedHeap, Nanos, Purpose, Span};
use forebay_engine::{Adapters, StepMode};
use forebay_kernel::journal::Journal;
use forebay_kernel::{Ask, Effect, Effects, EndpointId, Kernel, Plan, Progress, Refusal, Usage};
use forebay_records::{End, Row};
use forebay_workload::{Arrival, BLOCK_TOKENS};
use life::Sizes;
use scrapes::Scrapes;
use servers::Servers;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

const PHASE: Purpose = Purpose::named("sim-scrape-phase");
const JITTER: Purpose = Purpose::named("sim-scrape-jitter");
const ROUTER: Purpose = Purpose::named("sim-router");

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Draws of the routers and of the scrapes are made under it.
    pub seed: u64,
    /// Nothing later happens; who is still inside then is censored.
    pub horizon: Nanos,
    /// The end of the arrivals: the saturation histogram goes so far.
    pub window: Nanos,
    /// Distance of the points of the timeline, if one is wanted.
    pub sample: Option<Span>,
    /// How engines step; results do not depend on it, only the time they take.
    pub steps: StepMode,
    /// Whether the gaps between tokens are counted.
    pub gaps: bool,
    /// Whether it is kept who was preempted when.
    pub preemptions: bool,
    /// Whether the decision log of router 0 is kept, with the requests that its dispatches are of.
    pub decisions: bool,
    /// Whether routers are told how long the answer will be, as by clients that ask for exactly so many tokens.
    pub tells_output: bool,
    /// Gets the simulated time in nanoseconds now and then, for whoever shows progress.
    pub watch: Option<Arc<AtomicU64>>,
}

impl Options {
    /// Until everything has ended, without timeline and decision log.
    pub fn new(seed: u64) -> Options {
        Options {
            seed,
            horizon: Nanos::NEVER,
            window: Nanos::NEVER,
            sample: None,
            steps: StepMode::Macro,
            gaps: false,
            preemptions: false,
            decisions: false,
            tells_output: false,
            watch: None,
        }
    }
}

/// Runs `traffic` through routers that decide by `plan`, in front of `cluster`. `flow` names a flow for
/// the routers. Ends when all requests have ended and no more come, or at the horizon.
pub fn run(
    plan: &Arc<Plan>,
    cluster: &Cluster,
    traffic: &mut dyn Traffic,
    flow: &dyn Fn(u32) -> String,
    options: &Options,
) -> Run {
    let mut rows = Vec::new();
    let mut run = run_into(plan, cluster, traffic, flow, options, &mut |row| rows.push(row));
    rows.sort_by_key(|r: &Row| r.number);
    run.rows = rows;
    run
}

/// As [`run`], but hands each request's record to `sink` when it ends, so that a run's memory is that of
/// the requests in the system.
pub fn run_into(
    plan: &Arc<Plan>,
    cluster: &Cluster,
    traffic: &mut dyn Traffic,
    flow: &dyn Fn(u32) -> String,
    options: &Options,
    sink: &mut dyn FnMut(Row),
) -> Run {
    let mut world = World::new(plan, cluster, traffic, flow, options, sink);
    world.start();
    world.turn();
    world.finish()
}

/// Text that kernel and simulation share, since the kernel owns its journal.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<String>>);

impl Journal for Log {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        if let Ok(mut text) = self.0.lock() {
            text.line(line);
        }
    }
}

/// One router: a kernel, and what the world knows of it.
struct Router {
    kernel: Kernel,
    fx: Effects,
    wake: Option<Nanos>,
    /// Which flight has a kernel's place.
    flights: Vec<Ref>,
    /// Its name for each server, while that is in the pool.
    endpoints: Vec<Option<EndpointId>>,
    /// Which server an endpoint's index stands for.
    servers: Vec<u32>,
    /// The adapters of each server that the kernel was told of last.
    adapters: Vec<Option<Adapters>>,
}

struct World<'a> {
    cluster: &'a Cluster,
    traffic: &'a mut dyn Traffic,
    flow: &'a dyn Fn(u32) -> String,
    flow_names: Vec<Option<Box<str>>>,
    options: &'a Options,
    sink: &'a mut dyn FnMut(Row),
    draws: Draws,
    now: Nanos,
    routers: Vec<Router>,
    scrapes: Scrapes,
    servers: Servers,
    /// How each server comes up that is doing so.
    starts: Vec<Start>,
    sizes: Vec<Sizes>,
    scaling: Scaling,
    flights: Flights,
    timeouts: IndexedHeap<(Nanos, u32)>,
    events: Events,
    next_sample: Option<Nanos>,
    /// Saturation of router 0, and since when.
    saturation: (f64, Nanos),
    counters: Counters,
    timeline: Timeline,
    preemptions: Vec<Preemption>,
    log: Option<Log>,
    dispatches: Vec<u64>,
}

/// What runs next; at the same instant in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Engine,
    /// Something happens to a server.
    Change,
    Scrape,
    Event,
    Wake(u32),
    Arrival,
    Timeout,
    Sample,
    /// Requests wait, and only scrapes can get them on.
    Nothing,
}

/// Flow names up to this number are kept.
const NAMES_KEPT: usize = 1 << 16;

impl<'a> World<'a> {
    fn new(
        plan: &Arc<Plan>,
        cluster: &'a Cluster,
        traffic: &'a mut dyn Traffic,
        flow: &'a dyn Fn(u32) -> String,
        options: &'a Options,
        sink: &'a mut dyn FnMut(Row),
    ) -> World<'a> {
        let draws = Draws::new(options.seed);
        let log = options.decisions.then(Log::default);
        let n = cluster.servers.len();
        let routers = (0..cluster.routers.max(1)).map(|r| {
            let mut fx = Effects::new();
            if let Some(log) = log.as_ref().filter(|_| r == 0) {
                fx.journal = Some(Box::new(log.clone()));
            }
            let seed = if r == 0 { options.seed } else { draws.bits(ROUTER, u64::from(r), 0) };
            let kernel = Kernel::new(Arc::clone(plan), seed, Nanos::ZERO, &mut fx);
            Router {
                kernel,
                fx,
                wake: None,
                flights: Vec::new(),
                endpoints: vec![None; n],
                servers: Vec::new(),
                adapters: vec![None; n],
            }
        });
        let phase = |router: usize, server: usize| match cluster.scrape.phase {
            Phase::Fixed(at) => at,
            Phase::Random => Span(draws.below(PHASE, server as u64, router as u64, cluster.scrape.period.0)),
        };
        World {
            cluster,
            traffic,
            flow,
            flow_names: Vec::new(),
            options,
            sink,
            draws,
            now: Nanos::ZERO,
            routers: routers.collect(),
            scrapes: Scrapes::new(cluster.routers.max(1) as usize, n, phase),
            servers: Servers::new(cluster, options),
            starts: vec![Start::DEFAULT; n],
            sizes: Vec::new(),
            scaling: Scaling::default(),
            flights: Flights::default(),
            timeouts: IndexedHeap::default(),
            events: Events::default(),
            next_sample: options.sample.map(|_| Nanos::ZERO),
            saturation: (0.0, Nanos::ZERO),
            counters: Counters { saturation: vec![0; HISTOGRAM_BINS], ..Counters::default() },
            timeline: Timeline::default(),
            preemptions: Vec::new(),
            log,
            dispatches: Vec::new(),
        }
    }

    /// The pool as it is at the start: the routers have been up for a while and know their endpoints.
    fn start(&mut self) {
        self.populate();
        self.timeline.bands = self.routers[0].kernel.bands().map(|b| b.priority).collect();
    }

    /// What is due next, scrapes apart; nothing if all requests have ended and no more come.
    fn next(&mut self) -> Option<(Nanos, Due)> {
        let mut next = (Nanos::NEVER, Due::Nothing);
        let mut offer = |at: Nanos, due: Due| {
            if at < next.0 || (at == next.0 && due < next.1) {
                next = (at, due);
            }
        };
        if let Some(at) = self.servers.next() {
            offer(at, Due::Engine);
        }
        if let Some((at, changes)) = self.events.peek() {
            offer(at, if changes { Due::Change } else { Due::Event });
        }
        for (i, r) in self.routers.iter().enumerate() {
            if let Some(at) = r.wake {
                offer(at, Due::Wake(i as u32));
            }
        }
        match self.traffic.peek_at() {
            Some(at) => offer(at, Due::Arrival),
            None if self.flights.live() == 0 => return None,
            None => {}
        }
        if let Some((key, _)) = self.timeouts.peek() {
            offer(key.0, Due::Timeout);
        }
        if let Some(at) = self.next_sample {
            offer(at, Due::Sample);
        }
        Some(next)
    }

    fn turn(&mut self) {
        while let Some((at, due)) = self.next() {
            if let Some(first) = self.scrapes.peek_at().filter(|&first| (first, Due::Scrape) < (at, due)) {
                if first > self.options.horizon {
                    return;
                }
                self.scrape((at, due));
                continue;
            }
            if at > self.options.horizon || due == Due::Nothing {
                return;
            }
            debug_assert!(at >= self.now, "time goes on");
            self.now = at.max(self.now);
            // Looks at the world are no part of it.
            if due != Due::Sample {
                self.count_event();
            }
            match due {
                Due::Engine => self.step(),
                Due::Scrape | Due::Nothing => {}
                Due::Change | Due::Event => {
                    if let Some((_, event)) = self.events.pop() {
                        self.happen(event);
                    }
                }
                Due::Wake(router) => {
                    let r = &mut self.routers[router as usize];
                    r.kernel.wake(self.now, &mut r.fx);
                    self.after(router);
                }
                Due::Arrival => self.arrival(),
                Due::Timeout => {
                    if let Some((_, slot)) = self.timeouts.pop() {
                        self.leave(self.flights.at(slot), End::TimedOut);
                    }
                }
                Due::Sample => self.sample(),
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Incident { index } => self.incident(index),
            Event::Scale { index } => self.scale(index),
            Event::Evaluate { index } => self.evaluate(index),
            Event::CameUp { server, turn } => self.cold_start_over(server, turn),
            Event::Warm { server, turn } => self.warm(server, turn),
            Event::GraceOver { server, turn } => self.grace_over(server, turn),
            Event::Gone { server, turn } => self.gone(server, turn),
            Event::FirstToken { flight } => self.progress(flight, Progress::FirstToken),
            Event::Finished { flight } => self.finished(flight),
            Event::Failed { flight } => self.progress(flight, Progress::Failed),
            Event::Arrive { flight } => self.arrive(flight),
            Event::Abort { flight } => {
                self.cut(flight);
                if let Some(row) = self.flights.close(flight) {
                    (self.sink)(row);
                }
            }
        }
    }

    // --- Requests -----------------------------------------------------------------------------------

    fn arrival(&mut self) {
        let Some(a) = self.traffic.next() else { return };
        self.counters.arrived += 1;
        let router = (a.number % self.routers.len() as u64) as u32;
        let r = &mut self.routers[router as usize];
        let block_tokens = r.kernel.block_tokens();
        let ask = Ask {
            flow: flow_name(&mut self.flow_names, self.flow, a.flow),
            priority: a.priority,
            bytes: a.bytes,
            prompt_tokens: a.prompt_tokens,
            prefix: chain_of_router(&a, block_tokens),
            block_tokens,
            streaming: true,
            session: a.session.map_or_else(Arc::default, |s| format!("{}-{s}", a.class).into()),
            slo_ttft: a.slo_ttft,
            max_output_tokens: self.options.tells_output.then_some(a.output_tokens),
            model: a.lora.map_or_else(Arc::default, |lora| lora_name(lora).into()),
            ..Ask::default()
        };
        let id = r.kernel.offer(self.now, &ask, &mut r.fx);
        let timeout = a.timeout;
        let flight = self.flights.open(a, self.now, router, id);
        let place = id.index as usize;
        if place >= r.flights.len() {
            r.flights.resize(place + 1, flight);
        }
        r.flights[place] = flight;
        if let Some(timeout) = timeout {
            self.timeouts.set(flight.slot, (self.now + timeout, flight.slot));
        }
        self.counters.peak_live = self.counters.peak_live.max(self.flights.live());
        self.after(router);
    }

    /// Does what a kernel has decided.
    fn after(&mut self, router: u32) {
        let r = &mut self.routers[router as usize];
        let mut list = std::mem::take(&mut r.fx.list);
        for effect in list.drain(..) {
            match effect {
                Effect::Dispatch { id, endpoint, prefill, .. } => {
                    let r = &self.routers[router as usize];
                    let flight = r.flights[id.index as usize];
                    let server = r.servers[endpoint.index as usize];
                    let prefill = prefill.map(|p| r.servers[p.index as usize]);
                    self.counters.dispatched += 1;
                    if let Some(f) = self.flights.get_mut(flight) {
                        if router == 0 && self.log.is_some() {
                            self.dispatches.push(f.row.number);
                        }
                        f.row.dispatched = Some(self.now);
                        f.row.endpoint = Some(server);
                        f.bound = Some(server);
                        f.prefilling = prefill;
                        for at in std::iter::once(server).chain(prefill) {
                            self.servers.list[at as usize].bound += 1;
                        }
                        self.counters.disaggregated += u64::from(prefill.is_some());
                        self.events.push(self.now + self.cluster.network.to_engine, Event::Arrive { flight });
                    }
                }
                Effect::End { id, refusal, .. } => {
                    let flight = self.routers[router as usize].flights[id.index as usize];
                    self.close(flight, End::Rejected(reason(refusal)));
                }
            }
        }
        let r = &mut self.routers[router as usize];
        r.fx.list = list;
        r.wake = r.kernel.next_wake();
        if router == 0 {
            self.look_at_saturation();
        }
        let queued = self.routers.iter().map(|r| r.kernel.queue_totals().0).sum();
        self.counters.longest_gateway_queue = self.counters.longest_gateway_queue.max(queued);
    }

    /// A dispatched request arrives at its engine.
    fn arrive(&mut self, flight: Ref) {
        let Some(f) = self.flights.get_mut(flight) else { return };
        let Some(server) = f.place() else { return };
        let engine = &self.cluster.servers[server as usize].engine;
        let transfer = f.prefilled.then(|| self.cluster.kv.transfer(engine));
        f.row.engine_arrived = f.row.engine_arrived.or(Some(self.now));
        let job = f.job(flight, engine.spec.block_size);
        if let Some(queue) = self.servers.arrive(server, self.now, job, transfer) {
            f.inside = true;
            self.counters.longest_engine_queue = self.counters.longest_engine_queue.max(queue);
        } else {
            self.events.push(self.now + self.cluster.network.to_client, Event::Failed { flight });
            self.unbind(flight);
        }
    }

    /// The last token arrives, and with it what the engine has counted.
    fn finished(&mut self, flight: Ref) {
        let Some(f) = self.flights.get_mut(flight) else { return };
        let usage = Usage { prompt: Some(f.row.prompt_tokens), completion: Some(f.row.output_tokens) };
        self.progress(flight, Progress::Finished(usage));
    }

    /// Something of a dispatched request arrives at the router, and at once at the client.
    fn progress(&mut self, flight: Ref, progress: Progress) {
        let Some(f) = self.flights.get_mut(flight).filter(|f| !f.left) else { return };
        let (router, id) = (f.router, f.id);
        match progress {
            Progress::FirstToken => f.row.first_token = Some(self.now),
            Progress::Finished(_) => self.close(flight, End::Finished),
            Progress::Output(_) => {}
            Progress::Failed => self.close(flight, End::Failed),
        }
        let r = &mut self.routers[router as usize];
        r.kernel.progress(self.now, id, progress, &mut r.fx);
        self.after(router);
    }

    /// A client leaves.
    fn leave(&mut self, flight: Ref, end: End) {
        let Some(f) = self.flights.get_mut(flight) else { return };
        let (router, id) = (f.router, f.id);
        if f.inside {
            // The engine works on until it hears of it: what it has generated then is known only then.
            f.left = true;
            (f.row.end, f.row.finished) = (end, Some(self.now));
            self.timeouts.remove(flight.slot);
            self.traffic.refused(f.row.number, self.now);
            self.events.push(self.now + self.cluster.network.to_engine, Event::Abort { flight });
        } else {
            self.close(flight, end);
        }
        let r = &mut self.routers[router as usize];
        r.kernel.gone(self.now, id, &mut r.fx);
        self.after(router);
    }

    /// The one end of a request.
    fn close(&mut self, flight: Ref, end: End) {
        self.unbind(flight);
        let Some(mut row) = self.flights.close(flight) else { return };
        self.timeouts.remove(flight.slot);
        row.end = end;
        row.finished = (end != End::Censored).then_some(self.now);
        match end {
            End::Finished => self.traffic.ended(row.number, self.now),
            End::Censored => {}
            _ => self.traffic.refused(row.number, self.now),
        }
        (self.sink)(row);
    }

    fn finish(mut self) -> Run {
        self.saturation_is(0.0);
        let alive = self.flights.all();
        let gaps = self.servers.gaps();
        self.servers.count(self.now, &mut self.counters);
        self.close_books();
        for flight in alive {
            self.cut(flight);
            match self.flights.get_mut(flight) {
                Some(f) if f.left => {
                    if let Some(row) = self.flights.close(flight) {
                        (self.sink)(row);
                    }
                }
                _ => self.close(flight, End::Censored),
            }
        }
        self.counters.cycles = self.routers.iter().map(|r| r.kernel.cycles()).sum();
        debug_assert!(
            self.routers.iter().all(|r| r.kernel.ledgers().balanced()),
            "every request has one end"
        );
        let decisions = self.log.take().map(|l| l.0.lock().map(|t| t.clone()).unwrap_or_default());
        Run {
            rows: Vec::new(),
            counters: self.counters,
            timeline: self.timeline,
            scaling: self.scaling,
            preemptions: self.preemptions,
            gaps,
            ended_at: self.now,
            decisions,
            dispatches: self.dispatches,
        }
    }
}

/// The name of a flow. Names of numbers that are not too large are kept.
fn flow_name<'n>(names: &'n mut Vec<Option<Box<str>>>, name: &dyn Fn(u32) -> String, flow: u32) -> &'n str {
    // Flows beyond what is kept share the last place, written anew each time.
    let place = (flow as usize).min(NAMES_KEPT);
    if place >= names.len() {
        names.resize(place + 1, None);
    }
    let entry = &mut names[place];
    if entry.is_none() || place == NAMES_KEPT {
        *entry = Some(name(flow).into_boxed_str());
    }
    entry.as_deref().unwrap_or_default()
}

/// What routers call an adapter. Of a request without one they do not know the model.
fn lora_name(lora: u16) -> String {
    format!("lora-{lora}")
}

/// What the router's prefix index is asked for. A block size that the hashes do not divide finds nothing.
fn chain_of_router(a: &Arrival, block_tokens: u32) -> Arc<[u64]> {
    if a.prefix.is_empty() {
        return Arc::clone(&a.prefix);
    }
    if block_tokens == 0 || !block_tokens.is_multiple_of(BLOCK_TOKENS) {
        return [].into();
    }
    a.router_blocks(block_tokens).collect()
}

/// The chain of an engine's blocks, those that the answer will fill included. Since the hashes of 16-token
/// blocks are chained, a longer block's is that of its last part.
fn chain_of_engine(prefix: &Arc<[u64]>, block_tokens: u32) -> Arc<[u64]> {
    if block_tokens == BLOCK_TOKENS {
        return Arc::clone(prefix);
    }
    let every = (block_tokens / BLOCK_TOKENS) as usize;
    if every == 0 || !block_tokens.is_multiple_of(BLOCK_TOKENS) {
        return [].into();
    }
    prefix.iter().skip(every - 1).step_by(every).copied().collect()
}

/// A word for why the kernel ended a request.
fn reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Queue(outcome) => outcome.label(),
        Refusal::Denied => "Denied",
        Refusal::Shed => "Shed",
        Refusal::NoCandidates => "NoCandidates",
        Refusal::FilteredOut => "FilteredOut",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_block_is_named_by_its_last_part() {
        let prefix: Arc<[u64]> = (1..=9).collect();
        assert_eq!(*chain_of_engine(&prefix, 64), [4, 8]);
        assert_eq!(*chain_of_engine(&prefix, 16), *prefix);
        assert!(chain_of_engine(&prefix, 40).is_empty() && chain_of_engine(&prefix, 256).is_empty());
    }
}
