//! The listener and the client over loopback sockets.
#![expect(clippy::unwrap_used, reason = "helpers of tests are not recognised as tests")]

mod client;
mod server;
mod through;

use bytes::Bytes;
use forebay_net::{Body, Incoming, Listener, Served, ServerOptions};
use http::{Request, Response};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(10);

/// Awaits what must happen soon.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.expect("it happens soon")
}

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Served>,
}

impl Running {
    fn endpoint(&self) -> String {
        self.address.to_string()
    }

    async fn stop(self) -> Served {
        let _ = self.stop.send(());
        soon(self.served).await.unwrap()
    }
}

async fn start<H, F>(options: ServerOptions, handler: H) -> Running
where
    H: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(listener.serve(options, handler, async move {
        // Stops when told to, and when the test is over.
        let _ = stopped.await;
    }));
    Running { address, stop, served }
}

/// Sends raw bytes on a new connection.
async fn raw(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until the text contains what is looked for, or the connection ends.
async fn read_until(stream: &mut TcpStream, what: &str) -> String {
    let mut text = Vec::new();
    let mut buf = [0; 4096];
    loop {
        let n = soon(stream.read(&mut buf)).await.unwrap_or(0);
        text.extend_from_slice(&buf[..n]);
        let so_far = String::from_utf8_lossy(&text);
        if n == 0 || so_far.contains(what) {
            return so_far.into_owned();
        }
    }
}

/// Reads to the end of the connection, whether it is closed or reset.
async fn read_all(stream: &mut TcpStream) -> String {
    read_until(stream, "\0never").await
}

/// A body that yields one piece and then waits for ever; the receiver errs when it is dropped.
fn endless(first: &'static str) -> (Body, oneshot::Receiver<()>) {
    let (guard, dropped) = oneshot::channel::<()>();
    let mut first = Some(first);
    let body = Body::from_poll(move |_| {
        let _held = &guard;
        first.take().map_or(std::task::Poll::Pending, |piece| {
            std::task::Poll::Ready(Some(Ok(Bytes::from_static(piece.as_bytes()))))
        })
    });
    (body, dropped)
}
