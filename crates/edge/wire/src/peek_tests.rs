use super::*;
use proptest::prelude::*;
use serde_json::json;

fn seen(api: Api, body: &str) -> Peek<'_> {
    peek(api, body.as_bytes()).unwrap()
}

fn prompt(api: Api, body: &serde_json::Value) -> String {
    String::from_utf8(seen(api, &body.to_string()).prompt).unwrap()
}

#[test]
fn a_chat_request() {
    let body = r#"{"stream":true, "model" : "m\n1", "max_tokens":5,"max_completion_tokens":7,
        "messages":[{"content":"Hi \u00e9","role":"user"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
          {"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]}],
        "stream_options":{"include_usage":true},"n":2,"priority":-3,"user":"u","cache_salt":"s",
        "tools":[ {"x":1}],"extra":{"model":"no"}}"#;
    let peek = seen(Api::ChatCompletions, body);
    let model = peek.model.clone().unwrap();
    assert_eq!(model.name, "m\n1");
    assert_eq!(&body[model.range], r#""m\n1""#);
    assert!(peek.stream && peek.include_usage && peek.has_prompt);
    assert_eq!((peek.max_tokens, peek.n, peek.priority), (Some(7), Some(2), Some(-3)));
    assert_eq!((peek.user.as_deref(), peek.cache_salt.as_deref()), (Some("u"), Some("s")));
    assert_eq!(String::from_utf8(peek.prompt.clone()).unwrap(), "[ {\"x\":1}]userHi éassistantuserab");
    assert_eq!(peek.prompt_tokens(), 9);
}

#[test]
fn several_prompts_are_one_text_in_their_order() {
    let both = |a: &str, b: &str| prompt(Api::Completions, &json!({"prompt": [a, b]}));
    assert_eq!(both("abcd", "efghi"), "abcdefghi\0\0\0");
    assert_eq!(both("abc", "efghi"), "abc\0efghi\0\0\0");
    assert_eq!(both("abcd", "x")[..4], both("abcd", "y")[..4]);
    assert_ne!(both("abcd", "efgh"), both("efgh", "abcd"));
}

#[test]
fn each_api_has_its_prompt() {
    assert_eq!(prompt(Api::Completions, &json!({"prompt": "abc", "messages": "no"})), "abc");
    assert_eq!(prompt(Api::Completions, &json!({"prompt": ["abcde", "f"]})), "abcde\0\0\0f\0\0\0");
    assert_eq!(prompt(Api::Embeddings, &json!({"input": "abc", "prompt": "no"})), "abc");
    assert_eq!(
        prompt(
            Api::Responses,
            &json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "instructions": "be brief"})
        ),
        "be briefuserhi"
    );
    assert_eq!(prompt(Api::Conversations, &json!({"items": [{"role": "user", "content": "hi"}]})), "userhi");
    assert_eq!(prompt(Api::Images, &json!({"prompt": "cat"})), "cat");
    assert_eq!(prompt(Api::Tokenize, &json!({"messages": [{"role": "user", "content": "hi"}]})), "userhi");
    let anthropic = json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "name": "n", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "r"}]}]},
    ], "system": [{"type": "text", "text": "sys"}], "tools": [1]});
    let text = prompt(Api::Messages, &anthropic);
    assert_eq!(text.len(), "[1]sysuserqassistanttn{\"a\":1}userr".len());
    assert!(text.starts_with("[1]sysuserqassistant") && text.ends_with("userr"), "{text}");
}

#[test]
fn token_ids_are_packed() {
    let ids = [1, 0, 0, 0, 44, 1, 0, 0];
    assert_eq!(seen(Api::Completions, r#"{"prompt":[1,300]}"#).prompt, ids);
    assert_eq!(seen(Api::Completions, r#"{"prompt":[[1],[300]]}"#).prompt, ids);
    let body = r#"{"token_ids":[1,300],"sampling_params":{"max_tokens":9}}"#;
    let peek = seen(Api::Generate, body);
    assert_eq!((peek.prompt.as_slice(), peek.prompt_tokens(), peek.max_tokens), (&ids[..], 2, Some(9)));
}

#[test]
fn media_weigh_as_stand_ins() {
    let image = |url: &str| {
        let url = json!({"url": url});
        let content = json!([{"type": "text", "text": "ab"}, {"type": "image_url", "image_url": url}]);
        seen(Api::ChatCompletions, &json!({"messages": [{"role": "user", "content": content}]}).to_string())
            .prompt
    };
    assert_eq!(image("http://x/a").len(), 8 + 225 * 4);
    assert_eq!(image("http://x/a"), image("http://x/a"));
    assert_ne!(image("http://x/a"), image("http://x/b"));
}

#[test]
fn odd_types_are_left_to_the_engine() {
    let body = r#"{"model":null,"stream":"yes","max_tokens":"x","n":-1,"priority":1.5,"user":3,"messages":{"a":1},
        "stream_options":[1],"tools":null}"#;
    let peek = seen(Api::ChatCompletions, body);
    assert_eq!(peek, Peek { has_prompt: true, ..Peek::default() });
    assert!(!seen(Api::ChatCompletions, r#"{"messages":[]}"#).has_prompt);
    assert!(!seen(Api::Completions, r#"{"prompt":""}"#).has_prompt);
    assert_eq!(peek.model_name(), "");
    assert_eq!(super::peek(Api::Passthrough, b"\xff"), Ok(Peek::default()));
}

#[test]
fn refused_bodies() {
    let err = |body: &[u8]| peek(Api::ChatCompletions, body).unwrap_err();
    assert_eq!(
        err(b"{\"model\":\"m\",\n \"max_tokens\":4").to_string(),
        "the request body is not valid JSON: EOF while parsing an object at line 2 column 15 (byte 28)"
    );
    let PeekError::Syntax { offset, line, column, .. } = err(b"{\"a\":\n\n  x}") else { panic!() };
    assert_eq!((offset, line, column), (9, 3, 3));
    let PeekError::Syntax { offset, line, column, message } = err(b"{\"a\":\n \"\xff\"}") else { panic!() };
    assert_eq!((offset, line, column, message.as_str()), (8, 2, 3, "invalid UTF-8"));
    assert!(matches!(err(b"{} x"), PeekError::Syntax { .. }));
    assert!(matches!(err(b""), PeekError::Syntax { .. }));
    assert_eq!(err(b"[1]"), PeekError::NotObject { found: "an array" });
    assert_eq!(err(b"\"x\""), PeekError::NotObject { found: "a string" });
    assert_eq!(err(b"{\"model\":[1]}"), PeekError::ModelType { found: "an array" });
    assert!(matches!(
        err(b"{\"model\":\"a\",\"mod\\u0065l\":\"b\"}"),
        PeekError::Duplicate { field: "model", .. }
    ));
    assert_eq!(err(b"{\"stream\":1,\"stream\":2}").field(), Some("stream"));
    // Keys that routing does not read are the engine's business.
    assert!(peek(Api::ChatCompletions, b"{\"x\":1,\"x\":2}").is_ok());
}

#[test]
fn nesting_is_bounded_wherever_it_is() {
    for key in ["x", "messages", "tools", "model", "stream", "stream_options", "response_format"] {
        for (open, close) in [("[", "]"), ("{\"input\":", "}")] {
            let deep = |n: usize| format!("{{\"{key}\":{}1{}}}", open.repeat(n), close.repeat(n));
            let result = peek(Api::ChatCompletions, deep(200_000).as_bytes()).map(|_| ());
            let Err(PeekError::Syntax { message, .. }) = result else { panic!("{key} {open}: {result:?}") };
            assert!(message.contains("recursion limit"), "{message}");
            if key != "model" {
                assert!(peek(Api::ChatCompletions, deep(50).as_bytes()).is_ok());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn text_survives_any_escaping(text in ".*", model in ".*", escape in any::<bool>()) {
        let write = |s: &str| {
            if !escape {
                return serde_json::to_string(s).unwrap();
            }
            s.encode_utf16().fold(String::from("\""), |out, unit| format!("{out}\\u{unit:04x}")) + "\""
        };
        let body = format!("{{\"prompt\":{},\"model\" :{} }}", write(&text), write(&model));
        let seen = peek(Api::Completions, body.as_bytes()).unwrap();
        prop_assert_eq!(&seen.prompt, text.as_bytes());
        prop_assert_eq!(seen.has_prompt, !text.is_empty());
        let found = seen.model.unwrap();
        prop_assert_eq!(&found.name, &model);
        prop_assert_eq!(&body[found.range], write(&model));
    }

    #[test]
    fn accepts_what_serde_json_accepts(body in proptest::collection::vec(
        prop_oneof![Just("{"), Just("}"), Just("["), Just("]"), Just(":"), Just(","), Just("\"messages\""),
            Just("\"content\""), Just("\"model\""), Just("\"x\""), Just("1"), Just("null"), Just(" ")], 0..12)) {
        let body = body.concat();
        let theirs = serde_json::from_str::<serde_json::Value>(&body);
        match peek(Api::ChatCompletions, body.as_bytes()) {
            Ok(_) => prop_assert!(theirs.is_ok_and(|v| v.is_object())),
            Err(PeekError::Syntax { .. }) => prop_assert!(theirs.is_err()),
            Err(PeekError::NotObject { .. }) => prop_assert!(theirs.is_ok_and(|v| !v.is_object())),
            Err(PeekError::Duplicate { .. }) => {}
            Err(PeekError::ModelType { .. }) => prop_assert!(!theirs.unwrap()["model"].is_string()),
        }
    }
}
