//! Gathers a prompt's text as bytes, for the token estimate and for prefix hashing.
//!
//! Follows the estimating tokenizer of llm-d-router v0.10: role and text of each message, four bytes to a token;
//! token ids as they are (u32, little endian); media as repeated placeholder tokens made of the content's hash.

use crate::loose::{Entry, Fields, Loose, Object, Skip};
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
                entry.seed(Text { out: self.out, shape: Shape::Content })?;
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

/// Appends placeholder tokens for a media asset, given as a URL or as an object that holds a URL or data.
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

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
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
