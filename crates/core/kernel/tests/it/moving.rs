//! Endpoints that are out, and requests that move from one endpoint to another.

use crate::common::{Setup, sample};
use crate::rig::Rig;
use forebay_base::{Nanos, Span};
use forebay_kernel::Usage;
use forebay_kernel::effect::{Effect, End, QueueOutcome, may_end};
use forebay_kernel::{EndpointId, Id, Progress, Refusal};

fn to(rig: &mut Rig) -> Vec<(Id, EndpointId)> {
    let dispatch = |e| match e {
        Effect::Dispatch { id, endpoint, .. } => Some((id, endpoint)),
        Effect::End { .. } => None,
    };
    rig.taken().into_iter().filter_map(dispatch).collect()
}

fn two() -> (Rig, EndpointId, EndpointId) {
    let mut rig = Rig::new(&Setup { limit: "static-usage-limit-policy", ..Setup::default() });
    let (a, b) = (rig.add("a"), rig.add("b"));
    rig.scrape(1, a, &sample(0.0, 0.1));
    rig.scrape(1, b, &sample(4.0, 0.1));
    (rig, a, b)
}

#[test]
fn an_endpoint_that_is_out_is_no_candidate_and_weighs_nothing() {
    let (mut rig, a, b) = two();
    let both = rig.k.saturation().effective;
    rig.offer(2, 0);
    assert_eq!(to(&mut rig)[0].1, a, "the emptier one");
    rig.k.set_available(Nanos(3), a, false, &mut rig.fx);
    let alone = rig.k.saturation().effective;
    assert!(alone > both && alone == 0.8, "{alone} after {both}");
    rig.offer(4, 0);
    assert_eq!(to(&mut rig)[0].1, b);
    // What ran there still runs there, and metrics still come.
    assert_eq!(rig.k.pool().get(a).unwrap().load.requests, 1);
    rig.scrape(5, a, &sample(0.0, 0.0));
    assert_eq!(rig.k.saturation().effective, alone);
    rig.k.set_available(Nanos(6), a, true, &mut rig.fx);
    assert!(rig.k.saturation().effective < both);
    // Said twice, nothing changes.
    rig.k.set_available(Nanos(7), a, true, &mut rig.fx);
    assert_eq!(rig.k.pool().len(), 2);
}

#[test]
fn a_pool_of_endpoints_that_are_out_is_an_empty_one() {
    let (mut rig, a, b) = two();
    rig.k.set_available(Nanos(2), a, false, &mut rig.fx);
    rig.k.set_available(Nanos(2), b, false, &mut rig.fx);
    assert!(rig.k.pool().is_empty());
    assert_eq!(rig.k.saturation().effective, 1.0);
    let waiting = rig.offer(3, 0);
    assert!(rig.taken().is_empty());
    // One comes back: the same tick decides as for a pool that has come up.
    rig.k.set_available(Nanos(4), b, true, &mut rig.fx);
    rig.wake(1_000_000);
    assert_eq!(to(&mut rig), [(waiting, b)]);
    // And without one, the budget is that of an empty pool.
    let setup = Setup { no_endpoint_ttl: Some(Span::secs(2)), ..Setup::default() };
    let mut rig = Rig::new(&setup);
    let a = rig.add("a");
    rig.k.set_available(Nanos(0), a, false, &mut rig.fx);
    rig.offer(1, 0);
    rig.wake(2_000_000_001);
    assert_eq!(rig.refusals(), [Refusal::Queue(QueueOutcome::EvictedNoEndpoints)]);
    rig.k.remove_endpoint(Nanos(2_000_000_002), a, &mut rig.fx);
    assert_eq!(rig.k.pool().len(), 0);
}

#[test]
fn a_retry_moves_the_lease_past_the_queue() {
    let (mut rig, a, b) = two();
    let id = rig.offer(2, 0);
    assert_eq!(to(&mut rig), [(id, a)]);
    // The pool is full by now, and others wait: the retry neither queues nor overtakes in the queue.
    rig.scrape(3, a, &sample(9.0, 0.1));
    rig.scrape(3, b, &sample(9.0, 0.1));
    rig.offer(4, 0);
    assert!(rig.taken().is_empty());
    rig.k.retry(Nanos(5), id, a, &mut rig.fx);
    assert_eq!(to(&mut rig), [(id, b)]);
    let load = |rig: &Rig, e| rig.k.pool().get(e).unwrap().load.requests;
    assert_eq!((load(&rig, a), load(&rig, b)), (0, 1));
    let ledgers = rig.k.ledgers();
    assert_eq!((ledgers.entered, ledgers.queued, ledgers.outcomes[0]), (2, 1, 1));
    rig.k.progress(Nanos(6), id, Progress::Finished(Usage::default()), &mut rig.fx);
    assert_eq!(load(&rig, b), 0);
    // Late words do nothing.
    rig.k.retry(Nanos(7), id, b, &mut rig.fx);
    assert!(rig.taken().is_empty() && rig.k.ledgers().balanced());
}

#[test]
fn a_retry_that_has_nowhere_to_go_ends() {
    let mut rig = Rig::new(&Setup { limit: "static-usage-limit-policy", ..Setup::default() });
    let a = rig.add("a");
    rig.scrape(1, a, &sample(0.0, 0.1));
    let id = rig.offer(2, 0);
    assert_eq!(to(&mut rig), [(id, a)]);
    // There is no other, but this one is still good.
    rig.k.retry(Nanos(3), id, a, &mut rig.fx);
    assert_eq!(to(&mut rig), [(id, a)]);
    rig.k.set_available(Nanos(4), a, false, &mut rig.fx);
    rig.k.retry(Nanos(5), id, a, &mut rig.fx);
    assert_eq!(rig.refusals(), [Refusal::NoCandidates]);
    let ledgers = rig.k.ledgers();
    assert_eq!((ledgers.live, ledgers.ended[End::NoCandidates.index()]), (0, 1));
    assert!(ledgers.balanced());
}

#[test]
fn outcomes_and_ends_pair_as_the_table_says() {
    let allowed = |outcome| -> Vec<&str> {
        End::ALL.into_iter().filter(|e| may_end(outcome, *e)).map(End::label).collect()
    };
    assert_eq!(allowed(None).len(), End::ALL.len());
    for outcome in QueueOutcome::ALL {
        let ends = allowed(Some(outcome));
        match outcome {
            QueueOutcome::Dispatched => {
                assert_eq!(ends, ["finished", "failed", "cancelled", "no_candidates", "filtered_out"]);
            }
            QueueOutcome::EvictedContextCancelled => assert_eq!(ends, ["cancelled"]),
            _ => assert_eq!(ends, ["queue"], "{outcome:?}"),
        }
    }
    // A pair that the table rules out does not pass as balanced.
    let mut ledgers = forebay_kernel::Ledgers { accepted: 1, entered: 1, ..Default::default() };
    ledgers.outcomes[QueueOutcome::EvictedTtl.index()] = 1;
    ledgers.ended[End::Queue.index()] = 1;
    ledgers.pairs[QueueOutcome::EvictedTtl.index()][End::Queue.index()] = 1;
    assert!(ledgers.balanced());
    ledgers.pairs[QueueOutcome::EvictedTtl.index()].swap(End::Queue.index(), End::Finished.index());
    ledgers.ended.swap(End::Queue.index(), End::Finished.index());
    assert!(!ledgers.balanced());
}
