//! What a plan prints.

use crate::layout::{self, right};
use crate::written;
use comfy_table::Cell;
use forebay_records::stats::Standing;
use forebay_records::stats::paired::MIN_PAIRS;
use forebay_study::asked::Unit;
use forebay_study::asked::written as value;
use forebay_study::plan::{Answer, Cost, Fail, Kind, Outcome, Question, Size};
use forebay_study::text;
use forebay_workload::Kind as Mode;

/// What has to hold, and who says so.
pub(super) fn goals(q: &Question) -> String {
    let mut t = layout::table([Cell::new("SLO"), right("limit"), Cell::new("from")]);
    for g in &q.goals {
        let from = if g.own { "the workload's deadline, at the 99th percentile" } else { "--slo" };
        t.add_row(vec![Cell::new(g.label()), right(g.limit_text()), Cell::new(from)]);
    }
    layout::lines(&t)
}

/// A column per kind of endpoint.
pub(super) fn answers(q: &Question, answers: &[Answer], prices: &[Option<f64>]) -> String {
    let mut head = vec![Cell::new("")];
    head.extend(q.kinds.iter().map(|k| right(&k.name)));
    let mut t = layout::table(head);
    let mut line = |name: &str, of: &dyn Fn(usize) -> Option<String>| {
        let cells: Vec<Option<String>> = (0..answers.len()).map(of).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![Cell::new(name)];
            row.extend(cells.into_iter().map(|c| right(c.unwrap_or_else(|| "-".to_owned()))));
            t.add_row(row);
        }
    };
    let n = |i: usize| answers[i].endpoints();
    let size = |i: usize| answers[i].size(n(i)?);
    line("endpoints", &|i| Some(n(i).map_or("none".to_owned(), |n| n.to_string())));
    line("  by seed: least, median, most", &|i| {
        n(i)?;
        Some(answers[i].counts().map_or("not all".to_owned(), |(a, b, c)| format!("{a}, {b}, {c}")))
    });
    if q.kinds.iter().any(|k| k.gpus() > 1) {
        line("GPUs", &|i| Some((n(i)? * q.kinds[i].gpus()).to_string()));
    }
    line("SLO nearest to its limit", &|i| Some(q.goals[size(i)?.nearest(&q.goals)?].label()));
    line("  its value", &|i| {
        let (size, goal) = (size(i)?, size(i)?.nearest(&q.goals)?);
        Some(size.figures[goal].text(q.goals[goal].asked.what.unit()))
    });
    line("one less fails by", &|i| {
        let n = n(i)?;
        Some(if n == 1 { "-".to_owned() } else { first(&fails(q, answers[i].size(n - 1)?)) })
    });
    line("one more", &|i| {
        let more = answers[i].size(n(i)? + 1)?;
        Some(if more.holds() { "holds, too".to_owned() } else { format!("fails: {}", fails(q, more)) })
    });
    line("capacity of one, requests/s", &|i| {
        q.kinds[i].engine.as_ref().ok()?;
        Some(text::three(answers[i].one))
    });
    line("capacity of the pool", &|i| Some(text::three(answers[i].capacity.as_ref()?.low)));
    line("  limited there by", &|i| Some(answers[i].usage.as_ref()?.limit.label().to_owned()));
    line("rate / capacity", &|i| Some(format!("{:.0} %", 100.0 * answers[i].load(q.workload.rate())?)));
    line("output tokens/s", &|i| Some(text::three(size(i)?.tokens)));
    if prices.iter().any(Option::is_some) {
        let cost = |i: usize| Cost::of(&q.kinds[i], &answers[i], prices[i]);
        let unpriced =
            |i: usize| (n(i).is_some() && prices[i].is_none()).then(|| "no price given".to_owned());
        line("cost per hour", &|i| {
            let range = |c: Cost| match c.by_seed {
                Some((low, high)) if low < high => format!("{:.2} ({low:.2} to {high:.2})", c.hour),
                _ => format!("{:.2}", c.hour),
            };
            cost(i).map(range).or_else(|| unpriced(i))
        });
        line("cost per million output tokens", &|i| {
            cost(i).map(|c| text::three(c.million)).or_else(|| unpriced(i))
        });
    }
    layout::lines(&t)
}

/// The first of several reasons; the table of all sizes has the others.
fn first(reasons: &str) -> String {
    reasons.split_once(", ").map_or(reasons, |(one, _)| one).to_owned()
}

/// Why a size does not hold.
fn fails(q: &Question, s: &Size) -> String {
    let one = |f: &Fail| match *f {
        Fail::Grows(share) => format!("backlog: it grows by {:.1} %", 100.0 * share),
        Fail::Loses(share) => format!("{:.1} % refused or lost", 100.0 * share),
        Fail::Goal(i) => {
            let g = &q.goals[i];
            format!("{} {}", g.label(), s.figures[i].text(g.asked.what.unit()))
        }
    };
    s.fails.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Why there is no number.
pub(super) fn reason(q: &Question, kind: &Kind, a: &Answer) -> Option<String> {
    match a.outcome {
        Outcome::Endpoints(_) => None,
        Outcome::Unfit => kind.engine.as_ref().err().map(|e| format!("no such endpoint: {e}")),
        Outcome::Beyond(n) => {
            let least = q.workload.rate() / a.one;
            let needs = if a.one > 0.0 {
                format!(
                    " The rate alone takes about {:.0}: one keeps up with {} requests/s.",
                    least.ceil(),
                    text::three(a.one)
                )
            } else {
                " A single one keeps up with no rate that was tried.".to_owned()
            };
            let why = a.size(n).map_or_else(String::new, |s| format!(": {}", fails(q, s)));
            Some(format!("{n} endpoints do not hold{why}. More may not be tried (--max {}).{needs}", q.max))
        }
        Outcome::NoSize(small, large) => {
            let (before, after) = (a.size(small)?, a.size(large)?);
            let mut parts = Vec::new();
            for f in &after.fails {
                let Fail::Goal(i) = *f else { continue };
                let (g, unit) = (&q.goals[i], q.goals[i].asked.what.unit());
                parts.push(format!(
                    "{} is {} with {small} endpoints and {} with {large}, over {}",
                    g.label(),
                    before.figures[i].text(unit),
                    after.figures[i].text(unit),
                    value(unit, g.limit)
                ));
                if let Some(p) = after.prefill[i].filter(|p| !g.met(*p)) {
                    parts.push(format!("its prefill alone takes {}, without any wait", value(Unit::Time, p)));
                }
            }
            if parts.is_empty() {
                parts.push(format!("{large} endpoints fail as {small} do: {}", fails(q, after)));
            }
            Some(format!(
                "no number of endpoints holds: {}. Each doubling gains less, so more would not do.",
                parts.join("; ")
            ))
        }
    }
}

/// Every size that was tried.
pub(super) fn sizes(q: &Question, a: &Answer) -> String {
    let mut head = vec![right("endpoints")];
    head.extend(q.goals.iter().map(|g| right(g.asked.head())));
    head.push(Cell::new("backlog"));
    head.push(Cell::new("SLOs"));
    let mut t = layout::table(head);
    for s in &a.sizes {
        let mut row = vec![right(s.endpoints)];
        row.extend(q.goals.iter().zip(&s.figures).enumerate().map(|(i, (g, f))| {
            let failed = if s.fails.contains(&Fail::Goal(i)) { "! " } else { "" };
            right(format!("{failed}{}", f.text(g.asked.what.unit())))
        }));
        let backlog = s.fails.iter().find_map(|f| match *f {
            Fail::Grows(_) => Some("grows".to_owned()),
            Fail::Loses(share) => Some(format!("{:.1} % lost", 100.0 * share)),
            Fail::Goal(_) => None,
        });
        row.push(Cell::new(backlog.unwrap_or_else(|| "steady".to_owned())));
        row.push(Cell::new(if s.holds() { "hold" } else { "fail" }));
        t.add_row(row);
    }
    layout::lines(&t)
}

/// What has to be said beside the figures.
pub(super) fn notes(q: &Question, answers: &[Answer], prices: &[Option<f64>]) -> Vec<String> {
    let mut notes = Vec::new();
    let ran: Vec<(&Kind, &Answer)> =
        q.kinds.iter().zip(answers).filter(|(_, a)| !a.sizes.is_empty()).collect();
    let times: Vec<String> = ran
        .iter()
        .map(|(k, a)| {
            let name = if ran.len() > 1 { format!("{} ", k.name) } else { String::new() };
            format!("{name}{} after {} of warm-up", a.times.window, a.times.warmup)
        })
        .collect();
    let seeds = if q.seeds.len() == 1 { "one seed".to_owned() } else { format!("{} seeds", q.seeds.len()) };
    notes.push(format!(
        "Steady runs of {}, {seeds}, the same requests for every size. By the rules of a steady claim the window is \
         at least ten mean E2E times and the warm-up two 95th percentiles; here the window also has 30 requests \
         beyond each percentile in every run.",
        times.join(", ")
    ));
    let several = q.seeds.len() > 1;
    notes.push(
        if several {
            "± is half of Student's 95 % interval over seeds; its worse end has to keep the limit, ! marks where it \
             does not. By seed: the smallest number that holds in that seed's run alone."
        } else {
            "With one seed there is no interval; ! marks what does not keep its limit."
        }
        .to_owned(),
    );
    if q.seeds.len() < MIN_PAIRS {
        notes.push(format!("Fewer than {MIN_PAIRS} seeds: an indication, not a verdict."));
    }
    let figures = || ran.iter().flat_map(|(_, a)| &a.sizes).flat_map(|s| &s.figures);
    if figures().any(|f| f.standing == Standing::AtLeast) {
        notes.push(
            ">=: fewer than 30 requests beyond the percentile in all runs; such an SLO may be missed.".into(),
        );
    }
    if figures().any(|f| f.standing == Standing::Undetermined) {
        notes
            .push("undet.: more than 0.5 % of the requests have no value, and count as infinite.".to_owned());
    }
    for (kind, a) in &ran {
        let odd = a.endpoints().and_then(|n| a.size(n + 1)).is_some_and(|s| !s.holds());
        if odd {
            notes.push(format!("{}: one more does not hold, so that the number is no threshold.", kind.name));
        }
        if a.endpoints().and_then(|n| a.size(n)).is_some_and(|s| !s.steady) {
            notes.push(format!(
                "{}: not steady: warm-up or window are too short for how long requests take.",
                kind.name
            ));
        }
    }
    if q.workload.mode.kind == Mode::Surge {
        notes.push(format!(
            "{} is a surge from an empty pool; its rate is planned for as one that goes on.",
            q.workload.name
        ));
    }
    if q.workload.classes.iter().any(|c| !c.stages.is_empty() && !c.repeat) {
        notes.push("Stages that do not repeat are left out.".to_owned());
    }
    notes.push(costs(prices));
    notes
}

fn costs(prices: &[Option<f64>]) -> String {
    let said = if prices.iter().any(Option::is_some) {
        "Costs are in the unit of --price, which is of one GPU for an hour. Where seeds differ, the costs of the \
         least and most endpoints by seed stand in brackets."
    } else {
        "Cost: no price given (--price h100=2.50)."
    };
    said.to_owned()
}

/// A row per kind and size.
pub(super) fn csv(q: &Question, answers: &[Answer]) -> String {
    let mut head = vec!["hardware".to_owned(), "endpoints".to_owned(), "holds".to_owned()];
    for g in &q.goals {
        let unit = if g.asked.what.unit() == Unit::Time { "_ns" } else { "" };
        head.extend(["", "_low", "_high"].map(|part| written::cell(&format!("{}{unit}{part}", g.asked))));
    }
    head.push("output_tokens_per_second".to_owned());
    let number = |x: f64| if x.is_finite() { x.to_string() } else { String::new() };
    let mut out = head.join(",") + "\n";
    for (kind, a) in q.kinds.iter().zip(answers) {
        for s in &a.sizes {
            let mut cells = vec![written::cell(&kind.name), s.endpoints.to_string(), s.holds().to_string()];
            for f in &s.figures {
                let (low, high) = f.interval.unwrap_or((f64::NAN, f64::NAN));
                cells.extend([number(f.value), number(low), number(high)]);
            }
            cells.push(number(s.tokens));
            out.push_str(&cells.join(","));
            out.push('\n');
        }
    }
    out
}

/// Words in lines that fit.
pub(super) fn wrapped(text: &str) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let long = word.chars().count();
        if width > 0 && width + 1 + long > usize::from(layout::WIDTH) {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += long;
    }
    out
}
