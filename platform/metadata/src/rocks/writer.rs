//! The one thread that writes: it decides, groups, syncs, publishes and answers.
//!
//! Role: takes what waits, judges each transaction against the database and what the group already holds, writes the
//! group with one sync, then publishes and answers in order. It also collects the ends of sessions.
//! Invariants: M2 a transaction's operations are in one write; M5 nothing is answered, published or given from a sequence
//! before the sync; a session's keys are deleted only after the session can no longer be renewed.
//! Failure: a failed write leaves its transactions unknown and makes every watch rescan; then the database is tried, or
//! reopened, once in [`REOPEN_INTERVAL_MS`]; requests meanwhile are refused as unavailable. A disk without room refuses
//! before anything is written: nothing is unknown then.
//! Must never know: what keys mean.

use super::Shared;
use super::database::{PATIENCE_ATTEMPTS, WriteFailure};
use super::format::{self, StoreState};
use super::queue::{Answer, Request, Work};
use crate::plan::{Change, Held, plan};
use crate::store::{MetadataError, Operation, SessionId, Version, WatchEvent};
use rocksdb::WriteBatch;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often a failed store tries whether it can write again.
const REOPEN_INTERVAL_MS: u64 = 1000;
/// Numbers of a sequence persisted ahead of those asked for.
const SEQUENCE_AHEAD: u64 = 100;
/// Keys of a dead session deleted under one version.
const SESSION_CHUNK_KEYS: usize = 1000;

/// Numbers that may be given without a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) next: u64,
    pub(super) bound: u64,
}

/// An answer that waits for the sync.
enum Outcome {
    Commit { answer: Answer<Version>, result: Result<Version, MetadataError>, wrote: bool },
    Reserve { answer: Answer<u64>, first: Result<u64, MetadataError> },
    EndSession { answer: Answer<()> },
}

/// What is written with one sync.
#[derive(Default)]
struct Group {
    batch: WriteBatch,
    held: HashMap<String, Option<Held>>,
    published: Vec<(Version, Vec<WatchEvent>)>,
    sequences: HashMap<String, Reserved>,
    outcomes: Vec<Outcome>,
    cleaned: Vec<SessionId>,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    state: StoreState,
    /// Sessions that have ended and whose keys are still there.
    ended: BTreeSet<SessionId>,
    failed: Option<Failed>,
}

/// The last write failed.
struct Failed {
    failure: WriteFailure,
    /// When to try again.
    at: Instant,
    /// Tries with room on the disk since then.
    attempts: u32,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, state: StoreState) -> Self {
        Self { shared, state, ended: BTreeSet::new(), failed: None }
    }

    pub(super) fn run(mut self) {
        loop {
            let taken = self.shared.queue.take(self.deadline());
            if self.may_write() {
                self.serve(taken.requests);
            } else {
                self.refuse(taken.requests);
            }
            if taken.finished {
                self.finish();
                return;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let session = self.shared.sessions.lock().next_deadline_ms();
        let session = session.map(|ms| self.shared.started + Duration::from_millis(ms));
        let reopen = self.failed.as_ref().map(|failed| failed.at);
        match (session, reopen) {
            (Some(_), Some(reopen)) | (None, Some(reopen)) => Some(reopen),
            (session, None) => session,
        }
    }

    /// Brings a failed database back when it is time.
    fn may_write(&mut self) -> bool {
        let Some(failed) = &mut self.failed else { return true };
        if Instant::now() < failed.at {
            return false;
        }
        match self.bring_back() {
            Ok(()) => {
                self.failed = None;
                self.shared.failed.store(false, Ordering::Relaxed);
                tracing::info!("the metadata store takes writes again");
                true
            }
            Err(why) => {
                tracing::warn!(why, "the metadata store still can't write");
                if let Some(failed) = &mut self.failed {
                    failed.at = Instant::now() + Duration::from_millis(REOPEN_INTERVAL_MS);
                }
                false
            }
        }
    }

    /// One attempt.
    fn bring_back(&mut self) -> Result<(), String> {
        let db = &self.shared.db;
        db.check_room()?;
        let Some(Failed { failure: WriteFailure::Failed { by_itself, .. }, attempts, .. }) = &mut self.failed else {
            return Ok(());
        };
        *attempts += 1;
        let outcome = if *by_itself && *attempts <= PATIENCE_ATTEMPTS { db.try_write() } else { db.reopen() };
        let stored = outcome.and_then(|()| db.state()).map_err(|error| error.to_string())?;
        // A write whose outcome was unknown may be there now.
        self.state.version = self.state.version.max(stored.version);
        self.shared.hub.lose(Version(self.state.version));
        Ok(())
    }

    fn fail(&mut self, failure: WriteFailure) {
        let why = failure.why();
        tracing::error!(why, "the metadata store can't write, it tries again every {REOPEN_INTERVAL_MS} ms");
        let at = Instant::now() + Duration::from_millis(REOPEN_INTERVAL_MS);
        self.failed = Some(Failed { failure, at, attempts: 0 });
        self.shared.failed.store(true, Ordering::Relaxed);
    }

    fn refuse(&self, requests: Vec<Request>) {
        let why = self.failed.as_ref().map_or("", |failed| failed.failure.why());
        for request in requests {
            request.refuse(MetadataError::Unavailable(format!("the last write failed: {why}")));
        }
    }

    fn serve(&mut self, requests: Vec<Request>) {
        let mut group = Group::default();
        self.collect_ended(&mut group);
        let mut rooms = Vec::with_capacity(requests.len());
        for request in requests {
            let (work, room) = request.into_parts();
            rooms.push(room);
            match work {
                Work::Commit { operations, answer } => {
                    let before = self.state.version;
                    let result = self.commit(&mut group, operations);
                    let wrote = self.state.version > before;
                    group.outcomes.push(Outcome::Commit { answer, result, wrote });
                }
                Work::Reserve { sequence, count, answer } => {
                    let first = self.reserve(&mut group, sequence, count);
                    group.outcomes.push(Outcome::Reserve { answer, first });
                }
                Work::EndSession { session, answer } => {
                    // What the group holds for the session must be written before its keys are listed.
                    self.write(std::mem::take(&mut group));
                    if self.shared.sessions.lock().end(session) {
                        self.ended.insert(session);
                        group.outcomes.push(Outcome::EndSession { answer });
                        self.collect_ended(&mut group);
                    } else {
                        drop(answer.send(Err(MetadataError::SessionExpired(session))));
                    }
                }
            }
        }
        self.write(group);
    }

    /// Deletes the keys of sessions that have ended; the group holds nothing else of them.
    fn collect_ended(&mut self, group: &mut Group) {
        let due = self.shared.sessions.lock().take_due(self.shared.now_ms());
        self.ended.extend(due);
        for session in self.ended.clone() {
            match self.shared.db.bindings(&format::bindings_prefix(session), usize::MAX) {
                Ok(bindings) => {
                    self.delete_bound(group, &bindings);
                    group.cleaned.push(session);
                    self.ended.remove(&session);
                }
                Err(error) => tracing::error!(%error, ?session, "can't list the keys of a dead session"),
            }
        }
    }

    fn delete_bound(&mut self, group: &mut Group, bindings: &[(SessionId, String)]) {
        for chunk in bindings.chunks(SESSION_CHUNK_KEYS) {
            let changes = chunk.iter().map(|(session, key)| Change {
                key: key.clone(),
                value: None,
                ephemeral: None,
                was_ephemeral: Some(*session),
            });
            self.apply(group, changes.collect());
        }
    }

    fn commit(&mut self, group: &mut Group, operations: Vec<Operation>) -> Result<Version, MetadataError> {
        let now_ms = self.shared.now_ms();
        let changes = plan(
            operations,
            |key| match group.held.get(key) {
                Some(held) => Ok(*held),
                None => self.shared.db.held(key),
            },
            |session| self.shared.sessions.lock().lives(session, now_ms),
        )?;
        Ok(self.apply(group, changes))
    }

    /// Adds planned changes to the group under the next version.
    fn apply(&mut self, group: &mut Group, changes: Vec<Change>) -> Version {
        if changes.is_empty() {
            return Version(self.state.version);
        }
        self.state.version += 1;
        let version = Version(self.state.version);
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            let data_key = format::data_key(&change.key);
            if let Some(session) = change.was_ephemeral {
                group.batch.delete(format::binding_key(session, &change.key));
            }
            let held = change.value.as_ref().map(|value| {
                let held = Held { version, ephemeral: change.ephemeral };
                group.batch.put(&data_key, format::encode_data(&data_key, held, value));
                held
            });
            if held.is_none() {
                group.batch.delete(&data_key);
            }
            if let Some(session) = change.ephemeral {
                let binding = format::binding_key(session, &change.key);
                group.batch.put(&binding, format::encode_binding(&binding));
            }
            group.held.insert(change.key.clone(), held);
            events.push(change.into_event(version));
        }
        group.published.push((version, events));
        version
    }

    fn reserve(&mut self, group: &mut Group, sequence: String, count: u64) -> Result<u64, MetadataError> {
        let Reserved { next: first, bound } = match group.sequences.get(&sequence) {
            Some(reserved) => *reserved,
            None => self.take_reserved(&sequence)?,
        };
        let end = first.checked_add(count).filter(|end| *end < u64::MAX - SEQUENCE_AHEAD);
        let Some(next) = end else {
            group.sequences.insert(sequence.clone(), Reserved { next: first, bound });
            return Err(MetadataError::Invalid(format!("{count} numbers of sequence {sequence} at {first}")));
        };
        let mut reserved = Reserved { next, bound };
        if next > bound {
            reserved.bound = next + SEQUENCE_AHEAD;
            let key = format::sequence_key(&sequence);
            group.batch.put(&key, format::encode_sequence(&key, reserved.bound));
        }
        group.sequences.insert(sequence, reserved);
        Ok(first)
    }

    /// Takes what is reserved away from the callers until the group is written.
    fn take_reserved(&self, sequence: &str) -> Result<Reserved, MetadataError> {
        if let Some(reserved) = self.shared.sequences.lock().get_mut(sequence) {
            let taken = *reserved;
            reserved.next = reserved.bound;
            return Ok(taken);
        }
        let stored = self.shared.db.sequence(sequence)?;
        Ok(Reserved { next: stored, bound: stored })
    }

    fn write(&mut self, mut group: Group) {
        if let Some(failed) = &self.failed {
            // Nothing more is tried in this turn.
            let why = failed.failure.why().to_owned();
            self.lose(group, &why, false);
            return;
        }
        if !group.batch.is_empty() {
            group.batch.put(format::STATE_KEY, format::encode_state(self.state));
            if let Err(failure) = self.shared.db.write(std::mem::take(&mut group.batch)) {
                let (why, unknown) = (failure.why().to_owned(), matches!(failure, WriteFailure::Failed { .. }));
                self.fail(failure);
                self.lose(group, &why, unknown);
                return;
            }
            self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.commits.fetch_add(group.published.len() as u64, Ordering::Relaxed);
        self.shared.sequences.lock().extend(group.sequences);
        for (version, events) in &group.published {
            self.shared.hub.publish(*version, events);
        }
        for outcome in group.outcomes {
            match outcome {
                Outcome::Commit { answer, result, .. } => drop(answer.send(result)),
                Outcome::Reserve { answer, first } => drop(answer.send(first)),
                Outcome::EndSession { answer } => drop(answer.send(Ok(()))),
            }
        }
    }

    /// A group that was not written, or may be (`unknown`): nothing that hangs on it is said to be so.
    fn lose(&mut self, group: Group, why: &str, unknown: bool) {
        self.ended.extend(group.cleaned);
        let mut sequences = self.shared.sequences.lock();
        for sequence in group.sequences.keys() {
            sequences.remove(sequence);
        }
        drop(sequences);
        for outcome in group.outcomes {
            let unavailable = MetadataError::Unavailable(format!("the write failed: {why}"));
            match outcome {
                Outcome::Commit { answer, wrote: true, .. } if unknown => {
                    drop(answer.send(Err(MetadataError::UnknownOutcome(why.to_owned()))));
                }
                Outcome::Commit { answer, .. } => drop(answer.send(Err(unavailable))),
                Outcome::Reserve { answer, .. } => drop(answer.send(Err(unavailable))),
                Outcome::EndSession { answer } if unknown => {
                    drop(answer.send(Err(MetadataError::UnknownOutcome(why.to_owned()))));
                }
                Outcome::EndSession { answer } => drop(answer.send(Err(unavailable))),
            }
        }
    }

    /// Deletes the keys of sessions of earlier processes and counts this opening; before the thread runs.
    pub(super) fn begin(&mut self) -> Result<(), MetadataError> {
        let mut group = Group::default();
        let bindings = self.shared.db.bindings(format::BINDINGS_PREFIX, usize::MAX)?;
        self.delete_bound(&mut group, &bindings);
        group.batch.put(format::STATE_KEY, format::encode_state(self.state));
        self.write(group);
        match &self.failed {
            Some(failed) => {
                let why = failed.failure.why();
                Err(MetadataError::Unavailable(format!("the first write failed: {why}")))
            }
            None => Ok(()),
        }
    }

    /// Gives back what was persisted ahead, so that a clean restart leaves no gap in a sequence.
    fn finish(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let mut group = Group::default();
        for (sequence, reserved) in self.shared.sequences.lock().drain() {
            let key = format::sequence_key(&sequence);
            group.batch.put(&key, format::encode_sequence(&key, reserved.next));
        }
        self.write(group);
    }
}
