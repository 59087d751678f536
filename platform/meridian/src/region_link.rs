//! The region link to other regions: its port, its certificates, its figures.
//!
//! Failure: a port or a file that was asked for and can't be used ends the start; the default port alone, taken by
//! someone else, leaves the region without a listening link, and says so.

use crate::cli::Failure;
use meridian_link::{LinkConfig, LinkTimes, LinkTls, PeerState, PeerStatus, RegionLink};
use meridian_settings::{Key, Settings};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Binds the port.
///
/// # Errors
/// It is another one than the default and can't be bound.
pub fn bind(settings: &Settings, host: IpAddr) -> Result<Option<TcpListener>, Failure> {
    let Some(port) = settings.port(Key::RegionLinkPort) else { return Ok(None) };
    match TcpListener::bind(SocketAddr::new(host, port)) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if port.to_string() == Settings::default().text(Key::RegionLinkPort) => {
            tracing::error!(
                port,
                %error,
                "the default regionLinkPort can't be bound: other regions can't dial this one; set regionLinkPort"
            );
            Ok(None)
        }
        Err(error) => Err(crate::ports::named("regionLinkPort", port)(error).into()),
    }
}

/// The link, not yet running.
///
/// # Errors
/// The certificate files.
pub fn link(settings: &Settings) -> Result<Arc<RegionLink>, Failure> {
    let tls = LinkTls::load(
        settings.text(Key::RegionLinkTlsCertificateFilePath),
        settings.text(Key::RegionLinkTlsKeyFilePath),
        settings.text(Key::RegionLinkTrustCertsFilePath),
        Duration::from_secs(settings.count(Key::TlsCertRefreshCheckDurationSec)),
    )?;
    let compare_ms = settings.count(Key::RegionLinkCompareIntervalSeconds).max(1) * 1000;
    Ok(RegionLink::new(LinkConfig {
        region: settings.text(Key::ClusterName).to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        tls,
        times: LinkTimes { compare_ms, call_ms: crate::failover::call_ms(settings), ..LinkTimes::default() },
    }))
}

/// Where other regions reach it.
pub fn url(link: &RegionLink, host: &str, at: Option<SocketAddr>) -> Option<String> {
    let scheme = if link.encrypted() { "https" } else { "http" };
    at.map(|at| format!("{scheme}://{host}:{}", at.port()))
}

type Read = fn(&PeerStatus) -> f64;

/// Name, help, value; one series per peer.
const GAUGES: &[(&str, &str, Read)] = &[
    ("connected", "1 if the region link to the region is there.", |peer| {
        f64::from(u8::from(peer.state == PeerState::Connected))
    }),
    ("since_seconds", "Unix time since which the link is in its state.", |peer| peer.since_ms as f64 / 1e3),
    ("round_trip_seconds", "Last round trip.", |peer| peer.round_trip_us as f64 / 1e6),
    ("clock_ahead_seconds", "How far the region's clock is ahead of the one here.", |peer| {
        peer.clock_ahead_ms as f64 / 1e3
    }),
    ("objects_queued", "Objects that wait to be sent.", |peer| peer.sync.queued as f64),
    ("objects_later", "Objects that the region could not take yet.", |peer| peer.sync.later as f64),
    ("objects_refused", "Objects that the region refuses.", |peer| peer.sync.refused.len() as f64),
    ("converged_seconds", "Unix time at which everything was compared and equal.", |peer| {
        peer.sync.converged_ms as f64 / 1e3
    }),
    ("acks_in_flight_bytes", "Acknowledgements sent and not confirmed.", |peer| peer.acks.in_flight_bytes as f64),
    ("last_seen_seconds", "Unix time of the last call of the region.", |peer| peer.incoming.last_seen_ms as f64 / 1e3),
];

type Count = fn(&PeerStatus) -> u64;

const COUNTERS: &[(&str, &str, Count)] = &[
    ("connects_total", "Connections made.", |peer| peer.connects),
    ("objects_sent_total", "Objects that the region took.", |peer| peer.sync.taken),
    ("objects_received_total", "Objects taken over.", |peer| peer.incoming.objects_taken),
    ("objects_received_refused_total", "Objects refused.", |peer| peer.incoming.objects_refused),
    ("overflows_total", "Times that more objects waited than may.", |peer| peer.sync.overflows),
    ("acks_sent_total", "Deltas of acknowledgements sent.", |peer| peer.acks.sent),
    ("acks_sent_bytes_total", "Their bytes.", |peer| peer.acks.sent_bytes),
    ("acks_confirmed_total", "Deltas confirmed.", |peer| peer.acks.confirmed),
    ("acks_received_total", "Deltas merged.", |peer| peer.incoming.acks),
    ("calls_refused_total", "Calls of the region refused.", |peer| peer.incoming.calls_refused),
];

/// Figures of the link, read when they are asked for.
pub struct LinkFigures {
    link: Weak<RegionLink>,
}

impl LinkFigures {
    /// Of a link.
    pub fn new(link: &Arc<RegionLink>) -> Self {
        Self { link: Arc::downgrade(link) }
    }

    fn families(peers: &[PeerStatus]) -> Result<Vec<MetricFamily>, prometheus::Error> {
        let mut families = Vec::new();
        let opts = |name: &str, help: &str| Opts::new(format!("meridian_region_link_{name}"), help);
        for (name, help, read) in GAUGES {
            let gauge = GaugeVec::new(opts(name, help), &["remote_cluster"])?;
            peers.iter().for_each(|peer| gauge.with_label_values(&[&peer.region]).set(read(peer)));
            families.extend(gauge.collect());
        }
        for (name, help, count) in COUNTERS {
            let counter = IntCounterVec::new(opts(name, help), &["remote_cluster"])?;
            peers.iter().for_each(|peer| counter.with_label_values(&[&peer.region]).inc_by(count(peer)));
            families.extend(counter.collect());
        }
        let states =
            IntGaugeVec::new(opts("state", "1 for the state that the link is in."), &["remote_cluster", "state"])?;
        peers.iter().for_each(|peer| states.with_label_values(&[peer.region.as_str(), peer.state.word()]).set(1));
        families.extend(states.collect());
        Ok(families)
    }
}

impl Collector for LinkFigures {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let peers = self.link.upgrade().map(|link| link.peers()).unwrap_or_default();
        if peers.is_empty() {
            return Vec::new();
        }
        Self::families(&peers).unwrap_or_else(|error| {
            tracing::error!(%error, "figures of the region link can't be made");
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_its_figures() {
        let east = PeerStatus { region: "east".into(), connects: 3, round_trip_us: 1_500, ..PeerStatus::default() };
        let families = LinkFigures::families(&[east]).expect("names are good");
        let text = prometheus::TextEncoder::new().encode_to_string(&families).expect("it is text");
        for line in [
            "meridian_region_link_connected{remote_cluster=\"east\"} 0",
            "meridian_region_link_connects_total{remote_cluster=\"east\"} 3",
            "meridian_region_link_round_trip_seconds{remote_cluster=\"east\"} 0.0015",
            "meridian_region_link_state{remote_cluster=\"east\",state=\"connecting\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn the_default_port_may_be_taken_another_one_may_not() {
        let host: IpAddr = [127, 0, 0, 1].into();
        let taken = TcpListener::bind((host, 0)).expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let mut settings = Settings::default();
        settings.set_pair("test", &format!("regionLinkPort={port}")).expect("it is a setting");
        let error = bind(&settings, host).expect_err("it is taken").to_string();
        assert!(error.starts_with(&format!("regionLinkPort={port}: ")), "{error}");
        settings.set_pair("test", "regionLinkPort=").expect("it is a setting");
        assert!(bind(&settings, host).expect("nothing to bind").is_none());
    }
}
