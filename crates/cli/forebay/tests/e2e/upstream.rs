//! A model server whose every answer the test decides.

use bytes::Bytes;
use forebay_net::{Body, BoxError, CollectLimits, Listener, ServerOptions, collect};
use http::{HeaderMap, Response, StatusCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use tokio::sync::{Notify, mpsc};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// How to answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// This status, type and body.
    Whole(u16, &'static str, String),
    /// These events one after the other, then nothing until the client leaves.
    StreamAndHang(Vec<String>),
    /// These events, then the end.
    Stream(Vec<String>),
    /// Nothing until the client leaves.
    Hang,
    /// These events, then the connection breaks.
    Break(Vec<String>),
    /// The connection breaks before an answer.
    Reset,
    /// Events without end and without pause.
    Flood,
}

#[derive(Debug)]
struct State {
    reply: Mutex<Reply>,
    waiting: Mutex<f64>,
    /// A metric line about LoRA adapters; empty for none.
    adapters: Mutex<String>,
    seen: mpsc::UnboundedSender<Seen>,
    open: AtomicUsize,
    /// Requests that are reset before others are answered.
    resets: AtomicUsize,
    /// Whether metrics are not answered at all.
    stalled: AtomicBool,
    /// What `/v1/models` lists to the router; nothing if it is not answered.
    models: Mutex<Option<Vec<String>>>,
}

/// The server; it ends with the test's runtime.
pub(crate) struct Upstream {
    pub(crate) url: String,
    pub(crate) authority: String,
    state: Arc<State>,
    seen: mpsc::UnboundedReceiver<Seen>,
    serving: tokio::task::JoinHandle<()>,
}

/// Counts a request for as long as its answer is open.
struct Open(Arc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Upstream {
    pub(crate) async fn start() -> Upstream {
        let (tx, seen) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            reply: Mutex::new(Reply::Whole(200, "application/json", "{}".into())),
            waiting: Mutex::new(0.0),
            adapters: Mutex::default(),
            seen: tx,
            open: AtomicUsize::new(0),
            resets: AtomicUsize::new(0),
            stalled: AtomicBool::new(false),
            models: Mutex::new(None),
        });
        let (authority, serving) = listen("127.0.0.1:0", state.clone()).await;
        Upstream { url: format!("http://{authority}"), authority, state, seen, serving }
    }

    /// Closes the port and every connection, as a process that is killed.
    pub(crate) async fn die(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    /// Listens again where it listened before.
    pub(crate) async fn revive(&mut self) {
        self.serving = listen(&self.authority, self.state.clone()).await.1;
    }

    /// Resets the next requests before an answer.
    pub(crate) fn reset_next(&self, n: usize) {
        self.state.resets.store(n, Ordering::SeqCst);
    }

    /// Whether scrapes hang.
    pub(crate) fn stall_metrics(&self, stalled: bool) {
        self.state.stalled.store(stalled, Ordering::SeqCst);
    }

    /// What `/v1/models` lists.
    pub(crate) fn models(&self, models: &[&str]) {
        *self.state.models.lock().unwrap() = Some(models.iter().map(|m| (*m).to_owned()).collect());
    }

    /// The number of requests that have come and were not taken.
    pub(crate) fn count(&mut self) -> usize {
        std::iter::from_fn(|| self.seen.try_recv().ok()).count()
    }

    pub(crate) fn reply(&self, reply: Reply) {
        *self.state.reply.lock().unwrap() = reply;
    }

    pub(crate) fn json(&self, body: &str) {
        self.reply(Reply::Whole(200, "application/json", body.into()));
    }

    /// The waiting requests that metrics tell of: 5 is saturated.
    pub(crate) fn waiting(&self, n: f64) {
        *self.state.waiting.lock().unwrap() = n;
    }

    /// The LoRA adapters that metrics tell of: running ones, waiting ones, and how many fit.
    pub(crate) fn adapters(&self, running: &str, waiting: &str, max: u32) {
        *self.state.adapters.lock().unwrap() = format!(
            "vllm:lora_requests_info{{max_lora=\"{max}\",running_lora_adapters=\"{running}\",\
             waiting_lora_adapters=\"{waiting}\"}} 1.0\n"
        );
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Seen {
        tokio::time::timeout(crate::process::PATIENCE, self.seen.recv()).await.unwrap().unwrap()
    }

    /// Whether a request has come that was not taken yet.
    pub(crate) fn untouched(&mut self) -> bool {
        self.seen.try_recv().is_err()
    }

    /// Requests being answered.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }
}

async fn listen(address: &str, state: Arc<State>) -> (String, tokio::task::JoinHandle<()>) {
    let listener = Listener::bind(address).await.unwrap();
    let authority = listener.local_addr().to_string();
    let handler = move |request, _peer| answer(state.clone(), request);
    let serving = tokio::spawn(async move {
        listener.serve(ServerOptions::default(), handler, std::future::pending()).await;
    });
    (authority, serving)
}

fn events(
    list: Vec<String>,
    mut end: impl FnMut() -> Poll<Option<Result<Bytes, BoxError>>> + Send + 'static,
    open: Open,
) -> Body {
    let mut list = list.into_iter();
    Body::from_poll(move |_| {
        let _held = &open;
        match list.next() {
            Some(e) => Poll::Ready(Some(Ok(Bytes::from(e)))),
            None => end(),
        }
    })
}

async fn answer(state: Arc<State>, request: http::Request<forebay_net::Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    if head.uri.path() == "/metrics" {
        if state.stalled.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let waiting = *state.waiting.lock().unwrap();
        let adapters = state.adapters.lock().unwrap().clone();
        let text = format!(
            "vllm:num_requests_waiting {waiting}\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n\
             vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\"}} 1\n{adapters}"
        );
        return Response::new(Body::from(text));
    }
    // What clients ask for carries an id; the router's own looks do not.
    if head.uri.path() == "/v1/models" && !head.headers.contains_key("x-request-id") {
        let models = state.models.lock().unwrap().clone();
        let list =
            models.map(|m| m.iter().map(|id| format!("{{\"id\":\"{id}\"}}")).collect::<Vec<_>>().join(","));
        let mut response =
            Response::new(Body::from(format!("{{\"data\":[{}]}}", list.clone().unwrap_or_default())));
        if list.is_none() {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        return response;
    }
    let body = collect(body, CollectLimits::default()).await.unwrap();
    state.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(state.clone());
    let target = head.uri.to_string();
    let _ = state.seen.send(Seen { target, headers: head.headers, body });
    let left = |n: usize| n.checked_sub(1);
    let reset = state.resets.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
    let reply = if reset { Reply::Reset } else { state.reply.lock().unwrap().clone() };
    let (status, kind, body) = match reply {
        Reply::Whole(status, kind, text) => (status, kind, Body::from(text)),
        Reply::Hang => {
            Notify::new().notified().await;
            unreachable!("nobody notifies");
        }
        // Ends the connection's task without an answer, and without a word on stderr.
        Reply::Reset => std::panic::resume_unwind(Box::new(())),
        Reply::Flood => {
            let event =
                Bytes::from(format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(8000)));
            let body = events(Vec::new(), move || Poll::Ready(Some(Ok(event.clone()))), open);
            (200, "text/event-stream", body)
        }
        Reply::Stream(list) => (200, "text/event-stream", events(list, || Poll::Ready(None), open)),
        Reply::StreamAndHang(list) => (200, "text/event-stream", events(list, || Poll::Pending, open)),
        Reply::Break(list) => (
            200,
            "text/event-stream",
            events(list, || Poll::Ready(Some(Err("broken on purpose".into()))), open),
        ),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("content-type", kind.parse().unwrap());
    response.headers_mut().insert("x-engine", "test".parse().unwrap());
    response
}
