//! One subscription of a persistent topic: the shell around its dispatcher and cursor.
//!
//! Role: executes the dispatcher's effects under the subscription's lock, so that a client sees them in order; reads that
//! the tail cache can't answer run as tasks that come back with what they found.
//! Invariants: B1 effects are executed in the order in which they were decided; B2 a subscription that is fenced (seek,
//! delete) takes no consumer; B3 nothing waits while the lock is held.
//! Failure: reads are repeated with growing pauses until the subscription is closed; data that every replica lost is
//! read a few times, then the subscription is shown as unreadable and asks rarely, until the data is back, a seek leads
//! past it or the operator allows to skip it.
//! Must never know: other subscriptions, producers.

use super::PersistentTopic;
use super::entries::{Sorted, View, sort_out};
use super::replicated::Share;
use crate::api::{ClientSink, ConsumerKey, SubscribeRequest, SubscriptionType};
use crate::dispatch::{Dispatcher, Effect};
use crate::rates::Rate;
use meridian_managed_ledger::{AckPosition, Cursor, LogEntry, LogError};
use meridian_types::{Classify, ErrorClass, Position};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// First pause after a failed read; doubled up to [`READ_RETRY_MAX`].
const READ_RETRY_FIRST: Duration = Duration::from_millis(50);
const READ_RETRY_MAX: Duration = Duration::from_secs(5);
/// Reads of lost or damaged data before the subscription is shown as unreadable.
const UNREADABLE_AFTER: u32 = 5;
/// Pause to which later ones slow down: a replica may come back, or the operator may allow to skip.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(15);

/// A consumer as the shell knows it.
pub(super) struct Peer {
    pub(super) key: ConsumerKey,
    pub(super) consumer_id: u64,
    pub(super) sink: Arc<dyn ClientSink>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) connected_ms: u64,
    pub(super) told_end: bool,
    pub(super) rates: super::stats::ConsumerRates,
}

impl Peer {
    pub(super) fn new(key: ConsumerKey, request: &SubscribeRequest, now_ms: u64) -> Self {
        Self {
            key,
            consumer_id: request.consumer_id,
            sink: request.sink.clone(),
            metadata: request.metadata.clone(),
            connected_ms: now_ms,
            told_end: false,
            rates: super::stats::ConsumerRates::default(),
        }
    }
}

/// The part that exists while there are consumers, or were.
pub(super) struct Active {
    pub(super) core: Dispatcher,
    pub(super) peers: Vec<Peer>,
    /// Counters of consumers that left.
    pub(super) past_messages_out: u64,
    pub(super) past_bytes_out: u64,
    pub(super) past_redelivered: u64,
    /// Latest of consumers that left: flow, delivery, ack.
    pub(super) past_flow_ms: u64,
    pub(super) past_consumed_ms: u64,
    pub(super) past_acked_ms: u64,
}

impl Active {
    pub(super) fn new(core: Dispatcher) -> Self {
        Self {
            core,
            peers: Vec::new(),
            past_messages_out: 0,
            past_bytes_out: 0,
            past_redelivered: 0,
            past_flow_ms: 0,
            past_consumed_ms: 0,
            past_acked_ms: 0,
        }
    }

    /// A consumer leaves; its counters stay in the sums.
    pub(super) fn remove(&mut self, key: ConsumerKey, now_ms: u64, first_unacked: Position) {
        if let Some(consumer) = self.core.consumers().iter().find(|consumer| consumer.key == key) {
            self.past_messages_out += consumer.counters.messages_out;
            self.past_bytes_out += consumer.counters.bytes_out;
            self.past_redelivered += consumer.counters.redelivered;
            self.past_flow_ms = self.past_flow_ms.max(consumer.counters.last_flow_ms);
            self.past_consumed_ms = self.past_consumed_ms.max(consumer.counters.last_consumed_ms);
            self.past_acked_ms = self.past_acked_ms.max(consumer.counters.last_acked_ms);
        }
        self.core.leave(key, now_ms, first_unacked);
        self.peers.retain(|peer| peer.key != key);
    }

    pub(super) fn peer(&self, key: ConsumerKey) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.key == key)
    }
}

/// What the lock guards.
pub(super) struct State {
    pub(super) active: Option<Box<Active>>,
    /// A seek, reset or delete is under way, or the subscription is gone.
    pub(super) fenced: bool,
    pub(super) gone: bool,
    /// What the read under way can't get: lost or damaged on every replica.
    pub(super) unreadable: Option<Box<str>>,
    /// Nothing above it was ever acked.
    pub(super) highest_acked: Position,
    pub(super) last_expire_ms: u64,
    pub(super) expired_total: u64,
    pub(super) expired_rate: Rate,
    /// When a consumer last came or went.
    pub(super) last_client_ms: u64,
}

/// One subscription.
pub(super) struct Subscription {
    pub(super) name: Arc<str>,
    pub(super) cursor: Arc<Cursor>,
    pub(super) durable: bool,
    /// Its consumers read the compacted view.
    pub(super) compacted: AtomicBool,
    /// Where they start in it, and the mark-delete for which that holds.
    pub(super) view_start: Mutex<Option<Box<(Position, Position)>>>,
    /// In the topic's list of those to call when something is confirmed.
    pub(super) listed: AtomicBool,
    /// If its acknowledgements are shared with other regions.
    share: RwLock<Option<Arc<Share>>>,
    pub(super) state: Mutex<State>,
    /// Serialises the properties that acks bring.
    pub(super) ack_properties: tokio::sync::Mutex<()>,
}

impl Subscription {
    /// `last_confirmed` of the log at this moment: what may be acked from an earlier life is not above it.
    pub(super) fn new(name: Arc<str>, cursor: Arc<Cursor>, durable: bool, last_confirmed: Position) -> Arc<Self> {
        Arc::new(Self {
            name,
            cursor,
            durable,
            compacted: AtomicBool::new(false),
            view_start: Mutex::new(None),
            listed: AtomicBool::new(false),
            share: RwLock::new(None),
            state: Mutex::new(State {
                active: None,
                fenced: false,
                gone: false,
                unreadable: None,
                highest_acked: last_confirmed,
                last_expire_ms: 0,
                expired_total: 0,
                expired_rate: Rate::default(),
                last_client_ms: 0,
            }),
            ack_properties: tokio::sync::Mutex::new(()),
        })
    }

    pub(super) fn share(&self) -> Option<Arc<Share>> {
        self.share.read().clone()
    }

    pub(super) fn set_share(&self, share: Option<Arc<Share>>) {
        *self.share.write() = share;
    }

    /// Runs `event` on the dispatcher, if there is one, and then everything that follows from it.
    pub(super) fn with_core<R>(
        self: &Arc<Self>,
        topic: &PersistentTopic,
        event: impl FnOnce(&mut Active, u64) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        let active = state.active.as_mut()?;
        let result = event(active, topic.now_ms());
        self.run(topic, &mut state);
        Some(result)
    }

    /// Executes effects until everything waits (B1).
    pub(super) fn run(self: &Arc<Self>, topic: &PersistentTopic, state: &mut MutexGuard<'_, State>) {
        let now_ms = topic.now_ms();
        loop {
            if state.fenced {
                return;
            }
            let Some(active) = state.active.as_mut() else { return };
            let Some(effect) = active.core.next_effect(now_ms) else { return };
            match effect {
                Effect::Deliver { consumer, deliveries } => {
                    let Some(peer) = active.peers.iter().find(|peer| peer.key == consumer) else { continue };
                    peer.sink.deliver(peer.consumer_id, deliveries);
                    topic.touch(now_ms);
                    let writable = peer.sink.is_writable();
                    active.core.set_writable(consumer, writable);
                }
                Effect::ActiveChanged { consumer, is_active } => {
                    if let Some(peer) = active.peer(consumer) {
                        peer.sink.active_consumer_changed(peer.consumer_id, is_active);
                    }
                }
                Effect::Read { ticket, from, max_entries, max_bytes } => {
                    let compacted = self.compacted.load(Ordering::Relaxed) && topic.is_compacted(from);
                    // A read never comes back empty while there is an entry behind `from`.
                    let or_next = from.max(active.core.last_confirmed().next_in_ledger());
                    let cached = || topic.log.try_read_cached(from, max_entries, max_bytes);
                    match (!compacted).then(cached).flatten() {
                        Some(entries) => self.read_done(topic, state, ticket, or_next, entries, now_ms),
                        None => self.read_later(
                            topic,
                            ticket,
                            Wanted::From { from, max_entries, max_bytes, compacted, or_next },
                        ),
                    }
                }
                Effect::ReadAt { ticket, positions } => match cached_at(topic, &positions) {
                    Some(entries) => self.replay_read_done(topic, state, ticket, &positions, entries, now_ms),
                    None => self.read_later(topic, ticket, Wanted::These(positions)),
                },
                Effect::WaitForData { from } => {
                    topic.list_for_data(self);
                    let last = topic.log.last_confirmed();
                    if last >= from && last > active.core.last_confirmed() {
                        active.core.data_available(last);
                    }
                }
                Effect::WakeAt { at_ms } => self.wake_later(topic, at_ms, now_ms),
            }
        }
    }

    fn sort_out(
        &self,
        topic: &PersistentTopic,
        state: &mut MutexGuard<'_, State>,
        entries: Vec<LogEntry>,
    ) -> Option<Sorted> {
        let sub_type = state.active.as_ref()?.core.sub_type();
        let view = View { sub_type, highest_acked: state.highest_acked, first_kept: self.first_kept(topic) };
        let sorted = match self.share() {
            None => sort_out(entries, view, &self.cursor, None),
            Some(share) => share.with_elsewhere(|elsewhere| sort_out(entries, view, &self.cursor, Some(elsewhere))),
        };
        if !sorted.elsewhere.is_empty() {
            self.cursor.ack(&sorted.elsewhere);
            state.highest_acked = topic.log.last_confirmed();
        }
        if let Some(last) = sorted.markers.last() {
            let whole =
                |position: &Position| AckPosition { position: *position, unacked_batch_indexes: None, messages: 0 };
            self.cursor.ack(&sorted.markers.iter().map(whole).collect::<Vec<_>>());
            state.highest_acked = state.highest_acked.max(*last);
        }
        Some(sorted)
    }

    /// `or_next`: where to go on if nothing was found.
    fn read_done(
        &self,
        topic: &PersistentTopic,
        state: &mut MutexGuard<'_, State>,
        ticket: u64,
        or_next: Position,
        entries: Vec<LogEntry>,
        now_ms: u64,
    ) {
        let next = entries.last().map_or(or_next, |entry| entry.position.next_in_ledger());
        let Some(sorted) = self.sort_out(topic, state, entries) else { return };
        if let Some(active) = state.active.as_mut() {
            active.core.read_done(ticket, sorted.candidates, next, now_ms);
        }
    }

    fn replay_read_done(
        &self,
        topic: &PersistentTopic,
        state: &mut MutexGuard<'_, State>,
        ticket: u64,
        asked: &[Position],
        entries: Vec<LogEntry>,
        now_ms: u64,
    ) {
        let Some(sorted) = self.sort_out(topic, state, entries) else { return };
        let found: Vec<Position> = sorted.candidates.iter().map(|candidate| candidate.entry.position).collect();
        let gone: Vec<Position> =
            asked.iter().copied().filter(|position| found.binary_search(position).is_err()).collect();
        if let Some(active) = state.active.as_mut() {
            active.core.replay_read_done(ticket, sorted.candidates, &gone, now_ms);
        }
    }

    /// Reads as a task that comes back with what it found.
    fn read_later(self: &Arc<Self>, topic: &PersistentTopic, ticket: u64, wanted: Wanted) {
        let (subscription, Some(topic)) = (self.clone(), topic.me.upgrade()) else { return };
        let runtime = topic.deps.runtime.clone();
        runtime.spawn(async move {
            let Some(entries) = subscription.until_read(&topic, ticket, &wanted).await else { return };
            let mut state = subscription.state.lock();
            let now_ms = topic.now_ms();
            match &wanted {
                Wanted::From { or_next, .. } => {
                    subscription.read_done(&topic, &mut state, ticket, *or_next, entries, now_ms);
                }
                Wanted::These(positions) => {
                    subscription.replay_read_done(&topic, &mut state, ticket, positions, entries, now_ms);
                }
            }
            subscription.run(&topic, &mut state);
        });
    }

    /// Repeats a read until it succeeds; `None` once nobody waits for it any more.
    async fn until_read(&self, topic: &PersistentTopic, ticket: u64, wanted: &Wanted) -> Option<Vec<LogEntry>> {
        let (mut pause, mut lost) = (READ_RETRY_FIRST, 0);
        loop {
            match wanted.read(topic).await {
                Ok(entries) => {
                    if lost > 0 {
                        self.state.lock().unreadable = None;
                    }
                    return Some(entries);
                }
                Err(LogError::Closed(_) | LogError::NoSuchLog(_)) => return None,
                Err(error) => {
                    tracing::warn!(topic = %topic.name, subscription = %self.name, %error, "a read failed, trying again");
                    lost += u32::from(error.class() == ErrorClass::Corrupt);
                    if lost == UNREADABLE_AFTER {
                        self.state.lock().unreadable = Some(error.to_string().into());
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(if lost < UNREADABLE_AFTER { READ_RETRY_MAX } else { UNREADABLE_PAUSE });
            let mut state = self.state.lock();
            let waits = |active: &Active| !active.peers.is_empty() && active.core.awaits(ticket);
            if state.gone || !state.active.as_deref().is_some_and(waits) {
                // The ticket is cancelled: whoever comes next starts a read of its own.
                state.unreadable = None;
                return None;
            }
        }
    }

    fn wake_later(self: &Arc<Self>, topic: &PersistentTopic, at_ms: u64, now_ms: u64) {
        let (subscription, topic) = (self.clone(), topic.me.clone());
        let Some(runtime) = topic.upgrade().map(|topic| topic.deps.runtime.clone()) else { return };
        runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(now_ms))).await;
            let Some(topic) = topic.upgrade() else { return };
            let first_unacked = subscription.start(&topic);
            subscription.with_core(&topic, |active, now_ms| active.core.wake(now_ms.max(at_ms), first_unacked));
        });
    }

    /// Something was confirmed.
    pub(super) fn data_available(self: &Arc<Self>, topic: &PersistentTopic, last_confirmed: Position) {
        self.listed.store(false, Ordering::Release);
        self.with_core(topic, |active, _| active.core.data_available(last_confirmed));
    }

    /// Type of the consumers there are, if any.
    pub(super) fn connected_type(state: &State) -> Option<SubscriptionType> {
        let active = state.active.as_ref()?;
        (!active.peers.is_empty()).then(|| active.core.sub_type())
    }
}

/// Runs of neighbouring positions.
fn runs(positions: &[Position]) -> Vec<(Position, u32)> {
    let mut runs: Vec<(Position, u32)> = Vec::new();
    for position in positions {
        match runs.last_mut() {
            Some((first, count))
                if first.ledger_id == position.ledger_id
                    && first.entry_id.0 + i64::from(*count) == position.entry_id.0 =>
            {
                *count += 1;
            }
            _ => runs.push((*position, 1)),
        }
    }
    runs
}

/// From the tail cache, if every entry asked for is there.
fn cached_at(topic: &PersistentTopic, positions: &[Position]) -> Option<Vec<LogEntry>> {
    let mut out = Vec::with_capacity(positions.len());
    for (first, count) in runs(positions) {
        let found = topic.log.try_read_cached(first, count, u64::MAX)?;
        if found.len() < count as usize || found.last()?.position != last_of(first, count) {
            return None;
        }
        out.extend(found);
    }
    Some(out)
}

/// What a storage read is for.
enum Wanted {
    From { from: Position, max_entries: u32, max_bytes: u64, compacted: bool, or_next: Position },
    These(Vec<Position>),
}

impl Wanted {
    async fn read(&self, topic: &PersistentTopic) -> Result<Vec<LogEntry>, LogError> {
        let positions = match self {
            Wanted::From { from, max_entries, max_bytes, compacted: true, .. } => {
                return topic.read_compacted(*from, *max_entries, *max_bytes).await;
            }
            Wanted::From { from, max_entries, max_bytes, .. } => {
                return topic.log.read(*from, *max_entries, *max_bytes).await;
            }

            Wanted::These(positions) => positions,
        };
        // Those that exist; a read may bring less than asked, so each run is read to its end.
        let mut out = Vec::with_capacity(positions.len());
        for (first, count) in runs(positions) {
            let last = last_of(first, count);
            let mut from = first;
            while from <= last {
                let wanted = (last.entry_id.0 - from.entry_id.0 + 1) as u32;
                let found = topic.log.read(from, wanted, u64::MAX).await?;
                let Some(read_to) = found.last().map(|entry| entry.position) else { break };
                out.extend(found.into_iter().filter(|entry| entry.position <= last));
                from = read_to.next_in_ledger();
            }
        }
        Ok(out)
    }
}

fn last_of(first: Position, count: u32) -> Position {
    Position::new(first.ledger_id.0, first.entry_id.0 + i64::from(count) - 1)
}
