//! Links over the Pulsar protocol: from a region's entry to a running replicator.
//!
//! Role: the [`Linker`] of a real broker. Connections to one region are shared by all its links, and so is the memory in
//! which links that lag hold what they have read.
//! Invariants: K1 a region has one pool as long as its entry is the same; K2 no secret of an entry is in a reason or log.
//! Failure: what an entry lacks or can't be read in it is the link's reason; everything else the replicator heals.
//! Must never know: sessions, how entries are stamped.

use super::http::RemoteAdmin;
use super::live::RunningLive;
use super::restore::{self, RestoreRequest};
use super::{Epochs, Feed, Link, LinkRequest, Linker, ReplicationFigures};
use crate::config::ReplicationConfig;
use crate::quotas::Quotas;
use crate::schema::SchemaRegistry;
use crate::service::now_ms;
use crate::time::iso;
use bytes::Bytes;
use meridian_client::{ClientError, Credentials, Peer, PeerLimits, PeerPool, ServiceUrl, TlsSettings};
use meridian_managed_ledger::{InitialPosition, ManagedLedger};
use meridian_metadata::SharedStore;
use meridian_policy::{ClusterData, EffectivePolicies};
use meridian_registry::Registry;
use meridian_replicator::machine::words::OpenFailure;
use meridian_replicator::{
    Bounds, LinkLimits, LinkState, LiveParts, LiveReplicator, LocalSchemas, LogSource, MarkerSink, PulsarRemote,
    ReadBudget, Remote, Replicator, ReplicatorParts, SeenMarker, Session, SharedLimit, TopicMaker,
};
use meridian_topic::TopicHandle;
use meridian_topic::api::BoxFuture;
use meridian_types::{Incarnation, TopicName};
use meridian_wire::proto::{Schema, ServerError};
use meridian_wire::replicate::EPOCH_KEY;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// What all links to one region share.
struct Region {
    cluster: Arc<ClusterData>,
    pool: PeerPool,
    budget: Arc<ReadBudget>,
    /// Of links of topics that keep nothing: they must not starve those that have to catch up.
    live_budget: Arc<ReadBudget>,
}

/// See the module.
pub struct RegionLinker {
    own: Arc<str>,
    config: ReplicationConfig,
    registry: Arc<Registry>,
    schemas: Arc<SchemaRegistry>,
    regions: Mutex<HashMap<String, Arc<Region>>>,
    epochs: OnceLock<Arc<dyn Epochs>>,
    quotas: OnceLock<Arc<Quotas>>,
}

fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// A region's entry as a peer that can be dialled.
fn peer_of(name: &str, cluster: &ClusterData, config: &ReplicationConfig) -> Result<Peer, String> {
    let (field, url) = match cluster.broker_client_tls_enabled {
        true => ("brokerServiceUrlTls", set(&cluster.broker_service_url_tls)),
        false => ("brokerServiceUrl", set(&cluster.broker_service_url)),
    };
    let url = url.ok_or_else(|| format!("the entry of cluster {name} has no {field}"))?;
    let text = |error: ClientError| format!("the entry of cluster {name}: {error}");
    let credentials = match set(&cluster.authentication_plugin) {
        Some(plugin) => {
            let parameters = cluster.authentication_parameters.as_deref().unwrap_or_default();
            Credentials::parse(plugin, parameters).map_err(text)?
        }
        None => Credentials::None,
    };
    let file = |path: &Option<String>| set(path).map(PathBuf::from);
    Ok(Peer {
        name: name.to_owned(),
        service_url: ServiceUrl::parse(url).map_err(text)?,
        credentials,
        tls: TlsSettings {
            trust_file: file(&cluster.broker_client_trust_certs_file_path),
            certificate_file: file(&cluster.broker_client_certificate_file_path),
            key_file: file(&cluster.broker_client_key_file_path),
            allow_insecure: cluster.tls_allow_insecure_connection,
            verify_hostname: !cluster.tls_allow_insecure_connection,
        },
        listener: set(&cluster.listener_name).map(str::to_owned),
        limits: PeerLimits {
            connections_per_broker: config.connections_per_broker.max(1) as usize,
            ..Default::default()
        },
        ..Peer::new(url).map_err(text)?
    })
}

/// Limits of a link as its topic's policies have them.
pub(super) fn limits_of(policies: &EffectivePolicies) -> LinkLimits {
    let (messages_per_second, bytes_per_second) = policies.replicator_dispatch_rate;
    let ttl_ms = (policies.message_ttl_s > 0).then(|| u64::from(policies.message_ttl_s) * 1000);
    LinkLimits { messages_per_second, bytes_per_second, ttl_ms }
}

impl RegionLinker {
    /// For the region `own`.
    pub fn new(own: &str, config: ReplicationConfig, registry: Arc<Registry>, store: SharedStore) -> Arc<Self> {
        let schemas = Arc::new(SchemaRegistry::new(store));
        Arc::new(Self {
            own: own.into(),
            config,
            registry,
            schemas,
            regions: Mutex::default(),
            epochs: OnceLock::new(),
            quotas: OnceLock::new(),
        })
    }

    /// K1.
    fn region(&self, name: &str, cluster: &Arc<ClusterData>) -> Result<Arc<Region>, String> {
        let mut regions = self.regions.lock();
        if let Some(region) = regions.get(name).filter(|region| region.cluster == *cluster) {
            return Ok(region.clone());
        }
        let region = Arc::new(Region {
            cluster: cluster.clone(),
            pool: PeerPool::new(peer_of(name, cluster, &self.config)?),
            budget: Arc::new(ReadBudget::new(self.config.read_ahead_bytes)),
            live_budget: Arc::new(ReadBudget::new(self.config.read_ahead_bytes)),
        });
        // Links over the earlier one are started anew and leave it.
        regions.insert(name.to_owned(), region.clone());
        Ok(region)
    }

    fn schemas_of(&self, topic: &TopicName) -> Arc<dyn LocalSchemas> {
        Arc::new(TopicSchemas { schemas: self.schemas.clone(), topic: topic.clone() })
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            max_waiting_entries: self.config.queue_entries.max(1),
            max_waiting_bytes: self.config.queue_bytes.max(1),
            restart_after_ms: self.config.stall_limit_ms.max(1000),
            ..Bounds::default()
        }
    }

    fn shared_limit(&self, request: &LinkRequest) -> Option<Arc<dyn SharedLimit>> {
        let quotas = self.quotas.get()?;
        Some(Arc::new(quotas.replication(&request.topic)) as Arc<dyn SharedLimit>)
    }

    fn target(&self, request: &LinkRequest, region: &Region, incarnation: Incarnation) -> Arc<dyn Remote> {
        let base = request.topic.base();
        let maker: Option<Arc<dyn TopicMaker>> = match self.config.create_remote_topics {
            true => Some(Arc::new(RemoteAdmin::new(region.cluster.clone()))),
            false => None,
        };
        let remote = PulsarRemote {
            pool: region.pool.clone(),
            topic: request.topic.clone(),
            partitions: request.topic.partition().and_then(|_| self.registry.partitions(&base)).unwrap_or(0),
            incarnation,
            local: self.own.clone(),
            remote: request.remote.as_str().into(),
            metadata: Vec::new(),
            max_waiting_entries: self.config.queue_entries.max(1),
            max_waiting_bytes: self.config.queue_bytes.max(1),
            schemas: self.schemas_of(&request.topic),
            maker,
        };
        let existing = (!self.config.create_remote_topics).then_some(base);
        Arc::new(Conditional { remote, existing, epochs: self.epochs.get().cloned() })
    }

    /// H8: nothing is there to be kept, so a region that can't be dialled has no link.
    fn run_live(&self, request: &LinkRequest, topic: &Arc<dyn TopicHandle>) -> Result<Arc<dyn Link>, String> {
        let region = self.region(&request.remote, &request.cluster)?;
        let replicator = LiveReplicator::start(LiveParts {
            topic: request.topic.clone(),
            local: self.own.clone(),
            remote: request.remote.as_str().into(),
            target: self.target(request, &region, Incarnation(0)),
            schemas: self.schemas_of(&request.topic),
            bounds: self.bounds(),
            budget: region.live_budget.clone(),
            idle_ms: self.config.idle_link_ms,
            limits: limits_of(&request.policies),
            shared: self.shared_limit(request),
            clock: Arc::new(now_ms),
        });
        Ok(Arc::new(RunningLive::new(replicator, topic.clone(), &request.remote)))
    }

    async fn run(&self, request: LinkRequest) -> Result<Arc<dyn Link>, String> {
        match request.feed.clone() {
            Feed::Log(log) => self.run_stored(request, log).await,
            Feed::Live(topic) => self.run_live(&request, &topic),
        }
    }

    async fn run_stored(&self, request: LinkRequest, log: Arc<ManagedLedger>) -> Result<Arc<dyn Link>, String> {
        // The cursor first: what comes from now on is kept for the region, reachable or not.
        let start_at = if self.config.from_earliest { InitialPosition::Earliest } else { InitialPosition::Latest };
        let region = self.region(&request.remote, &request.cluster);
        let budget = match &region {
            Ok(region) => region.budget.clone(),
            Err(_) => Arc::new(ReadBudget::new(1)),
        };
        let incarnation = log.incarnation();
        let source = LogSource::open(log, &request.remote, start_at, budget).await;
        let source = source.map_err(|error| error.to_string())?;
        let region = region?;
        let replicator = Replicator::start(ReplicatorParts {
            topic: request.topic.clone(),
            local: self.own.clone(),
            remote: request.remote.as_str().into(),
            source,
            target: self.target(&request, &region, incarnation),
            schemas: self.schemas_of(&request.topic),
            markers: request.markers.clone().unwrap_or_else(|| Arc::new(NoMarkers)),
            bounds: self.bounds(),
            limits: limits_of(&request.policies),
            shared: self.shared_limit(&request),
            clock: Arc::new(now_ms),
        });
        Ok(Arc::new(RunningLink(replicator)))
    }
}

impl Linker for RegionLinker {
    fn start(&self, request: LinkRequest) -> BoxFuture<'_, Result<Arc<dyn Link>, String>> {
        Box::pin(self.run(request))
    }

    fn restore(&self, request: RestoreRequest) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let region = self.region(&request.remote, &request.cluster)?;
            let epoch = self.epochs.get().map_or(Ok(None), |epochs| epochs.epoch(&request.topic))?;
            let sender = restore::Sender {
                pool: region.pool.clone(),
                own: self.own.clone(),
                schemas: self.schemas_of(&request.topic),
                metadata: epoch.map(|epoch| (EPOCH_KEY.to_owned(), epoch)).into_iter().collect(),
            };
            restore::run(&request, &sender).await
        })
    }

    fn limit_by(&self, quotas: Arc<Quotas>) {
        if self.quotas.set(quotas).is_err() {
            tracing::error!("links were told twice who limits them");
        }
    }

    fn attach(&self, epochs: Arc<dyn Epochs>) {
        if self.epochs.set(epochs).is_err() {
            tracing::error!("links were told twice who says what is active");
        }
    }

    fn publish<'a>(
        &'a self,
        region: &'a str,
        topic: &'a TopicName,
        entries: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let cluster = self.registry.cluster(region).ok_or_else(|| format!("region {region} is not known here"))?;
            let pool = self.region(region, &cluster)?.pool.clone();
            super::replay::publish(&pool, topic, entries).await
        })
    }
}

/// A running replicator.
struct RunningLink(Arc<Replicator>);

impl Link for RunningLink {
    fn set_policies(&self, policies: &EffectivePolicies) {
        self.0.set_limits(limits_of(policies));
    }

    fn figures(&self) -> ReplicationFigures {
        let stats = self.0.stats();
        let counters = stats.counters;
        ReplicationFigures {
            remote: stats.remote,
            rate_out: stats.msg_rate_out,
            throughput_out: stats.msg_throughput_out,
            rate_expired: stats.msg_rate_expired,
            backlog: stats.replication_backlog,
            connected: stats.connected,
            delay_s: stats.replication_delay_ms / 1000,
            outbound_connection: stats.outbound_connection,
            outbound_since_ms: stats.outbound_connected_since_ms,
            running: matches!(stats.state, LinkState::Running | LinkState::Throttled),
            drops: None,
            state: shown(&stats.state, stats.since_ms),
            restarts: counters.restarts,
            gap_messages: counters.gap_messages,
            expired_before_copy: counters.messages_expired,
            undecodable: counters.undecodable,
            messages_out: counters.messages_stored,
            bytes_out: counters.bytes_sent,
        }
    }

    fn cursor_moved(&self) {
        self.0.cursor_moved();
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.stop())
    }
}

/// States that last tell since when.
pub(super) fn shown(state: &LinkState, since_ms: u64) -> String {
    match state {
        LinkState::Disconnected(why) => format!("disconnected since {}: {why}", iso(since_ms)),
        LinkState::Stalled => format!("stalled since {}", iso(since_ms)),
        other => other.to_string(),
    }
}

/// The schemas of a topic, as messages name them.
struct TopicSchemas {
    schemas: Arc<SchemaRegistry>,
    topic: TopicName,
}

impl LocalSchemas for TopicSchemas {
    fn schema(&self, version: Bytes) -> BoxFuture<'static, Result<Option<Schema>, String>> {
        let (schemas, topic) = (self.schemas.clone(), self.topic.clone());
        Box::pin(async move {
            let Ok(version) = <[u8; 8]>::try_from(&version[..]) else { return Ok(None) };
            let stored = schemas.version(&topic, u64::from_be_bytes(version)).await;
            Ok(stored.map_err(|error| error.to_string())?.map(|stored| stored.on_wire(&topic)))
        })
    }

    fn latest(&self) -> BoxFuture<'static, Result<Option<Schema>, String>> {
        let (schemas, topic) = (self.schemas.clone(), self.topic.clone());
        Box::pin(async move {
            let stored = schemas.latest(&topic).await.map_err(|error| error.to_string())?;
            Ok(stored.map(|stored| stored.on_wire(&topic)))
        })
    }
}

/// For topics whose subscriptions' state does not travel.
struct NoMarkers;

impl MarkerSink for NoMarkers {
    fn marker(&self, _: &str, _: SeenMarker) {}
}

/// A remote with conditions for each opening.
struct Conditional {
    remote: PulsarRemote,
    /// Topics are made by others there: this one has to exist.
    existing: Option<TopicName>,
    epochs: Option<Arc<dyn Epochs>>,
}

impl Remote for Conditional {
    fn open(&self, session: u64, generation: u64) -> BoxFuture<'static, Result<Box<dyn Session>, OpenFailure>> {
        let mut remote = self.remote.clone();
        match self.epochs.as_ref().map_or(Ok(None), |epochs| epochs.epoch(&remote.topic)) {
            Ok(None) => {}
            Ok(Some(epoch)) => remote.metadata.push((EPOCH_KEY.to_owned(), epoch)),
            Err(reason) => return Box::pin(std::future::ready(Err(OpenFailure::Refused(reason)))),
        }
        let (pool, open) = (remote.pool.clone(), remote.open(session, generation));
        let Some(base) = self.existing.clone() else { return open };
        Box::pin(async move {
            match pool.partitions(&base, false).await {
                Err(error) if error.code() == Some(ServerError::TopicNotFound) => {
                    let text = format!("{base} does not exist there (createTopicToRemoteClusterForReplication=false)");
                    Err(OpenFailure::Refused(text))
                }
                _ => open.await,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regions_entry_becomes_a_peer() {
        let config = ReplicationConfig::default();
        let mut cluster = ClusterData { broker_service_url: Some("pulsar://east:6650".into()), ..Default::default() };
        let peer = peer_of("east", &cluster, &config).unwrap();
        assert_eq!((peer.name.as_str(), peer.limits.connections_per_broker), ("east", 16));
        assert_eq!(peer.credentials, Credentials::None);
        cluster.broker_client_tls_enabled = true;
        let missing = peer_of("east", &cluster, &config).unwrap_err();
        assert_eq!(missing, "the entry of cluster east has no brokerServiceUrlTls");
        cluster.broker_service_url_tls = Some("pulsar+ssl://east:6651".into());
        cluster.authentication_plugin = Some("org.apache.pulsar.client.impl.auth.AuthenticationToken".into());
        cluster.authentication_parameters = Some("token:secret".into());
        let peer = peer_of("east", &cluster, &config).unwrap();
        assert!(peer.service_url.tls());
        assert_eq!(peer.credentials, Credentials::Token("secret".into()));
        cluster.authentication_plugin = Some("com.example.Unknown".into());
        assert!(!peer_of("east", &cluster, &config).unwrap_err().contains("secret"), "K2");
    }

    #[test]
    fn states_that_last_say_since_when() {
        assert_eq!(shown(&LinkState::Stalled, 5), "stalled since 1970-01-01T00:00:00.005Z");
        assert_eq!(
            shown(&LinkState::Disconnected("no route".into()), 7),
            "disconnected since 1970-01-01T00:00:00.007Z: no route"
        );
        assert_eq!(shown(&LinkState::Running, 7), "running");
    }
}
