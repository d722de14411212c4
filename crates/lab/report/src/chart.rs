//! What every chart can do.

/// A picture with the numbers behind it.
pub trait Chart {
    /// Above it; also the name of the files it is saved as.
    fn title(&self) -> &str;
    /// The picture.
    fn svg(&self) -> String;
    /// The numbers: a header, and a line per point.
    fn csv(&self) -> String;
    /// Whether it has to stay wide on a narrow page, where it can be moved then.
    fn is_wide(&self) -> bool {
        false
    }
}

/// Adds a line of cells, in quotes where RFC 4180 wants them.
pub(crate) fn csv_line(out: &mut String, cells: &[String]) {
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        if cell.contains([',', '"', '\n', '\r']) {
            out.push('"');
            out.push_str(&cell.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(cell);
        }
    }
    out.push('\n');
}
