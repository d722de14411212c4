//! Reading the measurements.

use forebay_base::Diagnostics;
use forebay_document::{Node, decode, parse};
use std::collections::BTreeMap;

/// Measured or simulated: milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) ttft: [Option<f64>; 3],
    pub(crate) tpot: Option<f64>,
    pub(crate) e2e: [Option<f64>; 2],
}

impl Metrics {
    pub(crate) fn values(&self) -> [Option<f64>; 6] {
        [self.ttft[0], self.ttft[1], self.ttft[2], self.tpot, self.e2e[0], self.e2e[1]]
    }
}

/// One measured run.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) id: String,
    pub(crate) role: String,
    pub(crate) class: String,
    pub(crate) model: String,
    pub(crate) gpu: String,
    pub(crate) tp: u32,
    pub(crate) replicas: u32,
    pub(crate) version: String,
    pub(crate) max_model_len: u32,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) memory_utilization: f64,
    pub(crate) blocks: Option<u32>,
    pub(crate) groups: u32,
    pub(crate) prompts_per_group: u32,
    pub(crate) system_tokens: u32,
    /// Mean, least and greatest prompt length.
    pub(crate) prompt_tokens: (f64, f64, f64),
    pub(crate) output_tokens: u32,
    /// Seconds and requests of each stage.
    pub(crate) load: Vec<(f64, u32)>,
    pub(crate) timeout_s: f64,
    /// Requests from the start that do not count.
    pub(crate) skip: usize,
    /// The whole run, then each stage.
    pub(crate) stages: Vec<Metrics>,
    pub(crate) completed: Option<u64>,
    /// Signed errors of BLIS's trained-physics model, per cent.
    pub(crate) baseline: [Option<f64>; 6],
}

impl Experiment {
    /// The same rates for a share of the time. So many of the cold prompts at the start do not count that
    /// their share stays the same.
    pub(crate) fn shortened(&self, share: f64) -> Experiment {
        let stage = |&(seconds, n): &(f64, u32)| (seconds * share, (f64::from(n) * share) as u32);
        Experiment {
            load: self.load.iter().map(stage).collect(),
            skip: (f64::from(self.groups * self.prompts_per_group) * (1.0 - share)) as usize,
            ..self.clone()
        }
    }

    pub(crate) fn reasoning(&self) -> bool {
        self.class.starts_with("reasoning")
    }
}

struct Document {
    node: Node,
    file: String,
}

impl Document {
    fn read(file: String) -> Result<Document, String> {
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let mut found = Diagnostics::default();
        let mut nodes = parse(&text, &mut found);
        if !found.0.is_empty() || nodes.len() != 1 {
            return Err(format!("{file}: {found}"));
        }
        Ok(Document { node: nodes.remove(0), file })
    }

    fn at<'n>(node: &'n Node, path: &str) -> Option<&'n Node> {
        path.split('.').try_fold(node, |n, key| n.get(key))
    }

    fn maybe(&self, path: &str) -> Option<f64> {
        Document::at(&self.node, path).and_then(number)
    }

    fn number(&self, path: &str) -> Result<f64, String> {
        self.maybe(path).ok_or_else(|| format!("{}: no number at {path}", self.file))
    }

    fn text(&self, path: &str) -> Result<String, String> {
        let node = Document::at(&self.node, path).and_then(Node::as_text);
        node.map(str::to_owned).ok_or_else(|| format!("{}: no text at {path}", self.file))
    }

    fn list(&self, path: &str) -> Result<&[Node], String> {
        let list =
            Document::at(&self.node, path).and_then(|n| decode::list(n, path, &mut Diagnostics::default()));
        list.ok_or_else(|| format!("{}: no list at {path}", self.file))
    }
}

fn number(node: &Node) -> Option<f64> {
    decode::float(node, "", &mut Diagnostics::default())
}

fn metrics(stage: &Node) -> Metrics {
    let get = |path: &str| Document::at(stage, path).and_then(number);
    Metrics {
        ttft: [get("ttft_ms.mean"), get("ttft_ms.p90"), get("ttft_ms.p99")],
        tpot: get("tpot_ms.mean"),
        e2e: [get("e2e_ms.mean"), get("e2e_ms.p99")],
    }
}

/// By experiment and metric: predicted and measured.
type Predictions = BTreeMap<String, BTreeMap<String, (f64, f64)>>;

/// BLIS's predictions for whole runs.
fn baselines(folder: &str) -> Result<Predictions, String> {
    let file = format!("{folder}/baselines.csv");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let mut all = Predictions::new();
    for row in text.lines().skip(1) {
        let f: Vec<&str> = row.split(',').collect();
        if let [id, simulator, stage, metric, predicted, actual, ..] = f[..]
            && simulator.starts_with("blis-trained-physics")
            && stage == "all"
            && let (Ok(p), Ok(a)) = (predicted.parse(), actual.parse())
        {
            all.entry(id.to_owned()).or_default().insert(metric.to_owned(), (p, a));
        }
    }
    Ok(all)
}

fn experiment(folder: &str, id: &str, role: &str) -> Result<Experiment, String> {
    let e = Document::read(format!("{folder}/experiments/{id}/experiment.yaml"))?;
    let s = Document::read(format!("{folder}/experiments/{id}/summary.json"))?;
    let mean = e.number("workload.effective.prompt_tokens_mean")?;
    let bound = |name: &str, share: f64| {
        e.maybe(&format!("workload.effective.prompt_tokens_{name}")).unwrap_or(mean * share)
    };
    let mut load = Vec::new();
    for stage in e.list("workload.arrivals.stages")? {
        let get = |k: &str| stage.get(k).and_then(number).ok_or_else(|| format!("{id}: stage without {k}"));
        load.push((get("duration_s")?, get("requests")? as u32));
    }
    let stages = s.list("stages")?;
    let whole = stages.first().ok_or_else(|| format!("{id}: no stages"))?;
    Ok(Experiment {
        id: id.to_owned(),
        role: role.to_owned(),
        class: e.text("workload.class")?,
        model: e.text("model")?,
        gpu: e.text("hardware.gpu")?,
        tp: e.number("engine.tensor_parallel")? as u32,
        replicas: e.number("engine.data_parallel")? as u32,
        version: e.text("engine.version")?,
        max_model_len: e.number("engine.max_model_len")? as u32,
        max_num_seqs: e.number("engine.max_num_seqs")? as u32,
        max_num_batched_tokens: e.number("engine.max_num_batched_tokens")? as u32,
        memory_utilization: e.number("engine.gpu_memory_utilization")?,
        blocks: e.maybe("engine.gpu_kv_blocks_reported").map(|n| n as u32),
        groups: e.number("workload.effective.groups")? as u32,
        prompts_per_group: e.number("workload.effective.prompts_per_group")? as u32,
        system_tokens: e.number("workload.effective.system_prompt_tokens")? as u32,
        prompt_tokens: (mean, bound("min", 0.975), bound("max", 1.025)),
        output_tokens: e.number("workload.effective.output_tokens")? as u32,
        load,
        timeout_s: e.number("workload.client_timeout_s")?,
        skip: 0,
        stages: stages.iter().map(metrics).collect(),
        completed: whole.get("requests_ok").and_then(number).map(|n| n as u64),
        baseline: [None; 6],
    })
}

/// All experiments in the order of the index.
pub(crate) fn read(folder: &str) -> Result<Vec<Experiment>, String> {
    let file = format!("{folder}/index.csv");
    let index = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let baselines = baselines(folder)?;
    let mut all = Vec::new();
    for row in index.lines().skip(1) {
        let (id, role) = row.split_once(',').zip(row.rsplit_once(',')).map_or(("", ""), |(a, b)| (a.0, b.1));
        let mut e = experiment(folder, id, role)?;
        if let Some(b) = baselines.get(id) {
            let error = |metric: &str| b.get(metric).map(|(p, a)| (p / a - 1.0) * 100.0);
            e.baseline = [
                error("ttft_mean"),
                error("ttft_p90"),
                error("ttft_p99"),
                error("itl_mean"),
                error("e2e_mean"),
                error("e2e_p99"),
            ];
        }
        all.push(e);
    }
    Ok(all)
}
