//! Why a run cannot begin.

/// Why a run cannot begin. Once it has begun, everything that goes wrong is a record.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The address leads nowhere.
    #[error("{authority}: {message}")]
    Address {
        /// `host:port`.
        authority: String,
        /// What the system said.
        message: String,
    },
    /// The server does not answer as it has to.
    #[error("{what}: {message}")]
    Probe {
        /// What was asked.
        what: String,
        /// What came instead.
        message: String,
    },
    /// The system refuses threads or a runtime.
    #[error("the load generator cannot start: {0}")]
    Start(#[from] std::io::Error),
}
