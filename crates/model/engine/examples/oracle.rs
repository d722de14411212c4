//! The engine's part of the comparison with vLLM's own scheduler: see `oracle/compare.py`.
//!
//! Reads workloads from stdin, one JSON object a line, and prints each one's plans as a JSON list: who gets
//! how many tokens, who is preempted, and how many blocks are free. A request is there from the step end on
//! that its `at` counts; while nothing runs, the count goes on to the next request.
#![allow(clippy::print_stdout, reason = "this is a program")]

use forebay_base::{Nanos, Span};
use forebay_engine::{Engine, EngineSpec, Job, Resolved, Scheduling};
use serde_json::{Value, json};
use std::io::BufRead;

fn number(v: &Value, name: &str) -> Result<u64, String> {
    v[name].as_u64().ok_or_else(|| format!("{name}: found {}; expected a whole number", v[name]))
}

fn small(v: &Value, name: &str) -> Result<u32, String> {
    u32::try_from(number(v, name)?).map_err(|_| format!("{name}: too large"))
}

fn switch(v: &Value, name: &str) -> Result<bool, String> {
    v[name].as_bool().ok_or_else(|| format!("{name}: found {}; expected true or false", v[name]))
}

fn config(w: &Value) -> Result<Resolved, String> {
    let mut spec = EngineSpec::named("qwen3-14b", "h100").map_err(|d| d.to_string())?;
    spec.num_gpu_blocks_override = Some(small(w, "blocks")?);
    spec.max_num_seqs = Some(small(w, "seqs")?);
    spec.max_num_batched_tokens = Some(small(w, "budget")?);
    spec.max_model_len = Some(small(w, "length")?);
    spec.long_prefill_token_threshold = small(w, "threshold")?;
    spec.prefix_caching = switch(w, "caching")?;
    spec.reserve_full_prompt = Some(switch(w, "gate")?);
    spec.async_scheduling = Some(switch(w, "async")?);
    spec.watermark = w["watermark"].as_f64().ok_or("watermark: expected a number")?;
    if switch(w, "priority")? {
        spec.scheduling = Scheduling::Priority;
    }
    // A request reaches the scheduler at once.
    spec.hardware.factors.request = Span::ZERO;
    spec.resolve().map_err(|d| d.to_string())
}

fn job(r: &Value) -> Result<Job, String> {
    let hashes = r["hashes"].as_array().ok_or("hashes: expected a list")?;
    Ok(Job {
        id: number(r, "id")?,
        prompt_tokens: small(r, "prompt")?,
        output_tokens: small(r, "output")?,
        prefix: hashes.iter().filter_map(Value::as_u64).collect(),
        priority: number(r, "priority")? as i64,
        class: 0,
        lora: None,
    })
}

fn plans(w: &Value) -> Result<Value, String> {
    let mut engine = Engine::new(&config(w)?, Nanos::ZERO);
    engine.record_plans();
    let requests = w["requests"].as_array().ok_or("requests: expected a list")?;
    let mut due = requests.iter().peekable();
    let (mut now, mut boundary, mut events) = (Nanos::ZERO, 0, Vec::new());
    loop {
        let at = match (engine.next_event(), due.peek()) {
            (Some(at), _) => at,
            (None, Some(next)) => {
                boundary = boundary.max(number(next, "at")?);
                now + Span(1)
            }
            (None, None) => break,
        };
        while let Some(r) = due.peek()
            && number(r, "at")? <= boundary
        {
            engine.arrive(at, job(r)?).map_err(|e| e.to_string())?;
            due.next();
        }
        events.clear();
        engine.advance(at, &mut events);
        boundary += 1;
        now = at;
    }
    let told = engine.take_plans().into_iter().map(|mut p| {
        p.tokens.sort_unstable();
        p.preempted.sort_unstable();
        json!({"tokens": p.tokens, "preempted": p.preempted, "free": p.free_blocks})
    });
    Ok(told.collect())
}

fn main() -> Result<(), String> {
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let workload: Value = serde_json::from_str(&line).map_err(|e| e.to_string())?;
        println!("{}", plans(&workload)?);
    }
    Ok(())
}
