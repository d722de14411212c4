//! What the threads of a run share, and the requests that go from one to the other.

use crate::book::Book;
use crate::conductor::{Conductor, Shot};
use crate::drive::Wall;
use crate::flight::{Flight, Landed};
use crate::http1;
use forebay_base::Nanos;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

/// What the threads of a run share.
pub(crate) struct Crew {
    pub(crate) clock: Wall,
    pub(crate) book: Arc<Mutex<Book>>,
    pub(crate) conductor: Mutex<Conductor>,
    pub(crate) follows: Arc<[bool]>,
    pub(crate) dispatcher: Thread,
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    /// Nothing is sent that is due later, in nanoseconds.
    pub(crate) stopped_at: AtomicU64,
    /// Requests that were made and are not on a connection.
    pub(crate) unsent: AtomicUsize,
    /// Whether the dispatcher waits for the last end.
    pub(crate) ending: AtomicBool,
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
        if follows || (open == 0 && self.ending.load(Ordering::Acquire)) {
            self.dispatcher.unpark();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ahead,
    Due,
    Out,
}

/// A request. However it ends, dropped unfinished with its thread included, it lands once if it was due before the run
/// was stopped, and not at all otherwise.
pub(crate) struct Ticket {
    flight: Option<Box<Flight>>,
    place: Place,
    crew: Arc<Crew>,
}

impl Ticket {
    fn new(flight: Box<Flight>, crew: &Arc<Crew>) -> Ticket {
        crew.unsent.fetch_add(1, Ordering::AcqRel);
        Ticket { flight: Some(flight), place: Place::Ahead, crew: Arc::clone(crew) }
    }

    pub(crate) fn flight(&mut self) -> Option<&mut Flight> {
        self.flight.as_deref_mut()
    }

    /// Its time has come.
    pub(crate) fn is_due(&mut self) {
        if self.place == Place::Ahead {
            self.place = Place::Due;
            self.crew.book.lock().begin();
        }
    }

    /// It is on a connection, or lost one.
    pub(crate) fn is_out(&mut self, out: bool) {
        let (from, to) = if out { (Place::Due, Place::Out) } else { (Place::Out, Place::Due) };
        if self.place == from {
            self.place = to;
            if out {
                self.crew.unsent.fetch_sub(1, Ordering::AcqRel);
            } else {
                self.crew.unsent.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// It was sent at `now`, unless it was before.
    pub(crate) fn sent(&mut self, now: Nanos) {
        if let Some(flight) = self.flight().filter(|f| f.record().live.sent.is_none()) {
            flight.sent(now);
        }
    }

    /// It has ended.
    pub(crate) fn land(mut self, how: impl FnOnce(Flight) -> Landed) {
        if let Some(flight) = self.flight.take() {
            self.crew.land(how(*flight));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let stopped_at = self.crew.stopped_at.load(Ordering::Acquire);
        if let Some(flight) = self.flight.take().filter(|f| f.record().row.arrived.0 <= stopped_at) {
            self.is_due();
            self.crew.land(flight.cut());
        }
        if self.place != Place::Out {
            self.crew.unsent.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A request that is handed to a thread.
pub(crate) struct Order {
    pub(crate) at: Nanos,
    number: u64,
    pub(crate) ticket: Ticket,
    /// All of it, as it goes over the wire.
    pub(crate) bytes: Vec<u8>,
    pub(crate) give_up: Nanos,
    /// Whether it was sent once over a connection that the server closed at that moment.
    pub(crate) again: bool,
    /// When the last byte of its answer came.
    pub(crate) ended_at: Option<Nanos>,
}

impl Order {
    pub(crate) fn new(shot: Shot, crew: &Arc<Crew>) -> Order {
        Order {
            at: shot.at,
            number: shot.flight.record().row.number,
            bytes: http1::post(&crew.path, &shot.headers, &shot.body),
            ticket: Ticket::new(shot.flight, crew),
            give_up: shot.give_up.unwrap_or(Nanos::NEVER),
            again: false,
            ended_at: None,
        }
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Order) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Order {}
impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Order) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Order {
    fn cmp(&self, other: &Order) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Where a thread is handed its requests.
pub(crate) struct Inbox {
    orders: Mutex<Vec<Order>>,
    /// When the thread looks by itself, in nanoseconds.
    wakes_at: AtomicU64,
    pub(crate) bell: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> std::io::Result<Inbox> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Inbox { orders: Mutex::default(), wakes_at: AtomicU64::new(0), bell })
    }

    /// Hands over what has become ready, and wakes the thread if it would sleep too long.
    pub(crate) fn put(&self, orders: &mut Vec<Order>) {
        let first = orders.iter().map(|o| o.at.0).min();
        self.orders.lock().append(orders);
        if first.is_some_and(|at| at < self.wakes_at.load(Ordering::SeqCst)) {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        // It can only fail by being full, and then it has been rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Takes what was handed over.
    pub(crate) fn take(&self, into: &mut Vec<Order>) {
        std::mem::swap(into, &mut *self.orders.lock());
    }

    /// The thread is going to sleep until `at`; false if something has come meanwhile.
    pub(crate) fn sleeps(&self, at: Nanos) -> bool {
        self.wakes_at.store(at.0, Ordering::SeqCst);
        // Whoever hands something over later sees the store, for it takes this lock before it looks.
        self.orders.lock().is_empty()
    }

    pub(crate) fn is_awake(&self) {
        self.wakes_at.store(0, Ordering::SeqCst);
    }
}
