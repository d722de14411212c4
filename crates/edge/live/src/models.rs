//! Which models the endpoints serve, as their `/v1/models` lists them, adapters included.
//!
//! A request for a model that nobody serves fails at whichever engine it is sent to, after it has waited
//! in the queue; the lists let the door answer it at once, and always alike. They are read again every
//! while, when endpoints come or go, and soon after somebody asked for a model that is not on them: an
//! adapter may just have been loaded.

use crate::endpoints::Upstream;
use crate::router::Router;
use forebay_kernel::EndpointId;
use forebay_net::Client;
use forebay_wire::show::shown;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::RwLock;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How often lists are read.
const EVERY: Duration = Duration::from_secs(30);
/// The least time between two readings, and the time to the next one while some list is not known.
const SOON: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 4 << 20;

/// What is known of the models.
#[derive(Debug, Default)]
pub struct Models {
    /// All models of all endpoints; `None` while some endpoint's list is not known.
    all: RwLock<Option<Arc<HashSet<String>>>>,
    /// Those that some endpoint lists as an adapter of another model.
    adapters: RwLock<Arc<HashSet<String>>>,
    wanted: Notify,
}

impl Models {
    /// Whether it is certain that no endpoint serves the model.
    pub fn nobody_serves(&self, model: &str) -> bool {
        let nobody = self.all.read().as_ref().is_some_and(|all| !all.contains(model));
        if nobody {
            self.wanted.notify_one();
        }
        nobody
    }

    /// Whether some endpoint lists the model as an adapter (LoRA).
    pub fn is_adapter(&self, model: &str) -> bool {
        self.adapters.read().contains(model)
    }

    /// How many different models there are; `None` while some list is not known.
    pub fn count(&self) -> Option<usize> {
        self.all.read().as_ref().map(|all| all.len())
    }

    /// Forgets everything: an endpoint has come whose list is not known.
    pub(crate) fn unknown(&self) {
        *self.all.write() = None;
        self.wanted.notify_one();
    }

    /// An endpoint has gone.
    pub(crate) fn look_again(&self) {
        self.wanted.notify_one();
    }

    fn set(&self, known: Option<HashSet<String>>) {
        *self.all.write() = known.map(Arc::new);
    }
}

#[derive(Deserialize)]
struct List {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    /// The base model of an adapter.
    parent: Option<String>,
}

/// One endpoint's models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Served {
    all: BTreeSet<String>,
    /// Those that are no adapters.
    base: BTreeSet<String>,
}

fn read(text: &[u8]) -> Option<Served> {
    let list: List = serde_json::from_slice(text).ok()?;
    let base = list.data.iter().filter(|e| e.parent.is_none()).map(|e| e.id.clone()).collect();
    Some(Served { base, all: list.data.into_iter().map(|e| e.id).collect() })
}

/// Reads lists until the future is dropped.
pub async fn run(router: Arc<Router>, client: Arc<Client>) {
    let mut lists: BTreeMap<EndpointId, Served> = BTreeMap::new();
    let mut told = String::new();
    loop {
        let endpoints = router.endpoints().all();
        lists.retain(|id, _| endpoints.iter().any(|u| u.id == *id));
        let mut asking: FuturesUnordered<_> = endpoints.iter().map(|u| ask(&client, u)).collect();
        while let Some((id, served)) = asking.next().await {
            // An endpoint that does not answer serves, as far as anybody knows, what it served before.
            if let Some(served) = served {
                lists.insert(id, served);
            }
        }
        drop(asking);
        // Endpoints that have come in the meantime make it unknown again.
        let now = router.endpoints().all();
        let complete = !now.is_empty() && now.iter().all(|u| lists.contains_key(&u.id));
        let union = || lists.values().flat_map(|s| s.all.iter().cloned()).collect();
        router.models().set(complete.then(union));
        let adapters = lists.values().flat_map(|s| s.all.difference(&s.base).cloned()).collect();
        *router.models().adapters.write() = Arc::new(adapters);
        tell_mix(&now, &lists, &mut told);
        let pause = if complete { EVERY } else { SOON };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = async {
                tokio::time::sleep(SOON).await;
                router.models().wanted.notified().await;
            } => {}
        }
    }
}

async fn ask(client: &Client, upstream: &Upstream) -> (EndpointId, Option<Served>) {
    let answer = client.get(&upstream.authority, "/v1/models", TIMEOUT, MAX_BYTES).await;
    (upstream.id, answer.ok().and_then(|text| read(&text)))
}

/// Warns when endpoints serve different base models: requests go to any of them, so some would fail at
/// random. Each state is told once.
fn tell_mix(endpoints: &[Arc<Upstream>], lists: &BTreeMap<EndpointId, Served>, told: &mut String) {
    let mut groups: BTreeMap<&BTreeSet<String>, Vec<&str>> = BTreeMap::new();
    for u in endpoints {
        if let Some(served) = lists.get(&u.id) {
            groups.entry(&served.base).or_default().push(&u.spec.name);
        }
    }
    let names =
        |set: &BTreeSet<String>| set.iter().map(|m| shown(m).to_string()).collect::<Vec<_>>().join(", ");
    let lines: Vec<String> =
        groups.iter().map(|(base, who)| format!("{} serve(s) {}", who.join(", "), names(base))).collect();
    let state = if groups.len() > 1 { lines.join("; ") } else { String::new() };
    if !state.is_empty() && state != *told {
        tracing::warn!(
            "endpoints of one pool serve different models, and a request may go to any of them: {state}"
        );
    }
    *told = state;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_adapters_apart() {
        let text = br#"{"object":"list","data":[{"id":"base","root":"base","parent":null,"x":1},
            {"id":"lora","parent":"base"},{"id":"alias"}]}"#;
        let served = read(text).unwrap();
        assert_eq!(served.all.iter().collect::<Vec<_>>(), ["alias", "base", "lora"]);
        assert_eq!(served.base.iter().collect::<Vec<_>>(), ["alias", "base"]);
        assert_eq!(read(b"{}"), None);
        assert_eq!(read(b"not found"), None);
    }

    #[test]
    fn nothing_is_certain_before_all_lists_are_known() {
        let models = Models::default();
        assert!(!models.nobody_serves("m"));
        models.set(Some(HashSet::from(["m".to_owned()])));
        assert!(models.nobody_serves("n") && !models.nobody_serves("m"));
        assert_eq!(models.count(), Some(1));
        models.unknown();
        assert!(!models.nobody_serves("n"));
    }
}
