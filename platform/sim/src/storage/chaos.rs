//! What goes wrong, and when it ends.
//!
//! Invariants: X1 what is done to disks leaves what the design promises to survive: no more bookies are lost for ever at
//! once than Qa − 1, a second one only when nothing is left of the first, and damage leaves two good copies.

use super::net::Proc;
use super::world::{Event, LOOK_MS, World};
use meridian_types::LedgerId;

impl World {
    pub(super) fn chaos(&mut self) {
        if self.now_ms() >= 10_000 + self.plan.chaos_ms {
            return self.heal();
        }
        self.queue.after(LOOK_MS, Event::Chaos);
        if self.rng.hits(self.plan.bookie_crash) {
            self.crash_bookie();
        }
        if self.rng.hits(self.plan.bookie_lost) {
            self.lose_bookie();
        }
        if self.rng.hits(self.plan.damage) {
            self.damage();
        }
        let proc = self.rng.below(self.procs.len() as u64) as Proc;
        if self.rng.hits(self.plan.crash) && self.procs[proc].up {
            self.kill(proc);
            self.coverage.process_crashes += 1;
            let back_ms = self.rng.between(50, 600);
            self.queue.after(back_ms, Event::Revive { proc });
        }
        if self.rng.hits(self.plan.pause) && self.procs[proc].up {
            self.procs[proc].paused_until_ms = self.now_ms() + self.rng.between(100, 1_200);
            self.coverage.pauses += 1;
            self.note(|| format!("process {proc} is paused"));
        }
        if self.rng.hits(self.plan.partition) {
            let bookie = self.rng.below(self.bookies.len() as u64) as usize;
            let until_ms = self.now_ms() + self.rng.between(50, 500);
            self.parted.insert((proc, bookie), until_ms);
            self.coverage.partitions += 1;
        }
        if self.rng.hits(self.plan.metadata_outage) {
            self.metadata.away_until_ms = self.now_ms() + self.rng.between(50, 500);
            self.coverage.metadata_outages += 1;
        }
        // Look-ups name another broker when the owner is gone, and now and then without a reason.
        let gone = !self.procs[self.assigned].up || self.procs[self.assigned].paused_until_ms > self.now_ms();
        if self.rng.hits(self.plan.reassign + if gone { 200 } else { 0 }) {
            let to = self.rng.below(self.plan.brokers as u64) as Proc;
            self.assignments += u64::from(to != self.assigned);
            self.assigned = to;
        }
    }

    fn crash_bookie(&mut self) {
        let at = self.rng.below(self.bookies.len() as u64) as usize;
        if !self.bookies[at].up {
            return;
        }
        // Often nothing of what was not synced is there, often a part.
        let keep = if self.rng.hits(500) { 0 } else { self.rng.below(6) as usize };
        let there = self.bookies[at].crash(keep);
        self.bookies[at].down_since_ms = self.now_ms();
        self.coverage.bookie_crashes += 1;
        self.coverage.torn += u64::from(there > keep && keep > 0);
        self.coverage.unsynced_lost += there.saturating_sub(keep) as u64;
        self.note(|| format!("bookie {at} crashes, {keep} of {there} records reached its disk"));
        let (back_ms, life) = (self.rng.between(30, 900), self.bookies[at].life);
        self.queue.after(back_ms, Event::Restart { bookie: at, life });
    }

    pub(super) fn restart_bookie(&mut self, at: usize, life: u64) {
        let bookie = &mut self.bookies[at];
        if bookie.life == life && !bookie.lost && !bookie.up {
            bookie.up = true;
            self.note(|| format!("bookie {at} is back"));
        }
    }

    /// X1.
    fn lose_bookie(&mut self) {
        let lost = self.bookies.iter().filter(|bookie| bookie.lost);
        let lost: Vec<_> = lost.map(|bookie| bookie.id.clone()).collect();
        let spare = self.bookies.len() - self.plan.ensemble as usize;
        let drained = lost.iter().all(|id| !self.metadata.holdings.iter().any(|(bookie, _)| bookie == id));
        if self.plan.ack_quorum < 2 || lost.len() >= spare.min(2) || !drained {
            return;
        }
        let at = self.rng.below(self.bookies.len() as u64) as usize;
        if self.bookies[at].lost {
            return;
        }
        self.bookies[at].lose();
        self.bookies[at].down_since_ms = self.now_ms();
        self.coverage.bookies_lost += 1;
        self.note(|| format!("bookie {at} is lost for ever"));
    }

    fn damage(&mut self) {
        let ledgers: Vec<LedgerId> = self.metadata.ledgers.keys().copied().collect();
        if ledgers.is_empty() {
            return;
        }
        let ledger = ledgers[self.rng.below(ledgers.len() as u64) as usize];
        let confirmed = self.oracle.confirmed_of(ledger);
        if confirmed < 0 {
            return;
        }
        let entry = self.rng.below(confirmed as u64 + 1) as i64;
        let good = self.good_copies(ledger, entry);
        if good.len() >= 3 {
            self.bookies[good[0]].damage(ledger, entry);
            self.oracle.damaged = true;
            self.coverage.damaged += 1;
        }
    }

    /// Bookies that metadata names for an entry and that have a good durable copy.
    pub(super) fn good_copies(&self, ledger: LedgerId, entry: i64) -> Vec<usize> {
        let mut holders = self.holders(ledger, entry);
        holders.retain(|at| !self.bookies[*at].lost && self.bookies[*at].good(ledger, entry));
        holders
    }

    /// Nothing goes wrong any more.
    fn heal(&mut self) {
        self.healed = true;
        self.healed_ms = self.now_ms();
        self.parted.clear();
        self.metadata.away_until_ms = 0;
        let down: Vec<usize> = (0..self.bookies.len()).filter(|at| !self.bookies[*at].up).collect();
        for at in down {
            let life = self.bookies[at].life;
            self.restart_bookie(at, life);
        }
        for proc in 0..self.procs.len() {
            self.procs[proc].paused_until_ms = 0;
            self.revive(proc);
        }
        self.note(|| "nothing goes wrong any more".to_owned());
        self.queue.after(LOOK_MS, Event::Settled);
    }
}
