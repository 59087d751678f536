//! Figures of a topic, made when asked for; rates are sampled once a second from growing counters.

use super::PersistentTopic;
use super::consuming::REPLICATED_PROPERTY;
use super::producing::ProducerSide;
use super::quota::{backlog_bytes, bytes_from};
use super::replicated::ACKS_PROPERTY;
use super::subscription::{Active, Peer, Subscription};
use crate::api::{ConsumerKey, ConsumerStats, LinkStats, SubscriptionStats, TopicStats};
use crate::dispatch::{Consumer, Dispatcher};
use crate::figures::Client;
use crate::origins::OriginFigures;
use crate::producers::Producer;
use crate::rates::{Rate, total};
use meridian_managed_ledger::{LedgerInfo, ManagedLedger};
use std::sync::atomic::Ordering;

/// Rates of one consumer.
#[derive(Debug, Default)]
pub(super) struct ConsumerRates {
    messages: Rate,
    bytes: Rate,
    redelivered: Rate,
    acked: Rate,
}

impl ConsumerRates {
    fn sample(&mut self, consumer: &Consumer, now_ms: u64) {
        let counters = consumer.counters;
        self.messages.sample(counters.messages_out, now_ms);
        self.bytes.sample(counters.bytes_out, now_ms);
        self.redelivered.sample(counters.redelivered, now_ms);
        self.acked.sample(counters.acked, now_ms);
    }
}

/// Publish latencies in buckets of two per octave; an old sample counts half after every [`LATENCY_SAMPLES`].
#[derive(Debug)]
pub(super) struct LatencyHistogram {
    /// At most [`LATENCY_SAMPLES`] together.
    buckets: [u16; 64],
    samples: u32,
}

/// Samples after which all counts are halved.
const LATENCY_SAMPLES: u32 = 10_000;

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: [0; 64], samples: 0 }
    }
}

impl LatencyHistogram {
    pub(super) fn add(&mut self, latency_us: u64) {
        let value = latency_us.max(1);
        let octave = value.ilog2();
        let upper_half = (value >> octave.saturating_sub(1)) & 1;
        let bucket = (octave * 2 + if octave == 0 { 0 } else { upper_half as u32 }).min(63);
        self.buckets[bucket as usize] += 1;
        self.samples += 1;
        if self.samples >= LATENCY_SAMPLES {
            self.samples = 0;
            for count in &mut self.buckets {
                *count /= 2;
                self.samples += u32::from(*count);
            }
        }
    }

    /// Upper bound of the bucket that holds the quantile, 0 without samples.
    pub(super) fn quantile(&self, quantile: f64) -> u64 {
        let wanted = (f64::from(self.samples) * quantile).ceil() as u32;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u32::from(*count);
            if wanted > 0 && seen >= wanted {
                let octave = bucket as u32 / 2;
                let base = 1u64 << octave;
                return if bucket % 2 == 0 { base + base / 2 } else { base * 2 };
            }
        }
        0
    }
}

impl PersistentTopic {
    pub(super) fn sample_rates(&self, now_ms: u64) {
        for subscription in self.connected_subscriptions() {
            let mut state = subscription.state.lock();
            let expired = state.expired_total;
            state.expired_rate.sample(expired, now_ms);
            let Some(active) = state.active.as_mut() else { continue };
            for peer in &mut active.peers {
                if let Some(consumer) = active.core.consumers().iter().find(|consumer| consumer.key == peer.key) {
                    peer.rates.sample(consumer, now_ms);
                }
            }
        }
        let published = self.producers.lock().as_mut().map(|side| {
            side.rates.sample(&side.core, side.messages_in, side.bytes_in, now_ms);
            (side.rates.messages(), side.rates.bytes())
        });
        self.follow_published(published.unwrap_or_default());
    }

    pub(super) fn figures(&self) -> TopicStats {
        let log = self.log.info();
        let subscriptions: Vec<SubscriptionStats> = self
            .all_subscriptions()
            .iter()
            .map(|subscription| subscription_stats(subscription, &self.log, &log.ledgers))
            .collect();
        let start = self.all_subscriptions().iter().filter(|sub| sub.durable).map(|sub| sub.cursor.read_start()).min();
        let guard = self.producers.lock();
        let side = guard.as_ref();
        let (messages_in, bytes_in) = side.map_or((0, 0), |side| (side.messages_in, side.bytes_in));
        TopicStats {
            messages_in,
            bytes_in,
            messages_out: subscriptions.iter().map(|stats| stats.messages_out).sum(),
            bytes_out: subscriptions.iter().map(|stats| stats.bytes_out).sum(),
            rate_in: side.map_or(0.0, |side| side.rates.messages()),
            throughput_in: side.map_or(0.0, |side| side.rates.bytes()),
            rate_out: total(subscriptions.iter().map(|stats| stats.rate_out)),
            throughput_out: total(subscriptions.iter().map(|stats| stats.throughput_out)),
            average_message_bytes: if messages_in == 0 { 0.0 } else { bytes_in as f64 / messages_in as f64 },
            storage_bytes: log.bytes,
            backlog_bytes: start.map_or(0, |start| bytes_from(&log.ledgers, start)),
            backlog_quota: self.backlog_quota_figures(),
            topic_epoch: side.and_then(|side| side.core.epoch()),
            deduplication: self.limits.read().deduplication,
            publish_latency_us_p50: side.map_or(0, |side| side.latency.quantile(0.5)),
            publish_latency_us_p99: side.map_or(0, |side| side.latency.quantile(0.99)),
            publish_limited_times: side.map_or(0, |side| side.gate.limited_times()),
            publishes_waiting: side.map_or(0, |side| side.gate.waiting()),
            compaction: self.compaction_figures(),
            producers: side.map(|side| side.rates.stats(&side.core)).unwrap_or_default(),
            links: side.map(|side| side.link_stats()).unwrap_or_default(),
            waiting_producers: side.map_or(0, |side| side.core.waiters()),
            subscriptions,
            log: Some(log),
            loaded_ms: self.loaded_ms,
            last_activity_ms: self.last_activity_ms.load(Ordering::Relaxed),
        }
    }

    pub(super) fn figures_of(&self, key: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)> {
        let subscription = self.subscription_of(key)?;
        let stats = subscription_stats(&subscription, &self.log, &self.log.info().ledgers);
        let state = subscription.state.lock();
        let active = state.active.as_ref()?;
        Some((consumer_stats(active, active.peer(key)?)?, stats))
    }
}

impl ProducerSide {
    fn link_stats(&self) -> Vec<LinkStats> {
        let stats = |producer: &Producer<Client>| {
            let link = producer.link.as_ref()?;
            let marks = self.core.origins.as_ref().and_then(|origins| origins.figures(link.source));
            let marks = marks.unwrap_or(OriginFigures::NONE);
            Some(LinkStats {
                region: link.region.to_string(),
                incarnation: link.source.incarnation.0,
                producer: self.rates.stats_of(producer),
                pushed: marks.pushed,
                persisted: marks.persisted,
                refused: marks.refused,
                duplicates: marks.duplicates,
                given_up: marks.given_up,
            })
        };
        self.core.present().filter_map(stats).collect()
    }
}

fn consumer_stats(active: &Active, peer: &Peer) -> Option<ConsumerStats> {
    let consumer = active.core.consumers().iter().find(|consumer| consumer.key == peer.key)?;
    Some(ConsumerStats {
        consumer_id: peer.consumer_id,
        name: consumer.name.to_string(),
        address: peer.sink.peer_address(),
        client_version: peer.sink.client_version(),
        connected_since_ms: peer.connected_ms,
        metadata: peer.metadata.clone(),
        available_permits: consumer.permits,
        unacked_messages: consumer.unacked,
        blocked_on_unacked: consumer.blocked,
        messages_out: consumer.counters.messages_out,
        bytes_out: consumer.counters.bytes_out,
        rate_out: peer.rates.messages.per_second(),
        throughput_out: peer.rates.bytes.per_second(),
        rate_redeliver: peer.rates.redelivered.per_second(),
        ack_rate: peer.rates.acked.per_second(),
        last_acked_ms: consumer.counters.last_acked_ms,
        last_consumed_ms: consumer.counters.last_consumed_ms,
        last_flow_ms: consumer.counters.last_flow_ms,
        key_hash_ranges: active.core.key_ranges(consumer.key),
    })
}

fn subscription_stats(subscription: &Subscription, log: &ManagedLedger, ledgers: &[LedgerInfo]) -> SubscriptionStats {
    let mut cursor = subscription.cursor.info();
    cursor.properties.remove(ACKS_PROPERTY);
    let state = subscription.state.lock();
    let active = state.active.as_deref();
    let consumers: Vec<ConsumerStats> = active
        .map(|active| active.peers.iter().filter_map(|peer| consumer_stats(active, peer)).collect())
        .unwrap_or_default();
    let core = active.map(|active| &active.core);
    // What consumers that left did last counts, too.
    let last = |past: fn(&Active) -> u64, of: fn(&Consumer) -> u64| {
        active.map_or(0, |active| active.core.consumers().iter().map(of).max().unwrap_or(0).max(past(active)))
    };
    let active_name = core.and_then(|core| {
        let key = core.active()?;
        core.consumers().iter().find(|consumer| consumer.key == key).map(|consumer| consumer.name.to_string())
    });
    SubscriptionStats {
        name: subscription.name.to_string(),
        sub_type: core.map(|core| core.sub_type()),
        durable: subscription.durable,
        replicated: cursor.properties.get(REPLICATED_PROPERTY).is_some_and(|value| value == "1"),
        backlog_entries: cursor.backlog_entries,
        backlog_bytes: backlog_bytes(ledgers, subscription.cursor.read_start(), cursor.backlog_entries),
        read_position: core.filter(|core| !core.consumers().is_empty()).map(Dispatcher::read_position),
        replay_entries: core.map_or(0, Dispatcher::replay_entries),
        delayed_entries: core.map_or(0, |core| core.delayed_entries()),
        delayed_until_ms: core.map_or(0, |core| core.delayed_until_ms()),
        unacked_messages: core.map_or(0, |core| core.unacked()),
        blocked_on_unacked: core.is_some_and(|core| core.blocked()),
        active_consumer: active_name,
        messages_out: active.map_or(0, |active| active.past_messages_out)
            + consumers.iter().map(|stats| stats.messages_out).sum::<u64>(),
        bytes_out: active.map_or(0, |active| active.past_bytes_out)
            + consumers.iter().map(|stats| stats.bytes_out).sum::<u64>(),
        rate_out: total(consumers.iter().map(|stats| stats.rate_out)),
        throughput_out: total(consumers.iter().map(|stats| stats.throughput_out)),
        rate_redeliver: total(consumers.iter().map(|stats| stats.rate_redeliver)),
        rate_expired: state.expired_rate.per_second(),
        expired_total: state.expired_total,
        last_expire_ms: state.last_expire_ms,
        last_consumed_flow_ms: last(|active| active.past_flow_ms, |one| one.counters.last_flow_ms),
        last_consumed_ms: last(|active| active.past_consumed_ms, |one| one.counters.last_consumed_ms),
        last_acked_ms: last(|active| active.past_acked_ms, |one| one.counters.last_acked_ms),
        last_mark_delete_ms: cursor.last_advanced_ms,
        waiting: waiting(&state),
        unreadable: state.unreadable.is_some(),
        consumers,
        cursor: Some(cursor),
        acks: subscription.share().map(|share| Box::new(share.stats(&subscription.cursor, log))),
    }
}

fn waiting(state: &super::subscription::State) -> Option<String> {
    if state.fenced {
        return Some("seek, reset or delete under way".to_owned());
    }
    if let Some(why) = &state.unreadable {
        return Some(format!("unreadable: {why}"));
    }
    state.active.as_ref()?.core.waiting().describe()
}

#[cfg(test)]
mod tests {
    use super::LatencyHistogram;

    #[test]
    fn quantiles_are_within_half_an_octave() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(0.5), 0);
        for value in 1..=1000 {
            histogram.add(value);
        }
        let (p50, p99) = (histogram.quantile(0.5), histogram.quantile(0.99));
        assert!((500..=768).contains(&p50), "{p50}");
        assert!((990..=1024).contains(&p99), "{p99}");
    }
}
