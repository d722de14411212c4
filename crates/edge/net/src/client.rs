//! The upstream client: a pool of HTTP/1.1 connections that no task owns.
//!
//! A connection's own future is polled by the request that uses it, first while it waits for the answer's head and
//! then inside the answer's body. That saves a task switch per chunk, and ties the connection's life to the request:
//! dropping the request's future or the body closes the socket, which is what cancels the work upstream.

use crate::server::tune;
use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

/// Times and sizes of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientOptions {
    /// The time to connect, name look-up included.
    pub connect_timeout: Duration,
    /// The time from sending a request to the head of its answer; a long prefill takes minutes.
    pub headers_timeout: Duration,
    /// The time between two pieces of an answer's body.
    pub idle_timeout: Duration,
    /// How long an unused connection is kept. vLLM closes them after 5 s, so stay below that.
    pub keep_idle: Duration,
    /// The most unused connections that are kept for one endpoint.
    pub max_idle: usize,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(5),
            headers_timeout: Duration::from_mins(10),
            idle_timeout: Duration::from_mins(2),
            keep_idle: Duration::from_secs(4),
            max_idle: 256,
        }
    }
}

/// How far a request got before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No connection was made.
    Connect,
    /// The connection broke before the head of the answer.
    BeforeHeaders,
    /// The head of the answer did not come in time.
    HeadersTimeout,
    /// The request itself cannot be sent.
    Request,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", self.what())]
pub struct SendError {
    /// How far it got.
    pub stage: Stage,
    /// Whether the connection had served a request before: then it may have been closed at the same moment, and
    /// a broken connection says nothing about the endpoint.
    pub reused: bool,
    /// Whether the endpoint may have received any of the request.
    pub sent: bool,
    /// What happened.
    #[source]
    pub source: crate::BoxError,
}

impl SendError {
    /// Whether sending the request again cannot make an engine do the work twice in any way that matters: nothing was
    /// sent, or a connection that had been idle broke before any byte of an answer.
    pub fn retry_is_safe(&self) -> bool {
        self.stage != Stage::Request && (!self.sent || (self.reused && self.stage == Stage::BeforeHeaders))
    }

    fn what(&self) -> &'static str {
        match self.stage {
            Stage::Connect => "connecting failed",
            Stage::BeforeHeaders => "the connection broke before an answer",
            Stage::HeadersTimeout => "no answer in time",
            Stage::Request => "the request cannot be sent",
        }
    }
}

/// Why an answer's body broke off.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection broke before the end of the body.
    #[error("the answer broke off: {0}")]
    Broken(#[source] hyper::Error),
    /// Nothing came for too long.
    #[error("the answer paused for more than {0:?}")]
    Idle(Duration),
}

/// Why a [`Client::get`] failed.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// No answer.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The answer broke off.
    #[error(transparent)]
    Body(#[from] UpstreamError),
    /// The answer is larger than allowed.
    #[error("the answer exceeds {0} bytes")]
    TooLarge(usize),
    /// It was not complete in time.
    #[error("no complete answer within {0:?}")]
    Timeout(Duration),
    /// The path is not one.
    #[error("not a path: {0}")]
    Path(#[from] http::Error),
    /// The answer's status is not 200.
    #[error("the answer has status {0}")]
    Status(StatusCode),
}

type Driver = Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A connection: the handle to send on it, and the future that does its work when polled.
struct Link {
    send: SendRequest<Full<Bytes>>,
    /// `None` once it has completed: the connection is closed.
    driver: Option<Box<Driver>>,
}

impl Link {
    /// Lets the connection work. What goes wrong shows in the request or the body that waits for it.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// Whether the next request can be sent.
    fn is_free(&self) -> bool {
        self.driver.is_some() && self.send.is_ready()
    }

    /// Whether an unused connection is still good, as far as the runtime has heard.
    fn is_alive(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.is_free()
    }
}

struct Idle {
    link: Link,
    since: Instant,
}

struct Pool {
    options: ClientOptions,
    /// By endpoint, the longest unused connection first.
    idle: Mutex<HashMap<Arc<str>, Vec<Idle>>>,
}

impl Pool {
    /// The connection used last, if it is young enough.
    fn take(&self, endpoint: &str) -> Option<(Arc<str>, Link)> {
        let (name, taken, _expired) = {
            let mut idle = self.idle.lock();
            // Its own copy of the name saves one per request.
            let name = idle.get_key_value(endpoint)?.0.clone();
            let list = idle.get_mut(endpoint)?;
            let (taken, expired): (Option<Link>, Vec<Idle>) = match list.pop() {
                Some(last) if last.since.elapsed() < self.options.keep_idle => (Some(last.link), Vec::new()),
                // If the last one is too old, so are the others. They are closed after the lock is released.
                last => (None, list.drain(..).chain(last).collect()),
            };
            (name, taken, expired)
        };
        taken.map(|link| (name, link))
    }

    fn put(&self, endpoint: &Arc<str>, link: Link) {
        if self.options.max_idle == 0 {
            return;
        }
        let entry = Idle { link, since: Instant::now() };
        let _dropped_unlocked = {
            let mut idle = self.idle.lock();
            let list = match idle.get_mut(endpoint) {
                Some(list) => list,
                None => idle.entry(endpoint.clone()).or_default(),
            };
            list.push(entry);
            (list.len() > self.options.max_idle).then(|| list.remove(0))
        };
    }
}

/// Sends requests to endpoints, given as `host:port`. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", &self.pool.options).finish_non_exhaustive()
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new(ClientOptions::default())
    }
}

impl Client {
    /// A client without connections.
    pub fn new(options: ClientOptions) -> Client {
        Client { pool: Arc::new(Pool { options, idle: Mutex::default() }) }
    }

    /// Sends a request and gives the head of its answer, with a body that still holds the connection. `endpoint` is
    /// `host:port`; only the path and query of the request's target are sent, and `host` is set if it is absent.
    ///
    /// A pooled connection that turns out to be closed before anything was sent on it is replaced silently. Dropping
    /// this future, or the body, closes the connection.
    pub async fn send(
        &self,
        endpoint: &str,
        request: Request<Bytes>,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let mut request = prepare(endpoint, request)?;
        let options = self.pool.options;
        loop {
            let pooled = std::iter::from_fn(|| self.pool.take(endpoint))
                .find_map(|(name, mut link)| link.is_alive().then_some((name, link)));
            let reused = pooled.is_some();
            let (name, mut link) = match pooled {
                Some(pooled) => pooled,
                None => (endpoint.into(), connect(endpoint, options.connect_timeout).await?),
            };
            let fail = |stage, sent, source| SendError { stage, reused, sent, source };
            let answer = match timeout(options.headers_timeout, exchange(&mut link, request)).await {
                Ok(answer) => answer,
                Err(elapsed) => return Err(fail(Stage::HeadersTimeout, true, elapsed.into())),
            };
            match answer {
                Ok(response) => {
                    let (head, incoming) = response.into_parts();
                    let mut body = UpstreamBody {
                        incoming,
                        link: Some(link),
                        endpoint: name,
                        pool: self.pool.clone(),
                        last: Instant::now(),
                        timer: None,
                    };
                    if body.incoming.is_end_stream() {
                        body.release(None);
                    }
                    return Ok(Response::from_parts(head, body));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if reused => request = unsent,
                    unsent => {
                        return Err(fail(Stage::BeforeHeaders, unsent.is_none(), error.into_error().into()));
                    }
                },
            }
        }
    }

    /// Gets a path and collects the answer, which must have status 200, within a time and a size. Made for scraping.
    pub async fn get(
        &self,
        endpoint: &str,
        path: &str,
        within: Duration,
        max_bytes: usize,
    ) -> Result<Bytes, GetError> {
        let request = Request::get(path).body(Bytes::new())?;
        let work = async {
            let response = self.send(endpoint, request).await?;
            if response.status() != StatusCode::OK {
                return Err(GetError::Status(response.status()));
            }
            let mut body = response.into_body();
            let mut whole = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame?.into_data() else { continue };
                if whole.len() + data.len() > max_bytes {
                    return Err(GetError::TooLarge(max_bytes));
                }
                whole.extend_from_slice(&data);
            }
            Ok(whole.freeze())
        };
        timeout(within, work).await.unwrap_or(Err(GetError::Timeout(within)))
    }

    /// Connects to an endpoint, sends nothing and hangs up: whether somebody listens there.
    pub async fn knock(&self, endpoint: &str) -> Result<(), SendError> {
        connect(endpoint, self.pool.options.connect_timeout).await.map(drop)
    }

    /// Closes the unused connections of an endpoint that is gone. Connections in use go on to their end.
    pub fn forget(&self, endpoint: &str) {
        let _closed_unlocked = self.pool.idle.lock().remove(endpoint);
    }

    /// Closes every connection that has been unused for too long. Expired connections are never used in any case;
    /// calling this about once a second returns their sockets.
    pub fn sweep(&self) {
        let mut expired: Vec<Idle> = Vec::new();
        let mut idle = self.pool.idle.lock();
        idle.retain(|_, list| {
            let old = list.iter().take_while(|i| i.since.elapsed() >= self.pool.options.keep_idle).count();
            expired.extend(list.drain(..old));
            !list.is_empty()
        });
        drop(idle);
    }

    /// Unused connections to an endpoint.
    pub fn idle(&self, endpoint: &str) -> usize {
        self.pool.idle.lock().get(endpoint).map_or(0, Vec::len)
    }
}

/// Turns a request into what goes over the wire.
fn prepare(endpoint: &str, request: Request<Bytes>) -> Result<Request<Full<Bytes>>, SendError> {
    let (mut head, body) = request.into_parts();
    let refuse =
        |source: crate::BoxError| SendError { stage: Stage::Request, reused: false, sent: false, source };
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    head.uri = Uri::from(path);
    head.version = Version::HTTP_11;
    if !head.headers.contains_key(HOST) {
        let host = HeaderValue::from_str(endpoint).map_err(|e| refuse(e.into()))?;
        head.headers.insert(HOST, host);
    }
    Ok(Request::from_parts(head, Full::new(body)))
}

async fn connect(endpoint: &str, within: Duration) -> Result<Link, SendError> {
    let fail =
        |source: crate::BoxError| SendError { stage: Stage::Connect, reused: false, sent: false, source };
    let open = async {
        let stream = TcpStream::connect(endpoint).await?;
        tune(&stream)?;
        let (send, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Link { send, driver: Some(Box::new(driver)) })
    };
    match timeout(within, open).await {
        Ok(opened) => opened.map_err(fail),
        Err(elapsed) => Err(fail(elapsed.into())),
    }
}

type TrySend = hyper::client::conn::TrySendError<Request<Full<Bytes>>>;

/// Sends a request and drives its connection until the head of the answer is there.
async fn exchange(link: &mut Link, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, TrySend> {
    let mut answer = pin!(link.send.try_send_request(request));
    std::future::poll_fn(|cx| {
        link.drive(cx);
        answer.as_mut().poll(cx)
    })
    .await
}

/// The body of an upstream's answer. It drives the connection that it comes over, gives it back to the pool at its
/// clean end, and closes it when dropped before. A body cut short ends with an error.
pub struct UpstreamBody {
    incoming: Incoming,
    link: Option<Link>,
    endpoint: Arc<str>,
    pool: Arc<Pool>,
    /// When the last piece came.
    last: Instant,
    /// Runs from the first wait on; moved on only when it fires, not at every piece.
    timer: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl UpstreamBody {
    /// The endpoint it comes from.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// At the end of the body, gives the connection back if it is fit for another request.
    fn release(&mut self, cx: Option<&mut Context<'_>>) {
        if let Some(mut link) = self.link.take() {
            // The connection becomes free in the poll after it has read the last byte.
            link.drive(cx.unwrap_or(&mut Context::from_waker(Waker::noop())));
            if link.is_free() {
                self.pool.put(&self.endpoint, link);
            }
        }
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<UpstreamError> {
        let limit = self.pool.options.idle_timeout;
        let last = self.last;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if last.elapsed() >= limit {
                return Poll::Ready(UpstreamError::Idle(limit));
            }
            timer.set(sleep_until(last + limit));
        }
    }
}

impl HttpBody for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let this = &mut *self;
        let mut next = Pin::new(&mut this.incoming).poll_frame(cx);
        if next.is_pending()
            && let Some(link) = &mut this.link
        {
            link.drive(cx);
            next = Pin::new(&mut this.incoming).poll_frame(cx);
        }
        match next {
            Poll::Ready(Some(Ok(frame))) => {
                this.last = Instant::now();
                // With a declared length the end is known now, and nobody need ask for another frame.
                if this.incoming.is_end_stream() {
                    this.release(Some(cx));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.link = None;
                Poll::Ready(Some(Err(UpstreamError::Broken(error))))
            }
            Poll::Ready(None) => {
                this.release(Some(cx));
                Poll::Ready(None)
            }
            Poll::Pending => this.poll_idle(cx).map(|error| {
                this.link = None;
                Some(Err(error))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
