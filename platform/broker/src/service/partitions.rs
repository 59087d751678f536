//! Partitioned topics and namespaces: creating, growing, deleting what consists of many topics.
//!
//! Invariant: a partitioned topic's record is marked before its partitions are deleted, so that a deletion that is cut off
//! is continued by a repetition and no partition comes back meanwhile.

use super::delete::is_absent;
use super::listing::is_system_topic;
use super::{BrokerService, Create, ListDomain, TopicEvent};
use crate::error::BrokerError;
use crate::quotas::Forgotten;
use meridian_policy::quota::Place;
use meridian_policy::{PartitionedTopic, check_properties};
use meridian_registry::RegistryError;
use meridian_topic::{SeekTo, TopicErrorKind};
use meridian_types::{NamespaceName, Position, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Partitions of a topic at most, whatever the setting: each is a topic that is listed, opened and deleted.
pub const MAX_PARTITIONS: u32 = 100_000;

impl BrokerService {
    /// Partitions of a partitioned topic; `None` if it is none.
    pub fn partitions(&self, name: &TopicName) -> Option<u32> {
        self.registry.partitions(name)
    }

    fn check_partition_count(&self, count: u32) -> Result<(), BrokerError> {
        let max = self.config.max_partitions_per_topic;
        if count == 0 {
            return Err(BrokerError::InvalidValue("Number of partitions should be more than 0".to_owned()));
        }
        let max = if max == 0 { MAX_PARTITIONS } else { max.min(MAX_PARTITIONS) };
        if count > max {
            let text = format!("Number of partitions should be less than or equal to {max}");
            return Err(BrokerError::InvalidValue(text));
        }
        Ok(())
    }

    /// Creates a partitioned topic.
    ///
    /// # Errors
    /// [`BrokerError::AlreadyExists`], [`BrokerError::InvalidValue`], or what the registry says.
    pub async fn create_partitioned_topic(
        &self,
        name: &TopicName,
        count: u32,
        properties: BTreeMap<String, String>,
    ) -> Result<(), BrokerError> {
        check_properties(&properties).map_err(RegistryError::Policy)?;
        self.check_partition_count(count)?;
        self.check_partition_quota(name, count)?;
        self.check_namespace(name).await?;
        if name.partition().is_some() {
            return Err(BrokerError::InvalidValue(format!("{name} is named like a partition")));
        }
        if self.topic_exists(name).await? {
            return Err(BrokerError::AlreadyExists("This topic already exists".to_owned()));
        }
        self.check_topic_count(name, count).await?;
        match self.registry.create_partitioned(name, count, properties).await {
            Ok(()) => {}
            Err(RegistryError::Exists { .. }) => {
                return Err(BrokerError::AlreadyExists("This topic already exists".to_owned()));
            }
            Err(error) => return Err(error.into()),
        }
        self.announce_created(name, 0..count);
        Ok(())
    }

    /// Gives a partitioned topic more partitions, with the subscriptions that it has.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`], [`BrokerError::InvalidValue`], or what registry and topics say.
    pub async fn grow_partitioned_topic(self: &Arc<Self>, name: &TopicName, count: u32) -> Result<(), BrokerError> {
        let before = self.partitions(name).ok_or_else(|| {
            BrokerError::TopicNotFound(format!("Partitioned Topic not found: {name} has zero partitions"))
        })?;
        self.check_partition_count(count)?;
        self.check_partition_quota(name, count)?;
        if count < before {
            let text = format!("Number of new partitions must be greater than existing number of partitions {before}");
            return Err(BrokerError::InvalidValue(text));
        }
        let more = count - before;
        self.check_topic_count(name, more).await?;
        let grow = |topic: &mut PartitionedTopic| {
            topic.partitions = topic.partitions.max(count);
            Ok::<(), BrokerError>(())
        };
        self.registry.update_partitioned(name, grow).await?;
        self.announce_created(name, before..count);
        if more > 0 {
            self.copy_subscriptions(name, before, count).await?;
        }
        Ok(())
    }

    /// Consumers that see a new partition late find their subscription from its beginning.
    async fn copy_subscriptions(self: &Arc<Self>, name: &TopicName, from: u32, to: u32) -> Result<(), BrokerError> {
        let first = self.topic(&name.with_partition(0), Create::Never).await?;
        let subscriptions: Vec<_> = first.stats().subscriptions.into_iter().filter(|one| one.durable).collect();
        for partition in from..to {
            if subscriptions.is_empty() {
                break;
            }
            let topic = self.topic(&name.with_partition(partition), Create::Never).await?;
            for subscription in &subscriptions {
                let earliest = SeekTo::Position(Position::EARLIEST, Vec::new());
                let (name, replicated) = (subscription.name.clone(), subscription.replicated);
                match topic.create_subscription(name, earliest, BTreeMap::new(), replicated).await {
                    Ok(()) => {}
                    // A consumer was quicker.
                    Err(error) if error.kind == TopicErrorKind::ConsumerBusy || error.kind == TopicErrorKind::Busy => {}
                    Err(error) => tracing::debug!(%error, "a subscription was not copied to a new partition"),
                }
            }
        }
        Ok(())
    }

    /// Deletes a partitioned topic with all partitions, its schema and its policies.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`]; a topic error of kind Busy if it has clients and `force` is false, then nothing
    /// is deleted; or what registry and topics say.
    pub async fn delete_partitioned_topic(self: &Arc<Self>, name: &TopicName, force: bool) -> Result<(), BrokerError> {
        let count = self
            .partitions(name)
            .ok_or_else(|| BrokerError::TopicNotFound(format!("Partitioned Topic not found: {name}")))?;
        if !force {
            self.refuse_if_used((0..count).map(|partition| name.with_partition(partition)))?;
            self.refuse_if_linked((0..count).map(|partition| name.with_partition(partition)))?;
        }
        self.mark_partitioned(name, true).await?;
        for partition in 0..count {
            let partition = name.with_partition(partition);
            match self.delete_topic(&partition, force).await {
                Ok(()) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    self.mark_partitioned(name, false).await?;
                    return Err(error);
                }
            }
        }
        self.registry.delete_partitioned(name).await?;
        self.registry.delete_topic_policies(name).await?;
        self.purge_schemas(name).await?;
        self.forget_quotas(&Place::Topic(name.clone()), Forgotten::OfTenant).await?;
        for partition in 0..count {
            self.announce(TopicEvent::Deleted(name.with_partition(partition)));
        }
        Ok(())
    }

    async fn mark_partitioned(&self, name: &TopicName, deleted: bool) -> Result<(), BrokerError> {
        let mark = |topic: &mut PartitionedTopic| {
            topic.deleted = deleted;
            Ok::<(), BrokerError>(())
        };
        self.registry.update_partitioned(name, mark).await
    }

    fn refuse_if_used(&self, names: impl Iterator<Item = TopicName>) -> Result<(), BrokerError> {
        for topic in names.filter_map(|name| self.loaded_topic(&name)) {
            let stats = topic.stats();
            if !stats.producers.is_empty() || stats.subscriptions.iter().any(|one| !one.consumers.is_empty()) {
                let text = format!("{} has active producers/subscriptions", topic.name());
                return Err(BrokerError::Busy(text));
            }
        }
        Ok(())
    }

    /// Deletes a namespace with everything in it; without `force` it must hold no topics but the platform's.
    ///
    /// # Errors
    /// [`BrokerError::NamespaceNotFound`], [`BrokerError::NotAllowed`] if it is not empty, or what registry and topics
    /// say; a repetition continues.
    pub async fn delete_namespace(self: &Arc<Self>, namespace: &NamespaceName, force: bool) -> Result<(), BrokerError> {
        self.require_namespace(namespace).await?;
        let topics = self.list_topics(namespace, ListDomain::All).await?;
        if !force && topics.iter().any(|topic| !is_system_topic(topic)) {
            return Err(BrokerError::NotAllowed("Cannot delete non empty namespace".to_owned()));
        }
        self.registry.mark_namespace_deleted(namespace).await?;
        for topic in self.registry.partitioned_topics(namespace) {
            ignore_absent(self.delete_partitioned_topic(&topic, true).await)?;
        }
        for topic in self.list_topics(namespace, ListDomain::All).await? {
            ignore_absent(self.delete_topic(&topic, true).await)?;
        }
        self.registry.delete_namespace(namespace).await?;
        self.forget_quotas(&Place::Namespace(namespace.clone()), Forgotten::OfTenant).await
    }

    fn announce_created(&self, name: &TopicName, partitions: std::ops::Range<u32>) {
        for partition in partitions {
            self.announce(TopicEvent::Created(name.with_partition(partition)));
        }
    }
}

/// Absent is as good as deleted.
pub(super) fn ignore_absent(outcome: Result<(), BrokerError>) -> Result<(), BrokerError> {
    match outcome {
        Err(error) if is_absent(&error) => Ok(()),
        outcome => outcome,
    }
}
