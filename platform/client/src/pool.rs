//! The connections to one peer, shared by everyone who talks to it.
//!
//! Invariants:
//! - L1 To each endpoint there are at most `connections_per_broker` connections, made when they are wanted.
//! - L2 One attempt at a time for each of them; who asks meanwhile gets its outcome.
//! - L3 After a failure nothing is dialled before the back-off allows it; who asks is told how long that is.
//! - L4 A lookup ends after [`MAX_REDIRECTS`] redirects and within one request's deadline.
//!
//! Failure: [`ClientError`]; a caller that does not want to decide uses [`PeerPool::connection_within`].
//! Must never know: producers, consumers.

use crate::ClientError;
use crate::address::Endpoint;
use crate::backoff::Backoff;
use crate::connection::{Connection, dial};
use crate::peer::Peer;
use crate::requests::{Step, VersionedSchema, follow};
use bytes::Bytes;
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::proto::Schema;
use meridian_wire::proto::command_get_topics_of_namespace::Mode;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Redirects of one lookup.
pub const MAX_REDIRECTS: usize = 20;
/// Endpoints of one peer that are remembered; beyond it those without a connection are forgotten.
pub const MAX_ENDPOINTS: usize = 1024;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nobody asked for it.
    Idle,
    /// It is being made.
    Connecting,
    /// It is there.
    Connected,
    /// It failed or ended, and is made again when somebody asks after the back-off.
    Failed,
}

impl Phase {
    /// As text for stats.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Connecting => "connecting",
            Phase::Connected => "connected",
            Phase::Failed => "failed",
        }
    }
}

/// One connection for stats.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionState {
    /// Where it goes.
    pub endpoint: Endpoint,
    /// What it is doing.
    pub phase: Phase,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
    /// Times that it was made.
    pub connects: u64,
    /// Failed attempts and ends in a row.
    pub failures: u32,
    /// Until the back-off allows the next attempt.
    pub retry_in_ms: u64,
    /// Why the last attempt failed or the last connection ended.
    pub last_error: Option<Arc<ClientError>>,
    /// The version text of the broker, if it is connected.
    pub server_version: Option<String>,
    /// Bytes that wait to be written.
    pub outbound_bytes: usize,
}

#[derive(Debug)]
struct SlotState {
    connection: Option<Connection>,
    backoff: Backoff,
    retry_at: Instant,
    phase: Phase,
    since_ms: u64,
    connects: u64,
    last_error: Option<Arc<ClientError>>,
}

impl SlotState {
    fn enter(&mut self, phase: Phase) {
        if self.phase != phase {
            self.phase = phase;
            self.since_ms = unix_ms();
        }
    }

    fn fail(&mut self, error: ClientError, wait_ms: u64) {
        self.connection = None;
        self.retry_at = Instant::now() + Duration::from_millis(wait_ms);
        self.last_error = Some(Arc::new(error));
        self.enter(Phase::Failed);
    }

    /// Notices that the connection has ended.
    fn refresh(&mut self) {
        let Some(connection) = &self.connection else { return };
        if let Some(error) = connection.error() {
            let lived_ms = connection.age().as_millis() as u64;
            let wait_ms = self.backoff.ended(lived_ms, rand::random());
            self.fail(error, wait_ms);
        }
    }

    fn retry_in_ms(&self) -> u64 {
        let left = self.retry_at.saturating_duration_since(Instant::now());
        // Rounded up: who waits so long does not come too early.
        left.as_nanos().div_ceil(1_000_000) as u64
    }
}

#[derive(Debug)]
struct Slot {
    dialling: tokio::sync::Mutex<()>,
    state: Mutex<SlotState>,
}

/// Puts a slot back to what it was if the attempt is given up.
struct Dialling<'a>(&'a Slot);

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if state.phase == Phase::Connecting {
            let phase = if state.last_error.is_some() { Phase::Failed } else { Phase::Idle };
            state.enter(phase);
        }
    }
}

impl Slot {
    fn new(peer: &Peer) -> Self {
        let state = SlotState {
            connection: None,
            backoff: Backoff::new(peer.limits.backoff),
            retry_at: Instant::now(),
            phase: Phase::Idle,
            since_ms: unix_ms(),
            connects: 0,
            last_error: None,
        };
        Self { dialling: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    /// The connection if it is there, `None` if one may be made now.
    fn ready(&self, endpoint: &Endpoint) -> Result<Option<Connection>, ClientError> {
        let mut state = self.state.lock();
        state.refresh();
        if state.connection.is_some() {
            return Ok(state.connection.clone());
        }
        match (state.retry_in_ms(), &state.last_error) {
            (retry_in_ms, Some(last)) if retry_in_ms > 0 => {
                Err(ClientError::BackingOff { endpoint: endpoint.clone(), retry_in_ms, last: last.clone() })
            }
            _ => Ok(None),
        }
    }

    async fn connection(&self, peer: &Peer, endpoint: &Endpoint) -> Result<Connection, ClientError> {
        if let Some(connection) = self.ready(endpoint)? {
            return Ok(connection);
        }
        let _one = self.dialling.lock().await;
        if let Some(connection) = self.ready(endpoint)? {
            return Ok(connection);
        }
        self.state.lock().enter(Phase::Connecting);
        let _dialling = Dialling(self);
        let dialled = dial(peer, endpoint).await;
        let mut state = self.state.lock();
        match &dialled {
            Ok(connection) => {
                tracing::info!(peer = peer.name, %endpoint, version = connection.facts().server_version, "connected");
                state.connection = Some(connection.clone());
                state.connects += 1;
                state.enter(Phase::Connected);
            }
            Err(error) => {
                let wait_ms = state.backoff.failed(rand::random());
                if state.backoff.failures() == 1 {
                    tracing::warn!(peer = peer.name, %endpoint, %error, "no connection");
                }
                state.fail(error.clone(), wait_ms);
            }
        }
        drop(state);
        dialled
    }

    fn report(&self, endpoint: &Endpoint) -> ConnectionState {
        let mut state = self.state.lock();
        state.refresh();
        ConnectionState {
            endpoint: endpoint.clone(),
            phase: state.phase,
            since_ms: state.since_ms,
            connects: state.connects,
            failures: state.backoff.failures(),
            retry_in_ms: state.retry_in_ms(),
            last_error: state.last_error.clone(),
            server_version: state.connection.as_ref().map(|connection| connection.facts().server_version.clone()),
            outbound_bytes: state.connection.as_ref().map_or(0, Connection::outbound_bytes),
        }
    }

    fn is_open(&self) -> bool {
        self.state.lock().connection.as_ref().is_some_and(|connection| connection.error().is_none())
    }
}

#[derive(Debug)]
struct Broker {
    slots: Vec<Slot>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Inner {
    peer: Peer,
    brokers: Mutex<HashMap<Endpoint, Arc<Broker>>>,
    /// The address of the service URL that answered last.
    preferred: AtomicUsize,
}

/// The connections to one peer; clones share them.
#[derive(Debug, Clone)]
pub struct PeerPool {
    inner: Arc<Inner>,
}

impl PeerPool {
    /// A pool without connections.
    pub fn new(peer: Peer) -> Self {
        Self { inner: Arc::new(Inner { peer, brokers: Mutex::default(), preferred: AtomicUsize::new(0) }) }
    }

    /// A pool for the same peer at another service URL, such as one that a topic was migrated to.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn at(&self, service_url: &str) -> Result<Self, ClientError> {
        Ok(Self::new(Peer { service_url: crate::ServiceUrl::parse(service_url)?, ..self.inner.peer.clone() }))
    }

    /// Whose connections these are.
    pub fn peer(&self) -> &Peer {
        &self.inner.peer
    }

    /// A connection to an endpoint: one that is there, or a new one. The connections to one broker take turns.
    ///
    /// # Errors
    /// The attempt failed, or [`ClientError::BackingOff`] if the last one did and the next is not due yet.
    pub async fn connection(&self, endpoint: &Endpoint) -> Result<Connection, ClientError> {
        let broker = self.broker(endpoint)?;
        let turn = broker.next.fetch_add(1, Ordering::Relaxed);
        broker.slots[turn % broker.slots.len()].connection(&self.inner.peer, endpoint).await
    }

    /// As [`connection`](Self::connection), but tries again until `deadline_ms` have passed if that may help.
    ///
    /// # Errors
    /// The last failure.
    pub async fn connection_within(&self, endpoint: &Endpoint, deadline_ms: u64) -> Result<Connection, ClientError> {
        let deadline = Instant::now() + Duration::from_millis(deadline_ms);
        loop {
            let error = match self.connection(endpoint).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let again_at = Instant::now() + Duration::from_millis(error.retry_in_ms().max(1));
            if !error.may_pass() || again_at > deadline {
                return Err(error);
            }
            tokio::time::sleep_until(again_at.into()).await;
        }
    }

    fn broker(&self, endpoint: &Endpoint) -> Result<Arc<Broker>, ClientError> {
        let mut brokers = self.inner.brokers.lock();
        if let Some(broker) = brokers.get(endpoint) {
            return Ok(broker.clone());
        }
        if brokers.len() >= MAX_ENDPOINTS {
            brokers.retain(|_, broker| broker.slots.iter().any(Slot::is_open));
        }
        if brokers.len() >= MAX_ENDPOINTS {
            return Err(ClientError::Crowded { what: "the brokers of a peer", limit: MAX_ENDPOINTS });
        }
        let count = self.inner.peer.limits.connections_per_broker.max(1);
        let slots = (0..count).map(|_| Slot::new(&self.inner.peer)).collect();
        let broker = Arc::new(Broker { slots, next: AtomicUsize::new(0) });
        brokers.insert(endpoint.clone(), broker.clone());
        Ok(broker)
    }

    /// A connection to any address of the service URL: that which answered last, or else the next one that does.
    ///
    /// # Errors
    /// All failed: the error of the one that may be asked again first.
    pub async fn any(&self) -> Result<Connection, ClientError> {
        let addresses = self.inner.peer.service_url.addresses();
        let preferred = self.inner.preferred.load(Ordering::Relaxed);
        let mut soonest: Option<ClientError> = None;
        for turn in 0..addresses.len() {
            let index = (preferred + turn) % addresses.len();
            match self.connection(&Endpoint::direct(addresses[index].clone())).await {
                Ok(connection) => {
                    self.inner.preferred.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => match &soonest {
                    Some(other) if other.retry_in_ms() <= error.retry_in_ms() => {}
                    _ => soonest = Some(error),
                },
            }
        }
        Err(soonest.unwrap_or_else(|| ClientError::ended("the service URL has no address")))
    }

    /// Who serves a topic.
    ///
    /// # Errors
    /// Refused, late, redirected in circles, or no connection.
    pub async fn lookup(&self, topic: &TopicName) -> Result<Endpoint, ClientError> {
        let deadline_ms = self.inner.peer.limits.request_timeout_ms;
        match tokio::time::timeout(Duration::from_millis(deadline_ms), self.look_up(topic)).await {
            Ok(found) => found,
            Err(_) => Err(ClientError::Late { what: "a lookup", deadline_ms }),
        }
    }

    async fn look_up(&self, topic: &TopicName) -> Result<Endpoint, ClientError> {
        let mut asked = self.any().await?;
        let mut is_authoritative = false;
        for _ in 0..=MAX_REDIRECTS {
            let answer = asked.lookup(topic, is_authoritative, self.inner.peer.listener.as_deref()).await?;
            match follow(asked.endpoint(), &answer)? {
                Step::Found(endpoint) => return Ok(endpoint),
                Step::Ask { endpoint, authoritative } => {
                    asked = self.connection(&endpoint).await?;
                    is_authoritative = authoritative;
                }
            }
        }
        Err(ClientError::Redirected { topic: topic.as_str().to_owned(), redirects: MAX_REDIRECTS })
    }

    /// A connection to the broker that serves a topic.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup) and [`connection`](Self::connection).
    pub async fn owner(&self, topic: &TopicName) -> Result<Connection, ClientError> {
        let endpoint = self.lookup(topic).await?;
        self.connection(&endpoint).await
    }

    /// How many partitions a topic has; 0 if it is not partitioned ([`Connection::partitions`]).
    ///
    /// # Errors
    /// As the request, or no connection.
    pub async fn partitions(&self, topic: &TopicName, create: bool) -> Result<u32, ClientError> {
        self.any().await?.partitions(topic, create).await
    }

    /// The topics of a namespace.
    ///
    /// # Errors
    /// As the request, or no connection.
    pub async fn topics_of_namespace(&self, namespace: &NamespaceName, mode: Mode) -> Result<Vec<String>, ClientError> {
        self.any().await?.topics_of_namespace(namespace, mode).await
    }

    /// A topic's schema: that of a version, or the latest; `None` if there is none.
    ///
    /// # Errors
    /// As the request, or no connection.
    pub async fn schema(
        &self,
        topic: &TopicName,
        version: Option<Bytes>,
    ) -> Result<Option<VersionedSchema>, ClientError> {
        self.any().await?.schema(topic, version).await
    }

    /// The version of a schema at the broker that serves the topic; registers it if it is new and compatible.
    ///
    /// # Errors
    /// As the request, or no connection.
    pub async fn get_or_create_schema(&self, topic: &TopicName, schema: Schema) -> Result<Bytes, ClientError> {
        self.owner(topic).await?.get_or_create_schema(topic, schema).await
    }

    /// Every connection, for stats, in the order of the endpoints.
    pub fn states(&self) -> Vec<ConnectionState> {
        let mut brokers: Vec<_> =
            self.inner.brokers.lock().iter().map(|(endpoint, broker)| (endpoint.clone(), broker.clone())).collect();
        brokers.sort_by(|one, other| one.0.cmp(&other.0));
        let of_broker = |(endpoint, broker): &(Endpoint, Arc<Broker>)| {
            broker.slots.iter().map(|slot| slot.report(endpoint)).collect::<Vec<_>>()
        };
        brokers.iter().flat_map(of_broker).collect()
    }

    /// Ends every connection, for everyone who uses one.
    pub fn close(&self) {
        for broker in std::mem::take(&mut *self.inner.brokers.lock()).into_values() {
            for slot in &broker.slots {
                if let Some(connection) = &slot.state.lock().connection {
                    connection.close();
                }
            }
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
