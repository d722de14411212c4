//! The engine in real time: one lock, one timer task, and a shared slot per request.

use crate::ask::{Ask, End};
use crate::clock::Clock;
use crate::metrics::{Finished, Life, Metrics};
use crate::options::Served;
use crate::text::{Tokenizer, block_names};
use forebay_base::Nanos;
use forebay_engine::{ArriveError, Engine, EngineEvent, Job, Published, Resolved};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// How far one choice has come; written by the engine's side, read by the answer's.
#[derive(Debug, Default)]
pub(crate) struct Part {
    tokens: AtomicU32,
    cached: AtomicU32,
    done: AtomicBool,
}

impl Part {
    /// Tokens generated so far.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Prompt tokens found in the prefix cache; settled before the first token.
    pub(crate) fn cached(&self) -> u32 {
        self.cached.load(Ordering::Acquire)
    }

    pub(crate) fn done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// One request on its way: what its answer watches. A token is only a count here, because its text
/// follows from its index, so a slow reader loses nothing and holds nothing up.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) parts: Box<[Part]>,
    waker: Mutex<Option<Waker>>,
}

impl Flight {
    /// Lets the reader look; if there is nothing yet, registers it and lets it look again, so that what
    /// comes in between is not missed.
    pub(crate) fn poll<T>(&self, cx: &mut Context<'_>, look: impl Fn(&[Part]) -> Option<T>) -> Poll<T> {
        if let Some(found) = look(&self.parts) {
            return Poll::Ready(found);
        }
        *self.waker.lock() = Some(cx.waker().clone());
        look(&self.parts).map_or(Poll::Pending, Poll::Ready)
    }

    fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What the engine's side keeps of one choice.
#[derive(Debug)]
struct Waiter {
    flight: Arc<Flight>,
    part: usize,
    why: Finished,
    life: Life,
    /// Kept only for whoever wants accounts.
    request_id: Box<str>,
}

struct State {
    engine: Engine,
    waiters: HashMap<u64, Waiter>,
    metrics: Metrics,
    events: Vec<EngineEvent>,
    next_id: u64,
    now: Nanos,
    clock: Clock,
    accounts: Option<Sender<Served>>,
}

/// The engine behind its lock.
pub(crate) struct Driver {
    clock: Clock,
    state: Mutex<State>,
    /// Wakes the timer task when an idle engine gets work.
    kick: Notify,
    config: Resolved,
    /// Inference requests inside, for `/load`.
    load: AtomicU64,
}

/// Holds a request's place in the engine; dropping it before the end cancels the request.
pub(crate) struct Ticket {
    driver: Arc<Driver>,
    pub(crate) flight: Arc<Flight>,
    first_id: u64,
}

impl Driver {
    pub(crate) fn new(
        config: &Resolved,
        clock: Clock,
        created: f64,
        accounts: Option<Sender<Served>>,
    ) -> Arc<Driver> {
        let now = clock.now();
        Arc::new(Driver {
            clock,
            state: Mutex::new(State {
                engine: Engine::new(config, now),
                waiters: HashMap::new(),
                metrics: Metrics::new(config.max_model_len, created),
                events: Vec::new(),
                next_id: 0,
                now,
                clock,
                accounts,
            }),
            kick: Notify::new(),
            config: config.clone(),
            load: AtomicU64::new(0),
        })
    }

    /// Brings the engine up to date and runs `f` on it. The clock is read under the lock, so that inputs
    /// reach the engine in the order of their times; readers are woken after it is released.
    fn turn<R>(&self, f: impl FnOnce(&mut State, Nanos) -> R) -> R {
        let mut wake = Vec::new();
        let result = {
            let mut state = self.state.lock();
            let now = self.clock.now().max(state.now);
            state.now = now;
            state.advance(now, &mut wake);
            f(&mut state, now)
        };
        for flight in wake {
            flight.wake();
        }
        result
    }

    /// Hands all choices of a request to the engine.
    pub(crate) fn submit(
        self: &Arc<Self>,
        ask: &Ask,
        tokenizer: Tokenizer,
        request_id: &str,
    ) -> Result<Ticket, ArriveError> {
        let block_size = self.config.spec.block_size;
        let names: Vec<Arc<[u64]>> = ask
            .choices
            .iter()
            .map(|c| block_names(&ask.prompts[c.prompt], tokenizer, c.voice, c.tokens, block_size))
            .collect();
        let flight = Arc::new(Flight {
            parts: ask.choices.iter().map(|_| Part::default()).collect(),
            waker: Mutex::new(None),
        });
        let first_id = self.turn(|state, now| state.arrive(now, ask, &names, &flight, request_id))?;
        self.kick.notify_one();
        self.load.fetch_add(1, Ordering::Relaxed);
        Ok(Ticket { driver: Arc::clone(self), flight, first_id })
    }

    /// The timer task: sleeps until the engine has something to do. Never returns.
    pub(crate) async fn run(&self) {
        loop {
            match self.turn(|state, _| state.engine.next_event()) {
                None => self.kick.notified().await,
                Some(at) => {
                    let real = tokio::time::Instant::from_std(self.clock.real(at));
                    // An idle engine that gets work has an earlier event than none; a busy one never
                    // gets an earlier event than its step's end, but a stale kick does no harm.
                    tokio::select! {
                        () = tokio::time::sleep_until(real) => {}
                        () = self.kick.notified() => {}
                    }
                }
            }
        }
    }

    /// The exposition for `/metrics`.
    pub(crate) fn render(&self, model: &str) -> String {
        let (metrics, published) = self.turn(|state, _| (state.metrics.clone(), state.engine.published()));
        metrics.render(model, &self.config, &published)
    }

    pub(crate) fn published(&self) -> Published {
        self.turn(|state, _| state.engine.published())
    }

    pub(crate) fn config(&self) -> &Resolved {
        &self.config
    }

    pub(crate) fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }
}

impl State {
    fn arrive(
        &mut self,
        now: Nanos,
        ask: &Ask,
        names: &[Arc<[u64]>],
        flight: &Arc<Flight>,
        request_id: &str,
    ) -> Result<u64, ArriveError> {
        let first_id = self.next_id;
        for (part, (choice, names)) in ask.choices.iter().zip(names).enumerate() {
            let id = self.next_id;
            let prompt = ask.prompts[choice.prompt].len() as u32;
            let job = Job {
                id,
                prompt_tokens: prompt,
                output_tokens: choice.tokens,
                prefix: Arc::clone(names),
                priority: ask.priority,
                class: 0,
                lora: None,
            };
            if let Err(e) = self.engine.arrive(now, job) {
                for id in first_id..id {
                    self.engine.abort(now, id);
                    self.waiters.remove(&id);
                }
                return Err(e);
            }
            let life = Life {
                arrived: now,
                admitted: now,
                scheduled: None,
                first: now,
                last: now,
                prompt,
                cached: 0,
                generated: 0,
                preemptions: 0,
                max_tokens: ask.max_tokens,
                n: ask.n,
            };
            let why = if choice.end == End::Length { Finished::Length } else { Finished::Stop };
            let request_id = if self.accounts.is_some() { request_id.into() } else { Box::default() };
            self.waiters.insert(id, Waiter { flight: Arc::clone(flight), part, why, life, request_id });
            self.next_id += 1;
        }
        Ok(first_id)
    }

    /// Runs the engine to `now` and books what happened.
    fn advance(&mut self, now: Nanos, wake: &mut Vec<Arc<Flight>>) {
        self.engine.advance(now, &mut self.events);
        for event in self.events.drain(..) {
            match event {
                EngineEvent::Admitted { id, at, cached_tokens } => {
                    if let Some(w) = self.waiters.get_mut(&id) {
                        w.life.admitted = at;
                        w.life.scheduled.get_or_insert(at);
                        w.life.cached = cached_tokens;
                        w.flight.parts[w.part].cached.store(cached_tokens, Ordering::Release);
                    }
                }
                EngineEvent::Token { id, index, at } => {
                    let Some(w) = self.waiters.get_mut(&id) else { continue };
                    if index == 0 {
                        w.life.first = at;
                        self.metrics.first_token(at.since(w.life.arrived), w.life.prompt, w.life.cached);
                    } else {
                        self.metrics.next_token(at.since(w.life.last));
                    }
                    w.life.last = at;
                    w.life.generated = index + 1;
                    w.flight.parts[w.part].tokens.store(index + 1, Ordering::Release);
                    wake.push(Arc::clone(&w.flight));
                }
                EngineEvent::Finished { id, .. } => {
                    if let Some(w) = self.waiters.remove(&id) {
                        self.metrics.finished(w.why, &w.life);
                        account(self.accounts.as_ref(), self.clock, &w, true);
                        w.flight.parts[w.part].done.store(true, Ordering::Release);
                    }
                }
                EngineEvent::Preempted { id, .. } => {
                    if let Some(w) = self.waiters.get_mut(&id) {
                        w.life.preemptions += 1;
                    }
                }
                EngineEvent::StepEnd { .. } => self.metrics.step_end(),
            }
        }
    }
}

/// Tells what became of a choice.
fn account(to: Option<&Sender<Served>>, clock: Clock, w: &Waiter, finished: bool) {
    let Some(to) = to else { return };
    let life = &w.life;
    let admitted = life.scheduled.map(|at| clock.real(at));
    let token = |at: Nanos| (life.generated > 0).then(|| clock.real(at));
    let served = Served {
        request_id: w.request_id.to_string(),
        arrived: clock.real(life.arrived),
        admitted,
        first: token(life.first),
        last: token(life.last),
        finished,
        prompt_tokens: life.prompt,
        cached_tokens: life.cached,
        output_tokens: life.generated,
        preemptions: life.preemptions,
    };
    // Whoever has left does not want to know.
    let _ = to.send(served);
}

/// Whether the answer is left behind half way or complete, its place is given back; what has not
/// finished is cancelled at once.
impl Drop for Ticket {
    fn drop(&mut self) {
        self.driver.load.fetch_sub(1, Ordering::Relaxed);
        if self.flight.parts.iter().all(Part::done) {
            return;
        }
        let ids = self.first_id..self.first_id + self.flight.parts.len() as u64;
        let left: Vec<Waiter> = self.driver.turn(|state, now| {
            ids.filter_map(|id| {
                let waiter = state.waiters.remove(&id)?;
                state.engine.abort(now, id);
                state.metrics.aborted();
                account(state.accounts.as_ref(), state.clock, &waiter, false);
                Some(waiter)
            })
            .collect()
        });
        // The wakers inside are dropped here, outside the lock.
        drop(left);
    }
}
