//! Drains, slow starts, scaling.

use crate::rig::{NO_NETWORK, arrival, cluster, plan, poisson, simulate};
use forebay_base::{Nanos, Span};
use forebay_engine::StepMode;
use forebay_records::{End, Row};
use forebay_sim::{Change, Cluster, Incident, Options, Run};

fn at(seconds: u64) -> Nanos {
    Nanos::ZERO + Span::secs(seconds)
}

/// A pool of qwen3-14b on H100 with what `more` says of it.
fn pool(count: u32, start: &str, more: &str) -> Cluster {
    let text = format!(
        "version: 1
engines:
  - {{name: pool, count: {count}, model: qwen3-14b, hardware: h100, args: {{max-num-seqs: 256, max-num-batched-tokens: 2048}}, {start}}}
{more}"
    );
    Cluster::read(&text, "test").unwrap()
}

/// Dispatches to a server by the second they were made in.
fn seconds_of(run: &Run, server: u32) -> Vec<u64> {
    let of = |r: &&Row| r.endpoint == Some(server);
    run.rows.iter().filter(of).filter_map(|r| r.dispatched).map(|d| d.0 / 1_000_000_000).collect()
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn a_server_that_drains_finishes_what_it_has_and_is_held_so_long() {
    let mut c = cluster(2, |_| {});
    c.incidents = vec![Incident { at: at(10), server: 1, change: Change::Drain }];
    let run = simulate(&plan("", ""), &c, poisson(6, 400, 10.0, |_| (800, 400)), &Options::new(6));
    assert!(run.rows.iter().all(|r| r.end == End::Finished));
    let to = seconds_of(&run, 1);
    assert!(to.len() > 20 && to.iter().all(|s| *s < 10), "{to:?}");
    // Held until the step in which its last request ended; the answer takes a millisecond more.
    let last = run.rows.iter().filter(|r| r.endpoint == Some(1)).filter_map(|r| r.finished).max().unwrap();
    assert!(last > at(12));
    let gone = last.0 - c.network.to_client.0;
    let used = &run.scaling.groups[0];
    assert_eq!(used.held_ns, run.ended_at.0 + gone);
    assert_eq!((used.gpu_ns, used.first, used.range, used.last), (used.held_ns, 2, (1, 2), 1));
}

#[test]
fn what_is_left_after_the_grace_fails() {
    let c = pool(2, "grace: 2s", "timeline: [{at: 10s, engine: pool-1, change: drain}]");
    let run = simulate(&plan("", ""), &c, poisson(6, 400, 10.0, |_| (800, 400)), &Options::new(6));
    let failed: Vec<&Row> = run.rows.iter().filter(|r| r.end == End::Failed).collect();
    assert!(failed.len() > 5);
    for r in failed {
        assert_eq!((r.endpoint, r.finished), (Some(1), Some(at(12) + c.network.to_client)));
    }
    assert_eq!(run.scaling.groups[0].held_ns, run.ended_at.0 + 12 * SECOND);
}

#[test]
fn a_cold_start_takes_its_time_and_a_warm_up_makes_steps_longer() {
    let start = "start: {cold: 5s, warmup: 10s, slowdown: 2}";
    let mut c = pool(1, start, "timeline: [{at: 0s, engine: pool-0, change: join}]");
    c.network = NO_NETWORK;
    let arrivals = vec![arrival(0, at(1), 500, 50), arrival(1, at(8), 500, 50), arrival(2, at(20), 500, 50)];
    let plan = plan("", "noEndpointRequestTTL: 0s");
    let run = simulate(&plan, &c, arrivals.clone(), &Options::new(1));
    let [first, second, third] = &run.rows[..] else { panic!("{:?}", run.rows) };
    // With the router's next cycle.
    assert_eq!(first.dispatched, Some(at(5) + Span::millis(1)));
    let tokens = |r: &Row| r.finished.unwrap().since(r.first_token.unwrap()).0;
    let (slow, full) = (tokens(second), tokens(third));
    assert!(slow.abs_diff(2 * full) <= 2, "{slow} {full}");
    assert_eq!(run.scaling.groups[0].starting_ns, 5 * SECOND);
    // The same in the other step mode, though the pace changes in the middle of an answer.
    let long = || vec![arrival(0, at(1), 500, 3_000), arrival(1, at(6), 500, 3_000)];
    let go = |steps| simulate(&plan, &c, long(), &Options { steps, ..Options::new(1) }).rows;
    assert_eq!(go(StepMode::Exact), go(StepMode::Macro));
}

#[test]
fn a_timeline_scales_out_and_in() {
    let timeline = "timeline: [{at: 10s, scale: pool, by: 2}, {at: 40s, scale: pool, to: 1}]";
    let c = pool(1, "start: {cold: 5s}", timeline);
    let run = simulate(&plan("", ""), &c, poisson(6, 600, 10.0, |_| (400, 100)), &Options::new(6));
    assert!(run.rows.iter().all(|r| r.end == End::Finished));
    for server in [1, 2] {
        let to = seconds_of(&run, server);
        assert_eq!((to.first(), to.last()), (Some(&15), Some(&39)), "server {server}");
    }
    let sizes: Vec<_> = run.scaling.events.iter().map(|e| (e.at, e.from, e.to, e.why)).collect();
    assert_eq!(sizes, [(at(10), 1, 3, None), (at(40), 3, 1, None)]);
    let used = &run.scaling.groups[0];
    assert_eq!((used.first, used.range, used.last, used.starting_ns), (1, (1, 3), 1, 10 * SECOND));
    // Two more for thirty seconds, and until their last requests have ended.
    let ends = |server| {
        let of = |r: &&Row| r.endpoint == Some(server);
        run.rows.iter().filter(of).filter_map(|r| r.finished).max().unwrap().0 - c.network.to_client.0
    };
    assert_eq!(used.held_ns, run.ended_at.0 + ends(1) + ends(2) - 20 * SECOND);
}

/// A burst that one server cannot take: the autoscaler brings more, and lets them go after it.
#[test]
fn an_autoscaler_follows_the_load_and_is_the_same_in_both_step_modes() {
    let rules = "autoscalers:
  - engines: pool
    maxReplicas: 4
    metrics: {in-flight: 20}
    behavior: {scaleDown: {stabilizationWindowSeconds: 30}}
";
    let c = pool(1, "start: {cold: 20s, warmup: 10s, slowdown: 1.5}", rules);
    let go = |steps| {
        let mut arrivals = poisson(3, 1_500, 12.0, |_| (800, 300));
        arrivals.extend((0..40).map(|i| arrival(1_500 + i, at(130 + 5 * i), 800, 300)));
        simulate(&plan("", ""), &c, arrivals, &Options { steps, ..Options::new(3) })
    };
    let (exact, bulk) = (go(StepMode::Exact), go(StepMode::Macro));
    assert_eq!((&exact.rows, &exact.scaling), (&bulk.rows, &bulk.scaling));
    let used = &exact.scaling.groups[0];
    assert_eq!((used.first, used.range, used.last), (1, (1, 4), 1));
    let events = &exact.scaling.events;
    assert!(events.iter().all(|e| e.at.0.is_multiple_of(15 * SECOND) && e.why.is_some()), "{events:?}");
    assert!(events.iter().any(|e| e.to > e.from) && events.iter().any(|e| e.to < e.from));
    // Nobody new before the first cold start is over.
    let first = events[0].at.0 / SECOND + 20;
    assert!(seconds_of(&exact, 1).iter().all(|s| *s >= first));
    assert!(exact.rows.iter().all(|r| r.end == End::Finished));
}
