//! What a workload file says.

use crate::length::Dist;
use crate::rate::Stage;
use crate::sample::Gap;
use crate::servegen::Client;
use crate::trace::Trace;
use forebay_base::{Nanos, Span};
use forebay_records::stats::{Slo, Window};
use std::sync::Arc;

/// What kind of claim a run supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fixed time from an empty pool; the time is part of the claim.
    Surge,
    /// A rate that can go on for ever; only sustainable rates have one.
    Steady,
}

/// The times of a run. Arrivals last from 0 to `warmup + window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// What is claimed.
    pub kind: Kind,
    /// The measured time of arrivals.
    pub window: Span,
    /// Arrivals before that which are not measured.
    pub warmup: Span,
    /// The most time after the last arrival; what still runs then is censored.
    pub drain: Span,
}

impl Mode {
    /// The measured part of the arrivals.
    pub fn measured(&self) -> Window {
        Window::new(Nanos::ZERO + self.warmup, self.arrivals_end())
    }
    /// No request arrives at or after this instant, but for later turns of sessions and retries.
    pub fn arrivals_end(&self) -> Nanos {
        Nanos::ZERO + self.warmup + self.window
    }
    /// Where the run is cut off.
    pub fn end(&self) -> Nanos {
        self.arrivals_end() + self.drain
    }
}

/// How the first gap of constant arrivals is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// A uniform share of the gap, so that classes of one rate do not march in step.
    Random,
    /// This share of the gap, 0..1: with 0 the first request comes at once.
    At(f64),
}

/// When the requests (or sessions) of a class arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Process {
    /// Independent gaps of one distribution, stretched by the rate of the moment.
    Renewal {
        /// The gaps.
        gap: Gap,
        /// Requests per second where the stages say 1.
        rate: f64,
        /// Only with constant gaps.
        phase: Phase,
    },
    /// As [`Process::Renewal`] within each stage, but rescaled so that each has exactly its expected count.
    Exact {
        /// The gaps before rescaling.
        gap: Gap,
        /// Requests per second where the stages say 1.
        rate: f64,
    },
    /// Poisson while on, nothing while off; both times are exponential.
    OnOff {
        /// Long-run mean, requests per second where the stages say 1.
        rate: f64,
        /// Mean time on, in seconds.
        on: f64,
        /// Mean time off, in seconds.
        off: f64,
    },
    /// So many users, each of whom sends again a while after the answer.
    Closed {
        /// How many.
        users: u32,
        /// Seconds between an answer and the next request.
        think: Dist,
        /// The first requests are spread evenly over this time.
        ramp: Span,
    },
    /// A client of ServeGen: rates and gaps by windows of time, lengths by windows of time.
    ServeGen {
        /// Its windows.
        client: Arc<Client>,
        /// Factor on its rates.
        scale: f64,
    },
}

/// What becomes of a request that was refused or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Sends in all; 1 is no retry.
    pub attempts: u32,
    /// Time from the failure to the second send; it doubles each time.
    pub backoff: Span,
}

impl Retry {
    /// A request is sent once.
    pub const NONE: Retry = Retry { attempts: 1, backoff: Span::ZERO };
}

/// Tenants of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flows {
    /// How many, at least 1.
    pub count: u32,
    /// 0 for alike, greater for a few that send most; see [`crate::sample::Popularity`].
    pub skew: f64,
}

/// How prompts are taken from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Shuffled once, then one after the other, round and round.
    ShuffledCycle,
    /// Each prompt once a round, in an order that is shuffled anew for every round.
    Reshuffled,
    /// One after the other.
    Cycle,
    /// Any prompt at any time.
    Random,
}

/// Prompts that share text.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompts {
    /// Groups, each with a text of its own in front of its prompts.
    pub groups: u32,
    /// Tokens of that text, drawn once per group; they come on top of the class's input.
    pub prefix: Option<Dist>,
    /// Different prompts per group; 0 for endless.
    pub pool: u32,
    /// How prompts follow each other.
    pub order: Order,
    /// 0 for groups that are alike, greater for a few that are asked most. Only with [`Order::Random`].
    pub skew: f64,
    /// Classes with the same name here share their texts; a class alone uses its own.
    pub name: Option<String>,
}

/// Conversations.
#[derive(Clone, Debug, PartialEq)]
pub struct Sessions {
    /// Requests in a session.
    pub turns: Dist,
    /// Seconds between an answer and the next request.
    pub think: Dist,
    /// Whether each prompt begins with everything said before.
    pub history: bool,
    /// A session ends before prompt and answer together would have more tokens.
    pub max_context: u32,
}

/// Adapters of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    /// How many.
    pub adapters: u16,
    /// Share of the requests that ask for one, 0..=1.
    pub share: f64,
    /// 0 for alike, greater for a few that are asked most.
    pub skew: f64,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name; draws depend on it.
    pub name: String,
    /// Greater is more urgent.
    pub priority: i32,
    /// Deadlines that count for goodput.
    pub slo: Slo,
    /// The client gives up after this time.
    pub timeout: Option<Span>,
    /// What becomes of a request that was refused or failed.
    pub retry: Retry,
    /// When requests arrive; `None` if they come from a trace.
    pub arrivals: Option<Process>,
    /// Factors on the rate over time.
    pub stages: Vec<Stage>,
    /// Whether the stages begin again.
    pub repeat: bool,
    /// Tokens of a prompt, beside what it shares or repeats.
    pub input: Dist,
    /// Tokens of an answer.
    pub output: Dist,
    /// Tenants.
    pub flows: Flows,
    /// Shared text.
    pub prompts: Option<Prompts>,
    /// Conversations.
    pub sessions: Option<Sessions>,
    /// Adapters.
    pub lora: Option<Lora>,
}

/// How rows of a trace are given to classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Assign {
    /// Class by the label of the row.
    pub labels: Vec<(String, u16)>,
    /// For all other rows: classes with their running share, up to 1.
    pub shares: Vec<(u16, f64)>,
}

/// A trace that feeds classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    /// Its rows.
    pub trace: Arc<Trace>,
    /// The file, which is also the name of its draws.
    pub name: String,
    /// Times are divided by this.
    pub rate_scale: f64,
    /// At most so many rows.
    pub limit: u64,
    /// Rows with the same time are spread evenly up to the next time, over no more than this.
    pub spread: Span,
    /// Which row goes to which class.
    pub assign: Assign,
}

/// Who arrives when, with what.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The times of a run.
    pub mode: Mode,
    /// Classes in the order of the file.
    pub classes: Vec<Class>,
    /// Traces in the order of the file.
    pub traces: Vec<Feed>,
    /// Bytes of a request body per token of its prompt, beside 256 bytes for the rest.
    pub bytes_per_token: f64,
}

impl Process {
    /// Mean requests (or sessions) per second where the stages say 1; `None` for a closed loop, whose rate
    /// depends on the answers.
    pub fn rate(&self) -> Option<f64> {
        match self {
            Process::Renewal { rate, .. } | Process::Exact { rate, .. } | Process::OnOff { rate, .. } => {
                Some(*rate)
            }
            Process::ServeGen { client, scale } => Some(client.mean_rate() * scale),
            Process::Closed { .. } => None,
        }
    }

    fn scale(&mut self, factor: f64) {
        match self {
            Process::Renewal { rate, .. } | Process::Exact { rate, .. } | Process::OnOff { rate, .. } => {
                *rate *= factor;
            }
            Process::ServeGen { scale, .. } => *scale *= factor,
            Process::Closed { .. } => {}
        }
    }
}

impl Assign {
    /// Whether any row can go to a class.
    pub(crate) fn feeds(&self, class: u16) -> bool {
        self.shares.iter().any(|(c, _)| *c == class) || self.labels.iter().any(|(_, c)| *c == class)
    }
}

impl Feed {
    /// Mean requests per second of the rows that may come; 0 if they come at once.
    pub fn rate(&self) -> f64 {
        let last = self.last();
        if last > Nanos::ZERO {
            (self.rows() - 1) as f64 / last.since(Nanos::ZERO).as_secs_f64() * self.rate_scale
        } else {
            0.0
        }
    }

    /// How many rows may come.
    pub fn rows(&self) -> u64 {
        self.trace.len().min(self.limit)
    }

    /// When the last of them comes, where `rate_scale` is 1.
    pub fn last(&self) -> Nanos {
        self.rows().checked_sub(1).map_or(Nanos::ZERO, |last| self.trace.at(last))
    }
}

impl Class {
    /// A class without arrivals of its own, for rows of a trace.
    pub fn fed(name: &str) -> Class {
        Class {
            name: name.to_owned(),
            priority: 0,
            slo: Slo::default(),
            timeout: None,
            retry: Retry::NONE,
            arrivals: None,
            stages: Vec::new(),
            repeat: false,
            input: Dist::constant(1.0),
            output: Dist::constant(1.0),
            flows: Flows { count: 1, skew: 0.0 },
            prompts: None,
            sessions: None,
            lora: None,
        }
    }
}

impl Workload {
    /// A trace alone, all of it: a class for each of its labels, or `requests` for rows without one, all of
    /// priority 0, and an hour of drain. `file` is the name of the workload and of its draws.
    pub fn of_trace(trace: Trace, file: &str) -> Workload {
        let names: Vec<&str> = trace.labels().iter().map(String::as_str).collect();
        let name = |label: &str| if label.is_empty() { "requests".to_owned() } else { label.to_owned() };
        let classes = names.iter().map(|label| Class::fed(&name(label))).collect();
        let labels = names.iter().enumerate().map(|(i, l)| ((*l).to_owned(), i as u16)).collect();
        // The last row comes at the end of its span, which is not in the window.
        let window = trace.span() + Span(1);
        Workload {
            name: file.to_owned(),
            mode: Mode { kind: Kind::Surge, window, warmup: Span::ZERO, drain: Span::secs(3600) },
            classes,
            traces: vec![Feed {
                trace: Arc::new(trace),
                name: file.to_owned(),
                rate_scale: 1.0,
                limit: u64::MAX,
                spread: Span::ZERO,
                assign: Assign { labels, shares: Vec::new() },
            }],
            bytes_per_token: 4.0,
        }
    }

    /// The same with at most so many rows of each trace.
    #[must_use]
    pub fn with_limit(&self, limit: u64) -> Workload {
        let mut limited = self.clone();
        for feed in &mut limited.traces {
            feed.limit = feed.limit.min(limit);
        }
        limited
    }

    /// Requests (or sessions) per second of all open classes and traces together, where the stages say 1.
    pub fn rate(&self) -> f64 {
        let classes = self.classes.iter().filter_map(|c| c.arrivals.as_ref()?.rate());
        classes.sum::<f64>() + self.traces.iter().map(Feed::rate).sum::<f64>()
    }

    /// The same with the rates of all open classes and traces multiplied so that [`Workload::rate`] becomes
    /// `total`. Gaps keep their draws: the same requests come, closer together or further apart.
    #[must_use]
    pub fn with_rate(&self, total: f64) -> Workload {
        let rate = self.rate();
        if rate > 0.0 { self.with_scale(total / rate) } else { self.clone() }
    }

    /// The same with all rates multiplied.
    #[must_use]
    pub fn with_scale(&self, factor: f64) -> Workload {
        let mut scaled = self.clone();
        for class in &mut scaled.classes {
            if let Some(arrivals) = &mut class.arrivals {
                arrivals.scale(factor);
            }
        }
        for feed in &mut scaled.traces {
            feed.rate_scale *= factor;
        }
        scaled
    }

    /// The same with another measured window.
    #[must_use]
    pub fn with_window(&self, window: Span) -> Workload {
        Workload { mode: Mode { window, ..self.mode }, ..self.clone() }
    }

    /// The same with other draws of the lengths for sensitivity studies: outputs times `factor`.
    #[must_use]
    pub fn with_output_scale(&self, factor: f64) -> Workload {
        let mut scaled = self.clone();
        for class in &mut scaled.classes {
            class.output = class.output.scaled(factor);
        }
        scaled
    }

    /// The name of a flow: that of its class, with a number where the class has several.
    pub fn flow_name(&self, flow: u32) -> String {
        let mut first = 0;
        for class in &self.classes {
            if flow - first < class.flows.count {
                let recorded = |f: &Feed| f.trace.flow_name(&class.name, flow - first).map(str::to_owned);
                if let Some(name) = self.traces.iter().find_map(recorded) {
                    return name;
                }
                let several = class.flows.count > 1;
                return if several { format!("{}-{}", class.name, flow - first) } else { class.name.clone() };
            }
            first += class.flows.count;
        }
        format!("flow-{flow}")
    }

    /// How many flows there are.
    pub fn flows(&self) -> u32 {
        self.classes.iter().map(|c| c.flows.count).sum()
    }

    /// The name of an adapter.
    pub fn lora_name(&self, lora: u16) -> String {
        let mut first = 0;
        for class in &self.classes {
            let adapters = class.lora.map_or(0, |l| l.adapters);
            if lora - first < adapters {
                let recorded = |f: &Feed| f.trace.lora_name(&class.name, lora - first).map(str::to_owned);
                if let Some(name) = self.traces.iter().find_map(recorded) {
                    return name;
                }
                return format!("{}-lora-{}", class.name, lora - first);
            }
            first += adapters;
        }
        format!("lora-{lora}")
    }

    /// The index of a class by its name.
    pub fn class(&self, name: &str) -> Option<u16> {
        self.classes.iter().position(|c| c.name == name).map(|i| i as u16)
    }

    /// The names of the classes, as the writer of records wants them.
    pub fn class_names(&self) -> Vec<String> {
        self.classes.iter().map(|c| c.name.clone()).collect()
    }

    /// The deadlines of a class by index; none past the last.
    pub fn slo(&self, class: u16) -> Slo {
        self.classes.get(usize::from(class)).map_or_else(Slo::default, |c| c.slo)
    }
}
