//! The edge cases that llm-d-router pins by tests, and those where forebay differs on purpose.

use crate::common::{Hold, Setup, plugin, sample};
use crate::rig::{MS, Rig, full, idle};
use forebay_base::{Nanos, Span};
use forebay_kernel::plan::{Plan, WeightedScorer};
use forebay_kernel::plugin::Value;
use forebay_kernel::policy::Usage;
use forebay_kernel::{Ask, Effect, EndpointSpec, Progress, QueueOutcome, Reading, Refusal, Sample};
use std::sync::Arc;

#[test]
fn landing_on_a_limit_is_accepted_and_one_over_is_not() {
    let mut r = Rig::new(&Setup { band_requests: 2, ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, 0);
    r.offer(0, 0);
    assert_eq!(r.taken(), []);
    r.offer(0, 0);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedCapacity)]);
    // Another band has its own limit.
    r.offer(0, 100);
    assert_eq!(r.taken(), []);
}

#[test]
fn bytes_count_globally_and_zero_is_no_limit() {
    let mut plan = Arc::unwrap_or_clone(Setup::default().plan());
    plan.flow.as_mut().unwrap().max_bytes = Some(100);
    let mut r = Rig::of(Arc::new(plan));
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.ask(0, &Ask { bytes: 100, ..Ask::default() });
    assert_eq!(r.taken(), []);
    r.ask(0, &Ask { bytes: 1, ..Ask::default() });
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedCapacity)]);
    let mut plan = Arc::unwrap_or_clone(Setup::default().plan());
    plan.flow.as_mut().unwrap().max_bytes = Some(0);
    let mut r = Rig::of(Arc::new(plan));
    r.ask(0, &Ask { bytes: 1 << 40, ..Ask::default() });
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedNoEndpoints)], "only the band's limit");
}

#[test]
fn a_full_queue_of_an_empty_pool_says_no_endpoints() {
    let mut r = Rig::new(&Setup { max_requests: Some(1), ..Setup::default() });
    r.offer(0, 0);
    r.offer(0, 0);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedNoEndpoints)]);
}

#[test]
fn a_newcomer_displaces_nothing_even_if_it_outranks() {
    let mut r = Rig::new(&Setup { max_requests: Some(1), ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, -50);
    r.offer(0, 100);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedCapacity)]);
}

#[test]
fn one_request_per_cycle_and_the_highest_band_first() {
    let mut r = Rig::new(&Setup { limit: "static-usage-limit-policy", ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    let low = r.offer(0, -50);
    let mid = r.offer(0, 0);
    let high = r.offer(0, 100);
    assert_eq!(r.taken(), []);
    r.scrape(MS / 2, e, &idle());
    assert_eq!(r.taken(), [], "fresh metrics wake nothing by themselves");
    for (ms, id) in [(1, high), (2, mid), (3, low)] {
        assert_eq!(r.k.next_wake(), Some(Nanos(ms * MS)));
        r.wake(ms * MS);
        assert_eq!(r.dispatched(), [id]);
    }
    assert_eq!(r.k.next_wake(), None, "nothing waits: no timer");
}

#[test]
fn an_empty_band_with_a_low_ceiling_stops_all_below() {
    let mut plan = Arc::unwrap_or_clone(Setup::default().plan());
    let steps = |p, c| {
        Value::Object(forebay_kernel::plugin::Values(vec![
            ("priority", Value::Int(p)),
            ("ceiling", Value::Float(c)),
        ]))
    };
    plan.flow.as_mut().unwrap().limit = plugin(
        "priority-holdback-policy",
        &[
            ("domain", Value::Text("explicit".into())),
            ("ceilings", Value::List(vec![steps(100, 0.3), steps(0, 0.2)])),
        ],
    )
    .limit
    .unwrap();
    let mut r = Rig::of(Arc::new(plan));
    let e = r.add("a");
    r.scrape(0, e, &sample(2.0, 0.0));
    r.offer(0, 0);
    assert_eq!(r.taken(), []);
    // At 0.2 the empty top band is open and band 0 is at its ceiling: closed, because the test is S >= ceiling.
    r.scrape(0, e, &sample(1.0, 0.0));
    r.wake(MS);
    assert_eq!(r.taken(), []);
    r.scrape(MS, e, &sample(0.0, 0.0));
    r.wake(2 * MS);
    assert_eq!(r.dispatched().len(), 1);
}

#[test]
fn unknown_priorities_run_in_band_zero() {
    let mut r = Rig::new(&Setup::default());
    for priority in [7, -3] {
        let id = r.offer(0, priority);
        assert_eq!(r.k.priority_of(id), Some(0));
    }
}

#[test]
fn a_saturated_pool_sheds_at_its_ttl_and_an_empty_one_at_its_own() {
    let setup = Setup { ttl: Some(Span::secs(1)), no_endpoint_ttl: Some(Span::secs(5)), ..Setup::default() };
    let mut r = Rig::new(&setup);
    r.offer(0, 0);
    r.wake(4_999 * MS);
    assert_eq!(r.taken(), []);
    assert_eq!(r.k.next_wake().unwrap().0, 5_000 * MS);
    r.wake(5_000 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedNoEndpoints)]);
    let e = r.k.add_endpoint(Nanos(5_000 * MS), EndpointSpec::named("a"), &mut r.fx);
    r.scrape(5_000 * MS, e, &full());
    r.offer(5_000 * MS, 0);
    r.wake(6_000 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedTtl)]);
}

#[test]
fn a_pool_that_comes_up_grants_a_fresh_budget_up_to_the_backstop() {
    let setup = Setup { ttl: Some(Span::secs(1)), no_endpoint_ttl: Some(Span::secs(2)), ..Setup::default() };
    let mut r = Rig::new(&setup);
    r.offer(0, 0);
    let e = r.k.add_endpoint(Nanos(1_900 * MS), EndpointSpec::named("a"), &mut r.fx);
    assert_eq!(r.k.next_wake().unwrap().0.min(2_900 * MS), 1_901 * MS, "the next tick comes first");
    r.scrape(1_900 * MS, e, &full());
    r.wake(2_899 * MS);
    assert_eq!(r.taken(), []);
    // Flaps: each gives a new budget, the backstop at 2 s + 2 s ends it.
    r.k.remove_endpoint(Nanos(2_899 * MS), e, &mut r.fx);
    r.wake(3_999 * MS);
    assert_eq!(r.taken(), []);
    r.wake(4_000 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedNoEndpoints)]);
}

#[test]
fn a_regime_change_before_the_request_extends_nothing() {
    let setup = Setup { ttl: Some(Span::secs(1)), no_endpoint_ttl: Some(Span::secs(9)), ..Setup::default() };
    let mut r = Rig::new(&setup);
    let e = r.add("a");
    r.scrape(500 * MS, e, &full());
    r.offer(500 * MS, 0);
    r.wake(1_500 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedTtl)]);
}

#[test]
fn a_ttl_of_none_is_forever_and_an_own_ttl_only_shortens() {
    let mut r = Rig::new(&Setup { ttl: None, no_endpoint_ttl: None, ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, 0);
    assert_eq!(r.k.next_wake().map(|t| t.0), Some(3_600_001 * MS), "only the staleness of the scrape");
    r.ask(0, &Ask { ttl: Some(Span::millis(3)), ..Ask::default() });
    r.wake(3 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedTtl)]);
    let mut r = Rig::new(&Setup { ttl: Some(Span::secs(1)), ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.ask(0, &Ask { ttl: Some(Span::secs(30)), ..Ask::default() });
    r.wake(1_000 * MS);
    assert_eq!(r.refusals().len(), 1);
}

#[test]
fn stale_metrics_close_the_gate_exactly_past_the_threshold() {
    let mut r = Rig::new(&Setup {
        limit: "static-usage-limit-policy",
        stale_after: Span::millis(200),
        ..Setup::default()
    });
    let e = r.add("a");
    r.scrape(0, e, &idle());
    r.offer(200 * MS, 0);
    assert_eq!(r.dispatched().len(), 1, "200 ms old is still fresh");
    r.offer(200 * MS + 1, 0);
    assert_eq!(r.taken(), []);
    assert_eq!(r.k.saturation().stale, 1);
    r.scrape(300 * MS, e, &idle());
    r.wake(301 * MS);
    assert_eq!(r.dispatched().len(), 1);
}

#[test]
fn a_missing_metric_is_unknown_and_a_disabled_one_takes_no_part() {
    let mut r = Rig::new(&Setup::default());
    let e = r.add("a");
    for (waiting, kv, want) in [
        (Reading::Value(1.0), Reading::Disabled, 0.2),
        (Reading::Value(1.0), Reading::Missing, 1.0),
        (Reading::Missing, Reading::Value(0.1), 1.0),
        (Reading::Disabled, Reading::Value(0.4), 0.5),
        (Reading::Value(10.0), Reading::Value(0.4), 2.0),
    ] {
        r.scrape(0, e, &Sample { waiting, kv, ..Sample::default() });
        assert_eq!(r.k.saturation().effective, want, "{waiting:?} {kv:?}");
    }
}

#[test]
fn stages_gate_on_the_fuller_side() {
    let mut r = Rig::new(&Setup::default());
    let role =
        |role: &str| EndpointSpec { name: role.into(), labels: vec![("llm-d.ai/role".into(), role.into())] };
    let p = r.k.add_endpoint(Nanos::ZERO, role("prefill"), &mut r.fx);
    let d = r.k.add_endpoint(Nanos::ZERO, role("decode"), &mut r.fx);
    let x = r.k.add_endpoint(Nanos::ZERO, role("encode"), &mut r.fx);
    r.scrape(0, p, &sample(4.0, 0.0));
    r.scrape(0, d, &sample(1.0, 0.0));
    r.scrape(0, x, &sample(50.0, 0.0));
    let s = r.k.saturation();
    assert_eq!((s.prefill, s.decode, s.effective), (Some(0.8), Some(0.2), 0.8));
    r.k.remove_endpoint(Nanos::ZERO, p, &mut r.fx);
    let s = r.k.saturation();
    assert_eq!((s.prefill, s.effective), (None, 0.2));
    r.k.remove_endpoint(Nanos::ZERO, d, &mut r.fx);
    assert_eq!(r.k.saturation().effective, 10.0, "neither stage: all endpoints");
    r.k.remove_endpoint(Nanos::ZERO, x, &mut r.fx);
    assert_eq!(r.k.saturation().effective, 1.0, "an empty pool is saturated");
}

#[test]
fn sheddable_gets_its_share_of_milliseconds_at_three_quarters() {
    let mut r = Rig::new(&Setup { priorities: vec![100, 0], ttl: None, ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &sample(0.0, 0.6));
    assert_eq!(r.k.saturation().effective, 0.6 / 0.8);
    for _ in 0..2_000 {
        r.offer(0, 0);
    }
    r.taken();
    let mut sent = 0;
    let before = r.k.cycles();
    while let Some(now) = r.k.next_wake().map(|t| t.0).filter(|&t| t <= 3_000 * MS) {
        r.wake(now);
        sent += r.dispatched().len();
    }
    assert_eq!(sent, 1_000, "every third tick");
    // Closed ticks are counted, not executed.
    assert!(r.k.cycles() - before <= 2 * 1_000 + 2, "{}", r.k.cycles() - before);
}

#[test]
fn idle_ticks_move_the_policy_without_being_executed() {
    let mut r = Rig::new(&Setup { priorities: vec![100, 0], ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &sample(0.0, 0.6));
    // Period 3. After 3n + 1 idle ticks an arrival is cycle 3n + 2: closed; after 3n + 2 it is open.
    r.offer(3_001 * MS, 0);
    assert_eq!(r.taken(), []);
    let id = r.ids_after_wake(3_002 * MS);
    assert_eq!(id.len(), 1);
    assert_eq!(r.k.cycles(), 2);
}

#[test]
fn a_late_timer_is_one_cycle() {
    let mut r = Rig::new(&Setup { limit: "static-usage-limit-policy", ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    for _ in 0..5 {
        r.offer(0, 0);
    }
    r.scrape(0, e, &idle());
    r.wake(40 * MS);
    assert_eq!(r.dispatched().len(), 1, "39 missed ticks are no burst");
    assert_eq!(r.k.next_wake(), Some(Nanos(41 * MS)));
}

#[test]
fn endpoints_that_come_back_under_their_name_keep_clean_counters() {
    let mut r = Rig::new(&Setup::default());
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let id = r.offer(0, 0);
    assert_eq!(r.k.pool().get(e).unwrap().load.requests, 1);
    r.k.remove_endpoint(Nanos(1), e, &mut r.fx);
    let again = r.k.add_endpoint(Nanos(2), EndpointSpec::named("a"), &mut r.fx);
    r.k.progress(Nanos(3), id, Progress::FirstToken, &mut r.fx);
    r.k.progress(Nanos(3), id, Progress::Finished(Usage::default()), &mut r.fx);
    assert_eq!(r.k.pool().get(again).unwrap().load, forebay_kernel::pool::Load::default());
    assert!(r.k.ledgers().balanced());
}

#[test]
fn without_flow_control_only_sheddable_is_refused() {
    let mut r = Rig::new(&Setup { flow_control: false, ..Setup::default() });
    r.offer(0, 0);
    assert_eq!(r.refusals(), [Refusal::NoCandidates], "an empty pool fails at once");
    r.offer(0, -1);
    assert_eq!(r.refusals(), [Refusal::NoCandidates]);
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, -1);
    assert_eq!(r.refusals(), [Refusal::Shed]);
    r.offer(0, 0);
    assert_eq!(r.dispatched().len(), 1);
    r.scrape(0, e, &idle());
    r.offer(0, -1);
    assert_eq!(r.dispatched().len(), 1);
    assert_eq!(r.k.next_wake(), None);
}

#[test]
fn the_gate_narrows_or_holds_the_head() {
    let mut r = Rig::new(&Setup { gate: Arc::new(Hold), ..Setup::default() });
    let (a, b) = (r.add("a"), r.add("b"));
    r.scrape(0, a, &idle());
    r.scrape(0, b, &idle());
    let held = r.offer(0, -50);
    assert_eq!(r.taken(), []);
    assert_eq!(r.k.next_wake(), Some(Nanos(MS)), "a held head is asked again each tick");
    for _ in 0..8 {
        r.offer(0, 0);
    }
    let to: Vec<_> = r
        .taken()
        .into_iter()
        .map(|e| match e {
            Effect::Dispatch { endpoint, .. } => endpoint,
            Effect::End { .. } => panic!("nothing ends"),
        })
        .collect();
    assert_eq!(to, [b; 8]);
    r.k.gone(Nanos(1), held, &mut r.fx);
    assert_eq!(r.k.ledgers().queued, 0);
}

#[test]
fn scorers_and_pickers_do_what_their_tables_say() {
    let build = |scorers: &[(&str, f64)], picker: &str| {
        let mut plan = Arc::unwrap_or_clone(Setup::default().plan());
        plan.profile.scorers = scorers
            .iter()
            .map(|&(name, weight)| WeightedScorer {
                name: name.into(),
                weight,
                scorer: plugin(name, &[]).scorer.unwrap(),
            })
            .collect();
        plan.profile.picker = plugin(picker, &[]).picker.unwrap();
        Arc::new(plan)
    };
    let share = |plan: Arc<Plan>, samples: [Sample; 3]| {
        let mut r = Rig::of(plan);
        let ids = ["a", "b", "c"].map(|n| r.add(n));
        for (e, s) in ids.iter().zip(&samples) {
            r.scrape(0, *e, s);
        }
        let mut n = [0u32; 3];
        for _ in 0..3_000 {
            r.offer(0, 100);
            for e in r.taken() {
                if let Effect::Dispatch { endpoint, .. } = e {
                    n[endpoint.index as usize] += 1;
                }
            }
        }
        n
    };
    let uneven = [sample(0.0, 0.7), sample(1.0, 0.1), sample(2.0, 0.4)];
    assert_eq!(share(build(&[("queue-scorer", 1.0)], "max-score-picker"), uneven), [3_000, 0, 0]);
    assert_eq!(
        share(build(&[("kv-cache-utilization-scorer", 1.0)], "max-score-picker"), uneven),
        [0, 3_000, 0]
    );
    let even = share(build(&[("running-requests-size-scorer", 1.0)], "max-score-picker"), uneven);
    assert!(even.iter().all(|n| (850..1_150).contains(n)), "ties are drawn: {even:?}");
    let any = share(build(&[("queue-scorer", 1.0)], "random-picker"), uneven);
    assert!(any.iter().all(|n| (850..1_150).contains(n)), "scores do not matter: {any:?}");
    // Scores 0.3, 0.9, 0.6.
    let weighted = share(build(&[("kv-cache-utilization-scorer", 1.0)], "weighted-random-picker"), uneven);
    for (n, want) in weighted.iter().zip([500, 1_500, 1_000]) {
        assert!(n.abs_diff(want) < 120, "in proportion: {weighted:?}");
    }
    // A negative weight turns a preference around; an unknown metric scores 0.
    assert_eq!(share(build(&[("queue-scorer", -1.0)], "max-score-picker"), uneven), [0, 0, 3_000]);
    let mut missing = uneven;
    missing[0].waiting = Reading::Missing;
    let n = share(build(&[("queue-scorer", 1.0)], "max-score-picker"), missing);
    assert_eq!(n[0], 0, "{n:?}");
}

#[test]
fn the_prefix_index_draws_repeated_prompts_to_one_endpoint() {
    let mut r = Rig::new(&Setup::default());
    let ids = ["a", "b"].map(|n| r.add(n));
    for e in ids {
        r.scrape(0, e, &idle());
    }
    let prefix: Arc<[u64]> = (10..20).collect();
    let mut first = None;
    for n in 0..20u64 {
        let prompt_tokens = 640;
        r.ask(n, &Ask { prefix: prefix.clone(), prompt_tokens, block_tokens: 64, ..Ask::default() });
        for e in r.taken() {
            let Effect::Dispatch { endpoint, matched_tokens, .. } = e else { panic!("nothing ends") };
            match first {
                None => {
                    assert_eq!(matched_tokens, 0);
                    first = Some(endpoint);
                }
                Some(f) => assert_eq!((endpoint, matched_tokens), (f, 640)),
            }
        }
    }
    assert!(r.k.index_bytes() > 0 && r.k.index_blocks() > 0);
    assert_eq!(r.k.block_tokens(), 64, "engines' 16 is floored");
}

#[test]
fn closing_ends_what_is_queued_and_refuses_what_comes() {
    let mut r = Rig::new(&Setup::default());
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, 0);
    r.offer(0, -50);
    r.k.drain(Nanos(1), &mut r.fx);
    assert_eq!(r.taken(), [], "what is queued goes on");
    r.offer(2, 0);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedOther)]);
    r.k.close(Nanos(3), &mut r.fx);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedOther); 2]);
    assert_eq!(r.k.ledgers().live, 0);
}

#[test]
fn a_refused_arrival_is_a_cycle_as_any_other() {
    let mut r = Rig::new(&Setup {
        limit: "static-usage-limit-policy",
        max_requests: Some(2),
        band_bytes: 100,
        ..Setup::default()
    });
    let e = r.add("a");
    r.scrape(0, e, &full());
    let waiting = r.offer(0, 0);
    r.offer(0, 0);
    r.scrape(0, e, &idle());
    r.offer(0, 0);
    let said = r.taken();
    assert!(matches!(said[0], Effect::End { refusal: Refusal::Queue(QueueOutcome::RejectedCapacity), .. }));
    assert!(matches!(said[1], Effect::Dispatch { id, .. } if id == waiting), "{said:?}");
    assert_eq!((said.len(), r.k.cycles()), (2, 3));
    // Also with nothing queued: the policy counts it.
    r.wake(MS);
    r.taken();
    let before = r.k.cycles();
    r.ask(MS, &Ask { bytes: 101, ..Ask::default() });
    assert_eq!(r.k.cycles(), before + 1);
    assert_eq!(r.k.next_wake(), None);
    // A router that shuts down decides nothing for those it turns away.
    r.k.drain(Nanos(MS), &mut r.fx);
    r.offer(MS, 0);
    assert_eq!(r.k.cycles(), before + 1);
}

#[test]
fn admitters_stand_before_the_queue_and_draining_before_them() {
    let mut r = Rig::new(&Setup { admitter: true, ..Setup::default() });
    r.offer(0, -50);
    assert_eq!((r.taken(), r.k.ledgers().queued), (vec![], 1), "an empty pool admits and queues");
    let e = r.add("a");
    r.scrape(0, e, &full());
    let entered = r.k.ledgers().entered;
    r.offer(0, -50);
    assert_eq!(r.refusals(), [Refusal::Denied]);
    assert_eq!(r.k.ledgers().entered, entered, "it never reached the queue");
    r.offer(0, 0);
    assert_eq!(r.taken(), [], "others wait");
    r.k.drain(Nanos(0), &mut r.fx);
    r.offer(0, -50);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedOther)]);
    let mut r = Rig::new(&Setup { admitter: true, flow_control: false, ..Setup::default() });
    r.add("a");
    r.offer(0, -50);
    assert_eq!(r.refusals(), [Refusal::Denied], "an endpoint that nobody has seen counts as saturated");
    r.k.drain(Nanos(0), &mut r.fx);
    r.offer(0, -50);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedOther)]);
}

#[test]
fn an_own_ttl_of_zero_is_none_and_an_empty_pool_ignores_it() {
    let own = |ttl| Ask { ttl: Some(ttl), ..Ask::default() };
    let mut r = Rig::new(&Setup { ttl: None, no_endpoint_ttl: Some(Span::secs(3)), ..Setup::default() });
    r.ask(0, &own(Span::secs(1)));
    r.wake(2_999 * MS);
    assert_eq!(r.taken(), [], "no endpoints: their budget counts");
    r.wake(3_000 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedNoEndpoints)]);
    let e = r.k.add_endpoint(Nanos(3_000 * MS), EndpointSpec::named("a"), &mut r.fx);
    r.scrape(3_000 * MS, e, &full());
    r.ask(3_000 * MS, &own(Span::ZERO));
    r.wake(100_000 * MS);
    assert_eq!(r.taken(), [], "no TTL at all");
}

#[test]
fn an_own_ttl_takes_part_in_the_backstop() {
    // The pool flaps each second, so that every budget starts anew; max(1 s, 3 s) + 2 s ends it.
    for (ttl, own, ends) in [
        (None, Some(1), Some(5)),
        (Some(20), Some(1), Some(5)),
        (Some(20), None, Some(22)),
        (None, None, None),
    ] {
        let setup =
            Setup { ttl: ttl.map(Span::secs), no_endpoint_ttl: Some(Span::secs(3)), ..Setup::default() };
        let mut r = Rig::new(&setup);
        r.ask(0, &Ask { ttl: own.map(Span::secs), ..Ask::default() });
        let mut ended = None;
        let mut e = None;
        for half in 0..60u64 {
            let at = half * 500 * MS;
            match e.take() {
                None => e = Some(r.k.add_endpoint(Nanos(at), EndpointSpec::named("a"), &mut r.fx)),
                Some(e) => r.k.remove_endpoint(Nanos(at), e, &mut r.fx),
            }
            if !r.taken().is_empty() {
                ended = ended.or(Some(half / 2));
            }
        }
        assert_eq!(ended, ends, "{ttl:?} {own:?}");
    }
}

#[test]
fn what_a_scrape_leaves_out_or_brings_late_changes_nothing_known() {
    let mut r = Rig::new(&Setup::default());
    let (a, b) = (r.add("a"), r.add("b"));
    r.scrape(0, b, &Sample { block_tokens: Some(512), ..idle() });
    assert_eq!(r.k.block_tokens(), 512, "the first that reports one");
    r.scrape(5, a, &Sample { block_tokens: Some(128), blocks: Some(9), ..idle() });
    assert_eq!(r.k.block_tokens(), 128, "by index, not by time");
    r.scrape(6, a, &Sample { block_tokens: None, blocks: Some(0), ..full() });
    let seen = r.k.pool().get(a).unwrap().sample.unwrap();
    assert_eq!((seen.block_tokens, seen.blocks, seen.waiting), (Some(128), Some(9), Reading::Value(5.0)));
    r.k.scraped(Nanos(9), a, Nanos(4), &idle(), &mut r.fx);
    assert_eq!(r.k.pool().get(a).unwrap().sample, Some(seen), "taken before the last one");
    r.k.scraped(Nanos(9), a, Nanos(6), &idle(), &mut r.fx);
    assert_eq!(
        r.k.pool().get(a).unwrap().sample.unwrap().waiting,
        Reading::Value(0.0),
        "as old is new enough"
    );
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let kv = Reading::Value(bad);
        r.scrape(10, a, &Sample { kv, ..idle() });
        assert_eq!(r.k.pool().get(a).unwrap().sample.unwrap().kv, Reading::Missing, "{bad}");
        assert_eq!(r.k.saturation().effective, 0.5, "missing counts as 1 in the mean of two");
    }
}

#[test]
fn matched_tokens_count_in_the_blocks_that_were_hashed() {
    let mut r = Rig::new(&Setup { limit: "static-usage-limit-policy", ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let ask = Ask {
        prefix: (10..14).collect(),
        prompt_tokens: 10_000,
        block_tokens: r.k.block_tokens(),
        ..Ask::default()
    };
    r.ask(0, &ask);
    r.scrape(0, e, &full());
    r.taken();
    r.ask(0, &ask);
    // The block size changes while the second one waits: its hashes are still of the old one.
    r.scrape(0, e, &Sample { block_tokens: Some(256), ..idle() });
    assert_eq!(r.k.block_tokens(), 256);
    r.wake(MS);
    let said = r.taken();
    assert!(matches!(said[..], [Effect::Dispatch { matched_tokens: 256, .. }]), "{said:?}");
    r.k.remove_endpoint(Nanos(MS), e, &mut r.fx);
    assert_eq!((r.k.index_bytes(), r.k.index_blocks()), (0, 0), "what was sent to an endpoint goes with it");
}

#[test]
fn endpoints_of_both_roles_count_on_both_sides() {
    let mut r = Rig::new(&Setup::default());
    let mut add = |name: &str, role: &str, waiting: f64| {
        let labels = vec![("llm-d.ai/role".into(), role.into())];
        let id = r.k.add_endpoint(Nanos::ZERO, EndpointSpec { name: name.into(), labels }, &mut r.fx);
        r.scrape(0, id, &sample(waiting, 0.0));
    };
    add("p", "prefill", 4.0);
    add("x", "both", 2.0);
    add("y", "prefill-decode", 0.0);
    let s = r.k.saturation();
    assert_eq!((s.prefill, s.decode), (Some((0.8 + 0.4 + 0.0) / 3.0), Some(0.2)));
    assert_eq!(Some(s.effective), s.prefill);
}

#[test]
fn only_the_best_of_several_picked_endpoints_is_used() {
    for picker in ["max-score-picker", "random-picker", "weighted-random-picker"] {
        let mut plan = Arc::unwrap_or_clone(Setup::default().plan());
        plan.profile.picker = plugin(picker, &[("maxNumOfEndpoints", Value::Int(3))]).picker.unwrap();
        let mut r = Rig::of(Arc::new(plan));
        let ids = ["a", "b", "c"].map(|n| r.add(n));
        for (e, waiting) in ids.iter().zip([2.0, 0.0, 1.0]) {
            r.scrape(0, *e, &sample(waiting, 0.0));
        }
        r.offer(0, 100);
        let said = r.taken();
        let [Effect::Dispatch { endpoint, .. }] = said[..] else { panic!("{picker}: {said:?}") };
        assert!(picker != "max-score-picker" || endpoint == ids[1]);
        let loads: u32 = r.k.pool().iter().map(|e| e.load.requests).sum();
        assert_eq!(loads, 1, "{picker}");
    }
}

#[test]
fn a_metric_that_the_engine_lacks_weighs_nothing_in_scores() {
    for (scorer, without) in [
        ("queue-scorer", Sample { waiting: Reading::Disabled, ..sample(0.0, 0.5) }),
        ("kv-cache-utilization-scorer", Sample { kv: Reading::Disabled, ..sample(3.0, 0.0) }),
        ("running-requests-size-scorer", Sample { running: Reading::Disabled, ..sample(3.0, 0.0) }),
    ] {
        let mut plan = Arc::unwrap_or_clone(Setup::default().plan());
        plan.profile.scorers = vec![WeightedScorer {
            name: scorer.into(),
            weight: 1.0,
            scorer: plugin(scorer, &[]).scorer.unwrap(),
        }];
        let mut r = Rig::of(Arc::new(plan));
        let (with, lacking) = (r.add("with"), r.add("lacking"));
        r.add("never scraped");
        r.scrape(0, with, &sample(1.0, 0.5));
        r.scrape(0, lacking, &without);
        for _ in 0..20 {
            r.offer(0, 100);
        }
        for e in r.taken() {
            assert!(matches!(e, Effect::Dispatch { endpoint, .. } if endpoint == lacking), "{scorer}: {e:?}");
        }
    }
}

#[test]
fn a_cancelled_request_gives_its_room_back_at_once() {
    let mut r = Rig::new(&Setup { max_requests: Some(2), max_bytes: Some(25), ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    let first = r.offer(0, 0);
    r.offer(0, -50);
    r.offer(0, 0);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::RejectedCapacity)]);
    r.k.gone(Nanos(0), first, &mut r.fx);
    assert_eq!(r.k.queue_totals(), (1, 10));
    r.offer(0, 0);
    assert_eq!(r.taken(), [], "accepted in the same instant");
    assert_eq!(r.k.queue_totals(), (2, 20));
}
