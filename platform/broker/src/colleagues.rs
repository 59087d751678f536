//! What brokers of one region ask each other: what only the owner of a topic can do, or each of them has to.
//!
//! Role: another region reaches one broker of this one, whichever it dials; what it asks may concern topics that others
//! serve. Each question goes to the broker's web service, at [`WITHIN_PATH`].
//!
//! Format: a question is JSON, `{"v":1,"ask":{"positions":{"topic":"persistent://t/n/a"}}}`, one of [`Ask`] in `ask`; its answer
//! is one of [`Said`], `"done"` or `{"left":{"entries":0,"acks":0}}`. Bytes are base64 text, positions pairs of ledger and
//! entry. The header `Authorization: Meridian-Region KEY` holds the value of `broker/within-key` in metadata: 32 random
//! bytes as base64 text.
//!
//! Invariants: C1 only who knows the region's key is answered: it is made once, by chance, and stands in the metadata
//! store, which nobody else reads; C2 a question is passed on once: who is asked answers from what it serves itself; C3
//! time, and the sizes of questions and answers, are bounded.
//! Failure: a sentence. A broker without a plain web service can't be asked.
//! Must never know: topics, regions.

use crate::service::Deed;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use meridian_failover::{ActiveRecord, TopicCost};
use meridian_metadata::{Condition, MetadataError, SharedStore};
use meridian_ownership::BrokerRecord;
use meridian_types::{EntryId, LedgerId, Position};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Where brokers of a region ask each other.
pub const WITHIN_PATH: &str = "/admin/v2/meridian/within";
/// The scheme of the `Authorization` header of these questions.
pub const WITHIN_SCHEME: &str = "Meridian-Region ";
/// The region's key in metadata.
const KEY: &str = "broker/within-key";
/// How long an answer may take, where the question does not say.
pub(crate) const WITHIN_LIMIT: Duration = Duration::from_secs(10);

/// Version of questions and answers.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Question<'a> {
    v: u32,
    ask: &'a Ask,
}

#[derive(Deserialize)]
struct Questioned {
    v: u32,
    ask: serde_json::Value,
}

/// Reads a question.
///
/// # Errors
/// Its version is not known, or it is none.
pub(crate) fn read(body: &[u8]) -> Result<Ask, String> {
    let text = |error: serde_json::Error| error.to_string();
    let question: Questioned = serde_json::from_slice(body).map_err(text)?;
    match question.v {
        VERSION => serde_json::from_value(question.ask).map_err(text),
        other => Err(format!("questions of version {other} are not known here")),
    }
}

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Ask {
    /// Merge what a region knows of a subscription's acknowledgements.
    Acks { from: String, topic: String, subscription: String, full: bool, payload: String },
    /// Tell a region again what is known: of one topic, or of all.
    Resync { peer: String, topic: String, subscription: String },
    /// How far a topic is.
    Positions { topic: String },
    /// Hold publishes for a planned switch, and wait until what is in flight is stored.
    Hold(Held),
    /// The switch is given up.
    Free { namespace: String, begun_ms: u64 },
    /// What the target has not confirmed; publishes are held as for [`Ask::Hold`], also if that was not heard.
    Left(Held),
    /// Figures of all topics against a target.
    Costs { namespace: String, target: String },
    /// Set aside what the active region never got.
    Cut { topic: String, record: ActiveRecord },
    /// Publish a tail in the active region.
    Replay { tail: String },
    /// Let go of a tail.
    Release { tail: String },
    /// Which topics that keep nothing are served: nothing but their owner knows of them.
    NonPersistent { namespace: String },
    /// Do it to a subscription of each of these topics; without a name to all.
    Subscription { topics: Vec<String>, name: Option<String>, deed: Deed },
}

/// A planned switch that holds publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Held {
    pub(crate) namespace: String,
    pub(crate) target: String,
    pub(crate) begun_ms: u64,
    pub(crate) deadline_ms: u64,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Said {
    Done,
    Stored,
    Resync,
    Later(String),
    Refused(String),
    Positions {
        incarnation: u64,
        last: Option<(i64, i64)>,
        marks: Vec<(u32, u64, i64, i64)>,
    },
    Left {
        entries: u64,
        acks: u64,
    },
    Costs(Vec<TopicCost>),
    Position(i64, i64),
    Topics(Vec<String>),
    /// For each topic whether the subscription was found, and is replicated.
    Subscriptions(Vec<Option<bool>>),
}

pub(crate) fn pair(position: Position) -> (i64, i64) {
    (position.ledger_id.0, position.entry_id.0)
}

pub(crate) fn position((ledger, entry): (i64, i64)) -> Position {
    Position { ledger_id: LedgerId(ledger), entry_id: EntryId(entry) }
}

pub(crate) fn text_of(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

pub(crate) fn bytes_of(text: &str) -> Result<Bytes, String> {
    BASE64.decode(text).map(Bytes::from).map_err(|error| error.to_string())
}

/// The way to them.
pub(crate) struct Colleagues {
    store: SharedStore,
    key: OnceCell<String>,
}

impl Colleagues {
    pub(crate) fn new(store: SharedStore) -> Self {
        Self { store, key: OnceCell::new() }
    }

    /// The region's key; the first one that asks makes it (C1).
    async fn key(&self) -> Result<&str, MetadataError> {
        let made = self.key.get_or_try_init(|| async {
            loop {
                if let Some(entry) = self.store.get(KEY).await? {
                    return Ok(String::from_utf8_lossy(&entry.value).into_owned());
                }
                let fresh = BASE64.encode(rand::random::<[u8; 32]>());
                match self.store.put(KEY, fresh, Condition::Absent).await {
                    Ok(_) | Err(MetadataError::Conflict { .. } | MetadataError::UnknownOutcome(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        });
        made.await.map(String::as_str)
    }

    /// Whether a question comes from a broker of this region.
    pub(crate) async fn knows(&self, given: &str) -> Result<bool, MetadataError> {
        let (key, given) = (self.key().await?.as_bytes(), given.as_bytes());
        // All of it is compared: how long that takes tells nothing.
        let differs = key.iter().zip(given).fold(0, |sum, (one, other)| sum | (one ^ other));
        Ok(key.len() == given.len() && differs == 0)
    }

    /// Asks one of them.
    ///
    /// # Errors
    /// It can't be asked, or its answer can't be read.
    pub(crate) async fn ask(&self, broker: &BrokerRecord, ask: &Ask, limit: Duration) -> Result<Said, String> {
        let whom = |error: String| format!("broker {}: {error}", broker.id);
        let Some(url) = broker.web_url.as_deref() else {
            return Err(whom("it has no plain web service, by which brokers of a region ask each other".to_owned()));
        };
        let key = self.key().await.map_err(|error| whom(error.to_string()))?;
        let body = serde_json::to_string(&Question { v: VERSION, ask }).map_err(|error| whom(error.to_string()))?;
        let authorization = format!("{WITHIN_SCHEME}{key}");
        let answer = crate::replication::post_at(url, WITHIN_PATH, &authorization, &body, limit).await;
        match answer.map_err(whom)? {
            (200, body) => serde_json::from_slice(&body).map_err(|error| whom(error.to_string())),
            (status, body) => Err(whom(format!("answered {status} {}", String::from_utf8_lossy(&body)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_metadata::MemoryStore;
    use std::sync::Arc;

    #[tokio::test]
    async fn one_key_for_all_brokers_of_a_region_and_for_nobody_else() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (one, other) = (Colleagues::new(store.clone()), Colleagues::new(store));
        let key = one.key().await.expect("made").to_owned();
        assert!(key.len() > 40);
        assert!(other.knows(&key).await.expect("read"));
        for wrong in ["", "x", &key[1..], &format!("{key}=")] {
            assert!(!other.knows(wrong).await.expect("read"), "{wrong}");
        }
        let elsewhere = Colleagues::new(Arc::new(MemoryStore::new()));
        assert!(!elsewhere.knows(&key).await.expect("read"));
    }

    #[test]
    fn questions_read_back() {
        let held = Held { namespace: "t/n".into(), target: "east".into(), begun_ms: 1, deadline_ms: 2 };
        let golden = [
            (
                Ask::Positions { topic: "persistent://t/n/a".into() },
                r#"{"v":1,"ask":{"positions":{"topic":"persistent://t/n/a"}}}"#,
            ),
            (
                Ask::Free { namespace: "t/n".into(), begun_ms: 7 },
                r#"{"v":1,"ask":{"free":{"namespace":"t/n","begunMs":7}}}"#,
            ),
            (
                Ask::Subscription {
                    topics: vec!["persistent://t/n/a".into()],
                    name: Some("s".into()),
                    deed: Deed::Ensure { earliest: true, replicated: None },
                },
                concat!(
                    r#"{"v":1,"ask":{"subscription":{"topics":["persistent://t/n/a"],"name":"s","#,
                    r#""deed":{"ensure":{"earliest":true,"replicated":null}}}}}"#
                ),
            ),
            (Ask::NonPersistent { namespace: "t/n".into() }, r#"{"v":1,"ask":{"nonPersistent":{"namespace":"t/n"}}}"#),
            (
                Ask::Hold(held),
                r#"{"v":1,"ask":{"hold":{"namespace":"t/n","target":"east","begunMs":1,"deadlineMs":2}}}"#,
            ),
        ];
        for (ask, text) in golden {
            assert_eq!(serde_json::to_string(&Question { v: VERSION, ask: &ask }).expect("it is JSON"), text);
            assert_eq!(read(text.as_bytes()), Ok(ask));
        }
        assert_eq!(
            serde_json::to_string(&Said::Left { entries: 1, acks: 2 }).expect("JSON"),
            r#"{"left":{"entries":1,"acks":2}}"#
        );
        assert_eq!(serde_json::to_string(&Said::Done).expect("JSON"), r#""done""#);
        let topics = Said::Topics(vec!["non-persistent://t/n/a".into()]);
        assert_eq!(serde_json::to_string(&topics).expect("JSON"), r#"{"topics":["non-persistent://t/n/a"]}"#);
        for wrong in ["", "{}", r#"{"v":2,"ask":"x"}"#, r#"{"v":1,"ask":{"nothing":{}}}"#] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(bytes_of(&text_of(b"\x00\xff")).expect("base64"), Bytes::from_static(b"\x00\xff"));
        assert_eq!(position(pair(Position { ledger_id: LedgerId(3), entry_id: EntryId(-1) })).entry_id, EntryId(-1));
    }
}
