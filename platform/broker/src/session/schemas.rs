//! GET_SCHEMA, GET_OR_CREATE_SCHEMA, and schemas as they stand in commands.

use super::{Session, reply};
use crate::access::Wish;
use crate::error::BrokerError;
use crate::schema::{SchemaError, SchemaInfo, SchemaKind};
use crate::session::producer::metadata_of;
use bytes::Bytes;
use meridian_topic::origins::is_link;
use meridian_types::TopicName;
use meridian_wire::proto::{
    CommandGetOrCreateSchema, CommandGetOrCreateSchemaResponse, CommandGetSchema, CommandGetSchemaResponse, Schema,
    ServerError,
};

/// The schema of a command; none, NONE and AUTO_CONSUME say that there is none.
///
/// # Errors
/// [`SchemaError::Invalid`] for a kind that does not exist.
pub(super) fn given(schema: Option<&Schema>) -> Result<Option<SchemaInfo>, SchemaError> {
    let Some(schema) = schema else { return Ok(None) };
    // Some clients write kinds that are no schema as negative numbers.
    if schema.r#type < 0 {
        return Ok(None);
    }
    let kind = SchemaKind::from_wire(schema.r#type)
        .ok_or_else(|| SchemaError::Invalid(format!("unknown schema type {}", schema.r#type)))?;
    if matches!(kind, SchemaKind::None | SchemaKind::AutoConsume) {
        return Ok(None);
    }
    // Slices of the read buffer would pin it for as long as the schema lives.
    let data = Bytes::copy_from_slice(&schema.schema_data);
    Ok(Some(SchemaInfo { kind, data, properties: metadata_of(&schema.properties) }))
}

impl Session {
    pub(super) fn get_schema(&self, request: CommandGetSchema) {
        self.spawn(|session| async move {
            let request_id = request.request_id;
            let response = match session.answer_schema(&request).await {
                Ok(response) => response,
                Err((error, message)) => CommandGetSchemaResponse {
                    request_id,
                    error_code: Some(error as i32),
                    error_message: Some(message),
                    ..Default::default()
                },
            };
            session.send(response);
        });
    }

    async fn answer_schema(
        &self,
        request: &CommandGetSchema,
    ) -> Result<CommandGetSchemaResponse, (ServerError, String)> {
        let told = |error: BrokerError| (reply::broker_error(&error), error.to_string());
        let topic = TopicName::parse(&request.topic).map_err(|error| told(error.into()))?;
        self.service.access().check(&self.principal(), Wish::Lookup(&topic)).map_err(told)?;
        let schemas = self.service.schemas();
        let stored = match &request.schema_version {
            None => schemas.latest(&topic).await,
            Some(bytes) => match <[u8; 8]>::try_from(&bytes[..]) {
                Ok(version) => schemas.version(&topic, u64::from_be_bytes(version)).await,
                Err(_) => {
                    let text = "Empty schema version: a version is 8 bytes".to_owned();
                    return Err((ServerError::IncompatibleSchema, text));
                }
            },
        };
        match stored {
            Ok(Some(stored)) => Ok(CommandGetSchemaResponse {
                request_id: request.request_id,
                schema: Some(stored.on_wire(&topic)),
                schema_version: Some(reply::schema_version(stored.version)),
                ..Default::default()
            }),
            Ok(None) => Err((ServerError::TopicNotFound, format!("Topic not found or no-schema {topic}"))),
            Err(error) => Err((ServerError::UnknownError, error.to_string())),
        }
    }

    pub(super) fn get_or_create_schema(&self, request: CommandGetOrCreateSchema) {
        self.spawn(|session| async move {
            let request_id = request.request_id;
            let response = match session.answer_create_schema(&request).await {
                Ok(version) => CommandGetOrCreateSchemaResponse {
                    request_id,
                    // What is no schema has no version: clients that are given one, even an empty one, ask for it.
                    schema_version: version.map(reply::schema_version),
                    ..Default::default()
                },
                Err(error) => CommandGetOrCreateSchemaResponse {
                    request_id,
                    error_code: Some(reply::broker_error(&error) as i32),
                    error_message: Some(error.to_string()),
                    ..Default::default()
                },
            };
            session.send(response);
        });
    }

    async fn answer_create_schema(&self, request: &CommandGetOrCreateSchema) -> Result<Option<u64>, BrokerError> {
        let topic = TopicName::parse(&request.topic)?;
        let principal = self.principal();
        self.service.access().check(&principal, Wish::Produce(&topic))?;
        if self.service.loaded_topic(&topic).is_none() {
            return Err(BrokerError::TopicNotFound(format!("Topic not found {topic}")));
        }
        let Some(info) = given(Some(&request.schema))? else { return Ok(None) };
        if self.has_link(&topic) {
            return self.service.register_link_schema(&topic, info, principal.acting()).await.map(Some);
        }
        self.service.register_schema(&topic, info, principal.acting()).await.map(Some)
    }

    /// Whether another region's replicator sends to the topic on this connection.
    fn has_link(&self, topic: &TopicName) -> bool {
        let of_topic = |slot: &super::slots::ProducerSlot| {
            slot.attached.as_ref().is_some_and(|(handle, _)| handle.name() == topic) && is_link(&slot.name)
        };
        self.slots.lock().producers.values().any(of_topic)
    }
}
