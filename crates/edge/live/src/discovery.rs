//! Endpoints from a file, re-read when it changes.

use crate::router::Router;
use forebay_base::Diagnostics;
use forebay_config::{FileEndpoint, read_endpoints};
use forebay_kernel::EndpointId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often a watched file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A larger file is refused (llm-d-router's limit).
const MAX_BYTES: u64 = 1 << 20;

/// Endpoints that a file has put into a router.
pub struct FileDiscovery {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
    endpoints: BTreeMap<String, (FileEndpoint, EndpointId)>,
}

/// Why a file of endpoints is not used.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{path}: the file has {found} bytes; at most {MAX_BYTES} are read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// Its contents are wrong.
    #[error("{0}")]
    Contents(Diagnostics),
}

impl FileDiscovery {
    /// For the endpoints of this file; reads nothing yet.
    pub fn new(path: impl Into<PathBuf>) -> FileDiscovery {
        FileDiscovery { path: path.into(), seen: None, endpoints: BTreeMap::new() }
    }

    /// Reads the file and brings the router's pool in line with it. Nothing changes if the file is bad.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn load(&mut self, router: &Router) -> Result<(), DiscoveryError> {
        // Before the contents: a change in between shows as another one.
        self.seen = stamp(&self.path);
        let wanted = read(&self.path)?;
        let stays = |old: &FileEndpoint, list: &[FileEndpoint]| list.contains(old);
        let gone: Vec<String> = self
            .endpoints
            .iter()
            .filter(|(_, (old, _))| !stays(old, &wanted))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some((_, id)) = self.endpoints.remove(&name) {
                router.remove_endpoint(id);
            }
        }
        for e in wanted {
            let spec = e.spec();
            if !self.endpoints.contains_key(&spec.name)
                && let Some(id) = router.add_endpoint(spec.clone(), address(&e))
            {
                self.endpoints.insert(spec.name, (e, id));
            }
        }
        Ok(())
    }

    /// Follows the file until the future is dropped.
    pub async fn watch(mut self, router: Arc<Router>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = stamp(&self.path);
            if now == self.seen || now.is_none() {
                continue;
            }
            match self.load(&router) {
                Ok(()) => {
                    let n = self.endpoints.len();
                    tracing::info!(file = %self.path.display(), endpoints = n, "endpoints read again");
                }
                Err(e) => tracing::error!(error = %e, "the endpoints stay as they are"),
            }
        }
    }
}

fn address(e: &FileEndpoint) -> SocketAddr {
    SocketAddr::V4(e.address)
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let m = std::fs::metadata(path).ok()?;
    Some((m.modified().ok()?, m.len()))
}

fn read(path: &Path) -> Result<Vec<FileEndpoint>, DiscoveryError> {
    let fail = |source| DiscoveryError::Read { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(fail)?.len();
    if found > MAX_BYTES {
        return Err(DiscoveryError::TooLarge { path: path.to_owned(), found });
    }
    let text = std::fs::read_to_string(path).map_err(fail)?;
    let (endpoints, found) = read_endpoints(&text, &path.display().to_string());
    if found.has_errors() { Err(DiscoveryError::Contents(found)) } else { Ok(endpoints) }
}
