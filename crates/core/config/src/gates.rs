//! Feature gates.

use crate::table::{Datum, Item};
use forebay_base::Diagnostics;
use forebay_document::parse_bool;
use forebay_kernel::plugin::Value;

/// The gate that turns queueing admission on.
pub const FLOW_CONTROL: &str = "flowControl";
/// The gate that keeps followers warm; read by nothing here, because there are no followers.
pub const POPULATE_FOLLOWERS: &str = "haPopulateNonLeaderDatastore";

/// The gates of llm-d-router v0.10 with what holds when they are not named.
const GATES: [(&str, bool); 2] = [(FLOW_CONTROL, false), (POPULATE_FOLLOWERS, true)];
/// Gates that earlier releases had.
const REMOVED: [&str; 2] = ["dataLayer", "enableLegacyMetrics"];

/// Which feature gates are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates(Vec<(&'static str, bool)>);

impl Gates {
    /// Reads `name`, `name=true` and `name=false`. The word between the first and the second `=` counts,
    /// trimmed, in any case, in the forms of Go's `ParseBool`; the last item of a name wins.
    pub(crate) fn read(items: &[Item], found: &mut Diagnostics) -> Gates {
        let mut gates = Gates(GATES.to_vec());
        for item in items {
            let Datum::Value(Value::Text(text)) = &item.datum else { continue };
            let mut parts = text.split('=');
            let name = parts.next().unwrap_or_default();
            let Some(gate) = gates.0.iter_mut().find(|(n, _)| *n == name) else {
                let what = if REMOVED.contains(&name) {
                    "was removed from llm-d-router"
                } else {
                    "is unknown or unregistered"
                };
                let names = GATES.map(|(n, _)| n);
                let d = item.error(format!("the feature gate {name:?} {what}"));
                found.push(d.expected(format!("one of {}", names.join(", "))).nearest_of(name, names));
                continue;
            };
            match parts.next().map(|word| (word, parse_bool(&word.trim().to_lowercase()))) {
                None => gate.1 = true,
                Some((_, Some(on))) => gate.1 = on,
                Some((word, None)) => {
                    let message = format!("the value {word:?} of the feature gate {name:?} is not boolean");
                    found.push(item.error(message).expected("true or false"));
                }
            }
        }
        gates
    }

    /// Whether a gate is open.
    pub fn is_open(&self, name: &str) -> bool {
        self.0.iter().any(|(n, on)| *n == name && *on)
    }

    /// All gates.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.0.iter().copied()
    }
}
