//! Which metrics to read from an endpoint: the mapping of its engine, from the configuration or built in.

use forebay_kernel::plugin::{Value, Values};
use forebay_wire::prom::{BUILT_IN_ENGINES, EngineMap, Spec};
use std::sync::Arc;

/// The label that older deployments use for the engine.
const LEGACY_LABEL: &str = "inference.networking.k8s.io/engine-type";

/// All mappings, and how an endpoint finds its own.
#[derive(Clone, Debug)]
pub struct Engines {
    label: String,
    default: String,
    maps: Vec<Arc<EngineMap>>,
}

impl Default for Engines {
    fn default() -> Engines {
        let maps = BUILT_IN_ENGINES.iter().filter_map(|n| EngineMap::built_in(n)).map(Arc::new).collect();
        Engines { label: "llm-d.ai/engine-type".into(), default: "vllm".into(), maps }
    }
}

impl Engines {
    /// From the parameters of `core-metrics-extractor`.
    ///
    /// # Errors
    /// A sentence about the first mapping that cannot be read.
    pub fn from_values(v: &Values) -> Result<Engines, String> {
        let mut out = Engines::default();
        if let Some(label) = v.text("engineLabelKey") {
            label.clone_into(&mut out.label);
        }
        if let Some(engine) = v.text("defaultEngine") {
            engine.clone_into(&mut out.default);
        }
        let mut configured: Vec<Arc<EngineMap>> = Vec::new();
        for item in v.list("engineConfigs") {
            if let Value::Object(o) = item {
                let map = engine_map(o)?;
                if configured.iter().any(|m| m.name == map.name) {
                    return Err(format!("engine {:?} is configured twice", map.name));
                }
                configured.push(Arc::new(map));
            }
        }
        out.maps.retain(|m| !configured.iter().any(|c| c.name == m.name));
        configured.append(&mut out.maps);
        out.maps = configured;
        if !out.maps.iter().any(|m| m.name == out.default) {
            let known: Vec<&str> = out.maps.iter().map(|m| m.name.as_str()).collect();
            return Err(format!("defaultEngine {:?} is none of {}", out.default, known.join(", ")));
        }
        Ok(out)
    }

    /// The mapping for an endpoint with these labels.
    pub fn of_labels(&self, label: impl Fn(&str) -> Option<String>) -> Arc<EngineMap> {
        let wanted = label(&self.label).or_else(|| label(LEGACY_LABEL));
        let find = |name: &str| self.maps.iter().find(|m| m.name == name);
        wanted
            .as_deref()
            .and_then(find)
            .or_else(|| find(&self.default))
            .cloned()
            .expect("the default engine was checked to be there")
    }
}

fn engine_map(o: &Values) -> Result<EngineMap, String> {
    let name = o.text("name").unwrap_or_default();
    if name.is_empty() {
        return Err("an engine mapping has no name".into());
    }
    if name == "default" {
        return Err("the engine name \"default\" is reserved: defaultEngine names the default".into());
    }
    let spec = |field: &str| match o.text(field) {
        None => Ok(None),
        Some(text) => Spec::parse(text).map_err(|e| format!("engine {name:?}, {field} {text:?}: {e}")),
    };
    let one = |field: &str| spec(field).map(|s| s.into_iter().collect::<Vec<_>>());
    let label = |field: &str, preset: &str| o.text(field).unwrap_or(preset).to_owned();
    let mut custom = Vec::new();
    for item in o.list("customMetrics") {
        if let Value::Object(c) = item {
            let text = c.text("metricSpec").unwrap_or_default();
            let parsed =
                Spec::parse(text).map_err(|e| format!("engine {name:?}, metricSpec {text:?}: {e}"))?;
            let key = c.text("attributeKey").unwrap_or_default().to_owned();
            custom.extend(parsed.map(|s| (key, s)));
        }
    }
    Ok(EngineMap {
        name: name.to_owned(),
        waiting: one("queuedRequestsSpec")?,
        running: one("runningRequestsSpec")?,
        kv: one("kvUsageSpec")?,
        lora: spec("loraSpec")?,
        cache_info: spec("cacheInfoSpec")?,
        block_size_label: label("cacheBlockSizeLabelName", "block_size"),
        num_blocks_label: label("cacheNumBlocksLabelName", "num_gpu_blocks"),
        block_size: spec("cacheBlockSizeSpec")?,
        num_blocks: spec("cacheNumBlocksSpec")?,
        custom,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(pairs: &[(&'static str, &str)]) -> Value {
        Value::Object(Values(pairs.iter().map(|(k, v)| (*k, Value::Text((*v).to_owned()))).collect()))
    }

    #[test]
    fn labels_choose_and_unknown_ones_fall_back() {
        let e = Engines::default();
        let with = |key: &'static str, value: &'static str| {
            e.of_labels(|k| (k == key).then(|| value.to_owned())).name.clone()
        };
        assert_eq!(with("llm-d.ai/engine-type", "sglang"), "sglang");
        assert_eq!(with("inference.networking.k8s.io/engine-type", "triton"), "triton");
        assert_eq!(with("llm-d.ai/engine-type", "abacus"), "vllm");
        assert_eq!(with("other", "sglang"), "vllm");
    }

    #[test]
    fn configured_mappings_replace_built_in_ones() {
        let v = Values(vec![(
            "engineConfigs",
            Value::List(vec![object(&[
                ("name", "vllm"),
                ("queuedRequestsSpec", "q{a=b}"),
                ("kvUsageSpec", ""),
            ])]),
        )]);
        let map = Engines::from_values(&v).unwrap().of_labels(|_| None);
        assert_eq!(map.waiting.len(), 1);
        assert!(map.kv.is_empty() && map.running.is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let one = |pairs: &[(&'static str, &str)]| {
            Values(vec![("engineConfigs", Value::List(vec![object(pairs)]))])
        };
        let bad = Engines::from_values(&one(&[("name", "x"), ("kvUsageSpec", "a{b")])).unwrap_err();
        assert!(bad.contains("kvUsageSpec"), "{bad}");
        let bad =
            Engines::from_values(&Values(vec![("defaultEngine", Value::Text("x".into()))])).unwrap_err();
        assert!(bad.contains("none of vllm"), "{bad}");
    }
}
