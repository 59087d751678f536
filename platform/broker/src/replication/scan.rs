//! What was not copied before the broker's end is copied on without anybody's asking for the topic.
//!
//! Role: looks for stored topics that have replication cursors, and opens those that are served here, a bounded number at a
//! time: at the broker's start, and whenever bundles came to it.
//! Failure: a namespace or topic that can't be read is tried again at the next look.

use crate::error::BrokerError;
use crate::service::{BrokerService, Create, ListDomain};
use meridian_types::TopicName;
use std::sync::Weak;
use std::time::Duration;
use tokio::task::JoinSet;

/// Topics opened at once.
const OPENED_AT_ONCE: usize = 16;
/// Bundles that come within this time are looked at together.
const GATHER: Duration = Duration::from_millis(500);
/// Pause before another look, if something failed.
const AGAIN: Duration = Duration::from_secs(30);

/// Opens every topic with replication cursors that is served here; again when a look found something amiss, and when bundles
/// came.
pub async fn open_replicated(service: Weak<BrokerService>) {
    loop {
        let Some(broker) = service.upgrade() else { return };
        let (gained, failed) = (broker.gained(), look(&broker).await);
        drop(broker);
        if failed == 0 {
            gained.notified().await;
            // Bundles come together.
            tokio::time::sleep(GATHER).await;
            continue;
        }
        tracing::warn!(failed, "replicated topics could not be opened, looking again");
        tokio::time::sleep(AGAIN).await;
    }
}

/// One look; how much of it failed.
async fn look(service: &std::sync::Arc<BrokerService>) -> usize {
    let mut failed = 0;
    let mut opening: JoinSet<bool> = JoinSet::new();
    // Of many namespaces few concern other regions: only those are listed.
    for namespace in service.registry().namespaces_beyond() {
        if service.is_closing() {
            return 0;
        }
        let names = match service.list_topics(&namespace, ListDomain::Persistent).await {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(%namespace, %error, "the topics of a namespace could not be listed");
                failed += 1;
                continue;
            }
        };
        for name in names.into_iter().filter(|name| concerns(service, name)) {
            while opening.len() >= OPENED_AT_ONCE {
                failed += usize::from(opening.join_next().await.is_some_and(|done| done.is_ok_and(|failed| failed)));
            }
            let service = service.clone();
            opening.spawn(async move { open(&service, &name).await });
        }
    }
    while let Some(done) = opening.join_next().await {
        failed += usize::from(done.is_ok_and(|failed| failed));
    }
    failed
}

/// Whether a topic is to be copied to somewhere, or was, and nobody else serves it.
fn concerns(service: &BrokerService, name: &TopicName) -> bool {
    if service.ownership().destination(name).is_some() {
        return false;
    }
    let clusters = service.registry().effective(name).replication_clusters;
    !super::remotes(&service.config().cluster, &clusters).is_empty()
}

/// Opens a topic if it has a replication cursor; whether that failed.
async fn open(service: &std::sync::Arc<BrokerService>, name: &TopicName) -> bool {
    match service.has_replication_cursor(name).await {
        Ok(false) => false,
        Ok(true) => match service.topic(name, Create::Never).await {
            Ok(_) | Err(BrokerError::Elsewhere { .. }) => false,
            Err(error) => {
                tracing::warn!(topic = %name, %error, "a replicated topic could not be opened");
                !service.is_closing()
            }
        },
        Err(error) => {
            tracing::warn!(topic = %name, %error, "the cursors of a topic could not be read");
            true
        }
    }
}
