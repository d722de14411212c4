//! A request's place in the router.

use crate::endpoints::Upstream;
use crate::metrics::{InFlight, Series};
use crate::router::{Refused, Router, Verdict};
use forebay_base::{Nanos, Span};
use forebay_kernel::{Id, Progress, QueueOutcome, Refusal, Usage};
use std::sync::Arc;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketState {
    Waiting,
    Running { first_token: bool },
    Over,
}

/// Output tokens that a ticket tells of at once: fairness is none the worse, and the lock is taken a
/// sixteenth as often.
const OUTPUT_PORTION: u32 = 16;

/// A request's place in the router. It ends exactly once: by [`Ticket::finished`], [`Ticket::failed`],
/// or, if it is dropped before, as cancelled.
pub struct Ticket {
    pub(crate) router: Arc<Router>,
    pub(crate) series: Arc<Series>,
    pub(crate) id: Id,
    pub(crate) bytes: u64,
    pub(crate) priority: i32,
    pub(crate) state: TicketState,
    /// Where its decision will arrive, while it waits for one.
    pub(crate) waiting: Option<oneshot::Receiver<Verdict>>,
    /// Whether it counts as queued in the metrics.
    pub(crate) queued: bool,
    pub(crate) upstream: Option<Arc<Upstream>>,
    /// Where its prompt is to be computed, if not there.
    pub(crate) prefill: Option<Arc<Upstream>>,
    /// Its count at the endpoint, in the metrics.
    pub(crate) in_flight: Option<InFlight>,
    /// Estimated prompt tokens.
    pub(crate) prompt_tokens: u32,
    /// When it was offered.
    pub(crate) since: Nanos,
    pub(crate) waited: Span,
    pub(crate) matched_tokens: u32,
    /// Output tokens that the kernel has not been told of.
    pub(crate) untold: u32,
}

impl Ticket {
    /// Where the request goes; `None` if the endpoint has just left.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.as_ref()
    }
    /// Where its prompt is to be computed first; `None` if its endpoint does it, or the other one has just left.
    pub fn prefill(&self) -> Option<&Arc<Upstream>> {
        self.prefill.as_ref()
    }
    /// How long it waited for its decision.
    pub fn waited(&self) -> Span {
        self.waited
    }
    /// Its name in the decision log.
    pub fn id(&self) -> Id {
        self.id
    }
    /// The priority of the band it ran in.
    pub fn priority(&self) -> i32 {
        self.priority
    }
    /// Prompt tokens that the endpoint is believed to hold.
    pub fn matched_tokens(&self) -> u32 {
        self.matched_tokens
    }

    /// The queue has let go of the request.
    pub(crate) fn decided(&mut self, outcome: QueueOutcome, waited: Span) {
        self.waited = waited;
        if std::mem::take(&mut self.queued) {
            self.router.metrics().left_queue(&self.series, self.bytes, outcome, waited);
        }
    }

    /// Counts the request at the endpoint that was chosen.
    pub(crate) fn arrived_at_endpoint(&mut self) {
        let uncached = self.prompt_tokens.saturating_sub(self.matched_tokens);
        // The old one goes first: it may be the same endpoint.
        self.in_flight = None;
        self.in_flight = self.router.metrics().scheduled(&self.series, self.upstream.as_deref(), uncached);
    }

    /// What was not told, then this.
    fn tell(&mut self, progress: Progress) {
        let (id, untold) = (self.id, std::mem::take(&mut self.untold));
        self.router.call(|k, now, fx| {
            if untold > 0 {
                k.progress(now, id, Progress::Output(untold), fx);
            }
            k.progress(now, id, progress, fx);
        });
    }

    /// More output tokens have come. They are told in portions, and only if something counts them.
    pub fn output(&mut self, tokens: u64) {
        if self.router.counts_output() {
            self.untold = self.untold.saturating_add(u32::try_from(tokens).unwrap_or(u32::MAX));
            if self.untold >= OUTPUT_PORTION {
                let untold = std::mem::take(&mut self.untold);
                self.tell(Progress::Output(untold));
            }
        }
    }

    /// The first token has come back.
    pub fn first_token(&mut self) {
        if self.state == (TicketState::Running { first_token: false }) {
            self.state = TicketState::Running { first_token: true };
            if let Some(f) = &mut self.in_flight {
                f.first_token();
            }
            self.tell(Progress::FirstToken);
        }
    }

    /// Another endpoint for a request that its endpoint could not begin: the kernel moves its lease, past
    /// the queue. `None` if there is nowhere to go, and then the request is over.
    pub fn retry(&mut self) -> Option<Arc<Upstream>> {
        let avoid = self.upstream.as_ref()?.id;
        if self.state != (TicketState::Running { first_token: false }) {
            return None;
        }
        match self.router.retry(self.id, avoid) {
            Some(Verdict::Go { endpoint, prefill, matched_tokens, .. }) => {
                self.matched_tokens = matched_tokens;
                self.prefill = prefill.and_then(|p| self.router.endpoints().get(p));
                self.upstream = self.router.endpoints().get(endpoint);
                self.arrived_at_endpoint();
                self.upstream.clone()
            }
            Some(Verdict::Refused(_)) => {
                self.in_flight = self.router.metrics().scheduled(&self.series, None, 0);
                self.series.stopped();
                self.state = TicketState::Over;
                None
            }
            // The kernel has failed, and with it everything.
            None => None,
        }
    }

    /// The answer is complete; `usage` is what the engine counted.
    pub fn finished(mut self, usage: Usage) {
        self.end(Progress::Finished(usage));
    }

    /// The request has failed after it was sent on.
    pub fn failed(mut self) {
        self.end(Progress::Failed);
    }

    fn end(&mut self, progress: Progress) {
        if matches!(self.state, TicketState::Running { .. }) {
            self.state = TicketState::Over;
            self.tell(progress);
            self.series.stopped();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let was = std::mem::replace(&mut self.state, TicketState::Over);
        if was == TicketState::Over {
            return;
        }
        let id = self.id;
        let untold = std::mem::take(&mut self.untold);
        self.router.call(|k, now, fx| {
            if untold > 0 {
                k.progress(now, id, Progress::Output(untold), fx);
            }
            k.gone(now, id, fx);
        });
        if was == TicketState::Waiting {
            // After the call nothing can be decided any more; but it may have been just before, and then
            // that is what the queue has counted.
            let (outcome, waited) = match self.waiting.take().and_then(|mut w| w.try_recv().ok()) {
                Some(Verdict::Go { waited, .. }) => (QueueOutcome::Dispatched, waited),
                Some(Verdict::Refused(Refused::By { refusal: Refusal::Queue(o), waited })) => (o, waited),
                _ => (QueueOutcome::EvictedContextCancelled, self.router.clock().now().since(self.since)),
            };
            self.decided(outcome, waited);
        } else {
            self.series.stopped();
        }
    }
}
