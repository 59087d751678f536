//! LOOKUP and PARTITIONED_METADATA.

use super::{Session, reply};
use crate::access::Wish;
use crate::error::BrokerError;
use meridian_types::TopicName;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::command_partitioned_topic_metadata_response::LookupType as MetadataLookupType;
use meridian_wire::proto::{
    CommandLookupTopic, CommandLookupTopicResponse, CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse, ServerError,
};
use meridian_wire::replicate::LINK_KEY;

impl Session {
    pub(super) fn lookup(&self, request: CommandLookupTopic) {
        self.spawn(|session| async move {
            let request_id = request.request_id;
            let response = match session.answer_lookup(&request).await {
                Ok(response) => response,
                Err(error) => CommandLookupTopicResponse {
                    request_id,
                    response: Some(LookupType::Failed as i32),
                    error: Some(lookup_error(&error) as i32),
                    message: Some(error.to_string()),
                    ..Default::default()
                },
            };
            session.service.metrics().lookups.inc();
            session.send(response);
        });
    }

    async fn answer_lookup(&self, request: &CommandLookupTopic) -> Result<CommandLookupTopicResponse, BrokerError> {
        let topic = TopicName::parse(&request.topic)?;
        let _permit = self.service.lookup_permit()?;
        // The door first: who may not look does not learn what there is.
        self.service.access().check(&self.principal(), Wish::Lookup(&topic))?;
        self.service.check_namespace(&topic).await?;
        let listener = request.advertised_listener_name.as_deref().filter(|name| !name.is_empty());
        let listener = listener.or(self.listener.as_deref());
        let link = request.properties.iter().any(|pair| pair.key == LINK_KEY);
        let found = match self.service.lookup_elsewhere(&topic).filter(|_| !link) {
            Some(elsewhere) => elsewhere,
            None => self.service.lookup(&topic, listener, request.authoritative()).await?,
        };
        let kind = if found.is_owner { LookupType::Connect } else { LookupType::Redirect };
        Ok(CommandLookupTopicResponse {
            request_id: request.request_id,
            broker_service_url: found.broker_url,
            broker_service_url_tls: found.broker_url_tls,
            response: Some(kind as i32),
            authoritative: Some(found.authoritative),
            proxy_through_service_url: Some(found.proxy_through_service_url),
            ..Default::default()
        })
    }

    pub(super) fn partition_metadata(&self, request: CommandPartitionedTopicMetadata) {
        self.spawn(|session| async move {
            let request_id = request.request_id;
            let response = match session.answer_partitions(&request).await {
                Ok(partitions) => CommandPartitionedTopicMetadataResponse {
                    request_id,
                    partitions: Some(partitions),
                    response: Some(MetadataLookupType::Success as i32),
                    ..Default::default()
                },
                Err(error) => CommandPartitionedTopicMetadataResponse {
                    request_id,
                    response: Some(MetadataLookupType::Failed as i32),
                    error: Some(lookup_error(&error) as i32),
                    message: Some(error.to_string()),
                    ..Default::default()
                },
            };
            session.service.metrics().lookups.inc();
            session.send(response);
        });
    }

    /// The door first: who may not look does not learn what a tenant has. That there is no such tenant is told to all by this
    /// request, a client's first about a topic, as clients that mistype one expect.
    async fn may_ask_partitions(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let Err(denied) = self.service.access().check(&self.principal(), Wish::Lookup(topic)) else {
            return self.service.check_namespace(topic).await;
        };
        match self.service.registry().learn_tenant(topic.tenant()).await {
            Ok(false) => self.service.check_namespace(topic).await.and(Err(denied)),
            _ => Err(denied),
        }
    }

    async fn answer_partitions(&self, request: &CommandPartitionedTopicMetadata) -> Result<u32, BrokerError> {
        let topic = TopicName::parse(&request.topic)?;
        let _permit = self.service.lookup_permit()?;
        self.may_ask_partitions(&topic).await?;
        self.service.partitions_or_create(&topic, request.metadata_auto_creation_enabled()).await
    }
}

/// Lookups know few errors: what is none of them makes the client ask again.
fn lookup_error(error: &BrokerError) -> ServerError {
    match reply::broker_error(error) {
        kind if matches!(error, BrokerError::Name(_)) => kind,
        kind @ (ServerError::InvalidTopicName
        | ServerError::AuthorizationError
        | ServerError::TopicNotFound
        | ServerError::TooManyRequests
        | ServerError::MetadataError) => kind,
        ServerError::NotAllowedError => ServerError::MetadataError,
        _ => ServerError::ServiceNotReady,
    }
}
