use super::*;
use forebay_records::recording::{read_entry, read_head};
use std::collections::BTreeMap;

/// A folder in memory that refuses while it is told to.
#[derive(Clone, Default)]
struct Memory(Arc<Inside>);

#[derive(Default)]
struct Inside {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    full: AtomicBool,
    /// Bytes that fit before the disk is full in the middle of a write.
    room: Mutex<Option<usize>>,
}

struct Handle(Memory, String);

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let inside = &self.0.0;
        if inside.full.load(Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut room = inside.room.lock();
        let n = room.map_or(bytes.len(), |r| r.min(bytes.len()));
        if let Some(r) = room.as_mut() {
            *r -= n;
        }
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inside.files.lock().get_mut(&self.1).unwrap().extend_from_slice(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Store for Memory {
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Write + Send>> {
        if self.0.full.load(Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        assert!(self.0.files.lock().insert(name.to_owned(), Vec::new()).is_none(), "{name} is there twice");
        Ok(Box::new(Handle(self.clone(), name.to_owned())))
    }
    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.0.files.lock().remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn files(&mut self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.0.files.lock().iter().map(|(n, b)| (n.clone(), b.len() as u64)).collect())
    }
}

impl Memory {
    fn texts(&self) -> Vec<String> {
        let files = self.0.files.lock();
        files.values().map(|b| String::from_utf8(b.clone()).unwrap()).collect()
    }
}

fn options(max_file: u64, max_total: u64) -> RecordOptions {
    RecordOptions { key: Key::new([7; 16]), max_file, max_total, retry_after: Duration::ZERO }
}

fn row(n: u64) -> Ended {
    let entry = Entry { arrived_ns: n, end: "finished".into(), status: 200, ..Entry::default() };
    Ended { entry, session: "s".into(), chain: vec![n, 1].into() }
}

fn numbers(texts: &[String]) -> Vec<u64> {
    let lines = texts.iter().flat_map(|t| t.lines().skip(1));
    lines.map(|l| read_entry(l).unwrap().arrived_ns).collect()
}

/// Until everything that was pushed is written or dropped.
fn settle(recorder: &Recorder, pushed: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let v = recorder.view();
        if v.written + v.no_disk + v.no_room >= pushed {
            return;
        }
        assert!(Instant::now() < deadline, "{v:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn files_are_rotated_and_the_oldest_go_first() {
    let memory = Memory::default();
    let (recorder, writer) = start(Box::new(memory.clone()), options(2_000, 10_000)).unwrap();
    for n in 0..1_000 {
        recorder.push(row(n));
    }
    drop(writer);
    let texts = memory.texts();
    let sizes: Vec<usize> = texts.iter().map(String::len).collect();
    assert!(sizes.iter().all(|s| *s <= 2_000) && sizes.iter().sum::<usize>() <= 10_000, "{sizes:?}");
    let heads: Vec<Head> = texts.iter().map(|t| read_head(t.lines().next().unwrap()).unwrap()).collect();
    assert!(heads.windows(2).all(|w| w[0].file + 1 == w[1].file && w[0].key == w[1].key));
    let kept = numbers(&texts);
    let first = kept[0];
    assert_eq!(kept, (first..1_000).collect::<Vec<_>>(), "the newest without a gap");
    let v = recorder.view();
    assert_eq!((v.written, v.no_room, v.no_disk, v.stopped), (1_000, 0, 0, false));
    assert_eq!(v.removed + texts.len() as u64, u64::from(heads.last().unwrap().file));
}

#[test]
fn a_full_disk_stops_it_and_room_lets_it_go_on() {
    let memory = Memory::default();
    let (recorder, writer) = start(Box::new(memory.clone()), options(1 << 20, 1 << 24)).unwrap();
    recorder.push(row(0));
    settle(&recorder, 1);
    memory.0.full.store(true, Relaxed);
    for n in 1..=5 {
        recorder.push(row(n));
    }
    settle(&recorder, 6);
    let v = recorder.view();
    assert_eq!((v.written, v.no_disk, v.stopped), (1, 5, true));
    memory.0.full.store(false, Relaxed);
    recorder.push(row(6));
    drop(writer);
    let v = recorder.view();
    assert_eq!((v.written, v.no_disk, v.stopped), (2, 5, false));
    assert_eq!(memory.texts().len(), 2, "it goes on in another file");
    assert_eq!(numbers(&memory.texts()), [0, 6]);
}

#[test]
fn a_disk_that_fills_in_the_middle_of_a_line_leaves_half_of_it() {
    let memory = Memory::default();
    let (recorder, writer) = start(Box::new(memory.clone()), options(1 << 20, 1 << 24)).unwrap();
    *memory.0.room.lock() = Some(40);
    recorder.push(row(0));
    settle(&recorder, 1);
    *memory.0.room.lock() = None;
    recorder.push(row(1));
    drop(writer);
    let texts = memory.texts();
    assert!(!texts[0].ends_with('\n'));
    assert_eq!(numbers(&texts[1..]), [1]);
    assert_eq!((recorder.view().written, recorder.view().no_disk), (1, 1));
}

#[test]
fn what_the_queue_has_no_room_for_is_counted() {
    let recorder = Recorder { shared: Arc::default(), started: Instant::now() };
    for n in 0..MAX_ROWS as u64 + 3 {
        recorder.push(row(n));
    }
    assert_eq!(recorder.view().no_room, 3);
    let recorder = Recorder { shared: Arc::default(), started: Instant::now() };
    let long: Arc<[u64]> = vec![0; MAX_BLOCKS as usize].into();
    for n in 0..1_000 {
        recorder.push(Ended { chain: long.clone(), ..row(n) });
    }
    assert!(recorder.view().no_room > 600 && recorder.shared.waiting.lock().bytes <= MAX_WAITING);
}

#[test]
fn hashes_are_equal_under_one_key_and_differ_under_another() {
    let written = |key| {
        let memory = Memory::default();
        let options = RecordOptions { key, ..options(1 << 20, 1 << 24) };
        let (recorder, writer) = start(Box::new(memory.clone()), options).unwrap();
        recorder.push(row(1));
        recorder.push(row(2));
        drop(writer);
        let text = memory.texts().remove(0);
        let all: Vec<Entry> = text.lines().skip(1).map(|l| read_entry(l).unwrap()).collect();
        (read_head(text.lines().next().unwrap()).unwrap().key, all)
    };
    let (a, b) = (written(Key::new([1; 16])), written(Key::new([2; 16])));
    let hashes = |e: &Entry| e.hashes().unwrap();
    assert_eq!(hashes(&a.1[0])[1], hashes(&a.1[1])[1], "the same block");
    assert_ne!(hashes(&a.1[0])[0], hashes(&a.1[1])[0]);
    assert_ne!(hashes(&a.1[0])[1], hashes(&b.1[0])[1]);
    assert!(hashes(&a.1[0])[1] != 1 && a.1[0].session != b.1[0].session && a.0 != b.0);
    assert_eq!((a.1[0].session.len(), &a.1[0].session), (16, &a.1[1].session));
}

#[test]
fn keys_are_32_hex_digits() {
    assert_eq!(
        Key::read(" 000102030405060708090a0b0c0d0e0f\n"),
        Ok(Key::new(std::array::from_fn(|i| i as u8)))
    );
    for wrong in ["", "00", "zz0102030405060708090a0b0c0d0e0f", "+00102030405060708090a0b0c0d0e0f0"] {
        assert!(Key::read(wrong).is_err(), "{wrong}");
    }
    assert_ne!(Key::random().unwrap(), Key::random().unwrap());
    assert!(!format!("{:?}", Key::new([9; 16])).contains('9'.to_string().repeat(4).as_str()));
}

#[test]
fn a_folder_holds_recordings_and_other_files_stay() {
    let dir = std::env::temp_dir().join(format!("forebay-recording-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("notes.txt"), "mine").unwrap();
    let (recorder, writer) = start(Box::new(Folder(dir.clone())), options(1_000, 3_000)).unwrap();
    for n in 0..200 {
        recorder.push(row(n));
    }
    drop(writer);
    let files = Folder(dir.clone()).files().unwrap();
    assert!(files.iter().map(|(_, n)| n).sum::<u64>() <= 3_000 && files.len() >= 2, "{files:?}");
    assert_eq!(std::fs::read_to_string(dir.join("notes.txt")).unwrap(), "mine");
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(start(Box::new(Folder(dir)), options(1_000, 3_000)).is_err(), "no such folder");
}
