//! A model server whose every answer the test decides.

use bytes::Bytes;
use forebay_net::{Body, BoxError, CollectLimits, Listener, ServerOptions, collect};
use http::{HeaderMap, Response, StatusCode};
use std::sync::atomic::{AtomicUsize, Ordering};
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
}

#[derive(Debug)]
struct State {
    reply: Mutex<Reply>,
    waiting: Mutex<f64>,
    seen: mpsc::UnboundedSender<Seen>,
    open: AtomicUsize,
}

/// The server; it ends with the test's runtime.
pub(crate) struct Upstream {
    pub(crate) url: String,
    pub(crate) authority: String,
    state: Arc<State>,
    seen: mpsc::UnboundedReceiver<Seen>,
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
            seen: tx,
            open: AtomicUsize::new(0),
        });
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().to_string();
        let own = state.clone();
        let handler = move |request, _peer| answer(own.clone(), request);
        tokio::spawn(async move {
            listener.serve(ServerOptions::default(), handler, std::future::pending()).await
        });
        Upstream { url: format!("http://{authority}"), authority, state, seen }
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
        let waiting = *state.waiting.lock().unwrap();
        let text = format!(
            "vllm:num_requests_waiting {waiting}\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n\
             vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\"}} 1\n"
        );
        return Response::new(Body::from(text));
    }
    let body = collect(body, CollectLimits::default()).await.unwrap();
    state.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(state.clone());
    let target = head.uri.to_string();
    let _ = state.seen.send(Seen { target, headers: head.headers, body });
    let reply = state.reply.lock().unwrap().clone();
    let (status, kind, body) = match reply {
        Reply::Whole(status, kind, text) => (status, kind, Body::from(text)),
        Reply::Hang => {
            Notify::new().notified().await;
            unreachable!("nobody notifies");
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
