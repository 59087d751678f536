//! The errors that the protocol can say, and how to say them.
//!
//! Invariants: every [`ServerError`] has a class; a text is cut at [`MAX_ERROR_TEXT_BYTES`], so that no error makes a
//! frame large.
//! Must never know: the errors of other rooms.

use crate::proto::{BaseCommand, CommandAckResponse, CommandError, CommandSendError, ServerError};
use meridian_types::{Classify, ErrorClass};

/// The longest text in an error command.
pub const MAX_ERROR_TEXT_BYTES: usize = 4096;
/// The request id of an error that answers no request (refused connections).
pub const NO_REQUEST: u64 = u64::MAX;

impl Classify for ServerError {
    fn class(&self) -> ErrorClass {
        match self {
            ServerError::UnknownError
            | ServerError::MetadataError
            | ServerError::PersistenceError
            | ServerError::TooManyRequests
            | ServerError::ProducerBlockedQuotaExceededError
            | ServerError::ProducerBlockedQuotaExceededException
            | ServerError::TransactionConflict => ErrorClass::Retry,
            ServerError::ServiceNotReady | ServerError::TransactionCoordinatorNotFound => ErrorClass::Redirect,
            ServerError::ProducerFenced => ErrorClass::Fenced,
            ServerError::ChecksumError => ErrorClass::Corrupt,
            ServerError::AuthenticationError
            | ServerError::AuthorizationError
            | ServerError::ConsumerBusy
            | ServerError::UnsupportedVersionError
            | ServerError::TopicNotFound
            | ServerError::SubscriptionNotFound
            | ServerError::ConsumerNotFound
            | ServerError::TopicTerminatedError
            | ServerError::ProducerBusy
            | ServerError::InvalidTopicName
            | ServerError::IncompatibleSchema
            | ServerError::ConsumerAssignError
            | ServerError::InvalidTxnStatus
            | ServerError::NotAllowedError
            | ServerError::TransactionNotFound => ErrorClass::Caller,
        }
    }
}

impl ServerError {
    /// The error to say if nothing better than its class is known.
    pub fn for_class(class: ErrorClass) -> ServerError {
        match class {
            ErrorClass::Retry => ServerError::UnknownError,
            // A client that hears this looks the topic up again.
            ErrorClass::Redirect | ErrorClass::Fenced => ServerError::ServiceNotReady,
            ErrorClass::Caller => ServerError::NotAllowedError,
            ErrorClass::Corrupt => ServerError::PersistenceError,
        }
    }
}

/// The text, cut at a character below [`MAX_ERROR_TEXT_BYTES`].
fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_ERROR_TEXT_BYTES)].to_owned()
}

/// ERROR for a request.
pub fn request_error(request_id: u64, error: ServerError, text: &str) -> BaseCommand {
    CommandError { request_id, error: error as i32, message: bounded(text) }.into()
}

/// SEND_ERROR for one send.
pub fn send_error(producer_id: u64, sequence_id: u64, error: ServerError, text: &str) -> BaseCommand {
    CommandSendError { producer_id, sequence_id, error: error as i32, message: bounded(text) }.into()
}

/// ACK_RESPONSE that refuses an ack.
pub fn ack_error(consumer_id: u64, request_id: u64, error: ServerError, text: &str) -> BaseCommand {
    CommandAckResponse {
        consumer_id,
        request_id: Some(request_id),
        error: Some(error as i32),
        message: Some(bounded(text)),
        ..Default::default()
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::base_command::Body;

    #[test]
    fn a_class_has_an_error_of_that_party() {
        assert_eq!(ServerError::for_class(ErrorClass::Retry).class(), ErrorClass::Retry);
        assert_eq!(ServerError::for_class(ErrorClass::Redirect).class(), ErrorClass::Redirect);
        assert_eq!(ServerError::for_class(ErrorClass::Caller).class(), ErrorClass::Caller);
    }

    #[test]
    fn texts_are_cut_at_a_character() {
        let long = "é".repeat(MAX_ERROR_TEXT_BYTES);
        let command = request_error(NO_REQUEST, ServerError::MetadataError, &long[..]);
        let Some(Body::Error(error)) = command.body else { panic!("not an ERROR") };
        assert_eq!(error.message.len(), MAX_ERROR_TEXT_BYTES);
        assert_eq!(error.error(), ServerError::MetadataError);
        assert_eq!(bounded("short"), "short");
    }
}
