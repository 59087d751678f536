//! Policies of topics, and partitioned topics.
//!
//! Invariants: R3 a partitioned topic is created only in a namespace that is not being deleted; partitions only grow.
//! Failure: [`RegistryError`]; a call that failed half-way can be repeated.
//! Must never know: who may call, topics' content.

use crate::keys::Key;
use crate::write::{Beside, Tries};
use crate::{Registry, RegistryError};
use meridian_metadata::Condition;
use meridian_policy::{PartitionedTopic, PolicyError, TopicPolicies};
use meridian_types::TopicName;
use std::collections::BTreeMap;

impl Registry {
    /// Changes the policies of a topic (all partitions); they begin empty and the record goes when they are again. The
    /// closure may run several times.
    ///
    /// # Errors
    /// The closure's, or [`RegistryError`].
    pub async fn update_topic_policies<R, E: From<RegistryError>>(
        &self,
        topic: &TopicName,
        mut change: impl FnMut(&mut TopicPolicies) -> Result<R, E>,
    ) -> Result<R, E> {
        let key = Key::TopicPolicies(topic.base());
        let mut tries = Tries::of(&key);
        loop {
            tries.next()?;
            let namespace = self.check_namespace_of(topic).await?;
            let found = self.find::<TopicPolicies>(&key).await?;
            let condition = found.as_ref().map_or(Condition::Absent, |found| Condition::Is(found.version));
            let (before, header) = found.map_or_else(Default::default, |found| (found.value, Some(found.header)));
            let mut policies: TopicPolicies = before.clone();
            let result = change(&mut policies)?;
            if policies == before {
                return Ok(result);
            }
            let mut operations = vec![namespace];
            match header {
                Some(header) if policies.is_empty() => operations.extend(self.deletion(&key, &header, condition)?),
                Some(header) => {
                    let header = self.next_header(&key, &policies, &header);
                    operations.push(key.put(&header, &policies, condition)?);
                }
                None => {
                    let ended = self.find_tombstone(&key).await?;
                    let header = self.first_header(&key, &policies, ended.as_ref().map(|(tombstone, _)| tombstone));
                    operations.push(key.put(&header, &policies, condition)?);
                    operations.extend(ended.map(|(_, version)| key.delete_tombstone(version)));
                }
            }
            if self.try_commit(&mut tries, operations).await? {
                return Ok(result);
            }
        }
    }

    /// Deletes the policies of a topic, if there are any.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn delete_topic_policies(&self, topic: &TopicName) -> Result<(), RegistryError> {
        self.remove_if_there(&Key::TopicPolicies(topic.base())).await
    }

    /// Creates a partitioned topic.
    ///
    /// # Errors
    /// [`RegistryError`]; a namespace that does not exist is [`RegistryError::NotFound`] of kind `namespace`.
    pub async fn create_partitioned(
        &self,
        topic: &TopicName,
        partitions: u32,
        properties: BTreeMap<String, String>,
    ) -> Result<(), RegistryError> {
        if partitions == 0 || topic.partition().is_some() {
            let what = format!("{topic} with {partitions} partitions");
            return Err(PolicyError { what, rule: "a partitioned topic has partitions and is not one itself" }.into());
        }
        let record = PartitionedTopic { partitions, properties, deleted: false };
        self.create(&Key::Partitioned(topic.clone()), &record, Beside::NamespaceOf(topic)).await
    }

    /// Changes a partitioned topic: more partitions, properties. The closure may run several times.
    ///
    /// # Errors
    /// The closure's, or [`RegistryError`]; fewer partitions are a [`PolicyError`].
    pub async fn update_partitioned<R, E: From<RegistryError>>(
        &self,
        topic: &TopicName,
        mut change: impl FnMut(&mut PartitionedTopic) -> Result<R, E>,
    ) -> Result<R, E> {
        self.update(&Key::Partitioned(topic.clone()), |partitioned: &mut PartitionedTopic| {
            let before = partitioned.partitions;
            let result = change(partitioned)?;
            if partitioned.partitions < before {
                let what = format!("{} partitions of {topic}, it has {before}", partitioned.partitions);
                return Err(RegistryError::Policy(PolicyError { what, rule: "partitions only grow" }).into());
            }
            Ok(result)
        })
        .await
    }

    /// Deletes a partitioned topic's record.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] if it is none.
    pub async fn delete_partitioned(&self, topic: &TopicName) -> Result<(), RegistryError> {
        self.remove(&Key::Partitioned(topic.clone())).await
    }

    async fn remove_if_there(&self, key: &Key) -> Result<(), RegistryError> {
        match self.remove(key).await {
            Err(RegistryError::NotFound { .. }) => Ok(()),
            result => result,
        }
    }
}
