//! Feeds the inputs of a decision log to a fresh kernel and compares what it decides.

use crate::ask::Ask;
use crate::effect::{Effects, Id};
use crate::journal::{HEADER, Journal, unescape};
use crate::kernel::{Kernel, Progress};
use crate::plan::Plan;
use crate::policy::Usage;
use crate::pool::{Adapters, EndpointId, EndpointSpec, Reading, Sample};
use forebay_base::{Diagnostic, Nanos, Position, Span};
use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};
use std::sync::{Arc, Mutex};

/// The outcome of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Lines of the log.
    pub lines: usize,
    /// Inputs among them.
    pub inputs: usize,
    /// Decisions among them.
    pub decisions: usize,
    /// The first line that came out differently.
    pub difference: Option<Difference>,
}

/// What cannot be read is boxed: a diagnostic is large and rare.
type Read<T> = Result<T, Box<Diagnostic>>;

/// Where a replay left the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The line, from 1.
    pub line: usize,
    /// As logged; `None` if the replay wrote more.
    pub logged: Option<String>,
    /// As replayed; `None` if the replay wrote less.
    pub replayed: Option<String>,
}

/// A journal that several owners can look into.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<String>>);

impl Journal for Shared {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        if let Ok(mut text) = self.0.lock() {
            text.line(line);
        }
    }
}

/// Replays `log` under `plan`.
///
/// # Errors
/// A diagnostic with the line if the log cannot be read.
pub fn replay(plan: Arc<Plan>, log: &str) -> Read<Report> {
    let mut lines = log.lines().enumerate();
    let (_, first) = lines.next().ok_or_else(|| bad(1, "the log is empty", HEADER))?;
    let mut words = Words { line: 1, rest: first.split_ascii_whitespace() };
    let (name, version) = (words.next("name")?, words.next("version")?);
    if format!("{name} {version}") != HEADER {
        return Err(bad(1, &format!("found {first:?}"), HEADER));
    }
    let seed: u64 = words.field("seed")?;
    let now: u64 = words.field("now")?;

    let journal = Shared::default();
    let mut fx = Effects { journal: Some(Box::new(journal.clone())), ..Effects::new() };
    let mut kernel = Kernel::new(plan, seed, Nanos(now), &mut fx);
    let (mut inputs, mut decisions) = (0, 0);
    for (i, line) in lines {
        let mut words = Words { line: i + 1, rest: line.split_ascii_whitespace() };
        match words.next("direction")? {
            ">" => inputs += 1,
            "<" => {
                decisions += 1;
                continue;
            }
            other => return Err(bad(i + 1, &format!("found {other:?}"), "`>` or `<`")),
        }
        feed(&mut kernel, &mut words, &mut fx)?;
        fx.list.clear();
    }
    let replayed = journal.0.lock().map(|t| t.clone()).unwrap_or_default();
    let (mut a, mut b) = (log.lines(), replayed.lines());
    let mut line = 0;
    let difference = loop {
        line += 1;
        match (a.next(), b.next()) {
            (None, None) => break None,
            (x, y) if x == y => {}
            (x, y) => {
                break Some(Difference {
                    line,
                    logged: x.map(str::to_owned),
                    replayed: y.map(str::to_owned),
                });
            }
        }
    };
    Ok(Report { lines: log.lines().count(), inputs, decisions, difference })
}

fn bad(line: usize, found: &str, expected: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(Position { line: line as u32, column: 1 }, "", found).expected(expected))
}

struct Words<'a> {
    line: usize,
    rest: SplitAsciiWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Read<&'a str> {
        self.rest.next().ok_or_else(|| bad(self.line, "the line ends", what))
    }
    fn parse<T: FromStr>(&mut self, what: &str) -> Read<T> {
        let word = self.next(what)?;
        word.parse().map_err(|_| bad(self.line, &format!("found {word:?}"), what))
    }
    fn field<T: FromStr>(&mut self, name: &str) -> Read<T> {
        let word = self.next(name)?;
        let value = word.strip_prefix(name).and_then(|w| w.strip_prefix('='));
        value
            .and_then(|v| v.parse().ok())
            .ok_or_else(|| bad(self.line, &format!("found {word:?}"), &format!("{name}=NUMBER")))
    }
    fn optional<T: FromStr>(&mut self, what: &str) -> Read<Option<T>> {
        match self.next(what)? {
            "-" => Ok(None),
            word => word.parse().map(Some).map_err(|_| bad(self.line, &format!("found {word:?}"), what)),
        }
    }
    fn reading(&mut self, what: &str) -> Read<Reading> {
        match self.next(what)? {
            "-" => Ok(Reading::Disabled),
            "?" => Ok(Reading::Missing),
            word => word
                .parse()
                .map(Reading::Value)
                .map_err(|_| bad(self.line, &format!("found {word:?}"), "a number, `-` or `?`")),
        }
    }
    fn pair(&mut self, what: &str) -> Read<(u32, u32)> {
        let word = self.next(what)?;
        word.split_once('.')
            .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
            .ok_or_else(|| bad(self.line, &format!("found {word:?}"), "INDEX.GENERATION"))
    }
    fn id(&mut self) -> Read<Id> {
        self.pair("a request").map(|(index, generation)| Id { index, generation })
    }
    fn endpoint(&mut self) -> Read<EndpointId> {
        self.pair("an endpoint").map(|(index, generation)| EndpointId { index, generation })
    }
    fn name(&mut self, what: &str) -> Read<String> {
        let word = self.next(what)?;
        unescape(word).ok_or_else(|| bad(self.line, &format!("found {word:?}"), what))
    }
    fn list<T>(&mut self, what: &str, item: impl Fn(&str) -> Option<T>) -> Read<Vec<T>> {
        match self.next(what)? {
            "-" => Ok(Vec::new()),
            word => word
                .split(',')
                .map(|w| item(w).ok_or_else(|| bad(self.line, &format!("found {w:?}"), what)))
                .collect(),
        }
    }
}

/// The words of a request.
fn offer(k: &mut Kernel, w: &mut Words<'_>, now: Nanos, fx: &mut Effects) -> Read<()> {
    let flow = w.name("a fairness id")?;
    let (priority, bytes) = (w.parse("a priority")?, w.parse("bytes")?);
    let prompt_tokens = w.parse("tokens")?;
    let ttl = w.optional::<u64>("a TTL in nanoseconds")?.map(Span);
    let block_tokens = w.parse("tokens per block")?;
    let streaming = w.parse::<u8>("1 if the answer streams, else 0")? == 1;
    let prefix = w.list("block hashes", |h| u64::from_str_radix(h, 16).ok())?.into();
    let (model, session) = (w.name("a model")?.into(), w.name("a session")?.into());
    let sticky = w.name("an endpoint name")?.into();
    let slo_ttft = w.optional::<u64>("a time in nanoseconds")?.map(Span);
    let slo_tpot = w.optional::<u64>("a time in nanoseconds")?.map(Span);
    let ask = Ask {
        flow: &flow,
        priority,
        bytes,
        prompt_tokens,
        prefix,
        block_tokens,
        streaming,
        model,
        session,
        sticky,
        slo_ttft,
        slo_tpot,
        max_output_tokens: w.optional("tokens")?,
        ttl,
    };
    k.offer(now, &ask, fx);
    Ok(())
}

fn feed(k: &mut Kernel, w: &mut Words<'_>, fx: &mut Effects) -> Read<()> {
    let now = Nanos(w.parse("an instant in nanoseconds")?);
    match w.next("a verb")? {
        "add" => {
            let name = w.name("an endpoint name")?;
            let labels = w.list("labels", |pair| {
                let (key, value) = pair.split_once('=')?;
                Some((unescape(key)?, unescape(value)?))
            })?;
            k.add_endpoint(now, EndpointSpec { name, labels }, fx);
        }
        "remove" => k.remove_endpoint(now, w.endpoint()?, fx),
        "scrape" => {
            let id = w.endpoint()?;
            let taken = Nanos(w.parse("an instant in nanoseconds")?);
            let sample = Sample {
                waiting: w.reading("waiting requests")?,
                running: w.reading("running requests")?,
                kv: w.reading("KV cache use")?,
                block_tokens: w.optional("tokens per block")?,
                blocks: w.optional("blocks")?,
            };
            k.scraped(now, id, taken, &sample, fx);
        }
        "offer" => offer(k, w, now, fx)?,
        "eject" => k.set_available(now, w.endpoint()?, false, fx),
        "restore" => k.set_available(now, w.endpoint()?, true, fx),
        "retry" => {
            let id = w.id()?;
            k.retry(now, id, w.endpoint()?, fx);
        }
        "gone" => k.gone(now, w.id()?, fx),
        "first" => k.progress(now, w.id()?, Progress::FirstToken, fx),
        "output" => {
            let (id, tokens) = (w.id()?, w.parse("tokens")?);
            k.progress(now, id, Progress::Output(tokens), fx);
        }
        "finished" => {
            let id = w.id()?;
            let usage = Usage { prompt: w.optional("tokens")?, completion: w.optional("tokens")? };
            k.progress(now, id, Progress::Finished(usage), fx);
        }
        "adapters" => {
            let (id, max) = (w.endpoint()?, w.parse("a number of adapters")?);
            let running = w.list("adapter names", unescape)?;
            let waiting = w.list("adapter names", unescape)?;
            k.adapters(now, id, Arc::new(Adapters { running, waiting, max }), fx);
        }
        "failed" => k.progress(now, w.id()?, Progress::Failed, fx),
        "wake" => k.wake(now, fx),
        "provision" => {
            let priorities = w.list("priorities", |p| p.parse().ok())?;
            k.provision(now, &priorities, fx);
        }
        "drain" => k.drain(now, fx),
        "close" => k.close(now, fx),
        verb => return Err(bad(w.line, &format!("found the verb {verb:?}"), "an input of the kernel")),
    }
    Ok(())
}
