//! Values on the command line.

use std::time::Duration;

use symmem::hal::types::Bytes;

/// A number of bytes: plain, or with K, M, G for their binary multiples.
pub fn size(text: &str) -> Result<Bytes, String> {
    let expected = || format!("expected a number of bytes such as 64, 4K or 1M, found {text:?}");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(expected()),
    };
    let number: u64 = number.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(expected)
}

/// As [`size`], of what must fit in this process's memory.
pub fn memory(text: &str) -> Result<usize, String> {
    usize::try_from(size(text)?.get()).map_err(|_| format!("{text} is more than memory can be"))
}

/// A time in seconds, with decimals or without.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| format!("expected seconds, found {text:?}"))?;
    Duration::try_from_secs_f64(number).map_err(|e| e.to_string())
}

/// A number of things of which there must be some.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("expected a number from 1, found {text:?}")),
    }
}

/// More ranks than this no machine starts: Linux has no more process ids (`PID_MAX_LIMIT`). What this
/// machine has room for is asked when they are started.
const MOST_RANKS: usize = 1 << 22;

/// A number of ranks.
pub fn ranks(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        n if n <= MOST_RANKS => Ok(n),
        n => Err(format!("{n} ranks are more than a machine has processes: at most {MOST_RANKS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_many_as_there_can_be_processes() {
        for (text, expected) in [("1", Some(1)), ("4194304", Some(MOST_RANKS)), ("4194305", None)] {
            assert_eq!(ranks(text).ok(), expected, "{text}");
        }
        let error = ranks("99999999999").err().unwrap_or_default();
        assert!(
            error.contains("99999999999 ranks") && error.contains("at most 4194304"),
            "{error}"
        );
        assert!(ranks("0").is_err() && ranks("99999999999999999999").is_err());
    }

    #[test]
    fn sizes_are_bytes_or_binary_multiples() {
        for (text, bytes) in
            [("0", 0), ("64", 64), ("64b", 64), ("1K", 1 << 10), ("4m", 4 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(size(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "K", "1.5K", "-1", "4T", "99999999999999999999", "99999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
