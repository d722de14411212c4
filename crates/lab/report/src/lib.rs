//! Charts as SVG, and reports as one HTML file that needs nothing beside it.

pub mod bars;
pub mod chart;
mod frame;
pub mod lines;
pub mod page;

pub use bars::{Bar, Bars, Group, range_of_improvements};
pub use chart::Chart;
pub use lines::{Lines, Series};
pub use page::{Page, escape};
