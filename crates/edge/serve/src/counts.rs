//! The door's ledger: every request that comes ends exactly once.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a request can end at the door, as in the access log.
pub(crate) const ENDS: [&str; 4] = ["finished", "failed", "refused", "cancelled"];

/// Counts of the door.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    accepted: AtomicU64,
    ended: [AtomicU64; ENDS.len()],
    pub(crate) streams: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) retries: AtomicU64,
}

impl Counts {
    pub(crate) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, end: &'static str) {
        // A word that is none of them would be an end that nobody counts.
        let index = ENDS.iter().position(|e| *e == end).expect("an end of the ledger");
        self.ended[index].fetch_add(1, Ordering::Release);
    }

    /// Accepted, ended by end, and open ones: the first is always the sum of the others.
    pub(crate) fn ledger(&self) -> (u64, Vec<(&'static str, u64)>, u64) {
        // Ended ones are read first, so that none is counted that has not been accepted.
        let ended: Vec<_> =
            ENDS.iter().zip(&self.ended).map(|(e, n)| (*e, n.load(Ordering::Acquire))).collect();
        let accepted = self.accepted.load(Ordering::Relaxed);
        let open = accepted.saturating_sub(ended.iter().map(|(_, n)| n).sum());
        (accepted, ended, open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_is_ended_and_open() {
        let c = Counts::default();
        for _ in 0..5 {
            c.accept();
        }
        for end in ENDS {
            c.end(end);
        }
        let (accepted, ended, open) = c.ledger();
        assert_eq!((accepted, open), (5, 1));
        assert_eq!(ended.iter().map(|(_, n)| n).sum::<u64>(), 4);
    }
}
