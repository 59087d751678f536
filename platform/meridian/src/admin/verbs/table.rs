//! Nouns, and the calls of those that have few.

use super::{Body, Field, Kind, Noun, Verb, namespaces, policies, topics};

/// All nouns.
pub fn nouns() -> Vec<Noun> {
    let noun = |name, help, verbs: &[Verb]| Noun { name, help, verbs: verbs.to_vec() };
    vec![
        noun("clusters", "Regions, and how they are reached", CLUSTERS),
        noun("tenants", "Tenants", TENANTS),
        Noun { name: "namespaces", help: "Namespaces and their policies", verbs: namespaces::verbs() },
        Noun { name: "topics", help: "Topics, subscriptions, messages", verbs: topics::verbs() },
        Noun { name: "topic-policies", help: "Policies of single topics", verbs: policies::of_topics().collect() },
        noun("resourcegroups", "Rates that namespaces share", GROUPS),
        noun("schemas", "Schemas of topics", SCHEMAS),
        noun("brokers", "Brokers and live settings", BROKERS),
        noun("broker-stats", "Figures of a broker", BROKER_STATS),
    ]
}

/// A call without a body.
pub const fn plain(name: &'static str, help: &'static str, method: &'static str, path: &'static str) -> Verb {
    Verb { name, help, method, path, body: Body::Nothing, query: &[] }
}

/// A field of a body.
pub const fn field(option: &'static str, name: &'static str, kind: Kind) -> Field {
    Field { option, name, kind }
}

impl Verb {
    /// With a body.
    pub const fn with(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// With options that go into the query.
    pub const fn asking(mut self, query: &'static [(&'static str, bool)]) -> Self {
        self.query = query;
        self
    }
}

/// With `--force`.
pub const FORCE: &[(&str, bool)] = &[("force", true)];

const CLUSTER: &[Field] = &[
    field("url", "serviceUrl", Kind::Text),
    field("url-secure", "serviceUrlTls", Kind::Text),
    field("broker-url", "brokerServiceUrl", Kind::Text),
    field("broker-url-secure", "brokerServiceUrlTls", Kind::Text),
    field("proxy-url", "proxyServiceUrl", Kind::Text),
    field("auth-plugin", "authenticationPlugin", Kind::Text),
    field("auth-parameters", "authenticationParameters", Kind::Text),
    field("peers", "peerClusterNames", Kind::List),
    field("tls-enable", "brokerClientTlsEnabled", Kind::Switch),
    field("region-link-url", "regionLinkUrl", Kind::Text),
];

const CLUSTERS: &[Verb] = &[
    plain("list", "List clusters", "GET", "clusters"),
    plain("get", "Show a cluster", "GET", "clusters/{cluster}"),
    plain("create", "Create a cluster", "PUT", "clusters/{cluster}").with(Body::Fields(CLUSTER)),
    plain("update", "Change a cluster", "POST", "clusters/{cluster}").with(Body::Fields(CLUSTER)),
    plain("delete", "Delete a cluster", "DELETE", "clusters/{cluster}"),
    plain("get-peer-clusters", "Show a cluster's peers", "GET", "clusters/{cluster}/peers"),
    plain("update-peer-clusters", "Set a cluster's peers", "POST", "clusters/{cluster}/peers")
        .with(Body::One(Kind::List)),
    plain("list-failure-domains", "List failure domains", "GET", "clusters/{cluster}/failureDomains"),
    plain("get-failure-domain", "Show a failure domain", "GET", "clusters/{cluster}/failureDomains/{domain}"),
    plain("create-failure-domain", "Create a failure domain", "POST", "clusters/{cluster}/failureDomains/{domain}")
        .with(Body::Fields(&[field("brokers", "brokers", Kind::List)])),
    plain("delete-failure-domain", "Delete a failure domain", "DELETE", "clusters/{cluster}/failureDomains/{domain}"),
];

const TENANT: &[Field] =
    &[field("admin-roles", "adminRoles", Kind::List), field("allowed-clusters", "allowedClusters", Kind::List)];

const TENANTS: &[Verb] = &[
    plain("list", "List tenants", "GET", "tenants"),
    plain("get", "Show a tenant", "GET", "tenants/{tenant}"),
    plain("create", "Create a tenant", "PUT", "tenants/{tenant}").with(Body::Fields(TENANT)),
    plain("update", "Change a tenant", "POST", "tenants/{tenant}").with(Body::Fields(TENANT)),
    plain("delete", "Delete a tenant", "DELETE", "tenants/{tenant}").asking(FORCE),
];

const GROUP: &[Field] = &[
    field("msg-publish-rate", "publishRateInMsgs", Kind::Number),
    field("byte-publish-rate", "publishRateInBytes", Kind::Number),
    field("msg-dispatch-rate", "dispatchRateInMsgs", Kind::Number),
    field("byte-dispatch-rate", "dispatchRateInBytes", Kind::Number),
];

const GROUPS: &[Verb] = &[
    plain("list", "List groups", "GET", "resourcegroups"),
    plain("get", "Show a group", "GET", "resourcegroups/{group}"),
    plain("create", "Create a group", "PUT", "resourcegroups/{group}").with(Body::Fields(GROUP)),
    plain("update", "Change a group", "POST", "resourcegroups/{group}").with(Body::Fields(GROUP)),
    plain("delete", "Delete a group", "DELETE", "resourcegroups/{group}"),
];

const SCHEMA: &[Field] = &[
    field("type", "type", Kind::Text),
    field("schema", "schema", Kind::Text),
    field("properties", "properties", Kind::Json),
];

const SCHEMAS: &[Verb] = &[
    plain("get", "Show the latest schema", "GET", "schemas/{schema-topic}/schema"),
    plain("get-version", "Show one version", "GET", "schemas/{schema-topic}/schema/{version}"),
    plain("get-all", "Show all versions", "GET", "schemas/{schema-topic}/schemas"),
    plain("upload", "Store a schema", "POST", "schemas/{schema-topic}/schema").with(Body::Fields(SCHEMA)),
    plain("compatibility", "Whether a schema could be stored", "POST", "schemas/{schema-topic}/compatibility")
        .with(Body::Fields(SCHEMA)),
    plain("delete", "Delete the schema", "DELETE", "schemas/{schema-topic}/schema").asking(FORCE),
];

const BROKERS: &[Verb] = &[
    plain("list", "List brokers of a cluster", "GET", "brokers/{cluster}"),
    plain("leader-broker", "Show the leader", "GET", "brokers/leaderBroker"),
    plain("namespaces", "Show what a broker owns", "GET", "brokers/{cluster}/{broker}/ownedNamespaces"),
    plain("healthcheck", "Whether a broker serves", "GET", "brokers/health"),
    plain("version", "Show the version", "GET", "brokers/version"),
    plain("get-runtime-config", "Show all settings in force", "GET", "brokers/configuration/runtime"),
    plain("get-all-dynamic-config", "Show settings that were changed live", "GET", "brokers/configuration/values"),
    plain("list-dynamic-config", "List settings that can change live", "GET", "brokers/configuration"),
    plain("update-dynamic-config", "Change a setting", "POST", "brokers/configuration/{key}/{value}"),
    plain("delete-dynamic-config", "Give a setting back to the configuration", "DELETE", "brokers/configuration/{key}"),
    plain("get-internal-config", "Show where metadata is", "GET", "brokers/internal-configuration"),
];

const BROKER_STATS: &[Verb] = &[
    plain("topics", "Figures of all topics", "GET", "broker-stats/topics"),
    plain("monitoring-metrics", "Figures of the broker", "GET", "broker-stats/metrics"),
];
