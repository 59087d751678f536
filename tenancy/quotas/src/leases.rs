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
use std::collections::HashMap;

/// How often a renewal is tried against others.
const TRIES: usize = 8;

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

    /// Renews one lease; answers how much may be used.
    ///
    /// # Errors
    /// [`QuotaError`]; what [`Leases::allowed`] says holds on.
    pub async fn renew(&self, need: &Need, now_ms: u64) -> Result<u64, QuotaError> {
        let key = keys::lease(need.limit, &need.place);
        let request =
            Request { total: need.total, demand: need.demand, in_use: need.in_use, now_ms, ttl_ms: self.config.ttl_ms };
        for _ in 0..TRIES {
            let found = self.store.get(&key).await?;
            let mut division = match &found {
                Some(entry) => decode::<Division>(&key, &entry.value)?,
                None => Division::default(),
            };
            let grant = division.renew(&self.config.holder, request);
            let condition = found.as_ref().map_or(Condition::Absent, |entry| Condition::Is(entry.version));
            match self.store.put(&key, encode(&key, &division)?, condition).await {
                Ok(_) => {
                    let held = Held { grant, holders: division.grants.len() as u64, total: need.total };
                    self.held.lock().insert((need.limit, need.place.clone()), held);
                    return Ok(grant.amount.min(need.total).max(need.in_use));
                }
                Err(MetadataError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(QuotaError::Busy(need.place.to_string()))
    }

    /// Gives back what is held of limits that are not needed any more.
    ///
    /// # Errors
    /// [`QuotaError`]; what was not given back ends by itself.
    pub async fn retain(&self, needs: &[Need]) -> Result<(), QuotaError> {
        let gone: Vec<(Limit, Place)> = {
            let held = self.held.lock();
            let needed = |one: &&(Limit, Place)| !needs.iter().any(|need| need.limit == one.0 && need.place == one.1);
            held.keys().filter(needed).cloned().collect()
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
