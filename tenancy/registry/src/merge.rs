//! How a record of another region is taken over: pure functions over JSON, so that fields that only a newer program knows
//! survive.
//!
//! Invariants: what each region has for itself stays; what may only grow never shrinks; a region that still has namespaces
//! of a tenant stays allowed. Where the own side adds something the result gets a stamp of its own and travels back.
//! Failure: a sentence.
//! Must never know: versions, the store.

use crate::keys::Key;
use crate::schemas::SharedSchemas;
use crate::shared::LOCAL_FIELDS;
use meridian_policy::{PartitionedTopic, Policies, TenantInfo, TopicPolicies};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What is stored.
#[derive(Debug, PartialEq)]
pub(crate) struct Merged {
    pub(crate) data: Value,
    /// Something of the own side is in it that the other does not have.
    pub(crate) adds: bool,
}

/// What is known of the own side.
pub(crate) struct Here<'a> {
    pub(crate) own: &'a str,
    /// The record as it is, if it is of the same life or none of its lives has ended.
    pub(crate) data: Option<&'a Value>,
    /// The tenant has namespaces here.
    pub(crate) in_use: bool,
}

fn readable<T: DeserializeOwned>(data: &Value) -> Result<T, String> {
    if !data.is_object() {
        return Err("it is no object".to_owned());
    }
    T::deserialize(data).map_err(|error| format!("it can't be read: {error}"))
}

/// The record to store.
pub(crate) fn merge(key: &Key, here: &Here<'_>, incoming: Value) -> Result<Merged, String> {
    match key {
        Key::Tenant(_) => merge_tenant(here, incoming),
        Key::Namespace(_) => {
            readable::<Policies>(&incoming)?;
            Ok(Merged { data: keep_local_fields(here.data, incoming), adds: false })
        }
        Key::Partitioned(_) => {
            let theirs: PartitionedTopic = readable(&incoming)?;
            let ours = here.data.and_then(|data| readable::<PartitionedTopic>(data).ok());
            let mut data = incoming;
            let more = ours.map(|ours| ours.partitions).filter(|ours| *ours > theirs.partitions);
            if let Some(more) = more {
                data["partitions"] = more.into();
            }
            Ok(Merged { data, adds: more.is_some() })
        }
        Key::TopicPolicies(_) => {
            readable::<TopicPolicies>(&incoming)?;
            Ok(Merged { data: incoming, adds: false })
        }
        Key::Schemas(_) => {
            let mut all: SharedSchemas = readable(&incoming)?;
            let ours = here.data.and_then(|data| readable::<SharedSchemas>(data).ok()).unwrap_or_default();
            let adds = all.add(&ours.schemas);
            let data = if adds { serde_json::to_value(&all).map_err(|error| error.to_string())? } else { incoming };
            Ok(Merged { data, adds })
        }
        Key::Cluster(_) | Key::Ended(_) => Err("records of this kind do not travel".to_owned()),
    }
}

fn merge_tenant(here: &Here<'_>, incoming: Value) -> Result<Merged, String> {
    let theirs: TenantInfo = readable(&incoming)?;
    let allowed_here = here.data.and_then(|data| readable::<TenantInfo>(data).ok());
    let allowed_here = allowed_here.is_some_and(|tenant| tenant.allowed_clusters.contains(here.own));
    let adds = here.in_use && allowed_here && !theirs.allowed_clusters.contains(here.own);
    let mut data = incoming;
    if adds {
        let mut allowed = theirs.allowed_clusters;
        allowed.insert(here.own.to_owned());
        data["allowedClusters"] = allowed.into_iter().collect();
    }
    Ok(Merged { data, adds })
}

fn keep_local_fields(here: Option<&Value>, mut incoming: Value) -> Value {
    let (Some(fields), here) = (incoming.as_object_mut(), here.and_then(Value::as_object)) else { return incoming };
    for field in LOCAL_FIELDS {
        match here.and_then(|here| here.get(field)) {
            Some(kept) => drop(fields.insert(field.to_owned(), kept.clone())),
            // Bundles of the other region are a good beginning.
            None if field == LOCAL_FIELDS[0] && here.is_none() => {}
            None => drop(fields.remove(field)),
        }
    }
    incoming
}

/// The own copy of a namespace that the others share without this region from now on.
pub(crate) fn detach(own: &str, mut data: Value) -> Value {
    data["replication_clusters"] = Value::from(vec![own]);
    data["allowed_clusters"] = Value::Array(Vec::new());
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::{NamespaceName, TopicName};
    use serde_json::json;

    fn here<'a>(data: Option<&'a Value>, in_use: bool) -> Here<'a> {
        Here { own: "east", data, in_use }
    }

    #[test]
    fn a_namespace_keeps_what_each_region_has_for_itself() {
        let key = Key::Namespace(NamespaceName::parse("t/n").unwrap());
        let ours = json!({"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
            "bookieAffinityGroup": {"bookkeeperAffinityGroupPrimary": "a"}, "message_ttl_in_seconds": 1});
        let theirs = json!({"replication_clusters": ["east", "west"], "antiAffinityGroup": "w", "later": 7,
            "bundles": {"boundaries": [], "numBundles": 9}, "message_ttl_in_seconds": 2});
        let merged = merge(&key, &here(Some(&ours), false), theirs.clone()).unwrap().data;
        assert_eq!(merged["bundles"], ours["bundles"]);
        assert_eq!(merged["bookieAffinityGroup"], ours["bookieAffinityGroup"]);
        assert_eq!(merged.get("antiAffinityGroup"), None);
        assert_eq!((&merged["message_ttl_in_seconds"], &merged["later"]), (&json!(2), &json!(7)));
        let fresh = merge(&key, &here(None, false), theirs).unwrap().data;
        assert_eq!((fresh["bundles"]["numBundles"].clone(), fresh.get("antiAffinityGroup")), (json!(9), None));
        assert!(merge(&key, &here(None, false), json!([])).is_err());
    }

    #[test]
    fn a_region_with_namespaces_stays_allowed() {
        let key = Key::Tenant("t".into());
        let ours = json!({"allowedClusters": ["east"]});
        let theirs = json!({"adminRoles": ["r"], "allowedClusters": ["west"]});
        let merged = merge(&key, &here(Some(&ours), true), theirs.clone()).unwrap();
        assert_eq!(
            merged,
            Merged { data: json!({"adminRoles": ["r"], "allowedClusters": ["east", "west"]}), adds: true }
        );
        let merged = merge(&key, &here(Some(&ours), false), theirs.clone()).unwrap();
        assert_eq!(merged, Merged { data: theirs, adds: false });
    }

    #[test]
    fn schemas_become_the_union() {
        let key = Key::Schemas(TopicName::parse("t/n/x").unwrap());
        let schema = |data: &str| json!({"kind": 4, "data": data, "properties": {}});
        let (ours, theirs) = (json!({"schemas": [schema("a"), schema("b")]}), json!({"schemas": [schema("b")]}));
        let merged = merge(&key, &here(Some(&ours), false), theirs.clone()).unwrap();
        assert_eq!(merged, Merged { data: json!({"schemas": [schema("b"), schema("a")]}), adds: true });
        let merged = merge(&key, &here(Some(&theirs), false), ours.clone()).unwrap();
        assert_eq!(merged, Merged { data: ours, adds: false });
    }

    #[test]
    fn partitions_only_grow() {
        let key = Key::Partitioned(TopicName::parse("t/n/x").unwrap());
        let (ours, theirs) = (json!({"partitions": 4}), json!({"partitions": 3}));
        let merged = merge(&key, &here(Some(&ours), false), theirs.clone()).unwrap();
        assert_eq!(merged, Merged { data: json!({"partitions": 4}), adds: true });
        let merged = merge(&key, &here(Some(&theirs), false), ours.clone()).unwrap();
        assert_eq!(merged, Merged { data: ours, adds: false });
    }
}
