//! Service URLs and the addresses of brokers.
//!
//! Invariants: an address that was parsed prints as a URL that parses to the same address; all brokers of one service
//! URL have the same scheme.
//! Failure: [`ClientError::Address`] with the rule.
//! Must never know: sockets.

use crate::ClientError;
use std::fmt;
use std::sync::Arc;

const PLAIN: &str = "pulsar://";
const TLS: &str = "pulsar+ssl://";
const PLAIN_PORT: u16 = 6650;
const TLS_PORT: u16 = 6651;
/// Brokers in one service URL.
pub const MAX_SERVICE_ADDRESSES: usize = 64;

/// One broker's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerAddress {
    /// TLS or plain.
    pub tls: bool,
    /// Host name or IP address, IPv6 without brackets.
    pub host: Arc<str>,
    /// Port.
    pub port: u16,
}

impl BrokerAddress {
    /// Parses `pulsar://HOST[:PORT]` or `pulsar+ssl://HOST[:PORT]`.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn parse(url: &str) -> Result<Self, ClientError> {
        let (tls, rest) = scheme(url)?;
        address(url, tls, rest)
    }

    /// `HOST:PORT`, as sockets and proxies want it.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.tls { TLS } else { PLAIN }, self.authority())
    }
}

/// Where a connection goes: to a broker, or to a broker through a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// What is dialled.
    pub address: BrokerAddress,
    /// `HOST:PORT` of the broker behind the proxy that is dialled.
    pub behind_proxy: Option<Arc<str>>,
}

impl Endpoint {
    /// Straight to a broker.
    pub fn direct(address: BrokerAddress) -> Self {
        Self { address, behind_proxy: None }
    }

    /// To `broker` through the proxy at `address`.
    pub fn through_proxy(address: BrokerAddress, broker: &BrokerAddress) -> Self {
        Self { address, behind_proxy: Some(broker.authority().into()) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.behind_proxy {
            Some(broker) => write!(f, "{} (to {broker})", self.address),
            None => self.address.fmt(f),
        }
    }
}

/// The addresses at which a peer can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    tls: bool,
    addresses: Vec<BrokerAddress>,
}

impl ServiceUrl {
    /// Parses `pulsar://a:1,b:2` or `pulsar+ssl://a:1,b:2`.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn parse(url: &str) -> Result<Self, ClientError> {
        let (tls, rest) = scheme(url)?;
        let addresses = rest.split(',').map(|part| address(url, tls, part)).collect::<Result<Vec<_>, _>>()?;
        if addresses.len() > MAX_SERVICE_ADDRESSES {
            return Err(refuse(url, "there are too many addresses"));
        }
        Ok(Self { tls, addresses })
    }

    /// Whether connections to this peer use TLS, also to the brokers that its lookups name.
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// One or more.
    pub fn addresses(&self) -> &[BrokerAddress] {
        &self.addresses
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { TLS } else { PLAIN })?;
        for (index, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{}", if index > 0 { "," } else { "" }, address.authority())?;
        }
        Ok(())
    }
}

fn refuse(text: &str, rule: &'static str) -> ClientError {
    ClientError::Address { text: text.chars().take(256).collect(), rule }
}

fn scheme(url: &str) -> Result<(bool, &str), ClientError> {
    let trimmed = url.trim().trim_end_matches('/');
    if let Some(rest) = trimmed.strip_prefix(TLS) {
        return Ok((true, rest));
    }
    let rest = trimmed.strip_prefix(PLAIN).ok_or_else(|| refuse(url, "it begins with pulsar:// or pulsar+ssl://"))?;
    Ok((false, rest))
}

fn address(url: &str, tls: bool, part: &str) -> Result<BrokerAddress, ClientError> {
    let part = part.trim();
    let (host, port) = match part.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => {
            (host, Some(port.strip_prefix(':').ok_or_else(|| refuse(url, "a colon stands before a port"))?))
        }
        None => match part.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => return Err(refuse(url, "an IPv6 address stands in brackets")),
            Some((host, port)) => (host, Some(port)),
            None => (part, None),
        },
    };
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'%');
    if host.is_empty() || !host.bytes().all(legal) {
        return Err(refuse(url, "a host is a name or an IP address"));
    }
    let port = match port {
        None if tls => TLS_PORT,
        None => PLAIN_PORT,
        Some(port) => {
            port.parse::<u16>().ok().filter(|&port| port > 0).ok_or_else(|| refuse(url, "a port is a number"))?
        }
    };
    Ok(BrokerAddress { tls, host: host.into(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{ProptestConfig, any, proptest};

    #[test]
    fn service_urls_name_one_or_more_brokers() {
        let all = |url: &str| ServiceUrl::parse(url).map(|url| url.to_string()).ok();
        assert_eq!(all("pulsar://a:1,b:2/"), Some("pulsar://a:1,b:2".into()));
        assert_eq!(all("pulsar://a, b:2"), Some("pulsar://a:6650,b:2".into()));
        assert_eq!(all("pulsar+ssl://a"), Some("pulsar+ssl://a:6651".into()));
        assert_eq!(all("pulsar://[::1]:7,[fe80::2]"), Some("pulsar://[::1]:7,[fe80::2]:6650".into()));
        for bad in
            ["", "a:1", "http://a:1", "pulsar://", "pulsar://a:x", "pulsar://a:0", "pulsar://a,,b", "pulsar://a:1/x"]
        {
            assert_eq!(all(bad), None, "{bad}");
        }
        assert_eq!(all("pulsar://::1:7"), None, "an IPv6 address without brackets");
        assert_eq!(all(&format!("pulsar://a{}", ",a".repeat(MAX_SERVICE_ADDRESSES))), None);
    }

    #[test]
    fn a_proxied_endpoint_is_another_one() {
        let (proxy, broker) =
            (BrokerAddress::parse("pulsar://p:1").unwrap(), BrokerAddress::parse("pulsar://b:2").unwrap());
        let through = Endpoint::through_proxy(proxy.clone(), &broker);
        assert_ne!(through, Endpoint::direct(proxy));
        assert_eq!(through.to_string(), "pulsar://p:1 (to b:2)");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn what_is_printed_is_read_again(tls in any::<bool>(), host in "[a-z][a-z0-9.-]{0,20}|[0-9a-f:]{2,10}:[0-9a-f]", port in 1u16..) {
            let address = BrokerAddress { tls, host: host.into(), port };
            assert_eq!(BrokerAddress::parse(&address.to_string()).unwrap(), address);
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = ServiceUrl::parse(&format!("pulsar://{text}"));
            let _ = ServiceUrl::parse(&text);
        }
    }
}
