//! Lines to a file from a thread of their own, so that nobody who has a line to write waits for a disk.

use parking_lot::{Condvar, Mutex};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
struct Pending {
    text: String,
    closed: bool,
    broken: bool,
}

struct Shared {
    pending: Mutex<Pending>,
    end: Condvar,
    max_pending: usize,
}

/// The writing end; cheap to copy.
#[derive(Clone)]
pub struct Lines {
    shared: Arc<Shared>,
}

/// Owns the thread: when dropped, writes what is pending and ends it.
pub struct LinesWriter {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Starts writing into `out`. At most `max_pending` bytes wait for it.
///
/// # Errors
/// If the thread cannot be started.
pub fn write_to(
    name: &str,
    mut out: impl Write + Send + 'static,
    max_pending: usize,
) -> std::io::Result<(Lines, LinesWriter)> {
    let shared = Arc::new(Shared { pending: Mutex::default(), end: Condvar::new(), max_pending });
    let own = shared.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&own, &mut out))?;
    Ok((Lines { shared: shared.clone() }, LinesWriter { shared, thread: Some(thread) }))
}

fn run(shared: &Shared, out: &mut dyn Write) {
    let mut batch = String::new();
    loop {
        let closed = {
            let mut p = shared.pending.lock();
            if p.text.is_empty() && !p.closed {
                // Woken only to end: lines gather by themselves in the meantime.
                shared.end.wait_for(&mut p, Duration::from_millis(20));
            }
            std::mem::swap(&mut batch, &mut p.text);
            p.closed
        };
        if !batch.is_empty()
            && let Err(e) = out.write_all(batch.as_bytes()).and_then(|()| out.flush())
        {
            tracing::error!(error = %e, "a log cannot be written and ends here");
            shared.pending.lock().broken = true;
            return;
        }
        if closed && batch.is_empty() {
            return;
        }
        batch.clear();
    }
}

impl Lines {
    /// Appends a line; `false` if it was dropped because the file does not keep up or has failed.
    pub fn push(&self, line: &dyn std::fmt::Display) -> bool {
        use std::fmt::Write as _;
        let mut p = self.shared.pending.lock();
        if p.broken || p.text.len() > self.shared.max_pending {
            return false;
        }
        let _ = writeln!(p.text, "{line}");
        true
    }
}

impl Drop for LinesWriter {
    fn drop(&mut self) {
        self.shared.pending.lock().closed = true;
        self.shared.end.notify_all();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_arrives_and_a_stuck_file_bounds_memory() {
        let path = std::env::temp_dir().join(format!("forebay-lines-{}", std::process::id()));
        let (lines, writer) = write_to("test", std::fs::File::create(&path).unwrap(), 1 << 20).unwrap();
        for n in 0..10_000 {
            assert!(lines.push(&format_args!("line {n}")));
        }
        drop(writer);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 10_000);
        assert!(text.ends_with("line 9999\n"));

        let (lines, writer) = write_to("test", Full, 10).unwrap();
        while lines.push(&"0123456789") {}
        drop(writer);
    }
}
