//! What a started process says of itself: one log line, and a file for scripts.

use crate::cli::Failure;
use crate::role::Role;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Addresses that answer.
#[derive(Debug, Default, Clone)]
pub struct Addresses {
    /// Binary protocol.
    pub binary: Option<SocketAddr>,
    /// Binary protocol over TLS.
    pub binary_tls: Option<SocketAddr>,
    /// Admin API.
    pub web: Option<SocketAddr>,
    /// Admin API over TLS.
    pub web_tls: Option<SocketAddr>,
    /// Region link to other regions.
    pub region_link: Option<SocketAddr>,
    /// Addresses of `bindAddresses`, by `name:scheme`.
    pub named: BTreeMap<String, SocketAddr>,
    /// Data port of the bookie.
    pub bookie: Option<SocketAddr>,
    /// Control port of the bookie.
    pub bookie_control: Option<SocketAddr>,
    /// Metrics page of a process without a broker.
    pub stats: Option<SocketAddr>,
}

fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}

/// Logs the one line per start, and writes the file if one is asked for (whole or not at all).
///
/// # Errors
/// The file can't be written.
pub fn announce(role: Role, cluster: &str, at: &Addresses, took: Duration, file: Option<&Path>) -> Result<(), Failure> {
    tracing::info!(
        role = role.name(),
        cluster,
        binary = shown(at.binary),
        binary_tls = shown(at.binary_tls),
        web = shown(at.web),
        web_tls = shown(at.web_tls),
        region_link = shown(at.region_link),
        bookie = shown(at.bookie),
        bookie_control = shown(at.bookie_control),
        stats = shown(at.stats),
        ready_ms = took.as_millis() as u64,
        "ready"
    );
    let Some(file) = file else { return Ok(()) };
    let port = |address: Option<SocketAddr>| address.map(|address| address.port());
    let text = json!({
        "pid": std::process::id(),
        "binary_port": port(at.binary),
        "binary_port_tls": port(at.binary_tls),
        "web_port": port(at.web),
        "web_port_tls": port(at.web_tls),
        "region_link_port": port(at.region_link),
        "named_ports": at.named.iter().map(|(name, at)| (name.clone(), at.port())).collect::<BTreeMap<_, _>>(),
        "bookie_port": port(at.bookie),
        "bookie_control_port": port(at.bookie_control),
        "stats_port": port(at.stats),
        "ready_ms": took.as_millis() as u64,
    });
    let draft = file.with_extension("draft");
    std::fs::write(&draft, text.to_string())
        .and_then(|()| std::fs::rename(&draft, file))
        .map_err(|error| format!("--ready-file {}: {error}", file.display()).into())
}
