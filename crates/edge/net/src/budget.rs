//! A bound on what many requests hold together.

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
}
