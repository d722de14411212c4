//! Tests of the engine as a whole: vLLM's behaviours one by one; [`random`] has the invariants.

mod random;

use crate::{
    Engine, EngineEvent, EngineSpec, FinishReason, Job, Resolved, Scheduling, StepMode, Transfer, Version,
};
use forebay_base::{Nanos, Span};

/// The tiny model with `blocks` usable blocks of 16 tokens; requests reach the scheduler at once.
fn tiny(blocks: u32) -> EngineSpec {
    let mut spec = EngineSpec::named("tiny", "h100").unwrap();
    spec.hardware.factors.request = Span::ZERO;
    spec.num_gpu_blocks_override = Some(blocks + 1);
    spec
}

fn resolved(spec: &EngineSpec) -> Resolved {
    spec.resolve().unwrap()
}

fn job(id: u64, prompt: u32, output: u32) -> Job {
    Job {
        id,
        prompt_tokens: prompt,
        output_tokens: output,
        prefix: [].into(),
        priority: 0,
        class: 0,
        lora: None,
    }
}

/// Hashes of a prompt's full blocks: the first `shared` of them the same for all of `group`.
fn prefix(group: u64, own: u64, shared: u32, blocks: u32) -> std::sync::Arc<[u64]> {
    (0..blocks)
        .map(
            |i| {
                if i < shared { (group << 32) | u64::from(i) } else { (own << 48) | u64::from(i) | (1 << 47) }
            },
        )
        .collect()
}

fn run(engine: &mut Engine) -> Vec<EngineEvent> {
    let mut out = Vec::new();
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut out);
    }
    out
}

fn tokens_of(events: &[EngineEvent], job: u64) -> Vec<Nanos> {
    let at = |e: &EngineEvent| match *e {
        EngineEvent::Token { id, at, .. } if id == job => Some(at),
        _ => None,
    };
    events.iter().filter_map(at).collect()
}

fn step_ends(events: &[EngineEvent]) -> Vec<(Nanos, u32)> {
    let at = |e: &EngineEvent| match *e {
        EngineEvent::StepEnd { at, tokens, .. } => Some((at, tokens)),
        _ => None,
    };
    events.iter().filter_map(at).collect()
}

#[test]
fn an_idle_server_starts_at_once_and_gives_one_token_per_step() {
    let mut engine = Engine::new(&resolved(&tiny(100)), Nanos::ZERO);
    assert_eq!(engine.next_event(), None);
    engine.arrive(Nanos(5_000), job(1, 20, 3)).unwrap();
    assert_eq!(engine.next_event(), Some(Nanos(5_000)));
    let events = run(&mut engine);
    let ends = step_ends(&events);
    assert_eq!(ends.iter().map(|e| e.1).collect::<Vec<_>>(), [20, 1, 1]);
    assert_eq!(tokens_of(&events, 1), ends.iter().map(|e| e.0).collect::<Vec<_>>());
    assert!(matches!(events[0], EngineEvent::Admitted { id: 1, at: Nanos(5_000), cached_tokens: 0 }));
    let finished = EngineEvent::Finished { id: 1, at: ends[2].0, reason: FinishReason::Output };
    assert!(events.contains(&finished));
    assert_eq!(engine.published().generation_tokens, 3);
    assert_eq!(engine.published().prompt_tokens, 20);
    assert_eq!(engine.live(), 0);
}

/// Asynchronous scheduling: what arrives during step n goes into step n+2.
#[test]
fn an_arrival_in_a_busy_server_has_its_first_token_at_the_third_step_end() {
    let mut engine = Engine::new(&resolved(&tiny(100)), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, job(1, 20, 50)).unwrap();
    let mut events = Vec::new();
    for _ in 0..5 {
        engine.advance(engine.next_event().unwrap(), &mut events);
    }
    let start = step_ends(&events).last().unwrap().0;
    let arrival = start + Span::micros(1);
    engine.arrive(arrival, job(2, 20, 2)).unwrap();
    events.extend(run(&mut engine));
    let after: Vec<Nanos> = step_ends(&events).into_iter().map(|e| e.0).filter(|&t| t > arrival).collect();
    assert_eq!(tokens_of(&events, 2)[0], after[2]);
    let tpot = after[1].since(after[0]);
    let ttft = after[2].since(arrival);
    let steps = ttft.0 as f64 / tpot.0 as f64;
    assert!((2.9..3.3).contains(&steps), "an arrival at the start of a step waits for three: {steps}");
}

/// Without asynchronous scheduling it goes into step n+1.
#[test]
fn a_server_that_schedules_after_each_step_is_one_step_faster() {
    let mut spec = tiny(100);
    spec.async_scheduling = Some(false);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, job(1, 20, 50)).unwrap();
    let mut events = Vec::new();
    for _ in 0..5 {
        engine.advance(engine.next_event().unwrap(), &mut events);
    }
    let arrival = step_ends(&events).last().unwrap().0 + Span::micros(1);
    engine.arrive(arrival, job(2, 20, 2)).unwrap();
    events.extend(run(&mut engine));
    let after: Vec<Nanos> = step_ends(&events).into_iter().map(|e| e.0).filter(|&t| t > arrival).collect();
    assert_eq!(tokens_of(&events, 2)[0], after[1]);
}

/// A prompt of 100 tokens that another server has computed takes its 7 blocks at once; its last token is
/// computed when the rest has come.
#[test]
fn a_prefilled_prompt_holds_its_blocks_while_it_comes_and_costs_one_token() {
    let transfer = Transfer { latency: Span::millis(2), per_token_ps: 50_000_000 };
    let mut engine = Engine::new(&resolved(&tiny(20)), Nanos::ZERO);
    engine.arrive_prefilled(Nanos::ZERO, job(1, 100, 3), transfer).unwrap();
    let mut events = Vec::new();
    engine.advance(Nanos::ZERO, &mut events);
    assert_eq!((engine.blocks().free(), events.len()), (13, 0));
    assert_eq!(engine.next_event(), Some(Nanos::ZERO + Span::millis(7)));
    events.extend(run(&mut engine));
    assert_eq!(step_ends(&events).iter().map(|e| e.1).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(tokens_of(&events, 1).len(), 3);
    assert_eq!((engine.blocks().free(), engine.live()), (20, 0));
    // One that is cancelled on its way lets go of its blocks.
    engine.arrive_prefilled(Nanos(1 << 40), job(2, 100, 3), transfer).unwrap();
    engine.advance(Nanos(1 << 40), &mut events);
    assert_eq!(engine.blocks().free(), 13);
    engine.abort(Nanos((1 << 40) + 1), 2).unwrap();
    assert_eq!((engine.blocks().free(), engine.next_event()), (20, None));
}

/// Prompts that are asked for together come one behind the other, with one latency before the first.
#[test]
fn transfers_share_the_way_into_a_server() {
    let transfer = Transfer { latency: Span::millis(2), per_token_ps: 50_000_000 };
    let mut engine = Engine::new(&resolved(&tiny(40)), Nanos::ZERO);
    for id in 1..=2 {
        engine.arrive_prefilled(Nanos::ZERO, job(id, 100, 1), transfer).unwrap();
    }
    let events = run(&mut engine);
    let ms = |id| tokens_of(&events, id)[0].0 / 1_000_000;
    assert_eq!((ms(1), ms(2)), (8, 13), "there after 7 and 12 ms, and a step each");
    // A way that is free again delays nobody.
    let at = Nanos(1 << 40);
    engine.arrive_prefilled(at, job(3, 100, 1), transfer).unwrap();
    engine.advance(at, &mut Vec::new());
    assert_eq!(engine.next_event(), Some(at + Span::millis(7)));
}

/// What is in the cache already does not come again.
#[test]
fn only_what_is_not_cached_is_transferred() {
    let transfer = Transfer { latency: Span::ZERO, per_token_ps: 1_000_000_000 };
    let mut engine = Engine::new(&resolved(&tiny(50)), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, Job { prefix: prefix(1, 1, 4, 6), ..job(1, 100, 1) }).unwrap();
    run(&mut engine);
    let at = Nanos(1 << 40);
    engine.arrive_prefilled(at, Job { prefix: prefix(1, 2, 4, 6), ..job(2, 100, 1) }, transfer).unwrap();
    engine.advance(at, &mut Vec::new());
    // 64 of 100 tokens are there.
    assert_eq!(engine.next_event(), Some(at + Span::millis(36)));
    let events = run(&mut engine);
    assert!(events.iter().any(|e| matches!(e, EngineEvent::Admitted { id: 2, cached_tokens: 64, .. })));
}

fn admitted(events: &[EngineEvent]) -> Vec<(u64, Nanos)> {
    let of = |e: &EngineEvent| match *e {
        EngineEvent::Admitted { id, at, .. } => Some((id, at)),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// A step carries one adapter. The second request has another than the first, so that those behind it go
/// first; it enters the first step in which neither of the others has a part, the sixth, which is put
/// together when the fifth starts.
#[test]
fn a_request_whose_adapter_is_one_too_many_is_passed_over() {
    let mut spec = tiny(100);
    spec.max_loras = Some(1);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    for (id, lora) in [(1, Some(7)), (2, Some(8)), (3, None), (4, Some(7))] {
        engine.arrive(Nanos::ZERO, Job { lora, ..job(id, 20, 5) }).unwrap();
    }
    let mut events = Vec::new();
    engine.advance(Nanos::ZERO, &mut events);
    let first = engine.next_event().unwrap();
    engine.advance(first, &mut events);
    let now = engine.adapters_at(first).unwrap();
    assert_eq!((now.running, now.waiting), (vec![7], vec![8]));
    events.extend(run(&mut engine));
    let ends = step_ends(&events);
    assert_eq!(ends.iter().map(|e| e.1).collect::<Vec<_>>(), [60, 3, 3, 3, 3, 20, 1, 1, 1, 1]);
    let zero = Nanos::ZERO;
    assert_eq!(admitted(&events), [(1, zero), (3, zero), (4, zero), (2, ends[3].0)]);
    assert_eq!(tokens_of(&events, 2)[0], ends[5].0);
    assert_eq!(engine.adapters_at(ends[9].0), Some(crate::Adapters::default()));
}

/// Without the argument adapters are not told apart, and with room for two nobody is passed over.
#[test]
fn adapters_with_room_do_not_wait() {
    for max in [None, Some(2)] {
        let mut spec = tiny(100);
        spec.max_loras = max;
        let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
        for (id, lora) in [(1, Some(7)), (2, Some(8)), (3, None), (4, Some(7))] {
            engine.arrive(Nanos::ZERO, Job { lora, ..job(id, 20, 5) }).unwrap();
        }
        let order: Vec<u64> = admitted(&run(&mut engine)).into_iter().map(|a| a.0).collect();
        assert_eq!((order, engine.adapters_at(Nanos::ZERO).is_some()), (vec![1, 2, 3, 4], max.is_some()));
    }
    let mut spec = tiny(100);
    spec.max_loras = Some(0);
    assert!(spec.resolve().unwrap_err().to_string().contains("max-loras: is 0; expected at least 1"));
}

/// The two steps in flight keep their times; those behind them take longer.
#[test]
fn a_slower_server_takes_that_many_times_as_long_for_each_step() {
    let ends = |permille: Option<u32>| {
        let mut engine = Engine::new(&resolved(&tiny(100)), Nanos::ZERO);
        engine.arrive(Nanos::ZERO, job(1, 20, 9)).unwrap();
        let mut events = Vec::new();
        for _ in 0..3 {
            engine.advance(engine.next_event().unwrap(), &mut events);
        }
        if let Some(permille) = permille {
            engine.slow_down(step_ends(&events)[1].0, permille);
        }
        events.extend(run(&mut engine));
        step_ends(&events).into_iter().map(|e| e.0.0).collect::<Vec<u64>>()
    };
    let (plain, slow) = (ends(None), ends(Some(3000)));
    assert_eq!(plain[..4], slow[..4]);
    for i in 4..9 {
        let (a, b) = (plain[i] - plain[i - 1], slow[i] - slow[i - 1]);
        assert!(b.abs_diff(3 * a) <= 3, "step {i}: {a} and {b}");
    }
}

#[test]
fn time_outside_the_engine_comes_first() {
    let mut spec = tiny(100);
    spec.hardware.factors.request = Span::millis(5);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    engine.arrive(Nanos(7), job(1, 20, 1)).unwrap();
    assert_eq!(engine.next_event(), Some(Nanos(7) + Span::millis(5)));
    assert_eq!(run(&mut engine).len(), 4, "admitted, a token, finished, the end of the step");
}

/// When the second of two requests is admitted, and how often somebody is preempted: the first takes four of
/// ten blocks for long, the second needs seven and has its first chunk in three.
fn second_admission(change: impl Fn(&mut EngineSpec)) -> (Nanos, u64, Nanos) {
    let mut spec = tiny(10);
    spec.max_num_batched_tokens = Some(48);
    spec.max_num_seqs = Some(4);
    spec.prefix_caching = false;
    spec.reserve_full_prompt = Some(false);
    change(&mut spec);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, job(1, 46, 34)).unwrap();
    let mut events = Vec::new();
    for _ in 0..5 {
        engine.advance(engine.next_event().unwrap(), &mut events);
    }
    engine.arrive(engine.published().at, job(2, 112, 2)).unwrap();
    events.extend(run(&mut engine));
    let admitted = |id| {
        let of = |e: &EngineEvent| match *e {
            EngineEvent::Admitted { id: i, at, .. } if i == id => Some(at),
            _ => None,
        };
        events.iter().find_map(of).unwrap()
    };
    let end = *tokens_of(&events, 1).last().unwrap();
    (admitted(2), engine.published().preemptions, end)
}

#[test]
fn the_gate_admits_whole_prompts_only() {
    let (admitted, _, end) = second_admission(|_| {});
    assert!(admitted < end, "a first chunk was enough");
    let (admitted, preemptions, end) = second_admission(|spec| spec.reserve_full_prompt = Some(true));
    assert!(admitted >= end && preemptions == 0, "seven blocks are free when the first has gone");
}

#[test]
fn the_watermark_keeps_blocks_free_while_others_run() {
    let (admitted, _, end) = second_admission(|spec| spec.watermark = 0.8);
    assert!(admitted >= end, "eight blocks would have to stay free; alone it may enter");
}

#[test]
fn long_prompts_are_cut_into_chunks_and_running_requests_come_first() {
    let mut spec = tiny(100);
    spec.max_num_batched_tokens = Some(64);
    spec.max_num_seqs = Some(8);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, job(1, 10, 20)).unwrap();
    engine.arrive(Nanos::ZERO, job(2, 150, 1)).unwrap();
    let events = run(&mut engine);
    let tokens: Vec<u32> = step_ends(&events).into_iter().map(|e| e.1).collect();
    // 10 + 54 in the first step, then one decode and 63, then one decode and the remaining 33.
    assert_eq!(tokens[..4], [64, 64, 34, 1]);
    let third = step_ends(&events)[2].0;
    assert_eq!(tokens_of(&events, 2), [third]);
    assert_eq!(tokens_of(&events, 1)[2], third);
}

/// Since 0.31 the threshold is for prompts that others would have to wait for.
#[test]
fn the_threshold_cuts_prompts_unless_they_are_alone() {
    let tokens = |version: &str, requests: u64| {
        let mut spec = tiny(100);
        spec.version = Version::find(version).unwrap();
        spec.max_num_batched_tokens = Some(64);
        spec.max_num_seqs = Some(8);
        spec.long_prefill_token_threshold = 16;
        let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
        for id in 0..requests {
            engine.arrive(Nanos::ZERO, job(id, 40, 1)).unwrap();
        }
        step_ends(&run(&mut engine)).into_iter().map(|e| e.1).collect::<Vec<u32>>()
    };
    assert_eq!(tokens("0.30", 1), [16, 16, 8]);
    assert_eq!(tokens("0.31", 1), [40]);
    assert_eq!(tokens("0.30", 2), [32, 32, 16]);
    assert_eq!(tokens("0.31", 2), [32, 32, 16]);
}

/// Of six blocks a request leaves two cached, and another three cached and one that is not full. A third takes
/// one: that one, or before 0.28 the one freed first, which is the deepest of the first request.
#[test]
fn blocks_that_cannot_be_hit_are_taken_first() {
    let left = |version: &str| {
        let mut spec = tiny(6);
        spec.version = Version::find(version).unwrap();
        let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
        let mut all = Vec::new();
        for (id, prompt) in [(1, 40), (2, 60), (3, 10)] {
            let name = [7, 8, 9][id as usize - 1];
            let names = prefix(name, id, 8, prompt / 16);
            engine.arrive(engine.published().at, Job { prefix: names, ..job(id, prompt, 1) }).unwrap();
            all.extend(run(&mut engine));
        }
        (0..2).map(|i| engine.blocks().lookup((7 << 32) | i).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(left("0.27"), [true, false]);
    assert_eq!(left("0.28"), [true, true]);
}

#[test]
fn a_prefix_hit_leaves_at_least_one_token_to_compute() {
    let mut engine = Engine::new(&resolved(&tiny(100)), Nanos::ZERO);
    let mut cached = Vec::new();
    for id in 1..=3 {
        // Exactly four blocks; the fourth holds the last token, so it is never hit.
        engine.arrive(Nanos::ZERO, Job { prefix: prefix(1, 0, 4, 4), ..job(id, 64, 1) }).unwrap();
        for e in run(&mut engine) {
            if let EngineEvent::Admitted { cached_tokens, .. } = e {
                cached.push(cached_tokens);
            }
        }
    }
    assert_eq!(cached, [0, 48, 48]);
    assert_eq!((engine.published().prefix_queries, engine.published().prefix_hits), (192, 96));
    let mut off = tiny(100);
    off.prefix_caching = false;
    let mut engine = Engine::new(&resolved(&off), Nanos::ZERO);
    for id in 1..=2 {
        engine.arrive(Nanos::ZERO, Job { prefix: prefix(1, 0, 4, 4), ..job(id, 64, 1) }).unwrap();
        run(&mut engine);
    }
    assert_eq!(engine.published().prefix_hits, 0);
}

#[test]
fn a_later_turn_hits_the_blocks_that_an_output_filled() {
    let mut engine = Engine::new(&resolved(&tiny(100)), Nanos::ZERO);
    let names = prefix(7, 0, 10, 10);
    // 32 of prompt and 33 of output: the last token out is never computed, so four blocks are full.
    engine.arrive(Nanos::ZERO, Job { prefix: names.clone(), ..job(1, 32, 33) }).unwrap();
    run(&mut engine);
    engine.arrive(Nanos::ZERO, Job { prefix: names, ..job(2, 100, 1) }).unwrap();
    run(&mut engine);
    assert_eq!(engine.published().prefix_hits, 64);
}

/// Two requests that fill a small cache: the second loses its blocks, keeps its tokens, and recomputes.
#[test]
fn preemption_takes_the_tail_and_keeps_its_tokens() {
    let mut spec = tiny(10);
    spec.prefix_caching = false;
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    for id in 1..=2 {
        engine.arrive(Nanos::ZERO, job(id, 40, 80)).unwrap();
    }
    let events = run(&mut engine);
    let preempted: Vec<u64> = events
        .iter()
        .filter_map(|e| if let EngineEvent::Preempted { id, .. } = e { Some(*id) } else { None })
        .collect();
    assert_eq!(preempted, [2]);
    for id in 1..=2 {
        assert_eq!(tokens_of(&events, id).len(), 80, "each token comes out exactly once");
    }
    // Recomputing prompt and output takes one prefill of more than the prompt.
    assert!(step_ends(&events).iter().any(|&(_, tokens)| tokens > 40 && tokens < 120 && tokens != 80));
    assert_eq!(engine.published().preemptions, 1);
    assert_eq!(engine.published().prompt_tokens, 80, "a prompt counts once");
    assert_eq!(engine.blocks().free(), 10);
}

#[test]
fn a_preempted_request_can_hit_its_own_blocks() {
    let mut engine = Engine::new(&resolved(&tiny(10)), Nanos::ZERO);
    for id in 1..=2 {
        engine.arrive(Nanos::ZERO, job(id, 40, 80)).unwrap();
    }
    let events = run(&mut engine);
    assert_eq!(engine.published().preemptions, 1);
    // The first prefill carries both prompts. Without hits the second would recompute over 70 tokens.
    let redone = step_ends(&events).iter().skip(1).map(|e| e.1).max().unwrap();
    assert!(redone < 72, "{redone}");
    assert_eq!(engine.published().prefix_queries, 80, "a re-admission is not counted");
}

#[test]
fn the_priority_policy_admits_and_preempts_by_value() {
    let mut spec = tiny(8);
    spec.scheduling = Scheduling::Priority;
    spec.max_num_seqs = Some(2);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    for (id, priority) in [(1, 5), (2, 0), (3, -1)] {
        engine.arrive(Nanos(id), Job { priority, ..job(id, 40, 40) }).unwrap();
    }
    // The first is alone when it arrives and starts; among the others the lowest value goes first.
    let events = run(&mut engine);
    let admitted: Vec<u64> = events
        .iter()
        .filter_map(|e| if let EngineEvent::Admitted { id, .. } = e { Some(*id) } else { None })
        .collect();
    assert_eq!(admitted, [1, 3, 2]);
    let first =
        events.iter().find_map(|e| if let EngineEvent::Preempted { id, .. } = e { Some(*id) } else { None });
    assert_eq!(first, Some(1), "the highest value loses, although it came first");
    assert_eq!(engine.published().generation_tokens, 120);
}

#[test]
fn counters_change_at_step_ends_only() {
    let mut engine = Engine::new(&resolved(&tiny(100)), Nanos::ZERO);
    let mut events = Vec::new();
    for id in 0..4 {
        engine.arrive(Nanos::ZERO, job(id, 20, 10)).unwrap();
    }
    engine.advance(Nanos::ZERO, &mut events);
    assert_eq!(engine.published(), crate::Published::default(), "admitted, but no step has ended");
    let end = engine.next_event().unwrap();
    engine.advance(end - Span(1), &mut events);
    assert_eq!(engine.published().running, 0);
    engine.advance(end, &mut events);
    let p = engine.published();
    assert_eq!((p.at, p.running, p.waiting, p.used_blocks), (end, 4, 0, 8));
    engine.abort(end, 0).unwrap();
    engine.arrive(end, job(9, 20, 10)).unwrap();
    assert_eq!(engine.published(), p, "neither an abort nor an arrival is visible before the next end");
    engine.advance(engine.next_event().unwrap(), &mut events);
    assert_eq!(engine.published().running, 3, "the arrival is seen at this boundary, after publication");
}

#[test]
fn an_abort_frees_slot_and_blocks_at_once() {
    let mut spec = tiny(100);
    spec.max_num_seqs = Some(1);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    let mut events = Vec::new();
    for id in 1..=3 {
        engine.arrive(Nanos::ZERO, job(id, 50, 1000)).unwrap();
    }
    for _ in 0..5 {
        engine.advance(engine.next_event().unwrap(), &mut events);
    }
    let now = engine.published().at;
    assert_eq!(engine.published().waiting, 2);
    let free = engine.blocks().free();
    let aborted = engine.abort(now, 1).unwrap();
    assert_eq!(aborted.tokens as usize, tokens_of(&events, 1).len());
    assert_eq!(engine.blocks().free(), free + 4);
    assert_eq!(engine.abort(now, 1), None, "only once");
    engine.abort(now, 3).unwrap();
    events.clear();
    for _ in 0..3 {
        engine.advance(engine.next_event().unwrap(), &mut events);
    }
    assert!(tokens_of(&events, 1).is_empty() && tokens_of(&events, 3).is_empty());
    assert_eq!(tokens_of(&events, 2).len(), 1, "the slot went to the next in line");
    // Abort before the scheduler has seen it.
    engine.arrive(engine.published().at, job(4, 50, 10)).unwrap();
    assert_eq!(engine.abort(now, 4).unwrap().tokens, 0);
    engine.abort(now, 2).unwrap();
    run(&mut engine);
    assert_eq!((engine.live(), engine.blocks().free(), engine.published().running), (0, 100, 0));
}

#[test]
fn the_models_length_ends_a_request() {
    let mut spec = tiny(100);
    spec.max_model_len = Some(100);
    let mut engine = Engine::new(&resolved(&spec), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, job(1, 90, 50)).unwrap();
    assert_eq!(
        engine.arrive(Nanos::ZERO, job(2, 100, 1)),
        Err(crate::ArriveError::PromptTooLong { max_model_len: 100 })
    );
    assert_eq!(engine.arrive(Nanos::ZERO, job(1, 10, 1)), Err(crate::ArriveError::DuplicateId));
    assert_eq!(engine.arrive(Nanos::ZERO, job(3, 0, 1)), Err(crate::ArriveError::EmptyPrompt));
    assert_eq!(engine.arrive(Nanos::ZERO, job(3, 1, 0)), Err(crate::ArriveError::NoOutput));
    let events = run(&mut engine);
    assert_eq!(tokens_of(&events, 1).len(), 10);
    assert!(
        events.iter().any(|e| matches!(e, EngineEvent::Finished { reason: FinishReason::ModelLength, .. }))
    );
}

#[test]
fn steps_do_not_lose_picoseconds() {
    let mut engine = Engine::new(&resolved(&tiny(128)), Nanos::ZERO);
    engine.arrive(Nanos::ZERO, job(1, 16, 1001)).unwrap();
    let events = run(&mut engine);
    let latency = &engine.config().latency;
    let prefill = crate::Composition {
        prefills: 1,
        prefill_tokens: 16,
        sampled: 1,
        prefill_attention_ps: latency.prefill_attention_ps(16, 0),
        ..Default::default()
    };
    let decode = latency.cost(&crate::Composition { decodes: 1, sampled: 1, ..Default::default() });
    // Decode k attends to 16 + k tokens; the sum over k = 1..=1000 in closed form.
    let total = latency.cost(&prefill).duration_ps(0)
        + 1000 * u128::from(decode.fixed_ps)
        + u128::from(decode.per_context_token_ps) * (16 * 1000 + 1000 * 1001 / 2);
    assert_eq!(u128::from(tokens_of(&events, 1).last().unwrap().0), total.div_ceil(1000));
}
