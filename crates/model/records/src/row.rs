//! One request, from its arrival to its end.

use forebay_base::{Nanos, Span};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// All its tokens came.
    Finished,
    /// The router refused it, for the reason with this label.
    Rejected(&'static str),
    /// Its deadline passed first.
    TimedOut,
    /// The server or the network failed.
    Failed,
    /// The client left.
    Cancelled,
    /// It was still alive when the run ended: its times are lower bounds.
    Censored,
}

impl End {
    /// The name in files: `finished`, `rejected`, `timed-out`, `failed`, `cancelled` or `censored`.
    pub fn label(self) -> &'static str {
        match self {
            End::Finished => "finished",
            End::Rejected(_) => "rejected",
            End::TimedOut => "timed-out",
            End::Failed => "failed",
            End::Cancelled => "cancelled",
            End::Censored => "censored",
        }
    }

    /// The reason of a rejection, otherwise empty.
    pub fn reason(self) -> &'static str {
        if let End::Rejected(reason) = self { reason } else { "" }
    }

    /// The end with this label, and this reason if it is a rejection.
    pub fn named(label: &str, reason: &str) -> Option<End> {
        Some(match label {
            "finished" => End::Finished,
            "rejected" => End::Rejected(reason_named(reason)),
            "timed-out" => End::TimedOut,
            "failed" => End::Failed,
            "cancelled" => End::Cancelled,
            "censored" => End::Censored,
            _ => return None,
        })
    }
}

/// A label that lives for ever, for reasons that come from a file. The same text gives the same label;
/// after 256 different ones every new text gives `"other"`, so that a strange file cannot fill memory.
pub fn reason_named(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    const MOST: usize = 256;
    // Nothing can panic between lock and unlock, so a poisoned set is still whole.
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(label) = known.get(text) {
        return label;
    }
    if known.len() >= MOST {
        return "other";
    }
    let label: &'static str = Box::leak(text.to_owned().into_boxed_str());
    known.insert(label);
    label
}

/// One request. Instants are on the clock of the run; what never happened is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number in the workload, from 0 in the order of arrival.
    pub number: u64,
    /// Index of its class.
    pub class: u16,
    /// Priority of its class: greater is more urgent.
    pub priority: i32,
    /// Index of its flow.
    pub flow: u32,
    /// When it reached the router.
    pub arrived: Nanos,
    /// When the router sent it on.
    pub dispatched: Option<Nanos>,
    /// When it reached the server.
    pub engine_arrived: Option<Nanos>,
    /// When the server first scheduled tokens of it.
    pub scheduled: Option<Nanos>,
    /// When its first token reached the client.
    pub first_token: Option<Nanos>,
    /// When it ended, whichever way; `None` while it lives.
    pub finished: Option<Nanos>,
    /// How it ended.
    pub end: End,
    /// Index of the endpoint that served it.
    pub endpoint: Option<u32>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had.
    pub cached_tokens: u32,
    /// Tokens generated so far or in all.
    pub output_tokens: u32,
    /// Of these, those that come with the first one, itself included: 1, or more where a server sends several
    /// at once.
    pub first_tokens: u32,
    /// How often the server preempted it.
    pub preemptions: u32,
    /// Tokens computed again after preemptions.
    pub recomputed_tokens: u64,
}

impl Row {
    /// A request that has just arrived: nothing has happened yet, and its end is [`End::Censored`].
    pub fn arriving(number: u64, class: u16, arrived: Nanos) -> Row {
        Row {
            number,
            class,
            priority: 0,
            flow: 0,
            arrived,
            dispatched: None,
            engine_arrived: None,
            scheduled: None,
            first_token: None,
            finished: None,
            end: End::Censored,
            endpoint: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            first_tokens: 1,
            preemptions: 0,
            recomputed_tokens: 0,
        }
    }

    /// Whether all its tokens came.
    pub fn is_finished(&self) -> bool {
        self.end == End::Finished
    }

    /// Time to first token: from arrival at the router to the first token at the client.
    pub fn ttft(&self) -> Option<Span> {
        self.first_token.map(|t| t.since(self.arrived))
    }

    /// End to end: from arrival to the last token; `None` unless it finished.
    pub fn e2e(&self) -> Option<Span> {
        self.finished.filter(|_| self.is_finished()).map(|t| t.since(self.arrived))
    }

    /// Mean time per output token after those that came first; `None` unless it finished and some came later.
    pub fn tpot(&self) -> Option<Span> {
        let (first, last) = (self.first_token?, self.finished.filter(|_| self.is_finished())?);
        let gaps = u64::from(self.output_tokens.checked_sub(self.first_tokens.max(1)).filter(|&n| n > 0)?);
        Some(Span(last.since(first).0 / gaps))
    }

    /// Whether it finished without a token after the first ones, so that it has no time per token to judge.
    pub fn came_at_once(&self) -> bool {
        self.is_finished() && self.output_tokens <= self.first_tokens.max(1)
    }

    /// Wait in the router, the first part of [`Row::ttft`].
    pub fn gateway(&self) -> Option<Span> {
        self.dispatched.map(|t| t.since(self.arrived))
    }

    /// Way to the server, the second part.
    pub fn network(&self) -> Option<Span> {
        Some(self.engine_arrived?.since(self.dispatched?))
    }

    /// Wait in the server, the third part.
    pub fn engine_wait(&self) -> Option<Span> {
        Some(self.scheduled?.since(self.engine_arrived?))
    }

    /// From the first scheduled token to the first token at the client, the fourth part: the prefill and
    /// the way back.
    pub fn prefill(&self) -> Option<Span> {
        Some(self.first_token?.since(self.scheduled?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_parts_add_up_to_the_time_to_first_token() {
        let row = Row {
            dispatched: Some(Nanos(110)),
            engine_arrived: Some(Nanos(115)),
            scheduled: Some(Nanos(140)),
            first_token: Some(Nanos(200)),
            finished: Some(Nanos(500)),
            end: End::Finished,
            output_tokens: 4,
            ..Row::arriving(0, 0, Nanos(100))
        };
        let parts = [row.gateway(), row.network(), row.engine_wait(), row.prefill()];
        assert_eq!(parts.iter().map(|p| p.unwrap().0).sum::<u64>(), row.ttft().unwrap().0);
        assert_eq!((row.ttft(), row.e2e(), row.tpot()), (Some(Span(100)), Some(Span(400)), Some(Span(100))));
        let cut = Row { end: End::Censored, ..row };
        assert_eq!((cut.e2e(), cut.tpot()), (None, None));
        assert_eq!(cut.ttft(), Some(Span(100)), "the first token did come");
    }

    #[test]
    fn ends_are_read_as_they_are_written() {
        for end in [
            End::Finished,
            End::Rejected("queue-full"),
            End::TimedOut,
            End::Failed,
            End::Cancelled,
            End::Censored,
        ] {
            assert_eq!(End::named(end.label(), end.reason()), Some(end));
        }
        assert_eq!(End::named("done", ""), None);
        assert!(std::ptr::eq(reason_named("a"), reason_named("a")));
    }
}
