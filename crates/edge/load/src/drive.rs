//! A run against a server: the thread that keeps the schedule.

use crate::book::{Book, Gaps, Trouble};
use crate::conductor::{Conductor, Shot};
use crate::error::LoadError;
use crate::probe::Server;
use crate::prompt::{Calibration, Prompts};
use crate::target::Shape;
use crate::watch::Watch;
use crate::worker::{Crew, Inbox, Order, work};
use forebay_base::{Nanos, Span};
use forebay_records::stats::Schedule;
use forebay_records::{Record, Row};
use forebay_workload::Workload;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long before its time a request is made.
const LEAD: Span = Span::millis(20);
/// The most requests that are made ahead.
const MOST_AHEAD: usize = 1024;
/// The thread that keeps the schedule sleeps up to so long before a request is due, and spins from there: what a
/// sleeper is late on an idle machine.
const SPIN: Span = Span::micros(20);
/// Where requests are nearer to each other it naps instead, and sends what has become due together: spinning would
/// take a core.
const BUSY: Span = Span::micros(200);
/// How long it naps.
const NAP: Span = Span::micros(50);
/// How often it looks for other things.
const LOOK: Span = Span::millis(50);

/// A monotonic clock that counts from the begin of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wall(Instant);

impl Wall {
    pub(crate) fn now(self) -> Nanos {
        Nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn instant(self, at: Nanos) -> tokio::time::Instant {
        // What is too far away to be named never comes: a century is far enough.
        let far = Span::secs(100 * 365 * 86_400);
        tokio::time::Instant::from_std(self.0 + Duration::from_nanos(at.0.min(far.0)))
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
    /// As many threads as cores, up to eight.
    pub fn new(seed: u64, salt: u64) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options { seed, salt, threads: cores.clamp(1, 8), drain: None }
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

/// A request that is ready, by its time.
struct Ahead {
    at: Nanos,
    order: u64,
    /// Boxed: a heap moves its entries about.
    shot: Box<Shot>,
}

impl PartialEq for Ahead {
    fn eq(&self, other: &Ahead) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Ahead {}
impl PartialOrd for Ahead {
    fn partial_cmp(&self, other: &Ahead) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ahead {
    fn cmp(&self, other: &Ahead) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
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
    ahead: BinaryHeap<Reverse<Ahead>>,
    made: u64,
    sent: u64,
    /// The time of the last one that was sent, and whether it was near to the one before.
    last: Nanos,
    busy: bool,
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
        let crew = Arc::new(Crew {
            clock: Wall(Instant::now()),
            book: Arc::new(Mutex::new(Book::new(workload.classes.len()))),
            conductor: Mutex::new(conductor),
            follows,
            dispatcher: std::thread::current(),
            address: server.address.clone(),
            uri: server.uri(),
            over: AtomicBool::new(false),
        });
        let (mut inboxes, mut threads) = (Vec::new(), Vec::new());
        for i in 0..options.threads.max(1) {
            let inbox = Arc::new(Inbox::default());
            inboxes.push(Arc::clone(&inbox));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let crew = Arc::clone(&crew);
            let thread = std::thread::Builder::new().name(format!("load-{i}"));
            threads.push(thread.spawn(move || runtime.block_on(work(crew, inbox)))?);
        }
        let (ahead, made, sent, stopped_at) = (BinaryHeap::new(), 0, 0, None);
        let (last, busy) = (Nanos::ZERO, false);
        Ok(Dispatcher { crew, inboxes, threads, ahead, made, sent, last, busy, horizon, drain, stopped_at })
    }

    /// Sends everything in its time, up to the end of the schedule or a stop.
    fn dispatch(&mut self, watch: &Watch) {
        // Timers are rounded up by 50 µs otherwise. Without it the spinning only begins late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            let now = self.crew.clock.now();
            watch.tick(now);
            if watch.is_stopped() || now >= self.horizon {
                self.abandon(now);
                return;
            }
            let next = self.prepare(now);
            let sent = self.send_due();
            if next.is_none() && self.ahead.is_empty() && self.is_quiet() {
                return;
            }
            if !sent {
                self.rest(now, next);
            }
        }
    }

    /// Makes requests that are due soon, but no more once one is due now. When the next has to be made.
    fn prepare(&mut self, now: Nanos) -> Option<Nanos> {
        loop {
            let mut conductor = self.crew.conductor.lock();
            let next = conductor.next_at();
            if next.is_none_or(|at| at > now + LEAD) || self.ahead.len() >= MOST_AHEAD {
                return next;
            }
            let Some(shot) = conductor.take() else { return next };
            drop(conductor);
            self.ahead.push(Reverse(Ahead { at: shot.at, order: self.made, shot: Box::new(shot) }));
            self.made += 1;
            let due = self.ahead.peek().map(|Reverse(a)| a.at);
            if due.is_some_and(|at| at <= self.crew.clock.now()) {
                return next;
            }
        }
    }

    /// Hands out what is due, one thread after the other.
    fn send_due(&mut self) -> bool {
        let (threads, first) = (self.inboxes.len(), self.sent);
        while self.ahead.peek().is_some_and(|Reverse(a)| a.at <= self.crew.clock.now()) {
            let Some(Reverse(ahead)) = self.ahead.pop() else { break };
            self.busy = ahead.at.since(self.last) < BUSY;
            self.last = ahead.at;
            self.inboxes[self.sent as usize % threads].put(Order::new(*ahead.shot, &self.crew));
            self.sent += 1;
        }
        for turn in (first..self.sent).take(threads) {
            self.inboxes[turn as usize % threads].ring();
        }
        self.sent > first
    }

    /// Whether nothing is out that could bring more.
    fn is_quiet(&self) -> bool {
        let mut conductor = self.crew.conductor.lock();
        conductor.followed() == 0 && conductor.next_at().is_none()
    }

    fn rest(&self, now: Nanos, next: Option<Nanos>) {
        let due = self.ahead.peek().map_or(Nanos::NEVER, |Reverse(a)| a.at);
        let make = next.filter(|_| self.ahead.len() < MOST_AHEAD).map_or(Nanos::NEVER, |at| at - LEAD);
        let until = due.min(self.horizon).min(now + LOOK);
        if self.busy && due != Nanos::NEVER {
            std::thread::park_timeout(until.min(make).since(now).max(NAP).to_std());
            return;
        }
        let sleep = (until - SPIN).min(make);
        if sleep > now {
            std::thread::park_timeout(sleep.since(now).to_std());
        } else if make > now {
            while self.crew.clock.now() < until {
                std::hint::spin_loop();
            }
        }
    }

    /// Nothing more is sent: what was due by now and did not leave is recorded, what is due later is forgotten.
    fn abandon(&mut self, now: Nanos) {
        self.stopped_at = Some(now);
        loop {
            let shot = {
                let mut conductor = self.crew.conductor.lock();
                if conductor.next_at().is_none_or(|at| at > now) { None } else { conductor.take() }
            };
            let Some(shot) = shot else { break };
            drop(Order::new(shot, &self.crew));
        }
        for Reverse(a) in std::mem::take(&mut self.ahead) {
            if a.at <= now {
                drop(Order::new(*a.shot, &self.crew));
            }
        }
    }

    /// Waits for what is out, then ends the threads; gives the time of the end.
    fn end(&mut self, watch: &Watch) -> Nanos {
        // Whoever stops a run does not want to wait for all of the drain.
        let horizon = match self.stopped_at {
            Some(at) => self.horizon.min(at + self.drain.min(STOP_DRAIN)),
            None => self.horizon,
        };
        let mut now = self.crew.clock.now();
        while now < horizon && !watch.is_cut() && self.crew.book.lock().open() > 0 {
            let left = horizon.since(now).min(LOOK);
            std::thread::park_timeout(left.to_std());
            now = self.crew.clock.now();
            watch.tick(now);
        }
        let ended_at = now;
        self.crew.over.store(true, Ordering::Release);
        for inbox in &self.inboxes {
            inbox.ring();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has dropped its requests, which are recorded as cut off.
            let _ = thread.join();
        }
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
