//! The ports of a process: bound before anything is announced, with their certificates and names.
//!
//! Invariants: W1 of `process`; a port with TLS has a certificate or ends the start; a named port is an advertised
//! listener's.
//! Failure: names the setting, its value and what to change.

use crate::cli::Failure;
use crate::config::broker as broker_config;
use crate::ready::Addresses;
use crate::region_link;
use crate::role::Role;
use meridian_admin::WebListener;
use meridian_broker::Listener;
use meridian_identity::tls::ServerTls;
use meridian_settings::{Key, Settings};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Ports that are bound; nothing is accepted yet.
#[derive(Default)]
pub struct Ports {
    /// Of the binary protocol.
    pub binary: Vec<Listener>,
    /// Of the admin API.
    pub web: Vec<WebListener>,
    /// Of the region link.
    pub region_link: Option<TcpListener>,
    /// Data and control port of the bookie of a cluster.
    pub bookie: Option<(tokio::net::TcpListener, tokio::net::TcpListener)>,
    /// The metrics page of a process without a broker.
    pub stats: Option<WebListener>,
    /// Where they are.
    pub at: Addresses,
}

/// Names the setting in the error of a port that can't be bound, and what to do about it.
pub fn named(key: &str, port: u16) -> impl Fn(std::io::Error) -> String {
    move |error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => format!(
                "; another process listens there (`ss -ltnp 'sport = :{port}'` names it): end it, or choose a free port \
                 ({key}=0 takes any)"
            ),
            ErrorKind::AddrNotAvailable => "; bindAddress is no address of this machine".to_owned(),
            ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: choose a higher one".to_owned(),
            _ => String::new(),
        };
        format!("{key}={port}: the port can't be bound: {error}{hint}")
    }
}

/// The server side of TLS for a port, or which settings it needs.
fn tls_of(settings: &Settings, shown: &str, alpn: &[&[u8]]) -> Result<ServerTls, Failure> {
    let files = broker_config::tls_files(settings, alpn);
    let missing: Vec<&str> = [(&files.certificate, "tlsCertificateFilePath"), (&files.key, "tlsKeyFilePath")]
        .iter()
        .filter(|(value, _)| value.is_empty())
        .map(|(_, name)| *name)
        .collect();
    if !missing.is_empty() {
        return Err(format!("{shown}: a port with TLS needs a certificate: set {}", missing.join(" and ")).into());
    }
    Ok(ServerTls::new(files)?)
}

const HTTP: &[&[u8]] = &[b"http/1.1"];

impl Ports {
    /// Binds what the role needs and the settings name. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The first port that can't be bound, or file that can't be used.
    pub fn bind(role: Role, settings: &Settings) -> Result<Self, Failure> {
        let host: IpAddr = settings
            .text(Key::BindAddress)
            .parse()
            .map_err(|_| format!("bindAddress={}: expected an IP address", settings.text(Key::BindAddress)))?;
        let mut ports = Ports::default();
        if role.has_broker() {
            ports.bind_broker(settings, host)?;
        }
        if role.in_cluster() && role.bookies(settings) > 0 {
            ports.bind_bookie(settings, host)?;
        }
        if !role.has_broker()
            && let Some(port) = settings.port(Key::PrometheusStatsHttpPort)
        {
            let listener = WebListener::bind(SocketAddr::new(host, port), None, broker_config::web_limits(settings))
                .map_err(named("prometheusStatsHttpPort", port))?;
            ports.at.stats = Some(listener.local_address()?);
            ports.stats = Some(listener);
        }
        Ok(ports)
    }

    fn bind_bookie(&mut self, settings: &Settings, host: IpAddr) -> Result<(), Failure> {
        let listen = |key: Key, name: &'static str| -> Result<tokio::net::TcpListener, Failure> {
            let port = settings.port(key).ok_or_else(|| format!("{name} is empty: expected a port"))?;
            let listener = TcpListener::bind(SocketAddr::new(host, port)).map_err(named(name, port))?;
            listener.set_nonblocking(true)?;
            Ok(tokio::net::TcpListener::from_std(listener)?)
        };
        let data = listen(Key::BookiePort, "bookiePort")?;
        let control = listen(Key::BookieControlPort, "bookieControlPort")?;
        (self.at.bookie, self.at.bookie_control) = (Some(data.local_addr()?), Some(control.local_addr()?));
        self.bookie = Some((data, control));
        Ok(())
    }

    fn bind_broker(&mut self, settings: &Settings, host: IpAddr) -> Result<(), Failure> {
        let ports = self;
        if let Some(port) = settings.port(Key::BrokerServicePort) {
            let address = SocketAddr::new(host, port);
            ports.at.binary = Some(ports.binary(address, None, None).map_err(named("brokerServicePort", port))?);
        }
        if let Some(port) = settings.port(Key::BrokerServicePortTls) {
            let tls = tls_of(settings, &format!("brokerServicePortTls={port}"), &[])?;
            let bound = ports.binary(SocketAddr::new(host, port), Some(tls), None);
            ports.at.binary_tls = Some(bound.map_err(named("brokerServicePortTls", port))?);
        }
        if let Some(port) = settings.port(Key::WebServicePort) {
            let bound = ports.web(settings, SocketAddr::new(host, port), None);
            ports.at.web = Some(bound.map_err(named("webServicePort", port))?);
        }
        if let Some(port) = settings.port(Key::WebServicePortTls) {
            let tls = tls_of(settings, &format!("webServicePortTls={port}"), HTTP)?;
            let bound = ports.web(settings, SocketAddr::new(host, port), Some(tls));
            ports.at.web_tls = Some(bound.map_err(named("webServicePortTls", port))?);
        }
        for item in settings.list(Key::BindAddresses) {
            ports.bind_named(settings, &item)?;
        }
        ports.region_link = region_link::bind(settings, host)?;
        ports.at.region_link = ports.region_link.as_ref().and_then(|listener| listener.local_addr().ok());
        if ports.binary.is_empty() {
            return Err("brokerServicePort and brokerServicePortTls are both empty: expected at least one port".into());
        }
        Ok(())
    }

    fn binary(
        &mut self,
        address: SocketAddr,
        tls: Option<ServerTls>,
        name: Option<String>,
    ) -> std::io::Result<SocketAddr> {
        let listener = Listener::bind(address, tls, name)?;
        let bound = listener.local_address()?;
        self.binary.push(listener);
        Ok(bound)
    }

    fn web(&mut self, settings: &Settings, address: SocketAddr, tls: Option<ServerTls>) -> std::io::Result<SocketAddr> {
        let listener = WebListener::bind(address, tls, broker_config::web_limits(settings))?;
        let bound = listener.local_address()?;
        self.web.push(listener);
        Ok(bound)
    }

    /// One item of `bindAddresses`.
    fn bind_named(&mut self, settings: &Settings, item: &str) -> Result<(), Failure> {
        let shown = format!("bindAddresses={item}");
        let expected = || format!("{shown}: expected name:scheme://ip:port with pulsar, pulsar+ssl, http or https");
        let (name, rest) = item.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or_else(expected)?;
        let (scheme, at) = rest.split_once("://").ok_or_else(expected)?;
        let address: SocketAddr = at.parse().map_err(|_| expected())?;
        let known = settings.list(Key::AdvertisedListeners);
        if !known.iter().any(|listener| listener.split(':').next() == Some(name)) {
            return Err(format!("{shown}: advertisedListeners has no listener {name}").into());
        }
        let failed = |error: std::io::Error| format!("{shown}: the address can't be bound: {error}");
        let bound = match scheme {
            "pulsar" => self.binary(address, None, Some(name.to_owned())),
            "pulsar+ssl" => {
                let tls = tls_of(settings, &shown, &[])?;
                self.binary(address, Some(tls), Some(name.to_owned()))
            }
            "http" => self.web(settings, address, None),
            "https" => {
                let tls = tls_of(settings, &shown, HTTP)?;
                self.web(settings, address, Some(tls))
            }
            _ => return Err(expected().into()),
        };
        self.at.named.insert(format!("{name}:{scheme}"), bound.map_err(failed)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pairs: &[&str]) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut settings = Settings::default();
        for pair in ["brokerServicePort=0", "webServicePort=0", "regionLinkPort=", "bindAddress=127.0.0.1"] {
            settings.set_pair("test", pair).expect("it is a setting");
        }
        for pair in pairs {
            settings.set_pair("test", pair).expect("it is a setting");
        }
        let bound =
            runtime.block_on(async { Ports::bind(Role::Standalone, &settings).map(|ports| ports.at.named.len()) });
        bound.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_port_in_use_is_refused_with_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("an address").port();
        for key in ["brokerServicePort", "webServicePort", "regionLinkPort"] {
            let error = refused(&[&format!("{key}={port}")]);
            assert!(error.starts_with(&format!("{key}={port}: the port can't be bound")), "{error}");
            assert!(error.contains(&format!("sport = :{port}")) && error.contains(&format!("{key}=0")), "{error}");
        }
    }

    #[test]
    fn named_ports_belong_to_advertised_listeners() {
        let advertised = "advertisedListeners=out:pulsar://gate:1";
        assert_eq!(refused(&[advertised, "bindAddresses=out:pulsar://127.0.0.1:0,out:http://127.0.0.1:0"]), "");
        let error = refused(&[advertised, "bindAddresses=in:pulsar://127.0.0.1:0"]);
        assert_eq!(error, "bindAddresses=in:pulsar://127.0.0.1:0: advertisedListeners has no listener in");
        for bad in ["out", "out:pulsar", "out:pulsar://x", ":pulsar://127.0.0.1:0", "out:grpc://127.0.0.1:0"] {
            let error = refused(&[advertised, &format!("bindAddresses={bad}")]);
            assert!(error.contains("expected name:scheme://ip:port"), "{bad}: {error}");
        }
        let error = refused(&[advertised, "bindAddresses=out:pulsar+ssl://127.0.0.1:0"]);
        assert!(error.contains("set tlsCertificateFilePath and tlsKeyFilePath"), "{error}");
    }
}
