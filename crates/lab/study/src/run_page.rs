//! One run as an HTML report, from its rows and, where somebody looked, from its timeline.

use crate::about::{About, EndpointSummary};
use crate::html::curve;
use crate::summary::{ClassSummary, Metric, QUANTILES, Summary};
use crate::text;
use forebay_base::Nanos;
use forebay_records::Row;
use forebay_records::stats::Load;
use forebay_report::page::Cell;
use forebay_report::{Bar, Bars, Chart, Group, Lines, Page, Series};
use forebay_sim::{HISTOGRAM_BINS, Point, ServerPoint, Timeline};
use std::fmt::Write;

/// Points of a line over time; more are averaged.
const POINTS: usize = 150;
/// Parts of the time for figures over rows.
const PARTS: u64 = 60;
/// Endpoints with a line each; more share one.
const LINES: usize = 6;

/// What a report is made of.
#[derive(Clone, Copy, Debug)]
pub struct RunPage<'a> {
    /// What was run.
    pub about: &'a About,
    /// Its figures. Counters without any engine step are of engines that nobody looked into, and left out.
    pub summary: &'a Summary,
    /// What endpoints got.
    pub endpoints: &'a [EndpointSummary],
    /// Every request.
    pub rows: &'a [Row],
    /// The system over time, if it was watched.
    pub timeline: Option<&'a Timeline>,
    /// Why its figures are not to be trusted, if so.
    pub problems: &'a [String],
}

#[allow(clippy::needless_pass_by_value, reason = "cells are made of numbers and of fresh texts")]
fn plain(s: impl ToString) -> Cell {
    (s.to_string(), "")
}

fn seconds(at: Nanos) -> f64 {
    at.0 as f64 / 1e9
}

/// A column of a table about endpoints: whether it is known, its head, and its cells.
type Column<'c> = (bool, &'c str, &'c dyn Fn(&EndpointSummary) -> Cell);

impl RunPage<'_> {
    /// The page.
    pub fn html(&self) -> String {
        let (about, s) = (self.about, self.summary);
        let mut page = Page::new(&format!("{} on {}", about.workload, about.cluster));
        for problem in self.problems {
            page.warning(problem);
        }
        page.lead(&verdict(s));
        let mut what = format!("{}, last end at {:.0} s", about.horizon(), seconds(s.ended_at));
        let _ = write!(what, "; configuration: {}", about.config);
        if let Some(seed) = about.seed {
            let _ = write!(what, "; seed {seed}");
        }
        what.push('.');
        page.text(&what);
        page.key_figures(&self.keys());
        self.classes(&mut page);
        self.distributions(&mut page);
        self.latencies(&mut page);
        self.over_time(&mut page);
        self.pool(&mut page);
        if !about.config_text.trim().is_empty() {
            page.section("Configuration");
            page.folded(&about.config, |page| page.listing(about.config_text.trim_end()));
        }
        page.section("How to read this");
        let split = self.summary.total.figure(Metric::EngineWait).mean.is_some();
        for line in NOTES.iter().filter(|n| split || **n != PARTS_OF_TTFT) {
            page.text(line);
        }
        page.finish()
    }

    fn keys(&self) -> Vec<(String, String, &'static str)> {
        let s = self.summary;
        let class = match s.load {
            Load::Stable => "good",
            Load::Near => "near",
            Load::Overloaded => "bad",
        };
        let mut out = vec![(s.load.label().to_owned(), "load against capacity".to_owned(), class)];
        if let Some(top) = s.classes.get(self.about.top_class()) {
            let ttft = top.figure(Metric::Ttft);
            for (i, name) in [(0, "p50"), (3, "p99")] {
                out.push((text::quantile(&ttft.quantiles[i]), format!("{} TTFT {name}", top.name), ""));
            }
            if let Some(g) = &top.goodput {
                let deadlines = self.about.classes[self.about.top_class()].deadlines();
                let what = format!("{} goodput ({deadlines})", top.name);
                out.push((format!("{:.1} %", 100.0 * g.share()), what, ""));
            }
        }
        let share = 100.0 * s.total.finished as f64 / s.total.offered.max(1) as f64;
        out.push((format!("{share:.1} %"), format!("finished of {} offered", s.total.offered), ""));
        let tokens = format!("{:.0}", s.total.throughput.output_tokens_per_second());
        out.push((tokens, "output tokens/s".to_owned(), ""));
        out
    }

    fn classes(&self, page: &mut Page) {
        let s = self.summary;
        page.section("Classes");
        let head = [
            "",
            "priority",
            "offered",
            "finished",
            "rejected",
            "timed out",
            "failed",
            "censored",
            "finished/s",
            "tokens/s",
            "goodput",
        ];
        let several = s.classes.len() > 1;
        let rows = s.classes.iter().map(Some).chain([several.then_some(&s.total)]).flatten().enumerate();
        let rows: Vec<Vec<Cell>> = rows
            .map(|(i, c)| {
                let info = self.about.classes.get(i);
                vec![
                    plain(&c.name),
                    plain(info.map_or(String::new(), |c| c.priority.to_string())),
                    plain(c.offered),
                    plain(c.finished),
                    plain(c.all_rejected()),
                    plain(c.timed_out),
                    plain(c.failed),
                    plain(c.censored),
                    plain(text::three(c.throughput.requests_per_second())),
                    plain(format!("{:.0}", c.throughput.output_tokens_per_second())),
                    plain(c.goodput.map_or("-".to_owned(), |g| format!("{:.1} %", 100.0 * g.share()))),
                ]
            })
            .collect();
        page.table(&head, &rows);
        let asks = self.about.classes.iter().map(|c| (c, c.deadlines())).filter(|(_, d)| !d.is_empty());
        let asks: Vec<String> = asks.map(|(c, d)| format!("{} {d}", c.name)).collect();
        if !asks.is_empty() {
            page.text(&format!("Goodput counts requests within their deadlines: {}.", asks.join("; ")));
        }
        let d = &s.total.with_drain;
        page.text(&format!(
            "Finished and tokens per second count what completed while requests arrived. With the drain it is {} \
             requests/s and {:.0} tokens/s over {:.0} s.",
            text::three(d.requests_per_second()),
            d.output_tokens_per_second(),
            d.seconds
        ));
        let reasons: Vec<Vec<Cell>> = s
            .classes
            .iter()
            .flat_map(|c| c.rejected.iter().map(move |(why, n)| vec![plain(&c.name), plain(why), plain(n)]))
            .collect();
        if !reasons.is_empty() {
            page.table(&["rejected", "reason", "requests"], &reasons);
        }
    }

    fn latencies(&self, page: &mut Page) {
        page.section("Latency");
        for (c, info) in self.summary.classes.iter().zip(&self.about.classes) {
            page.part(&format!("{}, priority {}", c.name, info.priority));
            // What nobody knows is left out: in live runs the inside of a server.
            let inside = [Metric::Itl, Metric::Gateway, Metric::Network, Metric::EngineWait, Metric::Prefill];
            let known = |m: &Metric| self.summary.total.figure(*m).mean.is_some();
            let all = Metric::ALL.into_iter().filter(|m| !inside.contains(m) || known(m));
            latency_table(page, c, all);
        }
        if self.summary.classes.len() > 1 && self.summary.total.figure(Metric::Itl).mean.is_some() {
            page.part("Between two tokens, all classes");
            latency_table(page, &self.summary.total, [Metric::Itl]);
        }
    }

    fn distributions(&self, page: &mut Page) {
        let s = self.summary;
        let of = |title: &str, h: &dyn Fn(&ClassSummary) -> Vec<(f64, f64)>| Lines {
            title: title.to_owned(),
            x: "seconds".to_owned(),
            series: s.classes.iter().map(|c| Series::steps(&*c.name, h(c))).collect(),
            log_x: true,
            y_max: Some(1.0),
            ..Lines::default()
        };
        let ttft = of("TTFT: share of requests within", &|c| curve(&c.ttft, c.offered));
        let e2e = of("E2E: share of requests within", &|c| curve(&c.e2e, c.offered));
        page.charts(&[
            (&ttft, "Of all offered: a curve that ends below 1 leaves out requests that never got there."),
            (&e2e, ""),
        ]);
    }

    /// From the first arrival to the last end.
    fn parts(&self) -> (u64, u64) {
        let end = self.summary.ended_at.0.max(1);
        (end, end.div_ceil(PARTS).max(1))
    }

    /// Where the warm-up and the arrivals end, and what happened.
    fn marks(&self) -> Vec<(f64, String)> {
        let mode = &self.about.mode;
        let mut out = Vec::new();
        if mode.warmup.0 > 0 {
            out.push((mode.warmup.0 as f64 / 1e9, "warm-up ends".to_owned()));
        }
        if mode.arrivals_end() < self.summary.ended_at {
            out.push((seconds(mode.arrivals_end()), "arrivals end".to_owned()));
        }
        out.extend(self.about.incidents.iter().map(|(at, word)| (seconds(*at), word.clone())));
        out
    }

    fn lines(&self, title: &str, series: Vec<Series>) -> Lines {
        let (x, marks) = ("seconds".to_owned(), self.marks());
        Lines { title: title.to_owned(), x, series, marks, ..Lines::default() }
    }

    fn over_time(&self, page: &mut Page) {
        page.section("Over time");
        let mut all = vec![(self.rates(), String::new())];
        let captioned = "Median of the requests that arrived then, in front of the range from p10 to p90.";
        for (i, c) in self.summary.classes.iter().enumerate().take(LINES) {
            all.push((self.ttft_over_time(i, &c.name), captioned.to_owned()));
        }
        if let Some(t) = self.timeline.filter(|t| !t.points.is_empty()) {
            self.watched(t, &mut all);
        }
        let all: Vec<(&dyn Chart, &str)> = all.iter().map(|(l, c)| (l as &dyn Chart, c.as_str())).collect();
        page.charts(&all);
    }

    /// Arrivals and ends per second.
    fn rates(&self) -> Lines {
        let (end, part) = self.parts();
        let width = part as f64 / 1e9;
        let count = |at: &dyn Fn(&Row) -> Option<Nanos>| {
            let mut counts = vec![0u64; end.div_ceil(part) as usize + 1];
            for at in self.rows.iter().filter_map(at) {
                let i = ((at.0 / part) as usize).min(counts.len() - 1);
                counts[i] += 1;
            }
            let full = counts.len() - 1;
            counts.truncate(full);
            let points = counts.iter().enumerate().map(|(i, n)| (i as f64 * width, *n as f64 / width));
            points.collect::<Vec<_>>()
        };
        let mut series = vec![
            Series::steps("arrived", count(&|r| Some(r.arrived))),
            Series::steps("finished", count(&|r| r.finished.filter(|_| r.is_finished()))),
        ];
        let other = count(&|r| r.finished.filter(|_| !r.is_finished()));
        if other.iter().any(|p| p.1 > 0.0) {
            series.push(Series::steps("ended otherwise", other));
        }
        self.lines("Requests per second", series)
    }

    fn ttft_over_time(&self, class: usize, name: &str) -> Lines {
        let (end, part) = self.parts();
        let mut values = vec![Vec::new(); end.div_ceil(part) as usize + 1];
        for row in self.rows.iter().filter(|r| usize::from(r.class) == class) {
            if let Some(ttft) = row.ttft() {
                values[((row.arrived.0 / part) as usize).min(end.div_ceil(part) as usize)].push(ttft.0);
            }
        }
        let mut s = Series { steps: true, ..Series::line(name, Vec::new()) };
        for (i, v) in values.iter_mut().enumerate().filter(|(_, v)| !v.is_empty()) {
            v.sort_unstable();
            let at = |q: f64| v[((q * (v.len() - 1) as f64).round() as usize).min(v.len() - 1)] as f64 / 1e9;
            let x = i as f64 * part as f64 / 1e9;
            s.points.push((x, at(0.5)));
            s.band.push((x, at(0.1), at(0.9)));
        }
        self.lines(&format!("TTFT by time of arrival, {name} (s)"), vec![s])
    }

    fn watched(&self, t: &Timeline, all: &mut Vec<(Lines, String)>) {
        let over = |name: String, v: &dyn Fn(&Point) -> f64| {
            let points: Vec<(f64, f64)> = t.points.iter().map(|p| (seconds(p.at), v(p))).collect();
            Series::thinned(name, &points, POINTS)
        };
        let band = |i: usize| {
            let names: Vec<&str> = self
                .about
                .classes
                .iter()
                .filter(|c| Some(&c.priority) == t.bands.get(i))
                .map(|c| c.name.as_str())
                .collect();
            let priority = t.bands.get(i).map_or(String::new(), ToString::to_string);
            if names.is_empty() {
                format!("band {priority}")
            } else {
                format!("{priority} {}", names.join(", "))
            }
        };
        // A band without a class is configured and stays empty.
        let used: Vec<usize> = (0..t.bands.len())
            .filter(|i| {
                self.about.classes.iter().any(|c| c.priority == t.bands[*i])
                    || t.points.iter().any(|p| p.queued.get(*i).is_some_and(|n| *n > 0))
            })
            .collect();
        let averaged =
            if t.points.len() > POINTS { "Means, in front of the least and greatest values." } else { "" };
        let mut push = |title: &str, series: Vec<Series>, y_max: Option<f64>| {
            all.push((Lines { y_max, ..self.lines(title, series) }, averaged.to_owned()));
        };
        push(
            "Saturation as the router sees it",
            vec![over("saturation".to_owned(), &|p| p.saturation.min(4.0))],
            None,
        );
        let value = |v: &[f64], i: usize| v.get(i).copied().unwrap_or(f64::NAN).min(4.0);
        let ceilings = used.iter().map(|i| over(band(*i), &|p| value(&p.ceilings, *i))).collect();
        push("Ceilings of the bands", ceilings, None);
        let queued = used.iter().map(|i| over(band(*i), &|p| p.queued.get(*i).map_or(0.0, |n| *n as f64)));
        push("Requests queued in the router", queued.collect(), None);
        push("Requests inside", vec![over("all".to_owned(), &|p| p.live as f64)], None);
        push("Requests waiting in engines", self.servers(t, &|s| f64::from(s.waiting)), None);
        push("Requests running in engines", self.servers(t, &|s| f64::from(s.running)), None);
        push("KV blocks in use, share", self.servers(t, &|s| s.kv), Some(1.0));
    }

    /// A line per endpoint, or one for all of them if they are many.
    fn servers(&self, t: &Timeline, v: &dyn Fn(&ServerPoint) -> f64) -> Vec<Series> {
        let n = t.points.iter().map(|p| p.servers.len()).max().unwrap_or(0);
        if n > LINES {
            let every = t.points.len().div_ceil(POINTS).max(1);
            let mut s = Series::steps(format!("mean of {n} endpoints, least to greatest"), Vec::new());
            for chunk in t.points.chunks(every) {
                let values = chunk.iter().flat_map(|p| &p.servers).map(v);
                let count = values.clone().count().max(1) as f64;
                let (sum, low, high) = values
                    .fold((0.0, f64::INFINITY, f64::NEG_INFINITY), |(s, l, h), x| {
                        (s + x, f64::min(l, x), f64::max(h, x))
                    });
                let x = seconds(chunk[0].at);
                s.points.push((x, sum / count));
                s.band.push((x, low, high));
            }
            return vec![s];
        }
        let line = |i: usize| {
            let value = |p: &Point| p.servers.get(i).map_or(f64::NAN, v);
            let points: Vec<(f64, f64)> = t.points.iter().map(|p| (seconds(p.at), value(p))).collect();
            Series::thinned(self.about.endpoint(i as u32), &points, POINTS)
        };
        (0..n).map(line).collect()
    }

    fn pool(&self, page: &mut Page) {
        let c = &self.summary.counters;
        let watched = c.saturation.iter().any(|n| *n > 0);
        if !watched && c.steps == 0 && self.endpoints.is_empty() {
            return;
        }
        page.section("Pool");
        if watched {
            page.chart(&saturation(&c.saturation), "The time at each saturation while requests arrived.");
        }
        if c.steps > 0 {
            let rows: Vec<Vec<Cell>> = pool_figures(self.summary)
                .into_iter()
                .map(|(name, value)| vec![plain(name), plain(value)])
                .collect();
            page.table(&["", ""], &rows);
        }
        if !self.endpoints.is_empty() {
            self.endpoints(page);
        }
    }

    /// What each endpoint got. A column that nobody has told anything for is left out: a client of a real server knows
    /// neither preemptions nor waits in engines, and cached tokens only where the server tells them.
    fn endpoints(&self, page: &mut Page) {
        let all = self.endpoints;
        let (inside, several) =
            (self.summary.counters.steps > 0, |f: fn(&EndpointSummary) -> bool| all.iter().any(f));
        let cached = inside || several(|e| e.cached_tokens > 0);
        let preempted = inside || several(|e| e.preemptions > 0);
        let waited = several(|e| e.engine_wait[0].value.is_some());
        let share = |e: &EndpointSummary| 100.0 * e.cached_tokens as f64 / e.prompt_tokens.max(1) as f64;
        let columns: [Column<'_>; 9] = [
            (true, "endpoint", &|e| plain(self.about.endpoint(e.index))),
            (true, "requests", &|e| plain(e.dispatched)),
            (true, "finished", &|e| plain(e.finished)),
            (true, "prompt tokens", &|e| plain(e.prompt_tokens)),
            (cached, "cached", &|e| plain(format!("{:.1} %", share(e)))),
            (true, "output tokens", &|e| plain(e.output_tokens)),
            (preempted, "preemptions", &|e| plain(e.preemptions)),
            (waited, "engine wait p50", &|e| plain(text::quantile(&e.engine_wait[0]))),
            (waited, "p99", &|e| plain(text::quantile(&e.engine_wait[3]))),
        ];
        let known: Vec<_> = columns.iter().filter(|c| c.0).collect();
        let head: Vec<&str> = known.iter().map(|c| c.1).collect();
        let rows: Vec<Vec<Cell>> = all.iter().map(|e| known.iter().map(|c| (c.2)(e)).collect()).collect();
        page.table(&head, &rows);
    }
}

/// One sentence about the load.
pub fn verdict(s: &Summary) -> String {
    let what = match s.load {
        Load::Stable => "Stable: the pool keeps up.",
        Load::Near => "Near capacity: whether the backlog grows cannot be told.",
        Load::Overloaded => "Overloaded: the backlog grows, and figures depend on how long the run lasts.",
    };
    let grows = s.backlog.slope().map_or(String::new(), |b| {
        format!(
            " The backlog changes by {} ± {} requests/s while {} arrive.",
            text::percent(b.per_second),
            text::three(b.half_width),
            text::three(s.backlog.arrivals)
        )
    });
    let filling = if s.may_be_filling_up() {
        " Requests arrived for less than ten mean end-to-end times: a pool that is filling up looks the same."
    } else {
        ""
    };
    format!("{what}{grows}{filling}")
}

/// What the pool did, by name.
pub fn pool_figures(s: &Summary) -> Vec<(&'static str, String)> {
    let c = &s.counters;
    let (all, hit) = s.total.prompt_tokens;
    let cached = if all == 0 { 0.0 } else { 100.0 * hit as f64 / all as f64 };
    let mut figures = vec![
        ("longest engine queue", format!("{} requests", c.longest_engine_queue)),
        ("longest gateway queue", format!("{} requests", c.longest_gateway_queue)),
        ("most requests inside", c.peak_live.to_string()),
        ("preemptions", c.preemptions.to_string()),
        ("recomputed tokens", format!("{:.1} % of all computed", 100.0 * c.recompute_share())),
        ("prompt tokens from cache", format!("{cached:.1} %")),
        ("engine steps", c.steps.to_string()),
    ];
    // Most pools do not split requests.
    if c.disaggregated > 0 {
        figures.push(("prompts computed elsewhere", c.disaggregated.to_string()));
        figures.push(("prompt tokens transferred", c.transferred_tokens.to_string()));
    }
    figures
}

fn latency_table(page: &mut Page, c: &ClassSummary, metrics: impl IntoIterator<Item = Metric>) {
    let head = ["", "mean", "p50", "p90", "p95", "p99", "95 % interval of p99"];
    let rows: Vec<Vec<Cell>> = metrics
        .into_iter()
        .map(|m| {
            let f = c.figure(m);
            let label = m.label().replace("  ", "\u{a0}\u{a0}");
            let mut row = vec![plain(label), plain(f.mean.map_or("-".to_owned(), text::time))];
            row.extend(f.quantiles.iter().map(|q| plain(text::quantile(q))));
            let last = &f.quantiles[QUANTILES.len() - 1];
            let interval = match (last.low, last.high) {
                (Some(l), Some(h)) => format!("{} to {}", text::time(l as f64), text::time(h as f64)),
                _ => String::new(),
            };
            row.push((interval, "dim"));
            row
        })
        .collect();
    page.table(&head, &rows);
}

/// The saturation histogram in bars of a tenth, up to the last that is not empty.
fn saturation(bins: &[u64]) -> Bars {
    let all: u64 = bins.iter().sum();
    let tenths: Vec<u64> = bins.chunks(2).map(|c| c.iter().sum()).collect();
    let last = tenths.iter().rposition(|n| *n > 0).unwrap_or(0);
    let shares: Vec<f64> = tenths[..=last].iter().map(|n| 100.0 * *n as f64 / all.max(1) as f64).collect();
    let label = |i: usize| {
        if i * 2 == HISTOGRAM_BINS - 1 { "2 up".to_owned() } else { format!("{:.1}", i as f64 / 10.0) }
    };
    let groups = shares
        .iter()
        .enumerate()
        .map(|(i, share)| Group { label: label(i), bars: vec![Bar { value: *share, ..Bar::default() }] });
    Bars {
        title: "Saturation, % of the time".to_owned(),
        unit: String::new(),
        series: vec!["from this value to the next".to_owned()],
        mark: String::new(),
        groups: groups.collect(),
        range: (0.0, shares.iter().copied().fold(1.0, f64::max) * 1.1),
    }
}

const PARTS_OF_TTFT: &str = "TTFT is made of the wait in the router (gateway), the way to the server (network), the \
                             wait in the server (engine wait), and the rest to the first token at the client (prefill).";

const NOTES: [&str; 4] = [
    "Requests that were refused, failed or still ran at the end count as infinitely slow. A percentile of a class with \
     more than 0.5 % of them is undetermined (undet.); means are over requests that have a value.",
    "\u{2265} or >=: fewer than 30 requests lie beyond the percentile, so that it is at least this much, the lower end of \
     its 95 % interval.",
    PARTS_OF_TTFT,
    "Load: the backlog is averaged over thirty parts of the window and a line is laid through the means. It is overloaded if \
     it grows by more than 1 % of the arrivals, at 97.5 % confidence.",
];
