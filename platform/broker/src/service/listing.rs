//! The topics of a namespace.

use super::BrokerService;
use crate::colleagues::{Ask, Said};
use crate::error::BrokerError;
use meridian_types::{Domain, NamespaceName, TopicName};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long another broker may take to name its topics that keep nothing.
const NAMED_WITHIN: Duration = Duration::from_secs(5);

/// Which topics to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListDomain {
    /// Stored ones.
    Persistent,
    /// Those in memory.
    NonPersistent,
    /// Both.
    All,
}

impl ListDomain {
    fn holds(self, domain: Domain) -> bool {
        match self {
            ListDomain::Persistent => domain == Domain::Persistent,
            ListDomain::NonPersistent => domain == Domain::NonPersistent,
            ListDomain::All => true,
        }
    }
}

/// Whether a topic belongs to the platform: clients never list it, idle cleanup and quotas pass it by.
pub fn is_system_topic(name: &TopicName) -> bool {
    let local = name.base();
    let local = local.local();
    local.starts_with("__") && (local == "__change_events" || local.starts_with("__transaction"))
        || name.namespace().as_str() == "pulsar/system"
}

impl BrokerService {
    /// Topics of a namespace, in name order; each partition is one. System topics included.
    ///
    /// # Errors
    /// What storage says.
    pub async fn list_topics(
        &self,
        namespace: &NamespaceName,
        domain: ListDomain,
    ) -> Result<Vec<TopicName>, BrokerError> {
        let mut names = BTreeSet::new();
        if domain.holds(Domain::Persistent) {
            names.extend(self.factory.list(namespace).await?);
            for topic in self.registry.partitioned_topics(namespace) {
                let count = self.registry.partitions(&topic).filter(|_| topic.domain() == Domain::Persistent);
                names.extend((0..count.unwrap_or(0)).map(|partition| topic.with_partition(partition)));
            }
        }
        names.extend(self.loaded_names(namespace, domain));
        Ok(names.into_iter().collect())
    }

    /// Topics of a namespace that are stored, in name order; partitions that nobody used yet are not.
    pub(crate) async fn stored_topics(&self, namespace: &NamespaceName) -> Result<Vec<TopicName>, BrokerError> {
        self.factory.list(namespace).await
    }

    /// As [`Self::list_topics`], with the topics that other brokers of the region have in memory alone.
    ///
    /// # Errors
    /// What storage says; [`BrokerError::NotReady`] if a broker does not answer, because a list without its topics would have
    /// clients let go of them.
    pub async fn list_everywhere(
        self: &Arc<Self>,
        namespace: &NamespaceName,
        domain: ListDomain,
    ) -> Result<Vec<TopicName>, BrokerError> {
        let mut names = self.list_topics(namespace, domain).await?;
        if self.ownership.is_alone() || !domain.holds(Domain::NonPersistent) {
            return Ok(names);
        }
        for (broker, said) in self.ask_all(&Ask::NonPersistent { namespace: namespace.to_string() }, NAMED_WITHIN).await
        {
            match said {
                Ok(Said::Topics(theirs)) => names.extend(theirs.iter().filter_map(|name| TopicName::parse(name).ok())),
                Ok(_) => return Err(BrokerError::NotReady(format!("broker {} does not name its topics", broker.id))),
                // It can never be asked; what it has is listed where clients ask it.
                Err(_) if broker.web_url.is_none() => {}
                Err(why) => return Err(BrokerError::NotReady(format!("topics of {namespace}: {why}"))),
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Names of what is served here.
    pub(super) fn loaded_names(
        &self,
        namespace: &NamespaceName,
        domain: ListDomain,
    ) -> impl Iterator<Item = TopicName> {
        let loaded = self.loaded_topics().into_iter().map(|topic| topic.name().clone());
        loaded.filter(move |name| domain.holds(name.domain()) && name.namespace() == *namespace)
    }

    /// Partitioned topics of a namespace, in name order.
    pub fn list_partitioned_topics(&self, namespace: &NamespaceName, domain: ListDomain) -> Vec<TopicName> {
        let mut topics = self.registry.partitioned_topics(namespace);
        topics.retain(|topic| domain.holds(topic.domain()));
        topics
    }
}
