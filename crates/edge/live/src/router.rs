//! The kernel behind a lock: requests enter, wait for their decision, and hold a ticket while they run.
//!
//! Every call reads the clock inside the lock, tells the kernel, and takes the effects out; waiters are
//! woken after the lock is free. A ticket that is dropped tells the kernel in the same call, so a place
//! is free the moment its client is gone.

use crate::clock::Clock;
use crate::endpoints::{Endpoints, Upstream};
use crate::metrics::{Metrics, Series};
use crate::models::Models;
use crate::names::Names;
use crate::rate::Rate;
use crate::ticket::{Ticket, TicketState};
use forebay_base::{Nanos, Span};
use forebay_kernel::flow::BandView;
use forebay_kernel::journal::Journal;
use forebay_kernel::policy::Program;
use forebay_kernel::saturation::StageSaturation;
use forebay_kernel::{
    Adapters, Ask, Effect, Effects, EndpointId, EndpointSpec, Id, Kernel, Ledgers, Plan, QueueOutcome,
    Refusal, Sample, prefix,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Instant;
use tokio::sync::{Notify, oneshot};

/// What a router is made of.
pub struct Options {
    /// What decides.
    pub plan: Arc<Plan>,
    /// The seed of draws.
    pub seed: u64,
    /// The clock.
    pub clock: Clock,
    /// Gets the decision log, if one is kept.
    pub journal: Option<Box<dyn Journal>>,
    /// The pool's name in metrics.
    pub pool_name: String,
    /// What plugins are called in metrics.
    pub names: Names,
}

/// Why a request was not sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The kernel decided so.
    By {
        /// Its reason.
        refusal: Refusal,
        /// How long the request had waited.
        waited: Span,
    },
    /// The kernel has failed; the process is about to exit.
    Broken,
}

#[derive(Debug)]
pub(crate) enum Verdict {
    Go { endpoint: EndpointId, prefill: Option<EndpointId>, waited: Span, matched_tokens: u32 },
    Refused(Refused),
}

struct Core {
    kernel: Kernel,
    fx: Effects,
    /// By request index; a request that was decided within its offer never has one.
    waiters: Vec<Option<(Id, oneshot::Sender<Verdict>)>>,
    rate: Rate,
}

/// The live router.
pub struct Router {
    core: Mutex<Core>,
    clock: Clock,
    endpoints: Endpoints,
    metrics: Metrics,
    models: Models,
    /// Priorities with a band of their own; empty without flow control.
    priorities: Vec<i32>,
    /// Whether fairness counts output tokens.
    counts_output: bool,
    /// The kernel's next wake in nanoseconds; `u64::MAX` for none.
    armed: AtomicU64,
    timer: OnceLock<Thread>,
    stopped: AtomicBool,
    broken: Notify,
    is_broken: AtomicBool,
    ejections: AtomicU64,
}

/// Metrics older than this take no part in the pool's gauges, as llm-d-router's
/// `--metrics-staleness-threshold` has it by default.
const RECENT: Span = Span::secs(2);

/// A decision to be sent once the lock is free.
type Outbox = Vec<(oneshot::Sender<Verdict>, Verdict)>;

impl Router {
    /// A router with an empty pool; starts its timer thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(options: Options) -> std::io::Result<Arc<Router>> {
        let priorities = options.plan.flow.iter().flat_map(|f| f.bands.iter().map(|b| b.priority)).collect();
        let counts_output = options.plan.counts_output();
        let mut fx = Effects { journal: options.journal, ..Effects::new() };
        let kernel = Kernel::new(options.plan, options.seed, options.clock.now(), &mut fx);
        let router = Arc::new(Router {
            core: Mutex::new(Core { kernel, fx, waiters: Vec::new(), rate: Rate::default() }),
            clock: options.clock,
            endpoints: Endpoints::default(),
            metrics: Metrics::new(options.pool_name, options.names),
            models: Models::default(),
            priorities,
            counts_output,
            armed: AtomicU64::new(u64::MAX),
            timer: OnceLock::new(),
            stopped: AtomicBool::new(false),
            broken: Notify::new(),
            is_broken: AtomicBool::new(false),
            ejections: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&router);
        // A thread, not a runtime timer: those have a resolution of a millisecond, which is the very
        // length of a tick. It sleeps for good while nothing waits.
        let thread = std::thread::Builder::new().name("kernel-timer".into()).spawn(move || {
            while let Some(router) = weak.upgrade() {
                if router.stopped.load(Ordering::Acquire) {
                    return;
                }
                let armed = router.armed.load(Ordering::Acquire);
                let now = router.clock.now();
                if armed <= now.0 {
                    router.call(Kernel::wake);
                    continue;
                }
                let wait = router.clock.real_duration(Span(armed - now.0));
                // The router may end while this thread sleeps; its drop unparks.
                drop(router);
                if armed == u64::MAX {
                    std::thread::park();
                } else {
                    std::thread::park_timeout(wait);
                }
            }
        })?;
        let _ = router.timer.set(thread.thread().clone());
        Ok(router)
    }

    /// The clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The endpoints with their addresses.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The models that the endpoints serve.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Whether fairness counts output tokens.
    pub(crate) fn counts_output(&self) -> bool {
        self.counts_output
    }

    fn flow_control(&self) -> bool {
        !self.priorities.is_empty()
    }

    /// The priority of the band that a request of this priority runs in.
    pub fn effective_priority(&self, requested: i32) -> i32 {
        if self.priorities.is_empty() || self.priorities.contains(&requested) { requested } else { 0 }
    }

    /// Resolves when the kernel has failed and the process must exit.
    pub async fn broken(&self) {
        let broken = self.broken.notified();
        let mut broken = std::pin::pin!(broken);
        // Listens before it looks, so that a failure in between is not missed.
        broken.as_mut().enable();
        if !self.is_broken() {
            broken.await;
        }
    }

    /// Whether the kernel has failed.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// A panic inside the lock leaves the kernel in an unknown state: what waits is answered, and
    /// everything else is refused from here on.
    fn fail(&self, poisoned: PoisonError<MutexGuard<'_, Core>>) {
        if !self.is_broken.swap(true, Ordering::AcqRel) {
            // Dropped senders are read as `Broken`.
            poisoned.into_inner().waiters.clear();
            tracing::error!("the kernel has failed; waiting requests are answered with 503");
            self.broken.notify_waiters();
        }
    }

    /// One input to the kernel. `None` if the kernel has failed.
    pub(crate) fn call<T>(&self, input: impl FnOnce(&mut Kernel, Nanos, &mut Effects) -> T) -> Option<T> {
        let _alarm = Alarm(self);
        let mut outbox = Outbox::new();
        let result = {
            let mut core = match self.core.lock() {
                Ok(core) => core,
                Err(e) => {
                    self.fail(e);
                    return None;
                }
            };
            let core = &mut *core;
            let now = self.clock.now();
            let result = input(&mut core.kernel, now, &mut core.fx);
            post(core, now, &mut outbox);
            self.arm(&core.kernel);
            result
        };
        deliver(outbox);
        Some(result)
    }

    /// The kernel's answer to a retry comes within the call, and has no waiter.
    pub(crate) fn retry(&self, id: Id, avoid: EndpointId) -> Option<Verdict> {
        self.call(|k, now, fx| {
            k.retry(now, id, avoid, fx);
            // What else the call has decided is left for its waiters.
            let own = fx.list.iter().position(|e| effect_id(e) == id)?;
            Some(verdict(fx.list.remove(own)))
        })
        .flatten()
    }

    fn arm(&self, kernel: &Kernel) {
        let next = kernel.next_wake().map_or(u64::MAX, |t| t.0);
        let before = self.armed.swap(next, Ordering::AcqRel);
        if next < before
            && let Some(timer) = self.timer.get()
        {
            timer.unpark();
        }
    }

    /// Offers a request and waits for its decision. Dropping the future tells the kernel that the client
    /// has left.
    ///
    /// # Errors
    /// If the request is not sent on.
    pub async fn enter(self: &Arc<Self>, ask: Ask<'_>, series: &Arc<Series>) -> Result<Ticket, Refused> {
        let started = Instant::now();
        let since = self.clock.now();
        let Some((id, decided, priority)) = self.offer(&ask) else { return Err(Refused::Broken) };
        let mut ticket = Ticket {
            router: self.clone(),
            series: series.clone(),
            id,
            bytes: ask.bytes,
            priority,
            state: TicketState::Waiting,
            waiting: None,
            queued: false,
            upstream: None,
            in_flight: None,
            prompt_tokens: ask.prompt_tokens,
            since,
            waited: Span::ZERO,
            matched_tokens: 0,
            prefill: None,
            untold: 0,
        };
        if self.flow_control() && !decided.before_the_queue() {
            ticket.queued = true;
            series.entered(ask.bytes, started);
        }
        let verdict = match decided {
            Decided::Now(verdict) => verdict,
            Decided::Later(waiting) => {
                let verdict = ticket.waiting.insert(waiting).await;
                ticket.waiting = None;
                verdict.unwrap_or(Verdict::Refused(Refused::Broken))
            }
        };
        match verdict {
            Verdict::Go { endpoint, prefill, waited, matched_tokens } => {
                ticket.decided(QueueOutcome::Dispatched, waited);
                ticket.state = TicketState::Running { first_token: false };
                series.started();
                ticket.matched_tokens = matched_tokens;
                ticket.upstream = self.endpoints.get(endpoint);
                ticket.prefill = prefill.and_then(|p| self.endpoints.get(p));
                ticket.arrived_at_endpoint();
                Ok(ticket)
            }
            Verdict::Refused(refused) => {
                match refused {
                    Refused::By { refusal: Refusal::Queue(outcome), waited } => {
                        ticket.decided(outcome, waited);
                    }
                    Refused::By { waited, .. } => ticket.decided(QueueOutcome::Dispatched, waited),
                    Refused::Broken => ticket.decided(QueueOutcome::EvictedOther, Span::ZERO),
                }
                if let Refused::By { refusal: Refusal::NoCandidates | Refusal::FilteredOut, .. } = refused {
                    self.metrics.scheduled(series, None, 0);
                }
                ticket.state = TicketState::Over;
                Err(refused)
            }
        }
    }

    fn offer(&self, ask: &Ask<'_>) -> Option<(Id, Decided, i32)> {
        let _alarm = Alarm(self);
        let mut outbox = Outbox::new();
        let offered = {
            let mut core = match self.core.lock() {
                Ok(core) => core,
                Err(e) => {
                    self.fail(e);
                    return None;
                }
            };
            let core = &mut *core;
            let (before, cycles) = (Instant::now(), core.kernel.cycles());
            let now = self.clock.now();
            let id = core.kernel.offer(now, ask, &mut core.fx);
            let took = before.elapsed();
            let priority = core.kernel.priority_of(id).unwrap_or(ask.priority);
            let own = core.fx.list.iter().position(|e| effect_id(e) == id);
            if core.kernel.cycles() > cycles {
                self.metrics.cycle(took);
            }
            let mut waiter = None;
            let decided = if let Some(at) = own {
                self.metrics.scheduling(took);
                let own = core.fx.list.remove(at);
                if matches!(own, Effect::Dispatch { .. }) {
                    core.rate.count(now);
                }
                Decided::Now(verdict(own))
            } else {
                // The one allocation of a request that has to wait.
                let (tx, rx) = oneshot::channel();
                waiter = Some(tx);
                Decided::Later(rx)
            };
            // What else was decided goes to its waiters first: the new request may have the place of one that
            // this very call has ended.
            post(core, now, &mut outbox);
            if let Some(tx) = waiter {
                let index = id.index as usize;
                if index >= core.waiters.len() {
                    core.waiters.resize_with(index + 1, || None);
                }
                core.waiters[index] = Some((id, tx));
            }
            self.arm(&core.kernel);
            (id, decided, priority)
        };
        deliver(outbox);
        Some(offered)
    }

    // --- The pool -----------------------------------------------------------------------------------

    /// Adds an endpoint.
    pub fn add_endpoint(&self, spec: EndpointSpec, address: SocketAddr) -> Option<EndpointId> {
        self.call(|k, now, fx| {
            let id = k.add_endpoint(now, spec.clone(), fx);
            // Within the lock: a decision for the new endpoint must find its address.
            self.endpoints.add(Upstream::new(id, spec, address));
            self.models.unknown();
            id
        })
    }

    /// Removes an endpoint. What streams from it goes on.
    pub fn remove_endpoint(&self, id: EndpointId) {
        self.endpoints.remove(id);
        self.models.look_again();
        self.call(|k, now, fx| k.remove_endpoint(now, id, fx));
    }

    /// Metrics of an endpoint have arrived.
    pub fn scraped(&self, id: EndpointId, taken: Nanos, sample: &Sample) {
        self.call(|k, now, fx| k.scraped(now, id, taken, sample, fx));
    }

    /// A connection to the endpoint was refused or reset: until a probe succeeds it is neither chosen nor
    /// part of the pool's saturation. What runs there goes on.
    pub fn eject(&self, upstream: &Upstream, why: &dyn std::fmt::Display) {
        if upstream.set_available(false) {
            self.call(|k, now, fx| k.set_available(now, upstream.id, false, fx));
            self.ejections.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(endpoint = %upstream.spec.name, error = %why, "the endpoint is out until it answers again");
        }
    }

    /// The endpoint has answered a probe that was sent after it was taken out.
    pub fn restore(&self, upstream: &Upstream) {
        if upstream.set_available(true) {
            self.call(|k, now, fx| k.set_available(now, upstream.id, true, fx));
            tracing::info!(endpoint = %upstream.spec.name, "the endpoint answers again");
        }
    }

    /// Panics inside the lock, as a fault of the kernel would; for tests.
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn panic_within(&self) {
        self.call(|_, _, _| panic!("asked to"));
    }

    /// The LoRA adapters of an endpoint are these from now on.
    pub fn adapters(&self, id: EndpointId, adapters: Arc<Adapters>) {
        self.call(|k, now, fx| k.adapters(now, id, adapters, fx));
    }

    // --- Shutdown -----------------------------------------------------------------------------------

    /// Takes no new requests; what is queued goes on.
    pub fn drain(&self) {
        self.call(Kernel::drain);
    }

    /// Ends what is queued.
    pub fn close(&self) {
        self.call(Kernel::close);
    }

    /// Takes the journal out, so that its writer can end.
    pub fn end_journal(&self) {
        self.call(|_, _, fx| fx.journal = None);
    }

    // --- Views --------------------------------------------------------------------------------------

    /// Tokens per block to hash prompts with, and blocks to hash at most (`None`: all); `None` if no prefix
    /// index is in use.
    pub fn hashing(&self) -> Option<(u32, Option<u32>)> {
        let core = self.core.lock().ok()?;
        let plan = core.kernel.plan().prefix?;
        let block = core.kernel.block_tokens();
        Some((block, prefix::block_limit(&plan, block)))
    }

    /// Seconds, 1 to 60, after which a refused client of this priority may come again: the requests that
    /// go before it, by the rate at which requests have been dispatched in the last ten seconds.
    pub fn retry_after(&self, priority: i32) -> u64 {
        let Ok(mut core) = self.core.lock() else { return 60 };
        let core = &mut *core;
        let priority = self.effective_priority(priority);
        let ahead = core.kernel.bands().filter(|b| b.priority >= priority).map(|b| b.requests).sum();
        core.rate.retry_after(self.clock.now(), ahead)
    }

    /// The kernel as metrics and probes see it.
    pub fn view(&self) -> Option<View> {
        let mut guard = self.core.lock().ok()?;
        let now = self.clock.now();
        let core = &mut *guard;
        core.kernel.wake(now, &mut core.fx);
        let mut outbox = Outbox::new();
        post(core, now, &mut outbox);
        self.arm(&core.kernel);
        let k = &mut core.kernel;
        let saturation = k.saturation();
        let (requests, bytes) = k.queue_totals();
        let flow = k.plan().flow.as_ref();
        let view = View {
            saturation,
            ledgers: k.ledgers(),
            bands: k.bands().collect(),
            programs: k.programs(now),
            queued: (requests, bytes),
            limits: (flow.and_then(|f| f.max_requests), flow.and_then(|f| f.max_bytes)),
            flow_control: flow.is_some(),
            index: k.plan().prefix.map(|_| (k.index_blocks(), k.index_bytes())),
            tells_stale: k.plan().detector.staleness().is_some(),
            cycles: k.cycles(),
            models: self.models.count(),
            ejections: self.ejections.load(Ordering::Relaxed),
            endpoints: k
                .pool()
                .iter()
                .map(|e| EndpointView {
                    capacity_tokens: e.capacity_tokens(),
                    name: e.spec.name.clone(),
                    available: e.available,
                    fresh: e.sample.is_some() && !e.stale,
                    recent: e.sample.is_some() && now.since(e.sampled) <= RECENT,
                    sample: e.sample.unwrap_or_default(),
                    load: e.load,
                })
                .collect(),
        };
        drop(guard);
        deliver(outbox);
        Some(view)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(timer) = self.timer.get() {
            timer.unpark();
        }
    }
}

/// Notices a panic inside the lock at once, and not only when the next caller finds the lock poisoned:
/// there may be none for as long as those that wait are waiting. Made before the lock is taken, so that it
/// is dropped after the lock is free.
struct Alarm<'a>(&'a Router);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Err(poisoned) = self.0.core.lock()
        {
            self.0.fail(poisoned);
        }
    }
}

/// The kernel at one instant.
#[derive(Clone, Debug)]
pub struct View {
    /// Saturation by stage.
    pub saturation: StageSaturation,
    /// The ledgers.
    pub ledgers: Ledgers,
    /// The bands, highest priority first.
    pub bands: Vec<BandView>,
    /// Waits and attained service per program, if a fairness policy counts them.
    pub programs: Option<BTreeMap<Arc<str>, Program>>,
    /// Requests and bytes queued.
    pub queued: (u64, u64),
    /// Requests and bytes that may be queued in all.
    pub limits: (Option<u64>, Option<u64>),
    /// Whether flow control is on.
    pub flow_control: bool,
    /// Blocks and bytes of the prefix index, if there is one.
    pub index: Option<(u64, u64)>,
    /// Whether the detector tells stale metrics from fresh ones.
    pub tells_stale: bool,
    /// Cycles executed.
    pub cycles: u64,
    /// Models that the endpoints list; `None` while some list is not known.
    pub models: Option<usize>,
    /// Endpoints taken out so far.
    pub ejections: u64,
    /// The endpoints.
    pub endpoints: Vec<EndpointView>,
}

/// One endpoint at one instant.
#[derive(Clone, Debug)]
pub struct EndpointView {
    /// Tokens that its KV cache holds, if it tells: without, prompts in flight cannot be counted.
    pub capacity_tokens: Option<u64>,
    /// Its name.
    pub name: String,
    /// Whether it took connections when last heard of.
    pub available: bool,
    /// Whether its metrics are recent enough for the detector.
    pub fresh: bool,
    /// Whether its metrics are recent enough for the pool's gauges.
    pub recent: bool,
    /// Its last metrics.
    pub sample: Sample,
    /// What the router has in flight there.
    pub load: forebay_kernel::pool::Load,
}

enum Decided {
    Now(Verdict),
    Later(oneshot::Receiver<Verdict>),
}

impl Decided {
    /// Whether the request never reached flow control.
    fn before_the_queue(&self) -> bool {
        matches!(
            self,
            Decided::Now(Verdict::Refused(Refused::By { refusal: Refusal::Denied | Refusal::Shed, .. }))
        )
    }
}

fn effect_id(e: &Effect) -> Id {
    match *e {
        Effect::Dispatch { id, .. } | Effect::End { id, .. } => id,
    }
}

fn verdict(e: Effect) -> Verdict {
    match e {
        Effect::Dispatch { endpoint, prefill, waited, matched_tokens, .. } => {
            Verdict::Go { endpoint, prefill, waited, matched_tokens }
        }
        Effect::End { refusal, waited, .. } => Verdict::Refused(Refused::By { refusal, waited }),
    }
}

/// Pairs effects with their waiters.
fn post(core: &mut Core, now: Nanos, outbox: &mut Outbox) {
    for e in core.fx.list.drain(..) {
        if matches!(e, Effect::Dispatch { .. }) {
            core.rate.count(now);
        }
        let id = effect_id(&e);
        let place = core.waiters.get_mut(id.index as usize);
        if let Some((_, tx)) = place.and_then(|w| w.take_if(|(waits, _)| *waits == id)) {
            outbox.push((tx, verdict(e)));
        }
    }
}

fn deliver(outbox: Outbox) {
    for (tx, verdict) in outbox {
        // A receiver that is gone has told, or is just telling, the kernel itself.
        let _ = tx.send(verdict);
    }
}
