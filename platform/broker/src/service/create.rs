//! Whether a topic may be loaded or created, and creation by an administrator.
//!
//! A name `T-partition-N` is a partition: it belongs to a partitioned topic T with more than N partitions, or is refused;
//! the name of a partitioned topic itself is never a topic.

use super::listing::is_system_topic;
use super::topics::Create;
use super::{BrokerService, ListDomain};
use crate::error::BrokerError;
use meridian_policy::check_properties;
use meridian_registry::RegistryError;
use meridian_topic::TopicHandle;
use meridian_types::{Domain, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Local names that are never created partitioned.
const NEVER_PARTITIONED: [&str; 2] = ["-DLQ", "-RETRY"];

impl BrokerService {
    /// Whether the topic exists: loaded here, stored, or a partition of a partitioned topic.
    ///
    /// # Errors
    /// What storage says.
    pub async fn topic_exists(&self, name: &TopicName) -> Result<bool, BrokerError> {
        if self.topics.loaded(name).is_some() {
            return Ok(true);
        }
        if let Some(partition) = name.partition()
            && self.registry.partitions(&name.base()).is_some_and(|count| partition < count)
        {
            return Ok(true);
        }
        match name.domain() {
            Domain::Persistent => self.factory.exists(name).await,
            Domain::NonPersistent => Ok(false),
        }
    }

    /// Checks that a topic may be loaded; true = it exists already.
    pub(super) async fn admit_topic(&self, name: &TopicName, create: Create) -> Result<bool, BrokerError> {
        self.check_namespace(name).await?;
        if self.is_there(name).await? {
            return Ok(true);
        }
        // Another broker may have made it a moment ago, or given it more partitions.
        let news = match name.partition() {
            Some(_) => self.registry.learn_partition(name).await?,
            None => self.registry.learn_partitioned(name).await?,
        };
        if news && self.is_there(name).await? {
            return Ok(true);
        }
        if let Some(partition) = name.partition() {
            let reason = match self.registry.partitions(&name.base()) {
                None => format!("Partition metadata not found for the partitioned topic {}", name.base()),
                Some(count) => format!("{name} does not exist: the topic has {count} partitions, {partition} is none"),
            };
            return Err(BrokerError::NotAllowed(reason));
        }
        let allowed = match create {
            Create::Never => false,
            Create::IfAllowed => self.may_create_topic(name),
            Create::Always => true,
        };
        if !allowed {
            return Err(BrokerError::TopicNotFound(format!("Topic {name} does not exist")));
        }
        self.check_topic_count(name, 1).await?;
        Ok(false)
    }

    /// Whether the topic exists, and is none whose partitions are topics.
    async fn is_there(&self, name: &TopicName) -> Result<bool, BrokerError> {
        if self.registry.partitioned_topic(name).is_some() {
            return Err(BrokerError::NotAllowed(format!("{name} is a partitioned topic; its partitions are topics")));
        }
        self.topic_exists(name).await
    }

    /// Whether clients may create this topic by using it.
    fn may_create_topic(&self, name: &TopicName) -> bool {
        let namespace = name.namespace();
        let deleted = self.registry.namespace(&namespace).is_none_or(|policies| policies.deleted);
        let local = name.local();
        let allowed =
            is_system_topic(name) || self.registry.effective_namespace(&namespace).auto_topic_creation.allowed;
        allowed && !deleted && local.trim() == local
    }

    /// Whether the namespace has room for more topics.
    pub(super) async fn check_topic_count(&self, name: &TopicName, more: u32) -> Result<(), BrokerError> {
        self.check_topic_quota(name, more).await?;
        let namespace = name.namespace();
        let max = self.registry.effective_namespace(&namespace).max_topics;
        if max == 0 || is_system_topic(name) {
            return Ok(());
        }
        let topics = self.list_topics(&namespace, ListDomain::All).await?;
        let count = topics.iter().filter(|topic| !is_system_topic(topic)).count();
        if count + more as usize > max as usize {
            let text = format!("Exceed maximum number of topics in namespace {namespace}: {max}");
            return Err(BrokerError::NotAllowed(text));
        }
        Ok(())
    }

    /// Partitions of a topic, 0 = it is not partitioned; creates what the rules of automatic creation say.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`] if it does not exist and may not be created, or what storage says.
    pub async fn partitions_or_create(self: &Arc<Self>, name: &TopicName, create: bool) -> Result<u32, BrokerError> {
        self.check_namespace(name).await?;
        if let Some(count) = self.registry.partitions(name) {
            return Ok(count);
        }
        if self.topic_exists(name).await? {
            return Ok(0);
        }
        // Another broker may have made it a moment ago.
        if self.registry.learn_partitioned(name).await? {
            return Ok(self.registry.partitions(name).unwrap_or(0));
        }
        if !(create && self.may_create_topic(name)) {
            return Err(BrokerError::TopicNotFound(String::new()));
        }
        let wanted = self.registry.effective_namespace(&name.namespace()).auto_topic_creation.partitions;
        let plain = name.partition().is_some() || NEVER_PARTITIONED.iter().any(|end| name.local().ends_with(end));
        let Some(count) = wanted.filter(|_| !plain) else { return Ok(0) };
        match self.create_partitioned_topic(name, count, BTreeMap::new()).await {
            Ok(()) => Ok(count),
            // Someone else was quicker; what they made counts.
            Err(BrokerError::AlreadyExists(_)) => Ok(self.registry.partitions(name).unwrap_or(0)),
            Err(error) => Err(error),
        }
    }

    /// Creates a topic for an administrator.
    ///
    /// # Errors
    /// [`BrokerError::AlreadyExists`], or as [`BrokerService::topic`].
    pub async fn create_topic(
        self: &Arc<Self>,
        name: &TopicName,
        properties: BTreeMap<String, String>,
    ) -> Result<Arc<dyn TopicHandle>, BrokerError> {
        check_properties(&properties).map_err(RegistryError::Policy)?;
        let partition_to_make = name.partition().is_some() && !self.is_stored(name).await?;
        if self.registry.partitioned_topic(name).is_some() || (self.topic_exists(name).await? && !partition_to_make) {
            return Err(BrokerError::AlreadyExists("This topic already exists".to_owned()));
        }
        let handle = self.topic(name, Create::Always).await?;
        if !properties.is_empty() {
            self.factory.set_properties(name, properties).await?;
        }
        Ok(handle)
    }

    /// Whether there is something of the topic: a partition may not be there yet.
    pub(crate) async fn is_stored(&self, name: &TopicName) -> Result<bool, BrokerError> {
        Ok(self.topics.loaded(name).is_some()
            || (name.domain() == Domain::Persistent && self.factory.exists(name).await?))
    }

    /// Properties that an administrator gave a topic.
    ///
    /// # Errors
    /// As [`BrokerService::topic`].
    pub async fn topic_properties(self: &Arc<Self>, name: &TopicName) -> Result<BTreeMap<String, String>, BrokerError> {
        if let Some(partitioned) = self.registry.partitioned_topic(name) {
            return Ok(partitioned.properties.clone());
        }
        self.topic(name, Create::Never).await?;
        Ok(self.factory.properties(name))
    }

    /// Replaces the properties that an administrator gave a topic.
    ///
    /// # Errors
    /// As [`BrokerService::topic`], or what storage says.
    pub async fn set_topic_properties(
        self: &Arc<Self>,
        name: &TopicName,
        properties: BTreeMap<String, String>,
    ) -> Result<(), BrokerError> {
        check_properties(&properties).map_err(RegistryError::Policy)?;
        if self.registry.partitioned_topic(name).is_some() {
            let change = |topic: &mut meridian_policy::PartitionedTopic| {
                topic.properties = properties.clone();
                Ok::<(), BrokerError>(())
            };
            return self.registry.update_partitioned(name, change).await;
        }
        self.topic(name, Create::Never).await?;
        self.factory.set_properties(name, properties).await
    }
}
