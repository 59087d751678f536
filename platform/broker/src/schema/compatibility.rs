//! Which schema may follow which.
//!
//! Role: pure rules. *Backward*: the new schema reads what the old one wrote; *forward*: the old one reads what the new one
//! writes; *full*: both. Transitive strategies ask this of all earlier schemas, the others of the latest only.
//! A schema of another kind is incompatible under every strategy but AlwaysCompatible.

use super::check::{is_plain_json_schema, native_root_message, parse_avro, split_key_value};
use super::{SchemaError, SchemaInfo, SchemaKind};
use apache_avro::schema_compatibility::{Compatibility, SchemaCompatibility};
use serde_json::{Map, Value};

/// How a new schema must relate to those that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CompatibilityStrategy {
    AlwaysIncompatible,
    AlwaysCompatible,
    Backward,
    Forward,
    Full,
    BackwardTransitive,
    ForwardTransitive,
    FullTransitive,
}

use CompatibilityStrategy as Strategy;

const NAMES: [(Strategy, &str); 8] = [
    (Strategy::AlwaysIncompatible, "ALWAYS_INCOMPATIBLE"),
    (Strategy::AlwaysCompatible, "ALWAYS_COMPATIBLE"),
    (Strategy::Backward, "BACKWARD"),
    (Strategy::Forward, "FORWARD"),
    (Strategy::Full, "FULL"),
    (Strategy::BackwardTransitive, "BACKWARD_TRANSITIVE"),
    (Strategy::ForwardTransitive, "FORWARD_TRANSITIVE"),
    (Strategy::FullTransitive, "FULL_TRANSITIVE"),
];

impl CompatibilityStrategy {
    /// From the name in the admin API; `UNDEFINED` and unknown names give `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, text)| text.eq_ignore_ascii_case(name)).map(|(strategy, _)| *strategy)
    }

    /// The name in the admin API.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Whether all earlier schemas count.
    pub fn is_transitive(self) -> bool {
        matches!(self, Strategy::BackwardTransitive | Strategy::ForwardTransitive | Strategy::FullTransitive)
    }

    /// What a consumer's schema must satisfy: it reads what is there.
    pub fn for_consumer(self) -> Self {
        match self {
            Strategy::AlwaysCompatible => Strategy::AlwaysCompatible,
            _ if self.is_transitive() => Strategy::BackwardTransitive,
            _ => Strategy::Backward,
        }
    }

    fn new_must_read_old(self) -> bool {
        matches!(self, Strategy::Backward | Strategy::BackwardTransitive | Strategy::Full | Strategy::FullTransitive)
    }

    fn old_must_read_new(self) -> bool {
        matches!(self, Strategy::Forward | Strategy::ForwardTransitive | Strategy::Full | Strategy::FullTransitive)
    }
}

/// Whether `new` may stand beside `existing` (oldest first, without deleted ones).
///
/// # Errors
/// [`SchemaError::Incompatible`] with what does not fit.
pub fn check(existing: &[&SchemaInfo], new: &SchemaInfo, strategy: Strategy) -> Result<(), SchemaError> {
    if strategy == Strategy::AlwaysCompatible {
        return Ok(());
    }
    let from = if strategy.is_transitive() { 0 } else { existing.len().saturating_sub(1) };
    existing[from..].iter().rev().try_for_each(|old| check_pair(old, new, strategy))
}

fn check_pair(old: &SchemaInfo, new: &SchemaInfo, strategy: Strategy) -> Result<(), SchemaError> {
    if old.same_as(new) {
        return Ok(());
    }
    if old.kind != new.kind {
        return Err(SchemaError::Incompatible(format!(
            "Incompatible schema: exists schema type {}, new schema type {}",
            old.kind.name(),
            new.kind.name()
        )));
    }
    if strategy == Strategy::AlwaysIncompatible {
        return Err(SchemaError::Incompatible("the strategy is ALWAYS_INCOMPATIBLE".to_owned()));
    }
    match new.kind {
        SchemaKind::Avro | SchemaKind::Protobuf => check_avro(old, new, strategy),
        SchemaKind::Json => match (is_plain(old), is_plain(new)) {
            (false, false) => check_avro(old, new, strategy),
            (true, _) => Ok(()),
            (false, true) => Err(SchemaError::Incompatible("the new JSON schema has no Avro form".to_owned())),
        },
        SchemaKind::KeyValue => {
            let ((old_key, old_value), (key, value)) = (split_key_value(old)?, split_key_value(new)?);
            check_pair(&old_key, &key, strategy)?;
            check_pair(&old_value, &value, strategy)
        }
        SchemaKind::ProtobufNative => {
            let (was, is) = (native_root_message(&old.data)?, native_root_message(&new.data)?);
            if was == is {
                return Ok(());
            }
            Err(SchemaError::Incompatible(format!("Protobuf root message isn't allow change, was {was}, is {is}")))
        }
        _ => Ok(()),
    }
}

fn is_plain(info: &SchemaInfo) -> bool {
    parse_avro(info.kind, &info.data).is_err() && is_plain_json_schema(&info.data)
}

fn check_avro(old: &SchemaInfo, new: &SchemaInfo, strategy: Strategy) -> Result<(), SchemaError> {
    let was = parse_avro(old.kind, &old.data)?;
    // The name of the outermost record is no part of the rules: a class may be renamed.
    let is = match with_name_of(&new.data, &old.data) {
        Some(renamed) => parse_avro(new.kind, &renamed)?,
        None => parse_avro(new.kind, &new.data)?,
    };
    let reads = |writer, reader, what: &str| match SchemaCompatibility::can_read(writer, reader) {
        Ok(Compatibility::Full) => Ok(()),
        Ok(Compatibility::Partial) => Err(SchemaError::Incompatible(format!("{what} in part only"))),
        Err(error) => Err(SchemaError::Incompatible(format!("{what} not: {error}"))),
    };
    if strategy.new_must_read_old() {
        reads(&was, &is, "the new schema can read data written with the existing one")?;
    }
    if strategy.old_must_read_new() {
        reads(&is, &was, "the existing schema can read data written with the new one")?;
    }
    Ok(())
}

/// The first definition under the name of the second, if both are records with different names.
fn with_name_of(data: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    let record = |data: &[u8]| match serde_json::from_slice(data) {
        Ok(Value::Object(map)) if map.get("type").and_then(Value::as_str) == Some("record") => Some(map),
        _ => None,
    };
    let (mut record_a, record_b) = (record(data)?, record(other)?);
    let full = |map: &Map<String, Value>| -> Option<(String, String)> {
        let name = map.get("name")?.as_str()?.to_owned();
        let space = map.get("namespace").and_then(Value::as_str).filter(|space| !space.is_empty());
        let full = space.map_or_else(|| name.clone(), |space| format!("{space}.{name}"));
        Some((name, full))
    };
    let (from, to) = (full(&record_a)?, full(&record_b)?);
    if from.1 == to.1 {
        return None;
    }
    record_a.insert("name".to_owned(), Value::String(to.1.clone()));
    record_a.remove("namespace");
    if let Some(fields) = record_a.get_mut("fields") {
        rename_references(fields, &from, &to.1);
    }
    serde_json::to_vec(&Value::Object(record_a)).ok()
}

/// Types that refer to the record by its name, short or full, refer to it by the new one.
fn rename_references(value: &mut Value, from: &(String, String), to: &str) {
    let refers = |value: &Value| value.as_str().is_some_and(|text| text == from.0 || text == from.1);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| match refers(item) {
            true => *item = Value::String(to.to_owned()),
            false => rename_references(item, from, to),
        }),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match key.as_str() {
                    "type" | "items" | "values" if refers(value) => *value = Value::String(to.to_owned()),
                    "type" | "items" | "values" | "fields" => rename_references(value, from, to),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::collections::BTreeMap;

    fn record(fields: &str) -> SchemaInfo {
        let data = format!(r#"{{"type":"record","name":"R","fields":[{fields}]}}"#);
        SchemaInfo { kind: SchemaKind::Avro, data: Bytes::from(data), properties: BTreeMap::new() }
    }

    const A: &str = r#"{"name":"a","type":"string"}"#;
    const B: &str = r#"{"name":"b","type":"int"}"#;
    const B_DEFAULT: &str = r#"{"name":"b","type":"int","default":0}"#;

    fn holds(old: &SchemaInfo, new: &SchemaInfo) -> [bool; 3] {
        [Strategy::Backward, Strategy::Forward, Strategy::Full].map(|s| check(&[old], new, s).is_ok())
    }

    #[test]
    fn a_field_without_default_may_come_but_not_be_missed() {
        let (one, two) = (record(A), record(&format!("{A},{B}")));
        assert_eq!(holds(&one, &two), [false, true, false]);
        assert_eq!(holds(&two, &one), [true, false, false]);
    }

    #[test]
    fn a_field_with_default_goes_both_ways() {
        let (one, two) = (record(A), record(&format!("{A},{B_DEFAULT}")));
        assert_eq!(holds(&one, &two), [true, true, true]);
        assert_eq!(holds(&two, &one), [true, true, true]);
    }

    #[test]
    fn transitive_asks_all_versions() {
        let (first, second, third) = (record(B), record(B_DEFAULT), record(A));
        assert!(check(&[&first, &second], &third, Strategy::Backward).is_err());
        let third = record(&format!("{A},{B_DEFAULT}"));
        let old = record(r#"{"name":"a","type":"string","default":""},{"name":"b","type":"string"}"#);
        let newer = record(r#"{"name":"a","type":"string","default":""},{"name":"b","type":"int","default":1}"#);
        assert!(check(&[&old, &newer], &third, Strategy::Backward).is_ok());
        assert!(check(&[&old, &newer], &third, Strategy::BackwardTransitive).is_err());
    }

    #[test]
    fn an_enum_that_lost_a_symbol_is_refused() {
        let schema = |symbols: &str| {
            record(&format!(r#"{{"name":"e","type":{{"type":"enum","name":"E","symbols":[{symbols}]}}}}"#))
        };
        let (small, big) = (schema(r#""A""#), schema(r#""A","B""#));
        assert_eq!(holds(&small, &big), [true, false, false]);
    }

    #[test]
    fn a_record_may_be_renamed_also_where_it_holds_itself() {
        let tree = |name: &str, more: &str| SchemaInfo {
            kind: SchemaKind::Avro,
            data: Bytes::from(format!(
                r#"{{"type":"record","name":"{name}","namespace":"n","fields":[
                    {{"name":"next","type":["null","{name}"],"default":null}}{more}]}}"#
            )),
            properties: BTreeMap::new(),
        };
        assert_eq!(holds(&tree("A", ""), &tree("B", "")), [true, true, true]);
        let more = format!(",{B}");
        assert_eq!(holds(&tree("A", ""), &tree("B", &more)), [false, true, false]);
    }

    #[test]
    fn kinds_may_change_only_if_all_is_compatible() {
        let (old, mut new) = (record(A), record(A));
        new.kind = SchemaKind::Json;
        assert!(check(&[&old], &new, Strategy::Full).is_err());
        assert!(check(&[&old], &new, Strategy::AlwaysCompatible).is_ok());
        assert!(check(&[&old], &record(B), Strategy::AlwaysIncompatible).is_err());
        assert!(check(&[], &record(B), Strategy::AlwaysIncompatible).is_ok());
    }

    #[test]
    fn names_are_those_of_the_admin_api() {
        for (strategy, name) in NAMES {
            assert_eq!(strategy.name(), name);
            assert_eq!(CompatibilityStrategy::from_name(name), Some(strategy));
        }
        assert_eq!(CompatibilityStrategy::from_name("UNDEFINED"), None);
    }
}
