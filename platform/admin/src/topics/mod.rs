//! Topics of both domains: life, figures, subscriptions, messages, policies.
//!
//! A call on a partitioned topic is a call on each partition wherever that has a meaning.

mod life;
mod messages;
mod partitions;
mod permissions;
pub mod policies;
mod replication;
mod restore;
pub mod stats;
mod subscriptions;

use crate::state::AdminState;
use axum::Router;

const NAMESPACE: &str = "/admin/v2/{domain}/{tenant}/{namespace}";
const TOPIC: &str = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}";

/// The path of something of a topic.
fn of_topic(rest: &str) -> String {
    format!("{TOPIC}{rest}")
}

pub fn routes() -> Router<AdminState> {
    Router::new()
        .merge(life::routes())
        .merge(restore::routes())
        .merge(partitions::routes())
        .merge(stats::routes())
        .merge(subscriptions::routes())
        .merge(messages::routes())
        .merge(permissions::routes())
        .merge(policies::routes())
}
