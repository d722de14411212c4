//! A run against a server: the thread that keeps the schedule.

use crate::book::{Book, Gaps, Trouble};
use crate::conductor::Conductor;
use crate::crew::{Crew, Inbox, Order};
use crate::error::LoadError;
use crate::probe::Server;
use crate::prompt::{Calibration, Prompts};
use crate::target::Shape;
use crate::watch::Watch;
use crate::worker::Worker;
use forebay_base::{Nanos, Span};
use forebay_records::stats::Schedule;
use forebay_records::{Record, Row};
use forebay_workload::Workload;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// How long before its time a request is made, at most and at least. Each time a batch is made.
const LEAD: Span = Span::millis(20);
const LEAST_LEAD: Span = Span::millis(10);
/// The most requests that are made and not sent: where a run has fallen behind, the rest of its schedule takes no memory.
const MOST_AHEAD: usize = 4096;
/// How long it waits where there are as many.
const NAP: Span = Span::millis(1);
/// How often it looks for other things.
const LOOK: Span = Span::millis(50);

/// A monotonic clock that counts from the begin of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wall(Instant);

impl Wall {
    pub(crate) fn now(self) -> Nanos {
        Nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How a run is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Of arrivals, lengths and all other draws of the workload.
    pub seed: u64,
    /// Of the texts: another salt gives texts that no cache has seen.
    pub salt: u64,
    /// Threads that hold connections, at least 1.
    pub threads: usize,
    /// The most time after the last arrival, instead of the workload's.
    pub drain: Option<Span>,
}

impl Options {
    /// A thread for every two cores, up to eight: one sends 20 000 requests/s, and the server may be on this machine.
    pub fn new(seed: u64, salt: u64) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options { seed, salt, threads: (cores / 2).clamp(1, 8), drain: None }
    }
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Observation {
    /// What was sent; its window is shorter than planned if the run was stopped.
    pub workload: Workload,
    /// One record per request that was due, in the order of their numbers.
    pub records: Vec<Record>,
    /// Times within answers by class.
    pub gaps: Vec<Gaps>,
    /// Names of endpoints by the index in the records, where a router told them.
    pub endpoints: Vec<String>,
    /// What went wrong, by label.
    pub troubles: BTreeMap<&'static str, Trouble>,
    /// Whether the schedule was kept.
    pub schedule: Schedule,
    /// How words became tokens.
    pub calibration: Calibration,
    /// When the last request ended, or the run was cut off.
    pub ended_at: Nanos,
    /// Whether it was stopped before its time.
    pub stopped: bool,
    /// The instant that times count from.
    pub started: Instant,
    /// Processor time that this process took for it.
    pub cpu: Span,
}

impl Observation {
    /// The rows of the records.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.records.iter().map(|r| &r.row)
    }

    /// Times within answers of all classes.
    pub fn all_gaps(&self) -> Gaps {
        let mut all = Gaps::default();
        self.gaps.iter().for_each(|g| all.merge(g));
        all
    }
}

/// Sends a workload to a server on its schedule and measures what comes back. Returns when everything has ended, or
/// at the end of the drain, or when `watch` says so; in any case with a record for every request that was due.
///
/// # Errors
/// If threads cannot be started.
pub fn observe(
    workload: &Workload,
    server: &Server,
    options: &Options,
    watch: &Arc<Watch>,
) -> Result<Observation, LoadError> {
    allow_many_files();
    let cpu_before = cpu_time();
    let salt = options.salt;
    let prompts = Prompts::new(workload, server.style.api, server.words.clone(), server.calibration, salt);
    let shape = Shape::new(workload, &server.url, &server.model, &server.style, salt);
    let conductor = Conductor::new(workload, options.seed, prompts, shape);
    let mut dispatcher = Dispatcher::start(workload, server, options, conductor)?;
    watch.begin(&dispatcher.crew.book, workload.mode.arrivals_end());
    dispatcher.dispatch(watch);
    let ended_at = dispatcher.end(watch);
    watch.over();
    let mut seen = workload.clone();
    let stopped = watch.is_stopped();
    if let Some(at) = dispatcher.stopped_at.filter(|at| *at < workload.mode.arrivals_end()) {
        seen.mode.warmup = Span(seen.mode.warmup.0.min(at.0));
        seen.mode.window = at.since(Nanos::ZERO + seen.mode.warmup);
    }
    seen.mode.drain = dispatcher.drain;
    let mut book = dispatcher.crew.book.lock();
    book.records();
    let records = std::mem::take(&mut book.records);
    Ok(Observation {
        schedule: Schedule::of(&records, seen.mode.measured()),
        workload: seen,
        records,
        gaps: std::mem::take(&mut book.gaps),
        endpoints: std::mem::take(&mut book.endpoints),
        troubles: std::mem::take(&mut book.troubles),
        calibration: server.calibration,
        ended_at,
        stopped,
        started: dispatcher.crew.clock.0,
        cpu: Span(cpu_time().0.saturating_sub(cpu_before.0)),
    })
}

struct Dispatcher {
    crew: Arc<Crew>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
    /// By thread, what it is handed next.
    batches: Vec<Vec<Order>>,
    made: u64,
    /// Nothing is sent at or after it.
    horizon: Nanos,
    drain: Span,
    stopped_at: Option<Nanos>,
}

impl Dispatcher {
    fn start(
        workload: &Workload,
        server: &Server,
        options: &Options,
        conductor: Conductor,
    ) -> Result<Dispatcher, LoadError> {
        let drain = options.drain.unwrap_or(workload.mode.drain);
        let horizon = workload.mode.arrivals_end() + drain;
        let follows = conductor.follows();
        let address = server.address.parse().map_err(|_| LoadError::Address {
            authority: server.address.clone(),
            message: "expected IP:PORT".to_owned(),
        })?;
        let crew = Arc::new(Crew {
            clock: Wall(Instant::now()),
            book: Arc::new(Mutex::new(Book::new(workload.classes.len()))),
            conductor: Mutex::new(conductor),
            follows,
            dispatcher: std::thread::current(),
            address,
            path: server.uri().to_string(),
            stopped_at: AtomicU64::new(u64::MAX),
            unsent: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let (mut inboxes, mut threads, mut batches) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..options.threads.max(1) {
            let inbox = Arc::new(Inbox::new()?);
            let worker = Worker::new(Arc::clone(&crew), Arc::clone(&inbox))?;
            let thread = std::thread::Builder::new().name(format!("load-{i}"));
            threads.push(thread.spawn(move || worker.run())?);
            inboxes.push(inbox);
            batches.push(Vec::new());
        }
        let (made, stopped_at) = (0, None);
        Ok(Dispatcher { crew, inboxes, threads, batches, made, horizon, drain, stopped_at })
    }

    /// Hands everything out before its time, up to the end of the schedule or a stop.
    fn dispatch(&mut self, watch: &Watch) {
        loop {
            let now = self.crew.clock.now();
            watch.tick(now);
            if watch.is_stopped() || now >= self.horizon {
                self.abandon(now);
                return;
            }
            let next = self.prepare(now);
            if next.is_none() && self.is_quiet() {
                return;
            }
            self.rest(now, next);
        }
    }

    fn unsent(&self) -> usize {
        self.crew.unsent.load(Ordering::Acquire)
    }

    /// Makes the requests that are due soon. When the next is due.
    fn prepare(&mut self, now: Nanos) -> Option<Nanos> {
        let next = loop {
            let mut conductor = self.crew.conductor.lock();
            let next = conductor.next_at();
            if next.is_none_or(|at| at > now + LEAD) || self.unsent() >= MOST_AHEAD {
                break next;
            }
            let Some(shot) = conductor.take() else { break next };
            drop(conductor);
            let turn = self.made as usize % self.inboxes.len();
            let soon = shot.at <= self.crew.clock.now() + NAP;
            self.batches[turn].push(Order::new(shot, &self.crew));
            self.made += 1;
            if soon {
                // It may be late already.
                self.inboxes[turn].put(&mut self.batches[turn]);
            }
        };
        for (inbox, batch) in self.inboxes.iter().zip(&mut self.batches).filter(|(_, b)| !b.is_empty()) {
            inbox.put(batch);
        }
        next
    }

    /// Whether nothing is out that could bring more.
    fn is_quiet(&self) -> bool {
        let mut conductor = self.crew.conductor.lock();
        conductor.followed() == 0 && conductor.next_at().is_none()
    }

    fn rest(&self, now: Nanos, next: Option<Nanos>) {
        let full = self.unsent() >= MOST_AHEAD;
        let make = if full { now + NAP } else { next.map_or(Nanos::NEVER, |at| at - LEAST_LEAD) };
        let until = make.min(self.horizon).min(now + LOOK);
        std::thread::park_timeout(until.since(self.crew.clock.now()).to_std());
    }

    /// Nothing more is sent: what was due by now and did not leave is recorded, what is due later is forgotten.
    fn abandon(&mut self, now: Nanos) {
        self.stopped_at = Some(now);
        self.crew.stopped_at.store(now.0, Ordering::Release);
        for inbox in &self.inboxes {
            inbox.ring();
        }
        loop {
            let shot = {
                let mut conductor = self.crew.conductor.lock();
                if conductor.next_at().is_none_or(|at| at > now) { None } else { conductor.take() }
            };
            let Some(shot) = shot else { break };
            drop(Order::new(shot, &self.crew));
        }
    }

    /// Waits for what is out, then ends the threads; gives the time of the end.
    fn end(&mut self, watch: &Watch) -> Nanos {
        self.crew.ending.store(true, Ordering::Release);
        // Whoever stops a run does not want to wait for all of the drain.
        let horizon = match self.stopped_at {
            Some(at) => self.horizon.min(at + self.drain.min(STOP_DRAIN)),
            None => self.horizon,
        };
        let mut now = self.crew.clock.now();
        while now < horizon && !watch.is_cut() && (self.crew.book.lock().open() > 0 || self.unsent() > 0) {
            let left = horizon.since(now).min(LOOK);
            std::thread::park_timeout(left.to_std());
            now = self.crew.clock.now();
            watch.tick(now);
        }
        let ended_at = now;
        // Nothing that is due from here on has a record.
        self.crew.stopped_at.fetch_min(now.0, Ordering::AcqRel);
        self.crew.over.store(true, Ordering::Release);
        for inbox in &self.inboxes {
            inbox.ring();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has dropped its requests, which are recorded as cut off.
            let _ = thread.join();
        }
        // What a thread did not take any more is dropped here.
        self.inboxes.clear();
        ended_at
    }
}

/// How long a stopped run waits for what is out.
const STOP_DRAIN: Span = Span::secs(10);

/// Processor time of this process so far.
fn cpu_time() -> Span {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Span((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64))
}

/// Every request in flight has a socket: takes as many as the system allows.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What could not be had shows as requests that failed for lack of handles.
    let _ = setrlimit(Resource::Nofile, limit);
}
