//! The keys of this crate in the metadata store.
//!
//! | key | value |
//! |---|---|
//! | `quotas/limit/PLACE` | the limits of a place |
//! | `quotas/lease/LIMIT/PLACE` | who holds how much of a limit |
//! | `quotas/usage/TENANT/HOUR/BROKER` | what a tenant used in an hour (since 1970, ten digits) at a broker |
//! | `quotas/stored/T/N/DOMAIN/TOPIC` | what a topic has stored |
//!
//! PLACE is `cluster`, `tenant/T`, `namespace/T/N`, `topic/T/N/DOMAIN/TOPIC` or `group/NAME`.
//!
//! Invariants: a key that was made here is parsed back to the same; others are passed over.

use meridian_policy::quota::{Limit, Place};
use meridian_types::{NamespaceName, TopicName};

/// Keys of limits begin with it.
pub(crate) const LIMITS: &str = "quotas/limit/";
/// Keys of leases begin with it.
const LEASES: &str = "quotas/lease/";
/// Keys of usage begin with it.
pub(crate) const USAGE: &str = "quotas/usage/";
/// Keys of what topics have stored begin with it.
pub(crate) const STORED: &str = "quotas/stored/";

pub(crate) fn place_path(place: &Place) -> String {
    match place {
        Place::Cluster => "cluster".to_owned(),
        Place::Tenant(name) => format!("tenant/{name}"),
        Place::Namespace(name) => format!("namespace/{name}"),
        Place::Topic(name) => format!("topic/{}", topic_path(name)),
        Place::Group(name) => format!("group/{name}"),
    }
}

fn topic_path(name: &TopicName) -> String {
    format!("{}/{}/{}", name.namespace(), name.domain().as_str(), name.local())
}

fn parse_topic_path(path: &str) -> Option<TopicName> {
    let mut parts = path.splitn(4, '/');
    let (tenant, namespace, domain, local) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{local}")).ok()
}

pub(crate) fn stored(topic: &TopicName) -> String {
    format!("{STORED}{}", topic_path(topic))
}

pub(crate) fn parse_stored(key: &str) -> Option<TopicName> {
    parse_topic_path(key.strip_prefix(STORED)?)
}

pub(crate) fn limits(place: &Place) -> String {
    format!("{LIMITS}{}", place_path(place))
}

pub(crate) fn lease(limit: Limit, place: &Place) -> String {
    format!("{LEASES}{limit}/{}", place_path(place))
}

pub(crate) fn usage(tenant: &str, hour: u64, broker: &str) -> String {
    format!("{USAGE}{tenant}/{hour:010}/{broker}")
}

pub(crate) fn usage_of(tenant: &str) -> String {
    format!("{USAGE}{tenant}/")
}

/// The hour and broker in a key of usage.
pub(crate) fn parse_usage(key: &str) -> Option<(u64, &str)> {
    let mut parts = key.strip_prefix(USAGE)?.splitn(3, '/').skip(1);
    Some((parts.next()?.parse().ok()?, parts.next()?))
}

pub(crate) fn parse_limits(key: &str) -> Option<Place> {
    let path = key.strip_prefix(LIMITS)?;
    let (kind, rest) = path.split_once('/').unwrap_or((path, ""));
    match (kind, rest) {
        ("cluster", "") => Some(Place::Cluster),
        ("tenant", name) if !name.is_empty() && !name.contains('/') => Some(Place::Tenant(name.to_owned())),
        ("namespace", name) => NamespaceName::parse(name).ok().map(Place::Namespace),
        ("group", name) if !name.is_empty() => Some(Place::Group(name.to_owned())),
        ("topic", rest) => parse_topic_path(rest).map(Place::Topic),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_keys_both_ways() {
        let topic = TopicName::parse("non-persistent://t/n/a b%").unwrap();
        let places = [
            (Place::Cluster, "quotas/limit/cluster"),
            (Place::Tenant("t".into()), "quotas/limit/tenant/t"),
            (Place::Namespace(topic.namespace()), "quotas/limit/namespace/t/n"),
            (Place::Topic(topic), "quotas/limit/topic/t/n/non-persistent/a b%"),
            (Place::Group("g".into()), "quotas/limit/group/g"),
        ];
        for (place, key) in places {
            assert_eq!(limits(&place), key);
            assert_eq!(parse_limits(key), Some(place.clone()));
            let lease = lease(Limit::Producers, &place);
            assert_eq!(lease, key.replace("quotas/limit/", "quotas/lease/producers/"));
        }
        for unknown in ["quotas/limit/", "quotas/limit/tenant/", "quotas/limit/tenant/a/b", "quotas/limit/x/y", "other"]
        {
            assert_eq!(parse_limits(unknown), None, "{unknown}");
        }
        let partition = TopicName::parse("persistent://t/n/a b%-partition-3").unwrap();
        assert_eq!(stored(&partition), "quotas/stored/t/n/persistent/a b%-partition-3");
        assert_eq!(parse_stored(&stored(&partition)), Some(partition));
        assert_eq!(parse_stored("quotas/stored/t/n/persistent"), None);
        assert_eq!(usage("t", 42, "b/1"), "quotas/usage/t/0000000042/b/1");
        assert_eq!(parse_usage("quotas/usage/t/0000000042/b/1"), Some((42, "b/1")));
        assert!(usage("t", 42, "b").starts_with(&usage_of("t")) && !usage("tt", 42, "b").starts_with(&usage_of("t")));
    }
}
