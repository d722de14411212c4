//! What an inference request asks for, checked as vLLM checks it.

use crate::check::Checker;
use crate::error::ApiError;
use crate::text::{BYTES_PER_TOKEN, Tokenizer, Voice};
use serde_json::{Map, Value};

/// What requests are checked against.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) served: Vec<String>,
    pub(crate) max_model_len: u32,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) seed: u64,
    pub(crate) default_output_tokens: u32,
    pub(crate) early_stop: f64,
}

/// Why a choice ends where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The limit on tokens.
    Length,
    /// As if the model had ended it.
    Eos,
    /// A stop string.
    Stop(String),
}

impl End {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            End::Length => "length",
            End::Eos | End::Stop(_) => "stop",
        }
    }
}

/// One of the answers.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// Which of the prompts it answers.
    pub(crate) prompt: usize,
    pub(crate) voice: Voice,
    /// Tokens to generate.
    pub(crate) tokens: u32,
    /// Bytes of text; fewer than the tokens have if a stop string cuts them.
    pub(crate) bytes: usize,
    pub(crate) end: End,
}

impl Choice {
    /// The text of one token, as far as it is before the cut.
    pub(crate) fn piece(&self, index: u32) -> &'static str {
        let start = index as usize * BYTES_PER_TOKEN;
        &self.voice.piece(index)[..self.bytes.saturating_sub(start).min(BYTES_PER_TOKEN)]
    }
}

/// A checked request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) chat: bool,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) priority: i64,
    pub(crate) n: u32,
    /// `max_tokens` as asked for, or its default.
    pub(crate) max_tokens: u32,
    pub(crate) prompts: Vec<Vec<u32>>,
    /// `n` for each prompt, in order.
    pub(crate) choices: Vec<Choice>,
}

/// The fields that are the same for both APIs.
struct Common {
    max_tokens: Option<i64>,
    max_field: &'static str,
    min_tokens: i64,
    ignore_eos: bool,
    stop: Vec<String>,
    include_stop: bool,
    seed: i64,
}

impl Ask {
    /// Checks a body of `/v1/chat/completions` or `/v1/completions`.
    pub(crate) fn read(chat: bool, body: &Map<String, Value>, limits: &Limits) -> Result<Ask, ApiError> {
        let mut c = Checker::new(body);
        let model = c.string("model");
        let stream = c.bool("stream");
        let options = c.object("stream_options");
        let (mut include_usage, mut continuous_usage) = (false, false);
        if let Some(o) = options {
            include_usage = c.bool_in(o, "include_usage", "stream_options.include_usage");
            continuous_usage =
                c.bool_in(o, "continuous_usage_stats", "stream_options.continuous_usage_stats");
        }
        let new_limit = if chat { c.int("max_completion_tokens") } else { None };
        let old_limit = c.int("max_tokens");
        let common = Common {
            max_tokens: new_limit.or(old_limit),
            max_field: if new_limit.is_some() { "max_completion_tokens" } else { "max_tokens" },
            min_tokens: c.int("min_tokens").unwrap_or(0),
            ignore_eos: c.bool("ignore_eos"),
            stop: c.strings("stop"),
            include_stop: c.bool("include_stop_str_in_output"),
            seed: c.int("seed").unwrap_or(0),
        };
        let n = c.int("n").unwrap_or(1);
        let priority = c.int("priority").unwrap_or(0);
        let prompts =
            if chat { vec![messages(&mut c, limits.tokenizer)] } else { prompts(&mut c, limits.tokenizer) };
        c.finish()?;
        known_model(model, limits)?;
        if options.is_some() && !stream {
            return Err(ApiError::bad(
                Some("stream_options"),
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            ));
        }
        if prompts.is_empty() {
            return Err(ApiError::bad(
                None,
                "Either prompt or prompt_embeds must be provided and non-empty.",
            ));
        }
        let n = u32::try_from(n).ok().filter(|n| (1..=16_384).contains(n)).ok_or_else(|| {
            ApiError::bad(Some("n"), &format!("n must be at least 1, got {n}. (parameter=n, value={n})"))
        })?;
        check_ids(&prompts, limits)?;
        check_common(&common)?;
        let max_tokens = length(chat, &common, &prompts, limits)?;
        let choices = (0..prompts.len())
            .flat_map(|p| (0..n).map(move |i| (p, i)))
            .map(|(p, i)| choice(p, i, &prompts[p], chat, &common, max_tokens, limits))
            .collect();
        Ok(Ask {
            chat,
            stream,
            include_usage,
            continuous_usage,
            priority,
            n,
            max_tokens: max_tokens.unwrap_or_else(|| limits.max_model_len - prompts[0].len() as u32),
            prompts,
            choices,
        })
    }
}

pub(crate) fn known_model(model: Option<&str>, limits: &Limits) -> Result<(), ApiError> {
    match model {
        Some(name) if !limits.served.iter().any(|s| s == name) => {
            Err(ApiError::unknown_model(name, &limits.served))
        }
        _ => Ok(()),
    }
}

/// The tokens of a conversation: each message, then the opening of the answer.
pub(crate) fn messages(c: &mut Checker<'_>, tokenizer: Tokenizer) -> Vec<u32> {
    let mut out = Vec::new();
    match c.get("messages") {
        Some(Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                let Some(role) = item.get("role").and_then(Value::as_str) else {
                    c.wrong("missing", &format!("messages.{i}.role"), "Field required", item);
                    continue;
                };
                tokenizer.open(role, &mut out);
                match item.get("content") {
                    Some(Value::String(text)) => tokenizer.text(text, &mut out),
                    Some(Value::Array(parts)) => {
                        let texts = parts.iter().filter_map(|p| p.get("text").and_then(Value::as_str));
                        texts.for_each(|text| tokenizer.text(text, &mut out));
                    }
                    None | Some(Value::Null) => {}
                    Some(other) => {
                        let loc = format!("messages.{i}.content");
                        c.wrong("string_type", &loc, "Input should be a valid string", other);
                    }
                }
                tokenizer.close(&mut out);
            }
            tokenizer.open("assistant", &mut out);
        }
        Some(other) => c.wrong("list_type", "messages", "Input should be a valid list", other),
        None => c.missing("messages"),
    }
    out
}

/// The prompts of a completion: a text, several, token ids, or several lists of them.
pub(crate) fn prompts(c: &mut Checker<'_>, tokenizer: Tokenizer) -> Vec<Vec<u32>> {
    let text = |t: &str| {
        let mut out = Vec::new();
        tokenizer.text(t, &mut out);
        out
    };
    let ids = |v: &Value| -> Option<Vec<u32>> {
        v.as_array()?.iter().map(|t| t.as_u64().and_then(|t| u32::try_from(t).ok())).collect()
    };
    let read = match c.get("prompt") {
        None => Some(Vec::new()),
        Some(Value::String(t)) => Some(vec![text(t)]),
        Some(list @ Value::Array(items)) => {
            if items.is_empty() {
                Some(Vec::new())
            } else if let Some(one) = ids(list) {
                Some(vec![one])
            } else {
                items.iter().map(|i| i.as_str().map(text).or_else(|| ids(i))).collect()
            }
        }
        Some(_) => None,
    };
    read.unwrap_or_else(|| {
        if let Some(value) = c.get("prompt") {
            c.wrong("string_type", "prompt.str", "Input should be a valid string", value);
            c.wrong("list_type", "prompt.list[int]", "Input should be a valid list", value);
        }
        Vec::new()
    })
}

fn check_ids(prompts: &[Vec<u32>], limits: &Limits) -> Result<(), ApiError> {
    for prompt in prompts {
        if prompt.is_empty() {
            return Err(ApiError::bad(None, "The decoder prompt cannot be empty"));
        }
        if let Some(id) = prompt.iter().find(|&&id| id >= limits.tokenizer.vocab) {
            return Err(ApiError::bad(None, &format!("Token id {id} is out of vocabulary")));
        }
    }
    Ok(())
}

fn check_common(common: &Common) -> Result<(), ApiError> {
    let (field, min) = (common.max_field, common.min_tokens);
    if let Some(max) = common.max_tokens {
        if max < 1 {
            let message =
                format!("max_tokens must be at least 1, got {max}. (parameter=max_tokens, value={max})");
            return Err(ApiError::bad(Some(field), &message));
        }
        if min > max {
            let message = format!("min_tokens must be less than or equal to max_tokens={max}, got {min}.");
            return Err(ApiError::bad(None, &message));
        }
    }
    if min < 0 {
        return Err(ApiError::bad(
            None,
            &format!("min_tokens must be greater than or equal to 0, got {min}."),
        ));
    }
    if common.stop.iter().any(String::is_empty) {
        return Err(ApiError::bad(None, "stop cannot contain an empty string."));
    }
    Ok(())
}

/// The limit on output tokens, checked against the model's length; `None` if a chat gave none.
fn length(
    chat: bool,
    common: &Common,
    prompts: &[Vec<u32>],
    limits: &Limits,
) -> Result<Option<u32>, ApiError> {
    let room = limits.max_model_len;
    let asked = common.max_tokens.or(if chat { None } else { Some(16) });
    if let Some(max) = asked.filter(|&max| max > i64::from(room)) {
        let field = common.max_field;
        let message = format!(
            "{field}={max} cannot be greater than max_model_len={room}. Please request fewer output tokens. \
             (parameter={field}, value={max})"
        );
        return Err(ApiError::bad(Some(field), &message));
    }
    let max = asked.map(|max| max as u32);
    for prompt in prompts {
        let (input, output) = (prompt.len() as u64, u64::from(max.unwrap_or(0)));
        if input + output.max(1) > u64::from(room) {
            let message = format!(
                "This model's maximum context length is {room} tokens. However, you requested {output} output \
                 tokens and your prompt contains {input} input tokens, for a total of {} tokens. Please reduce \
                 the length of the input prompt or the number of requested output tokens. \
                 (parameter=input_tokens, value={input})",
                input + output
            );
            return Err(ApiError::bad(Some("input_tokens"), &message));
        }
    }
    Ok(max)
}

fn choice(
    prompt: usize,
    index: u32,
    tokens: &[u32],
    chat: bool,
    common: &Common,
    max: Option<u32>,
    limits: &Limits,
) -> Choice {
    let room = limits.max_model_len - tokens.len() as u32;
    let voice = Voice::new(limits.seed, tokens, common.seed, index);
    let least = common.min_tokens.max(1) as u32;
    let (mut length, mut end) = (max.unwrap_or(room).min(room), End::Length);
    if chat && max.is_none() && !common.ignore_eos && limits.default_output_tokens < length {
        (length, end) = (limits.default_output_tokens.max(least).min(room), End::Eos);
    }
    if !common.ignore_eos && least < length && voice.chance(0) < limits.early_stop {
        let drawn = (voice.chance(1) * f64::from(length - least)) as u32;
        (length, end) = (least + drawn, End::Eos);
    }
    let mut choice = Choice { prompt, voice, tokens: length, bytes: length as usize * BYTES_PER_TOKEN, end };
    stop_at(&mut choice, common);
    choice
}

/// Ends the choice at the first token that completes a stop string, and cuts the text before it. The
/// strings are looked for once `min_tokens` are there, as vLLM does.
fn stop_at(choice: &mut Choice, common: &Common) {
    if common.stop.is_empty() {
        return;
    }
    let text: String = (0..choice.tokens).map(|i| choice.voice.piece(i)).collect();
    let completes = |start: usize, stop: &str| (start + stop.len()).div_ceil(BYTES_PER_TOKEN) as u32;
    let found = common
        .stop
        .iter()
        .filter_map(|stop| {
            let late = |start: &usize| i64::from(completes(*start, stop)) > common.min_tokens;
            let start = text.match_indices(stop.as_str()).map(|m| m.0).find(late)?;
            Some((completes(start, stop), start, stop))
        })
        .min_by_key(|found| found.0);
    if let Some((tokens, start, stop)) = found {
        choice.tokens = tokens;
        choice.bytes = if common.include_stop { start + stop.len() } else { start };
        choice.end = End::Stop(stop.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limits() -> Limits {
        Limits {
            served: vec!["tiny".to_owned()],
            max_model_len: 2048,
            tokenizer: Tokenizer { vocab: 1024 },
            seed: 0,
            default_output_tokens: 40,
            early_stop: 0.0,
        }
    }

    fn read(chat: bool, body: &Value) -> Result<Ask, ApiError> {
        Ask::read(chat, body.as_object().unwrap(), &limits())
    }

    fn message(body: &Value) -> String {
        let e = read(false, body).unwrap_err();
        let v: Value = serde_json::from_slice(&e.body).unwrap();
        v["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn prompts_come_in_four_forms() {
        for (prompt, want) in [
            (json!("Hello world"), vec![3]),
            (json!(["Hello", "World, hello"]), vec![2, 3]),
            (json!([1, 2, 3, 4]), vec![4]),
            (json!([[1, 2], [3]]), vec![2, 1]),
        ] {
            let ask = read(false, &json!({"model": "tiny", "prompt": prompt})).unwrap();
            assert_eq!(ask.prompts.iter().map(Vec::len).collect::<Vec<_>>(), want);
            assert_eq!(ask.choices.len(), want.len());
            assert!(ask.choices.iter().all(|c| c.tokens == 16 && c.end == End::Length));
        }
        assert!(message(&json!({"prompt": {"a": 1}})).starts_with("2 validation errors"));
        assert_eq!(message(&json!({"prompt": [5000]})), "Token id 5000 is out of vocabulary");
        assert_eq!(message(&json!({"prompt": ""})), "The decoder prompt cannot be empty");
        assert!(message(&json!({})).starts_with("Either prompt or"));
    }

    #[test]
    fn lengths_default_as_documented() {
        let chat = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "Hi there"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let ask = read(true, &body).unwrap();
            (ask.prompts[0].len(), ask.choices[0].tokens, ask.choices[0].end.clone())
        };
        assert_eq!(chat(json!({})), (10, 40, End::Eos));
        assert_eq!(chat(json!({"max_tokens": 7})), (10, 7, End::Length));
        assert_eq!(chat(json!({"max_tokens": 7, "max_completion_tokens": 5})), (10, 5, End::Length));
        assert_eq!(chat(json!({"min_tokens": 60})), (10, 60, End::Eos));
        assert_eq!(chat(json!({"ignore_eos": true})), (10, 2038, End::Length));
    }

    #[test]
    fn lengths_beyond_the_model_are_refused_in_vllms_words() {
        assert_eq!(
            message(&json!({"prompt": "Hello", "max_tokens": 4000})),
            "max_tokens=4000 cannot be greater than max_model_len=2048. Please request fewer output tokens. \
             (parameter=max_tokens, value=4000)"
        );
        let long = message(&json!({"prompt": "x".repeat(400), "max_tokens": 2000}));
        assert!(
            long.contains("requested 2000 output tokens and your prompt contains 100 input tokens"),
            "{long}"
        );
        assert!(
            message(&json!({"prompt": "x", "max_tokens": 0})).starts_with("max_tokens must be at least 1")
        );
        assert!(message(&json!({"prompt": "x", "n": 0})).starts_with("n must be at least 1"));
        assert!(
            message(&json!({"prompt": "x", "max_tokens": 3, "min_tokens": 4}))
                .contains("max_tokens=3, got 4")
        );
        assert!(message(&json!({"prompt": "x", "stream_options": {}})).starts_with("Stream options"));
    }

    #[test]
    fn a_stop_string_cuts_the_text_and_the_tokens() {
        let all = read(false, &json!({"prompt": "x", "max_tokens": 200})).unwrap();
        let text: String = (0..200).map(|i| all.choices[0].piece(i)).collect();
        let stop = &text[402..409];
        let first = text.find(stop).unwrap();
        let body = json!({"prompt": "x", "max_tokens": 200, "stop": ["never there", stop]});
        let c = &read(false, &body).unwrap().choices[0];
        assert_eq!(c.tokens as usize, (first + stop.len()).div_ceil(4));
        assert_eq!((0..c.tokens).map(|i| c.piece(i)).collect::<String>(), text[..first]);
        assert_eq!(c.end, End::Stop(stop.to_owned()));
        let late = json!({"prompt": "x", "max_tokens": 200, "stop": stop, "min_tokens": 200});
        assert_eq!(read(false, &late).unwrap().choices[0].tokens, 200);
    }

    #[test]
    fn early_stops_are_a_share_of_the_requests() {
        let mut limits = limits();
        limits.early_stop = 0.5;
        let body = |i: u32| json!({"prompt": format!("number {i}"), "max_tokens": 100, "min_tokens": 10});
        let lengths: Vec<u32> = (0..400)
            .map(|i| Ask::read(false, body(i).as_object().unwrap(), &limits).unwrap().choices[0].tokens)
            .collect();
        let early = lengths.iter().filter(|&&n| n < 100).count();
        assert!((150..250).contains(&early), "{early}");
        assert!(lengths.iter().all(|n| (10..=100).contains(n)));
    }
}
