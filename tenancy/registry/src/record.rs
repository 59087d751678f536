//! Values as they are stored: `{"v":1,"data":…}` in JSON.
//!
//! Invariants: the version is read before the data; one that is not known here is refused, never guessed.
//! Unknown fields of the data are passed over when read, so that a rolled-back program reads what a newer one wrote as
//! long as the version is one it knows.
//! Failure: [`MetadataError::Corrupt`] with the key.
//! Must never know: which type stands under which key.

use bytes::Bytes;
use meridian_metadata::MetadataError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    data: &'a T,
}

#[derive(Deserialize)]
struct Head {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    data: T,
}

pub(crate) fn encode<T: Serialize>(key: &str, value: &T) -> Result<Bytes, MetadataError> {
    let written = serde_json::to_vec(&Written { v: VERSION, data: value });
    written.map(Bytes::from).map_err(|error| MetadataError::Invalid(format!("{key}: {error}")))
}

pub(crate) fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, MetadataError> {
    let corrupt = |what: String| MetadataError::Corrupt(format!("record {key} {what}"));
    let head: Head = serde_json::from_slice(bytes).map_err(|error| corrupt(format!("is not one: {error}")))?;
    if head.v != VERSION {
        return Err(corrupt(format!("has version {}, this program knows {VERSION}", head.v)));
    }
    let read: Read<T> = serde_json::from_slice(bytes).map_err(|error| corrupt(format!("can't be read: {error}")))?;
    Ok(read.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_policy::{PartitionedTopic, Policies, TenantInfo, TopicPolicies};

    #[test]
    fn golden_bytes() {
        let tenant = TenantInfo { admin_roles: ["a".to_owned()].into(), allowed_clusters: ["c".to_owned()].into() };
        let bytes = encode("k", &tenant).unwrap();
        assert_eq!(bytes, r#"{"v":1,"data":{"adminRoles":["a"],"allowedClusters":["c"]}}"#);
        assert_eq!(decode::<TenantInfo>("k", &bytes), Ok(tenant));
        let topic = PartitionedTopic { partitions: 3, ..Default::default() };
        assert_eq!(encode("k", &topic).unwrap(), r#"{"v":1,"data":{"partitions":3,"deleted":false}}"#);
        assert_eq!(encode("k", &TopicPolicies::default()).unwrap(), r#"{"v":1,"data":{}}"#);
        let policies = Policies::of_cluster("c", 2).unwrap();
        let bytes = encode("k", &policies).unwrap();
        assert_eq!(decode::<Policies>("k", &bytes), Ok(policies));
    }

    #[test]
    fn other_versions_and_garbage_are_refused() {
        for bytes in ["", "{}", "[]", r#"{"v":2,"data":{}}"#, r#"{"v":1}"#, r#"{"v":1,"data":7}"#, "\u{1}"] {
            let error = decode::<TenantInfo>("key", bytes.as_bytes()).unwrap_err();
            assert!(matches!(&error, MetadataError::Corrupt(why) if why.contains("key")), "{bytes}: {error}");
        }
        let newer = decode::<TenantInfo>("k", br#"{"v":1,"data":{"later":1},"more":2}"#);
        assert_eq!(newer, Ok(TenantInfo::default()));
    }
}
