//! The link of one region: its peers, its handlers, its service.
//!
//! Invariants: handlers are set once; setting one later than the peers makes the connections begin anew, so that it is
//! asked from the start.
//! Failure: [`LinkError`].
//! Must never know: what handlers do.

use crate::api::{AckHandler, FailoverHandler, ObjectStore, PositionsHandler, TopicPositions};
use crate::config::{LinkConfig, RESYNCS_QUEUED};
use crate::convert;
use crate::error::LinkError;
use crate::peer::{self, Peer};
use crate::proto;
use crate::status::{IncomingStatus, PeerStatus};
use bytes::Bytes;
use meridian_topology::LinkAddress;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// Time of day, ms since 1970.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// What connections and the service share.
pub(crate) struct Context {
    pub(crate) config: LinkConfig,
    pub(crate) objects: OnceLock<Arc<dyn ObjectStore>>,
    pub(crate) acks: OnceLock<Arc<dyn AckHandler>>,
    pub(crate) failover: OnceLock<Arc<dyn FailoverHandler>>,
    pub(crate) positions: OnceLock<Arc<dyn PositionsHandler>>,
    /// Of registered peers only.
    pub(crate) incoming: Mutex<BTreeMap<String, IncomingStatus>>,
}

impl Context {
    /// Changes the figures of what comes from a region.
    pub(crate) fn note(&self, region: &str, change: impl FnOnce(&mut IncomingStatus)) {
        let mut incoming = self.incoming.lock();
        let status = incoming.entry(region.to_owned()).or_default();
        status.last_seen_ms = wall_ms();
        change(status);
    }
}

struct Running {
    peer: Arc<Peer>,
    task: JoinHandle<()>,
}

/// See the crate.
pub struct RegionLink {
    pub(crate) context: Arc<Context>,
    peers: Mutex<BTreeMap<String, Running>>,
}

impl RegionLink {
    /// The link of a region; nothing runs before [`RegionLink::set_peers`] and [`RegionLink::serve`].
    pub fn new(config: LinkConfig) -> Arc<Self> {
        let context = Context {
            config,
            objects: OnceLock::new(),
            acks: OnceLock::new(),
            failover: OnceLock::new(),
            positions: OnceLock::new(),
            incoming: Mutex::default(),
        };
        Arc::new(Self { context: Arc::new(context), peers: Mutex::default() })
    }

    /// The own region.
    pub fn region(&self) -> &str {
        &self.context.config.region
    }

    /// Whether the link has certificates.
    pub fn encrypted(&self) -> bool {
        self.context.config.tls.is_some()
    }

    /// Sets what holds the shared objects. Once.
    pub fn set_objects(&self, objects: Arc<dyn ObjectStore>) {
        self.set(&self.context.objects, objects);
    }

    /// Sets what holds states of acknowledgements. Once.
    pub fn set_acks(&self, acks: Arc<dyn AckHandler>) {
        self.set(&self.context.acks, acks);
    }

    /// Sets what does the steps of a fail-over. Once.
    pub fn set_failover(&self, failover: Arc<dyn FailoverHandler>) {
        self.set(&self.context.failover, failover);
    }

    /// Sets what knows positions. Once.
    pub fn set_positions(&self, positions: Arc<dyn PositionsHandler>) {
        self.set(&self.context.positions, positions);
    }

    fn set<T: ?Sized>(&self, place: &OnceLock<Arc<T>>, handler: Arc<T>) {
        let fresh = place.set(handler).is_ok();
        debug_assert!(fresh, "a handler is set once");
        for running in self.peers.lock().values() {
            running.peer.begin_anew();
        }
    }

    /// The peers from now on: new ones are dialled, those with another address are dialled anew, others are let go.
    pub fn set_peers(&self, peers: impl IntoIterator<Item = (String, LinkAddress)>) {
        let wanted: BTreeMap<String, LinkAddress> =
            peers.into_iter().filter(|(name, _)| name != self.region()).collect();
        let mut running = self.peers.lock();
        running.retain(|name, one| {
            let stays = wanted.contains_key(name);
            if !stays {
                one.task.abort();
                self.context.incoming.lock().remove(name);
            }
            stays
        });
        for (name, address) in wanted {
            if let Some(one) = running.get(&name) {
                one.peer.set_address(address);
                continue;
            }
            let peer = Arc::new(Peer::new(name.clone(), address));
            let task = tokio::spawn(peer::run(self.context.clone(), peer.clone()));
            running.insert(name, Running { peer, task });
        }
    }

    pub(crate) fn find(&self, region: &str) -> Option<Arc<Peer>> {
        self.peers.lock().get(region).map(|running| running.peer.clone())
    }

    /// What can be seen of all peers.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let peers: Vec<Arc<Peer>> = self.peers.lock().values().map(|running| running.peer.clone()).collect();
        let incoming = self.context.incoming.lock();
        peers
            .into_iter()
            .map(|peer| PeerStatus { incoming: incoming.get(&peer.name).cloned().unwrap_or_default(), ..peer.status() })
            .collect()
    }

    /// What can be seen of one peer.
    pub fn peer(&self, region: &str) -> Option<PeerStatus> {
        self.peers().into_iter().find(|status| status.region == region)
    }

    /// There may be acknowledgements to send to a peer: [`AckHandler::take`] is asked soon. Cheap, never waits.
    pub fn acks_ready(&self, region: &str) {
        if let Some(peer) = self.find(region) {
            peer.acks.notify_one();
        }
    }

    /// Asks a peer for the whole state of a subscription; of all if `topic` is empty. Said again after a reconnection
    /// only if it was not sent.
    pub fn request_acks(&self, region: &str, topic: &str, subscription: &str) {
        let Some(peer) = self.find(region) else { return };
        let mut resyncs = peer.resyncs.lock();
        if resyncs.len() >= RESYNCS_QUEUED {
            // N3: everything is asked for instead.
            resyncs.clear();
            resyncs.push_back((String::new(), String::new()));
        } else {
            resyncs.push_back((topic.to_owned(), subscription.to_owned()));
        }
        peer.acks.notify_one();
    }

    /// Has a peer do a step of a fail-over; answers what it says.
    ///
    /// # Errors
    /// [`LinkError`]; after [`LinkError::TimedOut`] the step may have been done.
    pub async fn failover(&self, region: &str, step: &str, body: Bytes) -> Result<Bytes, LinkError> {
        let mut client = self.connected(region)?;
        let request = peer::named(self.region(), proto::FailoverRequest { step: step.to_owned(), body });
        let reply = self.in_time(region, async move { client.failover(request).await }).await?;
        Ok(reply.into_inner().body)
    }

    /// Asks a peer how far topics are.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn positions(&self, region: &str, topics: Vec<String>) -> Result<Vec<TopicPositions>, LinkError> {
        let mut client = self.connected(region)?;
        let request = peer::named(self.region(), proto::PositionsRequest { topics });
        let reply = self.in_time(region, async move { client.positions(request).await }).await?;
        Ok(reply.into_inner().topics.into_iter().map(convert::positions).collect())
    }

    fn connected(&self, region: &str) -> Result<peer::Client, LinkError> {
        let peer = self.find(region).ok_or_else(|| LinkError::NoPeer(region.to_owned()))?;
        let client = peer.client.lock().clone();
        client.ok_or_else(|| LinkError::NotConnected { region: region.to_owned(), why: peer.status().explain() })
    }

    async fn in_time<T>(
        &self,
        region: &str,
        call: impl Future<Output = Result<T, tonic::Status>> + Send,
    ) -> Result<T, LinkError> {
        let limit_ms = self.context.config.times.call_ms;
        match tokio::time::timeout(Duration::from_millis(limit_ms), call).await {
            Ok(result) => result.map_err(|status| LinkError::of_status(region, &status)),
            Err(_) => Err(LinkError::TimedOut { region: region.to_owned(), limit_ms }),
        }
    }
}

impl Drop for RegionLink {
    fn drop(&mut self) {
        for running in self.peers.lock().values() {
            running.task.abort();
        }
    }
}
