//! Gathers a prompt's text as bytes, for the token estimate and for prefix hashing.
//!
//! Follows the estimating tokenizer of llm-d-router v0.10: role and text of each message, four bytes to a token;
//! token ids as they are (u32, little endian); media as repeated stand-in tokens made of the content's hash.

use crate::loose::{Entry, Fields, Loose, Object, Skip, any_value};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use xxhash_rust::xxh64::xxh64;

/// Bytes of text that stand for one token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;
/// Placeholder tokens of an image of 640x360 at 1 024 pixels each. Images are not decoded here.
const IMAGE_TOKENS: usize = 225;
/// Placeholder tokens of ten seconds of such images at two a second.
const VIDEO_TOKENS: usize = 10 * 2 * IMAGE_TOKENS;

/// What strings and numbers mean where they stand.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Shape {
    /// A prompt: strings are prompts of their own, numbers are token ids.
    Prompt,
    /// Messages or content: strings are text, numbers mean nothing.
    Content,
}

/// Appends the text of a JSON value to `out`; gives whether the value is neither null nor empty.
///
/// Long texts with many escapes and long lists of token ids are nearly all of a large body; both are read here several
/// times faster than through serde. The value has been checked to be JSON.
pub(crate) fn text_of<E: serde::de::Error>(raw: &str, out: &mut Vec<u8>, shape: Shape) -> Result<bool, E> {
    if let Some(string) = raw.strip_prefix('"') {
        let string = string.strip_suffix('"').unwrap_or(string);
        unescape(string, out);
        return Ok(!string.is_empty());
    }
    if shape == Shape::Prompt
        && let Some(any) = token_ids(raw, out)
    {
        return Ok(any);
    }
    let mut json = serde_json::Deserializer::from_str(raw);
    Text { out, shape }.deserialize(&mut json).map_err(|e| E::custom(crate::peek::bare(&e)))
}

/// Appends a valid JSON string's characters. A surrogate without its partner becomes U+FFFD.
fn unescape(string: &str, out: &mut Vec<u8>) {
    let mut rest = string.as_bytes();
    out.reserve(rest.len());
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let plain = match rest.get(at + 1) {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'u') => {
                let (c, used) = unicode(&rest[at..]);
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[at + used..];
                continue;
            }
            Some(other) => *other,
            None => b'\\',
        };
        out.push(plain);
        rest = rest.get(at + 2..).unwrap_or(&[]);
    }
    out.extend_from_slice(rest);
}

/// The character of a `\uXXXX` escape, or of two that are a surrogate pair, and the bytes it takes.
fn unicode(escape: &[u8]) -> (char, usize) {
    let unit = |at: usize| {
        let hex = escape.get(at..at + 6).filter(|e| e.starts_with(b"\\u")).map(|e| &e[2..])?;
        u16::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
    };
    let Some(first) = unit(0) else {
        return (char::REPLACEMENT_CHARACTER, escape.len().min(6));
    };
    if let Some(c) = char::from_u32(u32::from(first)) {
        return (c, 6);
    }
    match unit(6).map(|second| char::decode_utf16([first, second]).next()) {
        Some(Some(Ok(c))) => (c, 12),
        _ => (char::REPLACEMENT_CHARACTER, 6),
    }
}

/// Appends the numbers of an array, or of an array of arrays, that holds nothing but small whole numbers; gives
/// whether it holds any. Anything else gives `None` and leaves `out` as it was.
fn token_ids(raw: &str, out: &mut Vec<u8>) -> Option<bool> {
    let bytes = raw.as_bytes();
    if bytes.first() != Some(&b'[') {
        return None;
    }
    let start = out.len();
    let (mut depth, mut id) = (0, None);
    for b in bytes {
        match b {
            b'0'..=b'9' => {
                let so_far: u64 = id.unwrap_or(0);
                id = Some(so_far.wrapping_mul(10).wrapping_add(u64::from(b - b'0')));
                continue;
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' | b']' => {}
            b'[' if depth < 2 => depth += 1,
            _ => {
                out.truncate(start);
                return None;
            }
        }
        if let Some(id) = id.take() {
            out.extend_from_slice(&(id as u32).to_le_bytes());
        }
        depth -= i32::from(*b == b']');
    }
    Some(out.len() > start)
}

/// Appends the text of any value to `out`; yields whether the value is neither null nor empty.
pub(crate) struct Text<'o> {
    pub(crate) out: &'o mut Vec<u8>,
    pub(crate) shape: Shape,
}

impl Text<'_> {
    fn again(&mut self) -> Text<'_> {
        Text { out: self.out, shape: self.shape }
    }
}

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }
    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(true)
    }
    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(true)
    }
    fn visit_u64<E>(self, v: u64) -> Result<bool, E> {
        if self.shape == Shape::Prompt {
            self.out.extend_from_slice(&(v as u32).to_le_bytes());
        }
        Ok(true)
    }
    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(true)
    }
    fn visit_str<E>(self, v: &str) -> Result<bool, E> {
        self.out.extend_from_slice(v.as_bytes());
        Ok(!v.is_empty())
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<bool, A::Error> {
        let mut any = false;
        while seq.next_element_seed(self.again())?.is_some() {
            any = true;
            if self.shape == Shape::Prompt {
                align(self.out);
            }
        }
        Ok(any)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        let start = self.out.len();
        let mut message = Message { out: self.out, start };
        Object(&mut message).visit_map(map)
    }
}

/// A message, a content part, a tool call or a tool result: they nest and share their field names.
struct Message<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'de> Fields<'de> for Message<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        match key {
            // The role comes first whatever the order of the keys, so that equal messages hash alike.
            "role" => {
                if let Some(role) = entry.read::<Loose>()?.string() {
                    self.out.splice(self.start..self.start, role.bytes());
                }
            }
            "content" | "text" | "thinking" | "name" | "arguments" | "output" | "summary" => {
                text_of::<M::Error>(entry.read::<&RawValue>()?.get(), self.out, Shape::Content)?;
            }
            // The input of a tool call, as it is written.
            "input" => {
                let raw = entry.read::<&RawValue>()?.get();
                bounded::<M::Error>(raw)?;
                self.out.extend_from_slice(raw.as_bytes());
            }
            "image_url" | "source" => entry.seed(Media { out: self.out, kind: MediaKind::Image })?,
            "video_url" => entry.seed(Media { out: self.out, kind: MediaKind::Video })?,
            "input_audio" | "audio_url" => entry.seed(Media { out: self.out, kind: MediaKind::Audio })?,
            _ => entry.skip()?,
        }
        Ok(())
    }
}

/// Applies the nesting bound to a raw value, which serde_json reads without one.
pub(crate) fn bounded<E: serde::de::Error>(raw: &str) -> Result<(), E> {
    serde_json::from_str::<Skip>(raw).map(|_| ()).map_err(|e| E::custom(crate::peek::bare(&e)))
}

enum MediaKind {
    Image,
    Video,
    Audio,
}

/// Appends stand-in tokens for a media asset, given as a URL or as an object that holds a URL or data.
struct Media<'o> {
    out: &'o mut Vec<u8>,
    kind: MediaKind,
}

impl<'de> DeserializeSeed<'de> for Media<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl Media<'_> {
    fn add(&mut self, content: &str) {
        let tokens = match self.kind {
            MediaKind::Image => IMAGE_TOKENS,
            MediaKind::Video => VIDEO_TOKENS,
            MediaKind::Audio => content.len().div_ceil(BYTES_PER_TOKEN).max(1),
        };
        align(self.out);
        let token = (xxh64(content.as_bytes(), 0) as u32).to_le_bytes();
        self.out.extend(std::iter::repeat_n(token, tokens).flatten());
    }
}

impl<'de> Visitor<'de> for Media<'_> {
    type Value = ();

    any_value!(());

    fn visit_str<E>(mut self, v: &str) -> Result<(), E> {
        self.add(v);
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<Skip>()?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<(), A::Error> {
        Object(&mut self).visit_map(map).map(|_| ())
    }
}

impl<'de> Fields<'de> for Media<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        if !matches!(key, "url" | "data") {
            return entry.skip();
        }
        if let Some(content) = entry.read::<Loose>()?.string() {
            self.add(&content);
        }
        Ok(())
    }
}

/// Pads with zeros to a whole token.
pub(crate) fn align(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(BYTES_PER_TOKEN), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescaped(string: &str) -> String {
        let mut out = Vec::new();
        unescape(string, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes() {
        assert_eq!(unescaped(r#"a\"\\\/\b\f\n\r\tz"#), "a\"\\/\u{8}\u{c}\n\r\tz");
        assert_eq!(unescaped(r"\u00e9\uD83D\uDE00é\u0000"), "é😀é\0");
        assert_eq!(unescaped(r"\ud83dx\ude00\ud83d\u0041"), "\u{fffd}x\u{fffd}\u{fffd}A");
        assert_eq!(unescaped(r"\ud83d"), "\u{fffd}");
    }

    #[test]
    fn only_plain_token_ids_take_the_short_way() {
        for (raw, any, ids) in [
            ("[1, 2,\n3]", Some(true), &[1_u32, 2, 3][..]),
            ("[[1],[],[2,4294967295]]", Some(true), &[1, 2, u32::MAX]),
            ("[]", Some(false), &[]),
            ("[[]]", Some(false), &[]),
            ("[1,-2]", None, &[]),
            ("[1.5]", None, &[]),
            ("[1e2]", None, &[]),
            ("[[[1]]]", None, &[]),
            ("[1,\"a\"]", None, &[]),
            ("{}", None, &[]),
        ] {
            let mut out = b"old".to_vec();
            assert_eq!(token_ids(raw, &mut out), any, "{raw}");
            let expected: Vec<u8> =
                b"old".iter().copied().chain(ids.iter().flat_map(|id| id.to_le_bytes())).collect();
            assert_eq!(out, expected, "{raw}");
        }
    }
}
