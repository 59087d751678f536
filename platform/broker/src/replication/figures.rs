//! What a link says about itself, for statistics and metrics.
//!
//! Must never know: how they are shown.

/// What a link of a topic that keeps nothing could not hand over.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Drops {
    /// Messages since the link was started.
    pub messages: u64,
    /// Messages per second.
    pub rate: f64,
}

/// Figures of one link from here to another region.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplicationFigures {
    /// The other region.
    pub remote: String,
    /// Messages per second copied.
    pub rate_out: f64,
    /// Bytes per second copied.
    pub throughput_out: f64,
    /// Messages per second that outlived their time before they were copied.
    pub rate_expired: f64,
    /// Messages not copied yet.
    pub backlog: u64,
    /// Its producer at the other region is open.
    pub connected: bool,
    /// Age of the oldest message not copied yet, in seconds.
    pub delay_s: u64,
    /// `ip:port` here and there of its connection.
    pub outbound_connection: Option<String>,
    /// Since when it is open, ms since 1970.
    pub outbound_since_ms: Option<u64>,
    /// Why it runs or does not.
    pub state: String,
    /// It makes progress, or has nothing to do.
    pub running: bool,
    /// Only of topics that keep nothing.
    pub drops: Option<Drops>,
    /// Times that it was started anew because it made no progress.
    pub restarts: u64,
    /// Messages that were removed before they were copied.
    pub gap_messages: u64,
    /// Messages that outlived their time before they were copied.
    pub expired_before_copy: u64,
    /// Entries that could not be read and were passed over.
    pub undecodable: u64,
    /// Messages copied since the link was started.
    pub messages_out: u64,
    /// Bytes copied since the link was started.
    pub bytes_out: u64,
}

impl ReplicationFigures {
    /// Of a link that is not even tried.
    pub fn refused(remote: &str, reason: &str, backlog: u64) -> Self {
        Self { remote: remote.to_owned(), backlog, state: format!("refused: {reason}"), ..Self::default() }
    }
}
