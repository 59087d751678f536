//! What a broker does by itself: ticks, new policies, unused topics, and its own end.
//!
//! One task each, for all topics together. All end with the service's last handle or at [`BrokerService::shut_down`].

use super::delete::CLOSES;
use super::listing::is_system_topic;
use super::{BrokerService, now_ms};
use crate::error::BrokerError;
use crate::quotas;
use crate::replication::open_replicated;
use meridian_ownership::Host;
use meridian_policy::{EffectivePolicies, InactiveTopicDeleteMode};
use meridian_registry::Changed;
use meridian_topic::{TopicHandle, TopicStats};
use meridian_types::TopicName;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Pause between two ticks of topics and logs.
const TICK: Duration = Duration::from_secs(1);
/// Changes of policies that follow each other are put in force together after this time.
const GATHER: Duration = Duration::from_millis(100);

/// Longest wait for policies to be in force on all topics that they concern.
const IN_FORCE: Duration = Duration::from_secs(5);
/// Who waits for policies to be in force beyond this number waits for a place first.
pub(super) const PUSHES_ASKED: usize = 64;

/// Where the topics go of which something is not in force yet.
pub(super) type PushNow = oneshot::Sender<Vec<Arc<dyn TopicHandle>>>;

impl BrokerService {
    /// Starts what runs by itself. Once.
    pub fn start(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.guard_logs();
        let host: Weak<dyn Host> = this.clone();
        self.ownership.attach(host);
        self.factory.on_fenced(Arc::new({
            let this = this.clone();
            move |topic: &TopicName| {
                let Some(service) = this.upgrade() else { return };
                let (runtime, topic) = (service.runtime.clone(), topic.clone());
                runtime.spawn(async move {
                    if let Err(error) = service.unload_topic(&topic).await {
                        tracing::warn!(%topic, %error, "a fenced topic did not close well");
                    }
                });
            }
        }));
        let Some(asked) = self.push_asked.lock().take() else { return };
        let tasks = [
            tokio::spawn(tick_topics(this.clone())),
            tokio::spawn(tick_logs(this.clone())),
            tokio::spawn(follow_policies(this.clone(), self.registry.changes(), asked)),
            tokio::spawn(open_replicated(this.clone())),
            tokio::spawn(quotas::run(this.clone(), self.quotas.clone())),
            tokio::spawn(quotas::recount::run(this.clone(), self.quotas.uncounted())),
            tokio::spawn(check_links(this.clone(), self.config.replication.policy_check_s)),
            tokio::spawn(collect_inactive(this, Duration::from_secs(self.config.inactive_topic_check_s.max(1)))),
        ];
        self.tasks.lock().extend(tasks);
        if !self.ownership.is_alone() {
            self.tasks.lock().push(tokio::spawn(follow_names(Arc::downgrade(self))));
        }
    }

    /// Whether the broker is ending.
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Ends the broker: loads nothing more, closes all topics, then all connections.
    ///
    /// # Errors
    /// The first topic's error, or [`BrokerError::TimedOut`]; connections are closed nevertheless.
    pub async fn shut_down(self: &Arc<Self>) -> Result<(), BrokerError> {
        // What can be served by others is moved there while this broker still answers.
        self.ownership.leave().await;
        self.closing.send_replace(true);
        self.loads.close();
        self.quotas.flush(self).await;
        let names = self.loaded_topics().iter().map(|topic| topic.name().clone()).collect();
        let limit = Duration::from_millis(self.config.shutdown_timeout_ms);
        let outcome = timeout(limit, self.unload_all(names, CLOSES)).await.unwrap_or_else(|_| {
            let what = "closing all topics".to_owned();
            Err(BrokerError::TimedOut { what, limit_ms: self.config.shutdown_timeout_ms })
        });
        self.closed.send_replace(true);
        // What was written while they closed.
        let _ = timeout(limit, self.quotas.flush(self)).await;
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        outcome
    }

    /// Waits until every change of policies that this broker has seen is in force on its topics.
    ///
    /// # Errors
    /// [`BrokerError::TimedOut`]: the change is stored, and will be in force later.
    pub async fn policies_in_force(&self) -> Result<(), BrokerError> {
        let pushed = async {
            let (told, answer) = oneshot::channel();
            // Nobody follows before the broker's start and at its end: topics are opened with what is stored.
            if self.push_asked.lock().is_some() || self.push_now.send(told).await.is_err() {
                return;
            }
            for topic in answer.await.unwrap_or_default() {
                topic.limits_in_force().await;
            }
        };
        timeout(IN_FORCE, pushed).await.map_err(|_| BrokerError::TimedOut {
            what: "putting policies in force".to_owned(),
            limit_ms: u64::try_from(IN_FORCE.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Puts the policies in force again for the topics that a change concerns; those of which something takes time.
    fn push_policies(&self, concerned: &HashSet<Changed>) -> Vec<Arc<dyn TopicHandle>> {
        let mut pending = Vec::new();
        let everything = concerned.contains(&Changed::Everything);
        for topic in self.loaded_topics() {
            let name = topic.name();
            let hit = everything
                || concerned.contains(&Changed::Namespace(name.namespace()))
                || concerned.contains(&Changed::TopicPolicies(name.base()));
            if hit {
                self.push_settings(&topic);
                pending.extend(topic.limits_pending().then_some(topic));
            }
        }
        for changed in concerned {
            if let Changed::Cluster(name) = changed {
                self.replication.cluster_changed(name);
            }
        }
        if everything {
            self.registry.clusters().iter().for_each(|name| self.replication.cluster_changed(name));
        }
        pending
    }

    /// Puts the policies in force for one topic.
    pub(super) fn push_settings(&self, topic: &Arc<dyn TopicHandle>) {
        let settings = self.topic_settings(topic.name());
        topic.set_limits(settings.limits);
        topic.set_gate(self.gate_of(topic.name()));
        topic.set_limits_above(self.quotas.above(topic.name()));
        self.factory.set_log_settings(topic.name(), &settings.log);
        self.replication.follow(topic.name());
        self.share_acks(topic);
    }

    async fn delete_inactive(self: &Arc<Self>) {
        let now_ms = now_ms();
        let mut partitioned = BTreeSet::new();
        for topic in self.loaded_topics() {
            let name = topic.name();
            if is_system_topic(name) || !is_unused(&topic.stats(), &self.registry.effective(name), now_ms) {
                continue;
            }
            if self.replication.has_backlog(name) {
                continue;
            }
            match self.delete_unused_topic(name).await {
                Ok(()) => {
                    tracing::info!(topic = %name, "deleted: nobody has used it");
                    partitioned.extend(name.partition().map(|_| name.base()));
                }
                Err(error) => tracing::debug!(topic = %name, %error, "an unused topic was not deleted"),
            }
        }
        if self.config.delete_inactive_partitioned_metadata {
            for topic in partitioned {
                if let Err(error) = self.delete_if_without_partitions(&topic).await {
                    tracing::debug!(%topic, %error, "a partitioned topic without partitions was not deleted");
                }
            }
        }
    }

    /// Deletes a partitioned topic of which no partition exists any more.
    async fn delete_if_without_partitions(self: &Arc<Self>, topic: &TopicName) -> Result<(), BrokerError> {
        let Some(count) = self.partitions(topic) else { return Ok(()) };
        for partition in 0..count {
            if self.factory.exists(&topic.with_partition(partition)).await?
                || self.topics.loaded(&topic.with_partition(partition)).is_some()
            {
                return Ok(());
            }
        }
        self.delete_partitioned_topic(topic, false).await?;
        tracing::info!(%topic, "deleted: nobody has used any of its partitions");
        Ok(())
    }
}

/// Whether a topic's policy says that it goes.
fn is_unused(stats: &TopicStats, policies: &EffectivePolicies, now_ms: u64) -> bool {
    let policy = &policies.inactive_topics;
    let idle_ms = now_ms.saturating_sub(stats.last_activity_ms.max(stats.loaded_ms));
    if !policy.delete_while_inactive || idle_ms < u64::from(policy.max_inactive_duration_seconds) * 1000 {
        return false;
    }
    // A link keeps the topic: what it brings would only make it again.
    let unused = stats.producers.is_empty() && stats.links.is_empty() && stats.waiting_producers == 0;
    let free = |all_gone: bool| unused && all_gone;
    match policy.inactive_topic_delete_mode {
        InactiveTopicDeleteMode::DeleteWhenNoSubscriptions => free(stats.subscriptions.is_empty()),
        InactiveTopicDeleteMode::DeleteWhenSubscriptionsCaughtUp => {
            free(stats.subscriptions.iter().all(|one| one.consumers.is_empty() && one.backlog_entries == 0))
        }
    }
}

async fn follow_names(service: Weak<BrokerService>) {
    let Some(factory) = service.upgrade().map(|service| service.factory.clone()) else { return };
    let tell = move |change| {
        if let Some(service) = service.upgrade() {
            service.tell_of_name(change);
        }
    };
    factory.follow_names(&tell).await;
}

async fn tick_topics(service: Weak<BrokerService>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(service) = service.upgrade() else { return };
        let now_ms = now_ms();
        service.topics.for_each(|topic| topic.tick(now_ms));
        service.replication.follow_published();
        service.tick_snapshots();
        service.last_tick_ms.store(now_ms, std::sync::atomic::Ordering::Relaxed);
    }
}

async fn tick_logs(service: Weak<BrokerService>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(service) = service.upgrade() else { return };
        service.factory.tick(now_ms()).await;
    }
}

async fn follow_policies(
    service: Weak<BrokerService>,
    mut changes: Receiver<Changed>,
    mut push_now: mpsc::Receiver<PushNow>,
) {
    let mut pending: Vec<Arc<dyn TopicHandle>> = Vec::new();
    loop {
        let (mut concerned, mut asking) = (HashSet::new(), None);
        tokio::select! {
            changed = changes.recv() => match changed {
                Ok(changed) => concerned.insert(changed),
                Err(RecvError::Lagged(_)) => concerned.insert(Changed::Everything),
                Err(RecvError::Closed) => return,
            },
            Some(asked) = push_now.recv() => asking.replace(asked).is_some(),
        };
        if asking.is_none() {
            tokio::select! {
                () = sleep(GATHER) => {}
                Some(asked) = push_now.recv() => asking = Some(asked),
            }
        }
        loop {
            match changes.try_recv() {
                Ok(changed) => concerned.insert(changed),
                Err(TryRecvError::Lagged(_)) => concerned.insert(Changed::Everything),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
        }
        let Some(service) = service.upgrade() else { return };
        if !concerned.is_empty() {
            pending.extend(service.push_policies(&concerned));
            service.announce_grants(&concerned);
        }
        pending.retain(|topic| topic.limits_pending());
        if let Some(asked) = asking {
            // Who asked may be gone.
            let _ = asked.send(pending.clone());
        }
    }
}

/// A change of policies that was overlooked is found at last.
async fn check_links(service: Weak<BrokerService>, every_s: u64) {
    if every_s == 0 {
        return;
    }
    loop {
        sleep(Duration::from_secs(every_s)).await;
        let Some(service) = service.upgrade() else { return };
        for topic in service.loaded_topics() {
            service.replication.follow(topic.name());
        }
    }
}

async fn collect_inactive(service: Weak<BrokerService>, every: Duration) {
    loop {
        sleep(every).await;
        let Some(service) = service.upgrade() else { return };
        service.delete_inactive().await;
    }
}
