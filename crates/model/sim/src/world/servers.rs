//! Engines, their steps, their scrapes, and what happens to them.

use super::{Options, World};
use crate::cluster::Cluster;
use crate::events::{Event, Ref};
use crate::observe::{Counters, Preemption, ServerPoint};
use forebay_base::{IndexedHeap, Nanos};
use forebay_engine::{Adapters, Engine, EngineEvent, Job, Resolved, Transfer};
use forebay_kernel::{Reading, Sample};
use forebay_records::Histogram;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Not there.
    Absent,
    /// Coming up.
    Starting,
    /// At work, in the pool or not.
    Up,
    /// At work on what it has, out of the pool.
    Draining,
    /// Dead, and held.
    Dead,
}

pub(super) struct Server {
    pub(super) engine: Engine,
    pub(super) life: Life,
    /// Counts changes of life, so that what was planned for an earlier one is recognised.
    pub(super) turn: u32,
    /// When this life began.
    pub(super) since: Nanos,
    /// Requests that are there or on their way.
    pub(super) bound: u32,
    /// Whether its metrics can be read.
    pub(super) told: bool,
    /// Jobs taken in and not admitted.
    queue: BTreeSet<u64>,
    /// Steps of engines that died.
    steps: u64,
}

/// What a scrape of a server reads.
#[derive(Clone, Debug)]
pub(super) struct Scrape {
    pub(super) sample: Sample,
    /// Boxed, since there are none without LoRA.
    pub(super) adapters: Option<Box<Adapters>>,
}

/// The engines, by the time of their next event.
pub(super) struct Servers {
    config: Vec<Arc<Resolved>>,
    pub(super) list: Vec<Server>,
    /// Gaps between tokens on engines that died, by class.
    gaps: Vec<Histogram>,
    due: IndexedHeap<(Nanos, u32)>,
    pub(super) out: Vec<EngineEvent>,
}

impl Servers {
    pub(super) fn new(cluster: &Cluster, options: &Options) -> Servers {
        let config: Vec<Arc<Resolved>> = cluster.servers.iter().map(|s| Arc::clone(&s.engine)).collect();
        let fresh = |c: &Arc<Resolved>| Server {
            engine: engine(c, Nanos::ZERO, options),
            life: Life::Absent,
            turn: 0,
            since: Nanos::ZERO,
            bound: 0,
            told: true,
            queue: BTreeSet::new(),
            steps: 0,
        };
        Servers {
            list: config.iter().map(fresh).collect(),
            config,
            gaps: Vec::new(),
            due: IndexedHeap::default(),
            out: Vec::new(),
        }
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.due.peek().map(|(k, _)| k.0)
    }

    pub(super) fn reschedule(&mut self, server: u32) {
        match self.list[server as usize].engine.next_event() {
            Some(at) => self.due.set(server, (at, server)),
            None => {
                self.due.remove(server);
            }
        }
    }

    /// Takes a request in and gives the length of the queue; `None` if the server is down or refuses.
    pub(super) fn arrive(
        &mut self,
        server: u32,
        now: Nanos,
        job: Job,
        transfer: Option<Transfer>,
    ) -> Option<u32> {
        let s = &mut self.list[server as usize];
        let id = job.id;
        if !s.works() {
            return None;
        }
        let taken = match transfer {
            None => s.engine.arrive(now, job),
            Some(transfer) => s.engine.arrive_prefilled(now, job, transfer),
        };
        taken.ok()?;
        s.queue.insert(id);
        let queue = s.queue.len() as u32;
        self.reschedule(server);
        Some(queue)
    }

    /// Cancels a job, and gives the tokens that it had generated if it was there.
    pub(super) fn abort(&mut self, server: u32, now: Nanos, job: u64) -> Option<u32> {
        let s = &mut self.list[server as usize];
        let aborted = s.engine.abort(now, job);
        s.queue.remove(&job);
        self.reschedule(server);
        aborted.map(|a| a.tokens)
    }

    /// The longest output that the server lets a prompt have.
    fn room(&self, server: u32, prompt: u32) -> u32 {
        self.config[server as usize].max_model_len.saturating_sub(prompt)
    }

    /// What the server had is gone; an idle engine takes its place.
    pub(super) fn renew(&mut self, server: u32, now: Nanos, options: &Options) {
        let fresh = engine(&self.config[server as usize], now, options);
        let s = &mut self.list[server as usize];
        let dead = std::mem::replace(&mut s.engine, fresh);
        s.steps += dead.published_at(now).steps;
        add_gaps(&mut self.gaps, &dead);
        s.queue.clear();
        self.reschedule(server);
    }

    pub(super) fn points(&self, now: Nanos) -> Vec<ServerPoint> {
        let point = |s: &Server| {
            let p = s.engine.published_at(now);
            ServerPoint { waiting: p.waiting, running: p.running, kv: p.kv_usage }
        };
        self.list.iter().map(point).collect()
    }

    pub(super) fn count(&self, now: Nanos, counters: &mut Counters) {
        counters.steps = self.list.iter().map(|s| s.steps + s.engine.published_at(now).steps).sum();
    }

    /// Times between the tokens of requests on all servers, by class.
    pub(super) fn gaps(&self) -> Vec<Histogram> {
        let mut all = self.gaps.clone();
        for s in &self.list {
            add_gaps(&mut all, &s.engine);
        }
        all
    }

    pub(super) fn scrape(&self, server: u32, now: Nanos) -> Option<Scrape> {
        let s = &self.list[server as usize];
        let (waiting, running, kv) = s.engine.gauges_at(now);
        let config = &self.config[server as usize];
        (s.works() && s.told).then(|| Scrape {
            sample: Sample {
                waiting: Reading::Value(f64::from(waiting)),
                running: Reading::Value(f64::from(running)),
                kv: Reading::Value(kv),
                block_tokens: Some(config.spec.block_size),
                blocks: Some(config.num_gpu_blocks),
            },
            adapters: s.engine.adapters_at(now).map(Box::new),
        })
    }
}

impl Server {
    /// Whether it takes requests in and answers.
    pub(super) fn works(&self) -> bool {
        matches!(self.life, Life::Up | Life::Draining)
    }
}

fn engine(config: &Resolved, now: Nanos, options: &Options) -> Engine {
    let mut engine = Engine::with_mode(config, now, options.steps);
    engine.milestones_only();
    if options.gaps {
        engine.record_gaps();
    }
    engine
}

/// Adds an engine's gaps, each at the middle of its bucket.
fn add_gaps(to: &mut Vec<Histogram>, engine: &Engine) {
    let classes = engine.gaps();
    if to.len() < classes.len() {
        to.resize_with(classes.len(), Histogram::new);
    }
    for (to, gaps) in to.iter_mut().zip(classes) {
        for (first, last, times) in gaps.buckets() {
            to.record_many(u64::midpoint(first, last), times);
        }
    }
}

impl World<'_> {
    /// The engine whose turn it is runs to `now`.
    pub(super) fn step(&mut self) {
        let Some((_, server)) = self.servers.due.peek() else { return };
        let mut out = std::mem::take(&mut self.servers.out);
        self.servers.list[server as usize].engine.advance(self.now, &mut out);
        for event in out.drain(..) {
            self.engine_event(server, event);
        }
        self.servers.out = out;
        self.servers.reschedule(server);
    }

    fn engine_event(&mut self, server: u32, event: EngineEvent) {
        let back = self.cluster.network.to_client;
        match event {
            EngineEvent::Token { id, index: 0, at } => {
                let flight = Ref::of_job(id);
                if self.flights.get_mut(flight).is_some_and(|f| f.prefilling.is_none()) {
                    self.events.push(at + back, Event::FirstToken { flight });
                }
            }
            EngineEvent::Token { .. } | EngineEvent::StepEnd { .. } => {}
            EngineEvent::Admitted { id, at, cached_tokens } => {
                self.servers.list[server as usize].queue.remove(&id);
                let Some(f) = self.flights.get_mut(Ref::of_job(id)) else { return };
                if f.prefilled {
                    self.counters.transferred_tokens += u64::from(f.row.prompt_tokens - cached_tokens);
                } else {
                    f.row.scheduled = Some(at);
                    f.row.cached_tokens = cached_tokens;
                    self.counters.computed_tokens += u64::from(f.row.prompt_tokens - cached_tokens);
                }
            }
            EngineEvent::Preempted { id, lost, at } => {
                self.counters.preemptions += 1;
                self.counters.lost_tokens += u64::from(lost);
                if let Some(f) = self.flights.get_mut(Ref::of_job(id)) {
                    f.row.preemptions += 1;
                    f.row.recomputed_tokens += u64::from(lost);
                    if self.options.preemptions {
                        let number = f.row.number;
                        self.preemptions.push(Preemption { at, number, endpoint: server, lost });
                    }
                }
            }
            EngineEvent::Finished { id, at, .. } => {
                let flight = Ref::of_job(id);
                if let Some(f) = self.flights.get_mut(flight) {
                    f.inside = false;
                    if f.prefilling.is_some() {
                        self.handed_over(flight, at);
                        return;
                    }
                    f.row.output_tokens = f.output_tokens.min(self.servers.room(server, f.row.prompt_tokens));
                    self.counters.computed_tokens += u64::from(f.row.output_tokens);
                    self.events.push(at + back, Event::Finished { flight });
                    self.unbind(flight);
                }
            }
        }
    }

    /// Takes what a request has generated from the engine that has it, if one has.
    pub(super) fn cut(&mut self, flight: Ref) {
        let Some(f) = self.flights.get_mut(flight) else { return };
        let Some(server) = f.place().filter(|_| f.inside) else { return };
        f.inside = false;
        let decodes = f.prefilling.is_none();
        if let Some(tokens) = self.servers.abort(server, self.now, flight.job()).filter(|_| decodes) {
            f.row.output_tokens = tokens;
            self.counters.computed_tokens += u64::from(tokens);
        }
        self.unbind(flight);
    }
}
