//! Transactions of the trait: read, decide, write with the log of changes, settle what is not known.
//!
//! Role: one call is tried again until it is decided: conflicts and absences are repeated with pauses, an unknown
//! outcome is settled by reading the lane's head, which is the transaction's first key.
//! Invariants: K1 to K3; M2 the change, its log entry and the lane's head are one transaction; keys that were only read
//! are guarded, so that the decision still holds when it is written.
//! Failure: [`MetadataError::Unavailable`] when nothing was written, [`MetadataError::UnknownOutcome`] when the store
//! went away in between; the outcome is then settled in the background and published.
//! Must never know: what keys mean.

use crate::backoff::Backoff;
use crate::calls::{Shared, Step, View};
use crate::failure::{Failure, Kind};
use crate::format::{decode_data, decode_head, decode_session, encode_data, encode_head, encode_mark};
use crate::lanes::{LaneGuard, LaneWrite};
use crate::log::encode_entry;
use meridian_metadata::limits::check_transaction;
use meridian_metadata::plan::{Change, Held, plan};
use meridian_metadata::{Condition, MetadataError, Operation, SessionId, Version, WatchEvent};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tikv_client::{TimestampExt, Transaction};
use tokio::time::Instant;

/// Time to settle an outcome after the deadline of the call: longer than the locks of a commit live.
const SETTLE: Duration = Duration::from_secs(4);
/// Outcomes that may be settled in the background at once.
const MAX_DOUBTS: u64 = 64;
/// Keys of a session that one transaction deletes.
const BINDINGS_AT_ONCE: usize = 256;

/// What a transaction is for.
#[derive(Debug)]
pub(crate) enum Job {
    /// The caller's operations.
    Operations(Vec<Operation>),
    /// The end of a session with its keys; only if it has not been renewed since, when that is given.
    EndSession { session: SessionId, renewals: Option<u64> },
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) version: Version,
    /// There is more of the same job to do.
    pub(crate) more: bool,
}

/// What a transaction will write besides its lane.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    changes: Vec<Change>,
    puts: Vec<(Vec<u8>, Vec<u8>)>,
    deletes: Vec<Vec<u8>>,
    guards: Vec<Vec<u8>>,
    more: bool,
}

/// A commit whose outcome may not be known.
struct Committing {
    write: LaneWrite,
    version: Version,
    now_ms: u64,
    changes: Vec<Change>,
    more: bool,
}

/// How a try to commit ended.
enum Tried {
    Done(Done),
    Again(Failure),
    Final(MetadataError),
    Unknown(Box<Committing>, Box<Transaction>, Failure),
}

impl Shared {
    /// [`meridian_metadata::MetadataStore::commit`].
    pub(crate) async fn commit(self: &Arc<Self>, operations: Vec<Operation>) -> Result<Version, MetadataError> {
        check_transaction(&operations)?;
        self.write(&Job::Operations(operations)).await.map(|done| done.version)
    }

    /// Does one job in one transaction.
    pub(crate) async fn write(self: &Arc<Self>, job: &Job) -> Result<Done, MetadataError> {
        let deadline = self.deadline();
        let started = Instant::now();
        if self.counters.doubts.get() >= MAX_DOUBTS {
            return Err(self.unavailable("too many earlier outcomes are not known yet"));
        }
        self.counters.waiting.add(1);
        let present = self.link.returned(deadline).await;
        let lane = if present { self.lanes.take(deadline).await } else { None };
        self.counters.waiting.sub(1);
        let mut lane = lane.ok_or_else(|| self.unavailable("the store is away or too many writes wait"))?;
        let outcome = self.write_in(&mut lane, job, deadline).await;
        self.counters.commits.add(started.elapsed());
        outcome
    }

    async fn write_in(
        self: &Arc<Self>,
        lane: &mut LaneGuard<'_>,
        job: &Job,
        deadline: Instant,
    ) -> Result<Done, MetadataError> {
        let mut backoff = Backoff::new();
        loop {
            let failure = match self.try_commit(lane, job, deadline).await {
                Tried::Done(done) => return Ok(done),
                Tried::Final(error) => return Err(error),
                Tried::Again(failure) => failure,
                Tried::Unknown(committing, mut transaction, failure) => {
                    self.counters.unknown_outcomes.add(1);
                    match self.settle(&committing, deadline + SETTLE).await {
                        Some(true) => return Ok(self.committed(lane, *committing)),
                        Some(false) => self.roll_back(&mut transaction, deadline + SETTLE).await,
                        None => return Err(self.leave_in_doubt(lane, *committing, failure)),
                    }
                    failure
                }
            };
            self.count(&failure);
            if !backoff.wait(deadline).await || !self.link.returned(deadline).await {
                return Err(self.unavailable(failure.reason));
            }
        }
    }

    async fn try_commit(&self, lane: &mut LaneGuard<'_>, job: &Job, deadline: Instant) -> Tried {
        let mut transaction = match self.link.begin(deadline).await {
            Ok(transaction) => transaction,
            Err(failure) => return Tried::Again(failure),
        };
        let start = transaction.start_timestamp();
        let (version, now_ms) = (Version(start.version()), start.physical.unsigned_abs());
        let draft = match self.draft(&mut transaction, job, version, deadline).await {
            Ok(draft) => draft,
            Err(Step::Final(error)) => return Tried::Final(error),
            Err(Step::Again(failure)) => return Tried::Again(failure),
        };
        if draft.puts.is_empty() && draft.deletes.is_empty() {
            return Tried::Done(Done { version: self.publisher.hub().latest(), more: false });
        }
        let write = lane.lane().next(version.0, now_ms);
        self.own_lanes.lock().insert(write.lane);
        if let Err(failure) = self.fill(&mut transaction, &draft, &write, version).await {
            return Tried::Again(failure);
        }
        let committing = Committing { write, version, now_ms, changes: draft.changes, more: draft.more };
        match self.link.step("a commit", deadline, transaction.commit()).await {
            Ok(_) => Tried::Done(self.committed(lane, committing)),
            Err(failure) if failure.kind == Kind::Conflict => {
                self.roll_back(&mut transaction, deadline).await;
                Tried::Again(failure)
            }
            Err(failure) => Tried::Unknown(Box::new(committing), Box::new(transaction), failure),
        }
    }

    /// Removes the locks of a transaction that is certain not to be committed; what is left expires by itself.
    async fn roll_back(&self, transaction: &mut Transaction, deadline: Instant) {
        if let Err(failure) = self.link.step("a rollback", deadline, transaction.rollback()).await {
            tracing::debug!(reason = failure.reason, "locks are left to expire");
        }
    }

    /// Puts everything into the transaction, the lane's head first: it is the key that decides the outcome.
    async fn fill(
        &self,
        transaction: &mut Transaction,
        draft: &Draft,
        write: &LaneWrite,
        version: Version,
    ) -> Result<(), Failure> {
        let head_key = self.keys.head(write.lane);
        buffered(transaction.put(head_key.clone(), encode_head(&head_key, write.head)).await)?;
        let log_key = self.keys.log(write.lane, write.head.last);
        buffered(transaction.put(log_key.clone(), encode_entry(&log_key, version, &draft.changes)).await)?;
        for number in &write.trimmed {
            buffered(transaction.delete(self.keys.log(write.lane, *number)).await)?;
        }
        for (key, record) in &draft.puts {
            buffered(transaction.put(key.clone(), record.clone()).await)?;
        }
        for key in &draft.deletes {
            buffered(transaction.delete(key.clone()).await)?;
        }
        buffered(transaction.lock_keys(draft.guards.iter().cloned()).await)
    }

    fn committed(&self, lane: &mut LaneGuard<'_>, committing: Committing) -> Done {
        lane.lane().committed(&committing.write, committing.now_ms);
        let done = Done { version: committing.version, more: committing.more };
        self.give(committing);
        done
    }

    /// Gives a committed transaction's changes to the watchers.
    fn give(&self, committing: Committing) {
        let version = committing.version;
        let events: Vec<WatchEvent> = committing.changes.into_iter().map(|change| change.into_event(version)).collect();
        if !self.publisher.publish(version, events) {
            self.counters.rescans.add(1);
        }
    }

    /// Whether the transaction was committed, `None` if the store can't say until the deadline.
    async fn settle(&self, committing: &Committing, deadline: Instant) -> Option<bool> {
        let mut backoff = Backoff::new();
        loop {
            match self.head_version(committing.write.lane, deadline).await {
                Ok(version) => return Some(version == Some(committing.version.0)),
                Err(Step::Final(error)) => tracing::error!(%error, "the head of a lane can't be read"),
                Err(Step::Again(failure)) => self.count(&failure),
            }
            if !backoff.wait(deadline).await {
                return None;
            }
        }
    }

    async fn head_version(&self, lane: u64, deadline: Instant) -> Result<Option<u64>, Step> {
        let key = self.keys.head(lane);
        let (mut snapshot, _) = self.link.snapshot(deadline).await?;
        let pairs = self.batch_get(&mut View::At(&mut snapshot), vec![key.clone()], deadline).await?;
        let Some((_, record)) = pairs.into_iter().next() else { return Ok(None) };
        Ok(Some(decode_head(&key, &record)?.version))
    }

    /// The lane is not used again; its last transaction is settled in the background.
    fn leave_in_doubt(
        self: &Arc<Self>,
        lane: &mut LaneGuard<'_>,
        committing: Committing,
        failure: Failure,
    ) -> MetadataError {
        lane.abandon();
        self.counters.unsettled_outcomes.add(1);
        self.counters.doubts.add(1);
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(shared) = shared.upgrade() else { return };
                let deadline = shared.deadline();
                shared.link.returned(deadline).await;
                match shared.settle(&committing, deadline).await {
                    Some(true) => shared.give(committing),
                    Some(false) => {}
                    None => continue,
                }
                shared.counters.doubts.sub(1);
                return;
            }
        });
        MetadataError::UnknownOutcome(failure.reason)
    }
}

impl Shared {
    async fn draft(
        &self,
        transaction: &mut Transaction,
        job: &Job,
        version: Version,
        deadline: Instant,
    ) -> Result<Draft, Step> {
        match job {
            Job::Operations(operations) => self.draft_operations(transaction, operations, version, deadline).await,
            Job::EndSession { session, renewals } => self.draft_end(transaction, *session, *renewals, deadline).await,
        }
    }

    async fn draft_operations(
        &self,
        transaction: &mut Transaction,
        operations: &[Operation],
        version: Version,
        deadline: Instant,
    ) -> Result<Draft, Step> {
        let sessions: BTreeSet<SessionId> = operations.iter().filter_map(session_of).collect();
        let session_keys: Vec<_> = sessions.iter().map(|session| self.keys.session(*session)).collect();
        let keys = operations.iter().map(|operation| self.keys.data(key_of(operation)));
        let wanted: Vec<_> = keys.chain(session_keys.iter().cloned()).collect();
        let mut held: HashMap<String, Held> = HashMap::new();
        let mut living: BTreeSet<SessionId> = BTreeSet::new();
        for (key, record) in self.batch_get(&mut View::Of(transaction), wanted, deadline).await? {
            if let Some(session) = self.keys.session_of(&key).filter(|session| sessions.contains(session)) {
                decode_session(&key, &record)?;
                living.insert(session);
            } else {
                let name = self.keys.key_of_data(&key)?.to_owned();
                held.insert(name, decode_data(&key, &record)?.0);
            }
        }
        let lookup = |key: &str| Ok(held.get(key).copied());
        let changes = plan(operations.to_vec(), lookup, |session| living.contains(&session))?;
        let mut draft = self.draft_changes(changes, version);
        draft.guards = session_keys;
        let changed: BTreeSet<&str> = draft.changes.iter().map(|change| change.key.as_str()).collect();
        let only_read = |operation: &&Operation| !changed.contains(key_of(operation)) && depends(operation);
        draft.guards.extend(operations.iter().filter(only_read).map(|operation| self.keys.data(key_of(operation))));
        Ok(draft)
    }

    /// The keys and bindings that changes write.
    fn draft_changes(&self, changes: Vec<Change>, version: Version) -> Draft {
        let mut draft = Draft::default();
        for change in &changes {
            let key = self.keys.data(&change.key);
            match &change.value {
                Some(value) => {
                    let record = encode_data(&key, Held { version, ephemeral: change.ephemeral }, value);
                    draft.puts.push((key, record));
                }
                None => draft.deletes.push(key),
            }
            if change.ephemeral == change.was_ephemeral {
                continue;
            }
            if let Some(session) = change.ephemeral {
                let binding = self.keys.binding(session, &change.key);
                let mark = encode_mark(&binding);
                draft.puts.push((binding, mark));
            }
            if let Some(session) = change.was_ephemeral {
                draft.deletes.push(self.keys.binding(session, &change.key));
            }
        }
        draft.changes = changes;
        draft
    }

    async fn draft_end(
        &self,
        transaction: &mut Transaction,
        session: SessionId,
        renewals: Option<u64>,
        deadline: Instant,
    ) -> Result<Draft, Step> {
        let session_key = self.keys.session(session);
        let mut view = View::Of(transaction);
        let found = self.batch_get(&mut view, vec![session_key.clone()], deadline).await?;
        let Some((_, record)) = found.into_iter().next() else {
            return Err(MetadataError::SessionExpired(session).into());
        };
        if renewals
            .is_some_and(|renewals| decode_session(&session_key, &record).is_ok_and(|it| it.renewals != renewals))
        {
            return Ok(Draft::default());
        }
        let prefix = self.keys.bindings(session);
        let range = (prefix.clone(), crate::format::end_of(&prefix));
        let mut bindings = self.scan(&mut view, range, BINDINGS_AT_ONCE as u32 + 1, deadline).await?;
        let more = bindings.len() > BINDINGS_AT_ONCE;
        bindings.truncate(BINDINGS_AT_ONCE);
        let names: Result<Vec<_>, _> =
            bindings.iter().map(|(key, _)| self.keys.key_of_binding(key).map(str::to_owned)).collect();
        let data_keys = names?.iter().map(|name| self.keys.data(name)).collect();
        let mut draft = Draft { more, ..Draft::default() };
        for (key, record) in self.batch_get(&mut view, data_keys, deadline).await? {
            let (held, _) = decode_data(&key, &record)?;
            if held.ephemeral != Some(session) {
                continue;
            }
            let name = self.keys.key_of_data(&key)?.to_owned();
            draft.changes.push(Change { key: name, value: None, ephemeral: None, was_ephemeral: Some(session) });
            draft.deletes.push(key);
        }
        draft.changes.sort_by(|a, b| a.key.cmp(&b.key));
        draft.deletes.extend(bindings.into_iter().map(|(key, _)| key));
        if more {
            draft.guards.push(session_key);
        } else {
            draft.deletes.push(session_key);
        }
        Ok(draft)
    }
}

/// What the client answers to a write that it only remembers.
fn buffered(outcome: Result<(), tikv_client::Error>) -> Result<(), Failure> {
    outcome.map_err(|error| Failure::of("a write", &error))
}

fn key_of(operation: &Operation) -> &str {
    match operation {
        Operation::Put { key, .. } | Operation::Delete { key, .. } | Operation::Check { key, .. } => key,
    }
}

fn session_of(operation: &Operation) -> Option<SessionId> {
    match operation {
        Operation::Put { ephemeral, .. } => *ephemeral,
        Operation::Delete { .. } | Operation::Check { .. } => None,
    }
}

/// Whether the outcome depends on the key although the key is not written.
fn depends(operation: &Operation) -> bool {
    match operation {
        Operation::Put { condition, .. } | Operation::Delete { condition, .. } | Operation::Check { condition, .. } => {
            *condition != Condition::Any
        }
    }
}
