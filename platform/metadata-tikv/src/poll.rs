//! The task that looks for changes of other processes, ends dead sessions and watches over the connection.
//!
//! Role: once a second, or when asked to, one view of all heads and sessions; what moved is read in the same view and
//! given to the watchers.
//! Invariants: M3 what a look could not give is looked for again or is a rescan; a look that fails changes nothing. Each
//! read of a look has a deadline of its own: one that has much to read ends nevertheless.
//! Failure: after repeated absence the client is built anew; the look is also the probe that ends everyone's wait.
//! Must never know: what keys mean.

use crate::calls::{KEYS_AT_ONCE, Shared, Step, View, entry};
use crate::follow::{Follower, Look, Span};
use crate::format::{Head, SessionRecord, after, decode_data, decode_head, decode_session};
use crate::lanes::LANE_LIFE_MS;
use crate::log::{LogEntry, Logged, decode_entry};
use crate::reap::Reaper;
use meridian_metadata::{Entry, MetadataError, SessionId, Version, WatchEvent};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tikv_client::{Snapshot, TimestampExt};
use tokio::time::Instant;

/// Pause between probes while the store is away.
const PROBE_PAUSE: Duration = Duration::from_millis(500);
/// Pause before the look that sees what another process did about a session that has ended.
const SOON: Duration = Duration::from_millis(20);
/// No change older than this before a look can come after it.
const SETTLED_MS: u64 = 60_000;
/// Bits of a time stamp below its milliseconds.
const LOGICAL_BITS: u32 = 18;
/// Sessions ended at once.
const REAPED_AT_ONCE: usize = 16;
/// Processes that try to end the same session, on average.
const REAPERS: f64 = 6.0;
/// A session that is over for longer is ended by whoever sees it.
const REAPERS_LIMIT_MS: u64 = 1_500;
/// Large values read at once.
const VALUES_AT_ONCE: usize = 64;
/// Large values read at one look; more are a rescan.
const MAX_REFERRED_BYTES: usize = 32 << 20;
/// Lanes taken away at one look.
const LANES_TAKEN_AT_ONCE: usize = 8;

/// All heads and sessions at one time.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(crate) heads: BTreeMap<u64, Head>,
    pub(crate) sessions: Vec<(SessionId, SessionRecord)>,
    pub(crate) version: u64,
    pub(crate) now_ms: u64,
}

/// The task's state.
pub(crate) struct Poller {
    follower: Follower,
    reaper: Reaper,
    started: Instant,
    garbage: crate::garbage::Collector,
    /// The next look is of use so soon: a session ends then.
    due: Option<Duration>,
    /// The last look asked for one that comes at once.
    hurried: bool,
}

type Transactions = Vec<(Version, Vec<WatchEvent>)>;

impl Shared {
    /// Heads and sessions in one view.
    pub(crate) async fn picture(&self, deadline: Instant) -> Result<(Picture, Snapshot), Step> {
        let (mut snapshot, stamp) = self.link.snapshot(deadline).await?;
        let mut picture =
            Picture { version: stamp.version(), now_ms: stamp.physical.unsigned_abs(), ..Picture::default() };
        let (mut from, to) = self.keys.heads_and_sessions();
        loop {
            let range = (from, to.clone());
            let pairs = self.scan(&mut View::At(&mut snapshot), range, KEYS_AT_ONCE as u32, deadline).await?;
            let complete = pairs.len() < KEYS_AT_ONCE;
            let last = pairs.last().map(|(key, _)| key.clone());
            for (key, record) in pairs {
                if let Some(lane) = self.keys.lane_of_head(&key) {
                    picture.heads.insert(lane, decode_head(&key, &record)?);
                } else if let Some(session) = self.keys.session_of(&key) {
                    picture.sessions.push((session, decode_session(&key, &record)?));
                }
            }
            match last {
                Some(last) if !complete => from = after(last),
                _ => return Ok((picture, snapshot)),
            }
        }
    }

    /// The changes in spans of the log, in the order of their versions; `None` = everything must be read again.
    async fn read_spans(&self, snapshot: &mut Snapshot, spans: &[Span]) -> Result<Option<Transactions>, Step> {
        let mut entries = Vec::new();
        for span in spans {
            let (mut from, to) = (self.keys.log(span.lane, span.first), after(self.keys.log(span.lane, span.last)));
            loop {
                let range = (from, to.clone());
                let pairs =
                    self.scan(&mut View::At(&mut *snapshot), range, KEYS_AT_ONCE as u32, self.deadline()).await?;
                let next = pairs.last().filter(|_| pairs.len() == KEYS_AT_ONCE).map(|(key, _)| after(key.clone()));
                for (key, record) in &pairs {
                    entries.push(decode_entry(key, record)?);
                }
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        entries.sort_by_key(|entry| entry.version);
        let everything = |logged: &LogEntry| logged.changes.contains(&Logged::Everything);
        if entries.iter().any(everything) {
            return Ok(None);
        }
        let Some(mut referred) = self.referred(snapshot, &entries).await? else { return Ok(None) };
        let mut transactions = Vec::with_capacity(entries.len());
        for LogEntry { version, changes } in entries {
            let event = |change: Logged| match change {
                Logged::Event(event) => Some(event),
                // One that has changed since is left out: its own entry follows.
                Logged::Reference { key } if referred.get(&key).is_some_and(|entry| entry.version == version) => {
                    referred.remove(&key).map(WatchEvent::Put)
                }
                Logged::Reference { .. } | Logged::Everything => None,
            };
            transactions.push((version, changes.into_iter().filter_map(event).collect()));
        }
        Ok(Some(transactions))
    }

    /// The values that were too large for the log, by their keys, read many at once: one by one they would take longer
    /// than the next ones take to come. `None` = they are more than is worth it.
    async fn referred(
        &self,
        snapshot: &mut Snapshot,
        entries: &[LogEntry],
    ) -> Result<Option<HashMap<String, Entry>>, Step> {
        let key_of = |change: &Logged| match change {
            Logged::Reference { key } => Some(self.keys.data(key)),
            _ => None,
        };
        let keys: BTreeSet<Vec<u8>> = entries.iter().flat_map(|entry| &entry.changes).filter_map(key_of).collect();
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let (mut found, mut bytes) = (HashMap::with_capacity(keys.len()), 0);
        for chunk in keys.chunks(VALUES_AT_ONCE) {
            for (data_key, record) in
                self.batch_get(&mut View::At(&mut *snapshot), chunk.to_vec(), self.deadline()).await?
            {
                bytes += record.len();
                let key = self.keys.key_of_data(&data_key)?;
                found.insert(key.to_owned(), entry(key, decode_data(&data_key, &record)?));
            }
            if bytes > MAX_REFERRED_BYTES {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }
}

impl Poller {
    pub(crate) fn new(picture: &Picture) -> Self {
        Self {
            follower: Follower::begin(&picture.heads, picture.now_ms),
            reaper: Reaper::default(),
            started: Instant::now(),
            garbage: crate::garbage::Collector::default(),
            due: None,
            hurried: false,
        }
    }

    /// Looks once.
    async fn look(&mut self, shared: &Arc<Shared>) -> Result<(), Step> {
        let deadline = shared.deadline();
        let (picture, mut snapshot) = shared.picture(deadline).await?;
        let look = {
            let mut own = shared.own_lanes.lock();
            let recent = picture.version.saturating_sub(LANE_LIFE_MS << LOGICAL_BITS);
            own.retain(|lane| picture.heads.contains_key(lane) || *lane > recent);
            self.follower.look(&picture.heads, &own, picture.now_ms)
        };
        let transactions = match look {
            Look::Read(spans) => shared.read_spans(&mut snapshot, &spans).await?,
            Look::Rescan => None,
        };
        give(shared, &picture, transactions);
        self.follower.seen(&picture.heads, picture.now_ms);
        *shared.looked.lock() = Instant::now();
        shared.counters.polls.add(1);
        shared.counters.sessions.set(picture.sessions.len() as u64);
        self.reap(shared, &picture).await;
        take_dead_lanes(shared, &picture, deadline).await;
        self.garbage.collect(shared, picture.now_ms);
        Ok(())
    }

    /// Ends the sessions that are due. What fails is due again at the next look.
    async fn reap(&mut self, shared: &Arc<Shared>, picture: &Picture) {
        let local_ms = self.started.elapsed().as_millis() as u64;
        let due = self.reaper.look(&picture.sessions, picture.now_ms, local_ms);
        let ends_in_ms = picture.sessions.iter().filter_map(|(_, session)| {
            // One that is over is seen to at the usual looks.
            session.expires_at_ms.checked_sub(picture.now_ms).map(|left_ms| left_ms + 1)
        });
        // Once: one that can't be ended is tried again at the usual looks.
        self.hurried = !due.is_empty() && !self.hurried;
        self.due = match self.hurried {
            true => Some(SOON),
            false => ends_in_ms.min().map(|left_ms| SOON.max(Duration::from_millis(left_ms))),
        };
        let mut ending = tokio::task::JoinSet::new();
        // Many processes see the same end: a few of them, drawn by lot, try first.
        let chance = REAPERS / picture.sessions.len().max(1) as f64;
        let mine = due.into_iter().filter(|due| due.over_ms > REAPERS_LIMIT_MS || rand::random::<f64>() < chance);
        for due in mine.take(REAPED_AT_ONCE) {
            let shared = shared.clone();
            ending.spawn(async move {
                match shared.reap(due).await {
                    Ok(()) | Err(MetadataError::SessionExpired(_)) => {}
                    Err(error) => tracing::warn!(%error, session = due.session.0, "a dead session can't be ended"),
                }
            });
        }
        ending.join_all().await;
    }
}

/// Gives what a look found to the watchers.
fn give(shared: &Shared, picture: &Picture, transactions: Option<Transactions>) {
    let Some(transactions) = transactions else {
        shared.counters.rescans.add(1);
        shared.publisher.rescan(Version(picture.version));
        return;
    };
    let oldest = transactions.first().map(|(version, _)| version.0 >> LOGICAL_BITS);
    shared.counters.change_lag_ms.set(oldest.map_or(0, |oldest_ms| picture.now_ms.saturating_sub(oldest_ms)));
    for (version, events) in transactions {
        if !shared.publisher.publish(version, events) {
            shared.counters.rescans.add(1);
        }
    }
    shared.publisher.forget_below(Version(picture.version.saturating_sub(SETTLED_MS << LOGICAL_BITS)));
}

/// Deletes lanes whose process has gone: entries first, the head last.
async fn take_dead_lanes(shared: &Shared, picture: &Picture, deadline: Instant) {
    let dead = |head: &Head| (head.version >> LOGICAL_BITS) + LANE_LIFE_MS < picture.now_ms;
    let lanes = picture.heads.iter().filter(|(_, head)| dead(head)).take(LANES_TAKEN_AT_ONCE);
    for (lane, head) in lanes {
        if let Err(step) = take_lane(shared, *lane, *head, deadline).await {
            tracing::debug!(?step, lane, "a lane of a process that has gone is left for the next look");
        }
    }
}

async fn take_lane(shared: &Shared, lane: u64, head: Head, deadline: Instant) -> Result<(), Step> {
    let mut transaction = shared.link.begin(deadline).await?;
    let head_key = shared.keys.head(lane);
    let mut view = View::Of(&mut transaction);
    let now = shared.batch_get(&mut view, vec![head_key.clone()], deadline).await?;
    let Some((_, record)) = now.into_iter().next() else { return Ok(()) };
    if decode_head(&head_key, &record)? != head {
        return Ok(());
    }
    let range = (shared.keys.log(lane, 0), after(shared.keys.log(lane, u64::MAX)));
    let entries = shared.scan(&mut view, range, KEYS_AT_ONCE as u32, deadline).await?;
    let complete = entries.len() < KEYS_AT_ONCE;
    let doomed = entries.into_iter().map(|(key, _)| key).chain(complete.then_some(head_key));
    for key in doomed {
        let deleted = transaction.delete(key).await;
        deleted.map_err(|error| crate::failure::Failure::of("a write", &error))?;
    }
    // Locks of an unknown outcome are left to expire: a rollback could part keys that were committed together.
    shared.link.step("a commit", deadline, transaction.commit()).await?;
    Ok(())
}

/// Looks until the store is dropped, which ends its threads.
pub(crate) async fn run(shared: Weak<Shared>, mut poller: Poller, interval: Duration) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if let Err(step) = poller.look(&shared).await {
            tracing::debug!(?step, "a look for changes failed");
            if shared.link.is_away()
                && let Err(failure) = shared.link.rebuild().await
            {
                tracing::debug!(reason = failure.reason, "no new connection to the metadata store");
            }
        }
        let pause = if shared.link.is_away() { PROBE_PAUSE } else { interval };
        let jitter = rand::random_range(0..=pause.as_millis() as u64 / 10);
        let pause = pause - Duration::from_millis(jitter);
        let pause = poller.due.take().map_or(pause, |due| due.min(pause));
        drop(tokio::time::timeout(pause, shared.look_now.notified()).await);
    }
}
