//! Questions of other brokers of the region, answered from what this one serves, and questions to them.
//!
//! Failure: [`WithinError`] for who has no right to ask; a refusal in words for everything else.
//! Must never know: how questions travel.

use super::{BrokerService, ListDomain};
use crate::colleagues::{Ask, Held, Said, WITHIN_LIMIT, bytes_of, pair};
use crate::failover::{TopicsHost, positions};
use meridian_failover::FailoverError;
use meridian_failover::returning::Tail;
use meridian_link::{AckDelta, AckOutcome};
use meridian_ownership::BrokerRecord;
use meridian_types::{NamespaceName, TopicName};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Pause before it is asked again how a switch ended.
const FREE_AGAIN: Duration = Duration::from_secs(1);

/// Why a question of another broker was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WithinError {
    /// It does not know the region's key.
    #[error("only brokers of this region are answered here")]
    Stranger,
    /// The key can't be read now.
    #[error("{0}")]
    NotNow(String),
    /// It can't be read.
    #[error("{0}")]
    Unreadable(String),
}

impl BrokerService {
    /// The broker that has a topic, if that is another one.
    pub(crate) fn elsewhere(&self, topic: &TopicName) -> Option<Arc<BrokerRecord>> {
        self.ownership.destination(topic)
    }

    /// Asks another broker of the region.
    ///
    /// # Errors
    /// What stands in the way.
    pub(crate) async fn ask(&self, broker: &BrokerRecord, ask: &Ask) -> Result<Said, String> {
        self.ask_within(broker, ask, WITHIN_LIMIT).await
    }

    /// As [`Self::ask`], with another limit.
    ///
    /// # Errors
    /// What stands in the way.
    pub(crate) async fn ask_within(&self, broker: &BrokerRecord, ask: &Ask, limit: Duration) -> Result<Said, String> {
        match self.colleagues.ask(broker, ask, limit).await? {
            Said::Refused(why) => Err(format!("broker {}: {why}", broker.id)),
            said => Ok(said),
        }
    }

    /// Asks all other brokers of the region at once.
    pub(crate) async fn ask_all(
        self: &Arc<Self>,
        ask: &Ask,
        limit: Duration,
    ) -> Vec<(Arc<BrokerRecord>, Result<Said, String>)> {
        let me = self.ownership.me().id.clone();
        let mut asked = JoinSet::new();
        for broker in self.ownership.brokers().into_iter().filter(|broker| broker.id != me) {
            let (service, ask) = (self.clone(), ask.clone());
            asked.spawn(async move {
                let said = service.ask_within(&broker, &ask, limit).await;
                (broker, said)
            });
        }
        asked.join_all().await
    }

    /// Answers another broker of the region.
    ///
    /// # Errors
    /// [`WithinError`].
    pub async fn within(self: &Arc<Self>, key: &str, body: &[u8]) -> Result<Vec<u8>, WithinError> {
        let known = self.colleagues.knows(key).await.map_err(|error| WithinError::NotNow(error.to_string()))?;
        if !known {
            return Err(WithinError::Stranger);
        }
        let ask = crate::colleagues::read(body).map_err(WithinError::Unreadable)?;
        let said = self.answer(ask).await.unwrap_or_else(Said::Refused);
        serde_json::to_vec(&said).map_err(|error| WithinError::Unreadable(error.to_string()))
    }

    async fn answer(self: &Arc<Self>, ask: Ask) -> Result<Said, String> {
        match ask {
            Ask::Acks { from, topic, subscription, full, payload } => {
                self.acks.hear(&from);
                let delta = AckDelta { token: 0, topic, subscription, full, payload: bytes_of(&payload)? };
                Ok(said(self.acks.receive_here(&from, delta).await))
            }
            Ask::Resync { peer, topic, subscription } => {
                self.acks.resync_here(&peer, &topic, &subscription);
                Ok(Said::Done)
            }
            Ask::Positions { topic } => {
                let found = positions::here(self, &topic).await?;
                let mark = |mark: &meridian_link::OriginMark| {
                    let (ledger, entry) = pair(mark.position);
                    (mark.region.0, mark.incarnation.0, ledger, entry)
                };
                let marks = found.marks.iter().map(mark).collect();
                Ok(Said::Positions { incarnation: found.incarnation.0, last: found.last.map(pair), marks })
            }
            Ask::Hold(held) => self.hold_here(&held).await.map(|()| Said::Done),
            Ask::Free { namespace, begun_ms } => {
                self.free_here(&name_of(&namespace)?, begun_ms).await.map_err(text)?;
                Ok(Said::Done)
            }
            Ask::Left(held) => {
                let namespace = name_of(&held.namespace)?;
                self.hold_here(&held).await?;
                let (entries, acks) = self.host()?.left_here(&namespace, &held.target).map_err(text)?;
                Ok(Said::Left { entries, acks })
            }
            Ask::Costs { namespace, target } => Ok(Said::Costs(self.host()?.cost_here(&name_of(&namespace)?, &target))),
            Ask::Cut { topic, record } => {
                let topic = TopicName::parse(&topic).map_err(text)?;
                self.host()?.cut_here(&topic, &record).await.map_err(text)?;
                Ok(Said::Done)
            }
            Ask::Replay { tail } => {
                let tail = Tail::decode(&bytes_of(&tail)?).map_err(text)?;
                let (ledger, entry) = pair(self.host()?.replay_here(&tail).await.map_err(text)?);
                Ok(Said::Position(ledger, entry))
            }
            Ask::Subscription { topics, name, deed } => self.subscriptions_here(&topics, name.as_deref(), deed).await,
            Ask::NonPersistent { namespace } => {
                let namespace = name_of(&namespace)?;
                let names = self.loaded_names(&namespace, ListDomain::NonPersistent);
                Ok(Said::Topics(names.map(|name| name.to_string()).collect()))
            }
            Ask::Release { tail } => {
                let tail = Tail::decode(&bytes_of(&tail)?).map_err(text)?;
                self.host()?.release_here(&tail).await.map_err(text)?;
                Ok(Said::Done)
            }
        }
    }

    fn host(&self) -> Result<&Arc<TopicsHost>, String> {
        self.topics_host.get().ok_or_else(|| "this broker takes no part in fail-over yet".to_owned())
    }

    fn failover_here(&self) -> Result<&Arc<meridian_failover::FailoverService>, String> {
        self.failover().ok_or_else(|| "this broker takes no part in fail-over yet".to_owned())
    }

    /// Holds publishes as another broker of the region asks; they are let go if nothing is heard of it any more.
    async fn hold_here(self: &Arc<Self>, held: &Held) -> Result<(), String> {
        let (namespace, failover) = (name_of(&held.namespace)?, self.failover_here()?);
        let fresh = failover.hold_too(&namespace, &held.target, held.begun_ms, held.deadline_ms).await.map_err(text)?;
        if fresh {
            let (service, held_of, begun_ms) = (Arc::downgrade(self), namespace.clone(), held.begun_ms);
            // As long again: who drives the switch may be storing its end.
            let after = Duration::from_millis(2 * held.deadline_ms.saturating_sub(held.begun_ms));
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                while let Some(service) = service.upgrade()
                    && let Err(error) = service.free_here(&held_of, begun_ms).await
                {
                    tracing::warn!(namespace = %held_of, %error, "publishes are held on: how the switch ended is not known");
                    drop(service);
                    tokio::time::sleep(FREE_AGAIN).await;
                }
            });
            self.host()?.freeze_here(&namespace).await.map_err(text)?;
        }
        Ok(())
    }

    async fn free_here(&self, namespace: &NamespaceName, begun_ms: u64) -> Result<(), FailoverError> {
        let (Some(failover), Some(host)) = (self.failover(), self.topics_host.get()) else { return Ok(()) };
        if failover.free(namespace, begun_ms).await? {
            host.rule_changed_here(namespace);
        }
        Ok(())
    }

    pub(crate) fn set_topics_host(&self, host: Arc<TopicsHost>) {
        if self.topics_host.set(host).is_err() {
            tracing::error!("the topics of a fail-over were given twice");
        }
    }

    /// The topic's owner merges what a region knows of acknowledgements.
    pub(super) async fn pass_acks_on(&self, broker: &BrokerRecord, from: &str, delta: AckDelta) -> AckOutcome {
        let ask = Ask::Acks {
            from: from.to_owned(),
            topic: delta.topic,
            subscription: delta.subscription,
            full: delta.full,
            payload: crate::colleagues::text_of(&delta.payload),
        };
        match self.colleagues.ask(broker, &ask, WITHIN_LIMIT).await {
            Ok(Said::Stored) => AckOutcome::Stored,
            Ok(Said::Resync) => AckOutcome::Resync,
            Ok(Said::Refused(why)) => AckOutcome::Refused(why),
            Ok(Said::Later(why)) | Err(why) => AckOutcome::Later(why),
            Ok(other) => AckOutcome::Later(format!("broker {} answered {other:?}", broker.id)),
        }
    }

    /// Who else may have what a region asks for tells it.
    pub(super) fn pass_resync_on(self: &Arc<Self>, peer: &str, topic: &str, subscription: &str) {
        let ask = Ask::Resync { peer: peer.to_owned(), topic: topic.to_owned(), subscription: subscription.to_owned() };
        let (service, topic) = (self.clone(), TopicName::parse(topic).ok());
        tokio::spawn(async move {
            let all = match &topic {
                Some(topic) => match service.elsewhere(topic) {
                    Some(broker) => {
                        let said = service.ask(&broker, &ask).await;
                        vec![(broker, said)]
                    }
                    None => Vec::new(),
                },
                None => service.ask_all(&ask, WITHIN_LIMIT).await,
            };
            for (broker, said) in all {
                if let Err(error) = said {
                    tracing::warn!(broker = broker.id, error, "a broker does not tell a region what it asks for");
                }
            }
        });
    }
}

fn name_of(namespace: &str) -> Result<NamespaceName, String> {
    NamespaceName::parse(namespace).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn said(outcome: Result<AckOutcome, Arc<BrokerRecord>>) -> Said {
    match outcome {
        Ok(AckOutcome::Stored) => Said::Stored,
        Ok(AckOutcome::Resync) => Said::Resync,
        Ok(AckOutcome::Later(why)) => Said::Later(why),
        Ok(AckOutcome::Refused(why)) => Said::Refused(why),
        // It has moved on: it is looked for again (C2).
        Err(broker) => Said::Later(format!("broker {} has it now", broker.id)),
    }
}
