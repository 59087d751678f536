//! One stored schema as bytes.
//!
//! Layout (little-endian): `u8` format = 1 · `u64` version · `i32` kind · `u8` flags (bit 0: deleted) · `u64` time in ms ·
//! text author · `u32` count of properties, each text, text · bytes data; then nothing. Text and bytes are `u32` length
//! and content. Head record: `u8` format = 1 · `u64` latest version · `u8` flags (bit 0: deleted).
//! Failure: a record that is cut, too long or of another format is [`SchemaError::Corrupt`]; nothing is allocated beyond
//! the bytes there are.

use super::{SchemaError, SchemaKind};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use meridian_types::TopicName;
use meridian_wire::proto::{KeyValue, Schema};
use std::collections::BTreeMap;

const FORMAT: u8 = 1;
const DELETED: u8 = 1;

/// A schema as a client or the admin API gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaInfo {
    /// Kind.
    pub kind: SchemaKind,
    /// Definition; empty for primitives.
    pub data: Bytes,
    /// Properties.
    pub properties: BTreeMap<String, String>,
}

impl SchemaInfo {
    /// Whether both mean the same schema (K2): properties do not count.
    pub fn same_as(&self, other: &SchemaInfo) -> bool {
        self.kind == other.kind && self.data == other.data
    }
}

/// A schema with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSchema {
    /// Version, from 0.
    pub version: u64,
    /// The schema.
    pub info: SchemaInfo,
    /// Stored at, ms since 1970.
    pub created_ms: u64,
    /// Principal that brought it.
    pub author: String,
    /// A marker: the schema was deleted at this version.
    pub deleted: bool,
}

impl StoredSchema {
    /// As commands carry it.
    pub fn on_wire(&self, topic: &TopicName) -> Schema {
        let pair = |(key, value): (&String, &String)| KeyValue { key: key.clone(), value: value.clone() };
        Schema {
            name: topic.base().local().to_owned(),
            schema_data: self.info.data.clone(),
            r#type: self.info.kind.wire(),
            properties: self.info.properties.iter().map(pair).collect(),
        }
    }
}

/// The latest version of a topic's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Latest version.
    pub version: u64,
    /// The latest version is a deletion.
    pub deleted: bool,
}

impl Head {
    /// To bytes.
    pub fn encode(self) -> Bytes {
        let mut out = BytesMut::with_capacity(10);
        out.put_u8(FORMAT);
        out.put_u64_le(self.version);
        out.put_u8(if self.deleted { DELETED } else { 0 });
        out.freeze()
    }

    /// From bytes.
    pub fn decode(mut bytes: Bytes) -> Result<Self, SchemaError> {
        if bytes.len() != 10 || bytes.get_u8() != FORMAT {
            return Err(SchemaError::Corrupt("head record".to_owned()));
        }
        let version = bytes.get_u64_le();
        Ok(Self { version, deleted: bytes.get_u8() & DELETED != 0 })
    }
}

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn cut(what: &str) -> SchemaError {
    SchemaError::Corrupt(format!("record ends within {what}"))
}

fn take_bytes(from: &mut Bytes, what: &str) -> Result<Bytes, SchemaError> {
    let length = from.try_get_u32_le().map_err(|_| cut(what))? as usize;
    if length > from.len() {
        return Err(cut(what));
    }
    Ok(from.split_to(length))
}

fn take_text(from: &mut Bytes, what: &str) -> Result<String, SchemaError> {
    let bytes = take_bytes(from, what)?;
    String::from_utf8(bytes.into()).map_err(|_| SchemaError::Corrupt(format!("{what} is no text")))
}

impl StoredSchema {
    /// To bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64 + self.info.data.len());
        out.put_u8(FORMAT);
        out.put_u64_le(self.version);
        out.put_i32_le(self.info.kind.wire());
        out.put_u8(if self.deleted { DELETED } else { 0 });
        out.put_u64_le(self.created_ms);
        put_bytes(&mut out, self.author.as_bytes());
        out.put_u32_le(self.info.properties.len() as u32);
        for (key, value) in &self.info.properties {
            put_bytes(&mut out, key.as_bytes());
            put_bytes(&mut out, value.as_bytes());
        }
        put_bytes(&mut out, &self.info.data);
        out.freeze()
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`SchemaError::Corrupt`] unless the record is whole and of this format.
    pub fn decode(mut bytes: Bytes) -> Result<Self, SchemaError> {
        let format = bytes.try_get_u8().map_err(|_| cut("format"))?;
        if format != FORMAT {
            return Err(SchemaError::Corrupt(format!("format {format}")));
        }
        let version = bytes.try_get_u64_le().map_err(|_| cut("version"))?;
        let number = bytes.try_get_i32_le().map_err(|_| cut("kind"))?;
        let kind = SchemaKind::from_wire(number).ok_or_else(|| SchemaError::Corrupt(format!("kind {number}")))?;
        let flags = bytes.try_get_u8().map_err(|_| cut("flags"))?;
        let created_ms = bytes.try_get_u64_le().map_err(|_| cut("time"))?;
        let author = take_text(&mut bytes, "author")?;
        let count = bytes.try_get_u32_le().map_err(|_| cut("properties"))?;
        let mut properties = BTreeMap::new();
        for _ in 0..count {
            let key = take_text(&mut bytes, "property")?;
            properties.insert(key, take_text(&mut bytes, "property")?);
        }
        let data = take_bytes(&mut bytes, "data")?;
        if !bytes.is_empty() {
            return Err(SchemaError::Corrupt(format!("{} bytes behind the record", bytes.len())));
        }
        let info = SchemaInfo { kind, data, properties };
        Ok(Self { version, info, created_ms, author, deleted: flags & DELETED != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> StoredSchema {
        let properties = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let info = SchemaInfo { kind: SchemaKind::Avro, data: Bytes::from_static(b"\"int\""), properties };
        StoredSchema { version: 3, info, created_ms: 0x0102, author: "ann".to_owned(), deleted: false }
    }

    #[test]
    fn golden_record() {
        let golden: &[u8] = &[
            1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, b'a', b'n', b'n', 1, 0, 0, 0,
            1, 0, 0, 0, b'a', 1, 0, 0, 0, b'b', 5, 0, 0, 0, b'"', b'i', b'n', b't', b'"',
        ];
        assert_eq!(&sample().encode()[..], golden);
        assert_eq!(StoredSchema::decode(Bytes::from_static(golden)).unwrap(), sample());
        assert_eq!(&Head { version: 2, deleted: true }.encode()[..], &[1, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn cut_records_are_corrupt() {
        let whole = sample().encode();
        for end in 0..whole.len() {
            assert!(matches!(StoredSchema::decode(whole.slice(..end)), Err(SchemaError::Corrupt(_))), "{end}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = StoredSchema::decode(Bytes::from(bytes.clone()));
            let _ = Head::decode(Bytes::from(bytes));
        }

        #[test]
        fn records_round_trip(version: u64, kind in 0i32..23, created_ms: u64, author in ".{0,20}", deleted: bool,
                              data in proptest::collection::vec(any::<u8>(), 0..100)) {
            let info = SchemaInfo { kind: SchemaKind::from_wire(kind).unwrap(), data: data.into(), properties: BTreeMap::new() };
            let schema = StoredSchema { version, info, created_ms, author, deleted };
            prop_assert_eq!(StoredSchema::decode(schema.encode()).unwrap(), schema);
        }
    }
}
