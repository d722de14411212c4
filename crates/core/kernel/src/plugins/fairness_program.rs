//! `program-aware-fairness`: a fairness id is a program; the flow goes next whose program has attained
//! little service lately and whose head has waited long.
//!
//! Score of a flow with something queued: `ws * (1 - norm(service)) + ww * norm(wait)`, where norm maps the
//! least of those flows to 0 and the greatest to 1, and all to 0.5 if they are equal; the greatest score
//! wins, a tie goes to the earlier head. Service is prompt tokens plus twice the completion tokens, added
//! when a request finishes, and halves every `lasHalfLifeSeconds`. Formula and presets as in llm-d-router.

use crate::plugin::{Bounds, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability};
use crate::policy::{self, Fairness, FairnessPolicy, HeadKey, Usage};
use forebay_base::{Nanos, Span, math};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "program-aware-fairness",
    aliases: &[],
    kinds: &[Kind::FairnessPolicy],
    summary: "Flows of programs that attained little service lately, or wait long, go first.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "strategy",
            kind: ParamKind::Choice(&["las"]),
            preset: Preset::Text("las"),
            unit: "",
            doc: "Least attained service, the only strategy.",
        },
        Param {
            name: "evictionTtlSeconds",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(3600.0),
            unit: "seconds",
            doc: "How long the service of an idle program is remembered; 0 is forever.",
        },
        Param {
            name: "evictionSweepSeconds",
            kind: ParamKind::Float(Bounds::POSITIVE),
            preset: Preset::Float(300.0),
            unit: "seconds",
            doc: "Accepted and not read: what is too old is never used and goes with the next change.",
        },
        Param {
            name: "lasWeightService",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(0.8),
            unit: "",
            doc: "Weight of little attained service.",
        },
        Param {
            name: "lasWeightHeadWait",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(0.2),
            unit: "",
            doc: "Weight of the head's wait.",
        },
        Param {
            name: "lasHalfLifeSeconds",
            kind: ParamKind::Float(Bounds::NON_NEGATIVE),
            preset: Preset::Float(60.0),
            unit: "seconds",
            doc: "Time in which attained service halves; 0 is never.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        let ttl = v.float("evictionTtlSeconds");
        let it = ProgramAware(Settings {
            ttl: if ttl > 0.0 { Span::from_secs_f64(ttl) } else { Span::FOREVER },
            service: v.float("lasWeightService"),
            wait: v.float("lasWeightHeadWait"),
            half_life: v.float("lasHalfLifeSeconds"),
        });
        Ok(Built { fairness: Some(Arc::new(it)), ..Built::default() })
    },
};

#[derive(Clone, Copy, Debug)]
struct Settings {
    ttl: Span,
    service: f64,
    wait: f64,
    half_life: f64,
}

#[derive(Debug)]
struct ProgramAware(Settings);

impl FairnessPolicy for ProgramAware {
    fn start(&self) -> Box<dyn Fairness> {
        Box::new(Programs {
            settings: self.0,
            epoch: Nanos::ZERO,
            flows: Vec::new(),
            queued: Vec::new(),
            idle: Idle::default(),
        })
    }
}

/// Programs without a flow that are remembered at most.
const MAX_IDLE: usize = 65_536;

/// Halvings after which the common scale is moved, well inside of what an f64 can hold.
const RESCALE: f64 = 256.0;

/// What is remembered of a program while it has no flow, too.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Attained service at the epoch's scale: times 2 for every half-life since the epoch. All services
    /// shrink alike, so on this scale none changes with time, and norm is the same.
    service: f64,
    /// Requests sent to an endpoint.
    waits: u64,
    /// Whole milliseconds that they waited, together.
    waited_ms: u64,
}

#[derive(Clone, Debug)]
struct Program {
    name: Arc<str>,
    account: Account,
    /// The last completion, or when the flow was opened.
    used: Nanos,
    head: Option<HeadKey>,
    /// Since when the head waited that is on its way to an endpoint.
    taken: Option<Nanos>,
    /// Place in the list of those with something queued.
    place: usize,
}

#[derive(Clone, Debug)]
struct Programs {
    settings: Settings,
    epoch: Nanos,
    flows: Vec<Option<Program>>,
    /// Flows with something queued, in no order that matters.
    queued: Vec<u32>,
    idle: Idle,
}

/// Accounts of programs whose flow was forgotten.
#[derive(Clone, Debug, Default)]
struct Idle {
    /// By name: account, last use, number of the entry in `order`.
    accounts: BTreeMap<Arc<str>, (Account, Nanos, u64)>,
    order: VecDeque<(u64, Arc<str>)>,
    entries: u64,
}

impl Idle {
    fn put(&mut self, name: Arc<str>, account: Account, used: Nanos) {
        self.entries += 1;
        self.accounts.insert(name.clone(), (account, used, self.entries));
        self.order.push_back((self.entries, name));
    }

    /// Forgets what is too old or too much.
    fn trim(&mut self, now: Nanos, ttl: Span) {
        while let Some((n, name)) = self.order.front() {
            let current = self.accounts.get(name).filter(|s| s.2 == *n);
            if current.is_some_and(|s| now.since(s.1) <= ttl) && self.order.len() <= MAX_IDLE {
                return;
            }
            if current.is_some() {
                self.accounts.remove(name);
            }
            self.order.pop_front();
        }
    }
}

impl Programs {
    /// What a unit of service counts now on the common scale; moves the scale when it grows too far.
    fn scale(&mut self, now: Nanos) -> f64 {
        if self.settings.half_life == 0.0 {
            return 1.0;
        }
        let halvings = now.since(self.epoch).as_secs_f64() / self.settings.half_life;
        if halvings <= RESCALE {
            return math::pow(2.0, halvings);
        }
        let shrink = math::pow(2.0, -halvings);
        self.epoch = now;
        for p in self.flows.iter_mut().flatten() {
            p.account.service *= shrink;
        }
        for a in self.idle.accounts.values_mut() {
            a.0.service *= shrink;
        }
        1.0
    }

    fn get_mut(&mut self, flow: u32) -> Option<&mut Program> {
        self.flows.get_mut(flow as usize)?.as_mut()
    }

    /// Queued programs with their heads.
    fn heads(&self) -> impl Iterator<Item = (u32, &Program, HeadKey)> + '_ {
        self.queued.iter().filter_map(|&flow| {
            let p = self.flows[flow as usize].as_ref()?;
            Some((flow, p, p.head?))
        })
    }
}

/// The least and greatest of some numbers.
#[derive(Clone, Copy)]
struct Range(f64, f64);

impl Range {
    const NONE: Range = Range(f64::INFINITY, f64::NEG_INFINITY);
    fn with(self, x: f64) -> Range {
        Range(self.0.min(x), self.1.max(x))
    }
    fn norm(self, x: f64) -> f64 {
        if self.0 == self.1 { 0.5 } else { (x - self.0) / (self.1 - self.0) }
    }
}

/// Whole milliseconds.
fn whole_ms(span: Span) -> u64 {
    span.0 / 1_000_000
}

fn waited(now: Nanos, head: HeadKey) -> f64 {
    whole_ms(now.since(head.since)) as f64
}

impl Fairness for Programs {
    fn opened(&mut self, now: Nanos, flow: u32, name: &Arc<str>) {
        self.idle.trim(now, self.settings.ttl);
        let account = self.idle.accounts.remove(name);
        let account = account.filter(|a| now.since(a.1) <= self.settings.ttl).map(|a| a.0);
        if flow as usize >= self.flows.len() {
            self.flows.resize(flow as usize + 1, None);
        }
        let account = account.unwrap_or_default();
        let program = Program { name: name.clone(), account, used: now, head: None, taken: None, place: 0 };
        self.flows[flow as usize] = Some(program);
    }
    fn head_changed(&mut self, flow: u32, head: HeadKey) {
        let place = self.queued.len();
        let Some(p) = self.get_mut(flow) else { return };
        if p.head.replace(head).is_none() {
            p.place = place;
            self.queued.push(flow);
        }
    }
    fn emptied(&mut self, flow: u32) {
        let Some(p) = self.get_mut(flow) else { return };
        let place = p.place;
        if p.head.take().is_none() {
            return;
        }
        self.queued.swap_remove(place);
        if let Some(&moved) = self.queued.get(place)
            && let Some(p) = self.get_mut(moved)
        {
            p.place = place;
        }
    }
    fn closed(&mut self, now: Nanos, flow: u32) {
        let Some(p) = self.flows.get_mut(flow as usize).and_then(Option::take) else { return };
        if p.account.service > 0.0 || p.account.waits > 0 {
            self.idle.put(p.name, p.account, p.used);
        }
        self.idle.trim(now, self.settings.ttl);
    }
    fn pick(&self, now: Nanos) -> Option<u32> {
        let (mut service, mut wait) = (Range::NONE, Range::NONE);
        for (_, p, head) in self.heads() {
            service = service.with(p.account.service);
            wait = wait.with(waited(now, head));
        }
        let score = |p: &Program, head: HeadKey| {
            self.settings.service * (1.0 - service.norm(p.account.service))
                + self.settings.wait * wait.norm(waited(now, head))
        };
        let scored = self.heads().map(|(flow, p, head)| (score(p, head), head, flow));
        scored.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, _, flow)| flow)
    }
    fn taken(&mut self, flow: u32) {
        if let Some(p) = self.get_mut(flow) {
            p.taken = p.head.map(|h| h.since);
        }
    }
    fn dispatched(&mut self, now: Nanos, flow: u32, _input: u64) {
        let Some(p) = self.get_mut(flow) else { return };
        if let Some(since) = p.taken.take() {
            p.account.waits += 1;
            p.account.waited_ms += whole_ms(now.since(since));
        }
    }
    fn finished(&mut self, now: Nanos, flow: u32, usage: Usage) {
        let scale = self.scale(now);
        let cost = f64::from(usage.prompt.unwrap_or(0)) + 2.0 * f64::from(usage.completion.unwrap_or(0));
        if let Some(p) = self.get_mut(flow) {
            p.account.service += cost * scale;
            p.used = now;
        }
    }
    fn programs(&self, now: Nanos, tell: &mut dyn FnMut(&Arc<str>, policy::Program)) -> bool {
        let halvings = match self.settings.half_life {
            0.0 => 0.0,
            half_life => now.since(self.epoch).as_secs_f64() / half_life,
        };
        let now_counts = math::pow(2.0, -halvings);
        let mut told = |name: &Arc<str>, a: Account| {
            let (waits, waited_ms) = (a.waits, a.waited_ms);
            tell(name, policy::Program { waits, waited_ms, service: a.service * now_counts });
        };
        for p in self.flows.iter().flatten() {
            told(&p.name, p.account);
        }
        for (name, (account, used, _)) in &self.idle.accounts {
            if now.since(*used) <= self.settings.ttl {
                told(name, *account);
            }
        }
        true
    }
    fn fork(&self) -> Box<dyn Fairness> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::build;
    use super::*;
    use crate::plugin::Value;

    fn at(ms: u64) -> Nanos {
        Nanos::ZERO + Span::millis(ms)
    }

    fn start(given: &[(&'static str, Value)]) -> Box<dyn Fairness> {
        build(&DESCRIPTOR, given).unwrap().fairness.unwrap().start()
    }

    fn queue(p: &mut Box<dyn Fairness>, flow: u32, number: u64, since: Nanos) {
        p.head_changed(flow, HeadKey { key: 0, number, since });
    }

    fn used(prompt: u32, completion: u32) -> Usage {
        Usage { prompt: Some(prompt), completion: Some(completion) }
    }

    #[test]
    fn little_service_outweighs_a_longer_wait() {
        let mut p = start(&[("lasHalfLifeSeconds", Value::Float(0.0))]);
        for (flow, name) in ["a", "b", "c"].iter().enumerate() {
            p.opened(at(0), flow as u32, &(*name).into());
        }
        p.finished(at(0), 0, used(100, 50)); // 200
        p.finished(at(0), 1, used(60, 20)); // 100
        queue(&mut p, 0, 0, at(0));
        queue(&mut p, 1, 1, at(600));
        queue(&mut p, 2, 2, at(1000));
        // At 1 s: a: 0.8 * 0 + 0.2 * 1 = 0.2; b: 0.8 * 0.5 + 0.2 * 0.4 = 0.48; c: 0.8 * 1 + 0 = 0.8.
        assert_eq!(p.pick(at(1000)), Some(2));
        p.emptied(2);
        // Of two: a: 0 + 0.2; b: 0.8 + 0.
        assert_eq!(p.pick(at(1000)), Some(1));
        p.emptied(1);
        assert_eq!(p.pick(at(1000)), Some(0));
        p.emptied(0);
        assert_eq!(p.pick(at(1000)), None);
    }

    #[test]
    fn equal_services_leave_it_to_the_wait_and_ties_to_the_earlier_head() {
        let mut p = start(&[]);
        p.opened(at(0), 0, &"a".into());
        p.opened(at(0), 1, &"b".into());
        queue(&mut p, 0, 7, at(5));
        queue(&mut p, 1, 3, at(4));
        assert_eq!(p.pick(at(10)), Some(1));
        // Less than a millisecond apart is no difference.
        queue(&mut p, 0, 7, Nanos(4_200_000));
        queue(&mut p, 1, 8, Nanos(4_100_000));
        assert_eq!(p.pick(at(5)), Some(0));
    }

    #[test]
    fn service_halves_and_new_service_counts_in_full() {
        let mut p = start(&[("lasWeightHeadWait", Value::Float(0.0))]);
        p.opened(at(0), 0, &"a".into());
        p.opened(at(0), 1, &"b".into());
        p.finished(at(0), 0, used(1000, 0));
        // A minute later a has 500; 499 are less, 501 more.
        p.finished(at(60_000), 1, used(499, 0));
        queue(&mut p, 0, 0, at(60_000));
        queue(&mut p, 1, 1, at(60_000));
        assert_eq!(p.pick(at(60_000)), Some(1));
        p.finished(at(60_000), 1, used(2, 0));
        assert_eq!(p.pick(at(60_000)), Some(0));
        // After very long the scale has moved; what is new counts, what was is gone.
        p.finished(at(60_000 * 2_000), 0, used(1, 0));
        assert_eq!(p.pick(at(60_000 * 2_000)), Some(1));
        p.finished(at(60_000 * 2_000), 1, used(2, 0));
        assert_eq!(p.pick(at(60_000 * 2_000)), Some(0));
    }

    #[test]
    fn a_forgotten_flow_finds_its_service_again_until_it_is_too_old() {
        for (back, want) in [(1_000_000, 1), (3_700_000, 0)] {
            let mut p = start(&[("lasHalfLifeSeconds", Value::Float(0.0))]);
            p.opened(at(0), 0, &"a".into());
            p.finished(at(0), 0, used(10, 0));
            p.closed(at(300_000), 0);
            p.opened(at(back), 1, &"b".into());
            p.opened(at(back), 0, &"a".into());
            queue(&mut p, 0, 0, at(back));
            queue(&mut p, 1, 1, at(back));
            assert_eq!(p.pick(at(back)), Some(want), "back after {back} ms");
        }
    }

    fn told(p: &dyn Fairness, now: Nanos) -> Vec<(String, u64, u64, f64)> {
        let mut all = Vec::new();
        let counts =
            p.programs(now, &mut |name, c| all.push((name.to_string(), c.waits, c.waited_ms, c.service)));
        assert!(counts);
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    #[test]
    fn waits_and_service_are_told_as_they_count_now() {
        let mut p = start(&[]);
        p.opened(at(0), 0, &"a".into());
        p.opened(at(0), 1, &"b".into());
        assert_eq!(told(&*p, at(0)), [("a".into(), 0, 0, 0.0), ("b".into(), 0, 0, 0.0)]);
        // Two requests of a wait 10.9 and 30 ms; a head that is taken and refused does not count.
        for (number, since, sent) in
            [(0, 0, Some(10_900_000)), (1, 5_000_000, Some(35_000_000)), (2, 0, None)]
        {
            queue(&mut p, 0, number, Nanos(since));
            p.taken(0);
            p.emptied(0);
            if let Some(sent) = sent {
                p.dispatched(Nanos(sent), 0, 100);
            }
        }
        p.finished(at(60_000), 0, used(100, 50));
        // A half-life later; the flow's end loses nothing before the time to live.
        p.closed(at(120_000), 0);
        assert_eq!(told(&*p, at(120_000)), [("a".into(), 2, 40, 100.0), ("b".into(), 0, 0, 0.0)]);
        assert_eq!(told(&*p, at(3_660_001)), [("b".into(), 0, 0, 0.0)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut idle = Idle::default();
        for i in 0..MAX_IDLE + 10 {
            idle.put(format!("{i}").into(), Account::default(), at(0));
            idle.trim(at(0), Span::FOREVER);
        }
        assert_eq!((idle.accounts.len(), idle.order.len()), (MAX_IDLE, MAX_IDLE));
        assert!(!idle.accounts.contains_key("9") && idle.accounts.contains_key("10"));
    }
}
