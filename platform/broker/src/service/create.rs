//! Whether a topic may be loaded or created, and creation by an administrator.

use super::topics::Create;
use super::{BrokerService, TopicEvent};
use crate::error::BrokerError;
use meridian_topic::TopicHandle;
use meridian_types::{Domain, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;

impl BrokerService {
    /// Whether the topic exists: loaded here or stored.
    ///
    /// # Errors
    /// What storage says.
    pub async fn topic_exists(&self, name: &TopicName) -> Result<bool, BrokerError> {
        if self.topics.loaded(name).is_some() {
            return Ok(true);
        }
        match name.domain() {
            Domain::Persistent => self.factory.exists(name).await,
            Domain::NonPersistent => Ok(false),
        }
    }

    /// Checks that a topic may be loaded; true = it exists already.
    pub(super) async fn admit_topic(&self, name: &TopicName, create: Create) -> Result<bool, BrokerError> {
        if self.topic_exists(name).await? {
            return Ok(true);
        }
        let allowed = match create {
            Create::Never => false,
            Create::IfAllowed => self.config.auto_topic_creation,
            Create::Always => true,
        };
        if allowed { Ok(false) } else { Err(BrokerError::TopicNotFound(format!("Topic {name} does not exist"))) }
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
        if self.topic_exists(name).await? {
            return Err(BrokerError::AlreadyExists("This topic already exists".to_owned()));
        }
        let handle = self.topic(name, Create::Always).await?;
        if !properties.is_empty() {
            self.factory.set_properties(name, properties).await?;
        }
        Ok(handle)
    }

    /// Replaces the properties of a stored topic.
    ///
    /// # Errors
    /// As [`BrokerService::topic`], or what storage says.
    pub async fn set_topic_properties(
        self: &Arc<Self>,
        name: &TopicName,
        properties: BTreeMap<String, String>,
    ) -> Result<(), BrokerError> {
        self.topic(name, Create::Never).await?;
        self.factory.set_properties(name, properties).await
    }

    pub(super) fn announce_deleted(&self, name: &TopicName) {
        self.announce(TopicEvent::Deleted(name.clone()));
    }
}
