//! What ownership stores in metadata.
//!
//! Layout of every value: one byte version ([`VERSION`]), then a protobuf message with the tags below. Unknown fields are
//! ignored, so fields can be added within a version.
//!
//! | key | value | lives |
//! |---|---|---|
//! | `brokers/BROKER` | [`BrokerRecord`] | as long as the broker's session |
//! | `ownership/load/BROKER` | [`LoadRecord`] | as long as the broker's session |
//! | `ownership/leader` | [`LeaderRecord`] | as long as the leader's session |
//! | `ownership/owner/NAMESPACE/RANGE` | [`OwnerRecord`] | until the bundle is cut or its namespace goes |
//! | `ownership/cut/NAMESPACE` | [`CutRecord`], if the bundles differ from those that the namespace was made with | |
//! | `ownership/isolation/NAME` | [`IsolationRecord`] | until it is deleted |
//!
//! Failure: [`RecordError`]; decoders never panic and allocate no more than the value's length allows.
//! Must never know: who reads them.

use crate::bundles::BundleRange;
use bytes::Bytes;
use meridian_types::NamespaceName;
use prost::Message;
use std::collections::BTreeMap;

/// The version written.
pub const VERSION: u8 = 1;
/// Prefix of the brokers that live.
pub const BROKERS: &str = "brokers/";
/// Prefix of everything else.
pub const OWNERSHIP: &str = "ownership/";
/// Who leads.
pub const LEADER: &str = "ownership/leader";
const OWNERS: &str = "ownership/owner/";
const CUTS: &str = "ownership/cut/";
const LOADS: &str = "ownership/load/";
const ISOLATION: &str = "ownership/isolation/";

/// A stored value can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct RecordError {
    /// Where it stands.
    pub key: String,
    /// What is wrong with it.
    pub reason: String,
}

/// An address under which clients reach a broker.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListenerRecord {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `pulsar://host:port`.
    #[prost(string, optional, tag = "2")]
    pub broker_url: Option<String>,
    /// `pulsar+ssl://host:port`.
    #[prost(string, optional, tag = "3")]
    pub broker_url_tls: Option<String>,
}

/// A broker that lives.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BrokerRecord {
    /// `host:port` of its web address, by which Pulsar names brokers.
    #[prost(string, tag = "1")]
    pub id: String,
    /// This life of it: bundles belong to a life, not to a name.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
    /// When it started, ms since 1970.
    #[prost(uint64, tag = "3")]
    pub started_ms: u64,
    /// Its addresses; the first is the default.
    #[prost(message, repeated, tag = "4")]
    pub listeners: Vec<ListenerRecord>,
    /// `http://host:port`.
    #[prost(string, optional, tag = "5")]
    pub web_url: Option<String>,
    /// `https://host:port`.
    #[prost(string, optional, tag = "6")]
    pub web_url_tls: Option<String>,
    /// Labels such as `zone` and `rack`.
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: BTreeMap<String, String>,
    /// Version text.
    #[prost(string, tag = "8")]
    pub version: String,
    /// It is ending or set aside: it is given nothing more.
    #[prost(bool, tag = "9")]
    pub draining: bool,
}

impl BrokerRecord {
    /// The addresses of the named listener, or of the first.
    pub fn listener(&self, name: Option<&str>) -> Option<&ListenerRecord> {
        match name {
            Some(name) => self.listeners.iter().find(|listener| listener.name == name),
            None => self.listeners.first(),
        }
    }
}

/// Who owns a bundle.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OwnerRecord {
    /// The broker's id.
    #[prost(string, tag = "1")]
    pub broker: String,
    /// Its life.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
    /// Grows with every change of the owner, also over splits and merges.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Who hands it over, if it was moved.
    #[prost(string, optional, tag = "4")]
    pub from: Option<String>,
    /// Since when, ms since 1970.
    #[prost(uint64, tag = "5")]
    pub since_ms: u64,
}

/// The bundles of a namespace after splits and merges.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CutRecord {
    /// Boundaries from 0 to `0xffffffff`.
    #[prost(fixed32, repeated, tag = "1")]
    pub boundaries: Vec<u32>,
}

/// Who leads.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LeaderRecord {
    /// The broker's id.
    #[prost(string, tag = "1")]
    pub broker: String,
    /// Its life.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
}

/// What one bundle asks of its broker.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BundleFigures {
    /// Topics loaded.
    #[prost(uint64, tag = "1")]
    pub topics: u64,
    /// Producers and consumers.
    #[prost(uint64, tag = "2")]
    pub clients: u64,
    /// Messages in per second.
    #[prost(uint64, tag = "3")]
    pub messages_in: u64,
    /// Messages out per second.
    #[prost(uint64, tag = "4")]
    pub messages_out: u64,
    /// Bytes in per second.
    #[prost(uint64, tag = "5")]
    pub bytes_in: u64,
    /// Bytes out per second.
    #[prost(uint64, tag = "6")]
    pub bytes_out: u64,
}

/// A bundle with its figures.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BundleLoad {
    /// `TENANT/NAMESPACE`.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// First hash.
    #[prost(fixed32, tag = "2")]
    pub start: u32,
    /// End.
    #[prost(fixed32, tag = "3")]
    pub end: u32,
    /// Its figures.
    #[prost(message, optional, tag = "4")]
    pub figures: Option<BundleFigures>,
}

/// What a broker has to do.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LoadRecord {
    /// Its life.
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
    /// When it was measured, ms since 1970.
    #[prost(uint64, tag = "2")]
    pub at_ms: u64,
    /// CPU used, thousandths of what there is.
    #[prost(uint32, tag = "3")]
    pub cpu_permille: u32,
    /// Memory used, thousandths of what there is.
    #[prost(uint32, tag = "4")]
    pub memory_permille: u32,
    /// Bandwidth used in the busier direction, thousandths of what there is; 0 if that is not known.
    #[prost(uint32, tag = "5")]
    pub bandwidth_permille: u32,
    /// All bundles together.
    #[prost(message, optional, tag = "6")]
    pub total: Option<BundleFigures>,
    /// The busiest bundles, busiest first.
    #[prost(message, repeated, tag = "7")]
    pub bundles: Vec<BundleLoad>,
    /// How many bundles it serves.
    #[prost(uint64, tag = "8")]
    pub bundle_count: u64,
}

/// A rule that keeps namespaces to some brokers. JSON as the admin API has it, so that nothing of it is lost.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct IsolationRecord {
    /// The JSON.
    #[prost(string, tag = "1")]
    pub json: String,
}

/// A bundle by namespace and range.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BundleId {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The range.
    pub range: BundleRange,
}

impl std::fmt::Display for BundleId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.range)
    }
}

/// Version byte and message.
pub fn encode(record: &impl Message) -> Bytes {
    let mut out = Vec::with_capacity(1 + record.encoded_len());
    out.push(VERSION);
    record.encode_raw(&mut out);
    out.into()
}

/// The message behind a version byte.
///
/// # Errors
/// [`RecordError`] if the version is not known or the bytes are no such message.
pub fn decode<R: Message + Default>(key: &str, value: &Bytes) -> Result<R, RecordError> {
    let refuse = |reason: String| RecordError { key: key.to_owned(), reason };
    match value.first() {
        Some(&VERSION) => R::decode(value.slice(1..)).map_err(|error| refuse(error.to_string())),
        Some(version) => Err(refuse(format!("version {version}, known: {VERSION}"))),
        None => Err(refuse("empty".to_owned())),
    }
}

/// Key of a broker.
pub fn broker_key(id: &str) -> String {
    format!("{BROKERS}{id}")
}

/// Key of a broker's load.
pub fn load_key(id: &str) -> String {
    format!("{LOADS}{id}")
}

/// Key of a bundle's owner.
pub fn owner_key(bundle: &BundleId) -> String {
    format!("{OWNERS}{}/{}", bundle.namespace, bundle.range)
}

/// Prefix of the owners of a namespace's bundles.
pub fn owners_of(namespace: &NamespaceName) -> String {
    format!("{OWNERS}{namespace}/")
}

/// Key of a namespace's bundles.
pub fn cut_key(namespace: &NamespaceName) -> String {
    format!("{CUTS}{namespace}")
}

/// Key of an isolation rule.
pub fn isolation_key(name: &str) -> String {
    format!("{ISOLATION}{name}")
}

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A broker.
    Broker(String),
    /// A broker's load.
    Load(String),
    /// Who leads.
    Leader,
    /// A bundle's owner.
    Owner(BundleId),
    /// A namespace's bundles.
    Cut(NamespaceName),
    /// An isolation rule.
    Isolation(String),
}

/// Tells what a key holds; `None` for a key this version does not know.
pub fn kind(key: &str) -> Option<Kind> {
    if let Some(id) = key.strip_prefix(BROKERS) {
        return Some(Kind::Broker(id.to_owned()));
    }
    if let Some(rest) = key.strip_prefix(OWNERS) {
        let (namespace, range) = rest.rsplit_once('/')?;
        let namespace = NamespaceName::parse(namespace).ok()?;
        return Some(Kind::Owner(BundleId { namespace, range: BundleRange::parse(range)? }));
    }
    if let Some(rest) = key.strip_prefix(CUTS) {
        return NamespaceName::parse(rest).ok().map(Kind::Cut);
    }
    if let Some(id) = key.strip_prefix(LOADS) {
        return Some(Kind::Load(id.to_owned()));
    }
    if let Some(name) = key.strip_prefix(ISOLATION) {
        return Some(Kind::Isolation(name.to_owned()));
    }
    (key == LEADER).then_some(Kind::Leader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    fn bundle() -> BundleId {
        BundleId { namespace: NamespaceName::parse("t/n").unwrap(), range: BundleRange { start: 0, end: 0x4000_0000 } }
    }

    #[test]
    fn golden_bytes() {
        let owner = OwnerRecord { broker: "b:1".into(), incarnation: 2, epoch: 3, from: Some("a".into()), since_ms: 4 };
        let expected = [1, 10, 3, b'b', b':', b'1', 17, 2, 0, 0, 0, 0, 0, 0, 0, 24, 3, 34, 1, b'a', 40, 4];
        assert_eq!(&encode(&owner)[..], &expected[..]);
        assert_eq!(decode::<OwnerRecord>("k", &encode(&owner)), Ok(owner));

        let broker = BrokerRecord {
            id: "b".into(),
            incarnation: 1,
            started_ms: 2,
            listeners: vec![ListenerRecord { name: "i".into(), broker_url: Some("p".into()), broker_url_tls: None }],
            web_url: Some("h".into()),
            web_url_tls: None,
            labels: [("z".to_owned(), "1".to_owned())].into(),
            version: "v".into(),
            draining: true,
        };
        let expected = [
            1, 10, 1, b'b', 17, 1, 0, 0, 0, 0, 0, 0, 0, 24, 2, 34, 6, 10, 1, b'i', 18, 1, b'p', 42, 1, b'h', 58, 6, 10,
            1, b'z', 18, 1, b'1', 66, 1, b'v', 72, 1,
        ];
        assert_eq!(&encode(&broker)[..], &expected[..]);
        assert_eq!(decode::<BrokerRecord>("k", &encode(&broker)), Ok(broker));

        let cut = CutRecord { boundaries: vec![0, 1, u32::MAX] };
        assert_eq!(&encode(&cut)[..], &[1, 10, 12, 0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(
            &encode(&LeaderRecord { broker: "b".into(), incarnation: 1 })[..],
            &[1, 10, 1, b'b', 17, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        let figures =
            BundleFigures { topics: 1, clients: 2, messages_in: 3, messages_out: 4, bytes_in: 5, bytes_out: 6 };
        let bundle = BundleLoad { namespace: "t/n".into(), start: 0, end: 1, figures: Some(figures) };
        let load = LoadRecord {
            incarnation: 1,
            at_ms: 2,
            cpu_permille: 3,
            memory_permille: 4,
            bandwidth_permille: 5,
            total: None,
            bundles: vec![bundle],
            bundle_count: 6,
        };
        let expected = [
            1, 9, 1, 0, 0, 0, 0, 0, 0, 0, 16, 2, 24, 3, 32, 4, 40, 5, 58, 24, 10, 3, b't', b'/', b'n', 29, 1, 0, 0, 0,
            34, 12, 8, 1, 16, 2, 24, 3, 32, 4, 40, 5, 48, 6, 64, 6,
        ];
        assert_eq!(&encode(&load)[..], &expected[..]);
    }

    #[test]
    fn keys_tell_what_they_hold() {
        assert_eq!(owner_key(&bundle()), "ownership/owner/t/n/0x00000000_0x40000000");
        assert_eq!(kind(&owner_key(&bundle())), Some(Kind::Owner(bundle())));
        assert_eq!(kind("brokers/h:1"), Some(Kind::Broker("h:1".into())));
        assert_eq!(kind(&load_key("h:1")), Some(Kind::Load("h:1".into())));
        assert_eq!(kind(&cut_key(&bundle().namespace)), Some(Kind::Cut(bundle().namespace)));
        assert_eq!(kind(&isolation_key("p")), Some(Kind::Isolation("p".into())));
        assert_eq!(kind(LEADER), Some(Kind::Leader));
        assert_eq!(kind("ownership/else"), None);
        assert_eq!(kind("ownership/owner/x"), None);
    }

    #[test]
    fn a_later_version_is_refused_by_name() {
        assert!(decode::<OwnerRecord>("k", &Bytes::from_static(&[9])).unwrap_err().to_string().contains("version 9"));
        assert!(decode::<OwnerRecord>("k", &Bytes::new()).is_err());
    }

    proptest! {
        #[test]
        fn decoders_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), key in "\\PC{0,40}") {
            let mut value = vec![VERSION];
            value.extend(bytes);
            let value = Bytes::from(value);
            let _ = decode::<OwnerRecord>("k", &value);
            let _ = decode::<BrokerRecord>("k", &value);
            let _ = decode::<LoadRecord>("k", &value);
            let _ = decode::<CutRecord>("k", &value);
            let _ = kind(&key);
            let _ = kind(&format!("ownership/owner/{key}"));
        }
    }
}
