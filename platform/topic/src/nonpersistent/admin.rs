//! Figures, and what cannot be done without storage.

use super::{NonPersistentTopic, Peer, State, Subscription, refuse};
use crate::api::{
    BacklogQuotaFigures, BoxFuture, ConsumerKey, ConsumerStats, LinkStats, SubscriptionStats, TopicError,
    TopicErrorKind, TopicStats,
};
use crate::compaction::CompactionFigures;
use crate::figures::Client;
use crate::origins::OriginFigures;
use crate::producers::Producer;
use crate::rates::{Rate, total};

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
        last_flow_ms: member.counters.last_flow_ms,
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
        backlog_bytes: 0,
        read_position: None,
        replay_entries: 0,
        delayed_entries: 0,
        delayed_until_ms: 0,
        unacked_messages: 0,
        blocked_on_unacked: false,
        active_consumer: active.map(|member| member.name.to_string()),
        messages_out: subscription.past_messages_out + counters().map(|one| one.messages_out).sum::<u64>(),
        bytes_out: subscription.past_bytes_out + counters().map(|one| one.bytes_out).sum::<u64>(),
        rate_out: total(consumers.iter().map(|one| one.rate_out)),
        throughput_out: total(consumers.iter().map(|one| one.throughput_out)),
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
        acks: None,
    }
}

fn sample_pair(rates: &mut (Rate, Rate), messages: u64, bytes: u64, now_ms: u64) {
    rates.0.sample(messages, now_ms);
    rates.1.sample(bytes, now_ms);
}

impl State {
    pub(super) fn sample(&mut self, now_ms: u64) {
        let (messages_in, bytes_in) = (self.totals.messages_in, self.totals.bytes_in);
        self.totals.rates.sample(&self.producers, messages_in, bytes_in, now_ms);
        for subscription in self.subscriptions.values_mut() {
            for member in subscription.fanout.members() {
                if let Some(peer) = subscription.peers.iter_mut().find(|peer| peer.key == member.key) {
                    sample_pair(&mut peer.rates, member.counters.messages_out, member.counters.bytes_out, now_ms);
                }
            }
        }
    }

    /// Producers of other regions. Nothing is stored of what they send, so there are no marks.
    fn link_stats(&self) -> Vec<LinkStats> {
        let stats = |producer: &Producer<Client>| {
            let link = producer.link.as_ref()?;
            Some(LinkStats {
                region: link.region.to_string(),
                incarnation: link.source.incarnation.0,
                producer: self.totals.rates.stats_of(producer),
                pushed: OriginFigures::NONE.pushed,
                persisted: OriginFigures::NONE.persisted,
                refused: None,
                duplicates: 0,
                given_up: 0,
            })
        };
        self.producers.present().filter_map(stats).collect()
    }

    pub(super) fn consumer_stats(&self, key: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)> {
        self.subscriptions.iter().find_map(|(name, subscription)| {
            let peer = subscription.peers.iter().find(|peer| peer.key == key)?;
            Some((consumer_stats(subscription, peer)?, subscription_stats(name, subscription)))
        })
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
            rate_in: state.totals.rates.messages(),
            throughput_in: state.totals.rates.bytes(),
            rate_out: total(subscriptions.iter().map(|stats| stats.rate_out)),
            throughput_out: total(subscriptions.iter().map(|stats| stats.throughput_out)),
            average_message_bytes: if messages_in == 0 { 0.0 } else { bytes_in as f64 / messages_in as f64 },
            storage_bytes: 0,
            backlog_bytes: 0,
            backlog_quota: BacklogQuotaFigures::default(),
            topic_epoch: state.producers.epoch(),
            deduplication: false,
            publish_latency_us_p50: 0,
            publish_latency_us_p99: 0,
            publish_limited_times: state.gate.limited_times(),
            publishes_waiting: state.gate.waiting(),
            compaction: CompactionFigures::default(),
            producers: state.totals.rates.stats(&state.producers),
            links: state.link_stats(),
            waiting_producers: state.producers.waiters(),
            subscriptions,
            log: None,
            loaded_ms: self.loaded_ms,
            last_activity_ms: state.last_activity_ms,
        }
    }
}
