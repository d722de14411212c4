use super::*;
use crate::{Api, peek};
use proptest::prelude::*;

fn map() -> NameMap {
    NameMap::new("served", "as\"ked")
}

fn mapped(body: &str) -> String {
    String::from_utf8(map().body(body.as_bytes()).into_owned()).unwrap()
}

#[test]
fn a_request_keeps_every_other_byte() {
    let body = br#" {"prompt" : "model","mod\u0065l" :  "a\/b" , "x":[1.50e1] }"#;
    let seen = peek(Api::Completions, body).unwrap();
    let model = seen.model.unwrap();
    assert_eq!(model.name, "a/b");
    let out = replace(body, model.range, "new \"name\"\n");
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#" {"prompt" : "model","mod\u0065l" :  "new \"name\"\n" , "x":[1.50e1] }"#
    );
}

#[test]
fn answers_are_mapped_by_key_and_value() {
    assert_eq!(
        mapped(
            r#"{"id":"x", "model" : "ser\u0076ed","choices":[{"text":"\"model\":\"served\"","model":"served"}]}"#
        ),
        r#"{"id":"x", "model" : "as\"ked","choices":[{"text":"\"model\":\"served\"","model":"served"}]}"#
    );
    assert_eq!(mapped(r#"{"response":{"model":"served"}}"#), r#"{"response":{"model":"as\"ked"}}"#);
    assert_eq!(
        mapped(r#"{"message":{"message":{"model":"served"},"model":"served"},"model":"served"}"#),
        r#"{"message":{"message":{"model":"served"},"model":"as\"ked"},"model":"as\"ked"}"#
    );
    for same in [
        r#"{"model":"other"}"#,
        r#"{"model":["served"]}"#,
        r#"["model"]"#,
        r#"{"model":"served""#,
        "",
        "model",
    ] {
        assert_eq!(mapped(same), same);
    }
}

const STREAM: &str = concat!(
    "event: x\r\ndata: {\"model\":\"served\",\"choices\":[{\"text\":\"model\"}]}\r\n\r\n",
    ": {\"model\":\"served\"}\ndata:{\"model\":\"served\"}\rdata: [DONE]\n\ndata: {\"model\":\n",
);

#[test]
fn events_are_mapped_wherever_they_are_split() {
    let expected = concat!(
        "event: x\r\ndata: {\"model\":\"as\\\"ked\",\"choices\":[{\"text\":\"model\"}]}\r\n\r\n",
        ": {\"model\":\"served\"}\ndata:{\"model\":\"as\\\"ked\"}\rdata: [DONE]\n\ndata: {\"model\":\n",
    );
    for at in 0..=STREAM.len() {
        let mut events = EventMap::new(map(), 1000);
        let mut out = Vec::new();
        events.feed(&STREAM.as_bytes()[..at], &mut out);
        events.feed(&STREAM.as_bytes()[at..], &mut out);
        events.finish(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "split at {at}");
    }
}

#[test]
fn complete_lines_are_not_held_back() {
    let mut events = EventMap::new(map(), 1000);
    let mut out = Vec::new();
    events.feed(b"data: {\"model\":\"served\"}\n\nda", &mut out);
    assert_eq!(out, b"data: {\"model\":\"as\\\"ked\"}\n\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn without_the_name_nothing_changes(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("data: {\"model\":\"other\"}"), Just("data:"), Just("\n"), Just("\r"), Just("\"model\""),
                Just(" x"), Just("data: [DONE]"),
            ], 0..40),
        sizes in proptest::collection::vec(1_usize..9, 1..20),
    ) {
        let stream = parts.concat();
        let mut events = EventMap::new(map(), 20);
        let mut out = Vec::new();
        let mut rest = stream.as_bytes();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*size).min(rest.len()));
            events.feed(now, &mut out);
            prop_assert!(events.held.len() <= 20);
            rest = later;
        }
        events.finish(&mut out);
        prop_assert_eq!(out, stream.as_bytes());
    }
}
