//! Whether bytes are a schema of their kind, and their parts.
//!
//! Role: pure; parses Avro (also for JSON and PROTOBUF, whose definitions are Avro), key/value pairs and the wrapper of
//! native protobuf descriptors. Names are taken as the JVM's Avro takes them with validation off (`Outer$Inner`).
//! Failure: [`SchemaError::Invalid`] with the kind and what the parser said.

use super::{SchemaError, SchemaInfo, SchemaKind};
use apache_avro::Schema as AvroSchema;
use apache_avro::validator::{RecordFieldNameValidator, SchemaNameValidator, SchemaNamespaceValidator};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Once;

/// Largest definition that is parsed.
pub const MAX_DEFINITION_BYTES: usize = 1 << 20;

struct LenientNames;

impl SchemaNameValidator for LenientNames {
    fn validate(&self, name: &str) -> Result<usize, apache_avro::Error> {
        Ok(name.rfind('.').map_or(0, |dot| dot + 1))
    }
}

impl SchemaNamespaceValidator for LenientNames {
    fn validate(&self, _namespace: &str) -> Result<(), apache_avro::Error> {
        Ok(())
    }
}

impl RecordFieldNameValidator for LenientNames {
    fn validate(&self, _field: &str) -> Result<(), apache_avro::Error> {
        Ok(())
    }
}

/// The parser takes its validators once per process; a second setting is refused and means the same.
fn accept_lenient_names() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = apache_avro::validator::set_schema_name_validator(Box::new(LenientNames));
        let _ = apache_avro::validator::set_schema_namespace_validator(Box::new(LenientNames));
        let _ = apache_avro::validator::set_record_field_name_validator(Box::new(LenientNames));
    });
}

fn invalid(kind: SchemaKind, why: impl std::fmt::Display) -> SchemaError {
    SchemaError::Invalid(format!("Invalid schema definition data for {} schema: {why}", kind.name()))
}

fn text(kind: SchemaKind, data: &[u8]) -> Result<&str, SchemaError> {
    if data.len() > MAX_DEFINITION_BYTES {
        return Err(invalid(kind, format!("{} bytes are over the limit of {MAX_DEFINITION_BYTES}", data.len())));
    }
    std::str::from_utf8(data).map_err(|error| invalid(kind, error))
}

/// The definition as an Avro schema.
///
/// # Errors
/// [`SchemaError::Invalid`] if it is none.
pub fn parse_avro(kind: SchemaKind, data: &[u8]) -> Result<AvroSchema, SchemaError> {
    accept_lenient_names();
    AvroSchema::parse_str(text(kind, data)?).map_err(|error| invalid(kind, error))
}

/// Whether the definition is a JSON schema of the old form (`{"type":"object",…}`), which has no Avro form.
pub fn is_plain_json_schema(data: &[u8]) -> bool {
    data.len() <= MAX_DEFINITION_BYTES
        && serde_json::from_slice::<serde_json::Value>(data)
            .is_ok_and(|value| value.get("type").and_then(|kind| kind.as_str()) == Some("object"))
}

/// Root message type of a native protobuf descriptor.
///
/// # Errors
/// [`SchemaError::Invalid`] if the wrapper is not as the clients write it.
pub fn native_root_message(data: &[u8]) -> Result<String, SchemaError> {
    let kind = SchemaKind::ProtobufNative;
    let value: serde_json::Value = serde_json::from_str(text(kind, data)?).map_err(|error| invalid(kind, error))?;
    let field = |name: &str| value.get(name).and_then(|field| field.as_str());
    if field("fileDescriptorSet").is_none_or(str::is_empty) {
        return Err(invalid(kind, "fileDescriptorSet is missing"));
    }
    match field("rootMessageTypeName") {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(invalid(kind, "rootMessageTypeName is missing")),
    }
}

/// Key and value schema of a key/value schema: `i32` length (big-endian, -1 or 0 = empty) and definition, twice; kinds and
/// properties stand in the properties.
///
/// # Errors
/// [`SchemaError::Invalid`] if the lengths do not fit.
pub fn split_key_value(info: &SchemaInfo) -> Result<(SchemaInfo, SchemaInfo), SchemaError> {
    let kind = SchemaKind::KeyValue;
    let mut rest = info.data.clone();
    let mut take = || -> Result<Bytes, SchemaError> {
        let head = rest.get(..4).ok_or_else(|| invalid(kind, "a length is cut"))?;
        let length = i32::from_be_bytes([head[0], head[1], head[2], head[3]]).max(0) as usize;
        let _ = rest.split_to(4);
        if length > rest.len() {
            return Err(invalid(kind, "a definition is cut"));
        }
        Ok(rest.split_to(length))
    };
    let (key, value) = (take()?, take()?);
    let part = |side: &str, data: Bytes| -> Result<SchemaInfo, SchemaError> {
        let name = info.properties.get(&format!("{side}.schema.type"));
        let kind = name.map_or(Some(SchemaKind::None), |name| SchemaKind::from_name(name));
        let kind = kind.ok_or_else(|| invalid(SchemaKind::KeyValue, format!("unknown {side}.schema.type")))?;
        Ok(SchemaInfo { kind, data, properties: BTreeMap::new() })
    };
    Ok((part("key", key)?, part("value", value)?))
}

/// Whether the data is a schema of its kind (K3).
///
/// # Errors
/// [`SchemaError::Invalid`].
pub fn validate(info: &SchemaInfo) -> Result<(), SchemaError> {
    match info.kind {
        SchemaKind::Avro | SchemaKind::Protobuf => parse_avro(info.kind, &info.data).map(drop),
        SchemaKind::Json => match parse_avro(info.kind, &info.data) {
            Err(_) if is_plain_json_schema(&info.data) => Ok(()),
            parsed => parsed.map(drop),
        },
        SchemaKind::ProtobufNative => native_root_message(&info.data).map(drop),
        SchemaKind::KeyValue => {
            let (key, value) = split_key_value(info)?;
            for part in [&key, &value] {
                if part.kind == SchemaKind::KeyValue {
                    return Err(invalid(info.kind, "a part is a key/value schema itself"));
                }
                if part.kind != SchemaKind::None {
                    validate(part)?;
                }
            }
            Ok(())
        }
        SchemaKind::String => text(info.kind, &info.data).map(drop),
        SchemaKind::External => Ok(()),
        SchemaKind::None | SchemaKind::AutoConsume => Err(invalid(info.kind, "this kind is never stored")),
        // Some clients write a definition (`"int"`) for primitives; the kind alone decides.
        _ => text(info.kind, &info.data).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn info(kind: SchemaKind, data: &'static str) -> SchemaInfo {
        SchemaInfo { kind, data: Bytes::from_static(data.as_bytes()), properties: BTreeMap::new() }
    }

    #[test]
    fn class_names_of_the_jvm_are_accepted() {
        let data = r#"{"type":"record","name":"Inner","namespace":"a.Outer$","fields":[{"name":"x$","type":"int"}]}"#;
        assert_eq!(validate(&info(SchemaKind::Avro, data)), Ok(()));
    }

    #[test]
    fn bad_definitions_name_the_kind() {
        let error = validate(&info(SchemaKind::Avro, "{")).unwrap_err();
        assert!(error.to_string().starts_with("Invalid schema definition data for AVRO schema"), "{error}");
        assert!(validate(&info(SchemaKind::Json, "7")).is_err());
        assert_eq!(validate(&info(SchemaKind::Json, r#"{"type":"object","id":"x"}"#)), Ok(()));
        assert!(validate(&info(SchemaKind::ProtobufNative, "{}")).is_err());
        assert_eq!(validate(&info(SchemaKind::Int32, "")), Ok(()));
    }

    #[test]
    fn key_value_parts_are_checked() {
        let mut pair = info(SchemaKind::KeyValue, "");
        pair.data = Bytes::from_static(b"\0\0\0\x05\"int\"\0\0\0\0");
        pair.properties.insert("key.schema.type".to_owned(), "AVRO".to_owned());
        pair.properties.insert("value.schema.type".to_owned(), "STRING".to_owned());
        assert_eq!(validate(&pair), Ok(()));
        pair.data = Bytes::from_static(b"\0\0\0\x05\"in");
        assert!(validate(&pair).is_err());
    }
}
