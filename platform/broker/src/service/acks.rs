//! Acknowledgements shared between regions: the exchange's way to topics.

use super::{BrokerService, Create};
use crate::error::BrokerError;
use crate::replication::{AckLink, AckTopics, markers};
use meridian_link::{AckDelta, AckOutcome, PeerState, PeerStatus, RegionLink};
use meridian_ownership::BrokerRecord;
use meridian_topic::api::BoxFuture;
use meridian_topic::{SnapshotSetup, TopicHandle};
use meridian_types::{RegionId, TopicName};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// The open topics of a broker.
struct TopicsOf(Weak<BrokerService>);

impl AckTopics for TopicsOf {
    fn open(&self, name: &TopicName) -> Option<Arc<dyn TopicHandle>> {
        self.0.upgrade()?.loaded_topic(name)
    }

    fn all_open(&self) -> Vec<Arc<dyn TopicHandle>> {
        self.0.upgrade().map(|service| service.loaded_topics()).unwrap_or_default()
    }

    fn snapshot_setup(&self, name: &TopicName) -> Option<SnapshotSetup> {
        let service = self.0.upgrade().filter(|service| service.config.replication.share_subscriptions)?;
        Some(service.snapshot_setup(name, service.without_link().as_ref()))
    }

    fn shares(&self, region: &str, name: &TopicName) -> bool {
        self.0.upgrade().is_some_and(|service| service.registry().shares_topic(region, name))
    }

    fn get<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<Arc<dyn TopicHandle>, BrokerError>> {
        Box::pin(async move {
            let gone = || BrokerError::NotReady("the broker is shutting down".to_owned());
            let service = self.0.upgrade().ok_or_else(gone)?;
            service.topic(name, Create::Never).await
        })
    }

    fn pass_on<'a>(&'a self, broker: &'a BrokerRecord, from: &'a str, delta: AckDelta) -> BoxFuture<'a, AckOutcome> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(service) => service.pass_acks_on(broker, from, delta).await,
                None => AckOutcome::Later("the broker is shutting down".to_owned()),
            }
        })
    }

    fn resync_elsewhere(&self, peer: &str, topic: &str, subscription: &str) {
        if let Some(service) = self.0.upgrade() {
            service.pass_resync_on(peer, topic, subscription);
        }
    }
}

impl BrokerService {
    /// Exchanges acknowledgements over the region link. Once, before [`Self::start`].
    pub fn attach_acks(self: &Arc<Self>, link: &Arc<RegionLink>) {
        let calls: Arc<dyn AckLink> = link.clone();
        self.acks.connect(Arc::new(TopicsOf(Arc::downgrade(self))), Arc::downgrade(&calls));
        link.set_acks(self.acks.clone());
    }

    /// The name of a region, its number if it is not known.
    pub fn region_name(&self, region: RegionId) -> String {
        self.acks.name_of(region).unwrap_or_else(|| region.0.to_string())
    }

    /// Whether a region is reached by no region link: its subscriptions follow by snapshots.
    pub fn is_without_link(&self, region: &str) -> bool {
        self.without_link().is_none_or(|names| names.contains(region))
    }

    /// Regions without a region link; `None` = all.
    fn without_link(&self) -> Option<BTreeSet<String>> {
        let attached = self.link()?;
        let none = |peer: PeerStatus| matches!(peer.state, PeerState::NoLink(_)).then_some(peer.region);
        Some(attached.link.peers().into_iter().filter_map(none).collect())
    }

    fn snapshot_setup(&self, topic: &TopicName, without_link: Option<&BTreeSet<String>>) -> SnapshotSetup {
        let own = &self.config.cluster;
        let clusters = self.registry.effective(topic).replication_clusters;
        let by_markers = |name: &String| name != own && without_link.is_none_or(|names| names.contains(name));
        let remotes = clusters.into_iter().filter(by_markers).collect();
        markers::setup(own, &self.config.replication, remotes, &self.replication.figures(topic))
    }

    /// Once a second: snapshots of subscriptions of topics that are copied to Pulsar clusters.
    pub(super) fn tick_snapshots(&self) {
        let topics = self.replication.topics();
        if topics.is_empty() || !self.config.replication.share_subscriptions {
            return;
        }
        let without_link = self.without_link();
        if without_link.as_ref().is_some_and(BTreeSet::is_empty) {
            return;
        }
        for name in topics {
            let Some(sharing) = self.loaded_topic(&name).and_then(|topic| topic.snapshot_sharing()) else { continue };
            sharing.tick_snapshots(self.snapshot_setup(&name, without_link.as_ref()));
        }
    }

    /// Tells a topic which regions its subscriptions are shared with.
    pub(super) fn share_acks(&self, topic: &Arc<dyn TopicHandle>) {
        if !self.config.replication.share_subscriptions {
            return;
        }
        self.acks.follow(&**topic, &self.registry.effective(topic.name()));
    }
}
