//! What a started process says of itself: one log line, and a file for scripts.

use crate::cli::Failure;
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
    /// Control link to other regions.
    pub region_link: Option<SocketAddr>,
    /// Addresses of `bindAddresses`, by `name:scheme`.
    pub named: BTreeMap<String, SocketAddr>,
}

fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}

/// Logs the one line per start, and writes the file if one is asked for (whole or not at all).
///
/// # Errors
/// The file can't be written.
pub fn announce(cluster: &str, at: &Addresses, took: Duration, file: Option<&Path>) -> Result<(), Failure> {
    tracing::info!(
        cluster,
        binary = shown(at.binary),
        binary_tls = shown(at.binary_tls),
        web = shown(at.web),
        web_tls = shown(at.web_tls),
        region_link = shown(at.region_link),
        ready_ms = took.as_millis() as u64,
        "region is ready"
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
        "ready_ms": took.as_millis() as u64,
    });
    let draft = file.with_extension("draft");
    std::fs::write(&draft, text.to_string())
        .and_then(|()| std::fs::rename(&draft, file))
        .map_err(|error| format!("--ready-file {}: {error}", file.display()).into())
}
