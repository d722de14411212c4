//! Compressed files: Zstandard frames of at most 4 MiB of content one after the other, which every reader of
//! Zstandard takes as one stream (RFC 8878, 3). Pure Rust, one thread: the same bytes for the same rows.

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress};
use std::io::{self, BufRead, BufReader, Read, Write};

/// Content of a frame. A frame ends when so much has come, so that no more is held in memory.
const FRAME: usize = 4 << 20;
/// RFC 8878, 3.1.1.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A writer whose bytes arrive at `out` compressed. What was written since the last frame goes out with
/// `flush`: a writer that is only dropped loses it.
#[derive(Debug)]
pub struct Compressed<W: Write> {
    out: W,
    content: Vec<u8>,
}

impl<W: Write> Compressed<W> {
    /// Writes nothing yet.
    pub fn new(out: W) -> Compressed<W> {
        Compressed { out, content: Vec::new() }
    }

    /// Flushes, and gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn frame(&mut self) -> io::Result<()> {
        if self.content.is_empty() {
            return Ok(());
        }
        // Into memory first: the encoder has no way to report an error of the writer.
        let mut frame = Vec::new();
        compress(self.content.as_slice(), &mut frame, CompressionLevel::Fastest);
        self.content.clear();
        self.out.write_all(&frame)
    }
}

impl<W: Write> Write for Compressed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME - self.content.len());
        self.content.extend_from_slice(&bytes[..taken]);
        if self.content.len() == FRAME {
            self.frame()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.frame()?;
        self.out.flush()
    }
}

/// The content of a compressed input, or an input that is not compressed as it is: the first bytes tell.
pub fn decompressed<'r>(mut input: impl BufRead + Send + 'r) -> io::Result<Box<dyn BufRead + Send + 'r>> {
    if input.fill_buf()?.starts_with(&MAGIC) {
        return Ok(Box::new(BufReader::new(Frames { input: Some(input), frame: None })));
    }
    Ok(Box::new(input))
}

/// Frames one after the other; at any time one of the two has the input.
struct Frames<R: BufRead> {
    input: Option<R>,
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                let n = frame.read(bytes)?;
                if n > 0 {
                    return Ok(n);
                }
                self.input = self.frame.take().map(StreamingDecoder::into_inner);
            }
            let Some(mut input) = self.input.take() else { return Ok(0) };
            if input.fill_buf()?.is_empty() {
                self.input = Some(input);
                return Ok(0);
            }
            let frame = StreamingDecoder::new(input);
            self.frame = Some(frame.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut w = Compressed::new(Vec::new());
        w.write_all(content).unwrap();
        w.finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn several_frames_are_one_stream() {
        let content: Vec<u8> =
            (0..2 * FRAME as u32 + 5).flat_map(|i| (i / 1000).to_le_bytes()).take(2 * FRAME + 5).collect();
        let bytes = packed(&content);
        assert!(bytes.len() < content.len() / 4, "{} for {}", bytes.len(), content.len());
        assert!(unpacked(&bytes).unwrap() == content);
        assert_eq!(bytes, packed(&content));
    }

    #[test]
    fn what_is_no_frame_is_an_error_and_what_is_plain_stays() {
        assert_eq!(unpacked(b"number,class\n").unwrap(), b"number,class\n");
        assert_eq!(unpacked(b"").unwrap(), b"");
        let mut bytes = packed(b"0123456789");
        bytes.extend_from_slice(b"junk");
        assert_eq!(unpacked(&bytes).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let whole = packed(b"0123456789");
        assert!(unpacked(&whole[..whole.len() - 3]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_packed_is_unpacked(parts in prop::collection::vec(prop::collection::vec(0u8..4, 0..2000), 0..5)) {
            let mut w = Compressed::new(Vec::new());
            for part in &parts {
                w.write_all(part).unwrap();
                w.flush().unwrap();
            }
            prop_assert_eq!(unpacked(&w.finish().unwrap()).unwrap(), parts.concat());
        }
    }
}
