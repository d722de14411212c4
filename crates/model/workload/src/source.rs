//! Files as they are handed in: whoever does the reading says how to open one.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

type Open = dyn Fn() -> io::Result<Box<dyn BufRead + Send>> + Send + Sync;

/// A file that can be opened as often as wanted. Each opening begins at the front and gives the same bytes;
/// more may follow when it is opened later, as in a log that is still written.
#[derive(Clone)]
pub struct Source(Arc<Open>);

impl Source {
    /// One that `open` opens.
    pub fn new(open: impl Fn() -> io::Result<Box<dyn BufRead + Send>> + Send + Sync + 'static) -> Source {
        Source(Arc::new(open))
    }

    /// Opens it.
    ///
    /// # Errors
    /// Those of reading.
    pub fn open(&self) -> io::Result<Box<dyn BufRead + Send>> {
        (self.0)()
    }

    /// All of it.
    ///
    /// # Errors
    /// Those of reading; text that is not UTF-8.
    pub fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        self.open()?.read_to_string(&mut text)?;
        Ok(text)
    }

    pub(crate) fn is(&self, other: &Source) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<String> for Source {
    fn from(text: String) -> Source {
        let text: Arc<[u8]> = text.into_bytes().into();
        Source::new(move || Ok(Box::new(io::Cursor::new(Arc::clone(&text)))))
    }
}

impl From<&str> for Source {
    fn from(text: &str) -> Source {
        Source::from(text.to_owned())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// Lines with their numbers, one at a time.
pub(crate) struct Lines {
    input: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u32,
}

impl Lines {
    pub(crate) fn open(source: &Source) -> io::Result<Lines> {
        Ok(Lines { input: source.open()?, line: Vec::new(), number: 0 })
    }

    /// The next line that is not blank, without its end; its number, from 1, holds for errors too.
    pub(crate) fn next(&mut self) -> (u32, io::Result<Option<&str>>) {
        loop {
            self.number = self.number.saturating_add(1);
            self.line.clear();
            match self.input.read_until(b'\n', &mut self.line) {
                Ok(0) => return (self.number, Ok(None)),
                Ok(_) if self.line.trim_ascii().is_empty() => {}
                Ok(_) => break,
                Err(e) => {
                    // What comes after it cannot be told apart from what is missing.
                    self.input = Box::new(io::empty());
                    return (self.number, Err(e));
                }
            }
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = std::str::from_utf8(line).map(Some);
        (self.number, text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the line is not UTF-8")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_opened_again_and_again() {
        let source = Source::from("a\r\n\n \t\nb");
        for _ in 0..2 {
            let mut lines = Lines::open(&source).unwrap();
            let mut seen = Vec::new();
            while let (number, Ok(Some(line))) = lines.next() {
                seen.push((number, line.to_owned()));
            }
            assert_eq!(seen, [(1, "a".to_owned()), (4, "b".to_owned())]);
        }
        assert_eq!(source.read().unwrap(), "a\r\n\n \t\nb");
    }

    #[test]
    fn what_is_no_text_is_named_by_its_line() {
        let source = Source::new(|| Ok(Box::new(&b"a\n\xff\nb"[..])));
        let mut lines = Lines::open(&source).unwrap();
        assert!(matches!(lines.next(), (1, Ok(Some("a")))));
        let (number, found) = lines.next();
        assert_eq!((number, found.unwrap_err().to_string()), (2, "the line is not UTF-8".to_owned()));
        assert!(matches!(lines.next(), (3, Ok(Some("b")))));
        assert!(matches!(lines.next(), (4, Ok(None))));
    }
}
