//! A record of the audit log: one line of JSON, in the file and as a message of the topic.
//!
//! | field | what it holds |
//! |---|---|
//! | `version` | 1 |
//! | `id` | start of the process in ms since 1970, `-`, number of the record from 1 |
//! | `at_ms` | when the change began, ms since 1970 |
//! | `region`, `node` | where it was asked for |
//! | `principal` | the role that asked; absent while authentication is off |
//! | `original_principal` | the client's role, if the principal is a proxy |
//! | `method` | how it was proven: `token`, `tls`, `basic`, `none` |
//! | `source` | address and port that the request came from |
//! | `action` | method and route of the call, with the names of its parts |
//! | `path` | the path as it was called |
//! | `query` | parameters of the query; absent if there are none |
//! | `request` | body of the call; `{"omitted_bytes": n}` if it is no JSON or too large; absent if there is none |
//! | `before`, `after` | what the change concerns, as far as it differs; absent if nothing does |
//! | `status` | HTTP status of the answer, 0 if the caller went away before it |
//! | `result` | `done`, `refused` (3xx: another broker answers; 4xx), `failed` (5xx) or `unknown` (the caller went away: it may have been done) |
//! | `reason` | why it was refused or failed |
//! | `took_ms` | how long it took |
//!
//! New fields may be added under the same version; readers pass over what they do not know.
//! Invariants: U4 of the crate: values are redacted before they are put here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The version that is written.
pub const VERSION: u32 = 1;
/// Characters of a reason at most.
const MAX_REASON_CHARS: usize = 500;

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Outcome {
    Done,
    Refused,
    Failed,
    Unknown,
}

impl Outcome {
    /// By the status of the answer; 0 = there was none.
    pub fn of_status(status: u16) -> Self {
        match status {
            0 => Outcome::Unknown,
            // What is answered by another broker is recorded there.
            300..500 => Outcome::Refused,
            500.. => Outcome::Failed,
            _ => Outcome::Done,
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Record {
    pub version: u32,
    pub id: String,
    pub at_ms: u64,
    pub region: String,
    pub node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_principal: Option<String>,
    pub method: String,
    pub source: String,
    pub action: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    pub status: u16,
    pub result: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub took_ms: u64,
}

impl Record {
    /// The line, without its end.
    pub fn line(&self) -> String {
        // Maps with text keys and numbers always become JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Sets how it ended.
    pub fn ended(&mut self, status: u16, reason: Option<&str>, took_ms: u64) {
        self.status = status;
        self.result = Outcome::of_status(status);
        self.reason = reason.map(|text| text.chars().take(MAX_REASON_CHARS).collect());
        self.took_ms = took_ms;
    }
}

/// What differs between two states: of objects the fields that do, of anything else the whole.
pub fn difference(before: Value, after: Value) -> (Option<Value>, Option<Value>) {
    if before == after {
        return (None, None);
    }
    let (Value::Object(before), Value::Object(after)) = (&before, &after) else {
        let kept = |value: Value| Some(value).filter(|value| !value.is_null());
        return (kept(before), kept(after));
    };
    let pick = |from: &Map<String, Value>, other: &Map<String, Value>| -> Value {
        let differing = from.iter().filter(|(name, value)| other.get(*name) != Some(*value));
        Value::Object(differing.map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    (Some(pick(before, after)), Some(pick(after, before)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record() -> Record {
        Record {
            version: VERSION,
            id: "1700000000000-1".into(),
            at_ms: 1_700_000_000_123,
            region: "west".into(),
            node: "broker-1".into(),
            principal: Some("admin".into()),
            original_principal: None,
            method: "token".into(),
            source: "10.0.0.1:5555".into(),
            action: "POST /admin/v2/namespaces/{tenant}/{namespace}/messageTTL".into(),
            path: "/admin/v2/namespaces/t/n/messageTTL".into(),
            query: BTreeMap::new(),
            request: Some(json!(60)),
            before: Some(json!({})),
            after: Some(json!({"message_ttl_in_seconds": 60})),
            status: 204,
            result: Outcome::Done,
            reason: None,
            took_ms: 7,
        }
    }

    #[test]
    fn golden_line() {
        let line = concat!(
            r#"{"version":1,"id":"1700000000000-1","at_ms":1700000000123,"region":"west","node":"broker-1","#,
            r#""principal":"admin","method":"token","source":"10.0.0.1:5555","#,
            r#""action":"POST /admin/v2/namespaces/{tenant}/{namespace}/messageTTL","#,
            r#""path":"/admin/v2/namespaces/t/n/messageTTL","request":60,"before":{},"#,
            r#""after":{"message_ttl_in_seconds":60},"status":204,"result":"done","took_ms":7}"#
        );
        assert_eq!(record().line(), line);
        assert_eq!(serde_json::from_str::<Record>(line).unwrap(), record());
    }

    #[test]
    fn only_what_differs_is_kept() {
        let differ = |before, after| difference(before, after);
        assert_eq!(differ(json!({"a": 1}), json!({"a": 1})), (None, None));
        let (before, after) = differ(json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3, "c": 4}));
        assert_eq!((before, after), (Some(json!({"b": 2})), Some(json!({"b": 3, "c": 4}))));
        assert_eq!(differ(Value::Null, json!({"a": 1})), (None, Some(json!({"a": 1}))));
        assert_eq!(differ(json!(3), Value::Null), (Some(json!(3)), None));
    }

    #[test]
    fn endings_have_their_words() {
        let mut one = record();
        for (status, word) in [(200, "done"), (409, "refused"), (503, "failed"), (0, "unknown")] {
            one.ended(status, Some(&"x".repeat(1000)), 1);
            assert!(one.line().contains(&format!(r#""result":"{word}""#)));
            assert_eq!(one.reason.as_ref().unwrap().len(), MAX_REASON_CHARS);
        }
    }
}
