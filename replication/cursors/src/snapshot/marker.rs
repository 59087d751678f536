//! Bodies of the markers of replicated subscriptions, as Pulsar's protocol defines them (protobuf).
//!
//! | type | message | fields |
//! |---|---|---|
//! | 10 | request | 1 snapshot id, 2 cluster that asks |
//! | 11 | response | 1 snapshot id, 2 cluster and its position |
//! | 12 | snapshot | 1 snapshot id, 2 local position, 3 (repeated) clusters and their positions |
//! | 13 | update | 1 subscription, 2 (repeated) clusters and their positions |
//!
//! A cluster with its position: 1 cluster, 2 position; a position: 1 ledger, 2 entry.
//! Invariants: unknown fields are skipped; of a repeated single field the last counts.
//! Failure: [`MarkerError`]; decoders never panic and allocate no more than a small multiple of the bytes given.

use crate::varint::{put, take, take_bytes};
use meridian_types::{Classify, ErrorClass, Position};

/// The producer's name in the metadata of a marker.
pub const MARKER_PRODUCER: &str = "pulsar.marker";

/// The kinds, by the number that stands in the metadata's `marker_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MarkerType {
    /// Where are you?
    Request,
    /// Here.
    Response,
    /// A mapping of positions.
    Snapshot,
    /// Where a subscription stands.
    Update,
}

impl MarkerType {
    /// The number.
    pub fn number(self) -> i32 {
        match self {
            MarkerType::Request => 10,
            MarkerType::Response => 11,
            MarkerType::Snapshot => 12,
            MarkerType::Update => 13,
        }
    }

    /// The kind of a number; `None` for markers that have nothing to do with subscriptions.
    pub fn of(number: i32) -> Option<Self> {
        [MarkerType::Request, MarkerType::Response, MarkerType::Snapshot, MarkerType::Update]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// A position in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPosition {
    /// The cluster.
    pub cluster: String,
    /// The position there.
    pub position: Position,
}

/// A marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// See [`MarkerType::Request`].
    Request {
        /// Given back in the responses.
        snapshot_id: String,
        /// Who asks.
        source_cluster: String,
    },
    /// See [`MarkerType::Response`].
    Response {
        /// Of the request.
        snapshot_id: String,
        /// Who answers, with its last position.
        cluster: ClusterPosition,
    },
    /// See [`MarkerType::Snapshot`].
    Snapshot {
        /// Its id.
        snapshot_id: String,
        /// The position in the topic that holds this marker.
        local: Position,
        /// The same place in other clusters.
        clusters: Vec<ClusterPosition>,
    },
    /// See [`MarkerType::Update`].
    Update {
        /// The subscription.
        subscription: String,
        /// Everything up to there is acknowledged.
        clusters: Vec<ClusterPosition>,
    },
}

/// Why bytes are no marker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// Not a kind that belongs here.
    #[error("marker type {0} is not one of replicated subscriptions")]
    Type(i32),
    /// No protobuf.
    #[error("a marker's body is no protobuf message")]
    Malformed,
    /// A field that has to be there is not.
    #[error("a marker has no {0}")]
    Missing(&'static str),
}

impl Classify for MarkerError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Corrupt
    }
}

impl Marker {
    /// Its kind.
    pub fn kind(&self) -> MarkerType {
        match self {
            Marker::Request { .. } => MarkerType::Request,
            Marker::Response { .. } => MarkerType::Response,
            Marker::Snapshot { .. } => MarkerType::Snapshot,
            Marker::Update { .. } => MarkerType::Update,
        }
    }

    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Marker::Request { snapshot_id, source_cluster } => {
                put_bytes(&mut out, 1, snapshot_id.as_bytes());
                put_bytes(&mut out, 2, source_cluster.as_bytes());
            }
            Marker::Response { snapshot_id, cluster } => {
                put_bytes(&mut out, 1, snapshot_id.as_bytes());
                put_bytes(&mut out, 2, &cluster_bytes(cluster));
            }
            Marker::Snapshot { snapshot_id, local, clusters } => {
                put_bytes(&mut out, 1, snapshot_id.as_bytes());
                put_bytes(&mut out, 2, &position_bytes(*local));
                clusters.iter().for_each(|cluster| put_bytes(&mut out, 3, &cluster_bytes(cluster)));
            }
            Marker::Update { subscription, clusters } => {
                put_bytes(&mut out, 1, subscription.as_bytes());
                clusters.iter().for_each(|cluster| put_bytes(&mut out, 2, &cluster_bytes(cluster)));
            }
        }
        out
    }

    /// Reads the body of a marker whose type stands in the metadata.
    ///
    /// # Errors
    /// [`MarkerError`].
    pub fn decode(marker_type: i32, body: &[u8]) -> Result<Self, MarkerError> {
        let kind = MarkerType::of(marker_type).ok_or(MarkerError::Type(marker_type))?;
        let (mut name, mut source, mut local) = (None, None, None);
        let mut clusters = Vec::new();
        each_field(body, |number, value| {
            match (number, value) {
                (1, Value::Bytes(bytes)) => name = Some(text(bytes)?),
                (2, Value::Bytes(bytes)) => match kind {
                    MarkerType::Request => source = Some(text(bytes)?),
                    MarkerType::Response => clusters = vec![cluster(bytes)?],
                    MarkerType::Snapshot => local = Some(position(bytes)?),
                    MarkerType::Update => clusters.push(cluster(bytes)?),
                },
                (3, Value::Bytes(bytes)) if kind == MarkerType::Snapshot => clusters.push(cluster(bytes)?),
                _ => {}
            }
            Ok(())
        })?;
        let name = name.ok_or(MarkerError::Missing("id or subscription"))?;
        Ok(match kind {
            MarkerType::Request => Marker::Request {
                snapshot_id: name,
                source_cluster: source.ok_or(MarkerError::Missing("source cluster"))?,
            },
            MarkerType::Response => {
                Marker::Response { snapshot_id: name, cluster: clusters.pop().ok_or(MarkerError::Missing("cluster"))? }
            }
            MarkerType::Snapshot => Marker::Snapshot {
                snapshot_id: name,
                local: local.ok_or(MarkerError::Missing("local position"))?,
                clusters,
            },
            MarkerType::Update => Marker::Update { subscription: name, clusters },
        })
    }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

fn each_field<'a>(
    mut bytes: &'a [u8],
    mut field: impl FnMut(u64, Value<'a>) -> Result<(), MarkerError>,
) -> Result<(), MarkerError> {
    let raw = &mut bytes;
    while !raw.is_empty() {
        let tag = take(raw).ok_or(MarkerError::Malformed)?;
        let value = match tag & 7 {
            0 => take(raw).map(Value::Number),
            1 => take_bytes(raw, 8).map(|_| Value::Other),
            2 => take(raw)
                .and_then(|len| usize::try_from(len).ok())
                .and_then(|len| take_bytes(raw, len))
                .map(Value::Bytes),
            5 => take_bytes(raw, 4).map(|_| Value::Other),
            _ => None,
        };
        field(tag >> 3, value.ok_or(MarkerError::Malformed)?)?;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<String, MarkerError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| MarkerError::Malformed)
}

fn cluster(bytes: &[u8]) -> Result<ClusterPosition, MarkerError> {
    let (mut cluster, mut at) = (None, None);
    each_field(bytes, |number, value| {
        match (number, value) {
            (1, Value::Bytes(bytes)) => cluster = Some(text(bytes)?),
            (2, Value::Bytes(bytes)) => at = Some(position(bytes)?),
            _ => {}
        }
        Ok(())
    })?;
    let cluster = cluster.ok_or(MarkerError::Missing("cluster"))?;
    Ok(ClusterPosition { cluster, position: at.ok_or(MarkerError::Missing("position"))? })
}

fn position(bytes: &[u8]) -> Result<Position, MarkerError> {
    let (mut ledger, mut entry) = (None, None);
    each_field(bytes, |number, value| {
        match (number, value) {
            (1, Value::Number(value)) => ledger = Some(value as i64),
            (2, Value::Number(value)) => entry = Some(value as i64),
            _ => {}
        }
        Ok(())
    })?;
    let ledger = ledger.ok_or(MarkerError::Missing("ledger"))?;
    Ok(Position::new(ledger, entry.ok_or(MarkerError::Missing("entry"))?))
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put(out, number << 3 | 2);
    put(out, bytes.len() as u64);
    out.extend(bytes);
}

fn position_bytes(position: Position) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, 1 << 3);
    put(&mut out, position.ledger_id.0 as u64);
    put(&mut out, 2 << 3);
    put(&mut out, position.entry_id.0 as u64);
    out
}

fn cluster_bytes(cluster: &ClusterPosition) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, cluster.cluster.as_bytes());
    put_bytes(&mut out, 2, &position_bytes(cluster.position));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(cluster: &str, ledger: i64, entry: i64) -> ClusterPosition {
        ClusterPosition { cluster: cluster.to_owned(), position: Position::new(ledger, entry) }
    }

    #[test]
    fn golden_bytes() {
        let request = Marker::Request { snapshot_id: "i".into(), source_cluster: "us".into() };
        assert_eq!(request.encode(), b"\x0a\x01i\x12\x02us");
        let response = Marker::Response { snapshot_id: "i".into(), cluster: of("e", 5, 300) };
        assert_eq!(response.encode(), b"\x0a\x01i\x12\x0a\x0a\x01e\x12\x05\x08\x05\x10\xac\x02");
        let snapshot =
            Marker::Snapshot { snapshot_id: "i".into(), local: Position::new(1, 2), clusters: vec![of("e", 3, 4)] };
        assert_eq!(snapshot.encode(), b"\x0a\x01i\x12\x04\x08\x01\x10\x02\x1a\x09\x0a\x01e\x12\x04\x08\x03\x10\x04");
        let update = Marker::Update { subscription: "s".into(), clusters: vec![of("e", 3, 4), of("w", 5, -1)] };
        let raw = update.encode();
        assert_eq!(&raw[..14], b"\x0a\x01s\x12\x09\x0a\x01e\x12\x04\x08\x03\x10\x04");
        for marker in [request, response, snapshot, update] {
            assert_eq!(Marker::decode(marker.kind().number(), &marker.encode()), Ok(marker));
        }
    }

    #[test]
    fn faults_have_names() {
        assert_eq!(Marker::decode(20, &[]), Err(MarkerError::Type(20)));
        assert_eq!(Marker::decode(13, &[]), Err(MarkerError::Missing("id or subscription")));
        assert_eq!(Marker::decode(10, b"\x0a\x01i"), Err(MarkerError::Missing("source cluster")));
        assert_eq!(Marker::decode(11, b"\x0a\x01i\x12\x03\x0a\x01e"), Err(MarkerError::Missing("position")));
        assert_eq!(Marker::decode(11, b"\x0a\x05i"), Err(MarkerError::Malformed));
        // Fields of a later version are skipped.
        assert!(Marker::decode(13, b"\x0a\x01s\x38\x05\x42\x01x\x41abcdefgh\x4dabcd").is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 9..14i32, raw in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Marker::decode(kind, &raw);
        }

        #[test]
        fn markers_go_both_ways(name in ".{0,12}", clusters in proptest::collection::vec((".{0,6}", any::<i64>(), any::<i64>()), 0..4)) {
            let clusters: Vec<_> = clusters.iter().map(|(cluster, ledger, entry)| of(cluster, *ledger, *entry)).collect();
            let local = Position::new(3, 4);
            let snapshot = Marker::Snapshot { snapshot_id: name.clone(), local, clusters: clusters.clone() };
            prop_assert_eq!(Marker::decode(12, &snapshot.encode()), Ok(snapshot));
            let update = Marker::Update { subscription: name, clusters };
            prop_assert_eq!(Marker::decode(13, &update.encode()), Ok(update));
        }
    }
}
