//! Permissions of producers and consumers that are in already.
//!
//! A permission is asked for when a producer or consumer is created. When permissions change later, every connection asks
//! again for what it holds, and closes what is not allowed any more; the client comes back and is told why it may not.

use super::Session;
use crate::access::Wish;
use meridian_topic::ClientSink;
use std::sync::Arc;

impl Session {
    /// Asks again whenever permissions have changed. Never ends.
    pub(super) async fn follow_grants(self: &Arc<Self>) -> String {
        let mut grants = self.service.grants();
        while grants.changed().await.is_ok() {
            self.close_forbidden();
        }
        std::future::pending().await
    }

    /// As [`Session::close_forbidden`], if permissions have changed since `version`.
    pub(super) fn close_forbidden_since(&self, version: u64) {
        if *self.service.grants().borrow() != version {
            self.close_forbidden();
        }
    }

    /// Which permissions are in force.
    pub(super) fn grants_version(&self) -> u64 {
        *self.service.grants().borrow()
    }

    /// Closes producers and consumers that are not allowed any more.
    fn close_forbidden(&self) {
        let (producers, consumers) = {
            let slots = self.slots.lock();
            let producers: Vec<_> =
                slots.producers.iter().filter_map(|(id, slot)| Some((*id, slot.attached.clone()?))).collect();
            let consumers: Vec<_> = slots
                .consumers
                .iter()
                .filter_map(|(id, slot)| Some((*id, slot.attached.clone()?, slot.subscription.clone())))
                .collect();
            (producers, consumers)
        };
        let (principal, access) = (self.principal(), self.service.access());
        for (id, (topic, key)) in producers {
            let Err(error) = access.check(&principal, Wish::Produce(topic.name())) else { continue };
            tracing::info!(topic = %topic.name(), peer = %self.peer, %error, "a producer is closed: permission withdrawn");
            self.spawn(|session| async move {
                // What it sent before is answered; what comes from now on is not taken.
                topic.remove_producer(key).await;
                session.close_producer(id);
            });
        }
        for (id, (topic, key), subscription) in consumers {
            let Err(error) = access.check(&principal, Wish::Consume(topic.name(), &subscription)) else { continue };
            tracing::info!(
                topic = %topic.name(), subscription = %subscription, peer = %self.peer, %error,
                "a consumer is closed: permission withdrawn"
            );
            self.spawn(|session| async move {
                topic.remove_consumer(key).await;
                session.close_consumer(id);
            });
        }
    }
}
