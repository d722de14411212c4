//! Which metrics of an engine mean what, and reading them.
//!
//! The built-in names, the selector grammar and the choice among several matching series are those of
//! llm-d-router v0.10: the series with the newest timestamp, and the first in the text when none is newer. So of
//! several data-parallel ranks behind one port only the first counts; [`Scrape::several`] names the metrics where
//! that happened, and one port per rank is the way to see them all.

use super::text::{Sample, visit};
use std::borrow::Cow;

/// Selects a series: a metric's name and labels that must have these values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The metric's name.
    pub name: String,
    /// Labels and their values.
    pub labels: Vec<(String, String)>,
}

/// Why a selector cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name is not a metric's.
    #[error("`{0}` is not a metric selector: expected `name` or `name{{label=value,…}}`")]
    Form(String),
    /// A label pair is malformed.
    #[error("`{pair}` in the metric selector `{spec}` is not `label=value`")]
    Label {
        /// The selector.
        spec: String,
        /// The pair.
        pair: String,
    },
}

impl Spec {
    /// Reads `name` or `name{label=value,…}`; quotes around values are allowed. An empty text is no selector.
    pub fn parse(text: &str) -> Result<Option<Spec>, SpecError> {
        let whole = text.trim();
        if whole.is_empty() {
            return Ok(None);
        }
        let form = || SpecError::Form(text.to_owned());
        let (name, block) = match whole.split_once('{') {
            Some((name, rest)) => (name.trim(), rest.strip_suffix('}').ok_or_else(form)?.trim()),
            None => (whole, ""),
        };
        if !is_identifier(name, true) {
            return Err(form());
        }
        let mut labels = Vec::new();
        for pair in block.split(',').filter(|_| !block.is_empty()) {
            let bad = || SpecError::Label { spec: text.to_owned(), pair: pair.trim().to_owned() };
            let (label, value) = pair.split_once('=').ok_or_else(bad)?;
            let (label, value) = (label.trim(), value.trim());
            let bare = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
            let value = bare.unwrap_or(value);
            if !is_identifier(label, false)
                || value.contains(['"', '{', '}'])
                || (bare.is_none() && value.is_empty())
            {
                return Err(bad());
            }
            labels.push((label.to_owned(), value.to_owned()));
        }
        Ok(Some(Spec { name: name.to_owned(), labels }))
    }

    fn matches(&self, sample: &Sample<'_>) -> bool {
        self.labels.iter().all(|(name, value)| sample.labels.get(name).is_some_and(|v| v == *value))
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        for (i, (name, value)) in self.labels.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { '{' } else { ',' })?;
        }
        if self.labels.is_empty() { Ok(()) } else { f.write_str("}") }
    }
}

fn is_identifier(name: &str, colons: bool) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || (colons && b == b':'))
}

/// The metrics of one kind of engine. An empty list or `None` switches a reading off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineMap {
    /// The engine's name.
    pub name: String,
    /// Requests waiting; of several selectors the first that is found counts.
    pub waiting: Vec<Spec>,
    /// Requests running.
    pub running: Vec<Spec>,
    /// Used share of the KV cache, 0 to 1.
    pub kv: Vec<Spec>,
    /// LoRA adapters, in labels.
    pub lora: Option<Spec>,
    /// Facts about the KV cache, in labels.
    pub cache_info: Option<Spec>,
    /// The label of `cache_info` with the tokens per block.
    pub block_size_label: String,
    /// The label of `cache_info` with the number of blocks.
    pub num_blocks_label: String,
    /// Tokens per block, as a value.
    pub block_size: Option<Spec>,
    /// The number of blocks, as a value.
    pub num_blocks: Option<Spec>,
    /// Further values by a key of the user's.
    pub custom: Vec<(String, Spec)>,
}

/// Engines with built-in mappings.
pub const BUILT_IN_ENGINES: [&str; 5] = ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton"];

impl EngineMap {
    /// The built-in mapping of an engine. For vLLM the KV metric's older name is read too.
    pub fn built_in(name: &str) -> Option<EngineMap> {
        let spec = |name: &str, label: Option<(&str, &str)>| Spec {
            name: name.to_owned(),
            labels: label.map(|(n, v)| (n.to_owned(), v.to_owned())).into_iter().collect(),
        };
        let plain = |name: &str| spec(name, None);
        let mut map = EngineMap {
            name: name.to_owned(),
            block_size_label: "block_size".to_owned(),
            num_blocks_label: "num_gpu_blocks".to_owned(),
            ..EngineMap::default()
        };
        match name {
            "vllm" => {
                map.waiting = vec![plain("vllm:num_requests_waiting")];
                map.running = vec![plain("vllm:num_requests_running")];
                map.kv = vec![plain("vllm:kv_cache_usage_perc"), plain("vllm:gpu_cache_usage_perc")];
                map.lora = Some(plain("vllm:lora_requests_info"));
                map.cache_info = Some(plain("vllm:cache_config_info"));
            }
            "sglang" => {
                map.waiting = vec![plain("sglang:num_queue_reqs")];
                map.running = vec![plain("sglang:num_running_reqs")];
                map.kv = vec![plain("sglang:token_usage")];
                map.cache_info = Some(plain("sglang:cache_config_info"));
                "page_size".clone_into(&mut map.block_size_label);
                "num_pages".clone_into(&mut map.num_blocks_label);
            }
            "trtllm-serve" => {
                map.waiting = vec![plain("trtllm_num_requests_waiting")];
                map.running = vec![plain("trtllm_num_requests_running")];
                map.kv = vec![plain("trtllm_kv_cache_utilization")];
                map.block_size = Some(plain("trtllm_kv_cache_tokens_per_block"));
                map.num_blocks = Some(plain("trtllm_kv_cache_max_blocks"));
            }
            "triton-tensorrt-llm" => {
                let request = |kind| spec("nv_trt_llm_request_metrics", Some(("request_type", kind)));
                let block =
                    |kind| spec("nv_trt_llm_kv_cache_block_metrics", Some(("kv_cache_block_type", kind)));
                map.waiting = vec![request("waiting")];
                map.running = vec![request("scheduled")];
                map.kv = vec![block("fraction")];
                map.block_size = Some(block("tokens_per"));
                map.num_blocks = Some(block("max"));
            }
            "triton" => {
                map.waiting = vec![plain("nv_inference_pending_request_count")];
                map.running = vec![plain("nv_inference_exec_count")];
            }
            _ => return None,
        }
        Some(map)
    }

    fn specs(&self) -> impl Iterator<Item = &Spec> {
        [&self.waiting, &self.running, &self.kv]
            .into_iter()
            .flatten()
            .chain([&self.lora, &self.cache_info, &self.block_size, &self.num_blocks].into_iter().flatten())
            .chain(self.custom.iter().map(|(_, spec)| spec))
    }
}

/// A value read from an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Reading {
    /// The mapping has no such metric.
    Disabled,
    /// The metric was expected and is not there, or is not a finite number.
    #[default]
    Missing,
    /// The value.
    Value(f64),
}

impl Reading {
    /// The value, if there is one.
    pub fn value(self) -> Option<f64> {
        if let Reading::Value(x) = self { Some(x) } else { None }
    }
}

/// LoRA adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    /// Adapters with running requests.
    pub running: Vec<String>,
    /// Adapters with waiting requests.
    pub waiting: Vec<String>,
    /// How many may be loaded at once.
    pub max: Option<u32>,
}

/// What one scrape says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Requests waiting.
    pub waiting: Reading,
    /// Requests running.
    pub running: Reading,
    /// Used share of the KV cache, 0 to 1.
    pub kv: Reading,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// KV blocks in all.
    pub num_blocks: Option<u32>,
    /// LoRA adapters; `None` if the engine reports none, which is no failure.
    pub lora: Option<Lora>,
    /// Values of the user's own metrics, in the mapping's order.
    pub custom: Vec<Reading>,
    /// Metrics of the mapping that were not found (LoRA's excepted), by the selector tried first.
    pub missing: Vec<String>,
    /// Metrics of which several series matched and none was newer, so that the first counts.
    pub several: Vec<String>,
    /// Lines that could not be read.
    pub malformed: usize,
}

impl Scrape {
    /// Whether anything was read: only then does the reading's time move.
    pub fn any(&self) -> bool {
        [self.waiting, self.running, self.kv].iter().chain(&self.custom).any(|r| r.value().is_some())
            || self.block_size.is_some()
            || self.num_blocks.is_some()
            || self.lora.is_some()
    }
}

/// The sample chosen so far for one selector.
#[derive(Clone, Copy, Default)]
struct Chosen<'a> {
    sample: Option<Sample<'a>>,
    several: bool,
}

impl<'a> Chosen<'a> {
    fn offer(&mut self, sample: Sample<'a>, newer_by_value: bool) {
        let rank = |s: &Sample<'_>| {
            let value = if newer_by_value && s.value.is_finite() { s.value } else { 0.0 };
            (value, s.timestamp_ms.unwrap_or(0))
        };
        match &self.sample {
            Some(old) if rank(&sample) <= rank(old) => self.several |= rank(&sample) == rank(old),
            _ => *self = Chosen { sample: Some(sample), several: false },
        }
    }
}

/// Reads the metrics of a mapping from an exposition.
pub fn extract(text: &[u8], map: &EngineMap) -> Scrape {
    let specs: Vec<&Spec> = map.specs().collect();
    let mut chosen = vec![Chosen::default(); specs.len()];
    let visited = visit(
        text,
        |name| specs.iter().any(|spec| spec.name == name),
        |sample| {
            for (spec, chosen) in specs.iter().zip(&mut chosen) {
                if spec.name == sample.name && spec.matches(&sample) {
                    // A LoRA series' value is the time at which it was made.
                    let by_value = map.lora.as_ref().is_some_and(|lora| std::ptr::eq(lora, *spec));
                    chosen.offer(sample, by_value);
                }
            }
        },
    );
    let mut scrape = Scrape { malformed: visited.malformed, ..Scrape::default() };
    let mut found = Found { specs: &specs, chosen: &chosen, at: 0, scrape: &mut scrape };
    let waiting = found.reading(map.waiting.len());
    let running = found.reading(map.running.len());
    let kv = found.reading(map.kv.len());
    let lora = found.optional(map.lora.is_some(), false);
    let info = found.optional(map.cache_info.is_some(), true);
    let block_size = found.optional(map.block_size.is_some(), true);
    let num_blocks = found.optional(map.num_blocks.is_some(), true);
    let custom = map.custom.iter().map(|_| found.reading(1)).collect();
    let label = |label: &str| info.and_then(|s| s.labels.get(label)).and_then(|v| v.parse().ok());
    scrape.block_size = block_size.and_then(|s| count(s.value)).or_else(|| label(&map.block_size_label));
    scrape.num_blocks = num_blocks.and_then(|s| count(s.value)).or_else(|| label(&map.num_blocks_label));
    scrape.lora = lora.map(|s| Lora {
        running: list(s.labels.get("running_lora_adapters")),
        waiting: list(s.labels.get("waiting_lora_adapters")),
        max: s.labels.get("max_lora").and_then(|v| v.parse().ok()),
    });
    Scrape { waiting, running, kv, custom, ..scrape }
}

/// Walks the chosen samples in the order of `EngineMap::specs`.
struct Found<'s, 'a> {
    specs: &'s [&'s Spec],
    chosen: &'s [Chosen<'a>],
    at: usize,
    scrape: &'s mut Scrape,
}

impl<'a> Found<'_, 'a> {
    /// The first sample of the next `n` selectors that is fit to be used.
    fn next(&mut self, n: usize, report: bool, fit: impl Fn(&Sample<'a>) -> bool) -> Option<Sample<'a>> {
        let range = self.at..self.at + n;
        self.at += n;
        let hit = range.clone().find_map(|i| self.chosen[i].sample.filter(|s| fit(s)).map(|s| (i, s)));
        if let Some((i, _)) = hit {
            if self.chosen[i].several {
                self.scrape.several.push(self.specs[i].to_string());
            }
        } else if report && n > 0 {
            self.scrape.missing.push(self.specs[range.start].to_string());
        }
        hit.map(|(_, sample)| sample)
    }

    fn reading(&mut self, n: usize) -> Reading {
        if n == 0 {
            return Reading::Disabled;
        }
        self.next(n, true, |s| s.value.is_finite()).map_or(Reading::Missing, |s| Reading::Value(s.value))
    }

    fn optional(&mut self, enabled: bool, report: bool) -> Option<Sample<'a>> {
        self.next(usize::from(enabled), report, |_| true)
    }
}

fn count(value: f64) -> Option<u32> {
    (value >= 1.0 && value <= f64::from(u32::MAX)).then_some(value as u32)
}

fn list(value: Option<Cow<'_, str>>) -> Vec<String> {
    let value = value.unwrap_or_default();
    value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
