//! The endpoints' addresses, beside what the kernel knows of them.

use forebay_kernel::{EndpointId, EndpointSpec};
use http::HeaderValue;
use parking_lot::RwLock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// One endpoint and where it listens.
#[derive(Debug)]
pub struct Upstream {
    /// The kernel's name for it.
    pub id: EndpointId,
    /// As discovered.
    pub spec: EndpointSpec,
    /// Where it listens.
    pub address: SocketAddr,
    /// The address as text, for headers, logs and the connection pool.
    pub authority: String,
    /// The same as a header's value.
    pub header: HeaderValue,
    /// Whether it took connections when last heard of.
    available: AtomicBool,
}

impl Upstream {
    /// Whether it took connections when last heard of: `false` from a refused or reset connection until a
    /// probe succeeds.
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// Sets it; whether that changed anything.
    pub(crate) fn set_available(&self, available: bool) -> bool {
        self.available.swap(available, Ordering::AcqRel) != available
    }

    pub(crate) fn new(id: EndpointId, spec: EndpointSpec, address: SocketAddr) -> Upstream {
        let authority = address.to_string();
        // Digits, dots, colons and brackets.
        let header = HeaderValue::try_from(&authority).expect("an address is a header value");
        Upstream { id, spec, address, authority, header, available: AtomicBool::new(true) }
    }
}

/// All of them. Reading never waits for a scrape or a request.
#[derive(Debug, Default)]
pub struct Endpoints {
    list: RwLock<Vec<Arc<Upstream>>>,
    changed: Notify,
}

impl Endpoints {
    pub(crate) fn add(&self, upstream: Upstream) {
        self.list.write().push(Arc::new(upstream));
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, id: EndpointId) {
        self.list.write().retain(|u| u.id != id);
        self.changed.notify_one();
    }

    /// The endpoint of this identity.
    pub fn get(&self, id: EndpointId) -> Option<Arc<Upstream>> {
        self.list.read().iter().find(|u| u.id == id).cloned()
    }

    /// All, in the order in which they came.
    pub fn all(&self) -> Vec<Arc<Upstream>> {
        self.list.read().clone()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.read().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.read().is_empty()
    }

    /// Resolves when endpoints have come or gone since the last call. One task may wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
