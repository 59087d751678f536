//! Reading a ledger: the shell of the read machine, and the reader of ledgers that others write.
//!
//! Invariants: G1 nothing beyond the last confirmed entry is answered; G2 entries are answered without a gap, in
//! order, from the first one wanted.
//! Failure: another replica is asked; when all have failed the metadata is read again once, because a repair may have
//! moved the entry.
//! Must never know: what an entry means.

pub mod machine;

use crate::api::{LedgerEntry, LedgerError, LedgerReader};
use crate::context::Core;
use crate::layout::SlotSet;
use crate::record::{Ensemble, LedgerRecord, LedgerState};
use crate::stats::count;
use machine::{ReadMachine, Step, covering_members, replica_order};
use meridian_bookie_api::entry::digest_of;
use meridian_bookie_api::{BookieError, BoxFuture, ReadEntry, ReadRequest};
use meridian_placement::nearness;
use meridian_topology::Location;
use meridian_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// A ledger as known at the moment of a read.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) ledger_id: LedgerId,
    pub(crate) record: Arc<LedgerRecord>,
    pub(crate) last_confirmed: EntryId,
}

type Answer = Result<Vec<ReadEntry>, BookieError>;

/// Reads from a view; after a failure once more with the metadata as it is then.
pub(crate) async fn read(
    core: &Arc<Core>,
    view: View,
    first: EntryId,
    max_entries: u32,
    max_bytes: u64,
) -> Result<Vec<LedgerEntry>, LedgerError> {
    if first > view.last_confirmed || first < EntryId(0) {
        let (ledger_id, last_confirmed) = (view.ledger_id, view.last_confirmed);
        return Err(LedgerError::NoSuchEntry { ledger_id, entry_id: first, last_confirmed });
    }
    let error = match read_run(core, &view, first, max_entries, max_bytes).await {
        Ok(entries) => return Ok(entries),
        Err(error) => error,
    };
    match core.load(view.ledger_id).await {
        Ok((record, _)) if record.ensembles != view.record.ensembles => {
            let view = View { record: Arc::new(record), ..view };
            read_run(core, &view, first, max_entries, max_bytes).await
        }
        Ok(_) => Err(error),
        Err(gone @ LedgerError::NoSuchLedger(_)) => Err(gone),
        Err(_) => Err(error),
    }
}

/// Reads entries of one ensemble.
async fn read_run(
    core: &Core,
    view: &View,
    first: EntryId,
    max_entries: u32,
    max_bytes: u64,
) -> Result<Vec<LedgerEntry>, LedgerError> {
    let (ensemble, end) = view.record.ensemble_of(first);
    let end = EntryId(end.0.min(view.last_confirmed.0 + 1));
    let wanted = u32::try_from(end.0 - first.0).unwrap_or(u32::MAX).min(max_entries.max(1));
    if view.record.layout.is_striped() && wanted > 1 {
        return read_striped(core, view, ensemble, first, wanted, max_bytes).await;
    }
    let request = ReadRequest {
        ledger_id: view.ledger_id,
        first_entry_id: first,
        max_entries: wanted,
        max_bytes,
        gaps_allowed: false,
        fence: false,
    };
    let entries = read_replicas(core, view, ensemble, request).await?;
    Ok(contiguous(entries.into_iter().map(|e| (e.entry_id.0, e)), first, end, max_bytes))
}

/// The run without a gap from `first`, within the limits (G2).
fn contiguous(
    entries: impl Iterator<Item = (i64, ReadEntry)>,
    first: EntryId,
    end: EntryId,
    max_bytes: u64,
) -> Vec<LedgerEntry> {
    let mut run = Vec::with_capacity(entries.size_hint().0);
    let (mut next, mut bytes) = (first, 0u64);
    for (_, entry) in entries {
        let len = entry.payload.len() as u64;
        if entry.entry_id != next || next >= end || (!run.is_empty() && bytes + len > max_bytes) {
            break;
        }
        bytes += len;
        run.push(LedgerEntry { entry_id: entry.entry_id, payload: entry.payload });
        next = next.next();
    }
    run
}

/// Asks members that together hold everything at once; what is missing at the front is asked for alone.
async fn read_striped(
    core: &Core,
    view: &View,
    ensemble: &Ensemble,
    first: EntryId,
    wanted: u32,
    max_bytes: u64,
) -> Result<Vec<LedgerEntry>, LedgerError> {
    let request = ReadRequest {
        ledger_id: view.ledger_id,
        first_entry_id: first,
        max_entries: wanted,
        max_bytes,
        gaps_allowed: true,
        fence: false,
    };
    let end = EntryId(first.0 + i64::from(wanted));
    let members = covering_members(view.record.layout, view.ledger_id);
    let mut asked: Vec<_> = members.iter().map(|slot| ask(core, &ensemble.bookies[*slot], *slot, request)).collect();
    let mut found = BTreeMap::new();
    while let Some((_, answer)) = race(&mut asked).await {
        for entry in answer.unwrap_or_default() {
            if entry.entry_id >= first && entry.entry_id < end {
                found.insert(entry.entry_id.0, entry);
            }
        }
    }
    if !found.contains_key(&first.0) {
        let alone = ReadRequest { max_entries: 1, gaps_allowed: false, ..request };
        for entry in read_replicas(core, view, ensemble, alone).await? {
            found.insert(entry.entry_id.0, entry);
        }
    } else {
        count(&core.counters.reads_first_replica, found.len() as u64);
    }
    Ok(contiguous(found.into_iter(), first, end, max_bytes))
}

/// Asks one replica after the other; a late one gets company.
async fn read_replicas(
    core: &Core,
    view: &View,
    ensemble: &Ensemble,
    request: ReadRequest,
) -> Result<Vec<ReadEntry>, LedgerError> {
    let first = request.first_entry_id;
    let suspects = suspects(core, &ensemble.bookies);
    let mut order = replica_order(view.record.layout, view.ledger_id, first, suspects);
    if core.config.location != Location::default() {
        // The nearest first, those that failed lately last as before.
        let distance = |slot: usize| nearness(&core.config.location, &core.bookies.location(&ensemble.bookies[slot]));
        order.sort_by_key(|slot| (suspects.has(*slot), distance(*slot)));
    }
    let mut machine = ReadMachine::new(view.ledger_id, first, order);
    let mut asked = Vec::with_capacity(1);
    asked.extend(machine.next_member().map(|slot| ask(core, &ensemble.bookies[slot], slot, request)));
    let hedge = match core.config.read_hedge_ms {
        0 => Duration::MAX,
        set => Duration::from_millis(set),
    };
    loop {
        let answer = match tokio::time::timeout(hedge, race(&mut asked)).await {
            Ok(answer) => answer,
            Err(_) => {
                if let Some(slot) = machine.next_member() {
                    count(&core.counters.hedged_reads, 1);
                    asked.push(ask(core, &ensemble.bookies[slot], slot, request));
                }
                continue;
            }
        };
        let Some((slot, answer)) = answer else {
            return Err(LedgerError::QuorumUnavailable {
                ledger_id: view.ledger_id,
                reason: "no replica is known".to_owned(),
            });
        };
        let error = match answer {
            Ok(entries) => {
                let source = if machine.is_first() {
                    &core.counters.reads_first_replica
                } else {
                    &core.counters.reads_other_replica
                };
                count(source, entries.len() as u64);
                return Ok(entries);
            }
            Err(error) => error,
        };
        if matches!(error, BookieError::Corrupt(_)) {
            count(&core.counters.corrupt_replicas, 1);
            tracing::warn!(ledger = view.ledger_id.0, entry = first.0, bookie = %ensemble.bookies[slot], %error,
                           "replica is damaged");
        }
        if matches!(error, BookieError::Timeout(_) | BookieError::Unavailable(_) | BookieError::Io(_)) {
            core.quarantine([ensemble.bookies[slot].clone()]);
        }
        match machine.failed(ensemble.bookies[slot].clone(), error) {
            Step::Ask(slot) => asked.push(ask(core, &ensemble.bookies[slot], slot, request)),
            Step::Wait => {}
            Step::Failed(error) => return Err(error),
        }
    }
}

fn suspects(core: &Core, bookies: &[BookieId]) -> SlotSet {
    let mut set = SlotSet::EMPTY;
    if bookies.len() > 1 {
        let mut quarantine = core.quarantine.lock();
        quarantine.expire(core.now_ms());
        for (slot, bookie) in bookies.iter().enumerate() {
            if quarantine.holds(bookie) {
                set.insert(slot);
            }
        }
    }
    set
}

type Asked = Pin<Box<dyn Future<Output = (usize, Answer)> + Send>>;

/// One request to one bookie, with its deadline and its answer checked.
pub(crate) fn ask(core: &Core, bookie: &BookieId, slot: usize, request: ReadRequest) -> Asked {
    let found = core.bookies.get(bookie);
    let (limit_ms, verify) = (core.config.read_timeout_ms, core.config.verify_reads || request.fence);
    Box::pin(async move {
        let Some(bookie) = found else {
            return (slot, Err(BookieError::Unavailable("not in the directory".to_owned())));
        };
        let answer = match tokio::time::timeout(Duration::from_millis(limit_ms), bookie.read(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(BookieError::Timeout(limit_ms)),
        };
        (slot, answer.and_then(|entries| check(request, entries, verify)))
    })
}

/// An answer must hold the first entry (unless gaps are allowed) and the bytes that were written.
fn check(request: ReadRequest, mut entries: Vec<ReadEntry>, verify: bool) -> Answer {
    let misses_first = entries.first().is_none_or(|e| e.entry_id != request.first_entry_id);
    if misses_first && !request.gaps_allowed {
        return Err(BookieError::Io("the answer does not begin with the entry asked for".to_owned()));
    }
    if verify {
        let damaged = entries.iter().position(|e| digest_of(request.ledger_id, e.entry_id, &e.payload) != e.digest);
        match damaged {
            Some(0) => return Err(BookieError::Corrupt("the digest does not match the bytes".to_owned())),
            Some(at) => entries.truncate(at),
            None => {}
        }
    }
    Ok(entries)
}

/// The first of several futures to finish; it is taken out. `None` = there is none left.
async fn race(asked: &mut Vec<Asked>) -> Option<(usize, Answer)> {
    if asked.is_empty() {
        return None;
    }
    poll_fn(|context| {
        for at in 0..asked.len() {
            if let Poll::Ready(answer) = asked[at].as_mut().poll(context) {
                drop(asked.swap_remove(at));
                return Poll::Ready(Some(answer));
            }
        }
        Poll::Pending
    })
    .await
}

/// A reader of a closed ledger, or of an open one without fencing it.
pub(crate) struct Reader {
    core: Arc<Core>,
    view: Mutex<View>,
    ledger_id: LedgerId,
}

impl Reader {
    pub(crate) fn new(core: Arc<Core>, ledger_id: LedgerId, record: LedgerRecord) -> Self {
        let view = View { ledger_id, last_confirmed: record.last_entry, record: Arc::new(record) };
        Self { core, view: Mutex::new(view), ledger_id }
    }

    /// How far the ledger may be read, before the first read.
    pub(crate) async fn begin(&self) -> Result<(), LedgerError> {
        let record = self.view.lock().record.as_ref().clone();
        if record.state == LedgerState::Closed { Ok(()) } else { self.take(record).await }
    }

    /// Asks metadata, and the last ensemble if the ledger is not closed, how far it may be read.
    async fn refresh(&self) -> Result<(), LedgerError> {
        let (record, _) = self.core.load(self.ledger_id).await?;
        self.take(record).await
    }

    async fn take(&self, record: LedgerRecord) -> Result<(), LedgerError> {
        let mut last_confirmed = record.last_entry;
        if record.state != LedgerState::Closed {
            let ensemble = record.last_ensemble();
            // All entries before the last ensemble were confirmed when it began (S5).
            last_confirmed =
                EntryId(ensemble.first.0 - 1).max(ask_last_confirmed(&self.core, self.ledger_id, ensemble).await?);
        }
        let mut view = self.view.lock();
        view.last_confirmed = view.last_confirmed.max(last_confirmed);
        view.record = Arc::new(record);
        Ok(())
    }
}

/// The highest last-add-confirmed that a member of the ensemble knows; one answer is enough.
async fn ask_last_confirmed(core: &Core, ledger_id: LedgerId, ensemble: &Ensemble) -> Result<EntryId, LedgerError> {
    let limit_ms = core.config.read_timeout_ms;
    let (mut highest, mut reasons) = (None, Vec::new());
    for id in &ensemble.bookies {
        let Some(bookie) = core.bookies.get(id) else {
            reasons.push(format!("{id}: not in the directory"));
            continue;
        };
        let call = bookie.last_add_confirmed(ledger_id);
        match tokio::time::timeout(Duration::from_millis(limit_ms), call).await {
            Ok(Ok(state)) => highest = highest.max(Some(state.last_add_confirmed)),
            Ok(Err(BookieError::NoSuchLedger)) => highest = highest.max(Some(EntryId::NONE)),
            Ok(Err(error)) => reasons.push(format!("{id}: {error}")),
            Err(_) => reasons.push(format!("{id}: no answer within {limit_ms} ms")),
        }
    }
    highest.ok_or_else(|| LedgerError::QuorumUnavailable { ledger_id, reason: reasons.join("; ") })
}

impl LedgerReader for Reader {
    fn id(&self) -> LedgerId {
        self.ledger_id
    }

    fn last_confirmed(&self) -> EntryId {
        self.view.lock().last_confirmed
    }

    fn length_bytes(&self) -> u64 {
        self.view.lock().record.length_bytes
    }

    fn length_is_exact(&self) -> bool {
        self.view.lock().record.length_exact
    }

    fn read(
        &self,
        first: EntryId,
        max_entries: u32,
        max_bytes: u64,
    ) -> BoxFuture<'_, Result<Vec<LedgerEntry>, LedgerError>> {
        Box::pin(async move {
            let mut view = self.view.lock().clone();
            if first > view.last_confirmed && view.record.state != LedgerState::Closed {
                self.refresh().await?;
                view = self.view.lock().clone();
            }
            read(&self.core, view, first, max_entries, max_bytes).await
        })
    }
}
