//! The record of a ledger in the metadata store: what it is, where its entries are, how it ended.
//!
//! Format (value of `/ledgers/r/{id}`): one byte version (1), then a protobuf message, see [`RecordProto`].
//! Invariants: R1 ensembles are ordered by their first entry, the first one is entry 0, each has E members; R2 last
//! entry and length stand only in a CLOSED record; R3 states go OPEN → IN_RECOVERY → CLOSED or OPEN → CLOSED, never
//! back.
//! Failure: bytes that break a rule are [`MetadataError::Corrupt`]; nothing is guessed.
//! Must never know: how the record is stored or who changes it.

use crate::api::LedgerOptions;
use crate::layout::Layout;
use bytes::{BufMut, Bytes, BytesMut};
use meridian_metadata::{MetadataError, Version};
use meridian_types::{BookieId, EntryId};
use prost::Message;
use std::collections::BTreeMap;

/// Version of the format.
pub const RECORD_VERSION: u8 = 1;

/// Where a ledger is in its life (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerState {
    /// Its writer may append.
    Open,
    /// A new owner is finding its end.
    InRecovery,
    /// Finished for ever.
    Closed,
}

/// What a compare-and-set of a record came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// It is stored.
    Done(Version),
    /// Somebody else changed the record; it is not stored.
    Changed,
    /// It may be stored or not, now or a little later.
    Unknown(MetadataError),
    /// It is not stored and never will be.
    Failed(MetadataError),
}

/// The bookies of a run of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensemble {
    /// First entry of the run; it ends where the next one begins.
    pub first: EntryId,
    /// Its E members.
    pub bookies: Vec<BookieId>,
}

/// What the metadata store holds of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRecord {
    /// Where it is in its life.
    pub state: LedgerState,
    /// E, Qw, Qa.
    pub layout: Layout,
    /// As given at creation, by name; a map's nodes would be the largest part of an idle writer.
    pub properties: Box<[(Box<str>, Box<str>)]>,
    /// Wall clock at creation in ms.
    pub created_ms: u64,
    /// Runs of entries, by first entry (R1).
    pub ensembles: Vec<Ensemble>,
    /// Last entry, if CLOSED.
    pub last_entry: EntryId,
    /// Bytes of all entries, if CLOSED.
    pub length_bytes: u64,
    /// Whether `length_bytes` was counted (a clean close) or estimated (a recovery that did not read every entry).
    pub length_exact: bool,
}

/// The stored message. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct RecordProto {
    /// 0 OPEN, 1 IN_RECOVERY, 2 CLOSED.
    #[prost(uint32, tag = "1")]
    pub state: u32,
    /// E.
    #[prost(uint32, tag = "2")]
    pub ensemble_size: u32,
    /// Qw.
    #[prost(uint32, tag = "3")]
    pub write_quorum: u32,
    /// Qa.
    #[prost(uint32, tag = "4")]
    pub ack_quorum: u32,
    /// Properties.
    #[prost(btree_map = "string, string", tag = "5")]
    pub properties: BTreeMap<String, String>,
    /// Wall clock at creation in ms.
    #[prost(uint64, tag = "6")]
    pub created_ms: u64,
    /// Ensembles.
    #[prost(message, repeated, tag = "7")]
    pub ensembles: Vec<EnsembleProto>,
    /// Last entry + 1, if CLOSED.
    #[prost(uint64, tag = "8")]
    pub entries: u64,
    /// Bytes, if CLOSED.
    #[prost(uint64, tag = "9")]
    pub length_bytes: u64,
    /// Whether the bytes are an estimate.
    #[prost(bool, tag = "10")]
    pub length_estimated: bool,
}

/// One stored ensemble.
#[derive(Clone, PartialEq, Message)]
pub struct EnsembleProto {
    /// First entry.
    #[prost(uint64, tag = "1")]
    pub first: u64,
    /// Ids of the bookies.
    #[prost(string, repeated, tag = "2")]
    pub bookies: Vec<String>,
}

fn compact(properties: BTreeMap<String, String>) -> Box<[(Box<str>, Box<str>)]> {
    properties.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

fn corrupt(what: &str) -> MetadataError {
    MetadataError::Corrupt(format!("ledger record: {what}"))
}

impl LedgerRecord {
    /// The record of a new ledger.
    pub fn new(layout: Layout, options: LedgerOptions, mut bookies: Vec<BookieId>, created_ms: u64) -> Self {
        bookies.shrink_to_fit();
        assert_eq!(bookies.len(), layout.ensemble_size() as usize, "R1: an ensemble has E members");
        Self {
            state: LedgerState::Open,
            layout,
            properties: compact(options.properties),
            created_ms,
            ensembles: vec![Ensemble { first: EntryId(0), bookies }],
            last_entry: EntryId::NONE,
            length_bytes: 0,
            length_exact: true,
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let closed = self.state == LedgerState::Closed;
        let proto = RecordProto {
            state: match self.state {
                LedgerState::Open => 0,
                LedgerState::InRecovery => 1,
                LedgerState::Closed => 2,
            },
            ensemble_size: self.layout.ensemble_size(),
            write_quorum: self.layout.write_quorum(),
            ack_quorum: self.layout.ack_quorum(),
            properties: self.properties.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            created_ms: self.created_ms,
            ensembles: self.ensembles.iter().map(EnsembleProto::from).collect(),
            entries: if closed { (self.last_entry.0 + 1) as u64 } else { 0 },
            length_bytes: if closed { self.length_bytes } else { 0 },
            length_estimated: closed && !self.length_exact,
        };
        let mut out = BytesMut::with_capacity(1 + proto.encoded_len());
        out.put_u8(RECORD_VERSION);
        out.extend_from_slice(&proto.encode_to_vec());
        out.freeze()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] with the rule that the bytes break.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let (version, body) = bytes.split_first().ok_or_else(|| corrupt("empty"))?;
        if *version != RECORD_VERSION {
            return Err(corrupt(&format!("version {version} is not known")));
        }
        let proto = RecordProto::decode(body).map_err(|e| corrupt(&e.to_string()))?;
        let state = match proto.state {
            0 => LedgerState::Open,
            1 => LedgerState::InRecovery,
            2 => LedgerState::Closed,
            other => return Err(corrupt(&format!("state {other} is not known"))),
        };
        let layout = Layout::new(proto.ensemble_size, proto.write_quorum, proto.ack_quorum)
            .map_err(|e| corrupt(&e.to_string()))?;
        if proto.entries > i64::MAX as u64 {
            return Err(corrupt("last entry is out of range"));
        }
        let mut record = Self {
            state,
            layout,
            properties: compact(proto.properties),
            created_ms: proto.created_ms,
            ensembles: proto.ensembles.into_iter().map(Ensemble::from).collect(),
            last_entry: EntryId::NONE,
            length_bytes: 0,
            length_exact: true,
        };
        record.check()?;
        if state == LedgerState::Closed {
            record.close(EntryId(proto.entries as i64 - 1), proto.length_bytes, !proto.length_estimated);
        }
        Ok(record)
    }

    fn check(&self) -> Result<(), MetadataError> {
        let size = self.layout.ensemble_size() as usize;
        if self.ensembles.first().is_none_or(|e| e.first != EntryId(0)) {
            return Err(corrupt("the first ensemble does not begin at entry 0"));
        }
        if self.ensembles.windows(2).any(|pair| pair[0].first >= pair[1].first) {
            return Err(corrupt("ensembles are out of order"));
        }
        if self.ensembles.iter().any(|e| e.bookies.len() != size) {
            return Err(corrupt("an ensemble does not have E members"));
        }
        Ok(())
    }

    /// The ensemble of an entry and the first entry that is no longer its (`i64::MAX` for the last one).
    pub fn ensemble_of(&self, entry: EntryId) -> (&Ensemble, EntryId) {
        let after = self.ensembles.partition_point(|e| e.first <= entry).max(1);
        let end = self.ensembles.get(after).map_or(EntryId(i64::MAX), |e| e.first);
        (&self.ensembles[after - 1], end)
    }

    /// The ensemble that new entries go to.
    pub fn last_ensemble(&self) -> &Ensemble {
        &self.ensembles[self.ensembles.len() - 1]
    }

    /// From `first` on entries go to `bookies` (S5). Runs that would begin at or after `first` are replaced.
    pub fn change_ensemble(&mut self, first: EntryId, bookies: Vec<BookieId>) {
        assert_eq!(bookies.len(), self.layout.ensemble_size() as usize, "R1: an ensemble has E members");
        self.ensembles.retain(|e| e.first < first);
        self.ensembles.push(Ensemble { first, bookies });
    }

    /// Finishes the record.
    pub fn close(&mut self, last_entry: EntryId, length_bytes: u64, length_exact: bool) {
        self.state = LedgerState::Closed;
        self.last_entry = last_entry;
        self.length_bytes = length_bytes;
        self.length_exact = length_exact;
    }
}

impl From<&Ensemble> for EnsembleProto {
    fn from(ensemble: &Ensemble) -> Self {
        let bookies = ensemble.bookies.iter().map(|b| b.as_str().to_owned()).collect();
        Self { first: ensemble.first.0 as u64, bookies }
    }
}

impl From<EnsembleProto> for Ensemble {
    fn from(proto: EnsembleProto) -> Self {
        let bookies = proto.bookies.into_iter().map(BookieId::new).collect();
        Self { first: EntryId(proto.first as i64), bookies }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(ids: &[&str]) -> Vec<BookieId> {
        ids.iter().map(|id| BookieId::new(*id)).collect()
    }

    fn sample() -> LedgerRecord {
        let options = LedgerOptions {
            ensemble_size: 2,
            write_quorum: 2,
            ack_quorum: 1,
            properties: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        };
        LedgerRecord::new(Layout::new(2, 2, 1).unwrap(), options, names(&["a", "b"]), 300)
    }

    #[test]
    fn golden_bytes() {
        let mut record = sample();
        record.change_ensemble(EntryId(5), names(&["c", "b"]));
        record.close(EntryId(6), 129, false);
        let golden = [
            &[1u8][..],                                        // version
            &[0x08, 2, 0x10, 2, 0x18, 2, 0x20, 1],             // CLOSED, E, Qw, Qa
            &[0x2a, 6, 0x0a, 1, b'k', 0x12, 1, b'v'],          // properties
            &[0x30, 0xac, 0x02],                               // created
            &[0x3a, 6, 0x12, 1, b'a', 0x12, 1, b'b'],          // from entry 0
            &[0x3a, 8, 0x08, 5, 0x12, 1, b'c', 0x12, 1, b'b'], // from entry 5
            &[0x40, 7, 0x48, 0x81, 0x01, 0x50, 1],             // 7 entries, 129 bytes, estimated
        ]
        .concat();
        assert_eq!(&record.encode()[..], &golden[..]);
        assert_eq!(LedgerRecord::decode(&golden), Ok(record));
    }

    #[test]
    fn records_that_break_a_rule_are_refused() {
        let mut swapped = sample();
        swapped.ensembles.push(Ensemble { first: EntryId(0), bookies: names(&["a", "b"]) });
        let mut short = sample();
        short.ensembles[0].bookies.pop();
        let mut none = sample();
        none.ensembles.clear();
        for bad in [swapped.encode(), short.encode(), none.encode(), Bytes::new(), Bytes::from_static(&[9, 0])] {
            assert!(matches!(LedgerRecord::decode(&bad), Err(MetadataError::Corrupt(_))), "{bad:?}");
        }
    }

    #[test]
    fn an_entry_has_one_ensemble() {
        let mut record = sample();
        record.change_ensemble(EntryId(5), names(&["c", "b"]));
        record.change_ensemble(EntryId(5), names(&["d", "b"]));
        assert_eq!(record.ensembles.len(), 2);
        assert_eq!(record.ensemble_of(EntryId(4)), (&record.ensembles[0], EntryId(5)));
        assert_eq!(record.ensemble_of(EntryId(5)).0.bookies, names(&["d", "b"]));
        record.change_ensemble(EntryId(0), names(&["x", "y"]));
        assert_eq!(record.ensembles.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = LedgerRecord::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = RECORD_VERSION;
                if let Ok(record) = LedgerRecord::decode(&bytes) {
                    prop_assert_eq!(LedgerRecord::decode(&record.encode()), Ok(record));
                }
            }
        }

        #[test]
        fn records_read_back(firsts in proptest::collection::btree_set(1i64..1000, 0..6), last in -1i64..2000,
                             length in 0u64..1 << 50, closed: bool, exact: bool) {
            let mut record = sample();
            for first in firsts {
                record.change_ensemble(EntryId(first), names(&["p", "q"]));
            }
            if closed {
                record.close(EntryId(last), length, exact);
            }
            prop_assert_eq!(LedgerRecord::decode(&record.encode()), Ok(record));
        }
    }
}
