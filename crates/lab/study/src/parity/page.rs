//! A comparison of the two worlds as an HTML page and as JSON.

use super::{ClassParity, Decision, DecisionParity, Delays, Figure, PERCENTILES, Parity, Seen};
use crate::text;
use forebay_records::stats::Schedule;
use forebay_report::page::Cell;
use forebay_report::{Chart, Lines, Page, Series};
use serde_json::{Map, Value, json};

/// A share of decisions: its name, that of the live side, and least and greatest of the runs around.
pub type ShareRow = (&'static str, f64, Option<(f64, f64)>);

/// Findings that are named; the tables have all of them.
const NAMED: usize = 8;
/// Requests of which 30 lie beyond the 99th percentile.
const P99_NEEDS: f64 = 3_000.0;

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Time,
    /// Requests.
    Count,
    /// Per second.
    Rate,
    /// A share, 0 to 1.
    Share,
}

impl Unit {
    /// A value for people; `-` without one.
    pub fn shown(self, x: Option<f64>) -> String {
        match (self, x) {
            (_, None) => "-".to_owned(),
            (Unit::Time, Some(x)) => text::time(x),
            (Unit::Count, Some(x)) => format!("{x:.0}"),
            (Unit::Rate, Some(x)) => text::three(x),
            (Unit::Share, Some(x)) => format!("{:.1} %", 100.0 * x),
        }
    }
}

/// A line of a class's table: what it is, its figure and unit, and the Kolmogorov-Smirnov distance with its range in the
/// first line of a latency.
pub struct Shown {
    /// Name of the figure.
    pub name: String,
    /// The figure.
    pub figure: Figure,
    /// Its unit.
    pub unit: Unit,
    /// Distance, and the greatest of the runs around the simulated one.
    pub distance: Option<(f64, Option<f64>)>,
}

impl ClassParity {
    /// The lines of its table.
    pub fn lines(&self) -> Vec<Shown> {
        let line = |name: String, figure: Figure, unit| Shown { name, figure, unit, distance: None };
        let mut out = Vec::new();
        for l in &self.latencies {
            for (i, (figure, (_, name))) in l.percentiles.iter().zip(PERCENTILES).enumerate() {
                let distance = l.distance.filter(|_| i == 0).map(|d| (d, l.distance_range));
                let name = format!("{} {name}", l.metric.label());
                out.push(Shown { distance, ..line(name, *figure, Unit::Time) });
            }
        }
        out.push(line("finished/s".to_owned(), self.finished_rate, Unit::Rate));
        out.push(line("tokens/s".to_owned(), self.token_rate, Unit::Rate));
        out.extend(self.goodput.map(|f| line("goodput".to_owned(), f, Unit::Share)));
        out.extend(self.ends.iter().map(|e| line(e.how.clone(), e.count, Unit::Count)));
        out
    }

    /// The lines about the parts of the time to first token, with their names.
    pub fn part_lines(&self) -> Vec<(&'static str, Shown)> {
        let one = |(m, f): &(crate::summary::Metric, Figure)| {
            let name = m.label().trim();
            (name, Shown { name: name.to_owned(), figure: *f, unit: Unit::Time, distance: None })
        };
        self.parts.iter().map(one).collect()
    }
}

impl Shown {
    /// Simulated, live, ratio, range and distance for people.
    pub fn cells(&self) -> [String; 5] {
        let f = &self.figure;
        let range = f.range.map_or("-".to_owned(), |(low, high)| {
            let (low, high) = (self.unit.shown(Some(low)), self.unit.shown(Some(high)));
            if low == high { low } else { format!("{low} .. {high}") }
        });
        let distance = self.distance.map_or(String::new(), |(d, range)| {
            let most = range.map_or(String::new(), |r| format!(" ({r:.3})"));
            format!("{d:.3}{most}")
        });
        let ratio = f.ratio().map_or("-".to_owned(), |r| format!("{r:.3}"));
        [self.unit.shown(f.sim), self.unit.shown(f.live), ratio, range, distance]
    }

    /// `*` for a finding.
    pub fn mark(&self) -> &'static str {
        if self.figure.is_outside() == Some(true) { "*" } else { "" }
    }
}

impl Parity {
    /// What was run, in a sentence.
    pub fn headline(&self) -> String {
        format!(
            "{} at {} requests/s over {:.0} s, {}, on {}, seed {}; {} simulated runs around",
            self.workload,
            text::three(self.rate),
            self.seconds,
            self.config,
            self.cluster,
            self.seed,
            self.runs
        )
    }

    /// What comes out, in sentences.
    pub fn verdict(&self) -> Vec<String> {
        let mut out = Vec::new();
        for problem in self.problems() {
            out.push(format!("INVALID: the load generator did not keep its schedule: {problem}."));
        }
        let (outside, judged) = self.outside();
        let names: Vec<&str> = outside.iter().take(NAMED).map(|(n, _)| n.as_str()).collect();
        let expected = self.by_chance() * judged as f64;
        let more = outside.len() - names.len();
        out.push(if names.is_empty() {
            format!("All {judged} live figures are inside the range of the simulated runs.")
        } else {
            format!(
                "{} of {judged} live figures are outside the range of the simulated runs, where chance alone would put \
                 about {expected:.0}: {}{}.",
                outside.len(),
                names.join(", "),
                if more > 0 { format!(" and {more} more") } else { String::new() }
            )
        });
        if let Some((name, percent)) = self.greatest() {
            out.push(format!(
                "The greatest deviation of a percentile: {name}, {} %.",
                text::percent(percent)
            ));
        }
        let few = |c: &&ClassParity| c.offered.live.unwrap_or(0.0) < P99_NEEDS;
        let few: Vec<&str> = self.classes.iter().filter(few).map(|c| c.name.as_str()).collect();
        if !few.is_empty() {
            out.push(format!(
                "Fewer than 30 requests lie beyond the p99 of {}: there it is about single requests.",
                few.join(", ")
            ));
        }
        out
    }

    /// Whether both sides were asked the same, in a sentence.
    pub fn asked(&self) -> String {
        let i = &self.inputs;
        let [a, b] = i.requests;
        let lengths = if i.other_prompt == 0 && i.other_output == 0 {
            "prompts and answers have the same lengths in tokens".to_owned()
        } else {
            format!("{} with another prompt and {} with another answer", i.other_prompt, i.other_output)
        };
        let ([c, d], [p, q]) = (i.cached, i.preemptions);
        format!(
            "Requests: {a} simulated, {b} live; {lengths}; cached tokens {c} and {d}; preemptions {p} and {q}."
        )
    }

    /// The rows of the table of delays: name, then probe and run at the 50th and 99th percentile.
    pub fn delay_rows(&self) -> Vec<[String; 5]> {
        let at = |s: &super::Spread, i: usize| {
            if s.count == 0 { "-".to_owned() } else { text::time(s.quantiles[i].0 as f64) }
        };
        let both = self.probe.parts().into_iter().zip(self.delays.parts());
        both.map(|((name, p), (_, r))| [name.to_owned(), at(&p, 1), at(&p, 3), at(&r, 1), at(&r, 3)])
            .collect()
    }
}

impl DecisionParity {
    /// Name, live share, least and greatest of the runs.
    pub fn rows(&self) -> Vec<ShareRow> {
        type Share = fn(&super::Alike) -> f64;
        let all: [(&str, Share); 4] = [
            ("same endpoint", |a| a.endpoint),
            ("same place in the order", |a| a.place),
            ("same endpoint and place", |a| a.all),
            ("neighbours in the same order", |a| a.neighbours),
        ];
        let range = |of: Share| {
            let values = self.runs.iter().map(of);
            let least = values.clone().fold(f64::INFINITY, f64::min);
            let greatest = values.fold(f64::NEG_INFINITY, f64::max);
            (least <= greatest).then_some((least, greatest))
        };
        all.map(|(name, of)| (name, of(&self.live), range(of))).to_vec()
    }

    /// What differs first, in lines.
    pub fn first(&self, endpoints: &[String]) -> Vec<String> {
        let Some(p) = &self.parting else {
            return vec!["Nothing differs: all decisions are the same, in the same order.".to_owned()];
        };
        let to = |d: &Decision| {
            let name = endpoints.get(d.endpoint as usize).map_or("?", String::as_str);
            format!("request {} to {name} at {:.6} s", d.number, d.at.0 as f64 / 1e9)
        };
        let there = |d: &Option<Decision>| d.as_ref().map_or("nothing more".to_owned(), to);
        let mut out = vec![format!(
            "What differs first: decision {}, after {} equal ones. Simulated: {}. Live: {}.",
            p.place + 1,
            p.place,
            there(&p.there[0]),
            there(&p.there[1])
        )];
        let Some(number) = p.there[0].or(p.there[1]).map(|d| d.number) else { return out };
        out.push(format!("Request {number}, {}, where each side decided on it:", self.class));
        for ((side, decision), seen) in ["simulated", "live"].into_iter().zip(p.request).zip(&self.seen) {
            let told = match (decision, seen) {
                (Some(d), Some(s)) => format!(
                    "to {} at {:.6} s, after waiting {}; {}",
                    endpoints.get(d.endpoint as usize).map_or("?", String::as_str),
                    d.at.0 as f64 / 1e9,
                    text::time(d.waited.0 as f64),
                    knew(s, endpoints)
                ),
                _ => "not dispatched".to_owned(),
            };
            out.push(format!("  {side}: {told}"));
        }
        out
    }
}

fn knew(s: &Seen, endpoints: &[String]) -> String {
    let saturation = s.saturation.map_or(String::new(), |x| format!(", saturation {x:.3}"));
    let number = |x: f64| if x.is_nan() { "?".to_owned() } else { format!("{x}") };
    let each: Vec<String> = s
        .endpoints
        .iter()
        .enumerate()
        .map(|(i, e)| {
            let scraped = e.age.map_or("never scraped".to_owned(), |age| {
                format!(
                    "scraped {} ago: {} waiting, {} running, KV {}",
                    text::time(age.0 as f64),
                    number(e.waiting),
                    number(e.running),
                    if e.kv.is_nan() { "?".to_owned() } else { format!("{:.2} %", 100.0 * e.kv) }
                )
            });
            let name = endpoints.get(i).map_or("?", String::as_str);
            format!("{name}: {} in flight, {} without a token, {scraped}", e.in_flight, e.without_token)
        })
        .collect();
    format!("{} queued{saturation}; {}", s.queued, each.join("; "))
}

/// The page.
pub fn page(p: &Parity) -> String {
    let mut page = Page::new(&format!("Parity: {}, simulated and live", p.workload));
    page.lead(&format!("{}.", p.headline()));
    for sentence in p.verdict() {
        page.text(&sentence);
    }
    page.text(&p.asked());
    page.section("By class");
    for c in &p.classes {
        page.part(&format!("{}, priority {}", c.name, c.priority));
        class_table(&mut page, c);
    }
    page.text(
        "Simulated: median of the simulated runs over the same requests, with ties, scrapes and network delay drawn anew; \
         range: their least and greatest value. A live figure inside means nothing; one outside is marked. KS: greatest difference of the two \
         distributions, 0 to 1, and in brackets the greatest among the simulated runs.",
    );
    let lines: Vec<Lines> = p.classes.iter().map(curves).collect();
    let charts: Vec<(&dyn Chart, &str)> = lines.iter().map(|l| (l as &dyn Chart, "")).collect();
    page.charts(&charts);
    page.section("Where the time to first token comes from");
    let plain = |s: String| -> Cell { (s, "") };
    let rows = p.classes.iter().flat_map(|c| {
        c.part_lines().into_iter().map(|(name, shown)| {
            let [sim, live, ratio, range, _] = shown.cells();
            let live: Cell =
                (format!("{live}{}", shown.mark()), if shown.mark().is_empty() { "" } else { "bad" });
            vec![plain(format!("{}, {name}", c.name)), plain(sim), live, plain(ratio), plain(range)]
        })
    });
    page.table(&["mean", "simulated", "live", "ratio", "range"], &rows.collect::<Vec<_>>());
    decisions(&mut page, p);
    page.section("Delays");
    let rows: Vec<Vec<Cell>> = p.delay_rows().into_iter().map(|r| r.map(plain).to_vec()).collect();
    page.table(&["", "probe p50", "p99", "live run p50", "p99"], &rows);
    page.text(
        "The probe's medians are the simulated network's delays; the way to the router is added to the way behind it. Its \
         scrapes give delay and jitter of the simulated ones.",
    );
    page.finish()
}

fn class_table(page: &mut Page, c: &ClassParity) {
    let rows: Vec<Vec<Cell>> = c
        .lines()
        .into_iter()
        .map(|l| {
            let [sim, live, ratio, range, distance] = l.cells();
            let class = if l.mark().is_empty() { "" } else { "bad" };
            vec![
                (l.name.clone(), ""),
                (sim, ""),
                (format!("{live}{}", l.mark()), class),
                (ratio, class),
                (range, ""),
                (distance, ""),
            ]
        })
        .collect();
    page.table(&["", "simulated", "live", "live / sim.", "range", "KS"], &rows);
}

fn decisions(page: &mut Page, p: &Parity) {
    page.section("Decisions");
    let Some(d) = &p.decisions else {
        page.text(UNMATCHED);
        return;
    };
    let percent = |x: f64| format!("{:.1} %", 100.0 * x);
    let rows: Vec<Vec<Cell>> = d
        .rows()
        .into_iter()
        .map(|(name, live, range)| {
            let range = range.map_or("-".to_owned(), |(a, b)| format!("{} .. {}", percent(a), percent(b)));
            vec![(name.to_owned(), ""), (percent(live), ""), (range, "")]
        })
        .collect();
    page.table(&["share of requests", "live", "simulated runs among themselves"], &rows);
    let mut lines = d.first(&p.endpoints).into_iter();
    if let Some(first) = lines.next() {
        page.text(&first);
    }
    let rest: Vec<String> = lines.collect();
    for line in rest {
        page.text(line.trim());
    }
}

/// Why there are no decisions to compare.
pub const UNMATCHED: &str = "Not compared: requests of sessions, closed loops and retries follow from what became of \
                             others, so that the same number means different requests on the two sides.";

fn curves(c: &ClassParity) -> Lines {
    let series = |name: &str, values: &[Option<u64>]| Series::steps(name, curve(values));
    Lines {
        title: format!("TTFT, {}: share of requests within", c.name),
        x: "seconds".to_owned(),
        series: vec![series("simulated", &c.ttft[0]), series("live", &c.ttft[1])],
        log_x: true,
        y_max: Some(1.0),
        ..Lines::default()
    }
}

/// The share of all values within each time, in seconds, at some 200 places.
fn curve(values: &[Option<u64>]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<u64> = values.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let every = sorted.len().div_ceil(200).max(1);
    let last = sorted.len().saturating_sub(1);
    let share = |i: usize| (i + 1) as f64 / values.len() as f64;
    let kept = sorted.iter().enumerate().filter(|(i, _)| i % every == 0 || *i == last);
    kept.map(|(i, v)| ((*v).max(1) as f64 / 1e9, share(i))).collect()
}

fn figure(f: &Figure) -> Value {
    json!({
        "simulated": f.sim, "live": f.live, "ratio": f.ratio(),
        "range": f.range.map(|(low, high)| [low, high]), "outside": f.is_outside(),
    })
}

fn delays(d: &Delays) -> Value {
    let part = |(name, s): (&str, super::Spread)| {
        let [p10, p50, p90, p99] = s.quantiles.map(|q| q.0);
        let key = name.replace(' ', "_");
        (key, json!({"count": s.count, "p10": p10, "p50": p50, "p90": p90, "p99": p99}))
    };
    Value::Object(d.parts().into_iter().map(part).collect::<Map<_, _>>())
}

fn schedule(s: &Schedule) -> Value {
    json!({
        "offered": s.offered, "sent": s.sent, "rate_error": s.rate_error(),
        "lag_p50": s.lag_p50.map(|l| l.0), "lag_p99": s.lag_p99.map(|l| l.0),
    })
}

/// A comparison as JSON; times in nanoseconds, what is not known is null.
pub fn json(p: &Parity) -> Value {
    let class = |c: &ClassParity| {
        let latencies = c.latencies.iter().map(|l| {
            let percentiles = l.percentiles.iter().zip(PERCENTILES);
            let mut value: Map<String, Value> =
                percentiles.map(|(f, (_, name))| (name.to_owned(), figure(f))).collect();
            value.insert("ks".into(), json!(l.distance));
            value.insert("ks_range".into(), json!(l.distance_range));
            (l.metric.key().to_owned(), Value::Object(value))
        });
        let parts = c.parts.iter().map(|(m, f)| (m.key().to_owned(), figure(f)));
        json!({
            "name": c.name, "priority": c.priority, "offered": figure(&c.offered),
            "latencies": latencies.collect::<Map<_, _>>(), "ttft_parts_mean": parts.collect::<Map<_, _>>(),
            "finished_per_second": figure(&c.finished_rate), "tokens_per_second": figure(&c.token_rate),
            "goodput": c.goodput.as_ref().map(figure),
            "ends": c.ends.iter().map(|e| (e.how.clone(), figure(&e.count))).collect::<Map<_, _>>(),
        })
    };
    let (outside, judged) = p.outside();
    json!({
        "workload": p.workload, "cluster": p.cluster, "config": p.config, "seed": p.seed, "runs": p.runs,
        "requests_per_second": p.rate, "seconds": p.seconds,
        "ended_at": {"simulated": p.ended_at[0].0, "live": p.ended_at[1].0},
        "valid": p.problems().is_empty(), "problems": p.problems(),
        "schedule": p.schedule.as_ref().map(schedule),
        "classes": p.classes.iter().map(class).collect::<Vec<_>>(),
        "findings": outside.iter().map(|(n, _)| n).collect::<Vec<_>>(), "judged": judged,
        "decisions": p.decisions.as_ref().map(|d| decisions_json(d, &p.endpoints)),
        "inputs": {
            "requests": p.inputs.requests, "other_prompt": p.inputs.other_prompt,
            "other_output": p.inputs.other_output, "cached_tokens": p.inputs.cached,
            "preemptions": p.inputs.preemptions,
        },
        "probe": delays(&p.probe), "delays": delays(&p.delays),
    })
}

fn decisions_json(d: &DecisionParity, endpoints: &[String]) -> Value {
    let decision = |d: &Option<Decision>| {
        d.map(|d| {
            json!({"request": d.number, "at": d.at.0, "endpoint": endpoints.get(d.endpoint as usize),
                         "waited": d.waited.0})
        })
    };
    let shares: Map<String, Value> = d
        .rows()
        .into_iter()
        .map(|(name, live, range)| {
            (name.replace(' ', "_"), json!({"live": live, "simulated_runs": range.map(|(a, b)| [a, b])}))
        })
        .collect();
    json!({
        "requests": d.live.requests, "shares": shares,
        "first_difference": d.parting.as_ref().map(|p| json!({
            "place": p.place, "class": d.class,
            "simulated": decision(&p.there[0]), "live": decision(&p.there[1]),
            "same_request": {"simulated": decision(&p.request[0]), "live": decision(&p.request[1])},
            "told": d.first(endpoints),
        })),
    })
}
