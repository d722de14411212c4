//! The answer of an engine on its way to the client: passed on as it comes, looked at in passing.

use crate::door::Door;
use crate::flight::Flight;
use bytes::Bytes;
use forebay_live::Upstream;
use forebay_net::{BoxError, UpstreamBody};
use forebay_wire::splice::EventMap;
use forebay_wire::sse::Scanner;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// A stream of server-sent events.
pub(crate) struct Stream {
    inner: UpstreamBody,
    scanner: Scanner,
    names: Option<EventMap>,
    flight: Option<Flight>,
    /// Where it comes from.
    upstream: Arc<Upstream>,
    last: Option<Instant>,
    /// Time spent on what has passed.
    spent: Duration,
    /// Counts for as long as it lives.
    #[expect(dead_code, reason = "held for its drop")]
    open: OneStream,
}

/// Counts an open stream.
struct OneStream(Arc<Door>);

impl Drop for OneStream {
    fn drop(&mut self) {
        self.0.counts.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stream {
    pub(crate) fn new(
        inner: UpstreamBody,
        names: Option<EventMap>,
        upstream: Arc<Upstream>,
        flight: Flight,
    ) -> Stream {
        flight.door.counts.streams.fetch_add(1, Ordering::Relaxed);
        let open = OneStream(flight.door.clone());
        let (scanner, flight) = (Scanner::default(), Some(flight));
        Stream { inner, scanner, names, flight, upstream, last: None, spent: Duration::ZERO, open }
    }

    /// Looks at bytes, and maps model names in them if asked to.
    fn pass(&mut self, data: Bytes) -> Bytes {
        let begun = Instant::now();
        let fresh = self.scanner.feed(&data);
        let out = match &mut self.names {
            None => data,
            Some(names) => {
                let mut out = Vec::with_capacity(data.len() + 64);
                names.feed(&data, &mut out);
                out.into()
            }
        };
        if let Some(flight) = &mut self.flight {
            flight.record.response_bytes += out.len() as u64;
            if fresh > 0 {
                flight.output(fresh);
                let now = begun;
                if let (Some(last), Some(series)) = (self.last, &flight.series) {
                    series.gap(now - last);
                }
                self.last = Some(now);
            }
        }
        self.spent += begun.elapsed();
        out
    }

    fn end(&mut self) {
        self.scanner.finish();
        if let Some(mut flight) = self.flight.take() {
            let report = self.scanner.report();
            flight.tokens(report.usage, report.content_events);
            flight.door.router.metrics().answer_processed(self.spent);
            flight.finish();
        }
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers of an engine mean nothing to its client.
                    let Ok(data) = frame.into_data() else { continue };
                    let mut out = self.pass(data);
                    // A body of known length is not polled again once it is complete.
                    if self.inner.is_end_stream() {
                        if let Some(names) = &mut self.names {
                            let mut rest = out.to_vec();
                            names.finish(&mut rest);
                            out = rest.into();
                        }
                        self.end();
                    }
                    if out.is_empty() {
                        continue;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(out))));
                }
                Some(Err(e)) => {
                    if let Some(mut flight) = self.flight.take() {
                        let report = self.scanner.report();
                        flight.tokens(report.usage, report.content_events);
                        flight.door.broke_off(&self.upstream, Some(&e), &e);
                        flight.fail(&e);
                    }
                    return Poll::Ready(Some(Err(e.into())));
                }
                None => {
                    let mut rest = Vec::new();
                    if let Some(names) = self.names.as_mut() {
                        names.finish(&mut rest);
                    }
                    self.names = None;
                    self.end();
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.flight.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.names.is_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The client left: what was seen so far goes into the log with the cancellation.
        if let Some(flight) = &mut self.flight {
            let report = self.scanner.report();
            flight.tokens(report.usage, report.content_events);
        }
    }
}
