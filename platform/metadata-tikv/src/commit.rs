//! Transactions of the trait: read, decide, write with the log of changes, settle what is not known.
//!
//! Role: calls that wait together are one transaction ([`crate::group`]), each judged by itself. It is tried again until it
//! is decided: conflicts and absences are repeated with pauses, an unknown outcome is settled by reading the lane's head,
//! which is the transaction's first key.
//! Invariants: K1 to K3; M2 the changes, their log entry and the lane's head are one transaction; keys that were only read
//! are guarded, so that the decisions still hold when they are written; a call whose conditions do not hold is answered
//! alone and holds up no other.
//! Failure: [`MetadataError::Unavailable`] when nothing was written, [`MetadataError::UnknownOutcome`] when the store
//! went away in between; the outcome is then settled in the background and published.
//! Must never know: what keys mean.

use crate::backoff::Backoff;
use crate::calls::{Shared, Step, View};
use crate::failure::{Failure, Kind};
use crate::format::{decode_data, decode_head, decode_session, encode_data, encode_head, encode_mark};
use crate::group::{Group, touched};
use crate::lanes::{LaneGuard, LaneWrite};
use crate::log::encode_entry;
use meridian_metadata::limits::check_transaction;
use meridian_metadata::plan::{Change, Held, plan};
use meridian_metadata::{Condition, MetadataError, Operation, SessionId, Version, WatchEvent};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tikv_client::{TimestampExt, Transaction};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Time to settle an outcome after the deadline of the call: longer than the locks of a commit live.
const SETTLE: Duration = Duration::from_secs(4);
/// Outcomes that may be settled in the background at once.
const MAX_DOUBTS: u64 = 64;
/// Keys of a session that one transaction deletes.
const BINDINGS_AT_ONCE: usize = 256;

/// A call that is to be written.
#[derive(Debug)]
pub(crate) struct Member {
    operations: Vec<Operation>,
    deadline: Instant,
    answer: oneshot::Sender<Result<Version, MetadataError>>,
}

impl Member {
    fn answer(self, answer: Result<Version, MetadataError>) {
        // An error means that the caller has gone.
        let _ = self.answer.send(answer);
    }
}

/// What a transaction is for.
#[derive(Debug)]
pub(crate) enum Job {
    /// The operations of callers; those that are decided are taken out.
    Group(Vec<Member>),
    /// The end of a session with its keys; only if it has not been renewed since, when that is given.
    EndSession { session: SessionId, renewals: Option<u64> },
}

impl Job {
    /// Calls that wait for it.
    fn calls(&self) -> u64 {
        match self {
            Job::Group(members) => members.len() as u64,
            Job::EndSession { .. } => 1,
        }
    }
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

/// What was found under the keys of a group.
#[derive(Debug, Default)]
struct Stored {
    held: HashMap<String, Result<Held, MetadataError>>,
    living: BTreeSet<SessionId>,
}

/// A group that is being written: its keys are free again when this is dropped.
struct Running {
    shared: Arc<Shared>,
    keys: Vec<Box<str>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.groups.lock().end(&self.keys);
    }
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
        let bytes = check_transaction(&operations)?;
        let deadline = self.deadline();
        let (answer, mut answered) = oneshot::channel();
        let touched = touched(&operations);
        let entered = self.groups.lock().enter(touched, bytes, Member { operations, deadline, answer });
        let number = entered.ok_or_else(|| self.unavailable("too many writes wait"))?;
        self.counters.waiting.add(1);
        self.start_groups();
        let closed = || MetadataError::UnknownOutcome("the store was closed".into());
        if let Ok(answer) = timeout_at(deadline, &mut answered).await {
            return answer.unwrap_or_else(|_| Err(closed()));
        }
        if self.groups.lock().withdraw(number) {
            self.counters.waiting.sub(1);
            return Err(self.unavailable("the store is away or too many writes wait"));
        }
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Begins as many groups as can be written now.
    fn start_groups(self: &Arc<Self>) {
        loop {
            let Some(Group { jobs, keys }) = self.groups.lock().take() else { return };
            self.counters.waiting.sub(jobs.len() as u64);
            self.counters.written.add(jobs.len() as u64);
            let running = Running { shared: self.clone(), keys };
            tokio::spawn(async move {
                let shared = running.shared.clone();
                shared.write_group(jobs).await;
                drop(running);
                shared.start_groups();
            });
        }
    }

    /// Writes a group and answers everyone in it.
    async fn write_group(self: &Arc<Self>, members: Vec<Member>) {
        let whole = Duration::from_millis(self.config.call_timeout_ms);
        let earliest = members.iter().map(|member| member.deadline).min();
        // Whoever waited long for others has some time nevertheless, or nobody would get anything done.
        let least = Instant::now() + whole / 2;
        let deadline = earliest.map_or(least, |earliest| earliest.max(least));
        let mut job = Job::Group(members);
        let outcome = self.write_until(&mut job, deadline).await.map(|done| done.version);
        if let Job::Group(members) = job {
            members.into_iter().for_each(|member| member.answer(outcome.clone()));
        }
    }

    /// Does one job in one transaction.
    pub(crate) async fn write(self: &Arc<Self>, job: &mut Job) -> Result<Done, MetadataError> {
        self.write_until(job, self.deadline()).await
    }

    async fn write_until(self: &Arc<Self>, job: &mut Job, deadline: Instant) -> Result<Done, MetadataError> {
        let started = Instant::now();
        if self.counters.doubts.get() >= MAX_DOUBTS {
            return Err(self.unavailable("too many earlier outcomes are not known yet"));
        }
        let calls = job.calls();
        self.counters.waiting.add(calls);
        let present = self.link.returned(deadline).await;
        let lane = if present { self.lanes.take(deadline).await } else { None };
        self.counters.waiting.sub(calls);
        let mut lane = lane.ok_or_else(|| self.unavailable("the store is away or too many writes wait"))?;
        let outcome = self.write_in(&mut lane, job, deadline).await;
        self.counters.commits.add(started.elapsed());
        outcome
    }

    async fn write_in(
        self: &Arc<Self>,
        lane: &mut LaneGuard<'_>,
        job: &mut Job,
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

    async fn try_commit(&self, lane: &mut LaneGuard<'_>, job: &mut Job, deadline: Instant) -> Tried {
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
        job: &mut Job,
        version: Version,
        deadline: Instant,
    ) -> Result<Draft, Step> {
        match job {
            Job::Group(members) => self.draft_group(transaction, members, version, deadline).await,
            Job::EndSession { session, renewals } => self.draft_end(transaction, *session, *renewals, deadline).await,
        }
    }

    /// Judges every call of a group by what is stored; those whose conditions do not hold are answered and taken out.
    async fn draft_group(
        &self,
        transaction: &mut Transaction,
        members: &mut Vec<Member>,
        version: Version,
        deadline: Instant,
    ) -> Result<Draft, Step> {
        let stored = self.stored(transaction, members, deadline).await?;
        let lookup = |key: &str| stored.held.get(key).cloned().transpose();
        let (mut changes, mut guards) = (Vec::new(), BTreeSet::new());
        for member in std::mem::take(members) {
            match plan(member.operations.clone(), lookup, |session| stored.living.contains(&session)) {
                Ok(more) => {
                    guards.extend(self.guards(&member.operations, &more));
                    changes.extend(more);
                    members.push(member);
                }
                Err(error) => member.answer(Err(error)),
            }
        }
        let mut draft = self.draft_changes(changes, version);
        draft.guards = guards.into_iter().collect();
        Ok(draft)
    }

    /// What is stored under the keys of a group, and which of its sessions live.
    async fn stored(
        &self,
        transaction: &mut Transaction,
        members: &[Member],
        deadline: Instant,
    ) -> Result<Stored, Step> {
        let operations = || members.iter().flat_map(|member| &member.operations);
        let sessions: BTreeSet<SessionId> = operations().filter_map(session_of).collect();
        let keys: BTreeSet<Vec<u8>> = operations().map(|operation| self.keys.data(key_of(operation))).collect();
        let wanted = keys.into_iter().chain(sessions.iter().map(|session| self.keys.session(*session))).collect();
        let mut stored = Stored::default();
        for (key, record) in self.batch_get(&mut View::Of(transaction), wanted, deadline).await? {
            if let Some(session) = self.keys.session_of(&key).filter(|session| sessions.contains(session)) {
                match decode_session(&key, &record) {
                    Ok(_) => {
                        stored.living.insert(session);
                    }
                    Err(error) => tracing::error!(%error, "a session can't be read and counts as ended"),
                }
            } else {
                let name = self.keys.key_of_data(&key)?.to_owned();
                stored.held.insert(name, decode_data(&key, &record).map(|(held, _)| held));
            }
        }
        Ok(stored)
    }

    /// The keys that a call was judged by and does not write.
    fn guards(&self, operations: &[Operation], changes: &[Change]) -> Vec<Vec<u8>> {
        let changed: BTreeSet<&str> = changes.iter().map(|change| change.key.as_str()).collect();
        let only_read = |operation: &&Operation| !changed.contains(key_of(operation)) && depends(operation);
        let read = operations.iter().filter(only_read).map(|operation| self.keys.data(key_of(operation)));
        read.chain(operations.iter().filter_map(session_of).map(|session| self.keys.session(session))).collect()
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
