//! A cursor's state as bytes.
//!
//! **State**, little-endian, the same for snapshots, deltas and the copy in metadata:
//!
//! | size | field |
//! |---|---|
//! | 1 | version, 1 |
//! | 8, 8 | mark-delete: ledger, entry |
//! | 4 | number of ledgers with acked entries; for each: ledger (8), length (4), portable roaring bitmap |
//! | 4 | number of partly acked entries; for each: ledger (8), entry (8), number of words (4), words (8 each, 1 = unacked) |
//!
//! **Chunk**, one entry of a cursor's ledger:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | kind: 1 = snapshot, 2 = delta |
//! | 2 | 1 | compression: 0 = none, 1 = LZ4 block |
//! | 3 | 1 | reserved, 0 |
//! | 4 | 4 | number of this chunk, from 0 |
//! | 8 | 4 | chunks of this state |
//! | 12 | 8 | length of the state before compression |
//! | 20 | 8 | entry id of the first chunk of the complete snapshot before this state, -1 = none |
//! | 28 | | part of the (compressed) state |
//!
//! Invariants: C1 all chunks of a state stand in consecutive entries; C2 deltas since a snapshot, applied in order, give the
//! state; C3 a snapshot counts only when all its chunks are there.
//! Failure: [`LogError::Corrupt`]; decoders never panic, and allocate at most what the bytes at hand can expand to.

use crate::api::LogError;
use crate::cursor::ack_set::{AckState, BatchWords};
use bytes::{Buf, Bytes};
use meridian_types::{EntryId, LedgerId, Position};
use roaring::RoaringBitmap;
use std::collections::BTreeMap;

const VERSION: u8 = 1;
const CHUNK_HEADER_BYTES: usize = 28;
/// Bytes of state per chunk: entries stay under 1 MiB.
pub const CHUNK_BYTES: usize = 960 * 1024;
/// Below that compression gains nothing.
const COMPRESS_FROM_BYTES: usize = 128;
/// LZ4 cannot expand by more.
const LZ4_MAX_RATIO: u64 = 256;

/// What a chunk is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateKind {
    /// The whole state.
    Snapshot,
    /// What changed since the state before.
    Delta,
}

/// The head of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHead {
    /// Kind.
    pub kind: StateKind,
    /// LZ4.
    pub compressed: bool,
    /// Which chunk.
    pub number: u32,
    /// Of how many.
    pub count: u32,
    /// Length of the state.
    pub state_bytes: u64,
    /// First chunk of the complete snapshot before.
    pub base: EntryId,
}

fn corrupt(what: impl Into<String>) -> LogError {
    LogError::Corrupt(format!("cursor state: {}", what.into()))
}

/// Writes a state.
pub fn encode_state(state: &AckState) -> Vec<u8> {
    let bitmaps: usize = state.acked.values().map(|set| 12 + set.serialized_size()).sum();
    let partial: usize = state.partial.values().map(|words| 20 + 8 * words.len()).sum();
    let mut out = Vec::with_capacity(25 + bitmaps + partial);
    out.push(VERSION);
    out.extend(state.mark_delete.ledger_id.0.to_le_bytes());
    out.extend(state.mark_delete.entry_id.0.to_le_bytes());
    out.extend((state.acked.len() as u32).to_le_bytes());
    for (ledger, set) in &state.acked {
        out.extend(ledger.0.to_le_bytes());
        out.extend((set.serialized_size() as u32).to_le_bytes());
        // Writing into a vector can't fail.
        let _ = set.serialize_into(&mut out);
    }
    out.extend((state.partial.len() as u32).to_le_bytes());
    for (position, words) in &state.partial {
        out.extend(position.ledger_id.0.to_le_bytes());
        out.extend(position.entry_id.0.to_le_bytes());
        out.extend((words.len() as u32).to_le_bytes());
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    out
}

/// Reads a state.
///
/// # Errors
/// [`LogError::Corrupt`] with what is wrong.
pub fn decode_state(mut bytes: &[u8]) -> Result<AckState, LogError> {
    let raw = &mut bytes;
    let version = raw.try_get_u8().map_err(|_| corrupt("empty"))?;
    if version != VERSION {
        return Err(corrupt(format!("version {version}, known: {VERSION}")));
    }
    let mark_delete = position(raw)?;
    let mut acked = BTreeMap::new();
    for _ in 0..count(raw)? {
        let ledger = LedgerId(raw.try_get_i64_le().map_err(short)?);
        let length = count(raw)?;
        if length > raw.len() {
            return Err(corrupt("bitmap longer than the state"));
        }
        let (bitmap, rest) = raw.split_at(length);
        *raw = rest;
        let set = RoaringBitmap::deserialize_from(bitmap).map_err(|error| corrupt(error.to_string()))?;
        acked.insert(ledger, set);
    }
    let mut partial = BTreeMap::new();
    for _ in 0..count(raw)? {
        let at = position(raw)?;
        let length = count(raw)?;
        if length.saturating_mul(8) > raw.len() {
            return Err(corrupt("batch set longer than the state"));
        }
        let words: Result<BatchWords, LogError> = (0..length).map(|_| raw.try_get_u64_le().map_err(short)).collect();
        partial.insert(at, words?);
    }
    Ok(AckState { mark_delete, acked, partial })
}

fn short(_: bytes::TryGetError) -> LogError {
    corrupt("ends too early")
}

fn position(raw: &mut &[u8]) -> Result<Position, LogError> {
    let ledger = raw.try_get_i64_le().map_err(short)?;
    Ok(Position::new(ledger, raw.try_get_i64_le().map_err(short)?))
}

fn count(raw: &mut &[u8]) -> Result<usize, LogError> {
    Ok(raw.try_get_u32_le().map_err(short)? as usize)
}

/// Cuts a state into the entries of a cursor's ledger (C1).
pub fn encode_chunks(kind: StateKind, state: &AckState, base: EntryId) -> Vec<Bytes> {
    let raw = encode_state(state);
    let state_bytes = raw.len() as u64;
    let packed = (raw.len() >= COMPRESS_FROM_BYTES).then(|| lz4_flex::block::compress(&raw));
    let (body, compressed) = match packed.filter(|packed| packed.len() < raw.len()) {
        Some(packed) => (packed, true),
        None => (raw, false),
    };
    let count = body.len().div_ceil(CHUNK_BYTES) as u32;
    let chunk = |(number, part): (usize, &[u8])| {
        let mut out = Vec::with_capacity(CHUNK_HEADER_BYTES + part.len());
        let kind = if kind == StateKind::Snapshot { 1 } else { 2 };
        out.extend([VERSION, kind, u8::from(compressed), 0]);
        out.extend((number as u32).to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(state_bytes.to_le_bytes());
        out.extend(base.0.to_le_bytes());
        out.extend_from_slice(part);
        Bytes::from(out)
    };
    body.chunks(CHUNK_BYTES).enumerate().map(chunk).collect()
}

/// Reads the head of a chunk.
///
/// # Errors
/// [`LogError::Corrupt`] with what is wrong.
pub fn decode_chunk(entry: &Bytes) -> Result<(ChunkHead, Bytes), LogError> {
    if entry.len() < CHUNK_HEADER_BYTES {
        return Err(corrupt(format!("chunk of {} bytes", entry.len())));
    }
    let mut raw = &entry[..CHUNK_HEADER_BYTES];
    let (version, kind, compression) = (raw.get_u8(), raw.get_u8(), raw.get_u8());
    raw.advance(1);
    if version != VERSION {
        return Err(corrupt(format!("chunk version {version}, known: {VERSION}")));
    }
    let kind = match kind {
        1 => StateKind::Snapshot,
        2 => StateKind::Delta,
        other => return Err(corrupt(format!("chunk kind {other}"))),
    };
    if compression > 1 {
        return Err(corrupt(format!("compression {compression}")));
    }
    let head = ChunkHead {
        kind,
        compressed: compression == 1,
        number: raw.get_u32_le(),
        count: raw.get_u32_le(),
        state_bytes: raw.get_u64_le(),
        base: EntryId(raw.get_i64_le()),
    };
    if head.number >= head.count {
        return Err(corrupt(format!("chunk {} of {}", head.number, head.count)));
    }
    Ok((head, entry.slice(CHUNK_HEADER_BYTES..)))
}

/// Puts chunks together again as they are read in order; gives each complete state with its kind.
#[derive(Debug, Default)]
pub struct Assembler {
    head: Option<ChunkHead>,
    body: Vec<u8>,
}

impl Assembler {
    /// Takes the next entry. An interrupted run of chunks is forgotten (C3).
    ///
    /// # Errors
    /// [`LogError::Corrupt`] if a complete state can't be read.
    pub fn push(&mut self, entry: &Bytes) -> Result<Option<(StateKind, AckState)>, LogError> {
        let (head, part) = decode_chunk(entry)?;
        if head.number == 0 {
            self.body.clear();
        } else if self.head != Some(ChunkHead { number: head.number - 1, ..head }) {
            return Err(corrupt("chunks out of order"));
        }
        self.head = Some(head);
        if head.count == 1 {
            return expand(&head, &part).map(|state| Some((head.kind, state)));
        }
        self.body.extend_from_slice(&part);
        if head.number + 1 < head.count {
            return Ok(None);
        }
        let body = std::mem::take(&mut self.body);
        expand(&head, &body).map(|state| Some((head.kind, state)))
    }
}

fn expand(head: &ChunkHead, body: &[u8]) -> Result<AckState, LogError> {
    if !head.compressed {
        return decode_state(body);
    }
    if head.state_bytes > (body.len() as u64).saturating_mul(LZ4_MAX_RATIO) {
        return Err(corrupt("stated length is impossible"));
    }
    let raw = lz4_flex::block::decompress(body, head.state_bytes as usize)
        .map_err(|error| corrupt(format!("compressed: {error}")))?;
    decode_state(&raw)
}

/// Where to begin reading when `last` is the last entry of a cursor's ledger: the first chunk of the last complete
/// snapshot, or `None` if there is none.
pub fn read_from(last_id: EntryId, last: &ChunkHead) -> Option<EntryId> {
    let complete = last.kind == StateKind::Snapshot && last.number + 1 == last.count;
    let first = if complete { EntryId(last_id.0 - i64::from(last.number)) } else { last.base };
    (first > EntryId::NONE).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};

    fn sample() -> AckState {
        AckState {
            mark_delete: Position::new(1, 2),
            acked: BTreeMap::from([(LedgerId(3), RoaringBitmap::from_iter([5, 7]))]),
            partial: BTreeMap::from([(Position::new(3, 9), vec![0b101].into())]),
        }
    }

    #[test]
    fn golden_bytes() {
        let chunks = encode_chunks(StateKind::Delta, &sample(), EntryId(4));
        assert_eq!(chunks.len(), 1);
        let expected: Vec<u8> = [
            &[1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0][..], // version, delta, plain, chunk 0 of 1
            &[85, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0], // state length, base
            &[1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], // version, mark-delete 1:2
            &[1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0], // one bitmap of ledger 3, 20 bytes
            &[58, 48, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 16, 0, 0, 0, 5, 0, 7, 0],
            &[1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0], // one batch set at 3:9
            &[1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(&chunks[0][..], &expected[..]);
        assert_eq!(Assembler::default().push(&chunks[0]), Ok(Some((StateKind::Delta, sample()))));
    }

    #[test]
    fn big_states_are_cut_below_a_mebibyte_and_come_back() {
        let noise = (0..2_000_000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 * 3);
        let state = AckState {
            mark_delete: Position::new(1, -1),
            acked: BTreeMap::from([(LedgerId(1), noise.collect())]),
            partial: BTreeMap::new(),
        };
        let chunks = encode_chunks(StateKind::Snapshot, &state, EntryId::NONE);
        assert!(chunks.len() > 2);
        assert!(chunks.iter().all(|chunk| chunk.len() < 1 << 20));
        let mut assembler = Assembler::default();
        // An interrupted run before it is forgotten (C3).
        assembler.push(&chunks[0]).unwrap();
        let states: Vec<_> = chunks.iter().filter_map(|chunk| assembler.push(chunk).unwrap()).collect();
        assert_eq!(states, vec![(StateKind::Snapshot, state)]);
    }

    #[test]
    fn reading_begins_at_the_last_complete_snapshot() {
        let head = |kind, number, count, base| ChunkHead {
            kind,
            compressed: false,
            number,
            count,
            state_bytes: 0,
            base: EntryId(base),
        };
        let at = EntryId(9);
        assert_eq!(read_from(at, &head(StateKind::Snapshot, 2, 3, 1)), Some(EntryId(7)));
        assert_eq!(read_from(at, &head(StateKind::Snapshot, 1, 3, 1)), Some(EntryId(1)));
        assert_eq!(read_from(at, &head(StateKind::Snapshot, 1, 3, -1)), None);
        assert_eq!(read_from(at, &head(StateKind::Delta, 0, 1, 4)), Some(EntryId(4)));
    }

    fn states() -> impl Strategy<Value = AckState> {
        let acked = proptest::collection::btree_map(
            any::<i64>().prop_map(LedgerId),
            proptest::collection::vec(any::<u32>(), 1..40).prop_map(RoaringBitmap::from_iter),
            0..4,
        );
        let words = proptest::collection::vec(any::<u64>(), 0..4).prop_map(Vec::into_boxed_slice);
        let at = (any::<i64>(), any::<i64>()).prop_map(|(l, e)| Position::new(l, e));
        let partial = proptest::collection::btree_map(at, words, 0..4);
        ((any::<i64>(), any::<i64>()), acked, partial).prop_map(|((l, e), acked, partial)| AckState {
            mark_delete: Position::new(l, e),
            acked,
            partial,
        })
    }

    proptest! {
        #[test]
        fn states_come_back(state in states()) {
            prop_assert_eq!(decode_state(&encode_state(&state)), Ok(state.clone()));
            let chunks = encode_chunks(StateKind::Snapshot, &state, EntryId::NONE);
            prop_assert_eq!(Assembler::default().push(&chunks[0]), Ok(Some((StateKind::Snapshot, state))));
        }

        #[test]
        fn decoders_never_panic(state in states(), at in any::<usize>(), flip in 1u8.., cut in any::<usize>()) {
            let mut raw = encode_state(&state);
            let len = raw.len();
            raw[at % len] ^= flip;
            let _ = decode_state(&raw);
            let _ = decode_state(&raw[..cut % len]);
            let mut entry = encode_chunks(StateKind::Delta, &state, EntryId(3))[0].to_vec();
            let len = entry.len();
            entry[at % len] ^= flip;
            let _ = Assembler::default().push(&Bytes::from(entry.clone()));
            let _ = Assembler::default().push(&Bytes::from(entry[..cut % len].to_vec()));
        }
    }
}
