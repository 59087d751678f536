//! The shell of a ledger's writer: entries in, confirmations out, its record changed by compare-and-set.
//!
//! Invariants: as the real shell: one update of the record at a time; a close waits for a change that is under way.

use super::bug::Bug;
use super::metadata::Meta;
use super::net::{Address, Ask, Token};
use super::world::World;
use bytes::Bytes;
use meridian_bookie_api::EntryBytes;
use meridian_ledger::layout::Layout;
use meridian_ledger::record::Stored;
use meridian_ledger::writer::machine::{Pending, WriterMachine};
use meridian_ledger::writer::update::{Intent, RecordUpdate, UpdateFailure, UpdateStep};
use meridian_ledger::writer::words::{ChangeRefusal, Mode, WriterEffect};
use meridian_ledger::{LedgerError, LedgerRecord};
use meridian_metadata::Version;
use meridian_types::{BookieId, EntryId, LedgerId};

/// How long an update of the record may take.
const PATIENCE_MS: u64 = 600;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Change,
    Close,
}

/// A writer with what its shell keeps.
pub(super) struct WriterJob {
    pub machine: WriterMachine,
    pub ledger: LedgerId,
    pub known: (LedgerRecord, Version),
    update: Option<(RecordUpdate, Kind)>,
    /// The record as last read: what a store changes.
    before: LedgerRecord,
    /// Its close is in metadata.
    pub closed: bool,
    pub ended: bool,
}

impl WriterJob {
    pub fn new(world: &World, ledger: LedgerId, record: LedgerRecord, version: Version) -> Self {
        let mut layout = record.layout;
        if world.bug == Bug::ConfirmsTooEarly {
            let ack_quorum = (layout.ack_quorum() - 1).max(1);
            layout = Layout::new(layout.ensemble_size(), layout.write_quorum(), ack_quorum).unwrap_or(layout);
        }
        let ensemble = record.last_ensemble().bookies.clone();
        let machine = WriterMachine::new(ledger, layout, Mode::Append, world.times(), &ensemble, EntryId::NONE);
        Self {
            machine,
            ledger,
            before: record.clone(),
            known: (record, version),
            update: None,
            closed: false,
            ended: false,
        }
    }
}

impl World {
    /// Appends some entries.
    pub(super) fn append(&mut self, to: Address, job: &mut WriterJob, count: u64) {
        let first = job.machine.next_entry().0;
        let (ledger, now_ms) = (job.ledger, self.now_ms());
        let made: Vec<(i64, Bytes)> = (first..first + count as i64)
            .map(|id| (id, Bytes::from(format!("{ledger}:{id} of {}.{} {}", to.proc, to.life, self.rng.below(1000)))))
            .collect();
        let pending = made.iter().map(|(id, body)| {
            let entry = EntryBytes::plain(body.clone());
            let digest = entry.digest(ledger, EntryId(*id));
            Pending::new(entry, digest)
        });
        if job.machine.append(now_ms, pending.collect()).is_ok() {
            self.coverage.appended += count;
            made.into_iter().for_each(|(id, body)| self.oracle.appended(ledger, id, body));
        }
    }

    /// Carries out what the writer decided; answers whether it did anything, and whether it is over.
    pub(super) fn pump_writer(&mut self, to: Address, job: &mut WriterJob) -> (bool, bool) {
        let effects = job.machine.take_effects();
        let moved = !effects.is_empty();
        for effect in effects {
            match effect {
                WriterEffect::Send { bookie, entries, .. } => {
                    self.ask_bookie(to, &bookie, Token::None, Ask::Add(entries));
                }
                WriterEffect::TellLac { bookies, last_add_confirmed } => {
                    for bookie in bookies {
                        self.ask_bookie(to, &bookie, Token::None, Ask::Lac(job.ledger, last_add_confirmed));
                    }
                }
                WriterEffect::Replace(change) => match self.replacement(&change) {
                    Ok(bookies) => {
                        self.begin_update(to, job, Kind::Change, Intent::Change { first: change.first, bookies });
                    }
                    Err(available) => {
                        let refusal = ChangeRefusal::NoReplacement { available };
                        job.machine.change_refused(self.now_ms(), refusal);
                    }
                },
                WriterEffect::Confirmed(up_to) => self.confirmed(to, job.ledger, up_to),
                WriterEffect::Ended(error) => {
                    self.coverage.fenced_writers += u64::from(matches!(error, LedgerError::Fenced(_)));
                    self.note(|| format!("process {}: writer of {} ends: {error}", to.proc, job.ledger));
                    job.ended = true;
                    return (true, true);
                }
                WriterEffect::Drained => {
                    let (last_entry, length_bytes) = (job.machine.confirmed(), job.machine.confirmed_bytes());
                    self.begin_update(to, job, Kind::Close, Intent::Close { last_entry, length_bytes });
                }
            }
        }
        (moved, job.closed || job.ended)
    }

    fn begin_update(&mut self, to: Address, job: &mut WriterJob, kind: Kind, intent: Intent) {
        let deadline_ms = self.now_ms() + PATIENCE_MS;
        let early = (self.bug == Bug::CountsBeforeStored && kind == Kind::Change).then(|| match &intent {
            Intent::Change { bookies, .. } => bookies.clone(),
            Intent::Close { .. } => Vec::new(),
        });
        job.before = job.known.0.clone();
        let (update, step) = RecordUpdate::begin(job.ledger, intent, job.known.clone(), deadline_ms);
        job.update = Some((update, kind));
        self.follow(to, job, step);
        if let Some(ensemble) = early {
            job.machine.ensemble_changed(self.now_ms(), &ensemble);
        }
    }

    pub(super) fn update_stored(&mut self, to: Address, job: &mut WriterJob, outcome: Stored) {
        let Some((update, _)) = &mut job.update else { return };
        let step = update.stored(outcome);
        self.follow(to, job, step);
    }

    pub(super) fn update_loaded(
        &mut self,
        to: Address,
        job: &mut WriterJob,
        result: Result<(LedgerRecord, Version), LedgerError>,
    ) {
        let now_ms = self.now_ms();
        let Some((update, _)) = &mut job.update else { return };
        if let Ok((record, _)) = &result {
            job.before = record.clone();
        }
        let step = update.loaded(now_ms, result);
        self.follow(to, job, step);
    }

    fn follow(&mut self, to: Address, job: &mut WriterJob, step: UpdateStep) {
        let result = match step {
            UpdateStep::Store(record, version) => {
                let (before, record) = (Some(Box::new(job.before.clone())), Box::new(record));
                let (ledger, version) = (job.ledger, Some(version));
                return self.ask_metadata(to, Meta::Store { ledger, before, record, version });
            }
            UpdateStep::Load { .. } => return self.ask_metadata(to, Meta::Load(job.ledger)),
            UpdateStep::Done(result) => result,
        };
        let kind = job.update.take().map(|(_, kind)| kind);
        match (kind, result) {
            (Some(Kind::Change), Ok(known)) => {
                self.coverage.ensemble_changes += 1;
                let ensemble: Vec<BookieId> = known.0.last_ensemble().bookies.clone();
                self.note(|| {
                    format!("ledger {} goes on with {ensemble:?} from {}", job.ledger, known.0.last_ensemble().first)
                });
                job.known = known;
                job.machine.ensemble_changed(self.now_ms(), &ensemble);
            }
            (Some(Kind::Change), Err(UpdateFailure::Lost(error))) => {
                job.machine.change_refused(self.now_ms(), ChangeRefusal::Lost(error));
            }
            (Some(Kind::Change), Err(UpdateFailure::Unknown(error))) => {
                job.machine.change_refused(self.now_ms(), ChangeRefusal::Unknown(error.to_string()));
            }
            (Some(Kind::Close), Ok(known)) => {
                self.coverage.rolls += 1;
                job.known = known;
                job.closed = true;
            }
            (Some(Kind::Close), Err(UpdateFailure::Lost(error) | UpdateFailure::Unknown(error))) => {
                job.machine.finish(error);
                job.ended = true;
            }
            (None, _) => {}
        }
    }
}
