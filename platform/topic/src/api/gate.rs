//! Whether a topic serves its clients here, and what is under way with them.

use std::sync::Arc;

/// Where the clients of a topic belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedTo {
    /// The region.
    pub region: String,
    /// `pulsar://host:port` there.
    pub broker_url: Option<String>,
    /// `pulsar+ssl://host:port` there.
    pub broker_url_tls: Option<String>,
}

/// Whether a topic serves its tenants' clients here. Links of other regions, acknowledgements and readers go on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gate {
    /// It does.
    #[default]
    Open,
    /// For the moment not: what producers send is neither stored nor answered (they send it again when they are closed),
    /// durable subscriptions get nothing more. The reason.
    Held(Arc<str>),
    /// Another region does.
    Moved(Arc<MovedTo>),
}

/// What is under way between a topic and its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unsettled {
    /// Sends without an answer.
    pub sends: u64,
    /// Messages delivered to durable subscriptions and not acked.
    pub unacked: u64,
}
