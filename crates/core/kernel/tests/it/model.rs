//! The `upstream` driver against a direct model of llm-d-router's loop that executes every millisecond.
//!
//! The model is written to be obviously right and slow: lists instead of heaps, every tick executed, the
//! policy's count kept by calling it. It follows the documented differences: exact TTLs, no zombies, the
//! exact ratio in the soft-reflective period.

use crate::common::{Driven, Said, Setup, Step, What, steps};
use forebay_base::{Nanos, Span};
use forebay_kernel::{Effects, EndpointId, Id};
use proptest::prelude::*;

struct Item {
    id: Id,
    arrived: Nanos,
    priority: i32,
    bytes: u64,
    ttl: Option<Span>,
}

struct Server {
    id: EndpointId,
    role: &'static str,
    seen: Option<(Nanos, f64)>,
    gone: bool,
}

struct Model {
    setup: Setup,
    ticks: u64,
    policy_ticks: u64,
    queue: Vec<Item>,
    servers: Vec<Server>,
    empty: bool,
    regime_since: Nanos,
    said: Vec<Said>,
}

impl Model {
    fn new(setup: Setup) -> Model {
        Model {
            setup,
            ticks: 0,
            policy_ticks: 0,
            queue: Vec::new(),
            servers: Vec::new(),
            empty: true,
            regime_since: Nanos::ZERO,
            said: Vec::new(),
        }
    }

    fn saturation(&self, now: Nanos) -> f64 {
        let score = |s: &Server| match s.seen {
            Some((at, x)) if now.since(at) <= self.setup.stale_after => x,
            _ => 1.0,
        };
        // Those of both roles count on both sides.
        let mean = |other: &str| {
            let side: Vec<f64> =
                self.servers.iter().filter(|s| !s.gone && s.role != other).map(score).collect();
            (!side.is_empty()).then(|| side.iter().sum::<f64>() / side.len() as f64)
        };
        match (mean(""), mean("prefill")) {
            (Some(a), Some(b)) => a.max(b),
            (a, b) => a.or(b).unwrap_or(1.0),
        }
    }

    fn ceilings(&mut self, s: f64) -> Vec<f64> {
        let n = self.setup.priorities.len();
        if self.setup.limit == "static-usage-limit-policy" {
            return vec![1.0; n];
        }
        let mut open = false;
        if (0.5..1.0).contains(&s) {
            // On paper: the nearest whole number to s / (1 - s), halves up.
            let ratio = s / (1.0 - s);
            let mut period = ratio.floor();
            if ratio - period >= 0.5 - 1e-9 {
                period += 1.0;
            }
            self.policy_ticks += 1;
            open = self.policy_ticks.is_multiple_of((period as u64).max(1));
        }
        (0..n)
            .map(|i| {
                let reflected = 1.0 - i as f64 * s / (n - 1) as f64;
                if i == 0 || s < reflected {
                    1.0
                } else if s >= 1.0 || !open {
                    0.0
                } else {
                    1.0
                }
            })
            .collect()
    }

    fn cycle(&mut self, now: Nanos) {
        let s = self.saturation(now);
        let ceilings = self.ceilings(s);
        for (band, &ceiling) in self.setup.priorities.clone().iter().zip(&ceilings) {
            if s >= ceiling {
                return;
            }
            if let Some(at) = self.queue.iter().position(|i| i.priority == *band) {
                let item = self.queue.remove(at);
                let served = self.servers.iter().any(|e| !e.gone);
                self.said.push(if served {
                    Said::Dispatched { at: now, id: item.id }
                } else {
                    Said::Ended { at: now, id: item.id, why: "NoCandidates".into() }
                });
                return;
            }
        }
    }

    fn deadline(&self, i: &Item) -> Nanos {
        let (ttl, none) = (self.setup.ttl, self.setup.no_endpoint_ttl);
        let waiting = [ttl, i.ttl].into_iter().flatten().min();
        let budget = if self.empty { none } else { waiting };
        let soft = budget.map_or(Nanos::NEVER, |b| i.arrived.max(self.regime_since) + b);
        match (waiting, none) {
            (Some(a), Some(b)) => soft.min(i.arrived + a.max(b) + Span::secs(2)),
            _ => soft,
        }
    }

    fn expire(&mut self, t: Nanos) {
        // In the order of deadlines; ties in the order of the table index, as the kernel's heap has it.
        while let Some((at, _)) = self
            .queue
            .iter()
            .enumerate()
            .map(|(k, i)| (k, (self.deadline(i), i.id.index)))
            .filter(|(_, d)| d.0 <= t)
            .min_by_key(|(_, d)| *d)
        {
            let deadline = self.deadline(&self.queue[at]);
            let i = self.queue.remove(at);
            let why = if self.empty { "EvictedNoEndpoints" } else { "EvictedTTL" };
            self.said.push(Said::Ended { at: deadline, id: i.id, why: why.into() });
        }
    }

    fn until(&mut self, now: Nanos) {
        while (self.ticks + 1) * 1_000_000 <= now.0 {
            self.ticks += 1;
            let t = Nanos(self.ticks * 1_000_000);
            self.expire(t);
            self.cycle(t);
        }
        self.expire(now);
    }

    fn regime(&mut self, now: Nanos) {
        let empty = self.servers.iter().all(|s| s.gone);
        if empty != self.empty {
            self.empty = empty;
            self.regime_since = now;
        }
    }

    fn step(&mut self, now: Nanos, step: &Step, driven: &Driven) {
        match step.what {
            What::Offer { priority, bytes, ttl, .. } => {
                let id = *driven.ids.last().unwrap();
                let priority = if self.setup.priorities.contains(&priority) { priority } else { 0 };
                let all = self.queue.len() as u64;
                let band = self.queue.iter().filter(|i| i.priority == priority).count() as u64;
                if self.setup.max_requests.is_some_and(|m| all + 1 > m) || band + 1 > self.setup.band_requests
                {
                    let why = if self.empty { "RejectedNoEndpoints" } else { "RejectedCapacity" };
                    self.said.push(Said::Ended { at: now, id, why: why.into() });
                    self.cycle(now);
                    return;
                }
                self.queue.push(Item { id, arrived: now, priority, bytes, ttl });
                self.cycle(now);
            }
            What::Gone { which } if !driven.ids.is_empty() => {
                let id = driven.ids[which % driven.ids.len()];
                self.queue.retain(|i| i.id != id);
            }
            What::Scrape { endpoint, waiting, kv } if !driven.endpoints.is_empty() => {
                let id = driven.endpoints[endpoint % driven.endpoints.len()];
                let score = (f64::from(waiting) / 5.0).max(f64::from(kv) / 100.0 / 0.8);
                if let Some(s) = self.servers.iter_mut().find(|s| s.id == id && !s.gone) {
                    s.seen = Some((now, score));
                }
            }
            What::Add { role } => {
                let id = *driven.endpoints.last().unwrap();
                self.servers.push(Server { id, role, seen: None, gone: false });
                // Sums are taken in index order, as the kernel takes them.
                self.servers.sort_by_key(|s| s.id.index);
                self.regime(now);
            }
            What::Remove { endpoint } if !driven.endpoints.is_empty() => {
                let id = driven.endpoints[endpoint % driven.endpoints.len()];
                self.servers.retain(|s| s.id != id);
                self.regime(now);
            }
            _ => {}
        }
        debug_assert!(self.queue.iter().all(|i| i.bytes > 0));
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    (
        prop::sample::select(vec!["soft-reflective-ceiling-policy", "static-usage-limit-policy"]),
        prop::sample::select(vec![Span::millis(200), Span::secs(3600)]),
        prop::sample::select(vec![None, Some(Span::millis(700)), Some(Span::secs(20))]),
        prop::sample::select(vec![None, Some(Span::secs(3)), Some(Span::secs(20))]),
        prop::sample::select(vec![None, Some(4u64)]),
        prop::sample::select(vec![3u64, 5000]),
        prop::sample::select(vec![vec![100, 0, -50], vec![0], vec![100, 0]]),
    )
        .prop_map(
            |(limit, stale_after, ttl, no_endpoint_ttl, max_requests, band_requests, priorities)| Setup {
                limit,
                stale_after,
                ttl,
                no_endpoint_ttl,
                max_requests,
                band_requests,
                priorities,
                ..Setup::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn upstream_driver_equals_the_loop_that_never_rests(setup in setups(), steps in steps(120)) {
        let mut driven = Driven::new(setup.plan(), Effects::new());
        let mut model = Model::new(setup);
        for step in &steps {
            let now = driven.now + step.after;
            model.until(now);
            driven.step(step);
            model.step(now, step, &driven);
            prop_assert_eq!(&driven.said, &model.said);
            driven.said.clear();
            model.said.clear();
        }
        let end = driven.now + Span::secs(100);
        driven.until(end);
        model.until(end);
        prop_assert_eq!(&driven.said, &model.said);
    }
}
