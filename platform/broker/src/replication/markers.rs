//! Replicated subscriptions towards Apache Pulsar clusters: from the broker to its topics.
//!
//! Role: each second topics that are copied to Pulsar clusters hear which those are and whether they are connected; markers
//! that a link meets go to their topic.
//! Failure: a marker for a topic that is not open (any more) is lost; the next snapshot makes up for it.
//! Must never know: what markers say.

use super::{AckExchange, ReplicationFigures};
use crate::config::ReplicationConfig;
use meridian_cursors::snapshot::RoundsConfig;
use meridian_replicator::{MarkerSink, SeenMarker};
use meridian_topic::SnapshotSetup;
use meridian_types::TopicName;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a topic is told of the Pulsar clusters around.
pub(crate) fn setup(
    own: &str,
    config: &ReplicationConfig,
    remotes: BTreeSet<String>,
    links: &[ReplicationFigures],
) -> SnapshotSetup {
    let connected = |name: &String| links.iter().any(|link| link.remote == *name && link.connected);
    SnapshotSetup {
        own: own.to_owned(),
        connected: remotes.iter().all(connected),
        remotes,
        rounds: RoundsConfig {
            every_ms: config.snapshot_every_ms,
            timeout_ms: config.snapshot_timeout_ms,
            ..RoundsConfig::default()
        },
        cached: config.snapshots_cached as usize,
    }
}

/// Markers of one topic.
pub struct TopicMarkers {
    exchange: Arc<AckExchange>,
    topic: TopicName,
}

impl TopicMarkers {
    /// Of a topic.
    pub fn new(exchange: Arc<AckExchange>, topic: TopicName) -> Self {
        Self { exchange, topic }
    }
}

impl MarkerSink for TopicMarkers {
    fn marker(&self, remote: &str, marker: SeenMarker) {
        self.exchange.marker(&self.topic, remote, marker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_to_be_connected() {
        let link = |remote: &str, connected| ReplicationFigures {
            remote: remote.to_owned(),
            connected,
            ..ReplicationFigures::default()
        };
        let remotes = || ["p", "q"].map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
        let config = ReplicationConfig::default();
        let of = |links: &[ReplicationFigures]| setup("west", &config, remotes(), links).connected;
        assert!(of(&[link("p", true), link("q", true), link("m", false)]));
        assert!(!of(&[link("p", true), link("q", false)]));
        assert!(!of(&[link("p", true)]));
    }
}
