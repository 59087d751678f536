//! Schemas of topics under their namespaces' rules.

use super::{BrokerService, now_ms};
use crate::error::BrokerError;
use crate::schema::{CompatibilityStrategy, PutRules, SchemaError, SchemaInfo, SchemaKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meridian_registry::SharedSchema;
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
        self.put_schema(topic, info, rules, author).await
    }

    /// Stores a schema, and makes it known to the regions that share the topic.
    async fn put_schema(
        &self,
        topic: &TopicName,
        info: SchemaInfo,
        rules: PutRules,
        author: Option<&str>,
    ) -> Result<u64, BrokerError> {
        let shared = self.registry.is_shared(topic).then(|| SharedSchema {
            kind: info.kind.wire(),
            data: STANDARD.encode(&info.data),
            properties: info.properties.clone(),
        });
        let version = self.schemas.put(topic, info, rules, author.unwrap_or_default(), now_ms()).await?;
        if let Some(shared) = shared
            && let Err(error) = self.registry.share_schema(topic, &shared).await
        {
            // Its first message brings it, too.
            tracing::warn!(%topic, %error, "a schema was not made known to other regions");
        }
        Ok(version)
    }

    /// Deletes all schemas of a topic that is gone, here and in the regions that share it.
    pub(super) async fn purge_schemas(&self, topic: &TopicName) -> Result<(), BrokerError> {
        self.schemas.purge(topic).await?;
        Ok(self.registry.unshare_schemas(topic).await?)
    }

    /// Takes over the schemas that other regions have, or their deletion. No rule is asked: they were taken there.
    pub(super) async fn adopt_schemas(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let rules = PutRules { strategy: CompatibilityStrategy::AlwaysCompatible, may_update: true };
        if let Some(shared) = self.registry.shared_schemas(topic) {
            for schema in &shared.schemas {
                let (Some(kind), Ok(data)) = (SchemaKind::from_wire(schema.kind), STANDARD.decode(&schema.data)) else {
                    continue;
                };
                let info = SchemaInfo { kind, data: data.into(), properties: schema.properties.clone() };
                self.schemas.put(topic, info, rules, "", now_ms()).await?;
            }
            return Ok(());
        }
        let Some(deleted_ms) = self.registry.schemas_deleted_ms(topic) else { return Ok(()) };
        if self.schemas.latest(topic).await?.is_some_and(|latest| latest.created_ms <= deleted_ms) {
            self.schemas.delete(topic, "", now_ms()).await?;
        }
        Ok(())
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
        self.put_schema(topic, info, rules, author).await
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
