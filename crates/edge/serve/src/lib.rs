//! The HTTP door: an OpenAI-compatible proxy in front of the kernel, and the admin port.

mod admin;
mod answer;
mod counts;
mod door;
mod flight;
mod identity;
mod reads;
mod record;
mod recorded;
mod refuse;

pub use door::{DoorOptions, Parsers};
pub use reads::Reads;

use counts::Counts;
use door::Door;
use forebay_config::{Config, Manifests};
use forebay_live::Router;
use forebay_live::lines::Lines;
use forebay_live::recording::Recorder;
use forebay_net::{Budget, Client, ClientOptions, Listener, ServerOptions};
use identity::Identities;
use record::AccessLog;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often unused connections to endpoints are let go.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Parsers {
    /// The parsers that a configuration lists.
    pub fn of_config(config: &Config) -> Parsers {
        let has = |name: &str| config.parsers().any(|p| p.descriptor.name == name);
        Parsers {
            openai: has("openai-parser"),
            anthropic: has("anthropic-parser"),
            vllm: has("vllmhttp-parser"),
            passthrough: has("passthrough-parser"),
        }
    }
}

/// What a server is made of.
pub struct ServeOptions {
    /// The router.
    pub router: Arc<Router>,
    /// Objectives and rewrites.
    pub manifests: Manifests,
    /// The seed of request ids and of draws among rewrite targets.
    pub seed: u64,
    /// The door's limits.
    pub door: DoorOptions,
    /// Limits of both listeners.
    pub server: ServerOptions,
    /// Times of connections to endpoints.
    pub client: ClientOptions,
    /// Gets a line per request, if there is an access log.
    pub access_log: Option<Lines>,
    /// The share of finished requests that get their line, 0 to 1; all others always do.
    pub access_log_sample: f64,
    /// Gets a row per request for inference, if traffic is recorded.
    pub recorder: Option<Recorder>,
    /// From the stop signal, how long the front port goes on accepting while it says that it is not
    /// ready, so that load balancers can notice.
    pub stop_delay: Duration,
}

/// Both ports, bound and not yet serving.
pub struct Server {
    door: Arc<Door>,
    front: Listener,
    admin: Listener,
    options: ServerOptions,
    stop_delay: Duration,
}

impl Server {
    /// Binds both ports; port 0 takes a free one.
    ///
    /// # Errors
    /// If a port cannot be bound, with its address in the message.
    pub async fn bind(front: &str, admin: &str, options: ServeOptions) -> std::io::Result<Server> {
        let bind = async |address: &str| {
            Listener::bind(address)
                .await
                .map_err(|e| std::io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))
        };
        let front = bind(front).await?;
        let door = Arc::new(Door {
            router: options.router,
            client: Client::new(options.client),
            identities: Identities::new(options.manifests, options.seed),
            log: AccessLog::new(options.access_log, options.access_log_sample, options.seed),
            recorder: options.recorder,
            counts: Counts::default(),
            budget: Budget::new(options.door.max_buffered_bytes),
            connections: front.open(),
            max_connections: options.server.max_connections,
            options: options.door,
            draining: AtomicBool::new(false),
        });
        Ok(Server {
            door,
            front,
            admin: bind(admin).await?,
            options: options.server,
            stop_delay: options.stop_delay,
        })
    }

    /// The front port's address.
    pub fn front_addr(&self) -> SocketAddr {
        self.front.local_addr()
    }

    /// The admin port's address.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Serves until `stop` completes, then shuts down: unready at once, no new work after the delay, what
    /// is queued or streams goes on for the grace period, the rest is ended with 503 or cut off.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Server { door, front, admin, options, stop_delay } = self;
        let (front_stop, admin_stop) = (CancellationToken::new(), CancellationToken::new());
        let handler = {
            let door = door.clone();
            move |request, _peer| door.clone().answer(request)
        };
        let admin_handler = {
            let door = door.clone();
            move |request, _peer| admin::answer(door.clone(), request)
        };
        let serving = front.serve(options, handler, front_stop.clone().cancelled_owned());
        let probing = admin.serve(options, admin_handler, admin_stop.clone().cancelled_owned());
        let ending = async {
            stop.await;
            door.draining.store(true, Ordering::Release);
            tokio::time::sleep(stop_delay).await;
            door.router.drain();
            front_stop.cancel();
            // What still waits a little before the cut-off is answered instead of cut off.
            tokio::time::sleep(options.grace.mul_f64(0.9)).await;
            door.router.close();
        };
        let served = async {
            let served = tokio::select! {
                served = serving => served,
                () = async { ending.await; std::future::pending().await } => unreachable!("never completes"),
            };
            tracing::info!(
                connections = served.connections,
                cut_off = served.cut_off,
                "the front port is closed"
            );
            door.router.close();
            admin_stop.cancel();
        };
        let sweeping = async {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                door.client.sweep();
            }
        };
        tokio::select! {
            _ = async { tokio::join!(served, probing) } => {}
            () = sweeping => unreachable!("never completes"),
        }
    }
}
