//! What a run against a real server says: all that a simulated one does, and what only a client knows.

use crate::json;
use crate::summary::{Figures, Metric, QUANTILES, Summary};
use forebay_base::{Nanos, Span};
use forebay_load::{Gaps, Observation};
use forebay_records::stats::quantile::{Samples, of_histogram};
use forebay_records::stats::{Quantile, Schedule};
use forebay_records::{Counted, Histogram, Record, Row};
use forebay_workload::Workload;
use serde_json::{Value, json};

/// A latency that only a client of a real server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveMetric {
    /// From the scheduled time to the first token that is output and no reasoning.
    Ttfo,
    /// From the sending to the first token.
    ServiceTtft,
    /// From the sending to the last token.
    ServiceE2e,
    /// From the scheduled time to the end of the stream.
    ToClose,
    /// From the scheduled time to the sending.
    Lag,
    /// Between two pieces of an answer, over pieces and not over requests.
    ChunkGap,
}

impl LiveMetric {
    /// All of them in the order of tables.
    pub const ALL: [LiveMetric; 6] = [
        LiveMetric::Ttfo,
        LiveMetric::ServiceTtft,
        LiveMetric::ServiceE2e,
        LiveMetric::ToClose,
        LiveMetric::ChunkGap,
        LiveMetric::Lag,
    ];

    /// For tables.
    pub const fn label(self) -> &'static str {
        match self {
            LiveMetric::Ttfo => "TTFO",
            LiveMetric::ServiceTtft => "TTFT from send",
            LiveMetric::ServiceE2e => "E2E from send",
            LiveMetric::ToClose => "E2E to close",
            LiveMetric::Lag => "send lag",
            LiveMetric::ChunkGap => "chunk gap",
        }
    }

    /// For files.
    pub const fn key(self) -> &'static str {
        match self {
            LiveMetric::Ttfo => "ttfo",
            LiveMetric::ServiceTtft => "service_ttft",
            LiveMetric::ServiceE2e => "service_e2e",
            LiveMetric::ToClose => "e2e_to_close",
            LiveMetric::Lag => "lag",
            LiveMetric::ChunkGap => "chunk_gap",
        }
    }

    fn of(self, r: &Record) -> Option<Span> {
        match self {
            LiveMetric::Ttfo => r.ttfo(),
            LiveMetric::ServiceTtft => r.service_ttft(),
            LiveMetric::ServiceE2e => r.service_e2e(),
            LiveMetric::ToClose => r.to_close(),
            LiveMetric::Lag => r.lag(),
            LiveMetric::ChunkGap => None,
        }
    }
}

/// What only a client knows of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveClass {
    /// By [`LiveMetric::ALL`].
    pub figures: Vec<Figures>,
    /// Finished requests, and of these those whose tokens the server counted.
    pub counted: (u64, u64),
    /// Tokens per piece of an answer, over finished requests; `None` without any.
    pub tokens_per_chunk: Option<f64>,
    /// Finished requests whose answer had not the length that was asked for.
    pub other_length: u64,
    /// Prompt tokens as counted by the server over those asked for; `None` where it did not count.
    pub prompt_ratio: Option<f64>,
    /// Sends that repeat one before.
    pub resent: u64,
    /// Requests with times between pieces, and of these those whose server told the tokens of each.
    pub told: (u64, u64),
}

/// What a run against a real server says.
#[derive(Clone, Debug)]
pub struct Observed {
    /// As of a simulation; times count from the schedule.
    pub summary: Summary,
    /// By class, in the order of the workload.
    pub classes: Vec<LiveClass>,
    /// All classes together.
    pub total: LiveClass,
    /// Whether the schedule was kept.
    pub schedule: Schedule,
}

impl Observed {
    /// Of a run.
    pub fn of(o: &Observation) -> Observed {
        Observed::of_records(&o.records, &o.gaps, &o.workload, o.ended_at)
    }

    /// Of the records of a run of `workload`, with times within answers by class as far as they are known.
    pub fn of_records(records: &[Record], gaps: &[Gaps], workload: &Workload, ended_at: Nanos) -> Observed {
        let window = workload.mode.measured();
        let rows: Vec<Row> = records.iter().map(|r| r.row).collect();
        let mut all_gaps = Gaps::default();
        for g in gaps {
            all_gaps.merge(g);
        }
        let tokens: Vec<Histogram> = gaps.iter().map(|g| g.token.clone()).collect();
        let summary = Summary::of_rows(&rows, &tokens, Some(&all_gaps.token), workload, ended_at);
        let measured: Vec<&Record> = records.iter().filter(|r| window.holds(r.row.arrived)).collect();
        let none = Gaps::default();
        let classes = (0..workload.classes.len()).map(|i| {
            let mine: Vec<&Record> =
                measured.iter().copied().filter(|r| usize::from(r.row.class) == i).collect();
            class(&mine, gaps.get(i).unwrap_or(&none))
        });
        Observed {
            classes: classes.collect(),
            total: class(&measured, &all_gaps),
            schedule: Schedule::of(records, window),
            summary,
        }
    }

    /// The latencies of the summary that are known: a router's part only where a router told it.
    pub fn metrics(&self) -> Vec<Metric> {
        let known = |m: &Metric| match m {
            Metric::Network | Metric::EngineWait | Metric::Prefill => false,
            Metric::Gateway => self.summary.total.figure(*m).mean.is_some(),
            _ => true,
        };
        Metric::ALL.into_iter().filter(known).collect()
    }

    /// As JSON: a simulation's summary without what only a simulation knows, and `live` in each class.
    pub fn json(&self) -> Value {
        let metrics = self.metrics();
        let one = |c: &crate::ClassSummary, live: &LiveClass| {
            let mut value = json::class(c, &metrics);
            value["live"] = live.json();
            value
        };
        let s = &self.summary;
        let classes: Vec<Value> = s.classes.iter().zip(&self.classes).map(|(c, l)| one(c, l)).collect();
        json!({
            "format": "forebay-summary", "version": 1,
            "classes": classes, "total": one(&s.total, &self.total), "load": s.load.label(),
            "backlog": json::backlog(s), "schedule": schedule(&self.schedule), "ended_at_ns": s.ended_at.0,
        })
    }
}

impl LiveClass {
    /// A metric's figures.
    pub fn figure(&self, metric: LiveMetric) -> &Figures {
        let i = LiveMetric::ALL.iter().position(|m| *m == metric).unwrap_or(0);
        &self.figures[i]
    }

    fn json(&self) -> Value {
        let latencies: serde_json::Map<String, Value> =
            LiveMetric::ALL.iter().map(|m| (m.key().to_owned(), json::figures(self.figure(*m)))).collect();
        json!({
            "latencies": latencies, "finished": self.counted.0, "counted_by_server": self.counted.1,
            "tokens_per_chunk": self.tokens_per_chunk, "other_length": self.other_length,
            "prompt_tokens_per_asked": self.prompt_ratio, "resent": self.resent,
            "itl_requests": self.told.0, "itl_requests_with_tokens_of_each_chunk": self.told.1,
        })
    }
}

fn schedule(s: &Schedule) -> Value {
    let ns = |x: Option<Span>| x.map(|x| x.0);
    let problems: Vec<String> = s.problems().iter().map(ToString::to_string).collect();
    json!({
        "valid": problems.is_empty(), "problems": problems, "offered": s.offered, "sent": s.sent,
        "offered_per_second": s.offered_rate(), "sent_per_second": s.sent_rate(), "rate_error": s.rate_error(),
        "lag_p50_ns": ns(s.lag_p50), "lag_p99_ns": ns(s.lag_p99), "lag_max_ns": ns(s.lag_max),
    })
}

fn class(records: &[&Record], gaps: &Gaps) -> LiveClass {
    let finished = || records.iter().filter(|r| r.row.is_finished());
    let figures = LiveMetric::ALL.map(|m| {
        if m == LiveMetric::ChunkGap {
            let h = &gaps.chunk;
            return Figures { mean: h.mean(), quantiles: QUANTILES.map(|q| of_histogram(h, 0, q)) };
        }
        let mut samples = Samples::new();
        for r in records {
            // An answer of nothing but reasoning has no first output to wait for.
            if m == LiveMetric::Ttfo && r.row.is_finished() && r.live.first_output.is_none() {
                continue;
            }
            samples.push(m.of(r).map(|s| s.0));
        }
        Figures { mean: samples.mean(), quantiles: QUANTILES.map(|q| samples.quantile(q)) }
    });
    let by_server = || finished().filter(|r| r.live.counted == Counted::Server);
    let sum = |f: &dyn Fn(&Record) -> u32| by_server().map(|r| u64::from(f(r))).sum::<u64>() as f64;
    let chunks = sum(&|r| r.live.chunks);
    let asked = sum(&|r| r.live.asked_prompt_tokens);
    LiveClass {
        figures: figures.to_vec(),
        counted: (finished().count() as u64, by_server().count() as u64),
        tokens_per_chunk: (chunks > 0.0).then(|| sum(&|r| r.row.output_tokens) / chunks),
        other_length: by_server().filter(|r| r.row.output_tokens != r.live.asked_output_tokens).count()
            as u64,
        prompt_ratio: (asked > 0.0).then(|| sum(&|r| r.row.prompt_tokens) / asked),
        resent: records.iter().filter(|r| r.live.attempt > 0).count() as u64,
        told: (gaps.of, gaps.told),
    }
}

/// A condition on a percentile, such as `critical:ttft-p99<1s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The class; all of them together without.
    pub class: Option<String>,
    /// What is bounded, by its key in files: `ttft`, `ttfo`, `tpot`, `itl`, `e2e`.
    pub metric: String,
    /// The percentile, between 0 and 1.
    pub quantile: f64,
    /// Below this.
    pub limit: Span,
}

/// What bounds can be put on.
pub const GOAL_METRICS: [&str; 5] = ["ttft", "ttfo", "tpot", "itl", "e2e"];

/// How a run stands to a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attained {
    /// The whole interval of the percentile lies below the limit.
    Yes,
    /// The percentile lies below the limit, but its interval does not, or it has none.
    Likely,
    /// The percentile lies at or above the limit, or has no value for too many failures.
    No,
}

impl Goal {
    /// The percentile in a run. `itl` is over tokens, everything else over requests.
    pub fn quantile_of(&self, o: &Observed, records: &[Record], workload: &Workload) -> Quantile {
        let class = self.class.as_ref().and_then(|name| workload.class(name));
        let window = workload.mode.measured();
        let of = |r: &&Record| class.is_none_or(|c| c == r.row.class) && window.holds(r.row.arrived);
        if self.metric == "itl" {
            let s = class.map_or(&o.summary.total, |c| &o.summary.classes[usize::from(c)]);
            let nearest = QUANTILES.iter().position(|q| (q - self.quantile).abs() < 1e-9).unwrap_or(3);
            return s.figure(Metric::Itl).quantiles[nearest];
        }
        let mut samples = Samples::new();
        for r in records.iter().filter(of) {
            let value = match self.metric.as_str() {
                "ttfo" if r.row.is_finished() && r.live.first_output.is_none() => continue,
                "tpot" if r.row.came_at_once() => continue,
                "ttfo" => r.ttfo(),
                "tpot" => r.row.tpot(),
                "e2e" => r.row.e2e(),
                _ => r.row.ttft(),
            };
            samples.push(value.map(|s| s.0));
        }
        samples.quantile(self.quantile)
    }

    /// Whether a percentile attains it.
    pub fn attained(&self, q: &Quantile) -> Attained {
        use forebay_records::stats::Standing;
        let below = |x: Option<u64>| x.is_some_and(|v| v < self.limit.0);
        if q.standing == Standing::Undetermined || !below(q.value) {
            Attained::No
        } else if below(q.high) && q.standing == Standing::Claim {
            Attained::Yes
        } else {
            Attained::Likely
        }
    }
}

/// The highest rate found at which `holds` does, by bisection: from `guess` up or down by `step` until it is between
/// two rates, then by halves until their distance is `precision` of the upper one. 0 if it holds nowhere down to a
/// thousandth of `guess`.
///
/// # Errors
/// That of `holds`, which ends the search.
pub fn highest<E>(
    guess: f64,
    step: f64,
    precision: f64,
    mut holds: impl FnMut(f64) -> Result<bool, E>,
) -> Result<f64, E> {
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let mut rate = guess;
    while high.is_infinite() || low == 0.0 {
        if holds(rate)? {
            low = rate;
            rate *= step;
        } else {
            high = rate;
            rate /= step;
        }
        if rate > 1_000.0 * guess || rate < guess / 1_000.0 {
            return Ok(low);
        }
    }
    while high - low > precision * high {
        let middle = f64::midpoint(low, high);
        if holds(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
#[path = "observed_tests.rs"]
mod tests;
