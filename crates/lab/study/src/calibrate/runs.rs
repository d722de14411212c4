//! Runs that were observed, brought into the form in which they are replayed and compared.

use super::figures::{Figure, Times, carried, values};
use forebay_base::{Diagnostic, Diagnostics, Nanos, Position, Span};
use forebay_records::stats::{Load, Window, backlog_of};
use forebay_records::{End, Record, Row};
use forebay_workload::{Class, Kind, Mode, Recording, RecordingCounts, Sent, Workload};
use serde_json::Value;

/// Fewest requests that a run is asked for anything with.
const FEWEST: usize = 30;
/// Share of streamed answers from which first tokens of a recording are taken.
const STREAMED: f64 = 0.95;
/// Time for what is out at the end of a replay.
const DRAIN: Span = Span::secs(3600);
/// A block of the bootstrap holds what arrives in so many mean E2E times.
const MEMORY: f64 = 2.0;

/// A run to fit to, or to be held back.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What it is called: its folder.
    pub name: String,
    /// The same requests again, by number.
    pub replay: Workload,
    /// Numbers of the requests that count.
    pub(crate) counts: Vec<usize>,
    /// What was observed of these.
    pub(crate) times: Vec<Times>,
    /// What is compared.
    pub figures: Vec<Figure>,
    /// Logarithms of the observed figures.
    pub(crate) observed: Vec<f64>,
    /// Requests in a block of the bootstrap.
    pub(crate) block: usize,
    /// Arrivals per second.
    pub rate: f64,
    /// Share of the prompt tokens that the prefix cache had.
    pub cached: f64,
    /// Whether the backlog grew.
    pub load: Load,
    /// What has to be known about it, in sentences.
    pub remarks: Vec<String>,
}

/// The mistake of a run.
fn wrong(name: &str, message: String, expected: &str) -> Diagnostics {
    let mut all =
        Diagnostics(vec![Diagnostic::error(Position::default(), "", message).expected(expected.to_owned())]);
    all.finish(name);
    all
}

/// Nanoseconds from an instant.
fn since(from: Nanos, to: Option<Nanos>) -> f64 {
    to.map_or(f64::INFINITY, |t| t.since(from).0 as f64)
}

/// Times of a request from an instant; those to the first token only where these were seen.
fn times(row: &Row, from: Nanos, streamed: bool) -> Times {
    let done = row.finished.filter(|_| row.is_finished());
    let tpot = row.tpot().map_or(f64::INFINITY, |t| t.0 as f64);
    [
        if streamed { since(from, row.first_token) } else { f64::NAN },
        if streamed && !row.came_at_once() { tpot } else { f64::NAN },
        since(from, done),
    ]
}

impl Seen {
    /// Of the requests that `forebay observe` or `simulate` wrote, with the names of their classes and, if it is
    /// there, the summary beside them. Times count from the sending: how late a client was is not the server's.
    /// Requests that were refused are not sent again; those that failed are, with the length that was asked for.
    ///
    /// # Errors
    /// Too few requests, or none that finished.
    pub fn of_records(
        name: &str,
        records: &[Record],
        classes: &[String],
        summary: Option<&Value>,
    ) -> Result<Seen, Diagnostics> {
        let run = summary.map_or(&Value::Null, |s| &s["run"]);
        let streamed = run["stream"].as_bool().unwrap_or(true);
        let window = measured(run, records);
        let mut sent: Vec<(Sent, &Record)> = Vec::new();
        for r in records.iter().filter(|r| !matches!(r.row.end, End::Rejected(_))) {
            let output = if r.row.is_finished() { r.row.output_tokens } else { r.live.asked_output_tokens };
            let prompt =
                if r.row.prompt_tokens > 0 { r.row.prompt_tokens } else { r.live.asked_prompt_tokens };
            let request = Sent {
                at: r.live.sent.unwrap_or(r.row.arrived),
                class: r.row.class,
                prompt_tokens: prompt,
                cached_tokens: r.row.cached_tokens,
                output_tokens: output,
            };
            sent.push((request, r));
        }
        sent.sort_by_key(|(s, _)| s.at);
        let requests: Vec<Sent> = sent.iter().map(|(s, _)| *s).collect();
        let end = requests.last().map_or(Nanos::ZERO, |r| r.at) + Span(1);
        let mode = Mode {
            kind: Kind::Surge,
            warmup: window.from.since(Nanos::ZERO),
            window: end.max(window.to).since(window.from),
            drain: DRAIN,
        };
        // Nothing was in front of the server that would have ranked them.
        let specs = classes.iter().map(|c| Class::fed(c)).collect();
        let replay = Workload::replay(name, specs, mode, &requests);
        let counting = sent.iter().enumerate().filter(|(_, (_, r))| window.holds(r.row.arrived));
        let rows: Vec<(usize, &Row, Nanos)> = counting.map(|(i, (s, r))| (i, &r.row, s.at)).collect();
        let refused = records.len() - sent.len();
        let mut seen = Seen::of(name, replay, &rows, streamed, window)?;
        seen.remark(records, refused, summary);
        Ok(seen)
    }

    /// Of a recording of a live router. Times count from the arrival there, so that its configuration matters.
    ///
    /// # Errors
    /// As [`Seen::of_records`].
    pub fn of_recording(name: &str, recording: &Recording) -> Result<Seen, Diagnostics> {
        let RecordingCounts { requests, streamed, .. } = recording.counts;
        let streamed = streamed as f64 >= STREAMED * requests as f64;
        let rows: Vec<(usize, &Row, Nanos)> =
            recording.rows.iter().enumerate().map(|(i, r)| (i, r, r.arrived)).collect();
        let window = recording.workload.mode.measured();
        Seen::of(name, recording.workload.clone(), &rows, streamed, window)
    }

    fn of(
        name: &str,
        replay: Workload,
        rows: &[(usize, &Row, Nanos)],
        streamed: bool,
        window: Window,
    ) -> Result<Seen, Diagnostics> {
        let finished = rows.iter().filter(|(_, r, _)| r.is_finished()).count();
        if finished < FEWEST {
            let what = format!("{finished} finished requests in the measured window, of {}", rows.len());
            return Err(wrong(name, what, &format!("at least {FEWEST}")));
        }
        let times: Vec<Times> = rows.iter().map(|(_, r, from)| times(r, *from, streamed)).collect();
        let figures = carried(&times);
        if figures.is_empty() {
            let what = format!("{finished} of {} requests finished: no figure can be stated", rows.len());
            return Err(wrong(name, what, "at most 0.5 % without an answer"));
        }
        let seconds = window.length().as_secs_f64().max(1e-9);
        let rate = rows.len() as f64 / seconds;
        let e2e: f64 = times.iter().map(|t| t[2]).filter(|t| t.is_finite()).sum::<f64>() / finished as f64;
        let block = (MEMORY * rate * e2e / 1e9).ceil().clamp(1.0, (rows.len() / 10).max(1) as f64) as usize;
        let tokens =
            |f: &dyn Fn(&Row) -> u32| rows.iter().map(|(_, r, _)| u64::from(f(r))).sum::<u64>() as f64;
        Ok(Seen {
            name: name.to_owned(),
            replay,
            counts: rows.iter().map(|(i, ..)| *i).collect(),
            observed: values(&figures, &times, &times),
            times,
            figures,
            block,
            rate,
            cached: tokens(&|r| r.cached_tokens) / tokens(&|r| r.prompt_tokens).max(1.0),
            load: backlog_of(rows.iter().map(|(_, r, _)| *r), window).load(),
            remarks: Vec::new(),
        })
    }

    fn remark(&mut self, records: &[Record], refused: usize, summary: Option<&Value>) {
        if refused > 0 {
            let what = format!("{refused} of {} requests were refused and are not replayed.", records.len());
            self.remarks.push(what);
        }
        if summary.is_some_and(|s| s["schedule"]["valid"].as_bool() == Some(false)) {
            self.remarks
                .push("The client did not keep its schedule: its own lateness may be in the figures.".into());
        }
        let estimated = records.iter().filter(|r| {
            r.live.sent.is_some() && r.row.is_finished() && r.live.counted != forebay_records::Counted::Server
        });
        let estimated = estimated.count();
        if estimated > 0 {
            let what = format!(
                "Lengths of {estimated} of {} requests were not counted by the server.",
                records.len()
            );
            self.remarks.push(what);
        }
    }

    /// Times of the replay, by the requests that count. Rows are those of all requests, by number.
    pub(crate) fn replayed(&self, rows: &[Row]) -> Vec<Times> {
        let of = |&i: &usize| rows.get(i).map_or([f64::INFINITY; 3], |r| times(r, r.arrived, true));
        self.counts.iter().map(of).collect()
    }

    /// How many requests count.
    pub fn requests(&self) -> usize {
        self.counts.len()
    }
}

/// The measured part of the arrivals: the summary says it, otherwise all of them count.
fn measured(run: &Value, records: &[Record]) -> Window {
    let ns = |key: &str| run[key].as_u64();
    if let (Some(warmup), Some(window)) = (ns("warmup_ns"), ns("window_ns")) {
        return Window::new(Nanos(warmup), Nanos(warmup.saturating_add(window)));
    }
    let last = records.iter().map(|r| r.row.arrived).max().unwrap_or_default();
    Window::new(Nanos::ZERO, last + Span(1))
}
