//! ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES.

use super::{Session, reply};
use crate::error::BrokerError;
use meridian_topic::{AckMode, AckRequest, TopicError};
use meridian_types::Position;
use meridian_wire::encode;
use meridian_wire::error::ack_error;
use meridian_wire::proto::command_ack::AckType;
use meridian_wire::proto::{CommandAck, CommandRedeliverUnacknowledgedMessages, MessageIdData, ServerError};

fn acked(id: &MessageIdData) -> (Position, Vec<u64>) {
    (reply::position(id), id.ack_set.iter().map(|word| *word as u64).collect())
}

impl Session {
    pub(super) fn ack(&self, ack: CommandAck) {
        let (consumer_id, request_id) = (ack.consumer_id, ack.request_id);
        let attached = self.slots.lock().consumer(consumer_id);
        // An unknown consumer gets no answer; its client has let go of it.
        let Some((topic, key)) = attached else { return };
        if ack.txnid_least_bits.is_some() && ack.txnid_most_bits.is_some() {
            if let Some(request_id) = request_id {
                let text = "Server don't support transaction ack!";
                self.send(ack_error(consumer_id, request_id, ServerError::NotAllowedError, text));
            }
            return;
        }
        if let Some(error) = ack.validation_error {
            tracing::warn!(topic = %topic.name(), consumer_id, error, "a client dropped a message that it could not read");
        }
        let cumulative = ack.ack_type == AckType::Cumulative as i32;
        let many_cumulative = cumulative && ack.message_id.len() != 1;
        if many_cumulative || ack.message_id.is_empty() {
            tracing::warn!(topic = %topic.name(), consumer_id, ids = ack.message_id.len(), "an ACK without sense is ignored");
            return self.answer_ack(consumer_id, request_id, Ok(()));
        }
        let request = AckRequest {
            mode: if cumulative { AckMode::Cumulative } else { AckMode::Individual },
            ids: ack.message_id.iter().map(acked).collect(),
            properties: ack.properties.into_iter().map(|pair| (pair.key, pair.value as i64)).collect(),
            receipt: request_id.is_some(),
        };
        match topic.ack(key, request) {
            None => self.answer_ack(consumer_id, request_id, Ok(())),
            Some(durable) if request_id.is_some() => self.spawn(|session| async move {
                let outcome = durable.await;
                session.answer_ack(consumer_id, request_id, outcome);
            }),
            Some(_) => {}
        }
    }

    fn answer_ack(&self, consumer_id: u64, request_id: Option<u64>, outcome: Result<(), TopicError>) {
        let Some(request_id) = request_id else { return };
        match outcome {
            Ok(()) => self.outbound.append(|appender| {
                encode::encode_ack_response(consumer_id, request_id, appender.buffer());
            }),
            Err(error) => {
                let error = BrokerError::from(error);
                self.send(ack_error(consumer_id, request_id, reply::broker_error(&error), &error.to_string()));
            }
        }
    }

    pub(super) fn redeliver(&self, request: CommandRedeliverUnacknowledgedMessages) {
        let attached = self.slots.lock().consumer(request.consumer_id);
        if let Some((topic, key)) = attached {
            topic.redeliver(key, request.message_ids.iter().map(reply::position).collect(), request.consumer_epoch);
        }
    }
}
