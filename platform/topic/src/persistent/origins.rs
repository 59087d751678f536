//! Links of a topic: marks of origins restored when it is loaded, snapshots while it runs.
//!
//! Role: as with deduplication, a snapshot stands in a property of an internal cursor whose mark-delete is the last entry
//! that it covers, and the envelopes behind it are read again. The cursor is made before the first link is let in, so
//! that nothing of a link is stored before it; topics without links cost nothing.
//! Failure: a snapshot that can't be written is tried again; one that can't be read is as none, and everything that the log
//! still has is replayed.

use super::PersistentTopic;
use super::deduplicating::{from_hex, to_hex};
use crate::api::{ProducerKey, StoredOrigin, TopicError};
use crate::origins::{LinkIdentity, Origin, OriginMarks, OriginSnapshot, Source};
use meridian_managed_ledger::{AckPosition, Cursor, CursorOptions, InitialPosition, LogEntry, LogError};
use meridian_types::Position;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The internal cursor.
const ORIGINS_CURSOR: &str = "meridian.origins";
/// Its property with the snapshot, as hexadecimal digits.
const SNAPSHOT_PROPERTY: &str = "origins.snapshot";
/// A snapshot is written after so many entries of the log,
const SNAPSHOT_EVERY_ENTRIES: u64 = 10_000;
/// and at least that often if there were any.
const SNAPSHOT_EVERY_MS: u64 = 120_000;
const REPLAY_ENTRIES: u32 = 1000;
const REPLAY_BYTES: u64 = 4 << 20;

/// What a topic keeps of its links beside their producers.
#[derive(Default)]
pub(super) struct OriginsState {
    /// Who sends over which link; those that are gone leave at the next one's coming.
    links: RwLock<BTreeMap<ProducerKey, Arc<LinkIdentity>>>,
    /// One start at a time.
    starting: tokio::sync::Mutex<()>,
    snapshotting: AtomicBool,
}

impl PersistentTopic {
    /// Whether the topic ever had a link.
    pub(super) fn has_origins(&self) -> bool {
        self.log.cursor(ORIGINS_CURSOR).is_some()
    }

    pub(super) fn note_link(&self, key: ProducerKey, link: Arc<LinkIdentity>) {
        let guard = self.producers.lock();
        let mut links = self.origins.links.write();
        links.retain(|key, _| guard.as_ref().is_some_and(|side| side.core.link(*key).is_some()));
        links.insert(key, link);
    }

    pub(super) fn link_of(&self, key: ProducerKey) -> Option<Arc<LinkIdentity>> {
        self.origins.links.read().get(&key).cloned()
    }

    /// What is stored of each origin; brings the marks up to date first.
    pub(super) async fn stored_origin_marks(&self) -> Result<Vec<StoredOrigin>, TopicError> {
        if !self.has_origins() {
            return Ok(Vec::new());
        }
        self.ensure_origins().await?;
        let guard = self.producers.lock();
        let origins = guard.as_ref().and_then(|side| side.core.origins.as_ref());
        let mark = |(source, figures): (Source, crate::origins::OriginFigures)| {
            (source.region, source.incarnation, figures.persisted)
        };
        Ok(origins.map(|origins| origins.all().map(mark).collect()).unwrap_or_default())
    }

    fn origins_run(&self) -> bool {
        self.producers.lock().as_ref().is_some_and(|side| side.core.origins.is_some())
    }

    /// Brings the marks up to date and puts them in force, if they are not.
    pub(super) async fn ensure_origins(&self) -> Result<(), TopicError> {
        if self.origins_run() {
            return Ok(());
        }
        let _turn = self.origins.starting.lock().await;
        if self.origins_run() {
            return Ok(());
        }
        let internal = CursorOptions { durable: true, internal: true, properties: BTreeMap::new() };
        let cursor = self.log.open_cursor(ORIGINS_CURSOR, InitialPosition::Latest, internal).await?;
        let now_ms = self.now_ms();
        let (mut marks, mut covered) = match self.stored_origins(&cursor) {
            Some(snapshot) => (OriginMarks::restore(&snapshot, now_ms), snapshot.covered),
            None => (OriginMarks::new(now_ms), cursor.mark_delete()),
        };
        loop {
            covered = self.replay_origins(&mut marks, covered).await?;
            let mut waiting = Some(marks);
            self.with_producers(|side| {
                // Only if nothing was confirmed since: the lock keeps confirmations out.
                if self.log.last_confirmed() <= covered
                    && let Some(marks) = waiting.take()
                {
                    side.core.start_origins(Box::new(marks), covered);
                }
            });
            match waiting {
                None => return Ok(()),
                Some(again) => marks = again,
            }
        }
    }

    fn stored_origins(&self, cursor: &Cursor) -> Option<OriginSnapshot> {
        let text = cursor.properties().remove(SNAPSHOT_PROPERTY)?;
        match OriginSnapshot::decode(&from_hex(&text)?) {
            Ok(snapshot) => Some(snapshot),
            Err(error) => {
                tracing::error!(topic = %self.name, %error, "the stored marks of origins are unreadable");
                None
            }
        }
    }

    /// Reads everything behind `covered`; up to where.
    async fn replay_origins(&self, marks: &mut OriginMarks, covered: Position) -> Result<Position, LogError> {
        let mut covered = covered;
        loop {
            let entries = self.log.read(covered.next_in_ledger(), REPLAY_ENTRIES, REPLAY_BYTES).await?;
            let Some(last) = entries.last() else { return Ok(covered) };
            covered = last.position;
            for entry in entries.iter().filter(|entry| !self.is_own(entry)) {
                let (region, incarnation, position) = entry.origin;
                let origin = Origin { source: Source { region, incarnation }, position };
                marks.replayed(&origin, entry.broker_time_ms);
            }
        }
    }

    /// Whether an entry was first stored here.
    pub(super) fn is_own(&self, entry: &LogEntry) -> bool {
        entry.origin.2 == entry.position && entry.origin.1 == self.log.incarnation()
    }

    /// Starts a snapshot if one is due and none is being written.
    pub(super) fn snapshot_origins_if_due(&self, now_ms: u64) {
        let snapshot = {
            let mut guard = self.producers.lock();
            let Some(core) = guard.as_mut().map(|side| &mut side.core) else { return };
            let covered = core.confirmed_to();
            let Some(origins) = core.origins.as_mut() else { return };
            if !origins.snapshot_due(now_ms, SNAPSHOT_EVERY_ENTRIES, SNAPSHOT_EVERY_MS)
                || self.origins.snapshotting.swap(true, Ordering::AcqRel)
            {
                return;
            }
            origins.snapshot(covered, now_ms)
        };
        let Some(topic) = self.me.upgrade() else { return };
        self.deps.runtime.spawn(async move {
            if let Err(error) = topic.write_origins(&snapshot).await {
                tracing::warn!(topic = %topic.name, %error, "marks of origins were not stored, trying again");
            }
            topic.origins.snapshotting.store(false, Ordering::Release);
        });
    }

    async fn write_origins(&self, snapshot: &OriginSnapshot) -> Result<(), LogError> {
        let Some(cursor) = self.log.cursor(ORIGINS_CURSOR) else { return Ok(()) };
        let mut properties = cursor.properties();
        properties.insert(SNAPSHOT_PROPERTY.to_owned(), to_hex(&snapshot.encode()));
        cursor.set_properties(properties).await?;
        // Only now may the entries that it covers go.
        cursor.ack_cumulative(AckPosition { position: snapshot.covered, unacked_batch_indexes: None, messages: 0 });
        Ok(())
    }
}
