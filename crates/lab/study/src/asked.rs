//! Figures that a command is asked for by name, such as `ttft-p99:critical`, and how they are stated over
//! several seeds.

use crate::summary::{ClassSummary, Metric, QUANTILES, Summary};
use crate::text;
use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_records::stats::paired::mean_and_half_width;
use forebay_records::stats::quantile::{MAX_INFINITE_SHARE, TAIL_FOR_CLAIM};
use forebay_records::stats::{Direction, Standing};
use std::fmt;

/// Mean or percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// The mean.
    Mean,
    /// The percentile with this index in [`QUANTILES`].
    Quantile(usize),
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A latency.
    Latency(Metric, Stat),
    /// Completions per second of the measured window.
    Requests,
    /// Output tokens of these per second.
    Tokens,
    /// Share of the offered requests that met every deadline of their class.
    Goodput,
    /// Share of the offered requests that were refused.
    Rejected,
    /// Share of the offered requests that did not finish, for whatever reason.
    Unfinished,
    /// Share of prompt tokens that the prefix cache had.
    Cached,
    /// Preemptions in a run. Of the pool, not of a class; so are all below.
    Preemptions,
    /// Share of computed tokens that were computed again.
    Recompute,
    /// The longest queue of a server.
    EngineQueue,
    /// The longest queue of the routers.
    GatewayQueue,
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Time,
    /// Per second.
    Rate,
    /// 0 to 1.
    Share,
    /// A number.
    Count,
}

/// Names of latencies in figures.
const LATENCIES: [(&str, Metric); 8] = [
    ("ttft", Metric::Ttft),
    ("gateway", Metric::Gateway),
    ("network", Metric::Network),
    ("engine-wait", Metric::EngineWait),
    ("prefill", Metric::Prefill),
    ("tpot", Metric::Tpot),
    ("itl", Metric::Itl),
    ("e2e", Metric::E2e),
];
/// Names of all other figures.
const OTHERS: [(&str, What); 10] = [
    ("requests", What::Requests),
    ("tokens", What::Tokens),
    ("goodput", What::Goodput),
    ("rejected", What::Rejected),
    ("unfinished", What::Unfinished),
    ("cached", What::Cached),
    ("preemptions", What::Preemptions),
    ("recompute", What::Recompute),
    ("engine-queue", What::EngineQueue),
    ("gateway-queue", What::GatewayQueue),
];

impl What {
    /// Every name with what it means.
    pub fn names() -> Vec<(String, What)> {
        let mut all = Vec::new();
        for (name, metric) in LATENCIES {
            all.push((format!("{name}-mean"), What::Latency(metric, Stat::Mean)));
            for (i, q) in QUANTILES.iter().enumerate() {
                all.push((format!("{name}-p{:.0}", q * 100.0), What::Latency(metric, Stat::Quantile(i))));
            }
        }
        all.extend(OTHERS.map(|(name, what)| (name.to_owned(), what)));
        all
    }

    /// The name.
    pub fn name(self) -> String {
        What::names().into_iter().find(|(_, w)| *w == self).map_or_else(String::new, |(name, _)| name)
    }

    /// For tables: `TTFT p99`.
    pub fn label(self) -> String {
        match self {
            What::Latency(m, stat) => {
                let stat = match stat {
                    Stat::Mean => "mean".to_owned(),
                    Stat::Quantile(i) => format!("p{:.0}", QUANTILES[i] * 100.0),
                };
                format!("{} {stat}", m.label().trim_start())
            }
            What::Requests => "requests/s".to_owned(),
            What::Tokens => "tokens/s".to_owned(),
            other => other.name().replace('-', " "),
        }
    }

    /// How it is written.
    pub const fn unit(self) -> Unit {
        match self {
            What::Latency(..) => Unit::Time,
            What::Requests | What::Tokens => Unit::Rate,
            What::Goodput | What::Rejected | What::Unfinished | What::Cached | What::Recompute => Unit::Share,
            What::Preemptions | What::EngineQueue | What::GatewayQueue => Unit::Count,
        }
    }

    /// Which way it is better.
    pub const fn direction(self) -> Direction {
        match self {
            What::Requests | What::Tokens | What::Goodput | What::Cached => Direction::Higher,
            _ => Direction::Lower,
        }
    }

    /// Whether it is of the pool and cannot be asked of a class.
    pub const fn of_pool(self) -> bool {
        matches!(self, What::Preemptions | What::Recompute | What::EngineQueue | What::GatewayQueue)
    }
}

/// A figure of a class, or of all classes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What.
    pub what: What,
    /// Of which class; `None` for all together.
    pub class: Option<String>,
}

/// `ttft-p99:critical`.
impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what.name())?;
        self.class.as_ref().map_or(Ok(()), |c| write!(f, ":{c}"))
    }
}

impl Asked {
    /// Reads `NAME` or `NAME:CLASS`; `flag` is for messages.
    ///
    /// # Errors
    /// What is wrong, with the nearest name.
    pub fn parse(text: &str, classes: &[String], flag: &str) -> Result<Asked, Diagnostics> {
        let (name, class) = text.split_once(':').map_or((text, None), |(n, c)| (n, Some(c)));
        let what = named(name, flag)?;
        let wrong = |message: String| Diagnostic::error(Position::default(), flag, message);
        let Some(class) = class else { return Ok(Asked { what, class: None }) };
        if what.of_pool() {
            let d = wrong(format!("found {text:?}; {name} is of all classes together"));
            return Err(one(d.expected(format!("{name} without a class"))));
        }
        if !classes.iter().any(|c| c == class) {
            let names = || classes.iter().map(String::as_str);
            let d = wrong(format!("the workload has no class {class:?}"));
            let all = names().collect::<Vec<_>>().join(", ");
            return Err(one(d.expected(format!("one of {all}")).nearest_of(class, names())));
        }
        Ok(Asked { what, class: Some(class.to_owned()) })
    }

    /// A line for the head of a table, and under it the class.
    pub fn head(&self) -> String {
        self.class.as_ref().map_or_else(|| self.what.label(), |c| format!("{}\n{c}", self.what.label()))
    }

    /// Of a run.
    pub fn of(&self, s: &Summary) -> Sample {
        let class = match &self.class {
            None => Some(&s.total),
            Some(name) => s.classes.iter().find(|c| c.name == *name),
        };
        class.map_or(Sample::NONE, |c| sample(self.what, c, s))
    }
}

fn one(d: Diagnostic) -> Diagnostics {
    Diagnostics(vec![d])
}

/// What a name means.
///
/// # Errors
/// What is wrong with it, with the nearest.
pub fn named(name: &str, flag: &str) -> Result<What, Diagnostics> {
    let names = What::names();
    if let Some((_, what)) = names.iter().find(|(n, _)| n == name) {
        return Ok(*what);
    }
    let latencies = LATENCIES.map(|(n, _)| n).join(", ");
    let others = OTHERS.map(|(n, _)| n).join(", ");
    let d = Diagnostic::error(Position::default(), flag, format!("{name:?} is no figure"));
    Err(one(d
        .expected(format!("{latencies}, each with -mean, -p50, -p90, -p95 or -p99; or {others}"))
        .nearest_of(name, names.iter().map(|(n, _)| n.as_str()))))
}

/// A figure of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The value; infinite if it is undetermined, not a number if there is none.
    pub value: f64,
    /// What it is at least, for a percentile.
    pub at_least: f64,
    /// Requests it was taken from.
    pub count: u64,
    /// Of these, those without a value.
    pub infinite: u64,
}

impl Sample {
    const NONE: Sample = Sample { value: f64::NAN, at_least: f64::NAN, count: 0, infinite: 0 };

    fn exact(value: f64) -> Sample {
        Sample { value, at_least: value, count: 1, infinite: 0 }
    }
}

fn sample(what: What, c: &ClassSummary, s: &Summary) -> Sample {
    let share =
        |n: u64| if c.offered == 0 { Sample::NONE } else { Sample::exact(n as f64 / c.offered as f64) };
    match what {
        What::Latency(m, stat) => {
            let f = c.figure(m);
            let q = match stat {
                Stat::Mean => &f.quantiles[QUANTILES.len() - 1],
                Stat::Quantile(i) => &f.quantiles[i],
            };
            if q.count == 0 {
                return Sample::NONE;
            }
            let lost = q.infinite as f64 > MAX_INFINITE_SHARE * q.count as f64;
            let value = match stat {
                Stat::Mean => f.mean,
                Stat::Quantile(_) => q.value.map(|v| v as f64),
            };
            let value = value.filter(|_| !lost).unwrap_or(f64::INFINITY);
            let at_least = match stat {
                Stat::Mean => value,
                Stat::Quantile(_) => q.at_least.map_or(f64::INFINITY, |v| v as f64),
            };
            Sample { value, at_least, count: q.count, infinite: q.infinite }
        }
        What::Requests => Sample::exact(c.throughput.requests_per_second()),
        What::Tokens => Sample::exact(c.throughput.output_tokens_per_second()),
        What::Goodput => c.goodput.map_or(Sample::NONE, |g| {
            if g.offered == 0 {
                Sample::NONE
            } else {
                Sample { count: g.offered, ..Sample::exact(g.share()) }
            }
        }),
        What::Rejected => share(c.all_rejected()),
        What::Unfinished => share(c.offered - c.finished),
        What::Cached => match c.prompt_tokens {
            (0, _) => Sample::NONE,
            (all, hit) => Sample::exact(hit as f64 / all as f64),
        },
        What::Preemptions => Sample::exact(s.counters.preemptions as f64),
        What::Recompute => Sample::exact(s.counters.recompute_share()),
        What::EngineQueue => Sample::exact(f64::from(s.counters.longest_engine_queue)),
        What::GatewayQueue => Sample::exact(s.counters.longest_gateway_queue as f64),
    }
}

/// A figure over several seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    /// The mean of the seeds' values; infinite if one is undetermined.
    pub value: f64,
    /// Student's 95 % interval of that mean; `None` with one seed, or with one that is undetermined.
    pub interval: Option<(f64, f64)>,
    /// How far it can be relied on, by the samples of all seeds together.
    pub standing: Standing,
    /// What it is at least, where it cannot be claimed.
    pub at_least: f64,
    /// By seed.
    pub by_seed: Vec<f64>,
    /// Requests of all seeds.
    pub count: u64,
}

/// States a figure from its samples under several seeds.
///
/// Percentiles are those of each seed, averaged. Whether they may be claimed goes by the samples of all seeds
/// together: fewer than 30 beyond the percentile, and it is "at least" the mean of what it is under each.
pub fn stated(what: What, samples: &[Sample]) -> Stated {
    let count: u64 = samples.iter().map(|s| s.count).sum();
    let infinite: u64 = samples.iter().map(|s| s.infinite).sum();
    let by_seed: Vec<f64> = samples.iter().map(|s| s.value).collect();
    let mean =
        |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len().max(1) as f64;
    let value = mean(&|s| s.value);
    let tail = match what {
        What::Latency(_, Stat::Quantile(i)) => count as f64 * (1.0 - QUANTILES[i]) + 1e-9,
        _ => f64::INFINITY,
    };
    let standing = if count == 0 || value.is_nan() {
        Standing::Empty
    } else if infinite as f64 > MAX_INFINITE_SHARE * count as f64 || value.is_infinite() {
        Standing::Undetermined
    } else if tail < TAIL_FOR_CLAIM as f64 {
        Standing::AtLeast
    } else {
        Standing::Claim
    };
    let interval = (samples.len() > 1 && value.is_finite()).then(|| {
        let (mean, half) = mean_and_half_width(&by_seed);
        (mean - half, mean + half)
    });
    Stated { value, interval, standing, at_least: mean(&|s| s.at_least), by_seed, count }
}

/// A value as people read it.
pub fn written(unit: Unit, value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "-".to_owned() } else { "undet.".to_owned() };
    }
    match unit {
        Unit::Time => text::time(value),
        Unit::Rate => text::three(value),
        Unit::Share => format!("{:.1} %", 100.0 * value),
        Unit::Count => format!("{value:.0}"),
    }
}

impl Stated {
    /// As people read it: the value with half its interval in per cent of it, `>= x`, `undet.`, or `-`.
    pub fn text(&self, unit: Unit) -> String {
        match self.standing {
            Standing::Empty => "-".to_owned(),
            Standing::Undetermined => "undet.".to_owned(),
            Standing::AtLeast => format!(">= {}", written(unit, self.at_least)),
            Standing::Claim => {
                let half = self.interval.map(|(low, high)| (high - low) / 2.0);
                let margin = match (half, unit) {
                    (Some(h), Unit::Share) => format!(" ±{:.1}", 100.0 * h),
                    (Some(h), _) if self.value > 0.0 => format!(" ±{:.0}%", 100.0 * h / self.value),
                    _ => String::new(),
                };
                format!("{}{margin}", written(unit, self.value))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let classes = ["critical".to_owned(), "batch".to_owned()];
        for text in ["ttft-p99:critical", "e2e-mean", "goodput", "engine-wait-p50:batch", "preemptions"] {
            assert_eq!(Asked::parse(text, &classes, "--metric").unwrap().to_string(), text);
        }
        for (text, said) in [
            ("ttft-p9", "did you mean \"ttft-p90\"?"),
            ("goodputs", "did you mean \"goodput\"?"),
            (
                "ttft-p99:critica",
                "no class \"critica\"; expected one of critical, batch; did you mean \"critical\"?",
            ),
            ("preemptions:batch", "preemptions is of all classes together"),
        ] {
            let d = Asked::parse(text, &classes, "--metric").unwrap_err().to_string();
            assert!(d.contains(said) && d.contains("--metric"), "{d}");
        }
    }

    #[test]
    fn percentiles_are_claimed_by_the_samples_of_all_seeds() {
        let what = What::Latency(Metric::Ttft, Stat::Quantile(3));
        let of = |value: f64, count, infinite| Sample { value, at_least: value / 2.0, count, infinite };
        // 1000 requests have 10 beyond the 99th percentile; three seeds of them have 30.
        let two = stated(what, &[of(1e9, 1000, 0), of(3e9, 1000, 0)]);
        assert_eq!((two.standing, two.text(Unit::Time)), (Standing::AtLeast, ">= 1.00 s".to_owned()));
        let three = stated(what, &[of(1e9, 1000, 0), of(2e9, 1000, 0), of(3e9, 1000, 0)]);
        assert_eq!((three.standing, three.value), (Standing::Claim, 2e9));
        // t(2) = 4.302653 times 1e9 / sqrt(3).
        let half = 4.302_653e9 / 3.0f64.sqrt();
        assert!((three.interval.unwrap().1 - 2e9 - half).abs() < 1e4);
        assert_eq!(three.text(Unit::Time), "2.00 s ±124%");
        assert_eq!(stated(what, &[of(1e9, 4000, 21)]).text(Unit::Time), "undet.");
        assert_eq!(stated(what, &[of(f64::INFINITY, 4000, 0), of(1.0, 4000, 0)]).text(Unit::Time), "undet.");
        assert_eq!(stated(what, &[Sample::NONE]).text(Unit::Time), "-");
        assert_eq!(
            stated(What::Goodput, &[Sample::exact(0.9), Sample::exact(0.9)]).text(Unit::Share),
            "90.0 % ±0.0"
        );
    }
}
