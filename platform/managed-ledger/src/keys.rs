//! Where a managed ledger keeps its metadata.
//!
//! | key | value |
//! |---|---|
//! | `ml/names/LOG` | one version byte: the log exists (for listing by prefix) |
//! | `ml/logs/LOG!head` | [`crate::records::HeadRecord`] |
//! | `ml/logs/LOG!cursor!CURSOR` | [`crate::records::CursorRecord`] |
//! | `ml/logs/LOG!segment!NUMBER` | [`crate::records::SegmentRecord`], 16 hex digits |
//!
//! Invariants: K1 one range over `ml/logs/LOG!` gives everything of one log; K2 names are escaped so that `!` and `%`
//! stand for themselves only as separators, so no log's keys lie in another's range.

use std::fmt::Write;

const NAMES: &str = "ml/names/";
const LOGS: &str = "ml/logs/";

/// Every byte outside of a safe set as `%XX`.
fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"_-=:./".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a string can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Undoes [`escape`]; `None` if the text was not made by it.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// The key that says that a log exists.
pub fn name(log: &str) -> String {
    format!("{NAMES}{}", escape(log))
}

/// The prefix of the names of all logs whose name starts with `prefix`.
pub fn names(prefix: &str) -> String {
    name(prefix)
}

/// The log's name in a key of [`name`].
pub fn log_of(key: &str) -> Option<String> {
    unescape(key.strip_prefix(NAMES)?)
}

/// The prefix of everything of one log (K1).
pub fn log(log: &str) -> String {
    format!("{LOGS}{}!", escape(log))
}

/// The head record.
pub fn head(log: &str) -> String {
    format!("{LOGS}{}!head", escape(log))
}

/// A cursor's record.
pub fn cursor(log: &str, cursor: &str) -> String {
    format!("{LOGS}{}!cursor!{}", escape(log), escape(cursor))
}

/// A segment of the ledger list.
pub fn segment(log: &str, number: u64) -> String {
    format!("{LOGS}{}!segment!{number:016x}", escape(log))
}

/// What a key under [`log`] holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// The head record.
    Head,
    /// The record of the named cursor.
    Cursor(String),
    /// The segment of that number.
    Segment(u64),
}

/// Tells what a key of one log holds; `None` for a key this version does not know.
pub fn kind(log_prefix: &str, key: &str) -> Option<Kind> {
    let rest = key.strip_prefix(log_prefix)?;
    if rest == "head" {
        return Some(Kind::Head);
    }
    if let Some(name) = rest.strip_prefix("cursor!") {
        return unescape(name).map(Kind::Cursor);
    }
    let number = rest.strip_prefix("segment!")?;
    u64::from_str_radix(number, 16).ok().map(Kind::Segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_what_they_hold() {
        let log_name = "public/default/persistent/a!b%c é";
        let prefix = log(log_name);
        assert_eq!(prefix, "ml/logs/public/default/persistent/a%21b%25c%20%C3%A9!");
        assert_eq!(kind(&prefix, &head(log_name)), Some(Kind::Head));
        assert_eq!(kind(&prefix, &cursor(log_name, "s/1!x")), Some(Kind::Cursor("s/1!x".into())));
        assert_eq!(kind(&prefix, &segment(log_name, 17)), Some(Kind::Segment(17)));
        assert_eq!(kind(&prefix, "ml/logs/other!head"), None);
        assert_eq!(log_of(&name(log_name)), Some(log_name.to_owned()));
    }

    #[test]
    fn the_longest_names_fit_into_a_key() {
        use meridian_types::name::{MAX_NAMESPACE_BYTES, MAX_SUBSCRIPTION_BYTES, MAX_TENANT_BYTES, MAX_TOPIC_BYTES};
        let of = |bytes: usize, text: &str| text.repeat(bytes / text.len());
        let (tenant, namespace) = (of(MAX_TENANT_BYTES, "t"), of(MAX_NAMESPACE_BYTES, "n"));
        let topic = format!("{tenant}/{namespace}/non-persistent/{}-partition-2147483647", of(MAX_TOPIC_BYTES, "é"));
        let key = cursor(&topic, &of(MAX_SUBSCRIPTION_BYTES, "é"));
        assert!(key.len() <= meridian_metadata::limits::MAX_KEY_BYTES, "{}", key.len());
    }

    #[test]
    fn no_log_lies_in_the_range_of_another() {
        assert!(!head("a/b-2").starts_with(&log("a/b")));
        assert!(!head("a/b!cursor!x").starts_with(&log("a/b")));
    }
}
