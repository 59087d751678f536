//! What both kinds of topics show of their producers.
//!
//! Role: a client's connection as the producers' state machine holds it, and the producers' rates, sampled from growing
//! counters.
//! Must never know: storage, subscriptions.

use crate::api::{ClientSink, ProducerKey, ProducerStats};
use crate::producers::{Producer, Producers};
use crate::rates::Rate;
use std::sync::Arc;

/// A client's connection; two are equal if they are the same one.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) Arc<dyn ClientSink>);

impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

/// Rates of the producers and of all together.
#[derive(Debug, Default)]
pub(crate) struct ProducerRates {
    each: Vec<(ProducerKey, Rate, Rate)>,
    messages: Rate,
    bytes: Rate,
}

impl ProducerRates {
    /// Messages per second of all together.
    pub(crate) fn messages(&self) -> f64 {
        self.messages.per_second()
    }

    /// Bytes per second of all together.
    pub(crate) fn bytes(&self) -> f64 {
        self.bytes.per_second()
    }

    /// Takes the counters: those of the topic as given, those of the producers from them.
    pub(crate) fn sample(&mut self, producers: &Producers<Client>, messages_in: u64, bytes_in: u64, now_ms: u64) {
        self.messages.sample(messages_in, now_ms);
        self.bytes.sample(bytes_in, now_ms);
        let known = std::mem::take(&mut self.each);
        for producer in producers.present() {
            let found = known.iter().find(|(key, _, _)| *key == producer.key);
            let (mut messages, mut bytes) = found.map_or_else(Default::default, |(_, one, other)| (*one, *other));
            messages.sample(producer.counters.messages_in, now_ms);
            bytes.sample(producer.counters.bytes_in, now_ms);
            self.each.push((producer.key, messages, bytes));
        }
    }

    /// Figures of the producers of tenants.
    pub(crate) fn stats(&self, producers: &Producers<Client>) -> Vec<ProducerStats> {
        producers.local().map(|producer| self.stats_of(producer)).collect()
    }

    /// Figures of one.
    pub(crate) fn stats_of(&self, producer: &Producer<Client>) -> ProducerStats {
        let found = self.each.iter().find(|(key, _, _)| *key == producer.key);
        let (rate_in, throughput_in) =
            found.map_or((0.0, 0.0), |(_, messages, bytes)| (messages.per_second(), bytes.per_second()));
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
    }
}
