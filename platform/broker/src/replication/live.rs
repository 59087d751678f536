//! Links of topics that keep nothing.
//!
//! Role: puts a replicator's queue where the topic hands over what it publishes, and takes it away again.
//! Invariants: L1 the topic offers to the link as long as it runs and not a moment longer: nothing is counted as dropped
//! that a switch-off left.
//! Must never know: how entries are sent.

use super::linker::{limits_of, shown};
use super::{Drops, Link, ReplicationFigures};
use bytes::Bytes;
use meridian_policy::EffectivePolicies;
use meridian_replicator::{LinkState, LiveQueue, LiveReplicator};
use meridian_topic::TopicHandle;
use meridian_topic::api::{BoxFuture, LiveTap};
use std::sync::Arc;

struct Tap(Arc<LiveQueue>);

impl LiveTap for Tap {
    fn offer(&self, run: &[(Bytes, u32)]) {
        self.0.offer(run);
    }
}

/// A running replicator and the topic that it copies.
pub(super) struct RunningLive {
    replicator: Arc<LiveReplicator>,
    topic: Arc<dyn TopicHandle>,
    remote: String,
}

impl RunningLive {
    /// From now on it gets what the topic publishes.
    pub(super) fn new(replicator: Arc<LiveReplicator>, topic: Arc<dyn TopicHandle>, remote: &str) -> Self {
        topic.set_tap(remote, Some(Arc::new(Tap(replicator.queue()))));
        Self { replicator, topic, remote: remote.to_owned() }
    }
}

impl Link for RunningLive {
    fn set_policies(&self, policies: &EffectivePolicies) {
        self.replicator.set_limits(limits_of(policies));
    }

    fn figures(&self) -> ReplicationFigures {
        let stats = self.replicator.stats();
        ReplicationFigures {
            remote: stats.remote,
            rate_out: stats.msg_rate_out,
            throughput_out: stats.msg_throughput_out,
            connected: stats.connected_since_ms.is_some(),
            outbound_connection: stats.outbound_connection,
            outbound_since_ms: stats.connected_since_ms,
            running: matches!(stats.state, LinkState::Running | LinkState::Throttled | LinkState::Idle),
            drops: Some(Drops { messages: stats.counters.dropped_messages, rate: stats.msg_drop_rate }),
            state: shown(&stats.state, stats.since_ms),
            restarts: stats.counters.restarts,
            undecodable: stats.counters.undecodable,
            messages_out: stats.counters.messages,
            bytes_out: stats.counters.bytes_sent,
            ..ReplicationFigures::default()
        }
    }

    /// There is none.
    fn cursor_moved(&self) {}

    fn stop(&self) -> BoxFuture<'_, ()> {
        // L1.
        self.topic.set_tap(&self.remote, None);
        Box::pin(self.replicator.stop())
    }
}
