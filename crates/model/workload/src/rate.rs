//! Rates that change over time, and the way from expected counts to instants.

/// A stretch of time with a rate that is constant or changes evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Length in seconds.
    pub seconds: f64,
    /// The rate, or factor on a rate, at its start.
    pub from: f64,
    /// The same at its end.
    pub to: f64,
}

/// Stages one after the other. After the last its end rate stays, or all begin again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    stages: Vec<Stage>,
    repeat: bool,
}

impl Curve {
    /// Without stages the factor is 1 for ever.
    pub(crate) fn new(stages: &[Stage], repeat: bool, rate: f64) -> Curve {
        let scaled = |s: &Stage| Stage { from: s.from * rate, to: s.to * rate, ..*s };
        let mut stages: Vec<Stage> = stages.iter().map(scaled).collect();
        let repeat = repeat && stages.iter().any(|s| s.seconds > 0.0);
        if !repeat {
            let last = stages.last().map_or(rate, |s| s.to);
            stages.push(Stage { seconds: f64::INFINITY, from: last, to: last });
        }
        Curve { stages, repeat }
    }

    /// The stage with a number from the start of time, counting repetitions; `None` past the last.
    fn stage(&self, number: usize) -> Option<Stage> {
        let index = if self.repeat { number % self.stages.len() } else { number };
        self.stages.get(index).copied()
    }
}

/// A place in a curve that moves forward: instants in seconds, counts as expected so far.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    curve: Curve,
    number: usize,
    stage: Stage,
    start: f64,
    count: f64,
}

impl Cursor {
    /// At time 0.
    pub(crate) fn new(curve: Curve) -> Cursor {
        let none = Stage { seconds: f64::INFINITY, from: 0.0, to: 0.0 };
        let stage = curve.stage(0).unwrap_or(none);
        Cursor { curve, number: 0, stage, start: 0.0, count: 0.0 }
    }

    /// Where the present stage starts and ends in time, and the expected counts there.
    pub(crate) fn bounds(&self) -> (f64, f64, f64, f64) {
        let s = self.stage;
        (self.start, self.start + s.seconds, self.count, self.count + total(s))
    }

    /// The number of the present stage.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// To the next stage; false if this is the last.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(next) = self.curve.stage(self.number + 1) else { return false };
        let (_, end, _, count) = self.bounds();
        (self.number, self.stage, self.start, self.count) = (self.number + 1, next, end, count);
        true
    }

    /// When the expected count reaches `count`, or infinity if never before `limit` seconds. Not to be asked
    /// for less than before.
    pub(crate) fn at(&mut self, count: f64, limit: f64) -> f64 {
        loop {
            let (start, _, from, to) = self.bounds();
            if count < to {
                return start + within(self.stage, count - from);
            }
            if start >= limit || !self.advance() {
                return f64::INFINITY;
            }
        }
    }

    /// The expected count at an instant, not earlier than asked before.
    pub(crate) fn count(&mut self, at: f64) -> f64 {
        while at >= self.bounds().1 && self.advance() {}
        self.count_within(at)
    }

    /// The expected count at an instant of the present stage.
    pub(crate) fn count_within(&self, at: f64) -> f64 {
        let (s, t) = (self.stage, at - self.start);
        let slope = if s.seconds.is_finite() && s.seconds > 0.0 { (s.to - s.from) / s.seconds } else { 0.0 };
        self.count + s.from * t + 0.5 * slope * t * t
    }
}

/// What a stage counts in all.
fn total(s: Stage) -> f64 {
    if s.seconds == 0.0 || (s.from == 0.0 && s.to == 0.0) { 0.0 } else { 0.5 * (s.from + s.to) * s.seconds }
}

/// The time into a stage when it has counted `y`: the root of `from * t + slope/2 * t² = y`, in the form
/// that does not cancel.
fn within(s: Stage, y: f64) -> f64 {
    if s.from == s.to || !s.seconds.is_finite() {
        return y / s.from;
    }
    let slope = (s.to - s.from) / s.seconds;
    2.0 * y / (s.from + (s.from * s.from + 2.0 * slope * y).max(0.0).sqrt())
}
