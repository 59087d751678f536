//! Entries of the log of changes.
//!
//! Body: `[version u64][count u32]` and for each change `[kind u8][key length u32][key]`, then for a value that is
//! written out (kind 1) `[session u64, 0 = none][length u32][value]`. Kind 0 is a deletion, kind 2 a value to be read
//! under its key, kind 3 (alone, with an empty key) stands for changes that were too many to list. Little endian.
//! Invariants: an entry is bounded: large values are referred to, and an entry that would still be too large says
//! only that everything must be read again.
//! Failure: [`MetadataError::Corrupt`] with the key.
//! Must never know: lanes, TiKV's interface.

use crate::format::{corrupt, open, seal};
use bytes::Bytes;
use meridian_metadata::plan::Change;
use meridian_metadata::{Entry, MetadataError, SessionId, Version, WatchEvent};

/// Values up to this size are written out.
const INLINE_VALUE_BYTES: usize = 1024;
/// Largest entry; beyond it readers read everything again.
const MAX_ENTRY_BYTES: usize = 256 * 1024;

const DELETED: u8 = 0;
const WRITTEN: u8 = 1;
const REFERRED: u8 = 2;
const EVERYTHING: u8 = 3;

/// One change as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Logged {
    /// The change itself.
    Event(WatchEvent),
    /// The key was written; its value must be read.
    Reference { key: String },
    /// Too much changed to list.
    Everything,
}

/// The changes of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub(crate) version: Version,
    pub(crate) changes: Vec<Logged>,
}

pub(crate) fn encode_entry(log_key: &[u8], version: Version, changes: &[Change]) -> Vec<u8> {
    let mut body = Vec::with_capacity(64 * changes.len() + 12);
    body.extend_from_slice(&version.0.to_le_bytes());
    body.extend_from_slice(&(changes.len() as u32).to_le_bytes());
    for change in changes {
        put_change(&mut body, change);
        if body.len() > MAX_ENTRY_BYTES {
            body.truncate(8);
            body.extend_from_slice(&1u32.to_le_bytes());
            body.push(EVERYTHING);
            body.extend_from_slice(&0u32.to_le_bytes());
            break;
        }
    }
    seal(log_key, &body)
}

fn put_change(body: &mut Vec<u8>, change: &Change) {
    let kind = match &change.value {
        None => DELETED,
        Some(value) if value.len() <= INLINE_VALUE_BYTES => WRITTEN,
        Some(_) => REFERRED,
    };
    body.push(kind);
    body.extend_from_slice(&(change.key.len() as u32).to_le_bytes());
    body.extend_from_slice(change.key.as_bytes());
    if let (WRITTEN, Some(value)) = (kind, &change.value) {
        body.extend_from_slice(&change.ephemeral.map_or(0, |session| session.0).to_le_bytes());
        body.extend_from_slice(&(value.len() as u32).to_le_bytes());
        body.extend_from_slice(value);
    }
}

/// What is left of a body.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn change(&mut self, version: Version) -> Option<Logged> {
        let kind = *self.take(1)?.first()?;
        let key_bytes = self.u32()? as usize;
        let key = std::str::from_utf8(self.take(key_bytes)?).ok()?.to_owned();
        match kind {
            DELETED => Some(Logged::Event(WatchEvent::Delete { key, version })),
            WRITTEN => {
                let ephemeral = Some(self.u64()?).filter(|session| *session != 0).map(SessionId);
                let value_bytes = self.u32()? as usize;
                let value = Bytes::copy_from_slice(self.take(value_bytes)?);
                Some(Logged::Event(WatchEvent::Put(Entry { key, value, version, ephemeral })))
            }
            REFERRED => Some(Logged::Reference { key }),
            EVERYTHING => Some(Logged::Everything),
            _ => None,
        }
    }
}

pub(crate) fn decode_entry(log_key: &[u8], record: &[u8]) -> Result<LogEntry, MetadataError> {
    let mut reader = Reader(open(log_key, record)?);
    let broken = || corrupt(log_key, "is no entry of the log of changes");
    let version = Version(reader.u64().ok_or_else(broken)?);
    let count = reader.u32().ok_or_else(broken)?;
    let mut changes = Vec::new();
    for _ in 0..count {
        changes.push(reader.change(version).ok_or_else(broken)?);
    }
    if !reader.0.is_empty() {
        return Err(broken());
    }
    Ok(LogEntry { version, changes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    const KEY: &[u8] = b"p/l1";

    fn change(key: &str, value: Option<&[u8]>, session: Option<u64>) -> Change {
        Change {
            key: key.to_owned(),
            value: value.map(Bytes::copy_from_slice),
            ephemeral: session.map(SessionId),
            was_ephemeral: None,
        }
    }

    #[test]
    fn golden_bytes() {
        let changes = [change("a", Some(b"x"), Some(5)), change("b", None, None), change("c", Some(&[0; 2000]), None)];
        let record = encode_entry(KEY, Version(7), &changes);
        let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "014458554307000000000000000300000001010000006105000000000000000100000078000100000062020100000063"
        );
        let entry = decode_entry(KEY, &record).unwrap();
        assert_eq!(entry.version, Version(7));
        assert_eq!(entry.changes[2], Logged::Reference { key: "c".into() });
    }

    #[test]
    fn what_would_be_too_large_says_only_that_everything_changed() {
        let long = "k".repeat(4000);
        let changes: Vec<_> = (0..100).map(|index| change(&format!("{long}{index}"), Some(b"v"), None)).collect();
        let record = encode_entry(KEY, Version(7), &changes);
        assert!(record.len() < 100);
        assert_eq!(decode_entry(KEY, &record).unwrap().changes, [Logged::Everything]);
    }

    proptest! {
        #[test]
        fn entries_come_back(
            version: u64,
            changes in proptest::collection::vec((".{0,20}", any::<Option<Vec<u8>>>(), 1u64..), 0..20),
        ) {
            let changes: Vec<_> =
                changes.iter().map(|(key, value, session)| change(key, value.as_deref(), Some(*session))).collect();
            let version = Version(version);
            let entry = decode_entry(KEY, &encode_entry(KEY, version, &changes)).unwrap();
            let expected = changes.into_iter().map(|change| Logged::Event(change.into_event(version)));
            prop_assert_eq!(entry, LogEntry { version, changes: expected.collect() });
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>, cut: usize) {
            let sealed = seal(KEY, &bytes);
            let _ = decode_entry(KEY, &sealed);
            let _ = decode_entry(KEY, &sealed[..cut % (sealed.len() + 1)]);
        }
    }
}
