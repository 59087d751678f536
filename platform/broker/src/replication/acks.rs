//! Acknowledgements of subscriptions between regions: from topics to the region link and back.
//!
//! Role: [`AckExchange`] tells topics who takes part, remembers which of them have something for which region, and hands
//! parts over when the link has room. What a part means the topics know.
//! Invariants: A1 a part's token is known until its outcome came or its connection ended; A2 a peer's part is answered
//! "stored" only when the topic says so; A3 a topic with something to tell is in the peer's list of ready ones, or was
//! asked after it said so.
//! A5 a region dials one broker of another, and each part is merged by the broker that serves its topic.
//! A4 each region is asked for everything that it knows until it has told something: it may know acks that this one had not
//! made durable itself when it ended; A6 a region that has no part in a topic neither opens it nor learns whether it is there.
//! Failure: what a peer can't take yet is offered again after [`AGAIN`]; what it refuses is logged and dropped: both go on
//! with what they have, and the next part is tried.
//! Must never know: what parts hold, how they travel.

use crate::error::BrokerError;
use meridian_cursors::exact::Limits;
use meridian_link::{AckDelta, AckHandler, AckOutcome};
use meridian_ownership::BrokerRecord;
use meridian_policy::EffectivePolicies;
use meridian_replicator::SeenMarker;
use meridian_topic::api::BoxFuture;
use meridian_topic::{AckListener, AckRefusal, AckSetup, AckSharing, SnapshotSetup, TopicHandle};
use meridian_types::{Domain, RegionId, TopicName};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Pause before a part that a peer could not take is offered again.
const AGAIN: Duration = Duration::from_secs(1);
/// State of one subscription at most: it has to fit into one metadata record.
const STATE_BYTES: usize = 96 << 10;

/// Where topics are.
pub trait AckTopics: Send + Sync {
    /// The topic, if it is open.
    fn open(&self, name: &TopicName) -> Option<Arc<dyn TopicHandle>>;
    /// All open ones.
    fn all_open(&self) -> Vec<Arc<dyn TopicHandle>>;
    /// What a topic is told of the Pulsar clusters around it.
    fn snapshot_setup(&self, name: &TopicName) -> Option<SnapshotSetup>;
    /// Whether a region has a part in the topic.
    fn shares(&self, region: &str, name: &TopicName) -> bool;
    /// The topic, opened if it exists.
    fn get<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<Arc<dyn TopicHandle>, BrokerError>>;
    /// Has the broker that serves the topic merge a region's part.
    fn pass_on<'a>(&'a self, broker: &'a BrokerRecord, from: &'a str, delta: AckDelta) -> BoxFuture<'a, AckOutcome>;
    /// Has other brokers of the region tell a peer again what is asked for.
    fn resync_elsewhere(&self, peer: &str, topic: &str, subscription: &str);
}

/// The link, as far as it is needed here.
pub trait AckLink: Send + Sync {
    /// There may be something for a region.
    fn acks_ready(&self, region: &str);
    /// A region is to tell everything that it knows.
    fn request_all(&self, region: &str);
}

impl AckLink for meridian_link::RegionLink {
    fn acks_ready(&self, region: &str) {
        meridian_link::RegionLink::acks_ready(self, region);
    }

    fn request_all(&self, region: &str) {
        self.request_acks(region, "", "");
    }
}

/// A part on its way.
struct Sent {
    topic: TopicName,
    subscription: String,
    version: u64,
}

#[derive(Default)]
struct PeerState {
    /// Topics that may have something to tell.
    ready: BTreeSet<TopicName>,
    sent: HashMap<u64, Sent>,
}

/// See the head of the file.
pub struct AckExchange {
    me: Weak<AckExchange>,
    own: String,
    topics: OnceLock<Arc<dyn AckTopics>>,
    link: OnceLock<Weak<dyn AckLink>>,
    names: RwLock<HashMap<RegionId, String>>,
    peers: Mutex<BTreeMap<String, PeerState>>,
    /// Regions that were asked for everything, and whether they have told something since (A4).
    asked: Mutex<BTreeMap<String, bool>>,
    next_token: Mutex<u64>,
}

impl AckExchange {
    /// For the region `own`.
    pub fn new(own: &str) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            own: own.to_owned(),
            topics: OnceLock::new(),
            link: OnceLock::new(),
            names: RwLock::default(),
            peers: Mutex::default(),
            asked: Mutex::default(),
            next_token: Mutex::new(0),
        })
    }

    /// Says where topics and the link are. Once; nothing is exchanged before.
    pub fn connect(&self, topics: Arc<dyn AckTopics>, link: Weak<dyn AckLink>) {
        let fresh = self.topics.set(topics).is_ok() && self.link.set(link).is_ok();
        debug_assert!(fresh, "connected once");
    }

    /// A topic was opened, or its policies may have changed.
    pub fn follow(&self, topic: &dyn TopicHandle, policies: &EffectivePolicies) {
        if topic.name().domain() != Domain::Persistent {
            return;
        }
        let Some(sharing) = topic.ack_sharing() else { return };
        let remotes: Vec<&String> = policies.replication_clusters.iter().filter(|name| **name != self.own).collect();
        if remotes.is_empty() && !sharing.is_sharing() {
            return;
        }
        let mut peers = BTreeSet::new();
        for name in remotes {
            let id = RegionId::of(name);
            peers.insert(id);
            if self.names.read().get(&id).is_none_or(|known| known != name) {
                self.names.write().insert(id, name.clone());
            }
        }
        let Some(listener) = self.me.upgrade() else { return };
        sharing.share_acks(AckSetup {
            region: RegionId::of(&self.own),
            peers,
            all: policies.replicate_subscription_state,
            limits: Limits { max_bytes: STATE_BYTES, max_in_flight: 16, ..Limits::default() },
            listener,
        });
    }

    /// The name of a region that takes part somewhere.
    pub fn name_of(&self, region: RegionId) -> Option<String> {
        self.names.read().get(&region).cloned()
    }

    fn open(&self, name: &TopicName) -> Option<Arc<dyn AckSharing>> {
        self.topics.get()?.open(name)?.ack_sharing()
    }

    fn shares(&self, region: &str, name: &TopicName) -> bool {
        self.topics.get().is_some_and(|topics| topics.shares(region, name))
    }

    fn ready(&self, peer: &str, topic: TopicName) {
        self.peers.lock().entry(peer.to_owned()).or_default().ready.insert(topic);
        if let Some(link) = self.link.get().and_then(Weak::upgrade) {
            link.acks_ready(peer);
        }
    }

    /// Every open topic tells a peer again what it did not confirm, or everything.
    fn for_all_open(&self, peer: &str, tell: impl Fn(&dyn AckSharing, RegionId)) {
        let Some(topics) = self.topics.get() else { return };
        let id = RegionId::of(peer);
        let mut concerned = Vec::new();
        for topic in topics.all_open() {
            if let Some(sharing) = topic.ack_sharing().filter(|sharing| sharing.is_sharing()) {
                tell(&*sharing, id);
                concerned.push(topic.name().clone());
            }
        }
        self.peers.lock().entry(peer.to_owned()).or_default().ready.extend(concerned);
        if let Some(link) = self.link.get().and_then(Weak::upgrade) {
            link.acks_ready(peer);
        }
    }

    /// A5.
    async fn receive(&self, from: &str, delta: AckDelta) -> AckOutcome {
        match (self.receive_here(from, delta.clone()).await, self.topics.get()) {
            (Ok(outcome), _) => outcome,
            (Err(broker), Some(topics)) => topics.pass_on(&broker, from, delta).await,
            (Err(_), None) => AckOutcome::Later("the broker is starting or ending".to_owned()),
        }
    }

    /// Merges a part of a topic of this broker; `Err` = the broker that serves it.
    pub(crate) async fn receive_here(&self, from: &str, delta: AckDelta) -> Result<AckOutcome, Arc<BrokerRecord>> {
        let Ok(name) = TopicName::parse(&delta.topic) else {
            return Ok(AckOutcome::Refused(format!("no topic's name: {}", delta.topic)));
        };
        let Some(topics) = self.topics.get() else {
            return Ok(AckOutcome::Later("the broker is starting or ending".to_owned()));
        };
        if !topics.shares(from, &name) {
            // It may be soon: the policies that say so travel apart.
            return Ok(AckOutcome::Later(format!("{name} is not shared with region {from} here")));
        }
        let topic = match topics.get(&name).await {
            Ok(topic) => topic,
            Err(BrokerError::Elsewhere { broker, .. }) => return Err(broker),
            // It comes with its first message.
            Err(error) => return Ok(AckOutcome::Later(error.to_string())),
        };
        let Some(sharing) = topic.ack_sharing() else {
            return Ok(AckOutcome::Refused(format!("{name} stores nothing")));
        };
        Ok(match sharing.receive_acks(RegionId::of(from), delta.subscription, delta.payload).await {
            Ok(()) => AckOutcome::Stored,
            Err(AckRefusal::Later(reason)) => AckOutcome::Later(reason),
            Err(AckRefusal::Never(reason)) => AckOutcome::Refused(reason),
        })
    }

    /// A region has told something (A4).
    pub(crate) fn hear(&self, from: &str) {
        if let Some(heard) = self.asked.lock().get_mut(from) {
            *heard = true;
        }
    }

    /// The topics of this broker tell a peer again what is asked for.
    pub(crate) fn resync_here(&self, peer: &str, topic: &str, subscription: &str) {
        let one = (!subscription.is_empty()).then_some(subscription);
        match TopicName::parse(topic) {
            Ok(name) => {
                if let Some(sharing) = self.open(&name) {
                    sharing.resync_acks(RegionId::of(peer), one);
                    self.ready(peer, name);
                }
            }
            Err(_) => self.for_all_open(peer, |sharing, id| sharing.resync_acks(id, None)),
        }
    }

    /// A link met a marker that came from its remote.
    pub(super) fn marker(&self, topic: &TopicName, remote: &str, marker: SeenMarker) {
        let Some(topics) = self.topics.get() else { return };
        let (Some(handle), Some(setup)) = (topics.open(topic), topics.snapshot_setup(topic)) else {
            tracing::debug!(%topic, remote, kind = marker.kind, "a marker of subscriptions is passed over");
            return;
        };
        if let Some(sharing) = handle.snapshot_sharing() {
            sharing.subscription_marker(setup, marker.kind, marker.entry, marker.position);
        }
    }

    fn offer_again(&self, peer: &str, topic: TopicName) {
        let (exchange, peer) = (self.me.clone(), peer.to_owned());
        let offer = async move {
            tokio::time::sleep(AGAIN).await;
            let Some(exchange) = exchange.upgrade() else { return };
            if let Some(sharing) = exchange.open(&topic) {
                sharing.acks_lost(RegionId::of(&peer));
                exchange.ready(&peer, topic);
            }
        };
        tokio::spawn(offer);
    }
}

impl AckListener for AckExchange {
    fn acks_ready(&self, topic: &TopicName) {
        let names: Vec<String> = self.names.read().values().cloned().collect();
        for name in names {
            self.ready(&name, topic.clone());
        }
    }
}

impl AckHandler for AckExchange {
    fn connected(&self, peer: &str) {
        self.peers.lock().entry(peer.to_owned()).or_default().sent.clear();
        self.for_all_open(peer, |sharing, id| sharing.acks_lost(id));
        // A request may end with its connection: it is repeated until something came.
        if !*self.asked.lock().entry(peer.to_owned()).or_default()
            && let Some(link) = self.link.get().and_then(Weak::upgrade)
        {
            link.request_all(peer);
        }
    }

    fn take(&self, peer: &str, max_bytes: usize) -> Vec<AckDelta> {
        let id = RegionId::of(peer);
        let (mut bytes, mut deltas) = (0, Vec::new());
        while bytes < max_bytes {
            let popped = self.peers.lock().entry(peer.to_owned()).or_default().ready.pop_first();
            let Some(topic) = popped else { break };
            let Some(sharing) = self.open(&topic) else { continue };
            let parts = sharing.take_acks(id, max_bytes - bytes);
            if parts.is_empty() {
                continue;
            }
            let mut peers = self.peers.lock();
            let state = peers.entry(peer.to_owned()).or_default();
            // It may have more.
            state.ready.insert(topic.clone());
            for part in parts {
                let token = {
                    let mut next = self.next_token.lock();
                    *next += 1;
                    *next
                };
                let delta = AckDelta {
                    token,
                    topic: topic.as_str().to_owned(),
                    subscription: part.subscription.clone(),
                    full: false,
                    payload: part.payload,
                };
                bytes += delta.bytes();
                deltas.push(delta);
                let sent = Sent { topic: topic.clone(), subscription: part.subscription, version: part.version };
                state.sent.insert(token, sent);
            }
        }
        deltas
    }

    fn confirmed(&self, peer: &str, token: u64, outcome: AckOutcome) {
        let found = self.peers.lock().get_mut(peer).and_then(|state| state.sent.remove(&token));
        let Some(Sent { topic, subscription, version }) = found else { return };
        let id = RegionId::of(peer);
        let Some(sharing) = self.open(&topic) else { return };
        match outcome {
            AckOutcome::Stored => {
                sharing.acks_confirmed(id, &subscription, version);
                self.ready(peer, topic);
            }
            AckOutcome::Resync => {
                sharing.resync_acks(id, Some(&subscription));
                self.ready(peer, topic);
            }
            AckOutcome::Later(reason) => {
                tracing::debug!(%topic, subscription, peer, reason, "acks are offered again later");
                self.offer_again(peer, topic);
            }
            AckOutcome::Refused(reason) => {
                tracing::warn!(%topic, subscription, peer, reason, "another region refuses acks");
                sharing.acks_confirmed(id, &subscription, version);
            }
        }
    }

    fn disconnected(&self, peer: &str) {
        if let Some(state) = self.peers.lock().get_mut(peer) {
            state.sent.clear();
            state.ready.clear();
        }
    }

    fn resync(&self, peer: &str, topic: &str, subscription: &str) {
        // A name that is none asks for all.
        if TopicName::parse(topic).is_ok_and(|name| !self.shares(peer, &name)) {
            return;
        }
        self.resync_here(peer, topic, subscription);
        if let Some(topics) = self.topics.get() {
            topics.resync_elsewhere(peer, topic, subscription);
        }
    }

    fn apply<'a>(
        &'a self,
        from: &'a str,
        deltas: Vec<AckDelta>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Vec<AckOutcome>> + Send + 'a>> {
        Box::pin(async move {
            self.hear(from);
            let mut outcomes = Vec::with_capacity(deltas.len());
            for delta in deltas {
                outcomes.push(self.receive(from, delta).await);
            }
            outcomes
        })
    }
}

#[cfg(test)]
#[path = "acks_tests.rs"]
mod tests;
