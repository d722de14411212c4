//! Text whose tokens can be counted: words that tokenizers have whole, drawn by number.

use forebay_base::{Diagnostic, Diagnostics, Draws, Position, Purpose};
use serde_json::Value;

const WORD: Purpose = Purpose::named("load-word");

/// Common English words of three letters. With the blank before it each is one token in the vocabularies of
/// GPT-2, Llama 3, Qwen and Mistral, and four bytes.
const COMMON: &str = "the and for you not are but his her was one our out day had has him how man new now old see two \
     way who boy did its let put say she too use dad mom sun sea sky run far ask own yet why try few got air end set big \
     act age red hot car eye job law map net low may any all can get top war art bad bag bar bed bit box bus buy cup cut \
     dog dry ear eat egg fat fit fly fun gas gun hat hit ice key kid leg lie lot mix oil pay per pop raw row sad sat sir \
     sir sit six son tax tea ten tie tip war wet win yes zoo add ago aim arm bay bet bow cat cow cry die dig due era fan";

/// The most words that are taken from a tokenizer.
const MOST: usize = 4096;
/// The fewest that are enough for texts that differ.
const FEWEST: usize = 64;

/// The words that text is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Each with the blank before it.
    list: Vec<Box<str>>,
    exact: bool,
}

impl Default for Words {
    fn default() -> Words {
        let mut list: Vec<Box<str>> = COMMON.split_whitespace().map(|w| format!(" {w}").into()).collect();
        list.sort_unstable();
        list.dedup();
        Words { list, exact: false }
    }
}

impl Words {
    /// The words that a tokenizer has as one token: read from `text`, the content of a `tokenizer.json` of Hugging
    /// Face, called `file` in errors. Of these the first 4096 of lower-case letters that follow a blank.
    pub fn of_tokenizer(text: &str, file: &str) -> Result<Words, Diagnostics> {
        let wrong = |message: String, expected: &str| {
            let d =
                Diagnostic::error(Position { line: 1, column: 1 }, "model.vocab", message).expected(expected);
            let mut all = Diagnostics(vec![d]);
            all.finish(file);
            all
        };
        let json: Value = serde_json::from_str(text).map_err(|e| {
            let at = Position { line: e.line() as u32, column: e.column() as u32 };
            let mut all = Diagnostics(vec![Diagnostic::error(at, "", e.to_string())]);
            all.finish(file);
            all
        })?;
        let vocabulary = &json["model"]["vocab"];
        let mut list: Vec<(u64, &str)> = match vocabulary {
            // Byte-pair encoding and WordPiece: text to id. Early ids are frequent words.
            Value::Object(map) => {
                map.iter().map(|(t, id)| (id.as_u64().unwrap_or(u64::MAX), t.as_str())).collect()
            }
            // Unigram: pairs of text and score, in the order of ids.
            Value::Array(all) => {
                all.iter().enumerate().filter_map(|(i, pair)| Some((i as u64, pair[0].as_str()?))).collect()
            }
            _ => return Err(wrong("no vocabulary".into(), "the tokenizer.json of a model")),
        };
        list.sort_unstable();
        let list: Vec<Box<str>> = list.iter().filter_map(|(_, t)| word(t)).take(MOST).collect();
        if list.len() < FEWEST {
            let found = format!("{} words of lower-case letters that follow a blank", list.len());
            return Err(wrong(found, "64 at least"));
        }
        Ok(Words { list, exact: true })
    }

    /// Whether they come from a tokenizer, so that each is known to be one token.
    pub fn are_exact(&self) -> bool {
        self.exact
    }

    /// Appends the word that `text` has at a place; the same for the same arguments.
    pub fn push(&self, out: &mut String, text: u64, place: u64) {
        let index = Draws::new(text).below(WORD, place, 0, self.list.len() as u64);
        out.push_str(&self.list[index as usize]);
    }

    /// So many words of a text.
    pub fn say(&self, text: u64, count: u64) -> String {
        let mut out = String::new();
        (0..count).for_each(|place| self.push(&mut out, text, place));
        out
    }
}

/// The word of a token that begins with a blank: `Ġ` in byte-level vocabularies, `▁` in those of SentencePiece.
fn word(token: &str) -> Option<Box<str>> {
    let rest = token.strip_prefix('Ġ').or_else(|| token.strip_prefix('▁'))?;
    (rest.len() >= 2 && rest.bytes().all(|b| b.is_ascii_lowercase())).then(|| format!(" {rest}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_words_are_four_bytes_each() {
        let words = Words::default();
        assert!(words.list.iter().all(|w| w.len() == 4 && w.is_ascii()) && words.list.len() > 120);
        let say = |text| words.say(text, 50);
        assert_eq!(say(1), say(1));
        assert_ne!(say(1), say(2));
        assert_eq!(say(1).len(), 200);
    }

    #[test]
    fn a_tokenizer_gives_its_whole_words() {
        let letters = || ('a'..='z').flat_map(|a| ('a'..='d').map(move |b| format!("{a}{b}")));
        let bpe: Vec<String> = letters().enumerate().map(|(i, w)| format!("\"Ġ{w}\": {}", 900 - i)).collect();
        let text = format!(
            "{{\"model\": {{\"vocab\": {{\"x\": 1, \"Ġa\": 2, \"Ġ\u{e9}t\": 3, {}}}}}}}",
            bpe.join(",")
        );
        let words = Words::of_tokenizer(&text, "t.json").unwrap();
        assert_eq!((words.list.len(), &*words.list[0], words.are_exact()), (104, " zd", true));
        let unigram: Vec<String> = letters().map(|w| format!("[\"▁{w}\", -1.5]")).collect();
        let text = format!("{{\"model\": {{\"vocab\": [{}]}}}}", unigram.join(","));
        assert_eq!(&*Words::of_tokenizer(&text, "t.json").unwrap().list[0], " aa");
    }

    #[test]
    fn what_is_no_tokenizer_is_told() {
        let found = |text| Words::of_tokenizer(text, "t.json").unwrap_err().to_string();
        assert!(found("{").starts_with("error: t.json:1:1: "), "{}", found("{"));
        assert_eq!(
            found("{}"),
            "error: t.json:1:1: model.vocab: no vocabulary; expected the tokenizer.json of a model"
        );
        assert!(found(r#"{"model":{"vocab":{"Ġthe":1}}}"#).contains("1 words of lower-case letters"));
    }
}
