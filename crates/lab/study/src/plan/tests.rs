use super::*;
use crate::Policy;
use forebay_config::{Options as Stability, load};
use forebay_engine::EngineSpec;

const WORKLOAD: &str = "
version: 1
name: fixed
mode: {kind: surge, window: 60s}
classes:
  only: {priority: 0, arrivals: {process: poisson, rate: 30}, input: {constant: 1000}, output: {constant: 60}}
";

fn question(slo: &[&str]) -> Question {
    let workload = Workload::read(WORKLOAD, "w").unwrap();
    let live = Policy::live();
    let mut spec = EngineSpec::named("qwen3-14b", "h100").unwrap();
    spec.max_num_seqs = Some(16);
    let engine = Ok(Arc::new(spec.resolve().unwrap()));
    let texts: Vec<String> = slo.iter().map(|s| (*s).to_owned()).collect();
    Question {
        goals: goals(&workload, &texts).unwrap(),
        workload,
        config: load(&live.config, "live", forebay_kernel::plugins::ALL, Stability::default()).unwrap(),
        kinds: vec![
            Kind { name: "h100".into(), engine },
            Kind { name: "toy".into(), engine: Err("too small".into()) },
        ],
        seeds: vec![1, 2, 3],
        max: 64,
    }
}

#[test]
fn the_smallest_number_holds_and_one_less_does_not() {
    let q = question(&["only:ttft-p90<300ms"]);
    let (one, two) = (plan(&q, 1, &Progress::new()), plan(&q, 2, &Progress::new()));
    assert_eq!(format!("{one:?}"), format!("{two:?}"), "threads make no difference");
    let a = &one[0];
    let n = a.endpoints().unwrap();
    let holds = |n: u32| a.size(n).unwrap().holds();
    assert!(n > 1 && holds(n) && !holds(n - 1) && holds(n + 1), "{a:?}");
    assert!(a.one > 0.0 && f64::from(n) * a.one > q.workload.rate() * 0.9);
    let (least, median, most) = a.counts().unwrap();
    assert!(least >= 1 && f64::from(least) <= median && median <= f64::from(most) && most <= n + 1);
    let size = a.size(n).unwrap();
    assert!(size.steady && size.figures[0].standing == forebay_records::stats::Standing::Claim);
    // 30 requests of 60 tokens a second.
    assert!((size.tokens / 1800.0 - 1.0).abs() < 0.1, "{}", size.tokens);
    assert!(a.load(q.workload.rate()).is_some_and(|l| l > 0.3 && l < 1.0), "{:?}", a.capacity);
    // 330 requests at 30 a second are less than the shortest window.
    assert_eq!(a.times.window, SHORTEST.window);
    assert_eq!(one[1].outcome, Outcome::Unfit);
}

#[test]
fn what_no_size_can_keep_is_given_up() {
    let q = question(&["only:ttft-p90<40ms"]);
    let a = &plan(&q, 2, &Progress::new())[0];
    let Outcome::NoSize(small, large) = a.outcome else { panic!("{:?}", a.outcome) };
    assert!(large == 2 * small && large < q.max);
    let size = a.size(large).unwrap();
    assert!(size.prefill[0].unwrap() > 40e6 && size.figures[0].value >= size.prefill[0].unwrap());
    // Nor is a pool tried that may not be.
    let q = Question { max: 1, ..question(&["only:ttft-p90<300ms"]) };
    assert_eq!(plan(&q, 2, &Progress::new())[0].outcome, Outcome::Beyond(1));
}

#[test]
fn windows_are_as_long_as_percentiles_need() {
    let times = |slo: &str| {
        let q = question(&[slo]);
        first_times(&Question { workload: q.workload.with_rate(9.0), ..q }).window
    };
    // 30 requests beyond the 99th percentile, a tenth more, at 9 a second.
    assert_eq!(times("only:ttft-p99<1s"), Span::secs(367));
    assert_eq!(times("only:ttft-mean<1s"), SHORTEST.window);
    let w = steady(&question(&["only:ttft-p99<1s"]).workload, SHORTEST);
    assert_eq!((w.mode.kind, w.mode.measured().length()), (ModeKind::Steady, SHORTEST.window));
}
