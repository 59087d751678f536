//! A consumer of the log: reads in order, acknowledges out of order, sometimes late.

use super::bug::Bug;
use super::net::Proc;
use super::world::World;
use meridian_types::{EntryId, LedgerId, Position};

/// Entries that may wait to be acknowledged.
const UNACKED_MAX: usize = 12;

impl World {
    /// One step of the consumer: a read, and some acknowledgements.
    pub(super) fn consume(&mut self, proc: Proc) {
        self.acknowledge(proc);
        let Some(broker) = self.broker(proc) else { return };
        if broker.reading || broker.unacked.len() >= UNACKED_MAX {
            return;
        }
        let mut next = broker.log.next_valid(broker.read_next);
        // What is acknowledged is not delivered again.
        while next <= broker.log.last_confirmed() && broker.acks.is_acked(next) {
            next = broker.log.successor(next);
        }
        broker.read_next = next;
        if next > broker.log.last_confirmed() {
            return;
        }
        broker.reading = true;
        let Some((record, _)) = self.metadata.ledgers.get(&next.ledger_id).cloned() else { return };
        self.begin_read(proc, &record, next.ledger_id, next.entry_id);
    }

    pub(super) fn read_ended(&mut self, proc: Proc, ledger: LedgerId, entry: EntryId, found: bool) {
        let position = Position { ledger_id: ledger, entry_id: entry };
        let Some(broker) = self.broker(proc) else { return };
        broker.reading = false;
        if !found || broker.read_next != position {
            return;
        }
        broker.read_next = broker.log.successor(position);
        broker.unacked.push(position);
        self.coverage.reads += 1;
    }

    fn acknowledge(&mut self, proc: Proc) {
        let stingy = !self.healed && self.bug != Bug::Nothing;
        let some = if self.healed { UNACKED_MAX } else { usize::from(!stingy) + self.rng.below(2) as usize };
        for _ in 0..some {
            let pick = self.rng.next() as usize;
            let Some(broker) = self.broker(proc) else { return };
            if broker.unacked.is_empty() {
                return;
            }
            let position = broker.unacked.swap_remove(pick % broker.unacked.len());
            let done = broker.acks.ack(&broker.log, position, 1);
            if !done.beyond {
                self.oracle.acked(position);
                self.coverage.acks += 1;
            }
        }
    }
}
