//! `forebay serve`: the router.

use crate::catalogue::catalogue;
use crate::front::{self, Front};
use crate::input::{self, Loaded, StabilityFlags, Unusable};
use crate::runtime::{block_on, log_to_stderr, stop_signal};
use crate::values::{EndpointUrl, duration, endpoint, quantity, resolve, share};
use anyhow::Context;
use clap::Args;
use forebay_config::{DEFAULT_CONFIG, Manifests, ProxyConfig, load};
use forebay_emulate::Emulator;
use forebay_engine::EngineSpec;
use forebay_kernel::EndpointSpec;
use forebay_kernel::journal::Journal;
use forebay_live::discovery::FileDiscovery;
use forebay_live::engines::Engines;
use forebay_live::lines::{self, LinesWriter};
use forebay_live::recording::{self, Folder, Key, RecordOptions, RecordWriter, Recorder};
use forebay_live::scrape::{self, ScrapeOptions};
use forebay_live::{Clock, Names, Options, Router, journal, models};
use forebay_net::{Client, ClientOptions, CollectLimits, ServerOptions};
use forebay_serve::{DoorOptions, Parsers, Reads, ServeOptions, Server};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const ARTICLE: &str = include_str!("../../../../../examples/article.yaml");
const OBJECTIVES: &str = include_str!("../../../../../examples/objectives.yaml");

/// Where the kernel writes its decisions, if anywhere.
type Decisions = Option<Box<dyn Journal>>;

/// Access log lines that wait for their file beyond this are dropped and counted.
const ACCESS_LOG_BUFFER: usize = 16 << 20;

/// Route requests to an inference pool, holding them in priority bands while it is full
///
/// Without configuration and endpoints, serves a pool of emulated vLLM servers with the soft-reflective
/// ceiling, to try things out.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// EndpointPickerConfig to decide by (`-` is stdin)
    #[arg(long, visible_alias = "config-file", value_name = "FILE", help_heading = "Pool and policy")]
    config: Option<PathBuf>,
    /// EndpointPickerConfig as text
    #[arg(long, value_name = "YAML", conflicts_with = "config", help_heading = "Pool and policy")]
    config_text: Option<String>,
    /// InferenceObjective and InferenceModelRewrite manifests
    #[arg(long, value_name = "FILE|DIR", help_heading = "Pool and policy")]
    objectives: Option<PathBuf>,
    /// A model server, as http://HOST:PORT; repeatable
    #[arg(long = "endpoint", value_name = "URL", value_parser = endpoint, help_heading = "Pool and policy")]
    endpoints: Vec<EndpointUrl>,
    /// Start although no endpoint is configured
    #[arg(long, help_heading = "Pool and policy")]
    allow_empty_pool: bool,
    /// Name of the pool in metrics
    #[arg(long, value_name = "NAME", default_value = "default", help_heading = "Pool and policy")]
    pool_name: String,
    #[command(flatten)]
    stability: StabilityFlags,

    /// Front port: the API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", help_heading = "Ports and limits")]
    listen: String,
    /// Admin port: /metrics, /healthz, /readyz
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090", help_heading = "Ports and limits")]
    admin_listen: String,
    /// Proxy paths that begin like this, beside the inference APIs; repeatable
    #[arg(long = "proxy-path", value_name = "PREFIX", help_heading = "Ports and limits")]
    proxy_paths: Vec<String>,
    #[command(flatten)]
    front: Front,

    /// Time between scrapes of an endpoint's metrics, at least 50ms
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration, help_heading = "Observation")]
    refresh_metrics_interval: Duration,
    /// One JSON line per request: a file, `-` for stdout, or `off`
    #[arg(long, value_name = "FILE", default_value = "-", help_heading = "Observation")]
    access_log: String,
    /// Share of finished requests in the access log, 0 to 1; what did not go well is always in it
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = share, help_heading = "Observation")]
    access_log_sample: f64,
    /// Write every input and decision of the kernel here, for `forebay replay`
    #[arg(long, value_name = "FILE", help_heading = "Observation")]
    decision_log: Option<PathBuf>,
    #[command(flatten)]
    recording: Recording,
    /// Log filter, on stderr
    #[arg(long, value_name = "FILTER", default_value = "info", help_heading = "Observation")]
    log: String,
    /// Seed of all draws; random if not given
    #[arg(long, value_name = "N", help_heading = "Observation")]
    seed: Option<u64>,
}

/// Recording of traffic.
#[derive(Debug, Args)]
#[command(next_help_heading = "Observation")]
struct Recording {
    /// Record what a replay needs of each request into this folder, never prompt text
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Key of the prompt hashes, 32 hex digits; a new one each time if absent
    #[arg(long, value_name = "FILE", requires = "record")]
    record_key: Option<PathBuf>,
    /// Bytes of one file of the recording
    #[arg(long, value_name = "SIZE", default_value = "64Mi", value_parser = quantity)]
    record_max_file: u64,
    /// Bytes of all recordings in the folder; the oldest files go first
    #[arg(long, value_name = "SIZE", default_value = "4Gi", value_parser = quantity)]
    record_max_total: u64,
}

/// After the disk has refused, the time until the recording tries again.
const RECORD_RETRY: Duration = Duration::from_secs(10);

impl Recording {
    fn start(&self) -> anyhow::Result<(Option<Recorder>, Option<RecordWriter>)> {
        let Some(dir) = &self.record else { return Ok((None, None)) };
        if self.record_max_total / 2 < self.record_max_file {
            let message = "--record-max-total: expected at least twice --record-max-file";
            return Err(Unusable(message.to_owned()).into());
        }
        let key = match &self.record_key {
            None => Key::random().context("--record: the system gives no key")?,
            Some(path) => {
                let (text, name) = input::text(path)?;
                Key::read(&text).map_err(|e| Unusable(format!("{name}: {e}")))?
            }
        };
        let options = RecordOptions {
            key,
            max_file: self.record_max_file,
            max_total: self.record_max_total,
            retry_after: RECORD_RETRY,
        };
        let started = std::fs::create_dir_all(dir)
            .and_then(|()| recording::start(Box::new(Folder(dir.clone())), options));
        let (recorder, writer) = started.with_context(|| format!("--record {}", dir.display()))?;
        Ok((Some(recorder), Some(writer)))
    }
}

impl Serve {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        log_to_stderr(&self.log)?;
        let loaded = self.load()?;
        let discovery = loaded.config.discovery().and_then(|d| d.values.text("path")).map(PathBuf::from);
        let emulated = self.config.is_none()
            && self.config_text.is_none()
            && self.endpoints.is_empty()
            && !self.allow_empty_pool;
        if self.endpoints.is_empty() && discovery.is_none() && !emulated && !self.allow_empty_pool {
            return Err(Unusable(
                "the configuration names no endpoints; give --endpoint http://HOST:PORT, a `file-discovery` \
                 plugin in dataLayer.discovery, or --allow-empty-pool"
                    .into(),
            )
            .into());
        }
        block_on(self.serve(out, loaded, discovery, emulated))
    }

    fn load(&self) -> anyhow::Result<Loaded> {
        if let Some(file) = &self.config {
            return input::configuration(file, self.objectives.as_ref(), self.stability);
        }
        let emulated = self.config_text.is_none() && self.endpoints.is_empty() && !self.allow_empty_pool;
        let (text, name) = match &self.config_text {
            Some(text) => (text.as_str(), "--config-text"),
            None if emulated => (ARTICLE, "examples/article.yaml"),
            None => (DEFAULT_CONFIG, "built-in configuration"),
        };
        let mut options = self.stability.options();
        // What is built in is no news to the reader.
        options.allow_experimental |= self.config_text.is_none();
        let config = load(text, name, &catalogue(), options)?;
        let manifests = match &self.objectives {
            Some(path) => Manifests::read_path(path)?,
            None if emulated => Manifests::read([("examples/objectives.yaml", OBJECTIVES)])?,
            None => Manifests::default(),
        };
        Ok(Loaded { config, manifests })
    }

    async fn serve(
        &self,
        out: &mut dyn Write,
        loaded: Loaded,
        discovery: Option<PathBuf>,
        emulated: bool,
    ) -> anyhow::Result<ExitCode> {
        let Loaded { config, manifests } = loaded;
        let seed = self.seed.unwrap_or_else(random_seed);
        let (journal, journal_writer) = self.decision_log()?;
        let plan = Arc::new(config.plan(&manifests.priorities()));
        let (clock, pool_name, names) = (Clock::real(), self.pool_name.clone(), Names::of_config(&config));
        let options = Options { plan, seed, clock, journal, pool_name, names };
        let router = Router::start(options).context("the router cannot be started")?;
        let pool = if emulated { start_emulated_pool(&router).await? } else { Vec::new() };
        for e in &self.endpoints {
            router.add_endpoint(EndpointSpec::named(&e.authority), resolve(e).await?);
        }
        let watched = config.discovery().is_some_and(|d| d.values.bool("watchFile"));
        if let Some(path) = discovery {
            let mut files = FileDiscovery::new(path);
            files.load(&router).map_err(|e| Unusable(e.to_string()))?;
            if watched {
                tokio::spawn(files.watch(router.clone()));
            }
        }
        let (access_log, access_writer) = self.access_log()?;
        let (recorder, record_writer) = self.recording.start()?;
        let proxy = self.front.over(config.proxy);
        let mut options = serve_options(&router, &config, &proxy, manifests, seed);
        (options.access_log, options.access_log_sample) = (access_log, self.access_log_sample);
        options.recorder = recorder;
        options.door.emulated = emulated;
        options.door.proxy_paths.clone_from(&self.proxy_paths);
        let server = Server::bind(&self.listen, &self.admin_listen, options).await?;
        // Of its own, so that what it learns of an endpoint it learns from its own connections.
        let observer = Arc::new(Client::new(ClientOptions { max_idle: 2, ..ClientOptions::default() }));
        let scraping = scrape::run(
            router.clone(),
            observer.clone(),
            scrape_options(self.refresh_metrics_interval, &config)?,
        );
        let scraping = tokio::spawn(scraping);
        let comparing = tokio::spawn(models::run(router.clone(), observer));
        announce(out, &server, &router, emulated, &pool)?;
        let stop = stop_signal()?;
        let broken = {
            let router = router.clone();
            async move { router.broken().await }
        };
        let stopping = async {
            tokio::select! {
                name = stop => tracing::info!(signal = name, "shutting down"),
                () = broken => tracing::error!("shutting down: the kernel has failed"),
            }
        };
        server.run(stopping).await;
        scraping.abort();
        comparing.abort();
        router.end_journal();
        drop((journal_writer, access_writer, record_writer));
        Ok(if router.is_broken() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn decision_log(&self) -> anyhow::Result<(Decisions, Option<LinesWriter>)> {
        let Some(path) = &self.decision_log else { return Ok((None, None)) };
        let (journal, writer) =
            journal::open(path).with_context(|| format!("--decision-log {}", path.display()))?;
        Ok((Some(Box::new(journal)), Some(writer)))
    }

    fn access_log(&self) -> anyhow::Result<(Option<lines::Lines>, Option<LinesWriter>)> {
        let start = |file: Box<dyn Write + Send>| {
            lines::write_to("access-log", file, ACCESS_LOG_BUFFER).context("the access log cannot be started")
        };
        let (lines, writer) = match self.access_log.as_str() {
            "off" => return Ok((None, None)),
            "-" => start(Box::new(std::io::stdout()))?,
            path => {
                let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
                start(Box::new(file.with_context(|| format!("--access-log {path}"))?))?
            }
        };
        Ok((Some(lines), Some(writer)))
    }
}

/// How endpoints are scraped: at this interval, unless the configuration says otherwise.
pub(crate) fn scrape_options(
    interval: Duration,
    config: &forebay_config::Config,
) -> anyhow::Result<ScrapeOptions> {
    let mut options = ScrapeOptions {
        interval: interval.max(forebay_live::plugins::MIN_SCRAPE_INTERVAL.to_std()),
        ..ScrapeOptions::default()
    };
    for (source, extractors) in config.sources() {
        if source.descriptor.name != "metrics-data-source" {
            continue;
        }
        options.apply_source(&source.values);
        if let Some(e) = extractors.iter().find(|e| e.descriptor.name == "core-metrics-extractor") {
            options.engines = Engines::from_values(&e.values).map_err(Unusable)?;
        }
    }
    Ok(options)
}

/// A server in front of a router, with the limits of `proxy` and neither logs nor recording.
pub(crate) fn serve_options(
    router: &Arc<Router>,
    config: &forebay_config::Config,
    proxy: &ProxyConfig,
    manifests: Manifests,
    seed: u64,
) -> ServeOptions {
    ServeOptions {
        router: router.clone(),
        manifests,
        seed,
        door: DoorOptions {
            limits: CollectLimits {
                max_bytes: proxy.max_body,
                timeout: proxy.body_timeout.to_std(),
                ..CollectLimits::default()
            },
            max_answer_bytes: 64 << 20,
            proxy_paths: Vec::new(),
            parsers: Parsers::of_config(config),
            reads: Reads::of_config(config),
            emulated: false,
            max_buffered_bytes: proxy.max_buffered_bytes,
            retry_on: proxy.retry_on,
            check_models: proxy.check_models,
        },
        server: ServerOptions {
            header_timeout: proxy.header_timeout.to_std(),
            write_timeout: proxy.write_timeout.to_std(),
            max_connections: usize::try_from(front::room_for(proxy.max_connections)).unwrap_or(usize::MAX),
            grace: proxy.drain_timeout.to_std(),
            ..ServerOptions::default()
        },
        client: ClientOptions {
            connect_timeout: proxy.connect_timeout.to_std(),
            headers_timeout: proxy.first_byte_timeout.to_std(),
            idle_timeout: proxy.idle_timeout.to_std(),
            keep_idle: proxy.keep_idle.to_std(),
            ..ClientOptions::default()
        },
        access_log: None,
        recorder: None,
        access_log_sample: 1.0,
        stop_delay: proxy.shutdown_delay.to_std(),
    }
}

/// Two servers of the article's model and hardware, in this process.
async fn start_emulated_pool(router: &Router) -> anyhow::Result<Vec<Emulator>> {
    let spec = EngineSpec::named("qwen3-14b", "h100")?;
    let mut pool = Vec::new();
    for n in 0..2 {
        let options = forebay_emulate::Options { seed: n, ..forebay_emulate::Options::new(&spec.model) };
        let server = Emulator::start(&spec, options).await?;
        router.add_endpoint(EndpointSpec::named(format!("emulated-{n}")), server.addr());
        pool.push(server);
    }
    Ok(pool)
}

/// Seeds hash maps of the standard library, and so differs from process to process.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// The ready line, and for an emulated pool what to try.
fn announce(
    out: &mut dyn Write,
    server: &Server,
    router: &Router,
    emulated: bool,
    pool: &[Emulator],
) -> std::io::Result<()> {
    let (api, admin) = (server.front_addr(), server.admin_addr());
    if emulated {
        writeln!(out, "EMULATED POOL: answers are synthetic, their timing is that of Qwen3-14B on H100.")?;
        for p in pool {
            let c = p.config();
            writeln!(
                out,
                "  {}  max_num_seqs {}  max_num_batched_tokens {}  KV blocks {}",
                p.url(),
                c.max_num_seqs,
                c.max_num_batched_tokens,
                c.num_gpu_blocks
            )?;
        }
        let url = format!("http://{api}/v1/chat/completions");
        writeln!(
            out,
            "\nTry:\n  curl {url} -H 'content-type: application/json' \\\n    \
             -H 'x-llm-d-inference-objective: critical' \\\n    \
             -d '{{\"model\":\"qwen3-14b\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}],\"max_tokens\":32}}'\n  \
             curl -N {url} -H 'content-type: application/json' \\\n    \
             -H 'x-llm-d-inference-objective: sheddable' \\\n    \
             -d '{{\"model\":\"qwen3-14b\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}],\"max_tokens\":32,\"stream\":true}}'\n  \
             curl http://{admin}/metrics\n"
        )?;
    }
    writeln!(
        out,
        "forebay ready: api http://{api} admin http://{admin} endpoints {}",
        router.endpoints().len()
    )?;
    out.flush()
}
