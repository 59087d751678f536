//! Deduplication of a topic: marks restored when it is loaded or switched on, snapshots while it runs.
//!
//! Role: the snapshot stands in a property of an internal cursor, whose mark-delete is the last entry that it covers; the
//! entries behind it are read again at the start, so that the marks are exact after any crash.
//! Failure: a snapshot that can't be written is tried again; one that can't be read is as none, and everything that the log
//! still has is replayed.

use super::PersistentTopic;
use crate::api::TopicError;
use crate::dedup::{Dedup, Sequence, Snapshot};
use meridian_managed_ledger::{AckPosition, Cursor, CursorOptions, InitialPosition, LogEntry, LogError};
use meridian_types::Position;
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::summarize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The internal cursor.
const DEDUP_CURSOR: &str = "pulsar.dedup";
/// Its property with the snapshot, as hexadecimal digits.
const SNAPSHOT_PROPERTY: &str = "dedup.snapshot";
/// A producer's mark is forgotten after so long without a send.
const FORGET_IDLE_MS: u64 = 360 * 60_000;
const REPLAY_ENTRIES: u32 = 1000;
const REPLAY_BYTES: u64 = 4 << 20;

impl PersistentTopic {
    /// Brings the marks up to date and puts deduplication in force.
    pub(super) async fn start_dedup(&self) -> Result<(), TopicError> {
        let limits = self.limits();
        let internal = CursorOptions { durable: true, internal: true, properties: BTreeMap::new() };
        let cursor = self.log.open_cursor(DEDUP_CURSOR, InitialPosition::Latest, internal).await?;
        let now_ms = self.now_ms();
        let exact = limits.global_producers;
        let snapshot = self.stored_snapshot(&cursor).filter(|snapshot| snapshot.exact == exact);
        let (mut dedup, mut covered) = match &snapshot {
            // Of everything that the log still has, by whichever way it came.
            None if exact => (Dedup::exact(limits.dedup_max_producers, now_ms), Position::EARLIEST),
            Some(snapshot) => (Dedup::restore(snapshot, limits.dedup_max_producers, now_ms), snapshot.covered),
            None => (Dedup::new(limits.dedup_max_producers, now_ms), cursor.mark_delete()),
        };
        loop {
            covered = self.replay(&mut dedup, covered).await?;
            let mut waiting = Some(dedup);
            self.with_producers(|side| {
                // Only if nothing was confirmed since: the lock keeps confirmations out.
                if self.log.last_confirmed() <= covered {
                    side.core.start_dedup(waiting.take().map(Box::new), covered, now_ms);
                }
            });
            match waiting {
                None => return Ok(()),
                Some(again) => dedup = again,
            }
        }
    }

    fn stored_snapshot(&self, cursor: &Cursor) -> Option<Snapshot> {
        let text = cursor.properties().remove(SNAPSHOT_PROPERTY)?;
        match Snapshot::decode(&from_hex(&text)?) {
            Ok(snapshot) => Some(snapshot),
            Err(error) => {
                tracing::error!(topic = %self.name, %error, "the stored deduplication marks are unreadable");
                None
            }
        }
    }

    /// Reads everything behind `covered`; up to where.
    async fn replay(&self, dedup: &mut Dedup, covered: Position) -> Result<Position, LogError> {
        let mut covered = covered;
        loop {
            let entries = self.log.read(covered.next_in_ledger(), REPLAY_ENTRIES, REPLAY_BYTES).await?;
            let Some(last) = entries.last() else { return Ok(covered) };
            covered = last.position;
            // By default a name is another producer in each region.
            let counts = |entry: &&LogEntry| !entry.marker && (dedup.is_exact() || self.is_own(entry));
            let counted: Vec<&LogEntry> = entries.iter().filter(counts).collect();
            for entry in counted {
                let summary = summarize(&entry.payload).ok();
                // A link that told no position left its entries with an origin here.
                let foreign =
                    |summary: &MetadataSummary<'_>| summary.replicated_from.is_some_and(|name| !name.is_empty());
                if let Some(summary) = summary.filter(|summary| dedup.is_exact() || !foreign(summary)) {
                    dedup.replayed(summary.producer_name, &Sequence::of(&summary), entry.broker_time_ms);
                }
            }
        }
    }

    /// How deduplication should know producers by the limits (`None` = not at all), if that is not how it does.
    fn dedup_to_change(&self) -> Option<Option<bool>> {
        let limits = self.limits();
        let wanted = (limits.deduplication || limits.global_producers).then_some(limits.global_producers);
        let guard = self.producers.lock();
        let running = guard.as_ref().and_then(|side| side.core.dedup.as_ref()).map(|dedup| dedup.is_exact());
        (wanted != running).then_some(wanted)
    }

    /// Whether the limits ask for another deduplication than there is.
    pub(super) fn dedup_pending(&self) -> bool {
        self.dedup_to_change().is_some()
    }

    /// Switches deduplication on or off, or to another way of knowing producers, as the limits say. One at a time: of
    /// two changes that follow each other the later one holds.
    pub(super) async fn put_dedup_in_force(&self) {
        let _one = self.switching_dedup.lock().await;
        let Some(wanted) = self.dedup_to_change() else { return };
        let result = if wanted.is_some() {
            self.start_dedup().await
        } else {
            self.with_producers(|side| side.core.dedup = None);
            self.log.delete_cursor(DEDUP_CURSOR).await.map_err(TopicError::from)
        };
        if let Err(error) = result {
            tracing::warn!(topic = %self.name, %error, wanted = wanted.is_some(), "switching deduplication failed");
        }
    }

    /// Starts what [`Self::put_dedup_in_force`] does, if anything is to be done.
    pub(super) fn follow_dedup_limit(&self) {
        let Some(topic) = self.me.upgrade().filter(|topic| topic.dedup_pending()) else { return };
        self.deps.runtime.spawn(async move { topic.put_dedup_in_force().await });
    }

    /// Starts a snapshot if one is due and none is being written.
    pub(super) fn snapshot_if_due(&self, now_ms: u64) {
        let (entries, every_ms) = {
            let limits = self.limits.read();
            // 0 = by entries alone.
            let every_s = Some(limits.dedup_snapshot_s).filter(|seconds| *seconds > 0);
            let every_ms = every_s.map_or(u64::MAX, |seconds| u64::from(seconds) * 1000);
            (u64::from(limits.dedup_snapshot_entries), every_ms)
        };
        let snapshot = {
            let mut guard = self.producers.lock();
            let Some(core) = guard.as_mut().map(|side| &mut side.core) else { return };
            let covered = core.confirmed_to();
            let Some(dedup) = core.dedup.as_mut() else { return };
            dedup.forget_idle(now_ms, FORGET_IDLE_MS);
            if !dedup.snapshot_due(now_ms, entries, every_ms) || self.snapshotting.swap(true, Ordering::AcqRel) {
                return;
            }
            dedup.snapshot(covered, now_ms)
        };
        let Some(topic) = self.me.upgrade() else { return };
        self.deps.runtime.spawn(async move {
            if let Err(error) = topic.write_snapshot(&snapshot).await {
                tracing::warn!(topic = %topic.name, %error, "deduplication marks were not stored, trying again");
            }
            topic.snapshotting.store(false, Ordering::Release);
        });
    }

    async fn write_snapshot(&self, snapshot: &Snapshot) -> Result<(), LogError> {
        let Some(cursor): Option<Arc<Cursor>> = self.log.cursor(DEDUP_CURSOR) else { return Ok(()) };
        let mut properties = cursor.properties();
        properties.insert(SNAPSHOT_PROPERTY.to_owned(), to_hex(&snapshot.encode()));
        cursor.set_properties(properties).await?;
        // Only now may the entries that it covers go.
        let ack = AckPosition { position: snapshot.covered, unacked_batch_indexes: None, messages: 0 };
        cursor.ack_cumulative(ack);
        Ok(())
    }
}

pub(super) fn to_hex(raw: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    raw.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::{from_hex, to_hex};

    #[test]
    fn hex_goes_both_ways() {
        assert_eq!(to_hex(&[0, 0xa5, 0xff]), "00a5ff");
        assert_eq!(from_hex("00a5ff"), Some(vec![0, 0xa5, 0xff]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
    }
}
