//! What a managed ledger stores in metadata.
//!
//! Layout of every value: one byte version ([`VERSION`]), then a protobuf message with the tags below. Unknown fields are
//! ignored, so fields can be added within a version.
//! Invariants: R1 the head holds at most [`TAIL_LEDGERS`] closed ledgers beside the open ones; older ones stand in segments
//! of [`SEGMENT_LEDGERS`], so that a roll writes a bounded record however long the list is.
//! Failure: [`LogError::Corrupt`]; decoders never panic and allocate no more than the value's length allows.

use crate::api::LogError;
use crate::layout::LedgerState;
use bytes::Bytes;
use meridian_types::{LedgerId, Position};
use prost::Message;
use std::collections::BTreeMap;

/// The version written.
pub const VERSION: u8 = 1;
/// Closed ledgers that the head holds before a segment is cut.
pub const TAIL_LEDGERS: usize = 64;
/// Ledgers per segment.
pub const SEGMENT_LEDGERS: usize = 32;

/// A position.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PositionRecord {
    /// Ledger.
    #[prost(sint64, tag = "1")]
    pub ledger_id: i64,
    /// Entry.
    #[prost(sint64, tag = "2")]
    pub entry_id: i64,
}

impl From<Position> for PositionRecord {
    fn from(position: Position) -> Self {
        Self { ledger_id: position.ledger_id.0, entry_id: position.entry_id.0 }
    }
}

impl From<PositionRecord> for Position {
    fn from(record: PositionRecord) -> Self {
        Position::new(record.ledger_id, record.entry_id)
    }
}

/// One ledger. Counts are zero while it is open (`closed_ms` absent).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LedgerRecord {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub ledger_id: i64,
    /// Entries.
    #[prost(uint64, tag = "2")]
    pub entries: u64,
    /// Bytes.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Index after its last message.
    #[prost(uint64, tag = "4")]
    pub end_index: u64,
    /// When it was created.
    #[prost(uint64, tag = "5")]
    pub created_ms: u64,
    /// When it was closed.
    #[prost(uint64, optional, tag = "6")]
    pub closed_ms: Option<u64>,
    /// `bytes` is an estimate.
    #[prost(bool, tag = "7")]
    pub bytes_estimated: bool,
}

impl LedgerRecord {
    /// An open ledger.
    pub fn open(id: LedgerId, created_ms: u64) -> Self {
        Self { ledger_id: id.0, created_ms, ..Self::default() }
    }

    /// A ledger as the layout has it.
    pub fn closed(state: &LedgerState, closed_ms: u64) -> Self {
        Self {
            ledger_id: state.id.0,
            entries: state.entries,
            bytes: state.bytes,
            end_index: state.end_index,
            created_ms: state.created_ms,
            closed_ms: Some(closed_ms),
            bytes_estimated: state.bytes_estimated,
        }
    }
}

/// The head of a log: who owns it and the end of its ledger list.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeadRecord {
    /// Grows with each opening (L2).
    #[prost(uint64, tag = "1")]
    pub owner_epoch: u64,
    /// This life of the log.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Grows with each write: tells whether a write of unknown outcome was applied.
    #[prost(uint64, tag = "3")]
    pub revision: u64,
    /// Newest ledgers, oldest first (R1).
    #[prost(message, repeated, tag = "4")]
    pub ledgers: Vec<LedgerRecord>,
    /// Number of the next segment; the segments that exist are those found in the log's range.
    #[prost(uint64, tag = "5")]
    pub next_segment: u64,
    /// Terminated at.
    #[prost(message, optional, tag = "6")]
    pub terminated: Option<PositionRecord>,
    /// Properties of the log.
    #[prost(btree_map = "string, string", tag = "7")]
    pub properties: BTreeMap<String, String>,
    /// Being deleted: nothing may be opened any more.
    #[prost(bool, tag = "8")]
    pub deleting: bool,
    /// Ledgers no longer of the log that may not yet be deleted.
    #[prost(int64, repeated, tag = "9")]
    pub doomed: Vec<i64>,
    /// Last entry of what was trimmed, so that the end of an emptied log is known.
    #[prost(message, optional, tag = "10")]
    pub trimmed_to: Option<PositionRecord>,
    /// Index after the last trimmed message.
    #[prost(uint64, tag = "11")]
    pub trimmed_index: u64,
    /// When the log was created, ms since 1970.
    #[prost(uint64, tag = "12")]
    pub created_ms: u64,
}

/// Older closed ledgers, oldest first.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SegmentRecord {
    /// The ledgers.
    #[prost(message, repeated, tag = "1")]
    pub ledgers: Vec<LedgerRecord>,
}

/// A durable cursor.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CursorRecord {
    /// Not a tenant's.
    #[prost(bool, tag = "1")]
    pub internal: bool,
    /// Its properties.
    #[prost(btree_map = "string, string", tag = "2")]
    pub properties: BTreeMap<String, String>,
    /// What was acked when this record was written, as [`crate::cursor::codec`] lays it out. The ledger, if there is
    /// one, knows better.
    #[prost(bytes = "bytes", tag = "3")]
    pub state: Bytes,
    /// The ledger that holds snapshots and deltas.
    #[prost(int64, optional, tag = "4")]
    pub ledger_id: Option<i64>,
    /// Earlier ledgers that may not yet be deleted.
    #[prost(int64, repeated, tag = "5")]
    pub doomed: Vec<i64>,
    /// When it was created, ms since 1970.
    #[prost(uint64, tag = "6")]
    pub created_ms: u64,
}

/// Version byte and message.
pub fn encode(record: &impl Message) -> Bytes {
    let mut out = Vec::with_capacity(1 + record.encoded_len());
    out.push(VERSION);
    record.encode_raw(&mut out);
    out.into()
}

/// The message behind a version byte.
///
/// # Errors
/// [`LogError::Corrupt`] if the version is not known or the bytes are no such message.
pub fn decode<R: Message + Default>(value: &Bytes, what: &str) -> Result<R, LogError> {
    match value.first() {
        Some(&VERSION) => {
            R::decode(value.slice(1..)).map_err(|error| LogError::Corrupt(format!("{what} record: {error}")))
        }
        Some(version) => Err(LogError::Corrupt(format!("{what} record of version {version}, known: {VERSION}"))),
        None => Err(LogError::Corrupt(format!("{what} record is empty"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    fn head() -> HeadRecord {
        HeadRecord {
            owner_epoch: 2,
            incarnation: 3,
            revision: 4,
            ledgers: vec![
                LedgerRecord {
                    ledger_id: 5,
                    entries: 6,
                    bytes: 7,
                    end_index: 8,
                    created_ms: 9,
                    closed_ms: Some(10),
                    bytes_estimated: true,
                },
                LedgerRecord::open(LedgerId(11), 12),
            ],
            next_segment: 1,
            terminated: Some(Position::new(5, 5).into()),
            properties: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            deleting: true,
            doomed: vec![1, 2],
            trimmed_to: Some(Position::new(1, -1).into()),
            trimmed_index: 13,
            created_ms: 14,
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = encode(&head());
        let expected = [
            1, 8, 2, 16, 3, 24, 4, // version; epoch, incarnation, revision
            34, 14, 8, 5, 16, 6, 24, 7, 32, 8, 40, 9, 48, 10, 56, 1, // closed ledger
            34, 4, 8, 11, 40, 12, // open ledger
            40, 1, // next segment
            50, 4, 8, 10, 16, 10, // terminated at 5:5
            58, 6, 10, 1, b'a', 18, 1, b'b', // properties
            64, 1, 74, 2, 1, 2, // deleting, doomed
            82, 4, 8, 2, 16, 1, // trimmed to 1:-1
            88, 13, 96, 14,
        ];
        assert_eq!(&bytes[..], &expected[..]);
        assert_eq!(decode::<HeadRecord>(&bytes, "head"), Ok(head()));

        let cursor = CursorRecord {
            internal: true,
            properties: BTreeMap::new(),
            state: Bytes::from_static(b"xy"),
            ledger_id: Some(7),
            doomed: vec![6],
            created_ms: 9,
        };
        let bytes = encode(&cursor);
        assert_eq!(&bytes[..], &[1, 8, 1, 26, 2, b'x', b'y', 32, 7, 42, 1, 6, 48, 9]);
        assert_eq!(decode::<CursorRecord>(&bytes, "cursor"), Ok(cursor));
    }

    #[test]
    fn a_later_version_is_refused_by_name() {
        let error = decode::<HeadRecord>(&Bytes::from_static(&[9]), "head").unwrap_err();
        assert_eq!(error, LogError::Corrupt("head record of version 9, known: 1".into()));
        assert!(decode::<HeadRecord>(&Bytes::new(), "head").is_err());
    }

    proptest! {
        #[test]
        fn decoders_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut value = vec![VERSION];
            value.extend(bytes);
            let value = Bytes::from(value);
            let _ = decode::<HeadRecord>(&value, "head");
            let _ = decode::<SegmentRecord>(&value, "segment");
            let _ = decode::<CursorRecord>(&value, "cursor");
        }
    }
}
