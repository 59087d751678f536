//! What this room stores.
//!
//! Format (values of `/autorecovery/leaving/{bookie}`, `/autorecovery/repair/{id}`, `/autorecovery/hopeless/{id}` and
//! `/autorecovery/audit/report`): one byte version (1), then a protobuf message: [`LeavingProto`], [`RepairProto`],
//! [`HopelessProto`], [`ReportProto`]. Unknown fields are skipped.
//! Invariants: F1 a report names at most [`REPORT_LINES_MAX`] findings; its counts are whole all the same.
//! Failure: bytes that break a rule are [`MetadataError::Corrupt`].
//! Must never know: who writes them.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_metadata::MetadataError;
use meridian_types::{BookieId, EntryId, LedgerId};
use prost::Message;

/// Version of the formats.
pub const RECORDS_VERSION: u8 = 1;
/// Findings named in a report.
pub const REPORT_LINES_MAX: usize = 200;
/// Longest reason kept.
pub const REASON_BYTES_MAX: usize = 400;
/// Bookies of one mark of a ledger at most.
const REPAIR_BOOKIES_MAX: usize = 1_000;

/// Why a bookie leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is missing.
    Lost,
    /// An operator ordered it.
    Ordered,
}

/// A bookie leaves: its ledgers go to others from `due_ms` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Why.
    pub reason: Reason,
    /// Since when, wall clock in ms.
    pub since_ms: u64,
    /// From when on its ledgers are moved, wall clock in ms.
    pub due_ms: u64,
}

/// A ledger has members that lack copies, or that stand too close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// These; none, if it is only the placement.
    pub bookies: Vec<BookieId>,
    /// When that was found, wall clock in ms.
    pub found_ms: u64,
    /// Ensembles of it do not keep the placement's rule, and could.
    pub mend: bool,
}

/// A ledger that can't be brought back to full copies by those who are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hopeless {
    /// When that was seen first, wall clock in ms.
    pub since_ms: u64,
    /// The last attempt, wall clock in ms.
    pub tried_ms: u64,
    /// Attempts.
    pub attempts: u64,
    /// What stands in the way; at most [`REASON_BYTES_MAX`].
    pub reason: String,
}

/// One finding of an audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportLine {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// On this bookie.
    pub bookie: BookieId,
    /// This entry.
    pub entry_id: EntryId,
    /// `true` = its bytes do not match; `false` = it is not there.
    pub damaged: bool,
}

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// When it began, wall clock in ms.
    pub begun_ms: u64,
    /// When it ended, wall clock in ms.
    pub ended_ms: u64,
    /// Ledgers looked at.
    pub ledgers: u64,
    /// Those of them that are not closed.
    pub open_ledgers: u64,
    /// Copies looked at.
    pub copies: u64,
    /// Copies that are not there.
    pub missing_copies: u64,
    /// Copies whose bytes do not match.
    pub damaged_copies: u64,
    /// Copies on bookies that did not answer.
    pub unanswered_copies: u64,
    /// Ensembles that do not keep the placement's rule.
    pub misplaced_ensembles: u64,
    /// Those of them that are finished and could keep it with the bookies that are there.
    pub mendable_ensembles: u64,
    /// Ledgers with a member that is not registered or leaves.
    pub under_replicated_ledgers: u64,
    /// Ledgers that were marked to be repaired.
    pub repairs: u64,
    /// Holdings that were put right.
    pub mended_holdings: u64,
    /// Ledgers that could not be looked at.
    pub failed_ledgers: u64,
    /// The first findings (F1).
    pub lines: Vec<ReportLine>,
}

/// A stored [`Leaving`]. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct LeavingProto {
    /// 0 lost, 1 ordered.
    #[prost(uint32, tag = "1")]
    pub reason: u32,
    /// Since, in ms.
    #[prost(uint64, tag = "2")]
    pub since_ms: u64,
    /// Due, in ms.
    #[prost(uint64, tag = "3")]
    pub due_ms: u64,
}

/// A stored [`Repair`]. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct RepairProto {
    /// Ids of bookies.
    #[prost(string, repeated, tag = "1")]
    pub bookies: Vec<String>,
    /// Found, in ms.
    #[prost(uint64, tag = "2")]
    pub found_ms: u64,
    /// Placement.
    #[prost(bool, tag = "3")]
    pub mend: bool,
}

/// A stored [`Hopeless`]. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct HopelessProto {
    /// Since, in ms.
    #[prost(uint64, tag = "1")]
    pub since_ms: u64,
    /// Last attempt, in ms.
    #[prost(uint64, tag = "2")]
    pub tried_ms: u64,
    /// Attempts.
    #[prost(uint64, tag = "3")]
    pub attempts: u64,
    /// Reason.
    #[prost(string, tag = "4")]
    pub reason: String,
}

/// A stored [`ReportLine`]. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct LineProto {
    /// Ledger.
    #[prost(uint64, tag = "1")]
    pub ledger: u64,
    /// Bookie.
    #[prost(string, tag = "2")]
    pub bookie: String,
    /// Entry.
    #[prost(uint64, tag = "3")]
    pub entry: u64,
    /// Damaged, not missing.
    #[prost(bool, tag = "4")]
    pub damaged: bool,
}

/// A stored [`Report`]. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct ReportProto {
    /// Begin in ms.
    #[prost(uint64, tag = "1")]
    pub begun_ms: u64,
    /// End in ms.
    #[prost(uint64, tag = "2")]
    pub ended_ms: u64,
    /// Ledgers.
    #[prost(uint64, tag = "3")]
    pub ledgers: u64,
    /// Not closed.
    #[prost(uint64, tag = "4")]
    pub open_ledgers: u64,
    /// Copies.
    #[prost(uint64, tag = "5")]
    pub copies: u64,
    /// Missing.
    #[prost(uint64, tag = "6")]
    pub missing_copies: u64,
    /// Damaged.
    #[prost(uint64, tag = "7")]
    pub damaged_copies: u64,
    /// Unanswered.
    #[prost(uint64, tag = "8")]
    pub unanswered_copies: u64,
    /// Misplaced.
    #[prost(uint64, tag = "9")]
    pub misplaced_ensembles: u64,
    /// Under-replicated.
    #[prost(uint64, tag = "10")]
    pub under_replicated_ledgers: u64,
    /// Marked.
    #[prost(uint64, tag = "11")]
    pub repairs: u64,
    /// Holdings put right.
    #[prost(uint64, tag = "12")]
    pub mended_holdings: u64,
    /// Not looked at.
    #[prost(uint64, tag = "13")]
    pub failed_ledgers: u64,
    /// Findings.
    #[prost(message, repeated, tag = "14")]
    pub lines: Vec<LineProto>,
    /// Misplaced, and could be mended.
    #[prost(uint64, tag = "15")]
    pub mendable_ensembles: u64,
}

fn corrupt(what: &str, why: &str) -> MetadataError {
    MetadataError::Corrupt(format!("{what}: {why}"))
}

fn encode(proto: &impl Message) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + proto.encoded_len());
    out.put_u8(RECORDS_VERSION);
    out.extend_from_slice(&proto.encode_to_vec());
    out.freeze()
}

fn decode<P: Message + Default>(what: &str, bytes: &[u8]) -> Result<P, MetadataError> {
    match bytes.split_first() {
        Some((&RECORDS_VERSION, body)) => P::decode(body).map_err(|e| corrupt(what, &e.to_string())),
        Some((version, _)) => Err(corrupt(what, &format!("version {version} is not known"))),
        None => Err(corrupt(what, "empty")),
    }
}

impl Leaving {
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let reason = u32::from(self.reason == Reason::Ordered);
        encode(&LeavingProto { reason, since_ms: self.since_ms, due_ms: self.due_ms })
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] with the rule that the bytes break.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let proto: LeavingProto = decode("mark of a bookie", bytes)?;
        let reason = match proto.reason {
            0 => Reason::Lost,
            1 => Reason::Ordered,
            other => return Err(corrupt("mark of a bookie", &format!("reason {other} is not known"))),
        };
        Ok(Self { reason, since_ms: proto.since_ms, due_ms: proto.due_ms })
    }

    /// Whether its ledgers are to be moved now.
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.due_ms
    }
}

impl Repair {
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let bookies = self.bookies.iter().map(|id| id.as_str().to_owned()).collect();
        encode(&RepairProto { bookies, found_ms: self.found_ms, mend: self.mend })
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] with the rule that the bytes break.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let proto: RepairProto = decode("mark of a ledger", bytes)?;
        if proto.bookies.len() > REPAIR_BOOKIES_MAX {
            return Err(corrupt("mark of a ledger", "it names too many bookies"));
        }
        let bookies = proto.bookies.into_iter().map(BookieId::new).collect();
        Ok(Self { bookies, found_ms: proto.found_ms, mend: proto.mend })
    }
}

impl Hopeless {
    /// After one more attempt, which failed for this reason.
    pub fn again(before: Option<&Hopeless>, now_ms: u64, reason: &str) -> Self {
        let (since_ms, attempts) = before.map_or((now_ms, 0), |before| (before.since_ms, before.attempts));
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        Self { since_ms, tried_ms: now_ms, attempts: attempts + 1, reason: reason[..end].to_owned() }
    }

    /// The stored form.
    pub fn encode(&self) -> Bytes {
        encode(&HopelessProto {
            since_ms: self.since_ms,
            tried_ms: self.tried_ms,
            attempts: self.attempts,
            reason: self.reason.clone(),
        })
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] with the rule that the bytes break.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let proto: HopelessProto = decode("mark of a ledger beyond recovery", bytes)?;
        let HopelessProto { since_ms, tried_ms, attempts, reason } = proto;
        Ok(Self { since_ms, tried_ms, attempts, reason })
    }
}

impl Report {
    /// Notes a finding (F1).
    pub fn note(&mut self, line: ReportLine) {
        if line.damaged {
            self.damaged_copies += 1;
        } else {
            self.missing_copies += 1;
        }
        if self.lines.len() < REPORT_LINES_MAX {
            self.lines.push(line);
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let line = |line: &ReportLine| LineProto {
            ledger: line.ledger_id.0 as u64,
            bookie: line.bookie.as_str().to_owned(),
            entry: line.entry_id.0 as u64,
            damaged: line.damaged,
        };
        encode(&ReportProto {
            begun_ms: self.begun_ms,
            ended_ms: self.ended_ms,
            ledgers: self.ledgers,
            open_ledgers: self.open_ledgers,
            copies: self.copies,
            missing_copies: self.missing_copies,
            damaged_copies: self.damaged_copies,
            unanswered_copies: self.unanswered_copies,
            misplaced_ensembles: self.misplaced_ensembles,
            under_replicated_ledgers: self.under_replicated_ledgers,
            repairs: self.repairs,
            mended_holdings: self.mended_holdings,
            failed_ledgers: self.failed_ledgers,
            lines: self.lines.iter().take(REPORT_LINES_MAX).map(line).collect(),
            mendable_ensembles: self.mendable_ensembles,
        })
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] with the rule that the bytes break.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let proto: ReportProto = decode("report of an audit", bytes)?;
        let line = |line: LineProto| ReportLine {
            ledger_id: LedgerId(line.ledger as i64),
            bookie: BookieId::new(line.bookie),
            entry_id: EntryId(line.entry as i64),
            damaged: line.damaged,
        };
        Ok(Self {
            begun_ms: proto.begun_ms,
            ended_ms: proto.ended_ms,
            ledgers: proto.ledgers,
            open_ledgers: proto.open_ledgers,
            copies: proto.copies,
            missing_copies: proto.missing_copies,
            damaged_copies: proto.damaged_copies,
            unanswered_copies: proto.unanswered_copies,
            misplaced_ensembles: proto.misplaced_ensembles,
            mendable_ensembles: proto.mendable_ensembles,
            under_replicated_ledgers: proto.under_replicated_ledgers,
            repairs: proto.repairs,
            mended_holdings: proto.mended_holdings,
            failed_ledgers: proto.failed_ledgers,
            lines: proto.lines.into_iter().take(REPORT_LINES_MAX).map(line).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn golden_bytes() {
        let leaving = Leaving { reason: Reason::Ordered, since_ms: 300, due_ms: 301 };
        assert_eq!(&leaving.encode()[..], [1, 0x08, 1, 0x10, 0xac, 2, 0x18, 0xad, 2]);
        assert_eq!(Leaving::decode(&leaving.encode()), Ok(leaving));
        let repair = Repair { bookies: vec![BookieId::new("a"), BookieId::new("b")], found_ms: 5, mend: false };
        assert_eq!(&repair.encode()[..], [1, 0x0a, 1, b'a', 0x0a, 1, b'b', 0x10, 5]);
        assert_eq!(Repair::decode(&repair.encode()), Ok(repair));
        let mend = Repair { bookies: Vec::new(), found_ms: 5, mend: true };
        assert_eq!(&mend.encode()[..], [1, 0x10, 5, 0x18, 1]);
        assert_eq!(Repair::decode(&mend.encode()), Ok(mend));
        let hopeless = Hopeless::again(None, 7, "no");
        assert_eq!(&hopeless.encode()[..], [1, 0x08, 7, 0x10, 7, 0x18, 1, 0x22, 2, b'n', b'o']);
        assert_eq!(Hopeless::decode(&hopeless.encode()), Ok(hopeless.clone()));
        let again = Hopeless::again(Some(&hopeless), 9, &"ü".repeat(REASON_BYTES_MAX));
        assert_eq!((again.since_ms, again.tried_ms, again.attempts, again.reason.len()), (7, 9, 2, REASON_BYTES_MAX));
        let mut report = Report { begun_ms: 1, ended_ms: 2, ledgers: 3, copies: 9, ..Report::default() };
        let (ledger_id, entry_id) = (LedgerId(7), EntryId(4));
        report.note(ReportLine { ledger_id, bookie: BookieId::new("a"), entry_id, damaged: true });
        let golden = [
            &[1u8, 0x08, 1, 0x10, 2, 0x18, 3, 0x28, 9, 0x38, 1][..],
            &[0x72, 9, 0x08, 7, 0x12, 1, b'a', 0x18, 4, 0x20, 1],
        ]
        .concat();
        assert_eq!(&report.encode()[..], &golden[..]);
        assert_eq!(Report::decode(&golden), Ok(report));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bytes in [&[][..], &[9], &[1, 0x08, 7]] {
            assert!(matches!(Leaving::decode(bytes), Err(MetadataError::Corrupt(_))), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(first) = bytes.first_mut() {
                *first = RECORDS_VERSION;
            }
            if let Ok(leaving) = Leaving::decode(&bytes) {
                prop_assert_eq!(Leaving::decode(&leaving.encode()), Ok(leaving));
            }
            if let Ok(repair) = Repair::decode(&bytes) {
                prop_assert_eq!(Repair::decode(&repair.encode()), Ok(repair));
            }
            if let Ok(hopeless) = Hopeless::decode(&bytes) {
                prop_assert_eq!(Hopeless::decode(&hopeless.encode()), Ok(hopeless));
            }
            if let Ok(report) = Report::decode(&bytes) {
                prop_assert_eq!(Report::decode(&report.encode()), Ok(report));
            }
        }
    }
}
