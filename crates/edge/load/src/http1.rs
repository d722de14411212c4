//! HTTP/1.1 as a client of one request at a time needs it: bytes come in, the head, the data and the end of an answer
//! go out. It has neither clock nor socket.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The largest head of an answer.
const MOST_HEAD: usize = 64 << 10;
/// The most headers in it.
const MOST_HEADERS: usize = 128;
/// The longest line between chunks.
const MOST_LINE: usize = 4 << 10;

/// A part of an answer.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// Its status and headers.
    Head(u16, HeaderMap),
    /// Some of its body.
    Data(&'a [u8]),
    /// It is complete.
    End,
}

/// What an answer is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is no HTTP/1.1: {0}")]
pub(crate) struct Malformed(&'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// So many bytes of the body are to come.
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    /// The end of a chunk's last line.
    ChunkEnd,
    Trailers,
    UntilClose,
    Over,
}

/// Reads answers, one after the other.
#[derive(Debug)]
pub(crate) struct Answer {
    state: State,
    /// The beginning of a head or a line whose end has not come.
    partial: Vec<u8>,
    /// Whether any byte of the answer came.
    begun: bool,
    keep: bool,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer { state: State::Head, partial: Vec::new(), begun: false, keep: true }
    }
}

impl Answer {
    /// Ready for the answer to another request.
    pub(crate) fn reset(&mut self) {
        self.partial.clear();
        (self.state, self.begun, self.keep) = (State::Head, false, true);
    }

    /// Whether any byte of it came.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether its head came.
    pub(crate) fn has_head(&self) -> bool {
        self.state != State::Head
    }

    /// Whether the connection can serve another request after its end.
    pub(crate) fn keeps_open(&self) -> bool {
        self.keep && self.state == State::Over
    }

    /// Takes bytes as they come off the connection.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        each: &mut impl FnMut(Piece<'_>),
    ) -> Result<(), Malformed> {
        self.begun |= !bytes.is_empty();
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Head => self.head(bytes, each)?,
                State::Length(left) => {
                    let (data, rest) = split(bytes, left);
                    each(Piece::Data(data));
                    self.state = State::Length(left - data.len() as u64);
                    if left == data.len() as u64 {
                        self.over(each);
                    }
                    rest
                }
                State::ChunkSize => self.chunk_size(bytes)?,
                State::ChunkData(left) => {
                    let (data, rest) = split(bytes, left);
                    each(Piece::Data(data));
                    let left = left - data.len() as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                    rest
                }
                State::ChunkEnd => self.chunk_end(bytes)?,
                State::Trailers => self.trailers(bytes, each)?,
                State::UntilClose => {
                    each(Piece::Data(bytes));
                    &[]
                }
                State::Over => {
                    // Nobody asked for it.
                    self.keep = false;
                    &[]
                }
            };
        }
        Ok(())
    }

    /// The connection was closed: whether that is the end of the answer.
    pub(crate) fn closed(&mut self) -> bool {
        self.keep = false;
        let ends = self.state == State::UntilClose;
        if ends {
            self.state = State::Over;
        }
        ends
    }

    fn over(&mut self, each: &mut impl FnMut(Piece<'_>)) {
        self.state = State::Over;
        each(Piece::End);
    }

    fn head<'a>(&mut self, bytes: &'a [u8], each: &mut impl FnMut(Piece<'_>)) -> Result<&'a [u8], Malformed> {
        let before = self.partial.len();
        if before > 0 {
            self.partial.extend_from_slice(bytes);
        }
        let all = if before > 0 { &self.partial } else { bytes };
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let length = match parsed.parse(all) {
            Ok(httparse::Status::Complete(n)) => n,
            Ok(httparse::Status::Partial) if all.len() > MOST_HEAD => {
                return Err(Malformed("its head is too long"));
            }
            Ok(httparse::Status::Partial) => {
                if before == 0 {
                    self.partial.extend_from_slice(bytes);
                }
                return Ok(&[]);
            }
            Err(_) => return Err(Malformed("its head cannot be read")),
        };
        let status = parsed.code.unwrap_or(0);
        let old = parsed.version == Some(0);
        let map = parsed.headers.iter().filter_map(|h| {
            Some((HeaderName::from_bytes(h.name.as_bytes()).ok()?, HeaderValue::from_bytes(h.value).ok()?))
        });
        let mut found = HeaderMap::with_capacity(parsed.headers.len());
        map.for_each(|(name, value)| {
            found.append(name, value);
        });
        self.partial.clear();
        // Interim answers say that the real one is to come.
        if !(100..200).contains(&status) {
            self.keep = keeps_open(&found, old);
            self.state = framing(status, &found)?;
            each(Piece::Head(status, found));
            if self.state == State::Length(0) {
                self.over(each);
            }
        }
        Ok(&bytes[length - before..])
    }

    /// A line without its end, if that came; and what follows.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Result<(Option<Vec<u8>>, &'a [u8]), Malformed> {
        let Some(end) = bytes.iter().position(|b| *b == b'\n') else {
            self.partial.extend_from_slice(bytes);
            let fits = self.partial.len() <= MOST_LINE;
            return if fits { Ok((None, &[])) } else { Err(Malformed("a chunk's line is too long")) };
        };
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(&bytes[..end]);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok((Some(line), &bytes[end + 1..]))
    }

    fn chunk_size<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let (Some(line), rest) = self.line(bytes)? else { return Ok(&[]) };
        let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let ends = line.get(digits).is_none_or(|b| matches!(b, b';' | b' ' | b'\t'));
        let size = std::str::from_utf8(&line[..digits]).ok().and_then(|t| u64::from_str_radix(t, 16).ok());
        let size = size.filter(|_| ends).ok_or(Malformed("a chunk has no size"))?;
        self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
        Ok(rest)
    }

    fn chunk_end<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let (Some(line), rest) = self.line(bytes)? else { return Ok(&[]) };
        if !line.is_empty() {
            return Err(Malformed("a chunk is longer than it says"));
        }
        self.state = State::ChunkSize;
        Ok(rest)
    }

    fn trailers<'a>(
        &mut self,
        bytes: &'a [u8],
        each: &mut impl FnMut(Piece<'_>),
    ) -> Result<&'a [u8], Malformed> {
        let (Some(line), rest) = self.line(bytes)? else { return Ok(&[]) };
        if line.is_empty() {
            self.over(each);
        }
        Ok(rest)
    }
}

fn split(bytes: &[u8], most: u64) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX)))
}

/// Whether a comma-separated header has a word.
fn has(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let all = headers.get_all(name).into_iter().filter_map(|v| v.to_str().ok());
    all.flat_map(|v| v.split(',')).any(|w| w.trim().eq_ignore_ascii_case(word))
}

fn keeps_open(headers: &HeaderMap, old: bool) -> bool {
    if old { has(headers, &CONNECTION, "keep-alive") } else { !has(headers, &CONNECTION, "close") }
}

/// How the body's end is known (RFC 9112, 6.3).
fn framing(status: u16, headers: &HeaderMap) -> Result<State, Malformed> {
    if matches!(status, 204 | 304) {
        return Ok(State::Length(0));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        let chunked = has(headers, &TRANSFER_ENCODING, "chunked");
        return Ok(if chunked { State::ChunkSize } else { State::UntilClose });
    }
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let told = value.to_str().ok().and_then(|v| v.parse::<u64>().ok());
        let told = told.ok_or(Malformed("content-length is no number"))?;
        if length.is_some_and(|l| l != told) {
            return Err(Malformed("two content-lengths"));
        }
        length = Some(told);
    }
    Ok(length.map_or(State::UntilClose, State::Length))
}

/// A POST as it goes over the wire.
pub(crate) fn post(path: &str, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + 64 * headers.len() + body.len());
    out.extend_from_slice(b"POST ");
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(body.len().to_string().as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What comes of an answer that arrives in these pieces: status, body, whether it ended and may be followed.
    fn read(pieces: &[&[u8]]) -> Result<(u16, Vec<u8>, bool, bool), Malformed> {
        let mut answer = Answer::default();
        let (mut status, mut body, mut ended) = (0, Vec::new(), 0);
        for piece in pieces {
            answer.feed(piece, &mut |p| match p {
                Piece::Head(s, _) => status = s,
                Piece::Data(d) => body.extend_from_slice(d),
                Piece::End => ended += 1,
            })?;
        }
        assert!(ended <= 1);
        Ok((status, body, ended == 1, answer.keeps_open()))
    }

    const CHUNKED: &[u8] =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
        5\r\nhello\r\nA;x=\"y\"\r\n, my world\r\n0\r\nserver-timing: none\r\n\r\n";

    #[test]
    fn bodies_end_as_their_heads_say() {
        let plain = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\nno";
        assert_eq!(read(&[plain]).unwrap(), (429, b"no".to_vec(), true, true));
        assert_eq!(read(&[CHUNKED]).unwrap(), (200, b"hello, my world".to_vec(), true, true));
        let empty = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n";
        assert_eq!(read(&[empty]).unwrap(), (503, vec![], true, false));
        let old = b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx";
        assert_eq!(read(&[old]).unwrap(), (200, b"x".to_vec(), true, false));
        let more = b"HTTP/1.1 204 Nothing\r\n\r\nHTTP/1.1 200 OK\r\n";
        assert_eq!(read(&[more]).unwrap(), (204, vec![], true, false), "an answer that nobody asked for");
        let open = b"HTTP/1.1 200 OK\r\n\r\nuntil it closes";
        assert_eq!(read(&[open]).unwrap(), (200, b"until it closes".to_vec(), false, false));
    }

    #[test]
    fn a_close_ends_only_what_has_no_other_end() {
        for (bytes, ends) in [
            (b"HTTP/1.1 200 OK\r\n\r\nx".as_slice(), true),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nx", false),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", false),
            (b"HTTP/1.1 20", false),
        ] {
            let mut answer = Answer::default();
            answer.feed(bytes, &mut |_| {}).unwrap();
            assert_eq!((answer.closed(), answer.keeps_open()), (ends, false));
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for bytes in [
            b"SSH-2.0-OpenSSH_9.9\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n",
        ] {
            assert!(read(&[bytes]).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
        let endless = [b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &vec![b'y'; MOST_HEAD]].concat();
        assert!(read(&[&endless]).is_err());
    }

    #[test]
    fn a_request_is_one_run_of_bytes() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("h:1"));
        let text = String::from_utf8(post("/v1/x", &headers, b"{}")).unwrap();
        assert_eq!(text, "POST /v1/x HTTP/1.1\r\nhost: h:1\r\ncontent-length: 2\r\n\r\n{}");
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(cuts in prop::collection::vec(0..CHUNKED.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.extend([0, CHUNKED.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &CHUNKED[w[0]..w[1]]).collect();
            prop_assert_eq!(read(&pieces).unwrap(), (200, b"hello, my world".to_vec(), true, true));
        }
    }
}
