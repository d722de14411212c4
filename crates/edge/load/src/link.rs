//! A connection to the server, used by one request at a time.

use crate::crew::Order;
use crate::drive::Wall;
use crate::http1::{Answer, Malformed, Piece};
use forebay_base::Nanos;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send, socket_with,
    sockopt,
};
use std::fmt;
use std::net::SocketAddr;

/// Why a connection is of no more use.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The system says so.
    Io(Errno),
    /// It was closed by the server.
    Closed,
    /// It did not open in time.
    TooSlow,
    /// What came over it is no answer.
    Malformed(Malformed),
}

impl Broken {
    /// The label of a request for which it could not be opened.
    pub(crate) fn while_opening(&self) -> &'static str {
        match self {
            Broken::Io(Errno::MFILE | Errno::NFILE) => "too-many-open-files",
            Broken::Io(Errno::CONNREFUSED) => "connection-refused",
            _ => "connect-failed",
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Io(e) => std::io::Error::from(*e).fmt(f),
            Broken::Closed => f.write_str("the server closed the connection"),
            Broken::TooSlow => f.write_str("the connection did not open in time"),
            Broken::Malformed(e) => e.fmt(f),
        }
    }
}

/// What a connection is used for.
pub(crate) enum Use {
    /// It is on its way since then.
    Opening { since: Nanos },
    /// For nothing, since then.
    Idle { since: Nanos },
    /// For this request.
    Busy(Box<Order>),
}

/// What became of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing of note.
    Goes,
    /// It is open.
    Opened,
    /// The rest of a request was sent.
    Written,
    /// An answer is complete.
    Ended {
        /// Whether another request can be sent.
        keeps: bool,
    },
}

/// A connection.
pub(crate) struct Link {
    socket: OwnedFd,
    used_for: Use,
    answer: Answer,
    /// Bytes of the request that the system has taken.
    written: usize,
    /// Whether it has carried an answer before.
    reused: bool,
}

impl Link {
    /// Begins to open one.
    pub(crate) fn open(to: &SocketAddr, now: Nanos) -> Result<Link, Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e),
        }
        let used_for = Use::Opening { since: now };
        Ok(Link { socket, used_for, answer: Answer::default(), written: 0, reused: false })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since().is_some()
    }

    pub(crate) fn idle_since(&self) -> Option<Nanos> {
        if let Use::Idle { since } = self.used_for { Some(since) } else { None }
    }

    pub(crate) fn opening_since(&self) -> Option<Nanos> {
        if let Use::Opening { since } = self.used_for { Some(since) } else { None }
    }

    /// Gives back what it was used for.
    pub(crate) fn take_use(&mut self) -> Use {
        std::mem::replace(&mut self.used_for, Use::Idle { since: Nanos::ZERO })
    }

    /// Nobody uses it from now on.
    pub(crate) fn rest(&mut self, now: Nanos) {
        self.used_for = Use::Idle { since: now };
    }

    /// Whether the server closed it, after an answer before, without a byte of this one: then it did so in the moment
    /// when the request was sent, which is no fault of its, and has done nothing of it.
    pub(crate) fn was_closed_unused(&self) -> bool {
        self.reused && !self.answer.has_begun()
    }

    /// The label of a request that it broke under.
    pub(crate) fn broke(&self) -> &'static str {
        if self.answer.has_head() { "broke-off" } else { "broke-before-answer" }
    }

    /// Sends a request. False if the system took only a part of it.
    pub(crate) fn begin(&mut self, order: Order) -> Result<bool, Errno> {
        self.written = 0;
        self.answer.reset();
        self.used_for = Use::Busy(Box::new(order));
        self.write()
    }

    fn write(&mut self) -> Result<bool, Errno> {
        let Use::Busy(order) = &self.used_for else { return Ok(true) };
        while self.written < order.bytes.len() {
            match send(&self.socket, &order.bytes[self.written..], SendFlags::NOSIGNAL) {
                Ok(n) => self.written += n,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// The system can take more, or says how the opening went.
    pub(crate) fn writable(&mut self) -> Result<Step, Broken> {
        if self.opening_since().is_some() {
            let went = sockopt::socket_error(&self.socket).and_then(|inner| inner);
            return went.map(|()| Step::Opened).map_err(Broken::Io);
        }
        let Use::Busy(order) = &self.used_for else { return Ok(Step::Goes) };
        if self.written == order.bytes.len() {
            return Ok(Step::Goes);
        }
        // An error of the writing shows in the reading, too, after what the server still said.
        Ok(if self.write().unwrap_or(true) { Step::Written } else { Step::Goes })
    }

    /// There is something to read.
    pub(crate) fn readable(&mut self, buffer: &mut [u8], clock: Wall) -> Result<Step, Broken> {
        let n = match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((_, n)) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::Goes),
            Err(e) => return Err(Broken::Io(e)),
        };
        let now = clock.now();
        let Link { used_for: Use::Busy(order), answer, .. } = self else { return Err(Broken::Closed) };
        let sent = self.written == order.bytes.len();
        if n == 0 {
            order.ended_at = Some(now);
            return if answer.closed() { Ok(Step::Ended { keeps: false }) } else { Err(Broken::Closed) };
        }
        let Some(flight) = order.ticket.flight() else { return Err(Broken::Closed) };
        let mut ended = false;
        let read = answer.feed(&buffer[..n], &mut |piece| match piece {
            Piece::Head(status, headers) => flight.head(status, &headers),
            Piece::Data(data) => {
                flight.bytes(now, data);
            }
            Piece::End => ended = true,
        });
        read.map_err(Broken::Malformed)?;
        if !ended {
            return Ok(Step::Goes);
        }
        order.ended_at = Some(now);
        self.reused = true;
        Ok(Step::Ended { keeps: sent && self.answer.keeps_open() })
    }
}
