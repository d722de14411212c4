//! Prints the JSON Schema of workload files.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().write_all(forebay_workload::schema().as_bytes())
}
