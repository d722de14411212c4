//! What a live router records of its traffic, as JSON Lines: enough to let the same requests arrive again
//! elsewhere, and nothing of what they said.
//!
//! A file begins with its [`Head`]; each further line is an [`Entry`], written when its request has ended, so
//! that lines are in the order of ends. Prompts are there as keyed hashes of the blocks of their text: equal
//! beginnings have equal hashes within one key, and without the key nobody can look up what a hash stands for.
//! Times are whole nanoseconds; what never happened is a key that is missing.

use crate::row::{End, Row, reason_named};
use forebay_base::Nanos;
use serde::{Deserialize, Serialize};

/// The name of the format in its first line.
pub const FORMAT: &str = "forebay-recording";

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// The beginning and the end of a file's name; between them stand the start of the recording, the mark of
/// its key and the file's number, so that names in their order are files in their order.
pub const NAME: (&str, &str) = ("forebay-", ".jsonl");

/// Bytes of prompt text under one hash.
pub const BLOCK_BYTES: u32 = 256;

/// Hex digits of a hash.
const DIGITS: usize = 16;

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// When the recording began, nanoseconds since 1970; entries count from here.
    pub started_unix_ns: u64,
    /// The same for people, RFC 3339.
    pub started: String,
    /// Which file of the recording this is, from 1.
    pub file: u32,
    /// A mark of the key: hashes under one mark can be compared.
    pub key: String,
    /// Bytes of prompt text under one hash.
    pub block_bytes: u32,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// When its head had come, since the start of the recording.
    pub arrived_ns: u64,
    /// The model that was asked for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// The model that the engine was asked for, if it is another.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Whether that is an adapter (LoRA) by the engines' lists.
    #[serde(default, skip_serializing_if = "is_false")]
    pub adapter: bool,
    /// The objective that the client named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The objective's priority, 0 without one; greater is more urgent.
    pub priority: i32,
    /// The fairness id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub flow: String,
    /// Keyed hash of the session, if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// Whether the answer was streamed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stream: bool,
    /// Bytes of the body.
    pub request_bytes: u64,
    /// Bytes of the prompt's text, four for each token id where it was given as ids.
    pub prompt_bytes: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// They are a quarter of the bytes, because the engine did not count them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prompt_estimated: bool,
    /// Prompt tokens that the engine had in its prefix cache, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer as far as it came; `None` if none came or nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// They are the events that carried output, because the engine did not count them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub output_estimated: bool,
    /// The client's bound on output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The client's own bound on its wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ns: Option<u64>,
    /// Hoped-for time to first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ttft_ns: Option<u64>,
    /// Hoped-for time per output token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_tpot_ns: Option<u64>,
    /// How it ended: `finished`, `failed`, `refused` or `cancelled`.
    pub end: String,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The status sent; 0 if the client left before one was.
    pub status: u16,
    /// Who served it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// From its arrival to the decision where it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatched_ns: Option<u64>,
    /// From its arrival to its first output token, if the answer was streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ns: Option<u64>,
    /// From its arrival to its end.
    pub ended_ns: u64,
    /// Keyed hashes of the prompt's blocks, 16 hex digits each; each stands for everything up to its end. The
    /// last one may be of a shorter block.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blocks: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(b: &bool) -> bool {
    !b
}

impl Entry {
    /// Sets the hashes.
    pub fn set_blocks(&mut self, hashes: impl Iterator<Item = u64>) {
        use std::fmt::Write as _;
        self.blocks.clear();
        for h in hashes {
            // A String takes everything.
            let _ = write!(self.blocks, "{h:016x}");
        }
    }

    /// The hashes.
    ///
    /// # Errors
    /// If they are not 16 hex digits each.
    pub fn hashes(&self) -> Result<Vec<u64>, String> {
        let text = self.blocks.as_bytes();
        let wrong = || format!("{:?} is no row of hashes of {DIGITS} hex digits", shortened(&self.blocks));
        if !text.len().is_multiple_of(DIGITS) || !text.is_ascii() {
            return Err(wrong());
        }
        text.chunks(DIGITS)
            .map(|c| {
                let digits = std::str::from_utf8(c).map_err(|_| wrong())?;
                u64::from_str_radix(digits, 16).map_err(|_| wrong())
            })
            .collect()
    }

    /// Whether its answer came to its end, so that its length is known.
    pub fn is_finished(&self) -> bool {
        self.end == "finished"
    }

    /// The end as records have it.
    ///
    /// # Errors
    /// If it is none of the four.
    pub fn ended(&self) -> Result<End, String> {
        Ok(match self.end.as_str() {
            "finished" => End::Finished,
            "failed" => End::Failed,
            "cancelled" => End::Cancelled,
            "refused" => End::Rejected(reason_named(self.reason.as_deref().unwrap_or("refused"))),
            other => {
                return Err(format!("{other:?} is no end; expected finished, failed, refused or cancelled"));
            }
        })
    }

    /// What became of it, on the clock of the recording. Answers in one piece have their first token with
    /// their last, as in the router's metrics.
    ///
    /// # Errors
    /// If its end is none.
    pub fn row(&self, number: u64, class: u16) -> Result<Row, String> {
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let at = |ns: u64| Nanos(self.arrived_ns.saturating_add(ns));
        let end = self.ended()?;
        let dispatched = self.dispatched_ns.filter(|_| !matches!(end, End::Rejected(_))).map(at);
        let whole = (end == End::Finished && !self.stream).then_some(self.ended_ns);
        Ok(Row {
            priority: self.priority,
            dispatched,
            first_token: self.first_token_ns.or(whole).map(at),
            finished: Some(at(self.ended_ns)),
            end,
            prompt_tokens: short(self.prompt_tokens),
            cached_tokens: short(self.cached_tokens.unwrap_or(0)),
            output_tokens: short(self.output_tokens.unwrap_or(0)),
            ..Row::arriving(number, class, Nanos(self.arrived_ns))
        })
    }
}

fn shortened(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// Reads a first line.
///
/// # Errors
/// What is wrong with it.
pub fn read_head(line: &str) -> Result<Head, String> {
    let head: Head = serde_json::from_str(line)
        .map_err(|e| format!("the first line of a recording names format, version, start and key: {e}"))?;
    if head.format != FORMAT {
        return Err(format!("the format is {:?}; expected {FORMAT:?}", head.format));
    }
    if head.version != VERSION {
        return Err(format!("version {} is not known; expected {VERSION}", head.version));
    }
    if head.block_bytes == 0 {
        return Err("block_bytes is 0".to_owned());
    }
    Ok(head)
}

/// Reads a further line.
///
/// # Errors
/// What is wrong with it.
pub fn read_entry(line: &str) -> Result<Entry, String> {
    serde_json::from_str(line).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Span;

    fn entry() -> Entry {
        let mut e = Entry {
            arrived_ns: 1_000,
            model: "m\n\"".into(),
            priority: -50,
            stream: true,
            prompt_bytes: 300,
            prompt_tokens: 70,
            output_tokens: Some(3),
            end: "finished".into(),
            status: 200,
            dispatched_ns: Some(10),
            first_token_ns: Some(20),
            ended_ns: 50,
            ..Entry::default()
        };
        e.set_blocks([1, u64::MAX].into_iter());
        e
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let e = entry();
        let line = serde_json::to_string(&e).unwrap();
        assert!(!line.contains('\n') && line.contains("\"blocks\":\"0000000000000001ffffffffffffffff\""));
        assert_eq!(read_entry(&line).unwrap(), e);
        assert_eq!(e.hashes().unwrap(), [1, u64::MAX]);
        let row = e.row(7, 2).unwrap();
        assert_eq!((row.number, row.class, row.priority), (7, 2, -50));
        assert_eq!((row.ttft(), row.e2e(), row.gateway()), (Some(Span(20)), Some(Span(50)), Some(Span(10))));
    }

    #[test]
    fn an_answer_in_one_piece_has_its_first_token_at_its_end() {
        let e = Entry { stream: false, first_token_ns: None, ..entry() };
        assert_eq!(e.row(0, 0).unwrap().ttft(), Some(Span(50)));
        let left = Entry { end: "cancelled".into(), ..e.clone() };
        assert_eq!((left.row(0, 0).unwrap().ttft(), left.row(0, 0).unwrap().end), (None, End::Cancelled));
        let refused = Entry { end: "refused".into(), reason: Some("rejected-saturated".into()), ..e };
        let row = refused.row(0, 0).unwrap();
        assert_eq!((row.end, row.dispatched), (End::Rejected("rejected-saturated"), None));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let bad = Entry { blocks: "12".into(), end: "done".into(), ..entry() };
        assert!(bad.hashes().unwrap_err().contains("16 hex digits"));
        assert!(bad.row(0, 0).unwrap_err().contains("expected finished, failed"));
        assert!(read_entry("{\"arrived_ns\":1,\"prompt\":\"x\"}").unwrap_err().contains("unknown field"));
        let head = |format: &str, version: u32| {
            format!(
                "{{\"format\":\"{format}\",\"version\":{version},\"started_unix_ns\":1,\"started\":\"\",\
                 \"file\":1,\"key\":\"\",\"block_bytes\":256}}"
            )
        };
        assert!(read_head(&head(FORMAT, 1)).is_ok());
        assert!(read_head(&head(FORMAT, 2)).unwrap_err().contains("version 2"));
        assert!(read_head(&head("x", 1)).unwrap_err().contains("expected \"forebay-recording\""));
    }
}
