//! Go's duration strings and truth words.

use std::fmt;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanError {
    /// It does not have the form `<number><unit>…`.
    Malformed,
    /// A number without a unit after it.
    MissingUnit,
    /// A unit that does not exist.
    UnknownUnit(String),
    /// More than about 292 years.
    TooLong,
}

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpanError::Malformed => f.write_str("is not a duration"),
            SpanError::MissingUnit => f.write_str("has a number without a unit"),
            SpanError::UnknownUnit(unit) => write!(f, "has the unknown unit {unit:?}"),
            SpanError::TooLong => f.write_str("is longer than 292 years"),
        }
    }
}

/// Nanoseconds per unit; both code points that look like a micro sign are accepted.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration as Go's `time.ParseDuration` does: an optional sign, then one or more decimal
/// numbers, each with a unit (`1m30s`, `500ms`, `2.5µs`); `0` needs none. Returns nanoseconds, which
/// may be negative.
///
/// # Errors
/// See [`SpanError`].
pub fn parse_duration(text: &str) -> Result<i64, SpanError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(SpanError::Malformed);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (ns, after) = part(rest)?;
        rest = after;
        total = total.checked_add(ns).filter(|&t| t <= 1 << 63).ok_or(SpanError::TooLong)?;
    }
    if negative {
        return Ok((total as i64).wrapping_neg());
    }
    i64::try_from(total).map_err(|_| SpanError::TooLong)
}

/// One number with its unit, in nanoseconds, and what follows it.
fn part(text: &str) -> Result<(u64, &str), SpanError> {
    let whole_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, mut rest) = text.split_at(whole_end);
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        (fraction, rest) = after.split_at(end);
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(SpanError::Malformed);
    }
    let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    if unit.is_empty() {
        return Err(SpanError::MissingUnit);
    }
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, ns)| *ns);
    let scale = scale.ok_or_else(|| SpanError::UnknownUnit(unit.to_owned()))?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| SpanError::TooLong)? };
    let ns = whole.checked_mul(scale).filter(|&t| t <= 1 << 63).ok_or(SpanError::TooLong)?;
    Ok((ns.saturating_add(fraction_of(fraction, scale)), rest))
}

/// The decimal fraction of a unit, cut to whole nanoseconds, with the rounding of Go's formula (a third
/// of an hour written with nineteen digits is twenty minutes). Digits that do not fit 63 bits do not
/// count.
fn fraction_of(digits: &str, scale: u64) -> u64 {
    let (mut value, mut power) = (0u64, 1.0f64);
    for d in digits.bytes() {
        let Some(next) = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(d - b'0'))) else {
            break;
        };
        if next > i64::MAX as u64 {
            break;
        }
        value = next;
        power *= 10.0;
    }
    (value as f64 * (scale as f64 / power)) as u64
}

/// Reads a truth word as Go's `strconv.ParseBool` does.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Span;
    use proptest::prelude::*;

    #[test]
    fn durations_read_as_in_go() {
        for (text, ns) in [
            ("0", 0),
            ("0s", 0),
            ("-0", 0),
            ("5s", 5_000_000_000),
            ("1m30s", 90_000_000_000),
            ("500ms", 500_000_000),
            ("2.5µs", 2_500),
            ("2.5μs", 2_500),
            ("2.5us", 2_500),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-1.5h", -5_400_000_000_000),
            ("+3ns", 3),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("1h1h", 7_200_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
        ] {
            assert_eq!(parse_duration(text), Ok(ns), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for (text, why) in [
            ("", SpanError::Malformed),
            ("-", SpanError::Malformed),
            ("s", SpanError::Malformed),
            (".s", SpanError::Malformed),
            ("five", SpanError::Malformed),
            ("1", SpanError::MissingUnit),
            ("1s5", SpanError::MissingUnit),
            ("1 s", SpanError::UnknownUnit(" s".to_owned())),
            ("1d", SpanError::UnknownUnit("d".to_owned())),
            ("1S", SpanError::UnknownUnit("S".to_owned())),
            ("9223372036854775808ns", SpanError::TooLong),
            ("2562048h", SpanError::TooLong),
            ("99999999999999999999s", SpanError::TooLong),
        ] {
            assert_eq!(parse_duration(text), Err(why), "{text}");
        }
    }

    #[test]
    fn truth_words() {
        assert_eq!(parse_bool("t"), Some(true));
        assert_eq!(parse_bool("False"), Some(false));
        assert_eq!(parse_bool("yes"), None);
        assert_eq!(parse_bool("tRUE"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_printed_is_read_back(ns in 0..=i64::MAX as u64) {
            prop_assert_eq!(parse_duration(&Span(ns).to_string()), Ok(ns as i64));
        }
    }
}
