//! The grid of the study that introduced the probabilistic admitter, beside what it published.

use crate::compare::{Measure, Place, Published, Question};
use crate::policies::Policy;
use forebay_base::Span;
use forebay_sim::Cluster;
use forebay_workload::Workload;
use std::sync::Arc;

/// Published figures of one rate: of single runs, milliseconds under baseline and treatment, critical class.
#[derive(Clone, Copy, Debug)]
struct Cell {
    rate: f64,
    seconds: u64,
    /// Mean end-to-end time, simulated by the authors.
    simulated_e2e: Option<(f64, f64)>,
    /// TTFT p99 on four H100 servers.
    measured_ttft_p99: Option<(f64, f64)>,
}

/// A workload, its two rates, and the measured improvements in per cent over both together: TTFT mean and p90, E2E
/// mean and p90.
#[derive(Clone, Copy, Debug)]
struct Column {
    preset: &'static str,
    cells: [Cell; 2],
    pooled: Option<[f64; 4]>,
}

const fn cell(
    rate: f64,
    seconds: u64,
    simulated_e2e: Option<(f64, f64)>,
    measured_ttft_p99: Option<(f64, f64)>,
) -> Cell {
    Cell { rate, seconds, simulated_e2e, measured_ttft_p99 }
}

const COLUMNS: &[Column] = &[
    Column {
        preset: "part1_balanced",
        cells: [
            cell(35.0, 180, None, None),
            cell(90.0, 180, Some((9_749.0, 5_347.0)), Some((5_573.0, 5_208.0))),
        ],
        pooled: Some([26.0, 62.0, 27.0, 25.0]),
    },
    Column {
        preset: "part1_w2",
        cells: [
            cell(35.0, 180, None, None),
            cell(90.0, 180, Some((9_746.0, 5_214.0)), Some((6_069.0, 5_271.0))),
        ],
        pooled: None,
    },
    Column {
        preset: "part1_chatbot",
        cells: [
            cell(5.0, 756, Some((30_908.0, 24_715.0)), None),
            cell(10.0, 810, Some((185_166.0, 180_746.0)), None),
        ],
        // Published as "about 1 to 2".
        pooled: Some([1.5; 4]),
    },
    Column {
        preset: "part1_codecompletion",
        cells: [
            cell(40.0, 405, Some((2_469.0, 2_380.0)), None),
            cell(95.0, 426, Some((5_578.0, 2_801.0)), Some((14_422.0, 4_540.0))),
        ],
        pooled: Some([74.0, 82.0, 50.0, 50.0]),
    },
    Column {
        preset: "part1_blindspot",
        cells: [
            cell(5.0, 756, Some((31_098.0, 19_198.0)), None),
            cell(10.0, 810, Some((37_303.0, 20_279.0)), Some((23_204.0, 696.0))),
        ],
        pooled: Some([90.0, 97.0, 41.0, 64.0]),
    },
];

/// Servers, as [`crate::article::cluster`] takes them.
pub const SERVERS: &str = "4xh100";

/// The workloads of the grid.
pub fn workloads() -> Vec<Workload> {
    COLUMNS.iter().filter_map(|c| Workload::preset(c.preset)).collect()
}

fn published(column: &Column, cell: &Cell) -> Vec<Published> {
    let change = |measure, (before, after): (f64, f64), source| Published {
        measure,
        improvement: 100.0 * (1.0 - after / before),
        source,
    };
    let simulated = cell.simulated_e2e.map(|e2e| change(Measure::E2eMean, e2e, "simulated by its authors"));
    let measured = cell.measured_ttft_p99.map(|ttft| change(Measure::TtftP99, ttft, "measured"));
    let measures = [Measure::TtftMean, Measure::TtftP90, Measure::E2eMean, Measure::E2eP90];
    let pooled = column.pooled.into_iter().flat_map(|figures| {
        measures.into_iter().zip(figures).map(|(measure, improvement)| Published {
            measure,
            improvement,
            source: "measured, both rates together",
        })
    });
    simulated.into_iter().chain(measured).chain(pooled).collect()
}

/// Every cell of the grid. `capacities` are those of [`workloads`] on this cluster. Compared are legacy
/// admission, the probabilistic admitter, and what forebay recommends.
pub fn question(cluster: &Arc<Cluster>, capacities: &[f64], seeds: u64) -> Question {
    let mut places = Vec::new();
    for (column, capacity) in COLUMNS.iter().zip(capacities) {
        let Some(workload) = Workload::preset(column.preset) else { continue };
        for cell in &column.cells {
            places.push(Place {
                workload: workload.with_rate(cell.rate).with_window(Span::secs(cell.seconds)),
                cluster: Arc::clone(cluster),
                published: published(column, cell),
                load: Some(cell.rate / capacity),
            });
        }
    }
    let policies = vec![Policy::legacy(), Policy::probabilistic(), Policy::recommended(), Policy::reserve()];
    let shown = vec![Measure::TtftMean, Measure::TtftP99, Measure::E2eMean];
    Question { alone: Some(3), shown, ..Question::new(policies, places, seeds) }
}
