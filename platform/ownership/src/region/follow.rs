//! Follows the records: reads all of them, then watches.
//!
//! Invariants: a change is seen by the table at least once; after a gap everything is read anew.

use super::RegionOwnership;
use crate::records::{self, BROKERS, OWNERSHIP};
use crate::table::Change;
use bytes::Bytes;
use meridian_metadata::{MetadataError, Version, Watch, WatchEvent};
use std::collections::HashSet;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A whole reading may take as long as so many calls.
const READ_CALLS: u32 = 10;
/// Pause after a failed reading.
const RETRY: Duration = Duration::from_millis(200);

/// Runs until the broker has gone.
pub(super) async fn follow(weak: Weak<RegionOwnership>) {
    loop {
        let Some(region) = weak.upgrade() else { return };
        let limit = Duration::from_millis(region.config.call_limit_ms) * READ_CALLS;
        let begun = timeout(limit, region.read_all()).await.unwrap_or_else(|_| Err(silent("reading all records")));
        drop(region);
        let (mut brokers, mut ownership) = match begun {
            Ok(watches) => watches,
            Err(error) => {
                tracing::debug!(%error, "the records of ownership were not read");
                sleep(RETRY).await;
                continue;
            }
        };
        loop {
            let event = tokio::select! {
                event = brokers.next() => event,
                event = ownership.next() => event,
            };
            let Some(region) = weak.upgrade() else { return };
            match event {
                Some((WatchEvent::Put(entry), _)) => region.apply_put(&entry.key, &entry.value, entry.version),
                Some((WatchEvent::Delete { key, version }, _)) => region.apply_delete(&key, version),
                Some((WatchEvent::Rescan, _)) | None => break,
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// No call may wait for ever: whoever waits here holds up what follows from it.
fn silent(what: &str) -> MetadataError {
    MetadataError::Unavailable(format!("{what}: no answer in time"))
}

type Watches = (Box<dyn Watch>, Box<dyn Watch>);

impl RegionOwnership {
    async fn read_all(&self) -> Result<Watches, MetadataError> {
        let from = self.store.current_version().await?;
        let watches = (self.store.watch(BROKERS, Some(from)).await?, self.store.watch(OWNERSHIP, Some(from)).await?);
        let mut found = HashSet::new();
        for prefix in [BROKERS, OWNERSHIP] {
            for entry in self.store.scan(prefix).await? {
                self.apply_put(&entry.key, &entry.value, entry.version);
                found.insert(entry.key);
            }
        }
        let known = self.table.read().keys();
        for key in known.into_iter().filter(|key| !found.contains(key)) {
            self.apply_delete(&key, from);
        }
        self.stats.rescans.fetch_add(1, Ordering::Relaxed);
        self.known.store(true, Ordering::Release);
        self.moved.send_modify(|count| *count += 1);
        Ok(watches)
    }

    /// Reads single keys anew, past the watch, all at once.
    pub(super) async fn refresh(&self, keys: &[String]) -> Result<(), MetadataError> {
        let limit = Duration::from_millis(self.config.call_limit_ms);
        let mut reads = JoinSet::new();
        for key in keys {
            let (store, key, known) = (self.store.clone(), key.clone(), self.table.read().version(key));
            reads.spawn(async move {
                let found = timeout(limit, store.get(&key)).await.unwrap_or_else(|_| Err(silent(&key)));
                (key, known, found)
            });
        }
        let mut outcome = Ok(());
        while let Some(read) = reads.join_next().await {
            match read {
                Ok((_, _, Ok(Some(entry)))) => self.apply_put(&entry.key, &entry.value, entry.version),
                // It was deleted after the version that is known, whenever: a later record has a higher one still.
                Ok((key, Some(known), Ok(None))) => self.apply_delete(&key, Version(known.0 + 1)),
                Ok((_, None, Ok(None))) => {}
                Ok((_, _, Err(error))) => outcome = Err(error),
                Err(_) => outcome = Err(silent("a read that was cut short")),
            }
        }
        outcome
    }

    pub(super) fn apply_put(&self, key: &str, value: &Bytes, version: Version) {
        let applied = self.table.write().put(key, value, version);
        match applied {
            Ok(Some(change)) => self.changed(&change),
            Ok(None) => {}
            Err(error) => {
                self.stats.unreadable.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "a record of ownership can't be read and is passed over");
            }
        }
    }

    pub(super) fn apply_delete(&self, key: &str, version: Version) {
        let change = self.table.write().delete(key, version);
        if let Some(change) = change {
            self.changed(&change);
        }
    }

    /// What follows from a change: who lost a bundle closes its topics, who leads looks for those left behind.
    fn changed(&self, change: &Change) {
        if matches!(change, Change::Owner(_) | Change::Broker(_) | Change::Cut(_)) {
            self.changed.send_modify(|count| *count += 1);
        }
        match change {
            Change::Owner(bundle) => {
                let owner = self.table.read().owner(bundle).map(|owner| owner.record.clone());
                let mine = owner.is_some_and(|owner| self.is_mine(&owner.broker, owner.incarnation));
                let changed = {
                    let mut ours = self.ours.lock();
                    if mine { ours.insert(bundle.clone()) } else { ours.remove(bundle) }
                };
                if changed
                    && mine
                    && let Some(host) = self.host()
                {
                    host.gained(bundle.clone());
                }
                if changed && !mine {
                    self.moved.send_modify(|count| *count += 1);
                }
            }
            Change::Load => self.given.lock().clear(),
            Change::Cut(_) | Change::Broker(_) | Change::Leader | Change::Isolation => {}
        }
    }

    /// The keys that decide on a bundle.
    pub(super) fn keys_of(&self, bundle: &records::BundleId) -> Vec<String> {
        let mut keys = vec![records::owner_key(bundle), records::cut_key(&bundle.namespace)];
        if let Some(owner) = self.table.read().owner(bundle) {
            keys.push(records::broker_key(&owner.record.broker));
        }
        keys
    }
}
