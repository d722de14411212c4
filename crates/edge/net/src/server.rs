//! The listener.

use crate::body::BoxError;
use crate::guard::WriteGuard;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long to wait after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of a listener.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerOptions {
    /// The time from the accept, or from the end of the answer before, to the end of a request's head. It is also
    /// how long an idle connection is kept.
    pub header_timeout: Duration,
    /// The time for which a client may take no byte of an answer.
    pub write_timeout: Duration,
    /// The most connections at once; more wait in the system's backlog.
    pub max_connections: usize,
    /// The most headers of a request; more are answered with status 431.
    pub max_headers: usize,
    /// The most bytes of a request's head, at least 8 192.
    pub max_head_bytes: usize,
    /// After the stop signal, how long open requests may take before they are cut off.
    pub grace: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_mins(1),
            max_connections: 16_384,
            max_headers: 100,
            max_head_bytes: 64 << 10,
            grace: Duration::from_secs(30),
        }
    }
}

/// What a listener did in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Connections accepted.
    pub connections: u64,
    /// Connections still open at the end of the grace period, which were cut off.
    pub cut_off: usize,
}

/// A bound socket. Connections queue from here on, and are served once [`Listener::serve`] is polled.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    local: SocketAddr,
    open: Open,
}

/// Counts the open connections of a listener.
#[derive(Clone, Debug, Default)]
pub struct Open(Arc<AtomicUsize>);

impl Open {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn enter(&self) -> OneOpen {
        self.0.fetch_add(1, Ordering::Relaxed);
        OneOpen(self.clone())
    }
}

struct OneOpen(Open);

impl Drop for OneOpen {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Listener> {
        let socket = TcpListener::bind(address).await?;
        let local = socket.local_addr()?;
        Ok(Listener { socket, local, open: Open::default() })
    }

    /// The address that is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The count of open connections, good for as long as the listener serves.
    pub fn open(&self) -> Open {
        self.open.clone()
    }

    /// Serves HTTP/1.1 until `stop` completes, then accepts no more, lets open requests finish for the grace period
    /// and cuts off the rest. Dropping the future cuts off all at once.
    ///
    /// The handler gets each request with its peer's address. Its future is the whole request: it is dropped when the
    /// client leaves (see the crate's documentation), and so is the body that it answers with. A body that ends with
    /// an error closes the connection without an end of the message, after what came before has been written.
    pub async fn serve<H, F, B>(
        self,
        options: ServerOptions,
        handler: H,
        stop: impl Future<Output = ()>,
    ) -> Served
    where
        H: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Listener { socket, open, .. } = self;
        let permits = Arc::new(Semaphore::new(options.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        let tracker = TaskTracker::new();
        let drain = CancellationToken::new();
        let abort = CancellationToken::new();
        // When this future is dropped, so are its connections.
        let _abort_on_drop = abort.clone().drop_guard();
        let mut connections = 0;
        let mut stop = pin!(stop);
        loop {
            let accepted = async {
                let permit = permits.clone().acquire_owned().await;
                (socket.accept().await, permit)
            };
            let (accepted, permit) = tokio::select! {
                biased;
                () = &mut stop => break,
                accepted = accepted => accepted,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            connections += 1;
            // It fails only for a connection that is already gone.
            let _ = tune(&stream);
            let connection = serve_one(stream, peer, options, handler.clone(), drain.clone(), abort.clone());
            // Both are given back when the connection ends, also by a panic.
            let held = (permit, open.enter());
            tracker.spawn(async move {
                let _held = held;
                connection.await;
            });
        }
        drop(socket);
        tracker.close();
        drain.cancel();
        let finished = tokio::time::timeout(options.grace, tracker.wait()).await.is_ok();
        let cut_off = if finished { 0 } else { tracker.len() };
        abort.cancel();
        tracker.wait().await;
        Served { connections, cut_off }
    }
}

/// Sends small pieces at once: without it an event waits for the acknowledgement of the one before.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

async fn serve_one<H, F, B>(
    stream: TcpStream,
    peer: SocketAddr,
    options: ServerOptions,
    handler: H,
    drain: CancellationToken,
    abort: CancellationToken,
) where
    H: Fn(Request<Incoming>, SocketAddr) -> F,
    F: Future<Output = Response<B>>,
    B: HttpBody<Data = Bytes> + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let service = service_fn(move |request| {
        let answer = handler(request, peer);
        async move { Ok::<_, Infallible>(answer.await.map(|body| FlushedBody { body, failed: None })) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_headers(options.max_headers)
        .max_buf_size(options.max_head_bytes.max(8192))
        .serve_connection(TokioIo::new(WriteGuard::new(stream, options.write_timeout)), service);
    let mut connection = pin!(connection);
    // Errors are the client's: it left, or sent what is not HTTP and has been answered by hyper.
    tokio::select! {
        biased;
        () = abort.cancelled() => return,
        _ = connection.as_mut() => return,
        () = drain.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        biased;
        () = abort.cancelled() => {}
        _ = connection.as_mut() => {}
    }
}

/// A body whose error waits until what came before it has been written. hyper throws away unwritten bytes when a body
/// fails, even the head of the answer, if the failure comes within the same poll.
struct FlushedBody<B> {
    body: B,
    failed: Option<BoxError>,
}

impl<B> HttpBody for FlushedBody<B>
where
    B: HttpBody + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => {
                self.failed = Some(error.into());
                // hyper flushes when a body is not ready, and comes back because of this.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            other => other.map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failed.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tuned_sockets_send_at_once() {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        assert!(!stream.nodelay().unwrap());
        tune(&stream).unwrap();
        assert!(stream.nodelay().unwrap());
    }
}
