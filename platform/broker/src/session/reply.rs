//! Answers, and which `ServerError` says what.

use crate::error::BrokerError;
use crate::schema::SchemaError;
use bytes::Bytes;
use meridian_metadata::MetadataError;
use meridian_topic::{ProducerReady, TopicErrorKind};
use meridian_types::Position;
use meridian_wire::error::request_error;
use meridian_wire::proto::{BaseCommand, CommandProducerSuccess, MessageIdData, ServerError};

/// The wire's word for a topic's refusal.
pub fn server_error(kind: TopicErrorKind) -> ServerError {
    match kind {
        TopicErrorKind::Unknown => ServerError::UnknownError,
        TopicErrorKind::Metadata => ServerError::MetadataError,
        TopicErrorKind::Persistence => ServerError::PersistenceError,
        TopicErrorKind::ConsumerBusy => ServerError::ConsumerBusy,
        TopicErrorKind::ServiceNotReady => ServerError::ServiceNotReady,
        TopicErrorKind::ProducerBlockedQuotaExceededError => ServerError::ProducerBlockedQuotaExceededError,
        TopicErrorKind::ProducerBlockedQuotaExceededException => ServerError::ProducerBlockedQuotaExceededException,
        TopicErrorKind::Checksum => ServerError::ChecksumError,
        TopicErrorKind::TopicNotFound => ServerError::TopicNotFound,
        TopicErrorKind::SubscriptionNotFound => ServerError::SubscriptionNotFound,
        TopicErrorKind::ConsumerNotFound => ServerError::ConsumerNotFound,
        TopicErrorKind::TopicTerminated => ServerError::TopicTerminatedError,
        TopicErrorKind::ProducerBusy => ServerError::ProducerBusy,
        TopicErrorKind::IncompatibleSchema => ServerError::IncompatibleSchema,
        TopicErrorKind::ConsumerAssign => ServerError::ConsumerAssignError,
        TopicErrorKind::NotAllowed | TopicErrorKind::TooLarge => ServerError::NotAllowedError,
        TopicErrorKind::ProducerFenced => ServerError::ProducerFenced,
        TopicErrorKind::Busy => ServerError::UnknownError,
    }
}

/// The wire's word for any refusal of the broker.
pub fn broker_error(error: &BrokerError) -> ServerError {
    match error {
        // Clients of C++ repeat a look-up of what they are told is no name until it times out.
        BrokerError::Name(error) if error.is_too_long() => ServerError::NotAllowedError,
        BrokerError::Name(_) => ServerError::InvalidTopicName,
        BrokerError::Denied(_) => ServerError::AuthorizationError,
        BrokerError::Unauthenticated(_) => ServerError::AuthenticationError,
        BrokerError::TooManyRequests { .. } => ServerError::TooManyRequests,
        BrokerError::Schema(SchemaError::Metadata(MetadataError::TooLarge { .. })) => ServerError::NotAllowedError,
        BrokerError::Schema(SchemaError::Metadata(_) | SchemaError::Corrupt(_)) => ServerError::MetadataError,
        BrokerError::AlreadyExists(_) | BrokerError::InvalidValue(_) => ServerError::MetadataError,
        BrokerError::Metadata(MetadataError::SessionExpired(_)) => ServerError::ServiceNotReady,
        other => server_error(other.topic_kind()),
    }
}

/// ERROR for a request.
pub fn refused(request_id: u64, error: &BrokerError) -> BaseCommand {
    request_error(request_id, broker_error(error), &error.to_string())
}

/// PRODUCER_SUCCESS.
pub fn producer_success(request_id: u64, ready: &ProducerReady, schema_version: &Bytes) -> BaseCommand {
    CommandProducerSuccess {
        request_id,
        producer_name: ready.name.clone(),
        last_sequence_id: Some(ready.last_sequence_id),
        schema_version: Some(schema_version.clone()),
        topic_epoch: ready.topic_epoch,
        producer_ready: Some(ready.ready),
    }
    .into()
}

/// A message id of the wire.
pub fn message_id(position: Position, partition: Option<u32>, batch_index: i32) -> MessageIdData {
    MessageIdData {
        ledger_id: position.ledger_id.0 as u64,
        entry_id: position.entry_id.0 as u64,
        partition: Some(partition.map_or(-1, |partition| partition as i32)),
        batch_index: Some(batch_index),
        ..Default::default()
    }
}

/// A position from the wire; -1 is `u64::MAX` there, and so is "latest" above what is stored.
pub fn position(id: &MessageIdData) -> Position {
    Position::new(id.ledger_id as i64, id.entry_id as i64)
}

/// Schema versions are 8 bytes, big-endian.
pub fn schema_version(version: u64) -> Bytes {
    Bytes::copy_from_slice(&version.to_be_bytes())
}
