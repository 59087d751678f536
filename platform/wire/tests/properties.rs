//! Properties of the decoders and of the short ways beside the generated code.
// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod everything;

use bytes::{Bytes, BytesMut};
use everything::read_everything;
use meridian_types::Position;
use meridian_wire::batch::{Messages, put_message};
use meridian_wire::compression::{compress, decompress};
use meridian_wire::encode::{
    MessageHeader, SendReceipt, encode_ack_response, encode_command, encode_message, encode_send_receipt,
    encode_with_payload,
};
use meridian_wire::frame::{Frame, FrameDecoder, Incoming};
use meridian_wire::key::{key_hash, sticky_hash, sticky_key};
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{self, BrokerEntry};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{
    CommandAck, CommandFlow, CommandMessage, CommandSend, CommandSubscribe, CompressionType, EncryptionKeys, KeyValue,
    MessageIdData, MessageMetadata, SingleMessageMetadata,
};
use meridian_wire::send::SendHeader;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use prost::Message;

fn bytes(limit: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..limit).prop_map(Bytes::from)
}

fn message_id() -> impl Strategy<Value = MessageIdData> {
    (any::<u64>(), any::<u64>(), of(any::<i32>()), of(any::<i32>()), vec(any::<i64>(), 0..4), of(any::<i32>()))
        .prop_map(|(ledger_id, entry_id, partition, batch_index, ack_set, batch_size)| MessageIdData {
            ledger_id,
            entry_id,
            partition,
            batch_index,
            ack_set,
            batch_size,
            first_chunk_message_id: None,
        })
}

fn send() -> impl Strategy<Value = CommandSend> {
    let ids = (any::<u64>(), any::<u64>(), of(any::<i32>()), of(any::<u64>()));
    let rest = (of(any::<u64>()), of(any::<u64>()), of(any::<bool>()), of(any::<bool>()), of(message_id()));
    (ids, rest).prop_map(|(ids, rest)| CommandSend {
        producer_id: ids.0,
        sequence_id: ids.1,
        num_messages: ids.2,
        highest_sequence_id: ids.3,
        txnid_least_bits: rest.0,
        txnid_most_bits: rest.1,
        is_chunk: rest.2,
        marker: rest.3,
        message_id: rest.4,
    })
}

/// A frame of a few kinds with a payload.
fn frame() -> impl Strategy<Value = Frame> {
    let command = prop_oneof![
        send().prop_map(Body::from),
        (any::<u64>(), vec(message_id(), 0..5)).prop_map(|(consumer_id, message_id)| {
            CommandAck { consumer_id, message_id, ..Default::default() }.into()
        }),
        (any::<u64>(), any::<u32>()).prop_map(|(consumer_id, message_permits)| CommandFlow {
            consumer_id,
            message_permits
        }
        .into()),
        (".*", ".*").prop_map(|(topic, subscription)| {
            CommandSubscribe { topic, subscription, ..Default::default() }.into()
        }),
    ];
    // A SEND needs a payload.
    (command, vec(any::<u8>(), 1..200))
        .prop_map(|(body, payload)| Frame { command: body.into(), payload: Some(payload.into()) })
}

fn write(frames: &[Frame]) -> BytesMut {
    let mut dst = BytesMut::new();
    for frame in frames {
        let payload = frame.payload.clone().unwrap_or_default();
        encode_with_payload(&frame.command, payload.len(), &mut dst);
        dst.extend_from_slice(&payload);
    }
    dst
}

fn key_values() -> impl Strategy<Value = Vec<KeyValue>> {
    vec(("[a-z]{0,5}", ".{0,5}").prop_map(|(key, value)| KeyValue { key, value }), 0..3)
}

fn partition_key() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), ".{0,8}".prop_map(Some), "[A-Za-z0-9+/]{0,12}={0,2}".prop_map(Some)]
}

fn metadata() -> impl Strategy<Value = MessageMetadata> {
    let first = (".{0,12}", any::<u64>(), any::<u64>(), key_values(), of(".{0,5}"), partition_key());
    let second = (vec(".{0,5}", 0..3), of(0..9i32), of(any::<u32>()), of(any::<i32>()), of(any::<u64>()), 0..3usize);
    let third = (of(bytes(9)), of(any::<bool>()), of(bytes(9)), of(any::<i64>()), of(any::<i32>()), of(any::<u64>()));
    let fourth =
        (of(any::<u64>()), of(any::<u64>()), of(any::<bool>()), of(".{0,9}"), of(any::<i32>()), of(any::<i32>()));
    let fifth = (of(any::<i32>()), of(any::<bool>()), vec(any::<i32>(), 0..3), of(any::<u32>()));
    (first, second, third, fourth, fifth).prop_map(|(first, second, third, fourth, fifth)| MessageMetadata {
        producer_name: first.0,
        sequence_id: first.1,
        publish_time: first.2,
        properties: first.3,
        replicated_from: first.4,
        partition_key: first.5,
        replicate_to: second.0,
        compression: second.1,
        uncompressed_size: second.2,
        num_messages_in_batch: second.3,
        event_time: second.4,
        encryption_keys: vec![EncryptionKeys::default(); second.5],
        schema_version: third.0,
        partition_key_b64_encoded: third.1,
        ordering_key: third.2,
        deliver_at_time: third.3,
        marker_type: third.4,
        txnid_least_bits: third.5,
        txnid_most_bits: fourth.0,
        highest_sequence_id: fourth.1,
        null_value: fourth.2,
        uuid: fourth.3,
        num_chunks_from_msg: fourth.4,
        total_chunk_msg_size: fourth.5,
        chunk_id: fifth.0,
        null_partition_key: fifth.1,
        compacted_batch_indexes: fifth.2,
        entry_hash_min: fifth.3,
        ..Default::default()
    })
}

/// What the scanner should find, from the generated message.
fn expected(metadata: &MessageMetadata) -> MetadataSummary<'_> {
    MetadataSummary {
        producer_name: &metadata.producer_name,
        sequence_id: metadata.sequence_id,
        publish_time_ms: metadata.publish_time,
        has_properties: !metadata.properties.is_empty(),
        replicated_from: metadata.replicated_from.as_deref(),
        partition_key: metadata.partition_key.as_deref(),
        partition_key_b64_encoded: metadata.partition_key_b64_encoded(),
        null_partition_key: metadata.null_partition_key(),
        ordering_key: metadata.ordering_key.as_deref(),
        replicate_to_count: metadata.replicate_to.len() as u32,
        compression: metadata.compression.unwrap_or_default(),
        uncompressed_bytes: metadata.uncompressed_size(),
        num_messages_in_batch: metadata.num_messages_in_batch,
        event_time_ms: metadata.event_time,
        encryption_key_count: metadata.encryption_keys.len() as u32,
        schema_version: metadata.schema_version.as_deref(),
        deliver_at_time_ms: metadata.deliver_at_time,
        marker_type: metadata.marker_type,
        txnid: metadata
            .txnid_most_bits
            .zip(metadata.txnid_least_bits)
            .map(|(most_bits, least_bits)| meridian_wire::send::TxnId { most_bits, least_bits }),
        highest_sequence_id: metadata.highest_sequence_id.filter(|&id| id > 0),
        null_value: metadata.null_value(),
        uuid: metadata.uuid.as_deref(),
        num_chunks_from_msg: metadata.num_chunks_from_msg,
        total_chunk_msg_bytes: metadata.total_chunk_msg_size,
        chunk_id: metadata.chunk_id,
    }
}

proptest! {
    #[test]
    fn frames_survive_any_cut(frames in vec(frame(), 1..6), cuts in vec(1usize..64, 1..50)) {
        let whole = write(&frames).freeze();
        let decoder = FrameDecoder::default();
        let (mut src, mut found, mut sent) = (BytesMut::new(), Vec::new(), 0);
        let mut cuts = cuts.into_iter().cycle();
        while sent < whole.len() {
            let next = (sent + cuts.next().unwrap_or(1)).min(whole.len());
            src.extend_from_slice(&whole[sent..next]);
            sent = next;
            while let Some(frame) = decoder.decode(&mut src).unwrap() {
                found.push(frame);
            }
            prop_assert!(sent == whole.len() || decoder.missing_bytes(&src) > 0);
        }
        prop_assert!(src.is_empty());
        prop_assert_eq!(found, frames);
    }

    #[test]
    fn the_short_way_of_a_send_agrees(send in send(), payload in vec(any::<u8>(), 1..100)) {
        let header = SendHeader::from(&send);
        prop_assert_eq!(SendHeader::decode(&send.encode_to_vec()), Ok(header));
        let mut src = write(&[Frame { command: send.into(), payload: Some(payload.clone().into()) }]);
        let incoming = FrameDecoder::default().decode_incoming(&mut src).unwrap();
        prop_assert_eq!(incoming, Some(Incoming::Send(header, payload.into())));
    }

    #[test]
    fn the_summary_agrees_with_the_whole(metadata in metadata()) {
        let encoded = metadata.encode_to_vec();
        let summary = MetadataSummary::decode(&encoded).unwrap();
        prop_assert_eq!(summary, expected(&metadata));
        prop_assert_eq!(sticky_hash(&summary), key_hash(&sticky_key(&summary)));
        prop_assert!(summary.messages() >= 1);
    }

    #[test]
    fn entries_come_apart_as_they_were_put(metadata in metadata(), body in bytes(300), time in any::<u64>(), index in any::<u64>()) {
        let mut entry = BytesMut::new();
        payload::encode(&metadata, &body, &mut entry);
        let plain = entry.clone().freeze();
        prop_assert_eq!(payload::verify_checksum(&plain), Ok(true));
        prop_assert_eq!(payload::decode(&plain).unwrap(), (metadata, body));
        let mut both = BytesMut::new();
        BrokerEntry { broker_timestamp_ms: time, index }.encode(&mut both);
        both.extend_from_slice(&plain);
        let (broker_entry, rest) = payload::strip_broker_entry(&both.freeze()).unwrap();
        let broker_entry = broker_entry.unwrap();
        prop_assert_eq!((broker_entry.broker_timestamp, broker_entry.index), (Some(time), Some(index)));
        prop_assert_eq!(rest, plain);
    }

    #[test]
    fn one_flipped_bit_is_seen(metadata in metadata(), body in bytes(100), at in any::<usize>(), bit in 0..8) {
        let mut entry = BytesMut::new();
        payload::encode(&metadata, &body, &mut entry);
        let at = 2 + at % (entry.len() - 2);
        entry[at] ^= 1u8 << bit;
        prop_assert!(payload::verify_checksum(&entry).is_err());
    }

    #[test]
    fn batches_come_apart_as_they_were_put(messages in vec((partition_key(), key_values(), bytes(60)), 0..8)) {
        let mut batch = BytesMut::new();
        let mut expected = Vec::new();
        for (partition_key, properties, body) in messages {
            let payload_size = body.len() as i32;
            let metadata = SingleMessageMetadata { partition_key, properties, payload_size, ..Default::default() };
            put_message(metadata.clone(), &body, &mut batch);
            expected.push((metadata, body));
        }
        let found: Vec<_> = Messages::new(batch.freeze(), expected.len() as u32).map(Result::unwrap).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn fast_messages_are_the_generated_ones(
        ids in (any::<u64>(), any::<i64>(), any::<i64>(), of(0..i32::MAX as u32)),
        redelivery_count in any::<u32>(),
        ack_set in vec(any::<u64>(), 0..20),
        consumer_epoch in of(any::<u64>()),
    ) {
        let (consumer_id, ledger, entry, partition) = ids;
        let position = Position::new(ledger, entry);
        let header = MessageHeader {
            consumer_id, position, partition, redelivery_count, ack_set: &ack_set, consumer_epoch, broker_entry: None,
        };
        let mut fast = BytesMut::new();
        encode_message(&header, 77, &mut fast);
        let message_id = MessageIdData {
            ledger_id: ledger as u64, entry_id: entry as u64, partition: partition.map(|p| p as i32), ..Default::default()
        };
        let message = CommandMessage {
            consumer_id,
            message_id: message_id.clone(),
            redelivery_count: Some(redelivery_count).filter(|&count| count > 0),
            ack_set: ack_set.iter().map(|&word| word as i64).collect(),
            consumer_epoch,
        };
        let mut generated = BytesMut::new();
        encode_with_payload(&message.into(), 77, &mut generated);
        prop_assert_eq!(&fast, &generated);
        let receipt = SendReceipt {
            producer_id: consumer_id, sequence_id: ledger as u64, highest_sequence_id: entry as u64, position, partition,
        };
        let mut fast = BytesMut::new();
        encode_send_receipt(&receipt, &mut fast);
        let generated_receipt = meridian_wire::proto::CommandSendReceipt {
            producer_id: consumer_id,
            sequence_id: ledger as u64,
            message_id: Some(message_id),
            highest_sequence_id: Some(entry as u64),
        };
        let mut generated = BytesMut::new();
        encode_command(&generated_receipt.into(), &mut generated);
        prop_assert_eq!(fast, generated);
        let mut response = BytesMut::new();
        encode_ack_response(consumer_id, ledger as u64, &mut response);
        prop_assert!(FrameDecoder::default().decode(&mut response).unwrap().is_some());
    }

    #[test]
    fn compression_gives_back_what_it_took(body in bytes(2000), repeats in 1usize..20) {
        let plain = Bytes::from(body.repeat(repeats));
        for kind in (0..5).map(|kind| CompressionType::try_from(kind).unwrap()) {
            let packed = compress(kind, &plain).unwrap();
            prop_assert_eq!(decompress(kind, &packed, plain.len(), plain.len()).unwrap(), plain.clone());
        }
    }

    #[test]
    fn no_decoder_panics(bytes in bytes(300), stated in 0usize..5000, count in any::<u32>()) {
        read_everything(&bytes, stated, count);
    }

    /// Random bytes seldom get past the sizes; a damaged frame does.
    #[test]
    fn no_decoder_panics_on_damage(frames in vec(frame(), 1..3), metadata in metadata(), damage in vec((any::<usize>(), any::<u8>()), 1..6)) {
        let mut entry = BytesMut::new();
        payload::encode(&metadata, b"payload", &mut entry);
        for mut bytes in [write(&frames), entry] {
            for &(at, value) in &damage {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            read_everything(&bytes.freeze(), 100, 10);
        }
    }
}
