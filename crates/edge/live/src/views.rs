//! Metrics that are read when they are asked for: views of the kernel and of the door.

use crate::metrics::{FloatGauge, Labels};
use crate::names::{Names, prefix_labels};
use crate::recording::RecordView;
use crate::router::View;
use forebay_kernel::policy::Program;
use forebay_kernel::{End, QueueOutcome};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the door counts for itself, at one instant.
#[derive(Clone, Debug, Default)]
pub struct DoorView {
    /// Requests that have come, whatever became of them.
    pub accepted: u64,
    /// Of these, ended ones by their end: `accepted` is their sum and `open`.
    pub ended: Vec<(&'static str, u64)>,
    /// Requests whose answer is not complete.
    pub open: u64,
    /// Streams among their answers.
    pub streams: u64,
    /// Requests that ended by a panic.
    pub panics: u64,
    /// Requests that were tried again at another endpoint.
    pub retries: u64,
    /// Access log lines that the file did not keep up with.
    pub dropped_lines: u64,
    /// The recording, if there is one.
    pub recording: Option<RecordView>,
    /// Bytes of request bodies and of answers in one piece held, and the most that may be.
    pub buffered: (u64, u64),
    /// Open client connections, and the most that may be.
    pub connections: (u64, u64),
    /// Whether the router is shutting down.
    pub draining: bool,
}

impl DoorView {
    pub(crate) fn register(&self, r: &mut Registry) {
        let counter = |n: u64| {
            let c: Counter = Counter::default();
            c.inc_by(n);
            c
        };
        let gauge = |n: u64| {
            let g: Gauge = Gauge::default();
            g.set(i64::try_from(n).unwrap_or(i64::MAX));
            g
        };
        r.register("http_requests_accepted", "Requests that came to the API port", counter(self.accepted));
        let ended: Family<Labels, Counter> = Family::default();
        for (end, n) in &self.ended {
            ended.get_or_create(&vec![("end", (*end).to_owned())]).inc_by(*n);
        }
        r.register("http_requests_ended", "Of these, ended: accepted = ended + open", ended);
        r.register("http_requests_open", "Requests whose answer is not complete", gauge(self.open));
        r.register("open_streams", "Event streams among their answers", gauge(self.streams));
        r.register("request_panics", "Requests that ended by a panic", counter(self.panics));
        r.register("retries", "Requests tried again at another endpoint", counter(self.retries));
        let lines = counter(self.dropped_lines);
        r.register("access_log_dropped_lines", "Access log lines that the file did not keep up with", lines);
        if let Some(v) = &self.recording {
            r.register("record_rows", "Requests in the recording's files", counter(v.written));
            r.register("record_bytes", "Bytes written to the recording's files", counter(v.bytes));
            let dropped: Family<Labels, Counter> = Family::default();
            for (reason, n) in [("queue", v.no_room), ("disk", v.no_disk)] {
                dropped.get_or_create(&vec![("reason", reason.to_owned())]).inc_by(n);
            }
            r.register(
                "record_dropped_rows",
                "Requests missing from the recording: its queue was full, or the disk refused",
                dropped,
            );
            r.register("record_removed_files", "Files removed to keep its bound", counter(v.removed));
            r.register("record_stopped", "1 while the disk refuses", gauge(u64::from(v.stopped)));
        }
        r.register(
            "buffered_bytes",
            "Bytes of requests, and of answers in one piece, held",
            gauge(self.buffered.0),
        );
        r.register("buffered_bytes_limit", "The most that may be held", gauge(self.buffered.1));
        r.register("client_connections", "Open client connections", gauge(self.connections.0));
        r.register("client_connections_limit", "The most there may be", gauge(self.connections.1));
        r.register("draining", "Whether the router is shutting down", gauge(u64::from(self.draining)));
    }
}

/// Gauges and counters that are views of the kernel.
/// `fairness` bounds how many values a label of fairness ids takes.
pub(crate) fn read_when_asked(
    view: &View,
    pool: &str,
    names: &Names,
    fairness: &dyn Fn(&str) -> String,
) -> Registry {
    let mut r = Registry::default();
    flow_gauges(&mut r, view, pool, &names.detector);
    if let Some(programs) = &view.programs {
        program_gauges(&mut r, programs, fairness);
    }
    pool_gauges(&mut r, view, pool);
    index_gauges(&mut r, view, names);
    own_metrics(&mut r, view);
    r
}

fn flow_gauges(r: &mut Registry, view: &View, pool: &str, detector: &str) {
    let p = "llm_d_epp_flow_control_";
    let saturation: Family<Labels, FloatGauge> = Family::default();
    let s = &view.saturation;
    for (stage, value) in [("prefill", s.prefill), ("decode", s.decode), ("effective", Some(s.effective))] {
        if let Some(v) = value {
            let labels = vec![("inference_pool", pool.to_owned()), ("stage", stage.to_owned())];
            saturation.get_or_create(&labels).set(v);
        }
    }
    r.register(format!("{p}pool_saturation"), "Saturation by stage", saturation);
    if view.tells_stale {
        let stale: Family<Labels, Gauge> = Family::default();
        stale.get_or_create(&vec![("detector", detector.to_owned())]).set(i64::from(s.stale));
        r.register(format!("{p}stale_endpoints"), "Endpoints whose metrics are missing or too old", stale);
    }
    if !view.flow_control {
        return;
    }
    let (requests, bytes): (Family<Labels, FloatGauge>, Family<Labels, FloatGauge>) = Default::default();
    for b in &view.bands {
        let labels = vec![("priority", b.priority.to_string()), ("inference_pool", pool.to_owned())];
        requests.get_or_create(&labels).set(b.requests as f64 / b.max_requests as f64);
        bytes.get_or_create(&labels).set(b.bytes as f64 / b.max_bytes as f64);
    }
    r.register(format!("{p}capacity_utilization_requests"), "Used share of a band's request limit", requests);
    r.register(format!("{p}capacity_utilization_bytes"), "Used share of a band's byte limit", bytes);
    let globals = [("requests", view.queued.0, view.limits.0), ("bytes", view.queued.1, view.limits.1)];
    for (what, used, limit) in globals {
        if let Some(limit) = limit.filter(|l| *l > 0) {
            let g: Family<Labels, FloatGauge> = Family::default();
            g.get_or_create(&vec![("inference_pool", pool.to_owned())]).set(used as f64 / limit as f64);
            r.register(format!("{p}global_capacity_utilization_{what}"), "Used share of the global limit", g);
        }
    }
}

/// Those of program-aware fairness. Programs beyond the bound on label values are one together, but count
/// one by one in Jain's index.
fn program_gauges(
    r: &mut Registry,
    programs: &BTreeMap<Arc<str>, Program>,
    fairness: &dyn Fn(&str) -> String,
) {
    let mut shown: BTreeMap<String, Program> = BTreeMap::new();
    for (name, p) in programs {
        *shown.entry(fairness(name)).or_default() += *p;
    }
    let (waits, services): (Family<Labels, FloatGauge>, Family<Labels, FloatGauge>) = Default::default();
    for (name, p) in shown {
        let labels = vec![("program_id", name)];
        if let Some(mean) = mean_wait(&p) {
            waits.get_or_create(&labels).set(mean);
        }
        // llm-d-router's series begins with the first completion, too.
        if p.service > 0.0 {
            services.get_or_create(&labels).set(p.service);
        }
    }
    let index = FloatGauge::default();
    index.set(jain(programs.values().filter_map(mean_wait)));
    let p = "llm_d_epp_program_aware_";
    r.register(format!("{p}jains_fairness_index"), "Jain's index over the programs' mean waits", index);
    r.register(format!("{p}avg_wait_time_milliseconds"), "Mean wait of a program's requests", waits);
    r.register(format!("{p}attained_service_tokens"), "Attained service of a program, decayed", services);
}

/// Milliseconds; `None` before the first request has been sent on.
fn mean_wait(p: &Program) -> Option<f64> {
    (p.waits > 0).then(|| p.waited_ms as f64 / p.waits as f64)
}

/// Jain's fairness index: the square of the sum by n times the sum of squares, 1 if all are equal, 1/n if
/// one has all. 1 for fewer than two values, or only zeros, as in llm-d-router.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum, squares) =
        values.fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
    if n <= 1.0 || squares == 0.0 { 1.0 } else { sum * sum / (n * squares) }
}

/// Mean and sample standard deviation, 0 for one value; nothing for none.
fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    (!values.is_empty()).then(|| (mean, (squares / (n - 1.0).max(1.0)).sqrt()))
}

fn pool_gauges(r: &mut Registry, view: &View, pool: &str) {
    let p = "llm_d_epp_";
    let name = vec![("name", pool.to_owned())];
    let read = |f: fn(&crate::router::EndpointView) -> Option<f64>| -> Vec<f64> {
        view.endpoints.iter().filter(|e| e.recent).filter_map(f).collect()
    };
    for (what, help, values) in [
        ("kv_cache_utilization", "Used share of KV caches", read(|e| e.sample.kv.value())),
        ("queue_size", "Waiting requests per endpoint", read(|e| e.sample.waiting.value())),
        ("running_requests", "Running requests per endpoint", read(|e| e.sample.running.value())),
    ] {
        // Without metrics there is no mean, and 0 would be a lie.
        let Some((mean, deviation)) = spread(&values) else { continue };
        for (kind, value) in [("average", mean), ("std_dev", deviation)] {
            let g: Family<Labels, FloatGauge> = Family::default();
            g.get_or_create(&name).set(value);
            r.register(format!("{p}{kind}_{what}"), help, g);
        }
    }
    let ready: Family<Labels, Gauge> = Family::default();
    let count = view.endpoints.iter().filter(|e| e.available && e.recent).count();
    ready.get_or_create(&name).set(i64::try_from(count).unwrap_or(i64::MAX));
    r.register(format!("{p}ready_endpoints"), "Endpoints that take connections and have metrics", ready);
    let queues: Family<Labels, FloatGauge> = Family::default();
    for e in &view.endpoints {
        if let Some(waiting) = e.sample.waiting.value() {
            let labels = vec![("name", pool.to_owned()), ("model_server_endpoint", e.name.clone())];
            queues.get_or_create(&labels).set(waiting);
        }
    }
    r.register(format!("{p}per_endpoint_queue_size"), "Waiting requests of an endpoint", queues);
}

fn index_gauges(r: &mut Registry, view: &View, names: &Names) {
    let (Some((blocks, bytes)), Some(name)) = (view.index, &names.prefix) else { return };
    for (metric, help, n) in [
        (
            "llm_d_epp_prefix_indexer_size",
            "Blocks in the prefix index, once per endpoint that holds it",
            blocks,
        ),
        ("forebay_prefix_index_bytes", "Bytes of the prefix index, estimated", bytes),
    ] {
        let g: Family<Labels, Gauge> = Family::default();
        g.get_or_create(&prefix_labels(name)).set(i64::try_from(n).unwrap_or(i64::MAX));
        r.register(metric, help, g);
    }
}

fn own_metrics(r: &mut Registry, view: &View) {
    let counter = |n: u64| {
        let c: Counter = Counter::default();
        c.inc_by(n);
        c
    };
    let l = &view.ledgers;
    r.register("forebay_requests_accepted", "Requests offered to the kernel", counter(l.accepted));
    let ended: Family<Labels, Counter> = Family::default();
    for end in End::ALL {
        ended.get_or_create(&vec![("end", end.label().to_owned())]).inc_by(l.ended[end.index()]);
    }
    r.register("forebay_requests_ended", "Requests ended, each once: accepted = ended + live", ended);
    let outcomes: Family<Labels, Counter> = Family::default();
    for o in QueueOutcome::ALL {
        outcomes.get_or_create(&vec![("outcome", o.label().to_owned())]).inc_by(l.outcomes[o.index()]);
    }
    r.register("forebay_queue_entered", "Requests that reached flow control", counter(l.entered));
    r.register(
        "forebay_queue_outcomes",
        "How they left it, each once: entered = outcomes + queued",
        outcomes,
    );
    let queued: Gauge = Gauge::default();
    queued.set(i64::try_from(l.queued).unwrap_or(i64::MAX));
    r.register("forebay_requests_queued", "Requests queued", queued);
    let live: Gauge = Gauge::default();
    live.set(i64::try_from(l.live).unwrap_or(i64::MAX));
    r.register("forebay_requests_live", "Requests queued or running", live);
    let (requests, pending): (Family<Labels, Gauge>, Family<Labels, Gauge>) = Default::default();
    for e in &view.endpoints {
        let labels = vec![("endpoint", e.name.clone())];
        requests.get_or_create(&labels).set(i64::from(e.load.requests));
        pending.get_or_create(&labels).set(i64::from(e.load.pending));
    }
    let available: Family<Labels, Gauge> = Family::default();
    for e in &view.endpoints {
        available.get_or_create(&vec![("endpoint", e.name.clone())]).set(i64::from(e.available));
    }
    let known: Family<Labels, Gauge> = Family::default();
    for e in &view.endpoints {
        let known_now = i64::from(e.capacity_tokens.is_some());
        known.get_or_create(&vec![("endpoint", e.name.clone())]).set(known_now);
    }
    r.register(
        "forebay_endpoint_capacity_known",
        "1 if the endpoint tells its KV capacity; without, prompts in flight are not counted as cache in use",
        known,
    );
    r.register(
        "forebay_late_words",
        "Words about requests that had ended before",
        counter(view.ledgers.late),
    );
    r.register("forebay_endpoint_available", "0 from a refused or reset connection to a probe", available);
    r.register("forebay_endpoint_inflight_requests", "Requests at an endpoint by this router", requests);
    r.register("forebay_endpoint_pending_requests", "Of these, without a first token", pending);
    let models: Gauge = Gauge::default();
    models.set(view.models.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1));
    r.register("forebay_models", "Models that the endpoints list; -1 while some list is not known", models);
    r.register("forebay_ejections", "Endpoints taken out after a refusal or reset", counter(view.ejections));
    r.register("forebay_cycles", "Dispatch cycles executed", counter(view.cycles));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equals_and_one_by_n_for_one_that_has_all() {
        let index = |values: &[f64]| jain(values.iter().copied());
        assert_eq!([index(&[]), index(&[7.0]), index(&[0.0, 0.0]), index(&[3.0, 3.0])], [1.0; 4]);
        assert_eq!(index(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        // (1 + 3)^2 / (2 * (1 + 9))
        assert_eq!(index(&[1.0, 3.0]), 0.8);
    }

    #[test]
    fn deviations_are_those_of_a_sample() {
        // Squares 9 + 1 + 1 + 9 by 3.
        assert_eq!(spread(&[1.0, 3.0, 5.0, 7.0]), Some((4.0, (20.0_f64 / 3.0).sqrt())));
        assert_eq!(spread(&[2.5]), Some((2.5, 0.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn programs_beyond_the_bound_share_a_series_but_not_their_place_in_the_index() {
        let program = |waits, waited_ms, service| Program { waits, waited_ms, service };
        let programs: BTreeMap<Arc<str>, Program> = [
            ("a".into(), program(2, 20, 5.5)),
            ("b".into(), program(1, 30, 0.0)),
            ("c".into(), program(3, 10, 1.5)),
            ("new".into(), program(0, 0, 0.0)),
        ]
        .into();
        let mut r = Registry::default();
        program_gauges(&mut r, &programs, &|id| if id == "a" { "a" } else { "other" }.to_owned());
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &r).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        // Means 10, 30 and 10/3 ms: (130/3)^2 / (3 * (100 + 900 + 100/9)).
        assert_eq!(lines.len(), 5, "{lines:#?}");
        let index: f64 = lines[0].rsplit(' ').next().unwrap().parse().unwrap();
        assert!(lines[0].starts_with("llm_d_epp_program_aware_jains_fairness_index "), "{}", lines[0]);
        assert!((index - 0.619_047_6).abs() < 1e-6, "{index}");
        for line in [
            "llm_d_epp_program_aware_avg_wait_time_milliseconds{program_id=\"a\"} 10.0",
            "llm_d_epp_program_aware_avg_wait_time_milliseconds{program_id=\"other\"} 10.0",
            "llm_d_epp_program_aware_attained_service_tokens{program_id=\"a\"} 5.5",
            "llm_d_epp_program_aware_attained_service_tokens{program_id=\"other\"} 1.5",
        ] {
            assert!(lines.contains(&line), "{line}\n{lines:#?}");
        }
    }
}
