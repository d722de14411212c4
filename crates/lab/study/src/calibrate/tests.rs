use super::*;
use forebay_base::Span;
use forebay_records::{Record, Row};
use forebay_sim::Network;

/// A small server on the CPU, whose factors show at a few requests per second.
fn cluster(engines: &str) -> Cluster {
    let mut c = Cluster::parse(engines, "tiny", "", |s| {
        s.max_num_seqs = Some(64);
        s.max_model_len = Some(2048);
        s.num_gpu_blocks_override = Some(20_000);
    })
    .unwrap();
    c.network = Network { to_engine: Span::ZERO, to_client: Span::ZERO };
    c
}

fn plan() -> Arc<Plan> {
    let kernel = forebay_kernel::plugins::ALL.to_vec();
    let config = forebay_config::load("", "built-in", &kernel, forebay_config::Options::default()).unwrap();
    Arc::new(config.plan(&[0]))
}

fn named(names: &[&str]) -> Vec<Factor> {
    names.iter().map(|n| Factor::named(n).unwrap()).collect()
}

const TRAFFIC: &str = "
version: 1
name: w
mode: {kind: surge, window: 60s, drain: 600s}
classes:
  only: {arrivals: {process: poisson, rate: 1}, input: {normal: [400, 250], clamp: [20, 1500]},
         output: {normal: [40, 20], clamp: [2, 120]}}
";

/// A world with these factors, as if it had been observed.
fn world(c: &Cluster, factors: Factors, rate: f64, seconds: u64, name: &str) -> Seen {
    let mut c = c.clone();
    for s in &mut c.servers {
        let mut spec = s.engine.spec.clone();
        spec.hardware.factors = factors;
        s.engine = Arc::new(spec.resolve().unwrap());
    }
    let workload =
        Workload::read(TRAFFIC, "w.yaml").unwrap().with_rate(rate).with_window(Span::secs(seconds));
    let classes = workload.class_names();
    let setup = Setup { plan: plan(), cluster: Arc::new(c), workload };
    let run = setup.run(7, Options::new(7));
    let records: Vec<Record> = run.rows.iter().map(|r| Record::from(*r)).collect();
    Seen::of_records(name, &records, &classes, None).unwrap()
}

fn truth() -> Factors {
    let mut f = Factors::CPU;
    f.step = Span::micros(7_300);
    f.request = Span::micros(25_000);
    f.sequence = Span::micros(900);
    f.compute = 0.5;
    f
}

fn ask(fitted: Vec<Seen>, held_back: Vec<Seen>, factors: Vec<Factor>) -> Ask {
    let cluster = Arc::new(cluster("1xcpu"));
    let hardware = hardware(&cluster, None, "--cluster").unwrap();
    Ask { fitted, held_back, cluster, plan: plan(), hardware, factors }
}

#[test]
fn the_factors_of_a_simulated_world_are_found_within_their_intervals() {
    let c = cluster("1xcpu");
    let runs = vec![world(&c, truth(), 1.0, 150, "slow"), world(&c, truth(), 7.0, 56, "fast")];
    let held = vec![world(&c, truth(), 4.0, 60, "middle")];
    let names = ["request", "step", "sequence", "compute"];
    let q = ask(runs, held, named(&names));
    let a = calibrate(&q, 2, &Progress::new());
    for f in &a.factors {
        let want = f.factor.get(&truth());
        let Outcome::Fitted(low, high) = f.outcome else { panic!("{} {:?}", f.factor.name(), f.outcome) };
        assert!(low <= want && want <= high, "{}: {want} not in {low} to {high}", f.factor.name());
        assert!(high / low < 1.5, "{}: {low} to {high} says little", f.factor.name());
    }
    assert!(a.squares.1 < 1e-2 * a.squares.0 && a.converged, "{:?}", a.squares);
    let held = a.runs.iter().find(|r| !r.fitted).unwrap();
    assert_eq!(held.name, "middle");
    for c in &held.figures {
        assert!(c.error().abs() < 0.05, "{} {:+.3}", c.figure.label(), c.error());
        assert!(c.interval.0 <= c.error() + 1e-9 && c.error() <= c.interval.1 + 1e-9, "{c:?}");
    }
    assert!(held.figures.iter().any(|c| c.error_before().abs() > 0.2), "there was something to learn");
    // What is written is what was found.
    let back = Calibration::read(&a.calibration().write(), "c.yaml").unwrap();
    assert_eq!(back.factors(&q.hardware), a.all);
}

#[test]
fn factors_that_make_up_for_each_other_or_do_nothing_keep_their_values() {
    let c = cluster("1xcpu");
    let truth = Factors { step: Span::micros(7_300), request: Span::micros(5_100), ..Factors::CPU };
    let q =
        ask(vec![world(&c, truth, 2.0, 60, "one")], Vec::new(), named(&["step", "layer", "link", "request"]));
    let a = calibrate(&q, 2, &Progress::new());
    let of = |name: &str| *a.factors.iter().find(|f| f.factor.name() == name).unwrap();
    // Two layers cost as much as a longer step: only the sum is known, and the greater of the two takes it.
    assert!(of("step").outcome.is_fitted(), "{:?}", of("step"));
    assert_eq!(of("layer").outcome, Outcome::Confounded);
    // One GPU has no link.
    assert_eq!(of("link").outcome, Outcome::NoEffect);
    for name in ["layer", "link"] {
        assert_eq!(of(name).after, of(name).before);
        assert_eq!(of(name).factor.get(&a.all), of(name).before);
    }
    assert!(caveats(&a).iter().any(|s| s.contains("layer, link")), "{:?}", caveats(&a));
}

#[test]
fn the_answer_does_not_depend_on_threads() {
    let c = cluster("1xcpu");
    let q = ask(vec![world(&c, truth(), 3.0, 40, "one")], Vec::new(), named(&["step", "request"]));
    let (one, two) = (calibrate(&q, 1, &Progress::new()), calibrate(&q, 2, &Progress::new()));
    assert_eq!(json(&one), json(&two));
    assert!(caveats(&one).iter().any(|s| s.contains("held back")));
}

#[test]
fn a_run_near_the_knee_says_so() {
    let c = cluster("1xcpu");
    // Prompts of some 1000 tokens at 26 us each, and so many answers at once that steps grow.
    let runs = [1.0, 9.0].map(|rate| world(&c, truth(), rate, 200, &format!("at-{rate}")));
    let q = ask(runs.into(), Vec::new(), named(&["step"]));
    let a = calibrate(&q, 2, &Progress::new());
    assert!(!a.runs[0].near, "{:?}", a.runs[0].remarks);
    assert!(
        a.runs[1].near && a.runs[1].remarks.iter().any(|r| r.contains("Near the knee")),
        "{:?}",
        a.runs[1]
    );
}

#[test]
fn what_was_cached_is_cached_again_and_refusals_are_not_sent() {
    use forebay_base::Nanos;
    use forebay_records::End;
    let at = |i: u64| Nanos::ZERO + Span::millis(200 * i);
    let rows = (0..80u64).map(|i| Row {
        prompt_tokens: 640,
        cached_tokens: if i > 0 { 512 } else { 0 },
        output_tokens: 10,
        first_token: Some(at(i) + Span::millis(20)),
        finished: Some(at(i) + Span::millis(110)),
        end: if i == 5 { End::Rejected("full") } else { End::Finished },
        ..Row::arriving(i, 0, at(i))
    });
    let records: Vec<Record> = rows.map(Record::from).collect();
    let classes = ["all".to_owned()];
    let seen = Seen::of_records("r", &records, &classes, None).unwrap();
    assert_eq!((seen.requests(), seen.remarks.len()), (79, 1));
    assert!(seen.remarks[0].contains("1 of 80 requests were refused"), "{:?}", seen.remarks);
    let q = ask(vec![seen], Vec::new(), named(&["step"]));
    let a = calibrate(&q, 2, &Progress::new());
    let (observed, simulated) = a.runs[0].cached;
    assert!((observed - simulated).abs() < 0.02 && observed > 0.7, "{observed} {simulated}");
    let few = Seen::of_records("r", &records[..20], &classes, None).unwrap_err().to_string();
    assert_eq!(few, "error: r: 19 finished requests in the measured window, of 19; expected at least 30");
}

#[test]
fn several_types_need_one_to_be_named() {
    let one = cluster("1xcpu");
    assert_eq!(hardware(&one, None, "--hardware").unwrap().name, "cpu");
    let two = cluster("1xcpu,1xh100");
    assert_eq!(hardware(&two, Some("H100-SXM"), "--hardware").unwrap().name, "h100");
    let e = hardware(&two, None, "--hardware").unwrap_err().to_string();
    assert!(e.contains("several GPU types") && e.contains("one of cpu, h100"), "{e}");
    let e = hardware(&one, Some("h100"), "--hardware").unwrap_err().to_string();
    assert!(e.contains("has no h100") && e.contains("one of cpu"), "{e}");
    assert!(hardware(&one, Some("h10"), "--hardware").unwrap_err().to_string().contains("h100"));
}
