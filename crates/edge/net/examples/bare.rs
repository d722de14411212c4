//! A proxy that decides nothing, to compare a router's cost with that of moving the bytes.
//!
//! `cargo run --release -p forebay-net --example bare -- 127.0.0.1:8080 127.0.0.1:8001`

use forebay_net::{Body, Client, CollectLimits, Incoming, Listener, ServerOptions, collect};
use http::{Request, Response, StatusCode};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let to = arguments.next().unwrap_or_else(|| "127.0.0.1:8001".to_owned());
    let client = Client::default();
    let handler = move |request, _peer| pass(client.clone(), to.clone(), request);
    Listener::bind(listen).await?.serve(ServerOptions::default(), handler, std::future::pending()).await;
    Ok(())
}

async fn pass(client: Client, to: String, request: Request<Incoming>) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    // The client sets the length of what it sends.
    head.headers.remove(http::header::CONTENT_LENGTH);
    let sent = match collect(body, CollectLimits::default()).await {
        Ok(body) => client.send(&to, Request::from_parts(head, body)).await.ok(),
        Err(_) => None,
    };
    if let Some(response) = sent {
        return response.map(Into::into);
    }
    let mut failed = Response::new(Body::Empty);
    *failed.status_mut() = StatusCode::BAD_GATEWAY;
    failed
}
