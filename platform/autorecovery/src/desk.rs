//! What operators ask and order: the list of bookies, taking one away, audits.
//!
//! Invariants: D1 an order is one key in metadata: whoever is auditor or worker then acts on it, and asking again shows
//! how far it is; D2 a bookie is not taken away if fewer writable ones would be left than the widest write quorum that an
//! operator says must be kept.
//! Failure: [`DeskError`], by who must act.
//! Must never know: who asks.

use crate::follow::HEAR_MS;
use crate::keys;
use crate::records::{Hopeless, Leaving, Reason, Report};
use crate::run::now_ms;
use crate::store;
use meridian_ledger::LedgerClient;
use meridian_metadata::{Condition, MetadataError, SharedStore};
use meridian_topology::Location;
use meridian_types::{BookieId, Classify, ErrorClass, LedgerId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Ledgers beyond recovery that are listed at once.
pub const HOPELESS_LINES_MAX: usize = 200;

/// Why an order was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeskError {
    /// Nobody knows this bookie.
    #[error("bookie {0} is not registered and holds no ledger")]
    UnknownBookie(BookieId),
    /// Too few would be left (D2).
    #[error("{left} writable bookies would be left, {needed} are needed")]
    TooFewLeft {
        /// Without it.
        left: usize,
        /// At least.
        needed: usize,
    },
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl Classify for DeskError {
    fn class(&self) -> ErrorClass {
        match self {
            DeskError::UnknownBookie(_) | DeskError::TooFewLeft { .. } => ErrorClass::Caller,
            DeskError::Metadata(error) => error.class(),
        }
    }
}

/// How a bookie is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BookieState {
    /// Takes new entries.
    Writable,
    /// Registered, but takes none.
    ReadOnly,
    /// Not registered.
    Missing,
    /// The listing of bookies is not known now.
    Unknown,
}

/// A bookie in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookieLine {
    /// Its id.
    pub id: BookieId,
    /// How it is.
    pub state: BookieState,
    /// Where it stands.
    pub location: Location,
    /// Ledgers that have it as a member.
    pub ledgers: u64,
    /// Its mark, if it leaves.
    pub leaving: Option<Leaving>,
}

/// How far it is with a bookie that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Its mark; `None` = it does not leave.
    pub leaving: Option<Leaving>,
    /// Ledgers that still have it as a member.
    pub ledgers_left: u64,
    /// The mark stands for so long that every process has heard of it and chooses the bookie no more.
    pub heard: bool,
}

impl Progress {
    /// Nothing of it is needed any more.
    pub fn is_done(&self) -> bool {
        self.leaving.is_some() && self.heard && self.ledgers_left == 0
    }
}

/// See the head of this file.
pub struct Desk {
    store: SharedStore,
    ledgers: Arc<LedgerClient>,
    hear_ms: u64,
}

impl Desk {
    /// Over the cluster's metadata and a ledger client, whose directory tells which bookies there are.
    pub fn new(store: SharedStore, ledgers: Arc<LedgerClient>) -> Self {
        Self { store, ledgers, hear_ms: HEAR_MS }
    }

    /// With another time after which every process is taken to have heard of a mark.
    pub fn hearing_within(self, hear_ms: u64) -> Self {
        Self { hear_ms, ..self }
    }

    fn state(&self, id: &BookieId, registered: Option<&BTreeSet<BookieId>>, writable: &[BookieId]) -> BookieState {
        match registered {
            None => BookieState::Unknown,
            Some(_) if writable.contains(id) => BookieState::Writable,
            Some(registered) if registered.contains(id) => BookieState::ReadOnly,
            Some(_) => BookieState::Missing,
        }
    }

    /// Every bookie that is registered, holds ledgers, or leaves.
    ///
    /// # Errors
    /// What metadata said.
    pub async fn list(&self) -> Result<Vec<BookieLine>, DeskError> {
        let directory = self.ledgers.bookies();
        let registered: Option<BTreeSet<BookieId>> = directory.registered().map(BTreeSet::from_iter);
        let writable = directory.writable();
        let leaving = store::leaving(&*self.store).await?;
        let mut all = store::holders(&*self.store).await?;
        all.extend(registered.iter().flatten().cloned());
        all.extend(leaving.keys().cloned());
        let mut lines = Vec::with_capacity(all.len());
        for id in all {
            let ledgers = store::count_ledgers(&*self.store, &id).await?;
            let state = self.state(&id, registered.as_ref(), &writable);
            let (location, leaving) = (directory.location(&id), leaving.get(&id).copied());
            lines.push(BookieLine { id, state, location, ledgers, leaving });
        }
        Ok(lines)
    }

    /// Has all ledgers of a bookie moved to others. `keep` writable bookies have to be left (D2).
    ///
    /// # Errors
    /// [`DeskError`].
    pub async fn decommission(&self, id: &BookieId, keep: usize) -> Result<Progress, DeskError> {
        let directory = self.ledgers.bookies();
        let mut leaving = store::leaving(&*self.store).await?;
        let known = directory.registered().is_some_and(|registered| registered.contains(id))
            || store::holders(&*self.store).await?.contains(id);
        if !known && !leaving.contains_key(id) {
            return Err(DeskError::UnknownBookie(id.clone()));
        }
        let stays = |other: &&BookieId| *other != id && !leaving.contains_key(*other);
        let left = directory.writable().iter().filter(stays).count();
        if left < keep {
            return Err(DeskError::TooFewLeft { left, needed: keep });
        }
        let now_ms = now_ms();
        let since_ms = leaving.remove(id).map_or(now_ms, |mark| mark.since_ms);
        let mark = Leaving { reason: Reason::Ordered, since_ms, due_ms: now_ms };
        self.store.put(&keys::leaving_key(id), mark.encode(), Condition::Any).await?;
        tracing::info!(bookie = %id, "a bookie is taken away by order");
        self.progress(id).await
    }

    /// Takes the order back; what was moved stays moved. The auditor marks a bookie that is missing anew.
    ///
    /// # Errors
    /// What metadata said.
    pub async fn recommission(&self, id: &BookieId) -> Result<(), DeskError> {
        self.store.delete(&keys::leaving_key(id), Condition::Any).await?;
        Ok(())
    }

    /// How far it is.
    ///
    /// # Errors
    /// What metadata said.
    pub async fn progress(&self, id: &BookieId) -> Result<Progress, DeskError> {
        let leaving = store::leaving(&*self.store).await?.remove(id);
        let heard = leaving.is_some_and(|mark| now_ms() >= mark.due_ms + self.hear_ms);
        Ok(Progress { leaving, ledgers_left: store::count_ledgers(&*self.store, id).await?, heard })
    }

    /// Orders an audit; answers when the order was given, to compare with [`Report::begun_ms`].
    ///
    /// # Errors
    /// What metadata said.
    pub async fn order_audit(&self) -> Result<u64, DeskError> {
        let now_ms = now_ms();
        self.store.put(keys::AUDIT_ORDER, now_ms.to_string(), Condition::Any).await?;
        Ok(now_ms)
    }

    /// What the last audit found.
    ///
    /// # Errors
    /// What metadata said.
    pub async fn report(&self) -> Result<Option<Report>, DeskError> {
        let Some(entry) = self.store.get(keys::AUDIT_REPORT).await? else { return Ok(None) };
        Ok(Some(Report::decode(&entry.value)?))
    }

    /// Ledgers that the bookies which are there can't bring back, the first [`HOPELESS_LINES_MAX`], and whether there are
    /// more.
    ///
    /// # Errors
    /// What metadata said.
    pub async fn hopeless(&self) -> Result<(Vec<(LedgerId, Hopeless)>, bool), DeskError> {
        let (marks, more) = store::hopeless(&*self.store, None, HOPELESS_LINES_MAX).await?;
        Ok((marks.into_iter().map(|(ledger_id, mark, _)| (ledger_id, mark)).collect(), more))
    }

    /// The name of the process that is auditor now.
    ///
    /// # Errors
    /// What metadata said.
    pub async fn auditor(&self) -> Result<Option<String>, DeskError> {
        let entry = self.store.get(keys::AUDITOR).await?;
        Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
    }
}
