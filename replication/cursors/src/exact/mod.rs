//! Exact acknowledgements: which messages of a subscription are acknowledged in any region, by their origin.
//!
//! Role: a message's identity is its origin (region, incarnation of the topic there, position there), the same in every
//! region. [`AckState`] is what is known to be acknowledged, a join-semilattice; [`SharedAcks`] holds one region's state
//! of one subscription, merges what peers say and keeps for each peer what it has not confirmed.
//!
//! Invariants:
//! - X1 Merging is commutative, associative and idempotent, so regions converge whatever the order, loss or repetition.
//! - X2 Nothing acknowledged becomes unacknowledged within an epoch. A higher [`Epoch`] (seek, reset, deletion, creation
//!   after it) replaces the whole state; what is not known under it counts as unacknowledged.
//! - X3 `upto` claims every position of the origin up to it. It is authored by the origin region from its own
//!   mark-delete, by whoever raised the epoch as the cut, or follows from acks without a gap between them.
//! - X4 States are canonical: nothing at or below `upto` stands elsewhere, no entry is both whole and partial. Equal
//!   knowledge is equal values.
//! - X5 Memory is bounded. Over the limit new acks are refused, visibly and counted; those held are never dropped.
//!
//! Failure: decoders answer [`CodecError`]; nothing panics on what a peer says.
//! Must never know: how a position is found in a log, who carries deltas, the time but as a number given.

mod entries;
mod epoch;
mod outbox;
mod shared;
mod state;
mod stored;
mod wire;

pub use entries::EntrySet;
pub use epoch::{Epoch, Origin};
pub use outbox::Lag;
pub use shared::{Limits, OverLimit, Received, SharedAcks};
pub use state::{AckState, Ackedness, OriginAcks};
pub use stored::StoredAcks;
pub use wire::{CodecError, MAX_BATCH_WORDS, MAX_ENTRIES, MAX_ORIGINS, decode, encode, encoded_len_at_most};
