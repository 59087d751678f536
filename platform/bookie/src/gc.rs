//! Garbage collection: ledgers that no longer exist, and the entry logs that only they filled.
//!
//! Invariants: Q1 (S6) a ledger is deleted only if it was here before a listing began, the listing was completed, named
//! at least one ledger (or came with the proof that its store had given out this ledger's id) and did not name this
//! one; Q2 a ledger with entries in a cache is left for the next time; Q3 a
//! log is deleted only after the index that no longer points to it is durable; Q4 while the disk is short the log being written
//! counts like any other: it is left first; Q5 (S3) a fence outlives its ledger: a writer that was paused until its ledger
//! had been recovered, deleted and collected is refused all the same.
//! Failure: an error leaves the rest for the next time.
//! Must never know: where the listing comes from.

use crate::bookie::LocalBookie;
use crate::core::Core;
use crate::disk::DiskState;
use crate::error::StorageError;
use crate::index::Changes;
use meridian_types::{Classify, ErrorClass, LedgerId};
use std::collections::{BTreeMap, HashMap};

/// A listing of all ledgers of the cluster, under way. Begun by [`LocalBookie::begin_listing`] *before* the first page
/// is asked for; dropped if a page fails.
#[derive(Debug)]
#[must_use]
pub struct Listing {
    /// Ledgers held here when the listing began, in order, and whether each was named.
    known: Vec<(LedgerId, bool)>,
    named: u64,
}

impl Listing {
    fn begin(known: Vec<LedgerId>) -> Self {
        Self { known: known.into_iter().map(|ledger_id| (ledger_id, false)).collect(), named: 0 }
    }

    /// Notes one page of existing ledgers.
    pub fn page(&mut self, ledgers: impl IntoIterator<Item = LedgerId>) {
        for ledger_id in ledgers {
            self.named += 1;
            if let Ok(at) = self.known.binary_search_by_key(&ledger_id, |(known, _)| *known) {
                self.known[at].1 = true;
            }
        }
    }

    /// Whether no ledger at all was named.
    pub fn names_nothing(&self) -> bool {
        self.named == 0
    }

    /// As [`Self::complete`] for a listing that may be empty: `next_id` was given out by the listed store *after* the
    /// last page. A store that was wiped starts its ids anew, so ledgers at or above it stay (Q1).
    pub fn complete_below(self, next_id: LedgerId) -> LiveLedgers {
        let gone = self.known.into_iter().filter(|(known, named)| !named && *known < next_id);
        LiveLedgers { gone: gone.map(|(ledger_id, _)| ledger_id).collect() }
    }

    /// The last page has come and every page was answered.
    ///
    /// # Errors
    /// [`EmptyListing`] if no ledger at all was named: absence in an empty listing proves nothing (Q1).
    pub fn complete(self) -> Result<LiveLedgers, EmptyListing> {
        if self.named == 0 && !self.known.is_empty() {
            return Err(EmptyListing { held: self.known.len() });
        }
        let gone = self.known.into_iter().filter(|(_, named)| !named).map(|(ledger_id, _)| ledger_id).collect();
        Ok(LiveLedgers { gone })
    }
}

/// A complete listing, as seen by one node: which of its ledgers are gone.
#[derive(Debug, Clone)]
pub struct LiveLedgers {
    gone: Vec<LedgerId>,
}

impl LiveLedgers {
    /// Ledgers held here that the listing did not name.
    pub fn gone(&self) -> &[LedgerId] {
        &self.gone
    }
}

/// A listing named no ledger at all, though some are held here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the listing names no ledger at all, but {held} are held here; nothing is deleted")]
pub struct EmptyListing {
    /// Ledgers held here.
    pub held: usize,
}

impl Classify for EmptyListing {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

/// What a collection did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GcReport {
    /// Ledgers deleted.
    pub deleted_ledgers: u64,
    /// Entry logs deleted because nothing in them was live.
    pub deleted_logs: u64,
    /// Entry logs rewritten.
    pub compacted_logs: u64,
    /// Bytes given back to the disk.
    pub freed_bytes: u64,
}

/// Live part of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogUse {
    pub log: u32,
    pub live_bytes: u64,
    pub file_bytes: u64,
}

impl LogUse {
    pub fn live_part(&self) -> f64 {
        self.live_bytes as f64 / self.file_bytes.max(1) as f64
    }
}

impl LocalBookie {
    /// Begins a listing of the cluster's ledgers: remembers what is held here now, so that a ledger that comes later
    /// is never judged by it (Q1).
    ///
    /// # Errors
    /// [`StorageError`] if the index cannot be read.
    pub fn begin_listing(&self) -> Result<Listing, StorageError> {
        Ok(Listing::begin(self.ledgers()?))
    }

    /// Deletes the ledgers that are gone, then logs without live entries, then compacts what is due. Blocks.
    ///
    /// # Errors
    /// [`StorageError`]; what was not done is done the next time.
    pub fn gc(&self, live: &LiveLedgers) -> Result<GcReport, StorageError> {
        let core = self.core();
        let mut report = GcReport::default();
        core.metrics.gc_runs.inc();
        core.delete_ledgers(&live.gone, &mut report)?;
        core.leave_log_if_short();
        let uses = core.delete_dead_logs(&mut report)?;
        core.compact_due(&uses, &mut report)?;
        core.check_disk();
        if report != GcReport::default() {
            tracing::info!(bookie = %core.id, ?report, "garbage collected");
        }
        Ok(report)
    }

    /// Rewrites every filled log with a live part below `threshold`. Blocks.
    ///
    /// # Errors
    /// [`StorageError`]; a log is either rewritten and gone, or still there.
    pub fn compact(&self, threshold: f64) -> Result<GcReport, StorageError> {
        let core = self.core();
        let mut report = GcReport::default();
        let uses = core.delete_dead_logs(&mut report)?;
        core.compact_below(threshold, &uses, &mut report)?;
        core.check_disk();
        Ok(report)
    }
}

impl Core {
    fn delete_ledgers(&self, gone: &[LedgerId], report: &mut GcReport) -> Result<(), StorageError> {
        let _flush = self.log_writer.lock();
        for ledger_id in gone {
            let mut ledgers = self.ledgers.lock();
            if self.cache.holds(*ledger_id) {
                continue;
            }
            let fenced = ledgers.get(*ledger_id, false)?.is_some_and(|state| state.fenced);
            let mut changes = Changes::default();
            changes.delete_ledger(*ledger_id, fenced);
            self.index.apply(changes)?;
            ledgers.remove(*ledger_id);
            self.read_cache.lock().forget(*ledger_id);
            report.deleted_ledgers += 1;
        }
        self.metrics.gc_deleted_ledgers.inc_by(report.deleted_ledgers);
        if report.deleted_ledgers > 0 { self.index.flush() } else { Ok(()) }
    }

    /// Leaves the log being written while the disk is short, so that what is dead in it can go (Q4).
    fn leave_log_if_short(&self) {
        if *self.disk.read() == DiskState::Writable {
            return;
        }
        // Outside a flush everything appended is synced.
        let mut writer = self.log_writer.lock();
        writer.leave();
        if let Err(error) = writer.seal_filled(|log| self.ledgers_of(log)) {
            tracing::warn!(bookie = %self.id, %error, "the entry log that was left has no ledger map yet");
        }
    }

    /// Deletes filled logs in which nothing is live; answers the use of the others.
    fn delete_dead_logs(&self, report: &mut GcReport) -> Result<Vec<LogUse>, StorageError> {
        let _flush = self.log_writer.lock();
        let mut live_bytes: BTreeMap<u32, u64> = BTreeMap::new();
        let mut alive: HashMap<LedgerId, bool> = HashMap::new();
        let mut changes = Changes::default();
        for ((log, ledger_id), bytes) in self.index.log_bytes()? {
            let live = match alive.get(&ledger_id) {
                Some(live) => *live,
                None => {
                    let live = self.index.ledger(ledger_id)?.is_some();
                    alive.insert(ledger_id, live);
                    live
                }
            };
            if live {
                *live_bytes.entry(log).or_default() += bytes;
            } else {
                changes.delete_log_row(log, ledger_id);
            }
        }
        if changes.len() > 0 {
            self.index.apply(changes)?;
            self.index.flush()?;
        }
        let mut uses = Vec::new();
        for info in self.logs.list().into_iter().filter(|info| !info.writing) {
            let log = info.name.id;
            match live_bytes.get(&log) {
                Some(live_bytes) => {
                    let file_bytes = std::fs::metadata(&info.path).map_or(0, |meta| meta.len());
                    uses.push(LogUse { log, live_bytes: *live_bytes, file_bytes });
                }
                None => {
                    report.freed_bytes += self.logs.delete(log)?;
                    report.deleted_logs += 1;
                    self.metrics.gc_deleted_logs.inc();
                }
            }
        }
        Ok(uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, proptest};
    use std::collections::BTreeSet;

    fn ids(numbers: impl IntoIterator<Item = i64>) -> Vec<LedgerId> {
        numbers.into_iter().map(LedgerId).collect()
    }

    #[test]
    fn b149_an_empty_listing_proves_nothing() {
        let listing = Listing::begin(ids([1, 2]));
        assert_eq!(listing.complete().unwrap_err(), EmptyListing { held: 2 });
        assert!(Listing::begin(Vec::new()).complete().unwrap().gone().is_empty());
    }

    #[test]
    fn an_empty_listing_with_proof_ends_below_the_next_id() {
        let listing = Listing::begin(ids([1, 2, 7, 8]));
        assert!(listing.names_nothing());
        assert_eq!(listing.complete_below(LedgerId(8)).gone(), ids([1, 2, 7]));
        assert!(
            Listing::begin(ids([1, 2])).complete_below(LedgerId(0)).gone().is_empty(),
            "a wiped store proves nothing"
        );
    }

    proptest! {
        #[test]
        fn only_known_and_unnamed_ledgers_are_gone(
            known in prop::collection::btree_set(0..50i64, 0..30),
            pages in prop::collection::vec(prop::collection::vec(0..50i64, 0..10), 0..6),
        ) {
            let mut listing = Listing::begin(ids(known.iter().copied()));
            for page in &pages {
                listing.page(ids(page.iter().copied()));
            }
            let named: BTreeSet<i64> = pages.iter().flatten().copied().collect();
            match listing.complete() {
                Ok(live) => assert_eq!(live.gone(), ids(known.difference(&named).copied())),
                Err(_) => assert!(named.is_empty()),
            }
        }
    }
}
