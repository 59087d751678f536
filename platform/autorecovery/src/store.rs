//! Reads of the metadata that this room and the ledger client keep.
//!
//! Invariants: E1 finding the holders costs one read a bookie, however much they hold.
//! Must never know: what is decided.

use crate::keys;
use crate::records::{Hopeless, Leaving, Repair};
use meridian_ledger::keys::{HOLDING_PREFIX, holding_key, holding_of, holdings_prefix};
use meridian_metadata::{Condition, MetadataError, MetadataStore, Operation, Version};
use meridian_types::{BookieId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};

/// Holdings asked for at once.
const PAGE: usize = 1_000;

/// Bookies that hold ledgers (E1).
pub(crate) async fn holders(store: &dyn MetadataStore) -> Result<BTreeSet<BookieId>, MetadataError> {
    let mut found = BTreeSet::new();
    let mut after: Option<String> = None;
    loop {
        let page = store.range(HOLDING_PREFIX, after.as_deref(), 1).await?;
        let Some(entry) = page.entries.first() else { return Ok(found) };
        match holding_of(&entry.key) {
            Some((bookie, _)) => {
                after = Some(holding_key(&bookie, LedgerId(i64::MAX)));
                found.insert(bookie);
            }
            None => after = Some(entry.key.clone()),
        }
    }
}

/// One page of a bookie's ledgers behind `after`, and where the next one begins.
pub(crate) async fn ledgers_of(
    store: &dyn MetadataStore,
    bookie: &BookieId,
    after: Option<LedgerId>,
) -> Result<(Vec<LedgerId>, Option<LedgerId>), MetadataError> {
    let after = after.map(|ledger_id| holding_key(bookie, ledger_id));
    let page = store.range(&holdings_prefix(bookie), after.as_deref(), PAGE).await?;
    let own = page.entries.iter().filter_map(|entry| holding_of(&entry.key)).filter(|(id, _)| id == bookie);
    let ledgers: Vec<_> = own.map(|(_, ledger_id)| ledger_id).collect();
    let next = page.next.and_then(|_| ledgers.last().copied());
    Ok((ledgers, next))
}

/// How many ledgers a bookie holds.
pub(crate) async fn count_ledgers(store: &dyn MetadataStore, bookie: &BookieId) -> Result<u64, MetadataError> {
    let (mut count, mut after) = (0, None);
    loop {
        let (ledgers, next) = ledgers_of(store, bookie, after).await?;
        count += ledgers.len() as u64;
        match next {
            Some(_) => after = next,
            None => return Ok(count),
        }
    }
}

/// Marks of bookies that leave.
pub(crate) async fn leaving(store: &dyn MetadataStore) -> Result<BTreeMap<BookieId, Leaving>, MetadataError> {
    let (mut found, mut after) = (BTreeMap::new(), None::<String>);
    loop {
        let page = store.range(keys::LEAVING_PREFIX, after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            let Some(bookie) = keys::leaving_of(&entry.key) else { continue };
            found.insert(bookie, Leaving::decode(&entry.value)?);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

/// The first marks of ledgers to be repaired.
pub(crate) async fn repairs(store: &dyn MetadataStore) -> Result<Vec<LedgerId>, MetadataError> {
    let page = store.range(keys::REPAIR_PREFIX, None, PAGE).await?;
    Ok(page.entries.iter().filter_map(|entry| keys::repair_of(&entry.key)).collect())
}

/// The mark of one ledger.
pub(crate) async fn repair(
    store: &dyn MetadataStore,
    ledger_id: LedgerId,
) -> Result<Option<(Repair, Version)>, MetadataError> {
    let Some(entry) = store.get(&keys::repair_key(ledger_id)).await? else { return Ok(None) };
    Ok(Some((Repair::decode(&entry.value)?, entry.version)))
}

/// Ledgers beyond recovery behind `after`, at most `limit`, and whether there are more.
pub(crate) async fn hopeless(
    store: &dyn MetadataStore,
    after: Option<LedgerId>,
    limit: usize,
) -> Result<(Vec<(LedgerId, Hopeless, Version)>, bool), MetadataError> {
    let after = after.map(keys::hopeless_key);
    let page = store.range(keys::HOPELESS_PREFIX, after.as_deref(), limit).await?;
    let mut found = Vec::with_capacity(page.entries.len());
    for entry in &page.entries {
        let Some(ledger_id) = keys::hopeless_of(&entry.key) else { continue };
        found.push((ledger_id, Hopeless::decode(&entry.value)?, entry.version));
    }
    Ok((found, page.next.is_some()))
}

/// Notes one more attempt at a ledger that failed for a reason that lasts.
pub(crate) async fn give_up_for_now(
    store: &dyn MetadataStore,
    ledger_id: LedgerId,
    now_ms: u64,
    reason: &str,
) -> Result<(), MetadataError> {
    let key = keys::hopeless_key(ledger_id);
    let before = store.get(&key).await?;
    // One that can't be read is written anew.
    let known = before.as_ref().and_then(|entry| Hopeless::decode(&entry.value).ok());
    let value = Hopeless::again(known.as_ref(), now_ms, reason).encode();
    let condition = before.map_or(Condition::Absent, |entry| Condition::Is(entry.version));
    let put = Operation::Put { key, value, condition, ephemeral: None };
    store.commit(vec![put]).await.map(drop)
}

/// Takes a holding away if the ledger's record is still as it was read (`None` = absent).
pub(crate) async fn drop_holding(
    store: &dyn MetadataStore,
    bookie: &BookieId,
    ledger_id: LedgerId,
    record: Option<Version>,
) -> Result<(), MetadataError> {
    let operations = vec![
        check(ledger_id, record),
        Operation::Delete { key: holding_key(bookie, ledger_id), condition: Condition::Any },
    ];
    store.commit(operations).await.map(drop)
}

/// The record of a ledger is still as it was read (`None` = absent).
pub(crate) fn check(ledger_id: LedgerId, record: Option<Version>) -> Operation {
    let condition = record.map_or(Condition::Absent, Condition::Is);
    Operation::Check { key: meridian_ledger::keys::record_key(ledger_id), condition }
}
