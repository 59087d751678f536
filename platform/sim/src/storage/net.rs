//! Messages: who asks whom what, and what becomes of it on the way.
//!
//! Invariants: N1 a read or fence is answered once: by its answer or by its time-out, whichever comes first; N2 adds and
//! their answers may come late, in any order, or never; N3 what is asked may arrive although the answer gets lost.

use super::world::{Event, World};
use meridian_bookie_api::{AddEntry, AddResult, BookieError, FenceState, ReadEntry, ReadRequest};
use meridian_types::{EntryId, LedgerId};

/// A broker or worker.
pub(super) type Proc = usize;

/// Whoever asked: a job of one life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub proc: Proc,
    pub life: u64,
    pub job: u64,
}

/// What is asked of a bookie.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Add(Vec<AddEntry>),
    Fence(LedgerId),
    Read(ReadRequest),
    Lac(LedgerId, EntryId),
}

/// What goes back with an answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Token {
    None,
    Member { round: u64, slot: usize },
}

/// What a bookie answers.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Added(Vec<AddResult>),
    Fenced(Result<FenceState, BookieError>),
    Read(Result<Vec<ReadEntry>, BookieError>),
}

/// After that a read or fence has failed.
const TIMEOUT_MS: u64 = 120;

impl World {
    fn is_lost(&mut self) -> bool {
        let lost = !self.healed && self.rng.hits(self.plan.loss);
        self.coverage.lost_messages += u64::from(lost);
        lost
    }

    fn travel_ms(&mut self) -> u64 {
        self.plan.delay_ms + self.rng.below(self.plan.jitter_ms + 1)
    }

    pub(super) fn parted(&self, proc: Proc, bookie: usize) -> bool {
        self.parted.get(&(proc, bookie)).is_some_and(|until| *until > self.now_ms())
    }

    /// Asks a bookie.
    pub(super) fn ask(&mut self, from: Address, bookie: usize, token: Token, ask: Ask) {
        let serial = self.number();
        if matches!(ask, Ask::Fence(_) | Ask::Read(_)) {
            self.procs[from.proc].waiting.insert(serial);
            self.queue
                .after(TIMEOUT_MS, Event::Timeout { to: from, serial, token, reads: matches!(ask, Ask::Read(_)) });
        }
        if self.parted(from.proc, bookie) || self.is_lost() {
            return;
        }
        let travel_ms = self.travel_ms();
        self.queue.after(travel_ms, Event::Ask { bookie, from, serial, token, ask });
    }

    /// The question arrives.
    pub(super) fn asked(&mut self, at: usize, from: Address, serial: u64, token: Token, ask: Ask) {
        if self.parted(from.proc, at) {
            return;
        }
        let bookie = &mut self.bookies[at];
        if !bookie.up {
            let down = || BookieError::Unavailable("down".to_owned());
            let answer = match ask {
                Ask::Add(adds) => {
                    let refused = |add: AddEntry| AddResult {
                        ledger_id: add.ledger_id,
                        entry_id: add.entry_id,
                        result: Err(down()),
                    };
                    Answer::Added(adds.into_iter().map(refused).collect())
                }
                Ask::Fence(_) => Answer::Fenced(Err(down())),
                Ask::Read(_) => Answer::Read(Err(down())),
                Ask::Lac(..) => return,
            };
            return self.answer(at, from, serial, token, answer);
        }
        let now = match ask {
            Ask::Add(adds) => {
                self.check_told(at, &adds);
                self.bookies[at].add(adds, from);
                None
            }
            Ask::Fence(ledger) => {
                bookie.fence(ledger, from, serial, token);
                None
            }
            Ask::Read(request) => bookie.read(request, from, serial, token),
            Ask::Lac(ledger, lac) => {
                bookie.write_lac(ledger, lac);
                self.check_lac(ledger, lac.0, "an explicit one");
                None
            }
        };
        if let Some(due) = now {
            self.answer(at, due.to, due.serial, due.token, due.answer);
        }
        self.begin_sync(at);
    }

    fn begin_sync(&mut self, at: usize) {
        if self.bug == super::Bug::AcksUnsynced {
            for due in self.bookies[at].unsynced_answers() {
                self.answer(at, due.to, due.serial, due.token, due.answer);
            }
        }
        let bookie = &mut self.bookies[at];
        if bookie.has_work() && !bookie.syncing {
            bookie.syncing = true;
            let life = bookie.life;
            let takes_ms = self.rng.between(1, 12);
            self.queue.after(takes_ms, Event::Sync { bookie: at, life });
        }
    }

    /// A sync has ended.
    pub(super) fn synced(&mut self, at: usize, life: u64) {
        if self.bookies[at].life != life || !self.bookies[at].up {
            return;
        }
        self.bookies[at].syncing = false;
        for due in self.bookies[at].sync() {
            self.answer(at, due.to, due.serial, due.token, due.answer);
        }
        self.begin_sync(at);
    }

    fn answer(&mut self, at: usize, to: Address, serial: u64, token: Token, answer: Answer) {
        if self.parted(to.proc, at) || self.is_lost() {
            return;
        }
        let travel_ms = self.travel_ms();
        self.queue.after(travel_ms, Event::Answer { to, bookie: at, serial, token, answer });
    }
}
