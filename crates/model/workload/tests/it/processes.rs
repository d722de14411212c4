//! When requests come.

use crate::{all, cv, gaps, mean, one, read, seconds};
use proptest::prelude::*;

const LENGTHS: &str = "input: 100, output: 10";

fn times(window: &str, arrivals: &str, more: &str, seed: u64) -> Vec<f64> {
    seconds(&all(&one(window, &format!("arrivals: {{{arrivals}}}, {LENGTHS}{more}")), seed))
}

#[test]
fn constant_arrivals_are_exactly_as_many_as_the_rate_says() {
    let t = times("600s", "process: constant, rate: 4.8", "", 1);
    assert_eq!(t.len(), 2880);
    assert!(gaps(&t).iter().all(|g| (g - 1.0 / 4.8).abs() < 2e-9));
    let other = times("600s", "process: constant, rate: 4.8", "", 2);
    assert_ne!(t[0], other[0], "the phase is random");
    assert_eq!(times("600s", "process: constant, rate: 4.8, phase: 0", "", 1)[0], 0.0);
    assert!((times("600s", "process: constant, rate: 4, phase: 0.5", "", 1)[0] - 0.125).abs() < 1e-9);
}

#[test]
fn gaps_have_the_mean_and_the_variation_asked_for() {
    for (process, wanted) in [
        ("process: poisson, rate: 100", 1.0),
        ("process: gamma, rate: 100, cv: 3", 3.0),
        ("process: gamma, rate: 100, cv: 0.5", 0.5),
        ("process: weibull, rate: 100, cv: 2", 2.0),
        // Shape 2 is the Rayleigh distribution: cv = sqrt(4/pi - 1) = 0.5227.
        ("process: weibull, rate: 100, shape: 2", 0.5227),
    ] {
        let g = gaps(&times("1000s", process, "", 7));
        assert!((mean(&g) * 100.0 - 1.0).abs() < 0.03, "{process}: mean {}", mean(&g));
        assert!((cv(&g) / wanted - 1.0).abs() < 0.05, "{process}: cv {}", cv(&g));
    }
}

#[test]
fn poisson_counts_are_dispersed_as_poisson_counts() {
    let t = times("2000s", "process: poisson, rate: 20", "", 3);
    let mut counts = vec![0f64; 2000];
    for x in &t {
        counts[*x as usize] += 1.0;
    }
    let m = mean(&counts);
    // Index of dispersion 1, with a standard error of sqrt(2 / 2000) = 0.032.
    assert!((cv(&counts) * cv(&counts) * m - 1.0).abs() < 0.1);
}

#[test]
fn on_off_arrivals_have_their_mean_rate_and_come_in_bursts() {
    let t = times("20000s", "process: on-off, rate: 5, busy: 2s, idle: 6s", "", 4);
    assert!((t.len() as f64 / 100_000.0 - 1.0).abs() < 0.05, "{}", t.len());
    // An interrupted Poisson process with rate l = 20 while on, leaving on at w1 = 1/2 and off at w2 = 1/6 per
    // second has cv² = 1 + 2 l w1 / (w1 + w2)² = 46 (Kuczura, Bell System Technical Journal 52, 1973).
    assert!((cv(&gaps(&t)) / 46f64.sqrt() - 1.0).abs() < 0.05, "{}", cv(&gaps(&t)));
    let in_bursts = gaps(&t).iter().filter(|g| **g < 0.5).count() as f64 / t.len() as f64;
    assert!(in_bursts > 0.9);
}

#[test]
fn stages_change_the_rate_and_ramps_go_evenly() {
    let stages = ", stages: [{for: 540s, scale: 1}, {for: 60s, scale: 2}]";
    let t = times("600s", "process: constant, rate: 10, phase: 0", stages, 1);
    assert_eq!(t.iter().filter(|x| **x < 540.0).count(), 5400);
    assert_eq!(t.len(), 5400 + 1200);
    // A ramp from 0 to 10 in 100 s: half of the 500 come before 100/sqrt(2) s.
    let t =
        times("100s", "process: constant, rate: 10, phase: 0.5", ", stages: [{for: 100s, scale: [0, 1]}]", 1);
    assert_eq!(t.len(), 500);
    assert!((t[250] - 70.7).abs() < 0.2, "{}", t[250]);
    // What is repeated begins again; a pause has no arrivals.
    let stages = ", stages: [{for: 10s, scale: 1}, {for: 10s, scale: 0}], repeat: true";
    let t = times("100s", "process: constant, rate: 2, phase: 0.5", stages, 1);
    assert_eq!(t.len(), 100);
    assert!(t.iter().all(|x| x % 20.0 < 10.0));
    // The last stage stays.
    let t = times("100s", "process: constant, rate: 2, phase: 0.5", ", stages: [{for: 10s, scale: 3}]", 1);
    assert_eq!(t.len(), 600);
}

#[test]
fn exact_counts_are_exact_in_every_stage() {
    for seed in 0..20 {
        let stages = ", stages: [{for: 60s, scale: 1}, {for: 60s, scale: 2.5}, {for: 30s, scale: [2, 0]}]";
        let t = times("150s", "process: exact, rate: 8", stages, seed);
        let count = |from: f64, to: f64| t.iter().filter(|x| (from..to).contains(*x)).count();
        assert_eq!((count(0.0, 60.0), count(60.0, 120.0), count(120.0, 150.0)), (480, 1200, 240));
    }
    // Cut by the window: 8 * 50 of the first 60 s.
    assert_eq!(times("50s", "process: exact, rate: 8", ", stages: [{for: 60s, scale: 1}]", 1).len(), 400);
    let g = gaps(&times("1000s", "process: exact, rate: 50, cv: 2", "", 1));
    assert!((cv(&g) - 2.0).abs() < 0.1, "{}", cv(&g));
}

#[test]
fn a_closed_loop_sends_when_it_is_answered() {
    let w = one("100s", &format!("arrivals: {{process: closed, users: 3, think: 2s, ramp: 3s}}, {LENGTHS}"));
    let mut arrivals = w.arrivals(1);
    let mut times = Vec::new();
    let mut inside = std::collections::VecDeque::new();
    loop {
        // Each answer takes 1 s.
        let done = inside.front().map(|(at, _)| *at);
        match (arrivals.peek_at(), done) {
            (Some(next), Some(done)) if done <= next => {
                let (at, number) = inside.pop_front().unwrap();
                arrivals.ended(number, at);
            }
            (Some(_), _) => {
                let a = arrivals.next().unwrap();
                inside.push_back((a.at + forebay_base::Span::secs(1), a.number));
                times.push(a.at.0 / 1_000_000_000);
                assert!(inside.len() <= 3);
            }
            (None, Some(_)) => {
                let (at, number) = inside.pop_front().unwrap();
                arrivals.ended(number, at);
            }
            (None, None) => break,
        }
    }
    assert_eq!(times.len(), 100, "3 users, a request every 3 s each, staggered by 1 s");
    assert_eq!(times[..6], [0, 1, 2, 3, 4, 5]);
}

#[test]
fn retries_come_later_and_are_the_same_request() {
    let w = one(
        "10s",
        "arrivals: {process: poisson, rate: 1}, input: {uniform: [1, 100000]}, output: 5, \
         retry: {attempts: 3, backoff: 1s}",
    );
    let mut arrivals = w.arrivals(5);
    let first = arrivals.next().unwrap();
    assert!(arrivals.refused(first.number, first.at));
    let mut again = Vec::new();
    while let Some(a) = arrivals.next() {
        if a.prompt_tokens == first.prompt_tokens {
            again.push((a.at.since(first.at).0 / 1_000_000_000, a.attempt));
            assert_eq!(arrivals.refused(a.number, a.at), a.attempt < 2);
        }
    }
    assert_eq!(again, [(1, 1), (3, 2)]);
}

#[test]
fn presets_are_the_published_workloads() {
    for (name, critical, total, seconds) in [
        ("code", 0.3, 16.0, 600.0),
        ("code_gamma3", 0.3, 16.0, 600.0),
        ("chat_30", 0.3, 60.0, 600.0),
        ("chat_80", 0.8, 60.0, 600.0),
        ("reasoning", 0.5, 0.7, 1000.0),
    ] {
        let w = forebay_workload::Workload::preset(name).unwrap();
        assert!((w.rate() - total).abs() < 1e-9, "{name}");
        assert_eq!(w.mode.window.as_secs_f64(), seconds);
        let share = w.classes[0].arrivals.as_ref().unwrap().rate().unwrap() / total;
        assert!((share - critical).abs() < 1e-9, "{name}");
        assert_eq!((w.classes[0].priority, w.classes[1].priority), (100, -50));
    }
    let code = forebay_workload::Workload::preset("code").unwrap();
    for (rate, count) in [(4.0, 2400), (10.0, 6000), (16.0, 9600), (24.0, 14400)] {
        assert_eq!(all(&code.with_rate(rate), 42).len(), count);
    }
    let a = all(&code, 42);
    let inputs: Vec<f64> = a.iter().map(|a| f64::from(a.prompt_tokens)).collect();
    let outputs: Vec<f64> = a.iter().map(|a| f64::from(a.output_tokens)).collect();
    assert!((mean(&inputs) - 1500.0).abs() < 40.0, "{}", mean(&inputs));
    assert!((mean(&outputs) - 420.0).abs() < 20.0, "{}", mean(&outputs));
    let median = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    assert!((median(inputs) / 1171.0 - 1.0).abs() < 0.03);
    assert!((median(outputs) / 195.0 - 1.0).abs() < 0.05);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the rate goes: each stage has the whole numbers between its expected counts.
    #[test]
    fn exact_counts_follow_the_expected_ones(
        stages in prop::collection::vec((1..20u32, 0..4u32, 0..4u32), 1..6),
        rate in 0.0..50.0f64,
        seed in any::<u64>(),
    ) {
        let list: Vec<String> = stages.iter().map(|(s, a, b)| format!("{{for: {s}s, scale: [{a}, {b}]}}")).collect();
        let more = format!(", stages: [{}]", list.join(", "));
        let window: u32 = stages.iter().map(|s| s.0).sum();
        let t = times(&format!("{window}s"), &format!("process: exact, rate: {rate}"), &more, seed);
        let (mut from, mut expected) = (0.0, 0.0f64);
        for (s, a, b) in stages {
            let to = from + f64::from(s);
            let next = expected + rate * f64::from(a + b) / 2.0 * f64::from(s);
            let count = t.iter().filter(|x| (from..to).contains(*x)).count() as f64;
            // Sums in another order may round a half the other way.
            prop_assert!((count - ((next + 0.5).floor() - (expected + 0.5).floor())).abs() <= 1.0);
            if ((next + 0.5).fract() - 0.5).abs() < 0.499 && ((expected + 0.5).fract() - 0.5).abs() < 0.499 {
                prop_assert_eq!(count, (next + 0.5).floor() - (expected + 0.5).floor());
            }
            (from, expected) = (to, next);
        }
    }

    #[test]
    fn times_ascend_within_the_window(
        process in prop::sample::select(vec![
            "constant", "poisson", "gamma, cv: 3", "weibull, cv: 1.5", "on-off, busy: 1s, idle: 3s", "exact",
        ]),
        rate in 0.0..200.0f64,
        a in 0.0..3.0f64,
        b in 0.0..3.0f64,
        repeat in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let w = read(&format!(
            "version: 1\nname: t\nmode: {{kind: surge, window: 20s, warmup: 1s}}\n\
             stages: [{{for: 3s, scale: [{a}, {b}]}}, {{for: 2s, scale: {b}}}]\nrepeat: {repeat}\nclasses:\n  \
             c: {{arrivals: {{process: {process}, rate: {rate}}}, input: 5, output: 6}}\n  \
             d: {{arrivals: {{process: {process}, rate: {rate}}}, input: 5, output: 6}}\n"
        ));
        let arrivals = all(&w, seed);
        for (i, a) in arrivals.iter().enumerate() {
            prop_assert_eq!(a.number, i as u64);
            prop_assert!(a.at.0 < 21_000_000_000);
            prop_assert_eq!((a.prompt_tokens, a.output_tokens), (5, 6));
        }
        for pair in arrivals.windows(2) {
            prop_assert!((pair[0].at, pair[0].class) <= (pair[1].at, pair[1].class) || pair[0].at < pair[1].at);
        }
        prop_assert_eq!(arrivals, all(&w, seed));
    }
}
