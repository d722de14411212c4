//! A streaming answer: one event per token, made when the connection has room for it.

use crate::ask::Ask;
use crate::body::Cut;
use crate::driver::{Part, Ticket};
use crate::reply::{Head, Usage};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The role of each chat choice, once the first token is there.
    Role,
    Tokens,
    Usage,
    Done,
    End,
}

/// The events of one answer. Dropping it before the end cancels the request.
pub(crate) struct TokenStream {
    ask: Ask,
    head: Head,
    ticket: Ticket,
    stage: Stage,
    /// Tokens sent of each choice.
    sent: Vec<u32>,
    total: u32,
    /// Where the search for the next token begins, so that no choice starves.
    turn: usize,
    reset_after: Option<u32>,
    /// Tells the connection to close with a reset.
    reset: Arc<AtomicBool>,
    flushed: bool,
}

impl TokenStream {
    pub(crate) fn new(
        ask: Ask,
        head: Head,
        ticket: Ticket,
        reset_after: Option<u32>,
        reset: Arc<AtomicBool>,
    ) -> TokenStream {
        TokenStream {
            sent: vec![0; ask.choices.len()],
            stage: if ask.chat { Stage::Role } else { Stage::Tokens },
            total: 0,
            turn: 0,
            flushed: false,
            ask,
            head,
            ticket,
            reset_after,
            reset,
        }
    }

    /// The next event, or the end of the stream.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        if self.reset_after.is_some_and(|k| self.total >= k) {
            return self.cut(cx);
        }
        match self.stage {
            Stage::Role => {
                let started = |parts: &[Part]| parts.iter().any(|p| p.tokens() > 0).then_some(());
                if self.ticket.flight.poll(cx, started).is_pending() {
                    return Poll::Pending;
                }
                self.stage = Stage::Tokens;
                let usage = self.running_usage();
                let roles: String =
                    (0..self.sent.len()).map(|i| self.head.role_event(i, usage.as_deref())).collect();
                Poll::Ready(Some(Ok(roles.into())))
            }
            Stage::Tokens => self.poll_token(cx).map(|event| Some(Ok(event))),
            Stage::Usage => {
                self.stage = Stage::Done;
                let usage = Usage::of(&self.ask, &self.ticket.flight.parts, None).last(self.ask.chat);
                Poll::Ready(Some(Ok(self.head.usage_event(&usage).into())))
            }
            Stage::Done => {
                self.stage = Stage::End;
                Poll::Ready(Some(Ok(Bytes::from_static(b"data: [DONE]\n\n"))))
            }
            Stage::End => Poll::Ready(None),
        }
    }

    fn poll_token(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let (sent, turn) = (&self.sent, self.turn);
        let ready = |parts: &[Part]| {
            let n = parts.len();
            (turn..turn + n).map(|i| i % n).find(|&i| parts[i].tokens() > sent[i])
        };
        let index = match self.ticket.flight.poll(cx, ready) {
            Poll::Ready(index) => index,
            Poll::Pending => return Poll::Pending,
        };
        let token = self.sent[index];
        self.sent[index] += 1;
        self.total += 1;
        self.turn = index + 1;
        let choice = &self.ask.choices[index];
        let end = (self.sent[index] == choice.tokens).then_some(&choice.end);
        let event = self.head.token_event(index, choice.piece(token), end, self.running_usage().as_deref());
        if self.sent.iter().zip(&self.ask.choices).all(|(&n, c)| n == c.tokens) {
            self.stage = if self.ask.include_usage { Stage::Usage } else { Stage::Done };
        }
        Poll::Ready(event.into())
    }

    fn running_usage(&self) -> Option<String> {
        let counts = || Usage::of(&self.ask, &self.ticket.flight.parts, Some(&self.sent)).running();
        self.ask.continuous_usage.then(counts)
    }

    /// Resets the connection, after one round in which what is written can leave.
    fn cut(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        if !self.flushed {
            self.flushed = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.reset.store(true, Ordering::Release);
        Poll::Ready(Some(Err(Cut)))
    }
}
