//! Frames of a real client and a real broker, decoded and encoded again.
// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use meridian_types::Position;
use meridian_wire::batch::Messages;
use meridian_wire::compression::decompress;
use meridian_wire::encode::{MessageHeader, SendReceipt, encode_message, encode_send_receipt, encode_with_payload};
use meridian_wire::frame::{Frame, FrameDecoder, Incoming};
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{self, BrokerEntry, CHECKSUM_HEADER_BYTES};
use meridian_wire::proto::base_command::{Body, Type};
use meridian_wire::proto::{CompressionType, MessageIdData};
use meridian_wire::send::SendHeader;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

struct Golden {
    name: &'static str,
    bytes: Vec<u8>,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn frames() -> Vec<Golden> {
    let golden: Vec<Golden> = include_str!("golden/frames.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut parts = line.split(' ').skip(1);
            Golden { name: parts.next().unwrap(), bytes: unhex(parts.next().unwrap()) }
        })
        .collect();
    assert!(golden.len() > 50);
    golden
}

fn decode(bytes: &[u8]) -> Frame {
    let mut src = BytesMut::from(bytes);
    let frame = FrameDecoder::default().decode(&mut src).unwrap().unwrap();
    assert!(src.is_empty());
    frame
}

fn position(id: &MessageIdData) -> (Position, Option<u32>) {
    (
        Position::new(id.ledger_id as i64, id.entry_id as i64),
        id.partition.and_then(|partition| partition.try_into().ok()),
    )
}

#[test]
fn every_frame_is_written_as_it_was_read() {
    for golden in frames() {
        let frame = decode(&golden.bytes);
        assert_eq!(frame.command.check().unwrap().as_str_name(), golden.name);
        let mut dst = BytesMut::new();
        let payload = frame.payload.clone().unwrap_or_default();
        encode_with_payload(&frame.command, payload.len(), &mut dst);
        dst.extend_from_slice(&payload);
        assert_eq!(dst[..], golden.bytes[..], "{}: {:?}", golden.name, frame.command);
    }
}

#[test]
fn the_session_has_the_commands_that_matter() {
    let names: BTreeSet<&str> = frames().iter().map(|golden| golden.name).collect();
    let expected = [
        "CONNECT",
        "CONNECTED",
        "SUBSCRIBE",
        "PRODUCER",
        "SEND",
        "SEND_RECEIPT",
        "MESSAGE",
        "ACK",
        "FLOW",
        "UNSUBSCRIBE",
        "SUCCESS",
        "ERROR",
        "CLOSE_PRODUCER",
        "CLOSE_CONSUMER",
        "PRODUCER_SUCCESS",
        "PARTITIONED_METADATA",
        "LOOKUP",
        "SEEK",
        "REDELIVER_UNACKNOWLEDGED_MESSAGES",
        "GET_LAST_MESSAGE_ID",
        "GET_TOPICS_OF_NAMESPACE",
    ];
    for name in expected {
        assert!(names.contains(name), "{name} is missing in {names:?}");
    }
}

#[test]
fn checksums_of_both_sides_hold() {
    let mut checked = 0;
    for golden in frames() {
        if let Some(payload) = decode(&golden.bytes).payload {
            assert_eq!(payload::verify_checksum(&payload), Ok(true), "{}", golden.name);
            checked += 1;
        }
    }
    assert!(checked > 10);
}

#[test]
fn a_broker_forwards_the_clients_bytes() {
    let mut sent = BTreeSet::new();
    let mut forwarded = 0;
    for golden in frames() {
        let Some(payload) = decode(&golden.bytes).payload else { continue };
        let (broker_entry, bytes) = payload::strip_broker_entry(&payload).unwrap();
        assert_eq!(broker_entry.is_some(), golden.name == "MESSAGE");
        if golden.name == "SEND" {
            sent.insert(bytes);
        } else {
            forwarded += usize::from(sent.contains(&bytes));
        }
    }
    assert!(forwarded > 5, "{forwarded}");
}

#[test]
fn the_short_way_of_a_send_agrees() {
    for golden in frames() {
        let mut src = BytesMut::from(&golden.bytes[..]);
        let frame = decode(&golden.bytes);
        match (FrameDecoder::default().decode_incoming(&mut src).unwrap().unwrap(), &frame.command.body) {
            (Incoming::Send(header, payload), Some(Body::Send(send))) => {
                assert_eq!(header, SendHeader::from(send));
                assert_eq!(Some(payload), frame.payload);
            }
            (Incoming::Other(other), _) => assert_eq!(other, frame),
            (send, body) => panic!("{send:?} is not {body:?}"),
        }
    }
}

#[test]
fn fast_receipts_are_the_brokers_receipts() {
    for golden in frames() {
        let Some(Body::SendReceipt(receipt)) = decode(&golden.bytes).command.body else { continue };
        let (position, partition) = position(receipt.message_id.as_ref().unwrap());
        let fast = SendReceipt {
            producer_id: receipt.producer_id,
            sequence_id: receipt.sequence_id,
            highest_sequence_id: receipt.highest_sequence_id(),
            position,
            partition,
        };
        let mut dst = BytesMut::new();
        encode_send_receipt(&fast, &mut dst);
        assert_eq!(dst[..], golden.bytes[..], "{receipt:?}");
    }
}

#[test]
fn fast_messages_mean_what_the_brokers_messages_mean() {
    let mut with_acks = 0;
    for golden in frames() {
        let frame = decode(&golden.bytes);
        let Some(Body::Message(mut message)) = frame.command.body else { continue };
        let (broker_entry, entry) = payload::strip_broker_entry(&frame.payload.unwrap()).unwrap();
        let (position, partition) = position(&message.message_id);
        let ack_set: Vec<u64> = message.ack_set.iter().map(|&word| word as u64).collect();
        let header = MessageHeader {
            consumer_id: message.consumer_id,
            position,
            partition,
            redelivery_count: message.redelivery_count(),
            ack_set: &ack_set,
            consumer_epoch: message.consumer_epoch,
            broker_entry: broker_entry.as_ref().map(|metadata| BrokerEntry {
                broker_timestamp_ms: metadata.broker_timestamp.unwrap(),
                index: metadata.index.unwrap(),
            }),
        };
        let mut dst = BytesMut::new();
        encode_message(&header, entry.len(), &mut dst);
        dst.extend_from_slice(&entry);
        let again = decode(&dst);
        // The peer writes "no partition" as -1 and "never redelivered" as 0; both are the defaults.
        message.message_id.partition = message.message_id.partition.filter(|&partition| partition >= 0);
        message.redelivery_count = message.redelivery_count.filter(|&count| count > 0);
        assert_eq!(again.command.body, Some(Body::Message(message)));
        assert_eq!(payload::strip_broker_entry(&again.payload.unwrap()).unwrap(), (broker_entry, entry));
        with_acks += usize::from(!ack_set.is_empty());
    }
    assert!(with_acks > 0);
}

#[test]
fn batches_of_every_compression_open() {
    let mut opened: BTreeMap<i32, u32> = BTreeMap::new();
    for golden in frames().into_iter().filter(|golden| golden.name == "SEND") {
        let entry = decode(&golden.bytes).payload.unwrap();
        let (metadata, body) = payload::decode(&entry).unwrap();
        let summary = payload::summarize(&entry).unwrap();
        assert_eq!(summary.producer_name, metadata.producer_name);
        assert_eq!(summary.messages(), metadata.num_messages_in_batch() as u32);
        let kind = summary.compression_type().unwrap();
        let stated = summary.uncompressed_bytes as usize;
        let plain = decompress(kind, &body, stated, 1 << 20).unwrap();
        if summary.is_batch() {
            let messages: Vec<_> = Messages::new(plain, summary.messages()).map(Result::unwrap).collect();
            assert_eq!(messages.len(), summary.messages() as usize);
            assert!(messages.iter().all(|(single, payload)| single.payload_size as usize == payload.len()));
            *opened.entry(metadata.compression() as i32).or_default() += 1;
        }
    }
    for kind in [
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ] {
        assert!(opened.contains_key(&(kind as i32)), "no batch with {kind:?} in {opened:?}");
    }
}

#[test]
fn keys_times_and_targets_are_summarised() {
    let sends = frames().into_iter().filter(|golden| golden.name == "SEND");
    let full = sends
        .map(|golden| decode(&golden.bytes).payload.unwrap())
        .find(|entry| payload::summarize(entry).unwrap().ordering_key.is_some())
        .unwrap();
    let parts = payload::split(&full).unwrap();
    let summary = MetadataSummary::decode(parts.metadata).unwrap();
    assert_eq!(summary.producer_name, "golden-producer");
    assert_eq!(summary.partition_key, Some("key"));
    assert_eq!(summary.ordering_key, Some(&b"order"[..]));
    assert_eq!(summary.event_time_ms, Some(1_700_000_000_000));
    assert!(summary.has_properties && summary.replicate_to_count == 1);
    assert_eq!(meridian_wire::metadata::replicate_to(parts.metadata).collect::<Vec<_>>(), ["standalone"]);
    assert_eq!(parts.payload_of(&full), Bytes::from_static(b"with everything"));
    assert_eq!(payload::without_checksum(&full).len(), full.len() - CHECKSUM_HEADER_BYTES);
}

#[test]
fn a_whole_session_may_come_in_one_buffer() {
    let golden = frames();
    let mut src = BytesMut::new();
    golden.iter().for_each(|golden| src.extend_from_slice(&golden.bytes));
    for golden in &golden {
        let frame = FrameDecoder::default().decode(&mut src).unwrap().unwrap();
        assert_eq!(Type::try_from(frame.command.r#type).unwrap().as_str_name(), golden.name);
        assert!(frame.command.encoded_len() < golden.bytes.len());
    }
    assert!(src.is_empty());
}
