//! The whole measuring under a virtual clock: what is sent when, and what comes of it.

use crate::workload;
use forebay_base::{Nanos, Span};
use forebay_load::{Book, Conductor, Style, Url};
use forebay_records::stats::{Schedule, Slo};
use forebay_records::{End, Record};
use forebay_workload::Workload;
use http::{HeaderMap, HeaderValue};
use std::collections::BTreeMap;

/// What happens to a request at an instant.
enum Event {
    Bytes(usize, String),
    Close(usize),
}

/// A server that takes 30 ms to the first token and 10 ms to each further one, all at once for everybody; `refuse`
/// says which numbers get 429 instead.
fn simulate(w: &Workload, refuse: impl Fn(u64) -> bool) -> Vec<Record> {
    let url = Url::parse("http://h:1").unwrap();
    let mut conductor = Conductor::for_url(w, 1, &url, "m", &Style::new(w), 7);
    let mut book = Book::new(w.classes.len());
    let mut events: BTreeMap<(Nanos, usize), Event> = BTreeMap::new();
    let mut flights = Vec::new();
    let mut order = 0;
    loop {
        let arrival = conductor.next_at();
        let event = events.keys().next().map(|k| k.0);
        match (arrival, event) {
            (None, None) => break,
            (Some(at), event) if event.is_none_or(|e| at < e) => {
                let mut flight = conductor.take().unwrap().flight;
                book.begin();
                flight.sent(at);
                let number = flight.record().row.number;
                let (slot, tokens) = (flights.len(), flight.record().live.asked_output_tokens);
                let mut put = |at, e| {
                    order += 1;
                    events.insert((at, order), e);
                };
                if refuse(number) {
                    flight.head(429, &HeaderMap::new());
                    put(at + Span::millis(1), Event::Close(slot));
                } else {
                    let kind = HeaderValue::from_static("text/event-stream");
                    flight.head(200, &HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind)]));
                    for i in 0..u64::from(tokens) {
                        let event = "data: {\"choices\":[{\"delta\":{\"content\":\" x\"}}]}\n\n".to_owned();
                        put(at + Span::millis(30 + 10 * i), Event::Bytes(slot, event));
                    }
                    let last = at + Span::millis(20 + 10 * u64::from(tokens));
                    let end = format!(
                        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
                    );
                    put(last, Event::Bytes(slot, end));
                    put(last + Span::millis(2), Event::Close(slot));
                }
                flights.push(Some(flight));
            }
            _ => {
                let ((now, _), event) = events.pop_first().unwrap();
                match event {
                    Event::Bytes(slot, bytes) => {
                        flights[slot].as_mut().unwrap().bytes(now, bytes.as_bytes());
                    }
                    Event::Close(slot) => {
                        let mut landed = flights[slot].take().unwrap().closed(now);
                        conductor.landed(&mut landed, now);
                        book.end(landed, now);
                    }
                }
            }
        }
    }
    assert_eq!(book.open(), 0);
    assert_eq!(conductor.followed(), 0);
    book.records().to_vec()
}

#[test]
fn everything_is_exact() {
    let w = workload(
        "window: 10s, drain: 10s",
        "arrivals: {process: constant, phase: 0, rate: 100}, input: 20, output: {uniform: [1, 9]}, slo: {ttft: 30ms, e2e: 70ms}",
    );
    let records = simulate(&w, |n| n % 10 == 3);
    assert_eq!(records.len(), 1000);
    let mut met = 0;
    for (n, r) in records.iter().enumerate() {
        assert_eq!(
            (r.row.number, r.row.arrived, r.lag()),
            (n as u64, Nanos(n as u64 * 10_000_000), Some(Span::ZERO))
        );
        if n % 10 == 3 {
            assert_eq!((r.row.end, r.row.ttft()), (End::Rejected("status-429"), None));
            continue;
        }
        let tokens = u64::from(r.live.asked_output_tokens);
        assert_eq!((r.row.ttft(), u64::from(r.row.output_tokens)), (Some(Span::millis(30)), tokens));
        assert_eq!(r.row.e2e(), Some(Span::millis(20 + 10 * tokens)), "to the last token");
        assert_eq!(r.to_close(), Some(Span::millis(22 + 10 * tokens)));
        assert_eq!(r.row.tpot(), (tokens > 1).then_some(Span::millis(10)));
        met += u64::from(tokens <= 5);
    }
    let slo = |_| Slo { ttft: Some(Span::millis(30)), e2e: Some(Span::millis(70)), tpot: None };
    let goodput = w.mode.measured().goodput(records.iter().map(|r| &r.row), slo);
    assert_eq!((goodput.offered, goodput.attained), (1000, met), "refused requests were offered");
    let s = Schedule::of(&records, w.mode.measured());
    assert_eq!((s.offered, s.sent, s.lag_max, s.problems().len()), (1000, 1000, Some(Span::ZERO), 0));
}

#[test]
fn refused_requests_come_again_after_a_time_that_doubles() {
    let w = workload(
        "window: 100ms, drain: 10s",
        "arrivals: {process: constant, phase: 0, rate: 10}, input: 20, output: 2, retry: {attempts: 4, backoff: 100ms}",
    );
    let records = simulate(&w, |n| n < 3);
    let times: Vec<u64> = records.iter().map(|r| r.row.arrived.0 / 1_000_000).collect();
    assert_eq!(times, [0, 101, 302, 703], "100, 200 and 400 ms after each refusal");
    assert_eq!(records.iter().map(|r| r.live.attempt).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(records[3].row.is_finished());
}

#[test]
fn turns_follow_the_answer_and_end_with_a_refusal() {
    let w = workload(
        "window: 100ms, drain: 10s",
        "arrivals: {process: constant, phase: 0, rate: 10}, input: 20, output: 2, sessions: {turns: 3, think: 1s}",
    );
    let times = |refuse: u64| -> Vec<u64> {
        simulate(&w, |n| n == refuse).iter().map(|r| r.row.arrived.0 / 1_000_000).collect()
    };
    assert_eq!(times(9), [0, 1042, 2084], "the stream closes 42 ms after the request");
    assert_eq!(times(1), [0, 1042]);
}
