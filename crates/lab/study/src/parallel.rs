//! Jobs over threads, results in the order of their index.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What has been done of a study, for whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Jobs that have ended.
    pub done: AtomicU64,
    /// Jobs in all; 0 until that is known.
    pub all: AtomicU64,
}

impl Progress {
    /// Nothing done yet.
    pub fn new() -> Progress {
        Progress::default()
    }
    /// More jobs than were known of.
    pub fn expect(&self, more: u64) {
        self.all.fetch_add(more, Ordering::Relaxed);
    }
    /// One more has ended.
    pub fn tick(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
    /// Jobs that have ended, and all.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }
}

/// Does `jobs` jobs on `threads` threads; the results are in the order of the jobs.
pub fn parallel<T: Send>(
    jobs: usize,
    threads: usize,
    progress: &Progress,
    job: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(jobs));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= jobs {
                return;
            }
            let result = job(i);
            progress.tick();
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((i, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, jobs.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let progress = Progress::new();
        for threads in [1, 2, 7] {
            // Later jobs are shorter, so that they overtake.
            let spin = |i: usize| (0..(50 - i) * 2_000).fold(i, |a, b| a ^ (b & 1) ^ (b & 1)) + i;
            assert_eq!(parallel(50, threads, &progress, spin), (0..50).map(|i| 2 * i).collect::<Vec<_>>());
        }
        assert_eq!(progress.get().0, 150);
        assert!(parallel(0, 2, &progress, |i| i).is_empty());
    }
}
