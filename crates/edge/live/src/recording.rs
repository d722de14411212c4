//! Recording traffic for replay: rows go through a bounded queue to one thread that writes files.
//!
//! Requests never wait for it. What the queue has no room for is dropped and counted, and so is everything
//! while the disk refuses: the thread says so once, and tries again after a while with a new file. A folder
//! holds no more than it may; the oldest files go first.

use forebay_records::recording::{BLOCK_BYTES, Entry, FORMAT, Head, NAME, VERSION};
use parking_lot::{Condvar, Mutex};
use siphasher::sip::SipHasher24;
use std::collections::VecDeque;
use std::hash::Hasher;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

/// Rows that wait for the thread, at most.
const MAX_ROWS: usize = 16_384;
/// Bytes that these hold, at most.
const MAX_WAITING: usize = 64 << 20;
/// How long rows gather.
const PAUSE: Duration = Duration::from_millis(50);
/// A file is written to in pieces of at least this, or when no more rows wait.
const PIECE: usize = 256 << 10;
/// Hashes of a row, at most: prompts beyond 8 MiB are unique from there on.
pub const MAX_BLOCKS: u32 = 32_768;
/// The block of [`forebay_kernel::prefix::hash_chain`] that makes [`BLOCK_BYTES`].
pub const BLOCK_TOKENS: u32 = BLOCK_BYTES / forebay_kernel::prefix::BYTES_PER_TOKEN as u32;

/// The secret under which hashes are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({:016x})", self.mark())
    }
}

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: [u8; 16]) -> Key {
        Key(bytes)
    }

    /// A key that nobody knows, from the system's source of chance.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn random() -> io::Result<Key> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Key(bytes))
    }

    /// A key from a text of 32 hex digits, white space at its ends not counted.
    ///
    /// # Errors
    /// If it is none; the text is not repeated.
    pub fn read(text: &str) -> Result<Key, String> {
        let text = text.trim();
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
        let number = number.ok_or("expected 32 hex digits, such as `openssl rand -hex 16` makes")?;
        Ok(Key(number.to_be_bytes()))
    }

    fn hash(&self, purpose: u8, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u8(purpose);
        hasher.write(bytes);
        hasher.finish()
    }

    /// Of a block's hash. The argument is no secret: whoever guesses a prompt can make it.
    fn block(&self, hash: u64) -> u64 {
        self.hash(0, &hash.to_le_bytes())
    }

    fn session(&self, name: &str) -> String {
        format!("{:016x}", self.hash(1, name.as_bytes()))
    }

    /// Tells keys apart and nothing about them.
    fn mark(&self) -> u64 {
        self.hash(2, b"")
    }
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// The secret.
    pub key: Key,
    /// Bytes of a file, at most, but for a single row that is longer.
    pub max_file: u64,
    /// Bytes of all recordings in the folder, at most.
    pub max_total: u64,
    /// After the disk has refused, the time to the next attempt.
    pub retry_after: Duration,
}

/// Where files are; tests have one that fails.
pub trait Store: Send {
    /// Makes a new file.
    ///
    /// # Errors
    /// If the system does.
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Write + Send>>;
    /// Removes a file.
    ///
    /// # Errors
    /// If the system does.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Recordings with their sizes, oldest first.
    ///
    /// # Errors
    /// If the system does.
    fn files(&mut self) -> io::Result<Vec<(String, u64)>>;
}

/// A folder.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Store for Folder {
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Write + Send>> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        // Traffic is nobody else's business.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Box::new(options.open(self.0.join(name))?))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }

    fn files(&mut self) -> io::Result<Vec<(String, u64)>> {
        let mut all = Vec::new();
        for file in std::fs::read_dir(&self.0)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name.starts_with(NAME.0) && name.ends_with(NAME.1) {
                all.push((name, file.metadata()?.len()));
            }
        }
        all.sort();
        Ok(all)
    }
}

/// A request that has ended, with what is still to be hashed under the key.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// What is written, without session and blocks.
    pub entry: Entry,
    /// The session's name; empty for none.
    pub session: Arc<str>,
    /// The chain of the prompt's blocks of [`BLOCK_TOKENS`].
    pub chain: Arc<[u64]>,
}

impl Ended {
    fn size(&self) -> usize {
        512 + self.chain.len() * 8
    }
}

#[derive(Default)]
struct Waiting {
    rows: VecDeque<Ended>,
    bytes: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    end: Condvar,
    written: AtomicU64,
    bytes: AtomicU64,
    no_room: AtomicU64,
    no_disk: AtomicU64,
    removed: AtomicU64,
    stopped: AtomicBool,
}

/// What a recording has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordView {
    /// Rows in files.
    pub written: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Rows dropped because too many waited.
    pub no_room: u64,
    /// Rows dropped because the disk refused.
    pub no_disk: u64,
    /// Files removed to keep the bound.
    pub removed: u64,
    /// Whether the disk refuses at the moment.
    pub stopped: bool,
}

/// The end that requests see; cheap to copy.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
    started: Instant,
}

/// Owns the thread: when dropped, writes what waits and ends it.
pub struct RecordWriter {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Starts a recording. The first file is made at once, so that a folder that cannot be written to shows.
///
/// # Errors
/// If the first file cannot be made or the thread cannot be started.
pub fn start(store: Box<dyn Store>, options: RecordOptions) -> io::Result<(Recorder, RecordWriter)> {
    let shared = Arc::new(Shared::default());
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let started = Instant::now();
    let mut files = Files {
        store,
        options,
        wall,
        number: 0,
        open: None,
        written: 0,
        again: None,
        shared: shared.clone(),
    };
    files.next()?;
    let own = shared.clone();
    let thread = std::thread::Builder::new().name("recording".into()).spawn(move || files.run(&own))?;
    Ok((Recorder { shared: shared.clone(), started }, RecordWriter { shared, thread: Some(thread) }))
}

impl Recorder {
    /// An instant on the clock of the recording.
    pub fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.started);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Hands a row over, or drops it if too many wait.
    pub fn push(&self, row: Ended) {
        let size = row.size();
        let mut w = self.shared.waiting.lock();
        if w.rows.len() >= MAX_ROWS || w.bytes + size > MAX_WAITING {
            drop(w);
            self.shared.no_room.fetch_add(1, Relaxed);
            return;
        }
        w.bytes += size;
        w.rows.push_back(row);
    }

    /// What it has come to.
    pub fn view(&self) -> RecordView {
        let s = &self.shared;
        RecordView {
            written: s.written.load(Relaxed),
            bytes: s.bytes.load(Relaxed),
            no_room: s.no_room.load(Relaxed),
            no_disk: s.no_disk.load(Relaxed),
            removed: s.removed.load(Relaxed),
            stopped: s.stopped.load(Relaxed),
        }
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        self.shared.waiting.lock().closed = true;
        self.shared.end.notify_all();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// The thread's: the open file and its bounds.
struct Files {
    store: Box<dyn Store>,
    options: RecordOptions,
    /// The start since 1970.
    wall: Duration,
    number: u32,
    open: Option<Box<dyn Write + Send>>,
    /// Bytes in the open file.
    written: u64,
    /// When the disk is tried again after it has refused.
    again: Option<Instant>,
    shared: Arc<Shared>,
}

impl Files {
    fn run(mut self, shared: &Shared) {
        let mut rows = VecDeque::new();
        loop {
            let closed = {
                let mut w = shared.waiting.lock();
                if w.rows.is_empty() && !w.closed {
                    // Woken only to end: rows gather by themselves in the meantime.
                    shared.end.wait_for(&mut w, PAUSE);
                }
                std::mem::swap(&mut rows, &mut w.rows);
                w.bytes = 0;
                w.closed
            };
            if closed && rows.is_empty() {
                return;
            }
            self.batch(&mut rows);
        }
    }

    fn batch(&mut self, rows: &mut VecDeque<Ended>) {
        let (mut piece, mut count) = (Vec::new(), 0);
        while let Some(row) = rows.pop_front() {
            let before = piece.len();
            self.line(row, &mut piece);
            count += 1;
            let over = self.written + piece.len() as u64 > self.options.max_file;
            if over && (before > 0 || self.written > MAX_HEAD) {
                let rest = piece.split_off(before);
                self.put(&piece, count - 1);
                // This row begins the next file.
                self.open = None;
                (piece, count) = (rest, 1);
            }
            if piece.len() >= PIECE || rows.is_empty() {
                self.put(&piece, count);
                piece.clear();
                count = 0;
            }
        }
    }

    /// Writes rows, or drops them while the disk refuses.
    fn put(&mut self, piece: &[u8], rows: u64) {
        if rows == 0 {
            return;
        }
        let refusing = self.again.is_some_and(|at| Instant::now() < at);
        let done = if refusing { Ok(false) } else { self.try_put(piece) };
        match done {
            Ok(true) => {
                self.again = None;
                self.shared.written.fetch_add(rows, Relaxed);
                if self.shared.stopped.swap(false, Relaxed) {
                    tracing::info!("the recording goes on");
                }
            }
            Ok(false) => {
                self.shared.no_disk.fetch_add(rows, Relaxed);
            }
            Err(e) => {
                // Its last line may be half a one: the next attempt begins another file.
                self.open = None;
                self.again = Some(Instant::now() + self.options.retry_after);
                self.shared.no_disk.fetch_add(rows, Relaxed);
                if !self.shared.stopped.swap(true, Relaxed) {
                    tracing::warn!(
                        error = %e,
                        "the recording has stopped: its folder cannot be written to. Requests are served as \
                         before; it is tried again every {} s",
                        self.options.retry_after.as_secs()
                    );
                }
            }
        }
    }

    fn try_put(&mut self, piece: &[u8]) -> io::Result<bool> {
        if self.open.is_none() {
            self.next()?;
        }
        let Some(file) = &mut self.open else { return Ok(false) };
        file.write_all(piece)?;
        file.flush()?;
        self.written += piece.len() as u64;
        self.shared.bytes.fetch_add(piece.len() as u64, Relaxed);
        Ok(true)
    }

    fn line(&self, row: Ended, out: &mut Vec<u8>) {
        let Ended { mut entry, session, chain } = row;
        let key = self.options.key;
        if !session.is_empty() {
            entry.session = key.session(&session);
        }
        entry.set_blocks(chain.iter().map(|h| key.block(*h)));
        if serde_json::to_writer(&mut *out, &entry).is_ok() {
            out.push(b'\n');
        }
    }

    /// Ends the file and begins the next, after old ones have made room for it.
    fn next(&mut self) -> io::Result<()> {
        self.open = None;
        self.number += 1;
        let started = SystemTime::UNIX_EPOCH + self.wall;
        let stamp = humantime::format_rfc3339_millis(started).to_string();
        let mark = format!("{:016x}", self.options.key.mark());
        let name = format!(
            "{}{}-{}-{:06}{}",
            NAME.0,
            stamp.replace(['-', ':'], ""),
            &mark[..8],
            self.number,
            NAME.1
        );
        self.make_room()?;
        let mut file = self.store.create(&name)?;
        let head = Head {
            format: FORMAT.to_owned(),
            version: VERSION,
            started_unix_ns: u64::try_from(self.wall.as_nanos()).unwrap_or(u64::MAX),
            started: stamp,
            file: self.number,
            key: mark,
            block_bytes: BLOCK_BYTES,
        };
        let mut line = serde_json::to_vec(&head).map_err(io::Error::other)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.flush()?;
        self.written = line.len() as u64;
        self.shared.bytes.fetch_add(self.written, Relaxed);
        self.open = Some(file);
        Ok(())
    }

    fn make_room(&mut self) -> io::Result<()> {
        let files = self.store.files()?;
        let mut total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        for (name, bytes) in files {
            if total + self.options.max_file <= self.options.max_total {
                break;
            }
            self.store.remove(&name)?;
            self.shared.removed.fetch_add(1, Relaxed);
            total -= bytes;
        }
        Ok(())
    }
}

/// A head is shorter.
const MAX_HEAD: u64 = 512;

#[cfg(test)]
mod tests;
