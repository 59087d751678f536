//! Writing one record: compare-and-set with repeats.
//!
//! Invariants: R2 an `Ok` is visible here; R4 an unknown outcome is read back before the write is repeated.
//! Failure: [`RegistryError::Busy`] after [`TRIES`] conflicts; an outcome that stays unknown is said as such.
//! Must never know: which rules a record has.

use crate::keys::Key;
use crate::record::{Header, Tombstone, decode, decode_header, encode};
use crate::{Registry, RegistryError};
use meridian_metadata::{Condition, MetadataError, Operation, Version};
use meridian_policy::{ClusterData, PartitionedTopic, Policies, TenantInfo, TopicPolicies};
use meridian_types::{NamespaceName, TopicName};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How often a change is tried against others.
const TRIES: usize = 16;

/// First pause before a write whose outcome is unknown is read back; doubled each time.
const READ_BACK_MS: u64 = 5;
/// Longest such pause.
const READ_BACK_MAX_MS: u64 = 500;

/// Counts the tries of one change, and remembers whether one of them may have been applied.
pub(crate) struct Tries<'a> {
    key: &'a Key,
    left: usize,
    unknown: Option<String>,
    pause_ms: u64,
}

impl<'a> Tries<'a> {
    pub(crate) fn of(key: &'a Key) -> Self {
        Self { key, left: TRIES, unknown: None, pause_ms: READ_BACK_MS }
    }

    /// One more try.
    pub(crate) fn next(&mut self) -> Result<(), RegistryError> {
        match (self.left.checked_sub(1), self.unknown.take()) {
            (Some(left), unknown) => (self.left, self.unknown) = (left, unknown),
            (None, Some(why)) => return Err(MetadataError::UnknownOutcome(why).into()),
            (None, None) => return Err(RegistryError::Busy { kind: self.key.kind(), name: self.key.name() }),
        }
        Ok(())
    }

    /// An earlier try may have been applied.
    pub(crate) fn unknown(&self) -> bool {
        self.unknown.is_some()
    }

    /// An unknown outcome is read back after a pause, and a store that is away meanwhile is waited for (R4).
    async fn read_back(&mut self, error: MetadataError) -> Result<(), RegistryError> {
        match error {
            MetadataError::Conflict { .. } => return Ok(()),
            MetadataError::UnknownOutcome(why) => {
                tracing::warn!(%why, key = self.key.path(), "the outcome of a write is unknown, it is read back");
                self.unknown = Some(why);
            }
            MetadataError::Unavailable(_) if self.unknown() => {}
            error => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_millis(self.pause_ms)).await;
        self.pause_ms = (self.pause_ms * 2).min(READ_BACK_MAX_MS);
        Ok(())
    }
}

/// Changes of one record that come at once through this broker take turns: only other brokers are rivals at the store, and a
/// burst of them does not use up each other's tries.
#[derive(Debug, Default)]
pub(crate) struct Turns([tokio::sync::Mutex<()>; 32]);

impl Turns {
    async fn take(&self, key: &Key) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.path().hash(&mut hasher);
        self.0[(hasher.finish() % self.0.len() as u64) as usize].lock().await
    }
}

/// What must hold or be written beside a creation (R3).
pub(crate) enum Beside<'a> {
    /// Nothing.
    Nothing,
    /// The tenant is there; it is written, so that its deletion collides.
    TenantOf(&'a NamespaceName),
    /// The namespace is there and not being deleted.
    NamespaceOf(&'a TopicName),
}

/// A record as read.
pub(crate) struct Found<T> {
    pub(crate) value: T,
    pub(crate) header: Header,
    pub(crate) version: Version,
}

/// What is stored under a key of this crate.
pub(crate) trait Record: Serialize + DeserializeOwned + Clone + PartialEq {
    /// Regions that share it from now on, whatever it says later. Only namespaces remember them: what hangs on one is
    /// shared as it is.
    fn regions(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }
}

impl Record for ClusterData {}
impl Record for TenantInfo {}
impl Record for TopicPolicies {}
impl Record for PartitionedTopic {}

impl Record for Policies {
    fn regions(&self) -> BTreeSet<String> {
        Some(self.named_clusters()).filter(|named| named.len() > 1).unwrap_or_default()
    }
}

impl Key {
    pub(crate) fn not_found(&self) -> RegistryError {
        RegistryError::NotFound { kind: self.kind(), name: self.name() }
    }

    pub(crate) fn exists(&self) -> RegistryError {
        RegistryError::Exists { kind: self.kind(), name: self.name() }
    }

    pub(crate) fn put<T: Serialize>(
        &self,
        header: &Header,
        value: &T,
        condition: Condition,
    ) -> Result<Operation, RegistryError> {
        let key = self.path();
        let value = encode(&key, header, value)?;
        Ok(Operation::Put { key, value, condition, ephemeral: None })
    }

    pub(crate) fn put_tombstone(&self, tombstone: &Tombstone) -> Result<Operation, RegistryError> {
        let key = self.tombstone();
        let value = tombstone.encode(&key)?;
        Ok(Operation::Put { key, value, condition: Condition::Any, ephemeral: None })
    }

    pub(crate) fn delete_tombstone(&self, version: Version) -> Operation {
        Operation::Delete { key: self.tombstone(), condition: Condition::Is(version) }
    }
}

impl Registry {
    /// The record from the store itself.
    pub(crate) async fn find<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<Found<T>>, RegistryError> {
        let Some(entry) = self.store.get(&key.path()).await? else { return Ok(None) };
        let header = decode_header(&entry.key, &entry.value)?;
        Ok(Some(Found { value: decode(&entry.key, &entry.value)?, header, version: entry.version }))
    }

    /// What is left of a deleted record, from the store itself.
    pub(crate) async fn find_tombstone(&self, key: &Key) -> Result<Option<(Tombstone, Version)>, RegistryError> {
        if !key.is_shared() {
            return Ok(None);
        }
        let Some(entry) = self.store.get(&key.tombstone()).await? else { return Ok(None) };
        Ok(Some((Tombstone::decode(&entry.key, &entry.value)?, entry.version)))
    }

    /// The header of a record that is created, after the life that the tombstone is of.
    pub(crate) fn first_header<T: Record>(&self, key: &Key, value: &T, before: Option<&Tombstone>) -> Header {
        if !key.is_shared() {
            return Header::default();
        }
        if let Some(tombstone) = before {
            self.sharing.recover(tombstone.stamp);
        }
        let stamp = Some(self.sharing.tick());
        let ended = before.map(|tombstone| tombstone.born);
        Header { stamp, born: stamp, ended, regions: value.regions(), detached: false }
    }

    /// The header of a record that is changed.
    pub(crate) fn next_header<T: Record>(&self, key: &Key, value: &T, before: &Header) -> Header {
        if !key.is_shared() {
            return Header::default();
        }
        let mut regions = value.regions();
        // A copy that left the others stays as it is until it names others again.
        if before.detached && regions.is_empty() {
            return before.clone();
        }
        regions.extend(before.regions.iter().cloned());
        let born = before.version(self.sharing.region()).born;
        self.sharing.recover(before.stamp.unwrap_or_default());
        let stamp = Some(self.sharing.tick());
        Header { stamp, born: Some(born), ended: before.ended, regions, detached: false }
    }

    /// Deletes a record; others that share it learn of it by a tombstone in the same transaction.
    pub(crate) fn deletion(
        &self,
        key: &Key,
        header: &Header,
        condition: Condition,
    ) -> Result<Vec<Operation>, RegistryError> {
        let mut operations = vec![Operation::Delete { key: key.path(), condition }];
        let regions = self.sharers(key, header);
        if !regions.is_empty() {
            let mut version = header.version(self.sharing.region());
            self.sharing.recover(version.stamp);
            if !header.detached {
                (version.deleted, version.stamp) = (true, self.sharing.tick());
            }
            operations.push(key.put_tombstone(&Tombstone::new(version, regions, self.sharing.now_ms()))?);
        }
        Ok(operations)
    }

    /// Writes; false if a condition did not hold or the outcome is unknown, and then the caller reads again.
    pub(crate) async fn try_commit(
        &self,
        tries: &mut Tries<'_>,
        operations: Vec<Operation>,
    ) -> Result<bool, RegistryError> {
        match self.store.commit(operations).await {
            Ok(version) => self.visible(version).await.map(|()| true),
            Err(error) => tries.read_back(error).await.map(|()| false),
        }
    }

    /// Creates a record that must not exist. A creation whose outcome was unknown and that is found as wanted is one's
    /// own (R4).
    pub(crate) async fn create<T: Record>(
        &self,
        key: &Key,
        value: &T,
        beside: Beside<'_>,
    ) -> Result<(), RegistryError> {
        let mut tries = Tries::of(key);
        loop {
            tries.next()?;
            let mut operations = self.beside(&beside).await?;
            if let Some(found) = self.find::<T>(key).await? {
                if tries.unknown() && found.value == *value {
                    return self.visible(found.version).await;
                }
                return Err(key.exists());
            }
            let before = self.find_tombstone(key).await?;
            let header = self.first_header(key, value, before.as_ref().map(|(tombstone, _)| tombstone));
            operations.push(key.put(&header, value, Condition::Absent)?);
            operations.extend(before.map(|(_, version)| key.delete_tombstone(version)));
            if self.try_commit(&mut tries, operations).await? {
                return Ok(());
            }
        }
    }

    pub(crate) async fn beside(&self, beside: &Beside<'_>) -> Result<Vec<Operation>, RegistryError> {
        match beside {
            Beside::Nothing => Ok(Vec::new()),
            Beside::TenantOf(namespace) => {
                let key = Key::Tenant(namespace.tenant().to_owned());
                let found = self.find::<TenantInfo>(&key).await?.ok_or_else(|| key.not_found())?;
                Ok(vec![key.put(&found.header, &found.value, Condition::Is(found.version))?])
            }
            Beside::NamespaceOf(topic) => Ok(vec![self.check_namespace_of(topic).await?]),
        }
    }

    /// The namespace is there and not being deleted, and must still be so when what stands beside this is written.
    pub(crate) async fn check_namespace_of(&self, topic: &TopicName) -> Result<Operation, RegistryError> {
        let key = Key::Namespace(topic.namespace());
        let found = self.find::<Policies>(&key).await?.filter(|found| !found.value.deleted);
        let version = found.ok_or_else(|| key.not_found())?.version;
        Ok(Operation::Check { key: key.path(), condition: Condition::Is(version) })
    }

    /// Changes a record that exists.
    pub(crate) async fn update<T, R, E>(
        &self,
        key: &Key,
        mut change: impl FnMut(&mut T) -> Result<R, E>,
    ) -> Result<R, E>
    where
        T: Record,
        E: From<RegistryError>,
    {
        let turn = self.turns.take(key).await;
        let mut tries = Tries::of(key);
        let mut written: Option<(T, R)> = None;
        loop {
            tries.next()?;
            let found = self.find::<T>(key).await?.ok_or_else(|| key.not_found())?;
            if let Some((_, result)) = written.take().filter(|(value, _)| tries.unknown() && *value == found.value) {
                drop(turn);
                self.visible(found.version).await?;
                return Ok(result);
            }
            let mut value = found.value.clone();
            let result = change(&mut value)?;
            if value == found.value {
                // R2: what was found is seen by later reads here too.
                drop(turn);
                self.visible(found.version).await?;
                return Ok(result);
            }
            let header = self.next_header(key, &value, &found.header);
            match self.store.commit(vec![key.put(&header, &value, Condition::Is(found.version))?]).await {
                Ok(version) => {
                    // The next one writes while this one waits to see what it wrote.
                    drop(turn);
                    self.visible(version).await?;
                    return Ok(result);
                }
                Err(error) => tries.read_back(error).await?,
            }
            written = Some((value, result));
        }
    }

    /// Deletes a record that exists.
    pub(crate) async fn remove(&self, key: &Key) -> Result<(), RegistryError> {
        let mut tries = Tries::of(key);
        loop {
            tries.next()?;
            let Some(entry) = self.store.get(&key.path()).await? else { return self.gone(key, &tries).await };
            let header = decode_header(&entry.key, &entry.value)?;
            if self.try_commit(&mut tries, self.deletion(key, &header, Condition::Is(entry.version))?).await? {
                return Ok(());
            }
        }
    }

    /// A record that is not there was never there, or went by a try whose outcome was unknown (R4).
    pub(crate) async fn gone(&self, key: &Key, tries: &Tries<'_>) -> Result<(), RegistryError> {
        if tries.unknown() { self.visibly_gone(key).await } else { Err(key.not_found()) }
    }
}
