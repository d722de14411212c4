//! The decision log: a line per input, and a line per decision of every cycle that did something.
//!
//! Lines are plain text. Inputs start with `>`, outputs with `<`; then the instant in nanoseconds, a
//! verb, and fields in a fixed order. What elapsed time has decided stands before the input that found it
//! so; only a wake stands before what it decides. Fed back through [`crate::replay`], the inputs give the same bytes.

use crate::ask::Ask;
use crate::effect::{Effects, Id, Refusal};
use crate::kernel::Progress;
use crate::pool::{Adapters, EndpointId, EndpointSpec, Reading, Sample};
use forebay_base::{Nanos, Span};
use std::fmt::{self, Display, Write};

/// The first words of a log; the number is the format's version.
pub const HEADER: &str = "forebay-decisions 1";

/// Takes the lines of a decision log.
pub trait Journal: Send {
    /// One line, without a line end.
    fn line(&mut self, line: fmt::Arguments<'_>);
}

/// A journal in memory.
impl Journal for String {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(self, "{line}");
    }
}

/// A name without blanks: `''` if it is empty, else everything but letters, digits and `-._~:/@+` is written as `%XX`.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("''");
        }
        for b in self.0.bytes() {
            if b.is_ascii_alphanumeric() || b"-._~:/@+".contains(&b) {
                f.write_char(char::from(b))?;
            } else {
                write!(f, "%{b:02X}")?;
            }
        }
        Ok(())
    }
}

/// The inverse of [`Escaped`].
pub(crate) fn unescape(text: &str) -> Option<String> {
    if text == "''" {
        return Some(String::new());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        if b == b'%' {
            let (high, low) =
                (char::from(rest.next()?).to_digit(16)?, char::from(rest.next()?).to_digit(16)?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

impl Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// `-` disabled, `?` missing, else the shortest decimal that reads back to the same bits.
impl Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Disabled => f.write_str("-"),
            Reading::Missing => f.write_str("?"),
            Reading::Value(x) => write!(f, "{x:?}"),
        }
    }
}

struct OrDash<T>(Option<T>);

impl<T: Display> Display for OrDash<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("-"),
            Some(x) => x.fmt(f),
        }
    }
}

struct List<'a, T>(&'a [T], fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result);

impl<T> Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        for (i, x) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            (self.1)(x, f)?;
        }
        Ok(())
    }
}

/// What the kernel writes. Every method returns at once when there is no journal.
impl Effects {
    fn write(&mut self, line: fmt::Arguments<'_>) {
        if let Some(j) = &mut self.journal {
            j.line(line);
        }
    }

    pub(crate) fn log_start(&mut self, seed: u64, now: Nanos) {
        self.write(format_args!("{HEADER} seed={seed} now={}", now.0));
    }

    pub(crate) fn log_verb(&mut self, now: Nanos, verb: &str) {
        self.write(format_args!("> {} {verb}", now.0));
    }

    pub(crate) fn log_id(&mut self, now: Nanos, verb: &str, id: Id) {
        self.write(format_args!("> {} {verb} {id}", now.0));
    }

    pub(crate) fn log_add(&mut self, now: Nanos, spec: &EndpointSpec) {
        if self.journal.is_some() {
            let labels = List(&spec.labels, |(k, v), f| write!(f, "{}={}", Escaped(k), Escaped(v)));
            self.write(format_args!("> {} add {} {labels}", now.0, Escaped(&spec.name)));
        }
    }

    pub(crate) fn log_endpoint(&mut self, now: Nanos, verb: &str, id: EndpointId) {
        self.write(format_args!("> {} {verb} {id}", now.0));
    }

    pub(crate) fn log_retry(&mut self, now: Nanos, id: Id, avoid: EndpointId) {
        self.write(format_args!("> {} retry {id} {avoid}", now.0));
    }

    pub(crate) fn log_scrape(&mut self, now: Nanos, id: EndpointId, taken: Nanos, s: &Sample) {
        if self.journal.is_none() {
            return;
        }
        self.write(format_args!(
            "> {} scrape {id} {} {} {} {} {} {}",
            now.0,
            taken.0,
            s.waiting,
            s.running,
            s.kv,
            OrDash(s.block_tokens),
            OrDash(s.blocks)
        ));
    }

    pub(crate) fn log_offer(&mut self, now: Nanos, ask: &Ask<'_>) {
        if self.journal.is_some() {
            let ttl = OrDash(ask.ttl.map(|t| t.0));
            let prefix = List(&ask.prefix, |h, f| write!(f, "{h:x}"));
            self.write(format_args!(
                "> {} offer {} {} {} {} {ttl} {} {} {prefix} {} {} {} {} {} {}",
                now.0,
                Escaped(ask.flow),
                ask.priority,
                ask.bytes,
                ask.prompt_tokens,
                ask.block_tokens,
                u8::from(ask.streaming),
                Escaped(&ask.model),
                Escaped(&ask.session),
                Escaped(&ask.sticky),
                OrDash(ask.slo_ttft.map(|t| t.0)),
                OrDash(ask.slo_tpot.map(|t| t.0)),
                OrDash(ask.max_output_tokens)
            ));
        }
    }

    pub(crate) fn log_adapters(&mut self, now: Nanos, id: EndpointId, a: &Adapters) {
        if self.journal.is_some() {
            let running = List(&a.running, |name, f| Escaped(name).fmt(f));
            let waiting = List(&a.waiting, |name, f| Escaped(name).fmt(f));
            self.write(format_args!("> {} adapters {id} {} {running} {waiting}", now.0, a.max));
        }
    }

    pub(crate) fn log_progress(&mut self, now: Nanos, id: Id, progress: Progress) {
        match progress {
            Progress::FirstToken => self.log_id(now, "first", id),
            Progress::Output(n) => self.write(format_args!("> {} output {id} {n}", now.0)),
            Progress::Finished(u) => {
                let (prompt, completion) = (OrDash(u.prompt), OrDash(u.completion));
                self.write(format_args!("> {} finished {id} {prompt} {completion}", now.0));
            }
            Progress::Failed => self.log_id(now, "failed", id),
        }
    }

    pub(crate) fn log_provision(&mut self, now: Nanos, priorities: &[i32]) {
        self.write(format_args!("> {} provision {}", now.0, List(priorities, |p, f| write!(f, "{p}"))));
    }

    pub(crate) fn log_cycle(&mut self, now: Nanos, saturation: f64, ceilings: &[f64], verb: &str, id: Id) {
        if self.journal.is_some() {
            let ceilings = List(ceilings, |c, f| write!(f, "{c:?}"));
            self.write(format_args!("< {} cycle {saturation:?} {ceilings} {verb} {id}", now.0));
        }
    }

    pub(crate) fn log_dispatch(
        &mut self,
        now: Nanos,
        id: Id,
        to: EndpointId,
        waited: Span,
        matched: u32,
        prefill: Option<EndpointId>,
    ) {
        let (now, waited) = (now.0, waited.0);
        match prefill {
            None => self.write(format_args!("< {now} dispatch {id} {to} {waited} {matched}")),
            Some(p) => self.write(format_args!("< {now} dispatch {id} {to} {waited} {matched} prefill {p}")),
        }
    }

    pub(crate) fn log_end(&mut self, now: Nanos, id: Id, refusal: Refusal, waited: Span) {
        self.write(format_args!("< {} end {id} {refusal} {}", now.0, waited.0));
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Queue(o) => o.label(),
            Refusal::Denied => "Denied",
            Refusal::Shed => "Shed",
            Refusal::NoCandidates => "NoCandidates",
            Refusal::FilteredOut => "FilteredOut",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_escaping() {
        for name in ["default-flow", "a b\nc", "ü%=,", "", "x=1,y=2"] {
            let text = Escaped(name).to_string();
            assert!(!text.contains([' ', '\n', '=', ',']), "{text}");
            assert_eq!(unescape(&text).as_deref(), Some(name));
        }
        assert_eq!(unescape("%G0"), None);
        assert_eq!(unescape("%4"), None);
    }
}
