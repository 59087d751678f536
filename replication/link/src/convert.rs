//! Between values and messages.
//!
//! Invariants: what goes out comes back the same; what is missing in a message has its least value, which never wins.

use crate::api::{AckDelta, AckOutcome, Applied, OriginMark, TopicPositions};
use crate::proto;
use bytes::Bytes;
use meridian_topology::{Object, ObjectVersion, Stamp, Summary};
use meridian_types::{EntryId, Incarnation, LedgerId, Position, RegionId};

fn stamp_out(stamp: Stamp) -> proto::Stamp {
    proto::Stamp { time: stamp.time, region: stamp.region.0 }
}

fn stamp_in(stamp: Option<proto::Stamp>) -> Stamp {
    stamp.map_or(Stamp::ZERO, |stamp| Stamp { time: stamp.time, region: RegionId(stamp.region) })
}

fn version_out(version: ObjectVersion) -> proto::Version {
    proto::Version {
        born: Some(stamp_out(version.born)),
        deleted: version.deleted,
        stamp: Some(stamp_out(version.stamp)),
    }
}

fn version_in(version: Option<proto::Version>) -> ObjectVersion {
    version.map_or_else(ObjectVersion::default, |version| ObjectVersion {
        born: stamp_in(version.born),
        deleted: version.deleted,
        stamp: stamp_in(version.stamp),
    })
}

pub(crate) fn summary(from: proto::Summary) -> Summary {
    Summary { key: from.key, version: version_in(from.version) }
}

pub(crate) fn summary_out(summary: Summary) -> proto::Summary {
    proto::Summary { key: summary.key, version: Some(version_out(summary.version)) }
}

pub(crate) fn object(from: proto::Object) -> Object {
    Object {
        key: from.key,
        version: version_in(from.version),
        ended: stamp_in(from.ended),
        regions: from.regions.into_iter().collect(),
        value: from.value.to_vec(),
    }
}

pub(crate) fn object_out(object: Object) -> proto::Object {
    proto::Object {
        key: object.key,
        version: Some(version_out(object.version)),
        ended: (object.ended != Stamp::ZERO).then(|| stamp_out(object.ended)),
        regions: object.regions.into_iter().collect(),
        value: Bytes::from(object.value),
    }
}

pub(crate) fn outcome(key: String, applied: Applied) -> proto::Outcome {
    use proto::outcome::Kind;
    let (kind, reason) = match applied {
        Applied::Taken => (Kind::Taken, String::new()),
        Applied::Older => (Kind::Older, String::new()),
        Applied::Later(reason) => (Kind::Later, reason),
        Applied::Refused(reason) => (Kind::Refused, reason),
    };
    proto::Outcome { key, kind: kind.into(), reason }
}

pub(crate) fn applied(outcome: proto::Outcome) -> (String, Applied) {
    use proto::outcome::Kind;
    let applied = match outcome.kind() {
        Kind::Taken => Applied::Taken,
        Kind::Older => Applied::Older,
        Kind::Later => Applied::Later(outcome.reason),
        Kind::Refused | Kind::Unknown => Applied::Refused(outcome.reason),
    };
    (outcome.key, applied)
}

pub(crate) fn delta_out(delta: AckDelta) -> proto::AckUp {
    let AckDelta { token, topic, subscription, full, payload } = delta;
    let delta = proto::AckDelta { token, topic, subscription, full, payload };
    proto::AckUp { kind: Some(proto::ack_up::Kind::Delta(delta)) }
}

pub(crate) fn delta(from: proto::AckDelta) -> AckDelta {
    let proto::AckDelta { token, topic, subscription, full, payload } = from;
    AckDelta { token, topic, subscription, full, payload }
}

pub(crate) fn ack_out(token: u64, outcome: AckOutcome) -> proto::AckDown {
    use proto::ack_down::Kind;
    let (kind, reason) = match outcome {
        AckOutcome::Stored => (Kind::Stored, String::new()),
        AckOutcome::Resync => (Kind::Resync, String::new()),
        AckOutcome::Later(reason) => (Kind::Later, reason),
        AckOutcome::Refused(reason) => (Kind::Refused, reason),
    };
    proto::AckDown { token, kind: kind.into(), reason }
}

pub(crate) fn ack_outcome(from: proto::AckDown) -> (u64, AckOutcome) {
    use proto::ack_down::Kind;
    let outcome = match from.kind() {
        Kind::Stored => AckOutcome::Stored,
        Kind::Resync => AckOutcome::Resync,
        Kind::Later => AckOutcome::Later(from.reason),
        Kind::Refused | Kind::Unknown => AckOutcome::Refused(from.reason),
    };
    (from.token, outcome)
}

fn position_out(position: Position) -> proto::Position {
    proto::Position { ledger_id: position.ledger_id.0, entry_id: position.entry_id.0 }
}

fn position_in(position: &proto::Position) -> Position {
    Position { ledger_id: LedgerId(position.ledger_id), entry_id: EntryId(position.entry_id) }
}

pub(crate) fn positions_out(topic: TopicPositions) -> proto::TopicPositions {
    let mark = |mark: OriginMark| proto::OriginMark {
        region: mark.region.0,
        incarnation: mark.incarnation.0,
        position: Some(position_out(mark.position)),
    };
    proto::TopicPositions {
        topic: topic.topic,
        incarnation: topic.incarnation.0,
        last: topic.last.map(position_out),
        marks: topic.marks.into_iter().map(mark).collect(),
        error: topic.error.unwrap_or_default(),
    }
}

pub(crate) fn positions(from: proto::TopicPositions) -> TopicPositions {
    let marks = from.marks.iter().filter_map(|mark| {
        let position = position_in(mark.position.as_ref()?);
        Some(OriginMark { region: RegionId(mark.region), incarnation: Incarnation(mark.incarnation), position })
    });
    TopicPositions {
        marks: marks.collect(),
        topic: from.topic,
        incarnation: Incarnation(from.incarnation),
        last: from.last.as_ref().map(position_in),
        error: Some(from.error).filter(|error| !error.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn golden_object() {
        let at = |time| Stamp { time, region: RegionId(1) };
        let version = ObjectVersion { born: at(2), deleted: true, stamp: at(3) };
        let sent =
            Object { key: "k".into(), version, ended: Stamp::ZERO, regions: ["w".to_owned()].into(), value: vec![9] };
        let bytes = object_out(sent.clone()).encode_to_vec();
        let golden: &[u8] = &[
            10, 1, b'k', 18, 34, 10, 14, 9, 2, 0, 0, 0, 0, 0, 0, 0, 21, 1, 0, 0, 0, 16, 1, 26, 14, 9, 3, 0, 0, 0, 0, 0,
            0, 0, 21, 1, 0, 0, 0, 26, 1, b'w', 34, 1, 9,
        ];
        assert_eq!(bytes, golden);
        assert_eq!(object(proto::Object::decode(golden).unwrap()), sent);
    }

    #[test]
    fn outcomes_and_positions_both_ways() {
        for sent in [Applied::Taken, Applied::Older, Applied::Later("l".into()), Applied::Refused("r".into())] {
            assert_eq!(applied(outcome("k".into(), sent.clone())), ("k".into(), sent));
        }
        for sent in [AckOutcome::Stored, AckOutcome::Resync, AckOutcome::Later("l".into())] {
            assert_eq!(ack_outcome(ack_out(7, sent.clone())), (7, sent));
        }
        assert_eq!(ack_outcome(proto::AckDown::default()).1, AckOutcome::Refused(String::new()));
        let position = Position { ledger_id: LedgerId(4), entry_id: EntryId(5) };
        let mark = OriginMark { region: RegionId(1), incarnation: Incarnation(2), position };
        let sent = TopicPositions {
            topic: "t".into(),
            incarnation: Incarnation(3),
            last: Some(position),
            marks: vec![mark],
            error: None,
        };
        assert_eq!(positions(positions_out(sent.clone())), sent);
        assert_eq!(version_in(None), ObjectVersion::default());
    }
}
