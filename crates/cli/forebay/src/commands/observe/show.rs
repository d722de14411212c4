//! What a run said, for people.

use super::Seen;
use crate::commands::simulate::{ends, footnotes, verdict};
use crate::layout::{self, right};
use comfy_table::Cell;
use forebay_base::Span;
use forebay_load::Server;
use forebay_records::stats::Schedule;
use forebay_study::Observed;
use forebay_study::foreign::Imported;
use forebay_study::observed::{LiveClass, LiveMetric};
use forebay_study::summary::{ClassSummary, Figures, Metric, QUANTILES};
use forebay_study::text;
use forebay_workload::Workload;
use std::io::Write;

pub(crate) fn report(out: &mut dyn Write, seen: &Seen, server: &Server) -> anyhow::Result<()> {
    let (run, says) = (&seen.run, &seen.says);
    let s = &says.summary;
    let w = &run.workload;
    writeln!(out, "{} on {}, model {}", w.name, server.url, server.model)?;
    let warmup = if w.mode.warmup == Span::ZERO {
        String::new()
    } else {
        format!(" after {} of warm-up", w.mode.warmup)
    };
    let stopped = if run.stopped { " (stopped)" } else { "" };
    writeln!(
        out,
        "arrivals over {}{warmup}{stopped}, last end at {:.1} s; this client took {} cores",
        round(w.mode.window),
        run.ended_at.0 as f64 / 1e9,
        text::three(run.cpu.0 as f64 / run.ended_at.0.max(1) as f64)
    )?;
    writeln!(out, "{}", schedule(&says.schedule))?;
    writeln!(out, "{}\n", verdict(s))?;
    let shown = classes(says);
    write!(out, "{shown}")?;
    writeln!(out)?;
    write!(out, "{}", tokens(seen))?;
    write!(out, "{}", troubles(seen))?;
    write!(out, "{}", footnotes(&shown))?;
    Ok(())
}

/// Who ended how, and the latencies of each class.
fn classes(says: &Observed) -> String {
    let s = &says.summary;
    let mut shown = ends(s);
    let mut add = |title: String, class: &ClassSummary, live: &LiveClass| {
        shown.push_str(&title);
        shown.push_str(&latencies(says, class, live));
    };
    for (class, live) in s.classes.iter().zip(&says.classes) {
        add(format!("\n{}, priority {}\n", class.name, class.priority), class, live);
    }
    if s.classes.len() > 1 {
        add("\nall classes\n".to_owned(), &s.total, &says.total);
    }
    shown
}

/// The same of results that were read from a file.
pub(crate) fn imported(out: &mut dyn Write, i: &Imported, says: &Observed) -> anyhow::Result<()> {
    writeln!(out, "results of {}: latencies count from {}", i.tool, i.origin)?;
    // A simulation sends nothing, so there is no schedule to keep.
    if i.records.iter().any(|r| r.live.sent.is_some()) {
        writeln!(out, "{}", schedule(&says.schedule))?;
    }
    writeln!(out, "{}\n", verdict(&says.summary))?;
    let shown = classes(says);
    write!(out, "{shown}{}", footnotes(&shown))?;
    Ok(())
}

/// A time without the fractions of a second that nobody asked for.
fn round(s: Span) -> Span {
    if s.0 > 10_000_000_000 { Span(s.0.div_ceil(100_000_000) * 100_000_000) } else { s }
}

fn schedule(s: &Schedule) -> String {
    let time = |x: Option<Span>| x.map_or("never".to_owned(), |x| text::time(x.0 as f64));
    let line = format!(
        "schedule: {} offered, {}/s; {} sent in time, {}/s; lag p50 {}, p99 {}, max {}",
        s.offered,
        text::three(s.offered_rate()),
        s.sent,
        text::three(s.sent_rate()),
        time(s.lag_p50),
        time(s.lag_p99),
        time(s.lag_max)
    );
    let problems: Vec<String> = s.problems().iter().map(|p| format!("\nINVALID: {p}")).collect();
    format!("{line}{}", problems.concat())
}

fn row(name: &str, f: &Figures) -> Vec<Cell> {
    let mut row = vec![Cell::new(name), right(f.mean.map_or("-".to_owned(), text::time))];
    row.extend(f.quantiles.iter().map(|q| right(text::quantile(q))));
    row
}

fn latencies(says: &Observed, c: &ClassSummary, live: &LiveClass) -> String {
    let mut head = vec![Cell::new(""), right("mean")];
    head.extend(QUANTILES.iter().map(|q| right(format!("p{:.0}", q * 100.0))));
    let mut t = layout::table(head);
    let different = live.figure(LiveMetric::Ttfo) != c.figure(Metric::Ttft);
    for m in says.metrics() {
        t.add_row(row(m.label(), c.figure(m)));
        if m == Metric::Ttft && different {
            t.add_row(row(LiveMetric::Ttfo.label(), live.figure(LiveMetric::Ttfo)));
        }
    }
    for m in LiveMetric::ALL.into_iter().filter(|m| !matches!(m, LiveMetric::Ttfo | LiveMetric::Lag)) {
        t.add_row(row(m.label(), live.figure(m)));
    }
    layout::lines(&t)
}

fn tokens(seen: &Seen) -> String {
    let (c, total) = (&seen.says.total, &seen.says.summary.total);
    let (all, hit) = total.prompt_tokens;
    let calibration = seen.run.calibration;
    let share = |part: u64, of: u64| format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64);
    let mut t = layout::table(Vec::<Cell>::new());
    let mut line = |name: &str, value: String| {
        t.add_row(vec![Cell::new(name), right(value)]);
    };
    line("answers whose tokens the server counted", share(c.counted.1, c.counted.0));
    line("tokens per chunk", c.tokens_per_chunk.map_or("-".into(), text::three));
    line("prompt tokens counted per asked for", c.prompt_ratio.map_or("-".into(), |r| format!("{r:.3}")));
    line("answers of another length than asked for", share(c.other_length, c.counted.1));
    line("prompt tokens from the prefix cache", share(hit, all));
    if c.resent > 0 {
        line("sends that repeat another", c.resent.to_string());
    }
    let mut out = layout::lines(&t);
    if !calibration.measured {
        out.push_str("prompt lengths are estimates: a word was taken for a token\n");
    }
    if c.counted.1 < c.counted.0 {
        out.push_str(
            "figures per token are estimates where the server did not count: a chunk was taken for a token\n",
        );
    } else if c.told.1 < c.told.0 && c.tokens_per_chunk.is_some_and(|x| x > 1.01) {
        out.push_str("ITL is an estimate: gaps were divided by the mean tokens per chunk (--chunk-usage asks for more)\n");
    }
    out
}

fn troubles(seen: &Seen) -> String {
    if seen.run.troubles.is_empty() {
        return String::new();
    }
    let mut t = layout::table([right("times"), Cell::new("what"), Cell::new("said first")]);
    for (label, trouble) in &seen.run.troubles {
        t.add_row(vec![right(trouble.count), Cell::new(label), Cell::new(&trouble.message)]);
    }
    format!("\n{}", layout::lines(&t))
}

/// A line for each rate and class.
pub(crate) fn sweep(out: &mut dyn Write, all: &[Seen], workload: &Workload) -> anyhow::Result<()> {
    let mut shown = String::new();
    for (i, class) in workload.classes.iter().enumerate() {
        let heads = [
            "rate",
            "offered",
            "finished/s",
            "tokens/s",
            "goodput",
            "TTFT p50",
            "p99",
            "TPOT p50",
            "E2E p99",
        ];
        let mut t = layout::table(heads.map(right));
        for seen in all {
            let c = &seen.says.summary.classes[i];
            let q = |m: Metric, i: usize| right(text::quantile(&c.figure(m).quantiles[i]));
            t.add_row(vec![
                right(text::three(seen.rate)),
                right(c.offered),
                right(text::three(c.throughput.requests_per_second())),
                right(format!("{:.0}", c.throughput.output_tokens_per_second())),
                right(c.goodput.map_or("-".to_owned(), |g| format!("{:.1} %", 100.0 * g.share()))),
                q(Metric::Ttft, 0),
                q(Metric::Ttft, 3),
                q(Metric::Tpot, 0),
                q(Metric::E2e, 3),
            ]);
        }
        let table = format!("{}, priority {}\n{}\n", class.name, class.priority, layout::lines(&t));
        shown.push_str(&table);
    }
    write!(out, "{shown}")?;
    for seen in all {
        let load = seen.says.summary.load.label();
        writeln!(out, "at {} requests/s: {load}; {}", text::three(seen.rate), schedule(&seen.says.schedule))?;
    }
    write!(out, "{}", footnotes(&shown))?;
    Ok(())
}
