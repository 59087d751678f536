//! How to reach TiKV, and the bounds of every wait.
//!
//! Invariants: a configuration that names no placement driver or only a part of the certificate files is refused.
//! Failure: [`UrlError`] says what is wrong with a URL.
//! Must never know: settings files.

use std::path::PathBuf;

/// The scheme of a URL of this store.
const SCHEME: &str = "tikv://";

/// How to reach the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TikvConfig {
    /// Placement drivers, `host:port`.
    pub pd_endpoints: Vec<String>,
    /// Before all keys: what shares a TiKV must have different prefixes, none the beginning of another.
    pub prefix: String,
    /// Who signs TiKV's certificates, PEM. With certificate and key: TLS both ways.
    pub ca_path: Option<PathBuf>,
    /// This process's certificate chain, PEM.
    pub cert_path: Option<PathBuf>,
    /// This process's private key, PEM.
    pub key_path: Option<PathBuf>,
    /// Longest time of a call of the trait, repetitions included. A write whose outcome is not known by then takes up to
    /// four seconds more to settle it.
    pub call_timeout_ms: u64,
    /// Longest time of one step of a call (a time stamp, a read, a commit).
    pub step_timeout_ms: u64,
    /// Longest time of one request to TiKV.
    pub rpc_timeout_ms: u64,
    /// Time between two looks for changes of other processes.
    pub poll_interval_ms: u64,
    /// Moves TiKV's safe point every ten minutes. Only for a TiKV that nothing else uses.
    pub collect_garbage: bool,
}

/// Why a URL can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url} is no metadata store: {reason}")]
pub struct UrlError {
    /// The URL.
    pub url: String,
    /// What is wrong.
    pub reason: String,
}

impl TikvConfig {
    /// A configuration with the usual bounds.
    pub fn new(pd_endpoints: Vec<String>, prefix: impl Into<String>) -> Self {
        Self {
            pd_endpoints,
            prefix: prefix.into(),
            ca_path: None,
            cert_path: None,
            key_path: None,
            call_timeout_ms: 5_000,
            step_timeout_ms: 2_500,
            rpc_timeout_ms: 2_000,
            poll_interval_ms: 250,
            collect_garbage: false,
        }
    }

    /// Reads `tikv://host:port[,host:port…]/prefix`.
    ///
    /// # Errors
    /// The URL has another form.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let refuse = |reason: &str| UrlError { url: url.to_owned(), reason: reason.to_owned() };
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| refuse("it must begin with tikv://"))?;
        let (hosts, prefix) = rest.split_once('/').ok_or_else(|| refuse("it must end with /prefix"))?;
        let endpoints: Vec<String> = hosts.split(',').map(|host| host.trim().to_owned()).collect();
        for endpoint in &endpoints {
            let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
            if port.is_none_or(|port| port.parse::<u16>().is_err()) {
                return Err(refuse("every placement driver is host:port"));
            }
        }
        if prefix.is_empty() || prefix.contains('/') {
            return Err(refuse("the prefix is one word"));
        }
        Ok(Self::new(endpoints, format!("{prefix}/")))
    }

    /// Whether the certificate files are all there, or none.
    pub(crate) fn check(&self) -> Result<(), String> {
        let files = [&self.ca_path, &self.cert_path, &self.key_path];
        let given = files.iter().filter(|file| file.is_some()).count();
        if given != 0 && given != files.len() {
            return Err("TLS to TiKV needs all of authority, certificate and key".into());
        }
        if self.pd_endpoints.is_empty() {
            return Err("no placement driver is named".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_drivers_and_prefix() {
        let config = TikvConfig::from_url("tikv://pd1:2379, [::1]:2379/prod").unwrap();
        assert_eq!(config.pd_endpoints, ["pd1:2379", "[::1]:2379"]);
        assert_eq!(config.prefix, "prod/");
        for bad in
            ["tikv://pd1:2379", "tikv://pd1/p", "tikv://:2379/p", "tikv:///p", "tikv://a:1/p/q", "tikv://a:1/", "x"]
        {
            assert!(TikvConfig::from_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_part_of_the_certificates_is_refused() {
        let mut config = TikvConfig::new(vec!["a:1".into()], "p");
        assert_eq!(config.check(), Ok(()));
        config.ca_path = Some("ca".into());
        assert!(config.check().is_err());
        assert!(TikvConfig::new(vec![], "p").check().is_err());
    }
}
