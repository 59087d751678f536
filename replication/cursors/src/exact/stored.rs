//! One region's acknowledgements of one subscription as they are stored.
//!
//! | field | meaning |
//! |---|---|
//! | 1 byte | version, 1 |
//! | 1 byte | flags: bit 0 = the cursor was moved to the epoch of the state |
//! | ledger + 1, entry + 1 | every entry acknowledged locally up to here is in the state (varints) |
//! | rest | the state, see "Acknowledgements between regions" |
//!
//! Invariants: K1 the state is stored before a peer is told that it is, and before the cursor is moved to a new epoch; a
//! crash between finds the flag unset and moves the cursor again.
//! Failure: [`CodecError`].

use super::state::AckState;
use super::wire::{self, CodecError};
use crate::varint::{put, take, take_bytes};
use meridian_types::Position;

const VERSION: u8 = 1;
const FLAG_APPLIED: u8 = 1;

/// See the head of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredAcks {
    /// What is known.
    pub state: AckState,
    /// The cursor follows the state's epoch.
    pub applied: bool,
    /// Local acks up to here are in the state.
    pub authored_to: Position,
}

impl StoredAcks {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, if self.applied { FLAG_APPLIED } else { 0 }];
        put(&mut out, self.authored_to.ledger_id.0.wrapping_add(1) as u64);
        put(&mut out, self.authored_to.entry_id.0.wrapping_add(1) as u64);
        out.extend(wire::encode(&self.state));
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(mut bytes: &[u8]) -> Result<Self, CodecError> {
        let raw = &mut bytes;
        let head = take_bytes(raw, 2).ok_or(CodecError::Short)?;
        if head[0] != VERSION {
            return Err(CodecError::Version(head[0]));
        }
        if head[1] & !FLAG_APPLIED != 0 {
            return Err(CodecError::Bad("flags"));
        }
        let one = |raw: &mut &[u8]| take(raw).map(|value| (value as i64).wrapping_sub(1)).ok_or(CodecError::Short);
        let authored_to = Position::new(one(raw)?, one(raw)?);
        Ok(Self { applied: head[1] == FLAG_APPLIED, authored_to, state: wire::decode(bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Epoch, Origin};
    use meridian_types::{Incarnation, RegionId};

    #[test]
    fn golden_bytes() {
        let mut state = AckState::new(Epoch::creation(5, RegionId(7)));
        state.raise_upto(Origin::new(RegionId(7), Incarnation(9)), Position::new(1, 2));
        let stored = StoredAcks { state, applied: true, authored_to: Position::new(3, 299) };
        let raw = stored.encode();
        let head = [1, 1, 4, 0xac, 2];
        let state = [1, 0, 1, 5, 7, 0, 0, 0, 1, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, 3, 0, 0];
        assert_eq!(raw, [&head[..], &state].concat());
        assert_eq!(StoredAcks::decode(&raw), Ok(stored));
        assert_eq!(StoredAcks::decode(&[2, 0]), Err(CodecError::Version(2)));
        assert_eq!(StoredAcks::decode(&raw[..4]), Err(CodecError::Short));
    }
}
