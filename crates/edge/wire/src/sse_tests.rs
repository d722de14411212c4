use super::*;
use proptest::prelude::*;

fn scan(stream: &[u8]) -> Report {
    let mut scanner = Scanner::default();
    scanner.feed(stream);
    scanner.finish();
    scanner.report().clone()
}

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Usage {
    Usage { prompt: Some(prompt), completion: Some(completion), cached }
}

const COMPLETIONS: &str = concat!(
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"(i\",\"finish_reason\":null}],",
    "\"usage\":{\"prompt_tokens\":5,\"total_tokens\":6,\"completion_tokens\":1}}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\" data: [DONE]\",\"finish_reason\":\"length\"}],",
    "\"usage\":{\"prompt_tokens\":5,\"total_tokens\":7,\"completion_tokens\":2}}\n\n",
    "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,",
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n",
);

const CHAT: &str = concat!(
    ": keep-alive\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"hm\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\"}}]}}]}\r\n\r\n",
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\"}}]}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{e9}\u{1f600}\"},\"finish_reason\":null}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\r\n\r\n",
    "data: [DONE]\r\n\r\n",
);

const ANTHROPIC: &str = concat!(
    "\u{feff}event: message_start\rdata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",",
    "\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":7,\"output_tokens\":1}}}\r\r",
    "event: content_block_start\rdata: {\"type\":\"content_block_start\",\"content_block\":{\"text\":\"\"}}\r\r",
    "event: content_block_delta\rdata: {\"type\":\"content_block_delta\",\"index\":0,",
    "\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\r\r",
    "event: content_block_delta\rdata: {\"type\":\"content_block_delta\",\"index\":0,",
    "\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}}\r\r",
    "event: ping\rdata: {\"type\": \"ping\"}\r\r",
    "event: message_delta\rdata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\r",
    "data:\"usage\":{\"output_tokens\":15}}\r\revent: message_stop\rdata: {\"type\":\"message_stop\"}\r\r",
);

const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n",
    "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"Hi\"}\n\n",
    "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":31,\"output_tokens\":2,",
    "\"input_tokens_details\":{\"cached_tokens\":16}}},\"type\":\"response.completed\"}\n\n",
);

#[test]
fn completions_with_continuous_usage() {
    let report = scan(COMPLETIONS.as_bytes());
    assert_eq!(report.content_events, 2);
    assert_eq!(report.usage, Some(usage(5, 2, Some(4))));
    assert_eq!(report.finish_reason.as_deref(), Some("length"));
    assert!(report.done && !report.error);
}

#[test]
fn chat_counts_only_what_carries_output() {
    let report = scan(CHAT.as_bytes());
    assert_eq!(report.content_events, 4);
    assert_eq!(report.usage, None);
    assert_eq!(report.finish_reason.as_deref(), Some("tool_calls"));
    assert!(report.done);
}

#[test]
fn anthropic_merges_its_two_usages() {
    let report = scan(ANTHROPIC.as_bytes());
    assert_eq!(report.content_events, 1);
    assert_eq!(report.usage, Some(usage(25, 15, Some(7))));
    assert_eq!(report.finish_reason.as_deref(), Some("end_turn"));
    assert!(report.done);
}

#[test]
fn responses_events() {
    let report = scan(RESPONSES.as_bytes());
    assert_eq!(report.content_events, 1);
    assert_eq!(report.usage, Some(usage(31, 2, Some(16))));
    assert_eq!(report.finish_reason.as_deref(), Some("completed"));
    assert!(report.done && !report.error);
}

#[test]
fn errors_and_streams_cut_short() {
    let report = scan(b"data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\ndata: [DONE]\n\n");
    assert!(report.error && report.done);
    assert!(scan(b"data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n").error);
    assert!(scan(b"data: {\"type\":\"response.failed\",\"response\":{}}\n\n").error);
    let cut = scan(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"te");
    assert_eq!((cut.content_events, cut.done), (1, false));
    // The last blank line is missing, the event is whole.
    assert!(scan(b"data: [DONE]").done);
    assert!(!scan(b"data: {}\n\ndatabase: [DONE]\n\n").done);
}

#[test]
fn feed_tells_when_content_is_complete() {
    let mut scanner = Scanner::default();
    assert_eq!(scanner.feed(b"data: {\"choices\":[{\"text\":\"a\"}]}\n"), 0);
    assert_eq!(scanner.feed(b"\n"), 1);
    assert_eq!(scanner.feed(b"data: {\"choices\":[{\"text\":\"\",\"token_ids\":[7]}]}\r\n\r"), 1);
    assert_eq!(scanner.feed(b"\n"), 0);
    assert_eq!(scanner.report().content_events, 2);
}

#[test]
fn each_event_is_told_with_what_it_carries() {
    let mut told = Vec::new();
    let mut scanner = Scanner::default();
    let mut each = |e: Passing<'_>| told.push((e.content, e.output, e.usage.and_then(|u| u.completion)));
    for byte in CHAT.as_bytes().chunks(1) {
        scanner.feed_each(byte, &mut each);
    }
    scanner.finish_each(&mut each);
    let expected = [(false, false), (true, false), (true, false), (false, false), (true, true), (true, true)];
    let expected: Vec<_> = expected.iter().chain(&[(false, false); 2]).map(|(c, o)| (*c, *o, None)).collect();
    assert_eq!(told, expected);
    let mut told = Vec::new();
    Scanner::default().feed_each(COMPLETIONS.as_bytes(), &mut |e| {
        told.push((e.content, e.output, e.usage.and_then(|u| u.completion), e.data.len() > 2));
    });
    let expected = [
        (true, true, Some(1), true),
        (true, true, Some(2), true),
        (false, false, Some(2), true),
        (false, false, None, true),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_long_event_is_skipped_and_the_next_one_read() {
    let long = format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(300));
    for step in [1, 7, 100, 1000] {
        let mut scanner = Scanner::new(100);
        for chunk in format!("{long}data: [DONE]\n\n").as_bytes().chunks(step) {
            scanner.feed(chunk);
            assert!(scanner.line.len() <= 100 && scanner.data.len() <= 100);
        }
        assert_eq!(scanner.report().skipped, 1);
        assert_eq!(scanner.report().content_events, 0);
        assert!(scanner.report().done);
    }
}

#[test]
fn split_at_every_byte() {
    for stream in [COMPLETIONS, CHAT, ANTHROPIC, RESPONSES] {
        let whole = scan(stream.as_bytes());
        for at in 0..=stream.len() {
            let mut scanner = Scanner::default();
            scanner.feed(&stream.as_bytes()[..at]);
            scanner.feed(&stream.as_bytes()[at..]);
            scanner.finish();
            assert_eq!(scanner.report(), &whole, "split at {at}");
        }
    }
}

#[test]
fn plain_content_is_told_without_parsing() {
    for (plain, data) in [
        (true, r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":null}"#),
        (true, r#"{"choices":[{"text":"\"type\" \"usage\"","finish_reason":null}]}"#),
        (false, r#"{"choices":[{"delta":{"content":""}}]}"#),
        (false, r#"{"choices":[{"delta":{"content": "a"}}]}"#),
        (false, r#"{"choices":[{"text":"a","finish_reason":"stop"}]}"#),
        (false, r#"{"choices":[{"text":"a","finish_reason": null}]}"#),
        (false, r#"{"choices":[{"text":"a","finish_reason":null},{"text":"a","finish_reason":"stop"}]}"#),
        (false, r#"{"choices":[{"text":"a"}],"usage":{"prompt_tokens":1}}"#),
        (false, r#"{"choices":[{"text":"a"}],"error":{}}"#),
        (false, r#"{"type":"content_block_delta","delta":{"text":"a"}}"#),
        (false, r#"{"choices":[{"text":"a"#),
    ] {
        assert_eq!(is_plain_content(data.as_bytes()), plain, "{data}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn telling_and_parsing_agree(
        texts in proptest::collection::vec((any::<bool>(), "[a\"\\\\{}:]{0,6}|\"(usage|type|error)\":"), 1..3),
        finish in proptest::option::of("[a-z]{1,4}"),
        usage in proptest::option::of(0_u64..9),
    ) {
        let choices: Vec<_> = texts.iter().map(|(chat, text)| if *chat {
            serde_json::json!({"delta": {"content": text}, "finish_reason": finish})
        } else {
            serde_json::json!({"text": text, "finish_reason": finish})
        }).collect();
        let usage = usage.map(|n| serde_json::json!({"prompt_tokens": n}));
        let data = serde_json::json!({"choices": choices, "usage": usage}).to_string();
        if is_plain_content(data.as_bytes()) {
            let mut scanner = Scanner::default();
            scanner.parse(
                &data,
                &mut Passing { data: data.as_bytes(), content: false, output: false, usage: None },
            );
            prop_assert_eq!(scanner.report(), &Report { content_events: 1, ..Report::default() });
        } else {
            prop_assert!(finish.is_some() || usage.is_some() || texts.iter().any(|(_, text)| text.is_empty()));
        }
    }

    #[test]
    fn any_slicing_gives_the_same(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("data: {\"choices\":[{\"text\":\"a\"}]}"), Just("data:"), Just("\n"), Just("\r"), Just("\r\n"),
                Just(": c"), Just("data: [DONE]"), Just("\u{feff}"), Just("{\"usage\":{\"prompt_tokens\":1}}"),
                Just("event: x"), Just("data: {\"choices\":[{\"text\":\"a long text that exceeds\"}]}"),
            ], 0..40),
        sizes in proptest::collection::vec(1_usize..9, 1..20),
    ) {
        let stream = parts.concat();
        let mut whole = Scanner::new(45);
        whole.feed(stream.as_bytes());
        whole.finish();
        let mut sliced = Scanner::new(45);
        let mut rest = stream.as_bytes();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*size).min(rest.len()));
            sliced.feed(now);
            rest = later;
        }
        sliced.finish();
        prop_assert_eq!(sliced.report(), whole.report());
    }
}
