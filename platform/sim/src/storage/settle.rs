//! When everything is over, and what must hold then.

use super::world::{Part, World};
use meridian_ledger::LedgerState;
use meridian_types::{BookieId, LedgerId, Position};

/// After that something is stuck.
const PATIENCE_MS: u64 = 30_000;

impl World {
    pub(super) fn look_if_settled(&mut self) {
        if let Some(waits) = self.waits() {
            if self.now_ms() > self.healed_ms + PATIENCE_MS {
                self.oracle.violation(format!("stuck: {waits}"));
                self.done = true;
            }
            return;
        }
        self.check_end();
        self.done = true;
    }

    /// What is not settled yet.
    fn waits(&mut self) -> Option<String> {
        let proc = self.assigned;
        let Some(broker) = self.broker(proc) else { return Some("nobody is assigned".to_owned()) };
        if !broker.is_serving() {
            return Some("the log is not served".to_owned());
        }
        if broker.read_next <= broker.log.last_confirmed() || !broker.unacked.is_empty() {
            return Some(format!("the consumer stands at {:?}", broker.read_next));
        }
        if self.now_ms() < self.healed_ms + 800 {
            return Some("publishes go on".to_owned());
        }
        let lost: Vec<_> = self.bookies.iter().filter(|bookie| bookie.lost).map(|bookie| bookie.id.clone()).collect();
        if let Some((bookie, ledger)) = self.metadata.holdings.iter().find(|(bookie, _)| lost.contains(bookie)).cloned()
        {
            if self.is_beyond_recovery(ledger, &lost) {
                // What an operator does.
                self.execute_delete(ledger);
            }
            return Some(format!("ledger {ledger} still has {bookie}, which is lost"));
        }
        let working = self.procs.iter().any(|process| match &process.part {
            Part::Worker(planner) => planner.counts() != (0, 0, 0),
            Part::Broker(_) => false,
        });
        working.then(|| "workers are at work".to_owned())
    }

    /// An open ledger in which nothing was confirmed and of which more members are lost for ever than may be missing
    /// from a recovery: nobody can prove that it is empty, so it stays until an operator deletes it. Not if the log's list names it.
    fn is_beyond_recovery(&self, ledger: LedgerId, lost: &[BookieId]) -> bool {
        let Some((record, _)) = self.metadata.ledgers.get(&ledger) else { return false };
        let members = record.ensembles.last().map(|ensemble| &ensemble.bookies);
        let gone = members.into_iter().flatten().filter(|member| lost.contains(member)).count();
        let spare = (record.layout.write_quorum() - record.layout.ack_quorum()) as usize;
        let listed = self.metadata.log.ledgers.iter().any(|one| one.id == ledger);
        !listed && record.state != LedgerState::Closed && self.oracle.confirmed_of(ledger) < 0 && gone > spare
    }

    fn check_end(&mut self) {
        let ack_quorum = if self.oracle.damaged { 1 } else { self.plan.ack_quorum as usize };
        for ledger in self.oracle.ledgers() {
            let Some((record, _)) = self.metadata.ledgers.get(&ledger).cloned() else { continue };
            let confirmed = self.oracle.confirmed_of(ledger);
            if record.state == LedgerState::Closed {
                let last = record.last_entry.0;
                self.oracle
                    .ensure(confirmed <= last, || format!("lost: {ledger} ends at {last}, {confirmed} confirmed"));
            }
            for entry in 0..=confirmed {
                let copies = self.good_copies(ledger, entry).len();
                self.oracle.ensure(copies >= ack_quorum, || {
                    format!("lost: {ledger}:{entry} was confirmed and has {copies} copies in {record:?}")
                });
            }
        }
        self.check_everything_acked();
    }

    /// The consumer has seen and acknowledged all that was confirmed.
    fn check_everything_acked(&mut self) {
        let listed: Vec<LedgerId> = self.metadata.log.ledgers.iter().map(|ledger| ledger.id).collect();
        for ledger in self.oracle.ledgers() {
            for entry in 0..=self.oracle.confirmed_of(ledger) {
                let position = Position { ledger_id: ledger, entry_id: meridian_types::EntryId(entry) };
                let acked = self.oracle.is_acked(position);
                self.oracle.ensure(acked, || {
                    format!(
                        "lost: {ledger}:{entry} was confirmed and never reached the consumer; the log is {listed:?}"
                    )
                });
            }
        }
    }
}
