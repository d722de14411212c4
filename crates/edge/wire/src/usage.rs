//! Token usage, from answers and from stream events.

use crate::loose::{Entry, Fields, Loose, Object};
use serde::de::{DeserializeSeed, Deserializer, MapAccess};

/// Tokens that an engine says it used; what it does not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens (`prompt_tokens` or `input_tokens`).
    pub prompt: Option<u64>,
    /// Output tokens (`completion_tokens` or `output_tokens`).
    pub completion: Option<u64>,
    /// Prompt tokens found in a prefix cache (`prompt_tokens_details.cached_tokens`,
    /// `input_tokens_details.cached_tokens` or `cache_read_input_tokens`).
    pub cached: Option<u64>,
}

impl Usage {
    /// Takes over every count that `later` has.
    pub fn merge(&mut self, later: Usage) {
        self.prompt = later.prompt.or(self.prompt);
        self.completion = later.completion.or(self.completion);
        self.cached = later.cached.or(self.cached);
    }

    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Usage::default()
    }

    /// The usage of a whole answer (not a stream) of any of the known APIs; `None` if there is none or the body is
    /// not JSON.
    pub fn of_body(body: &[u8]) -> Option<Usage> {
        struct Body(Option<Usage>);
        impl<'de> Fields<'de> for Body {
            fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
                if key != "usage" {
                    return entry.skip();
                }
                self.0 = entry.seed(UsageSeed)?;
                Ok(())
            }
        }
        let text = std::str::from_utf8(body).ok()?;
        let mut json = serde_json::Deserializer::from_str(text);
        let mut found = Body(None);
        Object(&mut found).deserialize(&mut json).ok()?;
        found.0
    }
}

/// Reads a `usage` object; anything else is no usage.
pub(crate) struct UsageSeed;

impl<'de> DeserializeSeed<'de> for UsageSeed {
    type Value = Option<Usage>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Option<Usage>, D::Error> {
        let mut usage = Usage::default();
        Object(&mut usage).deserialize(d)?;
        Ok((!usage.is_empty()).then_some(usage))
    }
}

impl<'de> Fields<'de> for Usage {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        match key {
            "prompt_tokens" | "input_tokens" => {
                self.prompt = entry.read::<Loose>()?.count().or(self.prompt);
            }
            "completion_tokens" | "output_tokens" => {
                self.completion = entry.read::<Loose>()?.count().or(self.completion);
            }
            "cache_read_input_tokens" => self.cached = entry.read::<Loose>()?.count().or(self.cached),
            "prompt_tokens_details" | "input_tokens_details" => {
                entry.seed(Object(&mut Details(&mut self.cached)))?;
            }
            _ => entry.skip()?,
        }
        Ok(())
    }
}

struct Details<'o>(&'o mut Option<u64>);

impl<'de> Fields<'de> for Details<'_> {
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error> {
        if key != "cached_tokens" {
            return entry.skip();
        }
        *self.0 = entry.read::<Loose>()?.count().or(*self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt: u64, completion: Option<u64>, cached: Option<u64>) -> Usage {
        Usage { prompt: Some(prompt), completion, cached }
    }

    #[test]
    fn whole_answers() {
        let vllm = br#"{"id":"x","choices":[{"text":"usage"}],"usage":{"prompt_tokens":5,"total_tokens":8,
            "completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4,"created_cache_tokens":null}}}"#;
        assert_eq!(Usage::of_body(vllm), Some(usage(5, Some(3), Some(4))));
        let anthropic =
            br#"{"type":"message","usage":{"input_tokens":25,"cache_read_input_tokens":7,"output_tokens":15}}"#;
        assert_eq!(Usage::of_body(anthropic), Some(usage(25, Some(15), Some(7))));
        let responses =
            br#"{"usage":{"input_tokens":31,"input_tokens_details":{"cached_tokens":0},"output_tokens":2}}"#;
        assert_eq!(Usage::of_body(responses), Some(usage(31, Some(2), Some(0))));
        let embeddings =
            br#"{"data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":9,"total_tokens":9}}"#;
        assert_eq!(Usage::of_body(embeddings), Some(usage(9, None, None)));
    }

    #[test]
    fn odd_values_are_no_usage() {
        for body in
            [&b"{}"[..], b"[]", b"{\"usage\":null}", b"{\"usage\":3}", b"{", b"\xff", b"{\"usage\":{}}"]
        {
            assert_eq!(Usage::of_body(body), None);
        }
        let strings = br#"{"usage":{"prompt_tokens":"12","completion_tokens":3.0}}"#;
        assert_eq!(Usage::of_body(strings), Some(usage(12, Some(3), None)));
    }
}
