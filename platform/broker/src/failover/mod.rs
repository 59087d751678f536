//! The topics of this region under a fail-over: gates, draining, figures, tails.
//!
//! Role: [`TopicsHost`] does for [`meridian_failover::FailoverService`] what concerns topics; the rest of the broker asks
//! [`BrokerService::publish_rule`] and [`BrokerService::link_rule`].
//! Every broker of the region is asked what concerns topics that it serves.
//! Invariants: X1 a topic that is loaded while a namespace is held or moved has that gate before anybody gets its handle;
//! X2 a change of rule closes the links that come in, so that each is asked for its epoch anew.
//! Failure: what can't be done now is an error for the service, which tries again or gives up.
//! Must never know: epochs' meaning, how regions talk.

pub(crate) mod positions;
mod tails;

pub use positions::TopicPositionsHere;

use crate::colleagues::{Ask, Held, Said, WITHIN_LIMIT, position, text_of};
use crate::replication::Epochs;
use crate::service::{BrokerService, ListDomain};
use meridian_failover::{
    ActiveRecord, Costs, Epoch, FailoverError, FailoverService, Host, LinkRule, Phase, PublishRule, SubscriptionCost,
    TopicCost, returning::Tail,
};
use meridian_metadata::BoxFuture;
use meridian_ownership::BrokerRecord;
use meridian_topic::{Gate, MovedTo, SubscriptionStats, TopicHandle};
use meridian_types::{Domain, NamespaceName, Position, RegionId, TopicName};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pause between two looks at what is under way.
const LOOK: Duration = Duration::from_millis(5);
/// How long another broker may take to set a tail aside, or to publish one.
const TAIL_LIMIT: Duration = Duration::from_secs(300);

/// Said of a topic without a link to the target.
const NO_LINK: &str = "no link";

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
    settle: Duration,
    /// Several brokers may ask for the same: one at a time, and the second finds it done.
    cutting: tokio::sync::Mutex<()>,
}

impl TopicsHost {
    /// Over the topics of a broker; a switch waits so long for messages that consumers hold to be acked.
    pub fn new(service: &Arc<BrokerService>, acks: Arc<dyn AckFigures>, settle: Duration) -> Self {
        Self { service: Arc::downgrade(service), acks, settle, cutting: tokio::sync::Mutex::default() }
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
            Some(figures) => (Some(figures.backlog), figures.state),
            // Nobody counts what a region lacks that no link leads to.
            None => (None, NO_LINK.to_owned()),
        };
        TopicCost { topic: topic.to_string(), missing, link, subscriptions: acks.against(topic, target) }
    }

    /// The rule of topics of this broker has changed.
    pub(crate) fn rule_changed_here(&self, namespace: &NamespaceName) {
        let Some(service) = self.service.upgrade() else { return };
        for topic in self.loaded(namespace) {
            topic.set_gate(service.gate_of(topic.name()));
            topic.close_links();
            service.replication().follow(topic.name());
        }
    }

    /// Holds publishes of topics of this broker; what is in flight is stored then.
    pub(crate) async fn freeze_here(&self, namespace: &NamespaceName) -> Result<(), FailoverError> {
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
            if sends == 0 && (unacked == 0 || begun.elapsed() >= self.settle) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What a target has not confirmed of topics of this broker.
    pub(crate) fn left_here(&self, namespace: &NamespaceName, target: &str) -> Result<(u64, u64), FailoverError> {
        // What third regions acknowledged has to be there too, and the new active region may not reach them.
        for topic in self.loaded(namespace) {
            if let Some(sharing) = topic.ack_sharing() {
                sharing.relay_acks_now(RegionId::of(target));
            }
        }
        let costs = self.cost_here(namespace, target);
        let missing = costs.iter().map(|topic| {
            topic
                .missing
                .ok_or_else(|| FailoverError::Host(format!("topic {} has {} to {target}", topic.topic, topic.link)))
        });
        let missing = missing.sum::<Result<u64, FailoverError>>()?;
        let acks = costs.iter().flat_map(|topic| &topic.subscriptions).filter(|one| one.replicated);
        Ok((missing, acks.map(|one| one.again).sum()))
    }

    /// Figures of topics of this broker.
    pub(crate) fn cost_here(&self, namespace: &NamespaceName, target: &str) -> Vec<TopicCost> {
        let Some(service) = self.service.upgrade() else { return Vec::new() };
        let topics = self.loaded(namespace);
        let kept = topics.iter().filter(|topic| topic.name().domain() == Domain::Persistent);
        kept.filter(|topic| !crate::service::is_system_topic(topic.name()))
            .map(|topic| Self::topic_cost(&service, &*self.acks, topic.name(), target))
            .collect()
    }

    /// Sets aside what the active region never got of a topic of this broker.
    pub(crate) async fn cut_here(&self, topic: &TopicName, record: &ActiveRecord) -> Result<(), FailoverError> {
        let service = self.service()?;
        let failover = service.failover().ok_or_else(|| FailoverError::Host("fail-over does not run".to_owned()))?;
        let store = |tail: Tail| -> BoxFuture<'_, Result<(), FailoverError>> { Box::pin(failover.store_tail(tail)) };
        let _turn = self.cutting.lock().await;
        tails::cut(&service, topic, record, &store).await
    }

    /// Publishes a tail of a topic of this broker.
    pub(crate) async fn replay_here(&self, tail: &Tail) -> Result<Position, FailoverError> {
        tails::replay(&self.service()?, tail).await
    }

    /// Lets go of a tail of a topic of this broker.
    pub(crate) async fn release_here(&self, tail: &Tail) -> Result<(), FailoverError> {
        tails::release(&self.service()?, tail).await
    }

    /// The switch that holds publishes of a namespace now.
    fn held(service: &BrokerService, namespace: &NamespaceName) -> Result<Held, FailoverError> {
        let phase = service.failover().and_then(|failover| failover.state(namespace)).map(|state| state.phase);
        match phase {
            Some(Phase::Draining { to, begun_ms, deadline_ms }) => {
                Ok(Held { namespace: namespace.to_string(), target: to, begun_ms, deadline_ms })
            }
            _ => Err(FailoverError::Host(format!("no switch of {namespace} holds publishes"))),
        }
    }

    async fn ask(&self, broker: &BrokerRecord, ask: &Ask) -> Result<Said, FailoverError> {
        self.service()?.ask_within(broker, ask, TAIL_LIMIT).await.map_err(FailoverError::Host)
    }
}

impl Host for TopicsHost {
    fn regions_of(&self, namespace: &NamespaceName) -> Vec<String> {
        let Some(service) = self.service.upgrade() else { return Vec::new() };
        let policies = service.registry().namespace(namespace);
        policies.map(|policies| policies.replication_clusters.iter().cloned().collect()).unwrap_or_default()
    }

    fn rule_changed<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, ()> {
        self.rule_changed_here(namespace);
        Box::pin(std::future::ready(()))
    }

    fn freeze<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<(), FailoverError>> {
        Box::pin(async move {
            let service = self.service()?;
            let held = Self::held(&service, namespace)?;
            let limit = Duration::from_millis(held.deadline_ms.saturating_sub(held.begun_ms));
            let ask = Ask::Hold(held);
            let (here, elsewhere) = tokio::join!(self.freeze_here(namespace), service.ask_all(&ask, limit));
            here?;
            elsewhere.into_iter().try_for_each(|(_, said)| said.map(drop).map_err(FailoverError::Host))
        })
    }

    fn thaw<'a>(&'a self, namespace: &'a NamespaceName, begun_ms: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.rule_changed_here(namespace);
            let Some(service) = self.service.upgrade() else { return };
            let ask = Ask::Free { namespace: namespace.to_string(), begun_ms };
            for (broker, said) in service.ask_all(&ask, WITHIN_LIMIT).await {
                if let Err(error) = said {
                    tracing::warn!(broker = broker.id, error, "a broker lets publishes go when its time is over");
                }
            }
        })
    }

    fn left<'a>(
        &'a self,
        namespace: &'a NamespaceName,
        target: &'a str,
    ) -> BoxFuture<'a, Result<(u64, u64), FailoverError>> {
        Box::pin(async move {
            let service = self.service()?;
            let ask = Ask::Left(Self::held(&service, namespace)?);
            let (mut entries, mut acks) = self.left_here(namespace, target)?;
            for (broker, said) in service.ask_all(&ask, WITHIN_LIMIT).await {
                match said.map_err(FailoverError::Host)? {
                    Said::Left { entries: more, acks: more_acks } => {
                        entries += more;
                        acks += more_acks;
                    }
                    other => return Err(FailoverError::Host(format!("broker {} answered {other:?}", broker.id))),
                }
            }
            Ok((entries, acks))
        })
    }

    fn move_clients<'a>(&'a self, namespace: &'a NamespaceName, _: &'a str) -> BoxFuture<'a, ()> {
        // The rule says where they belong; other brokers read it from the store.
        self.rule_changed(namespace)
    }

    fn cost<'a>(&'a self, namespace: &'a NamespaceName, target: &'a str) -> BoxFuture<'a, Costs> {
        Box::pin(async move {
            let mut costs = Costs { topics: self.cost_here(namespace, target), silent: Vec::new() };
            let Some(service) = self.service.upgrade() else { return costs };
            let ask = Ask::Costs { namespace: namespace.to_string(), target: target.to_owned() };
            for (broker, said) in service.ask_all(&ask, WITHIN_LIMIT).await {
                // What is not known is not nothing.
                match said {
                    Ok(Said::Costs(more)) => costs.topics.extend(more),
                    Ok(_) => costs.silent.push(format!("broker {} does not say what its topics lack", broker.id)),
                    Err(error) => costs.silent.push(error),
                }
            }
            costs
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
                if crate::service::is_system_topic(&topic) {
                    continue;
                }
                match service.elsewhere(&topic) {
                    None => {
                        let _turn = self.cutting.lock().await;
                        tails::cut(&service, &topic, record, store).await?;
                    }
                    Some(broker) => {
                        let ask = Ask::Cut { topic: topic.to_string(), record: record.clone() };
                        self.ask(&broker, &ask).await?;
                    }
                }
            }
            Ok(())
        })
    }

    fn replay_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<Position, FailoverError>> {
        Box::pin(async move {
            let Some(broker) = self.service()?.elsewhere(&tail.topic) else { return self.replay_here(tail).await };
            match self.ask(&broker, &Ask::Replay { tail: text_of(&tail.encode()) }).await? {
                Said::Position(ledger, entry) => Ok(position((ledger, entry))),
                other => Err(FailoverError::Host(format!("broker {} answered {other:?}", broker.id))),
            }
        })
    }

    fn release_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<(), FailoverError>> {
        Box::pin(async move {
            let Some(broker) = self.service()?.elsewhere(&tail.topic) else { return self.release_here(tail).await };
            self.ask(&broker, &Ask::Release { tail: text_of(&tail.encode()) }).await.map(drop)
        })
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
    pub fn set_failover(&self, failover: Arc<FailoverService>, host: Arc<TopicsHost>) {
        self.set_topics_host(host);
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
