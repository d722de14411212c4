use super::*;
use forebay_net::{Client, ClientOptions, GetError, SendError, Stage, UpstreamBody, UpstreamError};
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const LENGTH: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// An upstream that is told what to do: each accepted connection is handed to the test.
async fn upstream() -> (String, mpsc::UnboundedReceiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if tell.send(stream).is_err() {
                break;
            }
        }
    });
    (endpoint, told)
}

fn request() -> Request<Bytes> {
    Request::post("http://ignored/v1/x?y=1").body(Bytes::from_static(b"body")).unwrap()
}

type Sending = JoinHandle<Result<Response<UpstreamBody>, SendError>>;

fn sending(client: &Client, endpoint: &str) -> Sending {
    let (client, endpoint) = (client.clone(), endpoint.to_owned());
    tokio::spawn(async move { client.send(&endpoint, request()).await })
}

async fn finish(sending: Sending) -> Result<Bytes, UpstreamError> {
    let response = soon(sending).await.unwrap().unwrap();
    soon(response.into_body().collect()).await.map(http_body_util::Collected::to_bytes)
}

async fn serve(stream: &mut TcpStream, answer: &str) -> String {
    let asked = read_until(stream, "body").await;
    stream.write_all(answer.as_bytes()).await.unwrap();
    asked
}

#[tokio::test]
async fn connections_are_used_again() {
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::default();
    let first = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    let asked = serve(&mut stream, LENGTH).await;
    assert_eq!(
        asked,
        format!("POST /v1/x?y=1 HTTP/1.1\r\nhost: {endpoint}\r\ncontent-length: 4\r\n\r\nbody")
    );
    assert_eq!(finish(first).await.unwrap(), "hello");
    for (answer, body) in [(CHUNKED, "hello"), (EMPTY, ""), (LENGTH, "hello"), (CHUNKED, "hello")] {
        assert_eq!(client.idle(&endpoint), 1);
        let next = sending(&client, &endpoint);
        serve(&mut stream, answer).await;
        assert_eq!(finish(next).await.unwrap(), body);
    }
    assert!(accepted.try_recv().is_err());
    client.forget(&endpoint);
    assert_eq!(client.idle(&endpoint), 0);
    assert_eq!(read_all(&mut stream).await, "");
}

#[tokio::test]
async fn idle_connections_expire_and_are_bounded() {
    let (endpoint, mut accepted) = upstream().await;
    let keep_idle = Duration::from_millis(50);
    let client = Client::new(ClientOptions { keep_idle, max_idle: 1, ..ClientOptions::default() });
    let both = [sending(&client, &endpoint), sending(&client, &endpoint)];
    let mut streams = [soon(accepted.recv()).await.unwrap(), soon(accepted.recv()).await.unwrap()];
    for stream in &mut streams {
        serve(stream, LENGTH).await;
    }
    for one in both {
        finish(one).await.unwrap();
    }
    assert_eq!(client.idle(&endpoint), 1);
    // Too old to be used, and closed by looking for it or by the sweep.
    tokio::time::sleep(keep_idle).await;
    let next = sending(&client, &endpoint);
    let mut third = soon(accepted.recv()).await.unwrap();
    serve(&mut third, LENGTH).await;
    finish(next).await.unwrap();
    for stream in &mut streams {
        assert_eq!(read_all(stream).await, "");
    }
    client.sweep();
    assert_eq!(client.idle(&endpoint), 1);
    tokio::time::sleep(keep_idle).await;
    client.sweep();
    assert_eq!(client.idle(&endpoint), 0);
    assert_eq!(read_all(&mut third).await, "");
}

#[tokio::test]
async fn a_closed_idle_connection_is_replaced() {
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::default();
    let first = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    serve(&mut stream, LENGTH).await;
    finish(first).await.unwrap();
    drop(stream);
    // The runtime learns of the close in its next turn of I/O; until then a request would be sent, and break.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let next = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    serve(&mut stream, LENGTH).await;
    assert_eq!(finish(next).await.unwrap(), "hello");
}

#[tokio::test]
async fn a_reused_connection_that_breaks_can_be_retried() {
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::default();
    let first = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    serve(&mut stream, LENGTH).await;
    finish(first).await.unwrap();
    let next = sending(&client, &endpoint);
    read_until(&mut stream, "body").await;
    drop(stream);
    let error = soon(next).await.unwrap().unwrap_err();
    assert_eq!((error.stage, error.reused, error.sent), (Stage::BeforeHeaders, true, true));
    assert!(error.retry_is_safe(), "{error}");

    // On a fresh connection the same says that the endpoint failed with the request in hand.
    let next = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    read_until(&mut stream, "body").await;
    drop(stream);
    let error = soon(next).await.unwrap().unwrap_err();
    assert_eq!((error.stage, error.reused, error.sent), (Stage::BeforeHeaders, false, true));
    assert!(!error.retry_is_safe());
}

#[tokio::test]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = soon(Client::default().send(&endpoint, request())).await.unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::Connect, false));
    assert!(error.retry_is_safe() && error.to_string().starts_with("connecting failed: "), "{error}");
    let error = soon(Client::default().send("no\nhost", request())).await.unwrap_err();
    assert!(error.stage == Stage::Request && !error.retry_is_safe());
}

#[tokio::test]
async fn waits_are_bounded() {
    let (endpoint, mut accepted) = upstream().await;
    let short = Duration::from_millis(50);
    let client = Client::new(ClientOptions {
        headers_timeout: short,
        idle_timeout: short,
        ..ClientOptions::default()
    });
    let no_head = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    assert_eq!(soon(no_head).await.unwrap().unwrap_err().stage, Stage::HeadersTimeout);
    assert!(read_all(&mut stream).await.ends_with("body"));

    let pause = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    serve(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    let mut body = soon(pause).await.unwrap().unwrap().into_body();
    assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "hello");
    assert!(matches!(soon(body.frame()).await, Some(Err(UpstreamError::Idle(_)))));
    // The connection is closed although the body is still held.
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(client.idle(&endpoint), 0);
}

#[tokio::test]
async fn a_body_cut_short_is_an_error() {
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::default();
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
    ] {
        let cut = sending(&client, &endpoint);
        let mut stream = soon(accepted.recv()).await.unwrap();
        serve(&mut stream, answer).await;
        drop(stream);
        assert!(matches!(finish(cut).await, Err(UpstreamError::Broken(_))), "{answer}");
        assert_eq!(client.idle(&endpoint), 0);
    }
    // Without a length, the close is the end.
    let whole = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    serve(&mut stream, "HTTP/1.1 200 OK\r\n\r\nhello").await;
    drop(stream);
    assert_eq!(finish(whole).await.unwrap(), "hello");
    assert_eq!(client.idle(&endpoint), 0);
}

#[tokio::test]
async fn dropping_closes_the_connection() {
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::default();
    let waiting = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    read_until(&mut stream, "body").await;
    waiting.abort();
    assert_eq!(read_all(&mut stream).await, "");

    let streaming = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    serve(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    let mut body = soon(streaming).await.unwrap().unwrap().into_body();
    assert!(soon(body.frame()).await.unwrap().is_ok());
    drop(body);
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(client.idle(&endpoint), 0);
}

#[tokio::test]
async fn get_collects_within_limits() {
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::new(ClientOptions { max_idle: 2, ..ClientOptions::default() });
    let get = |within, max| {
        let (client, endpoint) = (client.clone(), endpoint.clone());
        tokio::spawn(async move { client.get(&endpoint, "/metrics", within, max).await })
    };
    let answered = get(SOON, 5);
    let mut stream = soon(accepted.recv()).await.unwrap();
    let asked = read_until(&mut stream, "\r\n\r\n").await;
    assert_eq!(asked, format!("GET /metrics HTTP/1.1\r\nhost: {endpoint}\r\n\r\n"));
    stream.write_all(CHUNKED.as_bytes()).await.unwrap();
    assert_eq!(soon(answered).await.unwrap().unwrap(), "hello");

    let large = get(SOON, 4);
    read_until(&mut stream, "\r\n\r\n").await;
    stream.write_all(CHUNKED.as_bytes()).await.unwrap();
    assert!(matches!(soon(large).await.unwrap(), Err(GetError::TooLarge(4))));

    let missing = get(SOON, 4);
    let mut stream = soon(accepted.recv()).await.unwrap();
    stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    assert!(matches!(soon(missing).await.unwrap(), Err(GetError::Status(_))));

    let late = get(Duration::from_millis(50), 4);
    assert!(matches!(soon(late).await.unwrap(), Err(GetError::Timeout(_))));
    assert!(matches!(client.get(&endpoint, "no path", SOON, 1).await, Err(GetError::Path(_))));
}

#[tokio::test]
async fn a_large_body_reaches_a_slow_reader_whole() {
    let size = 8 << 20;
    let sent = Arc::new(Bytes::from((0..size).map(|i| (i % 251) as u8).collect::<Vec<_>>()));
    let (endpoint, mut accepted) = upstream().await;
    let client = Client::default();
    let response = sending(&client, &endpoint);
    let mut stream = soon(accepted.recv()).await.unwrap();
    let copy = sent.clone();
    let writer = tokio::spawn(async move {
        read_until(&mut stream, "body").await;
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        stream.write_all(&copy).await.unwrap();
        stream
    });
    let mut body = soon(response).await.unwrap().unwrap().into_body();
    let mut got = Vec::new();
    while let Some(frame) = soon(body.frame()).await {
        got.extend_from_slice(&frame.unwrap().into_data().unwrap());
        tokio::task::yield_now().await;
    }
    assert!(got == **sent);
    let _stream = soon(writer).await.unwrap();
    assert_eq!(client.idle(&endpoint), 1);
}
