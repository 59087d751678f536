//! Gives changes to the watchers of this process in an order they can trust.
//!
//! Role: own changes come as soon as they are committed, those of others when they are found; both pass through here.
//! Invariants: M3 for each key its changes come in the order of their versions: one that is older than what was already
//! given of its key is dropped, and one too old to tell is a rescan; positions grow and are the version wherever changes
//! come in the order of versions.
//! Failure: none; what can't be ordered is a rescan.
//! Must never know: lanes, TiKV's interface.

use meridian_metadata::changes::WatchHub;
use meridian_metadata::{Version, WatchEvent};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Keys whose latest version is remembered.
const MAX_RECENT_KEYS: usize = 65_536;

/// What was given lately.
#[derive(Debug, Default)]
struct Recent {
    keys: HashMap<String, Version>,
    order: VecDeque<(String, Version)>,
    /// Versions up to it may be forgotten.
    floor: u64,
}

/// Where all changes pass.
pub(crate) struct Publisher {
    hub: Arc<WatchHub>,
    recent: Mutex<Recent>,
}

fn key_of(event: &WatchEvent) -> Option<&str> {
    match event {
        WatchEvent::Put(entry) => Some(&entry.key),
        WatchEvent::Delete { key, .. } => Some(key),
        WatchEvent::Rescan => None,
    }
}

impl Recent {
    /// Whether the change is newer than what was given of its key; remembers it then.
    fn admit(&mut self, key: &str, version: Version) -> bool {
        match self.keys.get_mut(key) {
            Some(given) if *given >= version => return false,
            Some(given) => *given = version,
            None => {
                self.keys.insert(key.to_owned(), version);
            }
        }
        self.order.push_back((key.to_owned(), version));
        while self.order.len() > MAX_RECENT_KEYS {
            self.forget_oldest();
        }
        true
    }

    fn forget_oldest(&mut self) {
        let Some((key, version)) = self.order.pop_front() else { return };
        self.floor = self.floor.max(version.0);
        if self.keys.get(&key) == Some(&version) {
            self.keys.remove(&key);
        }
    }
}

impl Publisher {
    pub(crate) fn new(hub: Arc<WatchHub>) -> Self {
        Self { hub, recent: Mutex::default() }
    }

    pub(crate) fn hub(&self) -> &Arc<WatchHub> {
        &self.hub
    }

    /// Gives the changes of one transaction; false if they were too old to be ordered, which is a rescan.
    pub(crate) fn publish(&self, version: Version, mut events: Vec<WatchEvent>) -> bool {
        let mut recent = self.recent.lock();
        if version.0 <= recent.floor && !events.is_empty() {
            self.rescan_at(version);
            return false;
        }
        events.retain(|event| key_of(event).is_some_and(|key| recent.admit(key, version)));
        if !events.is_empty() {
            self.hub.publish(self.position(version), &events);
        }
        true
    }

    /// The position of what comes at `version`.
    fn position(&self, version: Version) -> Version {
        version.max(Version(self.hub.latest().0 + 1))
    }

    fn rescan_at(&self, version: Version) {
        self.hub.lose(self.position(version));
    }

    /// Changes up to `version` may have been missed.
    pub(crate) fn rescan(&self, version: Version) {
        let _order = self.recent.lock();
        self.rescan_at(version);
    }

    /// No change below `version` can come any more, except very late ones, which are a rescan then.
    pub(crate) fn forget_below(&self, version: Version) {
        let mut recent = self.recent.lock();
        while recent.order.front().is_some_and(|(_, given)| *given < version) {
            recent.forget_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delete(key: &str, version: u64) -> WatchEvent {
        WatchEvent::Delete { key: key.to_owned(), version: Version(version) }
    }

    fn publish(publisher: &Publisher, version: u64, keys: &[&str]) -> bool {
        publisher.publish(Version(version), keys.iter().map(|key| delete(key, version)).collect())
    }

    #[tokio::test]
    async fn late_changes_of_other_keys_come_and_of_the_same_key_do_not() {
        let publisher = Publisher::new(WatchHub::new(Version(10)));
        let mut watch = publisher.hub().watch("", None);
        assert!(publish(&publisher, 20, &["a"]));
        assert!(publish(&publisher, 15, &["a", "b"]));
        assert!(publish(&publisher, 30, &["a"]));
        assert_eq!(watch.next().await, Some((delete("a", 20), Version(20))));
        assert_eq!(watch.next().await, Some((delete("b", 15), Version(21))));
        assert_eq!(watch.next().await, Some((delete("a", 30), Version(30))));
        let mut resumed = publisher.hub().watch("", Some(Version(20)));
        assert_eq!(resumed.next().await, Some((delete("b", 15), Version(21))), "not skipped by resuming");
    }

    #[tokio::test]
    async fn what_is_too_old_to_order_is_a_rescan() {
        let publisher = Publisher::new(WatchHub::new(Version(10)));
        assert!(publish(&publisher, 20, &["a"]));
        assert!(publish(&publisher, 40, &["b"]));
        publisher.forget_below(Version(30));
        let mut watch = publisher.hub().watch("", None);
        assert!(!publish(&publisher, 15, &["a"]));
        assert_eq!(watch.next().await, Some((WatchEvent::Rescan, Version(41))));
        assert!(publish(&publisher, 35, &["a"]), "above what was forgotten");
        assert_eq!(watch.next().await, Some((delete("a", 35), Version(42))));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let publisher = Publisher::new(WatchHub::new(Version(0)));
        for version in 1..=MAX_RECENT_KEYS as u64 + 100 {
            assert!(publish(&publisher, version, &[&format!("k{version}")]));
        }
        let recent = publisher.recent.lock();
        assert!(recent.keys.len() <= MAX_RECENT_KEYS && recent.order.len() <= MAX_RECENT_KEYS);
        assert_eq!(recent.floor, 100);
    }
}
