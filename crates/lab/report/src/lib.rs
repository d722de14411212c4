//! Charts as SVG, and reports as one HTML file that needs nothing beside it.

pub mod chart;
pub mod page;

pub use chart::{Bar, Bars, Group, Lines, Series};
pub use page::{Page, escape};
