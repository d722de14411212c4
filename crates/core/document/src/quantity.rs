//! Kubernetes' quantities: a decimal number with a suffix.

use std::fmt;

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantityError {
    /// No number at the start.
    Malformed,
    /// What follows the number is no suffix.
    UnknownSuffix(String),
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuantityError::Malformed => f.write_str("is not a quantity"),
            QuantityError::UnknownSuffix(s) => write!(f, "has the unknown suffix {s:?}"),
        }
    }
}

/// Powers of two and of ten by suffix.
const SUFFIXES: [(&str, u32, i64); 16] = [
    ("", 0, 0),
    ("n", 0, -9),
    ("u", 0, -6),
    ("m", 0, -3),
    ("k", 0, 3),
    ("M", 0, 6),
    ("G", 0, 9),
    ("T", 0, 12),
    ("P", 0, 15),
    ("E", 0, 18),
    ("Ki", 10, 0),
    ("Mi", 20, 0),
    ("Gi", 30, 0),
    ("Ti", 40, 0),
    ("Pi", 50, 0),
    ("Ei", 60, 0),
];

/// Reads a quantity as Kubernetes' `resource.Quantity` does (`1Gi`, `500M`, `5k`, `1e3`, `0.5`) and
/// returns it as a whole number, fractions rounded away from zero, capped to the range of `i64`.
///
/// # Errors
/// See [`QuantityError`].
pub fn parse_quantity(text: &str) -> Result<i64, QuantityError> {
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let (whole, rest) = body.split_at(end);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(after) => after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len())),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(QuantityError::Malformed);
    }
    let (twos, tens) = powers(suffix).ok_or_else(|| QuantityError::UnknownSuffix(suffix.to_owned()))?;
    let size = magnitude(whole, fraction, twos, tens);
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    Ok(if negative { -size } else { size })
}

fn powers(suffix: &str) -> Option<(u32, i64)> {
    if let Some((_, twos, tens)) = SUFFIXES.iter().find(|(name, ..)| *name == suffix) {
        return Some((*twos, *tens));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Past this, every number is either capped or rounded up to 1.
    let size = digits.parse::<i64>().unwrap_or(i64::MAX).min(1_000_000);
    Some((0, if exponent.starts_with('-') { -size } else { size }))
}

/// `whole.fraction * 2^twos * 10^tens`, rounded up, saturating.
fn magnitude(whole: &str, fraction: &str, twos: u32, tens: i64) -> u128 {
    /// Decimal places kept; further ones only round up, as Kubernetes keeps no more than nano.
    const PLACES: usize = 9;
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let point = whole.len() as i64 + tens;
    let mut scaled: u128 = 0;
    for place in 0..point.max(0) + PLACES as i64 {
        // With the point left of the first digit, as many zeros come before the digits.
        let index = usize::try_from(place + point.min(0)).ok();
        let digit = index.and_then(|i| digits.get(i)).copied().unwrap_or(0);
        scaled = match scaled.checked_mul(10).and_then(|s| s.checked_add(u128::from(digit))) {
            Some(s) => s,
            None => return u128::MAX,
        };
    }
    let kept = usize::try_from(point + PLACES as i64).unwrap_or(0).min(digits.len());
    let more = digits[kept..].iter().any(|&d| d != 0);
    let Some(scaled) = scaled.checked_add(u128::from(more)).and_then(|s| s.checked_mul(1 << twos)) else {
        return u128::MAX;
    };
    scaled.div_ceil(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_read_as_in_kubernetes() {
        for (text, value) in [
            ("0", 0),
            ("5000", 5000),
            ("5k", 5000),
            ("500M", 500_000_000),
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("12e-1", 2),
            ("0.1", 1),
            ("1.0000000000001", 2),
            ("1500m", 2),
            ("1n", 1),
            (".5k", 500),
            ("5.", 5),
            ("+7", 7),
            ("-1", -1),
            ("-0.5", -1),
            ("-1Ki", -1024),
            ("0.0000000001", 1),
            ("1e-300", 1),
            ("0e99", 0),
            ("8Ei", i64::MAX),
            ("99999999999999999999999", i64::MAX),
            ("1e999999999999", i64::MAX),
            ("007", 7),
        ] {
            assert_eq!(parse_quantity(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        assert_eq!(parse_quantity(""), Err(QuantityError::Malformed));
        assert_eq!(parse_quantity("."), Err(QuantityError::Malformed));
        assert_eq!(parse_quantity("Gi"), Err(QuantityError::Malformed));
        for suffix in ["K", "GB", "gi", "e", " Gi", "e+", "Gi "] {
            let text = format!("1{suffix}");
            assert_eq!(parse_quantity(&text), Err(QuantityError::UnknownSuffix(suffix.to_owned())));
        }
        assert_eq!(parse_quantity("1.2.3"), Err(QuantityError::UnknownSuffix(".3".to_owned())));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whole_numbers_are_themselves(i in any::<i64>().prop_filter("no minimum", |i| *i != i64::MIN)) {
            prop_assert_eq!(parse_quantity(&i.to_string()), Ok(i));
        }

        #[test]
        fn fractions_round_up(whole in 0i64..1_000_000, thousandths in 1i64..1000) {
            prop_assert_eq!(parse_quantity(&format!("{whole}.{thousandths:03}")), Ok(whole + 1));
            prop_assert_eq!(parse_quantity(&format!("{whole}{thousandths:03}m")), Ok(whole + 1));
        }
    }
}
