//! The table of settings.
//!
//! Invariants: C1 every [`Key`] has one row, every default fits its kind and range, names are unique (tested).

use crate::kind::{Kind, Range};

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its key.
    pub name: &'static str,
    /// What values look like.
    pub kind: Kind,
    /// Which numbers it may be; zero is among them where it means something.
    pub range: Range,
    /// Its default, as text.
    pub default: &'static str,
    /// Pulsar (or BookKeeper) has a setting of this name and meaning.
    pub pulsar: bool,
    /// What it does.
    pub effect: &'static str,
    /// It can be changed while the broker runs (`brokers/configuration`).
    pub reloadable: bool,
}

impl Setting {
    /// Checks a value.
    ///
    /// # Errors
    /// What would have been right.
    pub fn check(&self, value: &str) -> Result<(), String> {
        // Pulsar's files leave numbers that it works out by itself empty.
        match value.is_empty() && self.default.is_empty() {
            true => Ok(()),
            false => self.kind.check(value, self.range),
        }
    }
}

macro_rules! settings {
    // A row that ends in a word stands for a setting that can be changed while the broker runs.
    (@reloadable) => { false };
    (@reloadable reloadable) => { true };
    // A number is from 0, if nothing is said; a third one stands for "off" or "without limit".
    (@range $kind:expr) => { Range::of($kind) };
    (@range $kind:expr, $from:literal) => { Range { from: $from, ..Range::of($kind) } };
    (@range $kind:expr, $from:literal, to $to:literal) => { Range { from: $from, to: $to, ..Range::of($kind) } };
    (@range $kind:expr, $from:literal, or $off:literal) => { Range { from: $from, off: Some($off), ..Range::of($kind) } };
    ($($key:ident: $name:literal, $kind:expr $(, from $from:literal $($bound:ident $number:literal)?)?, $default:literal, $pulsar:literal, $effect:literal $(, $word:ident)?;)*) => {
        /// A setting, as the code names it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key {
            $(#[doc = $effect] $key,)*
        }

        /// Every setting, in the order of [`Key`].
        pub const TABLE: &[Setting] = &[
            $(Setting {
                name: $name,
                kind: $kind,
                range: settings!(@range $kind $(, $from $(, $bound $number)?)?),
                default: $default,
                pulsar: $pulsar,
                effect: $effect,
                reloadable: settings!(@reloadable $($word)?),
            },)*
        ];
    };
}

settings! {
    ClusterName: "clusterName", Kind::Name, "standalone", true, "Name of this region (Pulsar: cluster).";
    AdvertisedAddress: "advertisedAddress", Kind::Host, "", true, "Host name or address given to clients in look-ups, and to brokers for bookies; empty = `localhost` for `standalone`, the machine's host name for the roles of a cluster.";
    MetadataStoreUrl: "metadataStoreUrl", Kind::Text, "", true, "Where the cluster keeps its metadata: `tikv://host:port[,host:port…]/prefix`, `rocksdb:///folder` (one process alone); empty = in the data folder (`standalone`).";
    MetadataStoreOperationTimeoutSeconds: "metadataStoreOperationTimeoutSeconds", Kind::Seconds, from 1, "30", true, "A call to the metadata store waits so long while the store is away, then it fails and may be repeated.";
    MetadataStoreStartTimeoutSeconds: "metadataStoreStartTimeoutSeconds", Kind::Seconds, "600", false, "A process of a cluster that starts while the metadata store does not answer waits so long for it, then it ends with an error.";
    MetadataStoreSessionTimeoutMillis: "metadataStoreSessionTimeoutMillis", Kind::Millis, from 10 to 3_600_000, "30000", true, "A bookie that does not renew its registration for so long is not chosen any more.";
    MetadataStorePollIntervalMillis: "metadataStorePollIntervalMillis", Kind::Millis, from 1, "250", false, "Time between two looks for changes of other processes in TiKV.";
    MetadataStoreCollectGarbage: "metadataStoreCollectGarbage", Kind::Switch, "false", false, "Move TiKV's safe point every ten minutes; only for a TiKV that nothing else uses.";
    MetadataStoreTrustCertsFilePath: "metadataStoreTrustCertsFilePath", Kind::Path, "", false, "Authorities that the metadata store's certificates are checked against, PEM; empty = nothing is encrypted.";
    MetadataStoreCertificateFilePath: "metadataStoreCertificateFilePath", Kind::Path, "", false, "Certificate shown to the metadata store, PEM.";
    MetadataStoreKeyFilePath: "metadataStoreKeyFilePath", Kind::Path, "", false, "Its private key, PEM.";
    BindAddress: "bindAddress", Kind::Text, "0.0.0.0", true, "Address that the listeners bind to.";
    BindAddresses: "bindAddresses", Kind::List, "", true, "More addresses to listen at, `name:scheme://ip:port,…`, scheme `pulsar`, `pulsar+ssl`, `http` or `https`; the name is an advertised listener, and clients that come in there are told its addresses.";
    BrokerServicePort: "brokerServicePort", Kind::Port, "6650", true, "Port of the binary protocol; empty = none.";
    BrokerServicePortTls: "brokerServicePortTls", Kind::Port, "", true, "Port of the binary protocol over TLS; empty = none.";
    WebServicePort: "webServicePort", Kind::Port, "8080", true, "Port of the admin REST API and metrics; empty = none.";
    WebServicePortTls: "webServicePortTls", Kind::Port, "", true, "Port of the admin REST API over TLS; empty = none.";
    RegionLinkPort: "regionLinkPort", Kind::Port, "6680", false, "Port of the region link that other regions dial; empty = none. If the default can't be bound, the region runs without and says so.";
    RegionLinkTlsCertificateFilePath: "regionLinkTlsCertificateFilePath", Kind::Path, "", false, "Certificate chain of the region link, shown to regions that dial and to those that are dialled, PEM; without it nothing is encrypted, and only regions whose cluster entry says `regionLinkUrl=http://…` are spoken to.";
    RegionLinkTlsKeyFilePath: "regionLinkTlsKeyFilePath", Kind::Path, "", false, "Its private key, PEM.";
    RegionLinkTrustCertsFilePath: "regionLinkTrustCertsFilePath", Kind::Path, "", false, "Authorities that certificates of other regions are checked against, PEM.";
    RegionLinkCompareIntervalSeconds: "regionLinkCompareIntervalSeconds", Kind::Seconds, from 1, "60", false, "Compare everything that regions share every so often; changes travel at once.";
    RegionLinkMaxClockAheadMs: "regionLinkMaxClockAheadMs", Kind::Millis, "60000", false, "Refuse changes whose time is so far in the future: a clock is wrong. Raise it to take over what a region with a wrong clock has written.";
    FailoverDrainTimeoutMillis: "failoverDrainTimeoutMillis", Kind::Millis, from 1, "12000", false, "A planned switch to another region that has not drained messages and acknowledgements in that time ends where it began; publishes are held no longer.";
    FailoverConsumerSettleMillis: "failoverConsumerSettleMillis", Kind::Millis, "300", false, "How long a planned switch waits for consumers to acknowledge what they hold; what they do not may be delivered again.";
    FailoverConfirmTimeoutMillis: "failoverConfirmTimeoutMillis", Kind::Millis, "10000", false, "An active region that starts without reaching any other one takes publishes after that time without a confirmation.";
    FailoverCheckIntervalMillis: "failoverCheckIntervalMillis", Kind::Millis, from 100, "2000", false, "Compare with the other regions which one is active every so often, beside each change; at least 100.";
    RegionLinkTombstoneRetentionSeconds: "regionLinkTombstoneRetentionSeconds", Kind::Seconds, "604800", false, "Remember what was deleted at least so long, and until every region that shared it knows.";
    AdvertisedListeners: "advertisedListeners", Kind::Listeners, "", true, "Named addresses for clients, `name:pulsar://host:port,…`; a client asks for one by name.";
    InternalListenerName: "internalListenerName", Kind::Text, "", true, "The advertised listener that is used when a client names none.";
    TlsCertificateFilePath: "tlsCertificateFilePath", Kind::Path, "", true, "Certificate chain of the TLS listeners, PEM.";
    TlsKeyFilePath: "tlsKeyFilePath", Kind::Path, "", true, "Private key of the TLS listeners, PEM.";
    TlsTrustCertsFilePath: "tlsTrustCertsFilePath", Kind::Path, "", true, "Authorities that client certificates are checked against, PEM; empty = none are asked for.";
    TlsRequireTrustedClientCertOnConnect: "tlsRequireTrustedClientCertOnConnect", Kind::Switch, "false", true, "Refuse TLS clients without a valid certificate.";
    TlsProtocols: "tlsProtocols", Kind::Choices(&["TLSv1.3", "TLSv1.2"]), "", true, "Versions of TLS that listeners offer: `TLSv1.3`, `TLSv1.2`; empty = both.";
    TlsCertRefreshCheckDurationSec: "tlsCertRefreshCheckDurationSec", Kind::Seconds, "5", true, "Look whether certificate and key files have changed every so often (Pulsar: 300); connections made later use the new ones, 0 = look at each connection.";
    TlsClientRoleFrom: "tlsClientRoleFrom", Kind::List, "CN", false, "Fields of a client certificate that may hold the role, in this order: `CN`, `SAN_DNS`, `SAN_URI`, `SAN_EMAIL`.";
    TlsAllowInsecureConnection: "tlsAllowInsecureConnection", Kind::Switch, "false", true, "Client certificates are always checked; `true` is refused at the start.";
    AuthenticationEnabled: "authenticationEnabled", Kind::Switch, "false", true, "Clients must say who they are.";
    AuthenticationProviders: "authenticationProviders", Kind::List, "", true, "Ways to authenticate: `token`, `basic`, `tls`, or Pulsar's class names.";
    AuthenticationRefreshCheckSeconds: "authenticationRefreshCheckSeconds", Kind::Seconds, from 1, "60", true, "Look for expired credentials of open connections every so often.";
    AnonymousUserRole: "anonymousUserRole", Kind::Text, "", true, "Role of who shows no credentials; empty = refuse them.";
    AuthorizationEnabled: "authorizationEnabled", Kind::Switch, "false", true, "Roles need grants.";
    SuperUserRoles: "superUserRoles", Kind::List, "", true, "Roles that may do everything.";
    AuthorizationAllowWildcardsMatching: "authorizationAllowWildcardsMatching", Kind::Switch, "false", true, "Roles in grants may be patterns: `name*` or `*name`.";
    ProxyRoles: "proxyRoles", Kind::List, "", true, "Roles that may speak for others (original principal).";
    ReplicatorRoles: "replicatorRoles", Kind::List, "", false, "Roles, besides super users, as which replicators of other regions log in here. They need the permission to produce as well.";
    AuthenticateMetricsEndpoint: "authenticateMetricsEndpoint", Kind::Switch, "true", true, "With `authorizationEnabled`, `/metrics` is for super users and `metricsRoles` alone: it names every tenant's topics (Pulsar: `false`, and then for any role).";
    ExposeTopicLevelMetricsInPrometheus: "exposeTopicLevelMetricsInPrometheus", Kind::Switch, "true", true, "`/metrics` has a line for each topic and subscription; otherwise sums by namespace and remote region. Totals of the broker stand there in any case.";
    MetricsRoles: "metricsRoles", Kind::List, "", false, "Roles, besides super users, that may read `/metrics`.";
    AuthenticateOriginalAuthData: "authenticateOriginalAuthData", Kind::Switch, "false", true, "Proxies must forward the credentials of their clients; what is forwarded is checked in any case.";
    TokenSecretKey: "tokenSecretKey", Kind::Secret, "", true, "Key of HMAC tokens: `file://…`, `data:;base64,…` or base64.";
    TokenPublicKey: "tokenPublicKey", Kind::Text, "", true, "Public key of signed tokens: `file://…` or `data:;base64,…`.";
    TokenPublicAlg: "tokenPublicAlg", Kind::Text, "RS256", true, "Algorithm of the public key: RS256, RS384, RS512, ES256, ES384, PS256, PS384, PS512.";
    TokenAuthClaim: "tokenAuthClaim", Kind::Text, "sub", true, "Claim that holds the role.";
    TokenAudienceClaim: "tokenAudienceClaim", Kind::Text, "", true, "Claim that holds the audience; empty = not checked.";
    TokenAudience: "tokenAudience", Kind::Text, "", true, "Audience that must be named in the claim.";
    TokenAllowedClockSkewSeconds: "tokenAllowedClockSkewSeconds", Kind::Seconds, "0", true, "Tolerance for clocks when a token's times are checked.";
    TokenJwks: "tokenJwks", Kind::Text, "", false, "Set of public keys (JWKS) of signed tokens, beside the key above: `file://…`, `data:;base64,…` or `https://…`. Keys may come and go while brokers run.";
    TokenJwksTrustCertsFilePath: "tokenJwksTrustCertsFilePath", Kind::Path, "", false, "Authorities that the https address of the set is checked against, PEM.";
    TokenJwksRefreshSeconds: "tokenJwksRefreshSeconds", Kind::Seconds, from 1, "300", false, "Ask the https address of the set every so often, and at once when a token names a key that is not known.";
    BasicAuthConf: "basicAuthConf", Kind::Text, "", true, "Password file of basic authentication (htpasswd: apr1, bcrypt), `file://…` or `data:;base64,…`.";
    MaxMessageSize: "maxMessageSize", Kind::Bytes, from 1 to 2_000_000_000, "5242880", true, "Largest message in bytes.";
    KeepAliveIntervalSeconds: "keepAliveIntervalSeconds", Kind::Seconds, from 1, "30", true, "PING silent connections every so often; one that stays silent is closed.";
    BrokerMaxConnections: "brokerMaxConnections", Kind::Count, "0", true, "Connections at most; 0 = no limit.";
    BrokerMaxConnectionsPerIp: "brokerMaxConnectionsPerIp", Kind::Count, "0", true, "Connections at most from one address; 0 = no limit.";
    BrokerMaxUnauthenticatedConnections: "brokerMaxUnauthenticatedConnections", Kind::Count, "4096", false, "Connections that have not logged in at most; 0 = no limit.";
    ConnectionLoginTimeoutSeconds: "connectionLoginTimeoutSeconds", Kind::Seconds, from 1, "30", false, "A connection that has not logged in by then is closed; the TLS handshake counts.";
    ConnectionSlowPeerTimeoutSeconds: "connectionSlowPeerTimeoutSeconds", Kind::Seconds, "120", false, "A client that takes nothing of what waits for it for so long is closed; 0 = never.";
    MaxHttpServerConnections: "maxHttpServerConnections", Kind::Count, "2048", true, "Connections to the admin REST API at most; 0 = no limit.";
    MaxHttpServerConnectionsPerIp: "maxHttpServerConnectionsPerIp", Kind::Count, "0", false, "Connections to the admin REST API from one address at most; 0 = no limit.";
    HttpMaxRequestHeaderSize: "httpMaxRequestHeaderSize", Kind::Bytes, from 1, "65536", true, "Largest head of a request in bytes, 8192 at least (Pulsar: 8192).";
    HttpMaxRequestSize: "httpMaxRequestSize", Kind::Number, from 1 or -1, "8388608", true, "Largest body of a request in bytes (Pulsar: no limit); room for a schema of 1 MiB with every character escaped.";
    HttpHeadTimeoutSeconds: "httpHeadTimeoutSeconds", Kind::Seconds, from 1, "60", false, "How long a TLS handshake or the head of a request may take; idle connections end after it, too.";
    HttpRequestTimeoutSeconds: "httpRequestTimeoutSeconds", Kind::Seconds, from 1, "90", false, "How long a request may take, its body included.";
    MaxPendingPublishRequestsPerConnection: "maxPendingPublishRequestsPerConnection", Kind::Count, from 1, "1000", true, "Sends of one connection that wait for storage at most; above, its socket is not read.";
    MaxConcurrentLookupRequest: "maxConcurrentLookupRequest", Kind::Count, from 1, "50000", true, "Look-ups at once at most.";
    MaxConcurrentTopicLoadRequest: "maxConcurrentTopicLoadRequest", Kind::Count, from 1, "5000", true, "Topics loading at once at most.";
    TopicLoadTimeoutSeconds: "topicLoadTimeoutSeconds", Kind::Seconds, from 1, "60", true, "A topic that does not load in time is refused.";
    ConnectionLivenessCheckTimeoutMillis: "connectionLivenessCheckTimeoutMillis", Kind::Millis, "5000", true, "How long the holder of a name may take to answer when another client wants it.";
    ConnectionOutboundHighWaterBytes: "connectionOutboundHighWaterBytes", Kind::Bytes, from 1, "1048576", false, "Dispatch to a connection pauses when so many bytes wait for its socket.";
    AllowAutoTopicCreation: "allowAutoTopicCreation", Kind::Switch, "true", true, "Create topics at first use.", reloadable;
    AllowAutoTopicCreationType: "allowAutoTopicCreationType", Kind::Choice(&["non-partitioned", "partitioned"]), "non-partitioned", true, "What is created at first use.", reloadable;
    DefaultNumPartitions: "defaultNumPartitions", Kind::Count, from 1, "1", true, "Partitions of a topic created at first use.", reloadable;
    AllowAutoSubscriptionCreation: "allowAutoSubscriptionCreation", Kind::Switch, "true", true, "Create subscriptions when a consumer names them.", reloadable;
    MaxTopicsPerNamespace: "maxTopicsPerNamespace", Kind::Count, "0", true, "Topics at most; 0 = no limit.", reloadable;
    MaxProducersPerTopic: "maxProducersPerTopic", Kind::Count, "0", true, "Producers at most; 0 = no limit.", reloadable;
    MaxConsumersPerTopic: "maxConsumersPerTopic", Kind::Count, "0", true, "Consumers at most; 0 = no limit.", reloadable;
    MaxConsumersPerSubscription: "maxConsumersPerSubscription", Kind::Count, "0", true, "Consumers at most; 0 = no limit.", reloadable;
    MaxSubscriptionsPerTopic: "maxSubscriptionsPerTopic", Kind::Count, "0", true, "Subscriptions at most; 0 = no limit.", reloadable;
    MaxNumPartitionsPerPartitionedTopic: "maxNumPartitionsPerPartitionedTopic", Kind::Count, "0", true, "Partitions at most; 0 = no limit.";
    MaxConsumerMetadataSize: "maxConsumerMetadataSize", Kind::Count, "1024", true, "Characters of a consumer's metadata at most.";
    SubscriptionTypesEnabled: "subscriptionTypesEnabled", Kind::Choices(&["Exclusive", "Shared", "Failover", "Key_Shared"]), "Exclusive,Shared,Failover,Key_Shared", true, "Subscription types that may be used.";
    SubscriptionKeySharedUseConsistentHashing: "subscriptionKeySharedUseConsistentHashing", Kind::Switch, "true", true, "Share keys by a hash ring; otherwise by splitting ranges.";
    SubscriptionKeySharedConsistentHashingReplicaPoints: "subscriptionKeySharedConsistentHashingReplicaPoints", Kind::Count, from 1, "100", true, "Points of a consumer on the ring.";
    ActiveConsumerFailoverDelayTimeMillis: "activeConsumerFailoverDelayTimeMillis", Kind::Millis, "1000", true, "Wait before another consumer of a Failover subscription becomes active.";
    MaxUnackedMessagesPerConsumer: "maxUnackedMessagesPerConsumer", Kind::Count, "50000", true, "Unacknowledged messages of a consumer at most (Shared, Key_Shared); 0 = no limit.", reloadable;
    MaxUnackedMessagesPerSubscription: "maxUnackedMessagesPerSubscription", Kind::Count, "200000", true, "Unacknowledged messages of a subscription at most; 0 = no limit.", reloadable;
    MaxPublishRatePerTopicInMessages: "maxPublishRatePerTopicInMessages", Kind::Count, "0", true, "Messages per second that are stored of one topic at most; what is over waits. 0 = no limit.", reloadable;
    MaxPublishRatePerTopicInBytes: "maxPublishRatePerTopicInBytes", Kind::Bytes, "0", true, "Bytes per second that are stored of one topic at most; 0 = no limit.", reloadable;
    BrokerPublisherThrottlingMaxMessageRate: "brokerPublisherThrottlingMaxMessageRate", Kind::Count, "0", true, "Messages per second that are stored of all topics together at most; 0 = no limit.", reloadable;
    BrokerPublisherThrottlingMaxByteRate: "brokerPublisherThrottlingMaxByteRate", Kind::Bytes, "0", true, "Bytes per second that are stored of all topics together at most; 0 = no limit.", reloadable;
    DispatchThrottlingRateInMsg: "dispatchThrottlingRateInMsg", Kind::Count, "0", true, "Messages per second that are sent to the consumers of all topics together at most; 0 = no limit.", reloadable;
    DispatchThrottlingRateInByte: "dispatchThrottlingRateInByte", Kind::Bytes, "0", true, "Bytes per second that are sent to the consumers of all topics together at most; 0 = no limit.", reloadable;
    DispatchThrottlingRatePerTopicInMsg: "dispatchThrottlingRatePerTopicInMsg", Kind::Count, "0", true, "Messages per second that are sent to all consumers of one topic at most; 0 = no limit.", reloadable;
    DispatchThrottlingRatePerTopicInByte: "dispatchThrottlingRatePerTopicInByte", Kind::Bytes, "0", true, "Bytes per second that are sent to all consumers of one topic at most; 0 = no limit.", reloadable;
    DispatchThrottlingRatePerSubscriptionInMsg: "dispatchThrottlingRatePerSubscriptionInMsg", Kind::Count, "0", true, "Messages per second that are sent to the consumers of one subscription at most; 0 = no limit.", reloadable;
    DispatchThrottlingRatePerSubscriptionInByte: "dispatchThrottlingRatePerSubscriptionInByte", Kind::Bytes, "0", true, "Bytes per second that are sent to the consumers of one subscription at most; 0 = no limit.", reloadable;
    SubscribeThrottlingRatePerConsumer: "subscribeThrottlingRatePerConsumer", Kind::Count, "0", true, "Times that one consumer (host, subscription, name) may subscribe to a topic in a period; 0 = no limit.", reloadable;
    SubscribeRatePeriodPerConsumerInSecond: "subscribeRatePeriodPerConsumerInSecond", Kind::Seconds, from 1, "30", true, "That period.", reloadable;
    StrictlyVerifySubscriptionName: "strictlyVerifySubscriptionName", Kind::Switch, "false", true, "Refuse subscriptions whose names hold anything but letters, digits and `_ - = : .`.";
    SubscriptionExpirationTimeMinutes: "subscriptionExpirationTimeMinutes", Kind::Minutes, "0", true, "Delete subscriptions that nobody used for so long; 0 = never.", reloadable;
    AcknowledgmentAtBatchIndexLevelEnabled: "acknowledgmentAtBatchIndexLevelEnabled", Kind::Switch, "true", true, "Keep acknowledgements of single messages of a batch.";
    DispatcherMaxReadBatchSize: "dispatcherMaxReadBatchSize", Kind::Count, from 1, "1000", true, "Entries per read of a dispatcher at most (Pulsar: 100). A dispatcher that is behind gets one turn among all busy connections; what it takes in a turn is its share.";
    DispatcherMaxReadSizeBytes: "dispatcherMaxReadSizeBytes", Kind::Bytes, from 1, "5242880", true, "Bytes per read of a dispatcher at most.";
    DispatcherMaxRoundRobinBatchSize: "dispatcherMaxRoundRobinBatchSize", Kind::Count, from 1, "20", true, "Entries in a row for one consumer of a Shared subscription at most.";
    SubscriptionPatternMaxLength: "subscriptionPatternMaxLength", Kind::Count, "50", true, "Longest pattern that is evaluated here; longer ones are left to the client.";
    EnableBrokerTopicListWatcher: "enableBrokerTopicListWatcher", Kind::Switch, "true", true, "Push changes of a namespace's topic list to clients that watch it.";
    ExposingBrokerEntryMetadataToClientEnabled: "exposingBrokerEntryMetadataToClientEnabled", Kind::Switch, "false", true, "Send index and broker time with messages to clients that ask for it.";
    DelayedDeliveryEnabled: "delayedDeliveryEnabled", Kind::Switch, "true", true, "Hold messages back until they are due.", reloadable;
    DelayedDeliveryTickTimeMillis: "delayedDeliveryTickTimeMillis", Kind::Millis, from 1, "1000", true, "Precision of delayed delivery.", reloadable;
    DelayedDeliveryMaxDelayInMillis: "delayedDeliveryMaxDelayInMillis", Kind::Millis, "0", true, "Longest delay; 0 = no limit.", reloadable;
    TtlDurationDefaultInSeconds: "ttlDurationDefaultInSeconds", Kind::Seconds, "0", true, "Messages older than that are acknowledged by the broker; 0 = never.", reloadable;
    MessageExpiryCheckIntervalInMinutes: "messageExpiryCheckIntervalInMinutes", Kind::Minutes, from 1, "5", true, "Look for expired messages every so often.";
    MessageExpiryCheckIntervalInSeconds: "messageExpiryCheckIntervalInSeconds", Kind::Seconds, "0", false, "The same in seconds; 0 = the setting in minutes counts.";
    BacklogQuotaCheckEnabled: "backlogQuotaCheckEnabled", Kind::Switch, "true", true, "Backlog quotas are in force.";
    BacklogQuotaCheckIntervalInSeconds: "backlogQuotaCheckIntervalInSeconds", Kind::Seconds, from 1, "60", true, "Look at backlog quotas every so often.";
    BacklogQuotaDefaultLimitBytes: "backlogQuotaDefaultLimitBytes", Kind::Number, from -1, "-1", true, "Backlog of a topic at most in bytes; −1 = no limit.", reloadable;
    BacklogQuotaDefaultLimitGB: "backlogQuotaDefaultLimitGB", Kind::SignedDecimal, "-1", true, "The same in GiB, an older name; counts if the limit in bytes is not set.";
    BacklogQuotaDefaultLimitSecond: "backlogQuotaDefaultLimitSecond", Kind::Number, from -1, "-1", true, "Age of the oldest unacknowledged message at most; −1 = no limit.", reloadable;
    BacklogQuotaDefaultRetentionPolicy: "backlogQuotaDefaultRetentionPolicy", Kind::Choice(&["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]), "producer_request_hold", true, "What happens at the limit.", reloadable;
    BrokerDeduplicationEnabled: "brokerDeduplicationEnabled", Kind::Switch, "false", true, "Drop messages that a producer sent twice.", reloadable;
    BrokerDeduplicationMaxNumberOfProducers: "brokerDeduplicationMaxNumberOfProducers", Kind::Count, from 1, "10000", true, "Producers remembered per topic at most.";
    BrokerDeduplicationEntriesInterval: "brokerDeduplicationEntriesInterval", Kind::Count, from 1, "1000", true, "Write a snapshot of the marks every so many entries.";
    BrokerDeduplicationSnapshotIntervalSeconds: "brokerDeduplicationSnapshotIntervalSeconds", Kind::Seconds, "120", true, "And every so long if anything changed; 0 = by entries alone.", reloadable;
    BrokerServiceCompactionMonitorIntervalInSeconds: "brokerServiceCompactionMonitorIntervalInSeconds", Kind::Seconds, from 1, "60", true, "Look for topics that are due for compaction every so often.";
    BrokerServiceCompactionThresholdInBytes: "brokerServiceCompactionThresholdInBytes", Kind::Bytes, "0", true, "Compact a topic by itself when so many bytes came since the last time; 0 = never.", reloadable;
    TopicCompactionRetainNullKey: "topicCompactionRetainNullKey", Kind::Switch, "false", true, "Compaction keeps messages without a key.";
    BrokerDeleteInactiveTopicsEnabled: "brokerDeleteInactiveTopicsEnabled", Kind::Switch, "true", true, "Delete topics that nobody uses.", reloadable;
    BrokerDeleteInactiveTopicsFrequencySeconds: "brokerDeleteInactiveTopicsFrequencySeconds", Kind::Seconds, from 1, "60", true, "Look for them every so often.";
    BrokerDeleteInactiveTopicsMode: "brokerDeleteInactiveTopicsMode", Kind::Choice(&["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]), "delete_when_no_subscriptions", true, "Which topics count as unused.", reloadable;
    BrokerDeleteInactiveTopicsMaxInactiveDurationSeconds: "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", Kind::Seconds, "0", true, "How long a topic must be unused; 0 = the checking interval.";
    BrokerDeleteInactivePartitionedTopicMetadataEnabled: "brokerDeleteInactivePartitionedTopicMetadataEnabled", Kind::Switch, "false", true, "When the last partition of a topic is deleted because nobody uses it, delete the partitioned topic, too.";
    TopicLevelPoliciesEnabled: "topicLevelPoliciesEnabled", Kind::Switch, "true", true, "Topics may have policies of their own.";
    TransactionCoordinatorEnabled: "transactionCoordinatorEnabled", Kind::Switch, "false", true, "Transactions are not served; `true` is refused at the start.";
    SchemaCompatibilityStrategy: "schemaCompatibilityStrategy", Kind::Choice(&["UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"]), "FULL", true, "Which new schemas are taken.", reloadable;
    IsSchemaValidationEnforced: "isSchemaValidationEnforced", Kind::Switch, "false", true, "Refuse producers without a schema on topics that have one.", reloadable;
    IsAllowAutoUpdateSchemaEnabled: "isAllowAutoUpdateSchemaEnabled", Kind::Switch, "true", true, "Producers may register new schemas.", reloadable;
    EncryptionRequireOnProducer: "encryptionRequireOnProducer", Kind::Switch, "false", true, "Producers must encrypt.";
    DefaultNumberOfNamespaceBundles: "defaultNumberOfNamespaceBundles", Kind::Count, from 1 to 4096, "4", true, "Bundles of a new namespace.";
    OwnershipLeaseMillis: "ownershipLeaseMillis", Kind::Millis, from 500, "3000", false, "A broker of a cluster that does not renew its lease for so long loses its bundles to others; it stops serving a quarter before.";
    LoadBalancerEnabled: "loadBalancerEnabled", Kind::Switch, "true", true, "Bundles move, split and merge by measured load, as far as the switches below allow.";
    LoadBalancerSheddingEnabled: "loadBalancerSheddingEnabled", Kind::Switch, "true", true, "Bundles move from busy brokers to others.";
    LoadBalancerAutoBundleSplitEnabled: "loadBalancerAutoBundleSplitEnabled", Kind::Switch, "true", true, "Hot bundles are split, and merged again when they are cold.";
    LoadBalancerReportUpdateMinIntervalMillis: "loadBalancerReportUpdateMinIntervalMillis", Kind::Millis, from 1, "5000", true, "A broker measures and reports its load at most so often.";
    LoadBalancerReportUpdateMaxIntervalMinutes: "loadBalancerReportUpdateMaxIntervalMinutes", Kind::Minutes, from 1, "15", true, "A report that says nothing new is repeated so often.";
    LoadBalancerSheddingIntervalMinutes: "loadBalancerSheddingIntervalMinutes", Kind::Minutes, from 1, "1", true, "The leader looks for busy brokers and cold bundles, and brokers for hot bundles, so often.";
    LoadBalancerSheddingGracePeriodMinutes: "loadBalancerSheddingGracePeriodMinutes", Kind::Minutes, "30", true, "A bundle that was moved stays for so long.";
    LoadBalancerSheddingConditionHitCountThreshold: "loadBalancerSheddingConditionHitCountThreshold", Kind::Count, from 1, "3", true, "Reports above the mark before a broker is relieved.";
    LoadBalancerBrokerOverloadedThresholdPercentage: "loadBalancerBrokerOverloadedThresholdPercentage", Kind::Count, from 1 to 100, "85", true, "A broker is busy above this share of CPU, memory, bandwidth or topics.";
    LoadBalancerBrokerThresholdShedderPercentage: "loadBalancerBrokerThresholdShedderPercentage", Kind::Count, from 0 to 100, "10", true, "A broker is busy if it is so much above the mean of all.";
    LoadBalancerBrokerMaxTopics: "loadBalancerBrokerMaxTopics", Kind::Count, from 1, "50000", true, "Topics that fill a broker.";
    LoadBalancerOverrideBrokerNicSpeedGbps: "loadBalancerOverrideBrokerNicSpeedGbps", Kind::Decimal, "0", true, "What the network carries in each direction, Gbit/s; 0 = not known, bandwidth does not count.";
    LoadBalancerNamespaceBundleMaxTopics: "loadBalancerNamespaceBundleMaxTopics", Kind::Count, "1000", true, "A bundle with more topics is split; 0 = not for that.";
    LoadBalancerNamespaceBundleMaxSessions: "loadBalancerNamespaceBundleMaxSessions", Kind::Count, "1000", true, "A bundle with more producers and consumers is split; 0 = not for that.";
    LoadBalancerNamespaceBundleMaxMsgRate: "loadBalancerNamespaceBundleMaxMsgRate", Kind::Count, "30000", true, "A bundle with more messages per second, in and out, is split; 0 = not for that.";
    LoadBalancerNamespaceBundleMaxBandwidthMbytes: "loadBalancerNamespaceBundleMaxBandwidthMbytes", Kind::Count, "100", true, "A bundle with more MB per second, in and out, is split; 0 = not for that.";
    LoadBalancerNamespaceMaximumBundles: "loadBalancerNamespaceMaximumBundles", Kind::Count, from 1 to 4096, "128", true, "Bundles of a namespace at most, however hot.";
    LoadBalancerNamespaceBundleSplitConditionHitCountThreshold: "loadBalancerNamespaceBundleSplitConditionHitCountThreshold", Kind::Count, from 1, "3", true, "Looks at a hot bundle before it is split.";
    BundleMergeColdPercentage: "bundleMergeColdPercentage", Kind::Count, from 0 to 100, "25", false, "Neighbours that a split made are cold if together they are below this share of every limit of a split.";
    BundleMergeConditionHitCountThreshold: "bundleMergeConditionHitCountThreshold", Kind::Count, from 1, "10", false, "Looks at cold neighbours before they are merged.";
    DefaultRetentionTimeInMinutes: "defaultRetentionTimeInMinutes", Kind::Number, from -1 to 1_000_000_000_000, "0", true, "Keep acknowledged messages that long; −1 = for ever.", reloadable;
    DefaultRetentionSizeInMB: "defaultRetentionSizeInMB", Kind::Number, from -1 to 1_000_000_000_000, "0", true, "Keep acknowledged messages up to that size; −1 = without limit.", reloadable;
    ManagedLedgerDefaultEnsembleSize: "managedLedgerDefaultEnsembleSize", Kind::Count, from 1, "1", true, "E: bookies of a new ledger; 3 for the roles of a cluster.";
    ManagedLedgerDefaultWriteQuorum: "managedLedgerDefaultWriteQuorum", Kind::Count, from 1, "1", true, "Qw: copies of an entry; 3 for the roles of a cluster.";
    ManagedLedgerDefaultAckQuorum: "managedLedgerDefaultAckQuorum", Kind::Count, from 1, "1", true, "Qa: copies that must be durable before an entry counts; 2 for the roles of a cluster.";
    ManagedLedgerMaxEntriesPerLedger: "managedLedgerMaxEntriesPerLedger", Kind::Count, from 1, "50000", true, "Begin a new ledger after so many entries.";
    ManagedLedgerMaxSizePerLedgerMbytes: "managedLedgerMaxSizePerLedgerMbytes", Kind::Count, from 1, "2048", true, "Begin a new ledger after so many MiB.";
    ManagedLedgerMinLedgerRolloverTimeMinutes: "managedLedgerMinLedgerRolloverTimeMinutes", Kind::Minutes, "10", true, "A ledger that is full by entries is kept at least so long.";
    ManagedLedgerMinLedgerRolloverTimeSeconds: "managedLedgerMinLedgerRolloverTimeSeconds", Kind::Seconds, "0", false, "The same in seconds; 0 = the setting in minutes counts.";
    ManagedLedgerMaxLedgerRolloverTimeMinutes: "managedLedgerMaxLedgerRolloverTimeMinutes", Kind::Minutes, from 1, "240", true, "Begin a new ledger after that time, also without traffic.";
    ManagedLedgerMaxLedgerRolloverTimeSeconds: "managedLedgerMaxLedgerRolloverTimeSeconds", Kind::Seconds, "0", false, "The same in seconds; 0 = the setting in minutes counts.";
    ManagedLedgerDefaultMarkDeleteRateLimit: "managedLedgerDefaultMarkDeleteRateLimit", Kind::Decimal, "1.0", true, "Writes per second and cursor of acknowledgements that nobody waits for.";
    ManagedLedgerCacheSizeMB: "managedLedgerCacheSizeMB", Kind::Count, "0", true, "Cache of recent entries in MiB; 0 = an eighth of the memory, 128 at most.";
    AutoSkipNonRecoverableData: "autoSkipNonRecoverableData", Kind::Switch, "false", true, "Skip ledgers whose entries are lost on every bookie instead of failing.";
    CatchUpCacheSizeMB: "catchUpCacheSizeMB", Kind::Count, from 1, "64", false, "Cache of entries that lagging readers read, in MiB.";
    ManagedLedgerMaxUnconfirmedMB: "managedLedgerMaxUnconfirmedMB", Kind::Count, from 1, "256", false, "Bytes of one topic that wait for storage at most, in MiB.";
    BookkeeperClientMinNumRacksPerWriteQuorum: "bookkeeperClientMinNumRacksPerWriteQuorum", Kind::Count, "2", true, "Zones (racks) that the copies of an entry stand in at least, as far as there are so many.";
    BookkeeperClientEnforceMinNumRacksPerWriteQuorum: "bookkeeperClientEnforceMinNumRacksPerWriteQuorum", Kind::Switch, "false", true, "Without so many zones no ledger is created and no bookie replaced.";
    BrokerLocation: "brokerLocation", Kind::Text, "", false, "Where this process stands, `/zone` or `/region/zone`: the nearest copy is read first; empty = not known.";
    BookieLocations: "bookieLocations", Kind::List, "", false, "Where the bookies of this process stand, in their order, `/zone` or `/region/zone`; fewer = the rest is not known.";
    BookkeeperClientTimeoutInSeconds: "bookkeeperClientTimeoutInSeconds", Kind::Seconds, from 1, "5", true, "A bookie that leaves an add or a read unanswered so long has failed.";
    BookkeeperClientSpeculativeReadTimeoutInMillis: "bookkeeperClientSpeculativeReadTimeoutInMillis", Kind::Millis, "1000", true, "A second bookie is asked when the first has not answered a read for so long (Pulsar: 0); 0 = only when it failed.";
    BookkeeperClientQuarantineSeconds: "bookkeeperClientHealthCheckQuarantineTimeInSeconds", Kind::Seconds, "30", true, "A bookie that failed, or was too slow, gets no new ledgers and is read last for so long (Pulsar: 1800).";
    BookkeeperClientEnsembleChangeDelayMillis: "bookkeeperClientEnsembleChangeDelayMillis", Kind::Millis, "0", false, "A failed bookie is tried again for so long before another takes its place in open ledgers, as long as every entry can be confirmed without it; 0 = it is replaced at once.";
    BookkeeperClientConnectionQueueMB: "bookkeeperClientConnectionQueueMB", Kind::Count, from 1, "64", false, "What may wait to be sent to one bookie, in MiB; a bookie that is further behind is replaced.";
    BookieId: "bookieId", Kind::Text, "", true, "Id of the bookie, which outlives its addresses and belongs to its data; empty = `advertisedAddress:bookiePort`.";
    BookiePort: "bookiePort", Kind::Port, "3181", true, "Port at which a bookie takes entries.";
    BookieControlPort: "bookieControlPort", Kind::Port, "3182", false, "Port of a bookie's control service (gRPC).";
    BookieRack: "bookieRack", Kind::Text, "", false, "Rack of the bookie within its zone; where no zone is said the rack counts as one.";
    PrometheusStatsHttpPort: "prometheusStatsHttpPort", Kind::Port, "8000", true, "Port of the metrics page of a process without a broker; empty = none.";
    Bookies: "bookies", Kind::Count, from 1, "1", false, "Bookies in this process (`standalone`).";
    JournalDirectories: "journalDirectories", Kind::List, "", true, "Journal folders of the bookie; empty = under the data folder.";
    LedgerDirectories: "ledgerDirectories", Kind::List, "", true, "Ledger folders of the bookie; empty = under the data folder.";
    JournalMaxSizeMB: "journalMaxSizeMB", Kind::Count, from 1, "64", true, "Size of a journal file in MiB.";
    JournalDirectIo: "journalDirectIo", Kind::Switch, "false", false, "Write the journal past the page cache.";
    DbStorageWriteCacheMaxSizeMb: "dbStorage_writeCacheMaxSizeMb", Kind::Count, from 1, "64", true, "Write caches of a bookie in MiB (two halves).";
    DbStorageReadAheadCacheMaxSizeMb: "dbStorage_readAheadCacheMaxSizeMb", Kind::Count, from 1, "32", true, "Read cache of a bookie in MiB.";
    LogSizeLimit: "logSizeLimit", Kind::Bytes, from 1, "1073741824", true, "Size of an entry log in bytes.";
    FlushInterval: "flushInterval", Kind::Millis, from 1, "60000", true, "Flush a write cache that is not full after that time.";
    DiskUsageThreshold: "diskUsageThreshold", Kind::Share, "0.95", true, "A bookie turns read-only above this share of its disk.";
    DiskUsageLwmThreshold: "diskUsageLwmThreshold", Kind::Share, "0.90", true, "It takes writes again below this share.";
    DiskQuotaMB: "diskQuotaMB", Kind::Count, "0", false, "Count use against this size in MiB instead of the disk's; 0 = the disk's.";
    GcWaitTime: "gcWaitTime", Kind::Millis, from 1, "900000", true, "Look for deleted ledgers every so often.";
    MinorCompactionThreshold: "minorCompactionThreshold", Kind::Decimal, from 0 to 1, "0.2", true, "Rewrite entry logs with less than this share in use.";
    MinorCompactionInterval: "minorCompactionInterval", Kind::Seconds, from 1, "3600", true, "… every so often.";
    MajorCompactionThreshold: "majorCompactionThreshold", Kind::Decimal, from 0 to 1, "0.5", true, "Rewrite entry logs with less than this share in use.";
    MajorCompactionInterval: "majorCompactionInterval", Kind::Seconds, from 1, "86400", true, "… every so often.";
    AutoRecoveryDaemonEnabled: "autoRecoveryDaemonEnabled", Kind::Switch, "true", true, "Processes with bookies bring ledgers of lost bookies back to full copies.";
    LostBookieRecoveryDelay: "lostBookieRecoveryDelay", Kind::Seconds, "30", true, "A bookie may be missing for so long before its ledgers are copied to others.";
    OpenLedgerRereplicationGracePeriod: "openLedgerRereplicationGracePeriod", Kind::Millis, "30000", true, "The writer of an open ledger has so long to replace a lost bookie before the ledger is closed.";
    ReplicationRateByBytes: "replicationRateByBytes", Kind::Number, "67108864", true, "Copies that one process makes for lost bookies, in bytes per second; 0 or less = no limit.";
    RereplicationEntryBatchSize: "rereplicationEntryBatchSize", Kind::Count, from 1, "256", true, "Entries read at once to be copied.";
    AutorecoveryLedgersInFlight: "autorecoveryLedgersInFlight", Kind::Count, from 1, "8", false, "Ledgers that one process copies at once.";
    AuditorPeriodicCheckInterval: "auditorPeriodicCheckInterval", Kind::Seconds, "604800", true, "Look at all ledgers for missing and damaged copies so often; 0 = only by order.";
    RepairedPlacementPolicyNotAdheringBookieEnabled: "repairedPlacementPolicyNotAdheringBookieEnabled", Kind::Switch, "true", true, "Audits have copies moved that do not stand in as many zones as the placement's rule wants, where bookies for it are there.";
    AuditorSamplesPerCopy: "auditorSamplesPerCopy", Kind::Count, "2", false, "Entries looked at by an audit beside the first and last that a bookie holds of a ledger.";
    AuditorLedgersPerSecond: "auditorLedgersPerSecond", Kind::Count, from 1, "100", false, "Ledgers that an audit looks at per second at most.";
    ReplicationStartAt: "replicationStartAt", Kind::Choice(&["latest", "earliest"]), "latest", true, "Where a new link to another region begins in its topic.";
    ReplicationConnectionsPerBroker: "replicationConnectionsPerBroker", Kind::Count, from 1, "16", true, "Connections to each broker of another region.";
    ReplicationProducerQueueSize: "replicationProducerQueueSize", Kind::Count, from 1, "1000", true, "Entries on their way over one link at most.";
    ReplicationProducerQueueBytes: "replicationProducerQueueBytes", Kind::Bytes, from 1, "33554432", false, "Bytes on their way over one link at most.";
    ReplicationReadAheadMB: "replicationReadAheadMB", Kind::Count, from 1, "64", false, "What links to one region have read from storage and not copied yet, in MiB at most; as much again for links of non-persistent topics.";
    ReplicationPolicyCheckDurationSeconds: "replicationPolicyCheckDurationSeconds", Kind::Seconds, "600", true, "Compare links with policies every so often, beside each change; 0 = never.";
    ReplicationStallRestartSeconds: "replicationStallRestartSeconds", Kind::Seconds, from 1, "30", false, "A link whose sends are not answered for so long is started anew.";
    ReplicationIdleLinkSeconds: "replicationIdleLinkSeconds", Kind::Seconds, from 1, "300", false, "A link of a non-persistent topic that had no message for so long closes; the next message opens it.";
    EnableReplicatedSubscriptions: "enableReplicatedSubscriptions", Kind::Switch, "true", true, "Exchange the state of subscriptions that ask for it: exactly with regions that have a region link, by snapshots in the topic with Pulsar clusters.";
    ReplicatedSubscriptionsSnapshotFrequencyMillis: "replicatedSubscriptionsSnapshotFrequencyMillis", Kind::Count, from 1, "1000", true, "Begin a snapshot of positions in Pulsar clusters at most so often, in ms.";
    ReplicatedSubscriptionsSnapshotTimeoutSeconds: "replicatedSubscriptionsSnapshotTimeoutSeconds", Kind::Seconds, from 1, "30", true, "A snapshot that is not answered by all Pulsar clusters in that time is given up.";
    ReplicatedSubscriptionsSnapshotMaxCachedPerSubscription: "replicatedSubscriptionsSnapshotMaxCachedPerSubscription", Kind::Count, from 1, "30", true, "Snapshots kept per subscription, spread over its backlog; at least 3.";
    CreateTopicToRemoteClusterForReplication: "createTopicToRemoteClusterForReplication", Kind::Switch, "true", true, "Make replicated topics in the other region, with as many partitions as here.";
    DispatchThrottlingRatePerReplicatorInMsg: "dispatchThrottlingRatePerReplicatorInMsg", Kind::Count, "0", true, "Messages per second that one link copies at most; 0 = no limit.";
    DispatchThrottlingRatePerReplicatorInByte: "dispatchThrottlingRatePerReplicatorInByte", Kind::Bytes, "0", true, "Bytes per second that one link copies at most; 0 = no limit.";
    DispatchThrottlingRateRelativeToPublishRate: "dispatchThrottlingRateRelativeToPublishRate", Kind::Switch, "false", true, "Dispatch rates of topics, subscriptions and links stand on top of the topic's publish rate: who keeps up is not held back.", reloadable;
    AuditEnabled: "auditEnabled", Kind::Switch, "true", false, "Record every administrative change: who, from where, what it was before and after, and how it ended.";
    AuditLogFile: "auditLogFile", Kind::Path, "", false, "File of the records, one JSON object a line; empty = `audit/audit.log` in the data folder, and no file where there is none: the topic has them then.";
    AuditLogMaxFileSizeMB: "auditLogMaxFileSizeMB", Kind::Count, from 1, "64", false, "A file of that many MiB gets the time behind its name, and a new one is begun; none is deleted.";
    AuditTopicEnabled: "auditTopicEnabled", Kind::Switch, "true", false, "Publish the records to `persistent://pulsar/system/audit`, too.";
    AuditQueueSize: "auditQueueSize", Kind::Count, from 1, "10000", false, "Records that wait to be written at most; above, changes are refused: none is made that would not be recorded.";
    BookkeeperTLSCertificateFilePath: "bookkeeperTLSCertificateFilePath", Kind::Path, "", true, "Certificate chain between brokers and bookies, shown by both sides, PEM; with it both ports of a bookie speak TLS only, and only with who shows a certificate of the authorities below.";
    BookkeeperTLSKeyFilePath: "bookkeeperTLSKeyFilePath", Kind::Path, "", true, "Its private key, PEM.";
    BookkeeperTLSTrustCertsFilePath: "bookkeeperTLSTrustCertsFilePath", Kind::Path, "", true, "Authorities that brokers and bookies check each other against, PEM.";
    BrokerShutdownTimeoutMs: "brokerShutdownTimeoutMs", Kind::Millis, from 1, "60000", true, "A shutdown that takes longer ends at once.";
    NumIOThreads: "numIOThreads", Kind::Count, from 0 to 256, "0", true, "Threads of the process; 0 = one per core.";
    LogFormat: "logFormat", Kind::Choice(&["text", "json"]), "text", false, "Form of log lines.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_fit() {
        for (at, setting) in TABLE.iter().enumerate() {
            assert!(setting.check(setting.default).is_ok(), "{}", setting.name);
            assert!(TABLE[..at].iter().all(|other| other.name != setting.name), "{} twice", setting.name);
            assert!(
                crate::elsewhere::PULSAR_KEYS_WITHOUT_MEANING.binary_search(&setting.name).is_err(),
                "{}",
                setting.name
            );
        }
        assert_eq!(TABLE[Key::LogFormat as usize].name, "logFormat");
    }
}
