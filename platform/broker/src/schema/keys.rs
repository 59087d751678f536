//! Metadata keys of schemas, all under one prefix.
//!
//! `schema/{tenant}/{namespace}/{local}/head` holds the latest version; `…/v/{version as 16 hex digits}` one schema each.
//! The topic's domain and partition are no part: all partitions share one schema.

use meridian_types::TopicName;

fn base(topic: &TopicName) -> String {
    let base = topic.base();
    format!("schema/{}/{}", base.namespace(), base.local())
}

pub fn head(topic: &TopicName) -> String {
    format!("{}/head", base(topic))
}

pub fn versions(topic: &TopicName) -> String {
    format!("{}/v/", base(topic))
}

pub fn version(topic: &TopicName, version: u64) -> String {
    format!("{}/v/{version:016x}", base(topic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_partitions_share_a_key() {
        let topic = TopicName::parse("persistent://a/b/c-partition-3").unwrap();
        assert_eq!(head(&topic), "schema/a/b/c/head");
        assert_eq!(version(&topic, 26), "schema/a/b/c/v/000000000000001a");
        assert!(version(&topic, 26).starts_with(&versions(&topic)));
    }
}
