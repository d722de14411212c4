//! Sweeps over small files.

use super::*;
use forebay_config::DEFAULT_CONFIG;

const CLUSTER: &str = "version: 1\nengines:\n  - {count: 1, model: qwen3-14b, hardware: h100}\n";
const WORKLOAD: &str = "
version: 1
name: w
mode: {kind: surge, window: 20s, drain: 600s}
classes:
  only: {priority: 0, arrivals: {process: poisson, rate: 3}, input: {constant: 500}, output: {constant: 50}}
";

fn made(sets: &[&str], zip: bool) -> Result<(Vec<Axis>, Vec<Point>, Made), String> {
    made_with(sets, zip, None)
}

fn made_with(
    sets: &[&str],
    zip: bool,
    calibration: Option<Calibration>,
) -> Result<(Vec<Axis>, Vec<Point>, Made), String> {
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let axes = Axis::parse_all(&sets).map_err(|d| d.to_string())?;
    let points = points(&axes, zip).map_err(|d| d.to_string())?;
    let source = |file: &str, text: &str| Source { file: file.to_owned(), text: text.to_owned() };
    let mut base = Base {
        config: source("config.yaml", DEFAULT_CONFIG),
        cluster: source("cluster.yaml", CLUSTER),
        workload: source("workload.yaml", WORKLOAD),
        catalogue: forebay_kernel::plugins::ALL.to_vec(),
        stability: Stability::default(),
        files: &mut |name| Err(format!("{name}: there is none")),
        cluster_files: &mut |name| Err(format!("{name}: there is none")),
        calibration,
    };
    let made = make(&mut base, &axes, &points).map_err(|d| d.to_string())?;
    Ok((axes, points, made))
}

fn wrong(sets: &[&str]) -> String {
    match made(sets, false) {
        Err(e) => e,
        Ok(_) => panic!("{sets:?} is taken"),
    }
}

#[test]
fn values_reach_the_setups_in_the_order_of_the_points() {
    let sets = ["workload:classes.only.arrivals.rate=2,4", "cluster:scrape.period=50ms,500ms,1s"];
    let (_, points, m) = made(&sets, false).unwrap();
    let all: Vec<(f64, u64)> =
        m.setups.iter().map(|s| (s.workload.rate(), s.cluster.scrape.period.0 / 1_000_000)).collect();
    assert_eq!(all, [(2.0, 50), (2.0, 500), (2.0, 1000), (4.0, 50), (4.0, 500), (4.0, 1000)]);
    assert_eq!(points[4], [1, 1]);
    assert!(Arc::ptr_eq(&m.setups[0].cluster, &m.setups[3].cluster), "equal clusters are shared");
    let (_, _, m) = made(&["workload:classes.only.arrivals.rate=2,4", "cluster:routers=1,2"], true).unwrap();
    let all: Vec<(f64, u32)> = m.setups.iter().map(|s| (s.workload.rate(), s.cluster.routers)).collect();
    assert_eq!(all, [(2.0, 1), (4.0, 2)]);
}

#[test]
fn a_calibration_holds_at_every_point_and_its_factors_do_not_vary() {
    let slow = || Calibration::read("version: 1\nhardware: {h100: {step: 77ms}}", "c.yaml").ok();
    let (_, _, m) = made_with(&["cluster:engines[0].hardware=h100,a100"], false, slow()).unwrap();
    let steps: Vec<u64> =
        m.setups.iter().map(|s| s.cluster.servers[0].engine.spec.hardware.factors.step.0 / 1_000).collect();
    assert_eq!(steps, [77_000, 327]);
    let e = made_with(&["cluster:engines[0].factors.step=1ms,2ms"], false, slow()).err().unwrap();
    assert!(e.contains("a calibration sets it"), "{e}");
}

#[test]
fn findings_name_the_expression_or_the_file() {
    for (set, said) in [
        (
            "cluster:scrape.perod=50ms",
            "error: --set 'cluster:scrape.perod=50ms': scrape.perod: unknown field \"perod\"; expected one of period, \
             phase, delay, jitter; did you mean \"period\"?",
        ),
        (
            "cluster:engines[h100].args.block-size=16,20",
            "error: --set 'cluster:engines[h100].args.block-size=20': engines[0].args.block-size: found 20; expected a \
             multiple of 16",
        ),
        (
            "workload:classes.only.arrivals.rate=-1",
            "error: --set 'workload:classes.only.arrivals.rate=-1': classes.only.arrivals.rate: found the number -1",
        ),
        (
            "cluster:engines[3].count=2",
            "error: --set 'cluster:engines[3].count=2': engines: there is no item 3",
        ),
        ("confg:a=1", "did you mean \"config\"?"),
        ("cluster:routers", "has no values"),
        ("cluster:routers=1,1", "has the value 1 twice"),
        ("cluster:routers=1,", "a value is empty"),
        (
            "config:plugins[queue-score].weight=1",
            "no item is called \"queue-score\"; expected one of queue-scorer",
        ),
    ] {
        let text = wrong(&[set]);
        assert!(text.contains(said), "{set}: {text}");
    }
    // A field of the text is missing because a value took its neighbour away.
    let text = wrong(&["workload:classes.only.arrivals=null"]);
    assert!(
        text.contains("workload.yaml") && text.contains("--set 'workload:classes.only.arrivals=null'"),
        "{text}"
    );
    let text = wrong(&["cluster:routers=1", "cluster:routers=2"]);
    assert!(text.contains("cluster:routers is set twice"), "{text}");
    let Err(text) = made(&["cluster:routers=1,2", "cluster:scrape.period=1s"], true) else { panic!() };
    assert!(text.contains("as many values of each"), "{text}");
}

#[test]
fn lists_and_mappings_are_values_and_labels_are_short() {
    let axes = Axis::parse_all(&[
        "workload:lengths.in={uniform: [1, 2]},{constant: 5}".to_owned(),
        "workload:classes.a.rate=1.5,2".to_owned(),
        "workload:classes.b.rate=100ms,1s".to_owned(),
    ])
    .unwrap();
    assert_eq!(axes[0].values.len(), 2);
    let labels: Vec<String> = axes.iter().map(|a| a.label(&axes)).collect();
    assert_eq!(labels, ["in", "a.rate", "b.rate"]);
    assert_eq!(axes[0].numbers(), None);
    assert_eq!(axes[1].numbers(), Some((vec![1.5, 2.0], "")));
    assert_eq!(axes[2].numbers(), Some((vec![0.1, 1.0], "s")));
}

#[test]
fn a_sweep_is_the_same_on_any_number_of_threads() {
    let (axes, points, m) = made(&["workload:classes.only.arrivals.rate=2,60"], false).unwrap();
    let asked = ["ttft-p50", "tokens", "unfinished"]
        .map(|t| Asked::parse(t, &["only".to_owned()], "--metric").unwrap());
    let go = |threads| sweep(&m.setups, (&axes, &points), &asked, &[1, 2, 3], threads, &Progress::new());
    let (one, two) = (go(1), go(2));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    let tokens: Vec<f64> = one.rows.iter().map(|r| r.figures[1].value).collect();
    assert!(tokens[0] > 50.0 && tokens[1] > 5.0 * tokens[0], "{tokens:?}");
    assert!(one.rows[1].figures[0].value > one.rows[0].figures[0].value);
    assert_eq!(one.rows[0].loads.iter().sum::<usize>(), 3);
}
