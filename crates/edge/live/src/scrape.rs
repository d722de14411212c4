//! Scrapes the metrics of all endpoints: one task, one request in flight per endpoint at most.

use crate::endpoints::Upstream;
use crate::engines::Engines;
use crate::router::Router;
use forebay_base::Nanos;
use forebay_kernel::plugin::Values;
use forebay_kernel::{Adapters, EndpointId, Reading, Sample};
use forebay_net::{Client, GetError, SendError, Stage};
use forebay_wire::prom::{self, EngineMap, extract};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How to scrape.
#[derive(Clone, Debug)]
pub struct ScrapeOptions {
    /// Time from one scrape of an endpoint to the next.
    pub interval: Duration,
    /// A scrape that takes longer has failed.
    pub timeout: Duration,
    /// The path of requests.
    pub path: String,
    /// The port of requests, if it is not the endpoint's.
    pub port: Option<u16>,
    /// A longer answer is refused.
    pub max_bytes: usize,
    /// The mappings of engines.
    pub engines: Engines,
}

impl Default for ScrapeOptions {
    fn default() -> ScrapeOptions {
        ScrapeOptions {
            interval: Duration::from_millis(50),
            timeout: Duration::from_secs(1),
            path: "/metrics".into(),
            port: None,
            max_bytes: 16 << 20,
            engines: Engines::default(),
        }
    }
}

impl ScrapeOptions {
    /// Takes over what a `metrics-data-source` says.
    pub fn apply_source(&mut self, v: &Values) {
        if let Some(path) = v.text("path") {
            path.clone_into(&mut self.path);
        }
        self.port = v.opt_int("port").and_then(|p| u16::try_from(p).ok());
        if let Some(interval) = v.span("interval") {
            self.interval = interval.max(crate::plugins::MIN_SCRAPE_INTERVAL).to_std();
        }
    }
}

/// What is known of one endpoint beside its metrics.
struct Target {
    upstream: Arc<Upstream>,
    map: Arc<EngineMap>,
    address: SocketAddr,
    due: Instant,
    in_flight: bool,
    /// Whether the last scrape failed; failures are told once.
    failing: bool,
    /// Families told to be missing, so that each is told once.
    told: Vec<String>,
    /// The LoRA adapters that the router was told of.
    adapters: Option<Arc<Adapters>>,
}

struct Done {
    id: EndpointId,
    taken: Nanos,
    /// Whether the endpoint was out when this began, and has answered: it is in again.
    recovered: bool,
    result: Result<prom::Scrape, GetError>,
}

/// Scrapes until the future is dropped.
pub async fn run(router: Arc<Router>, client: Arc<Client>, options: ScrapeOptions) {
    let mut targets: BTreeMap<EndpointId, Target> = BTreeMap::new();
    let mut running = FuturesUnordered::new();
    refresh(&router, &options, &mut targets);
    loop {
        let now = Instant::now();
        let mut next = now + options.interval;
        for t in targets.values_mut().filter(|t| !t.in_flight) {
            if t.due <= now {
                t.in_flight = true;
                // Scrapes keep their beat; one that came late does not pull the next ones along.
                t.due = (t.due + options.interval).max(now);
                running.push(scrape(&router, &client, &options, t));
            } else {
                next = next.min(t.due);
            }
        }
        tokio::select! {
            Some(done) = running.next(), if !running.is_empty() => take(&router, &mut targets, done),
            () = tokio::time::sleep_until(next.into()) => {}
            () = router.endpoints().changed() => refresh(&router, &options, &mut targets),
        }
    }
}

/// Brings the targets in line with the endpoints. New ones are spread over an interval.
fn refresh(router: &Router, options: &ScrapeOptions, targets: &mut BTreeMap<EndpointId, Target>) {
    let all = router.endpoints().all();
    targets.retain(|id, _| all.iter().any(|u| u.id == *id));
    let step = options.interval / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
    for (n, upstream) in all.into_iter().enumerate() {
        targets.entry(upstream.id).or_insert_with(|| Target {
            map: options.engines.of_labels(|key| upstream.spec.label(key).map(str::to_owned)),
            address: SocketAddr::new(upstream.address.ip(), options.port.unwrap_or(upstream.address.port())),
            due: Instant::now() + step * n as u32,
            in_flight: false,
            failing: false,
            told: Vec::new(),
            adapters: None,
            upstream,
        });
    }
}

fn scrape(
    router: &Arc<Router>,
    client: &Arc<Client>,
    options: &ScrapeOptions,
    target: &Target,
) -> impl Future<Output = Done> + use<> {
    let (id, map, address) = (target.upstream.id, target.map.clone(), target.address);
    let (client, taken) = (client.clone(), router.clock().now());
    let (path, timeout, max_bytes) = (options.path.clone(), options.timeout, options.max_bytes);
    let upstream = target.upstream.clone();
    let out = !upstream.is_available();
    async move {
        let authority = address.to_string();
        if out {
            // Only a fresh connection tells anything.
            client.forget(&authority);
        }
        let answer = client.get(&authority, &path, timeout, max_bytes).await;
        let recovered = out && answers(&client, &upstream, address, &answer).await;
        Done { id, taken, recovered, result: answer.map(|text| extract(&text, &map)) }
    }
}

/// Whether the endpoint takes connections again. Any answer to a scrape shows it, whatever its status; if
/// metrics come from another port, a connection to the endpoint's own.
async fn answers<T>(
    client: &Client,
    upstream: &Upstream,
    scraped: SocketAddr,
    answer: &Result<T, GetError>,
) -> bool {
    if scraped == upstream.address {
        return matches!(answer, Ok(_) | Err(GetError::Status(_) | GetError::TooLarge(_)));
    }
    client.knock(&upstream.authority).await.is_ok()
}

fn take(router: &Router, targets: &mut BTreeMap<EndpointId, Target>, done: Done) {
    let Some(target) = targets.get_mut(&done.id) else { return };
    target.in_flight = false;
    if done.recovered {
        router.restore(&target.upstream);
    }
    let name = &target.upstream.spec.name;
    match done.result {
        Ok(scrape) => {
            if target.failing {
                target.failing = false;
                tracing::info!(endpoint = %name, "metrics are back");
            }
            if scrape.malformed > 0 {
                router.metrics().extract_failed();
            }
            for family in &scrape.missing {
                if !target.told.contains(family) {
                    tracing::warn!(
                        endpoint = %name, engine = %target.map.name, %family,
                        "an expected metric is missing; it counts as unknown, not as 0"
                    );
                    target.told.push(family.clone());
                }
            }
            if scrape.any() {
                router.scraped(done.id, done.taken, &sample(&scrape));
            }
            if let Some(adapters) = scrape.lora.map(adapters)
                && target.adapters.as_deref() != Some(&adapters)
            {
                let adapters = Arc::new(adapters);
                target.adapters = Some(adapters.clone());
                router.adapters(done.id, adapters);
            }
        }
        Err(e) => {
            router.metrics().poll_failed();
            // Who refuses a scrape refuses a request, too; better the scrape finds out.
            if let GetError::Send(SendError { stage: Stage::Connect, .. }) = &e
                && target.address == target.upstream.address
            {
                router.eject(&target.upstream, &e);
            }
            if !target.failing {
                target.failing = true;
                tracing::warn!(endpoint = %name, address = %target.address, error = %e, "metrics cannot be read");
            }
        }
    }
}

/// Adapters of one kind that are kept at most, in the order of their names; an engine has fewer.
const MAX_ADAPTERS: usize = 256;
/// Longer names than this are left out.
const MAX_ADAPTER_NAME: usize = 512;

fn adapters(lora: prom::Lora) -> Adapters {
    let names = |mut names: Vec<String>| {
        names.retain(|n| !n.is_empty() && n.len() <= MAX_ADAPTER_NAME);
        names.sort_unstable();
        names.dedup();
        names.truncate(MAX_ADAPTERS);
        names
    };
    Adapters { running: names(lora.running), waiting: names(lora.waiting), max: lora.max.unwrap_or(0) }
}

fn sample(scrape: &prom::Scrape) -> Sample {
    let reading = |r: prom::Reading| match r {
        prom::Reading::Disabled => Reading::Disabled,
        prom::Reading::Missing => Reading::Missing,
        prom::Reading::Value(x) => Reading::Value(x),
    };
    Sample {
        waiting: reading(scrape.waiting),
        running: reading(scrape.running),
        kv: reading(scrape.kv),
        block_tokens: scrape.block_size,
        blocks: scrape.num_blocks,
    }
}
