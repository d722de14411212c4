//! Every plugin of this binary: the slices of the crates that have some, joined.

use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_config::known;
use forebay_kernel::plugin::{Descriptor, Kind};

/// Every plugin type, in the order of the documentation.
pub(crate) fn catalogue() -> Vec<&'static Descriptor> {
    forebay_kernel::plugins::ALL.iter().chain(forebay_live::plugins::ALL).copied().collect()
}

/// The type of this name or alias that can be used as `kind`, if one is asked for.
///
/// # Errors
/// A diagnostic at `place` that names what is there instead.
pub(crate) fn find(name: &str, kind: Option<Kind>, place: &str) -> Result<&'static Descriptor, Diagnostics> {
    let all = catalogue();
    let suits = |d: &Descriptor| kind.is_none_or(|k| d.is(k));
    let named = all.iter().find(|d| d.name == name || d.aliases.iter().any(|a| a.name == name));
    let wrong = |message: String| Diagnostic::error(Position::default(), place, message);
    let valid = || all.iter().filter(|d| suits(d)).map(|d| d.name);
    let expected = match kind {
        None => "a type that `forebay plugins` lists".to_owned(),
        Some(_) => format!("one of {}", valid().collect::<Vec<_>>().join(", ")),
    };
    let d = match named {
        Some(d) if suits(d) => return Ok(d),
        Some(d) => {
            let kinds: Vec<&str> = d.kinds.iter().map(|k| k.label()).collect();
            wrong(format!("{name:?} is of another kind ({})", kinds.join(", "))).expected(expected)
        }
        None if known::is_known(name) => {
            wrong(format!("{name:?} is known to llm-d-router, not supported by forebay yet"))
        }
        None => wrong(format!("{name:?} is no plugin type")).expected(expected).nearest_of(name, valid()),
    };
    Err(Diagnostics(vec![d]))
}
