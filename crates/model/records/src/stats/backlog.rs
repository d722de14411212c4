//! Whether a rate is sustainable: the slope of the backlog while requests arrive.

use super::student::t_quantile;
use super::window::Window;
use crate::row::Row;
use forebay_base::Nanos;

/// How a rate stands to the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The backlog does not grow, at 97.5 % confidence or by less than [`NEAR`] of the arrivals.
    Stable,
    /// It may grow.
    Near,
    /// It grows, at 97.5 % confidence, by more than [`NEAR`] of the arrivals.
    Overloaded,
}

impl Load {
    /// `stable`, `near` or `overloaded`.
    pub fn label(self) -> &'static str {
        match self {
            Load::Stable => "stable",
            Load::Near => "near",
            Load::Overloaded => "overloaded",
        }
    }
}

/// Growth as a share of the arrival rate below which it is not told from noise: 1 %.
pub const NEAR: f64 = 0.01;
/// Points that the backlog is averaged into. Neighbouring samples of a queue are alike; means over a
/// thirtieth of the window are nearly independent where the window is long against the queue's memory.
const POINTS: usize = 30;

/// A straight line through equally spaced points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Growth per second.
    pub per_second: f64,
    /// Half the width of its 95 % interval.
    pub half_width: f64,
}

/// The backlog over a window: the time average in each of [`POINTS`] equal parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Backlog {
    /// Time averages of the requests inside, in order.
    pub means: Vec<f64>,
    /// Length of a part in seconds.
    pub step: f64,
    /// Arrivals per second in the window.
    pub arrivals: f64,
}

/// Takes the backlog of a window from rows, one by one and in any order; the rows need not be kept.
#[derive(Clone, Debug)]
pub struct Meter {
    window: Window,
    arrivals: u64,
    /// Nanoseconds that requests spend in the first and last part of their time inside, by part.
    partial: [u128; POINTS],
    /// How many more requests are inside for the whole of a part than of the part before it.
    whole: [i64; POINTS + 1],
}

impl Meter {
    /// Nothing yet.
    pub fn new(window: Window) -> Meter {
        Meter { window, arrivals: 0, partial: [0; POINTS], whole: [0; POINTS + 1] }
    }

    /// Where a part begins.
    fn edge(&self, i: usize) -> Nanos {
        let length = u128::from(self.window.length().0);
        Nanos(self.window.from.0 + (length * i as u128 / POINTS as u128) as u64)
    }

    /// The part that holds an instant; the last for the end of the window.
    fn part_of(&self, at: Nanos) -> usize {
        let (offset, length) = (at.since(self.window.from).0, self.window.length().0.max(1));
        let near = (u128::from(offset) * POINTS as u128 / u128::from(length)) as usize;
        // Edges are rounded down, so an instant may lie past the next one.
        let part = if near < POINTS && at >= self.edge(near + 1) { near + 1 } else { near };
        part.min(POINTS - 1)
    }

    /// Counts a request; without an end it is inside to the end of the window.
    pub fn add(&mut self, row: &Row) {
        self.arrivals += u64::from(self.window.holds(row.arrived));
        let from = row.arrived.max(self.window.from);
        let to = row.finished.unwrap_or(self.window.to).min(self.window.to);
        if to <= from {
            return;
        }
        let (first, last) = (self.part_of(from), self.part_of(to));
        if first == last {
            self.partial[first] += u128::from(to.since(from).0);
        } else {
            self.partial[first] += u128::from(self.edge(first + 1).since(from).0);
            self.partial[last] += u128::from(to.since(self.edge(last)).0);
            self.whole[first + 1] += 1;
            self.whole[last] -= 1;
        }
    }

    /// The backlog of all rows so far.
    pub fn backlog(&self) -> Backlog {
        let mut inside = 0i64;
        let means = (0..POINTS)
            .map(|i| {
                inside += self.whole[i];
                let width = self.edge(i + 1).since(self.edge(i)).0.max(1) as f64;
                inside as f64 + self.partial[i] as f64 / width
            })
            .collect();
        let seconds = self.window.length().as_secs_f64();
        Backlog { means, step: seconds / POINTS as f64, arrivals: self.arrivals as f64 / seconds.max(1e-9) }
    }
}

/// The requests inside the system over the window.
pub fn backlog_of<'r>(rows: impl IntoIterator<Item = &'r Row>, window: Window) -> Backlog {
    let mut meter = Meter::new(window);
    rows.into_iter().for_each(|row| meter.add(row));
    meter.backlog()
}

/// Least squares through points `step` apart; `None` with fewer than three.
pub fn slope(points: &[f64], step: f64) -> Option<Slope> {
    let n = points.len();
    if n < 3 || step <= 0.0 {
        return None;
    }
    let middle = (n - 1) as f64 / 2.0;
    let mean = points.iter().sum::<f64>() / n as f64;
    let (mut xx, mut xy) = (0.0, 0.0);
    for (i, y) in points.iter().enumerate() {
        let x = i as f64 - middle;
        xx += x * x;
        xy += x * (y - mean);
    }
    let b = xy / xx;
    let squares: f64 = points
        .iter()
        .enumerate()
        .map(|(i, y)| y - mean - b * (i as f64 - middle))
        .map(|rest| rest * rest)
        .sum();
    let df = (n - 2) as f64;
    let error = (squares / df / xx).sqrt();
    let half = if error == 0.0 { 0.0 } else { t_quantile(0.975, df) * error };
    Some(Slope { per_second: b / step, half_width: half / step })
}

impl Backlog {
    /// The straight line through the means.
    pub fn slope(&self) -> Option<Slope> {
        slope(&self.means, self.step)
    }

    /// The verdict. Growth counts against the arrival rate: at twice the capacity half of what arrives
    /// stays, whatever the size of the pool.
    pub fn load(&self) -> Load {
        let Some(s) = self.slope() else { return Load::Near };
        let limit = NEAR * self.arrivals;
        if s.per_second - s.half_width > 0.0 && s.per_second > limit {
            Load::Overloaded
        } else if s.per_second <= 0.0 || s.per_second + s.half_width <= limit {
            Load::Stable
        } else {
            Load::Near
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::End;
    use forebay_base::{Draws, Purpose, math};
    use proptest::prelude::*;

    #[test]
    fn the_slope_is_that_by_hand() {
        // 1, 2, 4, 3 at 2 s: b = 0.8 a step; rest -0.3, -0.1, 1.1, -0.7, squares 1.8, variance 0.9 over
        // 5 = 0.18; t(2) = 4.302653.
        let s = slope(&[1.0, 2.0, 4.0, 3.0], 2.0).unwrap();
        assert!((s.per_second - 0.4).abs() < 1e-12);
        assert!((s.half_width - 4.302_653 * 0.18f64.sqrt() / 2.0).abs() < 1e-5);
        assert_eq!(slope(&[1.0, 2.0], 1.0), None);
        assert_eq!(slope(&[5.0; 9], 1.0), Some(Slope { per_second: 0.0, half_width: 0.0 }));
    }

    /// Requests of a queue with one server that takes 1 s each, at a load.
    fn queue(load: f64, seconds: u64, seed: u64) -> (Vec<Row>, Window) {
        let (d, p) = (Draws::new(seed), Purpose::named("q"));
        let (mut at, mut free, mut rows) = (0.0f64, 0.0f64, Vec::new());
        for i in 0.. {
            at += -math::ln(d.unit(p, i, 0)) / load;
            if at >= seconds as f64 {
                break;
            }
            free = at.max(free) + 1.0;
            let (arrived, end) = (Nanos((at * 1e9) as u64), Nanos((free * 1e9) as u64));
            rows.push(Row { finished: Some(end), end: End::Finished, ..Row::arriving(i, 0, arrived) });
        }
        (rows, Window::new(Nanos(0), Nanos(seconds * 1_000_000_000)))
    }

    #[test]
    fn queues_below_and_above_their_capacity_are_told_apart() {
        for seed in 0..20 {
            let load = |load: f64| {
                let (rows, window) = queue(load, 20_000, seed);
                backlog_of(&rows, window).load()
            };
            assert_eq!(load(0.5), Load::Stable, "{seed}");
            assert_eq!(load(0.8), Load::Stable, "{seed}");
            assert_eq!(load(1.2), Load::Overloaded, "{seed}");
        }
        let (rows, window) = queue(2.0, 20_000, 1);
        let b = backlog_of(&rows, window);
        assert!((b.slope().unwrap().per_second - 1.0).abs() < 0.1, "half of what arrives stays");
        assert!((b.arrivals - 2.0).abs() < 0.2);
        assert_eq!(backlog_of(&[], window).load(), Load::Stable);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_means_are_the_time_inside(
            v in prop::collection::vec((0..3_000u64, 0..3_000u64, any::<bool>()), 0..30),
            from in 0..1000u64,
            length in 30..1500u64,
        ) {
            let rows: Vec<Row> = v.iter().map(|&(at, time, ends)| Row {
                finished: ends.then_some(Nanos(at + time)),
                ..Row::arriving(0, 0, Nanos(at))
            }).collect();
            let window = Window::new(Nanos(from), Nanos(from + length));
            let b = backlog_of(&rows, window);
            // Added up second by second.
            let inside = |t: u64| rows.iter().filter(|r| r.arrived.0 <= t && r.finished.is_none_or(|f| t < f.0)).count();
            let edge = |i: u64| from + length * i / 30;
            for (i, mean) in b.means.iter().enumerate() {
                let (start, end) = (edge(i as u64), edge(i as u64 + 1));
                let sum: usize = (start..end).map(inside).sum();
                prop_assert!((mean - sum as f64 / (end - start).max(1) as f64).abs() < 1e-9, "part {}", i);
            }
        }
    }
}
