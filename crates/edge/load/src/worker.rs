//! The threads that hold the connections.

use crate::book::Book;
use crate::conductor::{Conductor, Shot};
use crate::drive::Wall;
use crate::flight::{Flight, Landed};
use forebay_net::{Client, ClientOptions, SendError, Stage};
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// Longer than any run: how long a request may take is the workload's matter.
const NEVER: Duration = Duration::from_hours(24 * 30);
/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(30);
/// Unused connections that each thread keeps.
const KEPT_CONNECTIONS: usize = 1 << 16;
/// `EMFILE` and `ENFILE`.
const NO_HANDLES: [i32; 2] = [24, 23];

/// What the threads of a run share.
pub(crate) struct Crew {
    pub(crate) clock: Wall,
    pub(crate) book: Arc<Mutex<Book>>,
    pub(crate) conductor: Mutex<Conductor>,
    pub(crate) follows: Arc<[bool]>,
    pub(crate) dispatcher: Thread,
    pub(crate) address: String,
    pub(crate) uri: Uri,
    pub(crate) over: AtomicBool,
}

impl Crew {
    fn land(&self, mut landed: Landed) {
        let now = self.clock.now();
        let follows = self.follows.get(usize::from(landed.record.row.class)).copied().unwrap_or(false);
        if follows {
            self.conductor.lock().landed(&mut landed, now);
        }
        let open = {
            let mut book = self.book.lock();
            book.end(landed, now);
            book.open()
        };
        if follows || open == 0 {
            self.dispatcher.unpark();
        }
    }
}

/// A request that has begun. However it ends, dropped unfinished with its thread included, it lands once.
pub(crate) struct Ticket {
    flight: Option<Box<Flight>>,
    crew: Arc<Crew>,
}

impl Ticket {
    pub(crate) fn new(flight: Box<Flight>, crew: &Arc<Crew>) -> Ticket {
        crew.book.lock().begin();
        Ticket { flight: Some(flight), crew: Arc::clone(crew) }
    }

    fn land(mut self, how: impl FnOnce(Flight) -> Landed) {
        if let Some(flight) = self.flight.take() {
            self.crew.land(how(*flight));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.crew.land(flight.cut());
        }
    }
}

/// A request that is handed to a thread.
pub(crate) struct Order {
    ticket: Ticket,
    headers: HeaderMap,
    body: bytes::Bytes,
    give_up: Option<Instant>,
}

impl Order {
    pub(crate) fn new(shot: Shot, crew: &Arc<Crew>) -> Order {
        Order {
            ticket: Ticket::new(shot.flight, crew),
            headers: shot.headers,
            body: shot.body,
            give_up: shot.give_up.map(|at| crew.clock.instant(at)),
        }
    }
}

/// Where a thread is handed its requests.
#[derive(Default)]
pub(crate) struct Inbox {
    orders: Mutex<Vec<Order>>,
    bell: Notify,
}

impl Inbox {
    pub(crate) fn put(&self, order: Order) {
        self.orders.lock().push(order);
    }
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }
}

/// A thread's work, until the run is over. What has not ended then is dropped with the runtime.
pub(crate) async fn work(crew: Arc<Crew>, inbox: Arc<Inbox>) {
    let client = Client::new(ClientOptions {
        connect_timeout: CONNECT,
        headers_timeout: NEVER,
        idle_timeout: NEVER,
        max_idle: KEPT_CONNECTIONS,
        ..ClientOptions::default()
    });
    let mut sweep = interval(Duration::from_secs(1));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut orders = Vec::new();
    while !crew.over.load(Ordering::Acquire) {
        tokio::select! {
            () = inbox.bell.notified() => {}
            _ = sweep.tick() => client.sweep(),
        }
        std::mem::swap(&mut orders, &mut *inbox.orders.lock());
        for order in orders.drain(..) {
            tokio::spawn(fly(Arc::clone(&crew), client.clone(), order));
        }
    }
}

async fn fly(crew: Arc<Crew>, client: Client, order: Order) {
    let Order { mut ticket, headers, body, give_up } = order;
    let Some(flight) = ticket.flight.as_mut() else { return };
    let work = exchange(&crew, &client, flight, headers, body);
    let outcome = match give_up {
        Some(at) => timeout_at(at, work).await.ok(),
        None => Some(work.await),
    };
    let now = crew.clock.now();
    ticket.land(|flight| match outcome {
        None => flight.timed_out(now),
        Some(Ok(())) => flight.closed(now),
        Some(Err((label, message))) => flight.failed(now, label, Some(message)),
    });
}

/// Sends a request and reads its answer to the end. An error is a label and what was said.
async fn exchange(
    crew: &Crew,
    client: &Client,
    flight: &mut Flight,
    headers: HeaderMap,
    body: bytes::Bytes,
) -> Result<(), (&'static str, String)> {
    let mut request = Request::new(body);
    (*request.method_mut(), *request.uri_mut()) = (Method::POST, crew.uri.clone());
    *request.headers_mut() = headers;
    flight.sent(crew.clock.now());
    let answer = match client.send(&crew.address, request.clone()).await {
        // The server closed an idle connection in the same moment: no fault of its, and nothing was done twice.
        Err(e) if e.reused && e.retry_is_safe() => client.send(&crew.address, request).await,
        other => other,
    };
    let (head, mut body) = answer.map_err(|e| told(&e))?.into_parts();
    flight.head(head.status.as_u16(), &head.headers);
    while let Some(frame) = body.frame().await {
        let now = crew.clock.now();
        match frame {
            Ok(frame) => {
                if let Some(data) = frame.data_ref() {
                    flight.bytes(now, data);
                }
            }
            Err(e) => return Err(("broke-off", e.to_string())),
        }
    }
    Ok(())
}

/// The label of a failure, and all its causes.
fn told(e: &SendError) -> (&'static str, String) {
    let mut message = e.to_string();
    let mut system: Option<(ErrorKind, Option<i32>)> = None;
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            system = Some((io.kind(), io.raw_os_error()));
        }
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        source = cause.source();
    }
    let label = match (e.stage, system) {
        (Stage::Connect, Some((_, Some(code)))) if NO_HANDLES.contains(&code) => "too-many-open-files",
        (Stage::Connect, Some((ErrorKind::ConnectionRefused, _))) => "connection-refused",
        (Stage::Connect, _) => "connect-failed",
        (Stage::BeforeHeaders, _) => "broke-before-answer",
        (Stage::HeadersTimeout, _) => "no-answer-in-time",
        (Stage::Request, _) => "request-refused",
    };
    (label, message)
}
