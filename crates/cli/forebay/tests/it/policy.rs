//! `forebay policy table`: numbers, then looks.

use crate::run;
use std::fmt::Write;

#[derive(Debug, PartialEq)]
struct Row {
    saturation: f64,
    regime: String,
    /// Nominal ceiling and blocked share in whole percent, per band.
    bands: Vec<(i64, i64)>,
    halted: bool,
}

fn table(args: &[&str]) -> Vec<Row> {
    let text = run(&[&["policy", "table", "--format", "json"], args].concat()).good();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let percent = |x: &serde_json::Value| (x.as_f64().unwrap() * 100.0).round() as i64;
    let row = |r: &serde_json::Value| Row {
        saturation: r["saturation"].as_f64().unwrap(),
        regime: r["regime"].as_str().unwrap().to_owned(),
        bands: r["bands"]
            .as_array()
            .unwrap()
            .iter()
            .map(|b| (percent(&b["ceiling"]), percent(&b["blocked"])))
            .collect(),
        halted: r["halted"].as_bool().unwrap(),
    };
    all["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn the_article_table_comes_from_the_policy() {
    let rows = table(&[]);
    assert_eq!(rows.len(), 11);
    for (saturation, regime, ceiling, blocked) in [
        (0.0, "no gating", 100, 0),
        (0.25, "no gating", 75, 0),
        (0.5, "boundary", 50, 0),
        (0.6, "proportional", 40, 50),
        (0.75, "proportional", 25, 67),
        (0.8, "proportional", 20, 75),
        (0.9, "proportional", 10, 89),
        (0.95, "proportional", 5, 95),
        (0.99, "proportional", 1, 99),
        (1.0, "hard block", 0, 100),
    ] {
        let row = rows.iter().find(|r| r.saturation == saturation).unwrap();
        assert_eq!(
            *row,
            Row {
                saturation,
                regime: regime.to_owned(),
                bands: vec![(100, 0), (ceiling, blocked)],
                halted: saturation >= 1.0
            }
        );
    }
}

#[test]
fn more_bands_and_own_priorities() {
    let three = table(&["--bands", "3"]);
    let at = |s: f64| three.iter().find(|r| r.saturation == s).unwrap().bands.clone();
    assert_eq!(at(0.6), [(100, 0), (70, 0), (40, 50)]);
    assert_eq!(at(0.7), [(100, 0), (65, 50), (30, 50)]);
    assert_eq!(table(&["--priorities", "-50,100,0"]), three);
    assert!(table(&["--bands", "1"]).iter().all(|r| r.bands == [(100, 0)]));
    assert_eq!(table(&["--cycles", "9"]).len(), 11);
}

#[test]
fn parameters_reach_the_policy() {
    let rows = table(&["--policy", "priority-holdback-policy", "--param", "minCeiling=0.75"]);
    let blocked: Vec<_> = rows.iter().map(|r| (r.saturation, r.bands[1])).collect();
    for (s, band) in blocked {
        assert_eq!(band, (75, if s >= 0.75 { 100 } else { 0 }), "at {s}");
    }
    let explicit = table(&[
        "--policy",
        "priority-holdback-policy",
        "--param",
        "domain=explicit",
        "--param",
        "ceilings=[{priority: 0, ceiling: 0.8}]",
        "--priorities",
        "10,0",
    ]);
    assert!(explicit.iter().all(|r| r.bands[1].0 == 80 && r.bands[0].0 == 100));
    let halted = table(&["--policy", "static-usage-limit-policy", "--param", "threshold=0.9"]);
    assert!(halted.iter().all(|r| r.halted == (r.saturation >= 0.9) && r.bands == [(90, 0), (90, 0)]));
}

#[test]
fn wrong_parameters_point_at_the_flag() {
    let mut all = String::new();
    for args in [
        &["--policy", "priority-holdback-policy"][..],
        &["--policy", "priority-holdback-policy", "--param", "minCeiling=2"],
        &["--policy", "priority-holdback-policy", "--param", "minCeiling=0.5", "--param", "maxCieling=1"],
        &["--policy", "priority-holdback-policy", "--param", "minCeiling=[0.5"],
        &["--param", "threshold=1"],
        &["--policy", "queue-scorer"],
        &["--policy", "soft-reflective-ceiling-polcy"],
    ] {
        let r = run(&[&["policy", "table"], args].concat());
        assert_eq!((r.code, r.out.as_str()), (64, ""), "{args:?}");
        write!(all, "$ forebay policy table {}\n{}", args.join(" "), r.err).unwrap();
    }
    insta::assert_snapshot!("policy_errors", all);
}

#[test]
fn tables_read_well() {
    insta::assert_snapshot!("policy_table", run(&["policy", "table"]).good());
    insta::assert_snapshot!("policy_table_of_three", run(&["policy", "table", "--bands", "3"]).good());
    insta::assert_snapshot!("policy_csv", run(&["policy", "table", "--format", "csv"]).good());
}
