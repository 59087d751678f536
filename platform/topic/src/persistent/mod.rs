//! A persistent topic: the shell that connects producers, subscriptions and a managed ledger.
//!
//! Role: takes the calls of sessions and of the admin API ([`TopicHandle`]) and the answers of the log, hands them to the
//! state machines (`producers`, `dispatch`) under short locks and does what they decide. No task and no timer of its own
//! while nothing waits.
//!
//! Lock order: producers, then the maps (subscriptions, consumers), then one subscription, then the list of those that
//! wait for data. A client's sink is called under the producers' or the subscription's lock and never calls back.
//!
//! Invariants: T1 sends are handed to the log in the order of the producers' queue (under its lock); T2 answers of the
//! log that come while that lock is held, even by the same thread, are queued and handled right after it; T3 a publish
//! costs nothing for subscriptions that do not wait for data.
//! Failure: a log that is fenced or closed closes the topic's clients; the owner is told by [`TopicEvents`].
//! Must never know: sockets, policies (only numbers), regions but by id.

mod admin;
mod compacting;
mod consuming;
mod deduplicating;
mod entries;
mod gate;
mod handle;
mod lifecycle;
mod origins;
mod producing;
mod quota;
mod replicated;
mod seeking;
mod snapshots;
mod stats;
mod subscription;
mod throttling;

use crate::api::{ConsumerKey, Gate, TopicError, TopicErrorKind, TopicLimits};
use crate::clock::Clock;
use crate::dispatch::{DispatchLimits, SharedLimits};
use crate::rates::{BrokerLimits, LimitsAbove, SharedLimiter, SubscribeRates, on_top};
use compacting::Compacting;
pub use consuming::ACK_PROPERTY_PREFIX;
use meridian_ledger::Ledgers;
use meridian_managed_ledger::{Appended, LogError, LogSettings, LogSink, ManagedLedger, ManagedLedgers};
use meridian_types::TopicName;
use parking_lot::{Mutex, RwLock};
use producing::{LogAnswer, ProducerSide};
#[cfg(feature = "sim")]
pub(crate) use producing::{check_link_send, check_send};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use subscription::Subscription;

/// Property of the log that keeps the topic's epoch.
const EPOCH_PROPERTY: &str = "topic.epoch";

/// Keys of producers and consumers of the whole process.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_key() -> u64 {
    NEXT_KEY.fetch_add(1, Ordering::Relaxed)
}

/// What a topic tells its owner. Called without locks; must not block.
pub trait TopicEvents: Send + Sync {
    /// The log is lost to another owner or unusable: the topic has closed its clients and should be unloaded.
    fn fenced(&self, topic: &TopicName, reason: &str);
}

/// What topics of one process share.
pub struct TopicDeps {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where tasks run (storage reads, resets, timers).
    pub runtime: tokio::runtime::Handle,
    /// Who is told of what happens.
    pub events: Arc<dyn TopicEvents>,
    /// Pause between two checks of the time to live.
    pub expiry_check_ms: u64,
    /// Pause between two checks of backlog quotas.
    pub quota_check_ms: u64,
    /// Pause between two looks whether a compaction is due.
    pub compaction_check_ms: u64,
    /// Rates that all topics of the process share.
    pub limits: BrokerLimits,
    /// Storage of compacted ledgers: the same that the logs stand on.
    pub ledgers: Arc<dyn Ledgers>,
    /// Compaction keeps messages without a key.
    pub compaction_keeps_keyless: bool,
    /// How long a producer that closes may wait for the answers to what it sent.
    pub close_deadline_ms: u64,
    /// How long subscribing waits for a seek or delete of the subscription to end.
    pub fence_deadline_ms: u64,
}

/// A topic whose messages are stored.
pub struct PersistentTopic {
    name: TopicName,
    me: Weak<PersistentTopic>,
    log: Arc<ManagedLedger>,
    deps: Arc<TopicDeps>,
    limits: RwLock<Arc<TopicLimits>>,
    producers: Mutex<Option<Box<ProducerSide>>>,
    /// Answers of the log that came while the producers' lock was held (T2).
    answers: Mutex<VecDeque<LogAnswer>>,
    subscriptions: RwLock<BTreeMap<Arc<str>, Arc<Subscription>>>,
    consumers: RwLock<HashMap<ConsumerKey, Arc<Subscription>>>,
    /// Subscriptions to call when something is confirmed (T3).
    wait_for_data: Mutex<Vec<Arc<Subscription>>>,
    /// Serialises creation and deletion of subscriptions and of the topic.
    changes: tokio::sync::Mutex<()>,
    /// Signalled when a fence of a subscription is lifted.
    unfenced: tokio::sync::Notify,
    /// Serialises changes of the log's properties.
    property_changes: tokio::sync::Mutex<()>,
    /// Serialises changes of the way deduplication works.
    switching_dedup: tokio::sync::Mutex<()>,
    compacting: Mutex<Option<Box<Compacting>>>,
    /// A snapshot of the deduplication marks is being written.
    snapshotting: AtomicBool,
    origins: origins::OriginsState,
    sharing: replicated::Sharing,
    snapshots: snapshots::Snapshots,
    closed: AtomicBool,
    terminated: AtomicBool,
    /// The backlog's quotas, as the last check found them.
    quota: quota::QuotaState,
    /// Limits of what the topic belongs to.
    above: RwLock<LimitsAbove>,
    /// Why producers are kept out, by a quota of what the topic belongs to.
    hold: RwLock<Option<Arc<str>>>,
    /// Of all subscriptions together, once there was a limit.
    dispatch_limit: OnceLock<Arc<SharedLimiter>>,
    /// Messages and bytes published per second, as of the last second.
    published: [AtomicU64; 2],
    subscribe_rates: Mutex<Option<Box<SubscribeRates>>>,
    gate: RwLock<Gate>,
    loaded_ms: u64,
    last_activity_ms: AtomicU64,
    next_expiry_ms: AtomicU64,
    next_quota_ms: AtomicU64,
    next_compaction_ms: AtomicU64,
}

/// The log's way to its topic; empty while the log is being opened.
struct Sink {
    topic: OnceLock<Weak<PersistentTopic>>,
}

impl LogSink for Sink {
    fn appended(&self, entries: &[Appended]) {
        if let Some(topic) = self.topic.get().and_then(Weak::upgrade) {
            topic.appended(entries);
        }
    }

    fn append_failed(&self, tokens: &[u64], error: &LogError) {
        if let Some(topic) = self.topic.get().and_then(Weak::upgrade) {
            topic.append_failed(tokens, error);
        }
    }
}

/// Name of a topic's log: `tenant/namespace/persistent/local`.
pub fn log_name(topic: &TopicName) -> String {
    format!("{}/{}/{}", topic.namespace(), topic.domain().as_str(), topic.local())
}

/// Limits that topics were opened with lately, so that topics with equal ones share them.
static LIMITS: Mutex<VecDeque<Weak<TopicLimits>>> = Mutex::new(VecDeque::new());
/// Different limits that are looked at.
const SHARED_LIMITS_MAX: usize = 16;

fn shared_limits(limits: TopicLimits) -> Arc<TopicLimits> {
    let mut known = LIMITS.lock();
    if let Some(same) = known.iter().filter_map(Weak::upgrade).find(|one| **one == limits) {
        return same;
    }
    let limits = Arc::new(limits);
    known.push_front(Arc::downgrade(&limits));
    known.truncate(SHARED_LIMITS_MAX);
    limits
}

impl PersistentTopic {
    /// Opens the topic's log (creating it if absent) with the subscriptions it has.
    ///
    /// # Errors
    /// What the log says.
    pub async fn open(
        name: TopicName,
        logs: &Arc<ManagedLedgers>,
        settings: LogSettings,
        limits: TopicLimits,
        deps: Arc<TopicDeps>,
    ) -> Result<Arc<Self>, TopicError> {
        let sink = Arc::new(Sink { topic: OnceLock::new() });
        let log = logs.open(&log_name(&name), settings, sink.clone()).await?;
        let now_ms = deps.clock.now_ms();
        let last_confirmed = log.last_confirmed();
        let mut subscriptions = BTreeMap::new();
        for cursor in log.cursors() {
            let info = cursor.info();
            if !info.internal {
                let name: Arc<str> = info.name.into();
                subscriptions.insert(name.clone(), Subscription::new(name, cursor, info.durable, last_confirmed));
            }
        }
        let topic = Arc::new_cyclic(|me| Self {
            name,
            me: me.clone(),
            terminated: AtomicBool::new(log.is_terminated()),
            log,
            limits: RwLock::new(shared_limits(limits)),
            producers: Mutex::new(None),
            answers: Mutex::new(VecDeque::new()),
            subscriptions: RwLock::new(subscriptions),
            consumers: RwLock::new(HashMap::new()),
            wait_for_data: Mutex::new(Vec::new()),
            changes: tokio::sync::Mutex::new(()),
            unfenced: tokio::sync::Notify::new(),
            property_changes: tokio::sync::Mutex::new(()),
            switching_dedup: tokio::sync::Mutex::new(()),
            compacting: Mutex::new(None),
            snapshotting: AtomicBool::new(false),
            origins: origins::OriginsState::default(),
            sharing: replicated::Sharing::default(),
            snapshots: snapshots::Snapshots::default(),
            closed: AtomicBool::new(false),
            quota: quota::QuotaState::default(),
            above: RwLock::default(),
            hold: RwLock::default(),
            dispatch_limit: OnceLock::new(),
            published: Default::default(),
            subscribe_rates: Mutex::new(None),
            gate: RwLock::default(),
            loaded_ms: now_ms,
            last_activity_ms: AtomicU64::new(now_ms),
            next_expiry_ms: AtomicU64::new(now_ms.saturating_add(deps.expiry_check_ms)),
            next_quota_ms: AtomicU64::new(now_ms.saturating_add(deps.quota_check_ms)),
            next_compaction_ms: AtomicU64::new(now_ms.saturating_add(deps.compaction_check_ms)),
            deps,
        });
        let _ = sink.topic.set(Arc::downgrade(&topic));
        if topic.has_origins() {
            topic.ensure_origins().await?;
        }
        let limits = topic.limits();
        if limits.deduplication || limits.global_producers {
            topic.start_dedup().await?;
        }
        Ok(topic)
    }

    fn now_ms(&self) -> u64 {
        self.deps.clock.now_ms()
    }

    fn limits(&self) -> Arc<TopicLimits> {
        self.limits.read().clone()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn refuse_if_closed(&self) -> Result<(), TopicError> {
        if self.is_closed() {
            return Err(TopicError::new(TopicErrorKind::ServiceNotReady, "Topic is temporarily unavailable"));
        }
        Ok(())
    }

    fn touch(&self, now_ms: u64) {
        self.last_activity_ms.store(now_ms, Ordering::Relaxed);
    }

    fn subscription(&self, name: &str) -> Option<Arc<Subscription>> {
        self.subscriptions.read().get(name).cloned()
    }

    fn subscription_of(&self, consumer: ConsumerKey) -> Option<Arc<Subscription>> {
        self.consumers.read().get(&consumer).cloned()
    }

    /// Puts a subscription on the list of those to call at the next confirmation.
    fn list_for_data(&self, subscription: &Arc<Subscription>) {
        if !subscription.listed.swap(true, Ordering::AcqRel) {
            self.wait_for_data.lock().push(subscription.clone());
        }
    }

    /// Calls everybody who waits for data.
    fn announce_data(&self) {
        let waiting = std::mem::take(&mut *self.wait_for_data.lock());
        if waiting.is_empty() {
            return;
        }
        let last_confirmed = self.log.last_confirmed();
        for subscription in &waiting {
            subscription.data_available(self, last_confirmed);
        }
    }

    /// A rate of dispatch as it is now.
    fn dispatch_rate_now(&self, rate: (u64, u64), relative: bool) -> (u64, u64) {
        if relative { on_top(rate, self.published_rate()) } else { rate }
    }

    fn dispatch_limits(&self, limits: &TopicLimits, durable: bool) -> DispatchLimits {
        let unacked = |limit: u32| if durable { u64::from(limit) } else { 0 };
        DispatchLimits {
            max_unacked_per_consumer: unacked(limits.max_unacked_per_consumer),
            max_unacked_per_subscription: unacked(limits.max_unacked_per_subscription),
            read_entries: limits.dispatch_read_entries,
            read_bytes: limits.dispatch_read_bytes,
            round_robin_entries: limits.dispatch_round_robin_entries,
            failover_delay_ms: limits.failover_delay_ms,
            delayed_delivery: limits.delayed_delivery,
            delayed_tick_ms: limits.delayed_tick_ms,
            rate: self.dispatch_rate_now(limits.dispatch_rate, limits.dispatch_relative),
        }
    }

    /// Limits that a subscription's dispatch shares with others: the topic's, if it has one, the broker's, and those of
    /// what the topic belongs to.
    fn shared_dispatch_limits(&self, limits: &TopicLimits) -> SharedLimits {
        let mut shared = SharedLimits::new();
        if limits.topic_dispatch_rate != (0, 0) {
            let rate = self.dispatch_rate_now(limits.topic_dispatch_rate, limits.topic_dispatch_relative);
            self.dispatch_limit.get_or_init(|| Arc::new(SharedLimiter::new(rate)));
        }
        shared.extend(self.dispatch_limit.get().cloned());
        shared.push(self.deps.limits.dispatch.clone());
        shared.extend(self.above.read().dispatch.iter().cloned());
        shared
    }

    fn partition(&self) -> Option<u32> {
        self.name.partition()
    }
}
