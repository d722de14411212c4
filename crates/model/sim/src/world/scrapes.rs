//! What routers read of servers, and when.
//!
//! Most of what happens in a quiet system are scrapes: they have a queue of their own, and run one behind the other
//! for as long as nothing else is due and no router does anything about them.

use super::servers::Scrape;
use super::{Due, JITTER, World, lora_name};
use forebay_base::{IndexedHeap, Nanos, Span};
use std::sync::Arc;

/// A router's look at a server: where its beats lie, and the scrape that is planned or under way, if one is.
#[derive(Clone, Debug)]
struct Look {
    /// Beats that have passed.
    beat: u64,
    phase: Span,
    asked: Nanos,
    /// Whether the counters have been read, so that it is the answer that is on its way.
    answered: bool,
    /// What was read.
    read: Option<Scrape>,
}

/// Readings before answers at the same instant, each in the order in which they were planned.
type Key = (Nanos, u64);

/// A bit above all sequence numbers.
const ANSWER: u64 = 1 << 63;

/// All of them: a place for each router and server.
#[derive(Debug)]
pub(super) struct Scrapes {
    looks: Vec<Look>,
    servers: usize,
    due: IndexedHeap<Key>,
    sequence: u64,
}

impl Scrapes {
    /// `phase` tells where a router's beats for a server lie.
    pub(super) fn new(routers: usize, servers: usize, phase: impl Fn(usize, usize) -> Span) -> Scrapes {
        let look = |place: usize| Look {
            beat: 0,
            phase: phase(place / servers, place % servers),
            asked: Nanos::ZERO,
            answered: false,
            read: None,
        };
        Scrapes {
            looks: (0..routers * servers).map(look).collect(),
            servers,
            due: IndexedHeap::default(),
            sequence: 0,
        }
    }

    fn place(&self, router: u32, server: u32) -> u32 {
        router * self.servers as u32 + server
    }

    pub(super) fn peek_at(&self) -> Option<Nanos> {
        self.due.peek().map(|(key, _)| key.0)
    }

    /// Whether a scrape is planned or under way.
    pub(super) fn asking(&self, router: u32, server: u32) -> bool {
        self.due.contains(self.place(router, server))
    }

    fn plan(&mut self, place: u32, at: Nanos, answered: bool) {
        self.sequence += 1;
        self.looks[place as usize].answered = answered;
        self.due.set(place, (at, self.sequence | if answered { ANSWER } else { 0 }));
    }
}

impl World<'_> {
    /// Runs the scrape whose turn it is, and those behind it that come before `other`, which is what else is due
    /// next: as long as no router has anything to do, they change nothing of that.
    pub(super) fn scrape(&mut self, other: (Nanos, Due)) {
        while let Some((key, place)) = self.scrapes.due.peek() {
            if key.0 > self.options.horizon || other < (key.0, Due::Scrape) {
                return;
            }
            debug_assert!(key.0 >= self.now, "time goes on");
            self.now = key.0;
            self.count_event();
            let (router, server) = (place / self.scrapes.servers as u32, place % self.scrapes.servers as u32);
            if !self.scrapes.looks[place as usize].answered {
                self.read(place, server);
            } else if !self.scraped(place, router, server) {
                return;
            }
        }
    }

    /// Plans the next scrape of a server: at the next beat, asking again only after the last answer.
    pub(super) fn ask(&mut self, router: u32, server: u32) {
        let scrape = &self.cluster.scrape;
        let place = self.scrapes.place(router, server);
        let look = &mut self.scrapes.looks[place as usize];
        let beat_at =
            |look: &Look| Nanos::ZERO + look.phase + Span(look.beat.saturating_mul(scrape.period.0));
        look.asked = beat_at(look);
        if look.asked < self.now {
            look.beat = self.now.since(Nanos::ZERO + look.phase).0.div_ceil(scrape.period.0.max(1));
            look.asked = beat_at(look);
        }
        let beat = look.beat;
        look.beat += 1;
        let lane = u64::from(server) << 32 | u64::from(router);
        let late = self.draws.below(JITTER, beat, lane, scrape.jitter.0.saturating_add(1));
        let at = look.asked + Span(u64::midpoint(scrape.delay.0, late));
        self.scrapes.plan(place, at, false);
    }

    /// The server's counters are read; the answer takes as long as the question.
    fn read(&mut self, place: u32, server: u32) {
        let look = &mut self.scrapes.looks[place as usize];
        look.read = self.servers.scrape(server, self.now);
        let back = self.now.since(look.asked);
        self.scrapes.plan(place, self.now + back, true);
    }

    /// What was read arrives at the router. Whether nothing has come of it.
    fn scraped(&mut self, place: u32, router: u32, server: u32) -> bool {
        let look = &mut self.scrapes.looks[place as usize];
        let (asked, read) = (look.asked, look.read.take());
        let known = self.routers[router as usize].endpoints[server as usize].is_some();
        let mut idle = true;
        if let Some(read) = read.filter(|_| known) {
            self.tell(router, server, asked, read);
            idle = self.after_scrape(router);
        }
        // One that has left the pool is asked again when it joins.
        if self.routers[router as usize].endpoints[server as usize].is_some() {
            self.ask(router, server);
        } else {
            self.scrapes.due.remove(place);
        }
        idle
    }

    /// As [`World::after`], but short where the router has decided nothing and nothing waits in it.
    fn after_scrape(&mut self, router: u32) -> bool {
        let r = &mut self.routers[router as usize];
        let wake = r.kernel.next_wake();
        if !r.fx.list.is_empty() || wake.is_some() || r.wake.is_some() {
            self.after(router);
            return false;
        }
        if router == 0 {
            self.look_at_saturation();
        }
        true
    }

    /// A router hears what was read of a server: its adapters only if they are others than before, as they come
    /// less often than numbers do.
    pub(super) fn tell(&mut self, router: u32, server: u32, asked: Nanos, read: Scrape) {
        let r = &mut self.routers[router as usize];
        let Some(endpoint) = r.endpoints[server as usize] else { return };
        r.kernel.scraped(self.now, endpoint, asked, &read.sample, &mut r.fx);
        let told = &mut r.adapters[server as usize];
        if let Some(adapters) = read.adapters.filter(|new| told.as_ref() != Some(new)) {
            *told = Some(*adapters);
            let names = |list: &[u16]| list.iter().map(|&lora| lora_name(lora)).collect();
            let adapters = forebay_kernel::Adapters {
                running: told.as_ref().map(|a| names(&a.running)).unwrap_or_default(),
                waiting: told.as_ref().map(|a| names(&a.waiting)).unwrap_or_default(),
                max: self.cluster.servers[server as usize].engine.spec.max_loras.unwrap_or(0),
            };
            r.kernel.adapters(self.now, endpoint, Arc::new(adapters), &mut r.fx);
        }
    }
}
