//! What is counted: clients while they are connected, and things when they are made.
//!
//! Invariants: E1 to E4 of the module above.

use super::{Node, Quotas};
use crate::error::BrokerError;
use crate::service::{BrokerService, ListDomain, is_system_topic};
use meridian_policy::quota::{Bound, Exceeded, Limit, Place};
use meridian_types::{NamespaceName, TopicName};
use std::sync::Arc;

/// A producer, consumer or connection that is counted; dropped, it is not any more (E2).
pub struct Hold {
    limit: Limit,
    nodes: Vec<Arc<Node>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.give_back(self.limit));
    }
}

impl Quotas {
    /// Counts a producer or consumer of a topic.
    ///
    /// # Errors
    /// [`Exceeded`] with the first place that has no room.
    pub fn hold(self: &Arc<Self>, limit: Limit, topic: &TopicName) -> Result<Hold, Exceeded> {
        match is_system_topic(topic) {
            true => Ok(Hold { limit, nodes: Vec::new() }),
            false => self.hold_at(limit, &Place::way_to(topic)),
        }
    }

    /// Counts a connection at places where it was not yet.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn hold_at(&self, limit: Limit, places: &[Place]) -> Result<Hold, Exceeded> {
        let nodes: Vec<Arc<Node>> = places.iter().map(|place| self.node(place)).collect();
        let _asking = self.asking.lock();
        for (place, node) in places.iter().zip(&nodes) {
            let used = node.count(limit);
            let Some(bound) = self.bound_at(limit, place) else { continue };
            if used >= self.allowed(&bound, used).min(bound.value) {
                self.note_refusal(&bound);
                return Err(Exceeded { bound, used });
            }
        }
        nodes.iter().for_each(|node| node.take(limit));
        Ok(Hold { limit, nodes })
    }

    /// How many clients are counted at a place here.
    pub fn counted(&self, limit: Limit, place: &Place) -> u64 {
        self.nodes.lock().get(place).map_or(0, |node| node.count(limit))
    }

    pub(super) fn check(&self, bound: Bound, used: u64, more: u64) -> Result<(), Exceeded> {
        if used.saturating_add(more) <= bound.value {
            return Ok(());
        }
        self.note_refusal(&bound);
        Err(Exceeded { bound, used })
    }
}

impl BrokerService {
    /// Whether there is room for so many more topics.
    ///
    /// # Errors
    /// [`BrokerError::Quota`], or what storage says.
    pub(crate) async fn check_topic_quota(&self, name: &TopicName, more: u32) -> Result<(), BrokerError> {
        if is_system_topic(name) {
            return Ok(());
        }
        let quotas = self.quotas().clone();
        for place in Place::way_to(name).iter().take(3) {
            let Some(bound) = quotas.bound_at(Limit::Topics, place) else { continue };
            let used = self.topics_of(place).await?;
            quotas.check(bound, used, u64::from(more))?;
        }
        Ok(())
    }

    /// Whether a topic may have so many partitions.
    ///
    /// # Errors
    /// [`BrokerError::Quota`].
    pub(crate) fn check_partition_quota(&self, name: &TopicName, count: u32) -> Result<(), BrokerError> {
        match self.quotas().book().bound_of(Limit::Partitions, name) {
            Some(bound) => Ok(self.quotas().check(bound, 0, u64::from(count))?),
            None => Ok(()),
        }
    }

    /// Whether there is room for one more namespace.
    ///
    /// # Errors
    /// [`BrokerError::Quota`].
    pub fn check_namespace_quota(&self, name: &NamespaceName) -> Result<(), BrokerError> {
        for place in [Place::Cluster, Place::Tenant(name.tenant().to_owned())] {
            let Some(bound) = self.quotas().bound_at(Limit::Namespaces, &place) else { continue };
            let used = match &place {
                Place::Tenant(tenant) => self.registry().namespaces(tenant).map_or(0, |all| all.len()),
                _ => {
                    let own = self.registry().namespaces("pulsar").map_or(0, |all| all.len());
                    self.registry().namespace_count() - own
                }
            };
            self.quotas().check(bound, used as u64, 1)?;
        }
        Ok(())
    }

    /// Whether there is room for one more durable subscription.
    ///
    /// # Errors
    /// [`BrokerError::Quota`].
    pub fn check_subscription_quota(&self, name: &TopicName, subscription: &str) -> Result<(), BrokerError> {
        if is_system_topic(name) || self.quotas().book().is_empty() {
            return Ok(());
        }
        let exists = || {
            let topic = self.loaded_topic(name)?;
            Some(topic.stats().subscriptions.iter().any(|one| one.durable && one.name == subscription))
        };
        for place in Place::way_to(name) {
            let Some(bound) = self.quotas().bound_at(Limit::Subscriptions, &place) else { continue };
            if exists() == Some(true) {
                return Ok(());
            }
            let used = self.quotas().subscriptions_at(self, &place);
            self.quotas().check(bound, used, 1)?;
        }
        Ok(())
    }

    /// Topics of a place, each partition one.
    ///
    /// # Errors
    /// What storage says.
    pub async fn topics_of(&self, place: &Place) -> Result<u64, BrokerError> {
        let namespaces = match place {
            Place::Cluster => self.registry().all_namespaces(),
            Place::Tenant(tenant) => self.registry().namespaces(tenant).unwrap_or_default(),
            Place::Namespace(namespace) => vec![namespace.clone()],
            Place::Topic(_) | Place::Group(_) => Vec::new(),
        };
        let mut count = 0;
        for namespace in namespaces {
            let topics = self.list_topics(&namespace, ListDomain::All).await?;
            count += topics.iter().filter(|topic| !is_system_topic(topic)).count() as u64;
        }
        Ok(count)
    }
}
