//! The links of the topics that are open here to other regions.
//!
//! Role: [`Replication`] follows the policies of every open topic: starts a link to each region that they name, ends it
//! and deletes its cursor when they do not any more, starts it anew when the region's entry changed. What a link does is
//! not decided here.
//! Invariants: H1..H3 (see [`plan`]); H4 one link for a topic and a region at a time; H5 a link has stopped, or was given
//! up after a time, before its topic's log closes; H6 a link's cursor exists from the moment at which the policies
//! named its region, whether the region can be reached or not; H7 nothing starts for a topic that is closing; H8 of a
//! topic that keeps nothing there is no cursor: a link has what is published while it runs.
//! Failure: what can't be done is tried again after a pause; until then the link's state says why.
//! Must never know: sessions, frames, what a link sends.

mod acks;
mod figures;
mod http;
mod linker;
mod live;
pub(crate) mod markers;
mod plan;
mod replay;
mod restore;
mod scan;

pub use acks::{AckExchange, AckLink, AckTopics};
pub use figures::{Drops, ReplicationFigures};
pub(crate) use http::post_at;
pub use http::status_at;
pub use linker::RegionLinker;
pub use markers::TopicMarkers;
pub use plan::remotes;
pub use restore::{RestoreRequest, RestoreState, RestoreStatus};
pub use scan::open_replicated;

use crate::error::BrokerError;
use crate::quotas::Quotas;
use bytes::Bytes;
use meridian_managed_ledger::{CursorOptions, InitialPosition, LogError, ManagedLedger};
use meridian_policy::{ClusterData, EffectivePolicies};
use meridian_replicator::MarkerSink;
use meridian_topic::api::BoxFuture;
use meridian_topic::{TopicHandle, on_top};
use meridian_types::{Domain, TopicName};
use meridian_wire::replicate::cursor_name;
use parking_lot::{Mutex, RwLock};
use plan::{Plan, plan};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A link that runs.
pub trait Link: Send + Sync {
    /// Puts policies in force.
    fn set_policies(&self, policies: &EffectivePolicies);
    /// Figures.
    fn figures(&self) -> ReplicationFigures;
    /// Somebody moved the link's cursor.
    fn cursor_moved(&self);
    /// Ends it; what was sent may be answered or not.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// Where the links of a topic get its messages.
#[derive(Clone)]
pub enum Feed {
    /// A log, behind a cursor for each region.
    Log(Arc<ManagedLedger>),
    /// What is published at the moment, of a topic that keeps nothing (H8).
    Live(Arc<dyn TopicHandle>),
}

impl Feed {
    fn log(&self) -> Option<&Arc<ManagedLedger>> {
        match self {
            Feed::Log(log) => Some(log),
            Feed::Live(_) => None,
        }
    }

    fn cursor_names(&self) -> Vec<String> {
        let cursors = self.log().map(|log| log.cursors()).unwrap_or_default();
        cursors.iter().map(|cursor| cursor.name().to_owned()).collect()
    }

    /// What a region has not got yet.
    fn backlog(&self, remote: &str) -> u64 {
        let cursor = self.log().and_then(|log| log.cursor(&cursor_name(remote)));
        cursor.map_or(0, |cursor| cursor.backlog_entries())
    }

    fn is_live_of(&self, topic: &Arc<dyn TopicHandle>) -> bool {
        matches!(self, Feed::Live(handle) if Arc::ptr_eq(handle, topic))
    }
}

/// What a link is started with.
pub struct LinkRequest {
    /// The topic or partition.
    pub topic: TopicName,
    /// What it copies.
    pub feed: Feed,
    /// The other region.
    pub remote: String,
    /// How it is reached.
    pub cluster: Arc<ClusterData>,
    /// Policies in force.
    pub policies: EffectivePolicies,
    /// Takes the markers of subscriptions' states that came from there.
    pub markers: Option<Arc<dyn MarkerSink>>,
}

/// Who is active for a topic, for links that have to name it.
pub trait Epochs: Send + Sync {
    /// The epoch that a link of the topic names; `None` = all regions are active.
    ///
    /// # Errors
    /// Why the link has to wait.
    fn epoch(&self, topic: &TopicName) -> Result<Option<String>, String>;
}

/// Starts links.
pub trait Linker: Send + Sync {
    /// Links name their epochs from now on, asked for whenever they open.
    fn attach(&self, _epochs: Arc<dyn Epochs>) {}
    /// Links share the limits of what their topics belong to from now on.
    fn limit_by(&self, _quotas: Arc<Quotas>) {}
    /// Publishes entries in another region as an ordinary producer; ends when all are stored there.
    fn publish<'a>(
        &'a self,
        region: &'a str,
        _topic: &'a TopicName,
        _entries: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Err(format!("this broker has no way to publish in region {region}"))))
    }
    /// Gives a region its own former messages back; ends when all are there.
    fn restore(&self, request: RestoreRequest) -> BoxFuture<'_, Result<(), String>> {
        let text = format!("this broker has no way to restore region {}", request.remote);
        Box::pin(std::future::ready(Err(text)))
    }
    /// Makes the cursor if it is not there, and starts a link. It connects by itself, so this fails only for what waiting
    /// does not heal.
    ///
    /// # Errors
    /// Why it can't be tried; the cursor is there nevertheless, if the log lets it be.
    fn start(&self, request: LinkRequest) -> BoxFuture<'_, Result<Arc<dyn Link>, String>>;
}

/// For brokers that have no links.
pub struct NoLinks;

impl Linker for NoLinks {
    fn start(&self, _: LinkRequest) -> BoxFuture<'_, Result<Arc<dyn Link>, String>> {
        Box::pin(std::future::ready(Err("this broker has no links to other regions".to_owned())))
    }
}

/// What the links need to know of the region around them.
pub trait Surroundings: Send + Sync {
    /// The policies in force for a topic.
    fn policies(&self, topic: &TopicName) -> EffectivePolicies;
    /// The entry of a region.
    fn cluster(&self, name: &str) -> Option<Arc<ClusterData>>;
    /// What links of an open topic copy.
    fn feed(&self, topic: &TopicName) -> Option<Feed>;
    /// Takes markers of subscriptions' states that came to a topic.
    fn markers(&self, _topic: &TopicName) -> Option<Arc<dyn MarkerSink>> {
        None
    }
    /// Messages and bytes published to an open topic per second.
    fn published(&self, _topic: &TopicName) -> (u64, u64) {
        (0, 0)
    }
}

/// One link of a topic.
struct Hosted {
    link: Result<Arc<dyn Link>, String>,
    /// As it was when the link was started.
    cluster: Option<Arc<ClusterData>>,
}

/// The links of one topic.
struct TopicLinks {
    name: TopicName,
    feed: Feed,
    /// One change at a time.
    turn: tokio::sync::Mutex<()>,
    links: RwLock<BTreeMap<String, Hosted>>,
    stopped: AtomicBool,
    /// Former messages given back, by region.
    restores: Mutex<BTreeMap<String, restore::Restore>>,
    /// Its links' rate stands on top of the publish rate.
    relative: AtomicBool,
}

impl TopicLinks {
    fn set_policies(&self, policies: &EffectivePolicies) {
        for hosted in self.links.read().values() {
            if let Ok(link) = &hosted.link {
                link.set_policies(policies);
            }
        }
    }
}

/// See the module.
pub struct Replication {
    own: String,
    start_at: InitialPosition,
    stop_limit: Duration,
    around: Arc<dyn Surroundings>,
    linker: Arc<dyn Linker>,
    topics: Mutex<HashMap<TopicName, Arc<TopicLinks>>>,
    /// Topics that are closing (H7), with how often.
    closing: Mutex<HashMap<TopicName, u32>>,
}

/// A topic has no links as long as this lives.
pub struct Ended {
    replication: Arc<Replication>,
    topic: TopicName,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut closing = self.replication.closing.lock();
        if let Some(count) = closing.get_mut(&self.topic) {
            *count -= 1;
            if *count == 0 {
                closing.remove(&self.topic);
            }
        }
    }
}

impl Replication {
    /// For the region `own`; new cursors begin at `start_at`, a link that does not stop in time is given up.
    pub fn new(
        own: String,
        start_at: InitialPosition,
        stop_limit: Duration,
        around: Arc<dyn Surroundings>,
        linker: Arc<dyn Linker>,
    ) -> Arc<Self> {
        Arc::new(Self {
            own,
            start_at,
            stop_limit,
            around,
            linker,
            topics: Mutex::default(),
            closing: Mutex::default(),
        })
    }

    /// What starts links.
    pub fn linker(&self) -> &Arc<dyn Linker> {
        &self.linker
    }

    /// A topic was opened, or its policies may have changed. Cheap for topics that have nothing to do with it.
    pub fn follow(self: &Arc<Self>, topic: &TopicName) {
        if let Some(links) = self.concerned(topic, None) {
            let replication = self.clone();
            tokio::spawn(async move { replication.apply(&links).await });
        }
    }

    /// The same, and waits until it is done.
    pub async fn followed(self: &Arc<Self>, topic: &TopicName) {
        if let Some(links) = self.concerned(topic, None) {
            self.apply(&links).await;
        }
    }

    /// The same for a topic that is being opened and that nobody finds yet.
    pub async fn opening(self: &Arc<Self>, topic: &Arc<dyn TopicHandle>) {
        let name = topic.name();
        if name.domain() == Domain::Persistent {
            return self.followed(name).await;
        }
        let known = self.topics.lock().get(name).cloned();
        if known.is_some_and(|links| !links.feed.is_live_of(topic)) {
            // Of an earlier life of the topic that did not end well.
            drop(self.stop(name).await);
        }
        if let Some(links) = self.concerned(name, Some(Feed::Live(topic.clone()))) {
            self.apply(&links).await;
        }
    }

    /// The topic's links, if it has some or is to have some.
    fn concerned(&self, topic: &TopicName, opening: Option<Feed>) -> Option<Arc<TopicLinks>> {
        if let Some(links) = self.topics.lock().get(topic) {
            return Some(links.clone());
        }
        if self.closing.lock().contains_key(topic) {
            return None;
        }
        let feed = opening.or_else(|| self.around.feed(topic))?;
        let wanted = self.wanted(topic);
        let cursors = feed.cursor_names();
        let left_over = cursors.iter().any(|cursor| cursor.starts_with(meridian_wire::replicate::LINK_PREFIX));
        if wanted.is_empty() && !left_over {
            return None;
        }
        let links = TopicLinks {
            name: topic.clone(),
            feed,
            turn: tokio::sync::Mutex::new(()),
            links: RwLock::default(),
            stopped: AtomicBool::new(false),
            restores: Mutex::default(),
            relative: AtomicBool::new(false),
        };
        Some(self.topics.lock().entry(topic.clone()).or_insert_with(|| Arc::new(links)).clone())
    }

    /// Topics of the platform stay where they are.
    fn wanted(&self, topic: &TopicName) -> BTreeSet<String> {
        if crate::service::is_system_topic(topic) {
            return BTreeSet::new();
        }
        remotes(&self.own, &self.around.policies(topic).replication_clusters)
    }

    fn apply<'a>(self: &'a Arc<Self>, links: &'a Arc<TopicLinks>) -> BoxFuture<'a, ()> {
        Box::pin(self.apply_now(links))
    }

    async fn apply_now(self: &Arc<Self>, links: &Arc<TopicLinks>) {
        let _turn = links.turn.lock().await;
        if links.stopped.load(Ordering::Acquire) {
            // Forgotten while this waited, or closing, and then this does nothing.
            return self.follow(&links.name);
        }
        let policies = self.policies(links);
        let plan = self.plan(links);
        let mut failed = false;
        for remote in &plan.stop {
            let hosted = links.links.write().remove(remote);
            links.restores.lock().remove(remote);
            stop(&links.name, remote, hosted, self.stop_limit).await;
        }
        for cursor in &plan.drop_cursors {
            failed |= !drop_cursor(links, cursor).await;
        }
        for remote in &plan.start {
            let hosted = self.start(links, remote, &policies).await;
            failed |= hosted.link.is_err();
            links.links.write().insert(remote.clone(), hosted);
        }
        links.set_policies(&policies);
        if failed {
            self.again(links.name.clone());
        } else if links.links.read().is_empty() {
            self.forget(links);
        }
    }

    /// Policies in force for a topic, the rate of its links as it is now.
    fn policies(&self, links: &TopicLinks) -> EffectivePolicies {
        let mut policies = self.around.policies(&links.name);
        links.relative.store(policies.replicator_dispatch_relative, Ordering::Relaxed);
        if policies.replicator_dispatch_relative {
            let published = self.around.published(&links.name);
            policies.replicator_dispatch_rate = on_top(policies.replicator_dispatch_rate, published);
        }
        policies
    }

    /// Once a second: rates of links that stand on top of the publish rate follow it.
    pub fn follow_published(&self) {
        let relative = |links: &&Arc<TopicLinks>| links.relative.load(Ordering::Relaxed);
        let concerned: Vec<_> = self.topics.lock().values().filter(relative).cloned().collect();
        for links in concerned {
            links.set_policies(&self.policies(&links));
        }
    }

    /// A topic without links costs nothing.
    fn forget(&self, links: &Arc<TopicLinks>) {
        let mut topics = self.topics.lock();
        if topics.get(&links.name).is_some_and(|there| Arc::ptr_eq(there, links)) {
            topics.remove(&links.name);
            links.stopped.store(true, Ordering::Release);
        }
    }

    fn plan(&self, links: &TopicLinks) -> Plan {
        let cursors = links.feed.cursor_names();
        let running = links.links.read();
        let current = |(remote, hosted): (&String, &Hosted)| {
            let same = match (&hosted.cluster, self.around.cluster(remote)) {
                (Some(then), Some(now)) => **then == *now,
                (then, now) => then.is_none() && now.is_none(),
            };
            same && hosted.link.is_ok()
        };
        let running = running.iter().map(|(remote, hosted)| (remote, current((remote, hosted))));
        plan(&self.wanted(&links.name), running, cursors.iter().map(String::as_str))
    }

    /// Makes the link's cursor and starts it.
    async fn start(&self, links: &TopicLinks, remote: &str, policies: &EffectivePolicies) -> Hosted {
        let cluster = self.around.cluster(remote);
        let Some(data) = &cluster else {
            let made = match links.feed.log() {
                Some(log) => {
                    let options = CursorOptions { durable: true, internal: true, properties: BTreeMap::new() };
                    log.open_cursor(&cursor_name(remote), self.start_at, options).await.map(drop)
                }
                None => Ok(()),
            };
            let reason =
                made.map_or_else(|error| error.to_string(), |()| format!("cluster {remote} is not registered here"));
            return Hosted { link: Err(reason), cluster };
        };
        let request = LinkRequest {
            topic: links.name.clone(),
            feed: links.feed.clone(),
            remote: remote.to_owned(),
            cluster: data.clone(),
            policies: policies.clone(),
            markers: self.around.markers(&links.name),
        };
        let link = self.linker.start(request).await;
        match &link {
            Ok(_) => tracing::info!(topic = %links.name, remote, "replication begins"),
            Err(reason) => tracing::warn!(topic = %links.name, remote, reason, "replication can't begin"),
        }
        Hosted { link, cluster }
    }

    fn again(self: &Arc<Self>, topic: TopicName) {
        let replication = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(AGAIN).await;
            if let Some(replication) = replication.upgrade() {
                replication.follow(&topic);
            }
        });
    }

    /// Ends all links of a topic (H5).
    #[must_use = "links may begin again when it is dropped"]
    pub async fn stop(self: &Arc<Self>, topic: &TopicName) -> Ended {
        *self.closing.lock().entry(topic.clone()).or_default() += 1;
        let ended = Ended { replication: self.clone(), topic: topic.clone() };
        let Some(links) = self.topics.lock().remove(topic) else { return ended };
        links.stopped.store(true, Ordering::Release);
        links.restores.lock().clear();
        let _turn = links.turn.lock().await;
        let hosted = std::mem::take(&mut *links.links.write());
        let mut stops = tokio::task::JoinSet::new();
        for (remote, hosted) in hosted {
            let (topic, limit) = (topic.clone(), self.stop_limit);
            stops.spawn(async move { stop(&topic, &remote, Some(hosted), limit).await });
        }
        while stops.join_next().await.is_some() {}
        ended
    }

    /// The entry of a region changed: its links are looked at again.
    pub fn cluster_changed(self: &Arc<Self>, cluster: &str) {
        let concerned: Vec<TopicName> = {
            let topics = self.topics.lock();
            let leads_there = |links: &&Arc<TopicLinks>| links.links.read().contains_key(cluster);
            topics.values().filter(leads_there).map(|links| links.name.clone()).collect()
        };
        for topic in concerned {
            self.follow(&topic);
        }
    }

    /// Figures of a topic's links.
    pub fn figures(&self, topic: &TopicName) -> Vec<ReplicationFigures> {
        let Some(links) = self.topics.lock().get(topic).cloned() else { return Vec::new() };
        let running = links.links.read();
        let of = |(remote, hosted): (&String, &Hosted)| match &hosted.link {
            Ok(link) => link.figures(),
            Err(reason) => ReplicationFigures::refused(remote, reason, links.feed.backlog(remote)),
        };
        running.iter().map(of).collect()
    }

    /// Whether something of a topic is not copied yet.
    pub fn has_backlog(&self, topic: &TopicName) -> bool {
        let Some(links) = self.topics.lock().get(topic).cloned() else { return false };
        let running = links.links.read();
        running.keys().any(|remote| links.feed.backlog(remote) > 0)
    }

    /// Names of topics with links.
    pub fn topics(&self) -> Vec<TopicName> {
        self.topics.lock().keys().cloned().collect()
    }

    /// Skips everything that a link has not copied.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`] if there is no such link, or what the log says.
    pub async fn clear_backlog(&self, topic: &TopicName, remote: &str) -> Result<(), BrokerError> {
        let missing = || BrokerError::TopicNotFound(format!("Replicator {remote} of topic {topic} not found"));
        let links = self.topics.lock().get(topic).cloned().ok_or_else(missing)?;
        let cursor = links.feed.log().and_then(|log| log.cursor(&cursor_name(remote))).ok_or_else(missing)?;
        cursor.clear_backlog().await?;
        if let Some(Hosted { link: Ok(link), .. }) = links.links.read().get(remote) {
            link.cursor_moved();
        }
        Ok(())
    }
}

/// Whether a cursor that no link needs any more is gone.
async fn drop_cursor(links: &TopicLinks, cursor: &str) -> bool {
    let Some(log) = links.feed.log() else { return true };
    match log.delete_cursor(cursor).await {
        Ok(()) => tracing::info!(topic = %links.name, cursor, "replication ended, its cursor is deleted"),
        Err(LogError::NoSuchCursor(_)) => {}
        Err(error) => {
            tracing::warn!(topic = %links.name, cursor, %error, "a replication cursor was not deleted");
            return false;
        }
    }
    true
}

/// A link that does not stop in time, as one whose connection is cut, is left to itself: it holds nothing but its cursor,
/// and that ends with the log.
async fn stop(topic: &TopicName, remote: &str, hosted: Option<Hosted>, limit: Duration) {
    let Some(Hosted { link: Ok(link), .. }) = hosted else { return };
    if tokio::time::timeout(limit, link.stop()).await.is_err() {
        tracing::warn!(%topic, remote, "a link did not stop in time and is given up");
    }
}

#[cfg(test)]
mod tests;
