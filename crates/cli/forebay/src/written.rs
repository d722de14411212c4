//! Result files.

use anyhow::Context;
use std::path::Path;

/// Writes files into a folder, which is made if it is not there.
///
/// # Errors
/// What cannot be made or written.
pub(crate) fn all(dir: &Path, files: &[(&str, String)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

/// JSON as files and `--json` have it: indented, with a line end.
pub(crate) fn json(value: &serde_json::Value) -> serde_json::Result<String> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(text)
}

/// A cell of a CSV file (RFC 4180).
pub(crate) fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        assert_eq!(
            (cell("a b"), cell("a,b"), cell("a\"b")),
            ("a b".into(), "\"a,b\"".into(), "\"a\"\"b\"".into())
        );
    }
}
