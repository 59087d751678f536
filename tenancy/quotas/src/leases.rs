//! Divisions of limits in the metadata store, renewed by compare-and-set.
//!
//! Invariants: N2 of the crate: what is acted on was written before, and ends [`DRIFT_MS`] before others may take it.
//! Failure: while the store can't be reached, a lease that ended falls back to a fair share of the last division, and
//! a count to what is in use; both are said in the log once.
//! Must never know: what is limited.

use crate::lease::{DRIFT_MS, Division, Grant, Request};
use crate::record::{decode, encode};
use crate::{QuotaError, keys};
use meridian_metadata::{Condition, MetadataError, SharedStore};
use meridian_policy::quota::{Limit, Place};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use tokio::task::JoinSet;

/// How often a renewal is tried against others.
const TRIES: usize = 8;
/// Renewals under way at once.
const AT_ONCE: usize = 16;

/// How this broker leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    /// This broker.
    pub holder: String,
    /// How long a grant lasts.
    pub ttl_ms: u64,
}

/// What a broker needs of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The limit.
    pub limit: Limit,
    /// Where it is set.
    pub place: Place,
    /// Its value.
    pub total: u64,
    /// How much would be used.
    pub demand: u64,
    /// How much of a count is used.
    pub in_use: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    grant: Grant,
    holders: u64,
    total: u64,
}

/// The leases of one broker.
pub struct Leases {
    store: SharedStore,
    config: LeaseConfig,
    held: Mutex<HashMap<(Limit, Place), Held>>,
}

impl Leases {
    /// None yet.
    pub fn new(store: SharedStore, config: LeaseConfig) -> Self {
        Self { store, config, held: Mutex::default() }
    }

    /// How much may be used now without asking.
    pub fn allowed(&self, need: &Need, now_ms: u64) -> u64 {
        let held = self.held.lock();
        let Some(held) = held.get(&(need.limit, need.place.clone())) else { return need.in_use };
        // A limit that was lowered binds at once.
        let granted = held.grant.amount.min(need.total).max(need.in_use);
        if held.grant.until_ms.saturating_sub(DRIFT_MS) > now_ms {
            return granted;
        }
        match need.limit.is_rate() {
            true => granted.min(held.total / held.holders.max(1)),
            false => need.in_use,
        }
    }

    /// Whether something of a limit was leased before, also nothing.
    pub fn knows(&self, need: &Need) -> bool {
        self.held.lock().contains_key(&(need.limit, need.place.clone()))
    }

    /// Renews one lease; answers how much may be used.
    ///
    /// # Errors
    /// [`QuotaError`]; what [`Leases::allowed`] says holds on.
    pub async fn renew(&self, need: &Need, now_ms: u64) -> Result<u64, QuotaError> {
        let held = divide(&self.store, &self.config, need, now_ms).await?;
        self.held.lock().insert((need.limit, need.place.clone()), held);
        Ok(held.grant.amount.min(need.total).max(need.in_use))
    }

    /// Renews many leases, [`AT_ONCE`] at a time; answers what failed, for which [`Leases::allowed`] holds on.
    pub async fn renew_all(&self, needs: &[Need], now_ms: u64) -> Vec<(Need, QuotaError)> {
        let (mut running, mut failed) = (JoinSet::new(), Vec::new());
        let mut waiting = needs.iter();
        loop {
            while running.len() < AT_ONCE
                && let Some(need) = waiting.next()
            {
                let (store, config, need) = (self.store.clone(), self.config.clone(), need.clone());
                running.spawn(async move {
                    let divided = divide(&store, &config, &need, now_ms).await;
                    (need, divided)
                });
            }
            match running.join_next().await {
                Some(Ok((need, Ok(held)))) => drop(self.held.lock().insert((need.limit, need.place), held)),
                Some(Ok((need, Err(error)))) => failed.push((need, error)),
                Some(Err(error)) => tracing::error!(%error, "a renewal ended"),
                None => return failed,
            }
        }
    }

    /// Gives back what is held of limits that are not needed any more.
    ///
    /// # Errors
    /// [`QuotaError`]; what was not given back ends by itself.
    pub async fn retain(&self, needs: &[Need]) -> Result<(), QuotaError> {
        let gone: Vec<(Limit, Place)> = {
            let needed: HashSet<(Limit, &Place)> = needs.iter().map(|need| (need.limit, &need.place)).collect();
            let held = self.held.lock();
            held.keys().filter(|one| !needed.contains(&(one.0, &one.1))).cloned().collect()
        };
        for one in gone {
            self.release(one.0, &one.1).await?;
            self.held.lock().remove(&one);
        }
        Ok(())
    }

    async fn release(&self, limit: Limit, place: &Place) -> Result<(), QuotaError> {
        let key = keys::lease(limit, place);
        for _ in 0..TRIES {
            let Some(entry) = self.store.get(&key).await? else { return Ok(()) };
            let mut division = decode::<Division>(&key, &entry.value)?;
            division.release(&self.config.holder);
            let condition = Condition::Is(entry.version);
            let written = match division.grants.is_empty() {
                true => self.store.delete(&key, condition).await,
                false => self.store.put(&key, encode(&key, &division)?, condition).await,
            };
            match written {
                Ok(_) => return Ok(()),
                Err(MetadataError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(QuotaError::Busy(place.to_string()))
    }
}

/// One renewal in the store.
async fn divide(store: &SharedStore, config: &LeaseConfig, need: &Need, now_ms: u64) -> Result<Held, QuotaError> {
    let key = keys::lease(need.limit, &need.place);
    let request =
        Request { total: need.total, demand: need.demand, in_use: need.in_use, now_ms, ttl_ms: config.ttl_ms };
    for _ in 0..TRIES {
        let found = store.get(&key).await?;
        let mut division = match &found {
            Some(entry) => decode::<Division>(&key, &entry.value)?,
            None => Division::default(),
        };
        let grant = division.renew(&config.holder, request);
        let condition = found.as_ref().map_or(Condition::Absent, |entry| Condition::Is(entry.version));
        match store.put(&key, encode(&key, &division)?, condition).await {
            Ok(_) => return Ok(Held { grant, holders: division.grants.len() as u64, total: need.total }),
            Err(MetadataError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(QuotaError::Busy(need.place.to_string()))
}
