//! A bound on what many requests hold together.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be held at once.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(max: u64) -> Arc<Budget> {
        Arc::new(Budget { max, used: AtomicU64::new(0) })
    }

    /// All of it.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// A share of it, empty at first.
    pub fn share(self: &Arc<Budget>) -> Held {
        Held { budget: Some(self.clone()), bytes: 0 }
    }
}

/// One request's share of a [`Budget`], given back when it is dropped.
#[derive(Debug)]
pub struct Held {
    budget: Option<Arc<Budget>>,
    bytes: u64,
}

impl Held {
    /// A share of nothing in particular, which never runs out.
    pub fn unbounded() -> Held {
        Held { budget: None, bytes: 0 }
    }

    /// Takes more; `false`, and nothing is taken, if that would exceed the budget.
    pub fn take(&mut self, bytes: u64) -> bool {
        let Some(budget) = &self.budget else { return true };
        let room = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= budget.max);
        let taken = budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Held {
    /// These bytes, for which the share was taken; it is given back with the last reference to them.
    #[must_use]
    pub fn keep(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(Kept { bytes, held: self }) }
    }
}

/// Bytes and the share that was taken for them.
struct Kept {
    bytes: Bytes,
    #[expect(dead_code, reason = "held for its drop")]
    held: Held,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_back_and_never_exceed_the_budget() {
        let budget = Budget::new(10);
        let (mut a, mut b) = (budget.share(), budget.share());
        assert!(a.take(6) && b.take(4) && !b.take(1));
        assert_eq!((budget.used(), budget.max()), (10, 10));
        drop(a);
        assert!(b.take(6) && !b.take(u64::MAX));
        drop(b);
        assert_eq!(budget.used(), 0);
        assert!(Held::unbounded().take(u64::MAX));
    }

    #[test]
    fn a_share_goes_with_the_last_of_its_bytes() {
        let budget = Budget::new(10);
        let mut share = budget.share();
        assert!(share.take(4));
        let mut bytes = share.keep(Bytes::from_static(b"abcd"));
        let tail = bytes.split_off(3);
        assert_eq!((&bytes[..], &tail[..], budget.used()), (&b"abc"[..], &b"d"[..], 4));
        drop(bytes);
        assert_eq!(budget.used(), 4);
        drop(tail);
        assert_eq!(budget.used(), 0);
    }
}
