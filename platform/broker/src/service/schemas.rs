//! Schemas of topics under their namespaces' rules.

use super::{BrokerService, now_ms};
use crate::error::BrokerError;
use crate::schema::{CompatibilityStrategy, PutRules, SchemaError, SchemaInfo};
use meridian_topic::TopicHandle;
use meridian_types::TopicName;
use std::sync::Arc;

impl BrokerService {
    /// The version of a schema that a producer or an administrator brings; stored if it is new and the rules allow it.
    ///
    /// # Errors
    /// [`BrokerError::Schema`].
    pub async fn register_schema(
        &self,
        topic: &TopicName,
        info: SchemaInfo,
        author: Option<&str>,
    ) -> Result<u64, BrokerError> {
        let rules = self.schema_rules(topic);
        Ok(self.schemas.put(topic, info, rules, author.unwrap_or_default(), now_ms()).await?)
    }

    /// The version of a schema that another region's replicator brings; a rule of its own says whether it may be new.
    ///
    /// # Errors
    /// [`BrokerError::Schema`].
    pub async fn register_link_schema(
        &self,
        topic: &TopicName,
        info: SchemaInfo,
        author: Option<&str>,
    ) -> Result<u64, BrokerError> {
        let policies = self.registry.namespace(&topic.namespace());
        let may_update = policies.is_none_or(|policies| policies.is_allow_auto_update_schema_with_replicator);
        let rules = PutRules { may_update, ..self.schema_rules(topic) };
        Ok(self.schemas.put(topic, info, rules, author.unwrap_or_default(), now_ms()).await?)
    }

    /// Admits a consumer's schema: on a topic in use it must be able to read what is there, on an idle one it is stored.
    ///
    /// # Errors
    /// [`BrokerError::Schema`].
    pub async fn admit_consumer_schema(
        &self,
        topic: &Arc<dyn TopicHandle>,
        info: SchemaInfo,
        author: Option<&str>,
    ) -> Result<(), BrokerError> {
        let name = topic.name();
        let has_schema = self.schemas.latest(name).await?.is_some();
        if !has_schema && !is_in_use(topic) {
            self.register_schema(name, info, author).await?;
            return Ok(());
        }
        if !has_schema {
            return Err(SchemaError::Incompatible("Topic does not have schema to check".to_owned()).into());
        }
        let strategy = self.schema_rules(name).strategy.for_consumer();
        Ok(self.schemas.check(name, &info, strategy).await?)
    }

    /// Compatibility strategy in force for a topic.
    pub fn schema_strategy(&self, topic: &TopicName) -> CompatibilityStrategy {
        self.schema_rules(topic).strategy
    }
}

/// Whether a topic has clients or data.
fn is_in_use(topic: &Arc<dyn TopicHandle>) -> bool {
    let stats = topic.stats();
    !stats.producers.is_empty()
        || stats.subscriptions.iter().any(|subscription| !subscription.consumers.is_empty())
        || stats.log.is_some_and(|log| log.entries > 0)
}
