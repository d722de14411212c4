//! Fairness, orderings, the detector by what is in flight, and filters and scorers that remember, in a
//! whole kernel.

use crate::common::{Setup, plugin};
use crate::rig::{MS, Rig, full, idle};
use forebay_base::{Nanos, Span};
use forebay_kernel::plan::{BandTemplate, Plan, WeightedScorer};
use forebay_kernel::plugin::{Value, Values};
use forebay_kernel::pool::Load;
use forebay_kernel::{Adapters, Ask, Effect, Id, Progress, Refusal, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;

fn plan(setup: &Setup, change: impl FnOnce(&mut Plan)) -> Arc<Plan> {
    let mut plan = Arc::unwrap_or_clone(setup.plan());
    change(&mut plan);
    Arc::new(plan)
}

/// One band 0, which stops at saturation 1.
fn one_band(change: impl FnOnce(&mut Plan)) -> Rig {
    let setup = Setup { limit: "static-usage-limit-policy", priorities: vec![0], ..Setup::default() };
    Rig::of(plan(&setup, change))
}

fn template(plan: &mut Plan) -> &mut BandTemplate {
    &mut plan.flow.as_mut().unwrap().bands[0].template
}

fn ask(flow: &str, prompt_tokens: u32) -> Ask<'_> {
    Ask { flow, prompt_tokens, bytes: 1, streaming: true, ..Ask::default() }
}

/// Queues these requests behind a full pool, opens it, and tells in which order they leave.
fn order(mut r: Rig, asks: &[(u64, Ask<'_>)]) -> Vec<usize> {
    let e = r.add("a");
    r.scrape(0, e, &full());
    let ids: Vec<Id> = asks.iter().map(|(at, ask)| r.ask(*at, ask)).collect();
    assert!(r.taken().is_empty());
    let start = 20 * MS;
    r.scrape(start, e, &idle());
    let mut out = Vec::new();
    for tick in 1..=asks.len() as u64 + 1 {
        let left = r.ids_after_wake(start + tick * MS);
        out.extend(left.iter().map(|id| ids.iter().position(|i| i == id).unwrap()));
    }
    out
}

#[test]
fn flows_take_turns() {
    let r = one_band(|p| template(p).fairness = plugin("round-robin-fairness-policy", &[]).fairness.unwrap());
    let asks = ["b", "b", "b", "a", "a", "c"].map(|flow| (0, ask(flow, 1)));
    assert_eq!(order(r, &asks), [3, 0, 5, 4, 1, 2]);
}

#[test]
fn deadlines_order_a_flow() {
    let ttl = |ms: u64| Ask { ttl: Some(Span::millis(ms)), ..ask("f", 1) };
    let r = one_band(|p| template(p).ordering = plugin("edf-ordering-policy", &[]).ordering.unwrap());
    // Without a bound of its own a request has the configured minute; a longer one does not count.
    let asks = [(0, ask("f", 1)), (1, ttl(5_000)), (2, ttl(4_000)), (3, ttl(900_000)), (4, ask("f", 1))];
    assert_eq!(order(r, &asks), [2, 1, 0, 3, 4]);
    let slo = |ms: Option<u64>| Ask { slo_ttft: ms.map(Span::millis), ..ask("f", 1) };
    let r =
        one_band(|p| template(p).ordering = plugin("slo-deadline-ordering-policy", &[]).ordering.unwrap());
    let asks =
        [(0, slo(None)), (MS, slo(Some(9))), (2 * MS, slo(Some(7))), (3 * MS, slo(Some(7))), (4, slo(None))];
    assert_eq!(order(r, &asks), [2, 1, 3, 0, 4], "1 and 2 are due at the same time, 2 is not earlier");
}

fn weights(pairs: &[(&str, f64)]) -> Value {
    let weight = |&(id, w): &(&str, f64)| {
        Value::Object(Values(vec![("id", Value::Text(id.into())), ("weight", Value::Float(w))]))
    };
    Value::List(pairs.iter().map(weight).collect())
}

/// Two flows that always have something queued, one place in the pool: served tokens go by weights, also
/// where output is told only at the end, or never by the engine.
#[test]
fn backlogged_flows_share_tokens_by_weight() {
    let mut r = one_band(|p| {
        let fair = plugin("token-fair-policy", &[("weights", weights(&[("gold", 3.0)]))]);
        template(p).fairness = fair.fairness.unwrap();
        assert!(p.counts_output());
        let one = [("maxConcurrency", Value::Int(1))];
        p.detector = plugin("concurrency-detector", &one).detector.unwrap();
    });
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let mut of: BTreeMap<Id, &str> = BTreeMap::new();
    for n in 0..600 {
        // Requests of gold are longer: turns by requests would give it more than tokens do.
        let (flow, prompt) = if n % 2 == 0 { ("gold", 300) } else { ("base", 100) };
        of.insert(r.ask(0, &ask(flow, prompt)), flow);
    }
    let mut served: BTreeMap<&str, f64> = BTreeMap::new();
    let mut running = r.dispatched();
    for n in 0..400u64 {
        let at = Nanos((n + 1) * MS);
        let id = running.pop().expect("the pool has one place, and something waits");
        let flow = of[&id];
        let (prompt, output) = if flow == "gold" { (300.0, 50) } else { (100.0, 20) };
        *served.entry(flow).or_default() += prompt + 2.0 * f64::from(output);
        r.k.progress(at, id, Progress::FirstToken, &mut r.fx);
        let end = match n % 3 {
            // All at the end, some before it, all before it.
            0 => Usage { prompt: None, completion: Some(output) },
            1 => {
                r.k.progress(at, id, Progress::Output(5), &mut r.fx);
                Usage { prompt: None, completion: Some(output) }
            }
            _ => {
                r.k.progress(at, id, Progress::Output(output), &mut r.fx);
                Usage::default()
            }
        };
        r.k.progress(at, id, Progress::Finished(end), &mut r.fx);
        running.extend(r.ids_after_wake((n + 2) * MS));
        assert_eq!(running.len(), 1);
    }
    let ratio = served["gold"] / served["base"];
    assert!((2.9..3.1).contains(&ratio), "{served:?}");
}

#[test]
fn places_that_become_free_are_used_at_the_next_tick() {
    let mut r = one_band(|p| {
        let two = [("maxConcurrency", Value::Int(2))];
        p.detector = plugin("concurrency-detector", &two).detector.unwrap();
    });
    let a = r.add("a");
    let ids: Vec<Id> = (0..4).map(|_| r.ask(0, &ask("f", 10))).collect();
    assert_eq!(r.dispatched(), ids[..2], "no scrape is needed");
    assert_eq!(r.k.saturation().effective, 1.0);
    assert!(r.ids_after_wake(MS).is_empty());
    r.k.progress(Nanos(MS + 1), ids[0], Progress::FirstToken, &mut r.fx);
    assert!(r.ids_after_wake(2 * MS).is_empty(), "a first token frees no place");
    r.k.progress(Nanos(2 * MS + 1), ids[0], Progress::Finished(Usage::default()), &mut r.fx);
    assert_eq!(r.k.next_wake(), Some(Nanos(3 * MS)));
    assert_eq!(r.ids_after_wake(3 * MS), [ids[2]]);
    r.k.gone(Nanos(3 * MS + 1), ids[1], &mut r.fx);
    assert_eq!(r.ids_after_wake(4 * MS), [ids[3]]);
    assert_eq!(r.k.pool().get(a).unwrap().load.requests, 2);
}

#[test]
fn tokens_in_flight_end_with_the_first_token_or_with_the_answer() {
    let load = |estimated: bool| {
        let mut r = one_band(|p| {
            let given = [("addEstimatedOutputTokens", Value::Bool(estimated))];
            p.inflight = plugin("inflight-load-producer", &given).inflight.unwrap();
        });
        let a = r.add("a");
        r.scrape(0, a, &idle());
        let request = Ask { max_output_tokens: Some(40), ..ask("f", 100) };
        let id = r.ask(0, &request);
        let load = |r: &Rig| r.k.pool().get(a).unwrap().load.tokens;
        let mut seen = vec![load(&r)];
        for p in [Progress::FirstToken, Progress::FirstToken, Progress::Finished(Usage::default())] {
            r.k.progress(Nanos(1), id, p, &mut r.fx);
            seen.push(load(&r));
        }
        assert_eq!(r.k.pool().get(a).unwrap().load, Load::default());
        seen
    };
    assert_eq!(load(false), [100, 0, 0, 0]);
    // 150 are estimated, 40 are the client's bound.
    assert_eq!(load(true), [140, 140, 140, 0]);
}

#[test]
fn the_headroom_filter_may_refuse_where_the_mean_let_pass() {
    let mut r = one_band(|p| {
        p.detector = plugin("concurrency-detector", &[("maxConcurrency", Value::Int(2))]).detector.unwrap();
        let one = [("maxConcurrency", Value::Int(1))];
        p.profile.filters = vec![plugin("concurrency-detector", &one).filter.unwrap()];
    });
    r.add("a");
    r.ask(0, &ask("f", 1));
    assert_eq!(r.dispatched().len(), 1);
    r.ask(1, &ask("f", 1));
    assert_eq!(r.refusals(), [Refusal::FilteredOut]);
}

fn endpoints(r: &mut Rig) -> Vec<u32> {
    r.taken()
        .into_iter()
        .filter_map(|e| match e {
            Effect::Dispatch { endpoint, .. } => Some(endpoint.index),
            Effect::End { .. } => None,
        })
        .collect()
}

#[test]
fn what_scorers_and_filters_remember_belongs_to_the_kernel() {
    let mut r = one_band(|p| {
        let session = [("strategy", Value::Text("session_id".into()))];
        p.profile.filters = vec![plugin("session-affinity-filter", &session).filter.unwrap()];
        let scorer = plugin("no-hit-lru-scorer", &[]).scorer.unwrap();
        p.profile.scorers = vec![WeightedScorer { name: "lru".into(), weight: 1.0, scorer }];
    });
    for name in ["a", "b", "c"] {
        let e = r.add(name);
        r.scrape(0, e, &idle());
    }
    let of = |session: &str| Ask { session: session.into(), ..ask("f", 10) };
    for n in 0..4 {
        r.ask(n, &of(""));
    }
    assert_eq!(endpoints(&mut r), [0, 1, 2, 0], "cold work goes round");
    r.ask(5, &of("s"));
    assert_eq!(endpoints(&mut r), [1]);
    let mut fork = Rig { k: r.k.clone(), fx: forebay_kernel::Effects::new() };
    r.ask(6, &of("s"));
    r.ask(7, &of(""));
    assert_eq!(endpoints(&mut r), [1, 2]);
    // The fork remembers the session, and nothing of what came after it.
    fork.ask(6, &of(""));
    fork.ask(7, &of("s"));
    assert_eq!(endpoints(&mut fork), [2, 1]);
}

#[test]
fn adapters_draw_their_requests() {
    let mut r = one_band(|p| {
        let scorer = plugin("lora-affinity-scorer", &[]).scorer.unwrap();
        p.profile.scorers = vec![WeightedScorer { name: "lora".into(), weight: 1.0, scorer }];
    });
    let ids = ["a", "b"].map(|name| r.add(name));
    for e in ids {
        r.scrape(0, e, &idle());
    }
    let adapters = Adapters { running: vec!["x".into()], waiting: Vec::new(), max: 4 };
    r.k.adapters(Nanos(0), ids[1], Arc::new(adapters), &mut r.fx);
    for n in 0..8 {
        r.ask(n, &Ask { model: "x".into(), ..ask("f", 1) });
    }
    assert_eq!(endpoints(&mut r), [1; 8]);
}

#[test]
fn a_request_that_moves_is_charged_once_and_keeps_its_flow() {
    let mut r = one_band(|p| {
        template(p).fairness = plugin("token-fair-policy", &[]).fairness.unwrap();
        p.detector = plugin("concurrency-detector", &[("maxConcurrency", Value::Int(1))]).detector.unwrap();
    });
    let (a, b) = (r.add("a"), r.add("b"));
    let first = r.ask(0, &ask("x", 100));
    let second = r.ask(1, &ask("y", 100));
    // x has 100; y was lifted to that and has 200, and x is lifted to 200 when it queues again.
    let waiting = [r.ask(2, &ask("x", 100)), r.ask(3, &ask("y", 100))];
    let at = |e| if e == 0 { (a, b) } else { (b, a) };
    let (from, to) = at(endpoints(&mut r)[0]);
    r.k.retry(Nanos(4), first, from, &mut r.fx);
    assert_eq!(endpoints(&mut r), [to.index]);
    r.k.progress(Nanos(5), second, Progress::Finished(Usage::default()), &mut r.fx);
    // Charged again, x would have 300 and wait for y; so it is level and has the earlier head.
    assert_eq!(r.ids_after_wake(MS), waiting[..1]);
    r.k.progress(Nanos(MS + 1), first, Progress::Finished(Usage::default()), &mut r.fx);
    assert_eq!(r.ids_after_wake(2 * MS), waiting[1..]);
    assert!(r.k.load_is_consistent());
}
