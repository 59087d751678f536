//! Acknowledgements of one subscription as bytes: a state or a part of it, the same sent and stored.
//!
//! Numbers are varints (seven bits a byte, low ones first) unless a size is given; fixed sizes are little-endian.
//!
//! | field | meaning |
//! |---|---|
//! | 1 byte | version, 1 |
//! | 1 byte | flags: bit 0 = the subscription was deleted |
//! | number, ms, 4 bytes | epoch: number, when, region |
//! | count | origins, ascending; for each: |
//! | – 4 bytes, 8 bytes | region, incarnation |
//! | – ledger + 1, entry + 1 | everything up to here is acknowledged (0, 0 = nothing) |
//! | – count | ledgers with acknowledged entries above it; for each: ledger (the first as it is, later ones as the difference to the one before, at least 1), number of runs, runs |
//! | – – run | distance from the end of the run before (from -1 at first), at least 1 (later at least 2), times 2, plus 1 if the run has more than one entry; then its length - 2 |
//! | – count | batches acknowledged in part; for each: ledger as difference to the one before (from 0), entry, number of words, words, 1 = acknowledged, the last word not 0 |
//!
//! A single acknowledged entry costs 1 byte up to a distance of 63, 2 up to 8,191, 3 up to 1,048,575.
//! Invariants: W1 decoding what was encoded gives the same; W2 a decoder allocates at most in proportion to
//! [`MAX_ENTRIES`] bits and to the bytes at hand.
//! Failure: [`CodecError`]; decoders never panic.

use super::entries::EntrySet;
use super::epoch::{Epoch, Origin};
use super::state::{AckState, OriginAcks};
use crate::varint::{len, put, take, take_bytes};
use meridian_types::{Classify, EntryId, ErrorClass, Incarnation, LedgerId, Position, RegionId};

const VERSION: u8 = 1;
const FLAG_DELETED: u8 = 1;
/// Origins of one state at most.
pub const MAX_ORIGINS: u64 = 4096;
/// Entries acknowledged above `upto` in one encoded state at most.
pub const MAX_ENTRIES: u64 = 64 << 20;
/// Words of one partly acknowledged batch at most: 131,072 messages.
pub const MAX_BATCH_WORDS: u64 = 2048;

/// Why bytes are no acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Written by a later version.
    #[error("acknowledgements of version {0} are not known (known: {VERSION})")]
    Version(u8),
    /// The bytes end early or a number is too long.
    #[error("acknowledgements end early")]
    Short,
    /// More bytes than the content needs.
    #[error("{0} bytes stand behind the acknowledgements")]
    Trailing(usize),
    /// Something is not as the layout says.
    #[error("acknowledgements: bad {0}")]
    Bad(&'static str),
    /// More than a decoder takes.
    #[error("acknowledgements: too many {0}")]
    TooMany(&'static str),
}

impl Classify for CodecError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Corrupt
    }
}

/// Writes a state or a part of one.
pub fn encode(state: &AckState) -> Vec<u8> {
    let mut out = vec![VERSION, if state.is_deleted() { FLAG_DELETED } else { 0 }];
    let epoch = state.epoch();
    put(&mut out, epoch.number);
    put(&mut out, epoch.at_ms);
    out.extend(epoch.region.0.to_le_bytes());
    put(&mut out, state.origins().len() as u64);
    for (origin, acks) in state.origins() {
        out.extend(origin.region.0.to_le_bytes());
        out.extend(origin.incarnation.0.to_le_bytes());
        put_upto(&mut out, acks.upto());
        put(&mut out, acks.acked().len() as u64);
        let mut before = 0;
        for (ledger, set) in acks.acked() {
            put(&mut out, (ledger.0 - before) as u64);
            before = ledger.0;
            put_runs(&mut out, set);
        }
        put(&mut out, acks.partial().len() as u64);
        let mut before = 0;
        for (at, words) in acks.partial() {
            put(&mut out, (at.ledger_id.0 - before) as u64);
            before = at.ledger_id.0;
            put(&mut out, at.entry_id.0 as u64);
            put(&mut out, words.len() as u64);
            words.iter().for_each(|word| put(&mut out, *word));
        }
    }
    out
}

fn put_upto(out: &mut Vec<u8>, upto: Position) {
    put(out, upto.ledger_id.0.wrapping_add(1) as u64);
    put(out, upto.entry_id.0.wrapping_add(1) as u64);
}

fn put_runs(out: &mut Vec<u8>, set: &EntrySet) {
    put(out, set.runs().count() as u64);
    let mut end = -1i64;
    for run in set.runs() {
        let (first, last) = (i64::from(*run.start()), i64::from(*run.end()));
        let distance = (first - end) as u64;
        let more = last > first;
        put(out, distance << 1 | u64::from(more));
        if more {
            put(out, (last - first - 1) as u64);
        }
        end = last;
    }
}

/// Bytes of a set's runs at most.
pub(crate) fn runs_len_at_most(set: &EntrySet) -> usize {
    let of = |run: std::ops::RangeInclusive<u32>| match run.start() == run.end() {
        true => 1,
        false => 1 + len(u64::from(run.end() - run.start())),
    };
    // The distances of all runs sum up to the last entry: each doubling costs bits, five bytes at most.
    let mut end = -1i64;
    set.runs()
        .map(|run| {
            let distance = (i64::from(*run.start()) - end) as u64;
            end = i64::from(*run.end());
            len(distance << 1) - 1 + of(run)
        })
        .sum()
}

/// Bytes of an encoded state at most.
pub fn encoded_len_at_most(state: &AckState) -> usize {
    let head = 2 + 10 + 10 + 4 + 10;
    let origin = |acks: &OriginAcks| {
        let runs: usize = acks.acked().values().map(|set| 20 + runs_len_at_most(set)).sum();
        let partial: usize = acks.partial().values().map(|words| 30 + 10 * words.len()).sum();
        52 + runs + partial
    };
    head + state.origins().values().map(origin).sum::<usize>()
}

/// Reads a state or a part of one.
///
/// # Errors
/// [`CodecError`].
pub fn decode(mut bytes: &[u8]) -> Result<AckState, CodecError> {
    let raw = &mut bytes;
    let head = take_bytes(raw, 2).ok_or(CodecError::Short)?;
    if head[0] != VERSION {
        return Err(CodecError::Version(head[0]));
    }
    if head[1] & !FLAG_DELETED != 0 {
        return Err(CodecError::Bad("flags"));
    }
    let epoch =
        Epoch { number: number(raw)?, at_ms: number(raw)?, region: RegionId(fixed(raw).map(u32::from_le_bytes)?) };
    let mut state = if head[1] == FLAG_DELETED { AckState::tombstone(epoch) } else { AckState::new(epoch) };
    let mut left = MAX_ENTRIES;
    let origins = number(raw)?;
    if origins > MAX_ORIGINS {
        return Err(CodecError::TooMany("origins"));
    }
    let mut before = None;
    for _ in 0..origins {
        let region = RegionId(fixed(raw).map(u32::from_le_bytes)?);
        let origin = Origin::new(region, Incarnation(fixed(raw).map(u64::from_le_bytes)?));
        if before.replace(origin).is_some_and(|before| before >= origin) {
            return Err(CodecError::Bad("order of origins"));
        }
        take_origin(raw, &mut state, origin, &mut left)?;
    }
    match bytes.len() {
        0 => Ok(state),
        more => Err(CodecError::Trailing(more)),
    }
}

fn take_origin(raw: &mut &[u8], state: &mut AckState, origin: Origin, left: &mut u64) -> Result<(), CodecError> {
    let upto = take_upto(raw)?;
    state.raise_upto(origin, upto);
    let mut ledger = LedgerId(0);
    for index in 0..number(raw)? {
        ledger = later(ledger, number(raw)?, index > 0)?;
        let mut end = -1i64;
        for index in 0..number(raw)? {
            let run = take_run(raw, end, index > 0)?;
            end = i64::from(*run.end());
            *left = left
                .checked_sub(u64::from(run.end() - run.start()) + 1)
                .ok_or(CodecError::TooMany("acknowledged entries"))?;
            state.ack_run(origin, ledger, run);
        }
    }
    let mut at = Position::new(0, -1);
    for _ in 0..number(raw)? {
        let ledger_id = later(at.ledger_id, number(raw)?, false)?;
        let entry = u32::try_from(number(raw)?).map_err(|_| CodecError::Bad("entry"))?;
        let next = Position { ledger_id, entry_id: EntryId(i64::from(entry)) };
        if next <= at {
            return Err(CodecError::Bad("order of batches"));
        }
        at = next;
        let count = number(raw)?;
        if count == 0 || count > MAX_BATCH_WORDS {
            return Err(CodecError::TooMany("words of a batch"));
        }
        if count > raw.len() as u64 {
            return Err(CodecError::Short);
        }
        let words = (0..count).map(|_| number(raw)).collect::<Result<Vec<_>, _>>()?;
        state.ack_partly(origin, at, &words);
    }
    Ok(())
}

fn take_upto(raw: &mut &[u8]) -> Result<Position, CodecError> {
    // i64::MAX + 1 wraps to i64::MIN when written: the same bits come back.
    let one = |value: u64| match value <= i64::MAX as u64 + 1 {
        true => Ok((value as i64).wrapping_sub(1)),
        false => Err(CodecError::Bad("position")),
    };
    Ok(Position::new(one(number(raw)?)?, one(number(raw)?)?))
}

fn later(ledger: LedgerId, difference: u64, strictly: bool) -> Result<LedgerId, CodecError> {
    if strictly && difference == 0 {
        return Err(CodecError::Bad("order of ledgers"));
    }
    let difference = i64::try_from(difference).map_err(|_| CodecError::Bad("ledger"))?;
    ledger.0.checked_add(difference).map(LedgerId).ok_or(CodecError::Bad("ledger"))
}

fn take_run(raw: &mut &[u8], end: i64, strictly: bool) -> Result<std::ops::RangeInclusive<u32>, CodecError> {
    let code = number(raw)?;
    let distance = (code >> 1) as i64;
    if distance < if strictly { 2 } else { 1 } {
        return Err(CodecError::Bad("order of runs"));
    }
    let first = end.checked_add(distance).ok_or(CodecError::Bad("run"))?;
    let more = if code & 1 == 1 { number(raw)?.checked_add(1).ok_or(CodecError::Bad("run"))? } else { 0 };
    let last = i64::try_from(more).ok().and_then(|more| first.checked_add(more)).ok_or(CodecError::Bad("run"))?;
    match (u32::try_from(first), u32::try_from(last)) {
        (Ok(first), Ok(last)) => Ok(first..=last),
        _ => Err(CodecError::Bad("run")),
    }
}

fn number(raw: &mut &[u8]) -> Result<u64, CodecError> {
    take(raw).ok_or(CodecError::Short)
}

fn fixed<const N: usize>(raw: &mut &[u8]) -> Result<[u8; N], CodecError> {
    let taken = take_bytes(raw, N).ok_or(CodecError::Short)?;
    taken.try_into().map_err(|_| CodecError::Short)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
