//! What the remote answers to sends: receipts and refusals.
//!
//! Invariants: M2, M4 of [`super`]; A1 a receipt counts for exactly one send of its session; A2 after a refusal the answers
//! to what was sent before it still count, where it is sure what they mean.
//! Must never know: as [`super`].

use super::flight::{Match, Progress};
use super::words::{Notice, Peer, Receipt, SendRefusal};
use super::{Machine, Out, Phase};
use meridian_types::Position;

impl Machine {
    pub(super) fn receipts(&mut self, receipts: &[Receipt], out: &mut Out) {
        let Phase::Open { peer, .. } = self.phase else { return };
        for receipt in receipts {
            match self.flight.find(receipt, peer.positions) {
                Match::Slot(at) => self.receipt(at, receipt, peer, out),
                Match::Stale => self.counters.stale_receipts += 1,
                Match::Unknown => {
                    self.refused = Some(format!(
                        "a receipt ({}, {}) for what was not sent",
                        receipt.sequence_id, receipt.highest_sequence_id
                    ));
                    self.end(false);
                }
            }
        }
    }

    fn receipt(&mut self, at: usize, receipt: &Receipt, peer: Peer, out: &mut Out) {
        let Some((position, marker, messages)) = self.flight.slot(at).map(|s| (s.position, s.marker, s.messages))
        else {
            return;
        };
        if peer.positions && !marker {
            let passed = self.flight.refuse_passed_over(at);
            if !passed.is_empty() {
                self.counters.refused += passed.len() as u64;
                self.refused = Some(format!("no receipt for {} entries before {position}", passed.len()));
                passed.into_iter().for_each(|position| self.proof.refused(position));
                self.end(false);
            }
        }
        if self.flight.is_behind_undecided(at) {
            return self.undecided(at, position);
        }
        let duplicate = receipt.position == Position::EARLIEST;
        if duplicate && !marker && !self.proof.believes(position, peer) {
            self.announce(Notice::Unproven { position }, out);
            self.flight.settle(at, Progress::Refused);
            self.refused = Some(format!("{position} called a duplicate though it was never taken"));
            self.end(true);
            return;
        }
        if duplicate {
            self.counters.duplicates += 1;
            self.counters.unproven_duplicates += u64::from(!peer.meridian && !peer.positions);
        }
        self.flight.settle(at, Progress::Stored);
        if !marker {
            self.proof.stored(position);
        }
        self.reader.expect_acked_up_to(position);
        self.counters.entries_stored += 1;
        self.counters.messages_stored += u64::from(messages);
        out.acks.push(position);
        self.window = (self.window + 1).min(self.config.bounds.max_waiting_entries);
        self.progressed();
        self.let_through(out);
    }

    /// It is sent again, and its answer then counts.
    fn undecided(&mut self, at: usize, position: Position) {
        self.proof.unanswered(position);
        self.flight.settle(at, Progress::Undecided);
    }

    /// Something got through: what was said of trouble is over, unless the session is just ending because of it.
    fn progressed(&mut self) {
        self.progress_ms = self.now.ms;
        self.stalled_since_ms = None;
        if self.ending.is_none() {
            self.refused = None;
            self.backoff.reset();
        }
    }

    /// What is through leaves; what was passed over by rule is acknowledged now.
    pub(super) fn let_through(&mut self, out: &mut Out) {
        while let Some(slot) = self.flight.pop_through() {
            if slot.progress == Progress::Skipped {
                out.acks.push(slot.position);
            }
        }
    }

    pub(super) fn refusals(&mut self, refusals: Vec<SendRefusal>, out: &mut Out) {
        let Phase::Open { peer, .. } = self.phase else { return };
        for refusal in refusals {
            self.counters.refused += 1;
            let named = if peer.positions { self.flight.by_sequence(refusal.sequence_id) } else { None };
            if let Some(at) = named.or_else(|| self.flight.first_waiting()) {
                match self.flight.slot(at).map(|slot| slot.position) {
                    Some(position) if refusal.undecided => self.undecided(at, position),
                    Some(position) => self.proof.refused(position),
                    None => {}
                }
                self.flight.settle(at, Progress::Refused);
            }
            if self.ending.is_none() {
                // The first one is the reason; those behind it are refused because of it.
                self.refused = Some(refusal.error);
            }
            self.end(false);
        }
        if !peer.positions {
            // Which send was meant is not sure, so neither is what later receipts mean: they are not waited for.
            self.close(false, out);
        }
    }
}
