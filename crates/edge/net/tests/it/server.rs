use super::*;
use forebay_net::{CollectError, CollectLimits, collect};
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

const POST: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi";

fn echo()
-> impl Fn(Request<Incoming>, SocketAddr) -> std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>>
+ Clone
+ Send
+ Sync
+ 'static {
    |request, _| {
        Box::pin(async move {
            let limits = CollectLimits {
                max_bytes: 10,
                timeout: Duration::from_millis(100),
                min_bytes_per_second: 1 << 20,
            };
            match collect(request.into_body(), limits).await {
                Ok(body) => Response::new(body.into()),
                Err(error) => {
                    let status = match &error {
                        CollectError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                        CollectError::Timeout { .. } => StatusCode::REQUEST_TIMEOUT,
                        CollectError::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
                        CollectError::Broken(_) => StatusCode::BAD_REQUEST,
                    };
                    let text = format!("{error:?}");
                    Response::builder()
                        .status(status)
                        .header("connection", "close")
                        .body(text.into())
                        .unwrap()
                }
            }
        })
    }
}

async fn ask(server: &Running, bytes: &[u8]) -> String {
    let mut client = raw(server.address, bytes).await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    let more = if head.contains("connection: close") { read_all(&mut client).await } else { String::new() };
    head + &more
}

#[tokio::test]
async fn bodies_are_limited_by_length_and_by_count() {
    let server = start(ServerOptions::default(), echo()).await;
    assert!(ask(&server, POST).await.starts_with("HTTP/1.1 200"));
    // Declared too long: refused although nothing of it is sent.
    let declared = ask(&server, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\n").await;
    assert!(declared.starts_with("HTTP/1.1 413") && declared.contains("declared: Some(11)"), "{declared}");
    // Of no declared length: refused once too many bytes have come, although the end has not.
    let chunked =
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n6\r\nabcdef\r\n6\r\nabcdef\r\n";
    let counted = ask(&server, chunked).await;
    assert!(counted.starts_with("HTTP/1.1 413") && counted.contains("declared: None"), "{counted}");
    server.stop().await;
}

#[tokio::test]
async fn slow_and_broken_bodies() {
    let server = start(ServerOptions::default(), echo()).await;
    let slow = ask(&server, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nabc").await;
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    let malformed = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    let broken = ask(&server, malformed).await;
    assert!(broken.starts_with("HTTP/1.1 400"), "{broken}");
    server.stop().await;
}

#[tokio::test]
async fn pieces_of_a_body_are_joined() {
    let server = start(ServerOptions::default(), echo()).await;
    let mut client =
        raw(server.address, b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for piece in ["1\r\na\r\n", "2\r\nbc\r\n", "3;ext=1\r\ndef\r\n", "0\r\nx-trailer: 1\r\n\r\n"] {
        client.write_all(piece.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(read_until(&mut client, "abcdef").await.ends_with("abcdef"));
    server.stop().await;
}

/// A handler that reads the body, says so, and then waits for ever.
async fn waiting() -> (Running, mpsc::UnboundedReceiver<oneshot::Receiver<()>>) {
    let (tell, told) = mpsc::unbounded_channel();
    let server = start(ServerOptions::default(), move |request: Request<Incoming>, _| {
        let tell = tell.clone();
        async move {
            collect(request.into_body(), CollectLimits::default()).await.unwrap();
            let (guard, dropped) = oneshot::channel::<()>();
            tell.send(dropped).unwrap();
            std::future::pending::<()>().await;
            drop(guard);
            Response::new(Body::Empty)
        }
    })
    .await;
    (server, told)
}

#[tokio::test]
async fn a_client_that_leaves_drops_the_waiting_future() {
    let (server, mut told) = waiting().await;
    let client = raw(server.address, POST).await;
    let dropped = soon(told.recv()).await.unwrap();
    drop(client);
    assert!(soon(dropped).await.is_err());

    // The same when the close is a reset.
    let client = raw(server.address, POST).await;
    let dropped = soon(told.recv()).await.unwrap();
    client.set_zero_linger().unwrap();
    drop(client);
    assert!(soon(dropped).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_drops_the_idle_body() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let server = start(ServerOptions::default(), move |_, _| {
        let (body, dropped) = endless("data: 1\n\n");
        tell.send(dropped).unwrap();
        async move { Response::new(body) }
    })
    .await;
    let mut client = raw(server.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let text = read_until(&mut client, "data: 1").await;
    assert!(text.contains("transfer-encoding: chunked"), "{text}");
    drop(client);
    assert!(soon(soon(told.recv()).await.unwrap()).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let options = ServerOptions { write_timeout: Duration::from_millis(100), ..ServerOptions::default() };
    let server = start(options, move |_, _| {
        let (guard, dropped) = oneshot::channel::<()>();
        tell.send(dropped).unwrap();
        let piece = Bytes::from(vec![b'x'; 1 << 16]);
        let body = Body::from_poll(move |_| {
            let _held = &guard;
            std::task::Poll::Ready(Some(Ok(piece.clone())))
        });
        async move { Response::new(body) }
    })
    .await;
    let client = raw(server.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(soon(soon(told.recv()).await.unwrap()).await.is_err());
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_does_not_come_is_timed_out() {
    let options = ServerOptions { header_timeout: Duration::from_millis(50), ..ServerOptions::default() };
    let server = start(options, echo()).await;
    let mut client = raw(server.address, b"POST / HTTP/1.1\r\nhost:").await;
    read_all(&mut client).await;
    // The same clock ends a kept-alive connection without a next request.
    let mut client = raw(server.address, POST).await;
    assert!(read_all(&mut client).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn too_many_headers() {
    let server = start(ServerOptions { max_headers: 5, ..ServerOptions::default() }, echo()).await;
    let many = format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(5));
    assert!(ask(&server, many.as_bytes()).await.starts_with("HTTP/1.1 431"));
    server.stop().await;
}

#[tokio::test]
async fn an_error_of_the_body_is_no_clean_end() {
    let server = start(ServerOptions::default(), |_, _| async {
        let mut pieces = vec![Err("broken".into()), Ok(Bytes::from_static(b"first"))];
        Response::new(Body::from_poll(move |_| std::task::Poll::Ready(pieces.pop())))
    })
    .await;
    let mut client = raw(server.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let text = read_all(&mut client).await;
    assert!(text.ends_with("5\r\nfirst\r\n"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let open = Arc::new(AtomicUsize::new(0));
    let peak = open.clone();
    let server = start(ServerOptions { max_connections: 1, ..ServerOptions::default() }, move |_, _| {
        let open = open.clone();
        async move {
            open.fetch_add(1, Ordering::SeqCst);
            Response::new(Body::Empty)
        }
    })
    .await;
    let mut first = raw(server.address, POST).await;
    read_until(&mut first, "\r\n\r\n").await;
    let mut second = raw(server.address, POST).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), second.readable()).await.is_err());
    assert_eq!(peak.load(Ordering::SeqCst), 1);
    drop(first);
    assert!(read_until(&mut second, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    assert_eq!(server.stop().await, Served { connections: 2, cut_off: 0 });
}

#[tokio::test]
async fn draining_lets_open_requests_finish() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let server = start(ServerOptions::default(), move |_, _| {
        let (go, gone) = oneshot::channel::<()>();
        tell.send(go).unwrap();
        async move {
            gone.await.unwrap();
            Response::new("done".into())
        }
    })
    .await;
    let mut client = raw(server.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let go = soon(told.recv()).await.unwrap();
    let address = server.address;
    let stopping = tokio::spawn(server.stop());
    // The listening socket is closed while the request is still open.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished());
    go.send(()).unwrap();
    let text = read_all(&mut client).await;
    assert!(text.ends_with("done") && text.contains("connection: close"), "{text}");
    assert_eq!(soon(stopping).await.unwrap().cut_off, 0);
}

#[tokio::test]
async fn the_grace_period_ends() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let options = ServerOptions { grace: Duration::from_millis(50), ..ServerOptions::default() };
    let server = start(options, move |_, _| {
        let (guard, dropped) = oneshot::channel::<()>();
        tell.send(dropped).unwrap();
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Response::new(Body::Empty)
        }
    })
    .await;
    let mut client = raw(server.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let dropped = soon(told.recv()).await.unwrap();
    assert_eq!(server.stop().await, Served { connections: 1, cut_off: 1 });
    assert!(soon(dropped).await.is_err());
    assert_eq!(read_all(&mut client).await, "");
}

#[tokio::test]
async fn dropping_the_listener_cuts_off_its_connections() {
    let (server, mut told) = waiting().await;
    let _client = raw(server.address, POST).await;
    let dropped = soon(told.recv()).await.unwrap();
    server.served.abort();
    assert!(soon(dropped).await.is_err());
}

#[tokio::test]
async fn bodies_share_a_budget_and_give_it_back() {
    let budget = forebay_net::Budget::new(10);
    let own = budget.clone();
    let (told, mut holding) = mpsc::unbounded_channel();
    let server = start(ServerOptions::default(), move |request: Request<Incoming>, _| {
        let (mut held, told) = (own.share(), told.clone());
        async move {
            match forebay_net::collect_held(request.into_body(), CollectLimits::default(), &mut held).await {
                Ok(body) if body.starts_with(b"wait") => {
                    told.send(()).unwrap();
                    std::future::pending().await
                }
                Ok(body) => Response::new(body.into()),
                Err(error) => Response::builder()
                    .status(503)
                    .header("connection", "close")
                    .body(error.to_string().into())
                    .unwrap(),
            }
        }
    })
    .await;
    let waiting =
        raw(server.address, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nwait-wait").await;
    soon(holding.recv()).await.unwrap();
    assert_eq!(budget.used(), 9);
    let full = ask(&server, POST).await;
    assert!(full.starts_with("HTTP/1.1 503") && full.contains("as many bytes"), "{full}");
    drop(waiting);
    soon(async {
        while budget.used() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(ask(&server, POST).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn a_panic_ends_its_connection_and_no_other() {
    let options = ServerOptions { max_connections: 1, ..ServerOptions::default() };
    let server = start(options, |request: Request<Incoming>, _| async move {
        match request.uri().path() {
            "/handler" => panic!("on purpose"),
            "/body" => {
                let mut first = Some("start");
                Response::new(Body::from_poll(move |_| {
                    let piece = first.take().expect("a panic on purpose");
                    std::task::Poll::Ready(Some(Ok(Bytes::from_static(piece.as_bytes()))))
                }))
            }
            _ => Response::new("fine".into()),
        }
    })
    .await;
    // One after the other over the one place there is: a panic gives it back.
    for path in ["/handler", "/body", "/handler"] {
        let mut client =
            raw(server.address, format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await;
        let answer = read_all(&mut client).await;
        assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    }
    let mut client = raw(server.address, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(read_all(&mut client).await.ends_with("fine"));
    server.stop().await;
}
