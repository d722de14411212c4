//! The in-flight signal, the event driver, live routing and the top band's ceiling.

use crate::common::{Hold, Setup, UNTIL_SCRAPE, plugin, sample};
use crate::rig::{MS, Rig, full, idle};
use forebay_base::{Nanos, Span};
use forebay_kernel::plan::Driver;
use forebay_kernel::plugin::Value;
use forebay_kernel::policy::Usage;
use forebay_kernel::{Ask, Effect, Id, Progress, Reading, Sample};
use std::collections::VecDeque;
use std::sync::Arc;

fn inflight() -> Setup {
    Setup {
        limit: "static-usage-limit-policy",
        detector: "inflight-aware-detector",
        driver: Driver::Event,
        ..Setup::default()
    }
}

impl Rig {
    fn stream(&mut self, at: u64, priority: i32) -> Id {
        self.ask(at, &Ask { flow: "f", priority, bytes: 10, streaming: true, ..Ask::default() })
    }
    fn first(&mut self, at: u64, id: Id) {
        self.k.progress(Nanos(at), id, Progress::FirstToken, &mut self.fx);
    }
    fn finish(&mut self, at: u64, id: Id) {
        self.k.progress(Nanos(at), id, Progress::Finished(Usage::default()), &mut self.fx);
    }
    fn effective(&mut self) -> f64 {
        self.k.saturation().effective
    }
}

#[test]
fn a_burst_stops_at_the_threshold_without_any_scrape() {
    let mut r = Rig::new(&inflight());
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let ids: Vec<Id> = (0..20).map(|_| r.stream(1, 0)).collect();
    assert_eq!(r.dispatched(), ids[..5], "five are pending: as full as five waiting");
    assert_eq!(r.effective(), 1.0);
    assert_eq!(
        r.k.next_wake(),
        Some(Nanos(60_000 * MS + 1)),
        "no timer but the TTL: nothing opens by itself"
    );
    // Each first token lets one more through, at once.
    r.first(2, ids[0]);
    assert_eq!(r.dispatched(), ids[5..6]);
    // So does a request that ends without one; a second word about it does nothing.
    r.finish(3, ids[1]);
    r.finish(3, ids[1]);
    r.first(3, ids[0]);
    assert_eq!(r.dispatched(), ids[6..7]);
    assert!(r.k.load_is_consistent());
    assert_eq!(r.k.ledgers().late, 1, "the second end; a second first token is no news about a live request");
}

#[test]
fn what_others_sent_is_what_the_engine_says_beyond_ours() {
    let mut r = Rig::new(&inflight());
    let e = r.add("a");
    r.scrape(0, e, &sample(3.0, 0.0));
    r.stream(10 * MS, 0);
    assert_eq!(r.effective(), 0.8, "three of others, one of ours");
    // Taken before ours was sent: all four are of others.
    r.k.scraped(Nanos(20 * MS), e, Nanos(5 * MS), &sample(4.0, 0.0), &mut r.fx);
    assert_eq!(r.effective(), 1.0);
    // Taken after: one of the four is ours.
    r.k.scraped(Nanos(40 * MS), e, Nanos(30 * MS), &sample(4.0, 0.0), &mut r.fx);
    assert_eq!(r.effective(), 0.8);
    // The engine does not see ours yet: nothing is negative.
    r.k.scraped(Nanos(60 * MS), e, Nanos(50 * MS), &sample(0.0, 0.0), &mut r.fx);
    assert_eq!(r.effective(), 0.2);
}

#[test]
fn prompts_in_flight_count_as_cache_in_use() {
    let mut r = Rig::new(&inflight());
    let e = r.add("a");
    let kv = Sample { blocks: Some(100), ..sample(0.0, 0.4) };
    r.scrape(0, e, &kv);
    let ask = Ask { flow: "f", bytes: 1, prompt_tokens: 400, streaming: true, ..Ask::default() };
    let id = r.ask(1, &ask);
    assert_eq!(r.effective(), (0.4 + 0.25) / 0.8, "400 of 1600 tokens on top of 40 %");
    r.first(2, id);
    assert_eq!(r.effective(), 0.5);
    // Capacity unknown: the scraped term alone. (A block count once told is kept, so this is another one.)
    let mut r = Rig::new(&inflight());
    let e = r.add("a");
    r.scrape(0, e, &Sample { blocks: None, ..kv });
    r.ask(1, &ask);
    assert_eq!(r.effective(), 0.5);
    assert_eq!(r.k.pool().get(e).unwrap().capacity_tokens(), None);
}

#[test]
fn requests_that_do_not_stream_are_pending_for_a_bounded_time() {
    let mut r = Rig::new(&inflight());
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let ids: Vec<Id> = (0..6).map(|_| r.offer(0, 0)).collect();
    assert_eq!(r.dispatched(), ids[..5]);
    // Nothing is known of first tokens here: thirty seconds.
    r.wake(29_999 * MS);
    assert_eq!(r.dispatched(), []);
    r.wake(30_000 * MS);
    assert_eq!(r.dispatched(), ids[5..]);
    // A stream shows its first token after 100 ms: from then on, 200 ms.
    for &id in &ids {
        r.finish(31_000 * MS, id);
    }
    let s = r.stream(31_000 * MS, 0);
    r.first(31_100 * MS, s);
    let mut last = 0;
    for n in 0..6 {
        last = 32_000 * MS + n;
        r.offer(last, 0);
    }
    assert_eq!(r.dispatched().len(), 1 + 5);
    while let Some(t) = r.k.next_wake().filter(|t| t.0 <= 33_000 * MS) {
        r.wake(t.0);
        last = t.0;
        if !r.dispatched().is_empty() {
            break;
        }
    }
    assert!((32_200 * MS..=32_201 * MS).contains(&last), "{last}");
}

#[test]
fn an_open_turn_is_cut_after_64_and_goes_on_at_once() {
    let mut r = Rig::new(&Setup { driver: Driver::Event, ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    for _ in 0..150 {
        r.offer(0, 100);
    }
    assert_eq!(r.dispatched(), []);
    r.scrape(5, e, &idle());
    assert_eq!(r.dispatched().len(), 64);
    assert_eq!(r.k.next_wake(), Some(Nanos(5)));
    r.wake(5);
    assert_eq!(r.dispatched().len(), 64);
    r.wake(5);
    assert_eq!(r.dispatched().len(), 22);
    assert_eq!(r.k.next_wake(), None);
}

/// Half of the tests' point: the share of a gated band depends on time alone.
#[test]
fn a_gated_band_gets_its_share_of_milliseconds_whatever_else_happens() {
    for per_second in [0u64, 1_000, 20_000] {
        // The gate holds what the ceiling lets pass, so that the band is never empty.
        let setup = Setup {
            driver: Driver::Event,
            priorities: vec![100, -50],
            ttl: None,
            no_endpoint_ttl: None,
            gate: Arc::new(Hold),
            ..Setup::default()
        };
        let mut r = Rig::new(&setup);
        for e in [r.add("a"), r.add("b")] {
            r.scrape(0, e, &sample(0.0, 0.6));
        }
        assert!((r.effective() - 0.75).abs() < 1e-9);
        r.offer(0, -50);
        let (mut open, mut now) = (0u32, 0);
        let gap = 1_000_000_000u64.checked_div(per_second).unwrap_or(u64::MAX);
        let mut next_event = gap / 2;
        for ms in 1..=3_000u64 {
            let mut seen_open = false;
            // Everything within this millisecond, in order.
            loop {
                let wake = r.k.next_wake().map_or(u64::MAX, |t| t.0.max(now));
                let at = wake.min(next_event);
                if at >= (ms + 1) * MS {
                    break;
                }
                now = at;
                if at == next_event {
                    r.offer(at, 100);
                    next_event += gap;
                } else {
                    r.wake(at);
                }
                seen_open |= at >= ms * MS && r.k.ceilings()[1] > 0.75;
            }
            open += u32::from(seen_open);
            r.fx.list.clear();
        }
        assert!((990..=1_010).contains(&open), "{open} of 3000 at {per_second} events/s");
    }
}

#[test]
fn nothing_ticks_while_the_policy_cannot_open() {
    let mut r =
        Rig::new(&Setup { driver: Driver::Event, ttl: None, no_endpoint_ttl: None, ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, 0);
    let stale = 3_600_000 * MS;
    assert!(r.k.next_wake().unwrap().0 > stale, "only metrics that turn stale");
}

#[test]
fn the_top_band_may_pass_a_pool_that_is_known_to_be_full() {
    let setup = Setup { top_band_ceiling: Some(2.0), stale_after: Span::millis(200), ..Setup::default() };
    let mut r = Rig::new(&setup);
    let (a, b) = (r.add("a"), r.add("b"));
    r.scrape(0, a, &sample(6.0, 0.0));
    r.scrape(0, b, &sample(6.0, 0.0));
    assert_eq!(r.effective(), 1.2);
    let low = r.offer(1, -50);
    let top = r.offer(2, 100);
    assert_eq!(r.dispatched(), [top], "and nobody else: {low}");
    for e in [a, b] {
        r.scrape(3, e, &sample(10.0, 0.0));
    }
    r.offer(4, 100);
    assert_eq!(r.dispatched(), [], "at its own ceiling it stops, too");
    for e in [a, b] {
        r.scrape(5, e, &sample(6.0, 0.0));
    }
    // One endpoint unseen: what is known amounts to 0.6, so the pool is closed for want of metrics.
    r.scrape(150 * MS, a, &sample(6.0, 0.0));
    r.wake(201 * MS);
    r.taken();
    r.offer(202 * MS, 100);
    assert_eq!(r.k.saturation().stale, 1);
    assert_eq!((r.effective(), r.k.saturation().known), (1.1, 0.6));
    assert_eq!(r.dispatched(), []);
    // Alone, a band has nobody to be above.
    let mut r = Rig::new(&Setup { priorities: vec![0], top_band_ceiling: Some(2.0), ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &sample(6.0, 0.0));
    r.offer(0, 0);
    assert_eq!(r.dispatched(), []);
}

#[test]
fn stale_metrics_are_read_as_the_policy_says() {
    for (detector, policy, unseen, aged) in [
        ("utilization-detector", "closed", 1.0, 1.0),
        ("utilization-detector", "open", 0.0, 0.0),
        ("utilization-detector", "last", 1.0, 0.4),
        ("inflight-aware-detector", "closed", 1.0, 1.0),
        ("inflight-aware-detector", "open", 0.0, 0.2),
        ("inflight-aware-detector", "last", 1.0, 0.6),
    ] {
        let mut plan = Arc::unwrap_or_clone(Setup { flow_control: false, ..Setup::default() }.plan());
        let policy_value = ("metricsStalenessPolicy", Value::Text(policy.into()));
        plan.detector = plugin(detector, &[policy_value]).detector.unwrap();
        let mut r = Rig::of(Arc::new(plan));
        let e = r.add("a");
        assert_eq!(r.effective(), unseen, "{detector} {policy}");
        r.scrape(0, e, &sample(2.0, 0.0));
        assert_eq!(r.effective(), 0.4);
        r.stream(1, 0);
        r.wake(500 * MS);
        assert_eq!(r.effective(), aged, "{detector} {policy}");
        assert_eq!(r.k.saturation().stale, 1, "visible in any case");
    }
}

#[test]
fn live_routing_spreads_what_scraped_values_would_herd() {
    for (live_routing, want) in [(false, [10, 0]), (true, [6, 4])] {
        let mut r = Rig::new(&Setup { live_routing, ..Setup::default() });
        let (a, b) = (r.add("a"), r.add("b"));
        r.scrape(0, a, &sample(0.0, 0.0));
        r.scrape(0, b, &sample(2.0, 0.0));
        let mut sent = [0; 2];
        for n in 0..10 {
            r.stream(n, 100);
            for e in r.taken() {
                if let Effect::Dispatch { endpoint, .. } = e {
                    sent[endpoint.index as usize] += 1;
                }
            }
        }
        assert_eq!(sent, want, "live routing {live_routing}");
    }
}

/// One server of 100 requests a second, metrics every 50 ms and 20 ms old. Others send it 50 a second;
/// the router is offered 100. The engine's queue is to stay under twice the threshold of 5.
#[test]
fn with_half_of_the_traffic_past_the_router_engine_queues_stay_short() {
    let longest = |detector: &'static str| {
        let mut r = Rig::new(&Setup { detector, ..inflight() });
        let e = r.add("a");
        // None is somebody else's.
        let mut queue: VecDeque<Option<Id>> = VecDeque::new();
        let mut serving: Option<Option<Id>> = None;
        let (mut longest, mut seen) = (0, VecDeque::new());
        for ms in 0..20_000u64 {
            let now = ms * MS;
            while let Some(t) = r.k.next_wake().filter(|t| t.0 <= now) {
                r.wake(t.0.max(now));
            }
            if ms % 10 == 0 {
                if let Some(Some(id)) = serving.take() {
                    r.finish(now, id);
                }
                serving = queue.pop_front();
                if let Some(Some(id)) = serving {
                    r.first(now, id);
                }
                r.stream(now, 0);
            }
            if ms % 20 == 7 {
                queue.push_back(None);
            }
            for e in r.taken() {
                if let Effect::Dispatch { id, .. } = e {
                    queue.push_back(Some(id));
                }
            }
            longest = longest.max(queue.len());
            seen.push_back(queue.len() as f64);
            if ms % 50 == 0 {
                let old = if seen.len() > 20 { seen[seen.len() - 21] } else { 0.0 };
                let taken = Nanos(now.saturating_sub(20 * MS));
                r.k.scraped(Nanos(now), e, taken, &sample(old, 0.0), &mut r.fx);
                for e in r.taken() {
                    if let Effect::Dispatch { id, .. } = e {
                        queue.push_back(Some(id));
                    }
                }
            }
        }
        longest
    };
    let with = longest("inflight-aware-detector");
    assert!(with < 10, "{with}");
    let without = longest("utilization-detector");
    assert!(without > 10, "scraped alone overshoots: {without}");
}

#[test]
fn a_missing_waiting_metric_stays_unknown_with_the_signal() {
    let mut r = Rig::new(&inflight());
    let e = r.add("a");
    r.scrape(0, e, &Sample { waiting: Reading::Missing, ..idle() });
    assert_eq!(r.effective(), 1.0);
    r.scrape(1, e, &Sample { waiting: Reading::Disabled, ..idle() });
    r.stream(2, 0);
    assert_eq!(r.effective(), 0.2, "without such a metric, ours are what is known");
}

#[test]
fn until_the_next_scrape_is_less_than_until_the_first_token() {
    let mut r = Rig::new(&Setup { detector: UNTIL_SCRAPE, ..inflight() });
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let early = r.stream(10 * MS, 0);
    r.stream(30 * MS, 0);
    r.offer(31 * MS, 0);
    assert_eq!(r.effective(), 0.6, "three of ours since the last scrape, streaming or not");
    // Taken between them, with a queue of two: these two are all that is known of what was sent before.
    r.k.scraped(Nanos(50 * MS), e, Nanos(20 * MS), &sample(2.0, 0.0), &mut r.fx);
    assert_eq!(r.effective(), 0.8);
    // The engine has not published any of them: the blind spot.
    r.scrape(100 * MS, e, &idle());
    assert_eq!(r.effective(), 0.0);
    assert_eq!(r.k.pool().get(e).unwrap().load.requests, 3);
    r.first(110 * MS, early);
    assert!(r.k.load_is_consistent() && r.k.pool().get(e).unwrap().mean_ttft.is_some());
    // A first token before the scrape ends it, too.
    let id = r.stream(120 * MS, 0);
    assert_eq!(r.effective(), 0.2);
    r.first(130 * MS, id);
    assert_eq!(r.effective(), 0.0);
}

/// Ten requests of the highest band per second, each of 200 tokens and 4 s: 40 at once, and with the
/// margin 46, of some 300 tokens each. A server of 16 000 tokens has no room left for anybody else.
#[test]
fn lower_bands_leave_free_what_the_highest_is_going_to_need() {
    let gate = plugin("kv-reserve-policy", &[]).gate.unwrap();
    let mut r = Rig::new(&Setup { gate, ttl: None, top_band_ceiling: Some(2.0), ..inflight() });
    let e = r.add("a");
    let ask = |priority| Ask {
        flow: "f",
        bytes: 10,
        priority,
        prompt_tokens: 200,
        streaming: true,
        ..Ask::default()
    };
    let usage = Usage { prompt: Some(200), completion: Some(200) };
    let mut running: VecDeque<Id> = VecDeque::new();
    let mut low = Vec::new();
    for tick in 0..600u64 {
        let now = tick * 100 * MS;
        r.scrape(now, e, &sample(0.0, 0.5));
        if running.len() == 40
            && let Some(id) = running.pop_front()
        {
            r.k.progress(Nanos(now), id, Progress::Finished(usage), &mut r.fx);
        }
        let id = r.ask(now, &ask(100));
        assert_eq!(r.dispatched(), [id], "never held");
        r.first(now + MS, id);
        running.push_back(id);
        if tick == 590 {
            low.extend((0..2).map(|_| r.ask(now + 2 * MS, &ask(-50))));
            assert_eq!(r.dispatched(), []);
            let wake = r.k.next_wake();
            assert!(wake.is_none_or(|t| t.0 > now + 100 * MS), "nothing opens by itself: {wake:?}");
        }
    }
    assert_eq!(r.dispatched(), [], "held as long as the others come");
    // A fork remembers the same.
    let mut fork = r.k.clone();
    for (k, fx) in [(&mut r.k, &mut r.fx), (&mut fork, &mut forebay_kernel::Effects::new())] {
        for &id in &running {
            k.progress(Nanos(60_000 * MS), id, Progress::Finished(usage), fx);
        }
        let sent = fx.list.iter().filter(|e| matches!(e, Effect::Dispatch { .. })).count();
        assert_eq!(sent, 1, "a server where nothing runs takes one; the second would eat into the reserve");
    }
}
