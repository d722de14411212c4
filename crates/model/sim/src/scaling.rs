//! Scaling by rules, as a Kubernetes HorizontalPodAutoscaler does it.
//!
//! Each period, every metric proposes a number of servers: its total over the group divided by the target per
//! server, rounded up; within the tolerance of the present number, that number. The greatest proposal counts.
//! It is smoothed over a window per direction (up: the least proposal of the window; down: the greatest), and
//! then bounded by how fast policies let the number change, and by the least and the most allowed.

use forebay_base::{Nanos, Span};
use std::collections::VecDeque;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleMetric {
    /// Requests queued in all routers, per server.
    Queue,
    /// Requests that all routers have in flight at the group, per server.
    InFlight,
    /// Requests waiting in the group's engines, per server, as published.
    Waiting,
    /// Requests running in the group's engines, per server, as published.
    Running,
    /// Mean share of KV blocks in use, as published.
    KvCache,
    /// Saturation as the first router sees it: of the group's stage, if all its servers have one role.
    Saturation,
}

impl ScaleMetric {
    /// All of them with their names in files.
    pub const ALL: [(&'static str, ScaleMetric); 6] = [
        ("queue", ScaleMetric::Queue),
        ("in-flight", ScaleMetric::InFlight),
        ("waiting", ScaleMetric::Waiting),
        ("running", ScaleMetric::Running),
        ("kv-cache", ScaleMetric::KvCache),
        ("saturation", ScaleMetric::Saturation),
    ];

    /// Its name in files.
    pub fn label(self) -> &'static str {
        Self::ALL.iter().find(|(_, m)| *m == self).map_or("", |(name, _)| name)
    }
}

/// By how much the number of servers may change within a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// How much.
    pub step: Step,
    /// Within this time.
    pub period: Span,
}

/// How much the number of servers may change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// So many servers.
    Pods(u32),
    /// So many per cent of those at the period's start.
    Percent(u32),
}

/// Which of several policies counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The one that allows the greatest change.
    Max,
    /// The one that allows the least.
    Min,
    /// No change in this direction.
    Disabled,
}

/// How the number changes in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    /// Proposals of so long ago still count.
    pub window: Span,
    /// Bounds on the speed; none is no bound.
    pub paces: Vec<Pace>,
    /// Which of them counts.
    pub select: Select,
}

impl Behavior {
    /// Kubernetes' for scaling up: at once, by 4 servers or 100 % per 15 s, whichever is more.
    pub fn up() -> Behavior {
        let pace = |step| Pace { step, period: Span::secs(15) };
        let paces = vec![pace(Step::Percent(100)), pace(Step::Pods(4))];
        Behavior { window: Span::ZERO, paces, select: Select::Max }
    }

    /// Kubernetes' for scaling down: by all that were too many over the last 300 s.
    pub fn down() -> Behavior {
        let paces = vec![Pace { step: Step::Percent(100), period: Span::secs(15) }];
        Behavior { window: Span::secs(300), paces, select: Select::Max }
    }
}

/// The rules by which the size of a group changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Autoscaler {
    /// Index of the group.
    pub group: u32,
    /// The least number of servers, at least 1.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// What is measured, with the target per server.
    pub metrics: Vec<(ScaleMetric, f64)>,
    /// Time between two evaluations.
    pub period: Span,
    /// A metric within this share of its target changes nothing.
    pub tolerance: f64,
    /// More servers.
    pub up: Behavior,
    /// Fewer servers.
    pub down: Behavior,
}

impl Autoscaler {
    /// Kubernetes' `--horizontal-pod-autoscaler-sync-period`.
    pub const PERIOD: Span = Span::secs(15);
    /// Kubernetes' `--horizontal-pod-autoscaler-tolerance`.
    pub const TOLERANCE: f64 = 0.1;

    /// What one metric proposes. `total` is its sum over the servers that are ready; `current` counts those
    /// that are still starting, too, which take part as if they had nothing: they can hold scaling up
    /// back, not turn it round.
    fn proposal(&self, total: f64, target: f64, ready: u32, current: u32) -> u32 {
        let ratio = |n: u32| if n == 0 { f64::INFINITY } else { total / (target * f64::from(n)) };
        let (of_ready, of_all) = (ratio(ready), ratio(current));
        let near = (of_all - 1.0).abs() <= self.tolerance;
        if total.is_finite() && !near && !(of_ready > 1.0 && of_all < 1.0) {
            (total / target).ceil().min(f64::from(u32::MAX)) as u32
        } else {
            current
        }
    }
}

/// The memory of an autoscaler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scaler {
    /// Proposals and their times.
    proposals: VecDeque<(Nanos, u32)>,
    /// Changes and their times, positive for more.
    changes: VecDeque<(Nanos, i64)>,
}

impl Scaler {
    /// The number of servers from `now` on, and the metric that asked for most. `totals` are by the rules'
    /// metrics.
    pub(crate) fn evaluate(
        &mut self,
        rules: &Autoscaler,
        now: Nanos,
        totals: &[f64],
        ready: u32,
        current: u32,
    ) -> (u32, ScaleMetric) {
        let proposals = rules
            .metrics
            .iter()
            .zip(totals)
            .map(|(&(metric, target), &total)| (rules.proposal(total, target, ready, current), metric));
        // The first of equals gives its name.
        let (proposed, why) =
            proposals.fold(
                (0, ScaleMetric::Queue),
                |best, next| {
                    if best.0 == 0 || next.0 > best.0 { next } else { best }
                },
            );
        let smoothed = self.smooth(rules, now, proposed, current);
        let bounded = self.pace(rules, now, smoothed, current).clamp(rules.min, rules.max);
        if bounded != current {
            self.changes.push_back((now, i64::from(bounded) - i64::from(current)));
        }
        (bounded, why)
    }

    fn smooth(&mut self, rules: &Autoscaler, now: Nanos, proposed: u32, current: u32) -> u32 {
        self.proposals.push_back((now, proposed));
        let longest = rules.up.window.max(rules.down.window);
        while self.proposals.front().is_some_and(|(at, _)| now.since(*at) > longest) {
            self.proposals.pop_front();
        }
        let within = |window: Span| {
            // The newest one always counts, also if the window is nothing.
            let of = move |(at, _): &&(Nanos, u32)| now.since(*at) < window || *at == now;
            self.proposals.iter().filter(of).map(|(_, n)| *n)
        };
        let up = within(rules.up.window).min().unwrap_or(proposed);
        let down = within(rules.down.window).max().unwrap_or(proposed);
        current.max(up).min(down)
    }

    /// Servers added less servers removed within the last `period`.
    fn changed(&self, now: Nanos, period: Span) -> i64 {
        self.changes.iter().filter(|(at, _)| now.since(*at) < period).map(|(_, n)| n).sum()
    }

    fn pace(&mut self, rules: &Autoscaler, now: Nanos, wanted: u32, current: u32) -> u32 {
        let behavior = if wanted > current { &rules.up } else { &rules.down };
        let paces = || rules.up.paces.iter().chain(&rules.down.paces);
        let longest = paces().map(|p| p.period).max().unwrap_or(Span::ZERO);
        while self.changes.front().is_some_and(|(at, _)| now.since(*at) > longest) {
            self.changes.pop_front();
        }
        if wanted == current || behavior.select == Select::Disabled {
            return current;
        }
        let up = wanted > current;
        let limit = |p: &Pace| {
            let start = i64::from(current) - self.changed(now, p.period);
            match (p.step, up) {
                (Step::Pods(n), true) => start + i64::from(n),
                (Step::Pods(n), false) => start - i64::from(n),
                (Step::Percent(n), true) => (start * (100 + i64::from(n)) + 99) / 100,
                (Step::Percent(n), false) => start * (100 - i64::from(n.min(100))) / 100,
            }
        };
        let limits = behavior.paces.iter().map(limit);
        let furthest = up == (behavior.select == Select::Max);
        let limit = if furthest { limits.max() } else { limits.min() };
        let Some(limit) = limit else { return wanted };
        let limit = u32::try_from(limit.max(0)).unwrap_or(u32::MAX);
        if up { wanted.min(limit.max(current)) } else { wanted.max(limit.min(current)) }
    }
}

/// A change of a group's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleEvent {
    /// When.
    pub at: Nanos,
    /// Index of the group.
    pub group: u32,
    /// Servers before, without those that drain.
    pub from: u32,
    /// Servers after.
    pub to: u32,
    /// The metric that asked for it; `None`: the timeline did.
    pub why: Option<ScaleMetric>,
}

/// What a group's servers have cost over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// The group's name.
    pub name: String,
    /// Time that servers were held, in nanoseconds: from the decision to start one until it is gone, so with
    /// cold start and drain; one that has died is held until it drains.
    pub held_ns: u64,
    /// The same times its GPUs.
    pub gpu_ns: u64,
    /// Time that servers were starting, in nanoseconds.
    pub starting_ns: u64,
    /// Servers at the start.
    pub first: u32,
    /// The least and the most servers at once, without those that drain.
    pub range: (u32, u32),
    /// Servers at the end.
    pub last: u32,
}

/// What became of the groups' sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scaling {
    /// In the order of time.
    pub events: Vec<ScaleEvent>,
    /// By group.
    pub groups: Vec<GroupUse>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(window: (u64, u64)) -> Autoscaler {
        Autoscaler {
            group: 0,
            min: 1,
            max: 20,
            metrics: vec![(ScaleMetric::Queue, 10.0)],
            period: Span::secs(15),
            tolerance: 0.1,
            up: Behavior { window: Span::secs(window.0), ..Behavior::up() },
            down: Behavior { window: Span::secs(window.1), ..Behavior::down() },
        }
    }

    /// Evaluates every 15 s with these totals; everyone is ready at once.
    fn sizes(rules: &Autoscaler, start: u32, totals: &[f64]) -> Vec<u32> {
        let (mut scaler, mut n) = (Scaler::default(), start);
        let mut one = |(i, total): (usize, &f64)| {
            let now = Nanos::ZERO + Span::secs(15 * (i as u64 + 1));
            n = scaler.evaluate(rules, now, &[*total], n, n).0;
            n
        };
        totals.iter().enumerate().map(&mut one).collect()
    }

    #[test]
    fn the_number_is_the_total_over_the_target_rounded_up_outside_of_the_tolerance() {
        let r = rules((0, 0));
        // 2 servers, target 10 each: 18 to 21.9 are near enough; 22.1 asks for 3, 17 for 2, 10 for 1.
        for (total, want) in [(18.0, 2), (21.9, 2), (22.1, 3), (17.0, 2), (10.0, 1), (0.0, 1)] {
            assert_eq!(sizes(&r, 2, &[total]), [want], "{total}");
        }
    }

    #[test]
    fn scaling_up_goes_by_four_or_doubles_within_each_quarter_minute() {
        // From 1: 4 more; from 5: doubled; from 10: doubled to 20.
        assert_eq!(sizes(&rules((0, 300)), 1, &[1e6, 1e6, 1e6, 1e6]), [5, 10, 20, 20]);
    }

    #[test]
    fn scaling_down_waits_until_nothing_in_the_window_asked_for_more() {
        let mut totals = vec![80.0];
        totals.extend([10.0; 22]);
        let got = sizes(&rules((0, 300)), 8, &totals);
        // The proposal of 8 was made at 15 s and counts for less than 300 s: until the evaluation at 300 s.
        assert_eq!(got[..20], [8; 20]);
        assert_eq!(got[20..], [1, 1, 1]);
    }

    #[test]
    fn a_window_for_more_takes_its_least_proposal() {
        let got = sizes(&rules((30, 0)), 2, &[100.0, 20.0, 100.0, 100.0, 100.0]);
        assert_eq!(got, [6, 2, 2, 6, 10]);
    }

    #[test]
    fn a_pace_holds_over_its_period_and_can_forbid_a_direction() {
        let mut r = rules((0, 0));
        r.up.paces = vec![Pace { step: Step::Pods(1), period: Span::secs(30) }];
        assert_eq!(sizes(&r, 1, &[90.0; 5]), [2, 2, 3, 3, 4]);
        r.down.select = Select::Disabled;
        assert_eq!(sizes(&r, 5, &[0.0; 3]), [5, 5, 5]);
    }

    #[test]
    fn servers_that_start_hold_back_and_do_not_turn_round() {
        let (r, mut s) = (rules((0, 0)), Scaler::default());
        // 2 ready with 15 each, 2 starting: 30 over 4 is less than the target, but the two are over it.
        assert_eq!(s.evaluate(&r, Nanos::ZERO + Span::secs(15), &[30.0], 2, 4).0, 4);
        // 60 over 4 is more than the target.
        assert_eq!(s.evaluate(&r, Nanos::ZERO + Span::secs(30), &[60.0], 2, 4).0, 6);
    }
}
