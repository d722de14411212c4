//! Listening, routing and the lifetime of a server.

use crate::ask::{Ask, Limits, known_model, messages, prompts};
use crate::body::{Body, Cut};
use crate::check::{Checker, parse};
use crate::clock::Clock;
use crate::driver::{Driver, Part};
use crate::error::ApiError;
use crate::options::{Faults, Options, Refuse, StallMetrics};
use crate::reply::{self, Head};
use crate::stream::TokenStream;
use crate::text::Tokenizer;
use bytes::Bytes;
use forebay_base::{Diagnostics, Draws, Purpose};
use forebay_engine::{ArriveError, EngineSpec, Published, Resolved};
use forebay_wire::headers::REQUEST_ID;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The largest request body, in bytes.
const BODY_LIMIT: usize = 64 << 20;

const REQUEST_IDS: Purpose = Purpose::named("emulated request id");

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine's specification is wrong.
    #[error("{0}")]
    Spec(#[from] Diagnostics),
    /// An option is out of range.
    #[error("{option} is {found}; expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A running server; dropping it closes its socket and connections.
pub struct Emulator {
    addr: SocketAddr,
    server: Arc<Server>,
    tasks: Vec<JoinHandle<()>>,
}

/// What connections share.
struct Server {
    driver: Arc<Driver>,
    limits: Limits,
    hf_id: String,
    emulated_header: bool,
    faults: watch::Sender<Faults>,
    /// What `/metrics` says while it is frozen.
    frozen: Mutex<String>,
    started: Instant,
    created: u64,
    requests: AtomicU64,
}

/// Why there is no success to send.
enum Failure {
    Answer(ApiError),
    Cut,
}

impl From<ApiError> for Failure {
    fn from(e: ApiError) -> Failure {
        Failure::Answer(e)
    }
}

impl Emulator {
    /// Starts a server on the current tokio runtime.
    pub async fn start(spec: &EngineSpec, options: Options) -> Result<Emulator, StartError> {
        check(&options)?;
        let config = spec.resolve()?;
        let addr = options.listen;
        let listener = TcpListener::bind(addr).await.map_err(|source| StartError::Listen { addr, source })?;
        let addr = listener.local_addr().map_err(|source| StartError::Listen { addr, source })?;
        let server = Arc::new(Server::new(&config, options));
        // Not in one expression: the borrow would outlive the write.
        let faults = *server.faults.borrow();
        server.set_faults(faults);
        let driver = Arc::clone(&server.driver);
        let tasks = vec![
            tokio::spawn(async move { driver.run().await }),
            tokio::spawn(accept(Arc::clone(&server), listener, addr)),
        ];
        Ok(Emulator { addr, server, tasks })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://` and the address.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The engine's settled numbers.
    pub fn config(&self) -> &Resolved {
        self.server.driver.config()
    }

    /// The engine's counters as of its last step end.
    pub fn published(&self) -> Published {
        self.server.driver.published()
    }

    /// The misbehaviour in force.
    pub fn faults(&self) -> Faults {
        *self.server.faults.borrow()
    }

    /// Sets the misbehaviour, as `POST /admin/config` does.
    pub fn set_faults(&self, faults: Faults) {
        self.server.set_faults(faults);
    }

    /// Closes the socket and all connections, and waits until they are closed.
    pub async fn shutdown(mut self) {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            // The only error is the cancellation just asked for.
            let _ = task.await;
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn check(options: &Options) -> Result<(), StartError> {
    let wrong = |option, found, expected| Err(StartError::Option { option, found, expected });
    if !(options.time_scale > 0.0 && options.time_scale.is_finite()) {
        return wrong("time-scale", options.time_scale.to_string(), "a number above 0");
    }
    if !(0.0..=1.0).contains(&options.early_stop) {
        return wrong("early-stop", options.early_stop.to_string(), "a share from 0 to 1");
    }
    if options.default_output_tokens == 0 {
        return wrong("default-output-tokens", "0".to_owned(), "at least 1");
    }
    if options.served_model_names.is_empty() {
        return wrong("served-model-name", "empty".to_owned(), "at least one name");
    }
    Ok(())
}

/// Accepts connections, each in a task of its own that ends with the server's. This is not the listener
/// of `forebay-net`, because the socket itself has to misbehave: it closes to refuse connections, and
/// resets them half way through an answer.
async fn accept(server: Arc<Server>, listener: TcpListener, addr: SocketAddr) {
    let mut listener = Some(listener);
    let mut faults = server.faults.subscribe();
    let mut connections = JoinSet::new();
    loop {
        if faults.borrow_and_update().refuse == Refuse::Connection {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(addr).await.ok();
        }
        let next = async {
            if let Some(listener) = &listener {
                return listener.accept().await.ok();
            }
            // Refusing on purpose, or the port is not free again yet: try after a while.
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        };
        tokio::select! {
            changed = faults.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            accepted = next => {
                if let Some((stream, _)) = accepted {
                    connections.spawn(connection(Arc::clone(&server), stream));
                } else if listener.is_some() {
                    // Out of file descriptors, most likely: let connections end.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection(server: Arc<Server>, stream: TcpStream) {
    // Tokens leave one by one; waiting to fill a segment would bunch them.
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&reset);
    let service = service_fn(move |request| {
        let (server, reset) = (Arc::clone(&server), Arc::clone(&flag));
        async move { server.answer(request, reset).await }
    });
    let http = hyper::server::conn::http1::Builder::new();
    let mut served = http.serve_connection(TokioIo::new(stream), service);
    // An error is a client that left, or a reset on purpose: neither is ours to report.
    let _ = (&mut served).await;
    if reset.load(Ordering::Acquire) {
        // Without lingering, closing sends a reset instead of an orderly end.
        let _ = served.into_parts().io.into_inner().set_zero_linger();
    }
}

impl Server {
    fn new(config: &Resolved, options: Options) -> Server {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let model = &config.spec.model;
        Server {
            driver: Driver::new(
                config,
                Clock::start(options.time_scale),
                now.as_secs_f64(),
                options.accounts,
            ),
            limits: Limits {
                served: options.served_model_names,
                max_model_len: config.max_model_len,
                tokenizer: Tokenizer { vocab: model.vocab },
                seed: options.seed,
                default_output_tokens: options.default_output_tokens,
                early_stop: options.early_stop,
            },
            hf_id: model.hf_id.to_string(),
            emulated_header: options.emulated_header,
            faults: watch::Sender::new(options.faults),
            frozen: Mutex::new(String::new()),
            started: Instant::now(),
            created: now.as_secs(),
            requests: AtomicU64::new(0),
        }
    }

    fn set_faults(&self, faults: Faults) {
        if faults.stall_metrics == StallMetrics::Freeze {
            let mut frozen = self.frozen.lock();
            if frozen.is_empty() || self.faults.borrow().stall_metrics != StallMetrics::Freeze {
                *frozen = self.driver.render(&self.limits.served[0]);
            }
        }
        self.faults.send_replace(faults);
    }

    /// Answers one request; the error resets the connection.
    async fn answer(
        &self,
        request: Request<Incoming>,
        reset: Arc<AtomicBool>,
    ) -> Result<Response<Body>, Cut> {
        let request_id = request.headers().get(REQUEST_ID).cloned();
        let mut response = match self.route(request, &reset).await {
            Ok(response) => response,
            Err(Failure::Answer(e)) => json(e.status, e.body),
            Err(Failure::Cut) => {
                reset.store(true, Ordering::Release);
                return Err(Cut);
            }
        };
        let headers = response.headers_mut();
        if self.emulated_header {
            headers.insert("x-forebay-emulated", HeaderValue::from_static("true"));
        }
        if let Some(id) = request_id {
            headers.insert(REQUEST_ID, id);
        }
        Ok(response)
    }

    async fn route(
        &self,
        request: Request<Incoming>,
        reset: &Arc<AtomicBool>,
    ) -> Result<Response<Body>, Failure> {
        let ok = |body: String| Ok(json(StatusCode::OK, body));
        let path = request.uri().path().to_owned();
        let allowed = match path.as_str() {
            "/health" | "/version" | "/load" | "/v1/models" | "/metrics" => &[Method::GET][..],
            "/ping" | "/admin/config" => &[Method::GET, Method::POST],
            "/v1/chat/completions" | "/v1/completions" | "/tokenize" => &[Method::POST],
            _ => return Err(ApiError::detail(StatusCode::NOT_FOUND).into()),
        };
        if !allowed.contains(request.method()) {
            return Err(ApiError::detail(StatusCode::METHOD_NOT_ALLOWED).into());
        }
        match path.as_str() {
            "/health" | "/ping" => {
                self.ready()?;
                Ok(Response::new(Body::Full(Bytes::new())))
            }
            "/version" => ok(r#"{"version":"0.32.0"}"#.to_owned()),
            "/load" => ok(format!(r#"{{"server_load":{}}}"#, self.driver.load())),
            "/v1/models" => {
                let max = self.limits.max_model_len;
                ok(reply::models(&self.limits.served, &self.hf_id, self.created, max))
            }
            "/metrics" => self.metrics().await,
            "/admin/config" => {
                if request.method() == Method::POST {
                    let body = read_body(request).await?;
                    self.set_faults(self.merged(&parse(&body)?)?);
                }
                ok(self.settings())
            }
            "/tokenize" => {
                let body = read_body(request).await?;
                ok(self.tokenize(&parse(&body)?)?)
            }
            _ => self.infer(request, reset, path == "/v1/chat/completions").await,
        }
    }

    /// Whether the server is up, as far as its faults let it be.
    fn ready(&self) -> Result<(), ApiError> {
        let faults = *self.faults.borrow();
        if self.started.elapsed() < faults.startup() {
            return Err(ApiError::unavailable("The server is starting."));
        }
        if faults.refuse == Refuse::Unavailable {
            return Err(ApiError::unavailable("The server refuses requests."));
        }
        Ok(())
    }

    async fn metrics(&self) -> Result<Response<Body>, Failure> {
        self.while_not(|f| f.stall_metrics == StallMetrics::Hang).await?;
        let frozen = self.faults.borrow().stall_metrics == StallMetrics::Freeze;
        let text =
            if frozen { self.frozen.lock().clone() } else { self.driver.render(&self.limits.served[0]) };
        let mut response = Response::new(Body::Full(text.into()));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    /// Waits as long as a fault holds.
    async fn while_not(&self, fault: impl Fn(&Faults) -> bool) -> Result<(), Failure> {
        let mut faults = self.faults.subscribe();
        // The sender lives as long as this server, so the wait fails only when everything ends.
        faults.wait_for(|f| !fault(f)).await.map(drop).map_err(|_| Failure::Cut)
    }

    /// The faults after a partial change.
    fn merged(&self, change: &Map<String, Value>) -> Result<Faults, ApiError> {
        let now = serde_json::to_value(*self.faults.borrow()).expect("plain values become JSON");
        let Value::Object(mut all) = now else { return Ok(Faults::default()) };
        all.extend(change.iter().map(|(k, v)| (k.clone(), v.clone())));
        serde_json::from_value(Value::Object(all)).map_err(|e| ApiError::bad(None, &e.to_string()))
    }

    /// `GET /admin/config`: the faults, and the limits in effect.
    fn settings(&self) -> String {
        let config = self.driver.config();
        let faults = *self.faults.borrow();
        serde_json::json!({
            "faults": faults,
            "effective": {
                "model": config.spec.model.name,
                "hardware": config.spec.hardware.name,
                "tensor-parallel-size": config.spec.tp,
                "max-num-seqs": config.max_num_seqs,
                "max-num-batched-tokens": config.max_num_batched_tokens,
                "max-model-len": config.max_model_len,
                "block-size": config.spec.block_size,
                "num-gpu-blocks": config.num_gpu_blocks,
            },
        })
        .to_string()
    }

    fn tokenize(&self, body: &Map<String, Value>) -> Result<String, ApiError> {
        let mut c = Checker::new(body);
        let model = c.string("model");
        let tokens = if c.get("messages").is_some() {
            messages(&mut c, self.limits.tokenizer)
        } else if c.get("prompt").is_some() {
            prompts(&mut c, self.limits.tokenizer).into_iter().next().unwrap_or_default()
        } else {
            c.missing("prompt");
            Vec::new()
        };
        c.finish()?;
        known_model(model, &self.limits)?;
        Ok(reply::tokens(&tokens, self.limits.max_model_len))
    }

    async fn infer(
        &self,
        request: Request<Incoming>,
        reset: &Arc<AtomicBool>,
        chat: bool,
    ) -> Result<Response<Body>, Failure> {
        self.ready()?;
        let asked = request.headers().get("x-return-error").and_then(|v| v.to_str().ok());
        if let Some(e) = asked.and_then(ApiError::asked_for) {
            return Err(e.into());
        }
        let request_id = match request.headers().get(REQUEST_ID).and_then(|v| v.to_str().ok()) {
            Some(id) => id.to_owned(),
            None => self.fresh_id(),
        };
        let body = read_body(request).await?;
        self.while_not(|f| f.hang).await?;
        let faults = *self.faults.borrow();
        if faults.extra_latency_ms > 0 {
            tokio::time::sleep(faults.extra_latency()).await;
        }
        let ask = Ask::read(chat, &parse(&body)?, &self.limits)?;
        drop(body);
        let ticket = self.driver.submit(&ask, self.limits.tokenizer, &request_id).map_err(refused)?;
        let created = self.created + self.started.elapsed().as_secs();
        let head = Head::new(chat, &request_id, created, &self.limits.served[0]);
        let reset_after = faults.reset_after_tokens;
        if ask.stream {
            let stream = TokenStream::new(ask, head, ticket, reset_after, Arc::clone(reset));
            let mut response = Response::new(Body::Stream(Box::new(stream)));
            let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            return Ok(response);
        }
        let done = |parts: &[Part]| {
            let tokens: u32 = parts.iter().map(Part::tokens).sum();
            if reset_after.is_some_and(|k| tokens >= k) {
                return Some(Err(Failure::Cut));
            }
            parts.iter().all(Part::done).then_some(Ok(()))
        };
        std::future::poll_fn(|cx| ticket.flight.poll(cx, done)).await?;
        Ok(json(StatusCode::OK, head.whole(&ask, &ticket.flight.parts)))
    }

    fn fresh_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", Draws::new(self.created).bits(REQUEST_IDS, number, self.limits.seed))
    }
}

/// What the checks before should have caught.
fn refused(e: ArriveError) -> ApiError {
    ApiError::bad(None, &e.to_string())
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Full(body.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, Failure> {
    match Limited::new(request.into_body(), BODY_LIMIT).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(ApiError::detail(StatusCode::PAYLOAD_TOO_LARGE).into()),
        // The client left or broke the framing: there is nobody to answer.
        Err(_) => Err(Failure::Cut),
    }
}
