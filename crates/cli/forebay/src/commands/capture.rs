//! `forebay capture`: a cluster file from live servers.

use crate::input;
use crate::runtime::block_on;
use crate::values::{EndpointUrl, duration, endpoint};
use anyhow::{Context, bail};
use clap::Args;
use forebay_engine::ModelConfig;
use forebay_net::{Client, ClientOptions};
use forebay_study::capture::{Answers, Facts, Told, cluster_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Write a cluster file from what live vLLM servers tell of themselves
///
/// Reads /version, /v1/models and /metrics of each server. Every value in the file says where it comes from;
/// what no server tells is left as a comment and listed on stderr.
#[derive(Debug, Args)]
pub(crate) struct Capture {
    /// A model server, as http://HOST:PORT; repeatable
    #[arg(long = "target", value_name = "URL", value_parser = endpoint, required = true)]
    targets: Vec<EndpointUrl>,
    /// Their GPU, which no server tells, such as h100
    #[arg(long, value_name = "NAME")]
    hardware: Option<String>,
    /// The model's Hugging Face config.json; without it the one where the server says that it has loaded the model
    /// from, if that is a folder on this machine
    #[arg(long, value_name = "FILE")]
    model_config: Option<PathBuf>,
    /// GPUs per server
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    tensor_parallel_size: Option<u32>,
    /// vLLM's --max-num-seqs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_num_seqs: Option<u32>,
    /// vLLM's --max-num-batched-tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_num_batched_tokens: Option<u32>,
    /// The file to write; stdout if absent
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Time for each answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    timeout: Duration,
}

const MAX_BYTES: usize = 16 << 20;

impl Capture {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        if let Some(name) = &self.hardware {
            forebay_engine::Hardware::find(name)?;
        }
        let servers = block_on(async {
            let client = Client::new(ClientOptions::default());
            let mut all = Vec::new();
            for target in &self.targets {
                let mut facts = Facts::read(&self.ask(&client, target).await?);
                facts.config = self.config(&facts)?;
                all.push((target.authority.clone(), facts));
            }
            Ok(all)
        })?;
        let told = Told {
            hardware: self.hardware.clone(),
            tensor_parallel: self.tensor_parallel_size,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
        };
        let (text, missing) = cluster_file(&servers, &told);
        match &self.out {
            Some(path) => {
                std::fs::write(path, &text)
                    .with_context(|| format!("{}: cannot be written", path.display()))?;
                writeln!(out, "{} server(s) captured in {}", servers.len(), path.display())?;
            }
            None => write!(out, "{text}")?,
        }
        let mut err = std::io::stderr().lock();
        for m in missing {
            // With stderr gone there is nobody left to tell.
            let _ = writeln!(err, "not known: {m}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The model's configuration with where it comes from: the one that is given, or one on this machine that can be
    /// read. A served name alone may be that of another model in the catalogue.
    fn config(&self, facts: &Facts) -> anyhow::Result<Option<(String, String)>> {
        let absolute = |path: &Path| {
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
        };
        if let Some(path) = &self.model_config {
            let (text, name) = input::text(path)?;
            ModelConfig::read(&text, &name, &name)?;
            return Ok(Some((absolute(path), "--model-config".to_owned())));
        }
        let Some((_, root)) = facts.model.as_ref().filter(|(_, root)| Path::new(root).is_absolute()) else {
            return Ok(None);
        };
        let path = Path::new(root).join("config.json");
        let name = path.display().to_string();
        let good = input::file(&path).is_ok_and(|text| ModelConfig::read(&text, &name, &name).is_ok());
        Ok(good.then(|| (name, format!("/v1/models: root {root}, found on this machine"))))
    }

    /// An endpoint that a server does not have says nothing; a server that answers nothing at all is a mistake.
    async fn ask(&self, client: &Client, target: &EndpointUrl) -> anyhow::Result<Answers> {
        let mut last = None;
        let mut get =
            async |path: &str| match client.get(&target.authority, path, self.timeout, MAX_BYTES).await {
                Ok(body) => Some(body),
                Err(e) => {
                    last = Some(e);
                    None
                }
            };
        let (version, models, metrics) =
            (get("/version").await, get("/v1/models").await, get("/metrics").await);
        if version.is_none() && models.is_none() && metrics.is_none() {
            let why = last.map_or(String::new(), |e| format!(": {e}"));
            bail!("http://{} does not answer{why}", target.authority);
        }
        let text = |b: bytes::Bytes| String::from_utf8_lossy(&b).into_owned();
        Ok(Answers {
            target: target.authority.clone(),
            version: version.map(text),
            models: models.map(text),
            metrics: metrics.map(|b| b.to_vec()),
        })
    }
}
