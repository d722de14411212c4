//! What the simulating commands share: workloads, clusters, and a bar that shows how far a study is.

use crate::input::{self, Unusable};
use crate::layout;
use clap::Args;
use forebay_base::{Diagnostic, Diagnostics, Position, Span};
use forebay_engine::{Calibration, EngineSpec, ModelConfig, Version};
use forebay_sim::Cluster;
use forebay_study::Progress;
use forebay_study::calibrate::equipped;
use forebay_workload::{Feed, Format, RecordingCounts, Source, Trace, Workload, read_recording};
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the router is in front of.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterFlags {
    /// A cluster file
    #[arg(long, value_name = "FILE", conflicts_with = "engines")]
    pub(crate) cluster: Option<PathBuf>,
    /// Servers of one GPU each instead, such as 2xh100 or 2xh100,1xa100
    #[arg(long, value_name = "LIST", default_value = "2xh100")]
    engines: String,
    /// Their model
    #[arg(long, value_name = "NAME", default_value = "qwen3-14b")]
    model: String,
    /// Its Hugging Face config.json instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "model"])]
    model_config: Option<PathBuf>,
    /// vLLM release whose defaults and rules they follow, 0.11 to 0.32 [default: the last]
    #[arg(long, value_name = "V", conflicts_with = "cluster")]
    vllm_version: Option<String>,
    /// A calibration file: factors in place of the catalogue's or the cluster file's
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
}

impl ClusterFlags {
    /// The cluster, with the factors of the calibration if one is given.
    pub(crate) fn read(&self) -> anyhow::Result<Cluster> {
        let cluster = self.read_plain()?;
        Ok(match self.calibration()? {
            Some(calibration) => equipped(&cluster, |h| calibration.apply(h))?,
            None => cluster,
        })
    }

    /// The calibration, if one is given.
    pub(crate) fn calibration(&self) -> anyhow::Result<Option<Calibration>> {
        calibration(self.calibration.as_deref())
    }

    /// Reads the file, or takes the flags: the block, step and memory limits of the published runs.
    fn read_plain(&self) -> anyhow::Result<Cluster> {
        let Some(path) = &self.cluster else {
            let version = self.vllm_version.as_ref().map_or(Ok(Version::NEWEST), |v| Version::find(v))?;
            let model = match &self.model_config {
                None => ModelConfig::find(&self.model)?.clone(),
                Some(path) => {
                    let (text, name) = input::text(path)?;
                    ModelConfig::read(&text, &name, &name)?
                }
            };
            return Ok(Cluster::of(&self.engines, &model, version, "--engines", published)?);
        };
        let (text, name) = input::text(path)?;
        Ok(Cluster::read_with(&text, &name, &mut beside(path))?)
    }
}

impl ClusterFlags {
    /// The text of the file with its name, or a file that says what the flags say. The calibration is not in it.
    pub(crate) fn text(&self) -> anyhow::Result<(String, String)> {
        let Some(path) = &self.cluster else {
            // Checked as a list first, so that what is wrong is said of the flag.
            self.read()?;
            return Ok((self.rendered(), "--engines".to_owned()));
        };
        Ok(input::text(path)?)
    }

    fn rendered(&self) -> String {
        use std::fmt::Write;
        let model = match &self.model_config {
            Some(path) => format!("model-config: {:?}", path.display().to_string()),
            None => format!("model: {:?}", self.model),
        };
        let version = self.vllm_version.as_ref().map_or(String::new(), |v| format!(" vllm-version: {v:?},"));
        let mut out =
            format!("version: 1\nname: {:?}\nengines:\n", format!("{} {}", self.engines, self.model));
        for part in self.engines.split(',').map(str::trim) {
            let (count, hardware) = part.split_once('x').unwrap_or(("1", part));
            let _ = writeln!(
                out,
                "  - {{count: {count}, {model}, hardware: {hardware:?},{version} args: {{max-num-seqs: 256, \
                 max-num-batched-tokens: 2048, gpu-memory-utilization: 0.9}}}}"
            );
        }
        out
    }
}

/// A calibration, if one is given.
pub(crate) fn calibration(path: Option<&Path>) -> anyhow::Result<Option<Calibration>> {
    let Some(path) = path else { return Ok(None) };
    let (text, name) = input::text(path)?;
    Ok(Some(Calibration::read(&text, &name)?))
}

/// vLLM's arguments in the published runs, which are its defaults on smaller GPUs.
pub(crate) fn published(spec: &mut EngineSpec) {
    spec.max_num_seqs = Some(256);
    spec.max_num_batched_tokens = Some(2048);
    spec.gpu_memory_utilization = 0.9;
}

/// The text of a preset; `flag` is for messages.
///
/// # Errors
/// There is none of this name.
pub(crate) fn preset_text(name: &str, flag: &str) -> Result<&'static str, Diagnostics> {
    let names = || forebay_workload::PRESETS.iter().map(|(name, _)| *name);
    let found = forebay_workload::PRESETS.iter().find(|(n, _)| *n == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let kind = if flag == "PRESET" { "no preset" } else { "neither a file nor a preset" };
        let or = if flag == "PRESET" { "" } else { "a file, or " };
        let d = Diagnostic::error(Position::default(), flag, format!("{name:?} is {kind}"));
        let d = d.expected(format!("{or}one of {}", names().collect::<Vec<_>>().join(", ")));
        Diagnostics(vec![d.nearest_of(name, names())])
    })
}

/// The text of a workload file with its name for messages, or of a preset where there is no such file.
pub(crate) fn workload_text(name: &str) -> anyhow::Result<(String, String)> {
    let path = Path::new(name);
    if name != "-" && !path.exists() {
        return Ok((preset_text(name, "--workload")?.to_owned(), name.to_owned()));
    }
    Ok(input::text(path)?)
}

/// Opens files that the file at `path` names, looked for beside it.
pub(crate) fn sources(path: &Path) -> impl FnMut(&str) -> Result<Source, String> {
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    move |name| {
        let path = folder.join(name);
        input::source(&path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
    }
}

/// Reads files that the file at `path` names, looked for beside it.
pub(crate) fn beside(path: &Path) -> impl FnMut(&str) -> Result<String, String> {
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    move |name| {
        let path = folder.join(name);
        input::file(&path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
    }
}

/// What is settled for each kind of server, for people: a head line and indented lines.
pub(crate) fn engines(cluster: &Cluster) -> String {
    let mut out = String::new();
    for (servers, resolved) in cluster.kinds() {
        let names = match servers.as_slice() {
            [one] => one.name.clone(),
            [one, two] => format!("{}, {}", one.name, two.name),
            [first, .., last] => format!("{} to {}, {} servers", first.name, last.name, servers.len()),
            [] => continue,
        };
        let values = resolved.values();
        let value = |name: &str| values.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v.as_str());
        let head = ["model", "hardware", "vllm-version"];
        let line = format!("{names}: {} on {}, vLLM {}", value(head[0]), value(head[1]), value(head[2]));
        out.push_str(&line);
        let mut width = usize::MAX;
        for (name, value) in values.iter().filter(|(n, _)| !head.contains(n)) {
            let part = format!("{name} {value}");
            if width.saturating_add(part.len() + 2) > usize::from(layout::WIDTH) {
                out.push_str(if width == usize::MAX { "\n  " } else { ",\n  " });
                width = 2;
            } else {
                out.push_str(", ");
                width += 2;
            }
            out.push_str(&part);
            width += part.len();
        }
        out.push('\n');
    }
    out
}

/// What is done to recorded traffic.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct TraceFlags {
    /// Multiply all rates: the same requests closer together
    #[arg(long, value_name = "FACTOR")]
    pub(crate) rate_scale: Option<f64>,
    /// At most so many requests of each trace or recording
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
}

impl TraceFlags {
    /// Whether traffic stays as it was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.rate_scale.is_none() && self.limit.is_none()
    }

    /// The workload with them applied. Without arrivals of its own it ends with its last row.
    pub(crate) fn apply(&self, workload: &Workload) -> Result<Workload, Unusable> {
        let mut changed = workload.clone();
        if let Some(factor) = self.rate_scale {
            if !(factor.is_finite() && factor > 0.0) {
                return Err(Unusable(format!("--rate-scale: found {factor}; expected a factor above 0")));
            }
            changed = changed.with_scale(factor);
        }
        if let Some(limit) = self.limit {
            changed = changed.with_limit(limit);
        }
        if !self.is_empty() && workload.classes.iter().all(|c| c.arrivals.is_none()) {
            let end = |f: &Feed| (f.last().0 as f64 / f.rate_scale).ceil() as u64 + 1;
            let last = changed.traces.iter().map(end).max().unwrap_or(0);
            let scaled = workload.mode.window.0 as f64 / self.rate_scale.unwrap_or(1.0);
            changed = changed.with_window(Span(last.min(scaled.ceil() as u64 + 1)));
        }
        Ok(changed)
    }
}

/// Traffic, and what was measured of it if it is a recording.
pub(crate) struct TrafficRead {
    pub(crate) workload: Workload,
    pub(crate) recording: Option<(Vec<forebay_records::Row>, RecordingCounts)>,
}

/// How a file of a recording begins.
const RECORDING: &[u8] = b"{\"format\":\"forebay-recording\"";

/// A workload file, a published trace, a recording of `forebay serve` (its folder, or one file of it), or the
/// name of a preset where there is no such file.
pub(crate) fn traffic(name: &str) -> anyhow::Result<TrafficRead> {
    let path = Path::new(name);
    // What tables and reports call it; errors have the whole path.
    let short = || path.file_name().map_or(name.to_owned(), |n| n.to_string_lossy().into_owned());
    let read = |r: forebay_workload::Recording| TrafficRead {
        workload: Workload { name: short(), ..r.workload },
        recording: Some((r.rows, r.counts)),
    };
    if path.is_dir() {
        return Ok(read(recording(path, name)?));
    }
    if name != "-" && path.is_file() {
        let unread = |e| Unusable(format!("{name}: cannot be read: {e}"));
        let source = input::source(path).map_err(unread)?;
        let mut first = Vec::new();
        source.open().and_then(|s| s.take(RECORDING.len() as u64).read_to_end(&mut first)).map_err(unread)?;
        if first == RECORDING {
            let text = source.read().map_err(unread)?;
            return Ok(read(read_recording(name, [(name.to_owned(), text)])?));
        }
        if let Some(format) = Format::guess_of(&source).map_err(unread)? {
            let trace = Trace::open(&source, name, format)?;
            let workload = Workload { name: short(), ..Workload::of_trace(trace, name) };
            return Ok(TrafficRead { workload, recording: None });
        }
    }
    Ok(TrafficRead { workload: declared(name)?, recording: None })
}

/// The files of a folder, read one after the other.
pub(crate) fn recording(folder: &Path, name: &str) -> anyhow::Result<forebay_workload::Recording> {
    let (begins, ends) = forebay_records::recording::NAME;
    let list = std::fs::read_dir(folder).map_err(|e| Unusable(format!("{name}: cannot be read: {e}")))?;
    let mut files: Vec<PathBuf> = list.filter_map(|f| Some(f.ok()?.path())).collect();
    files.retain(|f| {
        f.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(begins) && n.ends_with(ends))
    });
    files.sort();
    let mut failed = None;
    let texts = files.iter().map_while(|f| match input::text(f) {
        Ok((text, file)) => Some((file, text)),
        Err(e) => {
            failed = Some(e);
            None
        }
    });
    let read = read_recording(name, texts);
    match failed {
        Some(e) => Err(e.into()),
        None => Ok(read?),
    }
}

/// As [`traffic`], of which only the workload is wanted.
pub(crate) fn workload(name: &str) -> anyhow::Result<Workload> {
    Ok(traffic(name)?.workload)
}

/// A workload file, or the name of a preset where there is no such file. Traces that a file names are
/// looked for beside it.
fn declared(name: &str) -> anyhow::Result<Workload> {
    let (text, file) = workload_text(name)?;
    Ok(Workload::read_with(&text, &file, &mut sources(Path::new(name)))?)
}

/// A workload at a rate, if one is given.
pub(crate) fn at_rate(workload: &Workload, rate: Option<f64>) -> Result<Workload, Unusable> {
    match rate {
        None => Ok(workload.clone()),
        Some(rate) if rate > 0.0 && rate.is_finite() && workload.rate() > 0.0 => {
            let scaled = workload.with_rate(rate);
            if workload.classes.iter().any(|c| c.arrivals.is_some()) {
                return Ok(scaled);
            }
            // All rows of traces, whether they last longer now or shorter.
            let window = workload.mode.window.0 as f64 * workload.rate() / rate;
            Ok(scaled.with_window(Span(window.ceil() as u64 + 1)))
        }
        Some(rate) if rate > 0.0 && rate.is_finite() => {
            Err(Unusable(format!("--rate: {} has no class whose rate could be set", workload.name)))
        }
        Some(rate) => Err(Unusable(format!("--rate: found {rate}; expected requests per second above 0"))),
    }
}

/// How many threads a study runs on.
#[derive(Debug, Args)]
pub(crate) struct Threads {
    /// Threads; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
}

impl Threads {
    /// As asked, or as many as there are cores.
    pub(crate) fn count(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(all, |n| n as usize)
    }
}

/// How long work may take before a bar is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Does `work` while a bar on stderr, if that is a terminal, shows how far it is.
pub(crate) fn with_bar<T: Send>(progress: &Progress, unit: &str, work: impl FnOnce() -> T + Send) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shown = scope.spawn(|| bar(progress, unit, &over));
        let done = work();
        over.store(true, Ordering::Relaxed);
        shown.thread().unpark();
        // The bar has nothing to tell that matters.
        let _ = shown.join();
        done
    })
}

fn bar(progress: &Progress, unit: &str, over: &AtomicBool) {
    const WIDTH: u64 = 30;
    let start = Instant::now();
    let mut shown = false;
    while !over.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_millis(200));
        let (done, all) = progress.get();
        if start.elapsed() < PATIENCE || all == 0 || over.load(Ordering::Relaxed) {
            continue;
        }
        shown = true;
        let done = done.min(all);
        let full = (done * WIDTH / all) as usize;
        let left =
            if done == 0 { 0.0 } else { start.elapsed().as_secs_f64() * (all - done) as f64 / done as f64 };
        let line = format!(
            "\r[{}{}] {done} of {all} {unit}, {left:.0} s left ",
            "#".repeat(full),
            ".".repeat(WIDTH as usize - full)
        );
        let _ = write!(std::io::stderr(), "{line}");
    }
    if shown {
        // Wipes the bar.
        let _ = write!(std::io::stderr(), "\r{}\r", " ".repeat(90));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_engines_and_its_file_are_one_cluster() {
        let flags = ClusterFlags {
            cluster: None,
            engines: "2xh100,a100".to_owned(),
            model: "qwen3-14b".to_owned(),
            model_config: None,
            calibration: None,
            vllm_version: Some("0.15".to_owned()),
        };
        let (text, file) = flags.text().expect("the list is good");
        let (a, b) = (flags.read().expect("good"), Cluster::read(&text, &file).expect("good"));
        assert_eq!((a.name.as_str(), a.servers.len()), (b.name.as_str(), b.servers.len()));
        for (x, y) in a.servers.iter().zip(&b.servers) {
            assert_eq!((&x.name, x.engine.to_string()), (&y.name, y.engine.to_string()));
        }
    }
}
