//! Tables for people: columns under a head line, no frame, at most 100 characters wide.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// The widest line that is printed.
pub(crate) const WIDTH: u16 = 100;

/// A table under a head line; without one if `head` is empty. Long cells wrap so that lines fit [`WIDTH`].
pub(crate) fn table<T: Into<Cell>>(head: impl IntoIterator<Item = T>) -> Table {
    let mut t = Table::new();
    t.load_preset(presets::NOTHING).set_width(WIDTH);
    t.set_content_arrangement(ContentArrangement::Dynamic);
    let head: Vec<Cell> = head.into_iter().map(Into::into).collect();
    if !head.is_empty() {
        t.set_header(head);
    }
    t
}

/// A cell that is aligned like numbers.
pub(crate) fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The table as lines without blanks at their ends, a line end after each.
pub(crate) fn lines(table: &Table) -> String {
    let mut out = String::new();
    for line in table.lines() {
        // The frameless style pads each cell by one blank; the first one is a margin nobody needs.
        let line = line.strip_prefix(' ').unwrap_or(&line).trim_end();
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Lines of at most [`WIDTH`] characters.
pub(crate) fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        if length > 0 && length + 1 + word.chars().count() > usize::from(WIDTH) {
            out.push('\n');
            length = 0;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word.chars().count();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn lines_end_before_the_edge() {
        let text = wrapped(&"word ".repeat(100));
        assert!(text.lines().all(|l| l.len() <= 100 && !l.ends_with(' ')) && text.lines().count() == 5);
    }
}
