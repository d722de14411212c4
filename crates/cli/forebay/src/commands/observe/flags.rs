//! Flags of `forebay observe`, and what they make.

use crate::commands::observe::write::Foreign;
use crate::input::{self, Unusable};
use crate::values::duration;
use clap::{Args, ValueEnum};
use forebay_base::{Diagnostic, Diagnostics, Draws, Position, Purpose, Span};
use forebay_load::{Api, Style, Url, Words};
use forebay_workload::Workload;
use http::{HeaderName, HeaderValue};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The most drain that is waited for without --drain: presets have an hour, for simulations.
const DRAIN: Span = Span::secs(120);

#[derive(Debug, Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct TargetFlags {
    /// Where it listens, such as http://127.0.0.1:8000
    #[arg(long = "target", value_name = "URL", value_parser = Url::parse)]
    pub(crate) url: Url,
    /// The model to ask for; without it the first that the target serves
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct RunFlags {
    /// The measured time of arrivals, instead of the workload's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Arrivals before that which are not measured, instead of the workload's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
    /// The most time after the last arrival; what runs then is censored. Without it the workload's, up to 2m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain: Option<Duration>,
    /// Seed of arrivals, lengths and all other draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Salt of the texts. Without it a new one for each run, so that no cache knows the texts of an earlier one
    #[arg(long, value_name = "N")]
    salt: Option<u64>,
    /// Threads that hold connections; without it one for every two cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(crate) threads: Option<u64>,
    /// Also write the results as another tool does, such as vllm-bench=FILE; repeatable
    #[arg(long, value_name = "FORMAT=FILE", value_parser = export, conflicts_with_all = ["rates", "find_capacity"])]
    pub(crate) export: Vec<(Foreign, PathBuf)>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ApiName {
    Chat,
    Completions,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
pub(crate) struct RequestFlags {
    /// Which of OpenAI's interfaces
    #[arg(long, value_name = "API", default_value = "chat")]
    api: ApiName,
    /// Ask for whole answers instead of streams
    #[arg(long)]
    no_stream: bool,
    /// The environment variable that has the API key
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Another header, such as 'x-team: a'; repeatable
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The objective of a class, such as critical=premium; otherwise the class's name. CLASS= sends none
    #[arg(long = "objective", value_name = "CLASS=NAME", value_parser = pair)]
    objectives: Vec<(String, String)>,
    /// Send no objectives
    #[arg(long, conflicts_with = "objectives")]
    no_objectives: bool,
    /// Name headers as llm-d-router did first (x-gateway-inference-…)
    #[arg(long)]
    old_headers: bool,
    /// Tell the engine the priority, too (vLLM's `priority`, less is more urgent)
    #[arg(long)]
    engine_priority: bool,
    /// Let answers end by themselves instead of at the workload's length (no ignore_eos and min_tokens)
    #[arg(long)]
    natural_length: bool,
    /// Ask for the tokens of each chunk (vLLM's continuous_usage_stats), for exact times per token
    #[arg(long)]
    chunk_usage: bool,
    /// More fields of each body, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = fields)]
    extra_body: Option<String>,
    /// The model's tokenizer.json, so that prompts are of words that are one token each
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Do not ask how many tokens a word is; it is taken for one
    #[arg(long)]
    pub(crate) no_calibration: bool,
}

impl RunFlags {
    /// The workload with these times.
    pub(crate) fn apply(&self, workload: &Workload) -> Result<Workload, Unusable> {
        let mut w = workload.clone();
        if let Some(d) = self.duration {
            w.mode.window = d.into();
        }
        if let Some(d) = self.warmup {
            w.mode.warmup = d.into();
        }
        if w.mode.window == Span::ZERO {
            return Err(Unusable("--duration: found 0s; expected a time above 0".to_owned()));
        }
        Ok(w)
    }

    pub(crate) fn drain(&self, workload: &Workload) -> Span {
        self.drain.map_or(workload.mode.drain.min(DRAIN), Span::from)
    }

    /// The salt that was asked for, or one that no run has had: from the wall clock.
    pub(crate) fn salt(&self) -> anyhow::Result<u64> {
        if let Some(salt) = self.salt {
            return Ok(salt);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        // Short enough to be typed again.
        Ok(Draws::new(now.as_nanos() as u64).bits(Purpose::named("observe-salt"), 0, 0) >> 32)
    }
}

impl RequestFlags {
    /// How requests look.
    pub(crate) fn style(&self, workload: &Workload) -> anyhow::Result<Style> {
        let mut style = Style::new(workload);
        style.api = match self.api {
            ApiName::Chat => Api::Chat,
            ApiName::Completions => Api::Completions,
        };
        style.stream = !self.no_stream;
        style.chunk_usage = self.chunk_usage;
        style.exact_output = !self.natural_length;
        style.engine_priority = self.engine_priority;
        style.old_headers = self.old_headers;
        style.headers.clone_from(&self.headers);
        style.extra = self.extra_body.clone().unwrap_or_default();
        if let Some(name) = &self.api_key_env {
            let key = std::env::var(name).ok().filter(|k| !k.is_empty());
            style.api_key = Some(key.ok_or_else(|| Unusable(format!("--api-key-env: {name} is not set")))?);
        }
        if self.no_objectives {
            style.objectives.fill(None);
        }
        for (class, objective) in &self.objectives {
            let Some(index) = workload.class(class) else {
                let names = workload.class_names();
                let d = Diagnostic::error(Position::default(), "--objective", format!("no class {class:?}"))
                    .expected(format!("one of {}", names.join(", ")))
                    .nearest_of(class, names.iter().map(String::as_str));
                return Err(Diagnostics(vec![d]).into());
            };
            style.objectives[usize::from(index)] = Some(objective.clone()).filter(|o| !o.is_empty());
        }
        Ok(style)
    }

    pub(crate) fn words(&self) -> anyhow::Result<Words> {
        let Some(path) = &self.tokenizer else { return Ok(Words::default()) };
        let (text, name) = input::text(path)?;
        Ok(Words::of_tokenizer(&text, &name)?)
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (a, b) = text.split_once('=').ok_or("expected CLASS=NAME")?;
    Ok((a.to_owned(), b.to_owned()))
}

fn export(text: &str) -> Result<(Foreign, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected FORMAT=FILE")?;
    Ok((Foreign::from_str(name, false).map_err(|_| Foreign::expected())?, file.into()))
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    let name: HeaderName =
        name.trim().parse().map_err(|_| format!("{:?} is no name of a header", name.trim()))?;
    let value = value.trim().parse().map_err(|_| format!("{:?} cannot stand in a header", value.trim()))?;
    Ok((name, value))
}

/// The fields of a JSON object, without the braces.
fn fields(text: &str) -> Result<String, String> {
    let map: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|e| format!("expected a JSON object: {e}"))?;
    let all = serde_json::Value::from(map).to_string();
    Ok(all[1..all.len() - 1].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_flags() {
        assert_eq!(
            fields(r#"{"temperature": 0, "stop": ["x"]}"#),
            Ok(r#""stop":["x"],"temperature":0"#.into())
        );
        assert!(fields("[1]").is_err() && fields("{").is_err());
        assert_eq!(header("X-Team:  a b ").unwrap().0.as_str(), "x-team");
        assert!(header("x").is_err() && header("a b: c").is_err());
        assert_eq!(pair("critical="), Ok(("critical".into(), String::new())));
        assert!(export("vllm-bench=a.json").is_ok() && export("x=a").unwrap_err().contains("vllm-bench"));
    }
}
