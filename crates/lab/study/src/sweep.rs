//! Sweeps: runs over values of any field of a configuration, a cluster or a workload.
//!
//! A value takes the place of its field in the tree of its file, which is then read in the ordinary way, so
//! that every check and message of that file holds for it.

mod axis;
mod report;

pub use axis::{Axis, Root};
pub use report::report;

use crate::asked::{Asked, Sample, Stated, stated};
use crate::calibrate::equipped;
use crate::parallel::{Progress, parallel};
use crate::summary::Summary;
use crate::{Setup, steady};
use forebay_base::{Diagnostic, Diagnostics, Position, Severity};
use forebay_config::{Options as Stability, load_tree};
use forebay_document::{Node, edit, parse};
use forebay_engine::Calibration;
use forebay_kernel::plugin::Descriptor;
use forebay_records::stats::Load;
use forebay_sim::{Cluster, Options};
use forebay_workload::Workload;
use std::sync::Arc;

/// A file as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name for messages.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// The files that a sweep starts from.
pub struct Base<'f> {
    /// An `EndpointPickerConfig`.
    pub config: Source,
    /// A cluster file.
    pub cluster: Source,
    /// A workload file.
    pub workload: Source,
    /// The plugins that a configuration may name.
    pub catalogue: Vec<&'static Descriptor>,
    /// How alpha plugins are treated.
    pub stability: Stability,
    /// Gives the files that the workload names.
    pub files: &'f mut forebay_workload::Files<'f>,
    /// Gives the text of a file that the cluster's file names.
    pub cluster_files: &'f mut dyn FnMut(&str) -> Result<String, String>,
    /// Factors in place of those of the catalogue and the cluster file.
    pub calibration: Option<Calibration>,
}

/// The most points of a sweep.
const MAX_POINTS: usize = 100_000;

/// Values of all axes that are run together: an index per axis.
pub type Point = Vec<usize>;

/// Every combination of the axes' values, the last axis fastest; or with `zip` the first values together,
/// then the second ones, and so on.
///
/// # Errors
/// Axes of different lengths under `zip`, or too many points.
pub fn points(axes: &[Axis], zip: bool) -> Result<Vec<Point>, Diagnostics> {
    let wrong = |message: String, expected: &str| {
        Err(Diagnostics(vec![Diagnostic::error(Position::default(), "--set", message).expected(expected)]))
    };
    if zip {
        let n = axes.first().map_or(0, |a| a.values.len());
        if let Some(other) = axes.iter().find(|a| a.values.len() != n) {
            let message =
                format!("{} has {n} values and {} has {}", axes[0].name(), other.name(), other.values.len());
            return wrong(message, "as many values of each with --zip");
        }
        return Ok((0..n).map(|i| vec![i; axes.len()]).collect());
    }
    let all = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.values.len()));
    let Some(all) = all.filter(|n| *n <= MAX_POINTS) else {
        return wrong("there are too many combinations".to_owned(), "at most 100000");
    };
    let point = |mut i: usize| {
        let mut at = vec![0; axes.len()];
        for (slot, a) in at.iter_mut().zip(axes).rev() {
            *slot = i % a.values.len();
            i /= a.values.len();
        }
        at
    };
    Ok((0..all).map(point).collect())
}

/// What the points are made of: a setup for each, and what was found that is no error.
pub struct Made {
    /// By point.
    pub setups: Vec<Setup>,
    /// Warnings, each once.
    pub warnings: Diagnostics,
}

/// Reads the files of every point.
///
/// # Errors
/// Everything that is wrong with any of them, each finding once. One about a value that a sweep has put in
/// says so in place of the file.
pub fn make(base: &mut Base<'_>, axes: &[Axis], points: &[Point]) -> Result<Made, Diagnostics> {
    if let Some(axis) = axes.iter().find(|a| base.calibration.is_some() && a.is_of_factors()) {
        let d = Diagnostic::error(
            Position::default(),
            "--set",
            format!("{}: a calibration sets it", axis.name()),
        );
        return Err(Diagnostics(vec![d.expected("either --calibration or factors that vary")]));
    }
    let mut maker = Maker { axes, errors: Diagnostics::default(), warnings: Diagnostics::default() };
    let trees = [
        Tree::read(&base.config, Root::Config),
        Tree::read(&base.cluster, Root::Cluster),
        Tree::read(&base.workload, Root::Workload),
    ];
    let [config, cluster, workload] = trees;
    let mut setups = Vec::new();
    let mut clusters: Vec<(Point, Arc<Cluster>)> = Vec::new();
    for point in points {
        let read = config.at(point, axes).and_then(|(nodes, found)| {
            load_tree(&nodes, found, &config.file, &base.catalogue, base.stability)
        });
        let plan = maker.keep(read, point, &config);
        let key: Point =
            point.iter().zip(axes).filter(|(_, a)| a.root == Root::Cluster).map(|(i, _)| *i).collect();
        // Points that do not differ in their cluster share it: settling a thousand engines takes its time.
        let beside = &mut base.cluster_files;
        let shared = clusters.iter().find(|(k, _)| *k == key).map(|(_, c)| Arc::clone(c));
        let made = shared.or_else(|| {
            let read = cluster.at(point, axes).and_then(|(n, found)| {
                let made = Cluster::read_tree(&n, found, &cluster.file, &mut |name| beside(name))?;
                match &base.calibration {
                    Some(calibration) => equipped(&made, |h| calibration.apply(h)),
                    None => Ok(made),
                }
            });
            let made = Arc::new(maker.keep(read, point, &cluster)?);
            clusters.push((key, Arc::clone(&made)));
            Some(made)
        });
        let files = &mut base.files;
        let read = workload
            .at(point, axes)
            .and_then(|(n, found)| Workload::read_tree(&n, found, &workload.file, &mut |name| files(name)));
        let traffic = maker.keep(read, point, &workload);
        if let (Some(config), Some(cluster), Some(workload)) = (plan, made, traffic) {
            maker.warn(&config.warnings, point);
            let plan = Arc::new(config.plan(&Setup::priorities(&workload)));
            setups.push(Setup { plan, cluster, workload });
        }
    }
    if maker.errors.has_errors() { Err(maker.errors) } else { Ok(Made { setups, warnings: maker.warnings }) }
}

/// A file as trees, and what the reading of its text found.
struct Tree {
    file: String,
    root: Root,
    nodes: Vec<Node>,
    found: Diagnostics,
}

impl Tree {
    fn read(source: &Source, root: Root) -> Tree {
        let mut found = Diagnostics::default();
        let nodes = parse(&source.text, &mut found);
        Tree { file: source.file.clone(), root, nodes, found }
    }

    /// With the values of a point. What is new has line 0 and its axis, from 1, as its column.
    fn at(&self, point: &Point, axes: &[Axis]) -> Result<(Vec<Node>, Diagnostics), Diagnostics> {
        let (mut nodes, mut found) = (self.nodes.clone(), self.found.clone());
        for (k, (axis, i)) in axes.iter().zip(point).enumerate() {
            let (Some(root), true) = (nodes.first_mut(), axis.root == self.root) else { continue };
            let at = Position { line: 0, column: k as u32 + 1 };
            if let Err(e) = edit::set(root, &axis.path, axis.values[*i].node.clone(), at) {
                found.push(Diagnostic::error(at, e.path, e.message).expected(e.expected));
            }
        }
        if found.has_errors() {
            found.finish(&self.file);
            return Err(found);
        }
        Ok((nodes, found))
    }
}

struct Maker<'a> {
    axes: &'a [Axis],
    errors: Diagnostics,
    warnings: Diagnostics,
}

impl Maker<'_> {
    fn keep<T>(&mut self, read: Result<T, Diagnostics>, point: &Point, tree: &Tree) -> Option<T> {
        let wrong = match read {
            Ok(made) => return Some(made),
            Err(wrong) => wrong,
        };
        for d in wrong.0.iter().filter(|d| d.severity == Severity::Error) {
            let mut d = self.named(d, point);
            // In the text itself, but perhaps only beside the values of this point.
            if d.at.line > 0 && self.axes.iter().any(|a| a.root == tree.root) && !tree.found.has_errors() {
                let values = self.axes.iter().zip(point).filter(|(a, _)| a.root == tree.root);
                let values: Vec<String> = values.map(|(a, i)| a.expression(*i)).collect();
                d.message = format!("{} (with {})", d.message, values.join(" and "));
            }
            if !self.errors.0.contains(&d) {
                self.errors.push(d);
            }
        }
        None
    }

    fn warn(&mut self, found: &Diagnostics, point: &Point) {
        for d in &found.0 {
            let d = self.named(d, point);
            if !self.warnings.0.contains(&d) {
                self.warnings.push(d);
            }
        }
    }

    /// A finding about a value of the sweep names the expression instead of the file.
    fn named(&self, d: &Diagnostic, point: &Point) -> Diagnostic {
        let mut d = d.clone();
        let axis = (d.at.line == 0).then(|| (d.at.column as usize).checked_sub(1)).flatten();
        if let Some((axis, i)) = axis.and_then(|k| Some((self.axes.get(k)?, point[k]))) {
            d.file = axis.expression(i);
            d.at = Position::default();
        }
        d
    }
}

/// One point over all seeds.
#[derive(Clone, Debug)]
pub struct Row {
    /// By figure.
    pub figures: Vec<Stated>,
    /// Runs found stable, near and overloaded.
    pub loads: [usize; 3],
    /// Requests per second offered by the workload.
    pub rate: f64,
    /// Why figures of a steady workload may not be stated as such.
    pub problem: Option<String>,
}

impl Row {
    /// `stable`, `near` or `overloaded`: what most runs are, with how many if they disagree.
    pub fn load(&self) -> String {
        let all: usize = self.loads.iter().sum();
        let labels = [Load::Stable, Load::Near, Load::Overloaded];
        let most = (0..3).rev().max_by_key(|i| self.loads[*i]).unwrap_or(0);
        let label = labels[most].label();
        if self.loads[most] == all { label.to_owned() } else { format!("{label} {}/{all}", self.loads[most]) }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What was varied.
    pub axes: Vec<Axis>,
    /// The points.
    pub points: Vec<Point>,
    /// What was asked for.
    pub asked: Vec<Asked>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// By point.
    pub rows: Vec<Row>,
}

/// Runs every point under every seed over `threads` threads.
pub fn sweep(
    setups: &[Setup],
    (axes, points): (&[Axis], &[Point]),
    asked: &[Asked],
    seeds: &[u64],
    threads: usize,
    progress: &Progress,
) -> Sweep {
    let n = seeds.len();
    progress.expect((setups.len() * n) as u64);
    let runs: Vec<(Vec<Sample>, Load, Option<String>)> = parallel(setups.len() * n, threads, progress, |i| {
        let setup = &setups[i / n];
        let run = setup.run(seeds[i % n], Options { gaps: true, ..Options::new(0) });
        let summary = Summary::of(&run, &setup.workload);
        let samples = asked.iter().map(|a| a.of(&summary)).collect();
        (samples, summary.load, steady::problem(&setup.workload, std::iter::once(&summary)))
    });
    let rows = setups.iter().zip(runs.chunks(n)).map(|(setup, runs)| {
        let figures = asked.iter().enumerate().map(|(k, a)| {
            let samples: Vec<Sample> = runs.iter().map(|(s, ..)| s[k]).collect();
            stated(a.what, &samples)
        });
        let load = |l: Load| runs.iter().filter(|(_, load, _)| *load == l).count();
        Row {
            figures: figures.collect(),
            loads: [load(Load::Stable), load(Load::Near), load(Load::Overloaded)],
            rate: setup.workload.rate(),
            problem: runs.iter().find_map(|(.., problem)| problem.clone()),
        }
    });
    Sweep {
        axes: axes.to_vec(),
        points: points.to_vec(),
        asked: asked.to_vec(),
        seeds: seeds.to_vec(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests;
