//! The grid of the article that introduced the soft-reflective ceiling, beside what it published.

use crate::compare::{Measure, Place, Published, Question};
use crate::policies::Policy;
use forebay_base::{Diagnostics, Span};
use forebay_engine::{Calibration, EngineSpec};
use forebay_sim::Cluster;
use forebay_workload::Workload;
use std::sync::Arc;

/// A workload, and per rate the published improvements of the critical class in per cent, positive for better:
/// TTFT p99, E2E p99 and throughput. Single runs on two H100 servers of Qwen3-14B; small values are read
/// off a chart.
#[derive(Clone, Copy, Debug)]
struct Column {
    preset: &'static str,
    cells: &'static [(f64, [f64; 3])],
}

const COLUMNS: &[Column] = &[
    Column {
        preset: "code",
        cells: &[
            (4.0, [-1.0, 2.0, 0.0]),
            (10.0, [-9.0, 2.0, -1.0]),
            (16.0, [97.0, 0.0, -1.0]),
            (24.0, [91.0, 9.0, 8.0]),
        ],
    },
    Column {
        preset: "chat_30",
        cells: &[
            (20.0, [5.0, 0.0, 0.0]),
            (40.0, [-18.0, -2.0, 0.0]),
            (60.0, [-31.0, 0.0, 0.0]),
            (80.0, [22.0, 15.0, -1.0]),
        ],
    },
    Column {
        preset: "reasoning",
        cells: &[
            (0.2, [1.0, -4.0, -2.0]),
            (0.4, [-17.0, 1.0, -3.0]),
            (0.7, [91.0, 48.0, 64.0]),
            (1.2, [45.0, 37.0, 36.0]),
        ],
    },
];

/// Servers, as [`cluster`] takes them.
pub const SERVERS: &str = "2xh100";

/// A set of efficiency factors of the engine. Two are shipped, because none fits all published columns.
#[derive(Clone, Debug, PartialEq)]
pub enum Factors {
    /// The catalogue's.
    Catalogue,
    /// A faster engine: 0.85 of the compute peak, 0.90 of the bandwidth for weights and 0.80 for attention,
    /// and half of the catalogue's overheads.
    Fast,
    /// From a calibration file, with its name.
    File(String, Calibration),
}

impl Factors {
    /// For reports.
    pub fn label(&self) -> &str {
        match self {
            Factors::Catalogue => "catalogue factors",
            Factors::Fast => "fast factors",
            Factors::File(name, _) => name,
        }
    }

    fn apply(&self, spec: &mut EngineSpec) {
        match self {
            Factors::Catalogue => {}
            Factors::Fast => {
                let f = &mut spec.hardware.factors;
                (f.compute, f.bandwidth, f.kv) = (0.85, 0.90, 0.80);
                for time in [&mut f.step, &mut f.layer, &mut f.sequence, &mut f.mixed] {
                    *time = Span(time.0 / 2);
                }
            }
            Factors::File(_, calibration) => spec.hardware = calibration.apply(&spec.hardware),
        }
    }
}

/// Servers of one H100 each with Qwen3-14B and the published vLLM arguments; `name` such as `2xh100`.
///
/// # Errors
/// None is expected but from factors that are out of range: model and hardware ship.
pub fn cluster(name: &str, factors: &Factors) -> Result<Cluster, Diagnostics> {
    let mut cluster = Cluster::parse(name, "qwen3-14b", "cluster", |spec| {
        spec.max_num_seqs = Some(256);
        spec.max_num_batched_tokens = Some(2048);
        spec.gpu_memory_utilization = 0.9;
        spec.max_model_len = Some(40_960);
        factors.apply(spec);
    })?;
    cluster.name = format!("{} x H100, Qwen3-14B, {}", cluster.servers.len(), factors.label());
    Ok(cluster)
}

/// The workloads of the grid.
pub fn workloads() -> Vec<Workload> {
    COLUMNS.iter().filter_map(|c| Workload::preset(c.preset)).collect()
}

/// Every cell of the grid, and per workload one cell just over its reference capacity. `capacities` are
/// those of [`workloads`] on this cluster. Compared are the article's two policies and what forebay recommends.
pub fn question(cluster: &Arc<Cluster>, capacities: &[f64], seeds: u64) -> Question {
    let mut places = Vec::new();
    for (column, capacity) in COLUMNS.iter().zip(capacities) {
        let Some(workload) = Workload::preset(column.preset) else { continue };
        let place = |rate: f64, published| Place {
            workload: workload.with_rate(rate),
            cluster: Arc::clone(cluster),
            published,
            load: Some(rate / capacity),
        };
        let published = |figures: [f64; 3]| {
            let measures = [Measure::TtftP99, Measure::E2eP99, Measure::Requests];
            let figures = measures.into_iter().zip(figures);
            figures
                .map(|(measure, improvement)| Published { measure, improvement, source: "single run" })
                .collect()
        };
        let mut cells: Vec<Place> =
            column.cells.iter().map(|&(rate, figures)| place(rate, published(figures))).collect();
        cells.push(place(over(*capacity), Vec::new()));
        cells.sort_by(|a, b| a.workload.rate().total_cmp(&b.workload.rate()));
        places.extend(cells);
    }
    let policies = vec![Policy::fixed(), Policy::soft(), Policy::recommended(), Policy::reserve()];
    Question { alone: Some(3), ..Question::new(policies, places, seeds) }
}

/// Five per cent over a capacity, with three digits.
fn over(capacity: f64) -> f64 {
    let x = 1.05 * capacity;
    let step = if x >= 100.0 {
        1.0
    } else if x >= 10.0 {
        0.1
    } else if x >= 1.0 {
        0.01
    } else {
        0.001
    };
    (x / step).round() * step
}
