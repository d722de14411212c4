//! Dates in traces.

/// Nanoseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][Z|+HH:MM]`, with a blank or a `T` between;
/// without a zone it is taken as UTC.
pub(super) fn parse(text: &str) -> Option<i128> {
    let text = text.trim();
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let part = text.get(range)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let mark = |i: usize, wanted: &[u8]| text.as_bytes().get(i).is_some_and(|b| wanted.contains(b));
    let marks = mark(4, b"-") && mark(7, b"-") && mark(10, b" T") && mark(13, b":") && mark(16, b":");
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
    if !marks || !in_range || second > 60 {
        return None;
    }
    let mut rest = &text[19..];
    let mut nanos = 0;
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let digits: String = after[..end].chars().chain("000000000".chars()).take(9).collect();
        nanos = digits.parse::<i128>().ok()?;
        rest = &after[end..];
    }
    let offset = zone(rest)?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Some(i128::from(seconds) * 1_000_000_000 + nanos)
}

/// Seconds east of Greenwich.
fn zone(text: &str) -> Option<i64> {
    match text {
        "" | "Z" | "z" => return Some(0),
        _ => {}
    }
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    Some(
        sign * (hours.parse::<u8>().map(i64::from).ok()? * 3_600
            + minutes.parse::<u8>().map(i64::from).ok()? * 60),
    )
}

/// Days since 1970-01-01 in the Gregorian calendar: years begin in March, so that the leap day is the
/// last; an era is 400 years, 146097 days.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn dates_are_counted_from_1970() {
        for (text, ns) in [
            ("1970-01-01 00:00:00", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600_000_000_000)),
            ("2023-11-16 18:17:03.9799600", Some(1_700_158_623_979_960_000)),
            ("2024-05-10 00:00:00.009930+00:00", Some(1_715_299_200_009_930_000)),
            ("2026-12-01T23:57:42.765Z", Some(1_796_169_462_765_000_000)),
            ("2026-12-02T01:57:42.765+02:00", Some(1_796_169_462_765_000_000)),
            ("1969-12-31 23:59:59.5", Some(-500_000_000)),
            ("2023-13-16 18:17:03", None),
            ("2023-11-16", None),
            ("2023-11-16 18:17:03 CET", None),
            ("", None),
        ] {
            assert_eq!(parse(text), ns, "{text}");
        }
    }
}
