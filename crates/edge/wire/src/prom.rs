//! Prometheus text: a reader that visits only the families it is asked for, the engines' metric names, a writer.

mod engine;
mod text;
mod write;

pub use engine::{BUILT_IN_ENGINES, EngineMap, Lora, Reading, Scrape, Spec, SpecError, extract};
pub use text::{LabelIter, Labels, Sample, Visited, visit};
pub use write::{Buckets, Kind, Writer, number};
