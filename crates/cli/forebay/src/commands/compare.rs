//! `forebay compare`: policies over the same traffic, pair by pair.

use crate::input;
use crate::layout::{self, right};
use crate::simulated::{ClusterFlags, engines, threads, with_bar, workload};
use anyhow::Context;
use clap::{Args, ValueEnum};
use comfy_table::Cell;
use forebay_engine::Calibration;
use forebay_records::stats::Verdict;
use forebay_study::article::{self, Factors};
use forebay_study::capacity::{Search, capacity};
use forebay_study::compare::{Comparison, Measure, Place, PlaceResult, Question, compare, runs};
use forebay_study::html::{Words, report};
use forebay_study::{Policy, Progress, Setup, json, parallel, text};
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
    /// The recommended policy against the same with one part switched off at a time
    #[arg(long, conflicts_with_all = ["baseline", "treatment", "study"])]
    ablate: bool,
    /// Efficiency factors of the study's engines; none fits all that was published
    #[arg(long, value_name = "SET", default_value = "catalogue")]
    factors: FactorSet,
    /// A calibration file with efficiency factors instead
    #[arg(long, value_name = "FILE", requires = "study", conflicts_with = "factors")]
    calibration: Option<PathBuf>,
    /// Workload files or presets, by comma
    #[arg(long, value_name = "LIST", value_delimiter = ',', required_unless_present = "study")]
    workload: Vec<String>,
    /// Requests per second, by comma; each workload's own if absent
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    rates: Vec<f64>,
    /// Paired seeds, from 1 on
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Threads; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
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
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FactorSet {
    Catalogue,
    Fast,
}

impl Compare {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let threads = threads(self.threads);
        let progress = Progress::new();
        let question = match self.study {
            Some(Study::Article) => self.article(threads, &progress)?,
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
                places.push(Place { workload, cluster: Arc::clone(&cluster), published: None, load: None });
            }
        }
        Ok(Question { policies, places, seeds: (1..=self.seeds).collect(), points: 300 })
    }

    fn factors(&self) -> anyhow::Result<Factors> {
        if let Some(path) = &self.calibration {
            let (text, name) = input::text(path)?;
            let calibration = Calibration::read(&text, &name)?;
            return Ok(Factors::File(name, calibration));
        }
        Ok(match self.factors {
            FactorSet::Catalogue => Factors::Catalogue,
            FactorSet::Fast => Factors::Fast,
        })
    }

    /// The grid, after the reference capacity of each workload has been found.
    fn article(&self, threads: usize, progress: &Progress) -> anyhow::Result<Question> {
        let cluster = Arc::new(article::cluster(&self.factors()?)?);
        let workloads = article::workloads();
        let plans = workloads
            .iter()
            .map(|w| Policy::live().plan(&Setup::priorities(w)))
            .collect::<Result<Vec<_>, _>>()?;
        progress.expect(workloads.len() as u64);
        let capacities = with_bar(progress, "searches for the capacity", || {
            parallel(workloads.len(), threads, progress, |i| {
                // Four hours of a chat workload are a million requests; one says as much.
                let rate = workloads[i].rate();
                let search = if rate > 50.0 { Search::QUICK } else { Search::FULL };
                capacity(&plans[i], &cluster, &workloads[i], rate, search)
            })
        });
        let policies = vec![Policy::fixed(), Policy::soft(), Policy::recommended()];
        Ok(article::question(&cluster, &capacities, policies, self.seeds))
    }

    fn words(&self, c: &Comparison) -> Words {
        let cluster = c.places.first().map_or("", |p| p.place.cluster.name.as_str());
        let seeds = c.seeds.len();
        let method = vec![
            format!(
                "Simulated, not measured: {seeds} paired seeds on {cluster}. Runs of one seed share arrivals, lengths and \
                 every other draw. Bars are geometric means of the ratios with Student's 95 % interval on their \
                 logarithms; requests that failed or never ended count as infinitely slow."
            ),
            "Each workload is a surge from an empty pool; over capacity its figures depend on how long it lasts."
                .to_owned(),
        ];
        match self.study {
            Some(Study::Article) => {
                let (agree, all) = agreement(c);
                Words {
                    title: "Soft-reflective ceilings against a static one".to_owned(),
                    lead: format!(
                        "The direction of the published change in TTFT p99 of the critical class is reproduced in {agree} \
                         of the {all} cells that moved by more than 5 %; the published figures are single runs."
                    ),
                    method,
                }
            }
            None => Words {
                title: format!("{} policies compared", c.policies.len()),
                lead: format!("Against {}, class of the highest priority.", c.policies[0].name),
                method,
            },
        }
    }

    fn print(&self, out: &mut dyn Write, c: &Comparison) -> anyhow::Result<()> {
        let cluster = c.places.first().map_or("", |p| p.place.cluster.name.as_str());
        writeln!(out, "{} paired seeds on {cluster}; against {}", c.seeds.len(), c.policies[0].name)?;
        if let Some(p) = c.places.first() {
            write!(out, "{}", engines(&p.place.cluster))?;
        }
        writeln!(
            out,
            "class of the highest priority; improvements in %, positive is better, 95 % interval\n"
        )?;
        let study = self.study.is_some();
        let mut head = vec![Cell::new("workload"), right("rate")];
        if study {
            head.push(right("of capacity"));
        }
        head.extend([
            Cell::new("policy"),
            right("TTFT p99"),
            right("%"),
            right("E2E p99"),
            right("%"),
            right("requests/s"),
            right("%"),
        ]);
        let mut t = layout::table(head);
        t.set_width(150);
        for p in &c.places {
            for row in rows(c, p, study) {
                t.add_row(row);
            }
        }
        write!(out, "{}", layout::lines(&t))?;
        if study {
            writeln!(out, "\npublished: single runs, improvement in % as far as it can be read off")?;
            let (agree, all) = agreement(c);
            writeln!(
                out,
                "TTFT p99: the direction agrees in {agree} of {all} cells that were published to move by more than 5 %"
            )?;
        }
        writeln!(out, "* the interval excludes no change")?;
        Ok(())
    }
}

fn policy(path: &Path) -> anyhow::Result<Policy> {
    let (config, name) = input::text(path)?;
    let short = path.file_stem().map_or(name.clone(), |s| s.to_string_lossy().into_owned());
    Ok(Policy { name: short, what: name, config })
}

/// Cells where the published TTFT p99 moved by more than 5 %, and how many of them go the same way here with
/// an interval that excludes no change.
fn agreement(c: &Comparison) -> (usize, usize) {
    let (mut agree, mut all) = (0, 0);
    for p in &c.places {
        let Some(published) = p.place.published.filter(|q| q.ttft_p99.abs() > 5) else { continue };
        let Some(ours) = p.arms.get(1).and_then(|a| a.classes[p.top_class()].against(Measure::TtftP99))
        else {
            continue;
        };
        all += 1;
        let same = match ours.verdict {
            Verdict::Better => published.ttft_p99 > 0,
            Verdict::Worse => published.ttft_p99 < 0,
            _ => false,
        };
        agree += usize::from(same);
    }
    (agree, all)
}

fn rows(c: &Comparison, p: &PlaceResult, study: bool) -> Vec<Vec<Cell>> {
    let top = p.top_class();
    let mut out = Vec::new();
    for (i, arm) in p.arms.iter().enumerate() {
        let k = &arm.classes[top];
        let first = i == 0;
        let mut row = vec![
            Cell::new(if first { p.place.workload.name.as_str() } else { "" }),
            right(if first { text::three(p.rate()) } else { String::new() }),
        ];
        if study {
            row.push(right(p.place.load.filter(|_| first).map_or(String::new(), text::three)));
        }
        row.push(Cell::new(&c.policies[arm.policy].name));
        for m in [Measure::TtftP99, Measure::E2eP99, Measure::Requests] {
            let mean = k.mean(m);
            row.push(right(match m {
                _ if !mean.is_finite() => "undet.".to_owned(),
                Measure::Requests => text::three(mean),
                _ => text::time(mean),
            }));
            row.push(right(k.against(m).map_or(String::new(), |a| {
                let star = if matches!(a.verdict, Verdict::Better | Verdict::Worse) { "*" } else { "" };
                let (low, high) = a.interval;
                format!(
                    "{} [{}, {}]{star}",
                    text::percent(a.improvement),
                    text::percent(low),
                    text::percent(high)
                )
            })));
        }
        out.push(row);
    }
    if let Some(q) = p.place.published {
        let mut row = vec![Cell::new(""), Cell::new("")];
        if study {
            row.push(Cell::new(""));
        }
        row.push(Cell::new("published"));
        for v in [q.ttft_p99, q.e2e_p99, q.throughput] {
            row.push(Cell::new(""));
            row.push(right(text::percent(f64::from(v))));
        }
        out.push(row);
    }
    out
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
