//! What the kernel answers: effects, outcomes and the ledgers that count them.

use crate::journal::Journal;
use crate::pool::EndpointId;
use forebay_base::Span;

/// Names a request for as long as it lives; stale names are recognised and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Place in the kernel's table.
    pub index: u32,
    /// Counts the requests that had this place.
    pub generation: u32,
}

/// How a request left, or was refused by, the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueOutcome {
    /// Sent on to scheduling.
    Dispatched,
    /// Refused: a capacity was full.
    RejectedCapacity,
    /// Refused: a capacity was full, and the pool is empty.
    RejectedNoEndpoints,
    /// Refused: the router is shutting down.
    RejectedOther,
    /// Waited too long on a saturated pool.
    EvictedTtl,
    /// Waited too long on an empty pool.
    EvictedNoEndpoints,
    /// The client left.
    EvictedContextCancelled,
    /// Shut down while it waited.
    EvictedOther,
}

impl QueueOutcome {
    /// All of them, in the order of [`QueueOutcome::index`].
    pub const ALL: [QueueOutcome; 8] = [
        QueueOutcome::Dispatched,
        QueueOutcome::RejectedCapacity,
        QueueOutcome::RejectedNoEndpoints,
        QueueOutcome::RejectedOther,
        QueueOutcome::EvictedTtl,
        QueueOutcome::EvictedNoEndpoints,
        QueueOutcome::EvictedContextCancelled,
        QueueOutcome::EvictedOther,
    ];

    /// Place in [`QueueOutcome::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The label value in llm-d-router's metrics.
    pub const fn label(self) -> &'static str {
        match self {
            QueueOutcome::Dispatched => "Dispatched",
            QueueOutcome::RejectedCapacity => "RejectedCapacity",
            QueueOutcome::RejectedNoEndpoints => "RejectedNoEndpoints",
            QueueOutcome::RejectedOther => "RejectedOther",
            QueueOutcome::EvictedTtl => "EvictedTTL",
            QueueOutcome::EvictedNoEndpoints => "EvictedNoEndpoints",
            QueueOutcome::EvictedContextCancelled => "EvictedContextCancelled",
            QueueOutcome::EvictedOther => "EvictedOther",
        }
    }
}

/// The one end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// An endpoint answered it to the end.
    Finished,
    /// It was dispatched and failed.
    Failed,
    /// The client left, queued or running.
    Cancelled,
    /// The queue refused or evicted it; the queue outcome says why.
    Queue,
    /// An admitter refused it.
    Denied,
    /// Legacy admission shed it: negative priority on a saturated pool.
    Shed,
    /// There was no endpoint to choose from.
    NoCandidates,
    /// The filters left no endpoint.
    FilteredOut,
}

impl End {
    /// All of them, in the order of [`End::index`].
    pub const ALL: [End; 8] = [
        End::Finished,
        End::Failed,
        End::Cancelled,
        End::Queue,
        End::Denied,
        End::Shed,
        End::NoCandidates,
        End::FilteredOut,
    ];

    /// Place in [`End::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A word for labels and logs.
    pub const fn label(self) -> &'static str {
        match self {
            End::Finished => "finished",
            End::Failed => "failed",
            End::Cancelled => "cancelled",
            End::Queue => "queue",
            End::Denied => "denied",
            End::Shed => "shed",
            End::NoCandidates => "no_candidates",
            End::FilteredOut => "filtered_out",
        }
    }
}

/// Why the kernel ended a request by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// By the queue.
    Queue(QueueOutcome),
    /// By an admitter.
    Denied,
    /// By legacy admission.
    Shed,
    /// No endpoint to choose from.
    NoCandidates,
    /// Filters left no endpoint.
    FilteredOut,
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Send the request to this endpoint. `waited` is the time since it was offered.
    Dispatch {
        /// The request.
        id: Id,
        /// Where to.
        endpoint: EndpointId,
        /// Where its prompt is to be computed first, if not there.
        prefill: Option<EndpointId>,
        /// Time from offer to dispatch.
        waited: Span,
        /// Prompt tokens that the endpoint is believed to hold.
        matched_tokens: u32,
    },
    /// The request is over; tell its client.
    End {
        /// The request.
        id: Id,
        /// Why.
        refusal: Refusal,
        /// Time from offer to end.
        waited: Span,
    },
}

/// The effects of calls, in the order of their decisions. The caller owns and reuses it.
#[derive(Default)]
pub struct Effects {
    /// To be taken by the caller.
    pub list: Vec<Effect>,
    /// Gets a line per input and per cycle that did something, if there is one.
    pub journal: Option<Box<dyn Journal>>,
}

impl Effects {
    /// Effects without a journal.
    pub fn new() -> Effects {
        Effects::default()
    }
}

impl std::fmt::Debug for Effects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Effects").field("list", &self.list).field("journal", &self.journal.is_some()).finish()
    }
}

/// Which ends a queue outcome can have. `None` is a request that never reached flow control: an admitter
/// refused it, or there is no flow control.
///
/// | Queue outcome | Ends |
/// |---|---|
/// | none | every one; `queue` only while shutting down |
/// | `Dispatched` | `finished`, `failed`, `cancelled`, `no_candidates`, `filtered_out` |
/// | `EvictedContextCancelled` | `cancelled` |
/// | every other | `queue` |
pub const fn may_end(outcome: Option<QueueOutcome>, end: End) -> bool {
    match outcome {
        None => true,
        Some(QueueOutcome::Dispatched) => {
            matches!(end, End::Finished | End::Failed | End::Cancelled | End::NoCandidates | End::FilteredOut)
        }
        Some(QueueOutcome::EvictedContextCancelled) => matches!(end, End::Cancelled),
        Some(_) => matches!(end, End::Queue),
    }
}

/// Two ledgers. Every request that is offered ends exactly once (`accepted = ended + live`), and every
/// one that reaches flow control has exactly one queue outcome (`entered = outcomes + queued`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledgers {
    /// Requests offered.
    pub accepted: u64,
    /// Requests ended, by [`End::index`].
    pub ended: [u64; 8],
    /// Requests alive: queued or running.
    pub live: u64,
    /// Requests that reached flow control.
    pub entered: u64,
    /// Queue outcomes, by [`QueueOutcome::index`].
    pub outcomes: [u64; 8],
    /// Requests queued.
    pub queued: u64,
    /// Words about requests that had ended before they came; they changed nothing.
    pub late: u64,
    /// Ended requests by how they left the queue, if they reached it ([`QueueOutcome::index`], last: not at
    /// all), and by [`End::index`].
    pub pairs: [[u64; 8]; 9],
}

impl Ledgers {
    /// Whether both ledgers add up, and no request has ended in a way that its queue outcome rules out
    /// ([`may_end`]).
    pub fn balanced(&self) -> bool {
        let mut ended = [0; 8];
        let mut allowed = true;
        let rows = QueueOutcome::ALL.map(Some).into_iter().chain([None]);
        for (row, outcome) in self.pairs.iter().zip(rows) {
            for end in End::ALL {
                let n = row[end.index()];
                ended[end.index()] += n;
                allowed &= n == 0 || may_end(outcome, end);
            }
        }
        allowed
            && ended == self.ended
            && self.accepted == self.ended.iter().sum::<u64>() + self.live
            && self.entered == self.outcomes.iter().sum::<u64>() + self.queued
    }
}
