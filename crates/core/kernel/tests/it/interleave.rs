//! Random interleavings: exactly one end per request, ledgers that add up, load that is the sum of what
//! runs, and logs that replay to the same bytes.

use crate::common::{Driven, Hold, Said, Setup, UNTIL_SCRAPE, all_steps, plugin, sample, steps};
use forebay_base::{Nanos, Span};
use forebay_kernel::effect::Effects;
use forebay_kernel::journal::Journal;
use forebay_kernel::plan::Driver;
use forebay_kernel::policy::Usage;
use forebay_kernel::replay::replay;
use forebay_kernel::{Ask, EndpointSpec, Id, Progress};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Journal for Log {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap().line(line);
    }
}

fn run(setup: &Setup, steps: &[crate::common::Step], close: bool) -> (Driven, String) {
    let log = Log::default();
    let fx = Effects { journal: Some(Box::new(log.clone())), ..Effects::new() };
    let mut driven = Driven::new(setup.plan(), fx);
    for step in steps {
        driven.step(step);
        let ledgers = driven.kernel.ledgers();
        assert!(ledgers.balanced(), "{ledgers:?}");
        let (mut requests, mut pending) = (0, 0);
        for e in driven.kernel.pool().iter() {
            requests += u64::from(e.load.requests);
            pending += u64::from(e.load.pending);
            assert!(e.load.pending > 0 || e.load.pending_tokens == 0);
            assert!(e.load.requests > 0 || e.load.tokens == 0);
            assert!(e.load.tokens >= e.load.pending_tokens);
        }
        assert!(pending <= requests && requests <= ledgers.live - ledgers.queued);
        let bands: Vec<_> = driven.kernel.bands().collect();
        assert!(bands.windows(2).all(|w| w[0].priority > w[1].priority));
        assert_eq!(bands.len(), driven.kernel.ceilings().len());
        assert_eq!(bands.iter().map(|b| b.requests).sum::<u64>(), ledgers.queued);
        assert_eq!(
            driven.kernel.queue_totals(),
            (ledgers.queued, bands.iter().map(|b| b.bytes).sum::<u64>())
        );
        assert!(bands.iter().all(|b| b.requests <= b.max_requests && b.bytes <= b.max_bytes));
    }
    if close {
        driven.kernel.drain(driven.now, &mut driven.fx);
        let refused =
            driven.kernel.offer(driven.now, &Ask { flow: "late", ..Ask::default() }, &mut driven.fx);
        driven.ids.push(refused);
        driven.kernel.close(driven.now, &mut driven.fx);
        let at = driven.now;
        for e in driven.fx.list.drain(..) {
            if let forebay_kernel::Effect::End { id, refusal, .. } = e {
                driven.said.push(Said::Ended { at, id, why: refusal.to_string() });
            }
        }
    }
    let text = log.0.lock().unwrap().clone();
    (driven, text)
}

/// Fairness, ordering, detector, and whether the profile remembers.
fn policies() -> impl Strategy<Value = (&'static str, &'static str, &'static str, bool)> {
    (
        prop::sample::select(vec![
            "global-strict-fairness-policy",
            "round-robin-fairness-policy",
            "token-fair-policy",
            "program-aware-fairness",
        ]),
        prop::sample::select(vec![
            "fcfs-ordering-policy",
            "edf-ordering-policy",
            "slo-deadline-ordering-policy",
        ]),
        prop::sample::select(vec![
            "utilization-detector",
            "inflight-aware-detector",
            UNTIL_SCRAPE,
            "concurrency-detector",
        ]),
        any::<bool>(),
    )
}

/// Limits, policies, a gate and an admitter in all combinations.
fn setups() -> impl Strategy<Value = Setup> {
    (
        prop::sample::select(vec![
            "soft-reflective-ceiling-policy",
            "static-usage-limit-policy",
            "priority-holdback-policy",
        ]),
        (prop::sample::select(vec!["open-gate", "hold", "kv-reserve-policy"]), any::<bool>()),
        prop::sample::select(vec![None, Some(6_000u64)]),
        prop::sample::select(vec![2_500u64, 1_000_000_000]),
        prop::sample::select(vec![Span::millis(200), Span::secs(3600)]),
        prop::option::weighted(0.7, Just(Span::secs(2))),
        prop::bool::weighted(0.85),
        (any::<(bool, bool)>(), policies(), prop::sample::select(vec![None, Some(2.0)])),
    )
        .prop_map(
            |(limit, (gate, admitter), max_bytes, band_bytes, stale_after, ttl, flow_control, more)| {
                let ((event, live_routing), (fairness, ordering, detector, remembers), top_band_ceiling) =
                    more;
                Setup {
                    driver: if event { Driver::Event } else { Driver::Upstream },
                    live_routing,
                    fairness,
                    ordering,
                    detector,
                    remembers,
                    top_band_ceiling,
                    limit,
                    gate: match gate {
                        "hold" => Arc::new(Hold),
                        named => plugin(named, &[]).gate.unwrap(),
                    },
                    admitter,
                    max_bytes,
                    band_bytes,
                    stale_after,
                    ttl,
                    flow_control,
                    band_requests: 6,
                    ..Setup::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_request_has_exactly_one_end(steps in all_steps(150), setup in setups()) {
        let (mut driven, _) = run(&setup, &steps, true);
        let mut fate: BTreeMap<Id, (u32, u32)> = BTreeMap::new();
        for said in &driven.said {
            match said {
                Said::Dispatched { id, .. } => fate.entry(*id).or_default().0 += 1,
                Said::Ended { id, .. } => fate.entry(*id).or_default().1 += 1,
            }
        }
        for (id, (dispatched, ended)) in fate {
            // Another time for each retry, the last of which may have ended it.
            let retries = driven.retried.iter().filter(|r| **r == id).count() as u32;
            prop_assert!(ended <= 1);
            prop_assert!(
                dispatched + ended <= 1 + retries,
                "{id:?} was dispatched {dispatched} times and ended {ended} with {retries} retries"
            );
        }
        prop_assert_eq!(driven.kernel.ledgers().queued, 0);
        prop_assert_eq!(driven.kernel.next_wake(), None);
        // Whatever still runs ends once; words that come late or twice change nothing.
        for id in driven.ids.clone() {
            driven.kernel.progress(driven.now, id, Progress::Finished(Usage::default()), &mut driven.fx);
            driven.kernel.gone(driven.now, id, &mut driven.fx);
        }
        let ledgers = driven.kernel.ledgers();
        prop_assert_eq!(ledgers.live, 0);
        prop_assert_eq!(ledgers.accepted, driven.ids.len() as u64);
        prop_assert!(ledgers.balanced());
        prop_assert!(driven.fx.list.is_empty());
        for e in driven.kernel.pool().iter() {
            prop_assert_eq!(e.load, forebay_kernel::pool::Load::default());
        }
    }

    #[test]
    fn logs_replay_to_the_same_bytes(steps in all_steps(150), setup in setups()) {
        let (_, log) = run(&setup, &steps, true);
        let (_, again) = run(&setup, &steps, true);
        prop_assert_eq!(&log, &again, "same seed, same log");
        let report = replay(setup.plan(), &log).unwrap();
        prop_assert_eq!(report.difference, None);
        prop_assert_eq!(report.lines, 1 + report.inputs + report.decisions);
    }

    #[test]
    fn a_fork_decides_as_its_original(steps in steps(80), at in 0usize..80, setup in setups()) {
        let (mut a, _) = run(&setup, &steps[..at.min(steps.len())], false);
        let mut fork = a.kernel.clone();
        let mut fx = Effects::new();
        for n in 0..40u64 {
            let now = a.now + Span::millis(n);
            let ask = Ask { flow: "x", bytes: 10, ..Ask::default() };
            prop_assert_eq!(a.kernel.offer(now, &ask, &mut a.fx), fork.offer(now, &ask, &mut fx));
            prop_assert_eq!(&a.fx.list, &fx.list);
            prop_assert_eq!(a.kernel.next_wake(), fork.next_wake());
        }
    }
}

#[test]
fn a_changed_plan_shows_as_a_difference() {
    let setup = Setup::default();
    let offer = |after| crate::common::Step {
        after,
        what: crate::common::What::Offer { flow: 0, priority: -50, bytes: 5, ttl: None, prefix: 0 },
    };
    let scrape = crate::common::What::Scrape { endpoint: 0, waiting: 3, kv: 0 };
    let mut steps = vec![
        crate::common::Step { after: Span::ZERO, what: crate::common::What::Add { role: "" } },
        crate::common::Step { after: Span::ZERO, what: scrape },
    ];
    steps.extend((0..10).map(|_| offer(Span::ZERO)));
    let (_, log) = run(&setup, &steps, false);
    let other = Setup { limit: "static-usage-limit-policy", ..Setup::default() };
    let difference = replay(other.plan(), &log).unwrap().difference.expect("static lets all through");
    assert!(difference.line > 3, "{difference:?}");
    assert_ne!(difference.logged, difference.replayed);
}

#[test]
fn unreadable_logs_name_the_line() {
    let plan = Setup::default().plan();
    let check = |log: &str, message: &str| {
        let text = replay(plan.clone(), log).unwrap_err().to_string();
        assert!(text.contains(message), "{text}");
    };
    check("", "the log is empty");
    check("something else", "found \"something else\"");
    check("forebay-decisions 1 seed=1 now=0\n> 5 dance", "2:1: found the verb \"dance\"");
    check("forebay-decisions 1 seed=1 now=0\n> x wake", "found \"x\"; expected an instant");
    check("forebay-decisions 1 seed=1 now=0\n> 5 gone 3", "expected INDEX.GENERATION");
    check("forebay-decisions 1 seed=1 now=0\n> 5 gone", "the line ends; expected a request");
    assert_eq!(replay(plan, "forebay-decisions 1 seed=1 now=0\n").unwrap().difference, None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Endpoints turn stale one by one, several within a tick and over many ticks, while the policy counts.
    #[test]
    fn an_outage_in_one_leap_counts_as_one_in_small_steps(
        scrapes in prop::collection::vec((0u64..6_000_000, 0u8..5), 2..12),
        leap in 200_000_000u64..208_000_000,
    ) {
        let setup = Setup { stale_after: Span::millis(200), ..Setup::default() };
        let (mut fine, mut coarse) =
            (Driven::new(setup.plan(), Effects::new()), Driven::new(setup.plan(), Effects::new()));
        let mut scrapes = scrapes.clone();
        scrapes.sort_unstable();
        for d in [&mut fine, &mut coarse] {
            for (n, (at, waiting)) in scrapes.iter().enumerate() {
                let (at, spec) = (Nanos(*at), EndpointSpec::named(format!("e{n}")));
                let e = d.kernel.add_endpoint(d.now, spec, &mut d.fx);
                d.kernel.scraped(at, e, at, &sample(f64::from(*waiting), 0.0), &mut d.fx);
                d.now = at;
            }
        }
        let mut at = fine.now.0;
        while at < leap {
            at = (at + 100_000).min(leap);
            fine.kernel.wake(Nanos(at), &mut fine.fx);
        }
        coarse.kernel.wake(Nanos(leap), &mut coarse.fx);
        prop_assert_eq!(fine.kernel.saturation(), coarse.kernel.saturation());
        // What the policy counted shows in the ticks in which the lowest band may go.
        for d in [&mut fine, &mut coarse] {
            d.now = Nanos(leap);
            let ids: Vec<_> = d.kernel.pool().iter().map(|e| e.id).collect();
            d.kernel.scraped(Nanos(leap), ids[0], Nanos(leap), &sample(4.0, 0.0), &mut d.fx);
            for &id in &ids[1..] {
                d.kernel.remove_endpoint(Nanos(leap), id, &mut d.fx);
            }
            for _ in 0..5 {
                let ask = Ask { flow: "f", priority: -50, bytes: 10, ..Ask::default() };
                d.kernel.offer(Nanos(leap), &ask, &mut d.fx);
            }
            d.until(Nanos(leap + 60_000_000));
        }
        prop_assert!(!fine.said.is_empty());
        prop_assert_eq!(fine.said, coarse.said);
    }
}
