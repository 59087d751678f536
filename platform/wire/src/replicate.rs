//! What the link between two regions writes into a message, and the names it goes by.
//!
//! An entry travels as the client wrote it. The source *appends* fields to its metadata, which by the rules of protobuf
//! is the same as setting them, and gives it a new checksum:
//!
//! ```text
//! property 4 { key 1 = "__MSG_PROP_REPL_SOURCE_POSITION", value 2 = "<ledger>:<entry>" }   position in the source topic,
//!                                                                                 none of a topic that keeps nothing
//! replicated_from 5 = name of the source region
//! schema_version 16 = the remote's version                                        only where the remote has another one
//! ```
//!
//! Invariants: W1; R1 nothing else of the metadata changes and the payload is the same bytes, unopened; R2 a stamped entry
//! has no transaction and exactly the source position that it is given, if any (a client's own property of that name is
//! dropped: peers take the first one that they find); R3 an entry whose checksum does not fit is never given a new one that does.
//! Failure: [`PayloadError`]. Must never know: links, cursors, peers.

use crate::field::{FieldError, Fields, put_varint, varint_len};
use crate::payload::{MAGIC_CHECKSUM, PayloadError, split};
use bytes::{BufMut, Bytes, BytesMut};
use meridian_types::Position;
use std::fmt::Write;

/// The property that names the position in the source topic.
pub const SOURCE_POSITION_PROPERTY: &str = "__MSG_PROP_REPL_SOURCE_POSITION";
/// A producer whose name begins so is a link from another region; so begin the names of the links' cursors.
pub const LINK_PREFIX: &str = "pulsar.repl.";
/// Between the two regions in the name of a link's producer.
pub const LINK_ARROW: &str = "-->";
/// `highest_sequence_id` of the receipt for a marker, if receipts name source positions.
pub const MARKER_RECEIPT: u64 = i64::MIN as u64;
/// Key of the producer's metadata: the name of the source region.
pub const REGION_KEY: &str = "meridian.region";
/// Key of the producer's metadata: the incarnation of the source topic, decimal.
pub const INCARNATION_KEY: &str = "meridian.incarnation";
/// Key of the producer's metadata: the version of the link's rules.
pub const LINK_KEY: &str = "meridian.link";

/// Key of the producer's metadata: the epoch of the namespace's active region, as the source knows it.
pub const EPOCH_KEY: &str = "meridian.epoch";

/// Metadata fields that are dropped: both halves of a transaction's id.
const TXN_FIELDS: [u32; 2] = [22, 23];

/// The name of the producer of a link.
pub fn link_name(local: &str, remote: &str) -> String {
    format!("{LINK_PREFIX}{local}{LINK_ARROW}{remote}")
}

/// The name of the cursor of a link.
pub fn cursor_name(remote: &str) -> String {
    format!("{LINK_PREFIX}{remote}")
}

/// The region that a producer of that name brings messages from; `None` if it is no link.
pub fn link_source(producer_name: &str) -> Option<&str> {
    let regions = producer_name.strip_prefix(LINK_PREFIX)?;
    Some(regions.split_once(LINK_ARROW).map_or(regions, |(source, _)| source))
}

/// The region that a link of that name leads to, as its source calls it; `None` if it is no link or does not say.
pub fn link_target(producer_name: &str) -> Option<&str> {
    let regions = producer_name.strip_prefix(LINK_PREFIX)?;
    regions.split(LINK_ARROW).nth(1)
}

/// What is written into an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp<'a> {
    /// Name of the source region.
    pub from: &'a str,
    /// Where the entry is in the source topic; `None` = that keeps nothing.
    pub position: Option<Position>,
    /// The remote's version of the schema, if it is another one than in the metadata.
    pub schema_version: Option<&'a [u8]>,
}

impl Stamp<'_> {
    fn position_text(&self) -> Option<String> {
        let position = self.position?;
        let mut text = String::with_capacity(24);
        // Writing to a string does not fail.
        let _ = write!(text, "{}:{}", position.ledger_id, position.entry_id);
        Some(text)
    }
}

/// Stamps an entry: appends checksum and new metadata to `head` and answers the payload, which follows them, as a slice of
/// `entry`. Broker entry metadata is left out.
///
/// # Errors
/// [`PayloadError`] if the entry can't be read or its checksum does not fit (R3); `head` is as before.
pub fn stamp(entry: &Bytes, stamp: &Stamp<'_>, head: &mut BytesMut) -> Result<Bytes, PayloadError> {
    let parts = split(entry)?;
    if let Some(stated) = parts.checksum {
        let computed = crc32c::crc32c(parts.covered);
        if computed != stated {
            return Err(PayloadError::Checksum { stated, computed });
        }
    }
    let clean = is_clean(parts.metadata)?;
    let position = stamp.position_text();
    let position_bytes = position.as_ref().map_or(0, |text| SOURCE_POSITION_PROPERTY.len() + text.len());
    head.reserve(64 + parts.metadata.len() + position_bytes + stamp.from.len());
    let start = head.len();
    head.put_u16(MAGIC_CHECKSUM);
    let checksum_at = head.len();
    head.put_u64(0);
    let metadata_at = head.len();
    if clean {
        head.put_slice(parts.metadata);
    } else if let Err(error) = put_cleaned(parts.metadata, head) {
        head.truncate(start);
        return Err(error.into());
    }
    if let Some(position) = &position {
        put_property(SOURCE_POSITION_PROPERTY, position, head);
    }
    put_bytes(5, stamp.from.as_bytes(), head);
    if let Some(version) = stamp.schema_version {
        put_bytes(16, version, head);
    }
    let metadata_bytes = (head.len() - metadata_at) as u32;
    head[checksum_at + 4..metadata_at].copy_from_slice(&metadata_bytes.to_be_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&head[checksum_at + 4..]), parts.payload);
    head[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_be_bytes());
    Ok(parts.payload_of(entry))
}

/// An entry with properties appended to its metadata and a new checksum, payload unopened.
///
/// # Errors
/// [`PayloadError`] if the entry can't be read or its checksum does not fit (R3).
pub fn with_properties(entry: &Bytes, properties: &[(&str, &str)]) -> Result<Bytes, PayloadError> {
    let parts = split(entry)?;
    if let Some(stated) = parts.checksum {
        let computed = crc32c::crc32c(parts.covered);
        if computed != stated {
            return Err(PayloadError::Checksum { stated, computed });
        }
    }
    let mut whole = BytesMut::with_capacity(entry.len() + 256);
    whole.put_u16(MAGIC_CHECKSUM);
    whole.put_u64(0);
    let metadata_at = whole.len();
    whole.put_slice(parts.metadata);
    for (key, value) in properties {
        put_property(key, value, &mut whole);
    }
    let metadata_bytes = (whole.len() - metadata_at) as u32;
    whole[metadata_at - 4..metadata_at].copy_from_slice(&metadata_bytes.to_be_bytes());
    whole.put_slice(parts.payload);
    let checksum = crc32c::crc32c(&whole[metadata_at - 4..]);
    whole[metadata_at - 8..metadata_at - 4].copy_from_slice(&checksum.to_be_bytes());
    Ok(whole.freeze())
}

/// Whether an entry may go to a region: it names none, or this one. An entry that can't be read goes nowhere.
pub fn is_for(entry: &[u8], region: &str) -> bool {
    let Ok(parts) = split(entry) else { return false };
    let mut named = crate::metadata::replicate_to(parts.metadata).peekable();
    named.peek().is_none() || named.any(|name| name == region)
}

/// The position in the source topic, as the source appended it: the last such property counts. `None` if there is none
/// that can be read.
pub fn source_position(metadata: &[u8]) -> Option<Position> {
    let mut fields = Fields::new(metadata);
    let mut found = None;
    while let Ok(Some(field)) = fields.next() {
        if field.number == 4
            && let Some(value) = field.bytes().ok().and_then(source_position_value)
        {
            found = parse_position(value);
        }
    }
    found
}

fn parse_position(text: &[u8]) -> Option<Position> {
    let (ledger, entry) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let (ledger, entry): (i64, i64) = (ledger.parse().ok()?, entry.parse().ok()?);
    (ledger >= 0 && entry >= 0).then_some(Position::new(ledger, entry))
}

/// The value of a property if it is the source position.
fn source_position_value(property: &[u8]) -> Option<&[u8]> {
    let (mut key, mut value) = (None, None);
    let mut fields = Fields::new(property);
    while let Ok(Some(field)) = fields.next() {
        match field.number {
            1 => key = field.bytes().ok(),
            2 => value = field.bytes().ok(),
            _ => {}
        }
    }
    value.filter(|_| key == Some(SOURCE_POSITION_PROPERTY.as_bytes()))
}

/// Whether nothing has to be dropped (R2).
fn is_clean(metadata: &[u8]) -> Result<bool, FieldError> {
    let mut fields = Fields::new(metadata);
    while let Some(field) = fields.next()? {
        let dropped = field.number == 4 && source_position_value(field.bytes()?).is_some();
        if dropped || TXN_FIELDS.contains(&field.number) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The fields that stay, as the client encoded them.
fn put_cleaned(metadata: &[u8], dst: &mut BytesMut) -> Result<(), FieldError> {
    let mut fields = Fields::new(metadata);
    let mut before = fields.rest();
    while let Some(field) = fields.next()? {
        let encoded = &before[..before.len() - fields.rest().len()];
        before = fields.rest();
        let dropped = field.number == 4 && source_position_value(field.bytes()?).is_some();
        if !dropped && !TXN_FIELDS.contains(&field.number) {
            dst.put_slice(encoded);
        }
    }
    Ok(())
}

fn put_bytes(number: u32, bytes: &[u8], dst: &mut BytesMut) {
    put_varint(u64::from(number << 3 | 2), dst);
    put_varint(bytes.len() as u64, dst);
    dst.put_slice(bytes);
}

fn put_property(key: &str, value: &str, dst: &mut BytesMut) {
    let bytes = [key, value].iter().map(|text| 1 + varint_len(text.len() as u64) + text.len()).sum::<usize>();
    put_varint(4 << 3 | 2, dst);
    put_varint(bytes as u64, dst);
    put_bytes(1, key.as_bytes(), dst);
    put_bytes(2, value.as_bytes(), dst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{decode, encode, verify_checksum};
    use crate::proto::{KeyValue, MessageMetadata};

    fn entry(metadata: &MessageMetadata) -> Bytes {
        let mut dst = BytesMut::new();
        encode(metadata, b"payload", &mut dst);
        dst.freeze()
    }

    fn metadata() -> MessageMetadata {
        MessageMetadata { producer_name: "p".into(), sequence_id: 7, publish_time: 9, ..Default::default() }
    }

    fn stamped(entry: &Bytes, schema_version: Option<&[u8]>) -> Bytes {
        let mut head = BytesMut::new();
        let to = Stamp { from: "west", position: Some(Position::new(3, 12)), schema_version };
        let payload = stamp(entry, &to, &mut head).unwrap();
        head.extend_from_slice(&payload);
        head.freeze()
    }

    fn property(key: &str, value: &str) -> KeyValue {
        KeyValue { key: key.into(), value: value.into() }
    }

    #[test]
    fn a_links_name_says_where_it_leads() {
        assert_eq!(link_target(&link_name("west", "east")), Some("east"));
        assert_eq!(link_target("pulsar.repl.west-->east-->3"), Some("east"), "with a generation");
        assert_eq!((link_target("pulsar.repl.west"), link_target("west-->east")), (None, None));
    }

    #[test]
    fn labels_are_appended_and_the_checksum_fits() {
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            replicate_to: vec!["east".into()],
            ..MessageMetadata::default()
        };
        let mut entry = BytesMut::new();
        crate::payload::encode(&metadata, b"payload", &mut entry);
        let entry = entry.freeze();
        let labelled = with_properties(&entry, &[("a", "1"), ("b", "2")]).unwrap();
        assert!(crate::payload::verify_checksum(&labelled).unwrap());
        let (read, payload) = crate::payload::decode(&labelled).unwrap();
        let pairs: Vec<_> = read.properties.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect();
        assert_eq!((pairs.as_slice(), &payload[..]), ([("a", "1"), ("b", "2")].as_slice(), &b"payload"[..]));
        assert!(is_for(&labelled, "east") && !is_for(&labelled, "west") && !is_for(b"x", "east"));
        let mut damaged = entry.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        assert!(matches!(with_properties(&damaged.into(), &[]), Err(PayloadError::Checksum { .. })));
    }

    #[test]
    fn a_stamped_entry_has_golden_bytes() {
        let stamped = stamped(&entry(&metadata()), Some(&[0, 9]));
        let mut expected = vec![0x0e, 0x01, 0x07, 0xb9, 0x20, 0xd7, 0, 0, 0, 59, 0x0a, 1, b'p', 0x10, 7, 0x18, 9];
        expected.extend_from_slice(&[0x22, 39, 0x0a, 31]);
        expected.extend_from_slice(b"__MSG_PROP_REPL_SOURCE_POSITION");
        expected.extend_from_slice(&[0x12, 4]);
        expected.extend_from_slice(b"3:12");
        expected.extend_from_slice(&[0x2a, 4]);
        expected.extend_from_slice(b"west");
        expected.extend_from_slice(&[0x82, 0x01, 2, 0, 9]);
        expected.extend_from_slice(b"payload");
        assert_eq!(stamped[..], expected[..]);
        assert_eq!(verify_checksum(&stamped), Ok(true));
    }

    #[test]
    fn transactions_and_foreign_positions_are_dropped() {
        let client = MessageMetadata {
            properties: vec![property("a", "1"), property(SOURCE_POSITION_PROPERTY, "9:9"), property("b", "2")],
            txnid_least_bits: Some(1),
            txnid_most_bits: Some(2),
            schema_version: Some(vec![1].into()),
            uuid: Some("u".into()),
            ..metadata()
        };
        let (found, payload) = decode(&stamped(&entry(&client), Some(&[5]))).unwrap();
        let properties = vec![property("a", "1"), property("b", "2"), property(SOURCE_POSITION_PROPERTY, "3:12")];
        let expected = MessageMetadata {
            properties,
            txnid_least_bits: None,
            txnid_most_bits: None,
            replicated_from: Some("west".into()),
            schema_version: Some(vec![5].into()),
            ..client
        };
        assert_eq!(found, expected);
        assert_eq!(payload, &b"payload"[..]);
    }

    #[test]
    fn an_entry_of_a_topic_that_keeps_nothing_has_no_position() {
        let client = MessageMetadata { properties: vec![property(SOURCE_POSITION_PROPERTY, "9:9")], ..metadata() };
        let mut head = BytesMut::new();
        let payload = stamp(&entry(&client), &Stamp { from: "west", position: None, schema_version: None }, &mut head);
        head.extend_from_slice(&payload.unwrap());
        let whole = head.freeze();
        assert_eq!(verify_checksum(&whole), Ok(true));
        let expected = MessageMetadata { replicated_from: Some("west".into()), ..metadata() };
        assert_eq!(decode(&whole).unwrap().0, expected);
    }

    #[test]
    fn damage_is_not_blessed() {
        let mut bytes = entry(&metadata()).to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        let mut head = BytesMut::new();
        let to = Stamp { from: "west", position: Some(Position::new(3, 12)), schema_version: None };
        assert!(matches!(stamp(&bytes.into(), &to, &mut head), Err(PayloadError::Checksum { .. })));
        assert!(head.is_empty());
    }

    #[test]
    fn the_last_source_position_counts() {
        use prost::Message;
        let of = |values: &[&str]| {
            let properties = values.iter().map(|value| property(SOURCE_POSITION_PROPERTY, value)).collect();
            source_position(&MessageMetadata { properties, ..metadata() }.encode_to_vec())
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["1:2", "30:40"]), Some(Position::new(30, 40)));
        for bad in ["", "1", "1:", ":1", "-1:0", "1:2:3", "a:b", "99999999999999999999:1"] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
    }

    #[test]
    fn links_have_names() {
        assert_eq!(link_name("west", "east"), "pulsar.repl.west-->east");
        assert_eq!(cursor_name("east"), "pulsar.repl.east");
        assert_eq!(link_source("pulsar.repl.west-->east"), Some("west"));
        assert_eq!(link_source("pulsar.repl.west"), Some("west"));
        assert_eq!(link_source("pulsar.replicated"), None);
    }
}
