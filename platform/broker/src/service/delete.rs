//! Sending topics away: unloading and deleting.
//!
//! Invariant: B2 the slot is emptied only after the handle has closed (or the close has failed, which is reported; the
//! next owner's fencing makes a half-closed log harmless).

use super::topic_map::{Departure, Leave};
use super::{BrokerService, TopicEvent};
use crate::error::BrokerError;
use crate::quotas::Forgotten;
use meridian_managed_ledger::LogError;
use meridian_policy::quota::Place;
use meridian_topic::{TopicError, TopicErrorKind};
use meridian_types::{Domain, TopicName};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Topics that close at once at the broker's end.
pub(super) const CLOSES: usize = 64;
/// Topics that move to another broker at once: their clients wait while they do, so few at a time and each quickly.
pub(super) const HAND_OVERS: usize = 16;
/// How long a topic may take to close or delete itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

fn too_long(what: String) -> BrokerError {
    BrokerError::TimedOut { what, limit_ms: LEAVE_TIMEOUT.as_millis() as u64 }
}

/// What becomes of a topic's policies and schemas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Records {
    /// They go, too.
    Delete,
    /// They stay.
    Keep,
}

impl BrokerService {
    async fn departure(&self, name: &TopicName) -> Option<Departure> {
        loop {
            match self.topics.leave(name) {
                Leave::Absent => return None,
                Leave::Depart(departure) => return Some(departure),
                Leave::Leaving(mut gone) => while gone.changed().await.is_ok() {},
                Leave::Loading(mut outcome) => {
                    let _ = outcome.wait_for(Option::is_some).await;
                }
            }
        }
    }

    /// Unloads a topic: its clients are closed and look it up again. Not loaded is no error.
    ///
    /// # Errors
    /// [`BrokerError::TimedOut`] or what the topic says.
    pub async fn unload_topic(&self, name: &TopicName) -> Result<(), BrokerError> {
        let unload = async {
            let Some(departure) = self.departure(name).await else { return Ok(()) };
            let _without_links = self.replication.stop(name).await;
            let topic = departure.handle();
            self.quotas.usage.topic_closing(self, &**topic, super::now_ms());
            match self.ownership.destination(name) {
                Some(_) => topic.hand_over().await.map_err(BrokerError::from),
                None => topic.close().await.map_err(BrokerError::from),
            }
        };
        timeout(LEAVE_TIMEOUT, unload).await.unwrap_or_else(|_| Err(too_long(format!("unloading topic {name}"))))
    }

    /// Unloads topics, so many side by side.
    pub(super) async fn unload_all(
        self: &Arc<Self>,
        names: Vec<TopicName>,
        side_by_side: usize,
    ) -> Result<(), BrokerError> {
        let mut tasks = tokio::task::JoinSet::new();
        let mut outcome = Ok(());
        for name in names {
            if tasks.len() >= side_by_side {
                outcome = first_error(outcome, tasks.join_next().await);
            }
            let service = self.clone();
            tasks.spawn(async move { service.unload_topic(&name).await });
        }
        while let Some(ended) = tasks.join_next().await {
            outcome = first_error(outcome, Some(ended));
        }
        outcome
    }

    /// Deletes one topic (a partition counts as one) with its schema, if it is the last of that name. With clients only
    /// if `force`.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`], a topic error of kind Busy, or what storage says.
    pub async fn delete_topic(&self, name: &TopicName, force: bool) -> Result<(), BrokerError> {
        self.delete_topic_with(name, force, Records::Delete).await
    }

    /// Deletes a topic that nobody uses here. Where other regions share it they may use it: its policies and schemas stay.
    pub(super) async fn delete_unused_topic(&self, name: &TopicName) -> Result<(), BrokerError> {
        let records = if self.registry.is_shared(name) { Records::Keep } else { Records::Delete };
        self.delete_topic_with(name, false, records).await
    }

    async fn delete_topic_with(&self, name: &TopicName, force: bool, records: Records) -> Result<(), BrokerError> {
        let delete = async {
            match self.departure(name).await {
                Some(departure) => {
                    let without_links = self.replication.stop(name).await;
                    match departure.handle().delete(force).await {
                        Err(error @ TopicError { kind: TopicErrorKind::Busy, .. }) => {
                            departure.stay();
                            drop(without_links);
                            self.replication.follow(name);
                            return Err(error.into());
                        }
                        other => other?,
                    }
                }
                None if name.domain() == Domain::Persistent && self.factory.exists(name).await? => {
                    // Its owner knows whether it is used; by force it is deleted under the owner, which learns of it.
                    if let Some(broker) = self.ownership().destination(name).filter(|_| !force) {
                        return Err(BrokerError::Elsewhere { topic: name.to_string(), broker });
                    }
                    self.factory.delete(name).await?;
                }
                None => return Err(BrokerError::TopicNotFound(format!("Topic {name} not found"))),
            }
            self.quotas.topic_deleted(name);
            if !self.topic_exists(name).await? {
                self.announce(TopicEvent::Deleted(name.clone()));
            }
            if name.partition().is_none() && records == Records::Delete {
                self.purge_schemas(name).await?;
                self.registry.delete_topic_policies(name).await?;
                self.forget_quotas(&Place::Topic(name.clone()), Forgotten::OfTenant).await?;
            }
            Ok(())
        };
        timeout(LEAVE_TIMEOUT, delete).await.unwrap_or_else(|_| Err(too_long(format!("deleting topic {name}"))))
    }
}

/// Whether the topic was not there at all.
pub(super) fn is_absent(error: &BrokerError) -> bool {
    matches!(error, BrokerError::TopicNotFound(_) | BrokerError::Log(LogError::NoSuchLog(_)))
        || matches!(error, BrokerError::Topic(error) if error.kind == TopicErrorKind::TopicNotFound)
}

type Joined = Option<Result<Result<(), BrokerError>, tokio::task::JoinError>>;

fn first_error(outcome: Result<(), BrokerError>, ended: Joined) -> Result<(), BrokerError> {
    match (outcome, ended) {
        (Ok(()), Some(Ok(result))) => result,
        (Ok(()), Some(Err(error))) => Err(BrokerError::NotReady(error.to_string())),
        (outcome, _) => outcome,
    }
}
