//! The metadata store: records of ledgers with their holdings, the log's record, marks of bookies that leave.
//!
//! Invariants: M1 every write is a compare-and-set; M2 an answer may get lost after the write was made: then its outcome is
//! unknown to who asked; M3 while the store is away nothing is answered, and what is asked may be made all the same.

use super::bug::Bug;
use super::net::{Address, Proc};
use super::world::{Event, World};
use meridian_autorecovery::auditor::Scene;
use meridian_autorecovery::records::Leaving;
use meridian_ledger::keys::{holding_changes, holding_of};
use meridian_ledger::record::Stored;
use meridian_ledger::{LedgerError, LedgerRecord};
use meridian_managed_ledger::CursorAcks;
use meridian_metadata::{MetadataError, Operation, Version};
use meridian_types::{BookieId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};

/// A ledger in the log's list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Listed {
    pub id: LedgerId,
    /// Entries, if it is closed.
    pub entries: Option<u64>,
}

/// The log's record: its ledgers and its cursor.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LogRecord {
    pub epoch: u64,
    pub owner: Proc,
    pub ledgers: Vec<Listed>,
    pub acks: Option<CursorAcks>,
}

/// What is asked.
#[derive(Debug, Clone)]
pub(super) enum Meta {
    Load(LedgerId),
    Store { ledger: LedgerId, before: Option<Box<LedgerRecord>>, record: Box<LedgerRecord>, version: Option<Version> },
    Delete(LedgerId),
    LoadLog,
    StoreLog { record: Box<LogRecord>, version: Version },
    Look,
    Mark(BookieId, Option<Leaving>),
}

/// What a look of autorecovery sees.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub scene: Scene,
    /// Ledgers of each bookie that leaves.
    pub holdings: BTreeMap<BookieId, Vec<LedgerId>>,
}

/// What is answered.
#[derive(Debug, Clone)]
pub(super) enum MetaAnswer {
    Ledger(Result<(LedgerRecord, Version), LedgerError>),
    Stored(Stored),
    Log(Option<(LogRecord, Version)>),
    Seen(Option<Box<Seen>>),
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub ledgers: BTreeMap<LedgerId, (LedgerRecord, Version)>,
    pub holdings: BTreeSet<(BookieId, LedgerId)>,
    pub log: LogRecord,
    pub log_version: u64,
    pub leaving: BTreeMap<BookieId, Leaving>,
    pub away_until_ms: u64,
    versions: u64,
    ids: i64,
}

impl Metadata {
    fn next_version(&mut self) -> Version {
        self.versions += 1;
        Version(self.versions)
    }

    /// An id never given before.
    pub fn allocate(&mut self) -> LedgerId {
        self.ids += 1;
        LedgerId(self.ids)
    }

    fn change_holdings(&mut self, operations: Vec<Operation>) {
        for operation in operations {
            match operation {
                Operation::Put { key, .. } => self.holdings.extend(holding_of(&key)),
                Operation::Delete { key, .. } => {
                    if let Some(holding) = holding_of(&key) {
                        self.holdings.remove(&holding);
                    }
                }
                Operation::Check { .. } => {}
            }
        }
    }
}

fn unknown() -> MetadataError {
    MetadataError::UnknownOutcome("no answer".to_owned())
}

/// What whoever asked is told when no answer comes.
fn silence(op: &Meta) -> MetaAnswer {
    match op {
        Meta::Load(_) => MetaAnswer::Ledger(Err(LedgerError::Metadata(unknown()))),
        Meta::Store { .. } | Meta::Delete(_) | Meta::StoreLog { .. } | Meta::Mark(..) => {
            MetaAnswer::Stored(Stored::Unknown(unknown()))
        }
        Meta::LoadLog => MetaAnswer::Log(None),
        Meta::Look => MetaAnswer::Seen(None),
    }
}

/// After that a call has no answer.
const TIMEOUT_MS: u64 = 200;

impl World {
    /// The ledger is gone, and sooner or later its copies.
    pub(super) fn execute_delete(&mut self, ledger: LedgerId) {
        if let Some((record, _)) = self.metadata.ledgers.remove(&ledger) {
            self.metadata.change_holdings(holding_changes(ledger, Some(&record), None));
            self.bookies.iter_mut().for_each(|bookie| bookie.collect(ledger));
            self.coverage.trimmed += 1;
        }
    }

    /// Asks the store.
    pub(super) fn ask_metadata(&mut self, from: Address, op: Meta) {
        let serial = self.number();
        self.procs[from.proc].waiting.insert(serial);
        self.queue.after(TIMEOUT_MS, Event::MetaAnswer { to: from, serial, answer: silence(&op) });
        let lost = !self.healed && self.rng.hits(self.plan.loss / 2);
        if !lost {
            // Now and then a call arrives after its time is over.
            let late_ms = if !self.healed && self.rng.hits(10) { 300 } else { 0 };
            let travel_ms = late_ms + self.rng.between(1, 8);
            self.queue.after(travel_ms, Event::Meta { from, serial, op });
        }
    }

    pub(super) fn meta_asked(&mut self, from: Address, serial: u64, op: Meta) {
        let away = self.metadata.away_until_ms > self.now_ms();
        if away && self.rng.hits(700) {
            return;
        }
        let writes = matches!(op, Meta::Store { .. } | Meta::StoreLog { .. });
        let answer = self.carry_out(from, op);
        let lost = away || (!self.healed && self.rng.hits(self.plan.loss / 2));
        if lost {
            self.coverage.unknown_outcomes += u64::from(writes);
            return;
        }
        let travel_ms = self.rng.between(1, 8);
        self.queue.after(travel_ms, Event::MetaAnswer { to: from, serial, answer });
    }

    fn carry_out(&mut self, from: Address, op: Meta) -> MetaAnswer {
        match op {
            Meta::Load(ledger) => {
                let found = self.metadata.ledgers.get(&ledger).cloned();
                MetaAnswer::Ledger(found.ok_or(LedgerError::NoSuchLedger(ledger)))
            }
            Meta::Store { ledger, before, record, version } => {
                // Only workers replicate; what else they store closes a ledger.
                let by_replication = from.proc >= self.plan.brokers && !self.closes(ledger, &record);
                MetaAnswer::Stored(self.store(ledger, before.as_deref(), *record, version, by_replication))
            }
            Meta::Delete(ledger) => {
                self.check_delete(ledger);
                self.execute_delete(ledger);
                MetaAnswer::Stored(Stored::Done(self.metadata.next_version()))
            }
            Meta::LoadLog => MetaAnswer::Log(Some((self.metadata.log.clone(), Version(self.metadata.log_version)))),
            Meta::StoreLog { record, version } => {
                if version.0 != self.metadata.log_version {
                    return MetaAnswer::Stored(Stored::Changed);
                }
                self.check_log(&record);
                self.metadata.log = *record;
                self.metadata.log_version += 1;
                MetaAnswer::Stored(Stored::Done(Version(self.metadata.log_version)))
            }
            Meta::Look => MetaAnswer::Seen(Some(Box::new(self.see()))),
            Meta::Mark(bookie, mark) => {
                match mark {
                    Some(mark) => drop(self.metadata.leaving.insert(bookie, mark)),
                    None => drop(self.metadata.leaving.remove(&bookie)),
                }
                MetaAnswer::Stored(Stored::Done(self.metadata.next_version()))
            }
        }
    }

    /// Whether a record goes on in its life.
    fn closes(&self, ledger: LedgerId, record: &LedgerRecord) -> bool {
        self.metadata.ledgers.get(&ledger).is_none_or(|(old, _)| old.state != record.state)
    }

    fn store(
        &mut self,
        ledger: LedgerId,
        before: Option<&LedgerRecord>,
        record: LedgerRecord,
        version: Option<Version>,
        by_replication: bool,
    ) -> Stored {
        let there = self.metadata.ledgers.get(&ledger);
        let blind = self.bug == Bug::ChangesWithoutCompare && record.state == meridian_ledger::LedgerState::Open;
        if there.map(|(_, version)| *version) != version && !(blind && there.is_some()) {
            return Stored::Changed;
        }
        if !blind {
            let same = there.map(|(record, _)| record) == before;
            self.oracle.ensure(same, || format!("holdings: ledger {ledger} is changed from a record that it was not"));
        }
        self.check_transition(ledger, &record, by_replication);
        let changes = holding_changes(ledger, before, Some(&record));
        if self.bug != Bug::HoldingsForgotten || before.is_none() {
            self.metadata.change_holdings(changes);
        }
        let version = self.metadata.next_version();
        self.metadata.ledgers.insert(ledger, (record, version));
        self.check_holdings(ledger);
        Stored::Done(version)
    }

    fn see(&self) -> Seen {
        let registered = self.bookies.iter().filter(|bookie| self.is_registered(bookie));
        let scene = Scene {
            holders: self.metadata.holdings.iter().map(|(bookie, _)| bookie.clone()).collect(),
            registered: Some(registered.map(|bookie| bookie.id.clone()).collect()),
            leaving: self.metadata.leaving.clone(),
        };
        let of = |bookie: &BookieId| {
            let own = self.metadata.holdings.iter().filter(|(holder, _)| holder == bookie);
            own.map(|(_, ledger)| *ledger).collect()
        };
        let holdings = self.metadata.leaving.keys().map(|bookie| (bookie.clone(), of(bookie))).collect();
        Seen { scene, holdings }
    }
}
