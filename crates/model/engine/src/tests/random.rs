//! Invariants under random load, and both step modes side by side.

use super::*;
use crate::Gaps;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One input of the random runs.
#[derive(Clone, Debug)]
enum Input {
    Arrive { prompt: u32, output: u32, group: u64, shared: u32, priority: i64 },
    Abort { nth: usize },
    Pass { micros: u64 },
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let one = prop_oneof![
        4 => (1u32..140, 1u32..60, 0u64..3, 0u32..8, -2i64..3).prop_map(
            |(prompt, output, group, shared, priority)| Input::Arrive { prompt, output, group, shared, priority }
        ),
        1 => (0usize..50).prop_map(|nth| Input::Abort { nth }),
        3 => (0u64..20_000).prop_map(|micros| Input::Pass { micros }),
    ];
    prop::collection::vec(one, 1..60)
}

fn specs() -> impl Strategy<Value = EngineSpec> {
    let release = prop_oneof![Just("0.27"), Just("0.32")];
    let loras = prop::option::of(1u32..4);
    let rules = (any::<bool>(), any::<bool>(), 0u64..2000, 0.0..0.2f64, release, loras);
    (13u32..60, 1u32..9, 0u32..3, any::<bool>(), any::<bool>(), prop_oneof![Just(0u32), Just(24)], rules)
        .prop_map(
            |(
                blocks,
                seqs,
                budget,
                caching,
                priority,
                threshold,
                (pipelined, gate, request, watermark, release, loras),
            )| {
                let mut spec = tiny(blocks);
                spec.version = Version::find(release).unwrap();
                spec.async_scheduling = Some(pipelined);
                spec.reserve_full_prompt = Some(gate);
                spec.watermark = if spec.version.has_watermark { watermark } else { 0.0 };
                spec.max_loras = loras;
                spec.hardware.factors.request = Span::micros(request);
                spec.max_num_seqs = Some(seqs);
                spec.max_num_batched_tokens = Some([16, 64, 512][budget as usize].max(seqs));
                spec.prefix_caching = caching;
                spec.scheduling = if priority { Scheduling::Priority } else { Scheduling::Fcfs };
                spec.long_prefill_token_threshold = threshold;
                spec
            },
        )
}

/// One request of two has one of five adapters.
fn adapter(i: usize) -> Option<u16> {
    (i.is_multiple_of(2)).then_some((i / 2 % 5) as u16)
}

/// What the outside knows of each request.
#[derive(Default)]
struct Ledger {
    wanted: BTreeMap<u64, u32>,
    tokens: BTreeMap<u64, u32>,
    ends: BTreeMap<u64, u32>,
    aborted: BTreeMap<u64, u32>,
    last: Nanos,
}

impl Ledger {
    fn read(&mut self, events: &[EngineEvent]) {
        for e in events {
            let at = match *e {
                EngineEvent::Token { id, index, at } => {
                    let n = self.tokens.entry(id).or_default();
                    assert_eq!(index, *n, "tokens come in order, none twice");
                    *n += 1;
                    assert!(!self.ends.contains_key(&id) && !self.aborted.contains_key(&id));
                    at
                }
                EngineEvent::Finished { id, at, .. } => {
                    *self.ends.entry(id).or_default() += 1;
                    assert_eq!(self.tokens[&id], self.wanted[&id]);
                    at
                }
                EngineEvent::Admitted { at, .. }
                | EngineEvent::Preempted { at, .. }
                | EngineEvent::StepEnd { at, .. } => at,
            };
            assert!(at >= self.last, "time does not run back");
            self.last = at;
        }
    }
}

/// Every block's count equals the requests that hold it, and the free ones are the rest.
fn check_blocks(engine: &Engine) {
    let mut refs: BTreeMap<u32, u32> = BTreeMap::new();
    let mut own = 0;
    for seq in &engine.seqs {
        own += seq.own;
        for &b in &seq.named {
            *refs.entry(b).or_default() += 1;
        }
    }
    for (&b, &n) in &refs {
        assert_eq!(engine.blocks.refs(b), n, "block {b}");
    }
    assert_eq!(refs.len() as u32 + own + engine.blocks.free(), engine.blocks.total());
    let spec = &engine.config.spec;
    for seq in &engine.seqs {
        assert!(seq.held() == seq.computed.div_ceil(spec.block_size) || seq.held() == 0);
    }
    assert!(engine.running.len() <= engine.config.max_num_seqs as usize);
    for batch in [&engine.current, &engine.next] {
        let there = batch.entries.iter().filter(|e| engine.seqs[e.slot as usize].generation == e.generation);
        let loras: BTreeSet<u16> = there.filter_map(|e| engine.seqs[e.slot as usize].lora).collect();
        assert!(!batch.active || engine.config.spec.max_loras.is_none_or(|max| loras.len() <= max as usize));
    }
}

/// Runs the inputs; the events, and the ledger that watched them.
fn drive(spec: &EngineSpec, inputs: &[Input]) -> (Vec<EngineEvent>, Ledger) {
    let config = resolved(spec);
    let mut engine = Engine::new(&config, Nanos::ZERO);
    let mut ledger = Ledger::default();
    let (mut now, mut all, mut events) = (Nanos::ZERO, Vec::new(), Vec::new());
    for (i, input) in inputs.iter().enumerate() {
        match *input {
            Input::Arrive { prompt, output, group, shared, priority } => {
                let id = i as u64;
                let names = prefix(group, id, shared, prompt / 16);
                let job = Job {
                    id,
                    prompt_tokens: prompt,
                    output_tokens: output,
                    prefix: names,
                    priority,
                    class: (i % 3) as u16,
                    lora: adapter(i),
                };
                engine.arrive(now, job).unwrap();
                ledger.wanted.insert(id, output.min(config.max_model_len - prompt));
            }
            Input::Abort { nth } => {
                let ids: Vec<u64> = ledger.wanted.keys().copied().collect();
                if let Some(&id) = ids.get(nth) {
                    let live = !ledger.ends.contains_key(&id) && !ledger.aborted.contains_key(&id);
                    let got = engine.abort(now, id);
                    assert_eq!(got.is_some(), live, "an abort succeeds once, and not after the end");
                    if let Some(a) = got {
                        assert_eq!(a.tokens, ledger.tokens.get(&id).copied().unwrap_or(0));
                        ledger.aborted.insert(id, 1);
                    }
                }
            }
            Input::Pass { micros } => {
                now += Span::micros(micros);
                while let Some(at) = engine.next_event().filter(|&at| at <= now) {
                    let before = engine.published();
                    engine.advance(at, &mut events);
                    let stepped = events.iter().any(|e| matches!(e, EngineEvent::StepEnd { .. }));
                    assert!(stepped || engine.published() == before, "published without a step end");
                    check_blocks(&engine);
                    ledger.read(&events);
                    all.append(&mut events);
                }
            }
        }
        check_blocks(&engine);
    }
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut events);
        check_blocks(&engine);
        ledger.read(&events);
        all.append(&mut events);
    }
    assert_eq!(engine.live(), 0);
    assert_eq!(engine.blocks.free(), engine.blocks.total());
    assert_eq!(
        engine.published().generation_tokens,
        ledger.tokens.values().map(|&n| u64::from(n)).sum::<u64>()
    );
    (all, ledger)
}

/// What both modes have to agree on.
fn milestones(events: &[EngineEvent]) -> Vec<EngineEvent> {
    let keep = |e: &&EngineEvent| match e {
        EngineEvent::Token { index, .. } => *index == 0,
        EngineEvent::StepEnd { .. } => false,
        _ => true,
    };
    events.iter().filter(keep).copied().collect()
}

/// Runs both modes side by side: the same milestones, the same answers to aborts, the same counters at
/// many instants, whether the caller looks through the engine's own times or past them, the same gaps.
fn side_by_side(spec: &EngineSpec, inputs: &[Input]) -> u64 {
    let config = resolved(spec);
    let mut exact = Engine::new(&config, Nanos::ZERO);
    let mut bulk = Engine::with_mode(&config, Nanos::ZERO, StepMode::Macro);
    exact.record_gaps();
    bulk.record_gaps();
    let (mut now, mut all, mut some) = (Nanos::ZERO, Vec::new(), Vec::new());
    let (mut wakes, mut firsts) = (0, 0);
    let mut pass = |exact: &mut Engine, bulk: &mut Engine, now: Nanos| {
        exact.advance(now, &mut all);
        firsts += all.iter().filter(|e| matches!(e, EngineEvent::Token { index: 0, .. })).count() as u64;
        while let Some(at) = bulk.next_event().filter(|&at| at <= now) {
            bulk.advance(at, &mut some);
            wakes += 1;
        }
        assert_eq!(exact.published(), bulk.published_at(now));
        assert_eq!(exact.adapters_at(now), bulk.adapters_at(now));
        assert_eq!(milestones(&all), some);
        assert_eq!(exact.live(), bulk.live());
        all.clear();
        some.clear();
    };
    for (i, input) in inputs.iter().enumerate() {
        match *input {
            Input::Arrive { prompt, output, group, shared, priority } => {
                // Every third request names the blocks that its output fills.
                let names = prefix(group, i as u64, shared, (prompt + output * u32::from(i % 3 == 0)) / 16);
                let job = Job {
                    id: i as u64,
                    prompt_tokens: prompt,
                    output_tokens: output,
                    prefix: names,
                    priority,
                    class: (i % 3) as u16,
                    lora: adapter(i),
                };
                assert_eq!(exact.arrive(now, job.clone()), bulk.arrive(now, job));
            }
            Input::Abort { nth } => {
                let id = nth as u64;
                assert_eq!(exact.abort(now, id), bulk.abort(now, id));
            }
            Input::Pass { micros } => {
                for part in 1..=7 {
                    pass(&mut exact, &mut bulk, now + Span::micros(micros * part / 7));
                    if part == 3 {
                        // A late caller changes nothing either.
                        bulk.advance(now + Span::micros(micros * part / 7), &mut Vec::new());
                    }
                }
                now += Span::micros(micros);
            }
        }
    }
    let mut end = now;
    while exact.live() > 0 {
        end += Span::millis(50);
        pass(&mut exact, &mut bulk, end);
    }
    assert_eq!(exact.gaps(), bulk.gaps());
    // All tokens but the first of each request.
    let told: u64 = exact.gaps().iter().map(Gaps::total).sum();
    assert_eq!(told, exact.published().generation_tokens - firsts);
    assert_eq!(exact.blocks.free(), bulk.blocks.free());
    wakes
}

/// Longer outputs than [`inputs`], so that batches are steady for many steps.
fn long_inputs() -> impl Strategy<Value = Vec<Input>> {
    let one = prop_oneof![
        4 => (1u32..140, 1u32..900, 0u64..3, 0u32..8, -2i64..3).prop_map(
            |(prompt, output, group, shared, priority)| Input::Arrive { prompt, output, group, shared, priority }
        ),
        1 => (0usize..50).prop_map(|nth| Input::Abort { nth }),
        3 => (0u64..400_000).prop_map(|micros| Input::Pass { micros }),
    ];
    prop::collection::vec(one, 1..60)
}

#[test]
fn a_lone_request_decodes_in_few_looks() {
    let inputs = [
        Input::Arrive { prompt: 100, output: 1500, group: 0, shared: 0, priority: 0 },
        Input::Pass { micros: 100_000_000 },
    ];
    let mut spec = tiny(400);
    spec.prefix_caching = false;
    assert!(side_by_side(&spec, &inputs) < 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn macro_is_exact(spec in specs(), inputs in inputs()) {
        side_by_side(&spec, &inputs);
    }

    #[test]
    fn macro_is_exact_over_long_outputs(
        spec in specs(), blocks in 80u32..400, seqs in 1u32..40, inputs in long_inputs()
    ) {
        let mut spec = spec;
        spec.num_gpu_blocks_override = Some(blocks + 1);
        spec.max_num_seqs = Some(seqs);
        spec.max_num_batched_tokens = spec.max_num_batched_tokens.map(|n| n.max(seqs));
        side_by_side(&spec, &inputs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_request_ends_once_with_all_its_tokens(spec in specs(), inputs in inputs()) {
        let (_, ledger) = drive(&spec, &inputs);
        for id in ledger.wanted.keys() {
            let ends = ledger.ends.get(id).copied().unwrap_or(0) + ledger.aborted.get(id).copied().unwrap_or(0);
            prop_assert_eq!(ends, 1);
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_events(spec in specs(), inputs in inputs()) {
        prop_assert_eq!(drive(&spec, &inputs).0, drive(&spec, &inputs).0);
    }

    /// A caller that wakes late gets the same events: times come from the engine, not from the call.
    #[test]
    fn late_calls_change_nothing(spec in specs(), jobs in prop::collection::vec((1u32..140, 1u32..60), 1..20)) {
        let mut prompt = Engine::new(&resolved(&spec), Nanos::ZERO);
        for (i, &(p, o)) in jobs.iter().enumerate() {
            prompt.arrive(Nanos(i as u64 * 300_000), job(i as u64, p, o)).unwrap();
        }
        let mut late = prompt.clone();
        let mut events = Vec::new();
        late.advance(Nanos::NEVER - Span(1), &mut events);
        prop_assert_eq!(run(&mut prompt), events);
    }
}
