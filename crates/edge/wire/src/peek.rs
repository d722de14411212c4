//! One pass over a request's JSON body: what routing needs, and nothing that would refuse what an engine accepts.
//!
//! A field of an unexpected type is ignored (the engine will say so); only `model` must be a string, because its
//! bytes may be replaced. A repeated key that routing reads is refused: parsers disagree on which one counts, and the
//! engine must see the request that was routed.

use crate::loose::{Entry, Fields, Loose, Object};
use crate::path::Api;
use crate::prompt::{BYTES_PER_TOKEN, Shape, Text, bounded, text_of};
use serde::de::{DeserializeSeed, Error as _, MapAccess};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;

/// The model a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model<'a> {
    /// Its name, unescaped.
    pub name: Cow<'a, str>,
    /// Where its JSON string stands in the body, quotes included.
    pub range: Range<usize>,
}

/// What routing needs of a request body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peek<'a> {
    /// The model; `None` if there is no `model` or it is null.
    pub model: Option<Model<'a>>,
    /// `stream` is true.
    pub stream: bool,
    /// The bound on output tokens under the API's own name: `max_completion_tokens` before `max_tokens` for chat,
    /// `max_output_tokens` for responses, `sampling_params.max_tokens` for vLLM's generate, else `max_tokens`.
    pub max_tokens: Option<u64>,
    /// `stream_options.include_usage` is true.
    pub include_usage: bool,
    /// `n`, the number of choices.
    pub n: Option<u64>,
    /// vLLM's `priority`; lower runs earlier there.
    pub priority: Option<i64>,
    /// `user`.
    pub user: Option<Cow<'a, str>>,
    /// `cache_salt`, which separates prefix caches.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Whether the field that holds the prompt is there and not empty.
    pub has_prompt: bool,
    /// The prompt as bytes, four to an estimated token: tools' JSON, then system text, then role and text of each
    /// message; or the prompt; or token ids as u32, little endian. Prompts of a list are padded to whole tokens.
    pub prompt: Vec<u8>,
}

impl Peek<'_> {
    /// Estimated prompt tokens: a quarter of the prompt's bytes, rounded up; exact where the prompt is token ids.
    pub fn prompt_tokens(&self) -> u32 {
        u32::try_from(self.prompt.len().div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
    }

    /// The model's name, or an empty string.
    pub fn model_name(&self) -> &str {
        self.model.as_ref().map_or("", |m| &m.name)
    }
}

/// Why a body could not be read. Every case is the client's error (status 400).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeekError {
    /// Not JSON, nested too deeply (128 levels), or not UTF-8.
    #[error("the request body is not valid JSON: {message} at line {line} column {column} (byte {offset})")]
    Syntax {
        /// What is wrong.
        message: String,
        /// Byte offset, from 0.
        offset: usize,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// JSON, but not an object.
    #[error("the request body must be a JSON object, found {found}")]
    NotObject {
        /// What it is.
        found: &'static str,
    },
    /// A key that routing reads stands twice.
    #[error("the request body has the key `{field}` twice; the second is before line {line} column {column}")]
    Duplicate {
        /// The key.
        field: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// `model` is there, but is no string.
    #[error("`model` must be a string, found {found}")]
    ModelType {
        /// What it is.
        found: &'static str,
    },
}

impl PeekError {
    /// The field at fault, for the `param` of an OpenAI error.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            PeekError::Duplicate { field, .. } => Some(field),
            PeekError::ModelType { .. } => Some("model"),
            _ => None,
        }
    }
}

/// Reads a request body in one pass. A [`Api::Passthrough`] body is not looked at.
pub fn peek(api: Api, body: &[u8]) -> Result<Peek<'_>, PeekError> {
    if api == Api::Passthrough {
        return Ok(Peek::default());
    }
    let text = std::str::from_utf8(body).map_err(|e| not_utf8(body, e.valid_up_to()))?;
    let mut top = Top {
        api,
        base: text.as_ptr() as usize,
        peek: Peek::default(),
        seen: 0,
        duplicate: None,
        model_type: None,
        tools: None,
        head: Vec::new(),
        max_tokens: None,
        max_completion_tokens: None,
        max_output_tokens: None,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let object = Object(&mut top).deserialize(&mut json).and_then(|object| json.end().map(|()| object));
    match object {
        Ok(true) => {}
        Ok(false) => {
            let found = serde_json::from_str::<Loose>(text).map_or("nothing", |v| v.kind());
            return Err(PeekError::NotObject { found });
        }
        Err(e) => {
            return Err(match top.duplicate {
                Some(field) => PeekError::Duplicate { field, line: e.line(), column: e.column() },
                None => syntax(text, &e),
            });
        }
    }
    top.finish()
}

fn not_utf8(body: &[u8], offset: usize) -> PeekError {
    let before = &body[..offset];
    let line = 1 + memchr::memchr_iter(b'\n', before).count();
    let column = 1 + offset - memchr::memrchr(b'\n', before).map_or(0, |i| i + 1);
    PeekError::Syntax { message: "invalid UTF-8".to_owned(), offset, line, column }
}

fn syntax(text: &str, e: &serde_json::Error) -> PeekError {
    let start = text
        .bytes()
        .enumerate()
        .filter(|(_, b)| *b == b'\n')
        .nth(e.line().wrapping_sub(2))
        .map_or(0, |(i, _)| i + 1);
    let offset = (start + e.column()).saturating_sub(1).min(text.len());
    PeekError::Syntax { message: bare(e), offset, line: e.line(), column: e.column() }
}

/// An error's message without the position that serde_json appends to it.
pub(crate) fn bare(e: &serde_json::Error) -> String {
    let message = e.to_string();
    let position = format!(" at line {} column {}", e.line(), e.column());
    message.strip_suffix(&position).unwrap_or(&message).to_owned()
}

/// The keys that are read, each a bit of `Top::seen`.
const KEYS: [&str; 19] = [
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "stream_options",
    "n",
    "priority",
    "user",
    "cache_salt",
    "messages",
    "prompt",
    "input",
    "items",
    "token_ids",
    "tools",
    "system",
    "instructions",
    "sampling_params",
];

struct Top<'a> {
    api: Api,
    base: usize,
    peek: Peek<'a>,
    seen: u32,
    duplicate: Option<&'static str>,
    model_type: Option<&'static str>,
    tools: Option<&'a str>,
    /// System text, which comes before the messages whatever the order of the keys.
    head: Vec<u8>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
}

impl<'a> Fields<'a> for Top<'a> {
    fn field<M: MapAccess<'a>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        let Some(index) = KEYS.iter().position(|known| *known == key) else {
            return entry.skip();
        };
        if self.seen & (1 << index) != 0 {
            self.duplicate = Some(KEYS[index]);
            return Err(M::Error::custom("repeated key"));
        }
        self.seen |= 1 << index;
        match key {
            "model" => self.model(entry)?,
            "stream" => self.peek.stream = entry.read::<Loose>()? == Loose::Bool(true),
            "max_tokens" => self.max_tokens = entry.read::<Loose>()?.count(),
            "max_completion_tokens" => self.max_completion_tokens = entry.read::<Loose>()?.count(),
            "max_output_tokens" => self.max_output_tokens = entry.read::<Loose>()?.count(),
            "n" => self.peek.n = entry.read::<Loose>()?.count(),
            "priority" => {
                if let Loose::Int(n) = entry.read()? {
                    self.peek.priority = i64::try_from(n).ok();
                }
            }
            "user" => self.peek.user = entry.read::<Loose>()?.string(),
            "cache_salt" => self.peek.cache_salt = entry.read::<Loose>()?.string(),
            "stream_options" => {
                entry.seed(Object(&mut StreamOptions(&mut self.peek.include_usage)))?;
            }
            "sampling_params" if self.api == Api::Generate => {
                entry.seed(Object(&mut SamplingParams(&mut self.max_tokens)))?;
            }
            "tools" if self.tools_count() => {
                let raw = entry.read::<&'a RawValue>()?.get();
                bounded::<M::Error>(raw)?;
                self.tools = (raw != "null").then_some(raw);
            }
            "system" | "instructions" if self.head_field() == Some(KEYS[index]) => {
                entry.seed(Text { out: &mut self.head, shape: Shape::Content })?;
            }
            _ if self.prompt_shape(key).is_some() => {
                let shape = self.prompt_shape(key).unwrap_or(Shape::Content);
                // A prompt is mostly one string or one list of numbers, messages are objects to be walked once.
                self.peek.has_prompt |= if shape == Shape::Prompt {
                    text_of::<M::Error>(entry.read::<&'a RawValue>()?.get(), &mut self.peek.prompt, shape)?
                } else {
                    entry.seed(Text { out: &mut self.peek.prompt, shape })?
                };
            }
            _ => entry.skip()?,
        }
        Ok(())
    }
}

impl<'a> Top<'a> {
    fn model<M: MapAccess<'a>>(&mut self, entry: Entry<'_, M>) -> Result<(), M::Error> {
        let raw = entry.read::<&'a RawValue>()?.get();
        let value = serde_json::from_str::<Loose<'a>>(raw).map_err(|e| M::Error::custom(bare(&e)))?;
        let start = raw.as_ptr() as usize - self.base;
        match value {
            Loose::Null => {}
            Loose::Str(name) => self.peek.model = Some(Model { name, range: start..start + raw.len() }),
            other => self.model_type = Some(other.kind()),
        }
        Ok(())
    }

    fn tools_count(&self) -> bool {
        matches!(
            self.api,
            Api::ChatCompletions | Api::Messages | Api::CountTokens | Api::Responses | Api::Tokenize
        )
    }

    fn head_field(&self) -> Option<&'static str> {
        match self.api {
            Api::Messages | Api::CountTokens => Some("system"),
            Api::Responses => Some("instructions"),
            _ => None,
        }
    }

    fn prompt_shape(&self, key: &str) -> Option<Shape> {
        let shape = match self.api {
            Api::Completions | Api::Embeddings | Api::Images | Api::Generate => Shape::Prompt,
            Api::Tokenize if key == "prompt" => Shape::Prompt,
            Api::Tokenize if key == "messages" => return Some(Shape::Content),
            _ => Shape::Content,
        };
        (self.api.prompt_field() == Some(key)).then_some(shape)
    }

    fn finish(self) -> Result<Peek<'a>, PeekError> {
        if let Some(found) = self.model_type {
            return Err(PeekError::ModelType { found });
        }
        let mut peek = self.peek;
        peek.max_tokens = match self.api {
            Api::ChatCompletions => self.max_completion_tokens.or(self.max_tokens),
            Api::Responses => self.max_output_tokens,
            Api::Completions | Api::Messages | Api::Generate => self.max_tokens,
            _ => None,
        };
        let tools = self.tools.unwrap_or("").bytes();
        if tools.len() + self.head.len() > 0 {
            peek.prompt.splice(0..0, tools.chain(self.head));
        }
        Ok(peek)
    }
}

struct StreamOptions<'o>(&'o mut bool);

impl<'de> Fields<'de> for StreamOptions<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        if key != "include_usage" {
            return entry.skip();
        }
        *self.0 = entry.read::<Loose>()? == Loose::Bool(true);
        Ok(())
    }
}

struct SamplingParams<'o>(&'o mut Option<u64>);

impl<'de> Fields<'de> for SamplingParams<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        if key != "max_tokens" {
            return entry.skip();
        }
        *self.0 = entry.read::<Loose>()?.count();
        Ok(())
    }
}

#[cfg(test)]
#[path = "peek_tests.rs"]
mod tests;
