//! One place that has or may have limits.
//!
//! Invariants: counts never go below zero (asserted).

use meridian_policy::quota::Limit;
use meridian_replicator::{NamespaceLimit, SharedLimit};
use meridian_topic::SharedLimiter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Rate = (u64, u64);

/// A link that waits looks again after so long: this broker's part of a limit may be another by then.
const LOOK_AGAIN_MS: u64 = 1000;

/// See the module.
#[derive(Default)]
pub(super) struct Node {
    pub(super) publish: Arc<SharedLimiter>,
    pub(super) dispatch: Arc<SharedLimiter>,
    pub(super) replication: Arc<NamespaceLimit>,
    rates: Mutex<[Rate; 3]>,
    producers: AtomicU64,
    consumers: AtomicU64,
    connections: AtomicU64,
}

impl Node {
    /// Puts rates in force: publishing, dispatch, replication; 0 = no limit. What is owed stays owed.
    pub(super) fn put_rates(&self, publish: Rate, dispatch: Rate, replication: Rate) {
        let wanted = [publish, dispatch, replication];
        let before = std::mem::replace(&mut *self.rates.lock(), wanted);
        if before[0] != publish {
            self.publish.set_rate(publish);
        }
        if before[1] != dispatch {
            self.dispatch.set_rate(dispatch);
        }
        if before[2] != replication {
            self.replication.set(replication.0, replication.1, crate::service::now_ms());
        }
    }

    fn counter(&self, limit: Limit) -> Option<&AtomicU64> {
        match limit {
            Limit::Producers => Some(&self.producers),
            Limit::Consumers => Some(&self.consumers),
            Limit::Connections => Some(&self.connections),
            _ => None,
        }
    }

    /// How many there are.
    pub(super) fn count(&self, limit: Limit) -> u64 {
        self.counter(limit).map_or(0, |counter| counter.load(Ordering::SeqCst))
    }

    /// One more.
    pub(super) fn take(&self, limit: Limit) {
        if let Some(counter) = self.counter(limit) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One less.
    pub(super) fn give_back(&self, limit: Limit) {
        if let Some(counter) = self.counter(limit) {
            let before = counter.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "{limit} given back twice");
        }
    }

    /// Whether something is counted, or a topic or link takes from its limiters.
    pub(super) fn is_used(&self) -> bool {
        let counted = [&self.producers, &self.consumers, &self.connections];
        counted.iter().any(|counter| counter.load(Ordering::SeqCst) > 0)
            || Arc::strong_count(&self.publish) > 1
            || Arc::strong_count(&self.dispatch) > 1
            || Arc::strong_count(&self.replication) > 1
    }
}

/// The limits of all places that a link's topic belongs to; all of them bind.
pub struct ReplicationLimit {
    places: Vec<Arc<NamespaceLimit>>,
}

impl ReplicationLimit {
    pub(super) fn new(places: Vec<Arc<NamespaceLimit>>) -> Self {
        Self { places }
    }
}

impl SharedLimit for ReplicationLimit {
    fn take(&self, now_ms: u64, messages: u32, bytes: u64) -> Result<(), u64> {
        let wait_ms = self.places.iter().map(|place| place.wait_ms(now_ms)).max().unwrap_or(0);
        if wait_ms > 0 {
            return Err(wait_ms.min(LOOK_AGAIN_MS));
        }
        self.places.iter().for_each(|place| place.take_now(messages, bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_places_of_a_link_bind() {
        let (cluster, tenant) = (Arc::new(NamespaceLimit::default()), Arc::new(NamespaceLimit::default()));
        let link = ReplicationLimit::new(vec![cluster.clone(), tenant.clone()]);
        assert_eq!(link.take(0, 1, u64::MAX), Ok(()), "no limit");
        cluster.set(0, 1_000, 0);
        tenant.set(0, 100, 0);
        assert_eq!(link.take(0, 1, 150), Ok(()), "lent");
        let wait_ms = link.take(0, 1, 1).unwrap_err();
        assert!((500..=510).contains(&wait_ms), "{wait_ms}");
        assert_eq!(cluster.take(0, 1, 850), Ok(()), "what is refused takes nothing");
    }

    #[test]
    fn rates_that_stay_keep_what_is_owed() {
        let node = Node::default();
        node.put_rates((10, 0), (0, 0), (0, 0));
        node.publish.take(30, 0, 1_000);
        node.put_rates((10, 0), (0, 5), (0, 0));
        assert_eq!(node.publish.available(1_000).0, 0);
        assert!(node.dispatch.is_limited());
    }
}
