//! Reading a cursor's state back.
//!
//! Failure: a cursor's ledger that is lost or damaged does not keep the log from loading (field report B090): the cursor
//! goes back to the state in its record, which is older, so entries come again and none is passed over.

use super::ack_set::{AckSet, AckState};
use super::codec::{Assembler, StateKind, decode_chunk, decode_state, read_from};
use crate::api::LogError;
use crate::records::CursorRecord;
use crate::registry::Shared;
use meridian_ledger::{LedgerError, LedgerReader};
use meridian_types::{Classify, EntryId, ErrorClass, LedgerId};
use std::sync::atomic::Ordering;

const READ_ENTRIES: u32 = 1000;
const READ_BYTES: u64 = 4 << 20;

/// The state of a durable cursor.
pub(crate) async fn load(shared: &Shared, name: &str, record: &CursorRecord) -> Result<AckState, LogError> {
    let recorded = decode_state(&record.state)?;
    let Some(ledger_id) = record.ledger_id.map(LedgerId) else { return Ok(recorded) };
    match load_ledger(shared, ledger_id).await {
        Ok(Some(state)) => Ok(state),
        Ok(None) => Ok(recorded),
        Err(error) if is_lost(&error) => {
            shared.cursors_rewound.fetch_add(1, Ordering::Relaxed);
            let mark_delete = recorded.mark_delete;
            tracing::error!(cursor = name, %ledger_id, %error, %mark_delete, "cursor ledger is lost; entries come again");
            Ok(recorded)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn is_lost(error: &LogError) -> bool {
    matches!(error, LogError::Ledger(LedgerError::NoSuchLedger(_) | LedgerError::NoSuchEntry { .. }))
        || error.class() == ErrorClass::Corrupt
}

/// Fences the ledger against its last owner and reads the last snapshot and the deltas behind it.
async fn load_ledger(shared: &Shared, ledger_id: LedgerId) -> Result<Option<AckState>, LogError> {
    let reader = shared.ledgers.recover(ledger_id).await?;
    let last = reader.last_confirmed();
    if last == EntryId::NONE {
        return Ok(None);
    }
    let entry = reader.read(last, 1, u64::MAX).await?.into_iter().next();
    let entry = entry.ok_or_else(|| LogError::Corrupt(format!("entry {last} of {ledger_id} is missing")))?;
    let (head, _) = decode_chunk(&entry.payload)?;
    match read_from(last, &head) {
        Some(first) => replay(&*reader, first, last).await.map(Some),
        None => Ok(None),
    }
}

async fn replay(reader: &dyn LedgerReader, first: EntryId, last: EntryId) -> Result<AckState, LogError> {
    let mut assembler = Assembler::default();
    let mut set: Option<AckSet> = None;
    let mut next = first;
    while next <= last {
        let entries = reader.read(next, READ_ENTRIES, READ_BYTES).await?;
        let Some(read_to) = entries.last().map(|entry| entry.entry_id) else { break };
        for entry in &entries {
            match (assembler.push(&entry.payload)?, &mut set) {
                (Some((StateKind::Snapshot, state)), _) => set = Some(AckSet::load(state, false)),
                (Some((StateKind::Delta, delta)), Some(set)) => set.merge(delta),
                (Some((StateKind::Delta, _)), None) => {
                    return Err(LogError::Corrupt(format!("cursor delta at {} without a snapshot", entry.entry_id)));
                }
                (None, _) => {}
            }
        }
        next = read_to.next();
    }
    let set = set.ok_or_else(|| LogError::Corrupt(format!("no cursor snapshot at {first}")))?;
    Ok(set.state())
}
