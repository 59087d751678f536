//! The trait that every metadata store implements, and its words.
//!
//! Invariants: M1 to M4 of the crate are promised here and proven by the conformance suite.
//! Failure: [`MetadataError`]; a dropped future leaves a write's outcome unknown.
//! Must never know: what keys mean, any concrete store.

use bytes::Bytes;
use meridian_types::{Classify, ErrorClass};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A boxed future; metadata calls are never per message.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The store as everyone holds it.
pub type SharedStore = Arc<dyn MetadataStore>;

/// The version of a key's value: grows with each change of the store, never repeats (M1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u64);

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Bytes,
    /// The value's version.
    pub version: Version,
    /// The session that the key dies with, if it is ephemeral.
    pub ephemeral: Option<SessionId>,
}

/// What must hold for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists with this version.
    Is(Version),
}

/// One step of a transaction.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Writes a value.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Bytes,
        /// What must hold.
        condition: Condition,
        /// Dies with this session if given.
        ephemeral: Option<SessionId>,
    },
    /// Deletes a key. With [`Condition::Any`] an absent key is no error.
    Delete {
        /// The key.
        key: String,
        /// What must hold.
        condition: Condition,
    },
    /// Only checks.
    Check {
        /// The key.
        key: String,
        /// What must hold.
        condition: Condition,
    },
}

/// A session: its ephemeral keys vanish when it ends or is not renewed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A session as opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Time to live in ms; renew well before.
    pub ttl_ms: u64,
}

/// A page of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Entries in key order.
    pub entries: Vec<Entry>,
    /// Give this as `after` to get the next page; `None` = the range is complete.
    pub next: Option<String>,
}

/// A change under a watched prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A key was written.
    Put(Entry),
    /// A key was deleted (or its session ended).
    Delete {
        /// The key.
        key: String,
        /// The version of the deletion.
        version: Version,
    },
    /// Changes were lost (the watcher fell behind): read the whole range again.
    Rescan,
}

/// A running watch. Dropping it ends it.
pub trait Watch: Send {
    /// The next change with the position after it, to resume from; `None` = the store is closed.
    fn next(&mut self) -> BoxFuture<'_, Option<(WatchEvent, Version)>>;
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A condition did not hold (`key` is the first one); nothing was changed.
    #[error("metadata key {key} has changed (now {current:?})")]
    Conflict {
        /// The key.
        key: String,
        /// Its version now, `None` = absent.
        current: Option<Version>,
    },
    /// The session has ended.
    #[error("metadata session {0:?} has ended")]
    SessionExpired(SessionId),
    /// The store can't be reached or is overloaded; nothing is known to have changed. Repeat.
    #[error("metadata store is not available: {0}")]
    Unavailable(String),
    /// The write may or may not have been applied: read back before repeating.
    #[error("outcome of the metadata write is unknown: {0}")]
    UnknownOutcome(String),
    /// A key or value is over the store's limit.
    #[error("metadata {what} of {bytes} bytes is over the limit of {max_bytes}")]
    TooLarge {
        /// `key`, `value` or `transaction`.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The call breaks a rule of the contract (a key twice in one transaction, a sequence that would overflow).
    #[error("metadata call is not valid: {0}")]
    Invalid(String),
    /// Stored bytes can't be read.
    #[error("metadata is damaged: {0}")]
    Corrupt(String),
}

impl Classify for MetadataError {
    fn class(&self) -> ErrorClass {
        match self {
            MetadataError::Conflict { .. } | MetadataError::Unavailable(_) | MetadataError::UnknownOutcome(_) => {
                ErrorClass::Retry
            }
            MetadataError::SessionExpired(_) => ErrorClass::Fenced,
            MetadataError::TooLarge { .. } | MetadataError::Invalid(_) => ErrorClass::Caller,
            MetadataError::Corrupt(_) => ErrorClass::Corrupt,
        }
    }
}

/// A figure of a store, for metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its name; one that only grows ends in `_total`.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// The figure.
    pub value: f64,
}

/// A metadata store.
pub trait MetadataStore: Send + Sync {
    /// The value of a key, `None` if absent.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>>;

    /// Applies all operations or none (M2); answers the version that all its writes carry (the latest version if there
    /// was nothing to write). No key may occur twice.
    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>>;

    /// Entries whose key starts with `prefix`, in byte order, after `after` (exclusive), at most `limit`. A page may be
    /// shorter than `limit` when its values are large: only `next` says whether the range is complete.
    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>>;

    /// Reserves `count` consecutive numbers of the named sequence and answers the first (M4). Sequences start at 0.
    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>>;

    /// Opens a session.
    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>>;

    /// Renews a session for its whole time to live.
    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>>;

    /// Ends a session and deletes its keys.
    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>>;

    /// Watches all keys under `prefix`: from now (`None`), or after the position of an earlier watch or read. A
    /// position that the store no longer holds gives [`WatchEvent::Rescan`] first (M3).
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>>;

    /// The store's latest version. Take it *before* reading a range, then watch from it: changes that the read has
    /// already seen come again, none is missed.
    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>>;

    /// How long ago the store last answered anything, a refusal or a conflict of others included; `None` = this kind of
    /// store does not say.
    fn silent_for(&self) -> Option<Duration> {
        None
    }

    /// What only this kind of store can say of itself.
    fn own_figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}

impl dyn MetadataStore {
    /// Writes one key.
    ///
    /// # Errors
    /// As [`MetadataStore::commit`].
    pub async fn put(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        condition: Condition,
    ) -> Result<Version, MetadataError> {
        let put = Operation::Put { key: key.to_owned(), value: value.into(), condition, ephemeral: None };
        self.commit(vec![put]).await
    }

    /// Deletes one key.
    ///
    /// # Errors
    /// As [`MetadataStore::commit`].
    pub async fn delete(&self, key: &str, condition: Condition) -> Result<Version, MetadataError> {
        self.commit(vec![Operation::Delete { key: key.to_owned(), condition }]).await
    }

    /// All entries under a prefix, page by page.
    ///
    /// # Errors
    /// As [`MetadataStore::range`].
    pub async fn scan(&self, prefix: &str) -> Result<Vec<Entry>, MetadataError> {
        let mut all = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.range(prefix, after.as_deref(), 1000).await?;
            all.extend(page.entries);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }
}
