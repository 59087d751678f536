//! Values as they are stored, in JSON: `{"v":1,"stamp":…,"born":…,"ended":…,"regions":[…],"detached":true,"data":…}`.
//!
//! `stamp` says when and where it was written, `born` when its life began, `ended` when the life before it had begun;
//! `regions` are those that share or shared it; `detached` marks a copy that has left the others and is a local one.
//! What is local has none of these fields, and neither has what was stored before there were any: it counts as older
//! than everything stamped. What was deleted leaves `{"v":1,"stamp":…,"born":…,"regions":[…],"kept_ms":…}` under
//! `tenancy/tombstone/…`, with the time since when it is kept; with `"absent":true` nothing was deleted, but this region
//! has no copy of what others share.
//!
//! Invariants: the version is read before the data; one that is not known here is refused, never guessed.
//! Unknown fields of the data are passed over when read, so that a rolled-back program reads what a newer one wrote as
//! long as the version is one it knows.
//! Failure: [`MetadataError::Corrupt`] with the key.
//! Must never know: which type stands under which key.

use bytes::Bytes;
use meridian_metadata::MetadataError;
use meridian_topology::{ObjectVersion, Stamp};
use meridian_types::RegionId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

const VERSION: u32 = 1;

/// What stands beside the data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    /// When and where it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stamp: Option<Stamp>,
    /// When its life began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) born: Option<Stamp>,
    /// When the life before had begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<Stamp>,
    /// Regions that share it or did so in this life.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) regions: BTreeSet<String>,
    /// A local copy of what others share without this region.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) detached: bool,
}

impl Header {
    /// The version; what has no stamp is the oldest of the own region.
    pub(crate) fn version(&self, own: RegionId) -> ObjectVersion {
        let stamp = self.stamp.unwrap_or(Stamp::unstamped(own));
        ObjectVersion { born: self.born.unwrap_or(Stamp::unstamped(own)), deleted: false, stamp }
    }
}

/// What is left of something deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tombstone {
    v: u32,
    /// When and where it was deleted.
    pub(crate) stamp: Stamp,
    /// When the life had begun that ended.
    pub(crate) born: Stamp,
    /// Regions that shared it.
    #[serde(default)]
    pub(crate) regions: BTreeSet<String>,
    /// Kept since, ms since 1970.
    pub(crate) kept_ms: u64,
    /// Nothing was deleted: others share it, and this region has no copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) absent: bool,
}

impl Tombstone {
    pub(crate) fn new(version: ObjectVersion, regions: BTreeSet<String>, kept_ms: u64) -> Self {
        Self { v: VERSION, stamp: version.stamp, born: version.born, regions, kept_ms, absent: !version.deleted }
    }

    pub(crate) fn version(&self) -> ObjectVersion {
        ObjectVersion { born: self.born, deleted: !self.absent, stamp: self.stamp }
    }

    pub(crate) fn encode(&self, key: &str) -> Result<Bytes, MetadataError> {
        let written = serde_json::to_vec(self);
        written.map(Bytes::from).map_err(|error| MetadataError::Invalid(format!("{key}: {error}")))
    }

    pub(crate) fn decode(key: &str, bytes: &[u8]) -> Result<Self, MetadataError> {
        check_version(key, bytes)?;
        serde_json::from_slice(bytes).map_err(|error| corrupt(key, format!("can't be read: {error}")))
    }
}

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    #[serde(flatten)]
    header: &'a Header,
    data: &'a T,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    data: T,
}

/// All of a record, for the one look that nearly always suffices.
#[derive(Deserialize)]
struct Whole<T> {
    v: u32,
    #[serde(default)]
    stamp: Option<Stamp>,
    #[serde(default)]
    born: Option<Stamp>,
    #[serde(default)]
    ended: Option<Stamp>,
    #[serde(default)]
    regions: BTreeSet<String>,
    #[serde(default)]
    detached: bool,
    data: T,
}

fn corrupt(key: &str, what: String) -> MetadataError {
    MetadataError::Corrupt(format!("record {key} {what}"))
}

fn check_version(key: &str, bytes: &[u8]) -> Result<(), MetadataError> {
    let version: Version =
        serde_json::from_slice(bytes).map_err(|error| corrupt(key, format!("is not one: {error}")))?;
    match version.v {
        VERSION => Ok(()),
        other => Err(corrupt(key, format!("has version {other}, this program knows {VERSION}"))),
    }
}

pub(crate) fn encode<T: Serialize>(key: &str, header: &Header, value: &T) -> Result<Bytes, MetadataError> {
    let written = serde_json::to_vec(&Written { v: VERSION, header, data: value });
    written.map(Bytes::from).map_err(|error| MetadataError::Invalid(format!("{key}: {error}")))
}

pub(crate) fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, MetadataError> {
    check_version(key, bytes)?;
    let read: Read<T> =
        serde_json::from_slice(bytes).map_err(|error| corrupt(key, format!("can't be read: {error}")))?;
    Ok(read.data)
}

pub(crate) fn decode_header(key: &str, bytes: &[u8]) -> Result<Header, MetadataError> {
    check_version(key, bytes)?;
    serde_json::from_slice(bytes).map_err(|error| corrupt(key, format!("can't be read: {error}")))
}

/// As [`decode_header`] and [`decode`], in one look if both can be read.
pub(crate) fn decode_both<T: DeserializeOwned>(
    key: &str,
    bytes: &[u8],
) -> (Result<Header, MetadataError>, Result<T, MetadataError>) {
    match serde_json::from_slice::<Whole<T>>(bytes) {
        Ok(Whole { v: VERSION, stamp, born, ended, regions, detached, data }) => {
            (Ok(Header { stamp, born, ended, regions, detached }), Ok(data))
        }
        // Which part it is, and whether it is the version, is said by a look at each.
        _ => (decode_header(key, bytes), decode(key, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_policy::{PartitionedTopic, Policies, TenantInfo, TopicPolicies};

    fn plain<T: Serialize>(value: &T) -> Bytes {
        encode("k", &Header::default(), value).unwrap()
    }

    #[test]
    fn golden_bytes() {
        let tenant = TenantInfo { admin_roles: ["a".to_owned()].into(), allowed_clusters: ["c".to_owned()].into() };
        let bytes = plain(&tenant);
        assert_eq!(bytes, r#"{"v":1,"data":{"adminRoles":["a"],"allowedClusters":["c"]}}"#);
        assert_eq!(decode::<TenantInfo>("k", &bytes), Ok(tenant));
        assert_eq!(decode_header("k", &bytes), Ok(Header::default()));
        let topic = PartitionedTopic { partitions: 3, ..Default::default() };
        assert_eq!(plain(&topic), r#"{"v":1,"data":{"partitions":3,"deleted":false}}"#);
        assert_eq!(plain(&TopicPolicies::default()), r#"{"v":1,"data":{}}"#);
        let policies = Policies::of_cluster("c", 2).unwrap();
        assert_eq!(decode::<Policies>("k", &plain(&policies)), Ok(policies));
    }

    #[test]
    fn golden_stamped_bytes() {
        let at = |time| Stamp { time, region: RegionId(0xab) };
        let header = Header {
            stamp: Some(at(2)),
            born: Some(at(1)),
            ended: Some(at(0)),
            regions: ["e".to_owned(), "w".to_owned()].into(),
            detached: true,
        };
        let bytes = encode("k", &header, &TopicPolicies::default()).unwrap();
        let golden = r#"{"v":1,"stamp":"0000000000000002-000000ab","born":"0000000000000001-000000ab","ended":"0000000000000000-000000ab","regions":["e","w"],"detached":true,"data":{}}"#;
        assert_eq!(bytes, golden);
        assert_eq!(decode_header("k", &bytes), Ok(header.clone()));
        assert_eq!(decode::<TopicPolicies>("k", &bytes), Ok(TopicPolicies::default()));
        assert_eq!(decode_both("k", &bytes), (Ok(header), Ok(TopicPolicies::default())));
        let version = ObjectVersion { born: at(1), deleted: true, stamp: at(2) };
        let tombstone = Tombstone::new(version, ["e".to_owned()].into(), 7);
        let bytes = tombstone.encode("k").unwrap();
        let golden = r#"{"v":1,"stamp":"0000000000000002-000000ab","born":"0000000000000001-000000ab","regions":["e"],"kept_ms":7}"#;
        assert_eq!(bytes, golden);
        assert_eq!(Tombstone::decode("k", &bytes), Ok(tombstone));
    }

    #[test]
    fn what_has_no_stamp_is_older_than_what_has_one() {
        let old = Header::default().version(RegionId(9));
        let new = Header { stamp: Some(Stamp { time: 1, region: RegionId(1) }), ..Header::default() };
        assert!(new.version(RegionId(9)) > old);
        assert!(old > ObjectVersion::default(), "it is more than nothing");
    }

    #[test]
    fn one_look_says_what_two_say() {
        let records = [
            r#"{"v":1,"data":{}}"#,
            r#"{"v":1,"stamp":"0000000000000002-000000ab","regions":["e"],"later":1,"data":{"adminRoles":["a"],"x":2}}"#,
            r#"{"v":1,"stamp":null,"detached":true,"data":{}}"#,
            r#"{"v":1,"stamp":"x","data":{}}"#,
            r#"{"v":1,"stamp":"0000000000000002-000000ab","data":7}"#,
            r#"{"v":1,"stamp":"0000000000000002-000000ab"}"#,
            r#"{"v":2,"data":{}}"#,
            r#"{"v":2,"data":7}"#,
            "{}",
            "",
        ];
        for record in records {
            let two = (decode_header("k", record.as_bytes()), decode::<TenantInfo>("k", record.as_bytes()));
            assert_eq!(decode_both("k", record.as_bytes()), two, "{record}");
        }
    }

    #[test]
    fn other_versions_and_garbage_are_refused() {
        for bytes in ["", "{}", "[]", r#"{"v":2,"data":{}}"#, r#"{"v":1}"#, r#"{"v":1,"data":7}"#, "\u{1}"] {
            let error = decode::<TenantInfo>("key", bytes.as_bytes()).unwrap_err();
            assert!(matches!(&error, MetadataError::Corrupt(why) if why.contains("key")), "{bytes}: {error}");
            let error = Tombstone::decode("key", bytes.as_bytes()).unwrap_err();
            assert!(matches!(&error, MetadataError::Corrupt(why) if why.contains("key")), "{bytes}: {error}");
        }
        assert!(decode_header("key", br#"{"v":1,"stamp":"x","data":{}}"#).is_err());
        let newer = decode::<TenantInfo>("k", br#"{"v":1,"data":{"later":1},"more":2}"#);
        assert_eq!(newer, Ok(TenantInfo::default()));
    }
}
