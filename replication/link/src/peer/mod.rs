//! One peer: dialled, greeted, served until the connection ends, and again.
//!
//! Invariants: N2; the state always says since when and why; one connection at a time.
//! Failure: whatever ends a connection is its last error, and the next attempt follows after a jittered pause.
//! Must never know: what streams carry.

mod acks;
mod objects;
mod session;

use crate::backoff::Backoff;
use crate::discover::{self, Discovered};
use crate::link::{Context, wall_ms};
use crate::proto;
use crate::proto::region_link_client::RegionLinkClient;
use crate::secure;
use crate::status::{PeerState, PeerStatus};
use meridian_topology::{Endpoint, LinkAddress};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// The client of a connection.
pub(crate) type Client = RegionLinkClient<Channel>;

/// Metadata that names the caller's region.
pub(crate) const REGION: &str = "meridian-region";

/// A request that says who calls.
pub(crate) fn named<T>(region: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    match MetadataValue::<Ascii>::try_from(region) {
        Ok(value) => drop(request.metadata_mut().insert(REGION, value)),
        Err(_) => tracing::error!(region, "the region's name can't be said to a peer"),
    }
    request
}

/// What everyone shares of a peer.
pub(crate) struct Peer {
    pub(crate) name: String,
    /// Where it is; a new value ends the connection.
    address: watch::Sender<LinkAddress>,
    status: Mutex<PeerStatus>,
    /// Of the connection that is there.
    pub(crate) client: Mutex<Option<Client>>,
    /// There may be acknowledgements to send, or states to ask for.
    pub(crate) acks: Notify,
    /// States to ask for: topic and subscription.
    pub(crate) resyncs: Mutex<VecDeque<(String, String)>>,
}

impl Peer {
    pub(crate) fn new(name: String, address: LinkAddress) -> Self {
        let status = PeerStatus { region: name.clone(), since_ms: wall_ms(), ..PeerStatus::default() };
        Self {
            name,
            address: watch::Sender::new(address),
            status: Mutex::new(status),
            client: Mutex::new(None),
            acks: Notify::new(),
            resyncs: Mutex::default(),
        }
    }

    pub(crate) fn set_address(&self, address: LinkAddress) {
        self.address.send_if_modified(|held| {
            let other = *held != address;
            *held = address;
            other
        });
    }

    /// Ends the connection, so that another one begins.
    pub(crate) fn begin_anew(&self) {
        self.address.send_modify(|_| {});
    }

    /// What its entry says of encryption: only `http://` allows to go without.
    pub(crate) fn allows_plaintext(&self) -> bool {
        matches!(&*self.address.borrow(), LinkAddress::Given(endpoint) if !endpoint.tls)
    }

    pub(crate) fn status(&self) -> PeerStatus {
        self.status.lock().clone()
    }

    fn note(&self, change: impl FnOnce(&mut PeerStatus)) {
        change(&mut self.status.lock());
    }

    fn enter(&self, state: PeerState) {
        let mut status = self.status.lock();
        if status.state != state {
            status.state = state;
            status.since_ms = wall_ms();
        }
    }
}

/// Dials for ever.
pub(crate) async fn run(context: Arc<Context>, peer: Arc<Peer>) {
    let times = context.config.times.clone();
    let mut backoff = Backoff::new(times.retry_min_ms, times.retry_max_ms);
    let mut changes = peer.address.subscribe();
    loop {
        let address = changes.borrow_and_update().clone();
        let connected_before = peer.status().connects;
        let ended = tokio::select! {
            ended = attempt(&context, &peer, &address) => ended,
            _ = changes.changed() => Ended::Moved,
        };
        peer.client.lock().take();
        if peer.status().connects > connected_before {
            backoff.reset();
        }
        let pause_ms = match ended {
            Ended::Moved => continue,
            Ended::NoLink(why) => {
                peer.enter(PeerState::NoLink(why));
                times.ask_again_ms
            }
            Ended::Failed(error) => {
                note_failure(&peer, error);
                backoff.pause_ms(rand::random())
            }
        };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(pause_ms)) => {}
            _ = changes.changed() => {}
        }
    }
}

fn note_failure(peer: &Peer, error: String) {
    let was_connected = peer.status().state == PeerState::Connected;
    if was_connected {
        tracing::warn!(region = peer.name, error, "the region link has ended");
    } else {
        tracing::debug!(region = peer.name, error, "the region link can't be made");
    }
    peer.enter(PeerState::Disconnected);
    peer.note(|status| status.last_error = Some((error, wall_ms())));
}

/// How an attempt ended.
enum Ended {
    /// The address is another one, or everything has to begin anew.
    Moved,
    /// There is nothing to dial.
    NoLink(String),
    /// It failed, or the connection ended.
    Failed(String),
}

async fn attempt(context: &Arc<Context>, peer: &Arc<Peer>, address: &LinkAddress) -> Ended {
    let endpoint = match address {
        LinkAddress::Given(endpoint) => endpoint.clone(),
        LinkAddress::None => return Ended::NoLink("its cluster entry has no address to ask".to_owned()),
        LinkAddress::Ask(web) => {
            let limit = Duration::from_millis(context.config.times.connect_ms);
            match tokio::time::timeout(limit, discover::ask(web, context.config.tls.as_ref())).await {
                Ok(Ok(Discovered::Link(endpoint))) => endpoint,
                Ok(Ok(Discovered::None(why))) => return Ended::NoLink(why),
                Ok(Err(error)) => return Ended::Failed(error),
                Err(_) => return Ended::Failed("its web service did not answer".to_owned()),
            }
        }
    };
    if peer.status().state != PeerState::Disconnected {
        peer.enter(PeerState::Connecting);
    }
    peer.note(|status| {
        status.attempts += 1;
        status.tls = endpoint.tls;
    });
    match dial(context, peer, &endpoint).await {
        Ok(client) => Ended::Failed(session::run(context, peer, client, &endpoint).await),
        Err(error) => Ended::Failed(error),
    }
}

/// Tries the addresses in order.
async fn dial(context: &Context, peer: &Peer, endpoint: &Endpoint) -> Result<Client, String> {
    let times = &context.config.times;
    let mut last = "it has no address".to_owned();
    for at in &endpoint.addresses {
        let scheme = if endpoint.tls { "https" } else { "http" };
        let url = format!("{scheme}://{at}");
        peer.note(|status| status.address = Some(url.clone()));
        // With TLS the connector speaks it: the library would refuse an https address without its own.
        let channel = Channel::from_shared(format!("http://{at}"))
            .map_err(|error| format!("{url}: {error}"))?
            .connect_timeout(Duration::from_millis(times.connect_ms))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_millis(times.beat_ms))
            .keep_alive_timeout(Duration::from_millis(times.beat_timeout_ms))
            .keep_alive_while_idle(true);
        // The limit covers TLS, too.
        let limit = Duration::from_millis(times.connect_ms * 2);
        let connected = match (endpoint.tls, &context.config.tls) {
            (true, Some(tls)) => {
                let config = tls.client(&[b"h2"]);
                let (host, port, region) = (at.host.clone(), at.port, peer.name.clone());
                let connector = tower::service_fn(move |_| {
                    secure::connect_to_region(config.clone(), host.clone(), port, region.clone())
                });
                tokio::time::timeout(limit, channel.connect_with_connector(connector)).await
            }
            (true, None) => {
                return Err(format!(
                    "{url}: TLS needs regionLinkTlsCertificateFilePath, …KeyFilePath and regionLinkTrustCertsFilePath"
                ));
            }
            (false, _) => {
                tracing::warn!(region = peer.name, url, "the region link is not encrypted");
                tokio::time::timeout(limit, channel.connect()).await
            }
        };
        match connected {
            Ok(Ok(channel)) => {
                let limit = crate::config::MAX_MESSAGE_BYTES;
                return Ok(Client::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit));
            }
            Ok(Err(error)) => last = explained(&url, &error),
            Err(_) => last = format!("{url}: no connection within {} ms", limit.as_millis()),
        }
    }
    Err(last)
}

/// An error with its causes: the first one alone says nothing.
fn explained(url: &str, error: &dyn std::error::Error) -> String {
    let mut text = format!("{url}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// What a region says of itself.
pub(crate) fn greeting(context: &Context, expects: &str) -> proto::HelloRequest {
    proto::HelloRequest {
        region: context.config.region.clone(),
        region_id: meridian_types::RegionId::of(&context.config.region).0,
        version: context.config.version.clone(),
        wall_ms: wall_ms(),
        capabilities: capabilities(context),
        expects: expects.to_owned(),
    }
}

/// What a region can do on the link.
pub(crate) fn capabilities(context: &Context) -> Vec<String> {
    let can = [
        ("objects", context.objects.get().is_some()),
        ("acks", context.acks.get().is_some()),
        ("failover", context.failover.get().is_some()),
        ("positions", context.positions.get().is_some()),
    ];
    can.into_iter().filter(|(_, can)| *can).map(|(name, _)| name.to_owned()).collect()
}
