//! A client, the listener, the client of the listener's handler, and an upstream.

use super::*;
use forebay_net::{Client, CollectLimits, collect};
use http::StatusCode;
use std::task::Poll;
use tokio::sync::mpsc;

/// Forwards every request; what it cannot forward is answered with status 502.
async fn proxy(endpoint: String) -> (Running, Client) {
    let client = Client::default();
    let theirs = client.clone();
    let server = start(ServerOptions::default(), move |request: Request<Incoming>, _| {
        let (client, endpoint) = (theirs.clone(), endpoint.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = collect(body, CollectLimits::default()).await.unwrap();
            let mut ahead = Request::new(body);
            *ahead.method_mut() = head.method;
            *ahead.uri_mut() = head.uri;
            match client.send(&endpoint, ahead).await {
                Ok(answer) => answer.map(Body::from),
                Err(error) => Response::builder()
                    .status(StatusCode::BAD_GATEWAY)
                    .body(error.to_string().into())
                    .unwrap(),
            }
        }
    })
    .await;
    (server, client)
}

const GET: &[u8] = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n";

#[tokio::test]
async fn a_leaving_client_reaches_the_upstream_in_every_phase() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let upstream = start(ServerOptions::default(), move |request: Request<Incoming>, _| {
        let tell = tell.clone();
        async move {
            if request.uri().path() == "/stream" {
                let (body, dropped) = endless("data: 1\n\n");
                tell.send(dropped).unwrap();
                return Response::new(body);
            }
            let (guard, dropped) = oneshot::channel::<()>();
            tell.send(dropped).unwrap();
            std::future::pending::<()>().await;
            drop(guard);
            Response::new(Body::Empty)
        }
    })
    .await;
    let (server, client) = proxy(upstream.endpoint()).await;
    let waiting = raw(server.address, GET).await;
    let dropped = soon(told.recv()).await.unwrap();
    drop(waiting);
    assert!(soon(dropped).await.is_err());

    let mut streaming = raw(server.address, b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n").await;
    read_until(&mut streaming, "data: 1").await;
    let dropped = soon(told.recv()).await.unwrap();
    drop(streaming);
    assert!(soon(dropped).await.is_err());
    assert_eq!(client.idle(&upstream.endpoint()), 0);
    assert_eq!(server.stop().await.cut_off, 0);
    assert_eq!(upstream.stop().await.connections, 2);
}

#[tokio::test]
async fn answers_pass_whole_and_connections_stay() {
    let upstream = start(ServerOptions::default(), |request: Request<Incoming>, _| async move {
        let body = collect(request.into_body(), CollectLimits::default()).await.unwrap();
        let mut pieces = vec![body.clone(), Bytes::from_static(b"second"), Bytes::from_static(b"first")];
        if body.is_empty() {
            return Response::new("sized".into());
        }
        Response::new(Body::from_poll(move |_| Poll::Ready(pieces.pop().map(Ok))))
    })
    .await;
    let (server, client) = proxy(upstream.endpoint()).await;
    let mut one = raw(server.address, GET).await;
    let text = read_until(&mut one, "sized").await;
    assert!(text.contains("content-length: 5\r\n") && !text.contains("chunked"), "{text}");
    for _ in 0..3 {
        one.write_all(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nthird").await.unwrap();
        let text = read_until(&mut one, "0\r\n\r\n").await;
        assert!(text.ends_with("5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n0\r\n\r\n"), "{text}");
    }
    assert_eq!(client.idle(&upstream.endpoint()), 1);
    drop(one);
    server.stop().await;
    client.forget(&upstream.endpoint());
    assert_eq!(upstream.stop().await.connections, 1);
}

#[tokio::test]
async fn a_failing_upstream_never_looks_complete() {
    let upstream = start(ServerOptions::default(), |_, _| async {
        let mut pieces = vec![Err("broken".into()), Ok(Bytes::from_static(b"first"))];
        Response::new(Body::from_poll(move |_| Poll::Ready(pieces.pop())))
    })
    .await;
    let endpoint = upstream.endpoint();
    let (server, _) = proxy(endpoint).await;
    let mut client = raw(server.address, GET).await;
    let text = read_all(&mut client).await;
    assert!(text.contains("first") && !text.contains("0\r\n\r\n"), "{text}");
    upstream.stop().await;
    let mut client = raw(server.address, GET).await;
    assert!(read_until(&mut client, "connecting failed").await.starts_with("HTTP/1.1 502"));
    server.stop().await;
}
