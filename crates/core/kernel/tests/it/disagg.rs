//! Disaggregation: the prompt at one endpoint, the answer at another.

use crate::common::{Setup, plugin, sample};
use crate::rig::Rig;
use forebay_base::{Draws, Nanos, Purpose};
use forebay_kernel::plan::PrefillPlan;
use forebay_kernel::plugin::Value;
use forebay_kernel::pool::{Load, Stages};
use forebay_kernel::{Ask, Effect, EndpointId, EndpointSpec, Id, Plan, Progress, Usage};
use std::sync::Arc;

/// Splits prompts of which 100 tokens or more are not held.
fn plan() -> Arc<Plan> {
    let mut plan = (*Setup::default().plan()).clone();
    let mut profile = plan.profile.clone();
    profile.filters = vec![plugin("prefill-filter", &[]).filter.unwrap()];
    plan.profile.filters = vec![plugin("decode-filter", &[]).filter.unwrap()];
    let decider = plugin("prefix-based-pd-decider", &[("nonCachedTokens", Value::Int(100))]).decider;
    plan.prefill = Some(PrefillPlan { profile, decider });
    plan.prefix = plugin("approx-prefix-cache-producer", &[]).prefix;
    Arc::new(plan)
}

fn add(r: &mut Rig, name: &str, role: &str) -> EndpointId {
    let labels = vec![(Stages::LABEL.to_owned(), role.to_owned())];
    let e = r.k.add_endpoint(Nanos::ZERO, EndpointSpec { name: name.to_owned(), labels }, &mut r.fx);
    r.scrape(0, e, &sample(0.0, 0.0));
    e
}

fn ask(r: &mut Rig, at: u64, tokens: u32, prefix: &[u64]) -> (Id, Vec<Effect>) {
    let ask = Ask {
        flow: "f",
        bytes: 10,
        prompt_tokens: tokens,
        prefix: prefix.into(),
        block_tokens: 64,
        streaming: true,
        ..Ask::default()
    };
    let id = r.ask(at, &ask);
    (id, r.taken())
}

fn load(r: &Rig, e: EndpointId) -> Load {
    r.k.pool().get(e).unwrap().load
}

fn went(effects: &[Effect]) -> (EndpointId, Option<EndpointId>) {
    match effects {
        [Effect::Dispatch { endpoint, prefill, .. }] => (*endpoint, *prefill),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_split_request_is_a_lease_at_both_until_its_first_token() {
    let mut r = Rig::of(plan());
    let (p, d) = (add(&mut r, "p", "prefill"), add(&mut r, "d", "decode"));
    let (id, said) = ask(&mut r, 1, 1000, &(1..16).collect::<Vec<u64>>());
    assert_eq!(went(&said), (d, Some(p)));
    // It waits where its prompt is computed; its KV will come to the other one.
    assert_eq!(load(&r, p), Load { requests: 1, pending: 1, pending_tokens: 1000, tokens: 1000 });
    assert_eq!(load(&r, d), Load { requests: 1, pending: 0, pending_tokens: 1000, tokens: 1000 });
    r.k.progress(Nanos(2), id, Progress::FirstToken, &mut r.fx);
    assert_eq!(load(&r, p), Load::default());
    assert_eq!(load(&r, d), Load { requests: 1, ..Load::default() });
    r.k.progress(Nanos(3), id, Progress::Finished(Usage::default()), &mut r.fx);
    assert_eq!(load(&r, d), Load::default());
    // Both hold the prompt now, so that the decoding one needs nobody for the same again.
    let (_, said) = ask(&mut r, 4, 1000, &(1..16).collect::<Vec<u64>>());
    assert_eq!(went(&said), (d, None));
    assert!(r.k.ledgers().balanced());
}

#[test]
fn short_prompts_and_pools_of_one_role_are_not_split() {
    let mut r = Rig::of(plan());
    let d = add(&mut r, "d", "decode");
    let (_, said) = ask(&mut r, 1, 1000, &[]);
    assert_eq!(went(&said), (d, None), "nobody computes prompts");
    add(&mut r, "p", "prefill");
    let (_, said) = ask(&mut r, 2, 99, &[]);
    assert_eq!(went(&said), (d, None));
    // One that does both is no other endpoint.
    let mut r = Rig::of(plan());
    let both = add(&mut r, "b", "both");
    let (_, said) = ask(&mut r, 1, 1000, &[]);
    assert_eq!(went(&said), (both, None));
    // Without anybody who decodes there is no answer.
    let mut r = Rig::of(plan());
    add(&mut r, "p", "prefill");
    let (_, said) = ask(&mut r, 1, 1000, &[]);
    assert!(matches!(said[..], [Effect::End { .. }]), "{said:?}");
}

#[test]
fn with_prefill_first_every_prompt_goes_elsewhere() {
    let mut plan = (*plan()).clone();
    plan.prefill.as_mut().unwrap().decider = None;
    let mut r = Rig::of(Arc::new(plan));
    let (p, d) = (add(&mut r, "p", "prefill"), add(&mut r, "d", "decode"));
    let (_, said) = ask(&mut r, 1, 5, &[]);
    assert_eq!(went(&said), (d, Some(p)));
}

/// Ends of all kinds, retries and endpoints that leave, in a random order: loads stay the fold over leases
/// (checked within every call), and nothing is left in the end.
#[test]
fn nothing_is_left_at_either_endpoint_whatever_happens() {
    let (draws, what) = (Draws::new(5), Purpose::named("test-disagg"));
    let mut r = Rig::of(plan());
    let mut pool: Vec<EndpointId> = Vec::new();
    for i in 0..6 {
        pool.push(add(&mut r, &format!("e{i}"), if i % 2 == 0 { "prefill" } else { "decode" }));
    }
    let mut live: Vec<Id> = Vec::new();
    let mut split = 0;
    for step in 0..2_000 {
        let pick = |n: usize| draws.below(what, step, 1, n as u64) as usize;
        let at = 10 + step;
        match draws.below(what, step, 0, 8) {
            0..3 => {
                let (id, said) = ask(&mut r, at, 20 + 10 * pick(40) as u32, &[]);
                if let [Effect::Dispatch { prefill, .. }] = said[..] {
                    split += u32::from(prefill.is_some());
                    live.push(id);
                }
            }
            3 if !live.is_empty() => {
                let id = live[pick(live.len())];
                r.k.progress(Nanos(at), id, Progress::FirstToken, &mut r.fx);
            }
            4 | 5 if !live.is_empty() => {
                let id = live.swap_remove(pick(live.len()));
                let end = Progress::Finished(Usage::default());
                r.k.progress(Nanos(at), id, if pick(2) == 0 { end } else { Progress::Failed }, &mut r.fx);
            }
            6 if !live.is_empty() => r.k.gone(Nanos(at), live.swap_remove(pick(live.len())), &mut r.fx),
            7 if !live.is_empty() && step % 3 == 0 => {
                let (id, avoid) = (live[pick(live.len())], pool[pick(pool.len())]);
                r.k.retry(Nanos(at), id, avoid, &mut r.fx);
                if r.taken().iter().any(|e| matches!(e, Effect::End { .. })) {
                    live.retain(|l| *l != id);
                }
            }
            7 => {
                let i = pick(pool.len());
                r.k.remove_endpoint(Nanos(at), pool[i], &mut r.fx);
                pool[i] = add(&mut r, &format!("n{step}"), if i % 2 == 0 { "prefill" } else { "decode" });
            }
            _ => {}
        }
        r.taken();
        assert!(r.k.load_is_consistent(), "step {step}");
    }
    assert!(split > 100, "{split}");
    for id in live {
        r.k.gone(Nanos(9_000), id, &mut r.fx);
    }
    for e in pool {
        assert_eq!(load(&r, e), Load::default());
    }
    let ledgers = r.k.ledgers();
    assert!(ledgers.balanced() && ledgers.live == 0, "{ledgers:?}");
}
