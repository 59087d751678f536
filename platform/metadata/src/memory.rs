//! The metadata store in memory, for tests, simulations and stores that need not outlive the process.
//!
//! Role: every call is decided at once under one short lock; no thread. A session's end is collected by a task of its
//! own on the runtime that opened it, on the runtime's clock (which a simulation may hold).
//! Invariants: M1 to M4 of the crate, for the life of the value.
//! Failure: as the trait; nothing here is ever unknown or unavailable, but the table of sessions may be full.
//! Must never know: what keys mean.

use crate::changes::WatchHub;
use crate::limits::{MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, check_key, check_transaction};
use crate::plan::{Change, Held, plan};
use crate::sessions::SessionTable;
use crate::store::{
    BoxFuture, Entry, MetadataError, MetadataStore, Operation, Page, Session, SessionId, Version, Watch,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

struct Stored {
    value: Bytes,
    held: Held,
}

#[derive(Default)]
struct State {
    map: BTreeMap<String, Stored>,
    version: u64,
    sequences: HashMap<String, u64>,
    sessions: SessionTable,
    next_session: u64,
}

struct Inner {
    state: Mutex<State>,
    hub: Arc<WatchHub>,
    started: Instant,
}

/// See the module.
pub struct MemoryStore {
    inner: Arc<Inner>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        let hub = WatchHub::new(Version(0));
        Self { inner: Arc::new(Inner { state: Mutex::default(), hub, started: Instant::now() }) }
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.inner.hub.close();
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Applies planned changes and publishes them, all under the lock of `state`.
    fn apply(&self, state: &mut State, changes: Vec<Change>) -> Version {
        if changes.is_empty() {
            return Version(state.version);
        }
        state.version += 1;
        let version = Version(state.version);
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            match &change.value {
                Some(value) => {
                    let held = Held { version, ephemeral: change.ephemeral };
                    state.map.insert(change.key.clone(), Stored { value: value.clone(), held });
                }
                None => {
                    state.map.remove(&change.key);
                }
            }
            events.push(change.into_event(version));
        }
        self.hub.publish(version, &events);
        version
    }

    fn delete_keys_of(&self, state: &mut State, session: SessionId) {
        let bound = state.map.iter().filter(|(_, stored)| stored.held.ephemeral == Some(session));
        let changes = bound
            .map(|(key, _)| Change { key: key.clone(), value: None, ephemeral: None, was_ephemeral: Some(session) })
            .collect();
        self.apply(state, changes);
    }

    /// Ends the sessions that are due; every call does it first, so that none sees a dead session's keys.
    fn collect_due(&self, state: &mut State) {
        for session in state.sessions.take_due(self.now_ms()) {
            self.delete_keys_of(state, session);
        }
    }

    fn commit(&self, operations: Vec<Operation>) -> Result<Version, MetadataError> {
        check_transaction(&operations)?;
        let mut state = self.state.lock();
        self.collect_due(&mut state);
        let now_ms = self.now_ms();
        let changes = plan(
            operations,
            |key| Ok(state.map.get(key).map(|stored| stored.held)),
            |session| state.sessions.lives(session, now_ms),
        )?;
        Ok(self.apply(&mut state, changes))
    }

    fn range(&self, prefix: &str, after: Option<&str>, limit: usize) -> Page {
        let mut state = self.state.lock();
        self.collect_due(&mut state);
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut page = Page { entries: Vec::new(), next: None };
        let mut bytes = 0;
        for (key, stored) in state.map.range::<str, _>((start, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            if page.entries.len() >= limit.clamp(1, MAX_PAGE_ENTRIES) || bytes >= MAX_PAGE_BYTES {
                page.next = page.entries.last().map(|entry: &Entry| entry.key.clone());
                break;
            }
            bytes += key.len() + stored.value.len();
            page.entries.push(stored.entry(key));
        }
        page
    }

    fn allocate(&self, sequence: &str, count: u64) -> Result<u64, MetadataError> {
        check_key(sequence)?;
        let mut state = self.state.lock();
        let next = state.sequences.entry(sequence.to_owned()).or_default();
        let first = *next;
        *next = match first.checked_add(count) {
            Some(end) if count > 0 => end,
            _ if count == 0 => return Err(MetadataError::Invalid(format!("no numbers of sequence {sequence}"))),
            _ => return Err(MetadataError::Invalid(format!("{count} numbers of sequence {sequence} at {first}"))),
        };
        Ok(first)
    }
}

impl Stored {
    fn entry(&self, key: &str) -> Entry {
        Entry {
            key: key.to_owned(),
            value: self.value.clone(),
            version: self.held.version,
            ephemeral: self.held.ephemeral,
        }
    }
}

/// Collects the end of one session; ends with the session or the store.
async fn watch_session(inner: Weak<Inner>, session: Session) {
    let mut wait_ms = session.ttl_ms;
    loop {
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut state = inner.state.lock();
        inner.collect_due(&mut state);
        match state.sessions.deadline_ms(session.id) {
            Some(deadline_ms) => wait_ms = deadline_ms.saturating_sub(inner.now_ms()).max(1),
            None => return,
        }
    }
}

impl MetadataStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        Box::pin(async move {
            let mut state = self.inner.state.lock();
            self.inner.collect_due(&mut state);
            Ok(state.map.get(key).map(|stored| stored.entry(key)))
        })
    }

    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move { self.inner.commit(operations) })
    }

    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        Box::pin(async move { Ok(self.inner.range(prefix, after, limit)) })
    }

    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        Box::pin(async move { self.inner.allocate(sequence, count) })
    }

    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        Box::pin(async move {
            let session = {
                let mut state = self.inner.state.lock();
                self.inner.collect_due(&mut state);
                state.next_session += 1;
                let id = SessionId(state.next_session);
                let full = || MetadataError::Unavailable("too many sessions are open".into());
                state.sessions.open(id, ttl_ms, self.inner.now_ms()).ok_or_else(full)?
            };
            tokio::spawn(watch_session(Arc::downgrade(&self.inner), session));
            Ok(session)
        })
    }

    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(async move {
            let renewed = self.inner.state.lock().sessions.renew(session, self.inner.now_ms());
            if renewed { Ok(()) } else { Err(MetadataError::SessionExpired(session)) }
        })
    }

    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(async move {
            let mut state = self.inner.state.lock();
            self.inner.collect_due(&mut state);
            if !state.sessions.end(session) {
                return Err(MetadataError::SessionExpired(session));
            }
            self.inner.delete_keys_of(&mut state, session);
            Ok(())
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        Box::pin(async move { Ok(self.inner.hub.watch(prefix, from)) })
    }

    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move { Ok(self.inner.hub.latest()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::conformance_tests!(|| (Arc::new(MemoryStore::new()) as crate::SharedStore, ()));

    #[tokio::test]
    async fn dropping_the_store_ends_its_watches() {
        let store = MemoryStore::new();
        let mut watch = store.watch("", None).await.unwrap();
        drop(store);
        assert_eq!(watch.next().await, None);
    }
}
