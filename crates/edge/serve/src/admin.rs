//! The admin port: metrics and probes.

use crate::door::Door;
use bytes::Bytes;
use forebay_live::DoorView;
use forebay_net::{Body, Incoming};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[allow(clippy::unused_async, reason = "the shape of a handler")]
pub(crate) async fn answer(door: Arc<Door>, request: Request<Incoming>) -> Response<Body> {
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match request.uri().path() {
        "/metrics" => {
            let body = door.metrics();
            let mut response = Response::new(Body::from(body));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
            response
        }
        "/healthz" if door.router.is_broken() => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the kernel has failed\n")
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match door.unready() {
            None => text(StatusCode::OK, "ready\n"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
        },
        _ => text(StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n"),
    }
}

fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

impl Door {
    fn metrics(&self) -> String {
        let view = self.router.view();
        self.router.metrics().render(view.as_ref(), &self.view())
    }

    fn view(&self) -> DoorView {
        let (accepted, ended, open) = self.counts.ledger();
        let read = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        DoorView {
            accepted,
            ended,
            open,
            streams: read(&self.counts.streams),
            panics: read(&self.counts.panics),
            retries: read(&self.counts.retries),
            dropped_lines: self.log.dropped(),
            recording: self.recorder.as_ref().map(forebay_live::recording::Recorder::view),
            buffered: (self.budget.used(), self.budget.max()),
            connections: (self.connections.count() as u64, self.max_connections as u64),
            draining: self.draining.load(Ordering::Acquire),
        }
    }

    /// Why no traffic should come; `None` if it should.
    fn unready(&self) -> Option<&'static str> {
        if self.draining.load(Ordering::Acquire) {
            return Some("shutting down\n");
        }
        let view = self.router.view()?;
        if view.endpoints.is_empty() {
            return Some("the pool has no endpoints\n");
        }
        if view.endpoints.iter().all(|e| !e.available) {
            return Some("no endpoint takes connections\n");
        }
        let fresh = view.endpoints.iter().any(|e| e.fresh);
        (!fresh).then_some("no endpoint has fresh metrics\n")
    }
}
