//! What of the region this broker serves: ownership as the broker uses it, and the broker as ownership sees it.
//!
//! Invariants: W1 a topic is loaded only while ownership says that it is served here, looked at before and after the load,
//! and once more by its log's opening commit; W2 what is not served here any more closes, whoever moved it.
//! Failure: [`BrokerError::Elsewhere`] names the broker that serves the topic.
//! Must never know: how ownership is agreed on.

use super::delete::{CLOSES, HAND_OVERS};
use super::{BrokerService, TopicEvent};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use meridian_managed_ledger::LogError;
use meridian_ownership::lease::Evidence;
use meridian_ownership::{
    BoxFuture, BrokerRecord, BundleFigures, BundleId, Bundles, Host, ListenerRecord, Namespaces, Ownership,
    OwnershipError, Place, TopicLoad, topic_hash,
};
use meridian_registry::Registry;
use meridian_topic::{TopicHandle, TopicStats};
use meridian_types::{NamespaceName, TopicName};
use std::sync::Arc;
use std::time::Duration;

/// Where a broker tells peers whether it reaches the metadata store: 200 or 503.
pub const CONTACT_PATH: &str = "/admin/v2/meridian/contact";
/// A peer answers within that time or counts as not heard.
const PEER_LIMIT: Duration = Duration::from_millis(250);

/// Namespaces as the registry has them.
pub struct RegistryNamespaces {
    registry: Arc<Registry>,
    cluster: String,
}

impl RegistryNamespaces {
    /// Of this registry, for brokers of this region.
    pub fn new(registry: Arc<Registry>, cluster: &str) -> Self {
        Self { registry, cluster: cluster.to_owned() }
    }
}

impl Namespaces for RegistryNamespaces {
    fn made_with(&self, namespace: &NamespaceName) -> Option<Bundles> {
        let policies = self.registry.namespace(namespace)?;
        let Some(data) = &policies.bundles else { return Bundles::even(1).ok() };
        let parse = |text: &String| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let boundaries: Option<Vec<u32>> = data.boundaries.iter().map(parse).collect();
        match boundaries.filter(|boundaries| !boundaries.is_empty()) {
            Some(boundaries) => Bundles::new(boundaries).ok(),
            None => Bundles::even(data.num_bundles.max(1)).ok(),
        }
    }

    fn group(&self, namespace: &NamespaceName) -> Option<String> {
        self.registry.namespace(namespace)?.anti_affinity_group.clone().filter(|group| !group.is_empty())
    }

    fn domain(&self, broker: &str) -> Option<String> {
        let cluster = self.registry.cluster(&self.cluster)?;
        let domains = cluster.failure_domains.iter();
        domains.filter(|(_, brokers)| brokers.contains(broker)).map(|(name, _)| name.clone()).next()
    }
}

/// This broker as others learn of it.
pub fn broker_record(config: &BrokerConfig) -> BrokerRecord {
    let listeners = config.listeners.iter().map(|listener| ListenerRecord {
        name: listener.name.clone(),
        broker_url: listener.broker_url.clone(),
        broker_url_tls: listener.broker_url_tls.clone(),
    });
    BrokerRecord {
        id: broker_id(config),
        started_ms: super::now_ms(),
        listeners: listeners.collect(),
        web_url: config.web_url.clone(),
        web_url_tls: config.web_url_tls.clone(),
        labels: config.labels.clone(),
        version: config.version.clone(),
        ..BrokerRecord::default()
    }
}

/// `host:port` of the web address, by which Pulsar names brokers; without one, of the binary address.
pub fn broker_id(config: &BrokerConfig) -> String {
    let listener = config.listeners.first();
    let binary = listener.and_then(|one| one.broker_url.as_deref().or(one.broker_url_tls.as_deref()));
    let url = config.web_url.as_deref().or(config.web_url_tls.as_deref()).or(binary).unwrap_or("localhost:0");
    url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/').to_owned()
}

impl From<OwnershipError> for BrokerError {
    fn from(error: OwnershipError) -> Self {
        match error {
            OwnershipError::Metadata(error) => BrokerError::Metadata(error),
            OwnershipError::Bundle(_) | OwnershipError::Invalid(_) | OwnershipError::NoSuchBroker(_) => {
                BrokerError::InvalidValue(error.to_string())
            }
            other => BrokerError::NotReady(other.to_string()),
        }
    }
}

impl BrokerService {
    /// Who serves what.
    pub fn ownership(&self) -> &Arc<dyn Ownership> {
        &self.ownership
    }

    /// A topic may be loaded here (W1).
    ///
    /// # Errors
    /// [`BrokerError::Elsewhere`], or that nobody serves it for the moment.
    pub async fn require_served(&self, name: &TopicName) -> Result<(), BrokerError> {
        if self.ownership.serves(name) {
            return Ok(());
        }
        match self.ownership.locate(name, true).await? {
            Place::Here => Ok(()),
            Place::There(broker) => Err(BrokerError::Elsewhere { topic: name.to_string(), broker }),
        }
    }

    /// Where clients of a topic that closes shall connect, by the listener that they came by.
    pub(crate) fn assigned_to(&self, topic: &TopicName, listener: Option<&str>) -> Option<ListenerRecord> {
        let broker = self.ownership.destination(topic)?;
        broker.listener(listener).or_else(|| broker.listener(None)).cloned()
    }

    /// Logs open only while ownership says so, up to their commit.
    pub(super) fn guard_logs(&self) {
        let ownership = self.ownership.clone();
        self.factory.guard_opens(Arc::new(move |topic: &TopicName| {
            ownership.guard(topic).map_err(|error| LogError::Fenced(error.to_string()))
        }));
    }

    /// Moves bundles to a broker, or to those that suit best; what of them is open here is closed when this ends, whether
    /// there was another broker or not.
    ///
    /// # Errors
    /// The first error; the others are moved nevertheless.
    pub async fn unload_bundles(self: &Arc<Self>, bundles: &[BundleId], to: Option<&str>) -> Result<(), BrokerError> {
        let mut outcome = Ok(());
        for bundle in bundles {
            if let Err(error) = self.ownership.unload(bundle, to).await {
                outcome = outcome.and(Err(error.into()));
            }
        }
        let loaded = self.loaded_topics();
        let names = loaded.iter().map(|topic| topic.name());
        let within = |name: &TopicName| {
            let (namespace, hash) = (name.namespace(), topic_hash(name));
            bundles.iter().any(|bundle| bundle.namespace == namespace && bundle.range.holds(hash))
        };
        let closed = self.unload_all(names.filter(|name| within(name)).cloned().collect(), HAND_OVERS).await;
        outcome.and(closed)
    }

    /// What open topics ask of the broker.
    pub fn topic_loads(&self) -> Vec<TopicLoad> {
        self.loads()
    }

    /// Topics that others create and delete are events here, too.
    pub(super) fn tell_of_name(&self, change: Option<(TopicName, bool)>) {
        match change {
            None => self.announce(TopicEvent::Missed),
            Some((topic, true)) => self.announce(TopicEvent::Created(topic)),
            Some((topic, false)) => {
                self.quotas.topic_deleted(&topic);
                self.drop_deleted(&topic);
                // A partition is there as long as its topic has it, stored or not.
                let has = |count: u32| topic.partition().is_some_and(|partition| partition < count);
                if !self.registry.partitions(&topic.base()).is_some_and(has) {
                    self.announce(TopicEvent::Deleted(topic));
                }
            }
        }
    }

    /// A topic that somebody else deleted while it was open here closes.
    fn drop_deleted(&self, topic: &TopicName) {
        let Some(service) = self.this.upgrade().filter(|_| self.loaded_topic(topic).is_some()) else { return };
        let topic = topic.clone();
        self.runtime.spawn(async move {
            if matches!(service.factory.exists(&topic).await, Ok(false)) {
                tracing::info!(%topic, "closing a topic that was deleted by another broker");
                let _ = service.unload_topic(&topic).await;
            }
        });
    }

    /// Closes a topic that was moved away while it was loaded (W1).
    pub(super) async fn close_if_moved(&self, name: &TopicName) {
        if !self.ownership.serves(name)
            && let Err(error) = self.unload_topic(name).await
        {
            tracing::warn!(topic = %name, %error, "a topic that was moved away did not close well");
        }
    }

    fn not_served(&self) -> Vec<TopicName> {
        let loaded = self.loaded_topics();
        loaded.iter().map(|topic| topic.name()).filter(|name| !self.ownership.serves(name)).cloned().collect()
    }
}

fn figures_of(stats: &TopicStats) -> BundleFigures {
    let consumers: usize = stats.subscriptions.iter().map(|one| one.consumers.len()).sum();
    BundleFigures {
        topics: 1,
        clients: (stats.producers.len() + consumers) as u64,
        messages_in: stats.rate_in as u64,
        messages_out: stats.rate_out as u64,
        bytes_in: stats.throughput_in as u64,
        bytes_out: stats.throughput_out as u64,
    }
}

impl Host for BrokerService {
    fn close_moved(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(service) = self.this.upgrade() else { return };
            let names = self.not_served();
            if names.is_empty() {
                return;
            }
            tracing::info!(topics = names.len(), "closing topics that are served by others now");
            if let Err(error) = service.unload_all(names, HAND_OVERS).await {
                tracing::warn!(%error, "a topic that was moved away did not close well");
            }
        })
    }

    fn close_all(&self, reason: &'static str) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(service) = self.this.upgrade() else { return };
            let names: Vec<_> = self.loaded_topics().iter().map(|topic| topic.name().clone()).collect();
            tracing::warn!(topics = names.len(), reason, "closing everything");
            if let Err(error) = service.unload_all(names, CLOSES).await {
                tracing::warn!(%error, "a topic did not close well; the next owner recovers its log");
            }
        })
    }

    fn gained(&self, bundle: BundleId) {
        tracing::debug!(%bundle, "a bundle came");
        self.gained.notify_one();
    }

    fn loads(&self) -> Vec<TopicLoad> {
        let load = |topic: &Arc<dyn TopicHandle>| TopicLoad {
            topic: topic.name().clone(),
            figures: figures_of(&topic.stats()),
        };
        self.loaded_topics().iter().map(load).collect()
    }

    fn ask_peers(&self, peers: Vec<Arc<BrokerRecord>>) -> BoxFuture<'_, Evidence> {
        Box::pin(async move {
            let count = peers.len();
            let mut calls = tokio::task::JoinSet::new();
            for url in peers.iter().filter_map(|peer| peer.web_url.clone()) {
                calls.spawn(async move { crate::replication::status_at(&url, CONTACT_PATH, PEER_LIMIT).await });
            }
            let mut answers = Vec::with_capacity(count);
            while let Some(answer) = calls.join_next().await {
                match answer {
                    Ok(Ok(200)) => answers.push(true),
                    Ok(Ok(503)) => answers.push(false),
                    _ => {}
                }
            }
            Evidence::of(count, &answers)
        })
    }

    fn reaches(&self, broker: Arc<BrokerRecord>) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let binary =
                broker.listener(None).and_then(|one| one.broker_url.as_deref().or(one.broker_url_tls.as_deref()));
            let url = broker.web_url.as_deref().or(broker.web_url_tls.as_deref()).or(binary);
            let Some(address) = url.map(|url| url.split_once("://").map_or(url, |(_, rest)| rest)) else { return true };
            tokio::net::TcpStream::connect(address.trim_end_matches('/')).await.is_ok()
        })
    }
}
