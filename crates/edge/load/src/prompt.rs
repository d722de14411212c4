//! What is said: the same text for the same content, so that prefixes and sessions really hit caches.

use crate::target::Api;
use crate::words::Words;
use forebay_base::{Draws, Purpose};
use forebay_workload::{Arrival, BLOCK_TOKENS, Workload};
use std::collections::BTreeMap;

const OWN: Purpose = Purpose::named("load-own-text");
const SHARED: Purpose = Purpose::named("load-shared-text");

/// How words become tokens on a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Tokens per word, above 0.
    pub per_word: f64,
    /// Tokens that a prompt has beside its words: the chat template, a mark at the beginning.
    pub overhead: f64,
    /// Tokens that an answer and a further message have beside their words.
    pub per_turn: f64,
    /// Whether the server's usage told; otherwise all of this is assumed.
    pub measured: bool,
}

impl Default for Calibration {
    fn default() -> Calibration {
        Calibration { per_word: 1.0, overhead: 0.0, per_turn: 0.0, measured: false }
    }
}

/// What was said in a session, and what is being asked.
#[derive(Clone, Debug, Default)]
struct Talk {
    /// Questions with their answers.
    said: Vec<(String, String)>,
    /// Tokens of all of this as the workload counts them.
    tokens: u32,
    /// The question that is out, and the tokens there will be with its answer.
    asked: String,
    then: u32,
}

/// Makes the prompts of a run. Memory is what the open sessions have said.
#[derive(Clone, Debug)]
pub struct Prompts {
    words: Words,
    calibration: Calibration,
    salt: u64,
    api: Api,
    /// By class, whether prompts begin with what was said before.
    history: Vec<bool>,
    talks: BTreeMap<(u16, u64), Talk>,
    text: String,
}

impl Prompts {
    /// Texts under a salt: another one gives other texts, which no cache has seen.
    pub fn new(workload: &Workload, api: Api, words: Words, calibration: Calibration, salt: u64) -> Prompts {
        let history = |c: &forebay_workload::Class| c.sessions.as_ref().is_some_and(|s| s.history);
        Prompts {
            words,
            calibration,
            salt,
            api,
            history: workload.classes.iter().map(history).collect(),
            talks: BTreeMap::new(),
            text: String::new(),
        }
    }

    /// Whether the answer to a request will be repeated by the next of its session.
    pub fn wants_answer(&self, class: u16) -> bool {
        self.history.get(usize::from(class)).copied().unwrap_or(false)
    }

    /// Appends the part of a body that has the prompt: `"messages":[…]` or `"prompt":"…"`.
    pub fn write(&mut self, a: &Arrival, out: &mut Vec<u8>) {
        let mut talk = match a.session.filter(|_| self.wants_answer(a.class)) {
            Some(session) => {
                Some(((a.class, session), self.talks.remove(&(a.class, session)).unwrap_or_default()))
            }
            None => None,
        };
        let before = talk.as_ref().map_or(0, |(_, t)| t.tokens);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        self.words_of(a, before, &mut text);
        let said = talk.as_ref().map_or(&[][..], |(_, t)| &t.said);
        write_prompt(self.api, said, &text, out);
        if let Some((key, mut t)) = talk.take() {
            t.asked.clone_from(&text);
            t.then = a.prompt_tokens.saturating_add(a.output_tokens);
            self.talks.insert(key, t);
        }
        self.text = text;
    }

    /// The words of a prompt beyond what was said before.
    fn words_of(&self, a: &Arrival, before: u32, text: &mut String) {
        let c = self.calibration;
        let tokens = f64::from(a.prompt_tokens.saturating_sub(before));
        let beside = if before == 0 { c.overhead } else { c.per_turn };
        let count = ((tokens - beside) / c.per_word).round().max(1.0) as u64;
        let first = (f64::from(before) / c.per_word).round() as u64;
        let draws = Draws::new(self.salt);
        let own = draws.bits(OWN, a.key, u64::from(a.class));
        text.reserve(count as usize * 5);
        let mut block = (usize::MAX, 0);
        for place in first..first + count {
            let index = (place as f64 * c.per_word / f64::from(BLOCK_TOKENS)) as usize;
            if index != block.0 {
                block = (index, a.prefix.get(index).map_or(own, |hash| draws.bits(SHARED, *hash, 0)));
            }
            self.words.push(text, block.1, place);
        }
    }

    /// Tells the answer to the question that is out in a session; `goes_on` if another turn follows.
    pub fn answered(&mut self, class: u16, session: u64, answer: String, goes_on: bool) {
        if !goes_on {
            self.talks.remove(&(class, session));
        } else if let Some(talk) = self.talks.get_mut(&(class, session)) {
            talk.said.push((std::mem::take(&mut talk.asked), answer));
            talk.tokens = talk.then;
        }
    }

    /// Tells that a session is over.
    pub fn over(&mut self, class: u16, session: u64) {
        self.talks.remove(&(class, session));
    }

    /// Sessions that are remembered.
    pub fn remembered(&self) -> usize {
        self.talks.len()
    }
}

/// Appends a prompt as the body has it.
pub(crate) fn write_prompt(api: Api, said: &[(String, String)], text: &str, out: &mut Vec<u8>) {
    match api {
        Api::Chat => {
            out.extend_from_slice(b"\"messages\":[");
            for (question, answer) in said {
                message("user", question, out);
                out.push(b',');
                message("assistant", answer, out);
                out.push(b',');
            }
            message("user", text, out);
            out.push(b']');
        }
        Api::Completions => {
            out.extend_from_slice(b"\"prompt\":\"");
            for (question, answer) in said {
                escaped(question, out);
                escaped(answer, out);
            }
            escaped(text, out);
            out.push(b'"');
        }
    }
}

fn message(role: &str, text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"role\":\"");
    out.extend_from_slice(role.as_bytes());
    out.extend_from_slice(b"\",\"content\":\"");
    escaped(text, out);
    out.extend_from_slice(b"\"}");
}

/// Appends a text as it stands within a JSON string.
pub(crate) fn escaped(text: &str, out: &mut Vec<u8>) {
    if text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\') {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let quoted = serde_json::Value::from(text).to_string();
    out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_workload::Workload;
    use serde_json::Value;

    fn workload(class: &str) -> Workload {
        let text = format!(
            "version: 1\nname: t\nmode: {{kind: surge, window: 100s}}\nclasses:\n  a: {{arrivals: {{process: poisson, rate: 5}}, {class}}}\n"
        );
        Workload::read(&text, "t").unwrap()
    }

    fn written(prompts: &mut Prompts, a: &Arrival) -> Value {
        let mut out = b"{".to_vec();
        prompts.write(a, &mut out);
        out.push(b'}');
        serde_json::from_slice(&out).unwrap()
    }

    fn new(w: &Workload, api: Api, salt: u64) -> Prompts {
        Prompts::new(w, api, Words::default(), Calibration::default(), salt)
    }

    fn common(a: &str, b: &str) -> usize {
        a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_group_shares_its_text_and_nothing_more() {
        let w = workload("input: 40, output: 5, prompts: {groups: 1, prefix: 64}");
        let mut arrivals = w.arrivals(1);
        let mut prompts = new(&w, Api::Completions, 7);
        let (a, b) = (arrivals.next().unwrap(), arrivals.next().unwrap());
        let (x, y) = (written(&mut prompts, &a), written(&mut prompts, &b));
        let (x, y) = (x["prompt"].as_str().unwrap(), y["prompt"].as_str().unwrap());
        assert_eq!((x.len(), y.len()), (104 * 4, 104 * 4), "a word is a token");
        assert!((64 * 4..66 * 4).contains(&common(x, y)), "{}", common(x, y));
        let mut salted = new(&w, Api::Completions, 8);
        assert!(common(x, written(&mut salted, &a)["prompt"].as_str().unwrap()) < 16);
    }

    #[test]
    fn a_pool_repeats_its_prompts() {
        let w = workload("input: {uniform: [20, 90]}, output: 5, prompts: {groups: 2, prefix: 32, pool: 3}");
        let mut arrivals = w.arrivals(1);
        let mut prompts = new(&w, Api::Chat, 7);
        let texts: std::collections::BTreeSet<String> =
            (0..60).map(|_| written(&mut prompts, &arrivals.next().unwrap()).to_string()).collect();
        // The last tokens of a prompt fill no block, and are nobody else's.
        let starts: std::collections::BTreeSet<&str> = texts.iter().map(|t| &t[..t.len() / 2]).collect();
        assert_eq!(starts.len(), 6);
    }

    #[test]
    fn a_session_repeats_what_was_said() {
        let w = workload("input: 40, output: 5, sessions: {turns: 3, think: 1s}");
        let mut arrivals = w.arrivals(1);
        let mut prompts = new(&w, Api::Chat, 7);
        let a = arrivals.next().unwrap();
        let first = written(&mut prompts, &a)["messages"].clone();
        let again = written(&mut prompts, &a)["messages"].clone();
        assert_eq!(first, again, "a second send says the same");
        let session = a.session.unwrap();
        assert!(arrivals.ended(a.number, a.at));
        prompts.answered(0, session, "Well,\n\"no\"".into(), true);
        let b = std::iter::from_fn(|| arrivals.next()).find(|b| b.session == Some(session)).unwrap();
        let second = written(&mut prompts, &b)["messages"].clone();
        assert_eq!(second[0], first[0]);
        assert_eq!(second[1]["content"], "Well,\n\"no\"");
        assert_eq!(second[2]["content"].as_str().unwrap().len(), 160, "40 tokens more");
        assert_eq!(second.as_array().unwrap().len(), 3);
        assert_ne!(second[2], second[0]);
        prompts.over(0, session);
        assert_eq!(prompts.remembered(), 0);
    }

    #[test]
    fn counts_follow_the_calibration() {
        let w = workload("input: 100, output: 5");
        let calibration = Calibration { per_word: 1.25, overhead: 10.0, per_turn: 0.0, measured: true };
        let mut prompts = Prompts::new(&w, Api::Completions, Words::default(), calibration, 1);
        let text = written(&mut prompts, &w.arrivals(1).next().unwrap());
        assert_eq!(text["prompt"].as_str().unwrap().split_whitespace().count(), 72);
    }
}
