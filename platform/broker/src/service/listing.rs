//! The topics of a namespace.

use super::BrokerService;
use crate::error::BrokerError;
use meridian_types::{Domain, NamespaceName, TopicName};
use std::collections::BTreeSet;

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
        let loaded = self.loaded_topics().into_iter().map(|topic| topic.name().clone());
        names.extend(loaded.filter(|name| domain.holds(name.domain()) && name.namespace() == *namespace));
        Ok(names.into_iter().collect())
    }

    /// Topics of a namespace that are stored, in name order; partitions that nobody used yet are not.
    pub(crate) async fn stored_topics(&self, namespace: &NamespaceName) -> Result<Vec<TopicName>, BrokerError> {
        self.factory.list(namespace).await
    }

    /// Partitioned topics of a namespace, in name order.
    pub fn list_partitioned_topics(&self, namespace: &NamespaceName, domain: ListDomain) -> Vec<TopicName> {
        let mut topics = self.registry.partitioned_topics(namespace);
        topics.retain(|topic| domain.holds(topic.domain()));
        topics
    }
}
