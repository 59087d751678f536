//! The stored head of an open log.
//!
//! Invariants: L2 every write is a compare-and-set on the version that this owner wrote last; who finds another version has
//! lost the log and stops. A write of unknown outcome is read back: (epoch, revision) tell whether it was applied.
//! Old closed ledgers move from the head into segments in the write that would make the head too long.

use super::ManagedLedger;
use crate::api::LogError;
use crate::keys;
use crate::records::{HeadRecord, LedgerRecord, SEGMENT_LEDGERS, SegmentRecord, TAIL_LEDGERS, decode, encode};
use meridian_metadata::{Condition, MetadataError, Operation, Version};
use std::collections::VecDeque;

/// A stored segment: its number and its ledgers, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Segment {
    pub number: u64,
    pub record: SegmentRecord,
}

/// What is stored, as this owner knows it.
#[derive(Debug)]
pub(crate) struct Meta {
    pub head: HeadRecord,
    pub version: Version,
    pub segments: VecDeque<Segment>,
}

impl Meta {
    /// All ledgers, oldest first.
    pub fn ledgers(&self) -> impl Iterator<Item = &LedgerRecord> {
        self.segments.iter().flat_map(|segment| &segment.record.ledgers).chain(&self.head.ledgers)
    }
}

/// Cuts segments off a head that has grown too long.
pub(crate) fn cut_segments(head: &mut HeadRecord) -> Vec<Segment> {
    let mut cut = Vec::new();
    while head.ledgers.iter().take_while(|ledger| ledger.closed_ms.is_some()).count() > TAIL_LEDGERS {
        let ledgers = head.ledgers.drain(..SEGMENT_LEDGERS).collect();
        cut.push(Segment { number: head.next_segment, record: SegmentRecord { ledgers } });
        head.next_segment += 1;
    }
    cut
}

impl ManagedLedger {
    /// Writes an edited head (with ledgers closed since) and `extra` in one transaction. A conflict on a key that is none
    /// of the log's is the caller's.
    pub(crate) async fn commit_head(
        &self,
        meta: &mut Meta,
        mut head: HeadRecord,
        mut extra: Vec<Operation>,
    ) -> Result<(), LogError> {
        self.note_closed(&mut head);
        let cut = cut_segments(&mut head);
        head.revision = meta.head.revision + 1;
        for segment in &cut {
            let key = keys::segment(&self.name, segment.number);
            extra.push(put(key, encode(&segment.record), Condition::Any));
        }
        extra.insert(0, put(keys::head(&self.name), encode(&head), Condition::Is(meta.version)));
        let version = match self.shared.metadata.commit(extra).await {
            Ok(version) => version,
            Err(MetadataError::UnknownOutcome(why)) => self.read_back(&head, why).await?,
            Err(MetadataError::Conflict { key, .. }) if key.starts_with(&keys::log(&self.name)) => {
                return Err(self.lost(&key));
            }
            Err(error) => return Err(error.into()),
        };
        meta.head = head;
        meta.version = version;
        meta.segments.extend(cut);
        *self.head_version.lock() = version;
        Ok(())
    }

    /// Was the write of `head` applied?
    async fn read_back(&self, head: &HeadRecord, why: String) -> Result<Version, LogError> {
        let key = keys::head(&self.name);
        let Some(entry) = self.shared.metadata.get(&key).await? else { return Err(self.lost(&key)) };
        let stored: HeadRecord = decode(&entry.value, "head")?;
        if stored.owner_epoch != head.owner_epoch || stored.incarnation != head.incarnation {
            return Err(self.lost(&key));
        }
        if stored.revision == head.revision {
            return Ok(entry.version);
        }
        Err(MetadataError::UnknownOutcome(why).into())
    }

    /// Another owner has the log: this one stops for ever.
    fn lost(&self, key: &str) -> LogError {
        let error = LogError::Fenced(self.name.to_string());
        tracing::warn!(log = %self.name, key, "log is owned by a later epoch; stopping");
        self.stop(error.clone());
        error
    }

    /// Brings ledgers that were closed since the last write into the record.
    fn note_closed(&self, head: &mut HeadRecord) {
        let view = self.view.lock();
        for record in head.ledgers.iter_mut().filter(|record| record.closed_ms.is_none()) {
            let state = view.layout.ledger(meridian_types::LedgerId(record.ledger_id));
            if let Some((state, closed_ms)) = state.and_then(|state| Some((state, state.closed_ms?))) {
                *record = LedgerRecord::closed(state, closed_ms);
            }
        }
    }

    /// Commits operations that do not touch the head, as long as this owner has the log (L2).
    pub(crate) async fn commit_owned(&self, operations: Vec<Operation>) -> Result<(), LogError> {
        loop {
            let version = *self.head_version.lock();
            let mut all = operations.clone();
            all.push(Operation::Check { key: keys::head(&self.name), condition: Condition::Is(version) });
            match self.shared.metadata.commit(all).await {
                Ok(_) => return Ok(()),
                Err(MetadataError::Conflict { key, .. }) if key == keys::head(&self.name) => {
                    // Our own roll may have been faster. The lock waits for its end.
                    let _meta = self.meta.lock().await;
                    if *self.head_version.lock() == version {
                        return Err(self.lost(&key));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A write of one key.
pub(crate) fn put(key: String, value: bytes::Bytes, condition: Condition) -> Operation {
    Operation::Put { key, value, condition, ephemeral: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_into_segments_and_the_head_stays_short() {
        let mut head = HeadRecord::default();
        let mut segments = Vec::new();
        for id in 0..1000 {
            if let Some(last) = head.ledgers.last_mut() {
                last.closed_ms = Some(1);
            }
            head.ledgers.push(LedgerRecord { ledger_id: id, ..LedgerRecord::default() });
            segments.extend(cut_segments(&mut head));
            assert!(head.ledgers.len() <= TAIL_LEDGERS + 1);
        }
        let numbers: Vec<u64> = segments.iter().map(|segment| segment.number).collect();
        assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
        let all = segments.iter().flat_map(|segment| &segment.record.ledgers).chain(&head.ledgers);
        assert!(all.map(|ledger| ledger.ledger_id).eq(0..1000));
    }
}
