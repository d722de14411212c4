//! YAML and JSON read into a tree that keeps positions, with durations and quantities.
