use super::*;
use crate::Setup;
use crate::policies::Policy;

fn ask(runs: u64) -> Ask {
    let mut workload = Workload::preset("code").unwrap().with_rate(8.0);
    workload.mode.window = Span::secs(20);
    let cluster = Cluster::parse("2xh100", "qwen3-14b", "", |_| {}).unwrap();
    let plan = Policy::recommended().plan(&Setup::priorities(&workload)).unwrap();
    let (config, probe) = ("recommended".to_owned(), Delays::default());
    Ask { plan, config, cluster, workload, seed: 5, runs, probe }
}

/// A live side that a simulated run plays.
fn played(ask: &Ask, run: u64) -> Live {
    let side = side(ask, &ask.probe.apply(&ask.cluster), run, true);
    let ran = simulate(ask, &ask.cluster, run, true);
    let decisions = Decisions::read(ran.decisions.unwrap(), 0, |n, _| ran.dispatches.get(n).copied());
    Live { rows: side.rows, decisions, ended_at: side.ended_at, ..Live::default() }
}

#[test]
fn a_run_against_itself_differs_in_nothing_and_threads_do_not_matter() {
    let q = ask(3);
    let live = played(&q, 0);
    let (one, two) = (compare(&q, &live, 1, &Progress::new()), compare(&q, &live, 2, &Progress::new()));
    assert_eq!(json(&one), json(&two));
    assert!(one.outside().0.is_empty() && one.outside().1 > 20, "{:?}", one.outside());
    let alone = compare(&Ask { runs: 0, ..q.clone() }, &live, 1, &Progress::new());
    for (name, f) in alone.figures() {
        assert_eq!((f.sim, f.range.map(|r| r.0)), (f.live, f.live), "{name}");
    }
    let latencies = || one.classes.iter().flat_map(|c| &c.latencies);
    assert!(latencies().all(|l| l.distance == Some(0.0) && l.distance_range.unwrap() > 0.0));
    let d = one.decisions.as_ref().unwrap();
    assert_eq!((d.live.all, d.parting), (1.0, None));
    assert_eq!(d.live.requests, one.inputs.requests[0], "each request was dispatched");
    assert!(d.runs.iter().all(|a| a.all < 1.0), "ties fall otherwise under other seeds");
    assert_eq!((one.inputs.other_prompt, one.inputs.other_output), (0, 0));
    assert_eq!(one.classes[0].name, "critical");
    assert!(one.verdict()[0].starts_with("All "), "{:?}", one.verdict());
}

#[test]
fn a_simulated_figure_is_the_median_of_the_runs() {
    let q = ask(4);
    let p = compare(&q, &played(&q, 0), 2, &Progress::new());
    let cluster = q.probe.apply(&q.cluster);
    let mut p50s: Vec<u64> = (0..5)
        .map(|i| {
            side(&q, &cluster, i, false).summary.classes[0].figure(Metric::Ttft).quantiles[0].value.unwrap()
        })
        .collect();
    p50s.sort_unstable();
    let f = p.classes[0].latencies[0].percentiles[0];
    assert_eq!((f.sim, f.range), (Some(p50s[2] as f64), Some((p50s[0] as f64, p50s[4] as f64))));
}

#[test]
fn one_of_the_runs_around_is_inside_the_range() {
    let q = ask(4);
    let p = compare(&q, &played(&q, 3), 2, &Progress::new());
    assert!(p.outside().0.is_empty(), "{:?}", p.outside());
    let d = p.decisions.as_ref().unwrap();
    let parting = d.parting.unwrap();
    assert!(d.live.all < 1.0 && parting.there != [None, None]);
    let told = d.first(&p.endpoints);
    assert!(told[0].contains("after") && told.len() == 4 && told[2].contains("in flight"), "{told:?}");
    let html = page(&p);
    assert!(html.contains("What differs first") && !html.contains("NaN"));
}

#[test]
fn a_slower_live_side_is_a_finding() {
    let q = ask(4);
    let mut live = played(&q, 0);
    for r in &mut live.rows {
        let later = |at: Option<Nanos>| at.map(|t| t + Span::millis(200));
        (r.first_token, r.finished) = (later(r.first_token), later(r.finished));
    }
    let p = compare(&q, &live, 2, &Progress::new());
    let (outside, _) = p.outside();
    assert!(outside.iter().any(|(n, _)| n == "critical TTFT p50"), "{outside:?}");
    assert!(outside.iter().all(|(n, _)| !n.contains("TPOT")), "shifted, not stretched");
    let ttft = &p.classes[0].latencies[0];
    assert!(ttft.percentiles[0].ratio().unwrap() > 1.5 && ttft.distance.unwrap() > 0.5);
    assert!(p.verdict()[0].contains("critical TTFT p50"));
    assert_eq!(json(&p)["findings"].as_array().unwrap().len(), outside.len());
}

#[test]
fn a_request_less_and_another_length_are_told() {
    let q = ask(1);
    let mut live = played(&q, 0);
    live.rows[3].end = End::Rejected("queue-full");
    live.rows[3].finished = None;
    live.rows[4].output_tokens += 1;
    live.rows[5].prompt_tokens += 1;
    let last = live.rows.pop().unwrap();
    live.decisions.list.retain(|d| d.number != last.number && d.number != 3);
    let p = compare(&q, &live, 1, &Progress::new());
    assert_eq!((p.inputs.other_prompt, p.inputs.other_output), (1, 1));
    assert_eq!(p.inputs.requests, [live.rows.len() as u64 + 1, live.rows.len() as u64]);
    let names: Vec<String> = p.classes.iter().flat_map(|c| &c.ends).map(|e| e.how.clone()).collect();
    assert!(names.contains(&"rejected, queue-full".to_owned()), "{names:?}");
    let d = p.decisions.unwrap();
    assert!(d.live.endpoint < 1.0 && d.live.endpoint > 0.9 && d.live.place < d.live.endpoint);
}

#[test]
fn ranges_say_when_they_cannot_judge() {
    let f = |sim, live, range| Figure { sim, live, range };
    let range = Some((1.0, 3.0));
    assert_eq!(f(Some(2.0), Some(3.0), range).is_outside(), Some(false));
    assert_eq!(f(Some(2.0), Some(3.1), range).is_outside(), Some(true));
    assert_eq!(f(Some(2.0), Some(0.9), range).is_outside(), Some(true));
    assert_eq!(f(Some(2.0), None, range).is_outside(), None);
    assert_eq!(f(Some(2.0), Some(3.0), None).is_outside(), None);
    assert_eq!(
        (f(Some(2.0), Some(3.0), range).ratio(), f(Some(0.0), Some(3.0), None).ratio()),
        (Some(1.5), None)
    );
}

#[test]
fn sessions_are_compared_by_their_figures_only() {
    let mut q = ask(1);
    q.workload = Workload::preset("agentic").unwrap().with_rate(1.0);
    q.workload.mode.window = Span::secs(10);
    q.plan = Policy::recommended().plan(&Setup::priorities(&q.workload)).unwrap();
    let side = side(&q, &q.cluster, 0, false);
    let live = Live { rows: side.rows, ended_at: side.ended_at, ..Live::default() };
    let p = compare(&q, &live, 1, &Progress::new());
    assert!(p.decisions.is_none() && page(&p).contains("Not compared"));
}

#[test]
fn both_sides_name_a_refusal_as_clients_are_told() {
    use forebay_kernel::QueueOutcome;
    assert_eq!(as_told(QueueOutcome::EvictedTtl.label()), "rejected-ttl-expired");
    assert_eq!(as_told(QueueOutcome::RejectedCapacity.label()), "rejected-saturated");
    assert_eq!(as_told(QueueOutcome::EvictedNoEndpoints.label()), "rejected-no-endpoints");
}
