//! Schemas in the metadata store.
//!
//! Invariants: K1 (versions grow by one: head and version record are written in one transaction that checks the head),
//! K2, K3. Two brokers that store at once: one of them meets a conflict, reads again and decides anew.

use super::record::Head;
use super::{CompatibilityStrategy, SchemaError, SchemaInfo, StoredSchema, check, compatibility, keys};
use bytes::Bytes;
use meridian_metadata::{Condition, MetadataError, Operation, SharedStore, Version};
use meridian_types::TopicName;
use std::collections::BTreeMap;

/// How often a write is decided anew after a conflict.
const MAX_CONFLICTS: u32 = 16;

/// What a new schema must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutRules {
    /// How it must relate to the others.
    pub strategy: CompatibilityStrategy,
    /// Whether a schema that is not there yet may be stored at all, if there is one already.
    pub may_update: bool,
}

/// The schemas of all topics.
pub struct SchemaRegistry {
    store: SharedStore,
}

struct Snapshot {
    head: Option<(Head, Version)>,
    all: Vec<StoredSchema>,
}

impl Snapshot {
    /// Those since the last deletion, oldest first.
    fn live(&self) -> &[StoredSchema] {
        let from = self.all.iter().rposition(|schema| schema.deleted).map_or(0, |at| at + 1);
        &self.all[from..]
    }

    fn same_as(&self, info: &SchemaInfo) -> Option<u64> {
        self.live().iter().rev().find(|stored| stored.info.same_as(info)).map(|stored| stored.version)
    }
}

impl SchemaRegistry {
    /// Over a store.
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    async fn head(&self, topic: &TopicName) -> Result<Option<(Head, Version)>, SchemaError> {
        match self.store.get(&keys::head(topic)).await? {
            Some(entry) => Ok(Some((Head::decode(entry.value)?, entry.version))),
            None => Ok(None),
        }
    }

    async fn snapshot(&self, topic: &TopicName) -> Result<Snapshot, SchemaError> {
        // The head is read first: a version stored in between makes the write below conflict, never be overlooked.
        let head = self.head(topic).await?;
        if head.is_none() {
            return Ok(Snapshot { head, all: Vec::new() });
        }
        let entries = self.store.scan(&keys::versions(topic)).await?;
        let all = entries.into_iter().map(|entry| StoredSchema::decode(entry.value)).collect::<Result<_, _>>()?;
        Ok(Snapshot { head, all })
    }

    /// The latest schema, `None` if there is none or it was deleted.
    ///
    /// # Errors
    /// [`SchemaError`] if it can't be read.
    pub async fn latest(&self, topic: &TopicName) -> Result<Option<StoredSchema>, SchemaError> {
        match self.head(topic).await? {
            Some((head, _)) if !head.deleted => self.version(topic, head.version).await,
            _ => Ok(None),
        }
    }

    /// One version, `None` if there is none, it marks a deletion, or the schema is deleted.
    ///
    /// # Errors
    /// [`SchemaError`] if it can't be read.
    pub async fn version(&self, topic: &TopicName, version: u64) -> Result<Option<StoredSchema>, SchemaError> {
        if self.head(topic).await?.is_none_or(|(head, _)| head.deleted) {
            return Ok(None);
        }
        let Some(entry) = self.store.get(&keys::version(topic, version)).await? else { return Ok(None) };
        Ok(Some(StoredSchema::decode(entry.value)?).filter(|schema| !schema.deleted))
    }

    /// All versions, oldest first, without deletion marks; none once the schema is deleted.
    ///
    /// # Errors
    /// [`SchemaError`] if one can't be read.
    pub async fn all(&self, topic: &TopicName) -> Result<Vec<StoredSchema>, SchemaError> {
        let snapshot = self.snapshot(topic).await?;
        if snapshot.head.is_none_or(|(head, _)| head.deleted) {
            return Ok(Vec::new());
        }
        let mut all = snapshot.all;
        all.retain(|schema| !schema.deleted);
        Ok(all)
    }

    /// The version that holds an equal schema.
    ///
    /// # Errors
    /// [`SchemaError`] if the stored ones can't be read.
    pub async fn find(&self, topic: &TopicName, info: &SchemaInfo) -> Result<Option<u64>, SchemaError> {
        Ok(self.snapshot(topic).await?.same_as(info))
    }

    /// Whether a schema could be stored or used beside those that are there.
    ///
    /// # Errors
    /// [`SchemaError::Incompatible`], [`SchemaError::Invalid`], or that the stored ones can't be read.
    pub async fn check(
        &self,
        topic: &TopicName,
        info: &SchemaInfo,
        strategy: CompatibilityStrategy,
    ) -> Result<(), SchemaError> {
        check::validate(info)?;
        let snapshot = self.snapshot(topic).await?;
        let existing: Vec<&SchemaInfo> = snapshot.live().iter().map(|stored| &stored.info).collect();
        compatibility::check(&existing, info, strategy)
    }

    /// The version of a schema: that of an equal one, or a new one if the rules allow it.
    ///
    /// # Errors
    /// [`SchemaError`] if it is refused or the store fails.
    pub async fn put(
        &self,
        topic: &TopicName,
        info: SchemaInfo,
        rules: PutRules,
        author: &str,
        now_ms: u64,
    ) -> Result<u64, SchemaError> {
        check::validate(&info)?;
        for _ in 0..MAX_CONFLICTS {
            let snapshot = self.snapshot(topic).await?;
            if let Some(version) = snapshot.same_as(&info) {
                return Ok(version);
            }
            let existing: Vec<&SchemaInfo> = snapshot.live().iter().map(|stored| &stored.info).collect();
            if !existing.is_empty() && !rules.may_update {
                return Err(SchemaError::Incompatible(
                    "Schema not found and schema auto updating is disabled.".to_owned(),
                ));
            }
            compatibility::check(&existing, &info, rules.strategy)?;
            let stored = StoredSchema {
                version: next_version(&snapshot),
                info: info.clone(),
                created_ms: now_ms,
                author: author.to_owned(),
                deleted: false,
            };
            if self.append(topic, &snapshot, stored).await? {
                return Ok(next_version(&snapshot));
            }
        }
        Err(contended(topic))
    }

    /// Marks the schema as deleted and answers the version of the mark; `None` if there was none.
    ///
    /// # Errors
    /// [`SchemaError`] if the store fails.
    pub async fn delete(&self, topic: &TopicName, author: &str, now_ms: u64) -> Result<Option<u64>, SchemaError> {
        for _ in 0..MAX_CONFLICTS {
            let snapshot = self.snapshot(topic).await?;
            if snapshot.head.is_none_or(|(head, _)| head.deleted) {
                return Ok(None);
            }
            let version = next_version(&snapshot);
            let info = SchemaInfo { kind: super::SchemaKind::None, data: Bytes::new(), properties: BTreeMap::new() };
            let mark = StoredSchema { version, info, created_ms: now_ms, author: author.to_owned(), deleted: true };
            if self.append(topic, &snapshot, mark).await? {
                return Ok(Some(version));
            }
        }
        Err(contended(topic))
    }

    /// Deletes all versions with their numbering (the topic is gone); answers the latest version there was.
    ///
    /// # Errors
    /// [`SchemaError`] if the store fails; what is left is deleted by a repetition.
    pub async fn purge(&self, topic: &TopicName) -> Result<Option<u64>, SchemaError> {
        let Some((head, _)) = self.head(topic).await? else { return Ok(None) };
        for chunk in self.store.scan(&keys::versions(topic)).await?.chunks(500) {
            let delete = |key: &String| Operation::Delete { key: key.clone(), condition: Condition::Any };
            self.store.commit(chunk.iter().map(|entry| delete(&entry.key)).collect()).await?;
        }
        self.store.delete(&keys::head(topic), Condition::Any).await?;
        Ok(Some(head.version))
    }

    /// Whether it was written; false = someone else wrote first.
    async fn append(&self, topic: &TopicName, on: &Snapshot, schema: StoredSchema) -> Result<bool, SchemaError> {
        let head = Head { version: schema.version, deleted: schema.deleted };
        let condition = on.head.map_or(Condition::Absent, |(_, version)| Condition::Is(version));
        let put =
            |key: String, value: Bytes, condition: Condition| Operation::Put { key, value, condition, ephemeral: None };
        let operations = vec![
            put(keys::head(topic), head.encode(), condition),
            put(keys::version(topic, schema.version), schema.encode(), Condition::Any),
        ];
        match self.store.commit(operations).await {
            Ok(_) => Ok(true),
            Err(MetadataError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn next_version(snapshot: &Snapshot) -> u64 {
    snapshot.head.map_or(0, |(head, _)| head.version + 1)
}

fn contended(topic: &TopicName) -> SchemaError {
    SchemaError::Metadata(MetadataError::Unavailable(format!("schema of {topic} is changed by many at once")))
}
