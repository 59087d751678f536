//! Settings that were changed while brokers run.
//!
//! Layout: one metadata key for each, `settings/live/KEY`, with the value as JSON: `{"v":1,"value":"TEXT"}`. A key that is
//! absent has the value of the broker's own configuration.
//! Failure: a record that can't be read is [`MetadataError::Corrupt`] with its key.
//! Must never know: which settings there are, what values mean.

use bytes::Bytes;
use meridian_metadata::{Condition, MetadataError, SharedStore, Watch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All keys begin with it.
const PREFIX: &str = "settings/live/";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Record {
    v: u32,
    value: String,
}

fn encode(value: &str) -> Result<Bytes, MetadataError> {
    let record = Record { v: VERSION, value: value.to_owned() };
    serde_json::to_vec(&record).map(Bytes::from).map_err(|error| MetadataError::Invalid(error.to_string()))
}

fn decode(key: &str, bytes: &[u8]) -> Result<String, MetadataError> {
    match serde_json::from_slice::<Record>(bytes) {
        Ok(Record { v: VERSION, value }) => Ok(value),
        Ok(Record { v, .. }) => Err(MetadataError::Corrupt(format!("record {key} has version {v}"))),
        Err(error) => Err(MetadataError::Corrupt(format!("record {key}: {error}"))),
    }
}

/// All that were changed, by key.
///
/// # Errors
/// The store's, or a record that can't be read.
pub async fn load(store: &SharedStore) -> Result<BTreeMap<String, String>, MetadataError> {
    let mut values = BTreeMap::new();
    for entry in store.scan(PREFIX).await? {
        let name = entry.key.strip_prefix(PREFIX).unwrap_or_default().to_owned();
        values.insert(name, decode(&entry.key, &entry.value)?);
    }
    Ok(values)
}

/// Changes of them from now on, by whichever broker.
pub struct LiveChanges(Box<dyn Watch>);

impl LiveChanges {
    /// Watches.
    ///
    /// # Errors
    /// The store's.
    pub async fn of(store: &SharedStore) -> Result<Self, MetadataError> {
        store.watch(PREFIX, None).await.map(Self)
    }

    /// Waits for the next one; false = the watch has ended.
    pub async fn next(&mut self) -> bool {
        self.0.next().await.is_some()
    }
}

/// Changes one.
///
/// # Errors
/// The store's.
pub async fn set(store: &SharedStore, key: &str, value: &str) -> Result<(), MetadataError> {
    store.put(&format!("{PREFIX}{key}"), encode(value)?, Condition::Any).await.map(drop)
}

/// Gives one back to the brokers' own configurations.
///
/// # Errors
/// The store's.
pub async fn remove(store: &SharedStore, key: &str) -> Result<(), MetadataError> {
    store.delete(&format!("{PREFIX}{key}"), Condition::Any).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_metadata::MemoryStore;
    use std::sync::Arc;

    #[test]
    fn golden_bytes() {
        assert_eq!(encode("a\"b").unwrap(), r#"{"v":1,"value":"a\"b"}"#);
        assert_eq!(decode("k", br#"{"v":1,"value":"7"}"#).unwrap(), "7");
        for bad in [&b""[..], b"{}", br#"{"v":2,"value":"7"}"#, br#"{"v":1,"value":7}"#] {
            assert!(matches!(decode("k", bad), Err(MetadataError::Corrupt(_))));
        }
    }

    #[tokio::test]
    async fn values_come_and_go() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        set(&store, "a", "1").await.unwrap();
        set(&store, "a", "2").await.unwrap();
        set(&store, "b", "").await.unwrap();
        assert_eq!(load(&store).await.unwrap(), [("a", "2"), ("b", "")].map(|(k, v)| (k.into(), v.into())).into());
        remove(&store, "a").await.unwrap();
        remove(&store, "a").await.unwrap();
        assert_eq!(load(&store).await.unwrap().len(), 1);
    }
}
