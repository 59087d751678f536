//! What a topic that keeps nothing hands over for other regions.

use bytes::Bytes;

/// Takes copies of what a topic that keeps nothing publishes. Called under the topic's lock: does not wait, does not call
/// back.
pub trait LiveTap: Send + Sync {
    /// A run of entries of tenants' producers in their order: the client's bytes, and how many messages they are.
    fn offer(&self, run: &[(Bytes, u32)]);
}
