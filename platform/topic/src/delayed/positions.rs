//! A set of positions: a few as a list, many as one bitmap per ledger.
//!
//! Invariants: D5 the list is sorted and without repetition; a set that became bitmaps stays bitmaps.

use meridian_types::{EntryId, LedgerId, Position};
use roaring::RoaringTreemap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A longer list turns into bitmaps.
const LIST_MAX: usize = 32;
/// Held in place.
const INLINE: usize = 2;
/// What a bucket and a ledger's bitmap cost, roughly.
const LIST_BYTES: u64 = 80;
const BITMAP_BYTES: u64 = 512;

#[derive(Debug, Clone)]
enum Repr {
    List(SmallVec<[Position; INLINE]>),
    Bitmaps(BTreeMap<LedgerId, RoaringTreemap>),
}

/// A set of positions.
#[derive(Debug, Clone)]
pub(super) struct PositionSet(Repr);

impl Default for PositionSet {
    fn default() -> Self {
        Self(Repr::List(SmallVec::new()))
    }
}

fn bit(position: Position) -> u64 {
    position.entry_id.0 as u64
}

fn at(ledger_id: LedgerId, bit: u64) -> Position {
    Position { ledger_id, entry_id: EntryId(bit as i64) }
}

impl PositionSet {
    /// Adds a position; whether it is new.
    pub(super) fn insert(&mut self, position: Position) -> bool {
        if let Repr::List(list) = &mut self.0 {
            let Err(index) = list.binary_search(&position) else { return false };
            if list.len() < LIST_MAX {
                list.insert(index, position);
                return true;
            }
            let mut bitmaps: BTreeMap<LedgerId, RoaringTreemap> = BTreeMap::new();
            for old in list.iter() {
                bitmaps.entry(old.ledger_id).or_default().insert(bit(*old));
            }
            self.0 = Repr::Bitmaps(bitmaps);
        }
        match &mut self.0 {
            Repr::Bitmaps(bitmaps) => bitmaps.entry(position.ledger_id).or_default().insert(bit(position)),
            Repr::List(_) => false,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        match &self.0 {
            Repr::List(list) => list.len() as u64,
            Repr::Bitmaps(bitmaps) => bitmaps.values().map(RoaringTreemap::len).sum(),
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        match &self.0 {
            Repr::List(list) => list.is_empty(),
            Repr::Bitmaps(bitmaps) => bitmaps.is_empty(),
        }
    }

    /// Calls with each, in order.
    pub(super) fn for_each(&self, call: &mut impl FnMut(Position)) {
        match &self.0 {
            Repr::List(list) => list.iter().copied().for_each(call),
            Repr::Bitmaps(bitmaps) => bitmaps
                .iter()
                .flat_map(|(ledger_id, bitmap)| bitmap.iter().map(|bit| at(*ledger_id, bit)))
                .for_each(call),
        }
    }

    /// Moves up to `max` of the lowest to the end of `out`.
    pub(super) fn take_first(&mut self, max: usize, out: &mut Vec<Position>) {
        match &mut self.0 {
            Repr::List(list) => out.extend(list.drain(..max.min(list.len()))),
            Repr::Bitmaps(bitmaps) => {
                let mut left = max;
                while left > 0
                    && let Some(mut first) = bitmaps.first_entry()
                {
                    let ledger_id = *first.key();
                    let bits: Vec<u64> = first.get().iter().take(left).collect();
                    if let (Some(lowest), Some(highest)) = (bits.first(), bits.last()) {
                        first.get_mut().remove_range(*lowest..=*highest);
                    }
                    left -= bits.len();
                    out.extend(bits.into_iter().map(|bit| at(ledger_id, bit)));
                    if first.get().is_empty() {
                        first.remove();
                    }
                }
            }
        }
    }

    /// Removes each at or below `last`.
    pub(super) fn remove_up_to(&mut self, last: Position) {
        match &mut self.0 {
            Repr::List(list) => list.retain(|position| *position > last),
            Repr::Bitmaps(bitmaps) => {
                *bitmaps = bitmaps.split_off(&last.ledger_id);
                if last.entry_id >= EntryId(0)
                    && let Some(bitmap) = bitmaps.get_mut(&last.ledger_id)
                {
                    bitmap.remove_range(..=bit(last));
                    if bitmap.is_empty() {
                        bitmaps.remove(&last.ledger_id);
                    }
                }
            }
        }
    }

    /// What it costs, roughly, without the two bytes per entry of bitmaps.
    pub(super) fn index_bytes(&self) -> u64 {
        match &self.0 {
            Repr::List(list) if list.len() <= INLINE => LIST_BYTES,
            Repr::List(list) => LIST_BYTES + 16 * list.len() as u64,
            Repr::Bitmaps(bitmaps) => LIST_BYTES + BITMAP_BYTES * bitmaps.len() as u64,
        }
    }
}
