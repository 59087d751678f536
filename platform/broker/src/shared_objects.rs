//! The registry as what the region link brings to other regions.
//!
//! Invariants: a record that another region changed is seen here by later reads before it counts as taken.
//! Failure: outcomes per object.
//! Must never know: connections.

use meridian_link::api::BoxFuture;
use meridian_link::{Applied, ObjectStore, SharedChange};
use meridian_registry::Registry;
use meridian_topology::{Digests, Object, ObjectVersion, Summary};
use std::sync::Arc;
use tokio::sync::broadcast;

/// See the module.
pub struct SharedObjects {
    registry: Arc<Registry>,
}

impl SharedObjects {
    /// What this registry shares.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }
}

impl ObjectStore for SharedObjects {
    fn digests(&self, peer: &str) -> Digests {
        self.registry.shared_digests(peer)
    }

    fn listing(&self, peer: &str, bucket: u8) -> Vec<Summary> {
        self.registry.shared_listing(peer, bucket)
    }

    fn shared(&self, peer: &str, key: &str) -> Option<ObjectVersion> {
        self.registry.shared_version(peer, key)
    }

    fn rank(&self, key: &str) -> u8 {
        self.registry.shared_rank(key)
    }

    fn wanted(&self, _from: &str, offered: &[Summary]) -> Vec<String> {
        self.registry.shared_wanted(offered)
    }

    fn read<'a>(&'a self, peer: &'a str, keys: &'a [String]) -> BoxFuture<'a, Result<Vec<Object>, String>> {
        Box::pin(async move { self.registry.read_shared(peer, keys).await.map_err(|error| error.to_string()) })
    }

    fn apply<'a>(&'a self, from: &'a str, object: Object) -> BoxFuture<'a, Applied> {
        Box::pin(async move { self.registry.apply_remote(from, &object).await })
    }

    fn changes(&self) -> broadcast::Receiver<SharedChange> {
        self.registry.shared_changes()
    }

    fn converged(&self, peer: &str, began_ms: u64) {
        self.registry.note_converged(peer, began_ms);
    }
}
