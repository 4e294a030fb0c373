//! Sizes and times as users write and read them.

use std::fmt::Display;
use std::num::NonZeroU64;
use std::time::Duration;

/// The units, largest first.
const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Reads a size: bytes, or a number of KiB, MiB or GiB.
pub(crate) fn parse_size(text: &str) -> Result<u32, String> {
    parse_large_size(text).ok().and_then(|size| u32::try_from(size.get()).ok()).ok_or_else(|| {
        "a size is a number of bytes, or of KiB, MiB or GiB below 4 GiB: 4MiB".to_owned()
    })
}

/// Reads a size that may be large: bytes, or a number of KiB, MiB, GiB or TiB.
pub(crate) fn parse_large_size(text: &str) -> Result<NonZeroU64, String> {
    let wrong = || "a size is a number of bytes, or of KiB, MiB, GiB or TiB: 10GiB".to_owned();
    let text = text.trim();
    let (digits, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim_end(), *factor)))
        .unwrap_or((text, 1));
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).and_then(NonZeroU64::new).ok_or_else(wrong)
}

/// A size in the largest unit that it is a whole number of.
pub(crate) fn size(bytes: impl Into<u64>) -> String {
    let bytes = bytes.into();
    let fitting =
        UNITS.iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    fitting.map_or_else(
        || format!("{bytes} bytes"),
        |(unit, factor)| format!("{} {unit}", bytes / factor),
    )
}

/// An estimated size, to the tenth of its unit.
pub(crate) fn about(bytes: u64) -> String {
    let fitting = UNITS.iter().find(|(_, factor)| bytes >= *factor);
    fitting.map_or_else(
        || format!("{bytes} bytes"),
        |(unit, factor)| format!("{:.1} {unit}", bytes as f64 / *factor as f64),
    )
}

/// A value that can be switched off: by `none` or by `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Maybe<T>(pub(crate) Option<T>);

/// Returns the parser of a value that can be switched off.
pub(crate) fn maybe<T, E: Display>(
    parse: impl Fn(&str) -> Result<T, E> + Clone,
) -> impl Fn(&str) -> Result<Maybe<T>, String> + Clone {
    move |text| match text {
        "none" | "off" => Ok(Maybe(None)),
        _ => match parse(text) {
            Ok(value) => Ok(Maybe(Some(value))),
            Err(what) => Err(format!("{}; or `none`", what.to_string().trim_end_matches('.'))),
        },
    }
}

/// Reads a time above zero: `500ms`, `90s`, `1h 30m`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.as_millis() > 0 => Ok(time),
        Ok(_) => Err("a time is above zero: 500ms, 90s, 1h 30m".to_owned()),
        Err(_) => Err("a time is a number with a unit: 500ms, 90s, 1h 30m".to_owned()),
    }
}

/// Reads a time that may be zero: `0s`, `10s`.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "a time is a number with a unit: 0s, 500ms, 90s, 1h 30m".to_owned())
}

/// The exact time.
pub(crate) fn time(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

/// An age: in seconds, below ten seconds in milliseconds.
pub(crate) fn age(age: Duration) -> String {
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    if millis < 10_000 { format!("{millis}ms") } else { time(Duration::from_secs(age.as_secs())) }
}

/// Reads one header, `NAME=VALUE`.
pub(crate) fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header looks like NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown_alike() {
        for (text, bytes) in [("1", 1), ("4MiB", 4 << 20), ("64 KiB", 64 << 10), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "0", "-1", "4MB", "4 GiB", "1.5MiB", "MiB", "99999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(size(4_u64 << 20), "4 MiB");
        assert_eq!(size(1500_u64), "1500 bytes");
    }

    #[test]
    fn an_estimate_is_shown_to_the_tenth() {
        let shown = [about(17), about(1536), about(5 << 30)];
        assert_eq!(shown, ["17 bytes", "1.5 KiB", "5.0 GiB"]);
    }

    #[test]
    fn large_sizes_go_beyond_what_a_body_may_have() {
        let shown = |text| parse_large_size(text).map(|bytes| size(bytes.get()));
        assert_eq!(shown("100GiB").as_deref(), Ok("100 GiB"));
        assert_eq!(shown("5000000000").as_deref(), Ok("5000000000 bytes"));
        for wrong in ["", "0", "-1", "1GB", "99999999999GiB"] {
            assert!(parse_large_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_can_be_switched_off_is_off_by_either_word() {
        let time = maybe(parse_time);
        assert_eq!(time("none"), Ok(Maybe(None)));
        assert_eq!(time("off"), Ok(Maybe(None)));
        assert_eq!(time("90s"), Ok(Maybe(Some(Duration::from_secs(90)))));
        assert!(time("5").is_err_and(|what| what.ends_with("; or `none`")));
        assert!(parse_time("none").is_err());
        assert!(parse_time("0s").is_err());
    }

    #[test]
    fn an_age_is_as_exact_as_it_is_young() {
        assert_eq!(age(Duration::from_millis(120)), "120ms");
        assert_eq!(age(Duration::from_millis(75_900)), "1m 15s");
    }
}
