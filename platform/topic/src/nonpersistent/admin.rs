//! Figures, and what cannot be done without storage.

use super::{NonPersistentTopic, Peer, State, Subscription, refuse};
use crate::api::{
    BoxFuture, ConsumerKey, ConsumerStats, ProducerStats, SubscriptionStats, TopicError, TopicErrorKind, TopicStats,
};
use crate::rates::Rate;

/// The answer to a call that needs something stored.
pub(super) fn unsupported<T: std::marker::Send + 'static>(what: &str) -> BoxFuture<'static, Result<T, TopicError>> {
    let error = refuse(TopicErrorKind::NotAllowed, format!("{what} is not possible on a non-persistent topic"));
    Box::pin(std::future::ready(Err(error)))
}

fn consumer_stats(subscription: &Subscription, peer: &Peer) -> Option<ConsumerStats> {
    let member = subscription.fanout.members().iter().find(|member| member.key == peer.key)?;
    Some(ConsumerStats {
        consumer_id: peer.consumer_id,
        name: member.name.to_string(),
        address: peer.sink.peer_address(),
        client_version: peer.sink.client_version(),
        connected_since_ms: peer.connected_ms,
        metadata: peer.metadata.clone(),
        available_permits: member.permits,
        unacked_messages: 0,
        blocked_on_unacked: false,
        messages_out: member.counters.messages_out,
        bytes_out: member.counters.bytes_out,
        rate_out: peer.rates.0.per_second(),
        throughput_out: peer.rates.1.per_second(),
        rate_redeliver: 0.0,
        ack_rate: 0.0,
        last_acked_ms: 0,
        last_consumed_ms: member.counters.last_consumed_ms,
        key_hash_ranges: subscription.fanout.ranges(peer.key),
    })
}

fn subscription_stats(name: &str, subscription: &Subscription) -> SubscriptionStats {
    let fanout = &subscription.fanout;
    let consumers: Vec<ConsumerStats> =
        subscription.peers.iter().filter_map(|peer| consumer_stats(subscription, peer)).collect();
    let active = fanout.members().iter().find(|member| Some(member.key) == fanout.active());
    let counters = || fanout.members().iter().map(|member| member.counters);
    let has_permits = fanout.members().iter().any(|member| member.permits > 0);
    SubscriptionStats {
        name: name.to_owned(),
        sub_type: fanout.sub_type(),
        durable: subscription.durable,
        replicated: false,
        backlog_entries: 0,
        delayed_entries: 0,
        unacked_messages: 0,
        blocked_on_unacked: false,
        active_consumer: active.map(|member| member.name.to_string()),
        messages_out: subscription.past_messages_out + counters().map(|one| one.messages_out).sum::<u64>(),
        bytes_out: subscription.past_bytes_out + counters().map(|one| one.bytes_out).sum::<u64>(),
        rate_out: consumers.iter().map(|one| one.rate_out).sum(),
        throughput_out: consumers.iter().map(|one| one.throughput_out).sum(),
        rate_redeliver: 0.0,
        rate_expired: 0.0,
        expired_total: 0,
        last_expire_ms: 0,
        last_consumed_flow_ms: counters().map(|one| one.last_flow_ms).max().unwrap_or(0),
        last_consumed_ms: counters().map(|one| one.last_consumed_ms).max().unwrap_or(0),
        last_acked_ms: 0,
        last_mark_delete_ms: 0,
        waiting: match fanout.members().is_empty() || has_permits {
            true if fanout.dropped == 0 => None,
            true => Some(format!("{} messages dropped", fanout.dropped)),
            false => Some(format!("no permits, {} messages dropped", fanout.dropped)),
        },
        unreadable: false,
        consumers,
        cursor: None,
    }
}

fn sample_pair(rates: &mut (Rate, Rate), messages: u64, bytes: u64, now_ms: u64) {
    rates.0.sample(messages, now_ms);
    rates.1.sample(bytes, now_ms);
}

impl State {
    pub(super) fn sample(&mut self, now_ms: u64) {
        let (messages_in, bytes_in) = (self.totals.messages_in, self.totals.bytes_in);
        sample_pair(&mut self.totals.rates, messages_in, bytes_in, now_ms);
        let known = std::mem::take(&mut self.totals.producer_rates);
        for producer in self.producers.present() {
            let found = known.iter().find(|(key, _, _)| *key == producer.key);
            let mut rates =
                found.map_or((Rate::default(), Rate::default()), |(_, messages, bytes)| (*messages, *bytes));
            sample_pair(&mut rates, producer.counters.messages_in, producer.counters.bytes_in, now_ms);
            self.totals.producer_rates.push((producer.key, rates.0, rates.1));
        }
        for subscription in self.subscriptions.values_mut() {
            for member in subscription.fanout.members() {
                if let Some(peer) = subscription.peers.iter_mut().find(|peer| peer.key == member.key) {
                    sample_pair(&mut peer.rates, member.counters.messages_out, member.counters.bytes_out, now_ms);
                }
            }
        }
    }

    pub(super) fn consumer_stats(&self, key: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)> {
        self.subscriptions.iter().find_map(|(name, subscription)| {
            let peer = subscription.peers.iter().find(|peer| peer.key == key)?;
            Some((consumer_stats(subscription, peer)?, subscription_stats(name, subscription)))
        })
    }

    fn producer_stats(&self) -> Vec<ProducerStats> {
        let rate_of = |key| {
            let found = self.totals.producer_rates.iter().find(|(other, _, _)| *other == key);
            found.map_or((0.0, 0.0), |(_, messages, bytes)| (messages.per_second(), bytes.per_second()))
        };
        let stats = |producer: &crate::producers::Producer<super::Client>| {
            let (rate_in, throughput_in) = rate_of(producer.key);
            ProducerStats {
                producer_id: producer.producer_id,
                name: producer.name.to_string(),
                access_mode: producer.access_mode,
                address: producer.sink.0.peer_address(),
                client_version: producer.sink.0.client_version(),
                connected_since_ms: producer.connected_ms,
                metadata: producer.metadata.clone(),
                messages_in: producer.counters.messages_in,
                bytes_in: producer.counters.bytes_in,
                rate_in,
                throughput_in,
            }
        };
        self.producers.present().map(stats).collect()
    }
}

impl NonPersistentTopic {
    pub(super) fn figures(&self) -> TopicStats {
        let state = self.state.lock();
        let subscriptions: Vec<SubscriptionStats> =
            state.subscriptions.iter().map(|(name, subscription)| subscription_stats(name, subscription)).collect();
        let (messages_in, bytes_in) = (state.totals.messages_in, state.totals.bytes_in);
        TopicStats {
            messages_in,
            bytes_in,
            messages_out: subscriptions.iter().map(|stats| stats.messages_out).sum(),
            bytes_out: subscriptions.iter().map(|stats| stats.bytes_out).sum(),
            rate_in: state.totals.rates.0.per_second(),
            throughput_in: state.totals.rates.1.per_second(),
            rate_out: subscriptions.iter().map(|stats| stats.rate_out).sum(),
            throughput_out: subscriptions.iter().map(|stats| stats.throughput_out).sum(),
            average_message_bytes: if messages_in == 0 { 0.0 } else { bytes_in as f64 / messages_in as f64 },
            storage_bytes: 0,
            backlog_bytes: 0,
            topic_epoch: state.producers.epoch(),
            deduplication: false,
            publish_latency_us_p50: 0,
            publish_latency_us_p99: 0,
            producers: state.producer_stats(),
            links: Vec::new(),
            waiting_producers: state.producers.waiters(),
            subscriptions,
            log: None,
            loaded_ms: self.loaded_ms,
            last_activity_ms: state.last_activity_ms,
        }
    }
}
