//! Values from clients, made fit for logs and messages.

use std::fmt::{self, Write};

/// Shows a client's value escaped and capped: control characters, quotes and backslashes as escapes, at most `cap`
/// characters of the value, then `…`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    value: &'a str,
    cap: usize,
}

/// Shows at most 128 characters of a client's value.
pub fn shown(value: &str) -> Shown<'_> {
    shown_to(value, 128)
}

/// Shows at most `cap` characters of a client's value.
pub fn shown_to(value: &str, cap: usize) -> Shown<'_> {
    Shown { value, cap }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.value.chars();
        for c in chars.by_ref().take(self.cap) {
            match c {
                // Line and paragraph separators, and characters that change the direction of what follows.
                '\u{2028}'
                | '\u{2029}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' => write!(f, "{}", c.escape_unicode())?,
                '\'' => f.write_char(c)?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        if chars.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_caps() {
        assert_eq!(shown("plain-Ünïcode 模型 it's").to_string(), "plain-Ünïcode 模型 it's");
        assert_eq!(shown("a\nb\x1b[31m\"\\\u{202e}").to_string(), r#"a\nb\u{1b}[31m\"\\\u{202e}"#);
        assert_eq!(shown_to("abcdef", 3).to_string(), "abc…");
        assert_eq!(shown_to("abc", 3).to_string(), "abc");
        assert!(shown(&"x".repeat(1 << 20)).to_string().len() < 200);
    }
}
