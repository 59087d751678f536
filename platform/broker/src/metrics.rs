//! Figures for Prometheus: counters of the broker, and the topics' figures under Pulsar's names.
//!
//! Role: [`BrokerMetrics`] counts what happens; [`BrokerService::metrics_text`] walks the topics when it is asked, so that
//! nothing is kept per topic for it.
//! Must never know: HTTP.

use crate::replication::ReplicationFigures;
use crate::service::BrokerService;
use meridian_failover::{FailoverService, Phase};
use meridian_policy::quota::Limit;
use meridian_topic::rates::total;
use meridian_topic::{AckShareStats, LinkStats, SubscriptionStats, TopicStats};
use meridian_types::RegionId;
use prometheus::core::Collector;
use prometheus::{Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bounds of the load times, in ms.
const LOAD_BUCKETS_MS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 2_000.0, 10_000.0];

/// Counters of a broker.
pub struct BrokerMetrics {
    registry: Registry,
    /// Connections accepted.
    pub connections_created: IntCounter,
    /// Connections ended.
    pub connections_closed: IntCounter,
    /// Logins refused.
    pub logins_refused: IntCounter,
    /// Connections refused or ended by a limit, by reason.
    pub connections_refused: IntCounterVec,
    /// Connections ended because the peer broke the protocol.
    pub protocol_errors: IntCounter,
    /// Times that a connection was not read any more because too much was under way.
    pub reads_paused: IntCounter,
    /// Lookups and partition counts answered.
    pub lookups: IntCounter,
    /// Topics that could not be loaded.
    pub topic_load_failures: IntCounter,
    /// How long topics took to load, ms.
    pub topic_load_ms: Histogram,
}

impl BrokerMetrics {
    /// Counters at zero, in a registry of their own.
    #[allow(clippy::expect_used)]
    pub fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help).expect("the name is constant and valid");
            registry.register(Box::new(counter.clone())).expect("the name is used once");
            counter
        };
        let refused = Opts::new("meridian_broker_connections_refused_total", "Connections refused or ended by a limit");
        let connections_refused = IntCounterVec::new(refused, &["reason"]).expect("the name is constant and valid");
        // Every reason from the start, so that a rise from nothing can be seen.
        for reason in crate::listener::REASONS {
            connections_refused.with_label_values(&[reason]);
        }
        registry.register(Box::new(connections_refused.clone())).expect("the name is used once");
        let load =
            HistogramOpts::new("pulsar_topic_load_times", "Topic load time in ms").buckets(LOAD_BUCKETS_MS.to_vec());
        let topic_load_ms = Histogram::with_opts(load).expect("the name is constant and valid");
        registry.register(Box::new(topic_load_ms.clone())).expect("the name is used once");
        Self {
            connections_created: counter("pulsar_connection_created_total_count", "Connections accepted"),
            connections_closed: counter("pulsar_connection_closed_total_count", "Connections ended"),
            logins_refused: counter("meridian_broker_logins_refused_total", "Logins refused"),
            connections_refused,
            protocol_errors: counter("meridian_broker_protocol_errors_total", "Connections ended by a protocol error"),
            reads_paused: counter("meridian_broker_reads_paused_total", "Times that a connection was not read"),
            lookups: counter("meridian_broker_lookups_total", "Lookups and partition counts answered"),
            topic_load_failures: counter("pulsar_topic_load_failed_count", "Topics that could not be loaded"),
            topic_load_ms,
            registry,
        }
    }
}

impl BrokerMetrics {
    /// Counts something else on the same page.
    pub(crate) fn register(&self, collector: Box<dyn Collector>) {
        if let Err(error) = self.registry.register(collector) {
            tracing::error!(%error, "figures can't be shown");
        }
    }
}

impl Default for BrokerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Samples by family, so that each family stands together in the text.
#[derive(Default)]
struct Families(BTreeMap<&'static str, String>);

impl Families {
    fn add(&mut self, name: &'static str, labels: &str, value: f64) {
        let family = self.0.entry(name).or_insert_with(|| {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            format!("# TYPE {name} {kind}\n")
        });
        // Writing into a string can't fail.
        let _ = writeln!(family, "{name}{{{labels}}} {value}");
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl BrokerService {
    /// All figures as Prometheus text.
    pub fn metrics_text(&self) -> String {
        let mut families = Families::default();
        let cluster = format!("cluster=\"{}\"", escaped(&self.config().cluster));
        self.add_topics(&mut families, &cluster);
        self.add_quotas(&mut families, &cluster);
        families.add(
            "meridian_broker_connections_unauthenticated",
            &cluster,
            f64::from(self.connections().unauthenticated()),
        );
        families.add("pulsar_active_connections", &cluster, f64::from(self.connections().open()));
        families.add("pulsar_broker_topics_count", &cluster, self.topic_count() as f64);
        if let Some(failover) = self.failover() {
            add_failover(&mut families, &cluster, failover);
        }
        families.add("meridian_broker_topics_loading", &cluster, self.loading_count() as f64);
        for (name, value) in self.storage_figures() {
            families.add(name, &cluster, value as f64);
        }
        for figure in self.ownership().figures() {
            let labels = match &figure.label {
                Some((name, value)) => format!("{cluster},{name}=\"{}\"", escaped(value)),
                None => cluster.clone(),
            };
            families.add(figure.name, &labels, figure.value);
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.metrics().registry.gather(), &mut text) {
            tracing::warn!(%error, "broker counters could not be written");
        }
        let mut text = String::from_utf8(text).unwrap_or_default();
        families.0.values().for_each(|family| text.push_str(family));
        text
    }
}

/// Figures that are no sums where several topics are one line: the greatest stands for all.
const GREATEST: [&str; 6] = [
    "pulsar_average_msg_size",
    "meridian_publish_latency_us_p50",
    "meridian_publish_latency_us_p99",
    "meridian_backlog_quota_used_ratio",
    "pulsar_storage_backlog_age_seconds",
    "pulsar_replication_delay_in_seconds",
];

/// Figures of the broker's topics together, and the name of each for the whole broker.
const TOTALS: [(&str, &str); 9] = [
    ("pulsar_rate_in", "pulsar_broker_rate_in"),
    ("pulsar_rate_out", "pulsar_broker_rate_out"),
    ("pulsar_throughput_in", "pulsar_broker_throughput_in"),
    ("pulsar_throughput_out", "pulsar_broker_throughput_out"),
    ("pulsar_storage_size", "pulsar_broker_storage_size"),
    ("pulsar_msg_backlog", "pulsar_broker_msg_backlog"),
    ("pulsar_producers_count", "pulsar_broker_producers_count"),
    ("pulsar_consumers_count", "pulsar_broker_consumers_count"),
    ("pulsar_subscriptions_count", "pulsar_broker_subscriptions_count"),
];

/// Figures of several topics, by label and family.
#[derive(Default)]
struct Sums(BTreeMap<String, BTreeMap<&'static str, f64>>);

impl Sums {
    fn add(&mut self, labels: &str, name: &'static str, value: f64) {
        if !self.0.contains_key(labels) {
            self.0.insert(labels.to_owned(), BTreeMap::new());
        }
        let Some(families) = self.0.get_mut(labels) else { return };
        let sum = families.entry(name).or_default();
        *sum = if GREATEST.contains(&name) { sum.max(value) } else { *sum + value };
    }
}

impl BrokerService {
    /// Figures of topics, one by one or by namespace, and of all together.
    fn add_topics(&self, families: &mut Families, cluster: &str) {
        let single = self.config().topic_level_metrics;
        let (mut sums, mut all) = (Sums::default(), Sums::default());
        for topic in self.loaded_topics() {
            let (name, stats) = (topic.name(), topic.stats());
            let of_namespace = format!("{cluster},namespace=\"{}\"", escaped(name.namespace().as_str()));
            sums.add(&of_namespace, "pulsar_topics_count", 1.0);
            let figures = topic_figures(&stats);
            for &(figure, value) in &figures {
                all.add(cluster, figure, value);
            }
            let links = self.replication().figures(name);
            let inbound = |remote: &str| stats.links.iter().find(|one| one.region == remote);
            if !single {
                figures.into_iter().for_each(|(figure, value)| sums.add(&of_namespace, figure, value));
                for link in &links {
                    let remote = format!("{of_namespace},remote_cluster=\"{}\"", escaped(&link.remote));
                    for (figure, value) in link_figures(link, inbound(&link.remote)) {
                        sums.add(&remote, figure, value);
                    }
                }
                continue;
            }
            let labels = format!("{of_namespace},topic=\"{}\"", escaped(name.as_str()));
            figures.into_iter().for_each(|(figure, value)| families.add(figure, &labels, value));
            self.add_subscriptions(families, &labels, &stats);
            for link in &links {
                add_link(families, &labels, link, inbound(&link.remote));
            }
        }
        for (labels, figures) in &sums.0 {
            figures.iter().for_each(|(name, value)| families.add(name, labels, *value));
        }
        for (of_topics, of_broker) in TOTALS {
            let value = all.0.get(cluster).and_then(|figures| figures.get(of_topics)).copied().unwrap_or(0.0);
            families.add(of_broker, cluster, value);
        }
    }

    fn add_subscriptions(&self, families: &mut Families, labels: &str, stats: &TopicStats) {
        for one in &stats.subscriptions {
            let labels = format!("{labels},subscription=\"{}\"", escaped(&one.name));
            add_subscription(families, &labels, one);
            if let Some(acks) = &one.acks {
                add_acks(families, &labels, acks, &|region| {
                    Some(self.region_name(region)).filter(|name| !self.is_without_link(name))
                });
            }
        }
    }

    /// Limits with what counts against them here, and what tenants used since the start.
    fn add_quotas(&self, families: &mut Families, cluster: &str) {
        for (place, quotas) in self.quotas().book().all() {
            let level = place.level().word();
            let (stored, backlog) = self.quotas().counted_bytes(&place);
            for limit in Limit::ALL {
                let Some((value, _)) = quotas.get(limit) else { continue };
                let labels =
                    format!("{cluster},level=\"{level}\",place=\"{}\",limit=\"{limit}\"", escaped(&place.to_string()));
                families.add("meridian_quota_limit", &labels, value as f64);
                let used = match limit {
                    Limit::StoredBytes => stored,
                    Limit::BacklogBytes => backlog,
                    Limit::Producers | Limit::Consumers | Limit::Connections => self.quotas().counted(limit, &place),
                    _ => continue,
                };
                families.add("meridian_quota_used", &labels, used as f64);
            }
        }
        for (tenant, usage) in self.quotas().totals() {
            let labels = format!("{cluster},tenant=\"{}\"", escaped(&tenant));
            families.add("meridian_tenant_messages_in_total", &labels, usage.messages_in as f64);
            families.add("meridian_tenant_bytes_in_total", &labels, usage.bytes_in as f64);
            families.add("meridian_tenant_messages_out_total", &labels, usage.messages_out as f64);
            families.add("meridian_tenant_bytes_out_total", &labels, usage.bytes_out as f64);
            families.add("meridian_tenant_replicated_bytes_total", &labels, usage.replicated_bytes as f64);
            families.add("meridian_tenant_stored_bytes", &labels, usage.stored_bytes_max as f64);
        }
    }
}

/// Namespaces with an active region: who it is, and what waits.
fn add_failover(families: &mut Families, cluster: &str, failover: &FailoverService) {
    families.add("meridian_failover_unconfirmed", cluster, failover.unconfirmed() as f64);
    for namespace in failover.namespaces() {
        let Some(state) = failover.state(&namespace) else { continue };
        let labels = format!("{cluster},namespace=\"{}\"", escaped(&namespace.to_string()));
        let active = format!("{labels},active=\"{}\"", escaped(&state.record.active));
        families.add("meridian_failover_active", &active, 1.0);
        families.add("meridian_failover_epoch", &labels, state.record.epoch.counter as f64);
        families.add("meridian_failover_tail_pending", &labels, f64::from(u8::from(state.tail_pending)));
        let held = state.phase != Phase::Steady;
        families.add("meridian_failover_publishes_held", &labels, f64::from(u8::from(held)));
    }
}

fn topic_figures(stats: &TopicStats) -> Vec<(&'static str, f64)> {
    let consumers: usize = stats.subscriptions.iter().map(|one| one.consumers.len()).sum();
    let backlog: u64 = stats.subscriptions.iter().map(|one| one.backlog_entries).sum();
    let mut figures = vec![
        ("pulsar_subscriptions_count", stats.subscriptions.len() as f64),
        ("pulsar_producers_count", stats.producers.len() as f64),
        ("pulsar_consumers_count", consumers as f64),
        ("pulsar_rate_in", stats.rate_in),
        ("pulsar_rate_out", stats.rate_out),
        ("pulsar_throughput_in", stats.throughput_in),
        ("pulsar_throughput_out", stats.throughput_out),
        ("pulsar_average_msg_size", stats.average_message_bytes),
        ("pulsar_in_messages_total", stats.messages_in as f64),
        ("pulsar_in_bytes_total", stats.bytes_in as f64),
        ("pulsar_out_messages_total", stats.messages_out as f64),
        ("pulsar_out_bytes_total", stats.bytes_out as f64),
        ("pulsar_storage_size", stats.storage_bytes as f64),
        ("pulsar_storage_logical_size", stats.storage_bytes as f64),
        ("pulsar_storage_backlog_size", stats.backlog_bytes as f64),
        ("pulsar_msg_backlog", backlog as f64),
        ("pulsar_publish_rate_limit_times", stats.publish_limited_times as f64),
        ("meridian_publishes_waiting", stats.publishes_waiting as f64),
        ("meridian_publish_latency_us_p50", stats.publish_latency_us_p50 as f64),
        ("meridian_publish_latency_us_p99", stats.publish_latency_us_p99 as f64),
    ];
    if let Some(log) = &stats.log {
        figures.push(("meridian_topic_pending_appends", log.pending_appends as f64));
        figures.push(("pulsar_storage_ledgers_count", log.ledgers.len() as f64));
        figures.extend(quota_figures(stats, crate::service::now_ms()));
    }
    figures
}

/// Limits of the backlog, how near it is to them, and what they took away; nothing where there is none.
fn quota_figures(stats: &TopicStats, now_ms: u64) -> Vec<(&'static str, f64)> {
    let quota = &stats.backlog_quota;
    let evicted = quota.evicted_by_size_entries + quota.evicted_by_age_entries;
    if quota.limit_bytes == 0 && quota.limit_s == 0 && evicted == 0 {
        return Vec::new();
    }
    let part = |used: f64, limit: u64| if limit == 0 { 0.0 } else { used / limit as f64 };
    let age_s = if quota.oldest_ms == 0 { 0.0 } else { now_ms.saturating_sub(quota.oldest_ms) as f64 / 1e3 };
    vec![
        ("pulsar_storage_backlog_quota_limit", quota.limit_bytes as f64),
        ("pulsar_storage_backlog_quota_limit_time", quota.limit_s as f64),
        ("pulsar_storage_backlog_age_seconds", age_s),
        (
            "meridian_backlog_quota_used_ratio",
            part(stats.backlog_bytes as f64, quota.limit_bytes).max(part(age_s, quota.limit_s)),
        ),
        ("meridian_backlog_quota_evicted_by_size_entries_total", quota.evicted_by_size_entries as f64),
        ("meridian_backlog_quota_evicted_by_age_entries_total", quota.evicted_by_age_entries as f64),
    ]
}

/// What links say that can be added up.
fn link_figures(figures: &ReplicationFigures, inbound: Option<&LinkStats>) -> [(&'static str, f64); 15] {
    [
        ("pulsar_replication_rate_in", inbound.map_or(0.0, |link| link.producer.rate_in)),
        ("pulsar_replication_rate_out", figures.rate_out),
        ("pulsar_replication_throughput_in", inbound.map_or(0.0, |link| link.producer.throughput_in)),
        ("pulsar_replication_throughput_out", figures.throughput_out),
        ("pulsar_replication_backlog", figures.backlog as f64),
        ("pulsar_replication_rate_expired", figures.rate_expired),
        ("pulsar_replication_connected_count", f64::from(u8::from(figures.connected))),
        // A link that rests is not cut off.
        ("pulsar_replication_disconnected_count", f64::from(u8::from(!figures.connected && !figures.running))),
        ("pulsar_replication_delay_in_seconds", figures.delay_s as f64),
        ("meridian_replication_restarts_total", figures.restarts as f64),
        ("meridian_replication_gap_messages_total", figures.gap_messages as f64),
        ("meridian_replication_expired_before_copy_total", figures.expired_before_copy as f64),
        ("meridian_replication_undecodable_total", figures.undecodable as f64),
        ("meridian_replication_dropped_total", figures.drops.map_or(0.0, |drops| drops.messages as f64)),
        ("meridian_replication_running", f64::from(u8::from(figures.running))),
    ]
}

/// Pulsar's names, and what it does not tell: the state in words, restarts, and what was lost on the way.
fn add_link(families: &mut Families, labels: &str, figures: &ReplicationFigures, inbound: Option<&LinkStats>) {
    let remote = format!("{labels},remote_cluster=\"{}\"", escaped(&figures.remote));
    let state = figures.state.split([':', ' ']).next().unwrap_or_default();
    for (name, value) in link_figures(figures, inbound) {
        families.add(name, &remote, value);
    }
    families.add("meridian_replication_state", &format!("{remote},state=\"{}\"", escaped(state)), 1.0);
}

fn add_subscription(families: &mut Families, labels: &str, stats: &SubscriptionStats) {
    let ack_rate = total(stats.consumers.iter().map(|consumer| consumer.ack_rate));
    let figures = [
        ("pulsar_subscription_back_log", stats.backlog_entries as f64),
        ("pulsar_subscription_back_log_size", stats.backlog_bytes as f64),
        ("pulsar_subscription_back_log_no_delayed", stats.backlog_entries.saturating_sub(stats.delayed_entries) as f64),
        ("pulsar_subscription_delayed", stats.delayed_entries as f64),
        ("meridian_subscription_delayed_until_timestamp", stats.delayed_until_ms as f64),
        ("pulsar_subscription_unacked_messages", stats.unacked_messages as f64),
        ("pulsar_subscription_blocked_on_unacked_messages", f64::from(u8::from(stats.blocked_on_unacked))),
        ("pulsar_subscription_consumers_count", stats.consumers.len() as f64),
        ("pulsar_subscription_msg_rate_out", stats.rate_out),
        ("pulsar_subscription_msg_throughput_out", stats.throughput_out),
        ("pulsar_subscription_msg_rate_redeliver", stats.rate_redeliver),
        ("pulsar_subscription_msg_ack_rate", ack_rate),
        ("pulsar_subscription_msg_rate_expired", stats.rate_expired),
        ("pulsar_subscription_total_msg_expired", stats.expired_total as f64),
        ("pulsar_subscription_last_expire_timestamp", stats.last_expire_ms as f64),
        ("pulsar_subscription_last_acked_timestamp", stats.last_acked_ms as f64),
        ("pulsar_subscription_last_consumed_timestamp", stats.last_consumed_ms as f64),
        ("pulsar_subscription_last_mark_delete_advanced_timestamp", stats.last_mark_delete_ms as f64),
        ("pulsar_out_messages_total", stats.messages_out as f64),
        ("pulsar_out_bytes_total", stats.bytes_out as f64),
        ("meridian_subscription_unreadable", f64::from(u8::from(stats.unreadable))),
        ("meridian_subscription_waits", f64::from(u8::from(stats.waiting.is_some()))),
    ];
    for (name, value) in figures {
        families.add(name, labels, value);
    }
}

/// What other regions do not know yet of a subscription's acknowledgements, and what this one can't take.
fn add_acks(families: &mut Families, labels: &str, acks: &AckShareStats, name: &dyn Fn(RegionId) -> Option<String>) {
    families.add("meridian_subscription_acks_state_bytes", labels, acks.state_bytes as f64);
    families.add("meridian_subscription_acks_refused_total", labels, acks.refused_total as f64);
    let refusing = acks.refusing_since_ms.is_some();
    families.add("meridian_subscription_acks_over_limit", labels, f64::from(u8::from(refusing)));
    let now_ms = crate::service::now_ms();
    for (region, lag) in &acks.peers {
        let Some(name) = name(*region) else { continue };
        let labels = format!("{labels},remote_cluster=\"{}\"", escaped(&name));
        let behind_ms = lag.since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        families.add("meridian_subscription_acks_lag_seconds", &labels, behind_ms as f64 / 1e3);
        families.add("meridian_subscription_acks_lag_entries", &labels, lag.entries as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stand_together_and_labels_are_escaped() {
        let mut families = Families::default();
        families.add("pulsar_out_messages_total", "topic=\"a\"", 1.0);
        families.add("pulsar_rate_in", "topic=\"a\"", 0.5);
        families.add("pulsar_out_messages_total", "topic=\"b\"", 2.0);
        assert_eq!(
            families.0["pulsar_out_messages_total"],
            "# TYPE pulsar_out_messages_total counter\npulsar_out_messages_total{topic=\"a\"} 1\n\
             pulsar_out_messages_total{topic=\"b\"} 2\n"
        );
        assert!(families.0["pulsar_rate_in"].starts_with("# TYPE pulsar_rate_in gauge\n"));
        assert_eq!(escaped("a\"b\\c\n"), "a\\\"b\\\\c\\n");
    }
}
