//! A thread that sends requests in their time and reads what comes back, over connections of its own.
//!
//! Sends come first: between any two reads the thread looks whether a request is due. A request takes a connection
//! that is free, the one used last before others. Where none is, it waits for one round of reads, which may free some,
//! and only then is one opened for it, a few per round. Otherwise a thread that was held up for a moment would open a
//! connection for each request that became due meanwhile, while the answers that would free as many lie unread; opening
//! costs several times what a request does, so that it would fall further behind with each round.

use crate::crew::{Crew, Inbox, Order};
use crate::link::{Broken, Link, Step, Use};
use forebay_base::{Nanos, Span};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Connections that may be opened between two rounds of reads.
const OPEN_PER_ROUND: usize = 8;
/// Connections that may be on their way at once, so that a listener's backlog does not overflow.
const MOST_OPENING: usize = 256;
/// How long a connection may take to open.
const CONNECT: Span = Span::secs(30);
/// How long an unused connection is kept. vLLM closes them after 5 s.
const KEEP: Span = Span::secs(4);
/// How often unused and unopened connections are looked through.
const SWEEP: Span = Span::secs(1);
/// The thread does not sleep for less than this: waking takes longer.
const AWAKE: Span = Span::micros(20);
/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// Sockets that are told of at once.
const EVENTS: usize = 128;
/// Stands for the bell among the connections.
const BELL: u64 = u64::MAX;

/// A connection by its place, and how often that was used before: an event may speak of one that has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    place: u32,
    life: u32,
}

impl Name {
    fn bits(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.place)
    }

    fn of(bits: u64) -> Name {
        Name { place: bits as u32, life: (bits >> 32) as u32 }
    }
}

#[derive(Default)]
struct Slot {
    life: u32,
    link: Option<Link>,
}

pub(crate) struct Worker {
    crew: Arc<Crew>,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    arrived: Vec<Order>,
    ahead: BinaryHeap<Reverse<Order>>,
    /// Due, and without a connection.
    waiting: VecDeque<Order>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Unused connections, the longest unused first. Some may have gone.
    idle: VecDeque<Name>,
    opening: usize,
    give_ups: BTreeSet<(Nanos, Name)>,
    swept: Nanos,
    buffer: Box<[u8]>,
}

impl Worker {
    pub(crate) fn new(crew: Arc<Crew>, inbox: Arc<Inbox>) -> std::io::Result<Worker> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inbox.bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Worker {
            crew,
            inbox,
            epoll,
            arrived: Vec::new(),
            ahead: BinaryHeap::new(),
            waiting: VecDeque::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            idle: VecDeque::new(),
            opening: 0,
            give_ups: BTreeSet::new(),
            swept: Nanos::ZERO,
            buffer: vec![0; READ].into(),
        })
    }

    /// Works until the run is over. What has not ended then is dropped, and so recorded as cut off.
    pub(crate) fn run(mut self) {
        // Timers are rounded up by 50 µs otherwise.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut events = Vec::with_capacity(EVENTS);
        while !self.crew.over.load(Ordering::Acquire) {
            self.inbox.take(&mut self.arrived);
            self.ahead.extend(self.arrived.drain(..).map(Reverse));
            let now = self.crew.clock.now();
            if now.0 > self.crew.stopped_at.load(Ordering::Acquire) {
                // Those that were due before are recorded by being dropped.
                self.ahead.clear();
            }
            self.send_due(now);
            self.give_up(now);
            self.sweep(now);
            self.wait(&mut events);
            self.read(&events);
            self.open();
        }
    }

    /// Sends everything whose time has come.
    fn send_due(&mut self, mut now: Nanos) {
        while self.ahead.peek().is_some_and(|Reverse(o)| o.at <= now) {
            let Some(Reverse(mut order)) = self.ahead.pop() else { break };
            order.ticket.is_due();
            match self.take_idle() {
                Some(name) => self.send(name, order),
                None => self.waiting.push_back(order),
            }
            now = self.crew.clock.now();
        }
    }

    fn take_idle(&mut self) -> Option<Name> {
        while let Some(name) = self.idle.pop_back() {
            if self.link(name).is_some_and(|l| l.is_idle()) {
                return Some(name);
            }
        }
        None
    }

    fn link(&mut self, name: Name) -> Option<&mut Link> {
        let slot = self.slots.get_mut(name.place as usize).filter(|s| s.life == name.life)?;
        slot.link.as_mut()
    }

    /// Takes a connection out of its place; its socket closes when it is dropped.
    fn remove(&mut self, name: Name) -> Option<Link> {
        let slot = self.slots.get_mut(name.place as usize).filter(|s| s.life == name.life)?;
        let link = slot.link.take()?;
        slot.life = slot.life.wrapping_add(1);
        self.vacant.push(name.place);
        Some(link)
    }

    /// Sends a request over a free connection.
    fn send(&mut self, name: Name, mut order: Order) {
        let now = self.crew.clock.now();
        order.ticket.sent(now);
        order.ticket.is_out(true);
        if order.give_up != Nanos::NEVER {
            self.give_ups.insert((order.give_up, name));
        }
        let Some(link) = self.link(name) else { return };
        match link.begin(order) {
            Ok(true) => {}
            Ok(false) => self.listen(name, EventFlags::IN | EventFlags::OUT),
            Err(e) => self.broken(name, &Broken::Io(e)),
        }
    }

    /// Sets what the kernel tells of a connection.
    fn listen(&mut self, name: Name, what: EventFlags) {
        let Some(slot) = self.slots.get(name.place as usize).filter(|s| s.life == name.life) else { return };
        let Some(link) = &slot.link else { return };
        if let Err(e) = epoll::modify(&self.epoll, link.socket(), EventData::new_u64(name.bits()), what) {
            self.broken(name, &Broken::Io(e));
        }
    }

    /// A connection is of no more use; whoever used it fails, or is sent again where that is safe.
    fn broken(&mut self, name: Name, why: &Broken) {
        let Some(mut link) = self.remove(name) else { return };
        match link.take_use() {
            Use::Idle { .. } => {}
            Use::Opening { .. } => {
                self.opening -= 1;
                if let Some(order) = self.waiting.pop_front() {
                    self.fail(order, why.while_opening(), why);
                }
            }
            Use::Busy(mut order) => {
                self.give_ups.remove(&(order.give_up, name));
                if link.was_closed_unused() && !order.again {
                    order.again = true;
                    order.ticket.is_out(false);
                    self.waiting.push_front(*order);
                    return;
                }
                self.fail(*order, link.broke(), why);
            }
        }
    }

    fn fail(&self, order: Order, label: &'static str, why: &Broken) {
        let now = self.crew.clock.now();
        order.ticket.land(|f| f.failed(now, label, Some(why.to_string())));
    }

    /// Gives a connection that has become free to whoever waits.
    fn free(&mut self, name: Name) {
        let now = self.crew.clock.now();
        if let Some(order) = self.waiting.pop_front() {
            self.send(name, order);
        } else if let Some(link) = self.link(name) {
            link.rest(now);
            self.idle.push_back(name);
        }
    }

    /// Opens connections for those that wait and have none on its way.
    fn open(&mut self) {
        for _ in 0..OPEN_PER_ROUND {
            if self.opening >= self.waiting.len().min(MOST_OPENING) {
                return;
            }
            let now = self.crew.clock.now();
            // From here on the wait is the network's and the server's, not this thread's.
            self.waiting[self.opening].ticket.sent(now);
            let opened = Link::open(&self.crew.address, now).and_then(|link| {
                let place = self.vacant.last().map_or(self.slots.len() as u32, |p| *p);
                let life = self.slots.get(place as usize).map_or(0, |s| s.life);
                let name = Name { place, life };
                epoll::add(&self.epoll, link.socket(), EventData::new_u64(name.bits()), EventFlags::OUT)?;
                Ok((link, name))
            });
            match opened {
                Ok((link, name)) => {
                    if self.vacant.pop().is_none() {
                        self.slots.push(Slot::default());
                    }
                    self.slots[name.place as usize].link = Some(link);
                    self.opening += 1;
                }
                Err(e) => {
                    let why = Broken::Io(e);
                    if let Some(order) = self.waiting.remove(self.opening) {
                        self.fail(order, why.while_opening(), &why);
                    }
                }
            }
        }
    }

    /// Those whose clients give up.
    fn give_up(&mut self, now: Nanos) {
        while let Some((at, name)) = self.give_ups.first().copied().filter(|(at, _)| *at <= now) {
            self.give_ups.remove(&(at, name));
            if let Some(Use::Busy(order)) = self.remove(name).map(|mut l| l.take_use()) {
                order.ticket.land(|f| f.timed_out(now));
            }
        }
        if self.waiting.iter().any(|o| o.give_up <= now) {
            let all = std::mem::take(&mut self.waiting);
            let (late, waiting): (VecDeque<Order>, _) = all.into_iter().partition(|o| o.give_up <= now);
            self.waiting = waiting;
            for order in late {
                order.ticket.land(|f| f.timed_out(now));
            }
        }
    }

    fn sweep(&mut self, now: Nanos) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        while let Some(name) = self.idle.front().copied() {
            match self.link(name).map(|l| l.idle_since()) {
                Some(Some(since)) if now.since(since) < KEEP => break,
                Some(Some(_)) => drop(self.remove(name)),
                // It has gone, or is in use.
                _ => {}
            }
            self.idle.pop_front();
        }
        let names = |(place, s): (usize, &Slot)| {
            let late = s.link.as_ref()?.opening_since().is_some_and(|since| now.since(since) >= CONNECT);
            late.then_some(Name { place: place as u32, life: s.life })
        };
        if self.opening > 0 {
            let late: Vec<Name> = self.slots.iter().enumerate().filter_map(names).collect();
            for name in late {
                self.broken(name, &Broken::TooSlow);
            }
        }
    }

    /// Sleeps until something is to be done or to be read.
    fn wait(&mut self, events: &mut Vec<Event>) {
        let may_open = self.opening < self.waiting.len().min(MOST_OPENING);
        let due = self.ahead.peek().map_or(Nanos::NEVER, |Reverse(o)| o.at);
        let gives_up = self.give_ups.first().map_or(Nanos::NEVER, |(at, _)| *at);
        let until = due.min(gives_up).min(self.swept + SWEEP);
        let now = self.crew.clock.now();
        let mut left = until.since(now);
        if may_open || left < AWAKE || !self.inbox.sleeps(until) {
            left = Span::ZERO;
        }
        let timeout =
            Timespec { tv_sec: (left.0 / 1_000_000_000) as i64, tv_nsec: (left.0 % 1_000_000_000) as _ };
        events.clear();
        // An interruption is a round without events.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout));
        self.inbox.is_awake();
    }

    /// Takes in what has come, and sends in between what has become due.
    fn read(&mut self, events: &[Event]) {
        for event in events {
            let (flags, data) = (event.flags, event.data);
            if data.u64() == BELL {
                let _ = rustix::io::read(&self.inbox.bell, &mut [0u8; 8]);
                continue;
            }
            self.one(Name::of(data.u64()), flags);
            self.send_due(self.crew.clock.now());
        }
    }

    /// Something happened to a connection.
    fn one(&mut self, name: Name, flags: EventFlags) {
        let clock = self.crew.clock;
        let Some(slot) = self.slots.get_mut(name.place as usize).filter(|s| s.life == name.life) else {
            return;
        };
        let Some(link) = &mut slot.link else { return };
        let step = if flags.contains(EventFlags::OUT) || link.opening_since().is_some() {
            link.writable()
        } else {
            Ok(Step::Goes)
        };
        let reads = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
        let step = match step {
            Ok(Step::Goes) if reads => link.readable(&mut self.buffer, clock),
            step => step,
        };
        match step {
            Ok(Step::Goes) => {}
            Ok(Step::Opened) => {
                self.opening -= 1;
                self.listen(name, EventFlags::IN);
                self.free(name);
            }
            Ok(Step::Written) => self.listen(name, EventFlags::IN),
            Ok(Step::Ended { keeps }) => self.ended(name, keeps),
            Err(why) => self.broken(name, &why),
        }
    }

    /// An answer is complete.
    fn ended(&mut self, name: Name, keeps: bool) {
        let used = self.link(name).map(Link::take_use);
        if keeps {
            self.free(name);
        } else {
            drop(self.remove(name));
        }
        if let Some(Use::Busy(order)) = used {
            self.give_ups.remove(&(order.give_up, name));
            let now = order.ended_at.unwrap_or_else(|| self.crew.clock.now());
            order.ticket.land(|f| f.closed(now));
        }
    }
}
