//! Acknowledgements shared between regions: the exchange's way to topics.

use super::{BrokerService, Create};
use crate::error::BrokerError;
use crate::replication::{AckLink, AckTopics};
use meridian_link::RegionLink;
use meridian_topic::TopicHandle;
use meridian_topic::api::BoxFuture;
use meridian_types::{RegionId, TopicName};
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

    fn get<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<Arc<dyn TopicHandle>, BrokerError>> {
        Box::pin(async move {
            let gone = || BrokerError::NotReady("the broker is shutting down".to_owned());
            let service = self.0.upgrade().ok_or_else(gone)?;
            service.topic(name, Create::Never).await
        })
    }
}

impl BrokerService {
    /// Exchanges acknowledgements over the control link. Once, before [`Self::start`].
    pub fn attach_acks(self: &Arc<Self>, link: &Arc<RegionLink>) {
        let calls: Arc<dyn AckLink> = link.clone();
        self.acks.connect(Arc::new(TopicsOf(Arc::downgrade(self))), Arc::downgrade(&calls));
        link.set_acks(self.acks.clone());
    }

    /// The name of a region, its number if it is not known.
    pub fn region_name(&self, region: RegionId) -> String {
        self.acks.name_of(region).unwrap_or_else(|| region.0.to_string())
    }

    /// Tells a topic which regions its subscriptions are shared with.
    pub(super) fn share_acks(&self, topic: &Arc<dyn TopicHandle>) {
        self.acks.follow(&**topic, &self.registry.effective(topic.name()));
    }
}
