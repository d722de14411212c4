//! Arrival processes, one instant at a time.

use crate::rate::{Cursor, Curve, Stage};
use crate::sample::{Gap, Stream};
use crate::spec::{Class, Phase, Process};
use forebay_base::{Nanos, Purpose};

const GAP: Purpose = Purpose::named("workload-gap");
const PHASE: Purpose = Purpose::named("workload-phase");
const ON_OFF: Purpose = Purpose::named("workload-on-off");

/// Instants of an open class in ascending order, up to the end of arrivals.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    stream: Stream,
    cursor: Cursor,
    /// Seconds; no instant at or after it.
    end: f64,
    /// Instants so far.
    number: u64,
    kind: TimesOf,
}

#[derive(Clone, Debug)]
enum TimesOf {
    /// `sum` counts gaps; constant gaps are counted by their number, so that no error adds up.
    Renewal {
        gap: Gap,
        sum: f64,
        phase: f64,
    },
    Exact(Exact),
    OnOff(OnOff),
}

#[derive(Clone, Debug)]
struct Exact {
    /// By the number of the stage; one for all if there is only one.
    gaps: Vec<Gap>,
    /// Gaps used up by the stages before.
    used: u64,
    /// Instants that are still due in the present stage.
    due: u64,
    /// Sum of all gaps of the stage, and of those so far.
    total: f64,
    sum: f64,
    /// Gaps drawn in this stage.
    drawn: u64,
    /// Whether the present stage has been set up.
    begun: bool,
}

#[derive(Clone, Debug)]
struct OnOff {
    on: f64,
    off: f64,
    /// The present on-time, in seconds, and its number.
    from: f64,
    to: f64,
    cycle: u64,
    /// The expected count reached, in counts that run through the off-times too.
    count: f64,
    /// A second place in the curve, at the ends of on-times.
    ends: Cursor,
    /// Expected count at the end of the on-time.
    limit: f64,
}

impl Times {
    /// `None` for a closed loop.
    pub(crate) fn new(class: &Class, stream: Stream, end: Nanos) -> Option<Times> {
        let end = end.0 as f64 / 1e9;
        let curve = |rate: f64| Curve::new(&class.stages, class.repeat, rate);
        let exact = |gaps: Vec<Gap>| {
            TimesOf::Exact(Exact { gaps, used: 0, due: 0, total: 0.0, sum: 0.0, drawn: 0, begun: false })
        };
        let (cursor, kind) = match class.arrivals.as_ref()? {
            Process::Renewal { gap, rate, phase } => {
                let phase = match phase {
                    Phase::Random => stream.unit(PHASE, 0, 0),
                    Phase::At(share) => *share,
                };
                (Cursor::new(curve(*rate)), TimesOf::Renewal { gap: *gap, sum: 0.0, phase })
            }
            Process::Exact { gap, rate } => (Cursor::new(curve(*rate)), exact(vec![*gap])),
            Process::OnOff { rate, on, off } => {
                let cursor = Cursor::new(curve(rate * (on + off) / on));
                let kind = TimesOf::OnOff(OnOff::new(stream, *on, *off, cursor.clone()));
                (cursor, kind)
            }
            Process::ServeGen { client, scale } => {
                let (stages, gaps): (Vec<Stage>, Vec<Gap>) = client.stages().unzip();
                (Cursor::new(Curve::new(&stages, false, *scale)), exact(gaps))
            }
            Process::Closed { .. } => return None,
        };
        Some(Times { stream, cursor, end, number: 0, kind })
    }

    /// The next instant.
    pub(crate) fn next(&mut self) -> Option<Nanos> {
        let Times { stream, cursor, end, number, kind } = self;
        let at = match kind {
            TimesOf::Renewal { gap: Gap::Constant, phase, .. } => cursor.at(*number as f64 + *phase, *end),
            TimesOf::Renewal { gap, sum, .. } => {
                *sum += gap.draw(*stream, GAP, *number);
                cursor.at(*sum, *end)
            }
            TimesOf::Exact(exact) => exact.next(*stream, cursor, *end),
            TimesOf::OnOff(on_off) => on_off.next(*stream, cursor, *number, *end),
        };
        if at >= *end {
            return None;
        }
        *number += 1;
        let at = Nanos((at * 1e9).round() as u64);
        (at.0 < (*end * 1e9) as u64).then_some(at)
    }
}

impl Exact {
    fn next(&mut self, stream: Stream, cursor: &mut Cursor, end: f64) -> f64 {
        while self.due == 0 {
            if self.begun && !cursor.advance() {
                return f64::INFINITY;
            }
            self.begun = true;
            let (start, stop, from, _) = cursor.bounds();
            if start >= end {
                return f64::INFINITY;
            }
            let to = cursor.count_within(stop.min(end));
            self.used += self.drawn;
            // One gap more than instants: the rest after the last, so that instants lie inside.
            self.due = (to + 0.5).floor() as u64 - (from + 0.5).floor() as u64;
            self.total = (0..=self.due).map(|i| self.gap(stream, cursor.number(), i)).sum();
            (self.sum, self.drawn) = (0.0, 0);
        }
        let (_, stop, from, _) = cursor.bounds();
        let to = cursor.count_within(stop.min(end));
        self.sum += self.gap(stream, cursor.number(), self.drawn);
        self.drawn += 1;
        self.due -= 1;
        if self.due == 0 {
            // The rest belongs to this stage.
            self.drawn += 1;
        }
        // Rounding must not carry the last instant over the edge.
        cursor.at((from + (to - from) * (self.sum / self.total)).min(to * (1.0 - 1e-15)), end)
    }

    fn gap(&self, stream: Stream, stage: usize, i: u64) -> f64 {
        let gap = self.gaps.get(stage).or(self.gaps.first()).copied().unwrap_or(Gap::Exponential);
        gap.draw(stream, GAP, self.used + i)
    }
}

impl OnOff {
    fn new(stream: Stream, on: f64, off: f64, ends: Cursor) -> OnOff {
        let (from, to, count, limit) = (0.0, 0.0, 0.0, 0.0);
        let mut o = OnOff { on, off, from, to, cycle: 0, count, ends, limit };
        // In the long run it is on for on / (on + off) of the time, and what is left of an exponential time
        // is as long as a whole one.
        if stream.unit(ON_OFF, 0, 2) < on / (on + off) {
            o.to = o.on * -forebay_base::math::ln(stream.unit(ON_OFF, 0, 0));
            o.limit = o.ends.count(o.to);
            o.cycle = 1;
        }
        o
    }

    fn next(&mut self, stream: Stream, cursor: &mut Cursor, number: u64, end: f64) -> f64 {
        let mut need = Gap::Exponential.draw(stream, GAP, number);
        loop {
            if self.count + need < self.limit {
                self.count += need;
                return cursor.at(self.count, end);
            }
            need -= self.limit - self.count;
            let time = |lane| -forebay_base::math::ln(stream.unit(ON_OFF, self.cycle, lane));
            self.from = self.to + self.off * time(1);
            if self.from >= end {
                return f64::INFINITY;
            }
            self.to = self.from + self.on * time(0);
            self.count = self.ends.count(self.from);
            self.limit = self.ends.count(self.to);
            self.cycle += 1;
        }
    }
}
