//! What is kept of an owner's document, and who may apply the next one.
//!
//! Stored as JSON: `{"v":1,"owner":…,"revision":…,"state":"applying"|"applied"|"failed","untilMs":…,"by":…,"atMs":…,
//! "left":[[kind, name…]…],"operators":true|false|null,"document":…}`, the document as it was given but without secrets.
//!
//! Invariants: D4 every apply that may change something has a revision of its own, one more than the last; while one is
//! under way no other begins, until its time is over.
//! Failure: [`Refused`] names the revision that was found.

use crate::codec;
use crate::document::Document;
use crate::object::ObjectId;
use crate::walk::Problem;
use meridian_types::{Classify, ErrorClass};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// How long an apply may take; one that was cut off keeps others waiting no longer.
pub const LEASE_MS: u64 = 180_000;

const VERSION: u64 = 1;

/// How far an apply came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Under way, until this time at most (ms since 1970).
    Applying {
        /// When it counts as cut off.
        until_ms: u64,
    },
    /// All of it is in force.
    Applied,
    /// A step failed; applying again goes on from there.
    Failed,
}

impl State {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Applying { .. } => "applying",
            State::Applied => "applied",
            State::Failed => "failed",
        }
    }
}

/// Why nobody may apply now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Somebody else applied in between.
    #[error("revision {found} is in force, not {expected}: somebody else applied in between; read it and plan again")]
    Stale {
        /// What the caller began from.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Somebody else is applying.
    #[error("revision {revision} is being applied by {by}; it ends in {left_ms} ms at the latest")]
    UnderWay {
        /// Which.
        revision: u64,
        /// By whom.
        by: String,
        /// Until its time is over.
        left_ms: u64,
    },
}

impl Classify for Refused {
    fn class(&self) -> ErrorClass {
        ErrorClass::Retry
    }
}

/// What is kept of an owner.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The owner.
    pub owner: String,
    /// Counts applies from 1.
    pub revision: u64,
    /// How far the last one came.
    pub state: State,
    /// Who applied last.
    pub by: String,
    /// When it began, ms since 1970.
    pub at_ms: u64,
    /// Super users' (true) or a tenant's administrators' (false); `None` = not known: an earlier program kept it, or nobody
    /// was asked.
    pub operators: Option<bool>,
    /// Named before, not any more, and still there.
    pub left: BTreeSet<ObjectId>,
    /// The document, without secrets.
    pub document: Value,
}

impl Manifest {
    /// Begins the next apply. `expected` is the revision that the caller planned from, 0 = none yet.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn begin(
        before: Option<&Manifest>,
        document: &Document,
        owner: &str,
        by: &str,
        expected: Option<u64>,
        now_ms: u64,
    ) -> Result<Manifest, Refused> {
        let found = before.map_or(0, |manifest| manifest.revision);
        if let Some((manifest, until_ms)) = before.and_then(Manifest::busy_until).filter(|(_, until)| *until > now_ms) {
            let (revision, by) = (manifest.revision, manifest.by.clone());
            return Err(Refused::UnderWay { revision, by, left_ms: until_ms - now_ms });
        }
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(Refused::Stale { expected, found });
        }
        let mut left = before.map(Manifest::owned).unwrap_or_default();
        left.retain(|id| !document.objects.contains_key(id));
        Ok(Manifest {
            owner: owner.to_owned(),
            revision: found + 1,
            state: State::Applying { until_ms: now_ms + LEASE_MS },
            by: by.to_owned(),
            at_ms: now_ms,
            operators: before.and_then(|manifest| manifest.operators),
            left,
            document: document.without_secrets(),
        })
    }

    fn busy_until(&self) -> Option<(&Manifest, u64)> {
        match self.state {
            State::Applying { until_ms } => Some((self, until_ms)),
            State::Applied | State::Failed => None,
        }
    }

    /// Ends an apply; `gone` was deleted.
    #[must_use]
    pub fn end(mut self, good: bool, gone: &BTreeSet<ObjectId>) -> Manifest {
        self.state = if good { State::Applied } else { State::Failed };
        self.left.retain(|id| !gone.contains(id));
        self
    }

    /// Everything that the owner named and that may still be there.
    pub fn owned(&self) -> BTreeSet<ObjectId> {
        let mut owned = self.left.clone();
        // What was checked when it was written; a newer program may read less out of it, never more.
        if let Ok(document) = Document::check(&self.document) {
            owned.extend(document.objects.into_keys());
        }
        owned
    }

    /// The same document was applied and nothing is left to do for it.
    pub fn is_settled_for(&self, document: &Document) -> bool {
        self.state == State::Applied && self.document == document.without_secrets()
    }

    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let until = match self.state {
            State::Applying { until_ms } => json!(until_ms),
            State::Applied | State::Failed => Value::Null,
        };
        let left: Vec<_> = self.left.iter().map(codec::id).collect();
        let stored = json!({
            "v": VERSION, "owner": self.owner, "revision": self.revision, "state": self.state.as_str(),
            "untilMs": until, "by": self.by, "atMs": self.at_ms, "left": left, "operators": self.operators,
            "document": self.document,
        });
        stored.to_string().into_bytes()
    }

    /// As it was stored.
    ///
    /// # Errors
    /// It is not one, or of a version that is not known here.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, Problem> {
        let bad = |what: &str| Problem::of_document(format!("as it is kept can't be read: {what}"));
        let mut stored: Value = serde_json::from_slice(bytes).map_err(|error| bad(&error.to_string()))?;
        if stored["v"] != json!(VERSION) {
            return Err(bad(&format!("version {} is not known", stored["v"])));
        }
        let number = |name: &str| stored[name].as_u64().ok_or_else(|| bad(name));
        let text = |name: &str| stored[name].as_str().map(str::to_owned).ok_or_else(|| bad(name));
        let state = match stored["state"].as_str() {
            Some("applying") => State::Applying { until_ms: number("untilMs")? },
            Some("applied") => State::Applied,
            Some("failed") => State::Failed,
            _ => return Err(bad("state")),
        };
        let left = stored["left"].as_array().ok_or_else(|| bad("left"))?;
        let left =
            left.iter().map(|parts| codec::parse_id(parts).ok_or_else(|| bad("left"))).collect::<Result<_, _>>()?;
        let (owner, by, revision, at_ms) = (text("owner")?, text("by")?, number("revision")?, number("atMs")?);
        let operators = stored["operators"].as_bool();
        Ok(Manifest { owner, revision, state, by, at_ms, operators, left, document: stored["document"].take() })
    }
}
