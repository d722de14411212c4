//! Answers, streaming and not, and the errors.

use crate::client::{Client, collect, get, post, post_with};
use crate::{run, slow, spec, start, until};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn hi(more: &Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi there"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_whole_answer_has_vllms_fields() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let a = post_with(&e, CHAT, &[("x-request-id", "abc")], hi(&json!({"max_tokens": 3}))).await;
        assert_eq!(a.status, 200);
        assert_eq!(a.headers["content-type"], "application/json");
        assert_eq!(a.headers["x-forebay-emulated"], "true");
        assert_eq!(a.headers["x-request-id"], "abc");
        let mut v = a.json();
        assert_eq!(v["choices"][0]["message"]["content"].as_str().unwrap().len(), 12);
        v["choices"][0]["message"]["content"] = json!("");
        assert!(v["created"].as_u64().unwrap() > 1_700_000_000);
        v["created"] = json!(0);
        // Order and names of the fields as recorded from vLLM 0.32.
        assert_eq!(
            v,
            json!({"id":"chatcmpl-abc","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-emulated","usage":{"prompt_tokens":10,"total_tokens":13,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null})
        );
        let v =
            post(&e, TEXT, json!({"model": "tiny", "prompt": [300, 301, 302], "max_tokens": 2})).await.json();
        assert!(v["id"].as_str().unwrap().starts_with("cmpl-"));
        assert_eq!(v["object"], "text_completion");
        assert_eq!(v["usage"]["prompt_tokens"], 3);
        assert_eq!(v["usage"]["prompt_tokens_details"]["created_cache_tokens"], Value::Null);
        assert_eq!(v["choices"][0]["text"].as_str().unwrap().len(), 8);
    });
}

#[test]
fn a_chat_stream_has_a_role_a_chunk_per_token_and_usage() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let body = hi(&json!({"max_tokens": 5, "stream": true, "stream_options": {"include_usage": true}}));
        let a = post(&e, CHAT, body).await;
        assert_eq!(a.headers["content-type"], "text/event-stream; charset=utf-8");
        let events = a.events();
        assert_eq!(events.len(), 1 + 5 + 1);
        assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert!(events[0].as_object().unwrap().contains_key("prompt_text"));
        for event in &events[1..5] {
            assert_eq!(event["object"], "chat.completion.chunk");
            assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
            assert_eq!(event["choices"][0]["delta"]["content"].as_str().unwrap().len(), 4);
            assert_eq!(event.get("usage"), None);
        }
        assert_eq!(events[5]["choices"][0]["finish_reason"], "length");
        let usage = json!({"prompt_tokens":10,"total_tokens":15,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}});
        assert_eq!((&events[6]["choices"], &events[6]["usage"]), (&json!([]), &usage));

        // The same request gives the same text, streaming or not.
        let text: String =
            events[1..6].iter().map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        let whole = post(&e, CHAT, hi(&json!({"max_tokens": 5}))).await.json();
        assert_eq!(whole["choices"][0]["message"]["content"], text);
    });
}

#[test]
fn a_text_stream_can_carry_usage_in_each_chunk() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let options = json!({"include_usage": true, "continuous_usage_stats": true});
        let body = json!({"model": "tiny", "prompt": "Hello world", "max_tokens": 3, "stream": true, "stream_options": options});
        let events = post(&e, TEXT, body).await.events();
        assert_eq!(events.len(), 4);
        for (i, event) in events[..3].iter().enumerate() {
            let n = i + 1;
            assert_eq!(
                event["usage"],
                json!({"prompt_tokens": 3, "total_tokens": 3 + n, "completion_tokens": n})
            );
            let last = if n == 3 { json!("length") } else { Value::Null };
            assert_eq!(event["choices"][0]["finish_reason"], last);
            assert_eq!(event["choices"][0]["stop_reason"], Value::Null);
        }
        assert_eq!(events[3]["usage"]["prompt_tokens_details"], json!({"cached_tokens": 0}));
    });
}

#[test]
fn several_choices_and_several_prompts() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let v = post(&e, CHAT, hi(&json!({"max_tokens": 4, "n": 2}))).await.json();
        let choices = v["choices"].as_array().unwrap();
        assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
        assert_ne!(choices[0]["message"]["content"], choices[1]["message"]["content"]);
        assert_eq!((&v["usage"]["prompt_tokens"], &v["usage"]["completion_tokens"]), (&json!(10), &json!(8)));

        let body = json!({"model": "tiny", "prompt": ["Hello", "World, hello"], "n": 2, "max_tokens": 3, "stream": true});
        let events = post(&e, TEXT, body).await.events();
        let mut tokens = [0; 4];
        for event in &events {
            tokens[event["choices"][0]["index"].as_u64().unwrap() as usize] += 1;
        }
        assert_eq!(tokens, [3; 4]);
    });
}

#[test]
fn repeated_prompts_and_later_turns_are_cached() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let long = "A long system prompt that fills several blocks. ".repeat(20);
        let mut talk =
            vec![json!({"role": "system", "content": long}), json!({"role": "user", "content": "Hi"})];
        let ask = |talk: &[Value]| json!({"model": "tiny", "messages": talk, "max_tokens": 64});
        let first = post(&e, CHAT, ask(&talk)).await.json();
        let cached = |v: &Value| v["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(cached(&first), 0);
        let again = post(&e, CHAT, ask(&talk)).await.json();
        assert_eq!(cached(&again), (prompt - 1) / 16 * 16);
        // The answer becomes part of the prompt and is cached as well.
        talk.push(json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]}));
        talk.push(json!({"role": "user", "content": "And then?"}));
        let next = post(&e, CHAT, ask(&talk)).await.json();
        assert_eq!(cached(&next), (prompt + 63) / 16 * 16, "the last token out is never computed");
        assert_eq!(e.published().prefix_hits, cached(&again) + cached(&next));
    });
}

#[test]
fn stop_strings_end_the_text() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let whole = post(&e, TEXT, json!({"model": "tiny", "prompt": "x", "max_tokens": 50})).await.json();
        let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
        let stop = &text[80..90];
        let cut = &text[..text.find(stop).unwrap()];
        let body = json!({"model": "tiny", "prompt": "x", "max_tokens": 50, "stop": [stop]});
        let v = post(&e, TEXT, body).await.json();
        let choice = &v["choices"][0];
        assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some(cut), Some("stop")));
        assert_eq!(choice["stop_reason"], stop);
        let body = json!({"model": "tiny", "prompt": "x", "max_tokens": 50, "stop": stop, "stream": true});
        let events = post(&e, TEXT, body).await.events();
        let streamed: String = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(streamed, cut);
        assert_eq!(events.last().unwrap()["choices"][0]["stop_reason"], stop);
        // Without a limit a chat ends by itself.
        let v = post(&e, CHAT, hi(&json!({}))).await.json();
        assert_eq!(
            (&v["choices"][0]["finish_reason"], &v["usage"]["completion_tokens"]),
            (&json!("stop"), &json!(256))
        );
    });
}

#[test]
fn errors_are_vllms() {
    run(async {
        let e = start(&spec(), |o| o.served_model_names.truncate(1)).await;
        for (path, body, status, want) in [
            (
                TEXT,
                r#"{"model":"nope","prompt":"Hello","max_tokens":4}"#,
                404,
                r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#,
            ),
            (
                TEXT,
                r#"{"model":"tiny","prompt":"Hello","max_tokens":4000}"#,
                400,
                r#"{"error":{"message":"max_tokens=4000 cannot be greater than max_model_len=2048. Please request fewer output tokens. (parameter=max_tokens, value=4000)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
            ),
            (
                TEXT,
                r#"{"model":"tiny","max_tokens":4"#,
                400,
                r#"{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.30', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': \"Expecting ',' delimiter\"}}","type":"Bad Request","param":"body.30","code":400}}"#,
            ),
            (
                TEXT,
                r#"{"model":"tiny","prompt":"Hello","max_tokens":4,"priority":"x"}"#,
                400,
                r#"{"error":{"message":"1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.priority', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}","type":"Bad Request","param":"body.priority","code":400}}"#,
            ),
            (
                CHAT,
                r#"{"model":"tiny"}"#,
                400,
                r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}","type":"Bad Request","param":"body.messages","code":400}}"#,
            ),
        ] {
            let a = post(&e, path, body).await;
            assert_eq!((a.status.as_u16(), a.body.as_str()), (status, want));
            assert_eq!(a.headers["x-forebay-emulated"], "true");
        }
        let a = get(&e, "/nope").await;
        assert_eq!((a.status.as_u16(), a.body.as_str()), (404, r#"{"detail":"Not Found"}"#));
        let a = get(&e, TEXT).await;
        assert_eq!((a.status.as_u16(), a.body.as_str()), (405, r#"{"detail":"Method Not Allowed"}"#));
    });
}

#[test]
fn the_small_endpoints_answer() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        for path in ["/health", "/ping"] {
            let a = get(&e, path).await;
            assert_eq!((a.status.as_u16(), a.body.as_str()), (200, ""));
        }
        assert_eq!(get(&e, "/version").await.body, r#"{"version":"0.32.0"}"#);
        assert_eq!(get(&e, "/load").await.body, r#"{"server_load":0}"#);
        let v = get(&e, "/v1/models").await.json();
        assert_eq!((&v["data"][0]["id"], &v["data"][0]["max_model_len"]), (&json!("tiny"), &json!(2048)));
        assert_eq!(v["data"][1]["id"], "forebay/tiny");
        let v = post(&e, "/tokenize", json!({"model": "tiny", "prompt": "Hello world"})).await.json();
        assert_eq!((&v["count"], &v["max_model_len"]), (&json!(3), &json!(2048)));
        // Sending the ids is sending the text.
        let ids = json!({"model": "tiny", "prompt": v["tokens"], "max_tokens": 5});
        let text = json!({"model": "tiny", "prompt": "Hello world", "max_tokens": 5});
        let (a, b) = (post(&e, TEXT, ids).await.json(), post(&e, TEXT, text).await.json());
        assert_eq!(a["choices"][0]["text"], b["choices"][0]["text"]);
    });
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    run(async {
        let mut spec = slow();
        spec.max_num_seqs = Some(1);
        let e = start(&spec, |_| {}).await;
        let endless = |stream: bool| hi(&json!({"ignore_eos": true, "stream": stream})).to_string();
        // One streams, one waits behind it without streaming.
        let mut running = Client::connect(&e).await.unwrap();
        let mut response = running.send("POST", CHAT, &[], endless(true)).await.unwrap();
        response.body_mut().frame().await.unwrap().unwrap();
        let mut waiting = Client::connect(&e).await.unwrap();
        let mut unanswered = Box::pin(waiting.send("POST", CHAT, &[], endless(false)));
        tokio::select! {
            _ = &mut unanswered => panic!("two thousand tokens cannot be there yet"),
            () = until(&e, |p| p.running == 1 && p.waiting == 1) => {}
        }
        assert_eq!(get(&e, "/load").await.body, r#"{"server_load":2}"#);
        drop(unanswered);
        waiting.leave();
        until(&e, |p| p.running == 1 && p.waiting == 0).await;
        drop(response);
        running.leave();
        until(&e, |p| p.running == 0 && p.used_blocks == 0).await;
        let text = get(&e, "/metrics").await.body;
        let abort = r#"vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 2.0"#;
        assert!(text.lines().any(|l| l == abort), "{text}");
        // The slot is free for the next.
        assert_eq!(post(&e, CHAT, hi(&json!({"max_tokens": 2}))).await.status, 200);
    });
}

#[test]
fn a_reader_that_lags_loses_nothing_and_holds_nothing_up() {
    run(async {
        let e = start(&spec(), |_| {}).await;
        let mut client = Client::connect(&e).await.unwrap();
        let body = json!({"model": "tiny", "prompt": "x", "max_tokens": 2000, "stream": true}).to_string();
        let response = client.send("POST", TEXT, &[], body).await.unwrap();
        until(&e, |p| p.generation_tokens == 2000 && p.running == 0).await;
        let events = collect(response).await.unwrap().events();
        assert_eq!(events.len(), 2000);
        let v = post(&e, TEXT, json!({"model": "tiny", "prompt": "x", "max_tokens": 2000})).await.json();
        let text: String = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(v["choices"][0]["text"], text);
    });
}

#[test]
fn many_servers_run_in_one_process() {
    run(async {
        let mut all = Vec::new();
        for _ in 0..20 {
            all.push(start(&spec(), |_| {}).await);
        }
        for (i, e) in all.iter().enumerate() {
            assert_eq!(post(e, CHAT, hi(&json!({"max_tokens": i + 1}))).await.status, 200);
        }
        let tokens: Vec<u64> = all.iter().map(|e| e.published().generation_tokens).collect();
        assert_eq!(tokens, (1..=20).collect::<Vec<_>>());
        let addr = all[0].addr();
        all.remove(0).shutdown().await;
        assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "its socket is closed");
    });
}

#[test]
fn lower_priority_values_go_first() {
    run(async {
        let mut spec = slow();
        spec.max_num_seqs = Some(1);
        spec.scheduling = forebay_engine::Scheduling::Priority;
        let e = start(&spec, |_| {}).await;
        let ask = |priority: i32| hi(&json!({"priority": priority, "max_tokens": 2}));
        let mut first = Client::connect(&e).await.unwrap();
        let endless = hi(&json!({"ignore_eos": true, "stream": true})).to_string();
        let response = first.send("POST", CHAT, &[], endless).await.unwrap();
        until(&e, |p| p.running == 1).await;
        let order = std::sync::Mutex::new(Vec::new());
        let wait = async |priority: i32| {
            assert_eq!(post(&e, CHAT, ask(priority)).await.status, 200);
            order.lock().unwrap().push(priority);
        };
        tokio::join!(wait(5), async {
            until(&e, |p| p.waiting == 1).await;
            tokio::join!(wait(-5), async {
                until(&e, |p| p.waiting == 2).await;
                drop(response);
                first.leave();
            });
        });
        assert_eq!(*order.lock().unwrap(), [-5, 5]);
    });
}

/// Whoever wants to know is told of each choice, of one whose client left as well.
#[test]
fn accounts_tell_of_what_ended_and_how() {
    run(async {
        let (to, accounts) = std::sync::mpsc::channel();
        let e = start(&slow(), |o| o.accounts = Some(to)).await;
        let ask = |tokens: u32, n: u32| {
            json!({"model": "tiny", "prompt": "Hello world", "max_tokens": tokens, "n": n, "stream": true})
                .to_string()
        };
        let before = std::time::Instant::now();
        let a = post_with(&e, TEXT, &[("x-request-id", "a-1")], ask(4, 2)).await;
        assert_eq!(a.status, 200);
        let mut client = Client::connect(&e).await.unwrap();
        let answer = client.send("POST", TEXT, &[("x-request-id", "a-2")], ask(1000, 1)).await.unwrap();
        until(&e, |p| p.running == 1).await;
        drop(answer);
        client.leave();
        let mut told = Vec::new();
        while told.len() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            told.extend(accounts.try_iter());
        }
        let brief = |s: &forebay_emulate::Served| (s.request_id.clone(), s.finished, s.prompt_tokens);
        let whole = ("a-1".to_owned(), true, 3);
        assert_eq!(
            told.iter().map(brief).collect::<Vec<_>>(),
            [whole.clone(), whole, ("a-2".to_owned(), false, 3)]
        );
        for s in &told[..2] {
            assert_eq!((s.output_tokens, s.preemptions, s.cached_tokens), (4, 0, 0));
            let (admitted, first, last) = (s.admitted.unwrap(), s.first.unwrap(), s.last.unwrap());
            assert!(before <= s.arrived && s.arrived <= admitted && admitted < first && first < last);
        }
        assert!(told[2].output_tokens < 1000);
    });
}
