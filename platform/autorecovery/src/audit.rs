//! One look at all ledgers: holdings put right, copies sampled, placement judged, repairs ordered.
//!
//! Invariants: U1 memory does not grow with the number of ledgers: records come in pages, and holdings with them; U2 a
//! holding is changed only together with the check that the record is as it was read; U3 a finding on a bookie that
//! leaves orders nothing: its ledgers are moved anyway; U4 at most [`AuditSettings::ledgers_per_second`].
//! Failure: a page of metadata that is not answered ends the audit without a report; a ledger that can't be looked at
//! is counted.
//! Must never know: who repairs.

use crate::keys;
use crate::records::{Repair, Report, ReportLine};
use crate::run::now_ms;
use crate::store;
use bytes::Bytes;
use meridian_ledger::keys::{HOLDING_VALUE, RECORD_PREFIX, holding_key, ledger_of};
use meridian_ledger::replicate::{Checked, Finding};
use meridian_ledger::{LedgerClient, LedgerRecord, LedgerState};
use meridian_metadata::{Condition, MetadataError, Operation, SharedStore, Version};
use meridian_types::{BookieId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Records of one page.
const PAGE: usize = 500;
/// Ledgers looked at at once.
const CHECKS_IN_FLIGHT: usize = 8;

/// How thorough and how fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AuditSettings {
    /// Copies looked at beside the first and last of each member's share.
    pub samples: u32,
    /// Ledgers looked at per second at most.
    pub ledgers_per_second: u64,
    /// Ensembles that do not keep the placement's rule are ordered to be moved.
    pub mends_placement: bool,
}

pub(crate) struct Audit {
    pub store: SharedStore,
    pub ledgers: Arc<LedgerClient>,
    pub settings: AuditSettings,
}

struct Page {
    records: Vec<(LedgerId, LedgerRecord, Version)>,
    /// Ledgers whose record can't be read: nothing of theirs is touched.
    unreadable: BTreeSet<LedgerId>,
    /// Behind this ledger,
    from: Option<LedgerId>,
    /// up to this one.
    to: LedgerId,
    next: Option<String>,
}

impl Audit {
    /// Looks at everything once and stores the report.
    pub(crate) async fn run(&self) -> Result<Report, MetadataError> {
        let mut report = Report { begun_ms: now_ms(), ..Report::default() };
        let holders = store::holders(&*self.store).await?;
        let registered: Option<BTreeSet<BookieId>> = self.ledgers.bookies().registered().map(BTreeSet::from_iter);
        let (mut after, mut from) = (None, None);
        loop {
            let page = self.page(after, from).await?;
            let leaving: BTreeSet<BookieId> = store::leaving(&*self.store).await?.into_keys().collect();
            self.mend_holdings(&page, &holders, &mut report).await?;
            for (_, record, _) in &page.records {
                let gone = |id: &BookieId| leaving.contains(id) || registered.as_ref().is_some_and(|r| !r.contains(id));
                report.ledgers += 1;
                report.open_ledgers += u64::from(record.state != LedgerState::Closed);
                report.under_replicated_ledgers += u64::from(members(record).iter().any(gone));
            }
            self.check_page(&page, &leaving, &mut report).await?;
            from = Some(page.to);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        report.ended_ms = now_ms();
        self.store.put(keys::AUDIT_REPORT, report.encode(), Condition::Any).await?;
        Ok(report)
    }

    async fn page(&self, after: Option<String>, from: Option<LedgerId>) -> Result<Page, MetadataError> {
        let read = self.store.range(RECORD_PREFIX, after.as_deref(), PAGE).await?;
        let (mut records, mut unreadable) = (Vec::new(), BTreeSet::new());
        for entry in &read.entries {
            let Some(ledger_id) = ledger_of(&entry.key) else { continue };
            match LedgerRecord::decode(&entry.value) {
                Ok(record) => records.push((ledger_id, record, entry.version)),
                Err(error) => {
                    tracing::error!(ledger = ledger_id.0, %error, "the record of a ledger can't be read");
                    unreadable.insert(ledger_id);
                }
            }
        }
        let last = read.entries.last().and_then(|entry| ledger_of(&entry.key));
        let to = last.filter(|_| read.next.is_some()).unwrap_or(LedgerId(i64::MAX));
        Ok(Page { records, unreadable, from, to, next: read.next })
    }

    /// Holdings of the page's ledgers are what its records say (U2).
    async fn mend_holdings(
        &self,
        page: &Page,
        holders: &BTreeSet<BookieId>,
        report: &mut Report,
    ) -> Result<(), MetadataError> {
        let mut wanted: BTreeMap<BookieId, BTreeSet<LedgerId>> =
            holders.iter().map(|bookie| (bookie.clone(), BTreeSet::new())).collect();
        let versions: BTreeMap<LedgerId, Version> =
            page.records.iter().map(|(id, _, version)| (*id, *version)).collect();
        for (ledger_id, record, _) in &page.records {
            for bookie in members(record) {
                wanted.entry(bookie).or_default().insert(*ledger_id);
            }
        }
        for (bookie, wanted) in wanted {
            let held = self.held(&bookie, page).await?;
            let differs = wanted.symmetric_difference(&held).filter(|id| !page.unreadable.contains(*id));
            for ledger_id in differs {
                let key = holding_key(&bookie, *ledger_id);
                let condition = Condition::Any;
                let change = match wanted.contains(ledger_id) {
                    true => {
                        Operation::Put { key, value: Bytes::from_static(&HOLDING_VALUE), condition, ephemeral: None }
                    }
                    false => Operation::Delete { key, condition },
                };
                let check = store::check(*ledger_id, versions.get(ledger_id).copied());
                match self.store.commit(vec![check, change]).await {
                    Ok(_) => report.mended_holdings += 1,
                    // Somebody changed the ledger, and its holdings with it.
                    Err(MetadataError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    async fn held(&self, bookie: &BookieId, page: &Page) -> Result<BTreeSet<LedgerId>, MetadataError> {
        let (mut held, mut after) = (BTreeSet::new(), page.from);
        loop {
            let (ledgers, next) = store::ledgers_of(&*self.store, bookie, after).await?;
            let beyond = ledgers.last().is_some_and(|last| *last > page.to);
            held.extend(ledgers.into_iter().filter(|id| *id <= page.to));
            match next {
                Some(_) if !beyond => after = next,
                _ => return Ok(held),
            }
        }
    }

    async fn check_page(
        &self,
        page: &Page,
        leaving: &BTreeSet<BookieId>,
        report: &mut Report,
    ) -> Result<(), MetadataError> {
        let mut beat =
            tokio::time::interval(Duration::from_micros(1_000_000 / self.settings.ledgers_per_second.max(1)));
        let mut checks = JoinSet::new();
        let mut ids = page.records.iter().map(|(id, _, _)| *id);
        loop {
            while checks.len() < CHECKS_IN_FLIGHT
                && let Some(ledger_id) = ids.next()
            {
                beat.tick().await;
                let (ledgers, samples) = (self.ledgers.clone(), self.settings.samples);
                checks.spawn(async move { (ledger_id, ledgers.check(ledger_id, samples).await) });
            }
            let Some(checked) = checks.join_next().await else { return Ok(()) };
            match checked {
                Ok((ledger_id, Ok(checked))) => self.note(ledger_id, checked, leaving, report).await?,
                Ok((_, Err(meridian_ledger::LedgerError::NoSuchLedger(_)))) => {}
                Ok((_, Err(_))) | Err(_) => report.failed_ledgers += 1,
            }
        }
    }

    async fn note(
        &self,
        ledger_id: LedgerId,
        checked: Checked,
        leaving: &BTreeSet<BookieId>,
        report: &mut Report,
    ) -> Result<(), MetadataError> {
        report.copies += checked.copies;
        report.unanswered_copies += checked.unanswered;
        report.misplaced_ensembles += u64::from(checked.misplaced);
        report.mendable_ensembles += u64::from(checked.mendable);
        let mend = self.settings.mends_placement && checked.mendable > 0;
        let mut short = BTreeSet::new();
        for (probe, finding) in checked.findings {
            if !leaving.contains(&probe.bookie) {
                short.insert(probe.bookie.clone());
            }
            let damaged = finding == Finding::Damaged;
            report.note(ReportLine { ledger_id, bookie: probe.bookie, entry_id: probe.entry_id, damaged });
        }
        if short.is_empty() && !mend {
            return Ok(());
        }
        if !short.is_empty() {
            tracing::warn!(ledger = ledger_id.0, bookies = ?short, "copies are missing or damaged; a repair is ordered");
        }
        let repair = Repair { bookies: short.into_iter().collect(), found_ms: now_ms(), mend };
        self.store.put(&keys::repair_key(ledger_id), repair.encode(), Condition::Any).await?;
        report.repairs += 1;
        Ok(())
    }
}

fn members(record: &LedgerRecord) -> BTreeSet<BookieId> {
    record.ensembles.iter().flat_map(|ensemble| ensemble.bookies.iter().cloned()).collect()
}
