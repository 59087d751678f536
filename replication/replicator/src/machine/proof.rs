//! What the link knows of what the remote holds, and when it believes the word *duplicate*.
//!
//! A Pulsar peer judges by the highest source position that it stored under the producer's name. If it refused one entry
//! and stored later ones of the same pipeline, it calls the refused one a duplicate when it is sent again: believing that
//! loses the entry. The same word comes for every entry if the source's positions begin anew below those of an earlier life.
//!
//! Invariants: P1 a duplicate is believed if the peer is Meridian (it says so only for what is proven stored), or if a send
//! of this entry has no answer yet or belongs to an earlier life; never if all its sends were refused; P2 under a new name
//! nothing was ever sent. What a peer calls undecided is no refusal: it has the entry in hand, in the order of the log.
//! Bound: what was sent and is not through is sent first again, so no more is remembered than one window holds.
//! Must never know: time, sockets.

use super::words::{Peer, StartPoint};
use meridian_types::Position;
use std::collections::BTreeSet;

/// See the head of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proof {
    /// Highest position known to be stored.
    stored: Option<Position>,
    /// Refused and not stored since.
    refused: BTreeSet<Position>,
    /// Holes below this are from an earlier life: why is not known.
    unknown_below: Option<Position>,
    /// Highest position sent under this name.
    sent: Option<Position>,
    /// Up to here earlier lives may have sent.
    earlier_up_to: Option<Position>,
    /// Sent in an earlier session, without an answer.
    unanswered: BTreeSet<Position>,
}

impl Proof {
    /// At the start of a link. What an earlier owner may have sent is at most what is confirmed now.
    pub fn at_start(start: &StartPoint) -> Self {
        let sent = (!start.created).then_some(start.last_confirmed);
        Self {
            stored: start.highest_acked,
            refused: BTreeSet::new(),
            unknown_below: start.highest_acked,
            sent,
            earlier_up_to: sent,
            unanswered: BTreeSet::new(),
        }
    }

    /// From now on under a name that the remote never saw (P2).
    pub fn renamed(&mut self) {
        *self = Self::default();
    }

    /// The cursor was moved by hand: what is sent again is not there because it was refused.
    pub fn moved(&mut self) {
        self.stored = None;
        self.unknown_below = None;
        self.refused.clear();
        self.earlier_up_to = self.earlier_up_to.max(self.sent);
    }

    /// A session ends, or has said that it can't tell, and this entry has no answer.
    pub fn unanswered(&mut self, position: Position) {
        self.unanswered.insert(position);
    }

    /// An entry was refused.
    pub fn refused(&mut self, position: Position) {
        self.refused.insert(position);
    }

    /// An entry was sent.
    pub fn sent(&mut self, position: Position) {
        self.sent = self.sent.max(Some(position));
    }

    /// An entry is stored.
    pub fn stored(&mut self, position: Position) {
        self.stored = self.stored.max(Some(position));
        self.refused.remove(&position);
        self.unanswered.remove(&position);
    }

    /// Whether the peer would call an entry a duplicate although it refused it: later ones are stored.
    pub fn is_hole(&self, position: Position, peer: Peer) -> bool {
        let behind_it = self.stored.is_some_and(|stored| position < stored);
        let doubtful = self.refused.contains(&position) || self.unknown_below.is_some_and(|below| position < below);
        !peer.meridian && peer.positions && behind_it && doubtful
    }

    /// Whether the word *duplicate* proves that the entry is there (P1).
    pub fn believes(&self, position: Position, peer: Peer) -> bool {
        let earlier = self.earlier_up_to.is_some_and(|up_to| position <= up_to);
        peer.meridian || !peer.positions || earlier || self.unanswered.contains(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PULSAR: Peer = Peer { meridian: false, positions: true, max_entry_bytes: 0 };
    const MERIDIAN: Peer = Peer { meridian: true, ..PULSAR };
    const OLD: Peer = Peer { positions: false, ..PULSAR };

    fn at(entry: i64) -> Position {
        Position::new(1, entry)
    }

    #[test]
    fn what_was_never_sent_is_no_duplicate() {
        let start =
            StartPoint { first: at(0), last_confirmed: at(9), created: true, highest_acked: None, generation: 0 };
        let fresh = Proof::at_start(&start);
        assert!(!fresh.believes(at(5), PULSAR));
        assert!(fresh.believes(at(5), MERIDIAN) && fresh.believes(at(5), OLD));
        let again = Proof::at_start(&StartPoint { created: false, ..start });
        assert!(again.believes(at(9), PULSAR), "an earlier owner may have sent it");
        assert!(!again.believes(at(10), PULSAR));
    }

    #[test]
    fn only_a_send_without_an_answer_may_have_been_stored() {
        let mut proof = Proof::default();
        proof.sent(at(3));
        assert!(!proof.believes(at(3), PULSAR), "sent once");
        proof.refused(at(3));
        assert!(!proof.believes(at(3), PULSAR), "refused");
        proof.unanswered(at(3));
        assert!(proof.believes(at(3), PULSAR) && !proof.believes(at(4), PULSAR));
        let mut moved = Proof::default();
        moved.sent(at(6));
        moved.moved();
        assert!(moved.believes(at(6), PULSAR) && !moved.believes(at(7), PULSAR));
        proof.renamed();
        assert!(!proof.believes(at(3), PULSAR));
    }

    #[test]
    fn a_hole_was_refused_and_is_below_what_is_stored() {
        let mut proof = Proof::default();
        proof.refused(at(4));
        assert!(!proof.is_hole(at(4), PULSAR), "nothing behind it is stored");
        proof.stored(at(5));
        assert!(proof.is_hole(at(4), PULSAR) && !proof.is_hole(at(3), PULSAR), "3 was not refused");
        assert!(!proof.is_hole(at(4), MERIDIAN) && !proof.is_hole(at(4), OLD));
        let mut stored = proof.clone();
        stored.stored(at(4));
        assert!(!stored.is_hole(at(4), PULSAR));
        proof.moved();
        proof.stored(at(5));
        assert!(!proof.is_hole(at(4), PULSAR));
    }

    #[test]
    fn a_hole_of_an_earlier_life_is_doubtful() {
        let highest_acked = Some(at(7));
        let start = StartPoint { first: at(2), last_confirmed: at(9), created: false, highest_acked, generation: 0 };
        let proof = Proof::at_start(&start);
        assert!(proof.is_hole(at(2), PULSAR) && !proof.is_hole(at(8), PULSAR) && !proof.is_hole(at(2), MERIDIAN));
    }
}
