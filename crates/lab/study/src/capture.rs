//! A cluster file from what live servers tell of themselves, with a word on every value about where it comes
//! from, and on what nobody tells.

use forebay_engine::ModelConfig;
use forebay_wire::prom::{Sample, visit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What one server answered.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Where it is, for comments.
    pub target: String,
    /// The body of `/version`.
    pub version: Option<String>,
    /// The body of `/v1/models`.
    pub models: Option<String>,
    /// The body of `/metrics`.
    pub metrics: Option<Vec<u8>>,
}

/// What they say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The release of vLLM.
    pub version: Option<String>,
    /// The base model's name and where it was loaded from.
    pub model: Option<(String, String)>,
    /// Names of adapters.
    pub adapters: Vec<String>,
    /// The model's `config.json` with where it was found, if it could be read here.
    pub config: Option<(String, String)>,
    /// Longest prompt and answer together.
    pub max_model_len: Option<u64>,
    /// The labels of `vllm:cache_config_info`.
    pub cache: BTreeMap<String, String>,
    /// Engines behind the server: data parallel ranks.
    pub engines: usize,
    /// What it has done so far.
    pub steps: Steps,
}

/// Sums of a server's steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// Steps.
    pub count: f64,
    /// Tokens in them.
    pub tokens: f64,
    /// The least bound of a bucket under which all steps lie, in tokens.
    pub most: Option<f64>,
    /// Times between tokens: how many, and their sum in seconds.
    pub gaps: (f64, f64),
    /// Prompt tokens that were looked for in the prefix cache, and found.
    pub prefix: (f64, f64),
    /// Preemptions.
    pub preemptions: f64,
}

/// What the operator says because no server does.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The GPU.
    pub hardware: Option<String>,
    /// GPUs per server.
    pub tensor_parallel: Option<u32>,
    /// vLLM's `--max-num-seqs`.
    pub max_num_seqs: Option<u32>,
    /// vLLM's `--max-num-batched-tokens`.
    pub max_num_batched_tokens: Option<u32>,
}

impl Facts {
    /// Reads answers. What is missing or cannot be read is not known.
    pub fn read(answers: &Answers) -> Facts {
        let json = |text: &Option<String>| -> Value {
            text.as_deref().and_then(|t| serde_json::from_str(t).ok()).unwrap_or(Value::Null)
        };
        let mut facts = Facts {
            version: json(&answers.version)["version"].as_str().map(str::to_owned),
            ..Facts::default()
        };
        for m in json(&answers.models)["data"].as_array().into_iter().flatten() {
            let text = |key: &str| m[key].as_str().unwrap_or_default().to_owned();
            if m["parent"].is_string() {
                facts.adapters.push(text("id"));
            } else if facts.model.is_none() {
                facts.model = Some((text("id"), text("root")));
                facts.max_model_len = m["max_model_len"].as_u64();
            }
        }
        if let Some(text) = &answers.metrics {
            facts.metrics(text);
        }
        facts
    }

    fn metrics(&mut self, text: &[u8]) {
        let mut buckets: BTreeMap<u64, f64> = BTreeMap::new();
        let mut engines = 0;
        let steps = &mut self.steps;
        let cache = &mut self.cache;
        let take = |s: Sample<'_>| match s.name {
            "vllm:cache_config_info" => {
                engines += 1;
                if engines == 1 {
                    for name in LABELS {
                        let value = s.labels.get(name).filter(|v| *v != "None");
                        cache.extend(value.map(|v| ((*name).to_owned(), v.into_owned())));
                    }
                }
            }
            "vllm:iteration_tokens_total_bucket" => {
                let bound = s.labels.get("le").and_then(|le| le.parse::<f64>().ok());
                if let Some(bound) = bound.filter(|b| b.is_finite()) {
                    *buckets.entry(bound as u64).or_default() += s.value;
                }
            }
            "vllm:iteration_tokens_total_count" => steps.count += s.value,
            "vllm:iteration_tokens_total_sum" => steps.tokens += s.value,
            "vllm:inter_token_latency_seconds_count" => steps.gaps.0 += s.value,
            "vllm:inter_token_latency_seconds_sum" => steps.gaps.1 += s.value,
            "vllm:prefix_cache_queries_total" => steps.prefix.0 += s.value,
            "vllm:prefix_cache_hits_total" => steps.prefix.1 += s.value,
            "vllm:num_preemptions_total" => steps.preemptions += s.value,
            _ => {}
        };
        visit(text, |name| name.starts_with("vllm:"), take);
        self.engines = engines;
        let all = self.steps.count;
        self.steps.most = buckets.iter().find(|(_, n)| all > 0.0 && **n >= all).map(|(b, _)| *b as f64);
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.cache.get(name).map(String::as_str)
    }

    /// The catalogue's name of the model, if it has it.
    fn known_model(&self) -> Option<&'static str> {
        let (id, root) = self.model.as_ref()?;
        let last = |s: &str| s.rsplit('/').next().unwrap_or_default().to_owned();
        let names = [root.clone(), id.clone(), last(root), last(id)];
        names.iter().find_map(|n| ModelConfig::find(n).ok()).map(|m| m.name.as_ref())
    }
}

/// Labels of `vllm:cache_config_info` that are used.
const LABELS: &[&str] = &[
    "block_size",
    "num_gpu_blocks",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "cache_dtype",
    "kv_cache_memory_bytes",
];

/// A line of the file: the field and where its value comes from, or what is missing.
struct Line {
    field: String,
    comment: String,
}

fn line(field: impl Into<String>, comment: impl Into<String>) -> Line {
    Line { field: field.into(), comment: comment.into() }
}

/// A cluster file for these servers. What no server tells stands in it as a comment, and in the list that comes
/// with it, each a sentence without a full stop.
pub fn cluster_file(servers: &[(String, Facts)], told: &Told) -> (String, Vec<String>) {
    let mut missing: Vec<String> = Vec::new();
    let mut text =
        "# Captured from live servers. Each value says where it comes from.\nversion: 1\n".to_owned();
    let _ = writeln!(text, "name: captured\nengines:");
    // Equal servers are one entry, so that a pool is as short as it is dull.
    let mut groups: Vec<(Vec<&str>, &Facts, Vec<Line>)> = Vec::new();
    for (target, facts) in servers {
        let lines = engine(facts, told, &mut missing);
        let same = |g: &&mut (Vec<&str>, &Facts, Vec<Line>)| {
            g.2.iter().map(|l| &l.field).eq(lines.iter().map(|l| &l.field))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.0.push(target),
            None => groups.push((vec![target], facts, lines)),
        }
    }
    for (targets, facts, lines) in &groups {
        let _ = writeln!(text, "  # {}", targets.join(", "));
        for said in so_far(facts) {
            let _ = writeln!(text, "  # {said}");
        }
        let _ = writeln!(text, "  - count: {}", targets.len());
        for l in lines {
            let comment = if l.comment.is_empty() { String::new() } else { format!("  # {}", l.comment) };
            let _ = writeln!(text, "    {}{comment}", l.field);
        }
    }
    text.push_str(
        "# Not told by any server: network delays and how the router scrapes. Defaults:\n\
         #   scrape: {period: 50ms, delay: 5ms, jitter: 10ms}\n#   network: {toEngine: 1ms, toClient: 1ms}\n",
    );
    missing.sort();
    missing.dedup();
    (text, missing)
}

/// What a server has done, as comments: it says how it is used, not how it is set up.
fn so_far(facts: &Facts) -> Vec<String> {
    let mut out = Vec::new();
    let s = &facts.steps;
    if !facts.adapters.is_empty() {
        out.push(format!("adapters: {} (/v1/models)", facts.adapters.join(", ")));
    }
    if s.count > 0.0 {
        let most = s.most.map_or(String::new(), |m| format!(", none over {m:.0}"));
        out.push(format!("{:.0} steps so far, {:.1} tokens each{most}", s.count, s.tokens / s.count));
    }
    if s.gaps.0 > 0.0 {
        out.push(format!("{:.2} ms between tokens on average", 1e3 * s.gaps.1 / s.gaps.0));
    }
    if s.prefix.0 > 0.0 {
        let share = 100.0 * s.prefix.1 / s.prefix.0;
        out.push(format!(
            "{share:.1} % of prompt tokens from the prefix cache, {:.0} preemptions",
            s.preemptions
        ));
    }
    out
}

fn engine(facts: &Facts, told: &Told, missing: &mut Vec<String>) -> Vec<Line> {
    let mut lines = vec![model(facts, missing)];
    lines.push(if let Some(name) = &told.hardware {
        line(format!("hardware: {name}"), "--hardware")
    } else {
        missing.push("the GPU: no server tells it; give --hardware".to_owned());
        line("# hardware: NAME", "not known: no server tells its GPU; give --hardware")
    });
    match facts.version.as_deref().map(|v| (v, forebay_engine::Version::find(v))) {
        Some((v, Ok(_))) => {
            lines.push(line(format!("vllm-version: \"{v}\""), format!("/version: {v}")));
        }
        Some((v, Err(_))) => missing.push(format!(
            "the rules of vLLM {v}: that release is not known, the newest one's hold (vllm-version)"
        )),
        None => missing.push("the release: /version did not answer, the newest one's rules hold".to_owned()),
    }
    lines.push(line("args:", ""));
    let mut all = reported(facts, missing);
    all.extend(assumed(facts, told, missing));
    lines.extend(all.into_iter().map(|l| line(format!("  {}", l.field), l.comment)));
    if facts.engines > 1 {
        missing.push(format!("a server has {} engines behind it; each entry here is one", facts.engines));
    }
    lines
}

fn model(facts: &Facts, missing: &mut Vec<String>) -> Line {
    if let Some((path, from)) = &facts.config {
        return line(format!("model-config: {}", Value::from(path.as_str())), from.clone());
    }
    match (facts.known_model(), &facts.model) {
        (Some(name), Some((_, root))) => line(format!("model: {name}"), format!("/v1/models: root {root}")),
        (_, Some((id, root))) => {
            missing.push(format!(
                "the model {id} is not in the catalogue: give its config.json with --model-config"
            ));
            let comment = format!("/v1/models: root {root}; not in the catalogue");
            line(format!("model: {}", Value::from(id.as_str())), comment)
        }
        (_, None) => {
            missing.push("the model: /v1/models did not answer".to_owned());
            line("# model: NAME", "not known: /v1/models did not answer")
        }
    }
}

/// Arguments that the server tells.
fn reported(facts: &Facts, missing: &mut Vec<String>) -> Vec<Line> {
    let mut lines = Vec::new();
    let info = "vllm:cache_config_info";
    if let Some(n) = facts.max_model_len {
        lines.push(line(format!("max-model-len: {n}"), "/v1/models: max_model_len"));
    }
    let number = |name: &str| facts.label(name).filter(|v| v.parse::<f64>().is_ok());
    if let Some(n) = number("block_size") {
        lines.push(line(format!("block-size: {n}"), format!("{info}: block_size")));
    }
    if let Some(n) = number("num_gpu_blocks") {
        let comment = format!("{info}: num_gpu_blocks, as it is");
        lines.push(line(format!("num-gpu-blocks-override: {n}"), comment));
    } else {
        missing.push(format!("KV blocks: no {info}; they are computed from the memory"));
    }
    if let Some(n) = number("gpu_memory_utilization") {
        lines.push(line(format!("gpu-memory-utilization: {n}"), format!("{info}: gpu_memory_utilization")));
    }
    if let Some(on) = facts.label("enable_prefix_caching") {
        let on = on.eq_ignore_ascii_case("true");
        lines.push(line(format!("enable-prefix-caching: {on}"), format!("{info}: enable_prefix_caching")));
    }
    lines
}

/// Arguments that only the operator knows.
fn assumed(facts: &Facts, told: &Told, missing: &mut Vec<String>) -> Vec<Line> {
    let most = facts.steps.most.map_or(String::new(), |m| format!("; no step so far had more than {m:.0}"));
    let mut lines = vec![match told.tensor_parallel {
        Some(n) => line(format!("tensor-parallel-size: {n}"), "--tensor-parallel-size"),
        None => line("# tensor-parallel-size: 1", "not told by any server; 1 is assumed"),
    }];
    for (name, value, more) in [
        ("max-num-seqs", told.max_num_seqs, ""),
        ("max-num-batched-tokens", told.max_num_batched_tokens, most.as_str()),
    ] {
        lines.push(if let Some(n) = value {
            line(format!("{name}: {n}"), format!("--{name}"))
        } else {
            missing.push(format!("{name}: no server tells it; give --{name} if it is not vLLM's default"));
            line(format!("# {name}: N"), format!("not told by any server; vLLM's default is assumed{more}"))
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_sim::Cluster;

    const METRICS: &str = r#"
vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",num_gpu_blocks="9000",num_gpu_blocks_override="None"} 1.0
vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="m"} 80.0
vllm:iteration_tokens_total_bucket{engine="0",le="2048.0",model_name="m"} 100.0
vllm:iteration_tokens_total_bucket{engine="0",le="4096.0",model_name="m"} 100.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 100.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1500.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 2.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
"#;

    fn answers(target: &str) -> Answers {
        let models = r#"{"data":[{"id":"prod","root":"Qwen/Qwen3-14B","parent":null,"max_model_len":4096},
                         {"id":"a0","root":"x","parent":"prod","max_model_len":null}]}"#;
        Answers {
            target: target.to_owned(),
            version: Some("{\"version\":\"0.32.0\"}".to_owned()),
            models: Some(models.to_owned()),
            metrics: Some(METRICS.as_bytes().to_vec()),
        }
    }

    #[test]
    fn a_config_that_could_be_read_stands_before_a_name() {
        let mut facts = Facts::read(&answers("a:1"));
        facts.config = Some(("/models/x/config.json".to_owned(), "beside the root".to_owned()));
        let (text, missing) = cluster_file(&[("a:1".to_owned(), facts)], &Told::default());
        assert!(text.contains("    model-config: \"/models/x/config.json\"  # beside the root\n"), "{text}");
        assert!(!missing.iter().any(|m| m.contains("the model")), "{missing:?}");
    }

    #[test]
    fn two_equal_servers_are_one_entry_that_is_read() {
        let told = Told { hardware: Some("h100".into()), max_num_seqs: Some(64), ..Told::default() };
        let servers: Vec<_> = ["a:1", "b:1"].map(|t| (t.to_owned(), Facts::read(&answers(t)))).into();
        assert_eq!(servers[0].1.adapters, ["a0"]);
        let (text, missing) = cluster_file(&servers, &told);
        for part in [
            "# a:1, b:1",
            "vllm-version: \"0.32.0\"  # /version: 0.32.0",
            "100 steps so far, 15.0 tokens each, none over 2048",
            "20.00 ms between tokens",
            "25.0 % of prompt tokens",
            "model: qwen3-14b  # /v1/models: root Qwen/Qwen3-14B",
            "block-size: 32  # vllm:cache_config_info: block_size",
            "# max-num-batched-tokens: N  # not told by any server",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let cluster = Cluster::read(&text, "captured.yaml").unwrap();
        assert_eq!(cluster.servers.len(), 2);
        let engine = &cluster.servers[0].engine;
        assert_eq!((engine.num_gpu_blocks, engine.max_num_seqs, engine.spec.block_size), (9000, 64, 32));
        assert_eq!(
            missing,
            [
                "max-num-batched-tokens: no server tells it; give --max-num-batched-tokens if it is not vLLM's default"
            ]
        );
    }

    #[test]
    fn a_server_that_tells_nothing_leaves_a_file_to_fill_in() {
        let (text, missing) = cluster_file(&[("a:1".into(), Facts::default())], &Told::default());
        assert!(text.contains("# model: NAME") && text.contains("# hardware: NAME"), "{text}");
        assert!(Cluster::read(&text, "c.yaml").is_err());
        assert!(missing.iter().any(|m| m.contains("GPU")) && missing.iter().any(|m| m.contains("KV blocks")));
    }

    #[test]
    fn servers_that_differ_are_entries_of_their_own() {
        let told = Told { hardware: Some("h100".into()), ..Told::default() };
        let a = Facts::read(&answers("a:1"));
        let mut b = a.clone();
        b.max_model_len = Some(8192);
        let (text, _) = cluster_file(&[("a:1".into(), a), ("b:1".into(), b)], &told);
        assert_eq!(text.matches("- count: 1").count(), 2, "{text}");
        assert_eq!(Cluster::read(&text, "c.yaml").unwrap().servers[1].engine.max_model_len, 8192);
    }
}
