//! Bands that come and go, and flows that are forgotten.

use crate::common::Setup;
use crate::rig::{MS, Rig, full, idle};
use forebay_base::Nanos;
use forebay_kernel::policy::Usage;
use forebay_kernel::{Ask, Id, Kernel, Progress, QueueOutcome, Refusal};

fn priorities(k: &Kernel) -> Vec<i32> {
    k.bands().map(|b| b.priority).collect()
}

fn flows(k: &Kernel, priority: i32) -> usize {
    k.bands().find(|b| b.priority == priority).map_or(0, |b| b.flows)
}

#[test]
fn bands_come_and_go_with_what_is_wanted() {
    let mut r = Rig::new(&Setup { priorities: vec![0], ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.k.provision(Nanos(0), &[100, -50], &mut r.fx);
    assert_eq!(priorities(&r.k), [100, 0, -50]);
    let low = r.offer(0, -50);
    assert_eq!(r.k.priority_of(low), Some(-50));
    // Without flows a band goes at once; with a request it stays, and the request is found in it.
    r.k.provision(Nanos(1), &[7], &mut r.fx);
    assert_eq!(priorities(&r.k), [7, 0, -50]);
    r.k.provision(Nanos(2), &[], &mut r.fx);
    assert_eq!(priorities(&r.k), [0, -50]);
    r.wake(60_000 * MS);
    assert_eq!(r.refusals(), [Refusal::Queue(QueueOutcome::EvictedTtl)]);
    // Its flow is forgotten five minutes later; arrivals elsewhere look after it, none tells it so.
    r.scrape(359_999 * MS, e, &idle());
    for n in 0..4 {
        r.offer(359_999 * MS + n, 0);
    }
    assert_eq!(priorities(&r.k), [0, -50]);
    for n in 0..2 {
        r.offer(360_000 * MS + n, 0);
    }
    assert_eq!(priorities(&r.k), [0]);
}

#[test]
fn wanted_again_in_time_a_band_stays() {
    let mut r = Rig::new(&Setup { priorities: vec![0], ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &idle());
    r.k.provision(Nanos(0), &[5], &mut r.fx);
    let served = r.offer(0, 5);
    r.k.gone(Nanos(0), served, &mut r.fx);
    r.k.provision(Nanos(1), &[], &mut r.fx);
    r.k.provision(Nanos(2), &[5], &mut r.fx);
    for n in 0..8 {
        r.offer(400_000 * MS + n, 0);
    }
    assert_eq!(priorities(&r.k), [5, 0]);
    assert_eq!(flows(&r.k, 5), 0);
}

#[test]
fn ceilings_are_those_of_the_bands_at_any_time() {
    let mut r = Rig::new(&Setup { limit: "priority-holdback-policy", ..Setup::default() });
    assert_eq!(r.k.ceilings(), [1.0, 0.75, 0.5]);
    assert_eq!(r.k.nominal_ceilings(), [1.0, 0.75, 0.5]);
    let e = r.add("a");
    r.scrape(0, e, &full());
    r.offer(0, 0);
    // The last cycle knew three bands; the new one in front has what the policy aims at.
    r.k.provision(Nanos(0), &[200], &mut r.fx);
    assert_eq!(priorities(&r.k), [200, 100, 0, -50]);
    assert_eq!(r.k.ceilings(), [1.0, 1.0, 0.75, 0.5]);
    let nominal = r.k.nominal_ceilings();
    assert_eq!((nominal[0], nominal[3], nominal.len()), (1.0, 0.5, 4));
    r.offer(0, 0);
    assert_eq!(r.k.ceilings(), nominal, "this policy emits what it aims at");
    r.k.provision(Nanos(0), &[], &mut r.fx);
    assert_eq!(r.k.ceilings().len(), 3);
    let mut r = Rig::new(&Setup { flow_control: false, ..Setup::default() });
    assert!(r.k.ceilings().is_empty() && r.k.nominal_ceilings().is_empty());
}

/// Offers to `priority` under a name of its own for each.
fn offer_named(r: &mut Rig, at: u64, priority: i32, n: u64) -> Id {
    let flow = format!("flow-{n}");
    r.ask(at, &Ask { flow: &flow, priority, bytes: 1, ..Ask::default() })
}

/// The same, and it is over at once.
fn serve_named(r: &mut Rig, at: u64, priority: i32, n: u64) {
    let id = offer_named(r, at, priority, n);
    r.k.gone(Nanos(at), id, &mut r.fx);
}

#[test]
fn idle_flows_are_forgotten_a_few_per_arrival() {
    let mut r = Rig::new(&Setup::default());
    let e = r.add("a");
    r.scrape(0, e, &idle());
    for n in 0..1_000u64 {
        serve_named(&mut r, n, 100, n);
    }
    assert_eq!(r.dispatched().len(), 1_000);
    assert_eq!(flows(&r.k, 100), 1_000);
    r.scrape(299_000 * MS, e, &idle());
    r.offer(299_000 * MS, 100);
    assert_eq!(flows(&r.k, 100), 1_001, "not yet idle for five minutes");
    let mut known = 1_001;
    for n in 0..300 {
        r.offer(400_000 * MS + n, 100);
        let now = flows(&r.k, 100);
        assert!(known - now <= 8, "no arrival does much: {known} to {now}");
        known = now;
    }
    assert_eq!(known, 1, "the one in use");
}

#[test]
fn flows_of_a_quiet_band_are_forgotten_by_arrivals_elsewhere() {
    let mut r = Rig::new(&Setup::default());
    let e = r.add("a");
    r.scrape(0, e, &idle());
    for n in 0..100u64 {
        serve_named(&mut r, n, -50, n);
    }
    assert_eq!(flows(&r.k, -50), 100);
    for n in 0..75 {
        r.offer(400_000 * MS + n, 100);
    }
    assert_eq!(flows(&r.k, -50), 0);
}

#[test]
fn a_flow_in_use_is_never_forgotten() {
    let mut r = Rig::new(&Setup { ttl: None, ..Setup::default() });
    let e = r.add("a");
    r.scrape(0, e, &idle());
    offer_named(&mut r, 0, 0, 1);
    r.scrape(1, e, &full());
    // Queued again before its look, and waiting for an hour.
    offer_named(&mut r, 1, 0, 1);
    r.scrape(3_000_000 * MS, e, &full());
    for n in 0..12 {
        r.offer(3_000_000 * MS + n, 100);
    }
    assert_eq!(flows(&r.k, 0), 1);
    assert_eq!(r.k.ledgers().queued, 13);
}

#[test]
fn a_flow_whose_request_runs_is_kept_until_five_minutes_after_its_end() {
    let mut r = Rig::new(&Setup::default());
    let e = r.add("a");
    r.scrape(0, e, &idle());
    let id = offer_named(&mut r, 0, -50, 1);
    let visit = |r: &mut Rig, at: u64| {
        r.scrape(at, e, &idle());
        for n in 0..12 {
            serve_named(r, at + n, 100, 0);
        }
        flows(&r.k, -50)
    };
    assert_eq!(visit(&mut r, 1_000_000 * MS), 1);
    r.k.progress(Nanos(1_000_001 * MS), id, Progress::Finished(Usage::default()), &mut r.fx);
    assert_eq!(visit(&mut r, 1_300_000 * MS), 1);
    assert_eq!(visit(&mut r, 1_300_001 * MS), 0);
}
