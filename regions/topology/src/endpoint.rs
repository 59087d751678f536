//! Addresses of a region's services, read from their URLs.
//!
//! Invariants: an endpoint has at least one address; a URL's scheme alone decides about TLS.
//! Failure: `None`, and the caller names the field.

use std::fmt;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// Name or address; IPv6 without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl HostPort {
    /// Reads `host`, `host:port` or `[v6]:port`.
    pub fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let plain = !host.is_empty() && !host.contains([' ', '/', '@', '?', '#']);
        let port = port.map_or(Some(default_port), |port| port.parse().ok().filter(|port| *port > 0))?;
        plain.then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// One service of a region: tried in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// At least one.
    pub addresses: Vec<HostPort>,
    /// Spoken to by TLS.
    pub tls: bool,
}

impl Endpoint {
    /// Reads `scheme://host:port,host:port/`; the scheme is one of the two given, plain first.
    pub fn parse(url: &str, schemes: [&str; 2], default_ports: [u16; 2]) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let kind = schemes.iter().position(|known| *known == scheme)?;
        let hosts = rest.strip_suffix('/').unwrap_or(rest).split(',');
        let addresses = hosts.map(|host| HostPort::parse(host, default_ports[kind])).collect::<Option<Vec<_>>>()?;
        Some(Self { addresses, tls: kind == 1 })
    }

    /// A broker's address: `pulsar://` or `pulsar+ssl://`.
    pub fn broker(url: &str) -> Option<Self> {
        Self::parse(url, ["pulsar", "pulsar+ssl"], [6650, 6651])
    }

    /// A web address: `http://` or `https://`.
    pub fn web(url: &str) -> Option<Self> {
        Self::parse(url, ["http", "https"], [80, 443])
    }

    /// A region link's address: `http://` (not encrypted) or `https://`.
    pub fn link(url: &str) -> Option<Self> {
        Self::parse(url, ["http", "https"], [6680, 6680])
    }
}

/// How the region link of a peer is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LinkAddress {
    /// It is written down. Without TLS only because it says `http://`.
    Given(Endpoint),
    /// The peer's web service is asked.
    Ask(Endpoint),
    /// Neither is written down: there is no region link.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn urls_are_read() {
        let several = Endpoint::broker("pulsar+ssl://a:1,b,[::1]:3/").unwrap();
        assert_eq!(several, Endpoint { addresses: vec![at("a", 1), at("b", 6651), at("::1", 3)], tls: true });
        assert_eq!(several.addresses[2].to_string(), "[::1]:3");
        assert_eq!(Endpoint::link("http://east"), Some(Endpoint { addresses: vec![at("east", 6680)], tls: false }));
        assert!(Endpoint::link("https://east:7000").unwrap().tls);
        for bad in
            ["east:6650", "http://a", "pulsar://", "pulsar://a:0", "pulsar://a:x", "pulsar://a/b", "pulsar://a,,b"]
        {
            assert_eq!(Endpoint::broker(bad), None, "{bad}");
        }
    }
}
