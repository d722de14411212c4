//! One class does not shift another.

use crate::{all, digest, read};
use forebay_workload::{Arrival, Workload};

const A: &str = "  a: {arrivals: {process: gamma, cv: 2, rate: 5}, input: {lognormal: [5, 1]}, output: {normal: [100, 30]}, flows: 4}\n";
const B: &str = "  b: {arrivals: {process: poisson, rate: 9}, input: {uniform: [1, 500]}, output: 10, prompts: {groups: 3, prefix: 64, pool: 5}}\n";

fn with(classes: &[&str]) -> Workload {
    let classes = classes.concat();
    read(&format!("version: 1\nname: t\nmode: {{kind: surge, window: 100s}}\nclasses:\n{classes}"))
}

/// What a class sends, without what depends on its place in the file.
fn of(w: &Workload, name: &str) -> Vec<Arrival> {
    let class = w.class(name).expect("a class of the file");
    let first_flow = (0..w.flows()).find(|f| w.flow_name(*f).starts_with(name)).expect("it has flows");
    let mine = all(w, 11).into_iter().filter(|a| a.class == class);
    mine.map(|a| Arrival { number: 0, class: 0, flow: a.flow - first_flow, ..a }).collect()
}

#[test]
fn a_class_sends_the_same_whoever_stands_beside_it() {
    let alone = of(&with(&[A]), "a");
    assert!(alone.len() > 300);
    assert_eq!(of(&with(&[A, B]), "a"), alone);
    assert_eq!(of(&with(&[B, A]), "a"), alone);
    assert_eq!(of(&with(&[B, A]), "b"), of(&with(&[B]), "b"));
    let other = all(&with(&[A]), 12);
    assert_ne!(other[0].at, alone[0].at);
}

#[test]
fn another_rate_moves_the_same_requests() {
    let w = with(&[A, B]);
    let (slow, fast) = (of(&w, "a"), of(&w.with_scale(2.0), "a"));
    assert!(fast.len() > slow.len());
    for (s, f) in slow.iter().zip(&fast) {
        assert!(s.at.0.abs_diff(2 * f.at.0) <= 2);
        let f = Arrival { at: s.at, ..f.clone() };
        assert_eq!(*s, f);
    }
    assert!((w.with_rate(28.0).rate() - 28.0).abs() < 1e-9);
}

/// What a policy does to requests decides when later ones of a closed loop come, not what they are.
#[test]
fn answers_move_requests_of_users_and_change_nothing_else() {
    let w = read(
        "version: 1\nname: t\nmode: {kind: surge, window: 1000s}\nclasses:\n  c: {arrivals: {process: closed, users: 4, \
         think: {exponential: 3}}, input: {uniform: [1, 100000]}, output: 3, sessions: {turns: 3, think: 1s}}\n",
    );
    let run = |delay: u64| {
        let mut arrivals = w.arrivals(3);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..100 {
            let a = arrivals.next().unwrap();
            arrivals.ended(a.number, a.at + forebay_base::Span::secs((a.number * delay) % 7));
            seen.entry(a.session.unwrap()).or_insert_with(Vec::new).push((a.prompt_tokens, a.prefix));
        }
        seen
    };
    let (x, y) = (run(1), run(3));
    let mut compared = 0;
    for (session, turns) in &x {
        for (a, b) in turns.iter().zip(y.get(session).into_iter().flatten()) {
            assert_eq!(a, b);
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
}

/// Anything published depends on these; they change only when a draw is meant to change. That of `code` is
/// also what thirty lines of Python make from the published definitions (SplitMix64, FNV-1a, and the
/// quantiles of `statistics.NormalDist`).
#[test]
fn digests() {
    let found: Vec<(&str, usize, u64)> = forebay_workload::PRESETS
        .iter()
        .map(|(name, _)| {
            let a = all(&Workload::preset(name).unwrap(), 42);
            (*name, a.len(), digest(&a))
        })
        .collect();
    assert_eq!(
        found,
        [
            ("code", 9600, 0xb136_bb53_ca46_2288),
            ("chat_30", 36000, 0xc473_f917_b16b_f1fb),
            ("chat_80", 36000, 0x1bcd_1428_b6ef_dafd),
            ("reasoning", 700, 0xbfcc_d14c_39f4_90fa),
            ("code_gamma3", 9715, 0x75ee_fdf1_f0e7_83aa),
            ("part1_balanced", 16261, 0xcc86_c33b_17e5_40c2),
            ("part1_w2", 16271, 0x49e1_e4fc_d8cb_9acf),
            ("part1_chatbot", 8142, 0x9002_9f58_88f8_580f),
            ("part1_codecompletion", 40475, 0x987c_d7af_8f6f_6d79),
            ("part1_blindspot", 8177, 0x0e1d_a121_5f25_68a7),
            ("summarization", 2766, 0xb451_76d9_d5ee_a25e),
            ("rag_long_context", 1587, 0x388c_f3c2_299e_4c6d),
            ("agentic", 6002, 0x9cac_d0fe_87da_a1a1),
        ]
    );
}

#[test]
fn a_million_arrivals_take_no_memory_to_speak_of() {
    let w = with(&[A, B]).with_rate(10_000.0);
    let mut arrivals = w.arrivals(1);
    let mut n = 0u64;
    while let Some(a) = arrivals.next() {
        n += 1;
        assert_eq!(arrivals.followed(), 0, "nothing of {a:?} is kept");
    }
    assert!((n as f64 - 1e6).abs() < 2e4, "{n}");
}
