//! Limits that are known in closed form.

use crate::rig::{NO_NETWORK, arrival, cluster, plan, poisson, simulate};
use forebay_base::{Nanos, Span};
use forebay_sim::Options;

/// One engine that runs one sequence at a time is a queue with one server and equal service times: the
/// mean wait is rho / (2 (1 - rho)) services (Pollaczek and Khinchine).
#[test]
fn one_sequence_at_a_time_waits_as_in_m_d_1() {
    let mut cluster = cluster(1, |s| {
        s.max_num_seqs = Some(1);
        s.prefix_caching = false;
    });
    cluster.network = NO_NETWORK;
    // Nothing is held back in the router, so all waiting is in the engine.
    let plan = plan(
        "  - {type: utilization-detector, parameters: {queueDepthThreshold: 1000000, kvCacheUtilThreshold: 1}}",
        "saturationDetector: {pluginRef: utilization-detector}",
    );
    let alone = simulate(&plan, &cluster, vec![arrival(0, Nanos::ZERO, 500, 40)], &Options::new(1));
    let service = alone.rows[0].finished.unwrap().since(alone.rows[0].engine_arrived.unwrap()).as_secs_f64();
    for rho in [0.3, 0.6, 0.8] {
        let n = 40_000;
        let run = simulate(&plan, &cluster, poisson(7, n, rho / service, |_| (500, 40)), &Options::new(1));
        let waits =
            run.rows.iter().map(|r| r.finished.unwrap().since(r.engine_arrived.unwrap()).as_secs_f64());
        let mean = waits.sum::<f64>() / n as f64 - service;
        let want = service * rho / (2.0 * (1.0 - rho));
        // A successor starts up to two steps after its predecessor's end, where the closed form says at once.
        let step = service / 40.0;
        assert!((mean - want).abs() < 0.08 * want + 3.0 * step, "rho {rho}: {mean} against {want}");
    }
}

/// The mean number in the system is the rate times the mean stay (Little).
#[test]
fn numbers_in_the_system_obey_littles_law() {
    let cluster = cluster(2, |_| {});
    let arrivals = poisson(3, 4_000, 12.0, |n| (200 + (n * 37 % 1500) as u32, 50 + (n * 53 % 400) as u32));
    let options = Options { sample: Some(Span::millis(20)), ..Options::new(3) };
    let run = simulate(&plan("", ""), &cluster, arrivals, &options);
    let lasted = run.ended_at.since(Nanos::ZERO).as_secs_f64();
    let stay: f64 = run.rows.iter().map(|r| r.finished.unwrap().since(r.arrived).as_secs_f64()).sum();
    let points = &run.timeline.points;
    let mean = points.iter().map(|p| p.live as f64).sum::<f64>() / points.len() as f64;
    assert!((mean / (stay / lasted) - 1.0).abs() < 0.005, "{mean} against {}", stay / lasted);
}

/// Prompts that exceed what a pool can hold are no reason to lose requests: everything has one end, and a
/// stage never precedes the one before it.
#[test]
fn stages_follow_each_other_and_nothing_is_lost() {
    let cluster = cluster(2, |s| s.num_gpu_blocks_override = Some(800));
    let arrivals = poisson(5, 3_000, 60.0, |n| (100 + (n * 997 % 4000) as u32, 20 + (n * 31 % 700) as u32));
    let run = simulate(&plan("", ""), &cluster, arrivals, &Options::new(5));
    assert!(run.counters.preemptions > 100, "{:?}", run.counters);
    assert_eq!(run.rows.len(), 3_000);
    for (i, r) in run.rows.iter().enumerate() {
        assert_eq!(r.number, i as u64);
        let stages =
            [Some(r.arrived), r.dispatched, r.engine_arrived, r.scheduled, r.first_token, r.finished];
        let stages: Vec<Nanos> = stages.into_iter().map(Option::unwrap).collect();
        assert!(stages.is_sorted(), "{r:?}");
    }
}
