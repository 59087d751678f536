//! The keys of this crate in the metadata store, all under one prefix.
//!
//! | key | value |
//! |---|---|
//! | `failover/active/TENANT/NAMESPACE` | the region's view of who is active, JSON with its version |
//! | `failover/tail/TENANT/NAMESPACE/EPOCH/TOPIC` | a range of messages that a forced switch left behind, JSON with its version |
//!
//! Must never know: what the values hold.

use crate::record::Epoch;
use meridian_types::{NamespaceName, TopicName};

/// All keys of this crate begin with it.
pub const PREFIX: &str = "failover/";
/// Keys of records begin with it.
pub const ACTIVE: &str = "failover/active/";

/// The record of a namespace.
pub fn active(namespace: &NamespaceName) -> String {
    format!("{ACTIVE}{namespace}")
}

/// The namespace of a record's key.
pub fn namespace_of(key: &str) -> Option<NamespaceName> {
    NamespaceName::parse(key.strip_prefix(ACTIVE)?).ok()
}

/// Tails of a namespace begin with it.
pub fn tails_of(namespace: &NamespaceName) -> String {
    format!("{PREFIX}tail/{namespace}/")
}

/// The tail of a topic that the switch to an epoch left behind.
pub fn tail(topic: &TopicName, epoch: Epoch) -> String {
    format!("{}{epoch}/{}", tails_of(&topic.namespace()), topic.local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::RegionId;

    #[test]
    fn golden_keys() {
        let topic = TopicName::parse("persistent://t/n/a-partition-1").unwrap();
        let namespace = topic.namespace();
        assert_eq!(active(&namespace), "failover/active/t/n");
        assert_eq!(namespace_of("failover/active/t/n"), Some(namespace));
        assert_eq!(namespace_of("failover/tail/t/n"), None);
        let epoch = Epoch { counter: 7, region: RegionId(0x0a) };
        assert_eq!(tail(&topic, epoch), "failover/tail/t/n/7-0000000a/a-partition-1");
    }
}
