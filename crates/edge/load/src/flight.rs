//! The measuring of one request, without a clock or a socket: what happened comes in with its time.

use forebay_base::{Nanos, Span};
use forebay_records::{Counted, End, Live, Record, Row, reason_named};
use forebay_wire::sse::{Passing, Scanner};
use forebay_wire::{Usage, headers};
use forebay_workload::Arrival;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Bytes of an answer that is no stream which are kept to read its usage or its error.
const KEPT_BODY: usize = 4 << 20;
/// Characters of an error that are shown.
const KEPT_MESSAGE: usize = 300;

/// Tokens that came together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: Nanos,
    /// Tokens of the answer so far, if the server tells.
    so_far: Option<u64>,
}

/// A request on its way.
#[derive(Debug)]
pub struct Flight {
    record: Record,
    /// Whether the answer's text is kept.
    keeps_text: bool,
    text: String,
    scanner: Scanner,
    streamed: bool,
    body: Vec<u8>,
    usage: Usage,
    pieces: Vec<Piece>,
    served_by: Option<String>,
    reason: Option<&'static str>,
    message: Option<String>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Landed {
    /// Its record. The endpoint is not in it, but in `served_by`.
    pub record: Record,
    /// Times between pieces of its answer, in nanoseconds.
    pub gaps: Vec<u64>,
    /// Times per token with how many tokens they stand for: of each piece after the first by its own tokens if the
    /// server told them, else by the mean of the answer.
    pub per_token: Vec<(u64, u64)>,
    /// Whether the server told the tokens of each piece.
    pub told: bool,
    /// The answer's text, if it was wanted.
    pub text: String,
    /// The endpoint that a router says has served it.
    pub served_by: Option<String>,
    /// What the server or the system said of an error.
    pub message: Option<String>,
}

impl Flight {
    /// A request that its schedule wants sent now. `keeps_text` if its answer will be repeated.
    pub fn new(a: &Arrival, keeps_text: bool) -> Flight {
        let row = Row {
            priority: a.priority,
            flow: a.flow,
            prompt_tokens: a.prompt_tokens,
            ..Row::arriving(a.number, a.class, a.at)
        };
        let live = Live {
            attempt: a.attempt,
            session: a.session,
            asked_prompt_tokens: a.prompt_tokens,
            asked_output_tokens: a.output_tokens,
            ..Live::default()
        };
        Flight {
            record: Record { row, live },
            keeps_text,
            text: String::new(),
            scanner: Scanner::default(),
            streamed: false,
            body: Vec::new(),
            usage: Usage::default(),
            pieces: Vec::new(),
            served_by: None,
            reason: None,
            message: None,
        }
    }

    /// Its record so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// It is handed to the socket.
    pub fn sent(&mut self, now: Nanos) {
        self.record.live.sent = Some(now);
    }

    /// The head of its answer came.
    pub fn head(&mut self, status: u16, answer: &HeaderMap) {
        let text = |name: &str| answer.get(name).and_then(|v| v.to_str().ok());
        self.record.live.status = Some(status);
        self.streamed = text(CONTENT_TYPE.as_str()).is_some_and(|t| t.starts_with("text/event-stream"));
        self.served_by = text(headers::DESTINATION_SERVED).map(str::to_owned);
        self.reason = text(headers::DROP_REASON).map(reason_named);
        let waited = text(headers::QUEUE_DURATION_MS).and_then(|ms| ms.parse::<f64>().ok());
        if let (Some(sent), Some(ms)) = (self.record.live.sent, waited) {
            // By the router's own clock, so without the way to it.
            self.record.row.dispatched = Some(sent + Span::from_secs_f64(ms / 1e3));
        }
    }

    fn is_good(&self) -> bool {
        self.record.live.status.is_some_and(|s| (200..300).contains(&s))
    }

    /// Bytes of the answer's body left the socket at `now`. True with the first token.
    pub fn bytes(&mut self, now: Nanos, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        self.record.live.first_byte.get_or_insert(now);
        let before = self.record.row.first_token.is_some();
        if self.streamed && self.is_good() {
            self.scan(now, |scanner, each| {
                scanner.feed_each(bytes, each);
            });
        } else if self.body.len() + bytes.len() <= KEPT_BODY {
            self.body.extend_from_slice(bytes);
        }
        !before && self.record.row.first_token.is_some()
    }

    fn scan(&mut self, now: Nanos, feed: impl FnOnce(&mut Scanner, &mut dyn FnMut(Passing<'_>))) {
        let Flight { record, keeps_text, text, scanner, usage, pieces, message, .. } = self;
        feed(scanner, &mut |event| {
            if let Some(told) = event.usage {
                usage.merge(told);
            }
            if event.content {
                let so_far = event.usage.and_then(|u| u.completion);
                pieces.push(Piece { at: now, so_far });
                record.row.first_token.get_or_insert(now);
                record.live.chunks += 1;
                if event.output {
                    record.live.first_output.get_or_insert(now);
                }
            }
            if *keeps_text && event.output {
                append_text(event.data, text);
            }
            if !event.content && message.is_none() && holds(event.data, b"\"error\"") {
                *message = Some(error_message(event.data));
            }
        });
    }

    /// Its answer's body came to its end.
    pub fn closed(mut self, now: Nanos) -> Landed {
        self.record.live.closed = Some(now);
        if !self.is_good() {
            return self.refused(now);
        }
        if !self.streamed {
            return self.whole(now);
        }
        self.scan(now, |scanner, each| {
            scanner.finish_each(each);
        });
        let report = self.scanner.report();
        if report.error {
            return self.failed(now, "error-event", None);
        }
        if !report.done && report.finish_reason.is_none() {
            return self.failed(
                now,
                "incomplete",
                Some("the stream ended without finish_reason or [DONE]".into()),
            );
        }
        self.record.row.end = End::Finished;
        self.record.row.finished = Some(self.pieces.last().map_or(now, |p| p.at));
        self.landed()
    }

    /// An answer that came in one piece: the client has its first token when it has the last.
    fn whole(mut self, now: Nanos) -> Landed {
        let Some(usage) =
            Usage::of_body(&self.body).or_else(|| holds(&self.body, b"\"choices\"").then(Usage::default))
        else {
            let found = error_message(&self.body);
            return self.failed(now, "no-answer", Some(found));
        };
        self.usage = usage;
        self.pieces.push(Piece { at: now, so_far: usage.completion });
        if self.keeps_text {
            let body = std::mem::take(&mut self.body);
            append_text(&body, &mut self.text);
        }
        let Record { row, live } = &mut self.record;
        row.first_token = Some(now);
        live.first_output = Some(now);
        live.chunks = 1;
        row.end = End::Finished;
        row.finished = Some(now);
        self.landed()
    }

    fn refused(mut self, now: Nanos) -> Landed {
        let status = self.record.live.status.unwrap_or(0);
        let label = reason_named(&format!("status-{status}"));
        let said = error_message(&self.body);
        if self.reason.is_none() && status != 429 {
            return self.failed(now, label, Some(said));
        }
        self.record.row.end = End::Rejected(self.reason.unwrap_or(label));
        self.record.row.finished = Some(now);
        self.message = Some(said);
        self.landed()
    }

    /// It came to nothing, for the reason with this label.
    pub fn failed(mut self, now: Nanos, label: &'static str, message: Option<String>) -> Landed {
        self.record.row.end = End::Failed;
        self.record.row.finished = Some(now);
        self.record.live.error = Some(label);
        self.message = self.message.take().or(message);
        self.landed()
    }

    /// Its client gave up.
    pub fn timed_out(mut self, now: Nanos) -> Landed {
        self.record.row.end = End::TimedOut;
        self.record.row.finished = Some(now);
        self.landed()
    }

    /// The run ended first.
    pub fn cut(mut self) -> Landed {
        self.record.row.end = End::Censored;
        self.landed()
    }

    fn landed(mut self) -> Landed {
        self.count();
        let gaps: Vec<u64> = self.pieces.windows(2).map(|p| p[1].at.since(p[0].at).0).collect();
        self.record.live.longest_gap = gaps.iter().max().map(|g| Span(*g));
        let (per_token, told) = self.per_token(&gaps);
        Landed {
            record: self.record,
            gaps,
            per_token,
            told,
            text: self.text,
            served_by: self.served_by,
            message: self.message,
        }
    }

    /// Tokens: the server's counts first, otherwise one per piece, marked.
    fn count(&mut self) {
        let Record { row, live } = &mut self.record;
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let told = self.usage.completion.or_else(|| self.pieces.iter().rev().find_map(|p| p.so_far));
        if let Some(prompt) = self.usage.prompt {
            row.prompt_tokens = count(prompt);
        }
        row.cached_tokens = self.usage.cached.map_or(0, count);
        live.counted = match told {
            Some(_) => Counted::Server,
            None if !self.pieces.is_empty() => Counted::Estimated,
            None => Counted::Unknown,
        };
        // A whole answer without usage is one piece of unknown length.
        if told.is_none() && !self.streamed && self.record_is_finished() {
            self.record.live.counted = Counted::Unknown;
            return;
        }
        self.record.row.output_tokens = told.map_or(self.pieces.len() as u32, count);
        let first = match self.pieces.first().and_then(|p| p.so_far) {
            Some(told) => told as f64,
            None => self.mean().round(),
        };
        let row = &mut self.record.row;
        row.first_tokens = (first.max(1.0) as u32).min(row.output_tokens.max(1));
    }

    fn record_is_finished(&self) -> bool {
        self.record.row.is_finished()
    }

    /// Tokens per piece.
    fn mean(&self) -> f64 {
        f64::from(self.record.row.output_tokens) / (self.pieces.len() as f64).max(1.0)
    }

    fn per_token(&self, gaps: &[u64]) -> (Vec<(u64, u64)>, bool) {
        let told = self.pieces.len() > 1 && self.pieces.iter().all(|p| p.so_far.is_some());
        let mean = self.mean().max(1.0);
        let of = |(gap, two): (&u64, &[Piece])| {
            let tokens = match (two[0].so_far, two[1].so_far) {
                (Some(a), Some(b)) => b.saturating_sub(a).max(1) as f64,
                _ => mean,
            };
            ((*gap as f64 / tokens).round() as u64, tokens.round() as u64)
        };
        (gaps.iter().zip(self.pieces.windows(2)).map(of).collect(), told)
    }
}

/// Whether bytes hold others; for the few events that are not plain content.
fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|w| w == part)
}

/// What an error says, shortened.
fn error_message(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = json.as_ref().and_then(|j| {
        [&j["error"]["message"], &j["error"], &j["message"], &j["detail"]]
            .into_iter()
            .find_map(|v| v.as_str())
    });
    let text = said.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(KEPT_MESSAGE).collect()
}

/// Appends the text of an event or of a whole answer.
fn append_text(data: &[u8], out: &mut String) {
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(data) else { return };
    let choice = &json["choices"][0];
    for text in [&choice["delta"]["content"], &choice["message"]["content"], &choice["text"]] {
        out.push_str(text.as_str().unwrap_or(""));
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
