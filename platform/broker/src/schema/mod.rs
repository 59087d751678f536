//! Schemas of topics: kinds, storage with versions, and the rules by which a new one may follow an old one.
//!
//! Invariants: K1 versions of a topic's schema grow by one and are never reused, also over a deletion; K2 a schema equal
//! in kind and data to a stored one has that one's version; K3 what is stored has passed [`check::validate`].
//! Failure: [`SchemaError`]; an unreadable stored record is an error of class Corrupt, never "no schema".
//! Must never know: connections, topics' content.

pub mod check;
pub mod compatibility;
mod keys;
mod record;
mod registry;

pub use compatibility::CompatibilityStrategy;
pub use record::{SchemaInfo, StoredSchema};
pub use registry::{PutRules, SchemaRegistry};

use meridian_metadata::MetadataError;
use meridian_types::{Classify, ErrorClass};

/// Kinds of schemas, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum SchemaKind {
    None,
    String,
    Json,
    Protobuf,
    Avro,
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    Float,
    Double,
    Date,
    Time,
    Timestamp,
    KeyValue,
    Instant,
    LocalDate,
    LocalTime,
    LocalDateTime,
    ProtobufNative,
    AutoConsume,
    External,
}

/// Kind, number on the wire, name in the admin API.
const KINDS: [(SchemaKind, i32, &str); 23] = [
    (SchemaKind::None, 0, "NONE"),
    (SchemaKind::String, 1, "STRING"),
    (SchemaKind::Json, 2, "JSON"),
    (SchemaKind::Protobuf, 3, "PROTOBUF"),
    (SchemaKind::Avro, 4, "AVRO"),
    (SchemaKind::Boolean, 5, "BOOLEAN"),
    (SchemaKind::Int8, 6, "INT8"),
    (SchemaKind::Int16, 7, "INT16"),
    (SchemaKind::Int32, 8, "INT32"),
    (SchemaKind::Int64, 9, "INT64"),
    (SchemaKind::Float, 10, "FLOAT"),
    (SchemaKind::Double, 11, "DOUBLE"),
    (SchemaKind::Date, 12, "DATE"),
    (SchemaKind::Time, 13, "TIME"),
    (SchemaKind::Timestamp, 14, "TIMESTAMP"),
    (SchemaKind::KeyValue, 15, "KEY_VALUE"),
    (SchemaKind::Instant, 16, "INSTANT"),
    (SchemaKind::LocalDate, 17, "LOCAL_DATE"),
    (SchemaKind::LocalTime, 18, "LOCAL_TIME"),
    (SchemaKind::LocalDateTime, 19, "LOCAL_DATE_TIME"),
    (SchemaKind::ProtobufNative, 20, "PROTOBUF_NATIVE"),
    (SchemaKind::AutoConsume, 21, "AUTO_CONSUME"),
    (SchemaKind::External, 22, "EXTERNAL"),
];

impl SchemaKind {
    /// From the number on the wire.
    pub fn from_wire(number: i32) -> Option<Self> {
        KINDS.iter().find(|(_, wire, _)| *wire == number).map(|(kind, _, _)| *kind)
    }

    /// The number on the wire.
    pub fn wire(self) -> i32 {
        KINDS[self as usize].1
    }

    /// From the name in the admin API.
    pub fn from_name(name: &str) -> Option<Self> {
        KINDS.iter().find(|(_, _, text)| text.eq_ignore_ascii_case(name)).map(|(kind, _, _)| *kind)
    }

    /// The name in the admin API.
    pub fn name(self) -> &'static str {
        KINDS[self as usize].2
    }

    /// Whether the kind alone says everything: no schema data.
    pub fn is_primitive(self) -> bool {
        !matches!(
            self,
            SchemaKind::None
                | SchemaKind::Json
                | SchemaKind::Protobuf
                | SchemaKind::Avro
                | SchemaKind::KeyValue
                | SchemaKind::ProtobufNative
                | SchemaKind::AutoConsume
                | SchemaKind::External
        )
    }
}

/// Why a schema was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchemaError {
    /// It does not fit those that are there.
    #[error("{0}")]
    Incompatible(String),
    /// It is no schema of its kind.
    #[error("{0}")]
    Invalid(String),
    /// A stored record can't be read.
    #[error("stored schema is damaged: {0}")]
    Corrupt(String),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl Classify for SchemaError {
    fn class(&self) -> ErrorClass {
        match self {
            SchemaError::Incompatible(_) | SchemaError::Invalid(_) => ErrorClass::Caller,
            SchemaError::Corrupt(_) => ErrorClass::Corrupt,
            SchemaError::Metadata(error) => error.class(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_the_enum() {
        for (at, (kind, wire, name)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, at);
            assert_eq!(SchemaKind::from_wire(*wire), Some(*kind));
            assert_eq!(SchemaKind::from_name(name), Some(*kind));
        }
    }
}
