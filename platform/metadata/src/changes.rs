//! The log of recent changes and the watches fed from it.
//!
//! Role: keeps the latest changes in memory, bounded, for watches that are resumed; hands each change to the watches of
//! its prefix.
//! Invariants: M3 changes are published in version order; a watch that is resumed below the floor of the log, or above
//! the latest version, or whose queue overflows, is told [`WatchEvent::Rescan`]; the position given with any event but a
//! transaction's last is the version before it, so that resuming never skips the rest of the transaction.
//! Failure: none; a lost change is a rescan. A closed hub ends its watches after what they still hold.
//! Must never know: stores, sessions.

use crate::limits::{CHANGE_LOG_BYTES, CHANGE_LOG_EVENTS, WATCH_QUEUE_BYTES, WATCH_QUEUE_EVENTS};
use crate::store::{BoxFuture, Version, Watch, WatchEvent};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

fn key_of(event: &WatchEvent) -> &str {
    match event {
        WatchEvent::Put(entry) => &entry.key,
        WatchEvent::Delete { key, .. } => key,
        WatchEvent::Rescan => "",
    }
}

fn bytes_of(event: &WatchEvent) -> usize {
    match event {
        WatchEvent::Put(entry) => entry.key.len() + entry.value.len(),
        WatchEvent::Delete { key, .. } => key.len(),
        WatchEvent::Rescan => 0,
    }
}

/// The latest changes, bounded.
struct ChangeLog {
    events: VecDeque<(Version, WatchEvent)>,
    bytes: usize,
    /// All changes above it are held.
    floor: Version,
}

impl ChangeLog {
    fn push(&mut self, version: Version, event: &WatchEvent) {
        self.bytes += bytes_of(event);
        self.events.push_back((version, event.clone()));
        while self.events.len() > CHANGE_LOG_EVENTS || self.bytes > CHANGE_LOG_BYTES {
            let Some((version, event)) = self.events.pop_front() else { return };
            self.bytes -= bytes_of(&event);
            self.floor = version;
        }
    }
}

/// What waits for one watcher.
struct Pending {
    events: VecDeque<(WatchEvent, Version)>,
    bytes: usize,
    closed: bool,
}

struct Watcher {
    prefix: String,
    pending: Mutex<Pending>,
    arrived: Notify,
}

impl Watcher {
    /// Queues the events of one version that are under the prefix.
    fn offer<'a>(&self, version: Version, events: impl Iterator<Item = &'a WatchEvent>) {
        let mut events = events.filter(|event| key_of(event).starts_with(&self.prefix)).peekable();
        if events.peek().is_none() {
            return;
        }
        let mut pending = self.pending.lock();
        while let Some(event) = events.next() {
            let position = if events.peek().is_some() { Version(version.0 - 1) } else { version };
            pending.bytes += bytes_of(event);
            pending.events.push_back((event.clone(), position));
            if pending.events.len() > WATCH_QUEUE_EVENTS || pending.bytes > WATCH_QUEUE_BYTES {
                pending.rescan(version);
                break;
            }
        }
        drop(pending);
        self.arrived.notify_one();
    }
}

impl Pending {
    fn rescan(&mut self, version: Version) {
        self.events.clear();
        self.bytes = 0;
        self.events.push_back((WatchEvent::Rescan, version));
    }
}

struct HubState {
    log: ChangeLog,
    latest: Version,
    watchers: BTreeMap<u64, Arc<Watcher>>,
    next_watcher: u64,
    closed: bool,
}

/// Where changes are published and watched.
pub struct WatchHub {
    state: Mutex<HubState>,
}

impl WatchHub {
    /// A hub for a store whose latest version is `latest`.
    pub fn new(latest: Version) -> Arc<Self> {
        let log = ChangeLog { events: VecDeque::new(), bytes: 0, floor: latest };
        let state = HubState { log, latest, watchers: BTreeMap::new(), next_watcher: 0, closed: false };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// The latest version whose changes are visible to readers and watchers.
    pub fn latest(&self) -> Version {
        self.state.lock().latest
    }

    /// Publishes the changes of one transaction; its position is above every earlier one and is its version wherever
    /// the store publishes in the order of versions.
    pub fn publish(&self, version: Version, events: &[WatchEvent]) {
        let mut state = self.state.lock();
        debug_assert!(version > state.latest, "M3: changes are published in version order");
        state.latest = version;
        for event in events {
            state.log.push(version, event);
        }
        for watcher in state.watchers.values() {
            watcher.offer(version, events.iter());
        }
    }

    /// Changes up to `latest` may have happened unseen: every watch starts over.
    pub fn lose(&self, latest: Version) {
        let mut state = self.state.lock();
        state.latest = state.latest.max(latest);
        let latest = state.latest;
        state.log = ChangeLog { events: VecDeque::new(), bytes: 0, floor: latest };
        for watcher in state.watchers.values() {
            watcher.pending.lock().rescan(latest);
            watcher.arrived.notify_one();
        }
    }

    /// Ends all watches once they have given what they hold.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for watcher in std::mem::take(&mut state.watchers).into_values() {
            watcher.pending.lock().closed = true;
            watcher.arrived.notify_one();
        }
    }

    /// Begins a watch, see [`crate::MetadataStore::watch`].
    pub fn watch(self: &Arc<Self>, prefix: &str, from: Option<Version>) -> Box<dyn Watch> {
        let mut state = self.state.lock();
        let pending = Pending { events: VecDeque::new(), bytes: 0, closed: state.closed };
        let watcher =
            Arc::new(Watcher { prefix: prefix.to_owned(), pending: Mutex::new(pending), arrived: Notify::new() });
        match from {
            Some(from) if from < state.log.floor || from > state.latest => {
                watcher.pending.lock().rescan(state.latest);
            }
            Some(from) => state.replay(&watcher, from),
            None => {}
        }
        let id = state.next_watcher;
        state.next_watcher += 1;
        if !state.closed {
            state.watchers.insert(id, watcher.clone());
        }
        Box::new(HubWatch { hub: self.clone(), id, watcher })
    }
}

impl HubState {
    fn replay(&self, watcher: &Watcher, from: Version) {
        let start = self.log.events.partition_point(|(version, _)| *version <= from);
        let mut rest = self.log.events.range(start..).peekable();
        while let Some((version, first)) = rest.next() {
            let mut events = vec![first];
            while let Some((_, event)) = rest.next_if(|(next, _)| next == version) {
                events.push(event);
            }
            watcher.offer(*version, events.into_iter());
        }
    }
}

struct HubWatch {
    hub: Arc<WatchHub>,
    id: u64,
    watcher: Arc<Watcher>,
}

impl Watch for HubWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<(WatchEvent, Version)>> {
        Box::pin(async move {
            loop {
                {
                    let mut pending = self.watcher.pending.lock();
                    if let Some((event, position)) = pending.events.pop_front() {
                        pending.bytes = pending.bytes.saturating_sub(bytes_of(&event));
                        if pending.events.is_empty() {
                            pending.events.shrink_to(64);
                        }
                        return Some((event, position));
                    }
                    if pending.closed {
                        return None;
                    }
                }
                self.watcher.arrived.notified().await;
            }
        })
    }
}

impl Drop for HubWatch {
    fn drop(&mut self) {
        self.hub.state.lock().watchers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delete(key: &str, version: u64) -> WatchEvent {
        WatchEvent::Delete { key: key.to_owned(), version: Version(version) }
    }

    async fn next(watch: &mut Box<dyn Watch>) -> Option<(WatchEvent, Version)> {
        watch.next().await
    }

    #[tokio::test]
    async fn resuming_inside_a_transaction_repeats_it() {
        let hub = WatchHub::new(Version(4));
        let mut watch = hub.watch("a/", None);
        hub.publish(Version(5), &[delete("a/1", 5), delete("b/1", 5), delete("a/2", 5)]);
        let (first, position) = next(&mut watch).await.unwrap();
        assert_eq!((first, position), (delete("a/1", 5), Version(4)));
        let mut resumed = hub.watch("a/", Some(position));
        assert_eq!(next(&mut resumed).await.unwrap().0, delete("a/1", 5));
        assert_eq!(next(&mut resumed).await, Some((delete("a/2", 5), Version(5))));
    }

    #[tokio::test]
    async fn positions_outside_the_log_are_a_rescan() {
        let hub = WatchHub::new(Version(4));
        for from in [0, 3, 5] {
            let mut watch = hub.watch("", Some(Version(from)));
            assert_eq!(next(&mut watch).await, Some((WatchEvent::Rescan, Version(4))), "{from}");
        }
        hub.publish(Version(5), &[delete("a", 5)]);
        let mut watch = hub.watch("", Some(Version(4)));
        assert_eq!(next(&mut watch).await, Some((delete("a", 5), Version(5))));
    }

    #[tokio::test]
    async fn a_lost_change_and_a_close_reach_every_watch() {
        let hub = WatchHub::new(Version(0));
        let mut watch = hub.watch("a", None);
        hub.publish(Version(1), &[delete("a", 1)]);
        hub.lose(Version(3));
        hub.publish(Version(4), &[delete("a", 4)]);
        hub.close();
        assert_eq!(next(&mut watch).await, Some((WatchEvent::Rescan, Version(3))));
        assert_eq!(next(&mut watch).await, Some((delete("a", 4), Version(4))));
        assert_eq!(next(&mut watch).await, None);
        assert_eq!(next(&mut hub.watch("a", None)).await, None);
    }

    #[test]
    fn the_log_is_bounded_in_events_and_bytes() {
        let mut log = ChangeLog { events: VecDeque::new(), bytes: 0, floor: Version(0) };
        for version in 1..=CHANGE_LOG_EVENTS as u64 + 10 {
            log.push(Version(version), &delete("k", version));
        }
        assert_eq!((log.events.len(), log.floor), (CHANGE_LOG_EVENTS, Version(10)));
        let long = "k".repeat(CHANGE_LOG_BYTES / 4);
        for version in 20_000..20_010 {
            log.push(Version(version), &delete(&long, version));
        }
        assert!(log.bytes <= CHANGE_LOG_BYTES);
        assert_eq!(log.floor, Version(20_005));
    }
}
