//! `forebay compare`: policies over the same traffic, pair by pair.

mod tables;

use crate::input;
use crate::simulated::{ClusterFlags, Threads, engines, with_bar, workload};
use anyhow::Context;
use clap::{Args, ValueEnum};
use forebay_sim::Cluster;
use forebay_study::article::{self, Factors};
use forebay_study::capacity::{Search, capacity};
use forebay_study::compare::{Comparison, Measure, NO_CHANGE, Place, Question, compare, runs};
use forebay_study::html::{ALONE, Words, report};
use forebay_study::{Policy, Progress, Setup, json, parallel, part1};
use forebay_workload::Workload;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Compare configurations over the same traffic, with paired seeds and intervals
///
/// Runs of one seed share arrivals, lengths and all other draws. Improvements are in per cent, positive for
/// better, with Student's 95 % interval on the logarithms of the ratios; there is no verdict under 10 seeds.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The configuration to compare with
    #[arg(long, value_name = "FILE", required_unless_present_any = ["study", "ablate"])]
    baseline: Option<PathBuf>,
    /// A configuration to compare; repeatable
    #[arg(long, value_name = "FILE", required_unless_present_any = ["study", "ablate"])]
    treatment: Vec<PathBuf>,
    /// A published study instead: its workloads, rates and policies, beside what it published
    #[arg(long, value_name = "NAME", conflicts_with_all = ["baseline", "treatment", "workload", "rates", "cluster", "engines", "model", "model_config", "vllm_version"])]
    study: Option<Study>,
    /// The recommended policy against the same with one part switched at a time
    #[arg(long, conflicts_with_all = ["baseline", "treatment", "study"])]
    ablate: bool,
    /// Efficiency factors of the study's engines; none fits all that was published
    #[arg(long, value_name = "SET", default_value = "catalogue", conflicts_with = "calibration")]
    factors: FactorSet,
    /// Workload files or presets, by comma
    #[arg(long, value_name = "LIST", value_delimiter = ',', required_unless_present = "study")]
    workload: Vec<String>,
    /// Requests per second, by comma; each workload's own if absent
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    rates: Vec<f64>,
    /// Paired seeds, from 1 on
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    threads: Threads,
    /// Write comparison.json and report.html into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Study {
    /// Static ceiling against soft-reflective, two H100 servers of Qwen3-14B
    Article,
    /// Legacy against probabilistic admission, four of them
    Part1,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FactorSet {
    Catalogue,
    Fast,
}

impl Compare {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let threads = self.threads.count();
        let progress = Progress::new();
        let question = match self.study {
            Some(study) => self.study(study, threads, &progress)?,
            None => self.question()?,
        };
        progress.expect(runs(&question));
        let done = with_bar(&progress, "runs", || compare(&question, threads, &progress))?;
        let words = self.words(&done);
        self.print(out, &done)?;
        if let Some(dir) = &self.out {
            write(dir, &done, &words)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn question(&self) -> anyhow::Result<Question> {
        let policies = if self.ablate {
            Policy::ablations()
        } else {
            let files = self.baseline.iter().chain(&self.treatment);
            files.map(|p| policy(p)).collect::<anyhow::Result<Vec<_>>>()?
        };
        let cluster = Arc::new(self.cluster.read()?);
        let mut places = Vec::new();
        for name in &self.workload {
            let base = workload(name)?;
            let rates: Vec<Option<f64>> = if self.rates.is_empty() {
                vec![None]
            } else {
                self.rates.iter().copied().map(Some).collect()
            };
            for rate in rates {
                let workload = crate::simulated::at_rate(&base, rate)?;
                let cluster = Arc::clone(&cluster);
                places.push(Place { workload, cluster, published: Vec::new(), load: None });
            }
        }
        Ok(Question::new(policies, places, self.seeds))
    }

    fn factors(&self) -> anyhow::Result<Factors> {
        if let (Some(path), Some(calibration)) = (&self.cluster.calibration, self.cluster.calibration()?) {
            return Ok(Factors::File(path.display().to_string(), calibration));
        }
        Ok(match self.factors {
            FactorSet::Catalogue => Factors::Catalogue,
            FactorSet::Fast => Factors::Fast,
        })
    }

    /// The grid, after the reference capacity of each workload has been found.
    fn study(&self, study: Study, threads: usize, progress: &Progress) -> anyhow::Result<Question> {
        let (servers, workloads) = match study {
            Study::Article => (article::SERVERS, article::workloads()),
            Study::Part1 => (part1::SERVERS, part1::workloads()),
        };
        let cluster = Arc::new(article::cluster(servers, &self.factors()?)?);
        let capacities = capacities(&cluster, &workloads, threads, progress)?;
        Ok(match study {
            Study::Article => article::question(&cluster, &capacities, self.seeds),
            Study::Part1 => part1::question(&cluster, &capacities, self.seeds),
        })
    }

    fn words(&self, c: &Comparison) -> Words {
        let cluster = c.places.first().map_or("", |p| p.place.cluster.name.as_str());
        let seeds = c.seeds.len();
        let mut method = vec![
            format!(
                "Simulated, not measured: {seeds} paired seeds on {cluster}. Runs of one seed share arrivals, lengths and \
                 every other draw. Bars are geometric means of the ratios with Student's 95 % interval on their \
                 logarithms; requests that failed or never ended count as infinitely slow."
            ),
            "Each workload is a surge from an empty pool; over capacity its figures depend on how long it lasts."
                .to_owned(),
        ];
        let mut sentences = agreement(c).into_iter();
        let (title, lead) = match self.study {
            Some(Study::Article) => (
                "Soft-reflective ceilings against a static one".to_owned(),
                sentences.next().unwrap_or_default(),
            ),
            Some(Study::Part1) => (
                "Probabilistic admission against a threshold".to_owned(),
                sentences.next().unwrap_or_default(),
            ),
            None => (
                format!("{} policies compared", c.policies.len()),
                format!("Against {}, class of the highest priority.", c.policies[0].name),
            ),
        };
        method.splice(0..0, sentences);
        Words { title, lead, method }
    }

    fn print(&self, out: &mut dyn Write, c: &Comparison) -> anyhow::Result<()> {
        let cluster = c.places.first().map_or("", |p| p.place.cluster.name.as_str());
        writeln!(out, "{} paired seeds on {cluster}; against {}", c.seeds.len(), c.policies[0].name)?;
        if let Some(p) = c.places.first() {
            write!(out, "{}", engines(&p.place.cluster))?;
        }
        writeln!(
            out,
            "improvements in %, positive is better, 95 % interval; * the interval excludes no change"
        )?;
        if self.study.is_some() {
            writeln!(out, "beside a rate: over the pool's reference capacity")?;
        }
        write!(out, "{}", tables::tables(c))?;
        if self.study.is_some() {
            writeln!(
                out,
                "\n{ALONE}: the same requests of the highest priority without the others, under {}",
                c.policies.last().map_or("", |p| p.name.as_str())
            )?;
            writeln!(
                out,
                "agrees: {} goes the same way; up to {NO_CHANGE:.0} % is no change",
                c.policies[1].name
            )?;
            for line in agreement(c) {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

/// The reference capacity of each workload: the highest rate that the pool keeps up with for four hours.
fn capacities(
    cluster: &Arc<Cluster>,
    workloads: &[Workload],
    threads: usize,
    progress: &Progress,
) -> anyhow::Result<Vec<f64>> {
    let plans = workloads
        .iter()
        .map(|w| Policy::live().plan(&Setup::priorities(w)))
        .collect::<Result<Vec<_>, _>>()?;
    progress.expect(workloads.len() as u64);
    // The longest first: hours of a high rate are many requests.
    let mut order: Vec<usize> = (0..workloads.len()).collect();
    order.sort_by(|a, b| workloads[*b].rate().total_cmp(&workloads[*a].rate()));
    let found = with_bar(progress, "searches for the capacity", || {
        parallel(workloads.len(), threads, progress, |i| {
            let w = &workloads[order[i]];
            capacity(&plans[order[i]], cluster, w, w.rate(), Search::FULL)
        })
    });
    let mut capacities = vec![0.0; workloads.len()];
    for (i, rate) in order.into_iter().zip(found) {
        capacities[i] = rate;
    }
    Ok(capacities)
}

fn policy(path: &Path) -> anyhow::Result<Policy> {
    let (config, name) = input::text(path)?;
    let short = path.file_stem().map_or(name.clone(), |s| s.to_string_lossy().into_owned());
    Ok(Policy { name: short, what: name, config })
}

/// A sentence per measure that figures were published of.
fn agreement(c: &Comparison) -> Vec<String> {
    let measures = c.shown.iter().copied().chain([Measure::Requests]);
    let sentence = |m: Measure| {
        let [(moved, all_moved), (still, all_still)] = c.agreement(m);
        (all_moved + all_still > 0).then(|| {
            format!(
                "{}: {moved} of the {all_moved} published changes of more than {NO_CHANGE:.0} % go the same way here, \
                 and {still} of the {all_still} smaller ones are no change here either.",
                m.label()
            )
        })
    };
    measures.filter_map(sentence).collect()
}

fn write(dir: &Path, c: &Comparison, words: &Words) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let mut text = serde_json::to_string_pretty(&json::comparison(c))?;
    text.push('\n');
    for (name, text) in [("comparison.json", text), ("report.html", report(c, words))] {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}
