//! The kernel in real time: lock, waiters, scraping, discovery, metrics.
