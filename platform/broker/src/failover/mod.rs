//! The topics of this region under a fail-over: gates, draining, figures, tails.
//!
//! Role: [`TopicsHost`] does for [`meridian_failover::FailoverService`] what concerns topics; the rest of the broker asks
//! [`BrokerService::publish_rule`] and [`BrokerService::link_rule`].
//! Invariants: X1 a topic that is loaded while a namespace is held or moved has that gate before anybody gets its handle;
//! X2 a change of rule closes the links that come in, so that each is asked for its epoch anew.
//! Failure: what can't be done now is an error for the service, which tries again or gives up.
//! Must never know: epochs' meaning, how regions talk.

mod positions;
mod tails;

pub use positions::TopicPositionsHere;

use crate::replication::Epochs;
use crate::service::{BrokerService, ListDomain};
use meridian_failover::{
    ActiveRecord, Epoch, FailoverError, FailoverService, Host, LinkRule, PublishRule, SubscriptionCost, TopicCost,
    returning::Tail,
};
use meridian_metadata::BoxFuture;
use meridian_topic::{Gate, MovedTo, SubscriptionStats, TopicHandle};
use meridian_types::{Domain, NamespaceName, Position, RegionId, TopicName};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a switch waits for messages that consumers hold to be acked.
const SETTLE: Duration = Duration::from_millis(300);
/// Pause between two looks at what is under way.
const LOOK: Duration = Duration::from_millis(5);

/// Acknowledgements on their way to other regions.
pub trait AckFigures: Send + Sync {
    /// Per subscription of the topic: whether its state is carried to the region, and how many acked messages the region
    /// has not confirmed to know.
    fn against(&self, topic: &TopicName, region: &str) -> Vec<SubscriptionCost>;
}

/// The figures of a broker's topics.
pub struct SharedStates(pub Weak<BrokerService>);

impl AckFigures for SharedStates {
    fn against(&self, topic: &TopicName, region: &str) -> Vec<SubscriptionCost> {
        let topic = self.0.upgrade().and_then(|service| service.loaded_topic(topic));
        let subscriptions = topic.map(|topic| topic.stats().subscriptions).unwrap_or_default();
        let region = RegionId::of(region);
        let cost = |one: SubscriptionStats| {
            let peer = one.acks.as_ref().and_then(|acks| acks.peers.iter().find(|(peer, _)| *peer == region));
            let shared = one.acks.as_ref().is_some_and(|acks| acks.shared && acks.applied);
            let again = peer.map_or(0, |(_, lag)| {
                let settled = shared && !lag.everything && !lag.relaying && lag.since_ms.is_none();
                // What is on its way counts, even if it says little.
                if settled { lag.entries } else { lag.entries.max(1) }
            });
            SubscriptionCost { subscription: one.name, replicated: peer.is_some(), again }
        };
        subscriptions.into_iter().filter(|one| one.durable).map(cost).collect()
    }
}

/// See the module.
pub struct TopicsHost {
    service: Weak<BrokerService>,
    acks: Arc<dyn AckFigures>,
}

impl TopicsHost {
    /// Over the topics of a broker.
    pub fn new(service: &Arc<BrokerService>, acks: Arc<dyn AckFigures>) -> Self {
        Self { service: Arc::downgrade(service), acks }
    }

    fn service(&self) -> Result<Arc<BrokerService>, FailoverError> {
        self.service.upgrade().ok_or_else(|| FailoverError::Host("the broker is ending".to_owned()))
    }

    fn loaded(&self, namespace: &NamespaceName) -> Vec<Arc<dyn TopicHandle>> {
        let Some(service) = self.service.upgrade() else { return Vec::new() };
        service.loaded_topics().into_iter().filter(|topic| topic.name().namespace() == *namespace).collect()
    }

    fn topic_cost(service: &BrokerService, acks: &dyn AckFigures, topic: &TopicName, target: &str) -> TopicCost {
        let figures = service.replication().figures(topic).into_iter().find(|link| link.remote == target);
        let (missing, link) = match figures {
            Some(figures) => (figures.backlog, figures.state),
            None => (0, "no link".to_owned()),
        };
        TopicCost { topic: topic.to_string(), missing, link, subscriptions: acks.against(topic, target) }
    }
}

impl Host for TopicsHost {
    fn regions_of(&self, namespace: &NamespaceName) -> Vec<String> {
        let Some(service) = self.service.upgrade() else { return Vec::new() };
        let policies = service.registry().namespace(namespace);
        policies.map(|policies| policies.replication_clusters.iter().cloned().collect()).unwrap_or_default()
    }

    fn rule_changed<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(service) = self.service.upgrade() else { return };
            for topic in self.loaded(namespace) {
                topic.set_gate(service.gate_of(topic.name()));
                topic.close_links();
                service.replication().follow(topic.name());
            }
        })
    }

    fn freeze<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<(), FailoverError>> {
        Box::pin(async move {
            let service = self.service()?;
            let begun = Instant::now();
            // The rule says "hold" already; links stay as they are, they have to drain.
            let hold = |topic: &Arc<dyn TopicHandle>| topic.set_gate(service.gate_of(topic.name()));
            self.loaded(namespace).iter().for_each(hold);
            loop {
                // Again for topics that were being loaded.
                let topics = self.loaded(namespace);
                topics.iter().for_each(hold);
                let under_way = topics.iter().map(|topic| topic.unsettled());
                let (sends, unacked) =
                    under_way.fold((0, 0), |(sends, unacked), one| (sends + one.sends, unacked + one.unacked));
                if sends == 0 && (unacked == 0 || begun.elapsed() >= SETTLE) {
                    return Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        })
    }

    fn left<'a>(
        &'a self,
        namespace: &'a NamespaceName,
        target: &'a str,
    ) -> BoxFuture<'a, Result<(u64, u64), FailoverError>> {
        Box::pin(async move {
            // What third regions acknowledged has to be there too, and the new active region may not reach them.
            for topic in self.loaded(namespace) {
                if let Some(sharing) = topic.ack_sharing() {
                    sharing.relay_acks_now(RegionId::of(target));
                }
            }
            let costs = self.cost(namespace, target).await;
            if let Some(topic) = costs.iter().find(|topic| topic.link == "no link") {
                return Err(FailoverError::Host(format!("topic {} has no link to {target}", topic.topic)));
            }
            let acks = costs.iter().flat_map(|topic| &topic.subscriptions).filter(|one| one.replicated);
            Ok((costs.iter().map(|topic| topic.missing).sum(), acks.map(|one| one.again).sum()))
        })
    }

    fn move_clients<'a>(&'a self, namespace: &'a NamespaceName, _: &'a str) -> BoxFuture<'a, ()> {
        // The rule says where they belong.
        self.rule_changed(namespace)
    }

    fn cost<'a>(&'a self, namespace: &'a NamespaceName, target: &'a str) -> BoxFuture<'a, Vec<TopicCost>> {
        Box::pin(async move {
            let Some(service) = self.service.upgrade() else { return Vec::new() };
            let topics = self.loaded(namespace);
            let kept = topics.iter().filter(|topic| topic.name().domain() == Domain::Persistent);
            kept.filter(|topic| !crate::service::is_system_topic(topic.name()))
                .map(|topic| Self::topic_cost(&service, &*self.acks, topic.name(), target))
                .collect()
        })
    }

    fn cut_tails<'a>(
        &'a self,
        namespace: &'a NamespaceName,
        record: &'a ActiveRecord,
        store: &'a (dyn Fn(Tail) -> BoxFuture<'a, Result<(), FailoverError>> + Sync),
    ) -> BoxFuture<'a, Result<(), FailoverError>> {
        Box::pin(async move {
            let service = self.service()?;
            let topics = service.list_topics(namespace, ListDomain::Persistent).await;
            for topic in topics.map_err(|error| FailoverError::Host(error.to_string()))? {
                if !crate::service::is_system_topic(&topic) {
                    tails::cut(&service, &topic, record, store).await?;
                }
            }
            Ok(())
        })
    }

    fn replay_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<Position, FailoverError>> {
        Box::pin(async move { tails::replay(&self.service()?, tail).await })
    }

    fn release_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<(), FailoverError>> {
        Box::pin(async move { tails::release(&self.service()?, tail).await })
    }
}

struct LinkEpochs(Arc<FailoverService>);

impl Epochs for LinkEpochs {
    fn epoch(&self, topic: &TopicName) -> Result<Option<String>, String> {
        let epoch = self.0.link_epoch(&topic.namespace()).map_err(|error| error.to_string())?;
        Ok(epoch.map(|epoch| epoch.to_string()))
    }
}

impl BrokerService {
    /// Puts fail-over in force. Once, before [`BrokerService::start`].
    pub fn set_failover(&self, failover: Arc<FailoverService>) {
        self.replication().linker().attach(Arc::new(LinkEpochs(failover.clone())));
        if self.failover_slot().set(failover).is_err() {
            tracing::error!("fail-over was put in force twice");
        }
    }

    /// Who is active for which namespace, if this region takes part in that.
    pub fn failover(&self) -> Option<&Arc<FailoverService>> {
        self.failover_slot().get()
    }

    /// What ordinary producers and consumers of a topic get.
    pub fn publish_rule(&self, topic: &TopicName) -> PublishRule {
        match self.failover() {
            Some(failover) if !crate::service::is_system_topic(topic) => failover.publish_rule(&topic.namespace()),
            _ => PublishRule::Accept,
        }
    }

    /// What a link into a topic gets whose source names `epoch`.
    pub fn link_rule(&self, topic: &TopicName, epoch: Option<&str>) -> LinkRule {
        let epoch = epoch.and_then(|epoch| epoch.parse::<Epoch>().ok());
        self.failover().map_or(LinkRule::Accept, |failover| failover.link_rule(&topic.namespace(), epoch))
    }

    /// The gate that the rule of a topic makes.
    pub fn gate_of(&self, topic: &TopicName) -> Gate {
        match self.publish_rule(topic) {
            PublishRule::Accept => Gate::Open,
            PublishRule::Hold(reason) => Gate::Held(reason.into()),
            PublishRule::Moved { to } => Gate::Moved(Arc::new(self.address_of(&to))),
        }
    }

    /// Where clients reach another region.
    pub fn address_of(&self, region: &str) -> MovedTo {
        let cluster = self.registry().cluster(region);
        MovedTo {
            region: region.to_owned(),
            broker_url: cluster.as_ref().and_then(|cluster| cluster.broker_service_url.clone()),
            broker_url_tls: cluster.as_ref().and_then(|cluster| cluster.broker_service_url_tls.clone()),
        }
    }
}
