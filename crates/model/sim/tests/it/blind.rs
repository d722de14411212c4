//! What has not been revealed decides nothing.

use crate::rig::{cluster, plan, poisson, simulate, soft};
use forebay_base::Nanos;
use forebay_sim::Options;

/// Lines of a decision log up to an instant.
fn until(log: &str, at: Nanos) -> Vec<&str> {
    let time = |l: &&str| l.split(' ').nth(1).is_none_or(|t| t.parse::<u64>().is_ok_and(|t| t < at.0));
    log.lines().skip(1).take_while(time).collect()
}

/// Requests that would generate 300 or 900 tokens swap their lengths. Until the first of them has 300, no
/// router decision can differ; later ones do, so that the test is not about nothing.
#[test]
fn swapping_lengths_that_are_not_revealed_changes_no_decision_before() {
    let cluster = cluster(2, |_| {});
    let recommended = plan(
        "  - type: inflight-aware-detector",
        "saturationDetector: {pluginRef: inflight-aware-detector}, cycleDriver: event, liveRouting: true",
    );
    for plan in [plan("", ""), soft(), recommended] {
        let arrivals = |swapped: bool| {
            poisson(11, 800, 40.0, |n| (900, if n.is_multiple_of(3) == swapped { 300 } else { 900 }))
        };
        let options = Options { decisions: true, ..Options::new(11) };
        let a = simulate(&plan, &cluster, arrivals(false), &options);
        let b = simulate(&plan, &cluster, arrivals(true), &options);
        let first = |run: &forebay_sim::Run| run.rows.iter().filter_map(|r| r.finished).min().unwrap();
        let revealed = first(&a).min(first(&b));
        let (a, b) = (a.decisions.unwrap(), b.decisions.unwrap());
        let before = until(&a, revealed);
        assert!(before.len() > 200, "{}", before.len());
        assert_eq!(before, until(&b, revealed));
        assert_ne!(a, b);
    }
}
