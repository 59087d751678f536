//! One region as it is written down, and as it is dialled.
//!
//! Invariants: a [`Peer`] can be dialled: its broker address is there and readable, and what TLS needs is complete.
//! Failure: [`TopologyError::Field`] with the field's name; secrets are in no error and in no debug text.
//! Must never know: where entries are stored, files' contents.

use crate::{Endpoint, LinkAddress, TopologyError};
use meridian_types::RegionId;
use std::collections::BTreeSet;
use std::fmt;

/// A region as a cluster entry says it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RegionSpec {
    /// Its name.
    pub name: String,
    /// `serviceUrl`.
    pub service_url: Option<String>,
    /// `serviceUrlTls`.
    pub service_url_tls: Option<String>,
    /// `brokerServiceUrl`.
    pub broker_service_url: Option<String>,
    /// `brokerServiceUrlTls`.
    pub broker_service_url_tls: Option<String>,
    /// `brokerClientTlsEnabled`: the addresses by TLS are used.
    pub tls_enabled: bool,
    /// `tlsAllowInsecureConnection`: certificates are not checked.
    pub tls_allow_insecure: bool,
    /// `brokerClientTrustCertsFilePath`.
    pub trust_certs_file: Option<String>,
    /// `brokerClientKeyFilePath`.
    pub key_file: Option<String>,
    /// `brokerClientCertificateFilePath`.
    pub certificate_file: Option<String>,
    /// `authenticationPlugin`.
    pub authentication_plugin: Option<String>,
    /// `authenticationParameters`; a secret.
    pub authentication_parameters: Option<String>,
    /// `regionLinkUrl`.
    pub link_url: Option<String>,
    /// `peerClusterNames`.
    pub peer_names: BTreeSet<String>,
}

/// How a region proves who it is to a peer's brokers.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The plug-in, as the entry names it.
    pub plugin: String,
    /// Its parameters; a secret.
    pub parameters: String,
}

impl Credentials {
    /// The bearer token, if it is authentication by token and the token stands in the entry itself.
    pub fn token(&self) -> Option<&str> {
        let by_token = self.plugin == "token" || self.plugin.ends_with("AuthenticationToken");
        let given = self.parameters.strip_prefix("token:").unwrap_or(&self.parameters);
        (by_token && !given.starts_with("file:") && !given.is_empty()).then_some(given)
    }

    /// The file that holds the bearer token, if it is authentication by token from a file.
    pub fn token_file(&self) -> Option<&str> {
        let by_token = self.plugin == "token" || self.plugin.ends_with("AuthenticationToken");
        let file = self.parameters.strip_prefix("file:")?;
        by_token.then(|| file.strip_prefix("//").unwrap_or(file))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, …)", self.plugin)
    }
}

impl fmt::Debug for RegionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSpec")
            .field("name", &self.name)
            .field("broker", &self.broker_url())
            .finish_non_exhaustive()
    }
}

/// What is trusted of a peer, and what is shown to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Trust {
    /// Authorities, a PEM file; `None` = those that the web trusts.
    pub authorities_file: Option<String>,
    /// Certificates are not checked.
    pub insecure: bool,
    /// Files of the client certificate and its key.
    pub identity: Option<(String, String)>,
}

/// A region as it is dialled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its id in stored entries.
    pub id: RegionId,
    /// Its brokers.
    pub broker: Endpoint,
    /// Its admin service.
    pub web: Option<Endpoint>,
    /// Its region link.
    pub link: LinkAddress,
    /// How to prove who one is.
    pub credentials: Option<Credentials>,
    /// What to trust.
    pub trust: Trust,
}

/// The first of the given that is not empty.
fn set<'a>(all: &[&'a Option<String>]) -> Option<&'a str> {
    all.iter().find_map(|one| one.as_deref().filter(|text| !text.is_empty()))
}

impl RegionSpec {
    /// The broker address that is used.
    pub fn broker_url(&self) -> Option<&str> {
        match self.tls_enabled {
            true => set(&[&self.broker_service_url_tls]),
            false => set(&[&self.broker_service_url]),
        }
    }

    fn refuse(&self, field: &'static str, value: &str, rule: &'static str) -> TopologyError {
        TopologyError::Field { region: self.name.clone(), field, value: value.to_owned(), rule }
    }

    /// Whatever is written down is readable.
    ///
    /// # Errors
    /// [`TopologyError::Field`] with the first field that is not.
    pub fn check(&self) -> Result<(), TopologyError> {
        type Row<'a> = (&'static str, &'a Option<String>, fn(&str) -> Option<Endpoint>, Option<bool>, &'static str);
        let rows: [Row<'_>; 5] = [
            ("serviceUrl", &self.service_url, Endpoint::web, Some(false), "an admin address is http://host:port"),
            (
                "serviceUrlTls",
                &self.service_url_tls,
                Endpoint::web,
                Some(true),
                "an admin address by TLS is https://host:port",
            ),
            (
                "brokerServiceUrl",
                &self.broker_service_url,
                Endpoint::broker,
                Some(false),
                "a broker address is pulsar://host:port",
            ),
            (
                "brokerServiceUrlTls",
                &self.broker_service_url_tls,
                Endpoint::broker,
                Some(true),
                "a broker address by TLS is pulsar+ssl://host:port",
            ),
            (
                "regionLinkUrl",
                &self.link_url,
                Endpoint::link,
                None,
                "a link's address is https://host:port, or http://host:port to go without TLS",
            ),
        ];
        for (field, value, read, tls, rule) in rows {
            let Some(url) = set(&[value]) else { continue };
            if read(url).is_none_or(|endpoint| tls.is_some_and(|tls| endpoint.tls != tls)) {
                return Err(self.refuse(field, url, rule));
            }
        }
        if set(&[&self.key_file]).is_some() != set(&[&self.certificate_file]).is_some() {
            let missing = if set(&[&self.key_file]).is_none() {
                "brokerClientKeyFilePath"
            } else {
                "brokerClientCertificateFilePath"
            };
            return Err(self.refuse(missing, "", "a client certificate needs both its file and its key's"));
        }
        if self.peer_names.contains(&self.name) {
            return Err(self.refuse("peerClusterNames", &self.name, "a region is no peer of itself"));
        }
        Ok(())
    }

    /// The region as it is dialled.
    ///
    /// # Errors
    /// [`TopologyError::Field`] with what is missing or not readable.
    pub fn peer(&self) -> Result<Peer, TopologyError> {
        self.check()?;
        let field = if self.tls_enabled { "brokerServiceUrlTls" } else { "brokerServiceUrl" };
        let url =
            self.broker_url().ok_or_else(|| self.refuse(field, "", "brokers can't be reached without an address"))?;
        let broker = Endpoint::broker(url).ok_or_else(|| self.refuse(field, url, "a broker address"))?;
        let web = match self.tls_enabled {
            true => set(&[&self.service_url_tls, &self.service_url]),
            false => set(&[&self.service_url, &self.service_url_tls]),
        };
        let web = web.and_then(Endpoint::web);
        let link = match (set(&[&self.link_url]).and_then(Endpoint::link), &web) {
            (Some(given), _) => LinkAddress::Given(given),
            (None, Some(web)) => LinkAddress::Ask(web.clone()),
            (None, None) => LinkAddress::None,
        };
        let credentials = set(&[&self.authentication_plugin]).map(|plugin| Credentials {
            plugin: plugin.to_owned(),
            parameters: self.authentication_parameters.clone().unwrap_or_default(),
        });
        let identity = set(&[&self.certificate_file]).zip(set(&[&self.key_file]));
        let trust = Trust {
            authorities_file: set(&[&self.trust_certs_file]).map(str::to_owned),
            insecure: self.tls_allow_insecure,
            identity: identity.map(|(certificate, key)| (certificate.to_owned(), key.to_owned())),
        };
        Ok(Peer { name: self.name.clone(), id: RegionId::of(&self.name), broker, web, link, credentials, trust })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RegionSpec {
        RegionSpec {
            name: "east".into(),
            service_url: Some("http://east:8080".into()),
            broker_service_url: Some("pulsar://east:6650".into()),
            ..RegionSpec::default()
        }
    }

    fn field(error: TopologyError) -> &'static str {
        match error {
            TopologyError::Field { field, .. } => field,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_plain_region_is_dialled_and_its_link_asked_for() {
        let peer = spec().peer().unwrap();
        assert_eq!(peer.id, RegionId::of("east"));
        assert!(!peer.broker.tls);
        assert_eq!(peer.link, LinkAddress::Ask(Endpoint::web("http://east:8080").unwrap()));
        assert_eq!(peer.trust, Trust::default());
    }

    #[test]
    fn with_tls_the_addresses_by_tls_are_used() {
        let mut spec = RegionSpec { tls_enabled: true, ..spec() };
        assert_eq!(field(spec.peer().unwrap_err()), "brokerServiceUrlTls");
        spec.broker_service_url_tls = Some("pulsar+ssl://east:6651".into());
        spec.link_url = Some("https://east:6680".into());
        spec.certificate_file = Some("c.pem".into());
        assert_eq!(field(spec.peer().unwrap_err()), "brokerClientKeyFilePath");
        spec.key_file = Some("k.pem".into());
        let peer = spec.peer().unwrap();
        assert!(peer.broker.tls);
        assert_eq!(peer.link, LinkAddress::Given(Endpoint::link("https://east:6680").unwrap()));
        assert_eq!(peer.trust.identity, Some(("c.pem".into(), "k.pem".into())));
    }

    #[test]
    fn what_can_not_be_read_is_named() {
        let bad = |change: fn(&mut RegionSpec)| {
            let mut spec = spec();
            change(&mut spec);
            field(spec.check().unwrap_err())
        };
        assert_eq!(bad(|spec| spec.service_url = Some("https://a".into())), "serviceUrl");
        assert_eq!(bad(|spec| spec.service_url_tls = Some("http://a".into())), "serviceUrlTls");
        assert_eq!(bad(|spec| spec.broker_service_url = Some("pulsar+ssl://a".into())), "brokerServiceUrl");
        assert_eq!(bad(|spec| spec.broker_service_url_tls = Some("a:1".into())), "brokerServiceUrlTls");
        assert_eq!(bad(|spec| spec.link_url = Some("grpc://a".into())), "regionLinkUrl");
        assert_eq!(bad(|spec| spec.peer_names = ["east".to_owned()].into()), "peerClusterNames");
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut spec = spec();
        spec.authentication_plugin = Some("org.apache.pulsar.client.impl.auth.AuthenticationToken".into());
        spec.authentication_parameters = Some("token:hidden".into());
        let peer = spec.peer().unwrap();
        assert_eq!(peer.credentials.as_ref().and_then(Credentials::token), Some("hidden"));
        assert!(!format!("{peer:?} {spec:?}").contains("hidden"));
        let from_file = Credentials { plugin: "token".into(), parameters: "file:///etc/t".into() };
        assert_eq!((from_file.token(), from_file.token_file()), (None, Some("/etc/t")));
    }
}
