//! The JSON of answers, field by field in the order of vLLM 0.32.

use crate::ask::{Ask, Choice, End};
use crate::driver::Part;
use serde_json::Value;
use std::fmt::Write as _;

const FINGERPRINT: &str = "vllm-0.32.0-emulated";

/// A JSON string literal.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// What every object of one answer begins with.
pub(crate) struct Head {
    chat: bool,
    /// `"id":…`, and `"created":…,"model":…`.
    id: String,
    made: String,
}

impl Head {
    pub(crate) fn new(chat: bool, request_id: &str, created: u64, model: &str) -> Head {
        let prefix = if chat { "chatcmpl" } else { "cmpl" };
        Head {
            chat,
            id: format!(r#""id":{}"#, literal(&format!("{prefix}-{request_id}"))),
            made: format!(r#""created":{created},"model":{}"#, literal(model)),
        }
    }

    fn open(&self, whole: bool) -> String {
        let object = match (self.chat, whole) {
            (true, true) => "chat.completion",
            (true, false) => "chat.completion.chunk",
            (false, _) => "text_completion",
        };
        format!(r#"{{{},"object":"{object}",{}"#, self.id, self.made)
    }

    /// The first event of each chat choice.
    pub(crate) fn role_event(&self, index: usize, usage: Option<&str>) -> String {
        let mut event = format!(
            r#"data: {},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]"#,
            self.open(false)
        );
        push_usage(&mut event, usage);
        event.push_str(",\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
        event
    }

    /// The event of one token; `end` with the last.
    pub(crate) fn token_event(
        &self,
        index: usize,
        piece: &str,
        end: Option<&End>,
        usage: Option<&str>,
    ) -> String {
        let mut event = String::with_capacity(320);
        event.push_str("data: ");
        event.push_str(&self.open(false));
        let text = literal(piece);
        let reason = end.map_or_else(|| "null".to_owned(), |e| literal(e.reason()));
        let stop = stop_reason(end);
        let _ = if self.chat {
            write!(
                event,
                r#","choices":[{{"index":{index},"delta":{{"content":{text}}},"logprobs":null,"finish_reason":{reason}"#
            )
        } else {
            write!(
                event,
                r#","choices":[{{"index":{index},"text":{text},"logprobs":null,"finish_reason":{reason}"#
            )
        };
        if !self.chat {
            let _ = write!(event, r#","stop_reason":{stop},"prompt_token_ids":null"#);
        } else if end.is_some() {
            let _ = write!(event, r#","stop_reason":{stop}"#);
        }
        event.push_str(r#","token_ids":null}]"#);
        push_usage(&mut event, usage);
        event.push_str("}\n\n");
        event
    }

    /// The event of the final usage.
    pub(crate) fn usage_event(&self, usage: &str) -> String {
        format!(
            "data: {},\"choices\":[],\"usage\":{usage},\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n",
            self.open(false)
        )
    }

    /// The answer that does not stream.
    pub(crate) fn whole(&self, ask: &Ask, parts: &[Part]) -> String {
        let mut body = self.open(true);
        body.push_str(r#","choices":["#);
        for (index, choice) in ask.choices.iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            self.whole_choice(&mut body, index, choice);
        }
        let usage = Usage::of(ask, parts, None);
        let created = if self.chat { "0" } else { "null" };
        let _ = write!(
            body,
            r#"],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{{{},"prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":{created},"multimodal_tokens":null}},"completion_tokens_details":null}}"#,
            usage.counts(),
            usage.cached,
        );
        if self.chat {
            body.push_str(r#","prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null"#);
        }
        body.push_str(r#","kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#);
        body
    }

    fn whole_choice(&self, body: &mut String, index: usize, choice: &Choice) {
        let text: String = (0..choice.tokens).map(|i| choice.piece(i)).collect();
        let (text, reason) = (literal(&text), choice.end.reason());
        let stop = stop_reason(Some(&choice.end));
        let _ = if self.chat {
            write!(
                body,
                r#"{{"index":{index},"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"{reason}","stop_reason":{stop},"token_ids":null,"routed_experts":null}}"#
            )
        } else {
            write!(
                body,
                r#"{{"index":{index},"text":{text},"logprobs":null,"finish_reason":"{reason}","stop_reason":{stop},"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}"#
            )
        };
    }
}

fn push_usage(event: &mut String, usage: Option<&str>) {
    if let Some(usage) = usage {
        let _ = write!(event, r#","usage":{usage}"#);
    }
}

fn stop_reason(end: Option<&End>) -> String {
    match end {
        Some(End::Stop(stop)) => literal(stop),
        _ => "null".to_owned(),
    }
}

/// Token counts of an answer. A prompt counts once, however many choices it has.
pub(crate) struct Usage {
    prompt: u64,
    completion: u64,
    cached: u64,
}

impl Usage {
    /// The counts after `sent` tokens of each choice, or of all.
    pub(crate) fn of(ask: &Ask, parts: &[Part], sent: Option<&[u32]>) -> Usage {
        let completion = match sent {
            Some(sent) => sent.iter().map(|&n| u64::from(n)).sum(),
            None => ask.choices.iter().map(|c| u64::from(c.tokens)).sum(),
        };
        Usage {
            prompt: ask.prompts.iter().map(|p| p.len() as u64).sum(),
            completion,
            cached: parts.iter().step_by(ask.n as usize).map(|p| u64::from(p.cached())).sum(),
        }
    }

    fn counts(&self) -> String {
        let total = self.prompt + self.completion;
        format!(
            r#""prompt_tokens":{},"total_tokens":{total},"completion_tokens":{}"#,
            self.prompt, self.completion
        )
    }

    /// As `continuous_usage_stats` puts it into each event.
    pub(crate) fn running(&self) -> String {
        format!("{{{}}}", self.counts())
    }

    /// As the last event of a stream has it.
    pub(crate) fn last(&self, chat: bool) -> String {
        let created = if chat { r#","created_cache_tokens":0"# } else { "" };
        format!(
            r#"{{{},"prompt_tokens_details":{{"cached_tokens":{}{created}}}}}"#,
            self.counts(),
            self.cached
        )
    }
}

/// `GET /v1/models`.
pub(crate) fn models(served: &[String], root: &str, created: u64, max_model_len: u32) -> String {
    let one = |(i, name): (usize, &String)| {
        format!(
            r#"{{"id":{},"object":"model","created":{created},"owned_by":"vllm","root":{},"parent":null,"max_model_len":{max_model_len},"permission":[{{"id":"modelperm-{i:016x}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#,
            literal(name),
            literal(root)
        )
    };
    let all: Vec<String> = served.iter().enumerate().map(one).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, all.join(","))
}

/// `POST /tokenize`.
pub(crate) fn tokens(ids: &[u32], max_model_len: u32) -> String {
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    format!(
        r#"{{"count":{},"max_model_len":{max_model_len},"tokens":[{}],"token_strs":null}}"#,
        ids.len(),
        list.join(",")
    )
}
