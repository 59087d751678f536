//! The part of a message's metadata that a broker looks at, read without allocation.
//!
//! Invariants: W1; W4 [`MetadataSummary`] agrees with the generated decoder on all valid metadata; unknown fields are
//! skipped, the last of a repeated single field counts.
//! Failure: [`FieldError`].
//! Must never know: what the broker does with it.

use crate::field::{FieldError, Fields};
use crate::proto::CompressionType;
use crate::send::{TxnId, txn_id};

/// What a broker needs to know of a message, borrowed from the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetadataSummary<'a> {
    /// Who produced it.
    pub producer_name: &'a str,
    /// Sequence id (of a batch: the lowest).
    pub sequence_id: u64,
    /// When the client sent it, ms since 1970 by its clock.
    pub publish_time_ms: u64,
    /// Whether the application gave properties (of a batch: always false, they are inside).
    pub has_properties: bool,
    /// The region that it came from.
    pub replicated_from: Option<&'a str>,
    /// The key.
    pub partition_key: Option<&'a str>,
    /// Whether the key is base64 of bytes.
    pub partition_key_b64_encoded: bool,
    /// The key is null, not empty.
    pub null_partition_key: bool,
    /// The key for ordering, if it is another one.
    pub ordering_key: Option<&'a [u8]>,
    /// How many regions are named as targets; see [`replicate_to`].
    pub replicate_to_count: u32,
    /// Number of a [`CompressionType`]; see [`compression_type`](Self::compression_type).
    pub compression: i32,
    /// Bytes of the payload before compression.
    pub uncompressed_bytes: u32,
    /// Messages in the batch; present means that the payload is a batch.
    pub num_messages_in_batch: Option<i32>,
    /// The application's time, ms since 1970.
    pub event_time_ms: Option<u64>,
    /// How many keys the payload is encrypted for; 0 = not encrypted.
    pub encryption_key_count: u32,
    /// Version of the schema.
    pub schema_version: Option<&'a [u8]>,
    /// Not to be delivered before, ms since 1970.
    pub deliver_at_time_ms: Option<i64>,
    /// Set on messages that brokers wrote for themselves.
    pub marker_type: Option<i32>,
    /// The transaction.
    pub txnid: Option<TxnId>,
    /// Highest sequence id of a batch, if there is one that is not zero.
    pub highest_sequence_id: Option<u64>,
    /// The value is null, not empty.
    pub null_value: bool,
    /// Which chunked message this is a part of.
    pub uuid: Option<&'a str>,
    /// How many parts it has.
    pub num_chunks_from_msg: Option<i32>,
    /// Bytes of the whole chunked message.
    pub total_chunk_msg_bytes: Option<i32>,
    /// Which part this is, from 0.
    pub chunk_id: Option<i32>,
}

impl<'a> MetadataSummary<'a> {
    /// Reads encoded message metadata.
    ///
    /// # Errors
    /// [`FieldError`] if the bytes are no protobuf, a field has a wrong type, or producer name, sequence id or publish
    /// time are missing.
    pub fn decode(metadata: &'a [u8]) -> Result<Self, FieldError> {
        let mut summary = MetadataSummary::default();
        let (mut producer_name, mut sequence_id, mut publish_time_ms) = (None, None, None);
        let (mut txn_least, mut txn_most) = (None, None);
        let mut fields = Fields::new(metadata);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => producer_name = Some(field.text()?),
                2 => sequence_id = Some(field.varint()?),
                3 => publish_time_ms = Some(field.varint()?),
                4 => summary.has_properties = field.bytes().map(|_| true)?,
                5 => summary.replicated_from = Some(field.text()?),
                6 => summary.partition_key = Some(field.text()?),
                7 => summary.replicate_to_count += field.text().map(|_| 1)?,
                8 => summary.compression = field.int32()?,
                9 => summary.uncompressed_bytes = field.varint()? as u32,
                11 => summary.num_messages_in_batch = Some(field.int32()?),
                12 => summary.event_time_ms = Some(field.varint()?),
                13 => summary.encryption_key_count += field.bytes().map(|_| 1)?,
                16 => summary.schema_version = Some(field.bytes()?),
                17 => summary.partition_key_b64_encoded = field.bool()?,
                18 => summary.ordering_key = Some(field.bytes()?),
                19 => summary.deliver_at_time_ms = Some(field.varint()? as i64),
                20 => summary.marker_type = Some(field.int32()?),
                22 => txn_least = Some(field.varint()?),
                23 => txn_most = Some(field.varint()?),
                24 => summary.highest_sequence_id = Some(field.varint()?).filter(|&id| id > 0),
                25 => summary.null_value = field.bool()?,
                26 => summary.uuid = Some(field.text()?),
                27 => summary.num_chunks_from_msg = Some(field.int32()?),
                28 => summary.total_chunk_msg_bytes = Some(field.int32()?),
                29 => summary.chunk_id = Some(field.int32()?),
                30 => summary.null_partition_key = field.bool()?,
                _ => {}
            }
        }
        summary.producer_name = producer_name.ok_or(FieldError::Missing("producer_name"))?;
        summary.sequence_id = sequence_id.ok_or(FieldError::Missing("sequence_id"))?;
        summary.publish_time_ms = publish_time_ms.ok_or(FieldError::Missing("publish_time"))?;
        summary.txnid = txn_id(txn_most, txn_least);
        Ok(summary)
    }

    /// Whether the payload is a batch.
    pub fn is_batch(&self) -> bool {
        self.num_messages_in_batch.is_some()
    }

    /// Messages in the entry, at least 1.
    pub fn messages(&self) -> u32 {
        self.num_messages_in_batch.map_or(1, |count| count.max(1) as u32)
    }

    /// Whether the payload is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.encryption_key_count > 0
    }

    /// Whether this is one part of a chunked message with more than one.
    pub fn is_chunk(&self) -> bool {
        self.uuid.is_some() && self.num_chunks_from_msg.is_some_and(|count| count > 1) && self.chunk_id.is_some()
    }

    /// Whether this is the last part of a chunked message.
    pub fn is_last_chunk(&self) -> bool {
        self.is_chunk() && self.chunk_id.zip(self.num_chunks_from_msg).is_some_and(|(id, count)| id == count - 1)
    }

    /// The kind of compression, or `None` if this version does not know it.
    pub fn compression_type(&self) -> Option<CompressionType> {
        CompressionType::try_from(self.compression).ok()
    }
}

/// The regions that a message names as its targets, in the order of the metadata.
pub fn replicate_to(metadata: &[u8]) -> impl Iterator<Item = &str> {
    let mut fields = Fields::new(metadata);
    std::iter::from_fn(move || fields.next().ok().flatten())
        .filter(|field| field.number == 7)
        .filter_map(|field| field.text().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MessageMetadata;
    use prost::Message;

    #[test]
    fn required_fields_are_required() {
        assert_eq!(MetadataSummary::decode(&[]), Err(FieldError::Missing("producer_name")));
        assert_eq!(MetadataSummary::decode(&[0x0a, 0]), Err(FieldError::Missing("sequence_id")));
        assert_eq!(MetadataSummary::decode(&[0x0a, 0, 0x10, 0]), Err(FieldError::Missing("publish_time")));
        assert!(MetadataSummary::decode(&[0x0a, 0, 0x10, 0, 0x18, 0]).is_ok());
    }

    #[test]
    fn counts_are_never_below_one() {
        let of = |count| MetadataSummary { num_messages_in_batch: count, ..MetadataSummary::default() };
        assert_eq!(of(None).messages(), 1);
        assert_eq!(of(Some(-5)).messages(), 1);
        assert_eq!(of(Some(7)).messages(), 7);
        assert!(of(Some(1)).is_batch());
    }

    #[test]
    fn chunks_know_their_last() {
        let of = |id| MetadataSummary {
            uuid: Some("u"),
            num_chunks_from_msg: Some(3),
            chunk_id: Some(id),
            ..MetadataSummary::default()
        };
        assert!(of(0).is_chunk() && !of(0).is_last_chunk());
        assert!(of(2).is_last_chunk());
        let smallest = MetadataSummary { num_chunks_from_msg: Some(i32::MIN), ..of(0) };
        assert!(!smallest.is_last_chunk());
    }

    #[test]
    fn targets_are_listed() {
        let metadata = MessageMetadata {
            replicate_to: vec!["west".into(), "east".into()],
            partition_key: Some("k".into()),
            ..MessageMetadata::default()
        };
        let bytes = metadata.encode_to_vec();
        assert_eq!(replicate_to(&bytes).collect::<Vec<_>>(), ["west", "east"]);
        assert_eq!(MetadataSummary::decode(&bytes).unwrap().replicate_to_count, 2);
    }
}
