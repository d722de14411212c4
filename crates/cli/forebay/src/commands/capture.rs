//! `forebay capture`: a cluster file from live servers.

use crate::runtime::block_on;
use crate::values::{EndpointUrl, duration, endpoint};
use anyhow::{Context, bail};
use clap::Args;
use forebay_net::{Client, ClientOptions};
use forebay_study::capture::{Answers, Facts, Told, cluster_file};
use std::io::Write;
use std::path::PathBuf;
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
                all.push((target.authority.clone(), Facts::read(&self.ask(&client, target).await?)));
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
