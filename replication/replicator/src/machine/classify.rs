//! What becomes of an entry: sent, or not and why.
//!
//! Invariants: C1 what came from elsewhere is never forwarded (full mesh, one hop), whether its metadata or its envelope
//! says so; C2 every entry that is not sent has a named reason.
//! Source of the order of the rules: semantics of the upstream replicator.
//! Must never know: peers, cursors, time.

use bytes::Bytes;
use meridian_managed_ledger::LogEntry;
use meridian_types::RegionId;
use meridian_wire::metadata::{MetadataSummary, replicate_to};
use meridian_wire::payload::split;

/// Kinds of replicated-subscription markers: request, response, snapshot, update.
const SUBSCRIPTION_MARKERS: std::ops::RangeInclusive<i32> = 10..=13;
/// The one of them that is for the region that wrote it.
const SNAPSHOT_MARKER: i32 = 12;

/// What a SEND needs to know of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sendable {
    /// As in the metadata.
    pub sequence_id: u64,
    /// As in the metadata.
    pub highest_sequence_id: Option<u64>,
    /// A replicated-subscription marker.
    pub marker: bool,
    /// A part of a chunked message.
    pub chunk: bool,
    /// It was part of a transaction.
    pub transactional: bool,
    /// The local version of its schema.
    pub schema_version: Option<Bytes>,
    /// Not to be delivered before, ms since 1970.
    pub deliver_at_ms: Option<u64>,
}

/// Why an entry is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skip {
    /// It came from another region.
    Foreign,
    /// It came from the remote of this link and is for the controller of subscriptions.
    RemoteMarker(i32),
    /// Brokers wrote it for this region only.
    LocalMarker,
    /// It names other regions as its targets.
    NotTargeted,
    /// It outlived its time before it could be sent.
    Expired,
    /// Its bytes are no message.
    Undecodable(String),
}

/// See [`classify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// To be sent.
    Send(Sendable),
    /// To be passed over.
    Skip(Skip),
}

/// Decides over one entry of a log in region `local` on the link to `remote`.
pub fn classify(entry: &LogEntry, local: RegionId, remote: &str) -> Verdict {
    let parts = match split(&entry.payload) {
        Ok(parts) => parts,
        Err(error) => return Verdict::Skip(undecodable(entry, error.to_string())),
    };
    let summary = match MetadataSummary::decode(parts.metadata) {
        Ok(summary) => summary,
        Err(error) => return Verdict::Skip(undecodable(entry, error.to_string())),
    };
    let foreign = summary.replicated_from.is_some() || entry.origin.0 != local;
    match summary.marker_type {
        Some(kind) if !SUBSCRIPTION_MARKERS.contains(&kind) => return Verdict::Skip(Skip::LocalMarker),
        Some(kind) if summary.replicated_from == Some(remote) && kind != SNAPSHOT_MARKER => {
            return Verdict::Skip(Skip::RemoteMarker(kind));
        }
        None if entry.marker => return Verdict::Skip(Skip::LocalMarker),
        _ => {}
    }
    if foreign {
        return Verdict::Skip(Skip::Foreign);
    }
    if summary.replicate_to_count > 0 && !replicate_to(parts.metadata).any(|target| target == remote) {
        return Verdict::Skip(Skip::NotTargeted);
    }
    Verdict::Send(Sendable {
        sequence_id: summary.sequence_id,
        highest_sequence_id: summary.highest_sequence_id,
        marker: summary.marker_type.is_some(),
        chunk: summary.is_chunk(),
        transactional: summary.txnid.is_some(),
        schema_version: summary.schema_version.map(|version| entry.payload.slice_ref(version)),
        deliver_at_ms: summary.deliver_at_time_ms.and_then(|due_ms| u64::try_from(due_ms).ok()),
    })
}

/// A broken marker of a broker is no loss to anybody.
fn undecodable(entry: &LogEntry, error: String) -> Skip {
    if entry.marker { Skip::LocalMarker } else { Skip::Undecodable(error) }
}

/// Whether an entry stored at `stored_ms`, perhaps delayed, has outlived its time: the clock runs from the moment a reader
/// could have read it.
pub fn is_expired(stored_ms: u64, deliver_at_ms: Option<u64>, ttl_ms: Option<u64>, now_ms: u64) -> bool {
    let from_ms = deliver_at_ms.map_or(stored_ms, |due_ms| due_ms.max(stored_ms));
    ttl_ms.is_some_and(|ttl_ms| now_ms >= from_ms && now_ms - from_ms >= ttl_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LOCAL, Written};

    fn of(written: Written) -> Verdict {
        classify(&written.at(1, 0), RegionId::of(LOCAL), "east")
    }

    fn skip(written: Written) -> Option<Skip> {
        match of(written) {
            Verdict::Skip(skip) => Some(skip),
            Verdict::Send(_) => None,
        }
    }

    #[test]
    fn what_came_from_elsewhere_is_not_forwarded() {
        assert_eq!(skip(Written::default()), None);
        assert_eq!(skip(Written { replicated_from: Some("east"), ..Written::default() }), Some(Skip::Foreign));
        assert_eq!(skip(Written { replicated_from: Some("south"), ..Written::default() }), Some(Skip::Foreign));
        assert_eq!(skip(Written { origin: Some("south"), ..Written::default() }), Some(Skip::Foreign));
    }

    #[test]
    fn messages_go_where_they_are_meant_to_go() {
        let to = |targets: &'static [&'static str]| skip(Written { replicate_to: targets, ..Written::default() });
        assert_eq!(to(&["north", "east"]), None);
        assert_eq!(to(&["north"]), Some(Skip::NotTargeted));
        assert_eq!(to(&["__local__"]), Some(Skip::NotTargeted));
    }

    #[test]
    fn markers_go_to_whom_they_are_for() {
        let marker = |kind, from| skip(Written { marker: Some(kind), replicated_from: from, ..Written::default() });
        assert_eq!(marker(10, None), None);
        assert_eq!(marker(10, Some("east")), Some(Skip::RemoteMarker(10)));
        assert_eq!(marker(13, Some("east")), Some(Skip::RemoteMarker(13)));
        assert_eq!(marker(12, Some("east")), Some(Skip::Foreign));
        assert_eq!(marker(11, Some("north")), Some(Skip::Foreign));
        assert_eq!(marker(21, None), Some(Skip::LocalMarker));
        let targeted = Written { marker: Some(12), replicate_to: &["west"], ..Written::default() };
        assert_eq!(skip(targeted), Some(Skip::NotTargeted));
        assert!(matches!(
            of(Written { marker: Some(10), ..Written::default() }),
            Verdict::Send(Sendable { marker: true, .. })
        ));
    }

    #[test]
    fn damage_is_named() {
        let mut entry = Written::default().at(1, 0);
        entry.payload = Bytes::from_static(b"\x0e\x01zz");
        let verdict = classify(&entry, RegionId::of(LOCAL), "east");
        assert!(matches!(verdict, Verdict::Skip(Skip::Undecodable(_))));
        entry.marker = true;
        assert_eq!(classify(&entry, RegionId::of(LOCAL), "east"), Verdict::Skip(Skip::LocalMarker));
    }

    #[test]
    fn time_to_live_starts_when_an_entry_is_due() {
        assert!(!is_expired(1000, None, None, u64::MAX));
        assert!(is_expired(1000, None, Some(500), 1500) && !is_expired(1000, None, Some(500), 1499));
        assert!(!is_expired(1000, Some(1400), Some(500), 1899) && is_expired(1000, Some(1400), Some(500), 1900));
        assert!(!is_expired(2000, None, Some(0), 1000), "stored by a clock ahead of ours");
    }
}
