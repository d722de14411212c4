//! Recordings that a live router has made, as traces: with the flows, sessions, adapters and prompts of their
//! requests, and with what became of each.

use super::{Trace, TraceRow};
use crate::spec::{Assign, Class, Feed, Flows, Kind, Lora, Mode, Workload};
use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use forebay_records::Row;
use forebay_records::recording::{Entry, Head, read_entry, read_head};
use forebay_records::stats::Slo;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// After so many mistakes the rest is not worth reading.
const MOST_FINDINGS: usize = 20;
/// Bytes of a token where no engine has counted any.
const BYTES_PER_TOKEN: f64 = 4.0;

/// What a row of a recording has beside a trace's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Person {
    /// Index of its flow within its label.
    pub(crate) flow: u32,
    /// Index of its adapter within its label.
    pub(crate) lora: Option<u16>,
    /// Number of its session.
    pub(crate) session: Option<u64>,
    /// Hoped-for time to first token.
    pub(crate) slo_ttft: Option<Span>,
    /// Bytes of its body.
    pub(crate) bytes: u64,
}

/// What a recording adds to a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct People {
    /// By row.
    pub(crate) rows: Vec<Person>,
    /// Names of flows, by label.
    flows: Vec<Vec<String>>,
    /// Names of adapters, by label.
    loras: Vec<Vec<String>>,
    /// Bytes of prompt text per token, over all requests that an engine has counted: one ratio for all, so
    /// that what prompts have in common is equally long for each.
    pub(crate) bytes_per_token: f64,
    /// Bytes under a hash.
    pub(crate) block_bytes: u32,
}

impl People {
    /// Ids of 16-token blocks: that of the block of bytes in which each ends, as far as there are hashes.
    pub(crate) fn ids<'a>(&'a self, ids: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        let block = f64::from(self.block_bytes.max(1));
        let step = f64::from(crate::BLOCK_TOKENS) * self.bytes_per_token;
        (1..).map_while(move |k: u32| {
            let place = ((f64::from(k) * step - 1.0).max(0.0) / block) as usize;
            ids.get(place).copied()
        })
    }
}

/// A recording, read.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its requests as a workload: a class per priority, named by the objective where there is only one.
    pub workload: Workload,
    /// What became of each, in the order of arrival; classes are the workload's, endpoints are numbered.
    pub rows: Vec<Row>,
    /// What was read.
    pub counts: RecordingCounts,
}

/// What a recording is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingCounts {
    /// Files.
    pub files: u64,
    /// Requests.
    pub requests: u64,
    /// Of these, whose answer was streamed, so that its first token was seen; those without an answer count.
    pub streamed: u64,
    /// Whose prompt's length is an estimate.
    pub prompts_estimated: u64,
    /// Whose answer's length is an estimate.
    pub outputs_estimated: u64,
    /// Whose answer's length is not known, because they were refused, failed or left: they take another's.
    pub outputs_borrowed: u64,
    /// Lines that end in the middle, because the router was killed or its disk was full.
    pub torn: u64,
    /// Keys: hashes under different ones have nothing in common.
    pub keys: u64,
}

/// An entry with its time since 1970.
struct At {
    unix_ns: u64,
    entry: Entry,
}

/// Reads the files of a folder, one after the other; the order does not matter. `folder` names the workload.
///
/// # Errors
/// Everything that is wrong in them, by file and line, or that there is no request.
pub fn read_recording(
    folder: &str,
    files: impl IntoIterator<Item = (String, String)>,
) -> Result<Recording, Diagnostics> {
    let mut all = Vec::new();
    let mut counts = RecordingCounts::default();
    let mut keys = BTreeSet::new();
    let mut wrong = Diagnostics::default();
    let mut block_bytes = None;
    for (name, text) in files {
        counts.files += 1;
        let mut found = Diagnostics::default();
        if let Some(head) = file(&text, &mut all, &mut counts, &mut found) {
            if *block_bytes.get_or_insert(head.block_bytes) != head.block_bytes {
                let what = format!("hashes of {} bytes, other files have another size", head.block_bytes);
                found.push(Diagnostic::error(Position { line: 1, column: 1 }, "block_bytes", what));
            }
            keys.insert(head.key);
        }
        found.finish(&name);
        wrong.0.extend(found.0);
    }
    if all.is_empty() && !wrong.has_errors() {
        let what = "no request is recorded here";
        let d =
            Diagnostic::error(Position::default(), "", what).expected("files forebay-….jsonl of a recording");
        wrong.push(d);
        wrong.finish(folder);
    }
    if wrong.has_errors() {
        return Err(wrong);
    }
    counts.keys = keys.len() as u64;
    all.sort_by_key(|a| a.unix_ns);
    Ok(build(folder, &all, counts, block_bytes.unwrap_or(1)))
}

fn file(
    text: &str,
    all: &mut Vec<At>,
    counts: &mut RecordingCounts,
    found: &mut Diagnostics,
) -> Option<Head> {
    let wrong = |line: usize, message: String| {
        Diagnostic::error(Position { line: line as u32 + 1, column: 1 }, "", message)
    };
    let whole = text.ends_with('\n');
    let mut lines = text.lines().enumerate().peekable();
    let Some((_, first)) = lines.next() else {
        // Killed before its head was written.
        counts.torn += 1;
        return None;
    };
    let head = match read_head(first) {
        Ok(head) => head,
        Err(_) if lines.peek().is_none() && !whole => {
            counts.torn += 1;
            return None;
        }
        Err(message) => {
            found.push(wrong(0, message));
            return None;
        }
    };
    while let Some((i, line)) = lines.next() {
        let entry = read_entry(line).and_then(|e| {
            e.hashes()?;
            e.ended()?;
            Ok(e)
        });
        match entry {
            Ok(entry) => {
                let unix_ns = head.started_unix_ns.saturating_add(entry.arrived_ns);
                all.push(At { unix_ns, entry });
            }
            Err(_) if lines.peek().is_none() && !whole => counts.torn += 1,
            Err(message) => {
                found.push(wrong(i, message));
                if found.0.len() >= MOST_FINDINGS {
                    break;
                }
            }
        }
    }
    Some(head)
}

/// Names by priority: the objective if all requests of the priority name it, else `priority N`.
fn classes(all: &[At]) -> Vec<(i32, String)> {
    let mut by: BTreeMap<i32, BTreeSet<&str>> = BTreeMap::new();
    for a in all {
        by.entry(a.entry.priority).or_default().insert(a.entry.objective.as_deref().unwrap_or_default());
    }
    let name = |(priority, objectives): (&i32, &BTreeSet<&str>)| {
        let mut named = objectives.iter().filter(|o| !o.is_empty());
        let name = match (named.next(), named.next()) {
            // Two priorities can have one objective, after it has been changed.
            (Some(one), None) if by_name_is_unique(&by, one) => (*one).to_owned(),
            _ => format!("priority {priority}"),
        };
        (*priority, name)
    };
    by.iter().rev().map(name).collect()
}

fn by_name_is_unique(by: &BTreeMap<i32, BTreeSet<&str>>, name: &str) -> bool {
    by.values().filter(|o| o.contains(name)).count() == 1
}

/// Numbers for names in the order in which they appear.
fn number(names: &mut Vec<String>, places: &mut HashMap<String, u32>, name: &str) -> u32 {
    if let Some(n) = places.get(name) {
        return *n;
    }
    let n = names.len() as u32;
    places.insert(name.to_owned(), n);
    names.push(name.to_owned());
    n
}

fn bytes_per_token(all: &[At]) -> f64 {
    let counted = all.iter().map(|a| &a.entry).filter(|e| !e.prompt_estimated && e.prompt_bytes > 0);
    let (bytes, tokens) = counted.fold((0u64, 0u64), |(b, t), e| (b + e.prompt_bytes, t + e.prompt_tokens));
    if tokens == 0 { BYTES_PER_TOKEN } else { (bytes as f64 / tokens as f64).clamp(0.1, 1_000.0) }
}

fn build(folder: &str, all: &[At], mut counts: RecordingCounts, block_bytes: u32) -> Recording {
    let ratio = bytes_per_token(all);
    let classes = classes(all);
    let labels: Vec<String> = classes.iter().map(|(_, name)| name.clone()).collect();
    let mut people = People {
        flows: vec![Vec::new(); labels.len()],
        loras: vec![Vec::new(); labels.len()],
        bytes_per_token: ratio,
        block_bytes,
        rows: Vec::with_capacity(all.len()),
    };
    let mut trace = Trace { labels, ..Trace::default() };
    let (mut flows, mut loras) = (vec![HashMap::new(); classes.len()], vec![HashMap::new(); classes.len()]);
    let (mut sessions, mut session_names) = (HashMap::new(), Vec::new());
    let (mut endpoints, mut endpoint_names) = (HashMap::new(), Vec::new());
    let origin = all.first().map_or(0, |a| a.unix_ns);
    let mut rows = Vec::with_capacity(all.len());
    let heard = answers(all, ratio, block_bytes);
    for (i, At { unix_ns, entry: e }) in all.iter().enumerate() {
        let label = classes.iter().position(|(p, _)| *p == e.priority).unwrap_or(0);
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let known = e.output_tokens.filter(|n| *n > 0 && e.is_finished());
        counts.requests += 1;
        counts.streamed += u64::from(e.stream || !e.is_finished());
        counts.prompts_estimated += u64::from(e.prompt_estimated);
        counts.outputs_estimated += u64::from(e.output_estimated && known.is_some());
        counts.outputs_borrowed += u64::from(known.is_none());
        let prompt =
            if e.prompt_estimated { (e.prompt_bytes as f64 / ratio).round() as u64 } else { e.prompt_tokens };
        // Checked when it was read.
        let own = e.hashes().unwrap_or_default();
        let blocks = heard.get(&i).unwrap_or(&own);
        let first_block = trace.blocks.len() as u64;
        trace.blocks.extend(blocks);
        let at = Nanos(unix_ns - origin);
        trace.rows.push(TraceRow {
            at,
            prompt_tokens: short(prompt.max(1)),
            output_tokens: known.map_or(0, short),
            label: label as u32,
            blocks: blocks.len() as u32,
            first_block,
        });
        let target = if e.target.is_empty() { &e.model } else { &e.target };
        let lora = e.adapter.then(|| number(&mut people.loras[label], &mut loras[label], target) as u16);
        let session =
            (!e.session.is_empty()).then(|| u64::from(number(&mut session_names, &mut sessions, &e.session)));
        let flow = number(&mut people.flows[label], &mut flows[label], &e.flow);
        people.rows.push(Person {
            flow,
            lora,
            session,
            slo_ttft: e.slo_ttft_ns.map(Span),
            bytes: e.request_bytes,
        });
        // On the clock of the replay.
        let e = Entry { arrived_ns: at.0, ..e.clone() };
        let row = e.row(i as u64, label as u16).unwrap_or_else(|_| Row::arriving(i as u64, label as u16, at));
        let endpoint =
            (!e.endpoint.is_empty()).then(|| number(&mut endpoint_names, &mut endpoints, &e.endpoint));
        rows.push(Row { flow, endpoint, prompt_tokens: short(prompt.max(1)), ..row });
    }
    trace.fill();
    let specs = specs(&classes, &people, &trace);
    trace.people = Some(Arc::new(people));
    Recording { workload: workload(trace, folder, specs), rows, counts }
}

fn specs(classes: &[(i32, String)], people: &People, trace: &Trace) -> Vec<Class> {
    let spec = |(label, (priority, name)): (usize, &(i32, String))| {
        let mine = trace.rows.iter().zip(&people.rows).filter(|(r, _)| r.label == label as u32);
        let hopes: BTreeSet<Option<Span>> = mine.map(|(_, p)| p.slo_ttft).collect();
        // One hope of all of them is the class's deadline; several are not one.
        let ttft = hopes.iter().next().copied().flatten().filter(|_| hopes.len() == 1);
        let adapters = people.loras[label].len() as u16;
        Class {
            priority: *priority,
            slo: Slo { ttft, ..Slo::default() },
            flows: Flows { count: people.flows[label].len().max(1) as u32, skew: 0.0 },
            lora: (adapters > 0).then_some(Lora { adapters, share: 0.0, skew: 0.0 }),
            ..Class::fed(name)
        }
    };
    classes.iter().enumerate().map(spec).collect()
}

fn workload(trace: Trace, folder: &str, classes: Vec<Class>) -> Workload {
    let labels = classes.iter().enumerate().map(|(i, c)| (c.name.clone(), i as u16)).collect();
    // The last row comes at the end of its span, which is not in the window.
    let window = trace.span() + Span(1);
    Workload {
        name: folder.to_owned(),
        mode: Mode { kind: Kind::Surge, window, warmup: Span::ZERO, drain: Span::secs(3600) },
        classes,
        traces: vec![Feed {
            trace: Arc::new(trace),
            name: folder.to_owned(),
            rate_scale: 1.0,
            limit: u64::MAX,
            spread: Span::ZERO,
            assign: Assign { labels, shares: Vec::new() },
        }],
        bytes_per_token: BYTES_PER_TOKEN,
    }
}

/// Hashes that run on through the answer, by row: the next prompt of a session repeats what was answered, and
/// its hashes name it. Without a session nothing is known, since a common beginning alone does not make two
/// requests one conversation.
fn answers(all: &[At], ratio: f64, block_bytes: u32) -> HashMap<usize, Vec<u64>> {
    let mut last: HashMap<&str, usize> = HashMap::new();
    let mut heard = HashMap::new();
    for (i, At { entry: e, .. }) in all.iter().enumerate().filter(|(_, a)| !a.entry.session.is_empty()) {
        if let Some(before) = last.insert(&e.session, i) {
            let earlier = &all[before].entry;
            let full = (earlier.prompt_bytes / u64::from(block_bytes)) as usize;
            let (own, next) = (earlier.hashes().unwrap_or_default(), e.hashes().unwrap_or_default());
            let follows =
                full > 0 && own.len() >= full && next.len() > full && own[full - 1] == next[full - 1];
            if follows {
                let answer = earlier.output_tokens.unwrap_or(0) as f64 * ratio;
                let bytes = earlier.prompt_bytes as f64 + answer;
                let blocks = ((bytes / f64::from(block_bytes)) as usize).clamp(full, next.len());
                // Where the next prompt does not reach, the old one's last, shorter block stays unknown.
                if blocks > full {
                    heard.insert(before, next[..blocks].to_vec());
                }
            }
        }
    }
    heard
}

impl Trace {
    /// The name of a flow of a label, in a recording.
    pub(crate) fn flow_name(&self, label: &str, flow: u32) -> Option<&str> {
        let people = self.people.as_ref()?;
        let label = self.labels.iter().position(|l| l == label)?;
        people.flows.get(label)?.get(flow as usize).map(String::as_str)
    }

    /// The name of an adapter of a label, in a recording.
    pub(crate) fn lora_name(&self, label: &str, lora: u16) -> Option<&str> {
        let people = self.people.as_ref()?;
        let label = self.labels.iter().position(|l| l == label)?;
        people.loras.get(label)?.get(usize::from(lora)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
