//! Cluster files.

mod schema;
mod timeline;

pub use schema::cluster_schema;

use crate::cluster::{Cluster, KvLink, Network, Phase, Scrape, Start};
use forebay_base::{Diagnostic, Diagnostics, Position, Span};
use forebay_document::{Content, Fields, Node, ScalarKind, decode, parse};
use forebay_engine::{EngineSpec, Hardware, ModelConfig, Scheduling, Version};
use forebay_kernel::pool::Stages;
use std::sync::Arc;

/// The most servers of one file.
const MAX_SERVERS: usize = 10_000;

const TOP: &[&str] =
    &["version", "name", "engines", "scrape", "network", "kvTransfer", "routers", "timeline", "autoscalers"];
const ENGINE: &[&str] = &[
    "count",
    "name",
    "model",
    "model-config",
    "hardware",
    "vllm-version",
    "role",
    "labels",
    "args",
    "factors",
    "start",
    "grace",
];
/// Values of the label `llm-d.ai/role` that mean something.
const ROLES: &[&str] = &["prefill", "decode", "prefill-decode", "both"];
const START: &[&str] = &["cold", "warmup", "slowdown"];
const ARGS: &[&str] = &[
    "tensor-parallel-size",
    "max-num-seqs",
    "max-num-batched-tokens",
    "block-size",
    "gpu-memory-utilization",
    "max-model-len",
    "enable-prefix-caching",
    "num-gpu-blocks-override",
    "scheduling-policy",
    "long-prefill-token-threshold",
    "async-scheduling",
    "scheduler-reserve-full-isl",
    "max-loras",
    "watermark",
];
const FACTORS: &[&str] = &[
    "compute",
    "bandwidth",
    "kv",
    "exposed",
    "link",
    "collective",
    "step",
    "layer",
    "experts",
    "sequence",
    "sampling",
    "mixed",
    "request",
];
const SCRAPE: &[&str] = &["period", "phase", "delay", "jitter"];
const NETWORK: &[&str] = &["toEngine", "toClient"];
const KV: &[&str] = &["bandwidth", "latency"];

/// Gives the text of a file that a cluster file names, or why it cannot be read.
pub type Files<'f> = dyn FnMut(&str) -> Result<String, String> + 'f;

impl Cluster {
    /// Reads a cluster file, YAML or JSON, that names no other file. `file` is the name for messages.
    ///
    /// # Errors
    /// Everything that is wrong with it, in the order of the text.
    pub fn read(text: &str, file: &str) -> Result<Cluster, Diagnostics> {
        Cluster::read_with(text, file, &mut |_| Err("files are not read here".to_owned()))
    }

    /// Reads a cluster file. `files` gives the models' `config.json` files that it names.
    ///
    /// # Errors
    /// As [`Cluster::read`].
    pub fn read_with(text: &str, file: &str, files: &mut Files<'_>) -> Result<Cluster, Diagnostics> {
        let mut found = Diagnostics::default();
        let documents = parse(text, &mut found);
        Cluster::read_tree(&documents, found, file, files)
    }

    /// As [`Cluster::read_with`], from a text that has been read into trees already, with what was `found`
    /// there.
    ///
    /// # Errors
    /// As [`Cluster::read`].
    pub fn read_tree(
        documents: &[Node],
        mut found: Diagnostics,
        file: &str,
        files: &mut Files<'_>,
    ) -> Result<Cluster, Diagnostics> {
        let cluster = documents.first().and_then(|root| cluster(root, files, &mut found));
        if documents.is_empty() && !found.has_errors() {
            found.push(Diagnostic::error(Position::default(), "", "the text is empty").expected("a cluster"));
        }
        found.finish(file);
        match cluster {
            Some(cluster) if !found.has_errors() => Ok(cluster),
            _ => Err(found),
        }
    }
}

/// A field's value, if it is there.
fn with<T>(
    f: &Fields<'_>,
    name: &str,
    found: &mut Diagnostics,
    read: impl FnOnce(&Node, &str, &mut Diagnostics) -> Option<T>,
) -> Option<T> {
    f.get(name).and_then(|n| read(n, &f.child(name), found))
}

/// A whole number in a range.
fn count(f: &Fields<'_>, name: &str, from: u32, to: u32, found: &mut Diagnostics) -> Option<u32> {
    let node = f.get(name)?;
    let n = decode::int(node, &f.child(name), found)?;
    let n_in = u32::try_from(n).ok().filter(|n| (from..=to).contains(n));
    if n_in.is_none() {
        let expected = if to == u32::MAX { format!("at least {from}") } else { format!("{from} to {to}") };
        found.push(Diagnostic::error(node.at, f.child(name), format!("found {n}")).expected(expected));
    }
    n_in
}

fn span(f: &Fields<'_>, name: &str, found: &mut Diagnostics) -> Option<Span> {
    let node = f.get(name)?;
    let ns = decode::duration(node, &f.child(name), found)?;
    let span = u64::try_from(ns).ok().map(Span);
    if span.is_none() {
        found.push(Diagnostic::error(node.at, f.child(name), "a length of time cannot be negative"));
    }
    span
}

/// One of a few words.
fn word<T: Copy>(node: &Node, path: &str, words: &[(&str, T)], found: &mut Diagnostics) -> Option<T> {
    let text = decode::text(node, path, found)?;
    let hit = words.iter().find(|(w, _)| *w == text).map(|(_, t)| *t);
    if hit.is_none() {
        let names = || words.iter().map(|(w, _)| *w);
        let d = Diagnostic::error(node.at, path, format!("found {text:?}"));
        let all = format!("one of {}", names().collect::<Vec<_>>().join(", "));
        found.push(d.expected(all).nearest_of(text, names()));
    }
    hit
}

fn cluster(root: &Node, files: &mut Files<'_>, found: &mut Diagnostics) -> Option<Cluster> {
    let f = Fields::open(root, "", TOP, found)?;
    let version = f.require("version", found)?;
    if decode::int(version, "version", found)? != 1 {
        found.push(Diagnostic::error(version.at, "version", "this version is not known").expected("1"));
        return None;
    }
    let name = with(&f, "name", found, |n, p, d| decode::text(n, p, d).map(str::to_owned));
    let mut c = Cluster::new(name.unwrap_or_else(|| "cluster".to_owned()), &[]);
    if let Some(list) = f.require("engines", found) {
        let items = decode::list(list, "engines", found).unwrap_or_default();
        if items.is_empty() {
            found.push(Diagnostic::error(list.at, "engines", "there are none").expected("at least one"));
        }
        for (i, item) in items.iter().enumerate() {
            engines(item, &decode::item("engines", i), &mut c, files, found);
        }
    }
    c.scrape = f.get("scrape").map_or(Scrape::DEFAULT, |n| scrape(n, found));
    c.network = f.get("network").map_or(Network::DEFAULT, |n| network(n, found));
    c.kv = f.get("kvTransfer").map_or(KvLink::DEFAULT, |n| kv_link(n, found));
    c.routers = count(&f, "routers", 1, 64, found).unwrap_or(1);
    timeline::read(&f, &mut c, found);
    if c.servers.len() > MAX_SERVERS {
        let at = f.key("engines").unwrap_or(f.at);
        let message = format!("{} engines, those in reserve for scaling included", c.servers.len());
        found.push(Diagnostic::error(at, "engines", message).expected(format!("at most {MAX_SERVERS}")));
    }
    Some(c)
}

fn scrape(node: &Node, found: &mut Diagnostics) -> Scrape {
    let mut s = Scrape::DEFAULT;
    let Some(f) = Fields::open(node, "scrape", SCRAPE, found) else { return s };
    s.period = span(&f, "period", found).unwrap_or(s.period);
    if s.period < Span::millis(1) {
        let at = f.key("period").unwrap_or(f.at);
        found.push(
            Diagnostic::error(at, "scrape.period", format!("found {}", s.period)).expected("1ms or more"),
        );
    }
    s.delay = span(&f, "delay", found).unwrap_or(s.delay);
    s.jitter = span(&f, "jitter", found).unwrap_or(s.jitter);
    if f.get("phase").is_some_and(|n| n.as_text() != Some("random")) {
        s.phase = span(&f, "phase", found).map_or(s.phase, Phase::Fixed);
    }
    s
}

fn network(node: &Node, found: &mut Diagnostics) -> Network {
    let mut n = Network::DEFAULT;
    let Some(f) = Fields::open(node, "network", NETWORK, found) else { return n };
    n.to_engine = span(&f, "toEngine", found).unwrap_or(n.to_engine);
    n.to_client = span(&f, "toClient", found).unwrap_or(n.to_client);
    n
}

fn kv_link(node: &Node, found: &mut Diagnostics) -> KvLink {
    let mut link = KvLink::DEFAULT;
    let Some(f) = Fields::open(node, "kvTransfer", KV, found) else { return link };
    link.latency = span(&f, "latency", found).unwrap_or(link.latency);
    if let Some(node) = f.get("bandwidth")
        && let Some(bytes) = decode::quantity(node, &f.child("bandwidth"), found)
    {
        link.bandwidth = u64::try_from(bytes).unwrap_or(0);
        if link.bandwidth == 0 {
            let d = Diagnostic::error(node.at, f.child("bandwidth"), format!("found {bytes}"));
            found.push(d.expected("bytes per second above 0, such as 25G"));
        }
    }
    link
}

/// How servers come up.
fn start(node: &Node, path: &str, found: &mut Diagnostics) -> Start {
    let mut s = Start::DEFAULT;
    let Some(f) = Fields::open(node, path, START, found) else { return s };
    s.cold = span(&f, "cold", found).unwrap_or(s.cold);
    s.warmup = span(&f, "warmup", found).unwrap_or(s.warmup);
    s.slowdown_permille = slowdown(&f, "slowdown", found).unwrap_or(s.slowdown_permille);
    if f.get("warmup").is_some() != f.get("slowdown").is_some() {
        let d = Diagnostic::error(f.at, path, "warmup and slowdown mean nothing without each other");
        found.push(d.expected("both, such as {warmup: 30s, slowdown: 2}"));
    }
    s
}

/// How many times as long steps take, in thousandths.
fn slowdown(f: &Fields<'_>, name: &str, found: &mut Diagnostics) -> Option<u32> {
    let node = f.get(name)?;
    let times = decode::float(node, &f.child(name), found)?;
    if (0.01..=1000.0).contains(&times) {
        return Some((times * 1000.0).round() as u32);
    }
    let d = Diagnostic::error(node.at, f.child(name), format!("found {times}"));
    found.push(d.expected("0.01 to 1000: how many times as long steps take"));
    None
}

/// Who an entry of `engines` is about, before its arguments: model, hardware, release.
fn kind(f: &Fields<'_>, files: &mut Files<'_>, found: &mut Diagnostics) -> Option<EngineSpec> {
    let place = |key: &str, d: Diagnostics, found: &mut Diagnostics| {
        found.0.extend(d.0.into_iter().map(|mut d| {
            (d.at, d.path) = (f.get(key).map_or(f.at, |n| n.at), f.child(key));
            d
        }));
    };
    let told = with(f, "model", found, |n, p, d| decode::text(n, p, d).map(str::to_owned));
    let file = with(f, "model-config", found, |n, p, d| decode::text(n, p, d).map(str::to_owned));
    let model = match (told, file) {
        (_, Some(file)) => {
            let text = files(&file);
            let wrong = |e: String| {
                Diagnostics(vec![Diagnostic::error(Position::default(), "", format!("{file:?}: {e}"))])
            };
            // What is wrong inside that file has a place in it.
            match text.map_err(wrong).map(|text| ModelConfig::read(&text, &file, &file)) {
                Ok(Ok(model)) => Some(model),
                Ok(Err(inside)) => {
                    found.0.extend(inside.0);
                    None
                }
                Err(d) => {
                    place("model-config", d, found);
                    None
                }
            }
        }
        (Some(name), None) => ModelConfig::find(&name).map_err(|d| place("model", d, found)).ok().cloned(),
        (None, None) => {
            // Says what is missing.
            f.require("model", found).and(None)
        }
    };
    let hardware = f.require("hardware", found).and_then(|n| decode::text(n, &f.child("hardware"), found));
    let hardware = hardware.and_then(|h| Hardware::find(h).map_err(|d| place("hardware", d, found)).ok());
    let version = match f.get("vllm-version") {
        None => Some(Version::NEWEST),
        Some(node) => {
            // `0.20` without quotes is a number, but not `0.2`.
            let text = match &node.content {
                Content::Scalar(s) if matches!(s.kind, ScalarKind::Float(_)) => Some(&*s.text),
                _ => decode::text(node, &f.child("vllm-version"), found),
            };
            text.and_then(|t| Version::find(t).map_err(|d| place("vllm-version", d, found)).ok())
        }
    };
    Some(EngineSpec::with_version(&model?, hardware?, version?))
}

/// One entry of `engines`: so many equal servers.
fn engines(
    node: &Node,
    path: &str,
    cluster: &mut Cluster,
    files: &mut Files<'_>,
    found: &mut Diagnostics,
) -> Option<()> {
    let f = Fields::open(node, path, ENGINE, found)?;
    let n = count(&f, "count", 1, MAX_SERVERS as u32, found).unwrap_or(1);
    let name = with(&f, "name", found, |n, p, d| decode::text(n, p, d).map(str::to_owned));
    let mut spec = kind(&f, files, found)?;
    if let Some(node) = f.get("args") {
        args(node, &f.child("args"), &mut spec, found);
    }
    if let Some(node) = f.get("factors") {
        factors(node, &f.child("factors"), &mut spec, found);
    }
    let engine = match spec.resolve() {
        Ok(resolved) => Arc::new(resolved),
        Err(d) => {
            for mut d in d.0 {
                let key = d.path.split('.').next().unwrap_or_default();
                let args = f.get("args").and_then(|a| a.get(key));
                let place = args.or_else(|| f.get(key)).map_or(f.at, |n| n.at);
                (d.at, d.path) = (place, f.child(&d.path));
                found.push(d);
            }
            return None;
        }
    };
    let labels = labels(&f, found);
    let hardware = f.get("hardware").and_then(Node::as_text);
    let name = name.or_else(|| hardware.map(str::to_owned)).unwrap_or_default();
    let group = cluster.add(&name, n, &engine, &labels);
    let g = &mut cluster.groups[group as usize];
    g.start = f.get("start").map_or(Start::DEFAULT, |n| start(n, &f.child("start"), found));
    g.grace = span(&f, "grace", found);
    Some(())
}

/// Labels of the servers as endpoints, the role among them.
fn labels(f: &Fields<'_>, found: &mut Diagnostics) -> Vec<(String, String)> {
    let mut out = Vec::new();
    if let Some(node) = f.get("labels")
        && let Some(all) = Fields::open_any(node, &f.child("labels"), found)
    {
        for e in all.entries() {
            let value = decode::text(&e.value, &all.child(&e.key), found);
            out.extend(value.map(|v| (e.key.clone(), v.to_owned())));
        }
    }
    let role = |n: &Node, p: &str, d: &mut Diagnostics| {
        let roles: Vec<(&str, &str)> = ROLES.iter().map(|r| (*r, *r)).collect();
        word(n, p, &roles, d).map(str::to_owned)
    };
    if let Some(role) = with(f, "role", found, role) {
        out.retain(|(key, _)| key != Stages::LABEL);
        out.push((Stages::LABEL.to_owned(), role));
    }
    out.sort();
    out
}

fn args(node: &Node, path: &str, spec: &mut EngineSpec, found: &mut Diagnostics) -> Option<()> {
    let f = Fields::open(node, path, ARGS, found)?;
    let any = |name: &str, found: &mut Diagnostics| count(&f, name, 0, u32::MAX, found);
    spec.tp = any("tensor-parallel-size", found).unwrap_or(spec.tp);
    spec.max_num_seqs = any("max-num-seqs", found).or(spec.max_num_seqs);
    spec.max_num_batched_tokens = any("max-num-batched-tokens", found).or(spec.max_num_batched_tokens);
    spec.max_model_len = any("max-model-len", found).or(spec.max_model_len);
    spec.num_gpu_blocks_override = any("num-gpu-blocks-override", found).or(spec.num_gpu_blocks_override);
    spec.block_size = any("block-size", found).unwrap_or(spec.block_size);
    spec.long_prefill_token_threshold =
        any("long-prefill-token-threshold", found).unwrap_or(spec.long_prefill_token_threshold);
    spec.gpu_memory_utilization =
        with(&f, "gpu-memory-utilization", found, decode::float).unwrap_or(spec.gpu_memory_utilization);
    spec.prefix_caching =
        with(&f, "enable-prefix-caching", found, decode::bool).unwrap_or(spec.prefix_caching);
    spec.async_scheduling = with(&f, "async-scheduling", found, decode::bool).or(spec.async_scheduling);
    spec.reserve_full_prompt =
        with(&f, "scheduler-reserve-full-isl", found, decode::bool).or(spec.reserve_full_prompt);
    spec.max_loras = any("max-loras", found).or(spec.max_loras);
    spec.watermark = with(&f, "watermark", found, decode::float).unwrap_or(spec.watermark);
    let policies = [("fcfs", Scheduling::Fcfs), ("priority", Scheduling::Priority)];
    if let Some(policy) = with(&f, "scheduling-policy", found, |n, p, d| word(n, p, &policies, d)) {
        spec.scheduling = policy;
    }
    // Prompts carry the hashes of 16-token blocks.
    if let Some(node) = f.get("block-size").filter(|_| !spec.block_size.is_multiple_of(16)) {
        let d = Diagnostic::error(node.at, f.child("block-size"), format!("found {}", spec.block_size));
        found.push(d.expected("a multiple of 16"));
    }
    Some(())
}

fn factors(node: &Node, path: &str, spec: &mut EngineSpec, found: &mut Diagnostics) -> Option<()> {
    let f = Fields::open(node, path, FACTORS, found)?;
    let to = &mut spec.hardware.factors;
    for (name, share) in [
        ("compute", &mut to.compute),
        ("bandwidth", &mut to.bandwidth),
        ("kv", &mut to.kv),
        ("exposed", &mut to.exposed),
        ("link", &mut to.link),
    ] {
        *share = with(&f, name, found, decode::float).unwrap_or(*share);
    }
    for (name, time) in [
        ("collective", &mut to.collective),
        ("step", &mut to.step),
        ("layer", &mut to.layer),
        ("experts", &mut to.experts),
        ("sequence", &mut to.sequence),
        ("sampling", &mut to.sampling),
        ("mixed", &mut to.mixed),
        ("request", &mut to.request),
    ] {
        *time = span(&f, name, found).unwrap_or(*time);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Change;

    const GOOD: &str = "
version: 1
name: two
engines:
  - {count: 2, model: qwen3-14b, hardware: h100, args: {max-num-seqs: 256, max-num-batched-tokens: 2048}}
  - {model: qwen3-14b, hardware: a100, factors: {compute: 0.5, step: 3ms}}
scrape: {period: 100ms, phase: 10ms}
network: {toEngine: 2ms}
timeline:
  - {at: 60s, engine: h100-1, change: fail}
  - {at: 30s, engine: a100-2, change: leave}
";

    #[test]
    fn a_file_is_read() {
        let c = Cluster::read(GOOD, "c.yaml").unwrap();
        let names: Vec<&str> = c.servers.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["h100-0", "h100-1", "a100-2"]);
        assert_eq!(c.servers[0].engine.max_num_seqs, 256);
        assert_eq!(c.servers[2].engine.spec.hardware.factors.step, Span::millis(3));
        assert_eq!(
            c.scrape,
            Scrape { period: Span::millis(100), phase: Phase::Fixed(Span::millis(10)), ..Scrape::DEFAULT }
        );
        assert_eq!((c.network.to_engine, c.network.to_client), (Span::millis(2), Network::DEFAULT.to_client));
        let changes: Vec<_> =
            c.incidents.iter().map(|i| (i.at.0 / 1_000_000_000, i.server, i.change)).collect();
        assert_eq!(changes, [(30, 2, Change::Leave), (60, 1, Change::Fail)]);
    }

    #[test]
    fn a_release_brings_its_defaults_into_a_file() {
        let config = r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
        let text = "
version: 1
engines:
  - {model: qwen3-14b, hardware: h100, vllm-version: 0.20}
  - {model: qwen3-14b, hardware: h100, vllm-version: 0.13.0, args: {async-scheduling: true}}
  - {model-config: own/config.json, hardware: h100, args: {watermark: 0.01}}
";
        let mut asked = Vec::new();
        let mut files = |name: &str| {
            asked.push(name.to_owned());
            Ok(config.to_owned())
        };
        let c = Cluster::read_with(text, "c.yaml", &mut files).unwrap();
        assert_eq!(asked, ["own/config.json"]);
        let engines: Vec<_> = c.servers.iter().map(|s| &s.engine).collect();
        assert_eq!(engines[0].spec.version.to_string(), "0.20");
        assert_eq!(
            (engines[0].spec.gpu_memory_utilization, engines[1].spec.gpu_memory_utilization),
            (0.92, 0.9)
        );
        assert!(engines[0].reserve_full_prompt && !engines[1].reserve_full_prompt);
        assert!(engines[1].async_scheduling);
        assert_eq!(engines[2].spec.model.name, "own/config.json");
        assert_eq!(engines[2].watermark_blocks, engines[2].num_gpu_blocks / 100);

        let text = "
version: 1
engines:
  - {model: qwen3-14b, hardware: h100, vllm-version: 0.33}
  - {model: qwen3-14b, hardware: h100, vllm-version: 0.15, args: {watermark: 0.01}}
  - {model-config: none.json, hardware: h100}
  - {hardware: h100}
";
        let all = Cluster::read(text, "c.yaml").unwrap_err().to_string();
        for part in [
            "c.yaml:4:54: engines[0].vllm-version: unknown vLLM release \"0.33\"; expected 0.11 to 0.32",
            "c.yaml:5:78: engines[1].watermark: is set, which vLLM 0.15 does not know; expected vLLM 0.24",
            "engines[2].model-config: \"none.json\": files are not read here",
            "engines[3].model: the field is missing",
        ] {
            assert!(all.contains(part), "{part}\n{all}");
        }
    }

    #[test]
    fn everything_wrong_shows_at_once_with_place_and_nearest_name() {
        let text = "
version: 1
engines:
  - {count: 0, model: qwen3-14, hardware: h100}
  - {model: qwen3-14b, hardware: h100, args: {max-num-seq: 256, block-size: 24, gpu-memory-utilization: 2}}
scrapes: {}
timeline: [{at: 1s, engine: h100-9, change: die}]
";
        let found = Cluster::read(text, "c.yaml").unwrap_err();
        let lines: Vec<String> = found.0.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 8, "{lines:#?}");
        let all = lines.join("\n");
        for part in [
            "c.yaml:4:13: engines[0].count: found 0",
            "did you mean \"qwen3-14b\"",
            "did you mean \"max-num-seqs\"",
            "block-size: found 24; expected a multiple of 16",
            "gpu-memory-utilization: is 2",
            "did you mean \"scrape\"",
            "change: found \"die\"; expected one of fail, leave, drain, join, slow, mute, unmute",
            "\"h100-9\" is no engine",
        ] {
            assert!(all.contains(part), "{part}\n{all}");
        }
    }

    #[test]
    fn lists_of_servers_are_read() {
        let c = Cluster::parse("2xh100,a100", "qwen3-14b", "--engines", |s| s.block_size = 32).unwrap();
        let names: Vec<&str> = c.servers.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["h100-0", "h100-1", "a100-2"]);
        assert_eq!(c.servers[1].engine.spec.block_size, 32);
        for wrong in ["0xh100", "2xh10", "", "axb"] {
            assert!(Cluster::parse(wrong, "qwen3-14b", "--engines", |_| {}).is_err(), "{wrong}");
        }
    }
}
