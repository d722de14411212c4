//! What a client of a real server knows of a request beside its [`Row`].

use crate::row::Row;
use forebay_base::{Nanos, Span};

/// Who counted the tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// The server, in the `usage` of its answer.
    Server,
    /// Nobody: output tokens are the chunks that carried some, prompt tokens those asked for.
    Estimated,
    /// Nobody, and there is nothing to estimate from.
    #[default]
    Unknown,
}

impl Counted {
    /// The name in files: `server`, `estimated` or `unknown`.
    pub fn label(self) -> &'static str {
        match self {
            Counted::Server => "server",
            Counted::Estimated => "estimated",
            Counted::Unknown => "unknown",
        }
    }

    /// The one with this label.
    pub fn named(label: &str) -> Option<Counted> {
        [Counted::Server, Counted::Estimated, Counted::Unknown].into_iter().find(|c| c.label() == label)
    }
}

/// What only a client of a real server knows. Its [`Row::arrived`] is the time at which the schedule wanted
/// the request sent, so that its latencies include what the client itself was late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Sends of the same request before this one.
    pub attempt: u16,
    /// The session, within its class.
    pub session: Option<u64>,
    /// When it was handed to the socket.
    pub sent: Option<Nanos>,
    /// When the first byte of the answer's body came.
    pub first_byte: Option<Nanos>,
    /// When the first token came that is output and no reasoning.
    pub first_output: Option<Nanos>,
    /// When the answer's body ended.
    pub closed: Option<Nanos>,
    /// Tokens that its prompt was meant to have.
    pub asked_prompt_tokens: u32,
    /// Tokens that its answer was meant to have.
    pub asked_output_tokens: u32,
    /// Pieces of the answer that carried tokens.
    pub chunks: u32,
    /// The longest time between two such pieces.
    pub longest_gap: Option<Span>,
    /// Who counted its tokens.
    pub counted: Counted,
    /// Status of the answer.
    pub status: Option<u16>,
    /// What went wrong, as a label.
    pub error: Option<&'static str>,
}

/// A row with what a client knows beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// As a simulation would have it.
    pub row: Row,
    /// The rest.
    pub live: Live,
}

impl From<Row> for Record {
    fn from(row: Row) -> Record {
        Record { row, live: Live::default() }
    }
}

impl Record {
    /// How late it was sent.
    pub fn lag(&self) -> Option<Span> {
        self.live.sent.map(|t| t.since(self.row.arrived))
    }

    /// Time to the first token that is output and no reasoning, from the scheduled time.
    pub fn ttfo(&self) -> Option<Span> {
        self.live.first_output.map(|t| t.since(self.row.arrived))
    }

    /// Time to first token as the server alone made it: from the sending.
    pub fn service_ttft(&self) -> Option<Span> {
        Some(self.row.first_token?.since(self.live.sent?))
    }

    /// From the sending to the last token; `None` unless it finished.
    pub fn service_e2e(&self) -> Option<Span> {
        let last = self.row.finished.filter(|_| self.row.is_finished())?;
        Some(last.since(self.live.sent?))
    }

    /// From the scheduled time to the end of the answer's body; `None` unless it finished.
    pub fn to_close(&self) -> Option<Span> {
        let closed = self.live.closed.filter(|_| self.row.is_finished())?;
        Some(closed.since(self.row.arrived))
    }
}
