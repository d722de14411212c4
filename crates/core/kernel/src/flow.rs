//! Queues: bands by priority, flows inside bands, requests inside flows.
//!
//! A band knows its flows by small integers. What an operation costs does not depend on idle flows, and
//! grows with the logarithm of queued requests. Idle flows are forgotten some arrivals after
//! [`FLOW_IDLE`]: each arrival visits its own band and one further band, in turns, so that bands without
//! traffic shrink, too. Tables keep the room of their greatest size.

use crate::effect::QueueOutcome;
use crate::plan::{BandTemplate, FlowPlan};
use crate::policy::{Fairness, HeadKey, Program, Usage};
use forebay_base::{IndexedHeap, Nanos, Places, SharedHeap, Span};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::sync::Arc;

/// An idle flow is forgotten after this long (llm-d-router's default).
pub const FLOW_IDLE: Span = Span::secs(300);

/// Idle flows looked at per visit of a band. An arrival adds at most one, so lists get shorter, and what
/// an arrival costs does not depend on how many flows there were.
const LOOKS: u32 = 4;

/// Added to the longer of the two TTLs: past it a request leaves whatever the pool does (llm-d-router's
/// own bound of the caller's wait).
const BACKSTOP: Span = Span::secs(2);

/// Flow names come from clients: hashing is keyed, so that nobody can choose colliding ones. The map is
/// only looked up, never walked.
#[derive(Clone, Debug)]
struct Keyed(u64);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;
    fn build_hasher(&self) -> DefaultHasher {
        let mut h = DefaultHasher::new();
        h.write_u64(self.0);
        h
    }
}

#[derive(Clone, Debug)]
struct FlowSlot {
    name: Arc<str>,
    queue: SharedHeap<HeadKey>,
    bytes: u64,
    last_used: Nanos,
    /// Requests of the flow that run; it is not forgotten while there are some.
    running: u32,
    /// Whether it stands in the band's list of flows to look at.
    listed: bool,
}

/// One priority band.
#[derive(Debug)]
pub(crate) struct Band {
    pub(crate) priority: i32,
    template: BandTemplate,
    /// Whether the band stays when it is idle.
    wanted: bool,
    requests: u64,
    bytes: u64,
    fairness: Box<dyn Fairness>,
    names: HashMap<Arc<str>, u32, Keyed>,
    flows: Vec<Option<FlowSlot>>,
    free: Vec<u32>,
    /// Flows that may be idle, by the time of their last look.
    idle: VecDeque<(Nanos, u32)>,
}

impl Clone for Band {
    fn clone(&self) -> Band {
        Band {
            priority: self.priority,
            template: self.template.clone(),
            wanted: self.wanted,
            requests: self.requests,
            bytes: self.bytes,
            fairness: self.fairness.fork(),
            names: self.names.clone(),
            flows: self.flows.clone(),
            free: self.free.clone(),
            idle: self.idle.clone(),
        }
    }
}

/// A band as metrics and tables see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandView {
    /// Its priority.
    pub priority: i32,
    /// Requests queued.
    pub requests: u64,
    /// Body bytes queued.
    pub bytes: u64,
    /// Requests that may be queued.
    pub max_requests: u64,
    /// Bytes that may be queued.
    pub max_bytes: u64,
    /// Flows known, idle ones included.
    pub flows: usize,
}

impl Band {
    fn new(priority: i32, template: BandTemplate, wanted: bool, key: u64) -> Band {
        Band {
            priority,
            fairness: template.fairness.start(),
            template,
            wanted,
            requests: 0,
            bytes: 0,
            names: HashMap::with_hasher(Keyed(key)),
            flows: Vec::new(),
            free: Vec::new(),
            idle: VecDeque::new(),
        }
    }

    pub(crate) fn template(&self) -> &BandTemplate {
        &self.template
    }

    /// The flow of this name; made if it is new.
    fn flow(&mut self, name: &str, now: Nanos) -> u32 {
        if let Some(&f) = self.names.get(name) {
            return f;
        }
        // The one allocation per new flow: its name.
        let name: Arc<str> = Arc::from(name);
        let slot = Some(FlowSlot {
            name: name.clone(),
            queue: SharedHeap::default(),
            bytes: 0,
            last_used: now,
            running: 0,
            listed: false,
        });
        let f = if let Some(f) = self.free.pop() {
            self.flows[f as usize] = slot;
            f
        } else {
            self.flows.push(slot);
            self.flows.len() as u32 - 1
        };
        self.fairness.opened(now, f, &name);
        self.names.insert(name, f);
        f
    }

    /// Whether nothing is lost with it.
    fn is_spare(&self) -> bool {
        !self.wanted && self.requests == 0 && self.names.is_empty()
    }

    fn slot(&mut self, flow: u32) -> &mut FlowSlot {
        self.flows[flow as usize].as_mut().expect("a queued or running request holds its flow")
    }

    /// Tells fairness what a change to a flow means.
    fn settle(&mut self, flow: u32, now: Nanos) {
        let slot = self.flows[flow as usize].as_mut().expect("a queued request holds its flow");
        slot.last_used = now;
        if let Some((head, _)) = slot.queue.peek() {
            self.fairness.head_changed(flow, head);
        } else {
            if !slot.listed {
                slot.listed = true;
                self.idle.push_back((now, flow));
            }
            self.fairness.emptied(flow);
        }
    }

    /// Forgets some of the flows that have been idle for [`FLOW_IDLE`]. Each flow is looked at once per that
    /// time at most.
    fn collect(&mut self, now: Nanos) {
        for _ in 0..LOOKS {
            let Some(&(looked, flow)) = self.idle.front() else { return };
            if now.since(looked) < FLOW_IDLE {
                return;
            }
            self.idle.pop_front();
            let Some(slot) = self.flows[flow as usize].as_mut() else { continue };
            if !slot.queue.is_empty() || slot.running > 0 {
                slot.listed = false;
            } else if now.since(slot.last_used) < FLOW_IDLE {
                self.idle.push_back((slot.last_used, flow));
                // Times in the list must not fall: a younger entry waits for an older one, which
                // delays a collection and never makes one early.
            } else {
                self.names.remove(&slot.name);
                self.flows[flow as usize] = None;
                self.free.push(flow);
                self.fairness.closed(now, flow);
            }
        }
    }
}

/// What a request needs to be queued.
pub(crate) struct Enqueue<'a> {
    pub(crate) band: u32,
    pub(crate) flow: &'a str,
    pub(crate) handle: u32,
    pub(crate) head: HeadKey,
    pub(crate) bytes: u64,
    pub(crate) deadline: Nanos,
}

/// All bands.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// Highest priority first.
    bands: Vec<Band>,
    priorities: Vec<i32>,
    requests: u64,
    bytes: u64,
    places: Places,
    /// By (deadline, request table index); requests without a deadline are absent.
    deadlines: IndexedHeap<(Nanos, u32)>,
    /// Whether the pool is empty, and since when.
    pub(crate) empty_pool: bool,
    pub(crate) regime_since: Nanos,
    hash_key: u64,
    /// The band that the next visit goes to.
    visit: usize,
}

impl Queues {
    pub(crate) fn new(plan: &FlowPlan, empty_pool: bool, hash_key: u64, now: Nanos) -> Queues {
        let bands: Vec<Band> =
            plan.bands.iter().map(|b| Band::new(b.priority, b.template.clone(), true, hash_key)).collect();
        debug_assert!(bands.windows(2).all(|w| w[0].priority > w[1].priority), "bands must fall strictly");
        Queues {
            priorities: bands.iter().map(|b| b.priority).collect(),
            bands,
            requests: 0,
            bytes: 0,
            places: Places::new(),
            deadlines: IndexedHeap::default(),
            empty_pool,
            regime_since: now,
            hash_key,
            visit: 0,
        }
    }

    pub(crate) fn priorities(&self) -> &[i32] {
        &self.priorities
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = BandView> + '_ {
        self.bands.iter().map(|b| BandView {
            priority: b.priority,
            requests: b.requests,
            bytes: b.bytes,
            max_requests: b.template.max_requests,
            max_bytes: b.template.max_bytes,
            flows: b.names.len(),
        })
    }

    /// What the fairness of all bands has counted per program; `None` if none of them counts programs.
    pub(crate) fn programs(&self, now: Nanos) -> Option<BTreeMap<Arc<str>, Program>> {
        let mut all: BTreeMap<Arc<str>, Program> = BTreeMap::new();
        let mut add = |name: &Arc<str>, p: Program| {
            *all.entry(Arc::clone(name)).or_default() += p;
        };
        let mut counted = false;
        for b in &self.bands {
            counted |= b.fairness.programs(now, &mut add);
        }
        counted.then_some(all)
    }

    pub(crate) fn band(&self, band: u32) -> &Band {
        &self.bands[band as usize]
    }

    /// The band of this priority, or else band 0's.
    pub(crate) fn band_of(&self, priority: i32) -> u32 {
        let find = |p: i32| self.priorities.iter().position(|&q| q == p);
        find(priority).or_else(|| find(0)).expect("band 0 always exists") as u32
    }

    /// Whether one more request of this size fits; landing exactly on a limit does.
    pub(crate) fn check(&self, plan: &FlowPlan, band: u32, bytes: u64) -> Result<(), QueueOutcome> {
        let b = &self.bands[band as usize];
        let over = |now: u64, more: u64, cap: u64| cap > 0 && now.saturating_add(more) > cap;
        if over(self.bytes, bytes, plan.max_bytes.unwrap_or(0))
            || over(self.requests, 1, plan.max_requests.unwrap_or(0))
            || over(b.bytes, bytes, b.template.max_bytes)
            || over(b.requests, 1, b.template.max_requests)
        {
            return Err(if self.empty_pool {
                QueueOutcome::RejectedNoEndpoints
            } else {
                QueueOutcome::RejectedCapacity
            });
        }
        Ok(())
    }

    /// When a request queued at `since` has waited long enough.
    ///
    /// The budget of the pool's present state counts from the later of `since` and the last change of
    /// that state; past the longer budget plus two seconds it is over in any case. The request's own bound,
    /// unless it is 0, shortens the budget of a pool with endpoints.
    pub(crate) fn deadline(&self, plan: &FlowPlan, since: Nanos, own: Option<Span>) -> Nanos {
        let waiting = plan.ttl_of(own);
        let budget = if self.empty_pool { plan.no_endpoint_ttl } else { waiting };
        let soft = budget.map_or(Nanos::NEVER, |b| since.max(self.regime_since) + b);
        let hard = match (waiting, plan.no_endpoint_ttl) {
            (Some(a), Some(b)) => since + a.max(b) + BACKSTOP,
            _ => Nanos::NEVER,
        };
        soft.min(hard)
    }

    /// Queues a request; returns its flow.
    pub(crate) fn push(&mut self, e: &Enqueue<'_>, now: Nanos) -> u32 {
        let band = &mut self.bands[e.band as usize];
        band.collect(now);
        let flow = band.flow(e.flow, now);
        let slot = band.flows[flow as usize].as_mut().expect("made just above");
        slot.queue.set(&mut self.places, e.handle, e.head);
        slot.bytes += e.bytes;
        band.bytes += e.bytes;
        band.requests += 1;
        band.settle(flow, now);
        self.bytes += e.bytes;
        self.requests += 1;
        if e.deadline != Nanos::NEVER {
            self.deadlines.set(e.handle, (e.deadline, e.handle));
        }
        flow
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn remove(&mut self, band: u32, flow: u32, handle: u32, bytes: u64, now: Nanos) {
        let b = &mut self.bands[band as usize];
        let slot = b.slot(flow);
        slot.bytes -= bytes;
        let slot = b.flows[flow as usize].as_mut().expect("looked at just above");
        let was_there = slot.queue.remove(&mut self.places, handle);
        debug_assert!(was_there, "a queued request stands in its flow");
        b.bytes -= bytes;
        b.requests -= 1;
        b.settle(flow, now);
        self.bytes -= bytes;
        self.requests -= 1;
        self.deadlines.remove(handle);
    }

    /// The head that goes next in a band.
    pub(crate) fn head(&self, band: u32, now: Nanos) -> Option<u32> {
        let b = &self.bands[band as usize];
        let flow = b.fairness.pick(now)?;
        b.flows[flow as usize].as_ref()?.queue.peek().map(|(_, handle)| handle)
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<(Nanos, u32)> {
        self.deadlines.peek().map(|(k, h)| (k.0, h))
    }

    /// Any queued request, for draining: the one with the lowest table index in the highest band.
    pub(crate) fn any(&self, now: Nanos) -> Option<u32> {
        (0..self.bands.len() as u32).find_map(|b| self.head(b, now))
    }

    // What fairness is told of. A lane is a band and a flow in it.

    /// The picked head of the flow is about to leave the queue for scheduling.
    pub(crate) fn taken(&mut self, (band, flow): (u32, u32)) {
        self.bands[band as usize].fairness.taken(flow);
    }

    /// A request of the flow runs; the flow is kept until as many have [ended](Queues::ended).
    pub(crate) fn started(&mut self, (band, flow): (u32, u32)) {
        self.bands[band as usize].slot(flow).running += 1;
    }

    /// A request of the flow has been sent to an endpoint for the first time.
    pub(crate) fn charge(&mut self, (band, flow): (u32, u32), input: u64, now: Nanos) {
        self.bands[band as usize].fairness.dispatched(now, flow, input);
    }

    pub(crate) fn output(&mut self, (band, flow): (u32, u32), tokens: u64, now: Nanos) {
        if tokens > 0 {
            self.bands[band as usize].fairness.output(now, flow, tokens);
        }
    }

    pub(crate) fn finished(&mut self, (band, flow): (u32, u32), usage: Usage, now: Nanos) {
        self.bands[band as usize].fairness.finished(now, flow, usage);
    }

    /// A running request of the flow is over, however it ended.
    pub(crate) fn ended(&mut self, (band, flow): (u32, u32), now: Nanos) {
        let b = &mut self.bands[band as usize];
        let slot = b.slot(flow);
        slot.running -= 1;
        slot.last_used = now;
        if slot.running == 0 && slot.queue.is_empty() && !slot.listed {
            slot.listed = true;
            b.idle.push_back((now, flow));
        }
    }

    /// The pool has become empty, or is not any more: budgets start anew. `deadline` recomputes one.
    pub(crate) fn regime(&mut self, empty: bool, now: Nanos, queued: impl Fn(&Queues, u32) -> Nanos) {
        if empty == self.empty_pool {
            return;
        }
        self.empty_pool = empty;
        self.regime_since = now;
        // A flip is rare and touches every queued request once. Those without a deadline in one state
        // may have one in the other, so all are visited.
        let handles: Vec<u32> = self
            .bands
            .iter()
            .flat_map(|b| b.flows.iter().flatten())
            .flat_map(|f| f.queue.iter().map(|(_, h)| h))
            .collect();
        for h in handles {
            match queued(self, h) {
                Nanos::NEVER => {
                    self.deadlines.remove(h);
                }
                deadline => self.deadlines.set(h, (deadline, h)),
            }
        }
    }

    /// Makes exactly these priorities (and those of the plan, and 0) provisioned. Bands that are not wanted
    /// any more go at once if they have no flows, else with their last flow ([`Queues::sweep`]). Returns
    /// old index -> new index.
    pub(crate) fn provision(&mut self, plan: &FlowPlan, wanted: &[i32]) -> Vec<Option<u32>> {
        let fixed = |p: i32| p == 0 || plan.bands.iter().any(|b| b.priority == p);
        for b in &mut self.bands {
            b.wanted = fixed(b.priority) || wanted.contains(&b.priority);
        }
        self.bands.retain(|b| !b.is_spare());
        for &p in wanted {
            if !self.bands.iter().any(|b| b.priority == p) {
                let template = if p < 0 { &plan.default_negative_band } else { &plan.default_band };
                self.bands.push(Band::new(p, template.clone(), true, self.hash_key));
            }
        }
        self.bands.sort_by_key(|b| std::cmp::Reverse(b.priority));
        self.renumber()
    }

    /// Visits one band, another one each time: forgets some of its idle flows, and the band itself if it is
    /// not wanted and has none left. Returns old index -> new index if a band has gone.
    pub(crate) fn sweep(&mut self, now: Nanos) -> Option<Vec<Option<u32>>> {
        self.visit = (self.visit + 1) % self.bands.len();
        let band = &mut self.bands[self.visit];
        band.collect(now);
        if !band.is_spare() {
            return None;
        }
        self.bands.remove(self.visit);
        Some(self.renumber())
    }

    /// After bands have come or gone: old index -> new index.
    fn renumber(&mut self) -> Vec<Option<u32>> {
        let old = std::mem::take(&mut self.priorities);
        self.priorities.extend(self.bands.iter().map(|b| b.priority));
        old.iter().map(|p| self.priorities.iter().position(|q| q == p).map(|i| i as u32)).collect()
    }
}
