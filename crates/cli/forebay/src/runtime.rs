//! What long-running commands share: the runtime, the log on stderr, the signals that stop.

use anyhow::Context;
use std::future::Future;
use std::io::IsTerminal;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a future on a multi-threaded runtime.
///
/// # Errors
/// If the runtime cannot be built, or what the future fails with.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    let result = runtime.block_on(work);
    // Nothing that is still running has anything to say.
    runtime.shutdown_background();
    result
}

/// Sends log lines of `level` and above to stderr.
pub(crate) fn log_to_stderr(level: &str) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(level)
        .with_context(|| format!("--log {level:?} is no filter such as `info` or `forebay_live=debug`"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
}

/// Completes at the first SIGTERM or SIGINT.
///
/// # Errors
/// If signals cannot be listened for.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = &'static str>> {
    let mut term = signal(SignalKind::terminate()).context("SIGTERM cannot be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be listened for")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Calls `act` with the name of each SIGTERM or SIGINT, from a thread of its own, until dropped.
///
/// # Errors
/// If signals cannot be listened for.
pub(crate) fn on_signals(
    mut act: impl FnMut(&'static str) + Send + 'static,
) -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    let (mut term, mut interrupt) = {
        let _inside = runtime.enter();
        let term = signal(SignalKind::terminate()).context("SIGTERM cannot be listened for")?;
        (term, signal(SignalKind::interrupt()).context("SIGINT cannot be listened for")?)
    };
    runtime.spawn(async move {
        loop {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            act(name);
        }
    });
    Ok(runtime)
}
