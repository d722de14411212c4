//! Whole runs: one end per request, same bytes, incidents, time-outs, several routers.

use crate::rig::{cluster, plan, poisson, simulate, soft};
use forebay_base::{Nanos, Span};
use forebay_engine::StepMode;
use forebay_kernel::replay::replay;
use forebay_records::End;
use forebay_sim::{Change, Incident, Options};

fn at(seconds: u64) -> Nanos {
    Nanos::ZERO + Span::secs(seconds)
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_the_log_replays() {
    let (cluster, plan) = (cluster(2, |_| {}), soft());
    let go = |seed| {
        let arrivals = poisson(9, 1_500, 30.0, |n| (1200, 50 + (n * 71 % 600) as u32));
        let options = Options { decisions: true, sample: Some(Span::secs(1)), ..Options::new(seed) };
        simulate(&plan, &cluster, arrivals, &options)
    };
    let (a, b, other) = (go(4), go(4), go(5));
    assert_eq!(format!("{a:?}"), format!("{b:?}"));
    assert_ne!(a.rows, other.rows, "scrapes fall elsewhere under another seed");
    let report = replay(plan, a.decisions.as_deref().unwrap()).unwrap();
    assert_eq!(report.difference, None);
    assert!(report.decisions >= 1_500);
}

/// The `n`-th dispatch in the log is that of the `n`-th number beside it, and routers know lengths only if told.
#[test]
fn dispatches_have_their_requests_beside_the_log() {
    let cluster = cluster(2, |_| {});
    let go = |tells_output| {
        let arrivals = poisson(3, 400, 30.0, |n| (1200, 50 + (n * 71 % 600) as u32));
        let options = Options { decisions: true, tells_output, ..Options::new(4) };
        simulate(&soft(), &cluster, arrivals, &options)
    };
    let run = go(false);
    let log = run.decisions.unwrap();
    let words = |verb: &'static str| {
        let of = log.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        of.filter(move |l| l[2] == verb).collect::<Vec<_>>()
    };
    let logged = words("dispatch");
    assert_eq!((logged.len(), run.dispatches.len()), (400, 400));
    for (line, number) in logged.iter().zip(&run.dispatches) {
        let row = &run.rows[*number as usize];
        assert_eq!(line[1].parse(), Ok(row.dispatched.unwrap().0), "{line:?}");
        assert_eq!(line[4].split('.').next().unwrap().parse(), Ok(row.endpoint.unwrap()));
    }
    let told = |log: &str| log.lines().filter(|l| l.contains(" offer ") && !l.ends_with(" -")).count();
    assert_eq!((told(&log), told(&go(true).decisions.unwrap())), (0, 400));
}

#[test]
fn clients_that_wait_too_long_leave_and_free_their_place() {
    let cluster = cluster(1, |_| {});
    let mut arrivals = poisson(2, 1_200, 30.0, |_| (2000, 60));
    for a in &mut arrivals {
        a.timeout = Some(Span::secs(20));
    }
    let run = simulate(&plan("", ""), &cluster, arrivals, &Options::new(2));
    let ended = |end| run.rows.iter().filter(|r| r.end == end).count();
    let (finished, late) = (ended(End::Finished), ended(End::TimedOut));
    assert_eq!(finished + late, 1_200);
    assert!(finished > 200 && late > 200, "{finished} {late}");
    for r in &run.rows {
        let stayed = r.finished.unwrap().since(r.arrived);
        assert!(if r.end == End::TimedOut { stayed == Span::secs(20) } else { stayed <= Span::secs(20) });
    }
}

#[test]
fn the_horizon_censors_who_is_still_inside() {
    let cluster = cluster(1, |_| {});
    let arrivals = poisson(2, 1_000, 50.0, |_| (2000, 400));
    let options = Options { horizon: at(15), ..Options::new(2) };
    let run = simulate(&plan("", ""), &cluster, arrivals, &options);
    let censored = run.rows.iter().filter(|r| r.end == End::Censored && r.finished.is_none()).count();
    assert!(censored > 100, "{censored}");
    assert_eq!(run.counters.arrived, run.rows.len() as u64);
    assert!(run.rows.iter().all(|r| r.arrived <= at(15) && r.finished.is_none_or(|f| f <= at(15))));
}

/// A server dies in the middle of work: what it had fails, what is sent there before the routers know
/// fails, and everything else ends well on the other one.
#[test]
fn a_server_that_dies_fails_what_it_has() {
    let mut cluster = cluster(2, |_| {});
    cluster.incidents = vec![
        Incident { at: at(10), server: 1, change: Change::Fail },
        Incident { at: at(11), server: 1, change: Change::Leave },
        Incident { at: at(30), server: 1, change: Change::Join },
    ];
    let run = simulate(&plan("", ""), &cluster, poisson(6, 800, 16.0, |_| (800, 150)), &Options::new(6));
    let failed: Vec<_> = run.rows.iter().filter(|r| r.end == End::Failed).collect();
    assert!(!failed.is_empty());
    assert!(failed.iter().all(|r| r.endpoint == Some(1) && r.finished.unwrap() >= at(10)));
    assert!(failed.iter().all(|r| r.finished.unwrap() < at(12)));
    assert_eq!(run.rows.iter().filter(|r| r.end == End::Finished).count() + failed.len(), 800);
    let on = |from, to| {
        let inside = |r: &&forebay_records::Row| r.dispatched.is_some_and(|d| d >= at(from) && d < at(to));
        run.rows.iter().filter(inside).filter(|r| r.endpoint == Some(1)).count()
    };
    assert!(
        on(0, 10) > 20 && on(11, 30) == 0 && on(30, 50) > 20,
        "{} {} {}",
        on(0, 10),
        on(11, 30),
        on(30, 50)
    );
}

/// With metrics that cannot be read, both endpoints count as saturated and requests wait.
#[test]
fn metrics_that_stop_hold_requests_back() {
    let mut cluster = cluster(2, |_| {});
    for server in 0..2 {
        cluster.incidents.push(Incident { at: at(5), server, change: Change::Mute });
        cluster.incidents.push(Incident { at: at(9), server, change: Change::Unmute });
    }
    cluster.incidents.sort_by_key(|i| i.at);
    let run = simulate(&plan("", ""), &cluster, poisson(6, 200, 10.0, |_| (100, 20)), &Options::new(6));
    let during = run.rows.iter().filter(|r| r.arrived > at(6) && r.arrived < at(9));
    let mut n = 0;
    for r in during {
        n += 1;
        assert!(r.dispatched.unwrap() >= at(9), "{r:?}");
    }
    assert!(n > 15, "{n}");
}

/// Requests go to the routers in turn. What the first one decides follows from its own inputs alone: its log
/// replays, and has a third of the requests.
#[test]
fn several_routers_share_nothing_but_the_servers() {
    let mut cluster = cluster(2, |_| {});
    cluster.routers = 3;
    let options = Options { decisions: true, ..Options::new(6) };
    let run = simulate(&soft(), &cluster, poisson(6, 900, 20.0, |_| (800, 150)), &options);
    assert!(run.rows.iter().all(|r| r.end == End::Finished));
    assert_eq!(run.counters.dispatched, 900);
    let log = run.decisions.unwrap();
    let of = |verb: &str| log.lines().filter(|l| l.split(' ').nth(2) == Some(verb)).count();
    assert_eq!((of("offer"), of("dispatch"), of("finished")), (300, 300, 300));
    assert_eq!(replay(soft(), &log).unwrap().difference, None);
}

/// Preemptions, time-outs, a server that dies, shared prefixes: everything the same in both step modes.
#[test]
fn macro_steps_give_the_records_of_exact_ones() {
    let mut cluster = cluster(2, |s| s.num_gpu_blocks_override = Some(3000));
    cluster.incidents = vec![
        Incident { at: at(20), server: 1, change: Change::Fail },
        Incident { at: at(21), server: 1, change: Change::Join },
    ];
    for seed in 0..3 {
        let go = |steps| {
            let mut arrivals =
                poisson(seed, 1_200, 25.0, |n| (64 + (n * 997 % 3000) as u32, 20 + (n * 31 % 900) as u32));
            for a in &mut arrivals {
                a.timeout = Some(Span::secs(60));
                let shared = a.number % 5;
                a.prefix =
                    (0..u64::from(a.prompt_tokens / 16).min(40)).map(|i| 1000 * shared + i + 1).collect();
            }
            let options = Options {
                steps,
                gaps: true,
                decisions: true,
                sample: Some(Span::millis(333)),
                horizon: at(120),
                ..Options::new(seed)
            };
            let mut run = simulate(&soft(), &cluster, arrivals, &options);
            run.counters.events = 0;
            run
        };
        let (exact, bulk) = (go(StepMode::Exact), go(StepMode::Macro));
        assert!(exact.counters.preemptions > 0 && exact.rows.iter().any(|r| r.end == End::TimedOut));
        assert_eq!(exact.rows, bulk.rows);
        assert_eq!(exact.counters, bulk.counters);
        assert_eq!(exact.timeline, bulk.timeline);
        assert_eq!(exact.decisions, bulk.decisions);
        assert_eq!(format!("{:?}", exact.gaps), format!("{:?}", bulk.gaps));
    }
}
