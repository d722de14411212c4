//! What a flight makes of bytes and times, exact to the nanosecond.

use super::*;
use forebay_workload::Workload;
use http::HeaderValue;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn arrival() -> Arrival {
    let text = "version: 1\nname: t\nmode: {kind: surge, window: 100s}\nclasses:\n  a: {arrivals: {process: constant, phase: 0.5, rate: 10}, input: 20, output: 8}\n";
    // The first gap is cut in half: it is due at 50 ms.
    Workload::read(text, "t").unwrap().arrivals(1).next().unwrap()
}

fn at(ms: u64) -> Nanos {
    Nanos(ms * MS)
}

fn head(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(n, v)| (http::HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
}

const STREAM: &[(&str, &str)] = &[("content-type", "text/event-stream; charset=utf-8")];

fn streaming() -> Flight {
    let mut flight = Flight::new(&arrival(), true);
    flight.sent(at(52));
    flight.head(200, &head(STREAM));
    flight
}

fn chunk(delta: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":null}}]}}\n\n")
}

const ROLE: &str = "\"role\":\"assistant\",\"content\":\"\"";
const LAST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn usage(tokens: u64) -> String {
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":33,\"completion_tokens\":{tokens},\"prompt_tokens_details\":{{\"cached_tokens\":16}}}}}}\n\n"
    )
}

/// Chunks at 100, 110, 120, … ms, the role before them at 60.
fn answered(chunks: &[&str], usage: Option<u64>) -> Landed {
    let mut f = streaming();
    assert!(!f.bytes(at(60), chunk(ROLE).as_bytes()), "a role is no token");
    for (i, delta) in chunks.iter().enumerate() {
        assert_eq!(f.bytes(at(100 + 10 * i as u64), chunk(delta).as_bytes()), i == 0);
    }
    let end = at(100 + 10 * chunks.len() as u64);
    f.bytes(end, LAST.as_bytes());
    if let Some(n) = usage {
        f.bytes(end, self::usage(n).as_bytes());
    }
    f.bytes(end, DONE.as_bytes());
    f.closed(end + Span::millis(3))
}

#[test]
fn one_token_per_chunk() {
    let l = answered(&["\"content\":\" a\"", "\"content\":\" b\"", "\"content\":\" c\""], Some(3));
    let r = &l.record;
    assert_eq!((r.row.arrived, r.lag()), (at(50), Some(Span::millis(2))));
    assert_eq!(
        (r.live.first_byte, r.row.first_token, r.live.first_output),
        (Some(at(60)), Some(at(100)), Some(at(100)))
    );
    assert_eq!((r.row.ttft(), r.service_ttft()), (Some(Span::millis(50)), Some(Span::millis(48))));
    assert_eq!(
        (r.row.finished, r.live.closed),
        (Some(at(120)), Some(at(133))),
        "the last token, and the end of the stream"
    );
    assert_eq!(
        (r.row.tpot(), r.row.e2e(), r.to_close()),
        (Some(Span::millis(10)), Some(Span::millis(70)), Some(Span::millis(83)))
    );
    assert_eq!(
        (r.row.prompt_tokens, r.row.cached_tokens, r.row.output_tokens, r.live.counted),
        (33, 16, 3, Counted::Server)
    );
    assert_eq!((l.gaps.as_slice(), l.per_token.as_slice()), (&[10 * MS; 2][..], &[(10 * MS, 1); 2][..]));
    assert_eq!((l.text.as_str(), r.row.end, l.told), (" a b c", End::Finished, false));
}

#[test]
fn several_tokens_per_chunk_are_told_from_gaps() {
    for k in [2u64, 8] {
        let l = answered(&["\"content\":\" a\"", "\"content\":\" b\"", "\"content\":\" c\""], Some(3 * k));
        let r = &l.record.row;
        assert_eq!((u64::from(r.output_tokens), u64::from(r.first_tokens)), (3 * k, k));
        assert_eq!(r.tpot(), Some(Span(20 * MS / (2 * k))), "of the tokens after the first chunk");
        assert_eq!(l.gaps, [10 * MS; 2]);
        assert_eq!(l.per_token, [(10 * MS / k, k); 2]);
        assert!(!l.told, "the mean of the answer");
    }
}

#[test]
fn usage_of_each_chunk_gives_the_tokens_of_each() {
    let mut f = streaming();
    for (ms, so_far) in [(100, 1), (130, 4), (140, 6)] {
        let event = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" x\"}}}}],\"usage\":{{\"prompt_tokens\":33,\"completion_tokens\":{so_far}}}}}\n\n"
        );
        f.bytes(at(ms), event.as_bytes());
    }
    f.bytes(at(140), DONE.as_bytes());
    let l = f.closed(at(141));
    assert_eq!((l.record.row.output_tokens, l.record.row.first_tokens, l.told), (6, 1, true));
    assert_eq!(l.per_token, [(10 * MS, 3), (5 * MS, 2)]);
    assert_eq!(l.record.row.tpot(), Some(Span(8 * MS)));
    assert_eq!(l.record.live.longest_gap, Some(Span::millis(30)));
}

#[test]
fn reasoning_is_a_token_and_no_output() {
    let l =
        answered(&["\"reasoning_content\":\"hm\"", "\"reasoning\":\"so\"", "\"content\":\" c\""], Some(3));
    assert_eq!((l.record.row.first_token, l.record.live.first_output), (Some(at(100)), Some(at(120))));
    assert_eq!((l.record.ttfo(), l.text.as_str()), (Some(Span::millis(70)), " c"));
    let l = answered(&["\"reasoning_content\":\"hm\"", "\"reasoning_content\":\"so\""], Some(2));
    assert_eq!((l.record.live.first_output, l.record.row.end), (None, End::Finished));
}

#[test]
fn tool_calls_are_output() {
    let call = "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\"\"}}]";
    let l = answered(&[call, call], Some(2));
    assert_eq!(
        (l.record.row.first_token, l.record.live.first_output, l.record.row.output_tokens),
        (Some(at(100)), Some(at(100)), 2)
    );
}

#[test]
fn without_usage_tokens_are_estimates() {
    let l = answered(&["\"content\":\" a\"", "\"content\":\" b\""], None);
    let r = &l.record;
    assert_eq!((r.row.output_tokens, r.live.counted, r.row.prompt_tokens), (2, Counted::Estimated, 20));
    // Usage split over two events, the second without the prompt.
    let mut f = streaming();
    f.bytes(
        at(90),
        b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":21}}\n\n",
    );
    f.bytes(at(91), b"data: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n");
    let r = f.closed(at(92)).record;
    assert_eq!((r.row.prompt_tokens, r.row.output_tokens, r.live.counted), (21, 1, Counted::Server));
    assert!(r.row.came_at_once() && r.row.tpot().is_none());
}

#[test]
fn an_answer_in_one_piece_has_its_first_token_at_its_end() {
    let body = br#"{"choices":[{"message":{"content":"Hi there"}}],"usage":{"prompt_tokens":21,"completion_tokens":4}}"#;
    let mut f = Flight::new(&arrival(), true);
    f.sent(at(50));
    f.head(200, &head(&[("content-type", "application/json")]));
    assert!(!f.bytes(at(90), &body[..40]));
    f.bytes(at(95), &body[40..]);
    let l = f.closed(at(96));
    let r = l.record;
    assert_eq!(
        (r.row.first_token, r.row.finished, r.live.first_byte),
        (Some(at(96)), Some(at(96)), Some(at(90)))
    );
    assert_eq!(
        (r.row.output_tokens, r.row.first_tokens, r.row.tpot(), l.text.as_str()),
        (4, 4, None, "Hi there")
    );
    let mut f = Flight::new(&arrival(), false);
    f.head(200, &head(&[]));
    f.bytes(at(90), br#"{"choices":[{"text":"x"}]}"#);
    assert_eq!(f.closed(at(91)).record.live.counted, Counted::Unknown);
    let mut f = Flight::new(&arrival(), false);
    f.head(200, &head(&[]));
    f.bytes(at(90), b"<html>welcome</html>");
    let l = f.closed(at(91));
    assert_eq!(
        (l.record.live.error, l.message.as_deref()),
        (Some("no-answer"), Some("<html>welcome</html>"))
    );
}

#[test]
fn refusals_and_failures_are_told_apart() {
    let refused = |status, headers: &[(&'static str, &'static str)], body: &str| {
        let mut f = Flight::new(&arrival(), false);
        f.sent(at(50));
        f.head(status, &head(headers));
        f.bytes(at(60), body.as_bytes());
        let l = f.closed(at(61));
        (l.record.row.end, l.record.live.error, l.message.unwrap_or_default())
    };
    let reason = [("x-llm-d-request-dropped-reason", "rejected-saturated")];
    let json = r#"{"error":{"message":"too\nbusy","type":"x"}}"#;
    assert_eq!(refused(503, &reason, json), (End::Rejected("rejected-saturated"), None, "too busy".into()));
    assert_eq!(refused(429, &[], "slow down").0, End::Rejected("status-429"));
    assert_eq!(refused(500, &[], json), (End::Failed, Some("status-500"), "too busy".into()));
    let mut f = streaming();
    f.bytes(at(60), chunk("\"content\":\"x\"").as_bytes());
    f.bytes(at(61), b"data: {\"error\":{\"message\":\"engine died\"}}\n\ndata: [DONE]\n\n");
    let l = f.closed(at(62));
    assert_eq!((l.record.live.error, l.message.as_deref()), (Some("error-event"), Some("engine died")));
    assert_eq!((l.record.row.first_token, l.record.row.e2e()), (Some(at(60)), None));
    let mut f = streaming();
    f.bytes(at(60), chunk("\"content\":\"x\"").as_bytes());
    assert_eq!(f.closed(at(62)).record.live.error, Some("incomplete"));
}

#[test]
fn a_router_tells_its_part() {
    let mut f = Flight::new(&arrival(), false);
    f.sent(at(52));
    let told = [
        ("content-type", "text/event-stream"),
        ("x-llm-d-flow-queue-duration-ms", "7.5"),
        ("x-gateway-destination-endpoint-served", "10.0.0.1:80"),
    ];
    f.head(200, &head(&told));
    let l = f.cut();
    assert_eq!(
        (l.record.row.dispatched, l.served_by.as_deref()),
        (Some(Nanos(59_500_000)), Some("10.0.0.1:80"))
    );
    assert_eq!((l.record.row.end, l.record.row.finished), (End::Censored, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the bytes are split, with times that stand still, the same comes out.
    #[test]
    fn any_slicing_gives_the_same(cuts in prop::collection::vec(1usize..60, 1..40)) {
        let all = [&chunk(ROLE), &chunk("\"content\":\" a\""), &chunk("\"reasoning\":\"b\""), LAST, &usage(2), DONE].concat();
        let whole = {
            let mut f = streaming();
            f.bytes(at(70), all.as_bytes());
            f.closed(at(71))
        };
        let mut f = streaming();
        let mut rest = all.as_bytes();
        for cut in cuts {
            let (part, left) = rest.split_at(cut.min(rest.len()));
            f.bytes(at(70), part);
            rest = left;
        }
        f.bytes(at(70), rest);
        prop_assert_eq!(f.closed(at(71)), whole);
    }
}
