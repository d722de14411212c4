//! Replaces a model's name in a body, and maps it back in what comes out. Every other byte stays as it was.

use crate::loose::{Entry, Fields, Loose, Object};
use serde::de::{DeserializeSeed, MapAccess};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;

/// A JSON string, quotes included.
fn quoted(name: &str) -> String {
    serde_json::value::Value::from(name).to_string()
}

/// The body with the JSON string at `range` (see [`crate::peek::Model`]) replaced by `name`.
///
/// # Panics
/// If the range lies outside of the body.
pub fn replace(body: &[u8], range: Range<usize>, name: &str) -> Vec<u8> {
    let name = quoted(name);
    let mut out = Vec::with_capacity(body.len() - range.len() + name.len());
    out.extend_from_slice(&body[..range.start]);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&body[range.end..]);
    out
}

/// Maps the name an engine serves a model under back to the name the client asked for: in the value of `model` at
/// the top level, and one level down in `response` and `message`, where stream events of the responses API and of
/// Anthropic's carry it. A different name is left alone.
#[derive(Clone, Debug)]
pub struct NameMap {
    served: String,
    /// The client's name as a JSON string.
    asked: String,
}

impl NameMap {
    /// Maps `served` back to `asked`.
    pub fn new(served: &str, asked: &str) -> NameMap {
        NameMap { served: served.to_owned(), asked: quoted(asked) }
    }

    /// Maps a whole JSON body. Anything but a JSON object comes back as it is.
    pub fn body<'b>(&self, body: &'b [u8]) -> Cow<'b, [u8]> {
        let Some(ranges) = self.find(body) else {
            return Cow::Borrowed(body);
        };
        let mut out = Vec::with_capacity(body.len() + ranges.len() * self.asked.len());
        let mut from = 0;
        for range in ranges {
            out.extend_from_slice(&body[from..range.start]);
            out.extend_from_slice(self.asked.as_bytes());
            from = range.end;
        }
        out.extend_from_slice(&body[from..]);
        Cow::Owned(out)
    }

    /// Where the served name stands; `None` if nowhere.
    fn find(&self, json: &[u8]) -> Option<Vec<Range<usize>>> {
        memchr::memmem::find(json, b"model")?;
        let text = std::str::from_utf8(json).ok()?;
        let mut finder =
            Finder { served: &self.served, base: text.as_ptr() as usize, found: Vec::new(), top: true };
        let mut de = serde_json::Deserializer::from_str(text);
        Object(&mut finder).deserialize(&mut de).ok()?;
        de.end().ok()?;
        (!finder.found.is_empty()).then_some(finder.found)
    }
}

struct Finder<'s> {
    served: &'s str,
    base: usize,
    found: Vec<Range<usize>>,
    top: bool,
}

impl<'de> Fields<'de> for Finder<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        match key {
            "model" => {
                let raw = entry.read::<&'de RawValue>()?.get();
                if matches!(serde_json::from_str(raw), Ok(Loose::Str(name)) if name == self.served) {
                    let start = raw.as_ptr() as usize - self.base;
                    self.found.push(start..start + raw.len());
                }
            }
            "response" | "message" if self.top => {
                self.top = false;
                entry.seed(Object(&mut *self))?;
                self.top = true;
            }
            _ => entry.skip()?,
        }
        Ok(())
    }
}

/// Maps names in a stream of server-sent events, slice by slice. Only `data` lines that are whole JSON objects are
/// mapped; a line is held back until it is complete or exceeds the cap, after which it passes as it is.
#[derive(Clone, Debug)]
pub struct EventMap {
    map: NameMap,
    cap: usize,
    held: Vec<u8>,
    /// In the rest of a line whose beginning has been passed on.
    passing: bool,
}

impl EventMap {
    /// Holds back at most `cap` bytes of a line.
    pub fn new(map: NameMap, cap: usize) -> EventMap {
        EventMap { map, cap, held: Vec::new(), passing: false }
    }

    /// Takes the next slice and appends to `out` what can be passed on.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at(end);
            if self.passing {
                out.extend_from_slice(line);
            } else if self.held.is_empty() {
                self.line(line, out);
            } else {
                self.held.extend_from_slice(line);
                let mut held = std::mem::take(&mut self.held);
                self.line(&held, out);
                held.clear();
                self.held = held;
            }
            self.passing = false;
            out.push(rest[0]);
            bytes = &rest[1..];
        }
        if self.passing || self.held.len() + bytes.len() > self.cap {
            self.passing |= !bytes.is_empty();
            out.append(&mut self.held);
            out.extend_from_slice(bytes);
        } else {
            self.held.extend_from_slice(bytes);
        }
    }

    /// The end of the stream: passes on what was held back, mapped if it is whole.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.line(&held, out);
    }

    fn line(&self, line: &[u8], out: &mut Vec<u8>) {
        let json = line.strip_prefix(b"data:").unwrap_or(&[]);
        let head = line.len() - json.len();
        out.extend_from_slice(&line[..head]);
        out.extend_from_slice(&self.map.body(json));
    }
}

#[cfg(test)]
#[path = "splice_tests.rs"]
mod tests;
