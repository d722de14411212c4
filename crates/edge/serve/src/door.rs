//! The front port: one future per request, from its head to the last byte of its answer.
//!
//! The body is read to its end before anything waits, so that a leaving client is noticed while its
//! request is queued; nothing of a request is spawned, so that dropping its future is its cancellation.

use crate::answer::Stream;
use crate::counts::Counts;
use crate::flight::Flight;
use crate::identity::{Identities, Identity};
use crate::reads::Reads;
use crate::record::{AccessLog, Record};
use crate::refuse::Refusing;
use bytes::Bytes;
use forebay_config::RetryOn;
use forebay_kernel::{Ask, prefix};
use forebay_live::recording::Recorder;
use forebay_live::{Router, Upstream};
use forebay_net::{
    Body, Budget, Client, CollectError, CollectLimits, Held, Incoming, Open, SendError, Stage, UpstreamBody,
    UpstreamError, collect_held,
};
use forebay_wire::show::shown;
use forebay_wire::splice::{EventMap, NameMap, replace};
use forebay_wire::sse::DEFAULT_CAP;
use forebay_wire::{Api, Peek, Usage, headers, peek};
use futures_util::FutureExt;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Which parsers the configuration lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsers {
    /// `openai-parser`.
    pub openai: bool,
    /// `anthropic-parser`.
    pub anthropic: bool,
    /// `vllmhttp-parser`.
    pub vllm: bool,
    /// `passthrough-parser`, the fallback.
    pub passthrough: bool,
}

impl Parsers {
    /// How a body of this API is read; `None` if nothing reads it.
    fn read_as(self, api: Api) -> Option<Api> {
        let listed = match api {
            Api::Messages | Api::CountTokens => self.anthropic,
            Api::Generate => self.vllm,
            Api::Passthrough => false,
            _ => self.openai,
        };
        if listed { Some(api) } else { self.passthrough.then_some(Api::Passthrough) }
    }
}

/// What the door lets in and how much of it.
#[derive(Clone, Debug)]
pub struct DoorOptions {
    /// Limits of request bodies.
    pub limits: CollectLimits,
    /// Answers in one piece up to this many bytes are looked at; larger ones are refused with 502.
    pub max_answer_bytes: u64,
    /// Beginnings of paths that are proxied beside the known APIs.
    pub proxy_paths: Vec<String>,
    /// How bodies are read.
    pub parsers: Parsers,
    /// Headers that plugins read.
    pub reads: Reads,
    /// Whether every endpoint is an emulated one, which every answer then says.
    pub emulated: bool,
    /// Bytes of request bodies, and of answers in one piece, that may be held at once.
    pub max_buffered_bytes: u64,
    /// What is tried once more at another endpoint.
    pub retry_on: RetryOn,
    /// Whether a model that no endpoint lists is answered with 404.
    pub check_models: bool,
}

/// The door.
pub(crate) struct Door {
    pub(crate) router: Arc<Router>,
    pub(crate) client: Client,
    pub(crate) identities: Identities,
    pub(crate) log: AccessLog,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) counts: Counts,
    pub(crate) budget: Arc<Budget>,
    pub(crate) connections: Open,
    pub(crate) max_connections: usize,
    pub(crate) options: DoorOptions,
    pub(crate) draining: AtomicBool,
}

// Made once: from a text each use would parse the name again.
static SERVED: HeaderName = HeaderName::from_static(headers::DESTINATION_SERVED);
static PREFILLER: HeaderName = HeaderName::from_static(headers::PREFILLER);
static WAITED: HeaderName = HeaderName::from_static(headers::QUEUE_DURATION_MS);
static REQUEST_ID: HeaderName = HeaderName::from_static(headers::REQUEST_ID);
/// The band that a request ran in, on its answer.
static PRIORITY: HeaderName = HeaderName::from_static("x-forebay-priority");
/// The answers are synthetic.
static EMULATED: HeaderName = HeaderName::from_static("x-forebay-emulated");

fn status(code: StatusCode, message: &str) -> Refusing {
    Refusing::new(code, message)
}

impl Door {
    /// Answers one request. A panic ends this request and its connection, and is counted.
    pub(crate) async fn answer(self: Arc<Door>, request: Request<Incoming>) -> Response<Body> {
        let served = AssertUnwindSafe(self.serve(request)).catch_unwind().await;
        // Its flight has ended in the unwinding, with all that it held.
        served.unwrap_or_else(|_| {
            let failed = status(StatusCode::INTERNAL_SERVER_ERROR, "the router failed at this request");
            Refusing { close: true, ..failed }.response()
        })
    }

    async fn serve(self: Arc<Door>, request: Request<Incoming>) -> Response<Body> {
        // Most of a record is strings: without a log they would be made for nobody.
        let mut record = Record::default();
        let id = match request.headers().get(&REQUEST_ID).filter(|v| !v.is_empty()) {
            Some(id) => id.clone(),
            None => self.identities.request_id(),
        };
        if self.log.is_on() {
            record = Record::new(request.method().as_str(), request.uri().path());
            record.request_id = String::from_utf8_lossy(id.as_bytes()).into_owned();
        }
        let mut flight = Flight::new(self.clone(), record);
        let mut response = match self.route(request, &id, &mut flight).await {
            Ok(Reply::Whole(response)) => {
                flight.finish();
                response
            }
            Ok(Reply::Stream(head, body, names, upstream)) => {
                Response::from_parts(*head, Body::boxed(Stream::new(body, names, upstream, flight)))
            }
            Err(Failing::Refused(refusing)) => {
                flight.refuse(&refusing);
                refusing.response()
            }
            Err(Failing::Failed(refusing)) => {
                flight.answered(refusing.status);
                flight.fail(&refusing.message);
                refusing.response()
            }
        };
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID.clone(), id);
        if self.options.emulated {
            headers.insert(EMULATED.clone(), HeaderValue::from_static("true"));
        }
        response
    }

    /// Whether this path is proxied at all, and how its body is read.
    fn api(&self, path: &str) -> Result<Api, Refusing> {
        let api = Api::of_path(path);
        let known = api != Api::Passthrough
            || path == "/v1/models"
            || path.starts_with("/v1/models/")
            || self.options.proxy_paths.iter().any(|p| path.starts_with(p.as_str()));
        if known { Ok(api) } else { Err(status(StatusCode::NOT_FOUND, "Not Found")) }
    }

    async fn route(
        &self,
        request: Request<Incoming>,
        id: &HeaderValue,
        flight: &mut Flight,
    ) -> Result<Reply, Failing> {
        let (head, body) = request.into_parts();
        headers::check_framing(&head.method, &head.uri, head.version, &head.headers)
            .map_err(Refusing::from)?;
        let api = self.api(head.uri.path())?;
        if api != Api::Passthrough && head.method != Method::POST {
            return Err(status(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed").into());
        }
        #[cfg(debug_assertions)]
        self.panic_if_asked(&head.headers);
        if self.draining.load(Ordering::Acquire) && body.is_end_stream() {
            let message = "the router is shutting down";
            return Err(status(StatusCode::SERVICE_UNAVAILABLE, message).after(|| 1).into());
        }
        let target = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let outgoing = Outgoing { method: head.method, target, given: head.headers, id: id.clone() };
        if body.is_end_stream() && api == Api::Passthrough {
            return self.forward_bodyless(&outgoing, flight).await;
        }
        let mut held = self.budget.share();
        let bytes = collect_held(body, self.options.limits, &mut held).await;
        let bytes = bytes.map_err(|e| Refusing::from(e).after(|| 1))?;
        flight.record.request_bytes = bytes.len() as u64;
        self.forward(&outgoing, api, bytes, held, flight).await
    }

    /// Hooks for tests of what a panic does; not in release builds.
    #[cfg(debug_assertions)]
    fn panic_if_asked(&self, headers: &http::HeaderMap) {
        match headers.get("x-forebay-debug-panic").map(HeaderValue::as_bytes) {
            Some(b"request") => panic!("asked to"),
            Some(b"kernel") => self.router.panic_within(),
            _ => {}
        }
    }

    /// A request without a body goes to a random endpoint, past flow control, as in llm-d-router.
    async fn forward_bodyless(&self, outgoing: &Outgoing, flight: &mut Flight) -> Result<Reply, Failing> {
        let mut all = self.router.endpoints().all();
        all.retain(|u| u.is_available());
        let none = || status(StatusCode::SERVICE_UNAVAILABLE, "the pool has no endpoints").after(|| 1);
        let upstream = self.identities.any(&all).ok_or_else(none)?.clone();
        let (response, upstream) = self.send(outgoing, Bytes::new(), upstream, flight).await?;
        self.pass_on(response, &upstream, Api::Passthrough, None, flight).await
    }

    async fn forward(
        &self,
        outgoing: &Outgoing,
        api: Api,
        body: Bytes,
        held: Held,
        flight: &mut Flight,
    ) -> Result<Reply, Failing> {
        let parse = self.options.parsers.read_as(api);
        let api = parse.ok_or_else(|| status(StatusCode::BAD_REQUEST, "no parser reads this path"))?;
        let peeked = peek(api, &body).map_err(Refusing::from)?;
        let who =
            self.identities.read(&outgoing.given, &self.options.reads, peeked.model_name(), &self.router);
        if who.target.is_empty() && api != Api::Passthrough {
            let missing = status(StatusCode::BAD_REQUEST, "model not found in request body");
            return Err(missing.param("model").into());
        }
        if self.options.check_models && self.router.models().nobody_serves(&who.target) {
            let message = format!("The model `{}` does not exist.", shown(&who.model));
            return Err(status(StatusCode::NOT_FOUND, &message).param("model").into());
        }
        let effective = self.router.effective_priority(who.priority);
        let series =
            self.router.metrics().series(&who.model, &who.target, &who.flow, who.priority, effective);
        series.arrived(body.len() as u64);
        flight.series = Some(series.clone());
        note(flight, &who, effective, peeked.stream);

        // Hashing a long prompt takes longer than all else: it happens here, outside of the kernel's lock.
        let (prefix, block_tokens) = self.hash(&peeked, &who.target);
        let traffic = api.generates() && !outgoing.given.contains_key(headers::PROBE);
        if self.recorder.is_some() && traffic {
            flight.draft = Some(self.draft(&peeked, &who, (&prefix, block_tokens)));
        }
        let ask = Ask {
            flow: &who.flow,
            priority: who.priority,
            bytes: body.len() as u64,
            prompt_tokens: peeked.prompt_tokens(),
            prefix,
            block_tokens,
            streaming: peeked.stream,
            model: who.target.as_str().into(),
            session: who.session.clone(),
            sticky: who.sticky.clone(),
            slo_ttft: who.slo_ttft,
            slo_tpot: who.slo_tpot,
            max_output_tokens: peeked.max_tokens.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            ttl: who.ttl,
        };
        let (prompt_tokens, names, out) =
            (ask.prompt_tokens, name_map(&who, api), rewritten(&body, &peeked, &who));
        drop(peeked);
        let entered = self.router.enter(ask, &series).await;
        let decided = flight.started.elapsed();
        flight.decided = Some(decided);
        self.router.metrics().processed(decided);
        let ticket = entered.map_err(|refused| {
            if let forebay_live::Refused::By { waited, .. } = refused {
                flight.record.queue_ms = Some(waited.as_millis_f64());
            }
            Refusing::from(refused).after(|| self.router.retry_after(who.priority))
        })?;
        flight.record.queue_ms = Some(ticket.waited().as_millis_f64());
        self.router.metrics().prefix_hit(ticket.matched_tokens(), prompt_tokens);
        let upstream = ticket.upstream().cloned();
        if self.log.is_on() {
            flight.record.decision = ticket.id().to_string();
        }
        flight.ticket = Some(ticket);
        let upstream = upstream.ok_or_else(|| {
            let message = "the chosen endpoint has just left the pool";
            Failing::Failed(status(StatusCode::SERVICE_UNAVAILABLE, message).after(|| 1))
        })?;
        let (response, upstream) = self.send(outgoing, out.unwrap_or(body), upstream, flight).await?;
        // The request's bytes have served.
        drop(held);
        self.pass_on(response, &upstream, api, names, flight).await
    }

    /// An answer that broke off in the middle is as good as a refused connection; one that only paused says
    /// that the engine is slow.
    pub(crate) fn broke_off(
        &self,
        upstream: &Upstream,
        error: Option<&UpstreamError>,
        why: &dyn std::fmt::Display,
    ) {
        if matches!(error, Some(UpstreamError::Broken(_))) {
            self.client.forget(&upstream.authority);
            self.router.eject(upstream, why);
        }
    }

    /// The prompt's chain of block hashes, and the tokens per block it was made with.
    fn hash(&self, peeked: &Peek<'_>, model: &str) -> (Arc<[u64]>, u32) {
        let Some((block, max)) = self.router.hashing() else { return (Arc::default(), 0) };
        let mut chain = Vec::new();
        prefix::hash_chain(model, peeked.cache_salt.as_deref(), &peeked.prompt, block, max, &mut chain);
        (chain.into(), block)
    }

    /// Sends a request to its endpoint, and once more to another one if the first could not even begin: see
    /// [`RetryOn`]. Nothing of an answer has been seen then.
    async fn send(
        &self,
        outgoing: &Outgoing,
        body: Bytes,
        mut upstream: Arc<Upstream>,
        flight: &mut Flight,
    ) -> Result<(Response<UpstreamBody>, Arc<Upstream>), Failing> {
        let mut may_retry = true;
        loop {
            if self.log.is_on() || flight.draft.is_some() {
                flight.record.endpoint.clone_from(&upstream.authority);
            }
            let error = match self
                .client
                .send(&upstream.authority, outgoing.request(body.clone(), flight.prefill()))
                .await
            {
                Ok(response) => return Ok((response, upstream)),
                Err(error) => error,
            };
            // A connection that had been idle may have been closed at the very moment it was used: that says
            // nothing about the endpoint.
            if !error.reused && matches!(error.stage, Stage::Connect | Stage::BeforeHeaders) {
                self.client.forget(&upstream.authority);
                self.router.eject(&upstream, &error);
            }
            let next = if std::mem::take(&mut may_retry) && retries(self.options.retry_on, &error) {
                self.elsewhere(&upstream, flight)
            } else {
                None
            };
            match next {
                Some(next) => upstream = next,
                None => return Err(Failing::Failed(Refusing::from(&error))),
            }
            self.counts.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Where to try again: the kernel moves the request's lease; requests without one go to any endpoint.
    fn elsewhere(&self, failed: &Arc<Upstream>, flight: &mut Flight) -> Option<Arc<Upstream>> {
        if let Some(ticket) = &mut flight.ticket {
            return ticket.retry();
        }
        let mut all = self.router.endpoints().all();
        all.retain(|u| u.is_available() && u.id != failed.id);
        let any = self.identities.any(&all).cloned();
        any.or_else(|| failed.is_available().then(|| failed.clone()))
    }

    /// Passes an endpoint's answer on: a stream as it comes, anything else in one piece.
    async fn pass_on(
        &self,
        response: Response<UpstreamBody>,
        upstream: &Arc<Upstream>,
        api: Api,
        names: Option<NameMap>,
        flight: &mut Flight,
    ) -> Result<Reply, Failing> {
        let fail = |r: Refusing| Failing::Failed(r);
        let (mut head, body) = response.into_parts();
        flight.answered(head.status);
        head.headers = headers::forward_response(&head.headers);
        decorate(&mut head.headers, upstream, flight);
        let kind = head.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        if kind.starts_with("text/event-stream") {
            flight.record.stream = true;
            if names.is_some() {
                head.headers.remove(CONTENT_LENGTH);
            }
            let names = names.map(|map| EventMap::new(map, DEFAULT_CAP));
            return Ok(Reply::Stream(Box::new(head), body, names, upstream.clone()));
        }
        flight.record.stream = false;
        let limits = CollectLimits {
            max_bytes: self.options.max_answer_bytes,
            // The connection's own idle time-out bounds the wait.
            timeout: std::time::Duration::from_secs(u32::MAX.into()),
            ..self.options.limits
        };
        let mut held = self.budget.share();
        let whole = collect_held(body, limits, &mut held).await.map_err(|e| {
            if let CollectError::Broken(why) = &e {
                self.broke_off(upstream, why.downcast_ref(), why);
            }
            if matches!(e, CollectError::NoRoom) {
                // The client has sent all of its request: its connection can go on.
                return fail(Refusing { close: false, ..Refusing::from(e) }.after(|| 1));
            }
            fail(status(StatusCode::BAD_GATEWAY, &format!("the endpoint's answer: {e}")))
        })?;
        let begun = Instant::now();
        if api.generates() {
            flight.tokens(Usage::of_body(&whole), 0);
        }
        let whole = match names.map(|map| map.body(&whole).into_owned()) {
            Some(mapped) => Bytes::from(mapped),
            None => whole,
        };
        flight.record.response_bytes = whole.len() as u64;
        self.router.metrics().answer_processed(begun.elapsed());
        head.headers.remove(CONTENT_LENGTH);
        // Until the client has taken it, however slowly.
        Ok(Reply::Whole(Response::from_parts(head, Body::from(held.keep(whole)))))
    }
}

/// A request to endpoints, without its body.
struct Outgoing {
    method: Method,
    target: PathAndQuery,
    /// As the client sent them.
    given: http::HeaderMap,
    id: HeaderValue,
}

impl Outgoing {
    /// `prefill`: where its prompt is to be computed, if that is another endpoint.
    fn request(&self, body: Bytes, prefill: Option<&HeaderValue>) -> Request<Bytes> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from(self.target.clone());
        *request.headers_mut() = headers::forward_request(&self.given);
        request.headers_mut().insert(REQUEST_ID.clone(), self.id.clone());
        if let Some(prefill) = prefill {
            request.headers_mut().insert(PREFILLER.clone(), prefill.clone());
        }
        request
    }
}

/// Whether a failure is worth another try.
fn retries(on: RetryOn, error: &SendError) -> bool {
    match on {
        RetryOn::Never => false,
        RetryOn::Connect => error.retry_is_safe(),
        RetryOn::FirstByte => error.retry_is_safe() || error.stage == Stage::BeforeHeaders,
    }
}

enum Reply {
    Whole(Response<Body>),
    Stream(Box<http::response::Parts>, UpstreamBody, Option<EventMap>, Arc<Upstream>),
}

enum Failing {
    /// The router says no.
    Refused(Refusing),
    /// The endpoint could not.
    Failed(Refusing),
}

impl From<Refusing> for Failing {
    fn from(r: Refusing) -> Failing {
        Failing::Refused(r)
    }
}

fn note(flight: &mut Flight, who: &Identity, priority: i32, stream: bool) {
    let r = &mut flight.record;
    r.stream = stream;
    if !flight.door.log.is_on() {
        return;
    }
    r.model.clone_from(&who.model);
    r.target_model.clone_from(&who.target);
    r.objective.clone_from(&who.objective);
    r.fairness_id.clone_from(&who.flow);
    r.priority = Some(priority);
}

/// Says on the answer what the router decided.
fn decorate(out: &mut http::HeaderMap, upstream: &Upstream, flight: &Flight) {
    out.insert(SERVED.clone(), upstream.header.clone());
    flight.door.options.reads.give_token(&upstream.spec.name, out);
    if let Some(ticket) = &flight.ticket {
        let ms = ticket.waited().0 / 1_000_000;
        // Most requests do not wait.
        let ms = if ms == 0 { HeaderValue::from_static("0") } else { HeaderValue::from(ms) };
        out.insert(WAITED.clone(), ms);
        out.insert(PRIORITY.clone(), HeaderValue::from(ticket.priority()));
    }
}

/// Names to map back, if the engine serves the model under another one.
fn name_map(who: &Identity, api: Api) -> Option<NameMap> {
    let differs = !who.model.is_empty() && who.model != who.target && api != Api::Passthrough;
    differs.then(|| NameMap::new(&who.target, &who.model))
}

/// The body with the model's name replaced, or put in where there was none; `None` if it stays.
fn rewritten(body: &Bytes, peeked: &Peek<'_>, who: &Identity) -> Option<Bytes> {
    if who.model == who.target {
        return None;
    }
    if let Some(model) = &peeked.model {
        return Some(replace(body, model.range.clone(), &who.target).into());
    }
    let brace = body.iter().position(|b| *b == b'{')? + 1;
    let more = body[brace..].iter().find(|b| !b.is_ascii_whitespace()).is_some_and(|b| *b != b'}');
    let comma = if more { "," } else { "" };
    let field = format!("\"model\":{}{comma}", serde_json::Value::from(&*who.target));
    Some([&body[..brace], field.as_bytes(), &body[brace..]].concat().into())
}
