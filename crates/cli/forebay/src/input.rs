//! Input files and the flags that several commands share.

use crate::catalogue::catalogue;
use clap::Args;
use forebay_config::{Config, Manifests, Options, load};
use forebay_workload::Source;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An input or a command line that cannot be used; one sentence without a full stop.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// How alpha plugins are treated.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct StabilityFlags {
    /// Load alpha plugins without a warning
    #[arg(long)]
    allow_experimental_plugins: bool,
    /// Refuse alpha plugins, as llm-d-router does, unless --allow-experimental-plugins is given
    #[arg(long)]
    strict_stability: bool,
}

impl StabilityFlags {
    pub(crate) fn options(self) -> Options {
        Options {
            allow_experimental: self.allow_experimental_plugins,
            strict_stability: self.strict_stability,
        }
    }
}

/// The text of a file, or of stdin for `-`, with its name for messages.
///
/// # Errors
/// [`Unusable`] if it cannot be read.
pub(crate) fn text(path: &Path) -> Result<(String, String), Unusable> {
    let stdin = path == Path::new("-");
    let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
    let read = if stdin { unpacked(BufReader::new(io::stdin())) } else { file(path) };
    read.map(|text| (text, name.clone())).map_err(|e| Unusable(format!("{name}: cannot be read: {e}")))
}

/// The text of a file, which may be compressed by Zstandard.
///
/// # Errors
/// Those of reading; text that is not UTF-8.
pub(crate) fn file(path: &Path) -> io::Result<String> {
    unpacked(BufReader::new(File::open(path)?))
}

/// A file, which may be compressed by Zstandard, to be read piece by piece as often as wanted. It stays the file
/// that it is now, whatever its name becomes: a log may be rotated meanwhile.
///
/// # Errors
/// Those of opening it; what is no regular file is read at once.
pub(crate) fn source(path: &Path) -> io::Result<Source> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return unpacked(BufReader::new(file)).map(Source::from);
    }
    let file = Arc::new(file);
    Ok(Source::new(move || {
        forebay_records::decompressed(BufReader::new(FromFront { file: Arc::clone(&file), at: 0 }))
    }))
}

/// One of several readings of a file.
struct FromFront {
    file: Arc<File>,
    at: u64,
}

impl Read for FromFront {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        #[cfg(unix)]
        let n = std::os::unix::fs::FileExt::read_at(&*self.file, bytes, self.at)?;
        #[cfg(windows)]
        let n = std::os::windows::fs::FileExt::seek_read(&*self.file, bytes, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

fn unpacked(input: impl BufRead + Send) -> io::Result<String> {
    let mut text = String::new();
    forebay_records::decompressed(input)?.read_to_string(&mut text)?;
    Ok(text)
}

/// A configuration with its objectives.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) manifests: Manifests,
}

/// Loads a configuration and, if given, the manifests beside it. Warnings go to stderr.
///
/// # Errors
/// Everything that is wrong in any of the files, or [`Unusable`].
pub(crate) fn configuration(
    config: &Path,
    objectives: Option<&PathBuf>,
    flags: StabilityFlags,
) -> anyhow::Result<Loaded> {
    let (text, name) = text(config)?;
    let config = load(&text, &name, &catalogue(), flags.options());
    let manifests = objectives.map_or(Ok(Manifests::default()), |path| Manifests::read_path(path));
    match (config, manifests) {
        (Ok(config), Ok(manifests)) => {
            let mut warnings = config.warnings.clone();
            warnings.0.extend(manifests.warnings.0.iter().cloned());
            if !warnings.0.is_empty() {
                // A warning that nobody can see is no reason to stop.
                let _ = writeln!(io::stderr(), "{warnings}");
            }
            Ok(Loaded { config, manifests })
        }
        (config, manifests) => {
            let mut found = config.map_or_else(|d| d, |c| c.warnings);
            found.0.extend(manifests.map_or_else(|d| d, |m| m.warnings).0);
            Err(found.into())
        }
    }
}

/// The configuration that holds without a file.
///
/// # Errors
/// None is expected: the text is part of the program.
pub(crate) fn built_in(flags: StabilityFlags) -> anyhow::Result<Config> {
    Ok(load("", "built-in", &catalogue(), flags.options())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_the_same_at_each_opening_whatever_its_name_becomes() {
        let folder = std::env::temp_dir().join(format!("forebay-input-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = (0..50_000).fold(String::new(), |text, i| text + &format!("line {i}\n"));
        let mut packed = forebay_records::Compressed::new(Vec::new());
        packed.write_all(text.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert!(packed.len() < text.len() / 2);
        for (name, bytes) in [("plain", text.as_bytes()), ("packed", packed.as_slice())] {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            let source = source(&path).unwrap();
            // Two readings do not move each other.
            let (mut a, mut b) = (source.open().unwrap(), source.open().unwrap());
            let mut line = String::new();
            a.read_line(&mut line).unwrap();
            b.read_line(&mut line).unwrap();
            assert_eq!(line, "line 0\nline 0\n");
            std::fs::rename(&path, folder.join("rotated")).unwrap();
            std::fs::write(&path, "another").unwrap();
            assert!(source.read().unwrap() == text, "{name}");
        }
        assert_eq!(source(&folder.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(source(&folder).is_err(), "a folder is no file");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
