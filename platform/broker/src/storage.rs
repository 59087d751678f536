//! Topics over managed ledgers, and those in memory only.
//!
//! Role: the [`TopicFactory`] of a real broker. An administrator's properties stand in the log's properties under a prefix
//! of their own, beside what topics keep there.
//! Must never know: sessions, policies.

use crate::error::BrokerError;
use crate::factory::{FencedListener, NameListener, OpenGuard, TopicFactory, TopicSettings};
use meridian_managed_ledger::{LogError, LogSettings, ManagedLedger, ManagedLedgers};
use meridian_topic::api::BoxFuture;
use meridian_topic::{
    BrokerLimits, NonPersistentTopic, PersistentTopic, SystemClock, TopicDeps, TopicEvents, TopicHandle, log_name,
};
use meridian_types::{Domain, NamespaceName, TopicName};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// In front of the names of an administrator's properties.
const PROPERTY_PREFIX: &str = "user.";
/// How long a producer that closes may wait for the answers to what it sent.
const CLOSE_DEADLINE_MS: u64 = 30_000;
/// How long subscribing waits for a seek of the subscription to end.
const FENCE_DEADLINE_MS: u64 = 30_000;

/// Pauses between the checks of topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckIntervals {
    /// Time to live.
    pub expiry_ms: u64,
    /// Backlog quotas.
    pub quota_ms: u64,
    /// Whether a compaction is due.
    pub compaction_ms: u64,
}

impl Default for CheckIntervals {
    fn default() -> Self {
        Self { expiry_ms: 300_000, quota_ms: 60_000, compaction_ms: 60_000 }
    }
}

/// What topics of one broker are run with.
#[derive(Debug, Clone, Default)]
pub struct StorageOptions {
    /// Pauses between checks.
    pub intervals: CheckIntervals,
    /// Compaction keeps messages without a key.
    pub compaction_keeps_keyless: bool,
    /// Rates that all topics share.
    pub limits: BrokerLimits,
}

impl From<CheckIntervals> for StorageOptions {
    fn from(intervals: CheckIntervals) -> Self {
        Self { intervals, ..Self::default() }
    }
}

#[derive(Default)]
struct Fenced(OnceLock<FencedListener>);

impl TopicEvents for Fenced {
    fn fenced(&self, topic: &TopicName, reason: &str) {
        tracing::warn!(%topic, reason, "the topic lost its log and will be loaded anew");
        if let Some(listener) = self.0.get() {
            listener(topic);
        }
    }
}

/// Opens topics over managed ledgers.
pub struct StorageFactory {
    logs: Arc<ManagedLedgers>,
    deps: Arc<TopicDeps>,
    fenced: Arc<Fenced>,
}

impl StorageFactory {
    /// Over these logs; must be called within the runtime that topics shall use.
    pub fn new(logs: Arc<ManagedLedgers>, options: impl Into<StorageOptions>) -> Self {
        let StorageOptions { intervals, compaction_keeps_keyless, limits } = options.into();
        let fenced = Arc::new(Fenced::default());
        let deps = TopicDeps {
            clock: Arc::new(SystemClock),
            runtime: tokio::runtime::Handle::current(),
            events: fenced.clone(),
            expiry_check_ms: intervals.expiry_ms,
            quota_check_ms: intervals.quota_ms,
            ledgers: logs.ledgers(),
            compaction_check_ms: intervals.compaction_ms,
            limits,
            compaction_keeps_keyless,
            close_deadline_ms: CLOSE_DEADLINE_MS,
            fence_deadline_ms: FENCE_DEADLINE_MS,
        };
        Self { logs, deps: Arc::new(deps), fenced }
    }
}

/// The topic of a log: `TENANT/NAMESPACE/DOMAIN/LOCAL`.
fn topic_of(log: &str) -> Option<TopicName> {
    let mut parts = log.splitn(4, '/');
    let (tenant, namespace, domain, local) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{local}")).ok()
}

impl TopicFactory for StorageFactory {
    fn open(
        &self,
        name: TopicName,
        settings: TopicSettings,
    ) -> BoxFuture<'_, Result<Arc<dyn TopicHandle>, BrokerError>> {
        Box::pin(async move {
            let handle: Arc<dyn TopicHandle> = match name.domain() {
                Domain::NonPersistent => {
                    let (shared, clock) = (self.deps.limits.clone(), self.deps.clock.clone());
                    NonPersistentTopic::new(name, settings.limits, shared, clock)
                }
                Domain::Persistent => {
                    let TopicSettings { limits, log } = settings;
                    PersistentTopic::open(name, &self.logs, log, limits, self.deps.clone()).await?
                }
            };
            Ok(handle)
        })
    }

    fn exists<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<bool, BrokerError>> {
        Box::pin(async move { Ok(self.logs.exists(&log_name(name)).await?) })
    }

    fn list<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<Vec<TopicName>, BrokerError>> {
        Box::pin(async move {
            let prefix = format!("{namespace}/{}/", Domain::Persistent.as_str());
            let names = self.logs.list(&prefix).await?;
            let topic = |name: &String| {
                let local = name.strip_prefix(&prefix)?;
                TopicName::parse(&format!("persistent://{namespace}/{local}")).ok()
            };
            Ok(names.iter().filter_map(topic).collect())
        })
    }

    fn delete<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            match self.logs.delete(&log_name(name)).await {
                Ok(()) | Err(LogError::NoSuchLog(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn set_log_settings(&self, name: &TopicName, settings: &LogSettings) {
        if let Some(log) = self.logs.opened(&log_name(name)) {
            log.set_settings(settings.clone());
        }
    }

    fn properties(&self, name: &TopicName) -> BTreeMap<String, String> {
        let all = self.logs.opened(&log_name(name)).map(|log| log.properties()).unwrap_or_default();
        all.into_iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(PROPERTY_PREFIX)?.to_owned(), value)))
            .collect()
    }

    fn set_properties<'a>(
        &'a self,
        name: &'a TopicName,
        properties: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let Some(log) = self.logs.opened(&log_name(name)) else { return Ok(()) };
            let mut all = log.properties();
            all.retain(|key, _| !key.starts_with(PROPERTY_PREFIX));
            all.extend(properties.into_iter().map(|(key, value)| (format!("{PROPERTY_PREFIX}{key}"), value)));
            Ok(log.set_properties(all).await?)
        })
    }

    fn log(&self, name: &TopicName) -> Option<Arc<ManagedLedger>> {
        self.logs.opened(&log_name(name))
    }

    fn cursor_names<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<Vec<String>, BrokerError>> {
        Box::pin(async move { Ok(self.logs.cursor_names(&log_name(name)).await?) })
    }

    fn guard_opens(&self, guard: OpenGuard) {
        self.logs.set_guard(Arc::new(move |log: &str| topic_of(log).map_or(Ok(None), |topic| guard(&topic))));
    }

    fn follow_names<'a>(&'a self, tell: &'a NameListener) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let told = move |change: Option<(String, bool)>| match change {
                None => tell(None),
                Some((log, exists)) => {
                    if let Some(topic) = topic_of(&log) {
                        tell(Some((topic, exists)));
                    }
                }
            };
            self.logs.follow_names(&told).await;
        })
    }

    fn on_fenced(&self, listener: FencedListener) {
        // A second owner would be a mistake of the wiring; the first one keeps its topics.
        let _ = self.fenced.0.set(listener);
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let caches = self.logs.cache_stats();
        vec![
            ("meridian_log_entries_skipped_total", self.logs.entries_skipped()),
            ("meridian_log_ledgers_skipped_total", self.logs.ledgers_skipped()),
            ("meridian_log_cursors_rewound_total", self.logs.cursors_rewound()),
            ("meridian_log_tail_cache_bytes", caches.tail_bytes),
            ("meridian_log_tail_cache_hits_total", caches.tail_hits),
            ("meridian_log_catch_up_cache_bytes", caches.catch_up_bytes),
            ("meridian_log_catch_up_cache_hits_total", caches.catch_up_hits),
            ("meridian_log_storage_reads_total", caches.storage_reads),
            ("meridian_log_storage_entries_total", caches.storage_entries),
        ]
    }

    fn tick(&self, now_ms: u64) -> BoxFuture<'_, ()> {
        Box::pin(self.logs.tick(now_ms))
    }
}
