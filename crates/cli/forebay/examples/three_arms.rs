//! Three configurations beside each other on an emulated pool, at 1.1 of the highest completion rate.
//!
//! ```sh
//! cargo build --release && cargo run --release --example three_arms -- [SECONDS [CAPACITY]]
//! ```
//!
//! Two emulated Qwen3-14B servers on H100; requests with the lengths of the article's code workload
//! (lognormal, in: mu 7.0659, sigma 0.7033, clamped to 100..10000; out: mu 5.2711, sigma 1.2498, clamped
//! to 50..10000), 30 % critical, 70 % sheddable, each class at a constant rate. Every arm gets fresh
//! servers and the same arrivals and lengths. An empty pool takes minutes to fill up at this rate, because
//! answers are long; so half a minute at twice the rate goes before, which is not in the figures. Prints a
//! Markdown table.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a measuring tool")]

use bytes::Bytes;
use forebay_base::{Draws, Purpose, math};
use forebay_net::{Client, ClientOptions};
use http::Request;
use http_body_util::BodyExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const SEED: u64 = 42;
/// Offered while the capacity is measured: far more than two servers can complete.
const FLOOD: f64 = 40.0;
const ARMS: [(&str, &str); 3] = [
    ("static.yaml", include_str!("../../../../examples/static.yaml")),
    ("article.yaml", include_str!("../../../../examples/article.yaml")),
    ("recommended.yaml", include_str!("../../../../examples/recommended.yaml")),
];
const OBJECTIVES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/objectives.yaml");

/// What fills the pool before the figures begin.
const PRELUDE: Duration = Duration::from_secs(30);

/// One request of the schedule.
#[derive(Clone, Copy, Debug)]
struct Ask {
    number: u64,
    at: Duration,
    critical: bool,
    input: u32,
    output: u32,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    critical: bool,
    /// Whether it came after the prelude.
    counted: bool,
    /// Arrival, from the start of the run.
    at: Duration,
    ttft: Option<Duration>,
    total: Option<Duration>,
}

/// A standard normal draw (Box and Muller 1958).
fn normal(draws: Draws, purpose: &str, n: u64) -> f64 {
    let p = Purpose::named(purpose);
    let (u, v) = (draws.unit(p, n, 0), draws.unit(p, n, 1));
    (-2.0 * math::ln(u)).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
}

fn lognormal(draws: Draws, purpose: &str, n: u64, (mu, sigma): (f64, f64), (low, high): (f64, f64)) -> u32 {
    math::exp(mu + sigma * normal(draws, purpose, n)).clamp(low, high).round() as u32
}

/// Twice the rate during the prelude, then the rate.
fn schedule(rate: f64, prelude: Duration, window: Duration) -> Vec<Ask> {
    let draws = Draws::new(SEED);
    let mut out = Vec::new();
    for (critical, share, phase) in [(true, 0.3, 0.3), (false, 0.7, 0.7)] {
        let gap = 1.0 / (rate * share);
        let mut t = gap * phase;
        while t < (prelude + window).as_secs_f64() {
            let number = out.len() as u64;
            let class = if critical { "critical" } else { "sheddable" };
            let n = number << 1 | u64::from(critical);
            out.push(Ask {
                number: n,
                at: Duration::from_secs_f64(t),
                critical,
                input: lognormal(draws, &format!("{class} in"), n, (7.0659, 0.7033), (100.0, 10_000.0)),
                output: lognormal(draws, &format!("{class} out"), n, (5.2711, 1.2498), (50.0, 10_000.0)),
            });
            t += if t < prelude.as_secs_f64() { gap / 2.0 } else { gap };
        }
    }
    out.sort_by_key(|a| (a.at, a.number));
    out
}

struct Process {
    _child: Child,
    address: String,
}

async fn start(arguments: &[&str]) -> Process {
    let exe = std::env::current_exe().unwrap();
    let forebay = exe.parent().unwrap().parent().unwrap().join("forebay");
    let mut child = Command::new(forebay)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("build the binary first: cargo build --release");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    loop {
        let line = lines.next_line().await.unwrap().expect("a ready line");
        if line.starts_with("forebay ready: ") {
            let address = line.split_whitespace().find_map(|w| w.strip_prefix("http://")).unwrap();
            return Process { _child: child, address: address.to_owned() };
        }
    }
}

async fn ask(client: Arc<Client>, router: Arc<str>, start: Instant, a: Ask) -> Seen {
    let mut prompt = format!("{} ", a.number);
    while prompt.len() < a.input as usize * 4 {
        prompt.push_str("lorem ipsum ");
    }
    prompt.truncate(a.input as usize * 4);
    let body = format!(
        "{{\"model\":\"qwen3-14b\",\"prompt\":\"{prompt}\",\"max_tokens\":{},\"ignore_eos\":true,\"stream\":true}}",
        a.output
    );
    let objective = if a.critical { "critical" } else { "sheddable" };
    let request = Request::post("/v1/completions")
        .header("content-type", "application/json")
        .header("x-llm-d-inference-objective", objective)
        .body(Bytes::from(body))
        .unwrap();
    let mut seen = Seen { critical: a.critical, counted: true, at: a.at, ttft: None, total: None };
    let Ok(response) = client.send(&router, request).await else { return seen };
    if response.status() != 200 {
        return seen;
    }
    let mut body = response.into_body();
    // Latency counts from the schedule, not from when a busy client came to it.
    let since = |t: Instant| t.duration_since(start).saturating_sub(a.at);
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return seen;
        }
        seen.ttft.get_or_insert_with(|| since(Instant::now()));
    }
    seen.total = Some(since(Instant::now()));
    seen
}

struct Outcome {
    seen: Vec<Seen>,
    longest: u32,
    lag: Duration,
}

/// Keeps the greatest number of waiting requests this engine has reported.
async fn watch_queue(address: String, longest: Arc<AtomicU32>) {
    let client = Client::new(ClientOptions::default());
    loop {
        let text = client.get(&address, "/metrics", Duration::from_secs(1), 1 << 20).await;
        let text = text.map(|t| String::from_utf8_lossy(&t).into_owned()).unwrap_or_default();
        let waiting = text.lines().find(|l| l.starts_with("vllm:num_requests_waiting{"));
        let n = waiting.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
        longest.fetch_max(n as u32, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Offers `rate` for `window` under this configuration, then waits for what is left up to `drain`.
async fn run(config: &str, rate: f64, prelude: Duration, window: Duration, drain: Duration) -> Outcome {
    let file = std::env::temp_dir().join(format!("forebay-arms-{}.yaml", std::process::id()));
    std::fs::write(&file, config).unwrap();
    let emulate = ["emulate", "--listen", "127.0.0.1:0", "--log", "off"];
    let engines = [start(&emulate).await, start(&emulate).await];
    let urls = [format!("http://{}", engines[0].address), format!("http://{}", engines[1].address)];
    let router = start(&[
        "serve",
        "--config",
        file.to_str().unwrap(),
        "--objectives",
        OBJECTIVES,
        "--endpoint",
        &urls[0],
        "--endpoint",
        &urls[1],
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--access-log",
        "off",
        "--log",
        "off",
    ])
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let longest = Arc::new(AtomicU32::new(0));
    let watches: Vec<_> =
        engines.iter().map(|e| tokio::spawn(watch_queue(e.address.clone(), longest.clone()))).collect();
    let client = Arc::new(Client::new(ClientOptions { max_idle: 4096, ..ClientOptions::default() }));
    let (address, results) = (Arc::<str>::from(router.address.as_str()), Arc::new(Mutex::new(Vec::new())));
    let (begin, mut lag, mut tasks) = (Instant::now(), Duration::ZERO, tokio::task::JoinSet::new());
    for a in schedule(rate, prelude, window) {
        tokio::time::sleep_until((begin + a.at).into()).await;
        lag = lag.max(begin.elapsed().saturating_sub(a.at));
        let (client, address, results) = (client.clone(), address.clone(), results.clone());
        tasks.spawn(async move {
            let seen = ask(client, address, begin, a).await;
            results.lock().unwrap().push(seen);
        });
    }
    let offered = tasks.len();
    let _ = tokio::time::timeout(drain, async { while tasks.join_next().await.is_some() {} }).await;
    for w in watches {
        w.abort();
    }
    tasks.shutdown().await;
    let _ = std::fs::remove_file(&file);
    let mut seen = results.lock().unwrap().clone();
    // Answers to the prelude count as completions, its waits are nobody's.
    for s in &mut seen {
        s.counted = s.at >= prelude;
    }
    eprintln!(
        "  offered {offered}, ended {} (the rest still streamed), longest send lag {lag:?}",
        seen.len()
    );
    Outcome { seen, longest: longest.load(Ordering::Relaxed), lag }
}

/// Of completed requests, with their number; requests that were refused or left out are counted beside.
fn quantile(values: &mut [Duration], q: f64) -> String {
    values.sort();
    let Some(last) = values.len().checked_sub(1) else { return "-".into() };
    let at = ((q * values.len() as f64).ceil() as usize).clamp(1, last + 1) - 1;
    format!("{:.2} s", values[at].as_secs_f64())
}

async fn capacity() -> f64 {
    eprintln!("capacity: {FLOOD} requests/s for 90 s");
    let flood = run(ARMS[0].1, FLOOD, Duration::ZERO, Duration::from_secs(90), Duration::ZERO).await;
    let done = flood.seen.iter().filter_map(|s| Some(s.at + s.total?)).filter(|t| t.as_secs() >= 30);
    done.count() as f64 / 60.0
}

/// One line of the table.
fn row(name: &str, o: &Outcome, window: Duration) -> String {
    let ttft = |critical: bool| -> Vec<Duration> {
        o.seen.iter().filter(|s| s.counted && s.critical == critical).filter_map(|s| s.ttft).collect()
    };
    let (mut c, mut s) = (ttft(true), ttft(false));
    let inside = |critical: bool| {
        let of = o.seen.iter().filter(|s| s.critical == critical).filter_map(|s| Some(s.at + s.total?));
        of.filter(|t| (PRELUDE..=PRELUDE + window).contains(t)).count() as f64 / window.as_secs_f64()
    };
    format!(
        "| `{name}` | {} | {} | {} | {} | {:.2}/s | {:.2}/s | {} | {} |",
        quantile(&mut c, 0.5),
        quantile(&mut c, 0.99),
        quantile(&mut s, 0.5),
        quantile(&mut s, 0.99),
        inside(true) + inside(false),
        inside(true),
        o.seen.iter().filter(|s| s.counted && s.total.is_none()).count(),
        o.longest
    )
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(150, |s| s.parse().expect("seconds"));
    let window = Duration::from_secs(seconds);
    let capacity = match arguments.next() {
        Some(given) => given.parse().expect("requests per second"),
        None => capacity().await,
    };
    let rate = 1.1 * capacity;
    println!(
        "Capacity with a full queue: {capacity:.2} requests/s; offered: {rate:.2} for {seconds} s, seed {SEED}.\n"
    );
    println!(
        "| | critical TTFT p50 | p99 | sheddable TTFT p50 | p99 | completed in the window | of these critical | \
         refused or broken | longest engine queue |\n|---|---|---|---|---|---|---|---|---|"
    );
    let mut lag = Duration::ZERO;
    for (name, config) in ARMS {
        eprintln!("{name}: {rate:.2} requests/s for {seconds} s");
        let o = run(config, rate, PRELUDE, window, Duration::from_secs(75)).await;
        lag = lag.max(o.lag);
        println!("{}", row(name, &o, window));
    }
    println!("\nLongest send lag of the client: {lag:?}.");
}
