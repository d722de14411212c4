//! Which API a request path belongs to.

/// The APIs whose bodies are understood. Anything else passes through unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// `chat/completions` and `chat/completions/render`.
    ChatCompletions,
    /// `completions` and `completions/render`.
    Completions,
    /// `embeddings`.
    Embeddings,
    /// `responses`.
    Responses,
    /// `conversations`.
    Conversations,
    /// `images/generations`.
    Images,
    /// Anthropic's `messages`.
    Messages,
    /// Anthropic's `messages/count_tokens`.
    CountTokens,
    /// vLLM's token-array API, `inference/v1/generate`.
    Generate,
    /// vLLM's `tokenize`.
    Tokenize,
    /// No known API: the body is not read.
    Passthrough,
}

/// Longest suffix first, so that the first match is the longest one.
const SUFFIXES: [(&str, Api); 12] = [
    ("chat/completions/render", Api::ChatCompletions),
    ("inference/v1/generate", Api::Generate),
    ("messages/count_tokens", Api::CountTokens),
    ("completions/render", Api::Completions),
    ("images/generations", Api::Images),
    ("chat/completions", Api::ChatCompletions),
    ("conversations", Api::Conversations),
    ("completions", Api::Completions),
    ("embeddings", Api::Embeddings),
    ("responses", Api::Responses),
    ("messages", Api::Messages),
    ("tokenize", Api::Tokenize),
];

impl Api {
    /// The API of a request path, by its longest known suffix of whole segments. A query string and one closing
    /// slash do not count.
    pub fn of_path(path: &str) -> Api {
        let path = path.split(['?', '#']).next().unwrap_or("");
        let path = path.strip_suffix('/').unwrap_or(path);
        SUFFIXES
            .iter()
            .find(|(suffix, _)| {
                path.strip_suffix(suffix).is_some_and(|before| before.is_empty() || before.ends_with('/'))
            })
            .map_or(Api::Passthrough, |(_, api)| *api)
    }

    /// Whether an answer of this API generates tokens, so that it has usage, a first token and a stream form.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Api::ChatCompletions
                | Api::Completions
                | Api::Responses
                | Api::Conversations
                | Api::Messages
                | Api::Generate
        )
    }

    /// The field that holds the prompt, for messages to people; `None` for a passed-through path.
    pub fn prompt_field(self) -> Option<&'static str> {
        Some(match self {
            Api::ChatCompletions | Api::Messages | Api::CountTokens => "messages",
            Api::Completions | Api::Images | Api::Tokenize => "prompt",
            Api::Embeddings | Api::Responses => "input",
            Api::Conversations => "items",
            Api::Generate => "token_ids",
            Api::Passthrough => return None,
        })
    }

    /// A short stable name, fit for a metric label.
    pub fn name(self) -> &'static str {
        match self {
            Api::ChatCompletions => "chat/completions",
            Api::Completions => "completions",
            Api::Embeddings => "embeddings",
            Api::Responses => "responses",
            Api::Conversations => "conversations",
            Api::Images => "images/generations",
            Api::Messages => "messages",
            Api::CountTokens => "messages/count_tokens",
            Api::Generate => "inference/v1/generate",
            Api::Tokenize => "tokenize",
            Api::Passthrough => "passthrough",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_suffix_of_whole_segments() {
        for (path, api) in [
            ("/v1/chat/completions", Api::ChatCompletions),
            ("/v1/projects/p/endpoints/e/chat/completions?x=1", Api::ChatCompletions),
            ("/v1/chat/completions/render", Api::ChatCompletions),
            ("/v1/completions/", Api::Completions),
            ("/v1/completions/render", Api::Completions),
            ("/v1/messages", Api::Messages),
            ("/v1/messages/count_tokens", Api::CountTokens),
            ("/inference/v1/generate", Api::Generate),
            ("/generate", Api::Passthrough),
            ("/v1/responses", Api::Responses),
            ("/v1/conversations", Api::Conversations),
            ("/v1/images/generations", Api::Images),
            ("/v1/embeddings", Api::Embeddings),
            ("/tokenize", Api::Tokenize),
            ("/detokenize", Api::Passthrough),
            ("/v1/mycompletions", Api::Passthrough),
            ("/", Api::Passthrough),
            ("", Api::Passthrough),
        ] {
            assert_eq!(Api::of_path(path), api, "{path}");
        }
    }

    #[test]
    fn suffixes_are_sorted_by_length() {
        assert!(SUFFIXES.is_sorted_by(|a, b| a.0.len() >= b.0.len()));
    }
}
