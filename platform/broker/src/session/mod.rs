//! One connection: commands in, topics called, answers out.
//!
//! Role: [`Session`] is what all parts of a connection share: the reader decodes and dispatches, slow commands run as tasks,
//! topics answer through [`meridian_topic::ClientSink`], the writer drains the outbound queue.
//! Invariants: B3 (bounded queues: see `throttle`, `outbound`), O1..O3, P1, P2, R1; N1 a topic is never called while a lock
//! of the session is held; N2 a frame that breaks the protocol closes this connection and nothing else.
//! Failure: a connection ends with a reason that is logged at debug; everything it held is detached from the topics.
//! Must never know: how topics store.

mod acks;
mod connection;
mod consumer;
mod counting;
mod discovery;
mod dispatch;
mod grants;
mod keepalive;
mod login;
mod lookup;
mod outbound;
mod producer;
mod reply;
mod schemas;
mod sink;
mod slots;
mod throttle;
mod watchers;

pub use connection::{Peer, serve, serve_halves};

use crate::access::Principal;
use crate::listener::Unauthenticated;
use crate::service::BrokerService;
use counting::CountedAt;
use meridian_wire::encode;
use meridian_wire::proto::BaseCommand;
use outbound::Outbound;
use parking_lot::Mutex;
use slots::Slots;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use throttle::{Throttle, ThrottleLimits};
use tokio::sync::{Notify, watch};

/// What the client said about itself in CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Version text.
    pub version: String,
    /// Protocol version.
    pub protocol: i32,
    /// It understands broker entry metadata and this broker exposes it.
    pub broker_entry_metadata: bool,
    /// It answers AUTH_CHALLENGE at any time.
    pub auth_refresh: bool,
    /// It matches receipts of a replicator by source position.
    pub repl_dedup: bool,
    /// Commands that it would close the connection for are not sent.
    pub knows_end_of_topic: bool,
}

/// One connection.
pub struct Session {
    this: Weak<Session>,
    service: Arc<BrokerService>,
    peer: SocketAddr,
    listener: Option<String>,
    /// Gone once the client has logged in.
    unauthenticated: Mutex<Option<Arc<Unauthenticated>>>,
    client: OnceLock<ClientInfo>,
    principal: Mutex<Principal>,
    slots: Mutex<Slots>,
    /// Places that this connection counts at.
    counted: Mutex<CountedAt>,
    watchers: Mutex<watchers::Watchers>,
    outbound: Outbound,
    throttle: Throttle,
    received: AtomicU64,
    traffic: Notify,
    probing: AtomicU32,
    end: watch::Sender<Option<String>>,
}

impl Session {
    fn new(
        service: Arc<BrokerService>,
        peer: SocketAddr,
        listener: Option<String>,
        login: Option<Arc<Unauthenticated>>,
    ) -> Arc<Self> {
        let limits = service.config().session.clone();
        let throttle = ThrottleLimits {
            publishes: limits.max_pending_publishes.max(1),
            publish_bytes: limits.max_pending_publish_bytes.max(1),
            held_bytes: limits.max_pending_publish_bytes.max(1),
            commands: limits.max_pending_commands.max(1),
        };
        Arc::new_cyclic(|this| Session {
            this: this.clone(),
            service,
            peer,
            listener,
            unauthenticated: Mutex::new(login),
            client: OnceLock::new(),
            principal: Mutex::new(Principal::nobody()),
            slots: Mutex::default(),
            counted: Mutex::default(),
            watchers: Mutex::default(),
            outbound: Outbound::new(limits.outbound_high_bytes, limits.outbound_low_bytes),
            throttle: Throttle::new(throttle),
            received: AtomicU64::new(0),
            traffic: Notify::new(),
            probing: AtomicU32::new(0),
            end: watch::channel(None).0,
        })
    }

    /// Asks the connection to end; what was answered so far is still written. The first reason counts.
    pub fn close(&self, reason: impl Into<String>) {
        self.end.send_if_modified(|end| match end {
            Some(_) => false,
            None => {
                *end = Some(reason.into());
                true
            }
        });
    }

    fn send(&self, command: impl Into<BaseCommand>) {
        let command = command.into();
        self.outbound.append(|appender| encode::encode_command(&command, appender.buffer()));
    }

    fn client(&self) -> Option<&ClientInfo> {
        self.client.get()
    }

    fn protocol(&self) -> i32 {
        self.client().map_or(0, |client| client.protocol)
    }

    fn principal(&self) -> Principal {
        self.principal.lock().clone()
    }

    /// Runs a slow command as a task of its own; how many there may be is bounded (B3).
    fn spawn<F>(&self, command: impl FnOnce(Arc<Session>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(session) = self.this.upgrade() else { return };
        self.throttle.command_begun();
        let work = command(session.clone());
        tokio::spawn(async move {
            work.await;
            session.throttle.command_ended();
        });
    }

    /// Something came from the peer.
    fn note_traffic(&self) {
        self.received.fetch_add(1, Ordering::SeqCst);
        if self.probing.load(Ordering::SeqCst) > 0 {
            self.traffic.notify_waiters();
        }
    }
}
