//! The decision log as a file.

use crate::lines::{Lines, LinesWriter, write_to};
use forebay_kernel::journal::Journal;
use std::fmt;
use std::path::Path;

/// Lines that wait for the disk beyond this end the log: one with holes could not be replayed.
const MAX_PENDING: usize = 64 << 20;

/// The kernel's end of a log file.
pub struct FileJournal {
    lines: Lines,
    ended: bool,
}

/// Opens a log file, replacing what was there.
///
/// # Errors
/// If the file cannot be created or its thread not be started.
pub fn open(path: &Path) -> std::io::Result<(FileJournal, LinesWriter)> {
    let (lines, writer) = write_to("decision-log", std::fs::File::create(path)?, MAX_PENDING)?;
    Ok((FileJournal { lines, ended: false }, writer))
}

impl Journal for FileJournal {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        if !self.ended && !self.lines.push(&line) {
            self.ended = true;
            tracing::error!("the decision log ends here: the disk does not keep up");
        }
    }
}
