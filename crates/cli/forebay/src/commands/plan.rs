//! `forebay plan`: endpoints and cost that a workload needs to keep its SLOs.

mod tables;

use crate::input::{self, StabilityFlags, Unusable};
use crate::simulated::{Threads, at_rate, calibration, published, with_bar, workload};
use crate::written;
use clap::Args;
use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_engine::{EngineSpec, HARDWARE, Hardware, ModelConfig, Version};
use forebay_study::plan::{Answer, Kind, Question, goals, plan};
use forebay_study::{Progress, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Find how many endpoints a workload needs to keep its SLOs, and what they cost
///
/// A number of endpoints holds if, in steady runs, every SLO is kept by the worse end of its 95 % interval over
/// seeds, the backlog does not grow, and at most one request in a thousand is refused or lost. The smallest is
/// searched from the rate over the capacity of one engine; one less and one more are run, too. Deadlines in the
/// workload's file are SLOs at their 99th percentile, unless --slo says otherwise of that class and latency.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// A workload file, or a preset
    #[arg(long, value_name = "FILE|PRESET")]
    workload: String,
    /// Requests per second of all classes together, instead of the workload's
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// What has to hold, such as 'critical:ttft-p99<1s' or 'batch:goodput>99%'; repeatable
    #[arg(long, value_name = "EXPR")]
    slo: Vec<String>,
    /// GPUs to choose from, by comma
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "h100")]
    hardware: Vec<String>,
    /// The model
    #[arg(long, value_name = "NAME", default_value = "qwen3-14b")]
    model: String,
    /// Its Hugging Face config.json instead
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_config: Option<PathBuf>,
    /// GPUs of one endpoint
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    tensor_parallel_size: u32,
    /// vLLM release whose defaults and rules the engines follow, 0.11 to 0.32 [default: the last]
    #[arg(long, value_name = "V")]
    vllm_version: Option<String>,
    /// A calibration file: factors in place of the catalogue's
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// The configuration of the router; llm-d-router's built-in one if absent
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    stability: StabilityFlags,
    /// Prices of an hour of one GPU, such as h100=2.50,l40s=0.80, in any currency; none is built in
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    price: Vec<String>,
    /// Seeds, from 1 on
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The largest pool that is tried
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max: u32,
    #[command(flatten)]
    threads: Threads,
    /// Write plan.json and plan.csv into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let prices = prices(&self.price)?;
        let q = self.question()?;
        let prices: Vec<Option<f64>> =
            q.kinds.iter().map(|k| prices.iter().find(|(n, _)| *n == k.name).map(|(_, p)| *p)).collect();
        let progress = Progress::new();
        let answers = with_bar(&progress, "runs", || plan(&q, self.threads.count(), &progress));
        let value = json::plan(&q, &answers, &prices);
        if let Some(dir) = &self.out {
            let csv = tables::csv(&q, &answers);
            written::all(dir, &[("plan.json", written::json(&value)?), ("plan.csv", csv)])?;
        }
        if self.json {
            write!(out, "{}", written::json(&value)?)?;
        } else {
            self.print(out, &q, &answers, &prices)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn question(&self) -> anyhow::Result<Question> {
        let workload = at_rate(&workload(&self.workload)?, self.rate)?;
        if workload.rate() <= 0.0 {
            let what = format!("--workload {}: no class has a rate that could be planned for", self.workload);
            return Err(Unusable(what).into());
        }
        let goals = goals(&workload, &self.slo)?;
        let config = match &self.config {
            Some(path) => input::configuration(path, None, self.stability)?.config,
            None => input::built_in(self.stability)?,
        };
        let seeds = (1..=self.seeds).collect();
        Ok(Question { workload, goals, config, kinds: self.kinds()?, seeds, max: self.max })
    }

    /// The endpoints to choose from. One that cannot be is an answer as long as another can.
    fn kinds(&self) -> anyhow::Result<Vec<Kind>> {
        let version = self.vllm_version.as_ref().map_or(Ok(Version::NEWEST), |v| Version::find(v))?;
        let model = match &self.model_config {
            None => ModelConfig::find(&self.model)?.clone(),
            Some(path) => {
                let (text, name) = input::text(path)?;
                ModelConfig::read(&text, &name, &name)?
            }
        };
        let calibration = calibration(self.calibration.as_deref())?;
        let (mut all, mut unknown, mut unfit) =
            (Vec::<Kind>::new(), Diagnostics::default(), Diagnostics::default());
        for name in &self.hardware {
            let hardware = match Hardware::find(name.trim()) {
                Ok(h) if all.iter().any(|k| k.name == h.name) => continue,
                Ok(h) => h,
                Err(d) => {
                    unknown
                        .0
                        .extend(d.0.into_iter().map(|d| Diagnostic { path: "--hardware".to_owned(), ..d }));
                    continue;
                }
            };
            let mut spec = EngineSpec::with_version(&model, hardware, version);
            if let Some(calibration) = &calibration {
                spec.hardware = calibration.apply(hardware);
            }
            published(&mut spec);
            spec.tp = self.tensor_parallel_size;
            let engine = spec.resolve().map(Arc::new).map_err(|d| {
                let said: Vec<String> =
                    d.0.iter().map(|d| d.to_string().trim_start_matches("error: ").to_owned()).collect();
                unfit.0.extend(d.0);
                said.join("; ")
            });
            all.push(Kind { name: hardware.name.to_owned(), engine });
        }
        if unknown.has_errors() {
            return Err(unknown.into());
        }
        if all.iter().all(|k| k.engine.is_err()) {
            return Err(unfit.into());
        }
        Ok(all)
    }

    fn print(
        &self,
        out: &mut dyn Write,
        q: &Question,
        answers: &[Answer],
        prices: &[Option<f64>],
    ) -> anyhow::Result<()> {
        let config = self.config.as_ref().map_or("built-in".to_owned(), |p| p.display().to_string());
        let model =
            q.kinds.iter().find_map(|k| k.engine.as_ref().ok()).map_or("", |e| e.spec.model.name.as_ref());
        let gpus = match self.tensor_parallel_size {
            1 => String::new(),
            n => format!(", {n} GPUs an endpoint"),
        };
        writeln!(
            out,
            "{} at {} requests/s: {model}{gpus}, configuration {config}\n",
            q.workload.name,
            forebay_study::text::three(q.workload.rate())
        )?;
        write!(out, "{}", tables::goals(q))?;
        writeln!(out)?;
        write!(out, "{}", tables::answers(q, answers, prices))?;
        for (kind, a) in q.kinds.iter().zip(answers) {
            if let Some(reason) = tables::reason(q, kind, a) {
                writeln!(out, "\n{}", tables::wrapped(&format!("{}: {reason}", kind.name)))?;
            }
        }
        for (kind, a) in q.kinds.iter().zip(answers).filter(|(_, a)| !a.sizes.is_empty()) {
            writeln!(out, "\n{}, what was tried", kind.name)?;
            write!(out, "{}", tables::sizes(q, a))?;
        }
        for note in tables::notes(q, answers, prices) {
            writeln!(out, "\n{}", tables::wrapped(&note))?;
        }
        Ok(())
    }
}

/// Prices by the catalogue's name.
fn prices(list: &[String]) -> Result<Vec<(&'static str, f64)>, Diagnostics> {
    let (mut all, mut wrong) = (Vec::new(), Diagnostics::default());
    let error = |message: String| Diagnostic::error(Position::default(), "--price", message);
    for text in list {
        let Some((name, price)) = text.split_once('=') else {
            wrong.push(error(format!("found {text:?}")).expected("GPU=PRICE, such as h100=2.50"));
            continue;
        };
        let names = || HARDWARE.iter().map(|h| h.name);
        let found = Hardware::find(name.trim());
        let number = price.trim().parse::<f64>().ok().filter(|p| p.is_finite() && *p > 0.0);
        match (found, number) {
            (Ok(h), Some(p)) => all.push((h.name, p)),
            (Err(_), _) => {
                let all = names().collect::<Vec<_>>().join(", ");
                let d = error(format!("{text:?}: unknown hardware {name:?}"));
                wrong.push(d.expected(format!("one of {all}")).nearest_of(name, names()));
            }
            (_, None) => wrong.push(error(format!("{text:?}")).expected("a number above 0")),
        }
    }
    if wrong.has_errors() { Err(wrong) } else { Ok(all) }
}
