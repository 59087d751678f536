//! Topics that no record says anything of: a limit came when they were not open, or records are older than they are.
//!
//! Role: goes through the stored topics of limited places at the start, when a place gets a limit, and once in a while.
//! A topic without a record is opened by the broker that serves it, counts from then on, and is closed again if nobody
//! uses it. Records of topics that are not there are dropped.
//! Invariants: few topics are opened at once, one after the other in each namespace; nothing waits for it.
//! Failure: what could not be counted is looked at the next time; it is said in the log.

use super::Quotas;
use super::storage::Limited;
use crate::error::BrokerError;
use crate::service::{BrokerService, Create, is_system_topic};
use meridian_policy::quota::Place;
use meridian_types::{NamespaceName, TopicName};
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Pause between two rounds that nobody asks for.
const EVERY: Duration = Duration::from_secs(3_600);
/// Pause before what could not be counted is looked at again.
const AGAIN: Duration = Duration::from_secs(10);

/// Counts at the start, whenever it is asked, and once in a while, as long as the broker is there.
pub(crate) async fn run(service: Weak<BrokerService>, asked: Arc<Notify>) {
    loop {
        let Some(quotas) = service.upgrade().map(|service| service.quotas().clone()) else { return };
        let limited = quotas.limited();
        let done = round(&service, &quotas, &limited).await;
        drop(quotas);
        let pause = if done { EVERY } else { AGAIN };
        tokio::select! {
            () = asked.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One round; whether all was counted that this broker has to count.
async fn round(service: &Weak<BrokerService>, quotas: &Quotas, limited: &Limited) -> bool {
    let Some(namespaces) = service.upgrade().map(|service| namespaces_of(&service, limited)) else { return true };
    let mut done = true;
    for namespace in &namespaces {
        let Some(service) = service.upgrade() else { return true };
        if let Err(error) = count_namespace(&service, quotas, limited, namespace).await {
            tracing::info!(%namespace, %error, "what is stored could not be counted; it will be tried again");
            done = false;
        }
    }
    let Some(service) = service.upgrade() else { return true };
    let gone = |namespace: &NamespaceName| service.registry().namespace(namespace).is_none();
    let gone: HashSet<NamespaceName> = quotas.storage.stored.namespaces().into_iter().filter(gone).collect();
    if !gone.is_empty() {
        let topics = quotas.storage.stored.topics(|topic| gone.contains(&topic.namespace()));
        topics.iter().for_each(|topic| quotas.topic_deleted(topic));
    }
    done
}

fn namespaces_of(service: &BrokerService, limited: &Limited) -> BTreeSet<NamespaceName> {
    let registry = service.registry();
    let mut found = BTreeSet::new();
    for place in limited.keys() {
        match place {
            Place::Cluster => found.extend(registry.all_namespaces()),
            Place::Tenant(tenant) => found.extend(registry.namespaces(tenant).unwrap_or_default()),
            Place::Namespace(namespace) => drop(found.insert(namespace.clone())),
            Place::Topic(topic) => drop(found.insert(topic.namespace())),
            Place::Group(_) => {}
        }
    }
    found
}

async fn count_namespace(
    service: &Arc<BrokerService>,
    quotas: &Quotas,
    limited: &Limited,
    namespace: &NamespaceName,
) -> Result<(), BrokerError> {
    let stored = &quotas.storage.stored;
    // Before the list: what is made after it has a record that the list does not know.
    let recorded = stored.topics(|topic| topic.namespace() == *namespace);
    let listed: HashSet<TopicName> = service.stored_topics(namespace).await?.into_iter().collect();
    recorded.iter().filter(|topic| !listed.contains(*topic)).for_each(|topic| quotas.topic_deleted(topic));
    let mut outcome = Ok(());
    for topic in listed {
        let counts = !is_system_topic(&topic)
            && !stored.has_record(&topic)
            && Place::way_to(&topic).iter().any(|place| limited.contains_key(place));
        if !counts {
            continue;
        }
        match count(service, quotas, &topic).await {
            // Its owner counts it.
            Ok(()) | Err(BrokerError::Elsewhere { .. } | BrokerError::TopicNotFound(_)) => {}
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Opens a topic, so that it counts; closes it again if nobody has come.
async fn count(service: &Arc<BrokerService>, quotas: &Quotas, name: &TopicName) -> Result<(), BrokerError> {
    if service.loaded_topic(name).is_some() {
        return Ok(());
    }
    let topic = service.topic(name, Create::Never).await?;
    quotas.look_at_storage(service);
    let stats = topic.stats();
    let used = !stats.producers.is_empty()
        || !stats.links.is_empty()
        || stats.subscriptions.iter().any(|one| !one.consumers.is_empty());
    if used || service.replication().has_backlog(name) {
        return Ok(());
    }
    service.unload_topic(name).await
}
