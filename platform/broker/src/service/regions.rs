//! What the region link does with this broker: peers follow the cluster entries, records of the registry go to and come
//! from other regions, topics that were deleted elsewhere are deleted here.
//!
//! Invariants: a topic that was created after its deletion elsewhere stays.
//! Failure: a deletion that fails is tried again when its record is offered again.
//! Must never know: how records travel.

use super::partitions::ignore_absent;
use super::{BrokerService, Create, ListDomain};
use crate::error::BrokerError;
use crate::shared_objects::SharedObjects;
use meridian_link::RegionLink;
use meridian_registry::{Changed, Deletions, Registry};
use meridian_topology::LinkAddress;
use meridian_types::{NamespaceName, TopicName};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Pause between two looks for tombstones that may go.
const COLLECT: Duration = Duration::from_secs(600);

/// The region link as it is attached.
pub struct AttachedLink {
    /// The link.
    pub link: Arc<RegionLink>,
    /// Where other regions reach it; `None` = it does not listen.
    pub url: Option<String>,
}

impl BrokerService {
    /// Attaches the region link and dials the peers that the cluster entries name. Once, before [`Self::start`].
    pub fn attach_link(self: &Arc<Self>, link: Arc<RegionLink>, url: Option<String>) {
        self.registry.set_deletions(Arc::new(TopicDeletions { service: Arc::downgrade(self) }));
        link.set_objects(Arc::new(SharedObjects::new(self.registry.clone())));
        let tasks = [
            tokio::spawn(follow_peers(Arc::downgrade(&self.registry), Arc::downgrade(&link))),
            tokio::spawn(follow_schemas(Arc::downgrade(self), self.registry.changes())),
            tokio::spawn(collect_tombstones(Arc::downgrade(&self.registry))),
        ];
        self.tasks.lock().extend(tasks);
        self.attach_acks(&link);
        let attached = self.link.set(AttachedLink { link, url });
        debug_assert!(attached.is_ok(), "a link is attached once");
    }

    /// The region link, if there is one.
    pub fn link(&self) -> Option<&AttachedLink> {
        self.link.get()
    }

    /// A topic that another region sends to is not deleted in passing: what is under way would be lost.
    pub(super) fn refuse_if_linked(&self, names: impl Iterator<Item = TopicName>) -> Result<(), BrokerError> {
        for topic in names.filter_map(|name| self.loaded_topic(&name)) {
            let links = topic.stats().links;
            if !links.is_empty() {
                let regions: Vec<&str> = links.iter().map(|link| link.region.as_str()).collect();
                let (count, regions) = (links.len(), regions.join(", "));
                let text = format!("{} has {count} connected replicators of other regions: {regions}", topic.name());
                return Err(BrokerError::Busy(text));
            }
        }
        Ok(())
    }

    /// Deletes a topic that is no partitioned one, here and in the regions that share its namespace.
    ///
    /// # Errors
    /// As [`Self::delete_topic`], or that the others can't be told.
    pub async fn delete_topic_everywhere(&self, name: &TopicName, force: bool) -> Result<(), BrokerError> {
        self.require_served(name).await?;
        if !force {
            self.refuse_if_linked(std::iter::once(name.clone()))?;
        }
        self.delete_topic(name, force).await?;
        Ok(self.registry.end_topic(name).await?)
    }
}

fn peers(registry: &Registry) -> Vec<(String, LinkAddress)> {
    let known = registry.regions().peers();
    let dialled = known.into_iter().filter_map(|(name, peer)| match peer {
        Ok(peer) => Some((name, peer.link)),
        Err(error) => {
            tracing::warn!(%error, "a region is not dialled");
            None
        }
    });
    dialled.collect()
}

async fn follow_peers(registry: Weak<Registry>, link: Weak<RegionLink>) {
    let Some(mut changes) = registry.upgrade().map(|registry| registry.changes()) else { return };
    loop {
        let (Some(registry), Some(link)) = (registry.upgrade(), link.upgrade()) else { return };
        link.set_peers(peers(&registry));
        drop((registry, link));
        loop {
            match changes.recv().await {
                Ok(Changed::Cluster(_) | Changed::Everything) | Err(RecvError::Lagged(_)) => break,
                Ok(_) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }
}

async fn follow_schemas(service: Weak<BrokerService>, mut changes: Receiver<Changed>) {
    let mut look = Changed::Everything;
    loop {
        let Some(service) = service.upgrade() else { return };
        let topics = match look {
            Changed::Schemas(topic) => vec![topic],
            Changed::Everything => service.registry.topics_with_shared_schemas(),
            _ => Vec::new(),
        };
        for topic in topics {
            if let Err(error) = service.adopt_schemas(&topic).await {
                tracing::warn!(%topic, %error, "schemas of other regions are not taken over; their messages bring them");
            }
        }
        drop(service);
        look = match changes.recv().await {
            Ok(changed) => changed,
            Err(RecvError::Lagged(_)) => Changed::Everything,
            Err(RecvError::Closed) => return,
        };
    }
}

async fn collect_tombstones(registry: Weak<Registry>) {
    loop {
        tokio::time::sleep(COLLECT).await;
        let Some(registry) = registry.upgrade() else { return };
        match registry.collect_tombstones().await {
            Ok(0) => {}
            Ok(dropped) => tracing::info!(dropped, "tombstones that every region has are dropped"),
            Err(error) => tracing::warn!(%error, "tombstones are not dropped"),
        }
    }
}

/// See [`Deletions`].
struct TopicDeletions {
    service: Weak<BrokerService>,
}

impl TopicDeletions {
    fn service(&self) -> Result<Arc<BrokerService>, String> {
        self.service.upgrade().ok_or_else(|| "the broker is ending".to_owned())
    }
}

impl Deletions for TopicDeletions {
    fn delete_topics_of<'a>(
        &'a self,
        namespace: &'a NamespaceName,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(async move {
            let service = self.service()?;
            service.delete_topics_of(namespace).await.map_err(|error| error.to_string())
        })
    }

    fn delete_topic<'a>(
        &'a self,
        topic: &'a TopicName,
        partitions: Option<u32>,
        deleted_ms: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(async move {
            let service = self.service()?;
            let outcome = match partitions {
                Some(_) => service.delete_partitioned_topic(topic, true).await,
                None if service.is_newer(topic, deleted_ms).await => Ok(()),
                None => service.delete_topic(topic, true).await,
            };
            ignore_absent(outcome).map_err(|error| error.to_string())
        })
    }
}

impl BrokerService {
    async fn delete_topics_of(self: &Arc<Self>, namespace: &NamespaceName) -> Result<(), BrokerError> {
        self.registry.mark_namespace_deleted(namespace).await?;
        for topic in self.registry.partitioned_topics(namespace) {
            ignore_absent(self.delete_partitioned_topic(&topic, true).await)?;
        }
        for topic in self.list_topics(namespace, ListDomain::All).await? {
            ignore_absent(self.delete_topic(&topic, true).await)?;
        }
        Ok(())
    }

    /// Whether everything that a topic holds was written after that time.
    async fn is_newer(self: &Arc<Self>, topic: &TopicName, than_ms: u64) -> bool {
        let Ok(handle) = self.topic(topic, Create::Never).await else { return false };
        let oldest = handle.stats().log.and_then(|log| log.ledgers.first().map(|ledger| ledger.created_ms));
        oldest.is_some_and(|created_ms| created_ms > than_ms)
    }
}
