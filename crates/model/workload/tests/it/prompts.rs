//! What prompts have in common.

use crate::{all, one, read};
use forebay_workload::Arrival;
use std::collections::BTreeSet;

/// Hashes at the front that two requests have in common.
fn common(a: &Arrival, b: &Arrival) -> usize {
    a.prefix.iter().zip(b.prefix.iter()).take_while(|(x, y)| x == y).count()
}

const RATE: &str = "arrivals: {process: constant, rate: 10}, output: 7";

#[test]
fn who_shares_nothing_has_no_hashes() {
    let a = all(&one("10s", &format!("{RATE}, input: 1000")), 1);
    assert!(a.iter().all(|a| a.prefix.is_empty() && a.prompt_tokens == 1000 && a.bytes == 4256));
    assert_eq!(a[0].router_blocks(64).count(), 0);
}

#[test]
fn groups_share_their_prefix_and_no_more() {
    // 100 tokens are 6 full blocks; the seventh ends in the question.
    let a = all(&one("60s", &format!("{RATE}, input: 50, prompts: {{groups: 3, prefix: 100}}")), 1);
    assert!(a.iter().all(|a| a.prompt_tokens == 150 && a.prefix.len() == 6));
    let texts: BTreeSet<&[u64]> = a.iter().map(|a| &*a.prefix).collect();
    assert_eq!(texts.len(), 3);
    assert_eq!(a[0].router_blocks(64).collect::<Vec<_>>(), [a[0].prefix[3]], "64 of 100 tokens");
    for (x, y) in a.iter().zip(&a[1..]) {
        assert!([0, 6].contains(&common(x, y)));
    }
}

#[test]
fn a_pool_is_cycled_in_one_shuffled_order() {
    let class = "input: {uniform: [100, 900]}, prompts: {groups: 2, prefix: 64, pool: 5, order: ORDER}";
    let of = |order: &str| all(&one("10s", &format!("{RATE}, {}", class.replace("ORDER", order))), 4);
    let a = of("shuffled-cycle");
    assert_eq!(a.len(), 100);
    for (i, x) in a.iter().enumerate() {
        assert_eq!(x.prefix, a[i % 10].prefix, "the same prompt every ten");
        assert_eq!(x.prompt_tokens, a[i % 10].prompt_tokens);
        assert_eq!(x.prefix.len() as u32, x.prompt_tokens / 16, "all of it can be found again");
    }
    let first: Vec<_> = a[..10].iter().map(|x| x.prefix.to_vec()).collect();
    let different: BTreeSet<_> = first.iter().collect();
    assert_eq!(different.len(), 10);
    let groups: BTreeSet<_> = first.iter().map(|p| p[..4].to_vec()).collect();
    assert_eq!(groups.len(), 2);
    // The other orders have the same prompts.
    for order in ["reshuffled", "cycle", "random"] {
        let b = of(order);
        let prompts: BTreeSet<_> = b.iter().map(|x| x.prefix.to_vec()).collect();
        assert_eq!(prompts, first.iter().cloned().collect(), "{order}");
        let repeats = b.iter().enumerate().all(|(i, x)| x.prefix == b[i % 10].prefix);
        assert_eq!(repeats, order == "cycle", "{order}");
        let rounds = b.chunks(10).all(|r| r.iter().map(|x| &x.prefix).collect::<BTreeSet<_>>().len() == 10);
        assert_eq!(rounds, order != "random", "{order}");
    }
}

#[test]
fn skew_makes_the_first_group_the_most_asked() {
    let a = all(
        &one(
            "1000s",
            &format!("{RATE}, input: 5, prompts: {{groups: 4, prefix: 16, order: random, skew: 1}}"),
        ),
        1,
    );
    let mut counts = std::collections::BTreeMap::new();
    for x in &a {
        *counts.entry(x.prefix.to_vec()).or_insert(0u32) += 1;
    }
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // Weights 1, 1/2, 1/3, 1/4 of 25/12.
    for (n, share) in counts.iter().zip([0.48, 0.24, 0.16, 0.12]) {
        assert!((f64::from(*n) / 10_000.0 - share).abs() < 0.02, "{counts:?}");
    }
}

#[test]
fn names_let_classes_share_their_texts() {
    let class = |more: &str| format!("{{{RATE}, input: 5, prompts: {{groups: 1, prefix: 32{more}}}}}");
    let with = |more: &str| {
        let c = class(more);
        let w = read(&format!(
            "version: 1\nname: t\nmode: {{kind: surge, window: 1s}}\nclasses: {{a: {c}, b: {c}}}\n"
        ));
        let a = all(&w, 1);
        common(a.iter().find(|a| a.class == 0).unwrap(), a.iter().find(|a| a.class == 1).unwrap())
    };
    assert_eq!((with(""), with(", name: x")), (0, 2));
}

#[test]
fn a_session_repeats_all_that_was_said() {
    let class = "arrivals: {process: constant, rate: 1}, input: {uniform: [10, 90]}, output: {uniform: [10, 90]}, \
                 prompts: {groups: 2, prefix: 100}, sessions: {turns: 4, think: 3s, maxContext: 100000}";
    let w = one("20s", class);
    let mut arrivals = w.arrivals(9);
    let mut sessions = std::collections::BTreeMap::new();
    while let Some(a) = arrivals.next() {
        arrivals.ended(a.number, a.at + forebay_base::Span::secs(2));
        sessions.entry(a.session.unwrap()).or_insert_with(Vec::new).push(a);
    }
    assert_eq!(sessions.len(), 20);
    for turns in sessions.values() {
        assert_eq!(turns.len(), 4);
        for (x, y) in turns.iter().zip(&turns[1..]) {
            assert_eq!(y.at.since(x.at).0, 5_000_000_000, "an answer in 2 s, then 3 s");
            let said = x.prompt_tokens + x.output_tokens;
            assert!((10..=90).contains(&(y.prompt_tokens - said)));
            assert_eq!(x.prefix.len() as u32, said / 16, "prompt and answer");
            assert_eq!(common(x, y), x.prefix.len());
            assert_eq!(x.flow, y.flow);
        }
    }
    let firsts: Vec<&Arrival> = sessions.values().map(|t| &t[0]).collect();
    for (x, y) in firsts.iter().zip(&firsts[1..]) {
        assert!([0, 6].contains(&common(x, y)), "sessions share only the group's text");
    }
}

#[test]
fn a_session_ends_where_its_context_is_full_and_where_it_was_refused() {
    let class = "arrivals: {process: constant, rate: 1}, input: 100, output: 100, sessions: {turns: 50, maxContext: 500}";
    let w = one("1s", class);
    let a = all(&w, 1);
    assert_eq!(a.iter().map(|a| a.prompt_tokens).collect::<Vec<_>>(), [100, 300, 500]);
    let mut arrivals = w.arrivals(1);
    let first = arrivals.next().unwrap();
    assert!(!arrivals.refused(first.number, first.at));
    assert_eq!(arrivals.next(), None);
    let alone = one("1s", &class.replace("maxContext: 500", "history: none"));
    let a = all(&alone, 1);
    assert_eq!(a.len(), 50);
    assert!(a.iter().all(|a| a.prompt_tokens == 100 && a.prefix.is_empty()));
}

#[test]
fn adapters_do_not_share_blocks() {
    let class =
        format!("{RATE}, input: 5, prompts: {{groups: 1, prefix: 64}}, lora: {{adapters: 2, share: 0.5}}");
    let w = one("100s", &class);
    let a = all(&w, 1);
    let share = a.iter().filter(|a| a.lora.is_some()).count();
    assert!((400..600).contains(&share), "{share}");
    for x in &a {
        for y in a.iter().take(20) {
            assert_eq!(common(x, y), if x.lora == y.lora { 4 } else { 0 });
        }
    }
    assert_eq!((w.lora_name(0), w.lora_name(1)), ("c-lora-0".to_owned(), "c-lora-1".to_owned()));
}

#[test]
fn flows_have_names_and_are_spread() {
    let w = one("100s", &format!("{RATE}, input: 5, flows: 4"));
    let mut counts = [0; 4];
    for a in all(&w, 1) {
        counts[a.flow as usize] += 1;
    }
    assert!(counts.iter().all(|n| (200..300).contains(n)), "{counts:?}");
    assert_eq!((w.flow_name(3), w.flows()), ("c-3".to_owned(), 4));
    assert_eq!(one("1s", &format!("{RATE}, input: 5")).flow_name(0), "c");
}
