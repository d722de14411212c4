//! Numbers as people read them.

use forebay_records::stats::{Quantile, Standing};

/// A length of time in nanoseconds with three significant digits: `12.3 ms`, `1.45 s`.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        x if !x.is_finite() => return "-".to_owned(),
        x if x < 1e3 => (x, "ns"),
        x if x < 1e6 => (x / 1e3, "us"),
        x if x < 999.5e6 => (x / 1e6, "ms"),
        x if x < 1e12 => (x / 1e9, "s"),
        x => return format!("{:.0} s", x / 1e9),
    };
    format!("{} {unit}", three(value))
}

/// Three significant digits.
pub fn three(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        a if a < 9.995 => format!("{x:.2}"),
        a if a < 99.95 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

/// A percentile as far as it can be relied on: its value, `>= x`, or `undet.`.
pub fn quantile(q: &Quantile) -> String {
    match (q.standing, q.value) {
        (Standing::Empty, _) => "-".to_owned(),
        (Standing::Undetermined, _) | (Standing::Claim, None) => "undet.".to_owned(),
        (Standing::Claim, Some(v)) => time(v as f64),
        (Standing::AtLeast, _) => q.at_least.map_or("-".to_owned(), |v| format!(">= {}", time(v as f64))),
    }
}

/// An improvement in per cent: `+94`, `-7`, `0`.
pub fn percent(x: f64) -> String {
    if !x.is_finite() {
        return "-".to_owned();
    }
    let digits = usize::from(x.abs() < 9.95 && (x - x.round()).abs() > 0.05);
    let s = format!("{x:+.digits$}");
    // Minus and plus nothing are nothing.
    if s.trim_start_matches(['+', '-']).chars().all(|c| c == '0' || c == '.') { "0".to_owned() } else { s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (1234.0, "1.23 us"),
            (45_678_000.0, "45.7 ms"),
            (999_600_000.0, "1.00 s"),
            (13_600_000_000.0, "13.6 s"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(time(ns), text);
        }
        assert_eq!((percent(94.2), percent(-0.01), percent(2.34)), ("+94".into(), "0".into(), "+2.3".into()));
    }
}
