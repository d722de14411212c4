//! What the kernel has in flight at endpoints.
//!
//! Load is a fold over leases: a running request is a lease of its endpoint, and an endpoint's counters
//! are sums that only a lease's transitions change, so that they always equal the fold (checked after
//! every input in debug builds). Late words find no lease, or one of an endpoint's earlier generation,
//! and change nothing.
//!
//! A lease is *pending* until its first token has come back: only then has the engine shown that the
//! request waits no longer. Requests that do not stream show no first token; they count as pending for
//! twice the time that first tokens take at the endpoint, [`PENDING_AT_MOST`] at most. A detector may ask
//! for less ([`PendingUntil::Scrape`]), so that it can be measured what following first tokens is worth.

use super::Kernel;
use crate::effect::Id;
use crate::policy::{Left, PendingUntil};
use crate::pool::{Endpoint, EndpointId};
use crate::table::{Entry, Prefill, Running, State};
use forebay_base::{Nanos, Span};
use std::sync::Arc;

/// A request that does not stream counts as pending for this long at most, and for just this long while
/// nothing is known of the endpoint's first tokens.
pub(super) const PENDING_AT_MOST: Span = Span::secs(30);

/// Weight of the newest observation in an endpoint's mean time to first token.
const NEWEST: f64 = 0.1;

/// What a request takes at its endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) endpoint: EndpointId,
    pub(super) uncached: u64,
    pub(super) tokens: u64,
    pub(super) prefill: Option<Prefill>,
    pub(super) lane: Option<(u32, u32)>,
}

impl Kernel {
    /// Whether anything that decides reads live load.
    fn watches_load(&self) -> bool {
        self.plan.live_routing || self.plan.detector.watches_load()
    }

    /// The endpoint's load has changed.
    fn load_changed(&mut self, now: Nanos, endpoint: EndpointId) {
        if !self.watches_load() {
            return;
        }
        if let Some(e) = self.pool.get_mut(endpoint) {
            e.note_pending(now);
            if self.plan.detector.watches_load() {
                self.saturation.touch(&*self.plan.detector, e);
            }
        }
    }

    /// The request goes to this endpoint.
    pub(super) fn lease(&mut self, now: Nanos, id: Id, lease: Lease) {
        let Lease { endpoint, uncached, tokens, prefill, lane } = lease;
        let Some(entry) = self.table.get_mut(id) else { return };
        let streaming = entry.asked.streaming;
        let running = Running {
            endpoint,
            prefill,
            since: now,
            pending: true,
            uncached,
            tokens,
            lane,
            output: 0,
            priority: entry.asked.priority,
            decoding: (!streaming).then_some(now),
        };
        if let Some(gate) = &mut self.memories.gate {
            gate.dispatched(now, &running.tenant());
        }
        let waits_at = running.waits_at();
        entry.state = State::Running(running);
        if let Some(e) = self.pool.get_mut(endpoint) {
            e.load.requests += 1;
            e.load.pending += u32::from(prefill.is_none());
            e.load.pending_tokens += uncached;
            e.load.tokens += tokens;
        }
        if let Some((p, e)) = prefill.and_then(|p| Some((p, self.pool.get_mut(p.endpoint)?))) {
            e.load.requests += 1;
            e.load.pending += 1;
            e.load.pending_tokens += p.uncached;
            e.load.tokens += p.tokens;
        }
        if self.watches_load() {
            if self.plan.detector.pending_until() == PendingUntil::Scrape {
                self.unscraped.push((now, id));
            } else if !streaming {
                let until = now + self.pool.get(waits_at).map_or(PENDING_AT_MOST, shown_by);
                self.pending_until.set(id.index, (until, id.index));
            }
        }
        self.load_changed(now, endpoint);
        if prefill.is_some() {
            self.load_changed(now, waits_at);
        }
    }

    /// The first token of a streaming answer.
    pub(super) fn first_token(&mut self, now: Nanos, id: Id) {
        if let Some(entry) = self.table.get_mut(id) {
            // From here on it goes nowhere else. The hashes have served; a long prompt's are worth their
            // memory.
            entry.asked.prefix = Arc::default();
        }
        self.prompt_over(now, id);
        let Some(Entry { state: State::Running(r), .. }) = self.table.get_mut(id) else { return };
        let news = r.decoding.is_none();
        if news {
            r.decoding = Some(now);
            if let Some(gate) = &mut self.memories.gate {
                gate.first_token(now, &r.tenant());
            }
        }
        if news || r.pending {
            let took = now.since(r.since).as_secs_f64();
            if let Some(e) = self.pool.get_mut(r.waits_at()) {
                e.mean_ttft = Some(e.mean_ttft.map_or(took, |m| m + NEWEST * (took - m)));
            }
        }
        self.pending_over(now, id);
        self.prefill_over(now, id);
    }

    /// The prompt has been computed and handed over: its endpoint has nothing of the request any more.
    fn prefill_over(&mut self, now: Nanos, id: Id) {
        let Some(Entry { state: State::Running(r), .. }) = self.table.get_mut(id) else { return };
        debug_assert!(!r.pending, "what is pending has a prompt to wait for");
        let Some(p) = r.prefill.take() else { return };
        if let Some(e) = self.pool.get_mut(p.endpoint) {
            e.load.requests -= 1;
            e.load.tokens -= p.tokens;
        }
        self.load_changed(now, p.endpoint);
    }

    /// Prompt tokens in flight end with the first token, unless output is estimated.
    fn prompt_over(&mut self, now: Nanos, id: Id) {
        if self.plan.inflight.output.is_some() {
            return;
        }
        let Some(Entry { state: State::Running(r), .. }) = self.table.get_mut(id) else { return };
        let (endpoint, tokens) = (r.endpoint, std::mem::take(&mut r.tokens));
        if tokens > 0
            && let Some(e) = self.pool.get_mut(endpoint)
        {
            e.load.tokens -= tokens;
            self.load_changed(now, endpoint);
        }
    }

    /// The request counts as pending no longer.
    fn pending_over(&mut self, now: Nanos, id: Id) {
        self.pending_until.remove(id.index);
        let Some(Entry { state: State::Running(r), .. }) = self.table.get_mut(id) else { return };
        if !std::mem::replace(&mut r.pending, false) {
            return;
        }
        let (endpoint, uncached, prefill) = (r.endpoint, r.uncached, r.prefill);
        if let Some(e) = self.pool.get_mut(endpoint) {
            e.load.pending -= u32::from(prefill.is_none());
            e.load.pending_tokens -= uncached;
        }
        self.load_changed(now, endpoint);
        let Some(p) = prefill else { return };
        if let Some(e) = self.pool.get_mut(p.endpoint) {
            e.load.pending -= 1;
            e.load.pending_tokens -= p.uncached;
        }
        self.load_changed(now, p.endpoint);
    }

    /// The endpoint's metrics were taken: if the detector says so, what was sent there until then is pending
    /// no longer.
    pub(super) fn pending_scraped(&mut self, now: Nanos, endpoint: EndpointId, taken: Nanos) {
        if self.plan.detector.pending_until() != PendingUntil::Scrape {
            return;
        }
        let mut unscraped = std::mem::take(&mut self.unscraped);
        unscraped.retain(|&(since, id)| match self.table.get(id) {
            // A lease that has moved has a newer line in the list.
            Some(Entry { state: State::Running(r), .. }) if r.pending && r.since == since => {
                let seen = r.waits_at() == endpoint && since <= taken;
                if seen {
                    self.pending_over(now, id);
                }
                !seen
            }
            _ => false,
        });
        self.unscraped = unscraped;
    }

    /// When the next request that does not stream stops to count as pending.
    pub(super) fn next_pending_over(&self) -> Option<Nanos> {
        self.pending_until.peek().map(|(k, _)| k.0)
    }

    /// Those whose time is over at `now`; whether there was one.
    pub(super) fn pending_elapsed(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some((_, handle)) = self.pending_until.peek().filter(|(k, _)| k.0 <= now) {
            let id = self.table.id_at(handle);
            self.pending_over(now, id);
            any = true;
        }
        any
    }

    /// A running request has left the table: takes it off its endpoint's counters, if that lives, and
    /// lets go of its flow.
    pub(super) fn release(&mut self, now: Nanos, id: Id, r: &Running, left: Left) {
        self.pending_until.remove(id.index);
        if let Some(gate) = &mut self.memories.gate {
            gate.released(now, &r.tenant(), left);
        }
        if let Some(e) = self.pool.get_mut(r.endpoint) {
            e.load.requests -= 1;
            e.load.tokens -= r.tokens;
            if r.pending {
                e.load.pending -= u32::from(r.prefill.is_none());
                e.load.pending_tokens -= r.uncached;
            }
        }
        self.load_changed(now, r.endpoint);
        if let Some(p) = r.prefill {
            if let Some(e) = self.pool.get_mut(p.endpoint) {
                e.load.requests -= 1;
                e.load.tokens -= p.tokens;
                if r.pending {
                    e.load.pending -= 1;
                    e.load.pending_tokens -= p.uncached;
                }
            }
            self.load_changed(now, p.endpoint);
        }
        if let (Some(lane), Some(queues)) = (r.lane, &mut self.queues) {
            queues.ended(lane, now);
        }
    }

    /// Whether every endpoint's load is the fold over its leases; for tests and debug builds.
    pub fn load_is_consistent(&self) -> bool {
        self.pool.iter().all(|e| {
            let mut fold = crate::pool::Load::default();
            for entry in self.table.iter() {
                let State::Running(r) = &entry.state else { continue };
                if r.endpoint == e.id {
                    fold.requests += 1;
                    fold.tokens += r.tokens;
                    if r.pending {
                        fold.pending += u32::from(r.prefill.is_none());
                        fold.pending_tokens += r.uncached;
                    }
                }
                if let Some(p) = r.prefill.filter(|p| p.endpoint == e.id) {
                    fold.requests += 1;
                    fold.tokens += p.tokens;
                    if r.pending {
                        fold.pending += 1;
                        fold.pending_tokens += p.uncached;
                    }
                }
            }
            fold == e.load
        })
    }
}

/// How long a request that does not stream counts as pending at this endpoint.
fn shown_by(e: &Endpoint) -> Span {
    e.mean_ttft.map_or(PENDING_AT_MOST, |m| Span::from_secs_f64(2.0 * m).min(PENDING_AT_MOST))
}
