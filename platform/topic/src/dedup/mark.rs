//! How far a producer has come.
//!
//! Invariants: U4 a partly sent chunked message stands behind `sequence`, with its uuid's hash and the parts seen.

use meridian_wire::metadata::MetadataSummary;

/// One part of a chunked message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPart {
    /// Hash of the message's uuid.
    pub uuid_hash: u64,
    /// Which part, from 0.
    pub index: u32,
    /// Whether it is the last one.
    pub last: bool,
}

/// The sequence ids of one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Lowest id of the batch.
    pub lowest: i64,
    /// Highest id of the batch.
    pub highest: i64,
    /// Set if it is one part of a chunked message.
    pub chunk: Option<ChunkPart>,
}

impl Sequence {
    /// Of one message or batch. A client that does not say where a batch ends numbers its messages one after the other.
    pub fn new(lowest: i64, highest: Option<i64>, messages: u32) -> Self {
        let last = lowest.saturating_add(i64::from(messages.max(1)) - 1);
        Self { lowest, highest: highest.unwrap_or(last).max(lowest), chunk: None }
    }

    /// As an entry's metadata says.
    pub fn of(summary: &MetadataSummary<'_>) -> Self {
        let highest = summary.highest_sequence_id.map(|highest| highest as i64);
        let Self { lowest, highest, .. } = Self::new(summary.sequence_id as i64, highest, summary.messages());
        let chunk = summary.uuid.filter(|_| summary.is_chunk()).map(|uuid| ChunkPart {
            uuid_hash: uuid_hash(uuid),
            index: summary.chunk_id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0),
            last: summary.is_last_chunk(),
        });
        Self { lowest, highest, chunk }
    }
}

/// FNV-1a, so that it is the same in every version that reads a snapshot.
fn uuid_hash(uuid: &str) -> u64 {
    uuid.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The parts of a chunked message that were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// Its sequence id.
    pub sequence: i64,
    /// Hash of its uuid.
    pub uuid_hash: u64,
    /// Parts below this one were seen.
    pub next: u32,
}

/// Everything up to `sequence` was seen, and perhaps some parts of one more message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Highest whole message, -1 if none.
    pub sequence: i64,
    /// Parts behind it.
    pub partial: Option<Partial>,
}

impl Default for Mark {
    fn default() -> Self {
        Self { sequence: -1, partial: None }
    }
}

impl Mark {
    /// Whether a send lies under the mark as a whole.
    pub fn covers(&self, sequence: &Sequence) -> bool {
        sequence.highest <= self.sequence || self.has_part(sequence)
    }

    /// Whether any of it lies under the mark.
    pub fn touches(&self, sequence: &Sequence) -> bool {
        sequence.lowest <= self.sequence || self.has_part(sequence)
    }

    fn has_part(&self, sequence: &Sequence) -> bool {
        sequence.chunk.zip(self.partial).is_some_and(|(part, seen)| {
            seen.sequence == sequence.highest && seen.uuid_hash == part.uuid_hash && part.index < seen.next
        })
    }

    /// Takes the mark back to what was seen before a send.
    pub fn lower_below(&mut self, sequence: &Sequence) {
        if self.touches(sequence) || self.partial.is_some_and(|seen| seen.sequence > sequence.lowest) {
            let before = sequence.chunk.filter(|part| part.index > 0);
            self.sequence = self.sequence.min(sequence.lowest.saturating_sub(1));
            self.partial =
                before.map(|part| Partial { sequence: sequence.highest, uuid_hash: part.uuid_hash, next: part.index });
        }
    }

    /// Lifts the mark over a send; never lowers it.
    pub fn raise(&mut self, sequence: &Sequence) {
        match sequence.chunk {
            Some(part) if !part.last => {
                if sequence.highest > self.sequence && !self.has_part(sequence) {
                    let next = part.index.saturating_add(1);
                    self.partial = Some(Partial { sequence: sequence.highest, uuid_hash: part.uuid_hash, next });
                }
            }
            _ => {
                self.sequence = self.sequence.max(sequence.highest);
                if self.partial.is_some_and(|partial| partial.sequence <= self.sequence) {
                    self.partial = None;
                }
            }
        }
    }
}

impl PartialOrd for Mark {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        let key = |mark: &Self| (mark.sequence, mark.partial.map_or((i64::MIN, 0), |seen| (seen.sequence, seen.next)));
        Some(key(self).cmp(&key(other)))
    }
}
