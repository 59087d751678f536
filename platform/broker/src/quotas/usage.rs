//! What tenants use: sampled from the topics' counters, written by the hour, shown as figures.
//!
//! Invariants: a topic's counters are taken once; what a closing topic had counted after the last sample is taken when it
//! is sampled the last time ([`UsageCounter::topic_closing`]).

use super::Quotas;
use crate::service::BrokerService;
use meridian_policy::quota::{Limit, Place};
use meridian_quotas::QuotaBook;
use meridian_quotas::usage::{HOUR_MS, Usage};
use meridian_topic::TopicHandle;
use meridian_types::TopicName;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// Hours of usage that are kept.
const KEEP_HOURS: u64 = 24 * 400;

#[derive(Default)]
struct State {
    /// Counters of each topic at the last look.
    last: HashMap<TopicName, Usage>,
    /// Of the present hour and of hours that were not written yet, by tenant.
    hours: BTreeMap<(String, u64), Usage>,
    /// Since the start.
    totals: BTreeMap<String, Usage>,
    /// Per second at the last look, of each place with limits.
    rates: HashMap<Place, Usage>,
    /// What was written of an hour before this process began.
    bases: HashMap<(String, u64), Usage>,
    sampled_ms: u64,
    trimmed_hour: u64,
}

/// Counts usage.
pub(crate) struct UsageCounter {
    broker: String,
    state: Mutex<State>,
}

fn counters(service: &BrokerService, topic: &dyn TopicHandle) -> Usage {
    let stats = topic.stats();
    let links = service.replication().figures(topic.name());
    Usage {
        messages_in: stats.messages_in,
        bytes_in: stats.bytes_in,
        messages_out: stats.messages_out,
        bytes_out: stats.bytes_out,
        replicated_messages: links.iter().map(|link| link.messages_out).sum(),
        replicated_bytes: links.iter().map(|link| link.bytes_out).sum(),
        stored_bytes_max: stats.storage_bytes,
    }
}

impl UsageCounter {
    pub(super) fn new(broker: &str) -> Self {
        // It is part of a key.
        Self { broker: broker.replace('/', "-"), state: Mutex::default() }
    }

    /// Takes the counters of all topics.
    pub(super) fn sample(&self, quotas: &Quotas, service: &BrokerService, now_ms: u64) {
        let topics = service.loaded_topics();
        let now: Vec<(TopicName, Usage)> =
            topics.iter().map(|topic| (topic.name().clone(), counters(service, &**topic))).collect();
        let mut state = self.state.lock();
        let passed_ms = now_ms.saturating_sub(state.sampled_ms).max(1);
        state.sampled_ms = now_ms;
        state.rates.clear();
        let mut stored: BTreeMap<String, u64> = BTreeMap::new();
        for (topic, counters) in &now {
            *stored.entry(topic.tenant().to_owned()).or_default() += counters.stored_bytes_max;
            let used = state.take(topic, *counters, now_ms);
            for place in quotas.places_of(topic) {
                let rate = state.rates.entry(place).or_default();
                rate.add(&per_second(&used, passed_ms), true);
            }
        }
        let hour = now_ms / HOUR_MS;
        for (tenant, bytes) in stored {
            let kept = state.hours.entry((tenant.clone(), hour)).or_default();
            kept.stored_bytes_max = kept.stored_bytes_max.max(bytes);
            let total = state.totals.entry(tenant).or_default();
            total.stored_bytes_max = bytes;
        }
        let open: HashMap<&TopicName, ()> = now.iter().map(|(topic, _)| (topic, ())).collect();
        state.last.retain(|topic, _| open.contains_key(topic));
    }

    /// A topic is about to close: what it counted since the last look.
    pub(crate) fn topic_closing(&self, service: &BrokerService, topic: &dyn TopicHandle, now_ms: u64) {
        let counters = counters(service, topic);
        let mut state = self.state.lock();
        state.take(topic.name(), counters, now_ms);
        state.last.remove(topic.name());
    }

    /// How much of a rate a place would use here: what it used, and more if it came close to what it may.
    pub(super) fn demand(&self, place: &Place, limit: Limit) -> u64 {
        let state = self.state.lock();
        let Some(used) = state.rates.get(place) else { return 0 };
        let used = match limit {
            Limit::PublishMessagesPerSecond => used.messages_in,
            Limit::PublishBytesPerSecond => used.bytes_in,
            Limit::DispatchMessagesPerSecond => used.messages_out,
            Limit::DispatchBytesPerSecond => used.bytes_out,
            Limit::ReplicationMessagesPerSecond => used.replicated_messages,
            _ => used.replicated_bytes,
        };
        // What is throttled would use more than it does; a demand that is not used shrinks by itself.
        used.saturating_mul(2)
    }

    /// Since the start, by tenant.
    pub(crate) fn totals(&self) -> BTreeMap<String, Usage> {
        self.state.lock().totals.clone()
    }

    /// Writes the hours; those that have ended are then forgotten here.
    pub(super) async fn write(&self, book: &QuotaBook, now_ms: u64) {
        let hour = now_ms / HOUR_MS;
        let hours: Vec<((String, u64), Usage)> =
            self.state.lock().hours.iter().map(|(key, usage)| (key.clone(), *usage)).collect();
        for ((tenant, of), usage) in hours {
            // What was written before a restart in this hour is added to once.
            let base = match self.base(book, &tenant, of).await {
                Ok(base) => base,
                Err(error) => {
                    tracing::debug!(%error, tenant, "usage could not be read");
                    return;
                }
            };
            let mut sum = base;
            sum.add(&usage, false);
            if let Err(error) = book.put_usage(&tenant, of, &self.broker, &sum).await {
                tracing::debug!(%error, tenant, "usage could not be written; it will be tried again");
                return;
            }
            if of < hour {
                self.state.lock().hours.remove(&(tenant, of));
            }
        }
        let trim = {
            let mut state = self.state.lock();
            std::mem::replace(&mut state.trimmed_hour, hour) != hour
        };
        if trim && let Err(error) = book.trim_usage(hour.saturating_sub(KEEP_HOURS)).await {
            tracing::debug!(%error, "old usage could not be deleted");
        }
    }

    async fn base(&self, book: &QuotaBook, tenant: &str, hour: u64) -> Result<Usage, meridian_quotas::QuotaError> {
        let key = (tenant.to_owned(), hour);
        if let Some(base) = self.state.lock().bases.get(&key) {
            return Ok(*base);
        }
        let base = book.written_usage(tenant, hour, &self.broker).await?;
        let mut state = self.state.lock();
        state.bases.retain(|(_, of), _| *of + 2 > hour);
        state.bases.insert(key, base);
        Ok(base)
    }
}

fn per_second(used: &Usage, passed_ms: u64) -> Usage {
    let rate = |count: u64| count.saturating_mul(1000) / passed_ms;
    Usage {
        messages_in: rate(used.messages_in),
        bytes_in: rate(used.bytes_in),
        messages_out: rate(used.messages_out),
        bytes_out: rate(used.bytes_out),
        replicated_messages: rate(used.replicated_messages),
        replicated_bytes: rate(used.replicated_bytes),
        stored_bytes_max: 0,
    }
}

impl State {
    /// What a topic used since the last look; counted for its tenant.
    fn take(&mut self, topic: &TopicName, counters: Usage, now_ms: u64) -> Usage {
        let earlier = self.last.insert(topic.clone(), counters).unwrap_or_default();
        let used = Usage { stored_bytes_max: 0, ..counters.since(&earlier) };
        let hour = now_ms / HOUR_MS;
        self.hours.entry((topic.tenant().to_owned(), hour)).or_default().add(&used, false);
        let total = self.totals.entry(topic.tenant().to_owned()).or_default();
        total.add(&used, false);
        used
    }
}

impl Quotas {
    /// What tenants used here since the start.
    pub fn totals(&self) -> BTreeMap<String, Usage> {
        self.usage.totals()
    }

    /// Takes and writes what was used and is stored up to now.
    pub async fn flush(&self, service: &BrokerService) {
        self.look_at_storage(service);
        self.write_stored(service, true).await;
        self.usage.sample(self, service, crate::service::now_ms());
        self.usage.write(&self.book, crate::service::now_ms()).await;
    }
}
