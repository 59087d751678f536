//! Replicated subscriptions towards regions that are Apache Pulsar clusters: markers in the log.
//!
//! Role: the shell around [`SnapshotRounds`] and [`SnapshotCache`]: stores their markers as entries, hears of those that
//! came from other regions, follows mark-delete with updates.
//! Invariants: S1 a marker is never in anybody's backlog: it is acked on every subscription when it is stored; S2 a
//! snapshot counts when its marker is stored; S3 an update from elsewhere acks nothing beyond what this log holds: a
//! position that it does not know is of another life of the topic.
//! Failure: a marker that can't be stored is given up; the next tick or the next move of mark-delete makes up for it.
//! Must never know: which regions are connected, but by what it is told each second.

use super::PersistentTopic;
use super::consuming::REPLICATED_PROPERTY;
use super::subscription::Subscription;
use crate::api::TopicError;
use crate::sharing::{SnapshotSetup, SnapshotSharing};
use bytes::{Bytes, BytesMut};
use meridian_cursors::snapshot::{
    ClusterPosition, Figures, MARKER_PRODUCER, Marker, SnapshotCache, SnapshotRounds, Tick, ToWrite,
};
use meridian_managed_ledger::{AckPosition, AppendRequest, Appended, InitialPosition};
use meridian_types::Position;
use meridian_wire::payload;
use meridian_wire::proto::MessageMetadata;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens of markers; producers count from 1.
const MARKER_TOKENS: u64 = 1 << 63;
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(MARKER_TOKENS);

/// A snapshot whose marker is being stored.
struct Writing {
    id: String,
    local: Position,
    clusters: Vec<ClusterPosition>,
}

struct Inner {
    setup: SnapshotSetup,
    rounds: SnapshotRounds,
    caches: BTreeMap<Arc<str>, SnapshotCache>,
    writing: HashMap<u64, Writing>,
    /// The last entry that is no marker, and up to where that is known.
    last_message: Position,
    seen_to: Position,
    next_id: u64,
}

/// See the head of the file; nothing is kept for a topic without Pulsar clusters around.
#[derive(Default)]
pub(super) struct Snapshots {
    inner: Mutex<Option<Box<Inner>>>,
}

impl Snapshots {
    /// The subscription was moved: its snapshots say nothing any more.
    pub(super) fn forget(&self, subscription: &str) {
        if let Some(inner) = self.inner.lock().as_mut() {
            inner.caches.remove(subscription);
        }
    }

    fn with<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        self.inner.lock().as_mut().map(|inner| change(inner))
    }
}

fn is_replicated(subscription: &Subscription) -> bool {
    let properties = subscription.cursor.properties();
    subscription.durable && properties.get(REPLICATED_PROPERTY).is_some_and(|value| value == "1")
}

fn entry_of(write: &ToWrite, now_ms: u64) -> Bytes {
    let metadata = MessageMetadata {
        producer_name: MARKER_PRODUCER.to_owned(),
        sequence_id: 0,
        publish_time: now_ms,
        marker_type: Some(write.marker.kind().number()),
        replicate_to: write.only_to.iter().cloned().collect(),
        ..MessageMetadata::default()
    };
    let mut entry = BytesMut::new();
    payload::encode(&metadata, &write.marker.encode(), &mut entry);
    entry.freeze()
}

impl SnapshotSharing for PersistentTopic {
    fn tick_snapshots(&self, setup: SnapshotSetup) {
        let replicated: Vec<_> = self.all_subscriptions().into_iter().filter(|one| is_replicated(one)).collect();
        let idle = replicated.is_empty() || setup.remotes.is_empty() || self.is_closed();
        if idle && self.snapshots.inner.lock().is_none() {
            return;
        }
        self.set_up_snapshots(setup);
        let updates: Vec<Marker> = replicated.iter().filter_map(|subscription| self.passed(subscription)).collect();
        for marker in updates {
            self.write_marker(ToWrite { marker, only_to: None });
        }
        let Some(topic) = self.me.upgrade().filter(|_| !replicated.is_empty()) else { return };
        self.deps.runtime.spawn(async move {
            if let Err(error) = topic.begin_snapshot().await {
                tracing::debug!(topic = %topic.name, %error, "no snapshot of subscriptions is begun");
            }
        });
    }

    fn subscription_marker(&self, setup: SnapshotSetup, kind: i32, entry: Bytes, position: Position) {
        let decoded = payload::split(&entry).ok().map(|parts| Marker::decode(kind, parts.payload));
        let marker = match decoded {
            Some(Ok(marker)) => marker,
            Some(Err(error)) => {
                tracing::info!(topic = %self.name, %position, %error, "an unreadable marker is passed over");
                return;
            }
            None => return,
        };
        self.set_up_snapshots(setup);
        let write = match marker {
            Marker::Request { snapshot_id, source_cluster } => {
                let last = self.log.last_confirmed();
                self.snapshots.with(|inner| inner.rounds.asked(&snapshot_id, &source_cluster, last))
            }
            Marker::Response { snapshot_id, cluster } => {
                self.snapshots.with(|inner| inner.rounds.answered(&snapshot_id, &cluster, position)).flatten()
            }
            Marker::Update { .. } => return self.follow_update(&marker),
            Marker::Snapshot { .. } => return,
        };
        if let Some(write) = write {
            self.write_marker(write);
        }
    }

    fn snapshot_figures(&self) -> Option<Figures> {
        self.snapshots.with(|inner| inner.rounds.figures())
    }
}

impl PersistentTopic {
    fn set_up_snapshots(&self, setup: SnapshotSetup) {
        let mut inner = self.snapshots.inner.lock();
        match inner.as_mut() {
            Some(inner) => inner.setup = setup,
            None => {
                *inner = Some(Box::new(Inner {
                    rounds: SnapshotRounds::new(setup.own.clone(), setup.rounds),
                    setup,
                    caches: BTreeMap::new(),
                    writing: HashMap::new(),
                    last_message: Position::EARLIEST,
                    seen_to: Position::EARLIEST,
                    next_id: 0,
                }));
            }
        }
    }

    fn passed(&self, subscription: &Subscription) -> Option<Marker> {
        let mark_delete = subscription.cursor.mark_delete();
        let passed =
            |inner: &mut Inner| inner.caches.get_mut(&subscription.name)?.passed(mark_delete, &subscription.name);
        self.snapshots.with(passed).flatten()
    }

    async fn begin_snapshot(&self) -> Result<(), TopicError> {
        let last = self.log.last_confirmed();
        if self.snapshots.with(|inner| inner.seen_to) != Some(last) {
            let message = self.last_dispatchable().await?.map_or(Position::EARLIEST, |entry| entry.position);
            self.snapshots.with(|inner| (inner.last_message, inner.seen_to) = (message, last));
        }
        let now_ms = self.now_ms();
        let write = self.snapshots.with(|inner| {
            let Inner { setup, rounds, next_id, last_message, .. } = inner;
            *next_id += 1;
            let id = || format!("{}-{now_ms:x}-{next_id:x}", setup.own);
            let tick =
                Tick { now_ms, last_message: *last_message, remotes: &setup.remotes, connected: setup.connected };
            rounds.tick(tick, id)
        });
        if let Some(write) = write.flatten() {
            self.write_marker(write);
        }
        Ok(())
    }

    fn write_marker(&self, write: ToWrite) {
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        let payload = entry_of(&write, self.now_ms());
        if let Marker::Snapshot { snapshot_id: id, local, clusters } = write.marker {
            self.snapshots.with(|inner| inner.writing.insert(token, Writing { id, local, clusters }));
        }
        // Not under a lock: the answer may come at once.
        self.log.append(vec![AppendRequest { payload, messages: 0, marker: true, origin: None, token }]);
    }

    /// Entries are durable; markers among them are nobody's backlog (S1).
    pub(super) fn markers_stored(&self, entries: &[Appended]) {
        if entries.iter().all(|entry| entry.messages != 0) {
            return;
        }
        let markers: Vec<AckPosition> = entries
            .iter()
            .filter(|entry| entry.messages == 0)
            .map(|entry| AckPosition { position: entry.position, unacked_batch_indexes: None, messages: 0 })
            .collect();
        for subscription in self.all_subscriptions().iter().filter(|one| one.durable) {
            subscription.cursor.ack(&markers);
        }
        for entry in entries.iter().filter(|entry| entry.token >= MARKER_TOKENS) {
            let stored = self.snapshots.with(|inner| inner.writing.remove(&entry.token)).flatten();
            if let Some(snapshot) = stored {
                self.snapshot_stored(snapshot);
            }
        }
    }

    fn snapshot_stored(&self, snapshot: Writing) {
        let (now_ms, Writing { id, local, clusters }) = (self.now_ms(), snapshot);
        let names: Vec<Arc<str>> =
            self.all_subscriptions().iter().filter(|one| is_replicated(one)).map(|one| one.name.clone()).collect();
        self.snapshots.with(|inner| {
            inner.rounds.written(&id, true, now_ms);
            let max = inner.setup.cached;
            inner.caches.retain(|name, _| names.contains(name));
            for name in names {
                let cache = inner.caches.entry(name).or_insert_with(|| SnapshotCache::new(max));
                cache.add(local, clusters.clone(), |from, to| self.log.entries_between(from, to));
            }
        });
    }

    /// Appends were refused; snapshots among them are given up.
    pub(super) fn markers_failed(&self, tokens: &[u64]) {
        let now_ms = self.now_ms();
        for token in tokens.iter().filter(|token| **token >= MARKER_TOKENS) {
            self.snapshots.with(|inner| {
                if let Some(writing) = inner.writing.remove(token) {
                    inner.rounds.written(&writing.id, false, now_ms);
                }
            });
        }
    }

    /// Another region says how far a subscription is (S3).
    fn follow_update(&self, marker: &Marker) {
        let Some(own) = self.snapshots.with(|inner| inner.setup.own.clone()) else { return };
        let Some(position) = marker.position_for(&own) else { return };
        let (Marker::Update { subscription, .. }, Some(topic)) = (marker, self.me.upgrade()) else { return };
        if position > self.log.last_confirmed() {
            tracing::info!(topic = %self.name, subscription, %position, "an update of another life of the topic is passed over");
            return;
        }
        let name = subscription.clone();
        self.deps.runtime.spawn(async move {
            let properties = BTreeMap::from([(REPLICATED_PROPERTY.to_owned(), "1".to_owned())]);
            match topic.create(&name, true, InitialPosition::Earliest, properties).await {
                Ok(subscription) => {
                    let ack = AckPosition { position, unacked_batch_indexes: None, messages: 0 };
                    if subscription.durable && subscription.cursor.ack_cumulative(ack).moved {
                        topic.acked_by_others(&subscription);
                        topic.sharing.wake();
                    }
                }
                Err(error) => {
                    tracing::warn!(topic = %topic.name, subscription = name, %error, "another region's update has no subscription");
                }
            }
        });
    }
}
