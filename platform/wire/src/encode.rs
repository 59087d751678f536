//! Commands into a connection's outbound buffer.
//!
//! Role: any command by the generated encoder; the commands of the hot path (receipts, messages, ack responses, PING,
//! PONG) field by field, without building a message.
//! Invariants: W3 a payload is never copied here: the header says its length, the caller appends the bytes (or gives
//! them to a vectored write); W4 the fast encoders write what the generated one would. A frame stays below 4 GiB,
//! which the limits on messages guarantee (asserted).
//! Must never know: sockets, buffers' owners.

use crate::field::{put_small_field, put_varint, small_field_len, varint_len};
use crate::frame::FRAME_HEADER_BYTES;
use crate::payload::{BROKER_ENTRY_HEADER_BYTES, BrokerEntry};
use crate::proto::BaseCommand;
use crate::proto::base_command::Type;
use bytes::{BufMut, BytesMut};
use meridian_types::Position;
use prost::Message;

/// A whole PING frame.
pub const PING: [u8; 13] = [0, 0, 0, 9, 0, 0, 0, 5, 0x08, 18, 0x92, 0x01, 0];
/// A whole PONG frame.
pub const PONG: [u8; 13] = [0, 0, 0, 9, 0, 0, 0, 5, 0x08, 19, 0x9a, 0x01, 0];

/// A receipt for one SEND.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendReceipt {
    /// The client's id of the producer.
    pub producer_id: u64,
    /// As in the SEND.
    pub sequence_id: u64,
    /// As in the SEND, 0 if it had none.
    pub highest_sequence_id: u64,
    /// Where the entry is; -1:-1 for a duplicate.
    pub position: Position,
    /// The partition, if the topic is one of a partitioned topic.
    pub partition: Option<u32>,
}

/// What stands in front of an entry on its way to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader<'a> {
    /// The client's id of the consumer.
    pub consumer_id: u64,
    /// Where the entry is.
    pub position: Position,
    /// The partition, if the topic is one of a partitioned topic.
    pub partition: Option<u32>,
    /// Times it was redelivered.
    pub redelivery_count: u32,
    /// Words, 1 = unacked; empty = all.
    pub ack_set: &'a [u64],
    /// The consumer's epoch, if the client gave one.
    pub consumer_epoch: Option<u64>,
    /// Broker time and index, for clients that asked for them.
    pub broker_entry: Option<BrokerEntry>,
}

fn put_frame_header(command_bytes: usize, payload_bytes: usize, dst: &mut BytesMut) {
    let total = 4 + command_bytes + payload_bytes;
    debug_assert!(total <= u32::MAX as usize, "a frame stays below 4 GiB");
    dst.put_u32(total as u32);
    dst.put_u32(command_bytes as u32);
}

/// Appends a frame that is only a command.
pub fn encode_command(command: &BaseCommand, dst: &mut BytesMut) {
    encode_with_payload(command, 0, dst);
}

/// Appends the header of a frame and its command; the caller lets `payload_bytes` bytes of payload follow.
pub fn encode_with_payload(command: &BaseCommand, payload_bytes: usize, dst: &mut BytesMut) {
    let command_bytes = command.encoded_len();
    dst.reserve(FRAME_HEADER_BYTES + command_bytes);
    put_frame_header(command_bytes, payload_bytes, dst);
    command.encode_raw(dst);
}

/// Appends a PING.
pub fn encode_ping(dst: &mut BytesMut) {
    dst.put_slice(&PING);
}

/// Appends a PONG.
pub fn encode_pong(dst: &mut BytesMut) {
    dst.put_slice(&PONG);
}

/// Frame header, command type and the body's tag and length, for command types below 16.
fn put_small_command(kind: Type, body_bytes: usize, payload_bytes: usize, dst: &mut BytesMut) {
    let number = kind as u8;
    debug_assert!(number < 16);
    let command_bytes = 2 + small_field_len(body_bytes as u64) + body_bytes;
    dst.reserve(FRAME_HEADER_BYTES + command_bytes);
    put_frame_header(command_bytes, payload_bytes, dst);
    dst.put_slice(&[0x08, number, number << 3 | 2]);
    put_varint(body_bytes as u64, dst);
}

fn message_id_len(position: Position, partition: Option<u32>) -> usize {
    small_field_len(position.ledger_id.0 as u64)
        + small_field_len(position.entry_id.0 as u64)
        + partition.map_or(0, |partition| small_field_len(u64::from(partition)))
}

/// Writes a message id as field `number`.
fn put_message_id(number: u8, position: Position, partition: Option<u32>, bytes: usize, dst: &mut BytesMut) {
    dst.put_u8(number << 3 | 2);
    dst.put_u8(bytes as u8);
    put_small_field(1, position.ledger_id.0 as u64, dst);
    put_small_field(2, position.entry_id.0 as u64, dst);
    if let Some(partition) = partition {
        put_small_field(3, u64::from(partition), dst);
    }
}

/// Appends a SEND_RECEIPT.
pub fn encode_send_receipt(receipt: &SendReceipt, dst: &mut BytesMut) {
    // At most three integers, 33 bytes: the length takes one byte.
    let id_bytes = message_id_len(receipt.position, receipt.partition);
    let body_bytes = small_field_len(receipt.producer_id)
        + small_field_len(receipt.sequence_id)
        + 2
        + id_bytes
        + small_field_len(receipt.highest_sequence_id);
    put_small_command(Type::SendReceipt, body_bytes, 0, dst);
    put_small_field(1, receipt.producer_id, dst);
    put_small_field(2, receipt.sequence_id, dst);
    put_message_id(3, receipt.position, receipt.partition, id_bytes, dst);
    put_small_field(4, receipt.highest_sequence_id, dst);
}

/// Appends everything of a MESSAGE frame in front of the entry's bytes; the caller lets `entry_bytes` bytes follow.
pub fn encode_message(header: &MessageHeader<'_>, entry_bytes: usize, dst: &mut BytesMut) {
    let id_bytes = message_id_len(header.position, header.partition);
    let ack_set_bytes: usize = header.ack_set.iter().map(|&word| small_field_len(word)).sum();
    let redelivered = header.redelivery_count > 0;
    let body_bytes = small_field_len(header.consumer_id)
        + 2
        + id_bytes
        + if redelivered { small_field_len(u64::from(header.redelivery_count)) } else { 0 }
        + ack_set_bytes
        + header.consumer_epoch.map_or(0, small_field_len);
    let broker_entry_bytes = header.broker_entry.map_or(0, |entry| BROKER_ENTRY_HEADER_BYTES + entry.encoded_len());
    put_small_command(Type::Message, body_bytes, broker_entry_bytes + entry_bytes, dst);
    put_small_field(1, header.consumer_id, dst);
    put_message_id(2, header.position, header.partition, id_bytes, dst);
    if redelivered {
        put_small_field(3, u64::from(header.redelivery_count), dst);
    }
    for &word in header.ack_set {
        put_small_field(4, word, dst);
    }
    if let Some(epoch) = header.consumer_epoch {
        put_small_field(5, epoch, dst);
    }
    if let Some(entry) = header.broker_entry {
        entry.encode(dst);
    }
}

/// Appends an ACK_RESPONSE that says that the ack is stored.
pub fn encode_ack_response(consumer_id: u64, request_id: u64, dst: &mut BytesMut) {
    let body_bytes = small_field_len(consumer_id) + small_field_len(request_id);
    // Type 38 is above 15: the tag takes two bytes.
    let tag = u64::from(Type::AckResponse as u32) << 3 | 2;
    let command_bytes = 2 + varint_len(tag) + varint_len(body_bytes as u64) + body_bytes;
    dst.reserve(FRAME_HEADER_BYTES + command_bytes);
    put_frame_header(command_bytes, 0, dst);
    dst.put_slice(&[0x08, Type::AckResponse as u8]);
    put_varint(tag, dst);
    put_varint(body_bytes as u64, dst);
    put_small_field(1, consumer_id, dst);
    put_small_field(6, request_id, dst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{
        CommandAckResponse, CommandMessage, CommandPing, CommandPong, CommandSendReceipt, MessageIdData,
    };

    fn generated(command: impl Into<BaseCommand>) -> BytesMut {
        let mut dst = BytesMut::new();
        encode_command(&command.into(), &mut dst);
        dst
    }

    #[test]
    fn ping_and_pong_are_constant() {
        assert_eq!(generated(CommandPing {}), PING[..]);
        assert_eq!(generated(CommandPong {}), PONG[..]);
    }

    #[test]
    fn fast_ack_response_is_the_generated_one() {
        for (consumer_id, request_id) in [(0, 0), (1, 300), (u64::MAX, u64::MAX)] {
            let mut dst = BytesMut::new();
            encode_ack_response(consumer_id, request_id, &mut dst);
            let message = CommandAckResponse { consumer_id, request_id: Some(request_id), ..Default::default() };
            assert_eq!(dst, generated(message));
        }
    }

    #[test]
    fn fast_receipt_is_the_generated_one() {
        for (position, partition) in [(Position::EARLIEST, Some(u32::MAX >> 1)), (Position::new(5, 1000), None)] {
            let receipt =
                SendReceipt { producer_id: 1, sequence_id: u64::MAX, highest_sequence_id: 0, position, partition };
            let mut dst = BytesMut::new();
            encode_send_receipt(&receipt, &mut dst);
            let message_id = MessageIdData {
                ledger_id: position.ledger_id.0 as u64,
                entry_id: position.entry_id.0 as u64,
                partition: partition.map(|partition| partition as i32),
                ..Default::default()
            };
            let message = CommandSendReceipt {
                producer_id: 1,
                sequence_id: u64::MAX,
                message_id: Some(message_id),
                highest_sequence_id: Some(0),
            };
            assert_eq!(dst, generated(message));
        }
    }

    #[test]
    fn fast_message_is_the_generated_one() {
        let acks: Vec<u64> = (0..40).map(|i| u64::MAX >> i).collect();
        for (redelivery_count, ack_set, consumer_epoch) in [(0, &acks[..0], None), (7, &acks[..], Some(300))] {
            let header = MessageHeader {
                consumer_id: 4,
                position: Position::new(17, 0),
                partition: Some(3),
                redelivery_count,
                ack_set,
                consumer_epoch,
                broker_entry: None,
            };
            let mut dst = BytesMut::new();
            encode_message(&header, 1000, &mut dst);
            let message_id = MessageIdData { ledger_id: 17, entry_id: 0, partition: Some(3), ..Default::default() };
            let message = CommandMessage {
                consumer_id: 4,
                message_id,
                redelivery_count: Some(redelivery_count).filter(|&count| count > 0),
                ack_set: ack_set.iter().map(|&word| word as i64).collect(),
                consumer_epoch,
            };
            let mut expected = BytesMut::new();
            encode_with_payload(&message.into(), 1000, &mut expected);
            assert_eq!(dst, expected);
        }
    }
}
