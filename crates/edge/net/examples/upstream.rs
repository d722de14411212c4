//! A model server that does nothing, to measure what a proxy in front of it costs.
//!
//! `cargo run --release -p forebay-net --example upstream -- 127.0.0.1:8001` answers every request at once:
//! `/v1/completions` with a short JSON completion, or, if the body asks for a stream, with 64 events, each
//! its own piece, as fast as they are taken; `/metrics` as an idle vLLM.

use bytes::Bytes;
use forebay_net::{Body, CollectLimits, Incoming, Listener, ServerOptions, collect};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use std::task::Poll;

const EVENTS: u32 = 64;
const EVENT: &[u8] = b"data: {\"id\":\"c\",\"object\":\"text_completion\",\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" word\",\"finish_reason\":null}]}\n\n";
const WHOLE: &str = "{\"id\":\"c\",\"object\":\"text_completion\",\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"Hello there\",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":2,\"total_tokens\":102}}";
const METRICS: &str = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n";
const MODELS: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\"}]}";

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8001".to_owned());
    let listener = Listener::bind(address).await?;
    listener.serve(ServerOptions::default(), |request, _peer| answer(request), std::future::pending()).await;
    Ok(())
}

async fn answer(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    match head.uri.path() {
        "/metrics" => return Response::new(METRICS.into()),
        "/v1/models" => return typed("application/json", MODELS.into()),
        _ => {}
    }
    let Ok(body) = collect(body, CollectLimits::default()).await else {
        return Response::new(Body::Empty);
    };
    if body.windows(13).any(|w| w == b"\"stream\":true") {
        return typed("text/event-stream", stream());
    }
    typed("application/json", WHOLE.into())
}

fn typed(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Every event is a write of its own: between two of them the body is not ready once.
fn stream() -> Body {
    let mut left = 2 * EVENTS;
    Body::from_poll(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        if left % 2 == 1 {
            return Poll::Ready(Some(Ok(Bytes::from_static(EVENT))));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
