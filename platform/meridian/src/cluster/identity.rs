//! Which cluster a metadata store belongs to.
//!
//! Format (value of `cluster/identity`): JSON, `version` (1), `cluster` (its name), `instance` (drawn when the store was
//! initialised, 16 hex digits: two clusters of one name are told apart by it), `createdMs` (wall clock).
//! Invariants: I1 it is written once and never changed; I2 nobody works on a store without one, or with another cluster's.
//! Failure: an error says which command or setting is missing.

use crate::cli::Failure;
use meridian_metadata::{Condition, MetadataError, SharedStore};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where it stands.
pub const IDENTITY_KEY: &str = "cluster/identity";
const VERSION: u64 = 1;

/// See the head of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// Name of the cluster (region).
    pub cluster: String,
    /// Told apart from others of that name.
    pub instance: String,
    /// When it was initialised, wall clock in ms.
    pub created_ms: u64,
}

impl ClusterIdentity {
    fn encode(&self) -> String {
        let Self { cluster, instance, created_ms } = self;
        json!({ "version": VERSION, "cluster": cluster, "instance": instance, "createdMs": created_ms }).to_string()
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let corrupt = |why: &str| MetadataError::Corrupt(format!("{IDENTITY_KEY}: {why}"));
        let value: Value = serde_json::from_slice(bytes).map_err(|error| corrupt(&error.to_string()))?;
        match value["version"].as_u64() {
            Some(VERSION) => {}
            other => return Err(corrupt(&format!("version {other:?} is not known"))),
        }
        let text = |key: &str| value[key].as_str().map(str::to_owned).ok_or_else(|| corrupt(&format!("no {key}")));
        let created_ms = value["createdMs"].as_u64().ok_or_else(|| corrupt("no createdMs"))?;
        Ok(Self { cluster: text("cluster")?, instance: text("instance")?, created_ms })
    }

    /// What the store says of itself; `None` = nothing yet.
    ///
    /// # Errors
    /// The store, or an identity that can't be read.
    pub async fn load(store: &SharedStore) -> Result<Option<Self>, MetadataError> {
        match store.get(IDENTITY_KEY).await? {
            Some(entry) => Self::decode(&entry.value).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the identity of a new cluster (I1). The identity that is there by then, and whether it is the new one.
    ///
    /// # Errors
    /// The store.
    pub async fn initialise(store: &SharedStore, cluster: &str) -> Result<(Self, bool), MetadataError> {
        if let Some(found) = Self::load(store).await? {
            return Ok((found, false));
        }
        let created_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let instance = format!("{:016x}", rand::random::<u64>());
        let new = Self { cluster: cluster.to_owned(), instance, created_ms };
        let written = store.put(IDENTITY_KEY, new.encode(), Condition::Absent).await;
        if let Err(error) = written
            && !matches!(error, MetadataError::Conflict { .. } | MetadataError::UnknownOutcome(_))
        {
            return Err(error);
        }
        match Self::load(store).await? {
            Some(found) => Ok((found.clone(), found == new)),
            None => Err(MetadataError::UnknownOutcome(format!("{IDENTITY_KEY} is not there after it was written"))),
        }
    }

    /// The identity that a process of `cluster` must find (I2), by what the store says of itself.
    ///
    /// # Errors
    /// There is none, or it is another cluster's.
    pub fn demand(found: Option<Self>, cluster: &str, url: &str) -> Result<Self, Failure> {
        let found = found.ok_or_else(|| {
            format!(
                "metadataStoreUrl={url}: holds no cluster yet; run once: meridian cluster init --set \
                 metadataStoreUrl={url} --set clusterName={cluster}"
            )
        })?;
        if found.cluster != cluster {
            return Err(format!(
                "clusterName={cluster}: metadataStoreUrl={url} belongs to cluster {} (instance {}); expected that name, \
                 or another store",
                found.cluster, found.instance
            )
            .into());
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_metadata::MemoryStore;
    use std::sync::Arc;

    #[test]
    fn golden_text() {
        let identity = ClusterIdentity { cluster: "west".into(), instance: "0f".into(), created_ms: 7 };
        let text = r#"{"cluster":"west","createdMs":7,"instance":"0f","version":1}"#;
        assert_eq!(identity.encode(), text);
        assert_eq!(ClusterIdentity::decode(text.as_bytes()), Ok(identity));
        for bad in ["", "{}", r#"{"cluster":"west","createdMs":7,"instance":"0f","version":2}"#, r#"{"version":1}"#] {
            assert!(matches!(ClusterIdentity::decode(bad.as_bytes()), Err(MetadataError::Corrupt(_))), "{bad}");
        }
    }

    #[tokio::test]
    async fn it_is_written_once_and_demanded() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let none = ClusterIdentity::demand(None, "west", "u").expect_err("nothing is there").to_string();
        assert!(none.contains("meridian cluster init"), "{none}");
        let (first, new) = ClusterIdentity::initialise(&store, "west").await.expect("the store is there");
        assert!(new);
        let (second, new) = ClusterIdentity::initialise(&store, "east").await.expect("the store is there");
        assert_eq!((second, new), (first.clone(), false));
        let loaded = ClusterIdentity::load(&store).await.expect("the store is there");
        assert_eq!(ClusterIdentity::demand(loaded.clone(), "west", "u").expect("it is ours"), first);
        let foreign = ClusterIdentity::demand(loaded, "east", "u").expect_err("it is west's").to_string();
        assert!(foreign.contains("belongs to cluster west"), "{foreign}");
    }
}
