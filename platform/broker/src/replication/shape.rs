//! The topic in the other region gets the shape that it has here, before a link compares them.
//!
//! Invariants: the shape comes from here; a topic there is never made smaller, and never of another kind.
//! Failure: what could not be made is logged and left to the comparison, which says what differs, and to the other region's
//! own rules for topics that are used before they are made.
//! Must never know: links.

use super::http::RemoteAdmin;
use meridian_client::PeerPool;
use meridian_types::TopicName;
use meridian_wire::proto::ServerError;

/// Makes a topic that is missing, or lets one grow. A missing partitioned topic is left to the link's own maker.
pub async fn prepare(pool: &PeerPool, admin: &RemoteAdmin, topic: &TopicName, partitions: u32) {
    let outcome = match pool.partitions(topic, false).await {
        Err(error) if error.code() == Some(ServerError::TopicNotFound) && partitions == 0 => admin.make_plain(topic).await,
        Ok(there) if there > 0 && there < partitions => admin.grow(topic, partitions).await,
        _ => return,
    };
    match outcome {
        Ok(()) => tracing::info!(%topic, partitions, remote = pool.peer().name, "made the topic in the other region"),
        Err(error) => tracing::warn!(%topic, partitions, error, "the topic could not be made in the other region"),
    }
}
