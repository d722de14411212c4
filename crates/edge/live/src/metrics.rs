//! Prometheus metrics, with llm-d-router's names, labels and buckets; forebay's own under `forebay_`.
//!
//! What happens per request is recorded through a [`Series`], whose label sets are resolved once per
//! (model, target, fairness id, priority). What the kernel knows is read when metrics are asked for.

use crate::endpoints::Upstream;
use crate::names::{Names, prefix_labels};
use crate::router::View;
use crate::views::{DoorView, read_when_asked};
use forebay_base::Span;
use forebay_kernel::{EndpointId, QueueOutcome};
use parking_lot::RwLock;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub(crate) type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;
pub(crate) type FloatGauge = Gauge<f64, AtomicU64>;

/// Distinct values of a client-given label are capped for the life of the process; the rest share this.
const OVERFLOW: &str = "other";
/// Model names, and fairness ids, that get series of their own.
const MAX_VALUES: usize = 1000;

const LATENCY: [f64; 35] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
const FINE: [f64; 10] = [1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];
const QUEUE: [f64; 16] =
    [1e-4, 5e-4, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// 32778 is a slip that llm-d-router keeps for its dashboards, and so do we.
const TOKENS: [f64; 19] = [
    1.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
    32778.0,
    65536.0,
    131_072.0,
    262_144.0,
    524_288.0,
    1_048_576.0,
];
const TPOT: [f64; 19] = [
    5e-4, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0,
    2.0,
];
const ITL: [f64; 15] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];
const NTPOT: [f64; 13] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
const RESPONSE_PROCESSING: [f64; 15] =
    [1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
const PROCESSING: [f64; 16] =
    [5e-4, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

fn latency() -> Histogram {
    Histogram::new(LATENCY)
}
fn ttft() -> Histogram {
    Histogram::new(LATENCY.into_iter().take_while(|b| *b <= 120.0))
}
fn fine() -> Histogram {
    Histogram::new(FINE)
}
fn queue() -> Histogram {
    Histogram::new(QUEUE)
}
fn tokens() -> Histogram {
    Histogram::new(TOKENS)
}
fn output_tokens() -> Histogram {
    Histogram::new(TOKENS.into_iter().take_while(|b| *b <= 8192.0))
}
fn tpot() -> Histogram {
    Histogram::new(TPOT)
}
fn itl() -> Histogram {
    Histogram::new(ITL)
}
fn ntpot() -> Histogram {
    Histogram::new(NTPOT)
}
/// 64 B doubling to 1 GiB.
fn request_bytes() -> Histogram {
    Histogram::new((0..25).map(|k| (64u64 << k) as f64))
}
/// 1, then 8 B doubling to 64 KiB.
fn response_bytes() -> Histogram {
    Histogram::new(std::iter::once(1.0).chain((0..14).map(|k| f64::from(8u32 << k))))
}
/// 0, then 16 B doubling to 64 KiB.
fn prefix_bytes() -> Histogram {
    Histogram::new(std::iter::once(0.0).chain((0..13).map(|k| f64::from(16u32 << k))))
}
fn ratio() -> Histogram {
    Histogram::new((0..=10).map(|k| f64::from(k) / 10.0))
}

/// The families of one router.
struct Families {
    queue_duration: Histograms,
    enqueue_duration: Histograms,
    queue_size: Family<Labels, Gauge>,
    queue_bytes: Family<Labels, Gauge>,
    flow_requests: Family<Labels, Counter>,
    requests: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    duration: Histograms,
    request_bytes: Histograms,
    response_bytes: Histograms,
    input_tokens: Histograms,
    cached_tokens: Histograms,
    output_tokens: Histograms,
    running: Family<Labels, Gauge>,
    ntpot: Histograms,
    ttft: Histograms,
    tpot: Histograms,
    itl: Histograms,
    attempts: Family<Labels, Counter>,
    inflight_requests: Family<Labels, Gauge>,
    inflight_tokens: Family<Labels, Gauge>,
    prefix_bytes: Histograms,
    response_processing: Histogram,
    extract_errors: Family<Labels, Counter>,
    rewrites: Family<Labels, Counter>,
    poll_errors: Family<Labels, Counter>,
    unknown_objectives: Counter,
    cycle: Histogram,
    scheduler: Histogram,
    processing: Histogram,
    prefix_ratio: Histograms,
}

fn histograms(make: fn() -> Histogram) -> Histograms {
    Family::new_with_constructor(make)
}

impl Families {
    fn new() -> Families {
        Families {
            queue_duration: histograms(queue),
            enqueue_duration: histograms(fine),
            queue_size: Family::default(),
            queue_bytes: Family::default(),
            flow_requests: Family::default(),
            requests: Family::default(),
            errors: Family::default(),
            duration: histograms(latency),
            request_bytes: histograms(request_bytes),
            response_bytes: histograms(response_bytes),
            input_tokens: histograms(tokens),
            cached_tokens: histograms(tokens),
            output_tokens: histograms(output_tokens),
            running: Family::default(),
            ntpot: histograms(ntpot),
            ttft: histograms(ttft),
            tpot: histograms(tpot),
            itl: histograms(itl),
            attempts: Family::default(),
            inflight_requests: Family::default(),
            inflight_tokens: Family::default(),
            prefix_bytes: histograms(prefix_bytes),
            response_processing: Histogram::new(RESPONSE_PROCESSING),
            extract_errors: Family::default(),
            rewrites: Family::default(),
            poll_errors: Family::default(),
            unknown_objectives: Counter::default(),
            cycle: fine(),
            scheduler: fine(),
            processing: Histogram::new(PROCESSING),
            prefix_ratio: histograms(ratio),
        }
    }
}

/// All metrics of one router.
pub struct Metrics {
    pool: String,
    names: Names,
    families: Families,
    registry: Registry,
    series: RwLock<HashMap<SeriesKey, Arc<Series>>>,
    /// The same by a hash of what was asked for, so that a look-up makes no strings.
    found: RwLock<HashMap<u64, Arc<Series>>>,
    hasher: RandomState,
    /// Share and bytes of hits in the prefix index, if there is one.
    prefix_hits: Option<(Histogram, Histogram)>,
    models: RwLock<HashSet<String>>,
    fairness: RwLock<HashSet<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    model: String,
    target: String,
    fairness: String,
    requested: i32,
    effective: i32,
}

impl SeriesKey {
    fn is(&self, model: &str, target: &str, fairness: &str, requested: i32, effective: i32) -> bool {
        (&*self.model, &*self.target, &*self.fairness) == (model, target, fairness)
            && (self.requested, self.effective) == (requested, effective)
    }
}

/// The metrics of one (model, target model, fairness id, priority), label sets resolved.
pub struct Series {
    key: SeriesKey,
    requests: Counter,
    running: Gauge,
    queue_size: Gauge,
    queue_bytes: Gauge,
    enqueued: Histogram,
    outcomes: [OnceLock<(Histogram, Counter)>; QueueOutcome::ALL.len()],
    duration: Histogram,
    request_bytes: Histogram,
    response_bytes: Histogram,
    input_tokens: Histogram,
    cached_tokens: Histogram,
    output_tokens: Histogram,
    ntpot: Histogram,
    ttft: [Histogram; 2],
    tpot: Histogram,
    itl: Histogram,
    /// By the endpoint that scheduling has chosen.
    chosen: RwLock<HashMap<Option<EndpointId>, Arc<Chosen>>>,
}

/// The series of requests of one kind at one endpoint, or at none.
struct Chosen {
    attempts: Counter,
    requests: Gauge,
    tokens: Gauge,
}

/// One request at its endpoint, counted for as long as this lives.
pub(crate) struct InFlight {
    at: Arc<Chosen>,
    tokens: i64,
}

impl InFlight {
    /// The prompt is done.
    pub(crate) fn first_token(&mut self) {
        self.at.tokens.dec_by(std::mem::take(&mut self.tokens));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.at.requests.dec();
        self.first_token();
    }
}

/// What is known of a request when it is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completed {
    /// From its arrival to its end.
    pub total: Duration,
    /// From its arrival to the first token; for answers that do not stream, to the end.
    pub ttft: Option<Duration>,
    /// Whether the answer streamed.
    pub streamed: bool,
    /// Prompt tokens, if known.
    pub input_tokens: Option<u64>,
    /// Of these, cached ones.
    pub cached_tokens: Option<u64>,
    /// Output tokens, if known or estimated.
    pub output_tokens: Option<u64>,
    /// Bytes of the answer's body.
    pub response_bytes: u64,
}

impl Series {
    /// An engine's answer is complete.
    pub fn completed(&self, c: &Completed) {
        self.duration.observe(c.total.as_secs_f64());
        self.response_bytes.observe(c.response_bytes as f64);
        if let Some(ttft) = c.ttft {
            self.ttft[usize::from(c.streamed)].observe(ttft.as_secs_f64());
        }
        if let Some(n) = c.input_tokens {
            self.input_tokens.observe(n as f64);
        }
        if let Some(n) = c.cached_tokens {
            self.cached_tokens.observe(n as f64);
        }
        let Some(n) = c.output_tokens.filter(|n| *n > 0) else { return };
        self.output_tokens.observe(n as f64);
        self.ntpot.observe(c.total.as_secs_f64() / n as f64);
        if let Some(ttft) = c.ttft.filter(|_| c.streamed && n > 1) {
            self.tpot.observe(c.total.saturating_sub(ttft).as_secs_f64() / (n - 1) as f64);
        }
    }

    /// Time between two chunks of a stream.
    pub fn gap(&self, gap: Duration) {
        self.itl.observe(gap.as_secs_f64());
    }

    pub(crate) fn entered(&self, bytes: u64, started: Instant) {
        self.queue_size.inc();
        self.queue_bytes.inc_by(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.enqueued.observe(started.elapsed().as_secs_f64());
    }

    pub(crate) fn started(&self) {
        self.running.inc();
    }

    pub(crate) fn stopped(&self) {
        self.running.dec();
    }

    /// A request of this series has come, with this many body bytes.
    pub fn arrived(&self, bytes: u64) {
        self.requests.inc();
        self.request_bytes.observe(bytes as f64);
    }
}

impl Metrics {
    pub(crate) fn new(pool: String, names: Names) -> Metrics {
        let families = Families::new();
        let registry = register(&families);
        let prefix_hits = names.prefix.as_deref().map(prefix_labels).map(|labels| {
            let bytes = families.prefix_bytes.get_or_create_owned(&labels);
            (families.prefix_ratio.get_or_create_owned(&labels), bytes)
        });
        Metrics {
            prefix_hits,
            names,
            found: RwLock::default(),
            hasher: RandomState::new(),
            pool,
            families,
            registry,
            series: RwLock::default(),
            models: RwLock::default(),
            fairness: RwLock::default(),
        }
    }

    /// The value itself, or `other` once there are too many.
    fn capped(seen: &RwLock<HashSet<String>>, value: &str) -> String {
        if !seen.read().contains(value) {
            let mut seen = seen.write();
            if seen.len() >= MAX_VALUES {
                return OVERFLOW.to_owned();
            }
            seen.insert(value.to_owned());
        }
        value.to_owned()
    }

    /// The series of a request. `requested` is the priority it asked for, `effective` that of its band.
    pub fn series(
        &self,
        model: &str,
        target: &str,
        fairness: &str,
        requested: i32,
        effective: i32,
    ) -> Arc<Series> {
        let hash = self.hasher.hash_one((model, target, fairness, requested, effective));
        let found = self.found.read().get(&hash).cloned();
        if let Some(s) = found.filter(|s| s.key.is(model, target, fairness, requested, effective)) {
            return s;
        }
        let s = self.find(model, target, fairness, requested, effective);
        // Values beyond the cap share a series; they take the long way each time, or the table would grow.
        if s.key.is(model, target, fairness, requested, effective) {
            self.found.write().insert(hash, s.clone());
        }
        s
    }

    fn find(&self, model: &str, target: &str, fairness: &str, requested: i32, effective: i32) -> Arc<Series> {
        let key = SeriesKey {
            model: Self::capped(&self.models, model),
            target: Self::capped(&self.models, target),
            fairness: Self::capped(&self.fairness, fairness),
            requested,
            effective,
        };
        if let Some(s) = self.series.read().get(&key) {
            return s.clone();
        }
        self.series.write().entry(key.clone()).or_insert_with(|| Arc::new(self.resolve(key))).clone()
    }

    fn resolve(&self, key: SeriesKey) -> Series {
        let f = &self.families;
        let r = request_labels(&key, key.requested);
        let queued = vec![
            ("fairness_id", key.fairness.clone()),
            ("priority", key.requested.to_string()),
            ("inference_pool", self.pool.clone()),
            ("model_name", key.model.clone()),
            ("target_model_name", key.target.clone()),
        ];
        let enqueued = vec![
            ("fairness_id", key.fairness.clone()),
            ("priority", key.effective.to_string()),
            ("outcome", "NotYetFinalized".to_owned()),
        ];
        let streaming = |flag: bool| {
            let mut labels = r.clone();
            labels.push(("streaming", flag.to_string()));
            f.ttft.get_or_create_owned(&labels)
        };
        Series {
            requests: f.requests.get_or_create_owned(&r),
            running: f.running.get_or_create_owned(&r),
            queue_size: f.queue_size.get_or_create_owned(&queued),
            queue_bytes: f.queue_bytes.get_or_create_owned(&queued),
            enqueued: f.enqueue_duration.get_or_create_owned(&enqueued),
            outcomes: Default::default(),
            duration: f.duration.get_or_create_owned(&r),
            request_bytes: f.request_bytes.get_or_create_owned(&r),
            response_bytes: f.response_bytes.get_or_create_owned(&r),
            input_tokens: f.input_tokens.get_or_create_owned(&r),
            cached_tokens: f.cached_tokens.get_or_create_owned(&r),
            output_tokens: f.output_tokens.get_or_create_owned(&r),
            ntpot: f.ntpot.get_or_create_owned(&r),
            ttft: [streaming(false), streaming(true)],
            tpot: f.tpot.get_or_create_owned(&r),
            itl: f.itl.get_or_create_owned(&r),
            chosen: RwLock::default(),
            key,
        }
    }

    pub(crate) fn left_queue(&self, s: &Series, bytes: u64, outcome: QueueOutcome, waited: Span) {
        s.queue_size.dec();
        s.queue_bytes.dec_by(i64::try_from(bytes).unwrap_or(i64::MAX));
        let (waits, count) = s.outcomes[outcome.index()].get_or_init(|| self.outcome(&s.key, outcome));
        waits.observe(waited.as_secs_f64());
        count.inc();
    }

    fn outcome(&self, key: &SeriesKey, outcome: QueueOutcome) -> (Histogram, Counter) {
        let waits = vec![
            ("fairness_id", key.fairness.clone()),
            ("priority", key.effective.to_string()),
            ("outcome", outcome.label().to_owned()),
            ("inference_pool", self.pool.clone()),
            ("model_name", key.model.clone()),
            ("target_model_name", key.target.clone()),
        ];
        let counts = vec![
            ("outcome", outcome.label().to_owned()),
            ("priority", key.requested.to_string()),
            ("inference_pool", self.pool.clone()),
        ];
        (
            self.families.queue_duration.get_or_create_owned(&waits),
            self.families.flow_requests.get_or_create_owned(&counts),
        )
    }

    pub(crate) fn cycle(&self, took: Duration) {
        self.families.cycle.observe(took.as_secs_f64());
    }

    /// The kernel call that decided a request has taken this long.
    pub(crate) fn scheduling(&self, took: Duration) {
        self.families.scheduler.observe(took.as_secs_f64());
    }

    /// Scheduling has chosen this endpoint, or none.
    pub(crate) fn scheduled(&self, s: &Series, upstream: Option<&Upstream>, tokens: u32) -> Option<InFlight> {
        let id = upstream.map(|u| u.id);
        let known = s.chosen.read().get(&id).cloned();
        let at = known.unwrap_or_else(|| {
            let made = Arc::new(self.chosen(s, upstream));
            s.chosen.write().entry(id).or_insert(made).clone()
        });
        at.attempts.inc();
        let tokens = i64::from(tokens);
        id.map(|_| {
            at.requests.inc();
            at.tokens.inc_by(tokens);
            InFlight { at, tokens }
        })
    }

    fn chosen(&self, s: &Series, upstream: Option<&Upstream>) -> Chosen {
        let name = upstream.map_or("", |u| u.spec.name.as_str());
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let attempts = vec![
            ("status", if upstream.is_some() { "success" } else { "failure" }.to_owned()),
            ("target_model_name", s.key.target.clone()),
            ("endpoint_name", name.to_owned()),
            ("namespace", namespace.to_owned()),
            ("port", upstream.map_or(String::new(), |u| u.address.port().to_string())),
        ];
        let attempts = self.families.attempts.get_or_create_owned(&attempts);
        if upstream.is_none() {
            return Chosen { attempts, requests: Gauge::default(), tokens: Gauge::default() };
        }
        let load = vec![
            ("endpoint_name", name.to_owned()),
            ("namespace", namespace.to_owned()),
            ("producer_name", self.names.inflight.clone()),
            ("fairness_id", s.key.fairness.clone()),
            ("priority", s.key.requested.to_string()),
        ];
        Chosen {
            attempts,
            requests: self.families.inflight_requests.get_or_create_owned(&load),
            tokens: self.families.inflight_tokens.get_or_create_owned(&load),
        }
    }

    /// An endpoint's metrics had lines that cannot be read.
    pub(crate) fn extract_failed(&self) {
        let labels = vec![
            ("source_type", "metrics-data-source".to_owned()),
            ("extractor_type", "core-metrics-extractor".to_owned()),
        ];
        self.families.extract_errors.get_or_create(&labels).inc();
    }

    /// The router has spent this long on an answer.
    pub fn answer_processed(&self, took: Duration) {
        self.families.response_processing.observe(took.as_secs_f64());
    }

    pub(crate) fn poll_failed(&self) {
        let labels = vec![("source_type", "metrics-data-source".to_owned())];
        self.families.poll_errors.get_or_create(&labels).inc();
    }

    /// The router has spent this long on a request before it was sent on or refused, queue included.
    pub fn processed(&self, processing: Duration) {
        self.families.processing.observe(processing.as_secs_f64());
    }

    /// Of the prompt's tokens, those that the chosen endpoint is believed to hold. A token counts as four
    /// bytes.
    pub fn prefix_hit(&self, matched: u32, prompt: u32) {
        let Some((ratio, bytes)) = &self.prefix_hits else { return };
        if prompt > 0 {
            ratio.observe(f64::from(matched) / f64::from(prompt));
            bytes.observe(f64::from(matched) * 4.0);
        }
    }

    /// A request has failed; `code` as llm-d-router names it.
    pub fn failed(&self, s: &Series, code: &'static str) {
        let mut labels = request_labels(&s.key, s.key.requested);
        labels.push(("error_code", code.to_owned()));
        self.families.errors.get_or_create(&labels).inc();
    }

    /// A model was rewritten by a rule of this name.
    pub fn rewritten(&self, rule: &str, model: &str, target: &str) {
        let labels = vec![
            ("model_rewrite_name", rule.to_owned()),
            ("model_name", Self::capped(&self.models, model)),
            ("target_model", target.to_owned()),
        ];
        self.families.rewrites.get_or_create(&labels).inc();
    }

    /// A request named an objective that does not exist.
    pub fn unknown_objective(&self) {
        self.families.unknown_objectives.inc();
    }

    /// Requests that named an objective that does not exist, so far.
    pub fn unknown_objectives(&self) -> u64 {
        self.families.unknown_objectives.get()
    }

    /// Everything as OpenMetrics text; `door` is what the door counts for itself.
    pub fn render(&self, view: Option<&View>, door: &DoorView) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        if let Some(view) = view {
            let _ = encode_registry(
                &mut text,
                &read_when_asked(view, &self.pool, &self.names, &|id| Self::capped(&self.fairness, id)),
            );
        }
        let mut own = Registry::with_prefix("forebay");
        door.register(&mut own);
        let unknown = self.families.unknown_objectives.clone();
        own.register("unknown_objectives", "Requests that named an objective that does not exist", unknown);
        let _ = encode_registry(&mut text, &own);
        let _ = encode_eof(&mut text);
        text
    }
}

fn request_labels(key: &SeriesKey, priority: i32) -> Labels {
    vec![
        ("model_name", key.model.clone()),
        ("target_model_name", key.target.clone()),
        ("fairness_id", key.fairness.clone()),
        ("priority", priority.to_string()),
    ]
}

fn register(f: &Families) -> Registry {
    let mut r = Registry::with_prefix("llm_d_epp");
    let flow = "flow_control_";
    let n = |name: &str| format!("{flow}{name}");
    r.register(n("request_queue_duration_seconds"), "Time in the queue", f.queue_duration.clone());
    r.register(n("request_enqueue_duration_seconds"), "Time to queue a request", f.enqueue_duration.clone());
    r.register(n("dispatch_cycle_duration_seconds"), "Time of a dispatch cycle", f.cycle.clone());
    r.register(n("queue_size"), "Requests in the queue", f.queue_size.clone());
    r.register(n("queue_bytes"), "Body bytes in the queue", f.queue_bytes.clone());
    r.register(n("requests"), "Queue outcomes", f.flow_requests.clone());
    r.register("request", "Requests", f.requests.clone());
    r.register("request_error", "Requests that failed", f.errors.clone());
    r.register("request_duration_seconds", "Time from arrival to the end of the answer", f.duration.clone());
    r.register("request_size_bytes", "Bytes of request bodies", f.request_bytes.clone());
    r.register("response_size_bytes", "Bytes of answers", f.response_bytes.clone());
    r.register("request_input_tokens", "Prompt tokens", f.input_tokens.clone());
    r.register("request_cached_tokens", "Prompt tokens that the engine had cached", f.cached_tokens.clone());
    r.register("request_output_tokens", "Output tokens", f.output_tokens.clone());
    r.register("request_running", "Requests at an endpoint", f.running.clone());
    r.register("request_ntpot_seconds", "Total time per output token", f.ntpot.clone());
    r.register("request_ttft_seconds", "Time to first token", f.ttft.clone());
    r.register("request_streaming_tpot_seconds", "Time per output token after the first", f.tpot.clone());
    r.register("request_streaming_itl_seconds", "Time between chunks", f.itl.clone());
    r.register(
        "request_processing_duration_seconds",
        "Time until sent on, queue included",
        f.processing.clone(),
    );
    r.register("scheduler_e2e_duration_seconds", "Time of the deciding call", f.scheduler.clone());
    r.register("scheduler_attempts", "Scheduling attempts", f.attempts.clone());
    r.register("model_rewrite_decisions", "Model rewrites", f.rewrites.clone());
    r.register("datalayer_poll_errors", "Scrapes that failed", f.poll_errors.clone());
    r.register(
        "datalayer_extract_errors",
        "Scrapes with lines that cannot be read",
        f.extract_errors.clone(),
    );
    r.register("prefix_indexer_hit_ratio", "Share of a prompt found in the index", f.prefix_ratio.clone());
    r.register("prefix_indexer_hit_bytes", "Bytes of a prompt found in the index", f.prefix_bytes.clone());
    r.register("inflight_requests", "Requests at an endpoint by this router", f.inflight_requests.clone());
    r.register(
        "inflight_tokens",
        "Uncached prompt tokens there before the first token",
        f.inflight_tokens.clone(),
    );
    r.register(
        "response_processing_duration_seconds",
        "Time spent on an answer",
        f.response_processing.clone(),
    );
    let info: Family<Labels, Gauge> = Family::default();
    let build = env!("CARGO_PKG_VERSION");
    info.get_or_create(&vec![("commit", String::new()), ("build_ref", format!("forebay-{build}"))]).set(1);
    r.register("info", "The build", info);
    r
}
