//! What happens to servers: failures, drains, starts, and scaling.

use super::World;
use super::flights::Flight;
use super::servers::Life;
use crate::cluster::{Change, FULL_SPEED_PERMILLE, Size, Start};
use crate::events::{Event, Ref};
use crate::scaling::{GroupUse, ScaleEvent, ScaleMetric, Scaler};
use forebay_base::{Nanos, Span};
use forebay_kernel::EndpointSpec;

/// The sizes of a group over the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    used: GroupUse,
    scaler: Scaler,
}

impl World<'_> {
    /// Everyone who is there from the start, and what is going to happen.
    pub(super) fn populate(&mut self) {
        let cluster = self.cluster;
        self.sizes = cluster
            .groups
            .iter()
            .map(|g| Sizes {
                used: GroupUse { name: g.name.clone(), ..GroupUse::default() },
                ..Sizes::default()
            })
            .collect();
        for (server, s) in (0..).zip(&cluster.servers) {
            let first = cluster.incidents.iter().find(|i| i.server == server);
            if s.present && !first.is_some_and(|i| i.change.joins()) {
                self.turn_into(server, Life::Up);
                self.join(server);
            }
        }
        for (sizes, group) in self.sizes.iter_mut().zip(0..) {
            let n = replicas_of(&self.servers.list, &cluster.groups[group as usize].servers);
            (sizes.used.first, sizes.used.range) = (n, (n, n));
        }
        for (index, incident) in (0..).zip(&cluster.incidents) {
            self.events.push(incident.at, Event::Incident { index });
        }
        for (index, scale) in (0..).zip(&cluster.scales) {
            self.events.push(scale.at, Event::Scale { index });
        }
        for (index, rules) in (0..).zip(&cluster.autoscalers) {
            self.events.push(self.now + rules.period, Event::Evaluate { index });
        }
    }

    // --- Lives ------------------------------------------------------------------------------------------

    /// A server's life changes; the time of the last one is accounted for.
    fn turn_into(&mut self, server: u32, life: Life) {
        let group = self.cluster.servers[server as usize].group;
        let s = &mut self.servers.list[server as usize];
        let (last, lasted) = (s.life, self.now.since(s.since));
        (s.life, s.since) = (life, self.now);
        s.turn = s.turn.wrapping_add(1);
        self.account(group, server, last, lasted);
        let n = self.replicas(group);
        let range = &mut self.sizes[group as usize].used.range;
        *range = (range.0.min(n), range.1.max(n));
    }

    fn account(&mut self, group: u32, server: u32, life: Life, lasted: Span) {
        if life == Life::Absent {
            return;
        }
        let gpus = u64::from(self.cluster.servers[server as usize].engine.spec.tp);
        let used = &mut self.sizes[group as usize].used;
        used.held_ns += lasted.0;
        used.gpu_ns += lasted.0 * gpus;
        if life == Life::Starting {
            used.starting_ns += lasted.0;
        }
    }

    /// The books at the end of the run.
    pub(super) fn close_books(&mut self) {
        for server in 0..self.servers.list.len() as u32 {
            let s = &self.servers.list[server as usize];
            let (life, lasted) = (s.life, self.now.since(s.since));
            self.account(self.cluster.servers[server as usize].group, server, life, lasted);
        }
        for group in 0..self.sizes.len() as u32 {
            let last = self.replicas(group);
            self.sizes[group as usize].used.last = last;
        }
        self.scaling.groups = self.sizes.iter().map(|s| s.used.clone()).collect();
    }

    /// The server joins every router's pool, and is read at once, as discovery does before it adds one.
    fn join(&mut self, server: u32) {
        let s = &self.cluster.servers[server as usize];
        for router in 0..self.routers.len() as u32 {
            let read = self.servers.scrape(server, self.now);
            let r = &mut self.routers[router as usize];
            if r.endpoints[server as usize].is_some() {
                continue;
            }
            let spec = EndpointSpec { name: s.name.clone(), labels: s.labels.clone() };
            let endpoint = r.kernel.add_endpoint(self.now, spec, &mut r.fx);
            let place = endpoint.index as usize;
            if place >= r.servers.len() {
                r.servers.resize(place + 1, server);
            }
            r.servers[place] = server;
            r.endpoints[server as usize] = Some(endpoint);
            r.adapters[server as usize] = None;
            if let Some(read) = read {
                self.tell(router, server, self.now, read);
            }
            self.after(router);
        }
        for router in 0..self.routers.len() as u32 {
            if !self.scrapes.asking(router, server) {
                self.ask(router, server);
            }
        }
    }

    fn drop_out(&mut self, server: u32) {
        for router in 0..self.routers.len() as u32 {
            let r = &mut self.routers[router as usize];
            if let Some(endpoint) = r.endpoints[server as usize].take() {
                r.kernel.remove_endpoint(self.now, endpoint, &mut r.fx);
                self.after(router);
            }
        }
    }

    /// A server that is not at work comes up.
    fn bring_up(&mut self, server: u32, start: Start) {
        self.servers.list[server as usize].told = true;
        match self.servers.list[server as usize].life {
            Life::Absent | Life::Dead => {
                self.turn_into(server, Life::Starting);
                if start.cold == Span::ZERO {
                    self.came_up(server, start.warmup, start.slowdown_permille);
                } else {
                    let turn = self.servers.list[server as usize].turn;
                    self.events.push(self.now + start.cold, Event::CameUp { server, turn });
                    self.starts[server as usize] = start;
                }
            }
            Life::Draining => {
                self.turn_into(server, Life::Up);
                self.join(server);
            }
            Life::Up => self.join(server),
            Life::Starting => {}
        }
    }

    /// The cold start that was planned in a turn is over.
    pub(super) fn cold_start_over(&mut self, server: u32, turn: u32) {
        if self.servers.list[server as usize].turn == turn {
            let start = self.starts[server as usize];
            self.came_up(server, start.warmup, start.slowdown_permille);
        }
    }

    fn came_up(&mut self, server: u32, warmup: Span, slowdown: u32) {
        self.turn_into(server, Life::Up);
        if warmup > Span::ZERO {
            self.pace(server, slowdown);
            let turn = self.servers.list[server as usize].turn;
            self.events.push(self.now + warmup, Event::Warm { server, turn });
        }
        self.join(server);
    }

    /// The warm-up that was planned in a turn is over; a server that drains by now is warm, too.
    pub(super) fn warm(&mut self, server: u32, turn: u32) {
        let s = &self.servers.list[server as usize];
        if s.turn == turn || (s.life == Life::Draining && s.turn == turn.wrapping_add(1)) {
            self.pace(server, FULL_SPEED_PERMILLE);
        }
    }

    fn pace(&mut self, server: u32, permille: u32) {
        self.servers.list[server as usize].engine.slow_down(self.now, permille);
        self.servers.reschedule(server);
    }

    fn drain(&mut self, server: u32) {
        self.drop_out(server);
        match self.servers.list[server as usize].life {
            Life::Absent | Life::Draining => {}
            Life::Starting | Life::Dead => self.turn_into(server, Life::Absent),
            Life::Up => {
                self.turn_into(server, Life::Draining);
                self.gone_if_idle(server);
                let s = &self.servers.list[server as usize];
                let group = self.cluster.servers[server as usize].group;
                if let Some(grace) = self.cluster.groups[group as usize].grace
                    && s.life == Life::Draining
                {
                    self.events.push(self.now + grace, Event::GraceOver { server, turn: s.turn });
                }
            }
        }
    }

    /// The servers let go of a request, or the request of them.
    pub(super) fn unbind(&mut self, flight: Ref) {
        let Some(f) = self.flights.get_mut(flight) else { return };
        let both = [f.prefilling.take(), f.bound.take()];
        both.into_iter().flatten().for_each(|server| self.freed(server));
    }

    /// A prompt is computed: the request goes on to the server that decodes it.
    pub(super) fn handed_over(&mut self, flight: Ref, at: Nanos) {
        let Some(f) = self.flights.get_mut(flight) else { return };
        f.prefilled = true;
        if let Some(server) = f.prefilling.take() {
            self.freed(server);
        }
        self.events.push(at + self.cluster.network.to_engine, Event::Arrive { flight });
    }

    /// One request fewer is at a server or on its way there.
    fn freed(&mut self, server: u32) {
        self.servers.list[server as usize].bound -= 1;
        self.gone_if_idle(server);
    }

    fn gone_if_idle(&mut self, server: u32) {
        let s = &self.servers.list[server as usize];
        if s.life == Life::Draining && s.bound == 0 {
            // Not here and now: an engine may be in the middle of telling its events.
            self.events.push(self.now, Event::Gone { server, turn: s.turn });
        }
    }

    /// The server had nothing left in a turn.
    pub(super) fn gone(&mut self, server: u32, turn: u32) {
        if self.servers.list[server as usize].turn == turn {
            self.servers.renew(server, self.now, self.options);
            self.turn_into(server, Life::Absent);
        }
    }

    /// What a server still has when its grace is over fails.
    pub(super) fn grace_over(&mut self, server: u32, turn: u32) {
        if self.servers.list[server as usize].turn == turn {
            self.lose(server);
            self.servers.renew(server, self.now, self.options);
            self.turn_into(server, Life::Absent);
        }
    }

    /// Every request that the server has fails.
    fn lose(&mut self, server: u32) {
        let at = self.now + self.cluster.network.to_client;
        for flight in self.flights.all() {
            let there = |f: &mut Flight| f.inside && f.place() == Some(server);
            if self.flights.get_mut(flight).is_some_and(there) {
                self.cut(flight);
                self.events.push(at, Event::Failed { flight });
            }
        }
    }

    pub(super) fn incident(&mut self, index: u32) {
        let incident = self.cluster.incidents[index as usize];
        let server = incident.server;
        let s = server as usize;
        match incident.change {
            Change::Fail => {
                self.lose(server);
                self.servers.renew(server, self.now, self.options);
                match self.servers.list[s].life {
                    Life::Absent => {}
                    Life::Draining => self.turn_into(server, Life::Absent),
                    Life::Starting | Life::Up | Life::Dead => self.turn_into(server, Life::Dead),
                }
            }
            Change::Leave => self.drop_out(server),
            Change::Drain => self.drain(server),
            Change::Join => {
                let group = self.cluster.servers[s].group;
                self.bring_up(server, self.cluster.groups[group as usize].start);
            }
            Change::JoinAfter(start) => self.bring_up(server, start),
            Change::Slow(permille) => self.pace(server, permille),
            Change::Mute => self.servers.list[s].told = false,
            Change::Unmute => self.servers.list[s].told = true,
        }
    }

    // --- Scaling ------------------------------------------------------------------------------------

    /// Servers of a group that are wanted: those that drain are not.
    fn replicas(&self, group: u32) -> u32 {
        replicas_of(&self.servers.list, &self.cluster.groups[group as usize].servers)
    }

    pub(super) fn scale(&mut self, index: u32) {
        let scale = self.cluster.scales[index as usize];
        let current = self.replicas(scale.group);
        let to = match scale.to {
            Size::Exactly(n) => n,
            Size::By(n) => current.saturating_add_signed(n),
        };
        self.resize(scale.group, current, to, None);
    }

    pub(super) fn evaluate(&mut self, index: u32) {
        let rules = &self.cluster.autoscalers[index as usize];
        let totals: Vec<f64> = rules.metrics.iter().map(|(m, _)| self.total(rules.group, *m)).collect();
        let current = self.replicas(rules.group);
        let ready = self.of_group(rules.group).filter(|&s| self.life(s) == Life::Up).count() as u32;
        let scaler = &mut self.sizes[rules.group as usize].scaler;
        let (to, why) = scaler.evaluate(rules, self.now, &totals, ready, current);
        self.resize(rules.group, current, to, Some(why));
        self.events.push(self.now + rules.period, Event::Evaluate { index });
    }

    fn life(&self, server: u32) -> Life {
        self.servers.list[server as usize].life
    }

    fn of_group(&self, group: u32) -> impl Iterator<Item = u32> + use<'_> {
        self.cluster.groups[group as usize].servers.iter().copied()
    }

    /// Adds servers, or lets the newest go: those that are not up first.
    fn resize(&mut self, group: u32, from: u32, to: u32, why: Option<ScaleMetric>) {
        if to > from {
            let vacant: Vec<u32> = self.of_group(group).filter(|&s| self.life(s) == Life::Absent).collect();
            let start = self.cluster.groups[group as usize].start;
            for server in vacant.into_iter().take((to - from) as usize) {
                self.bring_up(server, start);
            }
        } else {
            let wanted = |&s: &u32| matches!(self.life(s), Life::Starting | Life::Up | Life::Dead);
            let mut all: Vec<u32> = self.of_group(group).filter(wanted).collect();
            all.sort_by_key(|&s| {
                let since = self.servers.list[s as usize].since;
                (self.life(s) == Life::Up, std::cmp::Reverse((since, s)))
            });
            for server in all.into_iter().take((from - to) as usize) {
                self.drain(server);
            }
        }
        let reached = self.replicas(group);
        if reached != from {
            self.scaling.events.push(ScaleEvent { at: self.now, group, from, to: reached, why });
        }
    }

    /// A metric's sum over the group's servers that are up.
    fn total(&mut self, group: u32, metric: ScaleMetric) -> f64 {
        let up: Vec<u32> = self.of_group(group).filter(|&s| self.life(s) == Life::Up).collect();
        let published = |s: &u32| self.servers.list[*s as usize].engine.published_at(self.now);
        match metric {
            ScaleMetric::Queue => self.routers.iter().map(|r| r.kernel.queue_totals().0 as f64).sum(),
            ScaleMetric::InFlight => {
                let at = |s: u32| {
                    let load = |r: &super::Router| {
                        let endpoint = r.kernel.pool().get(r.endpoints[s as usize]?)?;
                        Some(f64::from(endpoint.load.requests))
                    };
                    self.routers.iter().filter_map(load).sum::<f64>()
                };
                up.into_iter().map(at).sum()
            }
            ScaleMetric::Waiting => up.iter().map(|s| f64::from(published(s).waiting)).sum(),
            ScaleMetric::Running => up.iter().map(|s| f64::from(published(s).running)).sum(),
            ScaleMetric::KvCache => up.iter().map(|s| published(s).kv_usage).sum(),
            ScaleMetric::Saturation => {
                let stages = up.first().and_then(|&s| {
                    let kernel = &self.routers[0].kernel;
                    Some(kernel.pool().get(self.routers[0].endpoints[s as usize]?)?.stages)
                });
                let all = self.routers[0].kernel.saturation();
                let of = match stages.map(|s| (s.prefill, s.decode)) {
                    Some((true, false)) => all.prefill,
                    Some((false, true)) => all.decode,
                    _ => None,
                };
                of.unwrap_or(all.effective) * up.len() as f64
            }
        }
    }
}

fn replicas_of(all: &[super::servers::Server], group: &[u32]) -> u32 {
    let wanted = |s: &&u32| matches!(all[**s as usize].life, Life::Starting | Life::Up | Life::Dead);
    group.iter().filter(wanted).count() as u32
}
