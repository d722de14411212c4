//! Synthetic text, its tokens, and the names of KV blocks.

use forebay_base::{Draws, Purpose};
use std::sync::Arc;
use xxhash_rust::xxh64::xxh64;

/// Bytes of text per token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// The pieces that generated text is made of, four bytes each.
const PIECES: [&str; 64] = [
    " the", " and", " for", " you", " not", " are", " but", " his", " her", " was", " one", " our", " out",
    " day", " had", " has", " him", " how", " man", " new", " now", " old", " see", " two", " way", " who",
    " boy", " did", " its", " let", " put", " say", " she", " too", " use", " dad", " mom", " sun", " sea",
    " sky", " run", " far", " ask", " own", " yet", " why", " try", " few", " got", " air", " end", " set",
    " big", " act", " age", " red", " hot", " car", " eye", " job", " law", " map", " net", " low",
];

/// Mixes a word (the finalizer of MurmurHash3).
fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Turns text into token ids below `vocab`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokenizer {
    pub(crate) vocab: u32,
}

impl Tokenizer {
    /// The id of one piece of at most four bytes.
    fn id(self, piece: &[u8]) -> u32 {
        let mut word = [0u8; BYTES_PER_TOKEN];
        word[..piece.len()].copy_from_slice(piece);
        ((u64::from(mix(u32::from_le_bytes(word))) * u64::from(self.vocab)) >> 32) as u32
    }

    /// Appends the tokens of a text: one per four bytes, rounded up.
    pub(crate) fn text(self, text: &str, out: &mut Vec<u32>) {
        out.extend(text.as_bytes().chunks(BYTES_PER_TOKEN).map(|piece| self.id(piece)));
    }

    /// Appends the three tokens that open a chat message.
    pub(crate) fn open(self, role: &str, out: &mut Vec<u32>) {
        let role = xxh64(role.as_bytes(), 0) as u32;
        out.extend([self.id(b"<|>"), self.id(&role.to_le_bytes()), self.id(b"\n")]);
    }

    /// Appends the two tokens that close a chat message.
    pub(crate) fn close(self, out: &mut Vec<u32>) {
        out.extend([self.id(b"</>"), self.id(b"\n")]);
    }
}

/// The text of one choice: token `i` is a piece drawn for (seed, `i`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Voice(u64);

const VOICE: Purpose = Purpose::named("emulated text");

impl Voice {
    /// The voice for a prompt: `seed` is the server's, `asked` the request's.
    pub(crate) fn new(seed: u64, prompt: &[u32], asked: i64, choice: u32) -> Voice {
        let hash = tokens_hash(prompt, seed);
        Voice(Draws::new(hash).bits(VOICE, asked as u64, u64::from(choice)))
    }

    /// The text of a token, four bytes of ASCII.
    pub(crate) fn piece(self, index: u32) -> &'static str {
        PIECES[Draws::new(self.0).below(VOICE, u64::from(index), 0, PIECES.len() as u64) as usize]
    }

    /// A uniform value in (0, 1) that belongs to this choice.
    pub(crate) fn chance(self, lane: u64) -> f64 {
        Draws::new(self.0).unit(VOICE, u64::MAX, lane)
    }
}

fn tokens_hash(tokens: &[u32], seed: u64) -> u64 {
    let mut hash = seed;
    let mut bytes = [0u8; 256];
    for group in tokens.chunks(bytes.len() / 4) {
        for (to, token) in bytes.chunks_exact_mut(4).zip(group) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        hash = xxh64(&bytes[..group.len() * 4], hash);
    }
    hash
}

/// The names of the full blocks of a sequence: block `i` is xxh64 over its token ids, seeded with the
/// name of block `i - 1`.
pub(crate) fn block_names(
    prompt: &[u32],
    tokenizer: Tokenizer,
    voice: Voice,
    output: u32,
    block_size: u32,
) -> Arc<[u64]> {
    let mut hash = 0;
    let mut bytes = Vec::with_capacity(block_size as usize * 4);
    let mut names = Vec::with_capacity((prompt.len() + output as usize) / block_size as usize);
    let generated = (0..output).map(|i| tokenizer.id(voice.piece(i).as_bytes()));
    for token in prompt.iter().copied().chain(generated) {
        bytes.extend_from_slice(&token.to_le_bytes());
        if bytes.len() == block_size as usize * 4 {
            hash = xxh64(&bytes, hash);
            names.push(hash);
            bytes.clear();
        }
    }
    names.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Tokenizer = Tokenizer { vocab: 1000 };

    fn tokens(text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        T.text(text, &mut out);
        out
    }

    #[test]
    fn a_token_is_four_bytes() {
        assert!(PIECES.iter().all(|p| p.len() == BYTES_PER_TOKEN && p.is_ascii()));
        for (text, n) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("Hello world", 3)] {
            assert_eq!(tokens(text).len(), n, "{text}");
        }
        assert!(tokens("any text at all").iter().all(|&t| t < 1000));
    }

    #[test]
    fn block_names_chain_through_prompt_and_output() {
        let prompt = tokens(&"x".repeat(16 * 4 * 2 + 8));
        let voice = Voice::new(1, &prompt, 0, 0);
        let names = block_names(&prompt, T, voice, 40, 16);
        assert_eq!(names.len(), (34 + 40) / 16);
        // The next turn: the same prompt with the answer as text behind it.
        let mut next = prompt.clone();
        for i in 0..40 {
            T.text(voice.piece(i), &mut next);
        }
        assert_eq!(block_names(&next, T, voice, 0, 16), names);
        // One token changed at the front changes every name.
        let mut other = prompt.clone();
        other[0] ^= 1;
        let others = block_names(&other, T, voice, 40, 16);
        assert!(names.iter().zip(others.iter()).all(|(a, b)| a != b));
    }

    #[test]
    fn text_is_the_same_for_the_same_seed_only() {
        let prompt = tokens("tell me");
        let say = |v: Voice| (0..50).map(|i| v.piece(i)).collect::<String>();
        let a = say(Voice::new(1, &prompt, 0, 0));
        assert_eq!(a, say(Voice::new(1, &prompt, 0, 0)));
        for other in
            [Voice::new(2, &prompt, 0, 0), Voice::new(1, &prompt, 7, 0), Voice::new(1, &prompt, 0, 1)]
        {
            assert_ne!(a, say(other));
        }
    }
}
