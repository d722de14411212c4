//! YAML and JSON read into a tree that keeps positions, with durations and quantities.
//!
//! [`parse`] turns a text into one tree per document. Every value and every key knows its line and
//! column, so whoever checks the tree can point at what is wrong. [`decode`] holds the readers that
//! check: they report and go on, so that all findings of a file show at once. The rules are those of
//! Kubernetes' strict decoding: keys are case-sensitive, unknown and repeated fields are errors, and
//! `null` means absent.

pub mod decode;
pub mod edit;
pub mod quantity;
pub mod span;
mod tree;

pub use decode::Fields;
pub use quantity::{QuantityError, parse_quantity};
pub use span::{SpanError, parse_bool, parse_duration};
pub use tree::{Content, Entry, Limits, Node, Scalar, ScalarKind, parse, parse_with};
