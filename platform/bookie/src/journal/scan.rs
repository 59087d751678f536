//! Reads the records of one journal file back.
//!
//! Role: a pure walk over a file's bytes. Records follow one another; zeros end a sync group and the next one starts
//! on a block boundary; what is not a record of this epoch ends the file if nothing of this epoch follows (a torn
//! tail), and is damage if something does.
//! Invariants: J1 every valid record of the epoch that starts a group, or follows a valid record, is found, whatever is
//! damaged elsewhere; J2 no byte is given out whose digest does not match.
//! Must never know: files, threads.

use super::record::{BLOCK_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use meridian_bookie_api::entry::digest_of;

/// One finding of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// A record and its payload.
    Record(RecordHeader, &'a [u8]),
    /// Bytes that should have been records: lost, with valid records behind them.
    Damage {
        /// Where it starts.
        from_bytes: usize,
        /// Where the walk goes on.
        to_bytes: usize,
    },
}

/// The walk. Offsets are relative to the file's start, so `bytes` is the whole file.
#[derive(Debug)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    epoch: u64,
    at: usize,
    /// Start of what was not understood, if something was not.
    torn_from: Option<usize>,
}

impl<'a> Scan<'a> {
    /// Walks from `from_bytes`, which must be the start of a group (a block boundary).
    pub fn new(bytes: &'a [u8], epoch: u64, from_bytes: usize) -> Self {
        Self { bytes, epoch, at: from_bytes.max(BLOCK_BYTES).next_multiple_of(BLOCK_BYTES), torn_from: None }
    }

    /// Bytes behind the last good record that hold something which is not understood: a torn tail. After the walk.
    pub fn torn_tail(&self) -> Option<usize> {
        self.torn_from
    }

    fn record_at(&self, at: usize) -> Option<(RecordHeader, &'a [u8])> {
        let rest = self.bytes.get(at..)?;
        let header = RecordHeader::decode(rest, self.epoch)?;
        let payload = rest.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES.checked_add(header.payload_bytes as usize)?)?;
        let whole =
            header.kind != RecordKind::Add || digest_of(header.ledger_id, header.entry_id, payload) == header.digest;
        whole.then_some((header, payload))
    }

    fn is_zero(&self, from: usize, to: usize) -> bool {
        self.bytes.get(from..to.min(self.bytes.len())).is_some_and(|run| run.iter().all(|byte| *byte == 0))
    }

    /// The next block boundary at or after `from` at which a valid record starts.
    fn next_group(&self, from: usize) -> Option<usize> {
        (from.next_multiple_of(BLOCK_BYTES)..self.bytes.len())
            .step_by(BLOCK_BYTES)
            .find(|at| self.record_at(*at).is_some())
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        loop {
            if let Some((header, payload)) = self.record_at(self.at) {
                self.at += RECORD_HEADER_BYTES + payload.len();
                return Some(Found::Record(header, payload));
            }
            let boundary = self.at.next_multiple_of(BLOCK_BYTES);
            if boundary > self.at && self.is_zero(self.at, boundary) {
                self.at = boundary;
                continue;
            }
            return match self.next_group(self.at + 1) {
                Some(group) => {
                    let from_bytes = std::mem::replace(&mut self.at, group);
                    Some(Found::Damage { from_bytes, to_bytes: group })
                }
                None => {
                    let at = std::mem::replace(&mut self.at, self.bytes.len());
                    // At a boundary, zeros and stale records of an earlier epoch are the ordinary end of a file.
                    let inside_group = at < boundary;
                    let same_epoch = self.bytes.get(at + 16..at + 24) == Some(&self.epoch.to_le_bytes()[..]);
                    if at < self.bytes.len() && (inside_group || same_epoch) {
                        self.torn_from = Some(at);
                    }
                    None
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::{EntryId, LedgerId};
    use proptest::prelude::{any, prop, proptest};

    const EPOCH: u64 = 0xfeed;

    fn add(entry: i64, payload: &[u8], epoch: u64) -> Vec<u8> {
        let (ledger_id, entry_id) = (LedgerId(1), EntryId(entry));
        let header = RecordHeader {
            kind: RecordKind::Add,
            recovery: false,
            payload_bytes: payload.len() as u32,
            digest: digest_of(ledger_id, entry_id, payload),
            epoch,
            ledger_id,
            entry_id,
            last_add_confirmed: EntryId(entry - 1),
        };
        [&header.encode()[..], payload].concat()
    }

    /// A file of groups of payloads, entries numbered from 0, with stale records of another epoch behind.
    fn file(groups: &[Vec<Vec<u8>>]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = vec![0; BLOCK_BYTES];
        let mut group_starts = Vec::new();
        let mut entry = 0;
        for group in groups {
            group_starts.push(bytes.len());
            for payload in group {
                bytes.extend(add(entry, payload, EPOCH));
                entry += 1;
            }
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        }
        group_starts.push(bytes.len());
        bytes.extend(add(900, b"stale", EPOCH - 1));
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES) + 2 * BLOCK_BYTES, 0);
        (bytes, group_starts)
    }

    fn entries(scan: &mut Scan<'_>) -> (Vec<i64>, usize) {
        let mut found = (Vec::new(), 0);
        for item in scan {
            match item {
                Found::Record(header, _) => found.0.push(header.entry_id.0),
                Found::Damage { .. } => found.1 += 1,
            }
        }
        found
    }

    #[test]
    fn whole_file_is_read_and_stale_records_are_not() {
        let (bytes, starts) = file(&[vec![b"a".to_vec(), b"b".to_vec()], vec![vec![7; 9000]], vec![Vec::new()]]);
        let mut scan = Scan::new(&bytes, EPOCH, 0);
        assert_eq!(entries(&mut scan), (vec![0, 1, 2, 3], 0));
        assert_eq!(scan.torn_tail(), None);
        assert_eq!(entries(&mut Scan::new(&bytes, EPOCH, starts[1])), (vec![2, 3], 0), "from a checkpoint");
    }

    #[test]
    fn damage_in_the_middle_is_reported_and_passed() {
        let (mut bytes, starts) = file(&[vec![b"a".to_vec(), b"b".to_vec()], vec![vec![7; 9000]], vec![b"c".to_vec()]]);
        bytes[starts[1] + 5000] ^= 1;
        let mut scan = Scan::new(&bytes, EPOCH, 0);
        assert_eq!(entries(&mut scan), (vec![0, 1, 3], 1));
        assert_eq!(scan.torn_tail(), None);
    }

    #[test]
    fn torn_tail_is_cut() {
        let (mut bytes, starts) = file(&[vec![b"a".to_vec()], vec![vec![7; 9000]]]);
        bytes.truncate(starts[1] + 5000);
        let mut scan = Scan::new(&bytes, EPOCH, 0);
        assert_eq!(entries(&mut scan), (vec![0], 0));
        assert_eq!(scan.torn_tail(), Some(starts[1]));
    }

    #[test]
    fn a_payload_cannot_pose_as_a_record_of_another_epoch() {
        let mut forged = vec![0; BLOCK_BYTES - RECORD_HEADER_BYTES];
        forged.extend(add(77, b"forged", EPOCH + 1));
        let (mut bytes, starts) = file(&[vec![forged], vec![b"c".to_vec()]]);
        bytes[starts[0]] ^= 1;
        assert_eq!(entries(&mut Scan::new(&bytes, EPOCH, 0)), (vec![1], 1));
    }

    proptest! {
        /// Cut or damaged anywhere: every group in front of the place is found whole and in order, nothing is invented.
        #[test]
        fn cut_or_damage_loses_only_its_own_group(
            groups in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 1..4), 1..6),
            place in any::<prop::sample::Index>(),
            cut: bool,
        ) {
            let (mut bytes, starts) = file(&groups);
            let at = starts[0] + place.index(starts[groups.len()] - starts[0]);
            let total: usize = groups.iter().map(Vec::len).sum();
            let hit = starts.iter().rposition(|start| *start <= at).expect("a group");
            let before: usize = groups[..hit].iter().map(Vec::len).sum();
            let own = groups[hit].len();
            if cut { bytes.truncate(at) } else { bytes[at] ^= 0x55 }
            let (found, damages) = entries(&mut Scan::new(&bytes, EPOCH, 0));
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(found[..before], (0..before as i64).collect::<Vec<_>>()[..]);
            assert!(found.iter().all(|entry| (*entry as usize) < total));
            if cut {
                assert!(found.len() <= before + own && damages == 0);
            } else {
                let behind = total - before - own;
                assert!(found.len() >= before + behind, "groups behind the damage are found");
            }
        }
    }
}
