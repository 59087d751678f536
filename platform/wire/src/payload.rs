//! What stands behind a SEND or MESSAGE command, and what is stored as an entry.
//!
//! ```text
//! [u16 0x0e02, u32 size, BrokerEntryMetadata]   MESSAGE only, for clients that asked for it
//! [u16 0x0e01, u32 crc32c]                      over everything that follows; absent in the oldest clients' sends
//! u32 metadata_size, MessageMetadata
//! payload                                       one message, or a batch (see `batch`); compressed, then encrypted
//! ```
//!
//! Invariants: W1; W3 nothing here changes a client's bytes: parts are cut off, never rewritten.
//! Failure: [`PayloadError`].
//! Must never know: what a message means.

use crate::field::{FieldError, put_small_field, small_field_len};
use crate::metadata::MetadataSummary;
use crate::proto::{BrokerEntryMetadata, MessageMetadata};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// In front of a checksum.
pub const MAGIC_CHECKSUM: u16 = 0x0e01;
/// In front of broker entry metadata.
pub const MAGIC_BROKER_ENTRY: u16 = 0x0e02;
/// Magic and checksum.
pub const CHECKSUM_HEADER_BYTES: usize = 6;
/// Magic and size of broker entry metadata.
pub const BROKER_ENTRY_HEADER_BYTES: usize = 6;

/// Why an entry's bytes cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PayloadError {
    /// A size field points behind the end.
    #[error("the message ends inside its {0}")]
    Truncated(&'static str),
    /// The checksum does not fit the bytes.
    #[error("the checksum is {stated:#010x}, the bytes have {computed:#010x}")]
    Checksum {
        /// As it stands in the message.
        stated: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// The metadata is not protobuf of this protocol.
    #[error("the message's metadata cannot be read: {0}")]
    Metadata(#[from] FieldError),
    /// The metadata is not protobuf of this protocol.
    #[error("the message's metadata cannot be read: {0}")]
    Decode(#[from] prost::DecodeError),
}

impl meridian_types::Classify for PayloadError {
    fn class(&self) -> meridian_types::ErrorClass {
        match self {
            PayloadError::Checksum { .. } => meridian_types::ErrorClass::Corrupt,
            _ => meridian_types::ErrorClass::Caller,
        }
    }
}

/// The parts of an entry, as places in its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Encoded broker entry metadata.
    pub broker_entry: Option<&'a [u8]>,
    /// The checksum.
    pub checksum: Option<u32>,
    /// What the checksum covers: metadata size, metadata, payload.
    pub covered: &'a [u8],
    /// Encoded message metadata.
    pub metadata: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl Parts<'_> {
    /// The payload as a slice of `entry`, the bytes that were split.
    pub fn payload_of(&self, entry: &Bytes) -> Bytes {
        entry.slice(entry.len().saturating_sub(self.payload.len())..)
    }
}

fn take_u32<'a>(bytes: &'a [u8], part: &'static str) -> Result<(u32, &'a [u8]), PayloadError> {
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or(PayloadError::Truncated(part))?;
    Ok((u32::from_be_bytes(*head), rest))
}

fn take_sized<'a>(bytes: &'a [u8], part: &'static str) -> Result<(&'a [u8], &'a [u8]), PayloadError> {
    let (size, rest) = take_u32(bytes, part)?;
    rest.split_at_checked(size as usize).ok_or(PayloadError::Truncated(part))
}

fn strip_magic(bytes: &[u8], magic: u16) -> Option<&[u8]> {
    bytes.strip_prefix(&magic.to_be_bytes()[..])
}

/// Broker entry metadata, if there is any, and what stands behind it.
fn split_broker_entry(entry: &[u8]) -> Result<(Option<&[u8]>, &[u8]), PayloadError> {
    match strip_magic(entry, MAGIC_BROKER_ENTRY) {
        Some(rest) => take_sized(rest, "broker entry metadata").map(|(metadata, rest)| (Some(metadata), rest)),
        None => Ok((None, entry)),
    }
}

fn split_checksum(bytes: &[u8]) -> Result<(Option<u32>, &[u8]), PayloadError> {
    match strip_magic(bytes, MAGIC_CHECKSUM) {
        Some(rest) => take_u32(rest, "checksum").map(|(checksum, rest)| (Some(checksum), rest)),
        None => Ok((None, bytes)),
    }
}

/// Finds the parts of an entry. The checksum is not verified.
///
/// # Errors
/// [`PayloadError::Truncated`].
pub fn split(entry: &[u8]) -> Result<Parts<'_>, PayloadError> {
    let (broker_entry, rest) = split_broker_entry(entry)?;
    let (checksum, covered) = split_checksum(rest)?;
    let (metadata, payload) = take_sized(covered, "metadata")?;
    Ok(Parts { broker_entry, checksum, covered, metadata, payload })
}

/// Reads the metadata that a broker looks at.
///
/// # Errors
/// [`PayloadError`] if the entry has no readable metadata.
pub fn summarize(entry: &[u8]) -> Result<MetadataSummary<'_>, PayloadError> {
    Ok(MetadataSummary::decode(split(entry)?.metadata)?)
}

/// Reads the whole metadata and answers the payload behind it.
///
/// # Errors
/// [`PayloadError`] if the entry has no readable metadata.
pub fn decode(entry: &Bytes) -> Result<(MessageMetadata, Bytes), PayloadError> {
    let parts = split(entry)?;
    Ok((MessageMetadata::decode(entry.slice_ref(parts.metadata))?, parts.payload_of(entry)))
}

/// Compares the checksum with the bytes. `false`: the entry has none.
///
/// # Errors
/// [`PayloadError::Checksum`] if they differ, [`PayloadError::Truncated`] if there is not even room for one.
pub fn verify_checksum(entry: &[u8]) -> Result<bool, PayloadError> {
    let (_, rest) = split_broker_entry(entry)?;
    let (Some(stated), covered) = split_checksum(rest)? else { return Ok(false) };
    let computed = crc32c::crc32c(covered);
    if computed == stated { Ok(true) } else { Err(PayloadError::Checksum { stated, computed }) }
}

/// The entry without its magic and checksum, for peers below protocol version 11. Broker entry metadata must be off.
pub fn without_checksum(entry: &Bytes) -> Bytes {
    match split_checksum(entry) {
        Ok((Some(_), covered)) => entry.slice_ref(covered),
        _ => entry.clone(),
    }
}

/// Appends an entry: checksum, metadata, payload.
pub fn encode(metadata: &MessageMetadata, payload: &[u8], dst: &mut BytesMut) {
    let metadata_bytes = metadata.encoded_len();
    dst.reserve(CHECKSUM_HEADER_BYTES + 4 + metadata_bytes + payload.len());
    dst.put_u16(MAGIC_CHECKSUM);
    let checksum_at = dst.len();
    dst.put_u32(0);
    dst.put_u32(metadata_bytes as u32);
    metadata.encode_raw(dst);
    dst.put_slice(payload);
    let checksum = crc32c::crc32c(&dst[checksum_at + 4..]);
    dst[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_be_bytes());
}

/// Broker entry metadata with both of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokerEntry {
    /// When the broker took the entry, ms since 1970.
    pub broker_timestamp_ms: u64,
    /// Index of the last message of the entry in its partition.
    pub index: u64,
}

impl BrokerEntry {
    /// Bytes of the metadata, without magic and size.
    pub fn encoded_len(&self) -> usize {
        small_field_len(self.broker_timestamp_ms) + small_field_len(self.index)
    }

    /// Appends magic, size and metadata.
    pub fn encode(&self, dst: &mut BytesMut) {
        dst.put_u16(MAGIC_BROKER_ENTRY);
        dst.put_u32(self.encoded_len() as u32);
        put_small_field(1, self.broker_timestamp_ms, dst);
        put_small_field(2, self.index, dst);
    }
}

/// Cuts broker entry metadata off the front of an entry.
///
/// # Errors
/// [`PayloadError`] if its size or its bytes are wrong.
pub fn strip_broker_entry(entry: &Bytes) -> Result<(Option<BrokerEntryMetadata>, Bytes), PayloadError> {
    let (metadata, rest) = split_broker_entry(entry)?;
    let metadata = metadata.map(BrokerEntryMetadata::decode).transpose()?;
    Ok((metadata, entry.slice_ref(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Bytes {
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            sequence_id: 7,
            publish_time: 9,
            ..MessageMetadata::default()
        };
        let mut dst = BytesMut::new();
        encode(&metadata, b"payload", &mut dst);
        dst.freeze()
    }

    #[test]
    fn an_entry_has_golden_bytes() {
        let mut expected = vec![0x0e, 0x01, 0x29, 0xcb, 0xbc, 0xc8, 0, 0, 0, 7, 0x0a, 1, b'p', 0x10, 7, 0x18, 9];
        expected.extend_from_slice(b"payload");
        assert_eq!(entry()[..], expected[..]);
        assert_eq!(verify_checksum(&entry()), Ok(true));
    }

    #[test]
    fn parts_are_slices_of_the_entry() {
        let entry = entry();
        let (metadata, payload) = decode(&entry).unwrap();
        assert_eq!((metadata.producer_name.as_str(), metadata.sequence_id), ("p", 7));
        assert_eq!(payload, &b"payload"[..]);
        assert_eq!(payload.as_ptr(), entry[entry.len() - 7..].as_ptr());
        assert_eq!(summarize(&entry).unwrap().publish_time_ms, 9);
    }

    #[test]
    fn damage_is_found() {
        let mut bytes = entry().to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(matches!(verify_checksum(&bytes), Err(PayloadError::Checksum { .. })));
        assert_eq!(verify_checksum(&[0x0e, 0x01, 0]), Err(PayloadError::Truncated("checksum")));
        assert_eq!(split(&[0, 0, 0, 9, 0]), Err(PayloadError::Truncated("metadata")));
        assert_eq!(split(&[]), Err(PayloadError::Truncated("metadata")));
    }

    #[test]
    fn the_checksum_may_be_absent() {
        let bare = without_checksum(&entry());
        assert_eq!(bare[..], entry()[CHECKSUM_HEADER_BYTES..]);
        assert_eq!(verify_checksum(&bare), Ok(false));
        assert_eq!(summarize(&bare).unwrap().sequence_id, 7);
        assert_eq!(without_checksum(&bare), bare);
    }

    #[test]
    fn broker_entry_metadata_goes_on_and_off() {
        let mut dst = BytesMut::new();
        BrokerEntry { broker_timestamp_ms: 300, index: 5 }.encode(&mut dst);
        assert_eq!(dst[..], [0x0e, 0x02, 0, 0, 0, 5, 0x08, 0xac, 0x02, 0x10, 5]);
        dst.extend_from_slice(&entry());
        let both = dst.freeze();
        assert_eq!(verify_checksum(&both), Ok(true));
        assert_eq!(split(&both).unwrap().payload, b"payload");
        let (metadata, rest) = strip_broker_entry(&both).unwrap();
        assert_eq!(metadata, Some(BrokerEntryMetadata { broker_timestamp: Some(300), index: Some(5) }));
        assert_eq!(rest, entry());
        assert_eq!(strip_broker_entry(&rest).unwrap(), (None, entry()));
    }
}
