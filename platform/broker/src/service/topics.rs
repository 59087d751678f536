//! Getting topics: loaded ones at once, stored ones by loading them once for all who ask.

use super::topic_map::{Claim, LoadTicket};
use super::{BrokerService, TopicEvent};
use crate::error::BrokerError;
use meridian_topic::TopicHandle;
use meridian_types::TopicName;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Whether a missing topic is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// It must exist.
    Never,
    /// If policies allow automatic creation.
    IfAllowed,
    /// An administrator asks for it.
    Always,
}

impl BrokerService {
    /// The topic if it is loaded here.
    pub fn loaded_topic(&self, name: &TopicName) -> Option<Arc<dyn TopicHandle>> {
        self.topics.loaded(name)
    }

    /// All topics loaded here, in no order.
    pub fn loaded_topics(&self) -> Vec<Arc<dyn TopicHandle>> {
        self.topics.all()
    }

    /// How many topics are loaded here.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// How many topics are being loaded.
    pub fn loading_count(&self) -> usize {
        self.topics.loading()
    }

    /// The topic, loaded if need be.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`] if it does not exist and may not be created, [`BrokerError::NotAllowed`] if its name
    /// contradicts partition metadata, [`BrokerError::TimedOut`], or what storage says.
    pub async fn topic(
        self: &Arc<Self>,
        name: &TopicName,
        create: Create,
    ) -> Result<Arc<dyn TopicHandle>, BrokerError> {
        if let Some(handle) = self.topics.loaded(name) {
            return Ok(handle);
        }
        // Its bundle is found by its namespace.
        self.check_namespace(name).await?;
        self.require_served(name).await?;
        let limit = Duration::from_secs(self.config.topic_load_timeout_s);
        timeout(limit, self.load_or_wait(name, create)).await.unwrap_or_else(|_| {
            let what = format!("loading topic {name}");
            Err(BrokerError::TimedOut { what, limit_ms: limit.as_millis() as u64 })
        })
    }

    async fn load_or_wait(
        self: &Arc<Self>,
        name: &TopicName,
        create: Create,
    ) -> Result<Arc<dyn TopicHandle>, BrokerError> {
        let exists = self.admit_topic(name, create).await?;
        loop {
            match self.topics.claim(name) {
                Claim::Loaded(handle) => return Ok(handle),
                Claim::Leaving(mut gone) => {
                    // An error here means that the sender was dropped, which is the signal.
                    while gone.changed().await.is_ok() {}
                    // It may have been deleted meanwhile.
                    self.admit_topic(name, create).await?;
                }
                Claim::Loading(mut outcome) => {
                    let ended = outcome.wait_for(Option::is_some).await;
                    if let Some(outcome) = ended.ok().and_then(|outcome| outcome.clone()) {
                        return outcome;
                    }
                }
                Claim::Load(ticket) => {
                    let (service, name) = (self.clone(), name.clone());
                    // A task of its own: others wait for it too, whoever asked first may go away.
                    tokio::spawn(async move { service.load(&name, exists, ticket).await });
                }
            }
        }
    }

    async fn load(self: Arc<Self>, name: &TopicName, exists: bool, ticket: LoadTicket) {
        let limit = Duration::from_secs(self.config.topic_load_timeout_s);
        let started = Instant::now();
        let outcome = timeout(limit, self.open(name)).await.unwrap_or_else(|_| {
            let what = format!("loading topic {name}");
            Err(BrokerError::TimedOut { what, limit_ms: limit.as_millis() as u64 })
        });
        let handle = outcome.as_ref().ok().cloned();
        match &outcome {
            Ok(_) => self.metrics.topic_load_ms.observe(started.elapsed().as_secs_f64() * 1000.0),
            Err(error) => {
                self.metrics.topic_load_failures.inc();
                tracing::warn!(topic = %name, %error, "topic could not be loaded");
            }
        }
        ticket.finish(outcome);
        if let Some(handle) = handle {
            self.close_if_moved(name).await;
            // Policies may have changed while it was opened.
            self.push_settings(&handle);
            if !exists {
                self.announce(TopicEvent::Created(name.clone()));
            }
        }
    }

    async fn open(&self, name: &TopicName) -> Result<Arc<dyn TopicHandle>, BrokerError> {
        let Ok(_permit) = self.loads.acquire().await else {
            return Err(BrokerError::NotReady("the broker is shutting down".to_owned()));
        };
        let settings = self.topic_settings(name);
        let topic = self.factory.open(name.clone(), settings).await?;
        // X1: before anybody has its handle.
        topic.set_gate(self.gate_of(name));
        topic.set_limits_above(self.quotas().above(name));
        topic.set_hold(self.quotas().hold_of(name));
        // Before anybody publishes: a new topic's first message must be in front of no link's cursor.
        self.replication.opening(&topic).await;
        // Before any consumer: what other regions acked must not be delivered.
        self.share_acks(&topic);
        Ok(topic)
    }
}
