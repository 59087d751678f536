//! Writing one record: compare-and-set with repeats.
//!
//! Invariants: R2 an `Ok` is visible here; R4 an unknown outcome is read back before the write is repeated.
//! Failure: [`RegistryError::Busy`] after [`TRIES`] conflicts; an outcome that stays unknown is said as such.
//! Must never know: which rules a record has.

use crate::keys::Key;
use crate::record::{decode, encode};
use crate::{Registry, RegistryError};
use meridian_metadata::{Condition, MetadataError, Operation, Version};
use meridian_policy::{Policies, TenantInfo};
use meridian_types::{NamespaceName, TopicName};
use serde::Serialize;
use serde::de::DeserializeOwned;
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
    pub(crate) version: Version,
}

impl Key {
    pub(crate) fn not_found(&self) -> RegistryError {
        RegistryError::NotFound { kind: self.kind(), name: self.name() }
    }

    pub(crate) fn exists(&self) -> RegistryError {
        RegistryError::Exists { kind: self.kind(), name: self.name() }
    }

    pub(crate) fn put<T: Serialize>(&self, value: &T, condition: Condition) -> Result<Operation, RegistryError> {
        let key = self.path();
        let value = encode(&key, value)?;
        Ok(Operation::Put { key, value, condition, ephemeral: None })
    }

    pub(crate) fn delete(&self, condition: Condition) -> Operation {
        Operation::Delete { key: self.path(), condition }
    }
}

impl Registry {
    /// The record from the store itself.
    pub(crate) async fn find<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<Found<T>>, RegistryError> {
        let Some(entry) = self.store.get(&key.path()).await? else { return Ok(None) };
        Ok(Some(Found { value: decode(&entry.key, &entry.value)?, version: entry.version }))
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
    pub(crate) async fn create<T: Serialize + DeserializeOwned + PartialEq>(
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
            operations.push(key.put(value, Condition::Absent)?);
            if self.try_commit(&mut tries, operations).await? {
                return Ok(());
            }
        }
    }

    async fn beside(&self, beside: &Beside<'_>) -> Result<Vec<Operation>, RegistryError> {
        match beside {
            Beside::Nothing => Ok(Vec::new()),
            Beside::TenantOf(namespace) => {
                let key = Key::Tenant(namespace.tenant().to_owned());
                let found = self.find::<TenantInfo>(&key).await?.ok_or_else(|| key.not_found())?;
                Ok(vec![key.put(&found.value, Condition::Is(found.version))?])
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
        T: Serialize + DeserializeOwned + Clone + PartialEq,
        E: From<RegistryError>,
    {
        let mut tries = Tries::of(key);
        let mut written: Option<(T, R)> = None;
        loop {
            tries.next()?;
            let found = self.find::<T>(key).await?.ok_or_else(|| key.not_found())?;
            if let Some((_, result)) = written.take().filter(|(value, _)| tries.unknown() && *value == found.value) {
                self.visible(found.version).await?;
                return Ok(result);
            }
            let mut value = found.value.clone();
            let result = change(&mut value)?;
            if value == found.value {
                // R2: what was found is seen by later reads here too.
                self.visible(found.version).await?;
                return Ok(result);
            }
            if self.try_commit(&mut tries, vec![key.put(&value, Condition::Is(found.version))?]).await? {
                return Ok(result);
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
            if self.try_commit(&mut tries, vec![key.delete(Condition::Is(entry.version))]).await? {
                return Ok(());
            }
        }
    }

    /// A record that is not there was never there, or went by a try whose outcome was unknown (R4).
    pub(crate) async fn gone(&self, key: &Key, tries: &Tries<'_>) -> Result<(), RegistryError> {
        if tries.unknown() { self.visibly_gone(key).await } else { Err(key.not_found()) }
    }
}
