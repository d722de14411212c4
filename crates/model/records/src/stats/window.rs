//! The measured part of a run: throughput, goodput, and the conditions under which they mean anything.

use crate::row::Row;
use forebay_base::{Nanos, Span};

/// The arrival window after the warm-up, its end not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where the warm-up ends.
    pub from: Nanos,
    /// Where arrivals end.
    pub to: Nanos,
}

/// Completions by time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throughput {
    /// Requests that finished in the time.
    pub requests: u64,
    /// Output tokens of those requests.
    pub output_tokens: u64,
    /// Prompt tokens of those requests.
    pub prompt_tokens: u64,
    /// The time, in seconds.
    pub seconds: f64,
}

impl Throughput {
    /// Requests per second; 0 if there was no time.
    pub fn requests_per_second(&self) -> f64 {
        per(self.requests as f64, self.seconds)
    }
    /// Output tokens per second; 0 if there was no time.
    pub fn output_tokens_per_second(&self) -> f64 {
        per(self.output_tokens as f64, self.seconds)
    }

    fn add(&mut self, row: &Row) {
        self.requests += 1;
        self.output_tokens += u64::from(row.output_tokens);
        self.prompt_tokens += u64::from(row.prompt_tokens);
    }
}

fn per(amount: f64, time: f64) -> f64 {
    if time > 0.0 { amount / time } else { 0.0 }
}

/// The deadlines of a class; `None` asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Time to first token.
    pub ttft: Option<Span>,
    /// Mean time per output token after the first.
    pub tpot: Option<Span>,
    /// End to end.
    pub e2e: Option<Span>,
}

impl Slo {
    /// Whether anything is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Slo::default()
    }

    /// Whether a request met every deadline. Only a finished one can; an answer of one token has no time
    /// per output token to miss.
    pub fn met_by(&self, row: &Row) -> bool {
        let within = |limit: Option<Span>, value: Option<Span>| match (limit, value) {
            (Some(limit), Some(value)) => value <= limit,
            (limit, None) => limit.is_none(),
            (None, _) => true,
        };
        row.is_finished()
            && within(self.ttft, row.ttft())
            && within(self.e2e, row.e2e())
            && (row.came_at_once() || within(self.tpot, row.tpot()))
    }
}

/// How many of the offered requests met their deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goodput {
    /// Requests that arrived in the window, refused and failed ones included.
    pub offered: u64,
    /// Those that met every deadline.
    pub attained: u64,
    /// The window in seconds.
    pub seconds: f64,
}

impl Goodput {
    /// Attained per offered, 0..=1; NaN if nothing was offered.
    pub fn share(&self) -> f64 {
        self.attained as f64 / self.offered as f64
    }
    /// Attained per second of the window; 0 if there was no time.
    pub fn per_second(&self) -> f64 {
        per(self.attained as f64, self.seconds)
    }
}

/// Both sides of Little's law, measured apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Little {
    /// Time average of the requests inside.
    pub inside: f64,
    /// Arrivals per second times mean time inside.
    pub product: f64,
}

impl Little {
    /// `|L - λW| / L`; 0 if nothing was inside. What is inside at the ends of the window makes it differ,
    /// so it shrinks as the window grows.
    pub fn relative_error(&self) -> f64 {
        if self.inside == 0.0 { self.product } else { (self.inside - self.product).abs() / self.inside }
    }
}

/// Why a run may not be called steady.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SteadyProblem {
    /// The warm-up is shorter than two 95th percentiles of the end-to-end time, given here in seconds.
    ShortWarmup {
        /// The shortest warm-up that will do, in seconds.
        needed: f64,
    },
    /// The window is shorter than ten mean end-to-end times.
    ShortWindow {
        /// The shortest window that will do, in seconds.
        needed: f64,
    },
}

impl Window {
    /// From `from` up to `to`, which is not in it.
    pub fn new(from: Nanos, to: Nanos) -> Window {
        Window { from, to }
    }

    /// Whether an instant lies in it.
    pub fn holds(&self, at: Nanos) -> bool {
        self.from <= at && at < self.to
    }

    /// How long it is.
    pub fn length(&self) -> Span {
        self.to.since(self.from)
    }

    /// What completed inside the window, whenever it arrived.
    pub fn throughput<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Throughput {
        let mut t = Throughput { seconds: self.length().as_secs_f64(), ..Throughput::default() };
        for row in rows {
            if row.is_finished() && row.finished.is_some_and(|at| self.holds(at)) {
                t.add(row);
            }
        }
        t
    }

    /// What arrived in the window and completed at any time, over the time from the window's start to the
    /// last of those completions: the drain included. Never to be compared with [`Window::throughput`].
    pub fn throughput_with_drain<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Throughput {
        let (mut t, mut last) = (Throughput::default(), self.to);
        for row in rows {
            if row.is_finished() && self.holds(row.arrived) {
                t.add(row);
                last = last.max(row.finished.unwrap_or(last));
            }
        }
        t.seconds = last.since(self.from).as_secs_f64();
        t
    }

    /// Goodput of the requests that arrived in the window; `slo` gives the deadlines of a class by index.
    pub fn goodput<'r>(&self, rows: impl IntoIterator<Item = &'r Row>, slo: impl Fn(u16) -> Slo) -> Goodput {
        let mut g = Goodput { seconds: self.length().as_secs_f64(), ..Goodput::default() };
        for row in rows {
            if self.holds(row.arrived) {
                g.offered += 1;
                g.attained += u64::from(slo(row.class).met_by(row));
            }
        }
        g
    }

    /// Little's law: the time average of requests inside against arrivals per second times their mean time
    /// inside. Requests without an end count as inside to the end of the window on both sides.
    pub fn little<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Little {
        let (mut inside, mut times) = (0u128, 0u128);
        for row in rows {
            let end = row.finished.unwrap_or(self.to);
            let (a, b) = (row.arrived.max(self.from), end.min(self.to));
            inside += u128::from(b.since(a).0);
            if self.holds(row.arrived) {
                times += u128::from(end.since(row.arrived).0);
            }
        }
        let length = self.length().0.max(1) as f64;
        // λW is arrivals / length * sum / arrivals: the count cancels out.
        Little { inside: inside as f64 / length, product: times as f64 / length }
    }

    /// Whether warm-up and window are long enough for a steady-state claim, given how long requests take:
    /// the warm-up at least two 95th percentiles, the window at least ten means.
    pub fn steady_problems(&self, start: Nanos, mean: Span, p95: Span) -> Vec<SteadyProblem> {
        let mut problems = Vec::new();
        let (warmup, window) = (self.from.since(start).as_secs_f64(), self.length().as_secs_f64());
        let needed = 2.0 * p95.as_secs_f64();
        if warmup < needed {
            problems.push(SteadyProblem::ShortWarmup { needed });
        }
        let needed = 10.0 * mean.as_secs_f64();
        if window < needed {
            problems.push(SteadyProblem::ShortWindow { needed });
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::End;
    use forebay_base::{Draws, Purpose, math};

    const S: u64 = 1_000_000_000;

    fn row(class: u16, arrived: u64, first: u64, finished: u64, tokens: u32) -> Row {
        Row {
            first_token: Some(Nanos(first * S)),
            finished: Some(Nanos(finished * S)),
            end: End::Finished,
            output_tokens: tokens,
            prompt_tokens: 7,
            ..Row::arriving(0, class, Nanos(arrived * S))
        }
    }

    #[test]
    fn throughput_counts_what_completes_inside_and_the_drain_stands_apart() {
        let w = Window::new(Nanos(10 * S), Nanos(20 * S));
        let rows = [
            row(0, 5, 6, 10, 100),  // arrived in the warm-up, completes inside
            row(0, 12, 13, 19, 10), // inside
            row(0, 19, 21, 30, 1),  // completes in the drain
            row(0, 12, 13, 20, 10), // completes at the end, which is not inside
            Row { end: End::Failed, ..row(0, 12, 13, 15, 50) },
            row(0, 2, 3, 9, 1000),
        ];
        let t = w.throughput(&rows);
        assert_eq!((t.requests, t.output_tokens, t.prompt_tokens, t.seconds), (2, 110, 14, 10.0));
        assert_eq!((t.requests_per_second(), t.output_tokens_per_second()), (0.2, 11.0));
        let d = w.throughput_with_drain(&rows);
        assert_eq!((d.requests, d.output_tokens, d.seconds), (3, 21, 20.0));
        assert_eq!(Throughput::default().requests_per_second(), 0.0);
    }

    #[test]
    fn goodput_is_of_all_that_was_offered() {
        let w = Window::new(Nanos(0), Nanos(10 * S));
        let slo = Slo { ttft: Some(Span::secs(2)), tpot: Some(Span::millis(500)), e2e: None };
        let rows = [
            row(0, 0, 2, 4, 5),                                       // 0.5 s a token: met
            row(0, 0, 3, 4, 5),                                       // late
            row(0, 0, 1, 4, 5),                                       // 0.75 s a token
            row(0, 0, 2, 9, 1),                                       // one token has no gap
            Row { end: End::Rejected("full"), ..row(0, 0, 1, 1, 2) }, // refused
            Row::arriving(9, 0, Nanos(9 * S)),                        // still alive
            row(0, 10, 11, 12, 5),                                    // not in the window
            row(1, 1, 9, 9, 3),                                       // a class without deadlines
        ];
        let g = w.goodput(&rows, |class| if class == 0 { slo } else { Slo::default() });
        assert_eq!((g.offered, g.attained), (7, 3));
        assert!((g.share() - 3.0 / 7.0).abs() < 1e-15 && g.per_second() == 0.3);
        assert!(Slo::default().is_empty() && !slo.is_empty());
    }

    #[test]
    fn littles_law_holds_by_hand_and_for_a_queue() {
        // Two requests of 4 s in 10 s: 0.8 inside on average, 0.2 per second times 4 s.
        let w = Window::new(Nanos(0), Nanos(10 * S));
        let l = w.little(&[row(0, 1, 2, 5, 1), row(0, 3, 4, 7, 1)]);
        assert_eq!((l.inside, l.product, l.relative_error()), (0.8, 0.8, 0.0));
        // M/D/1 at load 0.8, by Lindley's recursion: the mean wait is rho / (2 (1 - rho)) = 2 service times
        // (Pollaczek and Khinchine).
        let (d, p) = (Draws::new(2), Purpose::named("md1"));
        let (mut at, mut free, mut rows, mut waits) = (0.0f64, 0.0f64, Vec::new(), 0.0);
        for i in 0..400_000u64 {
            at += -math::ln(d.unit(p, i, 0)) / 0.8;
            let start = at.max(free);
            waits += start - at;
            free = start + 1.0;
            let (arrived, end) = (Nanos((at * 1e9) as u64), Nanos((free * 1e9) as u64));
            rows.push(Row { finished: Some(end), end: End::Finished, ..Row::arriving(i, 0, arrived) });
        }
        assert!((waits / 400_000.0 / 2.0 - 1.0).abs() < 0.04, "{}", waits / 400_000.0);
        let l = Window::new(Nanos(0), Nanos((at * 1e9) as u64)).little(&rows);
        assert!((l.inside / (0.8 * 3.0) - 1.0).abs() < 0.04, "{l:?}");
        assert!(l.relative_error() < 0.001);
    }

    #[test]
    fn steady_runs_are_long_enough() {
        let w = Window::new(Nanos(100 * S), Nanos(700 * S));
        assert_eq!(w.steady_problems(Nanos(0), Span::secs(60), Span::secs(50)), []);
        assert_eq!(
            w.steady_problems(Nanos(0), Span::secs(61), Span::secs(51)),
            [SteadyProblem::ShortWarmup { needed: 102.0 }, SteadyProblem::ShortWindow { needed: 610.0 }]
        );
    }
}
