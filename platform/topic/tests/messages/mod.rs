//! Messages with metadata, and what is in them.
#![allow(dead_code, missing_docs)]

use crate::support::{Client, send};
use bytes::{Bytes, BytesMut};
use meridian_topic::Publish;
use meridian_wire::proto::MessageMetadata;

pub fn metadata(sequence_id: u64) -> MessageMetadata {
    MessageMetadata { producer_name: "p".to_owned(), sequence_id, ..MessageMetadata::default() }
}

pub fn message(metadata: &MessageMetadata, body: &str) -> Publish {
    let mut payload = BytesMut::new();
    meridian_wire::payload::encode(metadata, body.as_bytes(), &mut payload);
    Publish { payload: payload.freeze(), ..send(metadata.sequence_id, "") }
}

/// An empty value is null.
pub fn keyed(sequence_id: u64, key: &str, value: &str) -> Publish {
    let metadata = MessageMetadata {
        partition_key: Some(key.to_owned()),
        null_value: value.is_empty().then_some(true),
        ..metadata(sequence_id)
    };
    message(&metadata, value)
}

pub fn delayed(sequence_id: u64, body: &str, deliver_at_ms: u64) -> Publish {
    message(&MessageMetadata { deliver_at_time: Some(deliver_at_ms as i64), ..metadata(sequence_id) }, body)
}

pub fn body(payload: &Bytes) -> String {
    let parts = meridian_wire::payload::split(payload).expect("a payload with metadata");
    String::from_utf8_lossy(parts.payload).into_owned()
}

/// Bodies of everything delivered so far.
pub fn bodies(client: &Client) -> Vec<String> {
    client.got.lock().iter().map(|(_, delivery)| body(&delivery.payload)).collect()
}
