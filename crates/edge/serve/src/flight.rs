//! One request in the router, from its arrival to its one end and its one line in the access log.

use crate::door::Door;
use crate::record::Record;
use crate::recorded::completed;
use crate::refuse::Refusing;
use forebay_live::recording::Ended;
use forebay_live::{Completed, Series, Ticket};
use forebay_wire::Usage;
use http::StatusCode;
use http::header::HeaderValue;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Dropping it before [`Flight::finish`] or [`Flight::fail`] means that the client has left.
pub(crate) struct Flight {
    pub(crate) door: Arc<Door>,
    pub(crate) started: Instant,
    pub(crate) record: Record,
    pub(crate) series: Option<Arc<Series>>,
    pub(crate) ticket: Option<Ticket>,
    /// What its row in the recording says so far.
    pub(crate) draft: Option<Box<Ended>>,
    /// When the kernel had decided on it.
    pub(crate) decided: Option<Duration>,
    ttft: Option<Duration>,
}

impl Flight {
    pub(crate) fn new(door: Arc<Door>, record: Record) -> Flight {
        door.counts.accept();
        Flight {
            door,
            started: Instant::now(),
            record,
            series: None,
            ticket: None,
            draft: None,
            decided: None,
            ttft: None,
        }
    }

    /// Where the prompt is to be computed, if not at the endpoint that the request goes to.
    pub(crate) fn prefill(&self) -> Option<&HeaderValue> {
        self.ticket.as_ref()?.prefill().map(|p| &p.header)
    }

    /// The first output has come.
    pub(crate) fn first_token(&mut self) {
        if self.ttft.is_none() {
            self.ttft = Some(self.started.elapsed());
            if let Some(t) = &mut self.ticket {
                t.first_token();
            }
        }
    }

    /// More output has come: this many events that carry some.
    pub(crate) fn output(&mut self, events: u64) {
        self.first_token();
        if let Some(t) = &mut self.ticket {
            t.output(events);
        }
    }

    fn usage(&self) -> forebay_kernel::Usage {
        let count = |n: Option<u64>| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let r = &self.record;
        forebay_kernel::Usage { prompt: count(r.prompt_tokens), completion: count(r.output_tokens) }
    }

    /// Notes what the engine counted, or else the events that carried output.
    pub(crate) fn tokens(&mut self, usage: Option<Usage>, content_events: u64) {
        let r = &mut self.record;
        if let Some(u) = usage {
            r.prompt_tokens = u.prompt;
            r.cached_tokens = u.cached;
            r.output_tokens = u.completion;
        }
        if r.output_tokens.is_none() && content_events > 0 {
            r.output_tokens = Some(content_events);
            r.estimated = true;
        }
    }

    /// The answer is complete, or all of it is in hand.
    pub(crate) fn finish(mut self) {
        let failed = self.record.status >= 400;
        if let Some(t) = self.ticket.take() {
            if failed { t.failed() } else { t.finished(self.usage()) }
        }
        self.record.end = if failed { "failed" } else { "finished" };
        let Some(series) = &self.series else { return };
        if failed {
            self.door.router.metrics().failed(series, "ModelServerError");
            return;
        }
        let total = self.started.elapsed();
        series.completed(&Completed {
            total,
            // An answer in one piece has its first token when it has all.
            ttft: if self.record.stream { self.ttft } else { Some(total) },
            streamed: self.record.stream,
            input_tokens: self.record.prompt_tokens,
            cached_tokens: self.record.cached_tokens,
            output_tokens: self.record.output_tokens,
            response_bytes: self.record.response_bytes,
        });
    }

    /// The endpoint has failed the request.
    pub(crate) fn fail(mut self, error: &dyn std::fmt::Display) {
        if let Some(t) = self.ticket.take() {
            t.failed();
        }
        self.record.end = "failed";
        self.record.error = Some(error.to_string());
        if let Some(series) = &self.series {
            self.door.router.metrics().failed(series, "ModelServerError");
        }
    }

    /// The router answers by itself.
    pub(crate) fn refuse(mut self, refusing: &Refusing) {
        self.record.status = refusing.status.as_u16();
        self.record.reason = refusing.reason;
        self.record.error = Some(refusing.message.clone());
        self.record.end = "refused";
        if let Some(series) = &self.series {
            self.door.router.metrics().failed(series, refusing.code());
        }
    }

    /// A panic ends this request and no other.
    fn panicked(&mut self) {
        if let Some(t) = self.ticket.take() {
            t.failed();
        }
        self.door.counts.panics.fetch_add(1, Ordering::Relaxed);
        self.record.status = if self.record.status == 0 { 500 } else { self.record.status };
        self.record.end = "failed";
        self.record.error = Some("a panic in the router".to_owned());
    }

    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.record.status = status.as_u16();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.panicked();
        }
        let ms = |d: Duration| (d.as_secs_f64() * 1e6).round() / 1e3;
        let total = self.started.elapsed();
        self.record.ttft_ms = self.ttft.map(ms);
        self.record.total_ms = ms(total);
        // The ticket goes first: the place is free before the line says so.
        drop(self.ticket.take());
        self.door.counts.end(self.record.end);
        self.door.log.write(&self.record);
        if let (Some(draft), Some(recorder)) = (self.draft.take(), &self.door.recorder) {
            recorder.push(completed(
                draft,
                &self.record,
                recorder.at(self.started),
                [self.decided, self.ttft],
                total,
            ));
        }
    }
}
