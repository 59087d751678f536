//! Schemas of topics as regions share them: sets, without version numbers, since each region numbers its own.
//!
//! Invariants: sets of two regions become their union; only a deletion takes something away.
//! Failure: [`RegistryError`].
//! Must never know: what a schema says, which version it has.

use crate::keys::Key;
use crate::write::{Record, Tries};
use crate::{Registry, RegistryError};
use meridian_metadata::Condition;
use meridian_types::TopicName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSchema {
    /// Its kind, by the number on the wire.
    pub kind: i32,
    /// Its definition, in base64.
    pub data: String,
    /// Its properties.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

impl SharedSchema {
    /// Properties do not count.
    fn same_as(&self, other: &Self) -> bool {
        self.kind == other.kind && self.data == other.data
    }
}

/// The schemas of a topic, all partitions together, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SharedSchemas {
    /// The schemas.
    pub schemas: Vec<SharedSchema>,
}

impl Record for SharedSchemas {}

impl SharedSchemas {
    /// Whether an equal one is in it.
    pub fn holds(&self, schema: &SharedSchema) -> bool {
        self.schemas.iter().any(|held| held.same_as(schema))
    }

    /// Adds those that are not in it; answers whether there were some.
    pub(crate) fn add(&mut self, others: &[SharedSchema]) -> bool {
        let before = self.schemas.len();
        for schema in others {
            if !self.holds(schema) {
                self.schemas.push(schema.clone());
            }
        }
        self.schemas.len() > before
    }
}

impl Registry {
    /// The schemas that a topic shares with other regions.
    pub fn shared_schemas(&self, topic: &TopicName) -> Option<Arc<SharedSchemas>> {
        self.cache.read().schemas.get(&topic.base()).cloned()
    }

    /// Topics that share schemas with other regions, or did until they were deleted.
    pub fn topics_with_shared_schemas(&self) -> Vec<TopicName> {
        let cache = self.cache.read();
        let ended = cache.tombstones.values().filter_map(|(key, _)| match key {
            Key::Schemas(topic) => Some(topic),
            _ => None,
        });
        cache.schemas.keys().chain(ended).cloned().collect()
    }

    /// When the schemas of a topic were deleted, ms since 1970, if they were and none came since.
    pub fn schemas_deleted_ms(&self, topic: &TopicName) -> Option<u64> {
        let cache = self.cache.read();
        let (_, tombstone) = cache.tombstones.get(&Key::Schemas(topic.base()).path())?;
        Some(tombstone.stamp.wall_ms())
    }

    /// Makes a schema known to the regions that share the topic; nothing to do if there are none.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn share_schema(&self, topic: &TopicName, schema: &SharedSchema) -> Result<(), RegistryError> {
        let key = Key::Schemas(topic.base());
        let known = self.shared_schemas(topic).is_some_and(|held| held.holds(schema));
        if known || self.sharers(&key, &crate::record::Header::default()).is_empty() {
            return Ok(());
        }
        let mut tries = Tries::of(&key);
        loop {
            tries.next()?;
            let mut operations = vec![self.check_namespace_of(topic).await?];
            match self.find::<SharedSchemas>(&key).await? {
                Some(mut found) => {
                    if !found.value.add(std::slice::from_ref(schema)) {
                        return self.visible(found.version).await;
                    }
                    let header = self.next_header(&key, &found.value, &found.header);
                    operations.push(key.put(&header, &found.value, Condition::Is(found.version))?);
                }
                None => {
                    let value = SharedSchemas { schemas: vec![schema.clone()] };
                    let ended = self.find_tombstone(&key).await?;
                    let header = self.first_header(&key, &value, ended.as_ref().map(|(tombstone, _)| tombstone));
                    operations.push(key.put(&header, &value, Condition::Absent)?);
                    operations.extend(ended.map(|(_, version)| key.delete_tombstone(version)));
                }
            }
            if self.try_commit(&mut tries, operations).await? {
                return Ok(());
            }
        }
    }

    /// Makes the deletion of a topic's schemas known to the regions that share them.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn unshare_schemas(&self, topic: &TopicName) -> Result<(), RegistryError> {
        let key = Key::Schemas(topic.base());
        if self.shared_schemas(topic).is_none() {
            return Ok(());
        }
        match self.remove(&key).await {
            Err(RegistryError::NotFound { .. }) => Ok(()),
            result => result,
        }
    }
}
