//! Over loopback against a server that notes when it wrote each chunk. Order and counts are asserted; how far the
//! measured times are from the server's is printed.

use crate::script::{Script, Scripted};
use crate::{run, server, workload};
use forebay_load::Style;
use forebay_records::Counted;
use forebay_records::stats::Samples;
use std::time::Duration;

const PLAIN: &str = "\"content\":\" word\"";

fn observe(script: Script, what: &str) -> forebay_load::Observation {
    let scripted = Scripted::start(script);
    let w =
        workload("window: 2s, drain: 10s", "arrivals: {process: poisson, rate: 200}, input: 20, output: 8");
    let o = run(&w, &server(&scripted.address, Style::new(&w)).unwrap());
    let notes = scripted.notes.lock().unwrap();
    let mut errors = Samples::new();
    for r in &o.records {
        assert!(r.row.is_finished(), "{r:?} {:?}", o.troubles);
        let (sent, first, last) = (r.live.sent.unwrap(), r.row.first_token.unwrap(), r.row.finished.unwrap());
        assert!(r.row.arrived <= sent && sent <= first && first <= last && last <= r.live.closed.unwrap());
        assert_eq!((r.live.chunks, r.live.status), (script.chunks, Some(200)));
        let id = format!("{:08x}-{}", 7, r.row.number);
        let noted = &notes[&id];
        for (mine, theirs) in [(first.since(sent), noted[0]), (last.since(sent), *noted.last().unwrap())] {
            errors.push(Some(mine.0.abs_diff(theirs)));
        }
    }
    let lag = o.schedule.lag_p99.unwrap();
    println!(
        "{what}: error p50 {:.3} ms, p99 {:.3} ms, lag p99 {:.3} ms over {} requests",
        errors.quantile(0.5).value.unwrap() as f64 / 1e6,
        errors.quantile(0.99).value.unwrap() as f64 / 1e6,
        lag.as_millis_f64(),
        o.records.len()
    );
    assert!(o.records.len() > 300);
    o
}

const fn script(chunks: u32, delta: &'static str, usage: Option<u32>) -> Script {
    Script { first: Duration::from_millis(20), gap: Duration::from_millis(5), chunks, delta, usage }
}

#[test]
fn chunks_of_one_two_and_eight_tokens() {
    for k in [1u32, 2, 8] {
        let o = observe(script(8 / k, PLAIN, Some(k)), &format!("{k} tokens per chunk"));
        for r in &o.records {
            assert_eq!((r.row.output_tokens, r.row.first_tokens, r.live.counted), (8, k, Counted::Server));
            assert_eq!(r.row.prompt_tokens, 7, "as the server says");
        }
        let gaps = o.all_gaps();
        assert_eq!(gaps.chunk.count(), u64::from(8 / k - 1) * o.records.len() as u64);
        assert_eq!(gaps.token.count(), u64::from(8 - k) * o.records.len() as u64);
    }
}

#[test]
fn reasoning_alone_tool_calls_and_no_usage() {
    let o = observe(script(4, "\"reasoning_content\":\"hm\"", Some(1)), "reasoning");
    assert!(o.records.iter().all(|r| r.live.first_output.is_none() && r.row.output_tokens == 4));
    let call = "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\"}}]";
    let o = observe(script(4, call, Some(1)), "tool calls");
    assert!(o.records.iter().all(|r| r.live.first_output == r.row.first_token));
    let o = observe(script(4, PLAIN, None), "no usage");
    assert!(o.records.iter().all(|r| r.row.output_tokens == 4 && r.live.counted == Counted::Estimated));
}
