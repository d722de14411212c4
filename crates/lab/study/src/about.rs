//! What a run was, beside its figures: names for headlines and files, and what became of each endpoint.

use crate::summary::QUANTILES;
use forebay_base::{Nanos, Span};
use forebay_records::Row;
use forebay_records::stats::quantile::Samples;
use forebay_records::stats::{Quantile, Slo, Window};
use forebay_sim::Cluster;
use forebay_workload::{Kind, Mode, Workload};

/// A class of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassInfo {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// What it asks for.
    pub slo: Slo,
}

/// What was run.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// The workload.
    pub workload: String,
    /// What served it.
    pub cluster: String,
    /// The name of the router's configuration.
    pub config: String,
    /// The configuration itself; empty if it is not known.
    pub config_text: String,
    /// The seed of a simulated run.
    pub seed: Option<u64>,
    /// Its times.
    pub mode: Mode,
    /// The classes by index.
    pub classes: Vec<ClassInfo>,
    /// The endpoints by index.
    pub endpoints: Vec<String>,
    /// What happened on the way.
    pub incidents: Vec<(Nanos, String)>,
}

impl About {
    /// Of a simulated run.
    pub fn simulated(workload: &Workload, cluster: &Cluster, config: &str, text: &str, seed: u64) -> About {
        let class = |c: &forebay_workload::Class| ClassInfo {
            name: c.name.clone(),
            priority: c.priority,
            slo: c.slo,
        };
        About {
            workload: workload.name.clone(),
            cluster: cluster.name.clone(),
            config: config.to_owned(),
            config_text: text.to_owned(),
            seed: Some(seed),
            mode: workload.mode,
            classes: workload.classes.iter().map(class).collect(),
            endpoints: cluster.servers.iter().map(|s| s.name.clone()).collect(),
            incidents: Vec::new(),
        }
    }

    /// Of a run against a real server at `target`, whose answers name `endpoints`.
    pub fn observed(workload: &Workload, target: &str, endpoints: &[String], seed: u64) -> About {
        let class = |c: &forebay_workload::Class| ClassInfo {
            name: c.name.clone(),
            priority: c.priority,
            slo: c.slo,
        };
        About {
            workload: workload.name.clone(),
            cluster: target.to_owned(),
            config: "the target's own".to_owned(),
            config_text: String::new(),
            seed: Some(seed),
            mode: workload.mode,
            classes: workload.classes.iter().map(class).collect(),
            endpoints: endpoints.to_vec(),
            incidents: Vec::new(),
        }
    }

    /// The index of the class with the highest priority, the first of several.
    pub fn top_class(&self) -> usize {
        let top = self.classes.iter().map(|c| c.priority).max();
        self.classes.iter().position(|c| Some(c.priority) == top).unwrap_or(0)
    }

    /// The name of an endpoint; its index if it has none.
    pub fn endpoint(&self, index: u32) -> String {
        self.endpoints.get(index as usize).cloned().unwrap_or_else(|| index.to_string())
    }

    /// How long requests came and what kind of claim that supports: `surge from an empty pool: arrivals over
    /// 10m0s`.
    pub fn horizon(&self) -> String {
        let kind = match self.mode.kind {
            Kind::Surge => "surge from an empty pool",
            Kind::Steady => "steady",
        };
        let warmup = if self.mode.warmup == Span::ZERO {
            String::new()
        } else {
            format!(" after {} of warm-up", self.mode.warmup)
        };
        format!("{kind}: arrivals over {}{warmup}", self.mode.window)
    }
}

impl ClassInfo {
    /// Its deadlines, such as `TTFT 1s, E2E 30s`; empty without any.
    pub fn deadlines(&self) -> String {
        let part = |name: &str, limit: Option<Span>| limit.map(|l| format!("{name} {l}"));
        let all = [part("TTFT", self.slo.ttft), part("TPOT", self.slo.tpot), part("E2E", self.slo.e2e)];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// What one endpoint got of the requests that arrived in the measured window.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSummary {
    /// Its index.
    pub index: u32,
    /// Requests sent there.
    pub dispatched: u64,
    /// Of these, those that finished.
    pub finished: u64,
    /// Prompt tokens of the requests that it scheduled.
    pub prompt_tokens: u64,
    /// Of these, found in its prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated, of requests that did not finish, too.
    pub output_tokens: u64,
    /// Times that a request lost its blocks.
    pub preemptions: u64,
    /// Wait in its queue in nanoseconds, by [`QUANTILES`].
    pub engine_wait: [Quantile; 4],
}

/// The endpoints that were sent anything, by index.
pub fn endpoints_of(rows: &[Row], window: Window) -> Vec<EndpointSummary> {
    let mut all: Vec<(EndpointSummary, Samples)> = Vec::new();
    for row in rows.iter().filter(|r| window.holds(r.arrived)) {
        let Some(index) = row.endpoint else { continue };
        let at = all.binary_search_by_key(&index, |(e, _)| e.index).unwrap_or_else(|at| {
            all.insert(at, (EndpointSummary::new(index), Samples::new()));
            at
        });
        let (e, waits) = &mut all[at];
        e.dispatched += 1;
        e.finished += u64::from(row.is_finished());
        // A client of a real server sees no scheduling, but whoever has a token was scheduled.
        if row.scheduled.or(row.first_token).is_some() {
            e.prompt_tokens += u64::from(row.prompt_tokens);
            e.cached_tokens += u64::from(row.cached_tokens);
        }
        e.output_tokens += u64::from(row.output_tokens);
        e.preemptions += u64::from(row.preemptions);
        waits.push(row.engine_wait().map(|w| w.0));
    }
    all.into_iter()
        .map(|(e, mut waits)| EndpointSummary { engine_wait: QUANTILES.map(|q| waits.quantile(q)), ..e })
        .collect()
}

impl EndpointSummary {
    fn new(index: u32) -> EndpointSummary {
        let nothing = QUANTILES.map(|q| Samples::new().quantile(q));
        EndpointSummary {
            index,
            dispatched: 0,
            finished: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            preemptions: 0,
            engine_wait: nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_records::End;

    #[test]
    fn endpoints_are_told_apart_and_the_warm_up_is_left_out() {
        let row = |at: u64, endpoint| Row {
            endpoint,
            engine_arrived: Some(Nanos(at)),
            scheduled: Some(Nanos(at + 5)),
            prompt_tokens: 10,
            cached_tokens: 4,
            output_tokens: 3,
            end: End::Finished,
            ..Row::arriving(0, 0, Nanos(at))
        };
        let lost = Row { end: End::Failed, scheduled: None, ..row(70, Some(2)) };
        let rows = [row(50, Some(2)), row(60, Some(0)), lost, row(9, Some(0)), row(50, None)];
        let all = endpoints_of(&rows, Window::new(Nanos(10), Nanos(100)));
        let seen: Vec<_> = all
            .iter()
            .map(|e| (e.index, e.dispatched, e.finished, e.prompt_tokens, e.cached_tokens, e.output_tokens))
            .collect();
        assert_eq!(seen, [(0, 1, 1, 10, 4, 3), (2, 2, 1, 10, 4, 6)]);
        assert_eq!(all[0].engine_wait[0].count, 1);
    }

    #[test]
    fn deadlines_are_named() {
        let slo = Slo { ttft: Some(Span::secs(1)), tpot: None, e2e: Some(Span::secs(30)) };
        let class = ClassInfo { name: "a".into(), priority: 0, slo };
        assert_eq!(class.deadlines(), "TTFT 1s, E2E 30s");
    }
}
