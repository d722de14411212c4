//! The live router on a runtime: decisions reach their waiters, and every ticket ends once.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use bytes::Bytes;
use forebay_base::Nanos;
use forebay_config::{Options as ConfigOptions, load};
use forebay_kernel::journal::Journal;
use forebay_kernel::{Ask, EndpointId, EndpointSpec, QueueOutcome, Reading, Refusal, Sample, Usage};
use forebay_live::scrape::{ScrapeOptions, run};
use forebay_live::{Clock, DoorView, Names, Options, Refused, Router, Series, Ticket, plugins};
use forebay_net::{Body, Client, ClientOptions, Listener, ServerOptions};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The decision log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Journal for Log {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0.lock().unwrap().line(line);
    }
}

impl Log {
    /// The given word of every line of this kind.
    fn words(&self, kind: &str, word: usize) -> Vec<String> {
        let text = self.0.lock().unwrap();
        let lines = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        lines.filter(|w| w.get(2) == Some(&kind)).map(|w| w[word].to_owned()).collect()
    }
}

fn router(config: &str) -> Arc<Router> {
    router_with(config, None)
}

fn router_with(config: &str, journal: Option<Box<dyn Journal>>) -> Arc<Router> {
    let catalogue: Vec<_> = forebay_kernel::plugins::ALL.iter().chain(plugins::ALL).copied().collect();
    let options = ConfigOptions { allow_experimental: true, ..ConfigOptions::default() };
    let config = load(config, "test", &catalogue, options).unwrap();
    Router::start(Options {
        plan: Arc::new(config.plan(&[100, -50])),
        seed: 1,
        clock: Clock::real(),
        journal,
        pool_name: "pool".into(),
        names: Names::default(),
    })
    .unwrap()
}

const FLOW: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - type: queue-scorer
  - type: utilization-detector
    parameters: {metricsStalenessThreshold: 1h}
flowControl: {defaultRequestTTL: 60s, maxRequests: 3}
";

fn sample(waiting: f64) -> Sample {
    Sample { waiting: Reading::Value(waiting), kv: Reading::Value(0.0), ..Sample::default() }
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9))
}

fn with_endpoint(r: &Router, waiting: f64) -> EndpointId {
    let id = r.add_endpoint(EndpointSpec::named("a"), address()).unwrap();
    r.scraped(id, Nanos::ZERO, &sample(waiting));
    id
}

fn ask(priority: i32) -> Ask<'static> {
    Ask { flow: "f", priority, bytes: 10, ..Ask::default() }
}

fn series(r: &Router) -> Arc<Series> {
    r.metrics().series("m", "m", "f", 0, 0)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never came true: {what}");
}

fn metric(r: &Router, line: &str) -> bool {
    let text = r.metrics().render(r.view().as_ref(), &DoorView::default());
    text.lines().any(|l| l == line)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_pool_dispatches_at_once_and_tickets_end_once() {
    let r = router(FLOW);
    let id = with_endpoint(&r, 0.0);
    let mut ticket = r.enter(ask(100), &series(&r)).await.unwrap();
    assert_eq!(ticket.priority(), 100);
    assert_eq!(ticket.upstream().unwrap().address, address());
    let load = |r: &Router| r.view().unwrap().endpoints[0].load;
    assert_eq!((load(&r).requests, load(&r).pending), (1, 1));
    ticket.first_token();
    ticket.first_token();
    assert_eq!((load(&r).requests, load(&r).pending), (1, 0));
    ticket.finished(Usage::default());
    assert_eq!(load(&r).requests, 0);
    drop(r.enter(ask(100), &series(&r)).await.unwrap());
    r.enter(ask(100), &series(&r)).await.unwrap().failed();
    let ledgers = r.view().unwrap().ledgers;
    assert!(ledgers.balanced());
    assert_eq!(ledgers.live, 0);
    assert!(metric(&r, "forebay_requests_ended_total{end=\"finished\"} 1"));
    assert!(metric(&r, "forebay_requests_ended_total{end=\"cancelled\"} 1"));
    assert!(metric(&r, "forebay_requests_ended_total{end=\"failed\"} 1"));
    r.remove_endpoint(id);
    assert!(r.endpoints().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_go_in_priority_order_once_there_is_room() {
    let log = Log::default();
    let r = router_with(FLOW, Some(Box::new(log.clone())));
    let id = with_endpoint(&r, 5.0);
    let mut tasks = Vec::new();
    for priority in [-50, 0, 100] {
        let r = r.clone();
        // Tickets are kept, so that a place does not come free in between.
        tasks.push(tokio::spawn(async move { r.enter(ask(priority), &series(&r)).await.unwrap() }));
    }
    until("all three wait", || r.view().unwrap().ledgers.queued == 3).await;
    assert!(metric(
        &r,
        "llm_d_epp_flow_control_pool_saturation{inference_pool=\"pool\",stage=\"effective\"} 1.0"
    ));
    let full = r.enter(ask(100), &series(&r)).await.err().unwrap();
    assert!(matches!(full, Refused::By { refusal: Refusal::Queue(QueueOutcome::RejectedCapacity), .. }));
    r.scraped(id, Nanos::ZERO, &sample(0.0));
    let mut tickets = Vec::new();
    for t in tasks {
        tickets.push(t.await.unwrap());
    }
    assert_eq!(tickets.iter().map(Ticket::priority).collect::<Vec<_>>(), [-50, 0, 100]);
    // The n-th offer is request n; when tasks wake up says nothing about when they were decided.
    let offered = log.words("offer", 4);
    let decided = log.words("dispatch", 3);
    let order: Vec<&str> = decided
        .iter()
        .map(|id| offered[id.split('.').next().unwrap().parse::<usize>().unwrap()].as_str())
        .collect();
    assert_eq!(order, ["100", "0", "-50"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_place_in_the_queue() {
    let r = router(FLOW);
    with_endpoint(&r, 5.0);
    let task = {
        let r = r.clone();
        tokio::spawn(async move { r.enter(ask(0), &series(&r)).await.map(|_| ()) })
    };
    until("it waits", || r.view().unwrap().ledgers.queued == 1).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let ledgers = r.view().unwrap().ledgers;
    assert_eq!((ledgers.queued, ledgers.live), (0, 0));
    assert_eq!(ledgers.outcomes[QueueOutcome::EvictedContextCancelled.index()], 1);
    let line = "llm_d_epp_flow_control_queue_size{fairness_id=\"f\",priority=\"0\",inference_pool=\"pool\",\
                model_name=\"m\",target_model_name=\"m\"} 0";
    assert!(metric(&r, line));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_answers_what_waits() {
    let r = router(FLOW);
    let task = {
        let r = r.clone();
        tokio::spawn(async move { r.enter(ask(0), &series(&r)).await.map(|_| ()) })
    };
    until("it waits", || r.view().unwrap().ledgers.queued == 1).await;
    r.close();
    let refused = task.await.unwrap().unwrap_err();
    assert!(matches!(refused, Refused::By { refusal: Refusal::Queue(QueueOutcome::EvictedOther), .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttls_are_kept_by_the_timer_alone() {
    let r = router(&FLOW.replace("60s", "30ms"));
    with_endpoint(&r, 5.0);
    let refused = r.enter(ask(0), &series(&r)).await.err().unwrap();
    let Refused::By { refusal, waited } = refused else { panic!("{refused:?}") };
    assert_eq!(refusal, Refusal::Queue(QueueOutcome::EvictedTtl));
    assert!(waited.0 >= 30_000_000, "{waited}");
}

/// A request may come in at the very moment at which another's time is over, and take its place in the kernel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_one_of_many_that_expire_is_told_its_own_end() {
    const EACH: u64 = 400;
    let r = router(&FLOW.replace("60s", "1ms").replace("maxRequests: 3", "maxRequests: 1000"));
    with_endpoint(&r, 5.0);
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let r = r.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    let refused = r.enter(ask(0), &series(&r)).await.err().unwrap();
                    let Refused::By { refusal, waited } = refused else { panic!("{refused:?}") };
                    assert_eq!(refusal, Refusal::Queue(QueueOutcome::EvictedTtl));
                    assert!(waited.0 >= 1_000_000, "{waited}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let ledgers = r.view().unwrap().ledgers;
    assert!(ledgers.balanced());
    assert_eq!((ledgers.live, ledgers.queued), (0, 0));
}

/// A metrics endpoint whose answer can be changed.
async fn metrics_server(text: Arc<Mutex<String>>, asked: Arc<AtomicU32>) -> SocketAddr {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr();
    let handler = move |_request, _peer| {
        asked.fetch_add(1, Ordering::SeqCst);
        let text = text.lock().unwrap().clone();
        async move { http::Response::new(Body::from(Bytes::from(text))) }
    };
    tokio::spawn(
        async move { listener.serve(ServerOptions::default(), handler, std::future::pending()).await },
    );
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrapes_reach_the_kernel_and_missing_metrics_are_not_zero() {
    let text = Arc::new(Mutex::new(
        "vllm:num_requests_waiting{engine=\"0\"} 2.0\nvllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.4\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n"
            .to_owned(),
    ));
    let asked = Arc::new(AtomicU32::new(0));
    let address = metrics_server(text.clone(), asked.clone()).await;
    let r = router(FLOW);
    r.add_endpoint(EndpointSpec::named("a"), address).unwrap();
    let client = Arc::new(Client::new(ClientOptions::default()));
    let scraping = tokio::spawn(run(r.clone(), client, ScrapeOptions::default()));
    let sample = |r: &Router| r.view().unwrap().endpoints[0].sample;
    until("a scrape has come", || r.view().unwrap().endpoints[0].fresh).await;
    assert_eq!(sample(&r).waiting, Reading::Value(2.0));
    assert_eq!(sample(&r).kv, Reading::Value(0.4));
    assert_eq!((sample(&r).block_tokens, sample(&r).blocks), (Some(16), Some(100)));
    assert_eq!(r.view().unwrap().saturation.effective, 0.5);
    *text.lock().unwrap() = "vllm:num_requests_waiting 0\n".into();
    until("KV use is missing", || sample(&r).kv == Reading::Missing).await;
    assert_eq!(r.view().unwrap().saturation.effective, 1.0);
    let before = asked.load(Ordering::SeqCst);
    until("scrapes go on", || asked.load(Ordering::SeqCst) > before + 2).await;
    scraping.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_file_moves_the_pool_and_a_bad_one_does_not() {
    let path = std::env::temp_dir().join(format!("forebay-endpoints-{}.yaml", std::process::id()));
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("endpoints:\n- {name: a, address: 127.0.0.1, port: \"8001\"}\n");
    let r = router(FLOW);
    let mut discovery = forebay_live::discovery::FileDiscovery::new(&path);
    discovery.load(&r).unwrap();
    let names = |r: &Router| {
        let mut n: Vec<String> = r.endpoints().all().iter().map(|u| u.authority.clone()).collect();
        n.sort();
        n
    };
    assert_eq!(names(&r), ["127.0.0.1:8001"]);
    let watching = tokio::spawn(discovery.watch(r.clone()));
    write(
        "endpoints:\n- {name: b, address: 127.0.0.1, port: \"8002\"}\n- {name: c, address: 127.0.0.1, port: \"8003\"}\n",
    );
    until("the file is read again", || names(&r) == ["127.0.0.1:8002", "127.0.0.1:8003"]).await;
    write("endpoints: 5\n");
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(names(&r).len(), 2);
    watching.abort();
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_moves_to_another_endpoint_and_ends_once() {
    let r = router(FLOW);
    let a = with_endpoint(&r, 0.0);
    let b = r.add_endpoint(EndpointSpec::named("b"), address()).unwrap();
    r.scraped(b, Nanos::ZERO, &sample(1.0));
    let mut ticket = r.enter(ask(0), &series(&r)).await.unwrap();
    let first = ticket.upstream().unwrap().clone();
    assert_eq!(first.id, a);
    r.eject(&first, &"refused");
    let second = ticket.retry().unwrap();
    assert_eq!((second.id, ticket.upstream().unwrap().id), (b, b));
    r.eject(&second, &"refused");
    r.eject(&second, &"refused");
    assert!(ticket.retry().is_none(), "there is nowhere left to go");
    drop(ticket);
    let view = r.view().unwrap();
    assert!(view.endpoints.iter().all(|e| !e.available && e.load.requests == 0));
    assert_eq!(view.ejections, 2);
    assert!(view.ledgers.balanced() && view.ledgers.live == 0);
    assert!(metric(&r, "forebay_requests_ended_total{end=\"no_candidates\"} 1"));
    let running = "llm_d_epp_request_running{model_name=\"m\",target_model_name=\"m\",fairness_id=\"f\",priority=\"0\"} 0";
    assert!(metric(&r, running));
    r.restore(&first);
    assert!(r.view().unwrap().endpoints.iter().any(|e| e.available));
}

/// A scorer with a fault that shows only at a certain request.
#[derive(Debug)]
struct Faulty;

impl forebay_kernel::policy::Scorer for Faulty {
    fn score(&self, d: &forebay_kernel::policy::Decision<'_>, _: &[u32], _: &mut [f64]) {
        assert!(d.ask.bytes != 666, "a fault in a policy");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_kernel_answers_what_waits_and_refuses_the_rest() {
    let catalogue: Vec<_> = forebay_kernel::plugins::ALL.iter().chain(plugins::ALL).copied().collect();
    let mut plan = load(FLOW, "test", &catalogue, ConfigOptions::default()).unwrap().plan(&[100, -50]);
    plan.profile.scorers.push(forebay_kernel::plan::WeightedScorer {
        name: "faulty".into(),
        weight: 1.0,
        scorer: Arc::new(Faulty),
    });
    let (seed, clock, journal) = (1, Clock::real(), None);
    let (pool_name, names) = ("pool".into(), Names::default());
    let options = Options { plan: Arc::new(plan), seed, clock, journal, pool_name, names };
    let r = Router::start(options).unwrap();
    let id = with_endpoint(&r, 0.0);
    let running = r.enter(ask(0), &series(&r)).await.unwrap();
    r.scraped(id, Nanos(1), &sample(5.0));
    let enter = |bytes| {
        let r = r.clone();
        tokio::spawn(async move { r.enter(Ask { bytes, ..ask(0) }, &series(&r)).await.map(|_| ()) })
    };
    let (fatal, bystander) = (enter(666), enter(10));
    until("both wait", || r.view().unwrap().ledgers.queued == 2).await;
    let broken = {
        let r = r.clone();
        tokio::spawn(async move { r.broken().await })
    };
    // Whoever makes room meets the fault, and only that call panics.
    let own = r.clone();
    let scrape = tokio::task::spawn_blocking(move || own.scraped(id, Nanos(2), &sample(0.0)));
    // The cycle runs at the next tick, so in the timer's thread, or within this call.
    let _ = scrape.await;
    for waiting in [fatal, bystander] {
        assert_eq!(
            tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap(),
            Err(Refused::Broken)
        );
    }
    tokio::time::timeout(Duration::from_secs(10), broken).await.unwrap().unwrap();
    assert!(r.is_broken() && r.view().is_none());
    assert_eq!(r.enter(ask(0), &series(&r)).await.err(), Some(Refused::Broken));
    // Late words of what runs do no harm, and the word is there for whoever asks later.
    running.finished(Usage::default());
    r.broken().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_are_added_up_over_bands() {
    let r = router(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - type: queue-scorer
  - type: program-aware-fairness
  - type: utilization-detector
    parameters: {metricsStalenessThreshold: 1h}
flowControl:
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
",
    );
    with_endpoint(&r, 0.0);
    for priority in [100, -50] {
        r.enter(ask(priority), &series(&r)).await.unwrap().finished(Usage::default());
    }
    let programs = r.view().unwrap().programs.unwrap();
    assert_eq!(programs.iter().map(|(name, p)| (&**name, p.waits)).collect::<Vec<_>>(), [("f", 2)]);
    assert!(router(FLOW).view().unwrap().programs.is_none());
}
