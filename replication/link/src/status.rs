//! What can be seen of a link.

use std::collections::BTreeMap;

/// What a peer's connection is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PeerState {
    /// It is being dialled.
    #[default]
    Connecting,
    /// It is there.
    Connected,
    /// It failed and is dialled again after a pause.
    Disconnected,
    /// The peer has no region link, or none is written down: nothing is dialled for now.
    NoLink(String),
}

impl PeerState {
    /// In one word, for figures.
    pub fn word(&self) -> &'static str {
        match self {
            PeerState::Connecting => "connecting",
            PeerState::Connected => "connected",
            PeerState::Disconnected => "disconnected",
            PeerState::NoLink(_) => "no-link",
        }
    }
}

/// Objects that go to a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncStatus {
    /// Everything was compared and equal at this time (ms since 1970); 0 = never.
    pub converged_ms: u64,
    /// Rounds of comparing.
    pub rounds: u64,
    /// Objects that wait to be sent.
    pub queued: u64,
    /// Objects without an answer.
    pub in_flight: u64,
    /// Objects that the peer could not take yet.
    pub later: u64,
    /// Objects that the peer took.
    pub taken: u64,
    /// Times that more waited than may, so that everything was compared again.
    pub overflows: u64,
    /// What the peer refused, and why.
    pub refused: BTreeMap<String, String>,
}

/// Acknowledgements that go to a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AckStatus {
    /// Bytes without an answer.
    pub in_flight_bytes: u64,
    /// Deltas sent.
    pub sent: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Deltas confirmed.
    pub confirmed: u64,
    /// Deltas that have to be sent again.
    pub again: u64,
}

/// What comes from a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncomingStatus {
    /// Last call (ms since 1970); 0 = never.
    pub last_seen_ms: u64,
    /// Objects taken over.
    pub objects_taken: u64,
    /// Objects refused.
    pub objects_refused: u64,
    /// Deltas of acknowledgements merged.
    pub acks: u64,
    /// Calls refused.
    pub calls_refused: u64,
    /// Why the last one was.
    pub last_refusal: Option<String>,
}

/// What can be seen of one peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its region.
    pub region: String,
    /// State.
    pub state: PeerState,
    /// Since when (ms since 1970).
    pub since_ms: u64,
    /// Where it is dialled.
    pub address: Option<String>,
    /// With TLS.
    pub tls: bool,
    /// Attempts since it was connected last.
    pub attempts: u64,
    /// Connections made.
    pub connects: u64,
    /// Last error with its time (ms since 1970).
    pub last_error: Option<(String, u64)>,
    /// Its program's version.
    pub version: Option<String>,
    /// How far its clock is ahead of the one here, to half a round trip.
    pub clock_ahead_ms: i64,
    /// Last round trip.
    pub round_trip_us: u64,
    /// Objects.
    pub sync: SyncStatus,
    /// Acknowledgements.
    pub acks: AckStatus,
    /// What comes from it.
    pub incoming: IncomingStatus,
}

impl PeerStatus {
    /// The state as a sentence.
    pub fn explain(&self) -> String {
        match (&self.state, &self.last_error) {
            (PeerState::Connected, _) => "connected".to_owned(),
            (PeerState::NoLink(why), _) => format!("no region link: {why}"),
            (state, Some((error, _))) => format!("{}: {error}", state.word()),
            (state, None) => state.word().to_owned(),
        }
    }
}
