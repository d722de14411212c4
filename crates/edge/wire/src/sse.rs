//! Reads a stream of server-sent events as it passes by, without holding it up.
//!
//! The scanner is fed whatever slices arrive, split anywhere, and keeps only the event that is not complete yet. An
//! event longer than the cap is skipped and counted; the bytes themselves are the caller's and pass in any case.

use crate::loose::{Entry, Fields, Loose, Object, Payload, Skip};
use crate::usage::{Usage, UsageSeed};
use memchr::memmem::Finder;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::sync::LazyLock;

/// The default bound on the bytes of one event that are kept.
pub const DEFAULT_CAP: usize = 1 << 20;

/// What a stream has said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events that carried output: text, reasoning, tool calls or token ids that are not empty. Without usage this
    /// estimates the output tokens.
    pub content_events: u64,
    /// Usage: the last one wins, but Anthropic's two halves are merged.
    pub usage: Option<Usage>,
    /// The stream said that it is complete: `[DONE]`, `message_stop`, `response.completed` and its like.
    pub done: bool,
    /// An error event was seen.
    pub error: bool,
    /// The last finish reason: `finish_reason`, Anthropic's `stop_reason` or a response's final status.
    pub finish_reason: Option<String>,
    /// Events too long to be looked at.
    pub skipped: u64,
}

/// A whole event, as it is told while it passes by.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    /// Its data.
    pub data: &'a [u8],
    /// Whether it carries output, reasoning included.
    pub content: bool,
    /// Whether it carries output that is no reasoning.
    pub output: bool,
    /// The usage so far, if this event tells it.
    pub usage: Option<Usage>,
}

/// The incremental scanner.
#[derive(Clone, Debug)]
pub struct Scanner {
    cap: usize,
    /// The line that is not complete yet.
    line: Vec<u8>,
    /// The data lines of the event that is not complete yet, joined by line feeds.
    data: Vec<u8>,
    has_data: bool,
    /// The event, or its unfinished line, exceeded the cap.
    too_long: bool,
    line_too_long: bool,
    after_cr: bool,
    first_line: bool,
    report: Report,
}

impl Default for Scanner {
    fn default() -> Scanner {
        Scanner::new(DEFAULT_CAP)
    }
}

impl Scanner {
    /// A scanner that keeps at most `cap` bytes of an event and as many of a line.
    pub fn new(cap: usize) -> Scanner {
        Scanner {
            cap,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            too_long: false,
            line_too_long: false,
            after_cr: false,
            first_line: true,
            report: Report::default(),
        }
    }

    /// Looks at the next slice of the stream; gives the number of content-bearing events that it completed, so that
    /// the first non-zero answer marks the first token.
    pub fn feed(&mut self, bytes: &[u8]) -> u64 {
        self.feed_each(bytes, &mut |_| ())
    }

    /// As [`Scanner::feed`], and calls `each` with every event that is complete now.
    pub fn feed_each(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Passing<'_>)) -> u64 {
        let before = self.report.content_events;
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, mut rest) = (&bytes[..end], &bytes[end + 1..]);
            if bytes[end] == b'\r' {
                // A line feed after a carriage return ends no second line, even when it comes in the next slice.
                self.after_cr = rest.is_empty();
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
            if self.line.is_empty() && !self.line_too_long {
                self.end_line(line, each);
            } else {
                self.keep(line);
                let mut whole = std::mem::take(&mut self.line);
                self.end_line(&whole, each);
                whole.clear();
                self.line = whole;
            }
            bytes = rest;
        }
        self.keep(bytes);
        self.report.content_events - before
    }

    /// The end of the stream: an event without its closing blank line still counts.
    pub fn finish(&mut self) -> u64 {
        self.finish_each(&mut |_| ())
    }

    /// As [`Scanner::finish`], and calls `each` with the event that is complete now.
    pub fn finish_each(&mut self, each: &mut dyn FnMut(Passing<'_>)) -> u64 {
        let before = self.report.content_events;
        if !self.line.is_empty() || self.line_too_long {
            let whole = std::mem::take(&mut self.line);
            self.end_line(&whole, each);
        }
        self.end_event(each);
        self.report.content_events - before
    }

    /// What has been seen so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Adds to the line that is not complete yet, up to the cap.
    fn keep(&mut self, part: &[u8]) {
        if self.line_too_long || self.line.len() + part.len() > self.cap {
            self.line_too_long = !part.is_empty() || self.line_too_long;
            self.line.clear();
        } else {
            self.line.extend_from_slice(part);
        }
    }

    fn end_line(&mut self, mut line: &[u8], each: &mut dyn FnMut(Passing<'_>)) {
        let first = std::mem::take(&mut self.first_line);
        if std::mem::take(&mut self.line_too_long) || line.len() > self.cap {
            self.too_long = true;
            return;
        }
        if first {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.end_event(each);
        }
        let Some(value) = line.strip_prefix(b"data") else {
            return;
        };
        let value = match value {
            [] => value,
            [b':', b' ', value @ ..] | [b':', value @ ..] => value,
            // Another field whose name begins alike.
            _ => return,
        };
        if self.too_long || self.data.len() + value.len() + 1 > self.cap {
            self.too_long = true;
            return;
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
    }

    fn end_event(&mut self, each: &mut dyn FnMut(Passing<'_>)) {
        if std::mem::take(&mut self.too_long) {
            self.report.skipped += 1;
        } else if self.has_data {
            let data = std::mem::take(&mut self.data);
            each(self.event(&data));
            self.data = data;
        }
        self.has_data = false;
        self.data.clear();
    }

    fn event<'d>(&mut self, data: &'d [u8]) -> Passing<'d> {
        let mut passing = Passing { data, content: false, output: false, usage: None };
        if data == b"[DONE]" {
            self.report.done = true;
        } else if is_plain_content(data) {
            self.report.content_events += 1;
            (passing.content, passing.output) = (true, true);
        } else if let Ok(text) = std::str::from_utf8(data) {
            self.parse(text, &mut passing);
        }
        passing
    }

    fn parse(&mut self, text: &str, passing: &mut Passing<'_>) {
        let mut event = Event::default();
        let mut json = serde_json::Deserializer::from_str(text);
        if Object(&mut event).deserialize(&mut json).is_err() {
            return;
        }
        let (before, output) = (self.report.content_events, event.output);
        let told = event.usage.is_some() || event.inner_usage.is_some();
        self.take(event);
        passing.content = self.report.content_events > before;
        passing.output = passing.content && output;
        passing.usage = self.report.usage.filter(|_| told);
    }

    fn take(&mut self, event: Event) {
        let report = &mut self.report;
        let kind = event.kind.as_deref().unwrap_or("");
        let mut usage = event.usage;
        let mut content = event.choice_content;
        match kind {
            "message_start" | "message_delta" => {
                let mut merged = report.usage.unwrap_or_default();
                merged.merge(event.inner_usage.unwrap_or_default());
                merged.merge(usage.unwrap_or_default());
                usage = (!merged.is_empty()).then_some(merged);
            }
            "content_block_delta" => content |= event.delta_content,
            "message_stop" => report.done = true,
            "error" => report.error = true,
            _ => {
                if let Some(what) = kind.strip_prefix("response.") {
                    usage = usage.or(event.inner_usage);
                    content |= what.rsplit('.').next() == Some("delta") && event.delta_content;
                    report.done |= matches!(what, "completed" | "incomplete" | "failed");
                    report.error |= what == "failed";
                    if matches!(what, "completed" | "incomplete" | "failed") {
                        report.finish_reason = Some(what.to_owned());
                    }
                }
            }
        }
        report.error |= event.error;
        report.content_events += u64::from(content);
        report.usage = usage.or(report.usage);
        if event.finish_reason.is_some() {
            report.finish_reason = event.finish_reason;
        }
    }
}

struct Keys {
    content: Finder<'static>,
    text: Finder<'static>,
    /// Keys of events that say more than "here is text".
    more: [Finder<'static>; 2],
    /// Keys that say nothing while they are null.
    unless_null: [Finder<'static>; 2],
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    content: Finder::new(r#""content":""#),
    text: Finder::new(r#""text":""#),
    more: [Finder::new(r#""type""#), Finder::new(r#""error""#)],
    unless_null: [Finder::new(r#""finish_reason""#), Finder::new(r#""usage""#)],
});

/// Whether an event is a chunk of text from an OpenAI-like API and nothing else, as nearly all are: told from the
/// bytes in a tenth of the time that parsing takes. In JSON, a quote within a string is escaped, so a key between
/// bare quotes is a key. `false` means that it must be parsed.
fn is_plain_content(data: &[u8]) -> bool {
    let keys = &*KEYS;
    let filled = |key: &Finder| {
        key.find(data).is_some_and(|at| data.get(at + key.needle().len()).is_some_and(|b| *b != b'"'))
    };
    (filled(&keys.content) || filled(&keys.text))
        && data.starts_with(b"{")
        && data.ends_with(b"}")
        && keys.more.iter().all(|key| key.find(data).is_none())
        && keys
            .unless_null
            .iter()
            .all(|key| key.find_iter(data).all(|at| data[at + key.needle().len()..].starts_with(b":null")))
}

/// The parts of any API's stream event that matter.
#[derive(Default)]
struct Event {
    kind: Option<String>,
    usage: Option<Usage>,
    /// Usage inside `message` (Anthropic) or `response` (responses API).
    inner_usage: Option<Usage>,
    choice_content: bool,
    delta_content: bool,
    /// Some of the content is no reasoning.
    output: bool,
    error: bool,
    finish_reason: Option<String>,
}

impl<'de> Fields<'de> for Event {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        match key {
            "type" => self.kind = entry.read::<Loose>()?.string().map(Into::into),
            "choices" => entry.seed(Choices(self))?,
            "usage" => self.usage = entry.seed(UsageSeed)?,
            "message" | "response" => {
                entry.seed(Object(&mut Inner(&mut self.inner_usage)))?;
            }
            // A string in the responses API, an object in Anthropic's.
            "delta" => {
                let mut delta = Delta::default();
                let text = entry.seed(StringOr(&mut delta))?;
                self.delta_content |= delta.content || text;
                self.output |= delta.output || text;
                self.finish_reason = delta.stop_reason.or(self.finish_reason.take());
            }
            "error" => self.error |= entry.read::<Loose>()? != Loose::Null,
            _ => entry.skip()?,
        }
        Ok(())
    }
}

struct Inner<'o>(&'o mut Option<Usage>);

impl<'de> Fields<'de> for Inner<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        if key != "usage" {
            return entry.skip();
        }
        *self.0 = entry.seed(UsageSeed)?;
        Ok(())
    }
}

/// A delta's text, whatever the API calls it.
#[derive(Default)]
struct Delta {
    content: bool,
    output: bool,
    stop_reason: Option<String>,
}

impl<'de> Fields<'de> for Delta {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        match key {
            "content" | "tool_calls" | "function_call" | "refusal" | "audio" | "text" | "partial_json" => {
                let some = entry.read::<Payload>()?.0;
                self.content |= some;
                self.output |= some;
            }
            "reasoning_content" | "reasoning" | "thinking" => self.content |= entry.read::<Payload>()?.0,
            "stop_reason" => self.stop_reason = entry.read::<Loose>()?.string().map(Into::into),
            _ => entry.skip()?,
        }
        Ok(())
    }
}

/// A string, of which it says whether it is not empty, or an object that is read into the fields.
struct StringOr<'o>(&'o mut Delta);

impl<'de> DeserializeSeed<'de> for StringOr<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StringOr<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string or an object")
    }
    fn visit_str<E>(self, v: &str) -> Result<bool, E> {
        Ok(!v.is_empty())
    }
    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        Object(self.0).visit_map(map).map(|_| false)
    }
}

/// The array of choices.
struct Choices<'o>(&'o mut Event);

impl<'de> DeserializeSeed<'de> for Choices<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Choices<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of choices")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut choice = Choice(self.0);
        while seq.next_element_seed(Object(&mut choice))?.is_some() {}
        Ok(())
    }
}

struct Choice<'o>(&'o mut Event);

impl<'de> Fields<'de> for Choice<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        match key {
            "delta" => {
                let mut delta = Delta::default();
                entry.seed(Object(&mut delta))?;
                self.0.choice_content |= delta.content;
                self.0.output |= delta.output;
            }
            "text" => {
                let some = entry.read::<Payload>()?.0;
                self.0.choice_content |= some;
                self.0.output |= some;
            }
            // With token ids, a token counts even when its bytes complete no character yet.
            "token_ids" => self.0.choice_content |= entry.read::<Items>()?.0,
            "finish_reason" => {
                if let Some(reason) = entry.read::<Loose>()?.string() {
                    self.0.finish_reason = Some(reason.into());
                }
            }
            _ => entry.skip()?,
        }
        Ok(())
    }
}

/// Whether a value is an array that is not empty.
struct Items(bool);

impl<'de> serde::Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Items, D::Error> {
        struct ItemsVisitor;
        impl<'de> Visitor<'de> for ItemsVisitor {
            type Value = Items;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_unit<E>(self) -> Result<Items, E> {
                Ok(Items(false))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items, A::Error> {
                let mut any = false;
                while seq.next_element::<Skip>()?.is_some() {
                    any = true;
                }
                Ok(Items(any))
            }
        }
        d.deserialize_any(ItemsVisitor)
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
