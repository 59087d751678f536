//! Models of what may be at the other end.

use crate::machine::words::{Outgoing, Peer, Receipt};
use meridian_types::Position;
use meridian_wire::replicate::MARKER_RECEIPT;
use std::collections::{HashMap, HashSet};

/// Kinds of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Deduplicates by origin; refuses everything behind a refused send until it comes again.
    Meridian,
    /// Deduplicates by the highest source position per producer name; refuses single sends.
    Pulsar,
    /// Pulsar without deduplication.
    Forgetful,
    /// Before receipts named positions; no deduplication.
    Old,
}

impl Kind {
    /// As it says of itself.
    pub fn peer(self) -> Peer {
        Peer { meridian: self == Kind::Meridian, positions: self != Kind::Old, max_entry_bytes: 1 << 20 }
    }
}

/// Marks of one producer name.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    pushed: Option<Position>,
    persisted: Option<Position>,
}

/// What becomes of a send when it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Will be stored.
    Store,
    /// Answered at once with this receipt.
    Duplicate(Receipt),
    /// Answered at once with an error.
    Refuse,
    /// Answered at once: it is in hand, nobody knows yet.
    Undecided,
}

/// The topic at the other end.
pub struct RemoteTopic {
    /// What it is.
    pub kind: Kind,
    /// Source positions in the order stored.
    pub stored: Vec<Position>,
    held: HashSet<Position>,
    marks: HashMap<u64, Marks>,
    gate: HashMap<u64, Position>,
}

impl RemoteTopic {
    /// Empty.
    pub fn new(kind: Kind) -> Self {
        Self { kind, stored: Vec::new(), held: HashSet::new(), marks: HashMap::new(), gate: HashMap::new() }
    }

    /// A send arrives in a session of the producer with that generation; `refuse`: something is in its way.
    pub fn arrive(&mut self, session: u64, generation: u64, sent: &Outgoing, refuse: bool) -> Judged {
        let position = sent.position;
        if self.kind == Kind::Meridian {
            assert_eq!(sent.source_position, Some(position));
            if self.gate.get(&session).is_some_and(|refused| position > *refused) {
                return Judged::Refuse;
            }
            self.gate.remove(&session);
        }
        if refuse {
            self.gate.insert(session, position);
            return Judged::Refuse;
        }
        if sent.marker || matches!(self.kind, Kind::Forgetful | Kind::Old) {
            return Judged::Store;
        }
        // Meridian's marks are those of the origin, whatever the producer is called.
        let name = if self.kind == Kind::Meridian { 0 } else { generation };
        let marks = self.marks.entry(name).or_default();
        if Some(position) <= marks.persisted {
            let receipt = self.receipt(sent, Position::EARLIEST);
            return Judged::Duplicate(receipt);
        }
        if Some(position) <= marks.pushed {
            self.gate.insert(session, position);
            return Judged::Undecided;
        }
        marks.pushed = Some(position);
        Judged::Store
    }

    /// Whether it is stored.
    pub fn holds(&self, position: &Position) -> bool {
        self.held.contains(position)
    }

    /// Forgets what it knows of links.
    pub fn forget(&mut self) {
        self.marks.clear();
        self.gate.clear();
    }

    /// It is stored.
    pub fn store(&mut self, generation: u64, sent: &Outgoing) -> Receipt {
        self.stored.push(sent.position);
        self.held.insert(sent.position);
        if !sent.marker {
            let name = if self.kind == Kind::Meridian { 0 } else { generation };
            let marks = self.marks.entry(name).or_default();
            marks.persisted = marks.persisted.max(Some(sent.position));
        }
        self.receipt(sent, Position::new(900, self.stored.len() as i64))
    }

    fn receipt(&self, sent: &Outgoing, position: Position) -> Receipt {
        let (sequence_id, highest_sequence_id) = match (self.kind, sent.marker) {
            (Kind::Old, _) => (sent.sequence_id, 0),
            (_, true) => (sent.sequence_id, MARKER_RECEIPT),
            _ => (sent.position.ledger_id.0 as u64, sent.position.entry_id.0 as u64),
        };
        Receipt { sequence_id, highest_sequence_id, position }
    }
}
