//! `forebay whatif` and `forebay simulate` over recordings and traces.

use crate::run;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A recording of a minute: every tenth request is critical.
fn recording(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let mut text = "{\"format\":\"forebay-recording\",\"version\":1,\"started_unix_ns\":1000,\"started\":\"\",\"file\":1,\
                    \"key\":\"k\",\"block_bytes\":256}\n"
        .to_owned();
    for i in 0..600_u64 {
        let (objective, priority) = if i % 10 == 0 { ("critical", 100) } else { ("sheddable", -50) };
        writeln!(
            text,
            "{{\"arrived_ns\":{},\"objective\":\"{objective}\",\"priority\":{priority},\"flow\":\"f\",\"stream\":true,\
             \"request_bytes\":4096,\"prompt_bytes\":512,\"prompt_tokens\":128,\"output_tokens\":20,\"end\":\"finished\",\
             \"status\":200,\"dispatched_ns\":1000,\"first_token_ns\":40000000,\"ended_ns\":250000000,\
             \"blocks\":\"0000000000000001{i:016x}\"}}",
            i * 100_000_000
        )
        .unwrap();
    }
    std::fs::write(dir.join("forebay-20260101T000000.000Z-k-000001.jsonl"), text).unwrap();
    dir
}

#[test]
fn a_recording_is_answered_on_one_page() {
    let dir = recording("whatif-recording");
    let out = dir.join("answer");
    let args = [
        "whatif",
        "--workload",
        dir.to_str().unwrap(),
        "--baseline",
        "examples/static.yaml",
        "--treatment",
        "examples/recommended.yaml",
        "--out",
        out.to_str().unwrap(),
    ];
    let printed = run(&args);
    assert_eq!(printed.code, 0, "{}", printed.err);
    for part in [
        "recommended instead of static",
        "- critical: TTFT p99",
        "recorded",
        "40.0 ms",
        "Load: under 50 % of the pool's capacity",
        "over 10 latencies",
        "Recording: 600 requests in 1 file(s).",
    ] {
        assert!(printed.out.contains(part), "{part}\n{}", printed.out);
    }
    assert!(printed.out.lines().all(|l| l.chars().count() <= 100), "{}", printed.out);
    assert!(printed.out.lines().count() <= 40, "one screen\n{}", printed.out);
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("What if: recommended"));
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("whatif.json")).unwrap()).unwrap();
    assert_eq!(json["classes"][0]["name"], "critical");
    assert_eq!(run(&args).out, printed.out, "the same bytes again");
}

#[test]
fn a_recording_is_simulated_as_other_traces_are() {
    let dir = recording("simulate-recording");
    let simulate = |more: &[&str]| {
        let args = [&["simulate", "--json", "--workload", dir.to_str().unwrap()], more].concat();
        let printed = run(&args);
        assert_eq!(printed.code, 0, "{}", printed.err);
        serde_json::from_str::<serde_json::Value>(&printed.out).unwrap()
    };
    let all = simulate(&[]);
    assert_eq!((&all["total"]["offered"], &all["classes"][0]["name"]), (&600.into(), &"critical".into()));
    // 64 tokens of each but the first are in the cache: the prefix scorer keeps them on one server.
    assert_eq!(all["total"]["prompt_tokens_cached"], 599 * 64);
    assert_eq!(simulate(&["--limit", "50"])["total"]["offered"], 50);
    let fast = simulate(&["--rate-scale", "2"]);
    assert_eq!(fast["total"]["offered"], 600);
    let ended = |v: &serde_json::Value| v["ended_at_ns"].as_f64().unwrap();
    assert!((1.9..2.1).contains(&(ended(&all) / ended(&fast))));
    let wrong = run(&["simulate", "--workload", dir.to_str().unwrap(), "--rate-scale", "0"]);
    assert_eq!(wrong.code, 64, "{}", wrong.err);
    let empty = dir.join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let wrong = run(&["simulate", "--workload", empty.to_str().unwrap()]);
    assert_eq!(wrong.code, 64);
    assert!(wrong.err.contains("no request is recorded here"), "{}", wrong.err);
}
