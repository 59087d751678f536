//! Tenants and clusters.
//!
//! Invariants: P4 names can stand in topic names, addresses have the scheme of their kind.
//! Failure: [`PolicyError`] with the name or address.
//! Must never know: where they are stored.

use crate::{PolicyError, lenient, refuse};
use meridian_types::name::MAX_TENANT_BYTES;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TenantInfo {
    /// Roles that administer the tenant, literally.
    #[serde(deserialize_with = "lenient::or_default")]
    pub admin_roles: BTreeSet<String>,
    /// Clusters that its namespaces may use.
    #[serde(deserialize_with = "lenient::or_default")]
    pub allowed_clusters: BTreeSet<String>,
}

/// How a cluster (region) is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterData {
    /// Admin address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    /// Admin address by TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url_tls: Option<String>,
    /// Broker address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_service_url: Option<String>,
    /// Broker address by TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_service_url_tls: Option<String>,
    /// Proxy in front of the brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_service_url: Option<String>,
    /// The proxy's protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<String>,
    /// How brokers of other clusters authenticate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_plugin: Option<String>,
    /// With which parameters; a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_parameters: Option<String>,
    /// Clusters that may answer look-ups for this one, each once, in the order in which they were given.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::once_each")]
    pub peer_cluster_names: Option<Vec<String>>,
    /// Replication to this cluster uses TLS.
    pub broker_client_tls_enabled: bool,
    /// Certificates are not checked.
    pub tls_allow_insecure_connection: bool,
    /// Certificates that are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_trust_certs_file_path: Option<String>,
    /// Key of the client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_key_file_path: Option<String>,
    /// The client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_certificate_file_path: Option<String>,
    /// Which of the cluster's listeners is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener_name: Option<String>,
    /// Own field: the region link's address, `https://host:port`, or `http://host:port` to go without TLS; unset = the
    /// admin address is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_link_url: Option<String>,
    /// Groups of brokers that fail together; not part of what is sent and shown.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient::or_default")]
    pub failure_domains: BTreeMap<String, BTreeSet<String>>,
}

/// A name of a tenant or cluster: letters, digits, `_`, `-`, `=`, `:`, `.`.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), PolicyError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=:.".contains(&byte);
    if name.len() > MAX_TENANT_BYTES {
        return refuse(format!("{what} name of {} bytes", name.len()), "is at most 128 bytes long");
    }
    if name.is_empty() || !name.bytes().all(allowed) {
        return refuse(format!("{what} name '{name}'"), "may hold letters, digits and any of _ - = : .");
    }
    Ok(())
}

impl TenantInfo {
    /// Checks a tenant's name.
    ///
    /// # Errors
    /// [`PolicyError`] for characters that can't stand in topic names.
    pub fn check_name(name: &str) -> Result<(), PolicyError> {
        check_name("tenant", name)
    }
}

impl ClusterData {
    /// Checks a cluster's name.
    ///
    /// # Errors
    /// [`PolicyError`] for characters that can't stand in topic names.
    pub fn check_name(name: &str) -> Result<(), PolicyError> {
        check_name("cluster", name)
    }

    /// Addresses have the scheme of their kind.
    ///
    /// # Errors
    /// [`PolicyError`] with the address.
    pub fn check(&self) -> Result<(), PolicyError> {
        let urls = [
            (&self.service_url, "http://", "an admin address begins with http://"),
            (&self.service_url_tls, "https://", "an admin address by TLS begins with https://"),
            (&self.broker_service_url, "pulsar://", "a broker address begins with pulsar://"),
            (&self.broker_service_url_tls, "pulsar+ssl://", "a broker address by TLS begins with pulsar+ssl://"),
        ];
        for (url, scheme, rule) in urls {
            if let Some(url) = url.as_deref().filter(|url| !url.is_empty() && !url.starts_with(scheme)) {
                return refuse(url, rule);
            }
        }
        match self.region_link_url.as_deref().filter(|url| !url.is_empty()) {
            Some(url) if !url.starts_with("http://") && !url.starts_with("https://") => {
                refuse(url, "a region link's address begins with https://, or http:// to go without TLS")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_sets_are_empty_ones() {
        let tenant: TenantInfo = serde_json::from_str(r#"{"adminRoles":null,"allowedClusters":["a"],"x":1}"#).unwrap();
        assert_eq!(tenant.admin_roles, BTreeSet::new());
        assert_eq!(serde_json::to_string(&tenant).unwrap(), r#"{"adminRoles":[],"allowedClusters":["a"]}"#);
    }

    #[test]
    fn names_and_addresses_are_checked() {
        assert!(TenantInfo::check_name("a-b_c.1").is_ok());
        for bad in ["", "a/b", "a b", "ä", &"a".repeat(129)] {
            assert!(TenantInfo::check_name(bad).is_err(), "{bad}");
        }
        let cluster = ClusterData { broker_service_url: Some("http://a".into()), ..Default::default() };
        assert!(cluster.check().is_err());
        let cluster = ClusterData { broker_service_url: Some("pulsar://a:1,b:1".into()), ..Default::default() };
        assert!(cluster.check().is_ok());
        let link = |url: &str| ClusterData { region_link_url: Some(url.into()), ..Default::default() }.check();
        assert!(link("").is_ok() && link("https://a:6680").is_ok() && link("http://a").is_ok());
        assert!(link("grpc://a:6680").is_err());
        assert_eq!(serde_json::to_value(ClusterData::default()).unwrap().get("regionLinkUrl"), None);
    }
}
